# Sourced by vm/run after fetch.sh: makes the guest's first file system. One archive for each kernel is kept; what a
# single run adds comes in a second one behind it, as the kernel unpacks any number of them.
# shellcheck shell=bash
# shellcheck disable=SC2154 # set by fetch.sh

# tool_path NAME: where the unpacked packages have it.
tool_path() {
    local place
    for place in usr/sbin usr/bin sbin bin; do
        [ ! -f "$cache/tools/root/$place/$1" ] || { say "$place/$1"; return; }
    done
    fail "the tools in $cache/tools have no $1; remove that folder to fetch them again"
}

# libraries FILE: what the loader of the unpacked packages would load for it, as paths below their root.
libraries() {
    local root=$cache/tools/root
    "$root/lib64/ld-linux-x86-64.so.2" --library-path "$root/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu" \
        --list "$1" 2>/dev/null | grep -oE "$root/[^ ]+" | sed "s|^$root/||" || true
}

pack() {
    (cd "$1" && find . -mindepth 1 -printf '%P\n' | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0)
}

# wanted_modules SERIES: their files, dependencies first, as paths below the modules' folder.
wanted_modules() {
    local folder name
    folder=$cache/linux-$1/root/lib/modules/$(cat "$cache/linux-$1/version")
    [ -f "$folder/modules.dep" ] || depmod -b "$cache/linux-$1/root" "$(cat "$cache/linux-$1/version")"
    sed 's/^+//; /^#/d; /^$/d' "$vm/modules" | while read -r name; do
        # Either spelling; what this kernel has built in or no longer has is no module.
        awk -F: -v name="${name//_/-}" '
            { file = $1; sub(/.*\//, "", file); sub(/\.ko.*/, "", file); gsub(/_/, "-", file) }
            file == name { print $1; n = split($2, needed, " "); for (i = n; i > 0; i--) print needed[i] }
        ' "$folder/modules.dep"
    done | awk '!seen[$0]++'
}

# base_initramfs SERIES: prints the archive's path, and makes it when it is missing or its parts have changed.
base_initramfs() {
    local archive stage version key file place name
    version=$(cat "$cache/linux-$1/version")
    key=$(cat "$vm/modules" "$vm/guest/init" "$vm/lib/initramfs.sh" "$cache/tools/packages.txt" <(say "$version" "${tool_programs[@]}") \
        | sha256sum | cut -c1-16)
    archive=$cache/initramfs-$version-$key
    if [ -f "$archive" ]; then
        say "$archive"
        return
    fi
    stage=$(mktemp -d "$cache/stage.XXXXXX")
    mkdir -p "$stage"/{bin,etc/vm,lib64,lib/x86_64-linux-gnu,usr/sbin,vm,dev,proc,sys} "$stage/lib/modules/$version"
    cp "$vm/guest/init" "$stage/init"
    cp "$cache/tools/root/bin/busybox" "$stage/bin/busybox" 2>/dev/null \
        || cp "$cache/tools/root/usr/bin/busybox" "$stage/bin/busybox"
    printf 'root:x:0:0:root:/vm:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n' >"$stage/etc/passwd"
    # What mount tries where no type is given.
    printf '%s\n' ext4 xfs btrfs vfat >"$stage/etc/filesystems"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$stage/etc/group"
    cp -L "$cache/tools/root/lib64/ld-linux-x86-64.so.2" "$stage/lib64/"
    for name in "${tool_programs[@]}"; do
        place=$(tool_path "$name")
        cp -L "$cache/tools/root/$place" "$stage/usr/sbin/$name"
        case $(head -c 4 "$stage/usr/sbin/$name") in
            *ELF) libraries "$cache/tools/root/$place" ;;
        esac
    done | sort -u | while read -r file; do
        cp -Ln "$cache/tools/root/$file" "$stage/lib/x86_64-linux-gnu/"
    done
    # Programs of the caller's find these here, whether the tools need them or not.
    for name in libc.so.6 libm.so.6 libgcc_s.so.1 libpthread.so.0 libdl.so.2 librt.so.1 libelf.so.1 libz.so.1 libstdc++.so.6; do
        for place in lib usr/lib; do
            [ ! -e "$cache/tools/root/$place/x86_64-linux-gnu/$name" ] \
                || cp -Ln "$cache/tools/root/$place/x86_64-linux-gnu/$name" "$stage/lib/x86_64-linux-gnu/$name"
        done
    done
    for name in mkfs.ext4 mkfs.ext2; do ln -s mke2fs "$stage/usr/sbin/$name"; done
    for name in fsck.ext4 fsck.ext2; do ln -s e2fsck "$stage/usr/sbin/$name"; done
    [ ! -f "$cache/tools/root/etc/mke2fs.conf" ] || cp "$cache/tools/root/etc/mke2fs.conf" "$stage/etc/"

    wanted_modules "$1" | while read -r file; do
        place=$stage/lib/modules/$version/$file
        mkdir -p "$(dirname "$place")"
        cp "$cache/linux-$1/root/lib/modules/$version/$file" "$place"
        case $place in
            *.xz) xz -d "$place" ;;
            *.zst) zstd -q --rm -d "$place" ;;
        esac
    done
    cp "$cache/linux-$1/root/lib/modules/$version"/modules.{order,builtin,builtin.modinfo} "$stage/lib/modules/$version/" 2>/dev/null || true
    depmod -b "$stage" "$version"
    sed -n 's/^+//p' "$vm/modules" >"$stage/etc/vm/load"
    ls "$stage/lib/x86_64-linux-gnu" >"$archive.libraries"
    pack "$stage" >"$archive.new"
    mv "$archive.new" "$archive"
    rm -rf "$stage"
    say "$archive"
}

# stage_file STAGE HOST GUEST LIBRARIES: a caller's file, and the libraries that it needs and that LIBRARIES does not name yet.
stage_file() {
    local place=$1/${3#/} library
    mkdir -p "$(dirname "$place")"
    cp -RL "$2" "$place"
    [ -f "$place" ] || return 0
    case $(head -c 4 "$place" | tr -d '\0') in
        *ELF) ;;
        *) return 0 ;;
    esac
    # Debug information would be unpacked at every boot.
    strip --strip-debug "$place" 2>/dev/null || true
    { ldd "$2" 2>/dev/null || true; } | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | while read -r library host; do
        grep -qxF "$library" "$4" && continue
        mkdir -p "$1/lib/x86_64-linux-gnu"
        cp -L "$host" "$1/lib/x86_64-linux-gnu/$library"
    done
}
