# Sourced by fetch.sh: the kernel `debug`, which Debian does not have, built from its source of 6.12 with vm/debug.config.
# shellcheck shell=bash
# shellcheck disable=SC2154 # set by fetch.sh

# build_debug: kernel, modules and headers, laid out in the cache as those of Debian's kernels are. Others go on with theirs meanwhile:
# only a second build waits.
build_debug() {
    local pahole=$cache/headers-6.12/libraries/root/usr/bin/pahole missing=()
    exec 8>"$cache/lock-debug"
    flock 8
    if [ ! -f "$cache/linux-debug/version" ]; then
        command -v make >/dev/null || missing+=(make)
        command -v gcc >/dev/null || missing+=(gcc libc6-dev)
        command -v flex >/dev/null || missing+=(flex)
        command -v bison >/dev/null || missing+=(bison)
        command -v bc >/dev/null || missing+=(bc)
        command -v depmod >/dev/null || missing+=(kmod)
        command -v xz >/dev/null || missing+=(xz-utils)
        [ -f /usr/include/libelf.h ] || missing+=(libelf-dev)
        [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}" >&2
        # In a shell of its own, whose trap leaves the caller's as it is. No `||` behind it: what fails in there has to end it.
        (
            build=${FOREBAY_VM_BUILD:-}
            if [ -z "$build" ]; then
                build=$(mktemp -d "${TMPDIR:-/tmp}/forebay-vm-debug.XXXXXX")
                trap 'rm -rf "$build"' EXIT
            fi
            mkdir -p "$build"
            build=$(realpath "$build")
            exec 9>"$cache/lock"
            flock 9
            # The pahole of Debian's kernel: it has to be as new as the kernel.
            fetch_headers 6.12
            fetch_source "$build"
            exec 9>&-
            compile_debug "$build" "$pahole"
            keep_debug "$build" "$pahole"
        )
    fi
    exec 8>&-
}

# fetch_source FOLDER: Debian's source of 6.12, as Debian patches it, unless it is there.
fetch_source() {
    local source=$1/linux-source-6.12
    [ ! -f "$source/unpacked" ] || return 0
    kernel_lists
    say "fetching the source of Linux 6.12" >&2
    unpack kernel "$1/package" linux-source-6.12
    rm -rf "$source"
    tar -xf "$1/package/root/usr/src/linux-source-6.12.tar.xz" -C "$1"
    rm -rf "$1/package"
    : >"$source/unpacked"
}

# compile_debug FOLDER PAHOLE: source and objects lie in FOLDER. One that was there before goes on where it ended.
compile_debug() {
    local source=$1/linux-source-6.12 objects=$1/build begun=$SECONDS line
    if ! cmp -s "$vm/debug.config" "$objects/asked.config"; then
        make -C "$source" O="$objects" PAHOLE="$2" KCONFIG_ALLCONFIG="$vm/debug.config" allnoconfig >"$1/log" 2>&1 \
            || { tail -n 20 "$1/log" >&2; return 1; }
        # What depends on something else that is off goes without a word.
        while read -r line; do
            grep -qxF "$line" "$objects/.config" || fail "vm/debug.config asks for $line, and this source does not give it"
        done < <(grep CONFIG_ "$vm/debug.config")
        cp "$vm/debug.config" "$objects/asked.config"
    fi
    # Modules refer to types of the kernel by number, and make does not link them again when the kernel's have changed.
    find "$objects" -name '*.ko' -delete
    say "building Linux $(make -s -C "$source" O="$objects" PAHOLE="$2" kernelrelease) in $1 (its log: $1/log)" >&2
    make -C "$source" O="$objects" PAHOLE="$2" -j"$(nproc)" bzImage modules >"$1/log" 2>&1 \
        || { grep -B 5 -A 10 -m 1 -E 'error|Error' "$1/log" >&2; return 1; }
    say "built in $((SECONDS - begun)) s" >&2
}

# keep_debug FOLDER PAHOLE: from FOLDER into the cache. `version` comes last: with it, the kernel is there.
keep_debug() {
    local source=$1/linux-source-6.12 objects=$1/build version image=$cache/linux-debug headers=$cache/headers-debug tree
    version=$(cat "$objects/include/config/kernel.release")
    tree=$headers/root/usr/src/linux-headers-$version
    rm -rf "$image" "$headers" "$cache/initramfs-$version-"*
    mkdir -p "$image/root/boot" "$tree"
    cp "$objects/arch/x86/boot/bzImage" "$image/root/boot/vmlinuz-$version"
    ln -s "root/boot/vmlinuz-$version" "$image/vmlinuz"
    make -C "$source" O="$objects" PAHOLE="$2" INSTALL_MOD_PATH="$image/root" INSTALL_MOD_STRIP=1 modules_install >>"$1/log" 2>&1 || return 1
    rm -f "$image/root/lib/modules/$version/build"
    make -C "$source" O="$objects" PAHOLE="$2" run-command \
        KBUILD_RUN_COMMAND="\$(srctree)/scripts/package/install-extmod-build $tree" >>"$1/log" 2>&1 || return 1
    cp "$objects/.config" "$tree/"
    cp "$objects/System.map" "$image/root/boot/System.map-$version"
    sed -i "s|^PAHOLE\([[:space:]]*\)=.*|PAHOLE\1= $2|" "$tree/Makefile"
    # Of the kernel itself, a module is built with its types alone.
    objcopy --only-section=.BTF "$objects/vmlinux" "$tree/vmlinux" 2>>"$1/log" || return 1
    say "$version" >"$headers/version"
    say "$version" >"$image/version"
}
