# Compares every row of `forebay measure baseline` with its job of fio: sourced by scripts/bench. Rows and jobs take turns.
# shellcheck shell=bash
: "${root:?the sourcing script says where the checkout is}"

# Prints iops, mean, p50 and p99 in microseconds of a result of `measure baseline --rows ROW --repeats 1 --json`.
own_figures() {
    awk '/"metrics": \{/ && !seen { inside = 1; seen = 1 }
        inside && match($0, /"(iops|mean_us|p50_us|p99_us)": [0-9.e+-]+/) {
            split(substr($0, RSTART, RLENGTH), pair, /": /)
            value[substr(pair[1], 2)] = pair[2]
        }
        inside && /\}/ { inside = 0 }
        END { print value["iops"] + 0, value["mean_us"] + 0, value["p50_us"] + 0, value["p99_us"] + 0 }' "$1"
}

# Prints the same of a result of one job of fio that reads or writes ($2).
fio_figures() {
    awk -v kind="$2" '
        $1 == "\"read\"" || $1 == "\"write\"" || $1 == "\"trim\"" || $1 == "\"sync\"" { section = $1; gsub(/"/, "", section) }
        section != kind { next }
        $1 == "\"iops\"" { iops = $3 + 0 }
        $1 ~ /^"(slat|clat|lat)_ns"$/ { times = $1 }
        times != "\"lat_ns\"" { next }
        $1 == "\"mean\"" { mean = $3 / 1000 }
        $1 == "\"50.000000\"" { p50 = $3 / 1000 }
        $1 == "\"99.000000\"" { p99 = $3 / 1000 }
        END { print iops + 0, mean + 0, p50 + 0, p99 + 0 }' "$1"
}

# Prints, for each row and figure, the median of the rounds of both and of their ratio, with its range.
ratios() {
    awk '
        function median(list, count,    i, j, swap) {
            for (i = 2; i <= count; i++)
                for (j = i; j > 1 && list[j - 1] > list[j]; j--) { swap = list[j]; list[j] = list[j - 1]; list[j - 1] = swap }
            return count % 2 ? list[(count + 1) / 2] : (list[count / 2] + list[count / 2 + 1]) / 2
        }
        BEGIN {
            split("iops mean_us p50_us p99_us", name, " ")
            printf "%-22s %-8s %12s %12s  %s\n", "row", "figure", "forebay", "fio", "ratio (range)"
        }
        !($1 in rounds) { order[++rows] = $1 }
        { rounds[$1]++; for (i = 2; i <= 9; i++) value[$1, rounds[$1], i - 1] = $i }
        END {
            for (row = 1; row <= rows; row++)
                # fio has the times of writes and of their syncs apart.
                for (figure = 1; figure <= (order[row] == "sync" ? 1 : 4); figure++) {
                    count = 0
                    for (round = 1; round <= rounds[order[row]]; round++) {
                        ours = value[order[row], round, figure]; theirs = value[order[row], round, figure + 4]
                        if (ours <= 0 || theirs <= 0) continue
                        count++; own[count] = ours; other[count] = theirs; ratio[count] = ours / theirs
                    }
                    if (!count) continue
                    middle = median(ratio, count)
                    printf "%-22s %-8s %12.1f %12.1f  %.2f (%.2f to %.2f)\n", order[row], name[figure],
                        median(own, count), median(other, count), middle, ratio[1], ratio[count]
                    if (ENVIRON["FOREBAY_BENCH_ROWS"] == "") continue
                    line = "baseline\t" order[row] "\t%.1f\t" name[figure] ", %s\t\n"
                    printf line, median(own, count), "forebay" >>ENVIRON["FOREBAY_BENCH_ROWS"]
                    printf line, median(other, count), "fio" >>ENVIRON["FOREBAY_BENCH_ROWS"]
                    printf "baseline\t%s\t%.2f\t%s\t%.2f to %.2f\n", order[row], middle, name[figure] ", ratio",
                        ratio[1], ratio[count] >>ENVIRON["FOREBAY_BENCH_ROWS"]
                }
        }' "$1"
}

# compare_baseline [--dir DIR] [--rounds N] [--rows ROW,..] [options of measure baseline]
compare_baseline() {
    local dir=$PWD rounds=3 chosen='' target program out list row job kind round side options=()
    while [ $# -gt 0 ]; do
        case $1 in
            --dir) dir=$2 && shift 2 ;;
            --rounds) rounds=$2 && shift 2 ;;
            --rows) chosen=,$2, && shift 2 ;;
            *) options+=("$1") && shift ;;
        esac
    done
    command -v fio >/dev/null || install_packages fio
    (cd "$root" && cargo build --release --package forebay-cli)
    target=$(cd "$root" && target_dir)
    program=$target/release/forebay
    # The jobs write to their own file there.
    work=$(mktemp -d "$dir/forebay-baseline.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    list=$work/rows out=$work/figures
    "$program" measure baseline "$work" --quiet --repeats 1 "${options[@]}" --json \
        | sed -n 's/^ *"fio": "\(.*\)",\{0,1\}$/\1/p' | sed 's/\\\\/\\/g' >"$list"
    # Without a pool, the allocator gives fio transparent huge pages (glibc 2.35 and later).
    [ "$(cat /proc/sys/vm/nr_hugepages)" -ge 4 ] \
        || sed -i '/ --iomem=mmaphuge/ { s// --iomem_align=2097152/; s/^/GLIBC_TUNABLES=glibc.malloc.hugetlb=1 / }' "$list"
    for ((round = 1; round <= rounds; round++)); do
        while read -r job; do
            row=${job#*--name=} row=${row%% *}
            [ -z "$chosen" ] || [[ $chosen == *",$row,"* ]] || continue
            kind='read'
            case $job in *--rw=*write*) kind='write' ;; esac
            # Who begins changes with the round.
            for side in $(((round + 0) % 2)) $(((round + 1) % 2)); do
                if [ "$side" = 1 ]; then
                    "$program" measure baseline "$work" --quiet --repeats 1 --rows "$row" "${options[@]}" --json >"$work/own.json"
                else
                    # Both write their file anew before they measure.
                    rm -f "$work/forebay-fio.tmp"
                    (cd "$work" && eval "$job --output-format=json --output=$work/fio.json") >/dev/null || rm -f "$work/fio.json"
                fi
            done
            [ -s "$work/fio.json" ] || { say "fio could not run the job of $row"; continue; }
            echo "$row $(own_figures "$work/own.json") $(fio_figures "$work/fio.json" "$kind")" >>"$out"
            rm -f "$work/fio.json"
        done <"$list"
    done
    ratios "$out"
}
