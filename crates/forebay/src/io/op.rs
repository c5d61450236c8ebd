//! One operation as the engine passes it on: its kind, the memory that it moves, and its result.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::base::class::Class;
use crate::base::size_limit::is_within_size_limit;
use crate::io::command::Commands;
use crate::memory::arena::{AllocError, Buffer};
use crate::memory::block::{Block, BlockMut};
use crate::memory::lent::LentMemory;

/// Names a slot and one use of it: a stale key never matches a reused slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpKey {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl OpKey {
    /// Returns the key in the form of the kernel's `user_data`.
    #[inline]
    pub fn to_user_data(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    #[inline]
    pub(crate) fn from_user_data(data: u64) -> OpKey {
        OpKey { index: data as u32, generation: (data >> 32) as u32 }
    }
}

/// The number of retries after EAGAIN or EINTR before an operation fails.
pub(crate) const RETRIES_MAX: u8 = 100;

/// Returns whether the rest of a read has to be requested, whose last part had `moved` bytes. The end of the file has to prove itself: a
/// direct read ends off the device's grain only there.
#[inline]
pub(crate) fn read_goes_on(len: u32, done: u32, moved: u32, grain: impl FnOnce() -> u32) -> bool {
    done < len && moved > 0 && done.is_multiple_of(grain().max(1))
}

/// Returns whether the rest of a write has to be requested, whose last part had `moved` bytes.
///
/// # Errors
/// `EIO` for a write that makes no progress: it would be requested for ever.
#[inline]
pub(crate) fn write_goes_on(len: u32, done: u32, moved: u32) -> Result<bool, OpFailure> {
    match (done < len, moved) {
        (true, 0) => Err(OpFailure::Errno(libc::EIO)),
        (is_short, _) => Ok(is_short),
    }
}

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Travels the whole path and does nothing, as a gauge of its cost.
    Nop,
    /// Reads into memory.
    Read,
    /// Writes from memory.
    Write,
    /// `fdatasync(2)`.
    SyncData,
    /// `fsync(2)`.
    SyncAll,
    /// A command for a descriptor of the program's own; see [`Commands`].
    Command,
}

/// Returns an NVMe status as a result: below every errno. See [`nvme_status`].
#[cfg(all(target_os = "linux", not(forebay_no_uring)))]
pub(crate) fn nvme_result(status: u16) -> i32 {
    -(0x1_0000 + i32::from(status))
}

/// Returns the NVMe status of a result, if it is one.
#[cfg(target_os = "linux")]
pub(crate) fn nvme_status(result: i32) -> Option<u16> {
    (-0x1_ffff..=-0x1_0000).contains(&result).then(|| (-result - 0x1_0000) as u16)
}

/// The durability that a write must have before its future resolves.
///
/// ```
/// # use forebay::{Config, Durability, Engine, Open};
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let engine = Engine::start(Config::new())?;
/// let file = engine.open(dir.path().join("a"), Open::create()).wait()?;
/// file.write(0, vec![7u8; 4096]).durable(Durability::Data).wait()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// The kernel or the device's volatile cache has it; a power cut may lose it.
    #[default]
    None,
    /// The bytes, and the metadata needed to read them back, survive a power cut: `fdatasync(2)`.
    Data,
    /// All metadata too (times, permissions): `fsync(2)`.
    All,
}

