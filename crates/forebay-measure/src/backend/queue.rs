//! The loop over a queue of the kernel, io_uring or Linux AIO: one thread, which submits and waits for at least one
//! completion each turn.

use std::any::Any;
use std::io;
use std::time::Instant;

use anyhow::Context as _;

use super::{Lane, NO_POLLING, Op, Target, minimise_timer_slack};
use crate::aligned::{AlignedBuffer, HugeBuffer};

/// A queue of the kernel, with a number for each operation in flight: its slot.
pub(super) trait Queue {
    /// Queues an operation.
    ///
    /// # Errors
    /// The queue is full, although each slot has one operation, or it does not support the operation.
    ///
    /// # Safety
    /// `memory` has `bytes` bytes. Until [`completed`](Self::completed) returns the slot, or forever, it stays, and nothing else
    /// accesses it.
    unsafe fn push(&mut self, slot: usize, op: Op, memory: *mut u8, bytes: usize) -> anyhow::Result<()>;

    /// Submits the queued operations, and waits for one of those in flight, until `due` at the latest. Returns the number of
    /// system calls.
    ///
    /// # Errors
    /// The kernel refuses the operations.
    fn wait(&mut self, due: Option<Instant>, in_flight: usize) -> anyhow::Result<u64>;

    /// Returns a completion: the slot, and the bytes or the negative error.
    fn completed(&mut self) -> Option<(usize, i64)>;
}

/// Does the operations of a lane, in `memory`, which outlives the queue.
///
/// # Errors
/// The errors of the queue, of an operation and of the lane.
pub(super) fn drive<L: Lane>(mut lane: L, mut queue: impl Queue, memory: &mut Memory) -> anyhow::Result<L> {
    minimise_timer_slack();
    let most = memory.piece_bytes;
    let mut free: Vec<usize> = (0..memory.pieces).rev().collect();
    let mut running: Vec<(Op, Instant)> = vec![(Op::read(0), Instant::now()); memory.pieces];
    let mut early = None;
    loop {
        // Without a free slot nothing can start, and no due time can be met.
        while let Some(slot) = free.last().copied() {
            let Some(op) = early.take().or_else(|| lane.next()) else { break };
            let now = op.due.map(|_| Instant::now());
            if op.due > now {
                early = Some(op);
                break;
            }
            if lane.gives_up(&op) {
                continue;
            }
            free.pop();
            let bytes = lane.bytes_of(&op, most);
            if op.is_write {
                lane.fill(&op, &mut memory.piece(slot)[..bytes]);
            }
            running[slot] = (op, now.unwrap_or_else(|| lane.begins()));
            // SAFETY: the slot was free, so its piece is not in use, and nothing accesses it before the completion. The memory
            // outlives the queue, and stays forever if an error ends this loop (see its `drop`). It has `bytes` bytes: no lane has
            // more than `most`.
            unsafe { queue.push(slot, op, memory.start(slot), bytes.min(most)) }?;
            memory.in_flight += 1;
        }
        if memory.in_flight == 0 && early.is_none() {
            return Ok(lane);
        }
        lane.called(queue.wait(early.and_then(|op: Op| op.due), memory.in_flight)?);
        while let Some((slot, result)) = queue.completed() {
            memory.in_flight -= 1;
            let (op, begun) = running[slot];
            if result < 0 {
                let error = io::Error::from_raw_os_error(-result as i32);
                let polled = error.raw_os_error() == Some(libc::EOPNOTSUPP);
                return Err(error).context(if polled { NO_POLLING } else { "an operation failed" });
            }
            let wanted = lane.bytes_of(&op, most);
            anyhow::ensure!(result as usize == wanted, "an operation moved {result} bytes of {wanted}");
            lane.ended(op, begun, &memory.piece(slot)[..wanted])?;
            free.push(slot);
        }
    }
}

/// A piece of memory for each slot, one behind the other.
#[derive(Debug)]
pub(super) struct Memory {
    start: *mut u8,
    piece_bytes: usize,
    pieces: usize,
    in_flight: usize,
    /// Owns the bytes, which are accessed through `start` only.
    whole: Option<Box<dyn Any>>,
}

impl Memory {
    /// Returns memory for all operations in flight of a ring.
    ///
    /// # Errors
    /// The kernel gave no huge pages.
    pub(super) fn new(target: &Target) -> anyhow::Result<Self> {
        let (piece_bytes, pieces) = (target.bytes, target.depth.div_ceil(target.rings));
        let fill = |memory: &mut [u8]| {
            target.contents.into_iter().for_each(|contents| contents.fill(0, memory));
            memory.as_mut_ptr()
        };
        let (start, whole): (_, Box<dyn Any>) = if target.is_huge {
            let mut memory = HugeBuffer::new(pieces * piece_bytes)?;
            (fill(memory.bytes_mut()), Box::new(memory))
        } else {
            let mut memory = AlignedBuffer::new(pieces * piece_bytes);
            (fill(memory.bytes_mut()), Box::new(memory))
        };
        Ok(Self { start, piece_bytes, pieces, in_flight: 0, whole: Some(whole) })
    }

    /// Returns all of it, for a registration.
    pub(super) fn whole(&self) -> libc::iovec {
        libc::iovec { iov_base: self.start.cast(), iov_len: self.pieces * self.piece_bytes }
    }

    #[inline]
    fn start(&self, slot: usize) -> *mut u8 {
        assert!(slot < self.pieces, "there is no piece {slot}");
        // SAFETY: the piece lies in the memory.
        unsafe { self.start.add(slot * self.piece_bytes) }
    }

    /// Returns the piece of a slot without an operation.
    #[inline]
    fn piece(&mut self, slot: usize) -> &mut [u8] {
        // SAFETY: the piece lies in the memory, which `self` owns and which was made with values. The caller's slot has no
        // operation in flight, so the kernel does not access it, and the borrow of `self` is the only other access.
        unsafe { std::slice::from_raw_parts_mut(self.start(slot), self.piece_bytes) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            // After an error the kernel may still write there; the process ends with the error anyway.
            std::mem::forget(self.whole.take());
        }
    }
}
