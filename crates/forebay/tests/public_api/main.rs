//! A separate program: it parses sources and uses nothing of the core; commands name it by `--test public_api`.
//!
//! The public API of the core, the simulator, the conformance suite, the cache, the combining writers, the log, the store, the object store and the storage for Raft, recorded in each crate's `public-api.txt` and compared with the sources.
//!
//! A change of the API is then a change of that file, seen in review. After an intended change:
//! `FOREBAY_BLESS=1 cargo test -p forebay --test public_api`.
//!
//! The sources are parsed, not compiled, so the list has the items of every feature and platform. Items that a macro would generate
//! are not expanded: the macro's body and its uses are listed instead. A use of `_debug_parts` is listed as the impl that it
//! writes.

mod foreign;
mod impls;
mod listing;
mod render;
mod tree;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use listing::Listing;
use tree::Krate;

/// Crates whose types may appear in public signatures.
const ALLOWED_TYPES: &[&str] = &["bytes", "forebay", "forebay_kv", "forebay_sim", "forebay_wal"];

/// Crates whose traits public types may implement, under a feature of the crate.
const ALLOWED_TRAITS: &[&str] = &["tokio", "futures_core", "object_store_013"];

/// Crates that a crate is for, whose types and traits are in its signatures: a new version of them is a new version of ours.
const OWN: &[(&str, &str)] = &[
    ("forebay_fs", "tokio"),
    ("forebay_object_store", "object_store"),
    ("forebay_raft", "openraft"),
    ("forebay_raft", "serde"),
];

/// Public enums and structs with public fields that stay exhaustive, each with the reason.
const EXHAUSTIVE: &[(&str, &str)] = &[
    ("forebay_wal::Lsn", "programs make and keep numbers"),
    ("forebay_wal::End", "programs keep one and make it again"),
    ("forebay_kv::SwapOutcome", "a swap was made or not; a program handles both"),
];

const BLESS: &str = "FOREBAY_BLESS=1 cargo test -p forebay --test public_api";

/// The crates whose API is recorded: name, and the folder next to this crate's. A packed crate has only itself.
const CRATES: [(&str, &str); 10] = [
    ("forebay", "."),
    ("forebay_sim", "../forebay-sim"),
    ("forebay_conformance", "../forebay-conformance"),
    ("forebay_cache", "../forebay-cache"),
    ("forebay_collective", "../forebay-collective"),
    ("forebay_fs", "../forebay-fs"),
    ("forebay_wal", "../forebay-wal"),
    ("forebay_kv", "../forebay-kv"),
    ("forebay_object_store", "../forebay-object-store"),
    ("forebay_raft", "../forebay-raft"),
];

fn crates() -> Vec<(PathBuf, Krate)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = CRATES.map(|(name, folder)| (name, here.join(folder)));
    let there = folders.into_iter().filter(|(_, folder)| folder.join("src/lib.rs").exists());
    there
        .map(|(name, folder)| {
            let krate = Krate::load(name, &folder.join("src/lib.rs"), &folder.join("Cargo.toml")).unwrap();
            (folder, krate)
        })
        .collect()
}

#[test]
fn the_public_api_is_the_recorded_one() {
    for (folder, krate) in crates() {
        let listing = Listing::of(&krate);
        assert!(
            listing.lines.len() >= 20,
            "only {} public items found: the test misreads {}",
            listing.lines.len(),
            folder.display()
        );
        let path = folder.join("public-api.txt");
        let now = format!("{}\n", listing.lines.iter().cloned().collect::<Vec<_>>().join("\n"));
        if std::env::var_os("FOREBAY_BLESS").is_some() {
            fs::write(&path, now).unwrap();
            continue;
        }
        let recorded = fs::read_to_string(&path).unwrap_or_else(|error| {
            panic!("{} cannot be read ({error}); write it with: {BLESS}", path.display())
        });
        let difference = difference(&recorded, &now);
        assert!(
            difference.is_empty(),
            "the public API differs from {} (- recorded, + in the sources):\n{}\n\
             If that is wanted, name it in CHANGELOG.md and run: {BLESS}",
            path.display(),
            difference.join("\n")
        );
    }
}

