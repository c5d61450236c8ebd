//! Helpers shared by the tests.
#![allow(dead_code, reason = "each test crate uses a part of it")]

use std::collections::BTreeMap;
use std::path::Path;

use forebay::{Config, DriverChoice, Engine, WorkerRings};
use forebay_object_store::{ForebayStore, ForebayStoreBuilder};
pub(crate) use forebay_test::draw::{Numbers, bytes_of};

/// Returns a directory on a real file system, in the build directory, where O_DIRECT works; `/tmp` is often memory.
pub(crate) fn dir() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("forebay-object-store-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a directory")
}

/// Returns the settings of engines that use each of the ways to the kernel, with their names.
pub(crate) fn configs() -> Vec<(&'static str, Config)> {
    let config = || Config::new().shards(2);
    vec![
        ("rings", config().driver(DriverChoice::Uring)),
        ("rings of shards only", config().driver(DriverChoice::Uring).worker_rings(WorkerRings::Off)),
        ("threads", config().driver(DriverChoice::Threads).worker_rings(WorkerRings::Off)),
    ]
}

/// Starts an engine on the driver that `FOREBAY_TEST_DRIVER` names.
pub(crate) fn engine() -> Engine {
    let driver = match std::env::var("FOREBAY_TEST_DRIVER").as_deref() {
        Ok("uring") => DriverChoice::Uring,
        Ok("threads") => DriverChoice::Threads,
        _ => DriverChoice::Auto,
    };
    Engine::start(Config::new().shards(2).driver(driver)).expect("an engine")
}

pub(crate) fn settings(root: &Path) -> ForebayStoreBuilder {
    ForebayStore::builder(&engine(), root)
}

pub(crate) async fn store(root: &Path) -> ForebayStore {
    settings(root).open().await.expect("a store")
}

/// The prefix of the names of a store's lock files. They stay, and are not objects.
pub(crate) const LOCKS: &str = ".forebay#0";

/// Returns what is below a directory, without the files of locks: each path with the bytes of its file, `None` for a directory. Links are named by their target.
pub(crate) fn tree(root: &Path) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(root).expect("below the root").display().to_string();
            if name.starts_with(LOCKS) {
                continue;
            }
            // The staged file of a dropped upload may be removed at any time.
            let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
            let kind = metadata.file_type();
            if kind.is_symlink() {
                let target = std::fs::read_link(&path).expect("a link");
                found.insert(format!("{name} -> {}", target.display()), None);
            } else if kind.is_dir() {
                found.insert(name, None);
                dirs.push(path);
            } else {
                found.insert(name, Some(std::fs::read(&path).unwrap_or_default()));
            }
        }
    }
    found
}
