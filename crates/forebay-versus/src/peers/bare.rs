//! The limit: loops on the io-uring crate without any runtime. Registered ring, registered file, registered hugepage memory.

use io_uring::squeue::Entry;
use io_uring::{IoUring, SubmissionQueue, opcode, types};

use crate::prelude::*;

const MIN_WAIT_US: u32 = 50;

/// Measures random reads, `depth` in flight; `several` as in [`keep_busy`].
pub(crate) fn random(reads: &Work, several: bool) -> Result<Outcome> {
    let file = open_direct(&reads.path)?;
    let mut buffers = pieces(reads.depth, BLOCK_BYTES, PageKind::Huge)?;
    let mut ring = ring(reads.depth)?;
    register(&ring, &file, &buffers)?;
    ensure!(
        !several || ring.params().is_feature_min_timeout(),
        "this kernel has no min_wait (Linux 6.12), so there is no row that waits for several completions"
    );
    let window = reads.window();
    let meter = window.meter();
    let mut rng = reads.rng(0);
    // Offset and start of each slot's read.
    let mut slots = vec![(0, 0); reads.depth];
    let mut unchecked = reads.depth;
    keep_busy(&mut ring, reads.depth, several, |sq, slot, result| {
        let now = match result {
            None => Some(meter.begin()),
            Some(result) => {
                ensure!(result == BLOCK_BYTES as i32, "a read gave {result}");
                let (offset, began) = slots[slot];
                if unchecked > 0 {
                    unchecked -= 1;
                    files::check_start(buffers[slot], offset)?;
                }
                meter.finish(began)
            }
        };
        let Some(now) = now else { return Ok(false) };
        let offset = page_offset(&mut rng, reads.file_bytes);
        slots[slot] = (offset, now);
        push(sq, &read(buffers[slot].as_mut_ptr(), BLOCK_BYTES, slot, offset))
    })?;
    Ok(window.outcome([meter]))
}

/// Measures one pass over the file: `depth` reads of `block_bytes` in flight, each block checked as it
/// arrives.
pub(crate) fn scan(scan: &Work, block_bytes: usize, depth: usize, pages: PageKind) -> Result<Outcome> {
    let pass = scan.begin();
    let file = open_direct(&scan.path)?;
    let mut buffers = pieces(depth, block_bytes, pages)?;
    let mut ring = ring(depth)?;
    register(&ring, &file, &buffers)?;
    let (mut checksum, mut next) = (Checksum::default(), 0);
    let mut offsets = vec![0; depth];
    keep_busy(&mut ring, depth, false, |sq, slot, result| {
        if let Some(result) = result {
            let expected = (scan.file_bytes - offsets[slot]).min(block_bytes as u64);
            ensure!(i64::from(result) == expected as i64, "a read gave {result} of {expected} bytes");
            checksum.add(offsets[slot], &buffers[slot][..expected as usize]);
        }
        if next >= scan.file_bytes {
            return Ok(false);
        }
        offsets[slot] = next;
        next += block_bytes as u64;
        push(sq, &read(buffers[slot].as_mut_ptr(), block_bytes, slot, offsets[slot]))
    })?;
    Ok(pass.finish(&checksum)?.figure("buffers_peak_bytes", (depth * block_bytes) as f64))
}

/// Runs `operations` times IORING_OP_NOP, `depth` in flight; returns nanoseconds per operation.
pub(crate) fn nop(depth: usize, operations: u64) -> Result<f64> {
    let mut ring = ring(depth)?;
    let begun = Instant::now();
    let mut started = 0;
    keep_busy(&mut ring, depth, false, |sq, slot, result| {
        ensure!(result.unwrap_or(0) == 0, "a NOP gave {result:?}");
        if started == operations {
            return Ok(false);
        }
        started += 1;
        push(sq, &opcode::Nop::new().build().user_data(slot as u64))
    })?;
    Ok(begun.elapsed().as_nanos() as f64 / operations as f64)
}

/// Keeps `depth` operations in flight. `next` gets a slot and the result of its last operation, if any; it queues another, or
/// returns false. The loop waits for one completion, or for `several`: for a quarter of the operations in flight, but no longer
/// than 50 us after the first.
fn keep_busy(
    ring: &mut IoUring,
    depth: usize,
    several: bool,
    mut next: impl FnMut(&mut SubmissionQueue<'_>, usize, Option<i32>) -> Result<bool>,
) -> Result<()> {
    let (mut submitter, mut sq, mut cq) = ring.split();
    // Refused before Linux 5.18; then each enter looks the ring up.
    _ = submitter.register_ring_fd();
    // A wait needs an upper limit, or the end of the minimum wait without any completion counts as a failure.
    let patience = types::Timespec::new().sec(1);
    let arguments = types::SubmitArgs::new().min_wait_usec(MIN_WAIT_US).timespec(&patience);
    let mut in_flight = 0;
    for slot in 0..depth {
        in_flight += usize::from(next(&mut sq, slot, None)?);
    }
    while in_flight > 0 {
        sq.sync();
        // Publishes the consumed completions: an old entry still in the queue would end the wait immediately.
        cq.sync();
        let want = if several { in_flight / 4 } else { 1 };
        let done = match want {
            0 | 1 => submitter.submit_and_wait(1),
            _ => submitter.submit_with_args(want, &arguments),
        };
        // An interruption, and a minimum wait that has ended, are not failures.
        if let Err(error) = done
            && !matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME))
        {
            return Err(error.into());
        }
        sq.sync();
        cq.sync();
        for cqe in &mut cq {
            in_flight -= usize::from(!next(&mut sq, cqe.user_data() as usize, Some(cqe.result()))?);
        }
    }
    Ok(())
}

/// Registers a file, and all pieces (which lie in one region, one behind the other) as one buffer.
pub(super) fn register(ring: &IoUring, file: &File, buffers: &[Piece]) -> Result<()> {
    ring.submitter().register_files(&[file.as_raw_fd()]).context("registering the file")?;
    let start = buffers[0].as_ptr().cast_mut().cast();
    let whole = libc::iovec { iov_base: start, iov_len: buffers[0].len() * buffers.len() };
    // SAFETY: pieces are never unmapped.
    unsafe { ring.submitter().register_buffers(&[whole]) }
        .context("registering the buffers; raise the limit on locked memory")
}

/// Returns the entry of a read from the registered file into a piece.
#[inline]
pub(super) fn read(piece: *mut u8, bytes: usize, slot: usize, offset: u64) -> Entry {
    let read = opcode::ReadFixed::new(types::Fixed(0), piece, bytes as u32, 0);
    read.offset(offset).build().user_data(slot as u64)
}

/// Queues an operation; returns true.
#[inline]
fn push(sq: &mut SubmissionQueue<'_>, entry: &Entry) -> Result<bool> {
    // SAFETY: a NOP names no memory. A piece is never unmapped, and its last read has completed: one a slot is in flight.
    unsafe { sq.push(entry) }.context("the queue has room for `depth` entries")?;
    Ok(true)
}

fn ring(depth: usize) -> Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(depth.next_power_of_two() as u32)
        .context("making a ring; the limit needs io_uring with DEFER_TASKRUN (Linux 6.1)")
}
