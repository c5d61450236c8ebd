# Sourced by vm/run: QEMU's side of a run. Uses the options that vm/run has read.
# shellcheck shell=bash
# shellcheck disable=SC2154,SC2054 # set by vm/run; QEMU's options have commas

require_machine() {
    local missing=()
    command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
    command -v cpio >/dev/null || missing+=(cpio)
    command -v depmod >/dev/null || missing+=(kmod)
    command -v xz >/dev/null || missing+=(xz-utils)
    command -v strip >/dev/null || missing+=(binutils)
    { command -v apt-get && command -v dpkg; } >/dev/null || fail "the kernels are Debian packages: this needs apt and dpkg"
    [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}" >&2
}

# A word as a POSIX shell reads it back.
quoted() {
    printf "'%s' " "${1//\'/\'\\\'\'}"
}

# stage_run COMMAND...: what this run adds to the guest's first file system.
stage_run() {
    local stage=$work/stage file word
    mkdir -p "$stage/etc/vm"
    for file in "${files[@]}"; do
        case $file in
            *:*) stage_file "$stage" "${file%%:*}" "${file#*:}" "$base.libraries" ;;
            *) stage_file "$stage" "$file" "/vm/$(basename "$file")" "$base.libraries" ;;
        esac
    done
    {
        for word in "${environment[@]}"; do
            printf 'export %s=' "${word%%=*}"
            quoted "${word#*=}"
            printf '\n'
        done
        printf 'exec '
        for word in "$@"; do quoted "$word"; done
        printf '\n'
    } >"$stage/etc/vm/command"
    sed "s/^null_blk\$/${null_blk:+null_blk $null_blk}/; s/^nvme\$/nvme poll_queues=1/; /^\$/d" <(sed -n 's/^+//p' "$vm/modules") >"$stage/etc/vm/load"
    pack "$stage" >"$work/run.cpio"
    # The kernel wants each archive to begin at a multiple of four bytes; cpio pads to 512.
    cat "$base" "$work/run.cpio" >"$initrd"
    rm -rf "$stage" "$work/run.cpio"
}

# drive ID IMAGE: QEMU's words for what is behind a device.
drive() {
    local place=${2%%,*} options=''
    [ "$place" = "$2" ] || options=,${2#*,}
    case $place in
        unix:*) place=file.driver=nbd,file.server.type=unix,file.server.path=${place#unix:} ;;
        [0-9]*[KMG])
            truncate -s "$place" "$work/$1.img"
            place=file=$work/$1.img,file.locking=off
            ;;
        *)
            [ -f "$place" ] || [ -b "$place" ] || fail "no image $place"
            place=file=$place,file.locking=off
            ;;
    esac
    say "$place,if=none,id=$1,format=raw$options"
}

# kvm_boots: whether a kernel of this series comes up with KVM here. Nested KVM may be there and still not boot one, so it
# is tried once for each boot of this machine.
kvm_boots() {
    local seen
    [ -w /dev/kvm ] || return 1
    seen=$cache/kvm-$series-$(cut -c1-8 /proc/sys/kernel/random/boot_id)
    if [ ! -f "$seen" ]; then
        if "$vm/run" --kernel "$series" --accel kvm --limit 15 true >/dev/null 2>&1; then say yes; else say no; fi >"$seen"
    fi
    [ "$(cat "$seen")" = yes ]
}

