# Sourced after setup.sh: programs for virtual machines, and runs of vm/run whose console is kept when they fail.
# shellcheck shell=bash

# program PACKAGE KIND NAME [OPTION...]: prints where a test program, an example or a binary lies: what scripts/test has built, or
# what cargo builds now, with these options.
program() {
    local package=$1 kind=$2 name=$3 path command=(build)
    shift 3
    if path=$(built "$package" "$kind" "$name" 2>/dev/null); then
        say "$path"
        return
    fi
    [ "$kind" != test ] || command=(test --no-run)
    # The number at a name's end changes with what the program is made of: cargo says which it is.
    path=$(cargo "${command[@]}" --package "$package" "--$kind" "$name" "$@" --message-format json-render-diagnostics \
        | sed -n 's/.*"kind":\["'"$kind"'"\].*"name":"'"$name"'".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1) || return 1
    [ -n "$path" ] || fail "cargo built no $kind $name of $package"
    say "$path"
}

# machine NAME OPTION...: vm/run with these. Of a run that fails the console is kept, and it says where. QEMU's emulated NVMe device now and
# then leaves a command without an answer until the kernel resets it after a minute, which fails whatever waits for it: the kernel says so
# on the console, and the run says nothing of Forebay. Then it runs once more.
machine() {
    local console status=0
    console=$(target_dir)/vm-logs/$1.console
    shift
    mkdir -p "${console%/*}"
    rm -f "$console" "$console.lost"
    vm/run --console "$console" "$@" || status=$?
    if [ "$status" -ne 0 ] && grep -qE 'nvme nvme[0-9]+: I/O .* timeout' "$console"; then
        mv "$console" "$console.lost"
        say "the emulated NVMe device left commands without an answer ($console.lost): the machine runs once more" >&2
        status=0
        vm/run --console "$console" "$@" || status=$?
    fi
    if [ "$status" -eq 0 ]; then
        rm -f "$console"
    else
        say "the machine's console: $console" >&2
    fi
    return "$status"
}
