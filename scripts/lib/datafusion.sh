# Queries of DataFusion over parquet files with both stores in turn: sourced by scripts/bench.
# shellcheck shell=bash
: "${root:?the sourcing script says where the checkout is}" "${here:?and where its caller stands}"

# compare_datafusion [--dir DIR] [--scale FACTOR | --hits ROWS] [options of the example's `compare`]
compare_datafusion() {
    local dir=$here scale=6 hits='' target program options=()
    while [ $# -gt 0 ]; do
        case $1 in
            --dir) dir=$2 && shift 2 ;;
            --scale) scale=$2 && shift 2 ;;
            --hits) hits=$2 && shift 2 ;;
            *) options+=("$1") && shift ;;
        esac
    done
    target=$(target_dir)/datafusion
    say "building examples/datafusion in release mode (DataFusion has some 300 dependencies: many minutes the first time) ..."
    cargo build --release --locked --manifest-path "$root/examples/datafusion/Cargo.toml" --target-dir "$target"
    program=$target/release/forebay-datafusion-example
    cd "$here" || return
    work=$(mktemp -d "$dir/forebay-datafusion.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    if [ -n "$hits" ]; then
        say "writing a table like ClickBench's of $hits rows ..."
        "$program" make-hits "$work/tables" --rows "$hits"
    else
        say "writing the tables of TPC-H at scale $scale ..."
        "$program" make "$work/tables" --scale "$scale"
    fi
    "$program" compare "$work/tables" "${options[@]}"
}
