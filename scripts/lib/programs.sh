# Sourced by scripts/test after setup.sh: test programs that cargo has built once run side by side, and again under other
# conditions without another build. `cargo test` runs one program after the other, while many of ours wait for a device.
# shellcheck shell=bash

# build_programs LIST ARGUMENT...: builds with `cargo test ARGUMENT...` and writes a line for each program to LIST: its package, its
# kind (lib, bin, test), its name, its path, tabs between them.
build_programs() {
    local list=$1
    shift
    cargo test --no-run --message-format json-render-diagnostics "$@" >"$list.json" || return 1
    sed -n '/"test":true},"features"/s|.*"manifest_path":"[^"]*/crates/\([^/"]*\)/Cargo.toml","target":{"kind":\["\([a-z]*\)".*"name":"\([^"]*\)","src_path".*"executable":"\([^"]*\)".*|\1\t\2\t\3\t\4|p' \
        "$list.json" >"$list"
    [ "$(wc -l <"$list")" -gt 0 ] || fail "cargo named no test program"
}

# run_program LIMIT_S LINE ARGUMENT...: one program of the list as cargo would run it, its output in one piece.
run_program() {
    local limit=$1 package kind name path output status=0 begun=$SECONDS
    IFS=$'\t' read -r package kind name path <<<"$2"
    shift 2
    output=$(mktemp)
    (cd "crates/$package" && CARGO_PKG_NAME=$package CARGO_MANIFEST_DIR=$PWD \
        exec timeout --kill-after=10 "$limit" "$path" "$@") >"$output" 2>&1 </dev/null || status=$?
    [ "$status" -ne 124 ] || say "stopped after $limit s: the last test named above without a result hangs" >>"$output"
    {
        flock 8
        printf '\n     Running %s %s %s, %d s\n' "$package" "$kind" "$name" $((SECONDS - begun))
        cat "$output"
        [ "$status" -eq 0 ] || say "FAILED: $package $kind $name, exit status $status"
    } 8>>"$path.lock"
    rm -f "$output" "$path.lock"
    return "$status"
}

# run_programs LANES LIST ARGUMENT...: all programs of the list, so many at once. Fails if one failed, after all of them.
run_programs() {
    local lanes=$1 list=$2
    shift 2
    export -f run_program say
    export SHELL=/bin/bash
    xargs -d '\n' -P "$lanes" -I LINE bash -c 'run_program 2400 "$@"' run_program LINE "$@" <"$list"
}
