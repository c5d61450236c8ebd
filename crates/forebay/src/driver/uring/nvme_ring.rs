//! A ring for commands to NVMe namespaces (`IORING_OP_URING_CMD` on `/dev/ngXnY`). Its entries have 128
//! bytes, which hold a whole command, and its completions 32.

use std::io;
use std::os::fd::RawFd;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::enter::Door;
use super::splits::Splits;
use super::tables::Tables;
use super::{Keeper, WAKE_DATA, setup};
use crate::device::NvmeCommand;
use crate::driver::{IoRequest, NvmeTarget, PollCounts, QueueFull, Wait};
use crate::io::op::{OpKey, OpKind, nvme_result};

/// `_IOWR('N', 0x80, struct nvme_uring_cmd)` of linux/nvme_ioctl.h.
const NVME_URING_CMD_IO: u32 = 0xC048_4E80;

// NVM Express Base Specification, I/O commands, and generic command status 80h.
const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const LBA_OUT_OF_RANGE: u16 = 0x80;

/// The most parts of one request that are at the device together; the rest of a longer request follows them.
const PARTS_MAX: u32 = 16;

/// The decision about a request before the device sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Send this many bytes, from the start of the range, to the device; the last block may be partial.
    Send(u32),
    /// The request has this result already.
    Known(i32),
}

/// Checks a request against its file, which is the namespace or a part of it. Reads end where the file ends;
/// everything else must lie inside it.
pub(super) fn plan(target: &NvmeTarget, request: &IoRequest) -> Plan {
    let is_write = match request.kind {
        OpKind::Nop => return Plan::Known(0),
        OpKind::Command => return Plan::Known(-libc::EOPNOTSUPP),
        OpKind::SyncData | OpKind::SyncAll => return Plan::Send(0),
        OpKind::Write => true,
        OpKind::Read => false,
    };
    // The kernel lets an administrator send any command through any descriptor.
    if is_write && !target.writable {
        return Plan::Known(-libc::EBADF);
    }
    let room = target.bytes.saturating_sub(request.offset);
    let len = u64::from(request.len).min(room) as u32;
    if is_write && len < request.len {
        return Plan::Known(nvme_result(LBA_OUT_OF_RANGE));
    }
    if len == 0 {
        return Plan::Known(0);
    }
    let grain = (1u64 << target.block_shift) - 1;
    // An end of the file inside a block is not an error: its last block is read whole, and the memory is large enough for it.
    if (request.offset | u64::from(request.len)) & grain != 0 || request.memory.is_none() {
        return Plan::Known(-libc::EINVAL);
    }
    Plan::Send(len.min(target.bytes_max.saturating_mul(PARTS_MAX)))
}

/// A ring for commands. The device has them once they are submitted, so they cannot be cancelled.
pub(super) struct NvmeRing {
    ring: IoUring<squeue::Entry128, cqueue::Entry32>,
    door: Door,
    tables: Tables,
    splits: Splits,
    is_polled: bool,
    /// Entries in the queues and with the device, and the number of their requests.
    entries: u32,
    pub(super) requests: u32,
    entries_max: u32,
    /// By slot: the bytes that its command moves; a completion does not contain the count.
    bytes: Vec<u32>,
    /// Ends a sleep in this ring; see [`UringWake`](super::UringWake).
    event: RawFd,
    wake_read: Option<Box<u64>>,
    counts: PollCounts,
}

impl NvmeRing {
    /// Creates a ring on the shard's thread. `event` is the descriptor that ends a sleep in it; `None` for a polled ring.
    pub(super) fn new(depth: u32, event: Option<RawFd>) -> io::Result<NvmeRing> {
        let is_polled = event.is_none();
        let ring = setup::build_ring(depth.max(2 * PARTS_MAX), is_polled, drop)?;
        let mut door = Door::of(&ring);
        let _ = door.register();
        let tables = Tables::register(&ring.submitter(), |_, _, _| {});
        let mut ring = NvmeRing {
            entries_max: ring.params().cq_entries() - 1,
            ring,
            door,
            tables,
            splits: Splits::default(),
            is_polled,
            entries: 0,
            requests: 0,
            bytes: Vec::new(),
            event: event.unwrap_or(-1),
            wake_read: None,
            counts: PollCounts::default(),
        };
        ring.arm_wake();
        Ok(ring)
    }

    pub(super) fn counts(&self) -> PollCounts {
        self.counts
    }

