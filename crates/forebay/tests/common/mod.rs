//! Common parts of the integration tests: an engine on the driver that `FOREBAY_TEST_DRIVER` names, and files
//! with known bytes.
#![allow(dead_code, unused_imports, reason = "each test crate uses a part of it")]

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use forebay::{Class, Config, DriverChoice, Engine, Open, Polling};
pub(crate) use forebay_test::draw::{Numbers, bytes_of};

/// Returns the default settings with the driver of this test run (`uring`, `threads`; anything else:
/// automatic), and with polling where `FOREBAY_TEST_POLLING` is `on` or `hybrid`.
pub(crate) fn config() -> Config {
    let driver = match std::env::var("FOREBAY_TEST_DRIVER").as_deref() {
        Ok("uring") => DriverChoice::Uring,
        Ok("threads") => DriverChoice::Threads,
        _ => DriverChoice::Auto,
    };
    let polling = match std::env::var("FOREBAY_TEST_POLLING").as_deref() {
        Ok("on") => Polling::On,
        Ok("hybrid") => Polling::Hybrid,
        _ => Polling::Off,
    };
    // The pass with threads is also the one in which the shards carry out `.wait()`. Nothing counts as leaked because the device or
    // a thread of the engine was slow.
    let config = Config::new().driver(driver).polling(polling).wait_calls(driver != DriverChoice::Threads);
    config.shutdown_deadline(Duration::from_secs(60))
}

/// Starts an engine with [`config`].
pub(crate) fn engine() -> Engine {
    Engine::start(config()).expect("an engine")
}

/// Holds an engine's first shard, on which nothing runs until the result is dropped.
pub(crate) fn hold(engine: &Engine) -> mpsc::Sender<()> {
    let (begins, begun) = mpsc::channel();
    let (held, released) = mpsc::channel();
    drop(engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let _ = begins.send(());
        let _ = released.recv();
    }));
    begun.recv().expect("the shard runs tasks");
    held
}

/// Returns the place for test directories: `FOREBAY_TEST_DIR` if it is set, for a run on a certain device.
pub(crate) fn place() -> PathBuf {
    std::env::var_os("FOREBAY_TEST_DIR").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into()).into()
}

/// Creates a directory on a real file system next to the build, where O_DIRECT works; `/tmp` is often memory.
pub(crate) fn dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("forebay-test-").tempdir_in(place()).expect("a directory")
}

/// Returns the byte at a place of every test file: no two 4 KiB pages of a file are equal.
pub(crate) fn byte_at(offset: u64) -> u8 {
    let mixed = (offset / 8).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> (8 * (offset % 8))) as u8
}

/// Writes a test file of that length.
pub(crate) fn write_file(path: &std::path::Path, len: u64) {
    std::fs::write(path, bytes_of(0..len)).expect("a test file");
}

/// Returns the ways to open a file, each of which keeps the file's content.
pub(crate) fn modes() -> [Open; 4] {
    [Open::create(), Open::create().buffered(), Open::create().uncached(), Open::create().adaptive()]
}

/// Compares without printing megabytes.
pub(crate) fn assert_file(path: &Path, expected: &[u8], what: &str) {
    let found = std::fs::read(path).unwrap();
    assert_eq!(found.len(), expected.len(), "length, {what}");
    let differs = || found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert!(found == expected, "first wrong byte {:?}, {what}", differs());
}
