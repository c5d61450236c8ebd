# Sourced by the scripts beside this folder: makes sure that a fresh Debian-like machine with only Rust can build.
# shellcheck shell=bash

say() { printf '%s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Runs apt-get as root, through sudo, or says what a person has to run.
install_packages() {
    command -v apt-get >/dev/null \
        || fail "this machine has no apt-get; install by hand: $* (names as on Debian)"
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
            as_root=(sudo)
        else
            fail "missing: $*. Neither root nor able to use sudo here. Ask an administrator to run: apt-get install $*"
        fi
    fi
    say "installing with apt: $*"
    # Steps run side by side, and so do tests of one step: the second waits for dpkg's lock.
    local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@")
    "${install[@]}" >/dev/null || { "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 update >/dev/null && "${install[@]}" >/dev/null; } \
        || fail "apt could not install: $*. Install it by hand, then run this again"
}

# Cargo, new enough for the workspace, and a linker. Asks apt only for what is really missing.
require_rust() {
    if ! command -v cargo >/dev/null && [ -f "${CARGO_HOME:-$HOME/.cargo}/env" ]; then
        # shellcheck disable=SC1091
        . "${CARGO_HOME:-$HOME/.cargo}/env"
    fi
    command -v cargo >/dev/null \
        || fail "cargo is not on the PATH. Install Rust from https://rustup.rs, then run this again"
    local wanted have
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml | sed -n 1p)
    have=$(cargo --version | awk '{ print $2 }')
    [ "$(printf '%s\n%s\n' "$wanted" "${have%%-*}" | sort -V | sed -n 1p)" = "$wanted" ] \
        || fail "cargo $have is older than rust-version $wanted in Cargo.toml. Update with: rustup update stable"
    command -v cc >/dev/null || install_packages gcc libc6-dev
}

# A cargo subcommand that comes with a component of the toolchain (rustfmt, clippy).
require_component() {
    cargo "$1" --version >/dev/null 2>&1 && return
    command -v rustup >/dev/null \
        || fail "cargo $1 is missing and there is no rustup to add it. Install the $2 package of your Rust distribution"
    say "adding the component $2 to the toolchain"
    timeout 120 rustup component add "$2" || fail "rustup could not add $2. Check the network, then run this again"
}

# What the feature `wait` is built with: libbpf from source, libelf and zlib of the system. Installs it as root, or says
# what is missing and fails, since the rest can be built without.
have_wait_libraries() {
    local packages=(make pkg-config libelf-dev zlib1g-dev)
    { command -v make && command -v pkg-config && pkg-config --exists libelf zlib; } >/dev/null 2>&1 && return
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || [ -n "${FOREBAY_TEST_OFFLINE:-}" ]; then
        say "missing for the feature \`wait\`: ${packages[*]} (names as on Debian)"
        return 1
    fi
    (install_packages "${packages[@]}")
}

# Debian's compiler comes without the messages that the definitions of etcd import: they are a package of their own.
protoc_has_google() {
    local folder status=0
    folder=$(mktemp -d)
    printf 'syntax = "proto3";\nimport "google/protobuf/descriptor.proto";\n' >"$folder/probe.proto"
    protoc --proto_path "$folder" --descriptor_set_out=/dev/null "$folder/probe.proto" || status=1
    rm -rf "$folder"
    return "$status"
}

# What forebay-etcd is compared with: etcd and etcdctl; protoc builds the client of the tests.
have_etcd() {
    local packages=(etcd-server etcd-client protobuf-compiler libprotobuf-dev)
    { command -v etcd && command -v etcdctl && protoc_has_google; } >/dev/null 2>&1 && return
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || [ -n "${FOREBAY_TEST_OFFLINE:-}" ]; then
        say "missing for the tests beside etcd: ${packages[*]} (names as on Debian)"
        return 1
    fi
    (install_packages "${packages[@]}")
}

# Debian's RocksDB with its headers and its db_bench, and a compiler for C++.
have_rocksdb() {
    local packages=(g++ librocksdb-dev rocksdb-tools)
    { command -v g++ && command -v db_bench && [ -e /usr/include/rocksdb/file_system.h ]; } >/dev/null 2>&1 && return
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || [ -n "${FOREBAY_TEST_OFFLINE:-}" ]; then
        say "missing for the tests with RocksDB: ${packages[*]} (names as on Debian)"
        return 1
    fi
    (install_packages "${packages[@]}")
}

# Debian's WiredTiger with its headers, and a compiler for C.
have_wiredtiger() {
    local packages=(gcc libc6-dev libwiredtiger-dev)
    { command -v cc && [ -e /usr/include/wiredtiger_ext.h ]; } >/dev/null 2>&1 && return
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || [ -n "${FOREBAY_TEST_OFFLINE:-}" ]; then
        say "missing for the tests with WiredTiger: ${packages[*]} (names as on Debian)"
        return 1
    fi
    (install_packages "${packages[@]}")
}

# Debian's torch, a build without CUDA for Debian's own interpreter.
have_torch() {
    local packages=(python3-torch python3-venv)
    /usr/bin/python3 -c 'import ensurepip, torch' 2>/dev/null && return
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || [ -n "${FOREBAY_TEST_OFFLINE:-}" ]; then
        say "missing for the tests with torch: ${packages[*]} (names as on Debian)"
        return 1
    fi
    (install_packages "${packages[@]}")
}

# What builds the module as a distribution does, and the program that follows the rule for its device.
have_dkms() {
    local packages=(dkms udev)
    { command -v dkms && command -v udevadm; } >/dev/null 2>&1 && return
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || [ -n "${FOREBAY_TEST_OFFLINE:-}" ]; then
        say "missing for the module's package: ${packages[*]} (names as on Debian)"
        return 1
    fi
    (install_packages "${packages[@]}")
}

# What the faults of whole servers need beside them: networks, disks, and clocks that jump. Without it they say what they leave out.
want_fault_tools() {
    local library
    for library in /usr/lib/*/faketime/libfaketimeMT.so.1; do break; done
    { command -v ip && command -v mkfs.ext4 && [ -e "$library" ]; } >/dev/null 2>&1 && return
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || [ -n "${FOREBAY_TEST_OFFLINE:-}" ]; then
        say "missing for some of the faults: iproute2, e2fsprogs or faketime (names as on Debian)"
        return
    fi
    (install_packages iproute2 e2fsprogs faketime) || say "some of the faults are left out"
}

# Every feature of every crate but those whose names are given, as cargo's --features wants them.
features_without() {
    awk -v left_out=" $* " '
        FNR == 1 { section = ""; crate = FILENAME; sub(/.*crates\//, "", crate); sub(/\/.*/, "", crate) }
        /^\[/ { section = $0 }
        section == "[features]" && /^[a-z0-9_]+ *=/ && !index(left_out, " " $1 " ") && $1 != "default" { printf "%s/%s,", crate, $1 }
    ' crates/{forebay,forebay-sim,forebay-conformance,forebay-cache,forebay-collective,forebay-fs,forebay-wal,forebay-kv,forebay-object-store,forebay-raft,forebay-report,forebay-measure,forebay-cli}/Cargo.toml
}

