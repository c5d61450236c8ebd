//! The bare io_uring loop, to which all others are compared.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use io_uring::{CompletionQueue, IoUring, SubmissionQueue, Submitter, cqueue, opcode, squeue, types};

use super::queue::{Memory, Queue, drive};
use super::{Lane, Op, Target};
use crate::commands::Namespace;

/// The time without work after which the kernel's thread of a ring with SQPOLL sleeps.
const SQPOLL_IDLE_MS: u32 = 50;

/// The options with which a ring is set up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Setup {
    /// The memory is registered.
    pub(crate) fixed_buffers: bool,
    pub(crate) fixed_file: bool,
    /// SINGLE_ISSUER and DEFER_TASKRUN.
    pub(crate) defer_taskrun: bool,
    pub(crate) sqpoll: bool,
    pub(crate) iopoll: bool,
    /// Entries of 128 bytes, which are commands to an NVMe namespace. They need registered memory and a registered file.
    pub(crate) commands: bool,
    /// As fio: COOP_TASKRUN, SINGLE_ISSUER and DEFER_TASKRUN, or without flags if the kernel refuses, the ring's own descriptor not
    /// registered, and with each completion the next operation is submitted: a batch would reach the device later.
    pub(crate) as_fio: bool,
    /// A wait is that of Forebay's shards: with many operations in flight for a quarter of them, for 50 us after the first.
    pub(crate) waits_for_several: bool,
}

/// The most microseconds of a wait for several completions, the operations in flight from which on it is for several, and the
/// part of those in flight.
const PATIENCE_US: u32 = 50;
const IN_FLIGHT_SEVERAL: usize = 16;
const IN_FLIGHT_PER_WAIT: usize = 4;

impl Setup {
    /// Returns registered memory and file, SINGLE_ISSUER and DEFER_TASKRUN.
    pub(crate) fn full() -> Self {
        Self { fixed_buffers: true, fixed_file: true, defer_taskrun: true, ..Self::default() }
    }

    fn build<E: Entry>(self, entries: usize) -> anyhow::Result<IoUring<E, E::Completion>> {
        let mut builder = IoUring::<E, E::Completion>::builder();
        if self.defer_taskrun || self.as_fio {
            builder.setup_single_issuer().setup_defer_taskrun();
        }
        if self.as_fio {
            builder.setup_coop_taskrun();
        }
        if self.sqpoll {
            builder.setup_sqpoll(SQPOLL_IDLE_MS);
        }
        if self.iopoll {
            builder.setup_iopoll();
        }
        let entries = entries.next_power_of_two() as u32;
        let ring = builder.build(entries);
        let ring = if self.as_fio { ring.or_else(|_| IoUring::builder().build(entries)) } else { ring };
        ring.context(match self {
            Self { iopoll: true, .. } => "the kernel refuses a ring with IOPOLL (of commands: Linux 6.1)",
            Self { sqpoll: true, .. } => "the kernel refuses a ring with SQPOLL",
            Self { defer_taskrun: true, .. } => "the kernel refuses a ring with DEFER_TASKRUN (Linux 6.1)",
            _ => "the kernel refuses a ring (the sysctl kernel.io_uring_disabled, or a seccomp filter)",
        })
    }
}

/// Does the operations of a lane.
///
/// # Errors
/// The kernel refuses the ring, and the errors of [`drive`].
pub(super) fn lane<L: Lane>(
    lane: L,
    setup: Setup,
    file: &File,
    namespace: Namespace,
    target: &Target,
) -> anyhow::Result<L> {
    let on_ring = if setup.commands { on_ring::<squeue::Entry128, L> } else { on_ring::<squeue::Entry, L> };
    on_ring(lane, setup, file, namespace, target)
}

fn on_ring<E: Entry, L: Lane>(
    lane: L,
    setup: Setup,
    file: &File,
    namespace: Namespace,
    target: &Target,
) -> anyhow::Result<L> {
    let mut memory = Memory::new(target)?;
    let mut ring = setup.build::<E>(target.depth.div_ceil(target.rings))?;
    let has_min_wait = ring.params().is_feature_min_timeout();
    let descriptor = file.as_raw_fd();
    if setup.fixed_file {
        ring.submitter().register_files(&[descriptor]).context("registering the file")?;
    }
    if setup.fixed_buffers {
        // SAFETY: the memory is mapped, the registration pins its pages, and it outlives the ring and the last operation
        // on it (see `Memory::drop`).
        unsafe { ring.submitter().register_buffers(&[memory.whole()]) }
            .context("registering the memory; raise the limit on locked memory")?;
    }
    let (mut submitter, sq, cq) = ring.split();
    if !setup.as_fio {
        // The kernel refuses this before Linux 5.18; then each enter looks the ring up.
        _ = submitter.register_ring_fd();
    }
    let waits_for_several = setup.waits_for_several && has_min_wait;
    let (bytes, setup) = (target.bytes as u32, Setup { waits_for_several, ..setup });
    let ring = Ring { submitter, sq, cq, setup, descriptor, namespace, bytes, calls: 0, untaken: 0 };
    drive(lane, ring, &mut memory)
}

/// A ring in use.
struct Ring<'a, E: Entry> {
    submitter: Submitter<'a>,
    sq: SubmissionQueue<'a, E>,
    cq: CompletionQueue<'a, E::Completion>,
    setup: Setup,
    descriptor: i32,
    namespace: Namespace,
    bytes: u32,
    /// System calls since the last wait.
    calls: u64,
    /// The completions that may be consumed before the next wait.
    untaken: u32,
}

