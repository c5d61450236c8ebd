//! The rows with a thread for each reader.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::super::aligned::AlignedBuffer;
use super::super::job::Job;
use super::arrivals::{minimise_timer_slack, sleep_until};
use super::job::{ReadWork, Way};
use super::lane::{Lane, Tally};
use super::pacer::Pacer;

/// The message for a refusal of polled reads.
pub(crate) const NO_POLLING: &str =
    "the kernel refuses polled reads here; they need a device with poll queues (NVMe: nvme.poll_queues=2)";

/// Opens a file for direct I/O.
///
/// # Errors
/// Fails with the errors of open.
pub(super) fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Reads on the calling thread until the sample has ended.
///
/// # Errors
/// Fails when a read failed, or returned data other than those written.
pub(super) fn read(
    job: &Job,
    work: &ReadWork,
    file: &File,
    lane: usize,
    pacer: &Arc<Pacer>,
) -> anyhow::Result<Tally> {
    let mut lane = Lane::new(job, work, lane, pacer)?;
    let mut buffer = AlignedBuffer::new(work.block_bytes as usize);
    minimise_timer_slack();
    while let Some(scheduled) = pacer.next_read() {
        if let Some(due) = scheduled.due {
            sleep_until(due);
            if pacer.gave_up() {
                lane.gave_up(scheduled);
                continue;
            }
        }
        let (offset, begun) = (lane.offset(), Instant::now());
        match work.way {
            Way::PreadHipri => read_polled(file, buffer.bytes_mut(), offset)?,
            _ => file.read_exact_at(buffer.bytes_mut(), offset)?,
        }
        lane.called();
        lane.ended(scheduled, begun, offset, buffer.bytes())?;
    }
    Ok(lane.end())
}

fn read_polled(file: &File, memory: &mut [u8], offset: u64) -> anyhow::Result<()> {
    let wanted = memory.len();
    let got = loop {
        match preadv2(file, &mut [IoSliceMut::new(memory)], offset, ReadWriteFlags::HIPRI) {
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP) => return Err(Errno::OPNOTSUPP).context(NO_POLLING),
            other => break other?,
        }
    };
    anyhow::ensure!(got == wanted, "a read of {wanted} bytes gave {got}");
    Ok(())
}
