//! The door through which crates of the workspace reach the inside. They are released with this crate: nothing here is stable.
//!
//! `forebay-collective` uses a file's engine ([`FileInternals`], [`ErrorExt`]), recognizes a forked child ([`Origin`]) and maps memory of
//! other processes (`SealedMemory`), `forebay-c` asks whether an engine [is forked](is_forked), `forebay-kv` caches copies
//! ([`exact_copy`]), `forebay-cache` collects results ([`CollectedResults`]), `forebay-fs` uses values of the process ([`PerProcess`])
//! and the thread's world ([`is_in_world`]), and has a paused clock stand (`stand`), the Python package ends tasks ([`AbortOnDrop`]),
//! `forebay-measure` counts cached pages; a world of `forebay-sim` and the suite of `forebay-conformance` find the rest behind the
//! feature `_sim`.

use std::any::Any;
use std::future::Future;
use std::path::PathBuf;

use crate::base::class::Class;
use crate::base::error::{Error, ErrorKind, Result};
use crate::handle::engine::Engine;
use crate::handle::file::File;
use crate::memory::arena::{self, Buffer, Packer};
use crate::memory::block::{Block, BlockMut};
use crate::ops::write::Write;
#[cfg(target_os = "linux")]
use crate::reactor::page_cache;
use crate::reactor::read_many::{self, KEPT_BYTES_MAX};
use crate::reactor::shard;

#[cfg(feature = "_sim")]
mod simulation;

pub use crate::base::fork::{Origin, PerProcess};
pub use crate::base::here::thread_number;
#[cfg(all(feature = "tokio", not(forebay_loom)))]
pub use crate::base::paused_clock::{ClockHold, stand};
#[cfg(target_os = "linux")]
pub use crate::memory::sealed::SealedMemory;
pub use crate::ops::file_cache::AbortOnDrop;
#[cfg(feature = "_sim")]
pub use simulation::*;

/// Returns whether a simulated world runs on this thread. `forebay-fs` then refuses the machine's own files.
pub fn is_in_world() -> bool {
    #[cfg(feature = "_sim")]
    if crate::base::here::world() != 0 {
        return true;
    }
    false
}

/// Returns the number of pages of a range of a file in the page cache, by cachestat(2).
///
/// # Errors
/// The kernel is older than 6.5, or refuses this user.
#[cfg(target_os = "linux")]
pub fn cached_pages(file: std::os::fd::BorrowedFd<'_>, offset: u64, len: u64) -> std::io::Result<u64> {
    page_cache::cached_pages(file, offset, len).map_err(std::io::Error::from_raw_os_error)
}

