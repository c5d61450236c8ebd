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

# ratios ENGINE FILE FIGURE...: for each row the medians of the rounds of every side, and the ratio of two: of our sides, which begin with
# forebay, and of the engine's own the one with the higher first figure.
ratios() {
    awk -v engine="$1" -v names="${*:3}" '
        function median(key, count,    i, j, swap, list) {
            for (i = 1; i <= count; i++) list[i] = value[key, i] + 0
            for (i = 2; i <= count; i++)
                for (j = i; j > 1 && list[j - 1] > list[j]; j--) { swap = list[j]; list[j] = list[j - 1]; list[j - 1] = swap }
            return count % 2 ? list[(count + 1) / 2] : (list[count / 2] + list[count / 2 + 1]) / 2
        }
        function found(side, figure) { return median(order[row] " " side " " figure, count[order[row] " " side]) }
        !($1 in known) { order[++rows] = $1; known[$1] = 1 }
        !($2 in taken) { sides[++last] = $2; taken[$2] = 1 }
        { key = $1 " " $2; n = ++count[key]; for (i = 3; i <= NF; i++) value[key " " i, n] = $i }
        END {
            figures = split("- - " names, name, " ")
            printf "%-24s %-10s", "row", "figure"
            for (s = 1; s <= last; s++) printf " %14s", sides[s]
            printf " %8s\n", "ratio"
            for (row = 1; row <= rows; row++) {
                for (who = 0; who < 2; who++) best[who] = ""
                for (s = 1; s <= last; s++) {
                    who = sides[s] ~ /^forebay/
                    if (best[who] == "" || found(sides[s], 3) > found(best[who], 3)) best[who] = sides[s]
                }
                for (figure = 3; figure <= figures; figure++) {
                    printf "%-24s %-10s", order[row], name[figure]
                    for (s = 1; s <= last; s++) {
                        printf " %14.2f", shown = found(sides[s], figure)
                        put(shown, sides[s])
                    }
                    theirs = found(best[0], figure)
                    printf " %8.2f\n", shown = theirs ? found(best[1], figure) / theirs : 0
                    put(shown, "ratio")
                }
            }
        }
        function put(shown, side) {
            if (ENVIRON["FOREBAY_BENCH_ROWS"] != "")
                printf "%s\t%s\t" (shown < 100 ? "%.2f" : "%.0f") "\t%s\t\n", engine, order[row], shown, name[figure] ", " side >>ENVIRON["FOREBAY_BENCH_ROWS"]
        }' "$2"
}