/// How a durable write waits for the device; see [`Write::flush`](crate::Write::flush).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Flush {
    /// Write and sync are queued like any other operation, and the shard continues with others in the
    /// meantime.
    #[default]
    Queued,
    /// The shard's thread makes the write itself, in one system call that returns when the bytes are durable:
    /// `pwritev2(2)` with `RWF_DSYNC` or, for [`Durability::All`], `RWF_SYNC`.
    ///
    /// No other thread takes part, so on busy processors one less is waited for. **Nothing else on that shard runs in the
    /// meantime**: tasks, completions and timers of all its files wait for the device's flush, tenths of a millisecond on a good
    /// drive and arbitrarily long on a bad one. A write that has started cannot be cancelled, and an engine that closes waits for
    /// it. For a shard that does one thing, such as a log. Only the write's own bytes are made durable, where the sync of a queued
    /// write also covers the file's writes completed before.
    ///
    /// With the driver `threads` one of its threads makes the call, and the shard continues; in a simulated world the write is a
    /// queued one, or one operation where its disk has FUA.
    Blocking,
    /// As [`Blocking`](Flush::Blocking) where the shard has no other operation in flight when it submits the write, else as
    /// [`Queued`](Flush::Queued). For a log that shares its shard with other users: on an idle shard the flush costs one system
    /// call, and with other operations in flight it delays none of them. An operation of a moment later still waits for the flush
    /// in progress.
    WhenAlone,
}

impl Flush {
    /// Returns the flush of a write, given whether its shard has nothing else in flight.
    pub(crate) fn resolve(self, alone: bool) -> Flush {
        match self {
            Flush::WhenAlone if alone => Flush::Blocking,
            Flush::WhenAlone => Flush::Queued,
            settled => settled,
        }
    }
}

impl Durability {
    pub(crate) fn sync_kind(self) -> Option<OpKind> {
        match self {
            Durability::None => None,
            Durability::Data => Some(OpKind::SyncData),
            Durability::All => Some(OpKind::SyncAll),
        }
    }
}

/// The memory that an operation moves. Its slot owns it until the completion has been seen.
#[derive(Debug)]
pub(crate) enum OpBuffer {
    None,
    /// A read that allocates its buffer only when it is about to be submitted, so that memory held = I/O in flight.
    Late,
    /// Such a read that waits in line for ordinary memory, however short it is: its caller found no arena memory, and needs it for
    /// a copy only.
    LateApart,
    Buffer(Buffer),
    Mut(BlockMut),
    Shared(Block),
    /// Memory of the program.
    Lent(LentMemory),
    /// The owner of a command, and of all that the kernel uses for it.
    Command(Arc<dyn Commands>),
}

/// The request of a future; becomes the contents of a slot.
#[derive(Debug)]
pub(crate) struct OpRequest {
    pub(crate) kind: OpKind,
    pub(crate) class: Class,
    /// For writes: the sync that follows in the same slot.
    pub(crate) durability: Durability,
    pub(crate) flush: Flush,
    /// Place in the file and bytes to move, already widened to the device's alignment.
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// Bytes that the caller requested, for the amplification figure.
    pub(crate) asked: u32,
    pub(crate) buffer: OpBuffer,
}

impl OpRequest {
    /// Returns a request that moves the bytes that its caller requested and no more, and that no sync follows.
    #[inline]
    pub(crate) fn new(kind: OpKind, class: Class, offset: u64, len: u32, buffer: OpBuffer) -> OpRequest {
        let (durability, flush) = (Durability::None, Flush::Queued);
        OpRequest { kind, class, durability, flush, offset, len, asked: len, buffer }
    }

    /// Moves the request with its buffer out, for a slot or a cell that owns it from now on.
    pub(crate) fn take(&mut self) -> OpRequest {
        OpRequest { buffer: self.buffer.take(), ..*self }
    }

    /// Returns the place in the file behind the range.
    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }
}

impl OpBuffer {
    /// Does `*self = from.take()` onto a value that holds no memory, tag by tag. A move of the whole enum right after its fields
    /// were written stalls the processor for longer than the rest of the operation.
    #[inline]
    pub(crate) fn move_from(&mut self, from: &mut OpBuffer) {
        debug_assert!(matches!(self, OpBuffer::None | OpBuffer::Late), "nothing is dropped here");
        let old = match from {
            OpBuffer::None => std::mem::replace(self, OpBuffer::None),
            OpBuffer::Late => std::mem::replace(self, OpBuffer::Late),
            OpBuffer::Buffer(_) => match std::mem::replace(from, OpBuffer::None) {
                OpBuffer::Buffer(buffer) => std::mem::replace(self, OpBuffer::Buffer(buffer)),
                other => std::mem::replace(self, other),
            },
            _ => std::mem::replace(self, std::mem::replace(from, OpBuffer::None)),
        };
        std::mem::forget(old);
    }

