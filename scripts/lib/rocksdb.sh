# Debian's db_bench on RocksDB's own file system and on forebay://, both direct and buffered, in turn: sourced by scripts/bench.
# shellcheck shell=bash
: "${root:?the sourcing script says where the checkout is}" "${here:?and where its caller stands}"
# shellcheck source=scripts/lib/engines.sh
. scripts/lib/engines.sh

# figures ROW SIDE LOG: operations a second of a run, microseconds of its processors for each, and the 99th percentile.
figures() {
    awk -v row="$1" -v side="$2" '
        $3 ~ /^[0-9.]+$/ && $4 == "micros/op" { rate = $5; operations = $9 }
        /^Percentiles:/ { for (n = 1; n < NF; n++) if ($n == "P99:" && !p99) p99 = $(n + 1) }
        $1 == "processor" { seconds = $2 + $3 }
        END { print row, side, rate + 0, operations ? seconds * 1e6 / operations : 0, p99 + 0 }' "$3"
}

# compare_rocksdb [--dir DIR] [--gigabytes N] [--rounds N] [--seconds S] [--rows ROW,..]
compare_rocksdb() {
    # shellcheck disable=SC2034
    local dir=$here gigabytes=4 rounds=3 seconds=10 chosen='' prefix work group='' name side round set preload options threads more words
    while [ $# -gt 0 ]; do
        case $1 in
            --dir) dir=$2 && shift 2 ;;
            --gigabytes) gigabytes=$2 && shift 2 ;;
            --rounds) rounds=$2 && shift 2 ;;
            --seconds) seconds=$2 && shift 2 ;;
            --rows) chosen=,$2, && shift 2 ;;
            *) fail "unknown option $1" ;;
        esac
    done
    have_rocksdb || fail "this needs db_bench and RocksDB's headers (Debian: rocksdb-tools librocksdb-dev g++)"
    prefix=$(target_dir)/rocksdb-bench
    crates/forebay-c/install "$prefix"
    crates/forebay-c/rocksdb/install "$prefix"
    work=$(mktemp -d "$dir/forebay-rocksdb.XXXXXX")
    # The pages of both file systems and the memory of the process, a quarter of the data.
    limit_memory $((gigabytes << 28)) "$work"

    local values=$((gigabytes * 2400000)) turn sides=(forebay-direct forebay own-direct own)
    local common=(--num="$values" --key_size=16 --value_size=400 --compression_type=none --bloom_bits=10 --cache_size=33554432
        --open_files=-1 --histogram=1 --duration="$seconds")
    local direct=(--use_direct_reads=1 --use_direct_io_for_flush_and_compaction=1)
    # One table of all, and tables of 64 MB.
    for set in one tables; do
        say "loading $gigabytes GB: $set"
        more=()
        [ "$set" = tables ] || more=(--target_file_size_base=$((gigabytes << 31)))
        db_bench "${common[@]}" --duration=0 --db="$work/$set" --benchmarks=fillrandom,compact --disable_wal=1 "${direct[@]}" \
            ${more[@]+"${more[@]}"} >"$work/load.log" 2>&1 || { tail -n 5 "$work/load.log"; fail "db_bench cannot load"; }
    done
    : >"$work/figures"
    for ((round = 1; round <= rounds; round++)); do
        while read -r name set threads options; do
            [ -z "$chosen" ] || [[ $chosen = *,"$name",* ]] || continue
            # By turns each is first after another row's writes.
            for ((turn = round; turn < round + ${#sides[@]}; turn++)); do
                side=${sides[turn % ${#sides[@]}]}
                more=(--db="$work/$set" --threads="$threads")
                read -ra words <<<"$options"
                # fillsync writes a database for itself.
                [ "$set" = new ] || more+=(--use_existing_db=1)
                [[ $side != *-direct ]] || more+=("${direct[@]}")
                preload=''
                [[ $side != forebay* ]] || { preload=$prefix/lib/libforebay_rocksdb.so && more+=(--fs_uri=forebay://); }
                TIMEFORMAT='processor %U %S'
                { time limited env LD_PRELOAD="$preload" db_bench "${common[@]}" "${words[@]}" "${more[@]}"; } >"$work/run.log" 2>&1 \
                    || { tail -n 20 "$work/run.log"; fail "$name fails on $side"; }
                figures "$name" "$side" "$work/run.log" >>"$work/figures"
            done
        done <<'ROWS'
readrandom-1 tables 1 --benchmarks=readrandom
readrandom-32 tables 32 --benchmarks=readrandom
seekrandom tables 1 --benchmarks=seekrandom
multireadrandom-one-1 one 1 --benchmarks=multireadrandom --multiread_batched=1 --batch_size=32
multireadrandom-one-4 one 4 --benchmarks=multireadrandom --multiread_batched=1 --batch_size=32
multireadrandom-tables tables 1 --benchmarks=multireadrandom --multiread_batched=1 --batch_size=32
seekrandom-async one 1 --benchmarks=seekrandom --async_io=1 --seek_nexts=1000
readwhilewriting tables 4 --benchmarks=readwhilewriting --benchmark_write_rate_limit=10485760
fillsync new 1 --benchmarks=fillsync
ROWS
        say "round $round of $rounds"
    done
    ratios rocksdb "$work/figures" ops/s cpu_us/op p99_us
}