# limit_memory BYTES FOLDER: makes a cgroup with this limit, `group`, for `limited`; it is empty where none can be made. It and the folder go
# when the shell ends.
limit_memory() {
    local limit=memory.max
    group=/sys/fs/cgroup/forebay-bench.$$
    [ -e /sys/fs/cgroup/cgroup.controllers ] || { limit=memory.limit_in_bytes && group=/sys/fs/cgroup/memory/forebay-bench.$$; }
    # shellcheck disable=SC2064
    trap "rm -rf '$2'; rmdir '$group' 2>/dev/null || true" EXIT
    if ! { mkdir "$group" && [ -e "$group/$limit" ] && echo "$1" >"$group/$limit"; } 2>/dev/null; then
        group=''
        say "no memory limit: this takes root and a memory controller of cgroups"
    fi
}

# limited COMMAND...: the command below the memory limit, where there is one.
limited() {
    if [ -z "$group" ]; then "$@"; else (echo "$BASHPID" >"$group/cgroup.procs" && "$@"); fi
}

# The folder that cargo builds into, as an absolute path.
target_dir() {
    local dir=${CARGO_TARGET_DIR:-target}
    case $dir in
        /*) say "$dir" ;;
        *) say "$PWD/$dir" ;;
    esac
}

# built PACKAGE KIND NAME: the path of a program that scripts/test has built; of no kind `test`, `example` or `bin` where it has not.
built() {
    local gate
    gate=$(target_dir)/debug/forebay-gate
    [ -s "${FOREBAY_BUILT:-}" ] && [ -x "$gate" ] && "$gate" built --messages "$FOREBAY_BUILT" "$@"
}
