# Sourced: the module of kernel/module, built for a kernel that vm/run boots.
# shellcheck shell=bash

# kernel_module SERIES FOLDER: builds it in FOLDER, and prints where the module lies. A warning is a failure.
kernel_module() {
    local headers folder=$2/module-$1
    headers=$(vm/kernel --kernel "$1" headers) || return 1
    mkdir -p "$folder"
    cp -R kernel/module kernel/include "$folder/"
    make -C "$headers" M="$folder/module" modules >"$folder/log" 2>&1 \
        || { cat "$folder/log" >&2; fail "the module does not build for Linux $1"; }
    ! grep -iE 'warning|undefined' "$folder/log" >&2 || fail "the module builds with warnings for Linux $1"
    say "$folder/module/forebay_walk.ko"
}
