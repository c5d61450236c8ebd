//! The rows with a bare ring: one thread, which submits and waits for at least one completion each
//! turn.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use io_uring::{CompletionQueue, IoUring, SubmissionQueue, Submitter, cqueue, opcode, squeue, types};

use super::super::aligned::AlignedBuffer;
use super::super::commands::Namespace;
use super::super::job::Job;
use super::arrivals::minimise_timer_slack;
use super::job::{ReadWork, Way};
use super::lane::{Lane, Tally};
use super::pacer::{Pacer, Scheduled};
use super::threads::NO_POLLING;

/// The time without work after which the kernel's thread of a ring with SQPOLL sleeps.
const SQPOLL_IDLE_MS: u32 = 50;

/// The options with which a ring is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Setup {
    fixed_buffers: bool,
    fixed_file: bool,
    defer_taskrun: bool,
    sqpoll: bool,
    iopoll: bool,
}

impl Setup {
    const fn of(way: Way) -> Self {
        Self {
            fixed_buffers: !matches!(way, Way::Uring),
            fixed_file: !matches!(way, Way::Uring | Way::UringFixedBuffers),
            defer_taskrun: matches!(way, Way::UringDeferTaskrun | Way::UringIopoll | Way::UringCommands),
            sqpoll: matches!(way, Way::UringSqpoll),
            iopoll: matches!(way, Way::UringIopoll | Way::UringCommands),
        }
    }

    fn build<E: Entry>(self, entries: usize) -> anyhow::Result<IoUring<E, E::Ended>> {
        let mut builder = IoUring::<E, E::Ended>::builder();
        if self.defer_taskrun {
            builder.setup_single_issuer().setup_defer_taskrun();
        }
        if self.sqpoll {
            builder.setup_sqpoll(SQPOLL_IDLE_MS);
        }
        if self.iopoll {
            builder.setup_iopoll();
        }
        builder.build(entries.next_power_of_two() as u32).context(match self {
            Self { iopoll: true, .. } => "the kernel refuses a ring with IOPOLL (of commands: Linux 6.1)",
            Self { sqpoll: true, .. } => "the kernel refuses a ring with SQPOLL",
            Self { defer_taskrun: true, .. } => "the kernel refuses a ring with DEFER_TASKRUN (Linux 6.1)",
            _ => "the kernel refuses a ring (the sysctl kernel.io_uring_disabled, or a seccomp filter)",
        })
    }
}

/// The entries submitted, and the completions that come back.
trait Entry: squeue::EntryMarker {
    type Ended: cqueue::EntryMarker + Into<cqueue::Entry>;
    /// Whether a completion holds the number of bytes read. The completion of a command only
    /// reports success.
    const REPORTS_BYTES: bool;

    /// Returns a read at `offset` into a piece of memory.
    fn read(pieces: &Pieces, piece: *mut u8, offset: u64, slot: u64) -> Self;
}

impl Entry for squeue::Entry {
    type Ended = cqueue::Entry;
    const REPORTS_BYTES: bool = true;

    fn read(pieces: &Pieces, piece: *mut u8, offset: u64, slot: u64) -> Self {
        let (length, fixed) = (pieces.piece_bytes as u32, types::Fixed(0));
        let plain = types::Fd(pieces.descriptor);
        let entry = match (pieces.setup.fixed_buffers, pieces.setup.fixed_file) {
            (true, true) => opcode::ReadFixed::new(fixed, piece, length, 0).offset(offset).build(),
            (true, false) => opcode::ReadFixed::new(plain, piece, length, 0).offset(offset).build(),
            (false, _) => opcode::Read::new(plain, piece, length).offset(offset).build(),
        };
        entry.user_data(slot)
    }
}

impl Entry for squeue::Entry128 {
    type Ended = cqueue::Entry32;
    const REPORTS_BYTES: bool = false;

    fn read(pieces: &Pieces, piece: *mut u8, offset: u64, slot: u64) -> Self {
        pieces.namespace.read(offset, piece, pieces.piece_bytes as u32).user_data(slot)
    }
}

/// The read in one place of the ring.
#[derive(Debug, Clone, Copy)]
struct Read {
    scheduled: Scheduled,
    offset: u64,
    begun: Instant,
}

