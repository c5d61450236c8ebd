//! Helpers shared by the tests.
#![allow(dead_code, reason = "each test crate uses a part of it")]

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use forebay::{Config, Engine, Open};
use forebay_cache::{Cache, CacheOptions, CachedFile};
pub(crate) use forebay_test::worlds::mix;

/// Returns a directory on a real file system next to the build, where O_DIRECT works; `/tmp` is often memory.
pub(crate) fn dir() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("forebay-cache-test-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a directory")
}

pub(crate) fn engine() -> Engine {
    Engine::start(Config::new().shards(2)).expect("an engine")
}

pub(crate) fn cache(bytes: u64) -> Cache {
    Cache::new(&engine(), CacheOptions::new().bytes_max(bytes)).expect("a cache")
}

/// Returns the byte at a place of every test's file.
pub(crate) fn byte(at: u64) -> u8 {
    (mix(at / 8) >> (8 * (at % 8))) as u8
}

pub(crate) fn bytes(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(byte).collect()
}

/// A file of `len` bytes in a fresh directory.
pub(crate) struct Scratch {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
    pub(crate) file: CachedFile,
}

pub(crate) fn scratch(cache: &Cache, len: u64) -> Scratch {
    let dir = dir();
    let path = dir.path().join("data");
    std::fs::write(&path, bytes(0..len)).expect("a file");
    let file = cache.open(&path, Open::write()).wait().expect("opens");
    Scratch { dir, path, file }
}

/// Returns the reads that devices have done for the engine, those of waiting threads included.
pub(crate) fn device_reads(cache: &Cache) -> u64 {
    cache.engine().stats().wait().expect("figures").flows.iter().map(|flow| flow.reads).sum()
}

/// Polls a future once, with a waker that does nothing.
pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// A file's shard that does nothing until this is dropped: reads and writes that start meanwhile are in flight for as long, however
/// slow the test's thread is.
pub(crate) struct HeldShard(
    #[allow(dead_code, reason = "its drop is the signal")] std::sync::mpsc::Sender<()>,
);

pub(crate) fn hold_shard(cache: &Cache, file: &CachedFile) -> HeldShard {
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    let hold = move || async move {
        tell.send(()).expect("a listener");
        held.recv().expect_err("nothing is sent");
    };
    drop(cache.engine().spawn_on_shard(file.file().home_shard(), forebay::Class::DEFAULT, hold));
    told.recv().expect("the shard is held");
    HeldShard(let_go)
}
