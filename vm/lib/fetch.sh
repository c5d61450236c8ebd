# Sourced by the programs of this folder: Debian's packages, downloaded and unpacked into a cache, never installed.
# apt checks every package against the signed lists; it works on a state of its own, so the host's is not touched.
# shellcheck shell=bash

: "${vm:?the sourcing script says where this folder is}"
# shellcheck source=scripts/lib/setup.sh
. "$vm/../scripts/lib/setup.sh"

cache=${FOREBAY_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/forebay-vm}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# What runs in the guest besides the caller's programs.
tool_packages=(busybox-static kmod e2fsprogs xfsprogs btrfs-progs dmsetup bindfs libelf1 zlib1g libstdc++6)
# shellcheck disable=SC2034 # used in initramfs.sh
tool_programs=(mke2fs e2fsck dumpe2fs debugfs resize2fs chattr lsattr mkfs.xfs xfs_repair xfs_db xfs_io mkfs.btrfs dmsetup bindfs)

# shellcheck source=vm/lib/debug.sh
. "$vm/lib/debug.sh"

# The mirror that this machine's own sources name; security updates lie beside it on the same host.
mirror() {
    if [ -n "${FOREBAY_VM_MIRROR:-}" ]; then
        say "${FOREBAY_VM_MIRROR%/}"
        return
    fi
    local found
    found=$(
        {
            # shellcheck disable=SC2016 # apt's own variables
            apt-get indextargets --format '$(REPO_URI)' 2>/dev/null || true
            cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null \
                | grep -v '^#' | grep -oE '(https?|file)://[^ ]+' || true
        } | grep -E '/debian/?$' | sed -n 1p
    )
    [ -n "$found" ] || fail "apt's sources here name no Debian mirror; give one as FOREBAY_VM_MIRROR"
    say "${found%/}"
}

# private_apt NAME PROGRAM ARGUMENT...: apt-get or apt-cache with a state of its own and the sources in it.
private_apt() {
    local state=$cache/apt-$1 program=$2
    shift 2
    "$program" -o Dir::Etc::sourcelist="$state/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
        -o Dir::State="$state" -o Dir::State::lists="$state/lists" -o Dir::State::status="$state/status" \
        -o Dir::Cache="$state/cache" -o APT::Sandbox::User= -o Debug::NoLocking=1 -o APT::Architecture=amd64 \
        -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false "$@"
}

# new_state NAME SUITE...: an empty apt state that reads these suites; one that is missing on the mirror is left out.
new_state() {
    local name=$1 state=$cache/apt-$1 mirror suite
    shift
    mirror=$(mirror) || return 1
    [ -f "$keyring" ] || install_packages debian-archive-keyring
    rm -rf "$state"
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
    : >"$state/status"
    for suite in "$@"; do
        case $suite in
            *-security) say "deb [signed-by=$keyring] $mirror-security $suite main" ;;
            *) say "deb [signed-by=$keyring] $mirror $suite main" ;;
        esac
    done >"$state/sources.list"
    # A suite that has gone is a warning, not an end: what is needed is looked for afterwards.
    private_apt "$name" apt-get update >"$state/update.log" 2>&1 || true
    [ -n "$(private_apt "$name" apt-cache pkgnames)" ] || fail "apt fetched no lists from $mirror: $(tail -n 3 "$state/update.log")"
}

