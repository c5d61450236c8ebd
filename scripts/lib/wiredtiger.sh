# Random gets of WiredTiger on its own file system and on Forebay, in turn: sourced by scripts/bench.
# shellcheck shell=bash
: "${root:?the sourcing script says where the checkout is}" "${here:?and where its caller stands}"
# shellcheck source=scripts/lib/engines.sh
. scripts/lib/engines.sh

# compare_wiredtiger [--dir DIR] [--gigabytes N] [--rounds N] [--seconds S]
compare_wiredtiger() {
    # shellcheck disable=SC2034
    local dir=$here gigabytes=2 rounds=3 seconds=15 prefix work group='' side round threads keys found
    while [ $# -gt 0 ]; do
        case $1 in
            --dir) dir=$2 && shift 2 ;;
            --gigabytes) gigabytes=$2 && shift 2 ;;
            --rounds) rounds=$2 && shift 2 ;;
            --seconds) seconds=$2 && shift 2 ;;
            *) fail "unknown option $1" ;;
        esac
    done
    have_wiredtiger || fail "this needs WiredTiger's headers (Debian: libwiredtiger-dev gcc)"
    prefix=$(target_dir)/wiredtiger-bench
    crates/forebay-c/install "$prefix"
    crates/forebay-c/wiredtiger/install "$prefix"
    "${CC:-cc}" -std=gnu11 -O2 -pthread crates/forebay-c/wiredtiger/bench.c -o "$prefix/bench" -lwiredtiger
    work=$(mktemp -d "$dir/forebay-wiredtiger.XXXXXX")
    # An eighth of the data, half of it WiredTiger's cache. With an arena for each thread malloc takes more than the other half.
    limit_memory $((gigabytes << 27)) "$work"
    export MALLOC_ARENA_MAX=1

    keys=$((gigabytes * 1000000))
    local common="config_base=false,statistics=[fast],cache_size=$((gigabytes * 64))MB"
    local -A configs=(
        [forebay]="$common,direct_io=[data],extensions=[$prefix/lib/libforebay_wiredtiger.so={early_load=true}]"
        [own-direct]="$common,direct_io=[data]" [own]="$common"
    )
    say "loading $gigabytes GB"
    "$prefix/bench" load "$work" "$keys" "create,${configs[own-direct]}"
    : >"$prefix/figures"
    for ((round = 1; round <= rounds; round++)); do
        for threads in 1 16; do
            for side in forebay own-direct own; do
                found=$(limited "$prefix/bench" get "$work" "$keys" "${configs[$side]}" "$threads" "$seconds") || fail "gets fail on $side"
                echo "get-$threads $side $found" >>"$prefix/figures"
            done
        done
        say "round $round of $rounds"
    done
    ratios wiredtiger "$prefix/figures" gets/s cpu_us/get p99_us blocks/get
}
