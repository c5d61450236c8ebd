//! Blocks of ranks in turn, written as large requests: the pattern of the program is bent into one that suits storage.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;

use anyhow::Context as _;
use bytes::Bytes;
use forebay::{Config, Durability, Open};
use forebay_collective::{Options, Rank, Ranks, View};
use rustix::fs::{FlockOperation, flock};

use super::{Part, Tally};
use crate::prelude::*;

/// Each rank alone: it reads a stretch, changes its blocks in it, and writes it back, as ROMIO does with `romio_ds_write`.
pub(super) const DATA_SIEVING: &str = "data-sieving-sync";
/// All ranks together: one of a host receives the blocks of all, and writes whole stretches.
pub(super) const TWO_PHASE: &str = "two-phase-sync";

/// The longest stretch of data sieving with several segments: ROMIO's default, `ind_wr_buffer_size`.
const SIEVE_BYTES: u64 = 512 << 10;
/// The bytes of a rank in one collective call.
pub(super) const CALL_BYTES: u64 = 16 << 20;
/// The memory of the rank that writes for all.
const MEMORY_BYTES: usize = 64 << 20;

pub(super) fn data_sieving(part: &Part<'_>) -> anyhow::Result<Tally> {
    let (file, work) = (part.open()?, part.work);
    let (block, segment) = (work.block_bytes, work.segment_bytes());
    let locks = work.locks.iter().map(|path| OpenOptions::new().read(true).write(true).open(path));
    let locks = locks.collect::<io::Result<Vec<_>>>()?;
    anyhow::ensure!(!locks.is_empty(), "data sieving needs a lock");
    let most = (SIEVE_BYTES / segment).max(1);
    let mut memory = vec![0; ((most - 1) * segment + block) as usize];
    part.timed(|done, is_over| {
        if is_over {
            file.sync_all()?;
            return Ok(0);
        }
        let first = done / work.writes_of_block();
        let blocks = most.min(work.segments() - first);
        let start = part.offset(done);
        let memory = &mut memory[..((blocks - 1) * segment + block) as usize];
        // Between them are the blocks of other ranks. All divide the file alike, so that a stretch has one lock.
        let has_holes = blocks > 1 && work.ranks > 1;
        let lock = &locks[(first / most) as usize % locks.len()];
        if has_holes {
            flock(lock, FlockOperation::LockExclusive)?;
            file.read_exact_at(memory, start)?;
        }
        for at in (0..blocks).map(|number| number * segment) {
            part.fill(&mut memory[at as usize..(at + block) as usize], start + at);
        }
        file.write_all_at(memory, start)?;
        if has_holes {
            flock(lock, FlockOperation::Unlock)?;
        }
        Ok(blocks * work.writes_of_block())
    })
}

pub(super) fn two_phase(part: &mut Part<'_>) -> anyhow::Result<Tally> {
    let (job, work, rank) = (part.job, part.work, part.rank);
    let (block, segment) = (work.block_bytes, work.segment_bytes());
    let most = (CALL_BYTES / block).clamp(1, work.segments().max(1));
    // The memory of the first call serves all of them.
    part.period = most * segment;
    let part = &*part;
    let mut memory = vec![0; (most * block) as usize];
    for (number, memory) in (0..most).zip(memory.chunks_exact_mut(block as usize)) {
        part.fill(memory, part.offset(number * work.writes_of_block()));
    }
    let memory = Bytes::from(memory);
    // All ranks see the shared file under this name, and no other sample at the same time.
    let name = job.path.file_name().context("the file has a name")?;
    let place = Rank::new(rank as u32, work.ranks as u32).job(&name.to_string_lossy());
    let place = if work.across_hosts { place.across_hosts() } else { place };
    let mut ranks =
        Ranks::meet(&place, &work.meeting, Options::new().memory_bytes_max(MEMORY_BYTES)).wait()?;
    with_engine(Config::new().shards(1), |engine| {
        let file = engine.open(&job.path, Open::write()).wait()?;
        let (mut calls, nothing) = (work.segments().div_ceil(most), View::range(0..0)?);
        let written = part.timed(|done, is_over| {
            if is_over {
                // All ranks make the same number of calls: those for which this rank had no time are empty.
                for _ in 0..calls {
                    ranks.write(&file, &nothing, Bytes::new(), Durability::None).wait()?;
                }
                ranks.write(&file, &nothing, Bytes::new(), Durability::All).wait()?;
                return Ok(0);
            }
            let blocks = most.min(work.segments() - done / work.writes_of_block());
            let view = View::vector(part.offset(done), block, segment, blocks)?;
            let bytes = memory.slice(..(blocks * block) as usize);
            ranks.write(&file, &view, bytes, Durability::None).wait()?;
            calls -= 1;
            Ok(blocks * work.writes_of_block())
        })?;
        file.close().wait()?;
        Ok(written)
    })
}