# unpack NAME FOLDER PACKAGE...: downloads and unpacks into FOLDER, which then exists whole or not at all.
unpack() {
    local name=$1 folder=$2 scratch=$2.new package
    shift 2
    rm -rf "$scratch"
    mkdir -p "$scratch/packages" "$scratch/root"
    (cd "$scratch/packages" && private_apt "$name" apt-get download "$@" >../download.log 2>&1) \
        || fail "apt could not download $*: $(tail -n 3 "$scratch/download.log")"
    for package in "$scratch"/packages/*.deb; do
        dpkg -x "$package" "$scratch/root" || fail "cannot unpack $package"
    done
    (cd "$scratch/packages" && ls) >"$scratch/packages.txt"
    rm -rf "$scratch/packages" "$scratch/download.log" "$folder"
    mv "$scratch" "$folder"
}

# The guest's programs come from this machine's own release: a program built here finds the C library it was built for.
fetch_tools() {
    local folder=$cache/tools release wanted
    # A cache of a version that had other packages is made anew.
    [ "$(cat "$folder/asked.txt" 2>/dev/null)" != "${tool_packages[*]}" ] || return 0
    # shellcheck disable=SC1091
    release=$(. /etc/os-release && say "${VERSION_CODENAME:-}")
    say "fetching the guest's tools from Debian $release" >&2
    new_state tools "$release"
    # The packages that these need; what they name for scripts of theirs is left out.
    wanted=$(private_apt tools apt-get -s --no-install-recommends install "${tool_packages[@]}" \
        | awk '$1 == "Inst" && $2 !~ /python|icu|krb5|^media-types$|^dpkg$|^tar$|sqlite/ { print $2 }')
    [ -n "$wanted" ] || fail "apt knows no ${tool_packages[*]} in $release"
    # shellcheck disable=SC2086 # one word a package
    unpack tools "$folder" $wanted
    say "${tool_packages[*]}" >"$folder/asked.txt"
}

# The newest kernel of a series in any of these suites, as the rest of its packages' names: 6.12.3+deb13-amd64.
newest_kernel() {
    private_apt kernel apt-cache search --names-only "^linux-image-${1//./\\.}\\.[0-9.]+[^-]*-amd64\$" \
        | awk '{ sub(/^linux-image-/, "", $1); print $1 }' | sort -V | tail -n 1
}

kernel_lists() {
    local suites=(trixie trixie-security trixie-backports) release
    [ -z "${kernel_lists_read:-}" ] || return 0
    # shellcheck disable=SC1091
    release=$(. /etc/os-release && say "${VERSION_CODENAME:-}")
    case $release in
        '' | trixie) ;;
        *) suites+=("$release-backports") ;;
    esac
    new_state kernel "${suites[@]}"
    kernel_lists_read=1
}

# fetch_kernel SERIES: kernel and modules; `debug` was built before. The release that was taken stands in the file `version`.
fetch_kernel() {
    local folder=$cache/linux-$1 version part wanted=()
    [ ! -f "$folder/version" ] || return 0
    [ "$1" != debug ] || fail "the kernel \`debug\` was forgotten meanwhile; run this again"
    kernel_lists
    version=$(newest_kernel "$1")
    [ -n "$version" ] || fail "no Debian kernel of the series $1 in $(tr '\n' ' ' <"$cache/apt-kernel/sources.list")"
    say "fetching Linux $version" >&2
    # From 7.1 on a package for each part; before, all in one.
    for part in image modules binary base; do
        wanted+=("$(private_apt kernel apt-cache show "linux-$part-$version" 2>/dev/null | sed -n "s/^Package: //p" | sed -n 1p || true)")
    done
    # shellcheck disable=SC2046,SC2086 # empty ones go
    unpack kernel "$folder" $(printf '%s\n' "${wanted[@]}" | sed '/^$/d')
    # Debian has moved /lib into /usr/lib, in some packages and not yet in others.
    if [ -d "$folder/root/lib" ]; then
        mkdir -p "$folder/root/usr/lib"
        cp -a "$folder/root/lib/." "$folder/root/usr/lib/"
        rm -rf "$folder/root/lib"
    fi
    ln -s usr/lib "$folder/root/lib"
    for part in "boot/vmlinuz-$version" "lib/modules/$version/vmlinuz"; do
        [ ! -f "$folder/root/$part" ] || ln -sf "root/$part" "$folder/vmlinuz"
    done
    [ -e "$folder/vmlinuz" ] || fail "the packages of $version hold no kernel image"
    say "$version" >"$folder/version"
}

# fetch_headers SERIES: what an out-of-tree module is built with, for exactly the kernel that is here.
fetch_headers() {
    local folder=$cache/headers-$1 version base kbuild
    fetch_kernel "$1"
    # What was built here has its headers.
    [ "$1" != debug ] || return 0
    version=$(cat "$cache/linux-$1/version")
    [ "$(cat "$folder/version" 2>/dev/null)" != "$version" ] || return 0
    kernel_lists
    base=${version%-amd64}
    say "fetching the headers of Linux $version" >&2
    kbuild=$(private_apt kernel apt-cache show "linux-headers-$version" | grep -oE 'linux-kbuild-[^ ,]+' | sed -n 1p)
    unpack kernel "$folder" "linux-headers-$version" "linux-headers-$base-common" "$kbuild"
    # The makefiles name each other by where they would be installed.
    find "$folder/root/usr/src" -maxdepth 2 -type f \( -name Makefile -o -name '.kernel*' \) \
        -exec sed -i "s|/usr/src/|$folder/root/usr/src/|g; s|/usr/lib/linux-kbuild|$folder/root/usr/lib/linux-kbuild|g" {} +
    local_tools "$folder"
    # Debian's compiler of this kernel need not be the one of this machine; an option that an older one lacks is left out.
    if ! command -v gcc-14 >/dev/null; then
        find "$folder/root/usr/src" -maxdepth 2 -name .kernelvariables -exec sed -i 's/gcc-14/gcc/' {} +
        echo | gcc -fmin-function-alignment=16 -x c -c -o /dev/null - 2>/dev/null \
            || find "$folder/root/usr/src" -path '*/include/config/auto.conf' -exec sed -i '/^CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT=/d' {} +
    fi
    say "$version" >"$folder/version"
}

# local_tools HEADERS: kbuild's tools may be linked for a newer C library than this machine's, and pahole has to be as new
# as the kernel's. Both come with their libraries; a script in a program's place starts it with them.
local_tools() {
    local program folder=$1/libraries loader newer=()
    while read -r program; do
        # Not `ldd | grep -q`: that grep ends at its first line, ldd dies of its next, and the pipe counts as failed.
        case $(ldd "$program" 2>&1 || true) in *'not found'*) newer+=("$program") ;; esac
    done < <(find "$1/root/usr/lib" -path '*linux-kbuild*' -type f -perm -u+x -exec sh -c 'head -c 4 "$1" | grep -q ELF' _ {} \; -print)
    unpack kernel "$folder" libc6 libelf1t64 zlib1g libzstd1 libbpf1 libbz2-1.0 liblzma5 libdw1t64 pahole
    loader=$folder/root/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2
    [ -f "$loader" ] || loader=$folder/root/lib64/ld-linux-x86-64.so.2
    [ -f "$loader" ] || fail "the newer C library has no loader where it is looked for"
    for program in "${newer[@]}" "$folder/root/usr/bin/pahole"; do
        mv "$program" "$program.real"
        printf '#!/bin/sh\nexec %q --library-path %q %q "$@"\n' "$loader" "${loader%/*}" "$program.real" >"$program"
        chmod +x "$program"
    done
    find "$1/root/usr/src" -maxdepth 2 -name .kernelvariables \
        -exec sh -c 'printf "override PAHOLE = %s\n" "$1" >>"$2"' _ "$folder/root/usr/bin/pahole" {} \;
}