/// Runs all readers of the sample until it has ended.
///
/// # Errors
/// Fails when the kernel refuses the ring or its operations, or a read failed or returned data other than
/// those written.
pub(super) fn read(job: &Job, work: &ReadWork, file: &File, pacer: &Arc<Pacer>) -> anyhow::Result<Tally> {
    run::<squeue::Entry>(job, work, file, Namespace::default(), pacer)
}

/// Does the same with commands to a namespace.
///
/// # Errors
/// As [`read`].
pub(super) fn commands(
    job: &Job,
    work: &ReadWork,
    file: &File,
    namespace: Namespace,
    pacer: &Arc<Pacer>,
) -> anyhow::Result<Tally> {
    run::<squeue::Entry128>(job, work, file, namespace, pacer)
}

fn run<E: Entry>(
    job: &Job,
    work: &ReadWork,
    file: &File,
    namespace: Namespace,
    pacer: &Arc<Pacer>,
) -> anyhow::Result<Tally> {
    let mut lane = Lane::new(job, work, 0, pacer)?;
    let setup = Setup::of(work.way);
    let mut ring = setup.build::<E>(work.readers)?;
    let mut memory = Pieces::new(&ring, setup, file, namespace, work)?;
    let (mut submitter, mut sq, mut cq) = ring.split();
    // The kernel refuses this before Linux 5.18; then each enter looks the ring up.
    _ = submitter.register_ring_fd();
    minimise_timer_slack();
    let mut free: Vec<usize> = (0..work.readers).rev().collect();
    let mut reads: Vec<Option<Read>> = vec![None; work.readers];
    let mut next = pacer.next_read();
    loop {
        while let (Some(scheduled), Some(slot)) = (next, free.last().copied()) {
            let begun = Instant::now();
            if scheduled.due.is_some_and(|due| due > begun) {
                break;
            }
            if scheduled.due.is_some() && pacer.gave_up() {
                lane.gave_up(scheduled);
            } else {
                free.pop();
                let offset = lane.offset();
                reads[slot] = Some(Read { scheduled, offset, begun });
                make_room(&submitter, &mut sq, &mut lane)?;
                memory.push(&mut sq, slot, offset)?;
            }
            next = pacer.next_read();
        }
        if memory.in_flight == 0 && next.is_none() {
            return Ok(lane.end());
        }
        // Without a free place nothing can begin.
        let due = next.and_then(|scheduled| scheduled.due).filter(|_| !free.is_empty());
        wait(&submitter, &mut sq, &mut cq, due, &mut lane)?;
        for completion in &mut cq {
            let completion: cqueue::Entry = completion.into();
            let slot = completion.user_data() as usize;
            memory.in_flight -= 1;
            let result = completion.result();
            if result == -libc::EOPNOTSUPP && setup.iopoll {
                return Err(io::Error::from_raw_os_error(-result)).context(NO_POLLING);
            }
            if result < 0 {
                return Err(io::Error::from_raw_os_error(-result)).context("a read failed");
            }
            let wanted = if E::REPORTS_BYTES { work.block_bytes } else { 0 };
            anyhow::ensure!(result as u64 == wanted, "a read returned {result} and not {wanted}");
            let read = reads[slot].take().context("a completion without a read")?;
            lane.ended(read.scheduled, read.begun, read.offset, memory.piece(slot))?;
            free.push(slot);
        }
    }
}

/// Waits until the queue has a free place. It can be full here only with SQPOLL: the kernel's thread may
/// have ended a read before it has released the place, and on a busy machine that takes long.
fn make_room<E: Entry>(
    submitter: &Submitter<'_>,
    sq: &mut SubmissionQueue<'_, E>,
    lane: &mut Lane,
) -> anyhow::Result<()> {
    while sq.is_full() {
        sq.sync();
        if sq.is_full() {
            // The submission wakes the thread if it sleeps.
            match submitter.submit().and_then(|_| submitter.squeue_wait()) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => return Err(error).context("waiting for room in the queue failed"),
            }
            lane.called();
        }
    }
    Ok(())
}