/// The entries submitted, and the completions returned.
trait Entry: squeue::EntryMarker {
    type Completion: cqueue::EntryMarker + Into<cqueue::Entry>;
    /// Whether a completion holds the number of bytes. The completion of a command only reports success.
    const REPORTS_BYTES: bool;

    /// Returns the entry of an operation.
    fn of(ring: &Ring<'_, Self>, slot: usize, op: Op, memory: *mut u8, bytes: u32) -> anyhow::Result<Self>;
}

impl Entry for squeue::Entry {
    type Completion = cqueue::Entry;
    const REPORTS_BYTES: bool = true;

    fn of(ring: &Ring<'_, Self>, slot: usize, op: Op, memory: *mut u8, bytes: u32) -> anyhow::Result<Self> {
        let (fixed, plain) = (types::Fixed(0), types::Fd(ring.descriptor));
        macro_rules! entry {
            ($registered:ident, $plain:ident) => {
                match (ring.setup.fixed_buffers, ring.setup.fixed_file) {
                    (true, true) => {
                        opcode::$registered::new(fixed, memory, bytes, 0).offset(op.offset).build()
                    }
                    (true, false) => {
                        opcode::$registered::new(plain, memory, bytes, 0).offset(op.offset).build()
                    }
                    (false, _) => opcode::$plain::new(plain, memory, bytes).offset(op.offset).build(),
                }
            };
        }
        let entry = if op.is_write { entry!(WriteFixed, Write) } else { entry!(ReadFixed, Read) };
        Ok(entry.user_data(slot as u64))
    }
}

impl Entry for squeue::Entry128 {
    type Completion = cqueue::Entry32;
    const REPORTS_BYTES: bool = false;

    fn of(ring: &Ring<'_, Self>, slot: usize, op: Op, memory: *mut u8, bytes: u32) -> anyhow::Result<Self> {
        anyhow::ensure!(!op.is_write, "commands to a namespace only read");
        Ok(ring.namespace.read(op.offset, memory, bytes).user_data(slot as u64))
    }
}

impl<E: Entry> Ring<'_, E> {
    /// Waits until the queue has a free place, which it may lack only with SQPOLL: the kernel's thread may have ended a read before
    /// it has released the place, which may be much later on a busy machine.
    fn make_room(&mut self) -> anyhow::Result<()> {
        while self.sq.is_full() {
            self.sq.sync();
            if self.sq.is_full() {
                // The submission wakes the thread if it sleeps.
                match self.submitter.submit().and_then(|_| self.submitter.squeue_wait()) {
                    Ok(_) => {}
                    Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                    Err(error) => return Err(error).context("waiting for room in the queue failed"),
                }
                self.calls += 1;
            }
        }
        Ok(())
    }
}

impl<E: Entry> Queue for Ring<'_, E> {
    #[inline(always)]
    unsafe fn push(&mut self, slot: usize, op: Op, memory: *mut u8, bytes: usize) -> anyhow::Result<()> {
        if self.setup.sqpoll {
            self.make_room()?;
        }
        let entry = E::of(self, slot, op, memory, bytes as u32)?;
        // SAFETY: the caller's memory stays until the completion, and the file outlives the ring.
        unsafe { self.sq.push(&entry) }.context("the queue has room for every operation")
    }

    #[inline(always)]
    fn wait(&mut self, due: Option<Instant>, in_flight: usize) -> anyhow::Result<u64> {
        self.sq.sync();
        // Publishes the consumed completions: an old entry still in the queue would end the wait immediately.
        self.cq.sync();
        let is_for_several = self.setup.waits_for_several && in_flight >= IN_FLIGHT_SEVERAL;
        let waited = match due.map(|due| due.saturating_duration_since(Instant::now())) {
            None if is_for_several => {
                // Without a time limit, the end of the patience before any completion would count as a failure.
                let limit = types::Timespec::new().sec(1);
                let arguments = types::SubmitArgs::new().min_wait_usec(PATIENCE_US).timespec(&limit);
                self.submitter.submit_with_args(in_flight / IN_FLIGHT_PER_WAIT, &arguments)
            }
            None => {
                let is_there = self.setup.as_fio && !self.cq.is_empty();
                self.submitter.submit_and_wait(usize::from(!is_there))
            }
            Some(Duration::ZERO) => self.submitter.submit(),
            Some(left) => {
                let limit = types::Timespec::new().sec(left.as_secs()).nsec(left.subsec_nanos());
                self.submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&limit))
            }
        };
        match waited {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME)) => {}
            Err(error) => return Err(error).context("io_uring_enter failed"),
        }
        self.sq.sync();
        self.cq.sync();
        self.untaken = if self.setup.as_fio { 1 } else { u32::MAX };
        Ok(std::mem::take(&mut self.calls) + 1)
    }

    #[inline(always)]
    fn completed(&mut self) -> Option<(usize, i64)> {
        self.untaken = self.untaken.checked_sub(1)?;
        let completion: cqueue::Entry = self.cq.next()?.into();
        let result = match completion.result() {
            0 if !E::REPORTS_BYTES => i64::from(self.bytes),
            result => i64::from(result),
        };
        Some((completion.user_data() as usize, result))
    }
}
