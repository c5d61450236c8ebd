# Storage engines of others on Forebay: their libraries and programs, and comparisons with their own files. Sourced after setup.sh.
# shellcheck shell=bash

# install_libforebay PREFIX: what the gate has built for the tests of its crate, or what cargo builds now.
install_libforebay() {
    local libraries
    libraries=$(target_dir)/debug/deps
    if [ -z "${FOREBAY_BUILT:-}" ] || [ ! -f "$libraries/libforebay_c.so" ]; then
        require_rust
        cargo build --quiet --package forebay-c
        libraries=$(target_dir)/debug
    fi
    crates/forebay-c/install "$1" "$libraries"
}

# compile_rocksdb PREFIX PROGRAM ARGUMENT...: a program in C++, with what was installed at the prefix.
compile_rocksdb() {
    "${CXX:-g++}" -std=c++17 -O1 -g -pthread -Wall -Wextra -Werror "${@:3}" -o "$2" -I "$1/include" \
        -Wl,--no-as-needed -L "$1/lib" -lforebay_rocksdb -lforebay -lrocksdb -ldl "-Wl,-rpath,$1/lib"
}

# compile_wiredtiger PROGRAM ARGUMENT...: a program in C, which loads the extension.
compile_wiredtiger() {
    "${CC:-cc}" -std=gnu11 -O1 -g -pthread -Wall -Wextra -Werror -rdynamic "${@:2}" -o "$1" -lwiredtiger
}

# ratios ENGINE FILE FIGURE...: for each row the medians of the rounds of all three, and ours by the better of the engine's own two.
ratios() {
    awk -v engine="$1" -v names="${*:3}" '
        function median(key, count,    i, j, swap, list) {
            for (i = 1; i <= count; i++) list[i] = value[key, i] + 0
            for (i = 2; i <= count; i++)
                for (j = i; j > 1 && list[j - 1] > list[j]; j--) { swap = list[j]; list[j] = list[j - 1]; list[j - 1] = swap }
            return count % 2 ? list[(count + 1) / 2] : (list[count / 2] + list[count / 2 + 1]) / 2
        }
        !($1 in known) { order[++rows] = $1; known[$1] = 1 }
        { key = $1 " " $2; n = ++count[key]; for (i = 3; i <= NF; i++) value[key " " i, n] = $i }
        END {
            printf "%-24s %-10s %12s %12s %12s %8s\n", "row", "figure", "forebay", "own direct", "own", "ratio"
            last = split("- - " names, name, " ")
            for (row = 1; row <= rows; row++)
                for (figure = 3; figure <= last; figure++) {
                    for (side in sides) delete sides[side]
                    split("forebay own-direct own", sides, " ")
                    for (s = 1; s <= 3; s++) found[s] = median(order[row] " " sides[s] " " figure, count[order[row] " " sides[s]])
                    better = (found[2] > found[3]) == (figure == 3) ? found[2] : found[3]
                    found[4] = better ? found[1] / better : 0
                    printf "%-24s %-10s %12.2f %12.2f %12.2f %8.2f\n", order[row], name[figure], found[1], found[2], found[3], found[4]
                    if (ENVIRON["FOREBAY_BENCH_ROWS"] == "") continue
                    split("forebay own-direct own ratio", sides, " ")
                    for (s = 1; s <= 4; s++)
                        printf "%s\t%s\t" (found[s] < 100 ? "%.2f" : "%.0f") "\t%s\t\n", engine, order[row], found[s], name[figure] ", " sides[s] >>ENVIRON["FOREBAY_BENCH_ROWS"]
                }
        }' "$2"
}