start_machine() {
    local port arguments number=0 disk cpu=max
    if [ -n "$icount" ]; then
        accel=tcg cpus=1
        arguments=(-accel tcg,thread=single -icount 'shift=0,sleep=off')
    else
        if [ "$accel" = auto ]; then
            if kvm_boots; then accel=kvm; else accel=tcg; fi
        fi
        case $accel in
            # One thread for all processors: with one each, a processor may go on in what was translated before another has
            # patched the kernel, and meets an int3 that nobody expects. Two machines side by side fill this host all the same.
            tcg) if [ -n "$parallel" ]; then arguments=(-accel tcg,thread=multi); else arguments=(-accel tcg,thread=single); fi ;;
            kvm) arguments=(-accel kvm) cpu=max,-arch-capabilities ;;
            *) fail "--accel is tcg, kvm or auto" ;;
        esac
    fi
    arguments+=(
        -cpu "$cpu" -smp "$cpus" -m "$memory" -nodefaults -no-reboot -display none -nic none
        -kernel "$cache/linux-$series/vmlinuz" -initrd "$initrd"
        -append "console=ttyS0 loglevel=5 panic=-1 oops=panic no_timer_check tsc=reliable random.trust_cpu=on $append"
        -serial "file:$work/console" -device virtio-rng-pci -pidfile "$work/pid"
        -device virtio-serial-pci,max_ports=16
    )
    [ "$nvme" = none ] || arguments+=(-drive "$(drive nvme0 "$nvme")" -device nvme,drive=nvme0,serial=forebay0)
    for disk in "${disks[@]}"; do
        [ "$disk" != none ] || continue
        arguments+=(
            -drive "$(drive "disk$number" "$disk")"
            -device "virtio-blk-pci,drive=disk$number,serial=disk$number"
        )
        number=$((number + 1))
    done
    for port in status kernel files; do
        [ "$port" != files ] || [ -n "$out" ] || continue
        arguments+=(-chardev "file,id=$port,path=$work/$port" -device "virtserialport,chardev=$port,name=$port")
    done
    # Shown as it comes. A pipe between, because QEMU opens a path.
    for port in stdout stderr; do
        rm -f "$work/$port"
        mkfifo "$work/$port"
        arguments+=(-chardev "file,id=$port,path=$work/$port" -device "virtserialport,chardev=$port,name=$port")
    done
    cat "$work/stdout" & readers+=($!)
    cat "$work/stderr" >&2 & readers+=($!)
    begun=$SECONDS
    timeout --kill-after=5 "$limit" qemu-system-x86_64 "${arguments[@]}" "${extra[@]}" 2>"$work/qemu" </dev/null &
    machine=$!
}

wait_machine() {
    ended=0
    wait "$machine" || ended=$?
    machine=''
    # Where QEMU did not come to opening them, the readers wait for ever.
    if [ "$ended" -ne 0 ]; then
        kill "${readers[@]}" 2>/dev/null || true
    fi
    wait "${readers[@]}" 2>/dev/null || true
    readers=()
}

# fell_over: before the command has begun, a failure says nothing about anybody's work; with --parallel QEMU 7.2 causes some.
fell_over() {
    [ -z "$incoming" ] && [ ! -s "$work/status" ] && [ "$ended" -ne 124 ] && [ "$ended" -ne 137 ] \
        && [ -s "$work/console" ] && ! grep -aq 'vm: up after' "$work/console"
}

# kernel_warnings: the lines of the console and of the kernel's own log that are about an error of the kernel.
kernel_warnings() {
    cat "$work/console" "$work/kernel" 2>/dev/null | tr -d '\r' | grep -aE \
        '(\] |^)(WARNING: |BUG: |Oops|kernel BUG at|general protection fault|KASAN|KCSAN|UBSAN|INFO: task .* blocked|INFO: rcu|rcu: INFO|watchdog: BUG|possible (circular|recursive) locking|INFO: trying to register non-static key|ODEBUG: |unregister_netdevice|Kernel panic)' \
        | sed 's/^\[ *[0-9.]*\] //' | awk '!seen[$0]++'
}

console_end() {
    say "the console's last lines:"
    tr -d '\r' <"$work/console" 2>/dev/null | tail -n 60 | sed 's/^/    /'
}

report_machine() {
    local code warnings
    code=$(cat "$work/status" 2>/dev/null || true)
    warnings=$(kernel_warnings || true)
    if [ -n "$warnings" ]; then
        { say "vm: the kernel warned:"; printf '%s\n' "$warnings" | sed 's/^/    /'; } >&2
    fi
    if [ -n "$out" ] && [ -s "$work/files" ]; then
        mkdir -p "$out"
        tar -x -C "$out" -f "$work/files" || fail "the files from the guest are cut off"
    fi
    if [ -z "$code" ]; then
        {
            cat "$work/qemu"
            if [ "$ended" -eq 124 ] || [ "$ended" -eq 137 ]; then
                say "vm: stopped after the limit of $limit s"
            else
                say "vm: the guest ended without a result after $((SECONDS - begun)) s"
            fi
            console_end
        } >&2
        if [ "$ended" -eq 124 ] || [ "$ended" -eq 137 ]; then exit 124; fi
        exit 125
    fi
    if [ "$code" -eq 0 ] && [ -n "$strict" ] && [ -n "$warnings" ]; then
        code=122
        console_end >&2
    fi
    exit "$code"
}