/// Constructors of [`Error`]s with the texts and fields of the core.
pub trait ErrorExt: Sized {
    /// Returns an error of this kind. A world refuses calls, and has faults that no system call has.
    fn new(kind: ErrorKind, operation: &'static str) -> Self;

    /// Returns an error of the operating system for its number (positive). A world's machine fails as a kernel does.
    fn os(operation: &'static str, errno: i32) -> Self;

    /// Returns an error of the operating system. A world's network and the suite's own system calls have them.
    fn io(operation: &'static str, cause: std::io::Error) -> Self;

    /// Returns the error of a caught panic, with the panic's message. The suite catches those of its cases.
    fn panicked(operation: &'static str, payload: &(dyn Any + Send)) -> Self;

    /// Returns an error about an argument. A world refuses one as an engine does.
    fn invalid(operation: &'static str, note: impl Into<String>) -> Self;

    /// Returns the error with the path of its file. A world knows its files by path.
    fn with_path(self, path: impl Into<PathBuf>) -> Self;

    /// Returns the error with its range of the file, in bytes. A writer's read from memory fails like a read from the file.
    fn with_range(self, offset: u64, len: u64) -> Self;

    /// Returns the error with a note for people. A writer names the lost participant, a world the fault.
    fn with_note(self, note: impl Into<String>) -> Self;
}

impl ErrorExt for Error {
    fn new(kind: ErrorKind, operation: &'static str) -> Error {
        Error::new(kind, operation)
    }

    fn os(operation: &'static str, errno: i32) -> Error {
        Error::os(operation, errno)
    }

    fn io(operation: &'static str, cause: std::io::Error) -> Error {
        Error::io(operation, cause)
    }

    fn panicked(operation: &'static str, payload: &(dyn Any + Send)) -> Error {
        Error::panicked(operation, payload)
    }

    fn invalid(operation: &'static str, note: impl Into<String>) -> Error {
        Error::invalid(operation, note)
    }

    fn with_path(self, path: impl Into<PathBuf>) -> Error {
        Error::with_path(self, path)
    }

    fn with_range(self, offset: u64, len: u64) -> Error {
        Error::with_range(self, offset, len)
    }

    fn with_note(self, note: impl Into<String>) -> Error {
        Error::with_note(self, note)
    }
}

/// Returns whether this process was forked from the engine's. Crates avoid their locks there.
pub fn is_forked(engine: &Engine) -> bool {
    engine.shared().is_forked()
}

/// Returns a copy of `bytes` in ordinary memory of their exact length, for a cache; it counts towards
/// [`Config::arena_bytes_max`](crate::Config::arena_bytes_max). `None` if too little of that limit is left, or the system has no memory.
pub fn exact_copy(engine: &Engine, bytes: &[u8]) -> Option<Block> {
    let buffer = engine.shared().arena.alloc_exact(bytes.len())?;
    // SAFETY: a new buffer of this length, which overlaps nothing; the copy initialises it.
    unsafe {
        buffer.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        Some(buffer.into_block(0, bytes.len()))
    }
}

/// The results of a batch that keep I/O memory up to a limit. Those beyond it are copied into ordinary memory, as
/// [`File::read_many`] does it.
pub struct CollectedResults {
    engine: Engine,
    kept_bytes: usize,
    packer: Option<Packer>,
}

impl CollectedResults {
    /// Returns the results of a batch, without any so far.
    pub fn new(engine: &Engine) -> CollectedResults {
        CollectedResults { engine: engine.clone(), kept_bytes: 0, packer: None }
    }

    /// Returns a result, or its copy.
    pub fn keep(&mut self, block: Block) -> Block {
        let shared = self.engine.shared();
        let arena = &shared.arena;
        // A longer one lies in ordinary memory already.
        if block.len() > arena.short_bytes_max() {
            return block;
        }
        let bytes = self.kept_bytes + block.pinned_bytes();
        if bytes <= KEPT_BYTES_MAX.min(arena.bytes_max() / 4) {
            self.kept_bytes = bytes;
            return block;
        }
        let packer = self.packer.get_or_insert_with(|| read_many::packer(shared, false, false));
        packer.copy(&block).unwrap_or(block)
    }
}

crate::_debug_parts!(CollectedResults, |results| kept_bytes: results.kept_bytes);

/// Internal access to a file and its engine, for the writers of `forebay-collective`.
#[derive(Clone, Copy, Debug)]
pub struct FileInternals<'f>(&'f File);

impl<'f> FileInternals<'f> {
    /// Returns access to the file's internals.
    pub fn of(file: &'f File) -> FileInternals<'f> {
        FileInternals(file)
    }

    /// Returns an error if the file's engine accepts no calls from here. Writers refuse a call before they take their lock.
    pub fn check(self, operation: &'static str) -> Result<()> {
        let core = self.0.core();
        core.engine().check(operation).map_err(|error| core.describe(error))
    }

    /// Returns whether this process was forked from the engine's. A writer's drop takes no lock there.
    pub fn is_forked(self) -> bool {
        self.0.core().engine().is_forked()
    }

    /// Returns the number of the engine's shards. A collective divides the file among them.
    pub fn shard_count(self) -> usize {
        self.0.core().engine().inboxes.len()
    }

    /// Starts a task in `class` on a shard, counted from the file's home shard. Once the engine has ended, `make` is dropped. A
    /// writer's task serves all its handles, in the writer's class, regardless of its creator.
    pub fn spawn<F>(self, shard: usize, class: Class, make: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        let inboxes = &self.0.core().engine().inboxes;
        drop(shard::spawn_on(&inboxes[(self.0.home_shard() + shard) % inboxes.len()], class, make));
    }

    /// Returns the capacity of a block for this many bytes. Writers keep a budget of memory.
    pub fn capacity(len: u64) -> u64 {
        arena::capacity_for(len as usize).map_or(len, |bytes| bytes as u64)
    }

    /// Returns an empty block with capacity for `len` bytes, or an error as [`Engine::block`](crate::Engine::block), which names
    /// the writer's operation and the file.
    pub fn block(self, operation: &'static str, len: usize) -> Result<BlockMut> {
        let core = self.0.core();
        let buffer = core.engine().buffer(operation, len).map_err(|error| core.describe(error))?;
        Ok(buffer.into_empty())
    }

    /// Returns a block if the arena has memory for it now. Writers continue without one, as their writes release memory.
    pub fn try_block(self, len: usize) -> Option<BlockMut> {
        self.0.core().engine().arena.alloc_local(len).ok().map(Buffer::into_empty)
    }

    /// Returns a write that counts as one of `given` bytes. Statistics leave out the bytes that a writer read to fill its pages.
    pub fn write(self, offset: u64, block: Block, given: u32, class: Class) -> Write<'static> {
        self.0.write(offset, block).given(given).class(class).owned()
    }

    /// Returns an error that names the file. Writers have further errors: a lost participant, an ended task.
    pub fn error(self, operation: &'static str, kind: ErrorKind) -> Error {
        self.0.core().describe(Error::new(kind, operation))
    }
}
