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
    find "$@" -name '*.rs' -print0 | xargs -0 perl -0777 -pi -e '
        s/use tokio::fs;/use forebay_fs as fs;/g; s/(?<!")\btokio::fs\b/forebay_fs/g;
        s/^([ \t]*)use tokio::\{(.*?)\};/my ($space, $items, $own) = ($1, $2, ""); $own .= "${space}use forebay_fs::{" . $1 =~ s{\bself\b}{self as fs}r . "};\n" while $items =~ s{\bfs::\{(.*?)\},?\s*}{}s; $own .= "${space}use forebay_fs::$1;\n" while $items =~ s{\bfs::(\w+),?\s*}{}; $own .= "${space}use forebay_fs as fs;\n" if $items =~ s{\bfs,\s*}{}; "$own${space}use tokio::{$items};"/gmse;
    '
}
