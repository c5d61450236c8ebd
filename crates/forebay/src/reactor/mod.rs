//! The code of a storage thread: event loop, op table, executor, a scheduler per device, and stall profiler.

pub(crate) mod account;
pub(crate) mod calls;
pub(crate) mod class_scope;
pub(crate) mod devices;
pub(crate) mod engine_shared;
pub(crate) mod idle_files;
pub(crate) mod open_file;
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "files with their own page cache views are opened on Linux only")
)]
pub(crate) mod page_cache;
pub(crate) mod ranges;
pub(crate) mod read_many;
pub(crate) mod releases;
pub(crate) mod scheduler;
pub mod shard;
pub(crate) mod stall_profiler;
#[cfg(feature = "_sim")]
pub(crate) mod stepped;
#[cfg(any(feature = "_sim", all(feature = "tokio", target_os = "linux", not(forebay_no_uring))))]
pub(crate) mod visited;
pub(crate) mod walk;
#[cfg(feature = "_sim")]
pub(crate) mod world;

#[cfg(not(any(feature = "_sim", all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))))]
pub(crate) mod no_visited;
#[cfg(not(any(feature = "_sim", all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))))]
pub(crate) use no_visited as visited;
