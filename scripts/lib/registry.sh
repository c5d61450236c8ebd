# Sourced by the checks that run tests of other crates against ours: their sources are the registry's, and no copy is in the tree.
# shellcheck shell=bash

# registry_source NAME VERSION: the folder of a crate's sources, which cargo downloads once.
registry_source() {
    local name=$1 version=$2 package source
    package=$(target_dir)/sources/$name
    mkdir -p "$package/src"
    : >"$package/src/lib.rs"
    cat >"$package/Cargo.toml" <<TOML
[package]
name = "sources-of-$name"
edition = "2021"
[dependencies]
$name = "=$version"
[workspace]
TOML
    source=$(cargo metadata --manifest-path "$package/Cargo.toml" --format-version 1 \
        | grep -o "\"manifest_path\":\"[^\"]*/$name-$version/Cargo.toml\"" | sed 's/.*:"//; s,/Cargo.toml"$,,') || true
    [ -d "$source" ] || fail "the registry has no $name $version"
    say "$source"
}

# replace_imports FOLDER...: has the Rust files below name forebay_fs where they name tokio::fs: a path, an import, one of several in braces.
replace_imports() {
    # shellcheck disable=SC2016
    find "$@" -name '*.rs' -print0 | xargs -0 perl -0777 -pi -e '
        s/use tokio::fs;/use forebay_fs as fs;/g; s/(?<!")\btokio::fs\b/forebay_fs/g;
        s/^([ \t]*)use tokio::\{(.*?)\};/my ($space, $items, $own) = ($1, $2, ""); $own .= "${space}use forebay_fs::{" . $1 =~ s{\bself\b}{self as fs}r . "};\n" while $items =~ s{\bfs::\{(.*?)\},?\s*}{}s; $own .= "${space}use forebay_fs::$1;\n" while $items =~ s{\bfs::(\w+),?\s*}{}; $own .= "${space}use forebay_fs as fs;\n" if $items =~ s{\bfs,\s*}{}; "$own${space}use tokio::{$items};"/gmse;
    '
}

# replace_stores FOLDER...: has the Rust files below name the stores of scripts/lib/stores.rs where they name those of object_store.
replace_stores() {
    # shellcheck disable=SC2016
    find "$@" -name '*.rs' -print0 | xargs -0 perl -0777 -pi -e '
        s/^([ \t]*(?:pub )?use )[\w:]*object_store::(?:memory|local)::(\w+);/$1forebay_stores::$2;/gm;
        s/^([ \t]*)(use [^;]*?\{[^;]*?\b(?:memory::InMemory|local::LocalFileSystem)\b[^;]*;)/my ($space, $use, $own) = ($1, $2, ""); $own .= "\n${space}use forebay_stores::$1;" while $use =~ s{(?:[\w:]*object_store::)?\b(?:memory|local)::(InMemory|LocalFileSystem)\b,?\s*}{}; "$space$use$own"/gme;
        s/\b(?:\w+::)*object_store::(?:memory|local)::(InMemory|LocalFileSystem)\b/forebay_stores::$1/g;
        s/\b(?:\w+::)*object_store::parse_url_opts\b/forebay_stores::parse_url_opts/g;
    '
}

# copy_program SOURCE FOLDER: a package of its own, with the versions that the workspace has.
copy_program() {
    rm -rf "$2"
    mkdir -p "$2/tmp"
    cp -r "$1"/. "$2/"
    cp Cargo.lock "$2/"
    printf '\n[workspace]\n' >>"$2/Cargo.toml"
}

# verdicts LOG VERDICT: the tests of a log that ended so.
verdicts() {
    sed -nE "s/^test (.*[^ ])( - should panic)? \.\.\. $2\$/\1/p" "$1" | sort -u
}
