//! The rows of threads that block in system calls.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::super::aligned::AlignedBuffer;
use super::client::{Client, Contents, part};
use super::job::{BLOCK_BYTES, WriteRow, WritesWork};

/// Runs one thread for each client. Returns the time when they began, and their results.
///
/// # Errors
/// A call failed.
pub(super) fn write(
    path: &Path,
    work: &WritesWork,
    offsets: &[u64],
) -> anyhow::Result<(Instant, Vec<Client>)> {
    // Held until all threads exist; then it carries their begin time. If a thread cannot be started,
    // it opens without a time, and the others end at once.
    let gate = RwLock::new(None);
    std::thread::scope(|scope| {
        let mut closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let mut threads = Vec::with_capacity(work.clients);
        for client in 0..work.clients {
            let (gate, mine) = (&gate, part(work, offsets, client));
            let builder = std::thread::Builder::new().stack_size(256 * 1024);
            threads.push(builder.spawn_scoped(scope, move || one(path, work, &mine, gate))?);
        }
        let begun = Instant::now();
        *closed = Some(begun);
        drop(closed);
        let outcomes: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        let clients = outcomes
            .into_iter()
            .map(|outcome| outcome.map_err(|_| anyhow::anyhow!("a writing thread panicked"))?)
            .collect::<anyhow::Result<Vec<Client>>>()?;
        Ok((begun, clients))
    })
}

fn one(
    path: &Path,
    work: &WritesWork,
    offsets: &[u64],
    gate: &RwLock<Option<Instant>>,
) -> anyhow::Result<Client> {
    let contents = Contents::new(work);
    let mut buffer = AlignedBuffer::new(BLOCK_BYTES as usize);
    contents.fill(buffer.bytes_mut());
    let mut client = Client::new()?;
    let Some(begun) = *gate.read().unwrap_or_else(PoisonError::into_inner) else { return Ok(client) };
    let deadline = begun + Duration::from_secs_f64(work.seconds_max);

    let file = open(path, work.row)?;
    let mut now = Instant::now();
    client.open = now - begun;
    for offset in offsets {
        contents.stamp(*offset, buffer.bytes_mut());
        let before = now;
        file.write_all_at(buffer.bytes(), *offset)?;
        now = Instant::now();
        client.write += now - before;
        if matches!(work.row, WriteRow::FdatasyncEach | WriteRow::FsyncEach) {
            let written = now;
            sync(&file, work.row)?;
            now = Instant::now();
            client.sync += now - written;
        }
        client.latency.record(now - before);
        if now >= deadline {
            break;
        }
    }
    if matches!(work.row, WriteRow::SyncAtEnd | WriteRow::SyncClose) {
        sync(&file, work.row)?;
        let written = now;
        now = Instant::now();
        client.sync = now - written;
    }
    client.ended = now;
    drop(file);
    let closed = Instant::now();
    client.close = closed - now;
    if work.row != WriteRow::SyncAtEnd {
        client.ended = closed;
    }
    Ok(client)
}

fn open(path: &Path, row: WriteRow) -> std::io::Result<File> {
    let flags = match row {
        WriteRow::ODirect => libc::O_DIRECT,
        WriteRow::ODirectDsync => libc::O_DIRECT | libc::O_DSYNC,
        _ => 0,
    };
    OpenOptions::new().write(true).custom_flags(flags).open(path)
}

fn sync(file: &File, row: WriteRow) -> std::io::Result<()> {
    match row {
        WriteRow::SyncAtEnd | WriteRow::FdatasyncEach => file.sync_data(),
        _ => file.sync_all(),
    }
}
