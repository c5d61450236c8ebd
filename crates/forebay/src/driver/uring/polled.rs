//! A second ring of a shard, whose completions are polled for (`IORING_SETUP_IOPOLL`): direct reads and
//! writes of files on devices with poll queues. Everything else stays on the first ring.

use std::io;

use io_uring::squeue::Entry;
use io_uring::{IoUring, types};

use super::enter::Door;
use super::entry::UseFile;
use super::setup;
use super::splits::Splits;
use super::tables::Tables;
use super::{FIXED_FILES_MAX, Keeper};
use crate::base::health::Degradation;
use crate::driver::{IoRequest, NOT_POLLABLE, PollCounts, QueueFull};
use crate::io::config::Polling;
use crate::io::op::OpKey;
use crate::io::op::OpKind;

/// The most parts of a polled request. Longer requests use the first ring, where the kernel splits them: polling gains nothing for
/// megabytes.
const PARTS_MAX: u32 = 16;

/// The polled ring of a shard. Requests in it cannot be cancelled: the device has them, and they end by
/// themselves.
pub(super) struct PolledRing {
    ring: IoUring,
    door: Door,
    tables: Tables,
    splits: Splits,
    /// Entries in the queues and with the device.
    in_flight: u32,
    in_flight_max: u32,
    counts: PollCounts,
}

impl PolledRing {
    /// Creates a ring on the shard's thread. The first ring reports the features that both lack.
    pub(super) fn new(
        depth: u32,
        polling: Polling,
        degraded: impl FnOnce(Degradation),
    ) -> io::Result<PolledRing> {
        let ring: IoUring = setup::build_polled(depth.max(2 * PARTS_MAX), polling, degraded)?;
        let mut door = Door::of(&ring);
        let _ = door.register();
        let tables = Tables::register(&ring.submitter(), |_, _, _| {});
        let in_flight_max = ring.params().cq_entries();
        let splits = Splits::default();
        Ok(PolledRing {
            ring,
            door,
            tables,
            splits,
            in_flight: 0,
            in_flight_max,
            counts: PollCounts::default(),
        })
    }

    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight > 0
    }

    pub(super) fn counts(&self) -> PollCounts {
        self.counts
    }

    /// Queues a read or a write, in parts of at most `bytes_max`; returns false if it does not belong on this
    /// ring.
    ///
    /// # Safety
    /// As [`Driver::submit`](crate::driver::Driver::submit).
    pub(super) unsafe fn submit(&mut self, request: &IoRequest, bytes_max: u32) -> Result<bool, QueueFull> {
        let parts = request.len.div_ceil(bytes_max.max(1));
        if parts > PARTS_MAX {
            return Ok(false);
        }
        let room = {
            let queue = self.ring.submission();
            queue.capacity() - queue.len()
        };
        if self.in_flight + parts > self.in_flight_max || room < parts as usize {
            return Err(QueueFull);
        }
        let data = request.key.to_user_data();
        self.counts.requests += 1;
        if parts <= 1 {
            // SAFETY: the caller's promise.
            unsafe { self.push(request, data)? };
            return Ok(true);
        }
        let split = self.splits.begin(request.key, parts, bytes_max, request.len);
        for part in 0..parts {
            let at = part * bytes_max;
            let part_of = IoRequest {
                // SAFETY: inside the memory that the request names, which is `len` bytes long.
                memory: request.memory.map(|memory| unsafe { memory.add(at as usize) }),
                offset: request.offset + u64::from(at),
                len: (request.len - at).min(bytes_max),
                ..*request
            };
            // SAFETY: the caller's promise holds for every part of the memory, until the last part was reported.
            unsafe { self.push(&part_of, Splits::user_data(split, part))? };
        }
        Ok(true)
    }

    /// # Safety
    /// As [`submit`](Self::submit).
    #[inline]
    unsafe fn push(&mut self, request: &IoRequest, data: u64) -> Result<(), QueueFull> {
        let region = self.tables.region_of(request);
        let entry = match request.fixed_file {
            Some(index) => entry(types::Fixed(index), request, region),
            None => entry(types::Fd(request.fd), request, region),
        };
        // SAFETY: the caller keeps memory and file until the completion; `&mut self` makes this the only user.
        unsafe { self.ring.submission().push(&entry.user_data(data)) }.map_err(|_| QueueFull)?;
        self.in_flight += 1;
        Ok(())
    }

    /// Submits the queued entries, polls the device once without waiting, and reports the completions.
    #[inline]
    pub(super) fn poll(&mut self, mut report: impl FnMut(OpKey, i32)) -> io::Result<()> {
        let to_submit = self.ring.submission().len() as u32;
        let entered = self.door.enter(to_submit, 0, None, None);
        let before = self.in_flight;
        for completion in self.ring.completion() {
            self.in_flight -= 1;
            let mut result = completion.result();
            // A file system or device that turned out not to support polling; the first ring serves such requests.
            if result == -libc::EOPNOTSUPP {
                result = NOT_POLLABLE;
            }
            let data = completion.user_data();
            if !Splits::is_part(data) {
                report(OpKey::from_user_data(data), result);
            } else if let Some((key, whole)) = self.splits.part_done(data, result) {
                report(key, whole);
            }
        }
        self.counts.polls += 1;
        self.counts.empty += u64::from(self.in_flight == before);
        entered
    }

    /// Adds a file with polled completions; it has the same index here as in the first ring's table.
    pub(super) fn add_file(&self, index: u32, fd: std::os::fd::RawFd) -> bool {
        self.tables.add_file(&self.ring.submitter(), index, fd)
    }

    pub(super) fn remove_file(&self, index: u32) {
        if index < FIXED_FILES_MAX {
            self.tables.remove_file(&self.ring.submitter(), index);
        }
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

#[inline]
fn entry(file: impl UseFile, request: &IoRequest, region: Option<u16>) -> Entry {
    let memory = request.memory.map_or(std::ptr::null_mut(), |memory| memory.as_ptr());
    match (request.kind, region) {
        (OpKind::Write, Some(region)) => file.write_fixed(memory, request, region),
        (OpKind::Write, None) => file.write(memory, request),
        (_, Some(region)) => file.read_fixed(memory, request, region),
        (_, None) => file.read(memory, request),
    }
}
