//! The limit: loops on the io-uring crate without any runtime. Registered ring, registered file, registered hugepage memory.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::time::Instant;

use anyhow::Context;
use io_uring::{IoUring, SubmissionQueue, opcode, types};

use crate::prelude::*;

/// The completions that the loop waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// One completion.
    ForOne,
    /// A quarter of the reads in flight, but no longer than 50 us once there is one.
    ForSeveral,
}

const MIN_WAIT_US: u32 = 50;

/// Measures random reads, `depth` in flight.
pub(crate) fn random(reads: &Reads, waiting: Waiting) -> Result<Outcome> {
    let file = open_direct(&reads.path)?;
    let buffers = pieces(reads.depth, BLOCK_BYTES, PageKind::Huge)?;
    let mut ring = ring(reads.depth)?;
    let registered = Registered::new(&ring, &file, &buffers)?;
    ensure!(
        waiting == Waiting::ForOne || ring.params().is_feature_min_timeout(),
        "this kernel has no min_wait (Linux 6.12), so there is no row that waits for several completions"
    );
    let (mut submitter, mut sq, mut cq) = ring.split();
    // Refused before Linux 5.18; then each enter looks the ring up.
    _ = submitter.register_ring_fd();
    let window = reads.window();
    let mut meter = window.meter();
    let mut places = reads.offsets(0);
    let mut began = vec![0; reads.depth];
    let mut offsets = vec![0; reads.depth];
    // A wait needs an upper limit of its own, or the end of the minimum wait without any completion counts as a failure.
    let patience = types::Timespec::new().sec(1);
    let mut unchecked = reads.depth;
    let mut in_flight = reads.depth;
    for slot in 0..reads.depth {
        offsets[slot] = places.next();
        began[slot] = meter.begin();
        registered.push(&mut sq, slot, offsets[slot])?;
    }
    while in_flight > 0 {
        sq.sync();
        // Publishes the completions taken: an old one still in the queue would end the wait at once.
        cq.sync();
        let want = if waiting == Waiting::ForSeveral { in_flight / 4 } else { 1 };
        let done = if want > 1 {
            let arguments = types::SubmitArgs::new().min_wait_usec(MIN_WAIT_US).timespec(&patience);
            submitter.submit_with_args(want, &arguments)
        } else {
            submitter.submit_and_wait(1)
        };
        tolerate_interruption(done)?;
        sq.sync();
        cq.sync();
        for cqe in &mut cq {
            let slot = cqe.user_data() as usize;
            ensure!(cqe.result() == BLOCK_BYTES as i32, "a read gave {}", cqe.result());
            if unchecked > 0 {
                unchecked -= 1;
                content::check_start(&buffers[slot], offsets[slot])?;
            }
            match meter.finish(began[slot]) {
                Some(now) => {
                    began[slot] = now;
                    offsets[slot] = places.next();
                    registered.push(&mut sq, slot, offsets[slot])?;
                }
                None => in_flight -= 1,
            }
        }
    }
    Ok(window.outcome([meter]))
}

/// Measures one pass over the file: `depth` reads of `block_bytes` in flight, each block checked as it
/// arrives.
pub(crate) fn scan(scan: &Scan, block_bytes: usize, depth: usize, pages: PageKind) -> Result<Outcome> {
    let pass = scan.begin();
    let file = open_direct(&scan.path)?;
    let buffers = pieces(depth, block_bytes, pages)?;
    let mut ring = ring(depth)?;
    let registered = Registered::new(&ring, &file, &buffers)?;
    let (mut submitter, mut sq, mut cq) = ring.split();
    _ = submitter.register_ring_fd();
    let mut checksum = Checksum::default();
    let mut offsets = vec![0; depth];
    let (mut next, mut in_flight) = (0, 0);
    for (slot, offset) in offsets.iter_mut().enumerate() {
        if next < scan.file_bytes {
            *offset = next;
            registered.push(&mut sq, slot, next)?;
            next += block_bytes as u64;
            in_flight += 1;
        }
    }
    while in_flight > 0 {
        sq.sync();
        cq.sync();
        tolerate_interruption(submitter.submit_and_wait(1))?;
        sq.sync();
        cq.sync();
        for cqe in &mut cq {
            let slot = cqe.user_data() as usize;
            let expected = (scan.file_bytes - offsets[slot]).min(block_bytes as u64);
            ensure!(
                cqe.result() as i64 == expected as i64,
                "a read gave {} of {expected} bytes",
                cqe.result()
            );
            checksum.add(offsets[slot], &buffers[slot][..expected as usize]);
            if next < scan.file_bytes {
                offsets[slot] = next;
                registered.push(&mut sq, slot, next)?;
                next += block_bytes as u64;
            } else {
                in_flight -= 1;
            }
        }
    }
    let mut outcome = pass.finish(&checksum)?;
    outcome.figures.set("buffers_peak_bytes", (depth * block_bytes) as f64);
    Ok(outcome)
}

