//! The op table: every I/O in flight has a slot here, and the slot owns the memory and the file that it uses.
//!
//! It serves a shard as the kernel's per-CPU bio cache serves the block layer. Slots have a fixed size. The free list returns the
//! last freed slot first, because it is still in the CPU's cache. It needs no lock, because one thread touches the table. Fields
//! are set one by one instead of clearing the whole slot. The table grows by chunks of 256 slots that never move.

use std::ptr::NonNull;
use std::task::Waker;

use crate::base::class::Class;
use crate::io::op::{Durability, Flush, OpBuffer, OpKey, OpKind, OpResult};
use crate::reactor::account::file_table::NO_FILE;
use crate::reactor::shard::clock::Ticks;
use crate::reactor::shard::remote::RemotePtr;

/// The stage of a slot's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    Free,
    /// Waits for its turn to be submitted, or for memory.
    Staged,
    InFlight,
    /// Ended; the future has not yet returned the outcome.
    Done,
}

/// The action when the operation ends.
pub(crate) enum Continuation {
    /// No task waits: free the slot (its future was dropped).
    Orphan,
    /// A future of this task on this shard waits.
    Task(u32),
    /// A future on this shard waits. It was last polled with this waker, which is not its task's own (a join,
    /// a select, an executor within the task).
    Wake(Waker),
    /// A future elsewhere waits: fill its cell.
    Remote(RemotePtr),
    /// One piece of a batch.
    Batch { batch: u32, piece: u32 },
    /// One of the reads that a walk's step requested.
    Walk { walk: u32, place: u32 },
    /// The owner of a command, in the slot's buffer, is called.
    Command,
}

/// One operation; see the module's documentation. All fields belong to the shard's thread. Occupies two cache
/// lines.
#[repr(align(64))]
pub(crate) struct Slot {
    pub(crate) generation: u32,
    /// Next slot of the free list, or of the queue in which this one waits.
    next: u32,
    pub(crate) state: SlotState,
    pub(crate) kind: OpKind,
    pub(crate) class: Class,
    pub(crate) durability: Durability,
    pub(crate) flush: Flush,
    /// Whether the driver included the write's sync.
    pub(crate) synced: bool,
    /// Whether the kernel was requested to cancel it.
    pub(crate) cancelling: bool,
    /// Whether its times are added to the histograms.
    pub(crate) sampled: bool,
    /// The number of times that the kernel returned "try again".
    pub(crate) retries: u8,
    /// Whether it has a part of the line's allowance.
    pub(crate) has_allowance: bool,
    /// Index in its account's file table; `NO_FILE` for operations without one.
    pub(crate) file: u32,
    /// The file's device, for the statistics; set from submission on.
    pub(crate) device: u16,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) asked: u32,
    /// Bytes already transferred, if the kernel transferred fewer than requested.
    pub(crate) done: u32,
    pub(crate) result: OpResult,
    pub(crate) buffer: OpBuffer,
    pub(crate) continuation: Continuation,
    /// The time of a sampled operation's last step: staged, submitted, completed.
    pub(crate) stamp: Ticks,
    /// The cost that the device's scheduler counts for it while it is in flight; 0 if it is not counted.
    pub(crate) charge: u32,
}

/// End of a list of slots.
pub(crate) const NIL: u32 = u32::MAX;
/// The most slots a shard may have. An operation beyond that waits like one beyond the queue depth.
pub(crate) const SLOTS_MAX: u32 = 1 << 20;
const CHUNK_SLOTS: u32 = 256;
const _: () = assert!(size_of::<Slot>() == 128, "a slot fills two cache lines");

/// The slots of one shard.
pub(crate) struct OpTable {
    chunks: Vec<Box<[Slot]>>,
    free: u32,
    live: u32,
}

impl OpTable {
    pub(crate) fn new() -> OpTable {
        let mut table = OpTable { chunks: Vec::with_capacity(8), free: NIL, live: 0 };
        table.grow();
        table
    }

    /// Returns the number of slots in use.
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// Returns the number of slots that exist.
    pub(crate) fn capacity(&self) -> u32 {
        self.chunks.len() as u32 * CHUNK_SLOTS
    }