/// Submits the queued entries and waits for a completion, until `due` at the latest.
fn wait<E: Entry>(
    submitter: &Submitter<'_>,
    sq: &mut SubmissionQueue<'_, E>,
    cq: &mut CompletionQueue<'_, E::Ended>,
    due: Option<Instant>,
    lane: &mut Lane,
) -> anyhow::Result<()> {
    sq.sync();
    // Publishes the consumed completions: an old one still in the queue would end the wait at once.
    cq.sync();
    let waited = match due.map(|due| due.saturating_duration_since(Instant::now())) {
        None => submitter.submit_and_wait(1),
        Some(Duration::ZERO) => submitter.submit(),
        Some(left) => {
            let limit = types::Timespec::new().sec(left.as_secs()).nsec(left.subsec_nanos());
            submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&limit))
        }
    };
    match waited {
        Ok(_) => {}
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME)) => {}
        Err(error) => return Err(error).context("io_uring_enter failed"),
    }
    lane.called();
    sq.sync();
    cq.sync();
    Ok(())
}

/// A piece of memory for each place in the ring, registered or not.
struct Pieces {
    start: *mut u8,
    piece_bytes: usize,
    setup: Setup,
    descriptor: i32,
    namespace: Namespace,
    in_flight: usize,
    /// Accessed through `start` only.
    memory: Option<AlignedBuffer>,
}

impl Pieces {
    fn new<E: Entry>(
        ring: &IoUring<E, E::Ended>,
        setup: Setup,
        file: &File,
        namespace: Namespace,
        work: &ReadWork,
    ) -> anyhow::Result<Self> {
        let piece_bytes = work.block_bytes as usize;
        let mut memory = AlignedBuffer::new(work.readers * piece_bytes);
        let start = memory.bytes_mut().as_mut_ptr();
        let descriptor = file.as_raw_fd();
        if setup.fixed_file {
            ring.submitter().register_files(&[descriptor]).context("registering the file")?;
        }
        if setup.fixed_buffers {
            let whole = libc::iovec { iov_base: start.cast(), iov_len: work.readers * piece_bytes };
            // SAFETY: the memory is mapped, the registration pins its pages, and it stays until the last read into it
            // has completed (see `drop`).
            unsafe { ring.submitter().register_buffers(&[whole]) }
                .context("registering the memory; raise the limit on locked memory")?;
        }
        Ok(Self { start, piece_bytes, setup, descriptor, namespace, in_flight: 0, memory: Some(memory) })
    }

    fn piece(&self, slot: usize) -> &[u8] {
        // SAFETY: the piece lies in the memory, which lives as long as `self`; the caller reads it only
        // between a completion and the next read into it, when the kernel does not write there.
        unsafe { std::slice::from_raw_parts(self.start.add(slot * self.piece_bytes), self.piece_bytes) }
    }

    /// Queues a read at `offset` into piece `slot`.
    fn push<E: Entry>(
        &mut self,
        sq: &mut SubmissionQueue<'_, E>,
        slot: usize,
        offset: u64,
    ) -> anyhow::Result<()> {
        // SAFETY: slots are numbers of readers, for each of which the memory has a piece.
        let piece = unsafe { self.start.add(slot * self.piece_bytes) };
        let entry = E::read(self, piece, offset, slot as u64);
        // SAFETY: the piece lies in the memory, which outlives the read (see `drop`), the file outlives the ring, and one
        // read for each slot is in flight.
        unsafe { sq.push(&entry) }.context("the queue has room for every reader")?;
        self.in_flight += 1;
        Ok(())
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            // After an error the kernel may still write there; the process ends with the error anyway.
            std::mem::forget(self.memory.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_adds_a_feature_to_the_rows_before_it() {
        let setup = |fixed_buffers, fixed_file, defer_taskrun, sqpoll, iopoll| Setup {
            fixed_buffers,
            fixed_file,
            defer_taskrun,
            sqpoll,
            iopoll,
        };
        assert_eq!(Setup::of(Way::Uring), setup(false, false, false, false, false));
        assert_eq!(Setup::of(Way::UringFixedBuffers), setup(true, false, false, false, false));
        assert_eq!(Setup::of(Way::UringFixedFiles), setup(true, true, false, false, false));
        assert_eq!(Setup::of(Way::UringDeferTaskrun), setup(true, true, true, false, false));
        assert_eq!(Setup::of(Way::UringSqpoll), setup(true, true, false, true, false));
        for way in [Way::UringIopoll, Way::UringCommands] {
            assert_eq!(Setup::of(way), setup(true, true, true, false, true));
        }
    }
}
