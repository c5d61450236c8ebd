# Sourced by scripts/bench: counts instructions per operation, of this tree and perhaps of another revision beside it.
# shellcheck shell=bash

: "${root:?the sourcing script says where the checkout is}" "${here:?and where its caller stands}"
# Not local to a function, because they are read when the script ends. The builds of a comparison stay in the target
# folder, for the next one.
scratch=''
base=''

# counting_program FOLDER TARGET FEATURES: builds the benchmark of the checkout at FOLDER in TARGET, prints its path.
# Each checkout has a TARGET of its own, because cargo gives the programs of both the same name.
# One codegen unit, or an unrelated change moves what is inlined where. rustix has to ask the C library for the auxiliary
# vector: what it reads otherwise names memory that valgrind does not map.
counting_program() {
    local built
    built=$(
        cd "$1" \
            && CARGO_PROFILE_BENCH_CODEGEN_UNITS=1 cargo bench --package forebay --bench instructions --no-run \
                --target-dir "$2" --features "rustix/use-libc-auxv${3:+,$3}" --message-format json-render-diagnostics
    ) || return 1
    sed -n 's|.*"executable":"\([^"]*/instructions-[^"]*\)".*|\1|p' <<<"$built" | tail -n 1
}

remove_base() {
    git -C "$root" worktree remove --force "$base" 2>/dev/null || rm -rf "$base"
    git -C "$root" worktree prune
}

clean_up() {
    [ -z "$scratch" ] || rm -rf "$scratch"
    [ -z "$base" ] || remove_base
}

# base_program REVISION: checks it out, gives it this tree's benchmark, so that both count the same, and builds it.
base_program() {
    # What an interrupted run left.
    remove_base
    git -C "$root" worktree add --quiet --detach "$base" "$1" || return 1
    local core=$base/crates/forebay
    rm -rf "$core/benches/instructions"
    mkdir -p "$core/benches"
    cp -r "$root/crates/forebay/benches/instructions" "$core/benches/"
    grep -q '^name = "instructions"' "$core/Cargo.toml" \
        || printf '\n[[bench]]\nname = "instructions"\nharness = false\n' >>"$core/Cargo.toml"
    counting_program "$base" "$base-target" ''
}

# Called in the root of the checkout, with the arguments behind `instructions`; `here` is where the caller stands.
count_instructions() {
    local compare='' features='' dir=$here revision target program base_program passed=()
    while [ $# -gt 0 ]; do
        case $1 in --compare | --features | --dir) [ $# -gt 1 ] || fail "$1 needs a value" ;; esac
        case $1 in
            --compare) compare=$2; shift ;;
            --features) features=$2; shift ;;
            --dir) dir=$2; shift ;;
            *) passed+=("$1") ;;
        esac
        shift
    done
    require_rust
    command -v valgrind >/dev/null || install_packages valgrind
    target=$(target_dir)
    trap clean_up EXIT
    trap 'exit 130' INT TERM
    say "building this tree, features: ${features:-default} ..." >&2
    program=$(counting_program "$root" "$target" "$features") || fail "the benchmark does not build"
    if [ -n "$compare" ]; then
        revision=$(git rev-parse --verify --quiet "$compare^{commit}") || fail "git knows no revision $compare"
        say "building $(git log -1 --format='%h (%s)' "$revision"), features: default ..." >&2
        # Always the same folder, so that cargo builds over what it built for the comparison before.
        base=$target/instructions-base
        base_program=$(base_program "$revision") || fail "the benchmark does not build at $compare"
        passed+=(--base "$base_program")
    fi
    cd "$here" || return
    scratch=$(mktemp -d "$dir/.forebay-instructions.XXXXXX")
    "$program" --dir "$scratch" ${passed[@]+"${passed[@]}"}
}