    /// Returns the address that the device reads from or writes to, past the first `done` bytes, and its region.
    pub(crate) fn memory(&self, done: u32) -> Option<(NonNull<u8>, Option<u16>)> {
        let (start, region) = match self {
            OpBuffer::None | OpBuffer::Late | OpBuffer::LateApart | OpBuffer::Command(_) => return None,
            OpBuffer::Buffer(buffer) => (buffer.as_ptr(), buffer.region_index()),
            OpBuffer::Mut(block) => (block.as_ptr(), block.region_index()),
            OpBuffer::Shared(block) => (block.as_ptr().cast_mut(), block.region_index()),
            OpBuffer::Lent(lent) => (lent.start().as_ptr(), None),
        };
        // A wrapping addition of a count below the buffer's length stays inside the buffer.
        NonNull::new(start.wrapping_add(done as usize)).map(|start| (start, region))
    }

    /// Returns whether a read into this memory may load the page cache: not into a block of the program's, which never tries it either.
    #[inline]
    pub(crate) fn may_load(&self) -> bool {
        !matches!(self, OpBuffer::Mut(_))
    }

    /// Moves the memory out. Most operations carry no memory at this point, and then only a tag is written.
    #[inline]
    pub(crate) fn take(&mut self) -> OpBuffer {
        match self {
            OpBuffer::None => OpBuffer::None,
            OpBuffer::Late => OpBuffer::Late,
            _ => std::mem::replace(self, OpBuffer::None),
        }
    }
}

/// The end of an operation. It carries the memory back in every case but loss.
#[derive(Debug)]
pub(crate) struct OpOutcome {
    /// Bytes moved from the start of the widened range; less than requested only at the end of the file.
    pub(crate) result: OpResult,
    pub(crate) buffer: OpBuffer,
}

/// Bytes moved, or the failure; small enough for two registers.
pub(crate) type OpResult = Result<u32, OpFailure>;

impl OpOutcome {
    pub(crate) fn failed(failure: OpFailure) -> OpOutcome {
        OpOutcome { result: Err(failure), buffer: OpBuffer::None }
    }
}

/// The reason why an operation failed. It is small and needs no allocation, and it is made into an [`Error`](crate::Error)
/// where path and range are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpFailure {
    Errno(i32),
    NoMemory,
    TooLarge,
    EngineClosed,
    FileClosed,
    ShardLost,
    Forked,
    /// The status that an NVMe device returned.
    #[cfg(target_os = "linux")]
    Nvme(u16),
    /// The operation was used on a thread that is not the simulated world's.
    #[cfg(feature = "_sim")]
    OutsideWorld,
}

impl OpFailure {
    /// Returns the failure for a negative result of the driver's, of an operation whose range ends at `end`.
    pub(crate) fn of_result(result: i32, kind: OpKind, end: u64) -> OpFailure {
        #[cfg(target_os = "linux")]
        if let Some(status) = nvme_status(result) {
            return OpFailure::Nvme(status);
        }
        // The kernel shortens a write to RLIMIT_FSIZE, and refuses the rest of a direct one as no longer aligned.
        if result == -libc::EINVAL && kind == OpKind::Write && !is_within_size_limit(end) {
            return OpFailure::Errno(libc::EFBIG);
        }
        OpFailure::Errno(-result)
    }

    /// Returns whether the kernel refused to move bytes that way: a direct transfer, for instance.
    #[cold]
    pub(crate) fn refuses_transfer(self, kind: OpKind) -> bool {
        self == OpFailure::Errno(libc::EINVAL) && matches!(kind, OpKind::Read | OpKind::Write)
    }
}

impl From<AllocError> for OpFailure {
    fn from(error: AllocError) -> OpFailure {
        match error {
            AllocError::NoMemory { .. } => OpFailure::NoMemory,
            AllocError::TooLarge => OpFailure::TooLarge,
        }
    }
}