    /// Allocates the slot that was freed last. Returns `None` if `SLOTS_MAX` operations already exist.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<OpKey> {
        if self.free == NIL {
            if self.capacity() >= SLOTS_MAX {
                return None;
            }
            self.grow();
        }
        let index = self.free;
        let slot = self.slot(index);
        debug_assert_eq!(slot.state, SlotState::Free);
        debug_assert!(slot.charge == 0 && slot.file == NO_FILE, "a free slot owns nothing");
        let (next, generation) = (slot.next, slot.generation);
        self.free = next;
        self.live += 1;
        Some(OpKey { index, generation })
    }

    /// Frees a slot; its key never matches again. The caller has emptied buffer and continuation.
    #[inline]
    pub(crate) fn give_back(&mut self, index: u32) {
        let head = self.free;
        let slot = self.slot(index);
        debug_assert_ne!(slot.state, SlotState::Free);
        debug_assert!(matches!(slot.buffer, OpBuffer::None | OpBuffer::Late));
        debug_assert!(
            matches!(slot.continuation, Continuation::Orphan),
            "what waits for a slot was taken out"
        );
        debug_assert!(
            slot.charge == 0 && slot.file == NO_FILE,
            "a slot's charge and file go back before it does"
        );
        slot.state = SlotState::Free;
        slot.generation = slot.generation.wrapping_add(1);
        slot.next = head;
        self.free = index;
        self.live -= 1;
    }

    /// Returns the slot at an index that this table issued.
    #[inline]
    pub(crate) fn slot(&mut self, index: u32) -> &mut Slot {
        &mut self.chunks[(index / CHUNK_SLOTS) as usize][(index % CHUNK_SLOTS) as usize]
    }

    /// Returns the slot that `key` names, unless that use of the slot has ended.
    #[inline]
    pub(crate) fn find(&mut self, key: OpKey) -> Option<&mut Slot> {
        let chunk = self.chunks.get_mut((key.index / CHUNK_SLOTS) as usize)?;
        let slot = &mut chunk[(key.index % CHUNK_SLOTS) as usize];
        let same_use = slot.generation == key.generation || crate::_is_broken!(NoGenerationCheck);
        (same_use && slot.state != SlotState::Free).then_some(slot)
    }

    /// Returns the keys of all slots that are in use.
    pub(crate) fn live_keys(&self) -> Vec<OpKey> {
        let slots = self.chunks.iter().flat_map(|chunk| chunk.iter()).enumerate();
        slots
            .filter(|(_, slot)| slot.state != SlotState::Free)
            .map(|(index, slot)| OpKey { index: index as u32, generation: slot.generation })
            .collect()
    }

    /// Returns all slots, also those that are free.
    #[cfg(debug_assertions)]
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// Frees all chunks but the first if no slot is in use. For a shard that is idle.
    pub(crate) fn shrink(&mut self) {
        if self.live != 0 || self.chunks.len() < 2 {
            return;
        }
        // Generations must not start over for an index that exists again later, so the next chunk in this place starts where this
        // one stopped.
        let generation = self.chunks.iter().flat_map(|chunk| chunk.iter()).map(|slot| slot.generation).max();
        self.chunks.truncate(1);
        self.free = NIL;
        let generation = generation.unwrap_or(0).wrapping_add(1);
        for (index, slot) in self.chunks[0].iter_mut().enumerate().rev() {
            slot.generation = generation;
            slot.next = self.free;
            self.free = index as u32;
        }
    }

    #[cold]
    fn grow(&mut self) {
        debug_assert_eq!(self.live, self.capacity(), "the table grows when every slot is in use");
        let first = self.capacity();
        let generation = self
            .chunks
            .first()
            .map_or(1, |chunk| chunk.iter().map(|slot| slot.generation).max().unwrap_or(0).wrapping_add(1));
        let slots = (0..CHUNK_SLOTS).map(|at| {
            let next = if at + 1 == CHUNK_SLOTS { self.free } else { first + at + 1 };
            Slot::free(generation, next)
        });
        let chunk: Box<[Slot]> = slots.collect();
        self.chunks.push(chunk);
        self.free = first;
    }
}