    /// Keeps a read of the event descriptor in flight, so that a write to it ends a sleep here.
    fn arm_wake(&mut self) {
        if self.is_polled {
            return;
        }
        let target = self.wake_read.get_or_insert_with(|| Box::new(0));
        let entry = opcode::Read::new(types::Fd(self.event), std::ptr::from_mut(&mut **target).cast(), 8)
            .build()
            .user_data(WAKE_DATA);
        // SAFETY: the driver keeps the descriptor, and the eight bytes are freed with nothing in flight or never (see Drop). The
        // queue has room for one entry more than were counted; without it, a sleep here would end with its limit or a
        // completion.
        let _ = unsafe { self.ring.submission().push(&Entry128::from(entry)) };
    }

    /// Queues a request that sends `len` bytes to the device.
    ///
    /// # Safety
    /// As [`Driver::submit`](crate::driver::Driver::submit).
    pub(super) unsafe fn submit(
        &mut self,
        request: &IoRequest,
        target: &NvmeTarget,
        len: u32,
    ) -> Result<(), QueueFull> {
        let part_bytes = target.bytes_max.max(1 << target.block_shift);
        let parts = len.div_ceil(part_bytes).max(1);
        let room = {
            let queue = self.ring.submission();
            queue.capacity() - queue.len()
        };
        // One entry stays free for the wake-up.
        if self.entries + parts >= self.entries_max || room <= parts as usize {
            return Err(QueueFull);
        }
        self.counts.requests += u64::from(self.is_polled);
        if parts == 1 {
            let index = request.key.index as usize;
            if index >= self.bytes.len() {
                self.bytes.resize(index + 1, 0);
            }
            self.bytes[index] = len;
            // SAFETY: the caller's promise.
            unsafe { self.push(request, target, 0, len, request.key.to_user_data())? };
        } else {
            let split = self.splits.begin(request.key, parts, part_bytes, len);
            for part in 0..parts {
                let at = part * part_bytes;
                let data = Splits::user_data(split, part);
                // SAFETY: the caller's promise holds for every part of the memory, until the last part was reported.
                unsafe { self.push(request, target, at, (len - at).min(part_bytes), data)? };
            }
        }
        self.requests += 1;
        Ok(())
    }

    /// Queues the command for `len` bytes from `at` on.
    ///
    /// # Safety
    /// As [`submit`](Self::submit).
    unsafe fn push(
        &mut self,
        request: &IoRequest,
        target: &NvmeTarget,
        at: u32,
        len: u32,
        data: u64,
    ) -> Result<(), QueueFull> {
        let mut command = NvmeCommand { opcode: FLUSH, nsid: target.id, ..NvmeCommand::default() };
        let mut region = None;
        if let (OpKind::Read | OpKind::Write, Some(memory)) = (request.kind, request.memory) {
            let block = target.first_block + ((request.offset + u64::from(at)) >> target.block_shift);
            // Rounds up to the end of the block in which the file ends; the request includes it (`plan`).
            let len = len.next_multiple_of(1 << target.block_shift);
            command.opcode = if request.kind == OpKind::Write { WRITE } else { READ };
            command.addr = memory.as_ptr() as u64 + u64::from(at);
            command.data_len = len;
            command.cdw10 = block as u32;
            command.cdw11 = (block >> 32) as u32;
            // The command's block count is zero-based.
            command.cdw12 = (len >> target.block_shift) - 1;
            region = self.tables.region_of(request);
        }
        let bytes = command.to_bytes();
        let entry = match request.fixed_file {
            Some(index) => opcode::UringCmd80::new(types::Fixed(index), NVME_URING_CMD_IO).cmd(bytes),
            None => opcode::UringCmd80::new(types::Fd(request.fd), NVME_URING_CMD_IO).cmd(bytes),
        };
        let entry = entry.buf_index(region).build().user_data(data);
        // SAFETY: the caller keeps memory and file until the completion; `&mut self` makes this the only user.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| QueueFull)?;
        self.entries += 1;
        Ok(())
    }