#[test]
fn no_third_party_type_is_in_the_public_api() {
    let foreign: BTreeSet<String> =
        crates().iter().flat_map(|(_, krate)| Listing::of(krate).foreign).collect();
    assert!(
        foreign.is_empty(),
        "a new major version of these crates would be a breaking change of ours:\n{}",
        foreign.into_iter().collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn enums_and_option_structs_can_grow() {
    let exhaustive: BTreeSet<String> =
        crates().iter().flat_map(|(_, krate)| Listing::of(krate).exhaustive).collect();
    let missing: Vec<_> = exhaustive
        .iter()
        .filter(|path| !EXHAUSTIVE.iter().any(|(exempt, _)| exempt == *path))
        .cloned()
        .collect();
    assert!(missing.is_empty(), "add #[non_exhaustive] to:\n{}", missing.join("\n"));
    for (exempt, reason) in EXHAUSTIVE {
        assert!(exhaustive.contains(*exempt), "{exempt} ({reason}) needs no exemption any more");
    }
}

/// Returns the lines that only one text has, marked with their side, in order.
fn difference(recorded: &str, now: &str) -> Vec<String> {
    let before: BTreeSet<&str> = recorded.lines().collect();
    let after: BTreeSet<&str> = now.lines().collect();
    let mut lines: Vec<_> = before.symmetric_difference(&after).collect();
    lines.sort();
    lines
        .into_iter()
        .map(|line| format!("{} {line}", if before.contains(line) { '-' } else { '+' }))
        .collect()
}

/// Returns the listing of a crate made of the given files, with dependencies `bytes`, `rustix` and `tokio`.
#[cfg(test)]
fn listing_of(files: &[(&str, &str)]) -> (BTreeSet<String>, BTreeSet<String>, BTreeSet<String>) {
    let folder = tempfile::tempdir().unwrap();
    let manifest = "[dependencies]\nbytes = \"1\"\nrustix = { version = \"1\" }\n\n\
                    [target.'cfg(unix)'.dependencies]\ntokio = \"1\"\n";
    fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    for (name, text) in files {
        let path = folder.path().join("src").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let krate =
        Krate::load("demo", &folder.path().join("src/lib.rs"), &folder.path().join("Cargo.toml")).unwrap();
    let listing = Listing::of(&krate);
    (listing.lines, listing.foreign, listing.exhaustive)
}

#[test]
fn reexports_methods_and_variants_are_listed_under_the_shortest_path() {
    let (lines, foreign, exhaustive) = listing_of(&[
        (
            "lib.rs",
            "mod file; pub mod error; pub use file::{File, Handle, Open as Options}; pub use error::Error;\n\
             #[cfg(test)] mod tests { pub fn unseen() {} }",
        ),
        (
            "file.rs",
            "use std::{fmt, ops::Range}; use crate::error::Error;\n\
             #[derive(Clone)] pub struct File { pub(crate) fd: i32 }\n\
             impl File { pub async fn read(&self, mut range: Range<u64>,) -> Result<Vec<u8>, Error> { loop {} }\n\
             fn unseen(&self) {} }\n\
             impl fmt::Debug for File { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { loop {} } }\n\
             #[non_exhaustive] pub struct Open { pub mode: u32 }\n\
             forebay::_debug_parts!(Open, |open| mode: open.mode);\n\
             pub struct Handle<'a, T>(&'a T); forebay::_debug_parts!([T] Handle<'_, T>);\n\
             pub fn unseen() {}",
        ),
        ("error.rs", "pub enum Error { Eof { got: u64 }, Io(std::io::Error) }"),
    ]);
    let expected = [
        "demo::Error  enum Error",
        "demo::Error::Eof  variant Eof { got: u64 }",
        "demo::Error::Io  variant Io(std::io::Error)",
        "demo::File  impl Clone for File",
        "demo::File  impl Debug for File",
        "demo::File  struct File { .. }",
        "demo::File::read  async fn read(&self, range: Range<u64>) -> Result<Vec<u8>, Error>",
        "demo::Handle  impl<T> Debug for Handle<'_, T>",
        "demo::Handle  struct Handle<'a, T>(..)",
        "demo::Options  #[non_exhaustive] struct Open { .. }",
        "demo::Options  impl Debug for Open",
        "demo::Options::mode  field mode: u32",
        "demo::error  mod error",
        "demo::error::Error  is demo::Error",
    ];
    assert_eq!(lines.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    assert!(foreign.is_empty(), "{foreign:?}");
    assert_eq!(exhaustive.into_iter().collect::<Vec<_>>(), ["demo::Error"]);
}

#[test]
fn third_party_types_are_found_wherever_they_hide() {
    let (_, foreign, _) = listing_of(&[
        (
            "lib.rs",
            "mod sys; mod alias { pub use rustix::fs::Mode; } use alias::Mode;\n\
             pub fn owned() -> bytes::Bytes { loop {} }\n\
             pub fn direct(x: rustix::fd::OwnedFd) {}\n\
             pub fn through_alias(x: Option<&Mode>) {}\n\
             pub struct S { pub stat: sys::Statx, private: rustix::fs::Stat }\n\
             impl From<rustix::io::Errno> for S { fn from(_: rustix::io::Errno) -> S { loop {} } }\n\
             #[cfg(feature = \"tokio\")] impl tokio::io::AsyncRead for S {}\n\
             impl tokio::io::AsyncWrite for S {}\n\
             #[cfg(feature = \"tokio\")] mod gated { mod deep { impl tokio::io::AsyncSeek for crate::S {} } }\n\
             pub use rustix::fs::OFlags;",
        ),
        ("sys.rs", "pub(crate) use rustix::fs::*;"),
    ]);
    let expected = [
        "demo::OFlags: rustix is re-exported",
        "demo::S: rustix in its impl From<rustix::io::Errno> for S",
        "demo::S: tokio in its impl AsyncWrite for S",
        "demo::S::stat: rustix",
        "demo::direct: rustix",
        "demo::through_alias: rustix",
    ];
    assert_eq!(foreign.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}
