//! The row `io_uring`, the limit: a loop without any runtime, one for each thread.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use anyhow::Context as _;
use io_uring::{IoUring, SubmissionQueue, opcode, types};

use super::super::aligned::AlignedBuffer;
use super::lookups::{Lane, Shared, Tally};
use super::tree::Descent;

/// Maximum wait in microseconds once a read has completed. The wait is that of Forebay's shards: with
/// many reads in flight, for a quarter of them.
const PATIENCE_US: u32 = 50;
const IN_FLIGHT_SEVERAL: usize = 16;
const IN_FLIGHT_PER_WAIT: usize = 4;

/// Runs the lookups of one thread until the sample ends.
///
/// # Errors
/// io_uring is unavailable, a read failed, or a result was wrong.
pub(super) fn descend(shared: &Arc<Shared>, lanes: impl Iterator<Item = usize>) -> anyhow::Result<Tally> {
    let (work, file) = (&shared.work, shared.file.as_deref().context("all lookups share one file")?);
    let mut lanes = lanes.map(|lane| Lane::new(shared, lane)).collect::<anyhow::Result<Vec<Lane>>>()?;
    let mut descents: Vec<Descent> = lanes.iter().map(Lane::descent).collect();
    let mut ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(lanes.len().next_power_of_two() as u32)
        .context("making a ring; the limit needs io_uring with DEFER_TASKRUN (Linux 6.1)")?;
    let has_min_wait = ring.params().is_feature_min_timeout();
    let memory = Registered::new(&ring, file, lanes.len(), work.read_bytes)?;
    let (mut submitter, mut sq, mut cq) = ring.split();
    // Refused before Linux 5.18; then each enter resolves the ring's descriptor.
    _ = submitter.register_ring_fd();
    // A wait needs a timeout of its own, or the end of the minimum wait without any completion counts
    // as a failure.
    let patience = types::Timespec::new().sec(1);
    for (slot, descent) in descents.iter().enumerate() {
        memory.push(&mut sq, slot, work.around(descent.at).0)?;
    }
    let mut in_flight = lanes.len();
    while in_flight > 0 {
        sq.sync();
        // Publishes the consumed completions: an old one still in the queue would end the wait at once.
        cq.sync();
        tolerate_interruption(if in_flight >= IN_FLIGHT_SEVERAL && has_min_wait {
            let arguments = types::SubmitArgs::new().min_wait_usec(PATIENCE_US).timespec(&patience);
            submitter.submit_with_args(in_flight / IN_FLIGHT_PER_WAIT, &arguments)
        } else {
            submitter.submit_and_wait(1)
        })?;
        sq.sync();
        cq.sync();
        for completion in &mut cq {
            let slot = completion.user_data() as usize;
            let (read, descent) = (completion.result(), &mut descents[slot]);
            anyhow::ensure!(read as i64 == work.read_bytes as i64, "a read gave {read}");
            let at = work.around(descent.at).1;
            // Its read has completed, and the next one is not queued.
            let node = &memory.piece(slot)[at..at + work.tree.node_bytes as usize];
            if let Some(value) = descent.step(node)? {
                if !lanes[slot].completed(value, 0)? {
                    in_flight -= 1;
                    continue;
                }
                *descent = lanes[slot].descent();
            }
            memory.push(&mut sq, slot, work.around(descent.at).0)?;
        }
    }
    let mut tally = Tally::new()?;
    for lane in lanes {
        tally.add(&lane.tally)?;
    }
    Ok(tally)
}

/// File 0 and buffer 0 of a ring, and the pieces of that buffer.
struct Registered {
    start: *mut u8,
    piece_bytes: usize,
    /// Accessed through `start` only.
    _memory: AlignedBuffer,
}

impl Registered {
    fn new(ring: &IoUring, file: &File, pieces: usize, piece_bytes: usize) -> anyhow::Result<Self> {
        let mut memory = AlignedBuffer::new(pieces * piece_bytes);
        let start = memory.bytes_mut().as_mut_ptr();
        let whole = libc::iovec { iov_base: start.cast(), iov_len: pieces * piece_bytes };
        ring.submitter().register_files(&[file.as_raw_fd()]).context("registering the file")?;
        // SAFETY: the memory is mapped, and the registration pins its pages. Should the loop end early
        // with an error, the kernel writes to pages that no other code can get before the ring is
        // gone, and an error ends this process.
        unsafe { ring.submitter().register_buffers(&[whole]) }
            .context("registering the buffers; raise the limit on locked memory")?;
        Ok(Self { start, piece_bytes, _memory: memory })
    }

    fn piece(&self, slot: usize) -> &[u8] {
        // SAFETY: the piece lies in the buffer, which lives as long as `self`. The caller accesses it
        // only between a completion and the next read into it, when the kernel does not write there.
        unsafe { std::slice::from_raw_parts(self.start.add(slot * self.piece_bytes), self.piece_bytes) }
    }

    /// Queues a read at `offset` into piece `slot`.
    fn push(&self, sq: &mut SubmissionQueue<'_>, slot: usize, offset: u64) -> anyhow::Result<()> {
        // SAFETY: slots are numbers of lanes, for each of which the buffer has a piece.
        let piece = unsafe { self.start.add(slot * self.piece_bytes) };
        let entry = opcode::ReadFixed::new(types::Fixed(0), piece, self.piece_bytes as u32, 0)
            .offset(offset)
            .build()
            .user_data(slot as u64);
        // SAFETY: the piece lies in the registered buffer, and one read for each slot is in flight.
        unsafe { sq.push(&entry) }.context("the queue has room for every lane")
    }
}

fn tolerate_interruption(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME)) => Ok(()),
        Err(error) => Err(error),
    }
}
