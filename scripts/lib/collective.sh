# Strided pieces of all ranks by MPI-IO and by Forebay in turn: sourced by scripts/bench.
# shellcheck shell=bash
: "${root:?the sourcing script says where the checkout is}" "${here:?and where its caller stands}"

# One process of Forebay for each rank; mpirun starts those of MPI.
forebay_ranks() {
    local ranks=$1 rank processes=()
    shift
    for ((rank = 0; rank < ranks; rank++)); do
        PMI_RANK=$rank PMI_SIZE=$ranks MPI_LOCALNRANKS=$ranks "$@" &
        processes+=($!)
    done
    for rank in "${processes[@]}"; do wait "$rank"; done
}

# run_side SIDE read|write RANKS PIECE START: adds a line to $out, or says that the side has failed.
run_side() {
    local side=$1 way=$2 ranks=$3 piece=$4 start=$5 job hints=() group=$group TIMEFORMAT='%U %S'
    [[ $side != *-hints ]] || hints=(romio_cb_write=enable romio_cb_read=enable cb_buffer_size=67108864 cb_nodes=2)
    case $side in
        mpich*) job=(mpirun.mpich -n "$ranks" "$work/mpich") ;;
        romio321* | ompio*)
            job=(mpirun.openmpi --oversubscribe --mca mpi_yield_when_idle 1 --mca io "${side%-hints}" -n "$ranks" "$work/openmpi")
            ;;
        forebay) job=(forebay_ranks "$ranks" "$program") ;;
    esac
    # Reads are of a file that is not in the page cache, with less memory than it has bytes.
    if [ "$way" = 'write' ]; then group=''; else dd if="$work/file" iflag=nocache count=0 of=/dev/null status=none; fi
    { time limited "${job[@]}" "$way" "$work/file" "$piece" "$bytes" "$start" "${hints[@]}" >"$work/seconds" 2>"$work/errors"; } 2>"$work/processor" || true
    if [ "$(grep -c '^[0-9.]*$' "$work/seconds")" != "$ranks" ]; then
        say "$side could not $way: $(grep -v yaksa "$work/errors" | head -n 1)"
        return
    fi
    echo "$way $ranks $piece $start $side $(sort -g "$work/seconds" | tail -n 1) $(awk '{ print $1 + $2 }' "$work/processor")" >>"$out"
}

# Prints for each cell the medians of Forebay and of the best side of MPI, and over all cells what the limits are on.
collective_ratios() {
    awk -v bytes="$bytes" '
        function median(list, count,    i, j, swap) {
            for (i = 2; i <= count; i++)
                for (j = i; j > 1 && list[j - 1] > list[j]; j--) { swap = list[j]; list[j] = list[j - 1]; list[j - 1] = swap }
            return count % 2 ? list[(count + 1) / 2] : (list[count / 2] + list[count / 2 + 1]) / 2
        }
        function middle(cell, side, which,    i, list) {
            for (i = 1; i <= rounds[cell, side]; i++) list[i] = value[cell, side, i, which]
            return median(list, rounds[cell, side])
        }
        { cell = $1 " " $2 " " $3 " " $4 }
        !(cell in known) { known[cell]; order[++cells] = cell }
        !($5 in sides) && $5 != "forebay" { sides[$5] }
        { round = ++rounds[cell, $5]; value[cell, $5, round, 1] = $6; value[cell, $5, round, 2] = $7 }
        END {
            printf "%-5s %5s %7s %5s %9s %9s  %-15s %6s %6s\n", "way", "ranks", "piece", "start", "MB/s", "best MPI", "", "times", "CPU"
            for (at = 1; at <= cells; at++) {
                cell = order[at]; best = ""
                for (side in sides)
                    if (rounds[cell, side] && (best == "" || middle(cell, side, 1) < middle(cell, best, 1))) best = side
                if (best == "" || !rounds[cell, "forebay"]) continue
                own = middle(cell, "forebay", 1); theirs = middle(cell, best, 1)
                ratio[++count] = theirs / own; processor[count] = middle(cell, "forebay", 2) / middle(cell, best, 2)
                split(cell, part, " ")
                printf "%-5s %5d %7d %5d %9.0f %9.0f  %-15s %6.2f %6.2f\n", part[1], part[2], part[3], part[4],
                    bytes / 1e6 / own, bytes / 1e6 / theirs, best, ratio[count], processor[count]
                if (ENVIRON["FOREBAY_BENCH_ROWS"] == "") continue
                line = sprintf("collective\t%s, %d ranks, pieces of %d B from %d on", part[1], part[2], part[3], part[4])
                printf "%s\t%.0f\tMB/s, forebay\t\n", line, bytes / 1e6 / own >>ENVIRON["FOREBAY_BENCH_ROWS"]
                printf "%s\t%.0f (%s)\tMB/s, best MPI\t\n", line, bytes / 1e6 / theirs, best >>ENVIRON["FOREBAY_BENCH_ROWS"]
                printf "%s\t%.2f\ttimes\t\n", line, ratio[count] >>ENVIRON["FOREBAY_BENCH_ROWS"]
                printf "%s\t%.2f\tCPU\t\n", line, processor[count] >>ENVIRON["FOREBAY_BENCH_ROWS"]
            }
            if (!count) exit 1
            printf "%d cells: %.2f times the best of MPI in the middle (1.00 wanted)", count, median(ratio, count)
            printf ", %.2f at worst (0.90 wanted), for %.2f times its processor time\n", ratio[1], median(processor, count)
        }' "$out"
}