/// Runs `operations` times IORING_OP_NOP, `depth` in flight; returns nanoseconds per operation.
pub(crate) fn nop(depth: usize, operations: u64) -> Result<f64> {
    let mut ring = ring(depth)?;
    let (mut submitter, mut sq, mut cq) = ring.split();
    _ = submitter.register_ring_fd();
    let push = |sq: &mut SubmissionQueue<'_>, slot: u64| {
        // SAFETY: a NOP names no memory.
        unsafe { sq.push(&opcode::Nop::new().build().user_data(slot)) }
            .context("the queue has room for `depth` entries")
    };
    let begun = Instant::now();
    let (mut started, mut done) = (0, 0);
    while started < operations.min(depth as u64) {
        push(&mut sq, started)?;
        started += 1;
    }
    while done < operations {
        sq.sync();
        cq.sync();
        tolerate_interruption(submitter.submit_and_wait(1))?;
        sq.sync();
        cq.sync();
        for cqe in &mut cq {
            ensure!(cqe.result() == 0, "a NOP gave {}", cqe.result());
            done += 1;
            if started < operations {
                started += 1;
                push(&mut sq, cqe.user_data())?;
            }
        }
    }
    Ok(begun.elapsed().as_nanos() as f64 / operations as f64)
}

/// File 0 and buffer 0 of a ring, and the places of the pieces in that buffer.
struct Registered {
    starts: Vec<*mut u8>,
    piece_bytes: u32,
}

impl Registered {
    /// Registers the file, and all pieces (which lie in one region, one behind the other) as one buffer.
    fn new(ring: &IoUring, file: &File, buffers: &[Piece]) -> Result<Self> {
        let starts: Vec<_> = buffers.iter().map(Piece::start).collect();
        let piece_bytes = buffers[0].len();
        ring.submitter().register_files(&[file.as_raw_fd()]).context("registering the file")?;
        let whole = libc::iovec { iov_base: starts[0].cast(), iov_len: piece_bytes * buffers.len() };
        // SAFETY: the memory is mapped. Should the loop end early with an error, the kernel writes to the
        // pages that this registration pins, which nothing else can get before the ring is gone.
        unsafe { ring.submitter().register_buffers(&[whole]) }
            .context("registering the buffers; raise the limit on locked memory")?;
        Ok(Self { starts, piece_bytes: piece_bytes as u32 })
    }

    /// Queues a read of a whole piece at `offset` into piece `slot`.
    #[inline]
    fn push(&self, sq: &mut SubmissionQueue<'_>, slot: usize, offset: u64) -> Result<()> {
        let entry = opcode::ReadFixed::new(types::Fixed(0), self.starts[slot], self.piece_bytes, 0)
            .offset(offset)
            .build()
            .user_data(slot as u64);
        // SAFETY: the piece lies in the registered buffer, and its last read has completed: one read per slot is in flight.
        unsafe { sq.push(&entry) }.context("the queue has room for `depth` entries")
    }
}

fn ring(depth: usize) -> Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(depth.next_power_of_two() as u32)
        .context("making a ring; the limit needs io_uring with DEFER_TASKRUN (Linux 6.1)")
}

fn tolerate_interruption(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME)) => Ok(()),
        Err(error) => Err(error),
    }
}
