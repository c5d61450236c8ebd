//! The rows whose threads wait in the kernel's calls.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::super::aligned::AlignedBuffer;
use super::super::pattern::PAGE_BYTES;
use super::job::{PatternRow, PatternsWork};

/// The number of locks for pages that two records share. With more pages than locks, several pages
/// share one lock.
const LOCKS: usize = 1024;

/// Runs one thread for each participant. Returns the time taken, and how many pieces of each
/// participant are written.
///
/// # Errors
/// Fails when a call failed.
pub(super) fn write(path: &Path, work: &PatternsWork, data: &[u8]) -> anyhow::Result<(Duration, Vec<usize>)> {
    let is_direct = work.row == PatternRow::ODirect;
    let flags = if is_direct { libc::O_DIRECT } else { 0 };
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    let locks: Vec<Mutex<()>> = (0..LOCKS).map(|_| Mutex::new(())).collect();
    let line = Barrier::new(work.participants + 1);
    let (begun, done) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..work.participants)
            .map(|participant| {
                let (file, locks, line) = (&file, &locks, &line);
                scope.spawn(move || {
                    let pieces = work.pieces(participant);
                    line.wait();
                    if is_direct {
                        direct(file, &pieces, data, locks, work.seconds_max)
                    } else {
                        cached(file, &pieces, data)
                    }
                })
            })
            .collect();
        line.wait();
        let begun = Instant::now();
        let outcomes: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        let done = outcomes
            .into_iter()
            .map(|outcome| outcome.map_err(|_| anyhow::anyhow!("a writing thread panicked"))?)
            .collect::<anyhow::Result<Vec<usize>>>();
        (begun, done)
    });
    let done = done?;
    if is_direct {
        file.sync_data()?;
    } else {
        file.sync_all()?;
    }
    Ok((begun.elapsed(), done))
}

/// Returns the bytes of a piece; their place in `data` is that in the file.
pub(super) fn bytes<'d>(piece: &Range<u64>, data: &'d [u8]) -> &'d [u8] {
    &data[piece.start as usize..piece.end as usize]
}

fn cached(file: &File, pieces: &[Range<u64>], data: &[u8]) -> anyhow::Result<usize> {
    for piece in pieces {
        file.write_all_at(bytes(piece, data), piece.start)?;
    }
    Ok(pieces.len())
}

fn direct(
    file: &File,
    pieces: &[Range<u64>],
    data: &[u8],
    locks: &[Mutex<()>],
    seconds_max: f64,
) -> anyhow::Result<usize> {
    let page = PAGE_BYTES as u64;
    let longest = pieces.iter().map(|piece| piece.end - piece.start).max().unwrap_or(0) + 2 * page;
    let mut buffer = AlignedBuffer::new(longest.next_multiple_of(page) as usize);
    let deadline = Instant::now() + Duration::from_secs_f64(seconds_max);
    for (number, piece) in pieces.iter().enumerate() {
        let wide = piece.start / page * page..piece.end.next_multiple_of(page);
        let len = (wide.end - wide.start) as usize;
        let at = (piece.start - wide.start) as usize;
        let memory = &mut buffer.bytes_mut()[..len];
        // In the order of their numbers, so that no cycle of waiters can form.
        let mut shared: Vec<usize> = Vec::with_capacity(2);
        if wide.start != piece.start {
            shared.push((wide.start / page) as usize % locks.len());
        }
        if wide.end != piece.end {
            shared.push(((wide.end / page) as usize - 1) % locks.len());
        }
        shared.sort_unstable();
        shared.dedup();
        let held: Vec<_> =
            shared.iter().map(|lock| locks[*lock].lock().unwrap_or_else(PoisonError::into_inner)).collect();
        if wide.start != piece.start {
            file.read_exact_at(&mut memory[..PAGE_BYTES], wide.start)?;
        }
        if wide.end != piece.end {
            file.read_exact_at(&mut memory[len - PAGE_BYTES..], wide.end - page)?;
        }
        let piece_bytes = bytes(piece, data);
        memory[at..at + piece_bytes.len()].copy_from_slice(piece_bytes);
        file.write_all_at(memory, wide.start)?;
        drop(held);
        if Instant::now() >= deadline {
            return Ok(number + 1);
        }
    }
    Ok(pieces.len())
}