impl Slot {
    fn free(generation: u32, next: u32) -> Slot {
        Slot {
            generation,
            next,
            state: SlotState::Free,
            kind: OpKind::Nop,
            class: Class::DEFAULT,
            durability: Durability::None,
            flush: Flush::Queued,
            synced: false,
            cancelling: false,
            sampled: false,
            retries: 0,
            has_allowance: false,
            file: NO_FILE,
            device: 0,
            offset: 0,
            len: 0,
            asked: 0,
            done: 0,
            result: Ok(0),
            buffer: OpBuffer::None,
            continuation: Continuation::Orphan,
            stamp: 0,
            charge: 0,
        }
    }

    /// Returns the next slot in the queue that a slot in use waits in.
    #[inline]
    pub(crate) fn link(&self) -> u32 {
        self.next
    }

    #[inline]
    pub(crate) fn set_link(&mut self, next: u32) {
        debug_assert_ne!(self.state, SlotState::Free);
        self.next = next;
    }

    /// Sets the continuation of a slot without one. Nothing is dropped here, and the compiler need not check.
    #[inline]
    pub(crate) fn continue_with(&mut self, continuation: Continuation) {
        debug_assert!(matches!(self.continuation, Continuation::Orphan));
        std::mem::forget(std::mem::replace(&mut self.continuation, continuation));
    }

    /// Replaces a continuation that holds nothing to drop.
    #[inline]
    pub(crate) fn continue_after(&mut self, continuation: Continuation) {
        debug_assert!(matches!(self.continuation, Continuation::Orphan | Continuation::Task(_)));
        std::mem::forget(std::mem::replace(&mut self.continuation, continuation));
    }

    /// Takes the waker of the waiting future on this shard, if it has a separate one.
    #[inline]
    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        match std::mem::replace(&mut self.continuation, Continuation::Orphan) {
            Continuation::Wake(waker) => Some(waker),
            other => {
                self.continue_with(other);
                None
            }
        }
    }

    /// Returns the sync that the driver may include with a write. A write that was not completed immediately is done in steps: the
    /// rest first, then the sync.
    #[inline]
    pub(crate) fn sync_to_take_along(&self) -> Option<OpKind> {
        match self.kind {
            OpKind::Write if self.done == 0 && self.retries == 0 => self.durability.sync_kind(),
            _ => None,
        }
    }

    /// Returns whether it is a read that may load the page cache: not one that is made again, which has been counted as a miss.
    #[inline]
    pub(crate) fn may_load(&self) -> bool {
        self.kind == OpKind::Read && self.retries == 0 && self.buffer.may_load()
    }

    /// Returns the address that the device reads from or writes to, past the bytes already transferred.
    pub(crate) fn memory(&self) -> Option<(NonNull<u8>, Option<u16>)> {
        self.buffer.memory(self.done)
    }
}

#[cfg(test)]
mod worth;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_slot_given_back_is_taken_first_under_a_new_key() {
        let mut table = OpTable::new();
        let (a, b) = (table.take().unwrap(), table.take().unwrap());
        for key in [a, b] {
            table.slot(key.index).state = SlotState::InFlight;
            table.give_back(key.index);
        }
        let again = table.take().unwrap();
        assert_eq!(again.index, b.index);
        assert_ne!(again.generation, b.generation);
        assert!(table.find(b).is_none(), "a stale key must not find the slot's next use");
        assert_eq!(OpKey::from_user_data(again.to_user_data()), again);
    }

    #[test]
    fn grows_by_chunks_and_gives_them_back_without_reviving_old_keys() {
        // Fewer keys where an interpreter would need minutes.
        const KEYS: u32 = if cfg!(miri) { 300 } else { 1000 };
        let mut table = OpTable::new();
        let keys: Vec<OpKey> = (0..KEYS).map(|_| table.take().unwrap()).collect();
        for key in &keys {
            table.slot(key.index).state = SlotState::InFlight;
        }
        assert_eq!(table.capacity(), KEYS.next_multiple_of(256));
        for key in &keys {
            table.give_back(key.index);
        }
        table.shrink();
        assert_eq!((table.capacity(), table.live()), (256, 0));
        let fresh: Vec<OpKey> = (0..KEYS).map(|_| table.take().unwrap()).collect();
        for key in &fresh {
            table.slot(key.index).state = SlotState::InFlight;
            assert!(!keys.contains(key), "{key:?} was in use before");
        }
    }
}
