//! Parts that the tests share.

use std::io;

/// Returns a directory on a real file system next to the build, where direct I/O works; `/tmp` is often memory.
pub(crate) fn dir() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("forebay-fs-test-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a directory")
}

/// Returns a result in a form that can be compared.
pub(crate) fn comparable<T>(result: io::Result<T>) -> Result<T, (io::ErrorKind, Option<i32>)> {
    result.map_err(|error| (error.kind(), error.raw_os_error()))
}

/// Returns the bytes of every test's file.
pub(crate) fn bytes(len: u64) -> Vec<u8> {
    forebay_test::draw::bytes_of(0..len)
}