# compare_collective [--dir DIR] [--bytes N] [--rounds N] [--ranks N,..] [--pieces BYTES,..] [--starts BYTES,..] [--sides NAME,..]
compare_collective() {
    local dir=$here rounds=3 ranks=2,4,8 pieces=512,4096,65536 starts=0,200 round count piece start turn side all
    local sides=mpich,mpich-hints,romio321,romio321-hints,ompio,ompio-hints,forebay
    bytes=2147483648 group=''
    while [ $# -gt 0 ]; do
        case $1 in
            --dir) dir=$2 ;;
            --bytes) bytes=$2 ;;
            --rounds) rounds=$2 ;;
            --ranks) ranks=$2 ;;
            --pieces) pieces=$2 ;;
            --starts) starts=$2 ;;
            --sides) sides=$2 ;;
            *) fail "collective has no option $1" ;;
        esac
        shift 2
    done
    { command -v mpicc.mpich && command -v mpicc.openmpi; } >/dev/null || install_packages mpich libmpich-dev openmpi-bin libopenmpi-dev
    (cd "$root" && cargo build --release --package forebay-collective --example strided)
    program=$(cd "$root" && target_dir)/release/examples/strided
    work=$(mktemp -d "$dir/forebay-collective.XXXXXX") out=$work/figures
    limit_memory $((512 << 20)) "$work"
    for side in mpich openmpi; do
        "mpicc.$side" -O2 "$root/crates/forebay-collective/examples/strided.c" -o "$work/$side"
    done
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    IFS=, read -ra all <<<"$sides"
    for count in ${ranks//,/ }; do
        for piece in ${pieces//,/ }; do
            for start in ${starts//,/ }; do
                rm -f "$work/file"
                forebay_ranks "$count" "$program" write "$work/file" "$piece" "$bytes" "$start" >/dev/null
                for ((round = 0; round < rounds; round++)); do
                    for ((turn = 0; turn < ${#all[@]}; turn++)); do
                        # Who begins changes with the round. Each reads, and so checks, the file that the one before it wrote.
                        side=${all[(turn + round) % ${#all[@]}]}
                        run_side "$side" 'read' "$count" "$piece" "$start"
                        rm -f "$work/file"
                        run_side "$side" 'write' "$count" "$piece" "$start"
                    done
                done
            done
        done
    done
    collective_ratios
}
