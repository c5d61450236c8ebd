//! The row `std-threads`: a thread for each file at once.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::super::gauge::{Cost, Gauge};
use super::job::Call;
use super::lane::{FileQueue, Part, Tally};

/// Runs all lanes.
///
/// # Errors
/// Fails when a call failed.
pub(super) fn visit(queue: &FileQueue, device_stat: Option<&Path>) -> anyhow::Result<(Tally, Cost)> {
    // Held until all threads exist; then it passes them the deadline. If a thread cannot be created, the
    // lock opens without a deadline, and the others end at once.
    let gate = RwLock::new(None);
    std::thread::scope(|scope| {
        let mut closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let mut lanes = Vec::with_capacity(queue.work.at_once);
        for _ in 0..queue.work.at_once {
            let builder = std::thread::Builder::new().stack_size(256 * 1024);
            let gate = &gate;
            lanes.push(builder.spawn_scoped(scope, move || lane(queue, gate))?);
        }
        let gauge = Gauge::start(device_stat)?;
        *closed = Some(gauge.begun() + Duration::from_secs_f64(queue.work.seconds_max));
        drop(closed);
        let outcomes: Vec<_> = lanes.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        let cost = gauge.stop()?;
        let mut tally = Tally::new()?;
        for outcome in outcomes {
            tally.add(&outcome.map_err(|_| anyhow::anyhow!("a thread with files panicked"))??)?;
        }
        Ok((tally, cost))
    })
}

fn lane(queue: &FileQueue, gate: &RwLock<Option<Instant>>) -> anyhow::Result<Tally> {
    let mut tally = Tally::new()?;
    let mut memory = vec![0; queue.work.file_set.file_bytes as usize];
    let deadline = *gate.read().unwrap_or_else(PoisonError::into_inner);
    let Some(deadline) = deadline else { return Ok(tally) };
    while tally.begin(deadline) {
        let Some((number, path)) = queue.next_file() else { break };
        match queue.work.call {
            Call::Read => {
                tally.resume();
                let mut file = File::open(path)?;
                tally.made(Part::Open);
                file.read_exact(&mut memory)?;
                tally.made(Part::Read);
                drop(file);
                tally.made(Part::Close);
                queue.check(number, &memory)?;
            }
            Call::Create => {
                queue.fill(number, &mut memory);
                tally.resume();
                let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
                tally.made(Part::Open);
                file.write_all(&memory)?;
                tally.made(Part::Write);
                file.sync_all()?;
                tally.made(Part::Sync);
                drop(file);
                tally.made(Part::Close);
            }
            Call::Stat => {
                tally.resume();
                let metadata = std::fs::metadata(path)?;
                tally.made(Part::Stat);
                queue.check_length(number, metadata.len())?;
            }
        }
        tally.end();
    }
    Ok(tally)
}
