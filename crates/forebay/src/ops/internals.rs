//! What `forebay-collective` needs of a file beside its public methods: memory, tasks and errors of the file's engine.

use std::future::Future;
use std::ops::Range;

use crate::base::class::Class;
use crate::base::error::{Error, ErrorKind, Result};
use crate::handle::file::File;
use crate::memory::arena::{self, Buffer};
use crate::memory::block::{Block, BlockMut};
use crate::ops::write::Write;
use crate::reactor::shard;

/// The inside of a file; for `forebay-collective` alone.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct FileInternals<'f>(&'f File);

impl File {
    /// Returns the inside of the file.
    #[doc(hidden)]
    pub fn internals(&self) -> FileInternals<'_> {
        FileInternals(self)
    }
}

impl FileInternals<'_> {
    /// Returns an error if the file's engine takes no calls from here.
    pub fn check(self, operation: &'static str) -> Result<()> {
        let core = self.0.core();
        core.engine().check(operation).map_err(|error| core.describe(error))
    }

    /// Returns whether this process was forked from the engine's.
    pub fn is_forked(self) -> bool {
        self.0.core().engine().is_forked()
    }

    /// Returns the number of the engine's shards.
    pub fn shard_count(self) -> usize {
        self.0.core().engine().inboxes.len()
    }

    /// Starts a task in `class` on a shard, counted from the file's home shard. Once the engine has ended, `make` is dropped.
    pub fn spawn<F>(self, shard: usize, class: Class, make: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        let inboxes = &self.0.core().engine().inboxes;
        drop(shard::spawn_on(&inboxes[(self.0.home_shard() + shard) % inboxes.len()], class, make));
    }

    /// Returns the capacity of a block for so many bytes.
    pub fn capacity(len: u64) -> u64 {
        arena::capacity_for(len as usize).map_or(len, |bytes| bytes as u64)
    }

    /// Returns an empty block with room for `len` bytes, or an error as [`Engine::block`](crate::Engine::block).
    pub fn block(self, operation: &'static str, len: usize) -> Result<BlockMut> {
        let core = self.0.core();
        let buffer = core.engine().buffer(operation, len).map_err(|error| core.describe(error))?;
        Ok(buffer.into_empty())
    }

    /// Returns the same if the arena has memory for it now.
    pub fn try_block(self, len: usize) -> Option<BlockMut> {
        self.0.core().engine().arena.alloc_local(len).ok().map(Buffer::into_empty)
    }

    /// Returns a write that counts as one of `given` bytes.
    pub fn write(self, offset: u64, block: Block, given: u32, class: Class) -> Write<'static> {
        self.0.write(offset, block).given(given).class(class).owned()
    }

    /// Returns an error that names the file.
    pub fn error(self, operation: &'static str, kind: ErrorKind) -> Error {
        self.0.core().describe(Error::new(kind, operation))
    }

    /// Returns the error with a note for people.
    pub fn noted(error: Error, note: impl Into<String>) -> Error {
        error.with_note(note)
    }

    /// Returns the error with the range of the file that it concerns.
    pub fn in_range(error: Error, range: &Range<u64>) -> Error {
        error.with_range(range.start, range.end.saturating_sub(range.start))
    }
}