    /// Submits the queued entries, waits as `wait` specifies, and reports the completions. A polled ring
    /// never waits.
    pub(super) fn complete(&mut self, wait: Wait, mut report: impl FnMut(OpKey, i32)) -> io::Result<()> {
        let (to_submit, must_enter) = {
            let queue = self.ring.submission();
            let must = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
            (queue.len() as u32, must || self.is_polled)
        };
        let entered = match wait {
            Wait::For { completions, patience, limit, .. } if !self.is_polled => {
                self.door.enter(to_submit, completions, patience, limit)
            }
            _ if must_enter => self.door.enter(to_submit, 0, None, None),
            _ => Ok(()),
        };
        let before = self.entries;
        let mut is_woken = false;
        for completion in self.ring.completion() {
            let (data, result) = (completion.user_data(), completion.result());
            if data == WAKE_DATA {
                is_woken = true;
                continue;
            }
            self.entries -= 1;
            let failure = if result > 0 { nvme_result(result as u16) } else { result };
            if Splits::is_part(data) {
                let whole = if failure == 0 { self.splits.wanted(data) } else { failure };
                if let Some((key, result)) = self.splits.part_done(data, whole) {
                    self.requests -= 1;
                    report(key, result);
                }
                continue;
            }
            let key = OpKey::from_user_data(data);
            self.requests -= 1;
            let moved = self.bytes.get(key.index as usize).copied().unwrap_or(0);
            report(key, if failure == 0 { moved as i32 } else { failure });
        }
        if self.is_polled {
            self.counts.polls += 1;
            self.counts.empty += u64::from(before == self.entries);
        }
        if is_woken {
            self.arm_wake();
        }
        entered
    }

    #[inline]
    pub(super) fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty() || self.ring.submission().taskrun()
    }

    pub(super) fn add_file(&self, index: u32, fd: RawFd) -> bool {
        self.tables.add_file(&self.ring.submitter(), index, fd)
    }

    pub(super) fn remove_file(&self, index: u32) {
        self.tables.remove_file(&self.ring.submitter(), index);
    }

    pub(super) fn add_region(
        &mut self,
        keeper: &Keeper,
        index: u16,
        start: *mut u8,
        len: usize,
    ) -> io::Result<()> {
        self.tables.add_region(&self.ring.submitter(), keeper, index, start, len)
    }

    pub(super) fn retire(&mut self) {
        self.tables.retire(&self.ring.submitter());
    }
}

impl Drop for NvmeRing {
    fn drop(&mut self) {
        // Closing a ring does not wait for requests in flight.
        if let Some(target) = self.wake_read.take() {
            Box::leak(target);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::io::op::Flush;

    const TARGET: NvmeTarget = NvmeTarget {
        id: 1,
        block_shift: 9,
        writable: true,
        polled: false,
        bytes_max: 8192,
        first_block: 0,
        bytes: 1 << 20,
    };

    fn request(kind: OpKind, offset: u64, len: u32) -> IoRequest {
        IoRequest {
            key: OpKey { index: 3, generation: 1 },
            kind,
            fd: -1,
            fixed_file: None,
            memory: Some(NonNull::dangling()),
            region: None,
            len,
            offset,
            rw_flags: 0,
            route: 1,
            sync: None,
            flush: Flush::Queued,
        }
    }

    #[test]
    fn reads_end_with_the_namespace_and_writes_must_lie_in_it() {
        let planned = |kind, offset, len| plan(&TARGET, &request(kind, offset, len));
        assert_eq!(planned(OpKind::Read, 0, 4096), Plan::Send(4096));
        assert_eq!(planned(OpKind::Read, (1 << 20) - 512, 4096), Plan::Send(512));
        assert_eq!(planned(OpKind::Read, 1 << 20, 4096), Plan::Known(0));
        assert_eq!(planned(OpKind::Read, u64::MAX - 511, 512), Plan::Known(0));
        assert_eq!(planned(OpKind::Write, (1 << 20) - 512, 512), Plan::Send(512));
        let past = planned(OpKind::Write, (1 << 20) - 512, 1024);
        assert_eq!(past, Plan::Known(nvme_result(LBA_OUT_OF_RANGE)));
        assert_eq!(planned(OpKind::Read, 0, 1 << 20), Plan::Send(16 * 8192), "the rest is asked for again");
        assert_eq!(planned(OpKind::Write, 0, 0), Plan::Known(0), "a command cannot say zero blocks");
        assert_eq!(planned(OpKind::Read, 256, 512), Plan::Known(-libc::EINVAL));
        assert_eq!(planned(OpKind::SyncAll, 0, 0), Plan::Send(0));
        let read_only = NvmeTarget { writable: false, ..TARGET };
        assert_eq!(plan(&read_only, &request(OpKind::Write, 0, 512)), Plan::Known(-libc::EBADF));
    }

    #[test]
    fn a_status_is_no_errno() {
        use crate::io::op::nvme_status;
        for status in [0x80, 0x281, 0x7fff] {
            assert_eq!(nvme_status(nvme_result(status)), Some(status));
        }
        assert_eq!(
            (nvme_status(-libc::EIO), nvme_status(0), nvme_status(crate::driver::NOT_POLLABLE)),
            (None, None, None)
        );
    }
}
