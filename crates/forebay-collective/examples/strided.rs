//! Strided pieces of all ranks, written or read by collective calls: what strided.c does on MPI-IO, for `scripts/bench collective`.
//!
//! ```text
//! PMI_RANK=0 PMI_SIZE=4 MPI_LOCALNRANKS=4 strided write|read FILE PIECE BYTES START    # and so on; or srun, mpirun
//! ```
//!
//! BYTES are those of all ranks. Each rank prints the seconds that it spent in calls, with sync and close.

use std::env;
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay::{Config, Durability, Engine, Open};
use forebay_collective::{Options, Rank, Ranks, View};

/// The bytes of a rank in one call.
const CALL_BYTES: u64 = 16 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [way, path, numbers @ ..] = &arguments[..] else { return Err("strided write|read FILE ...".into()) };
    let numbers = numbers.iter().map(|text| text.parse::<u64>()).collect::<Result<Vec<_>, _>>()?;
    let [piece, bytes, start] = numbers[..] else { return Err("PIECE BYTES START".into()) };
    let rank = Rank::of_launcher()?.ok_or("start one process of each rank")?;
    let (number, size) = (u64::from(rank.number()), u64::from(rank.size()));
    let (pieces, most, is_write) = (bytes / piece / size, CALL_BYTES / piece, way == "write");

    let directory = Path::new(path).parent().ok_or("FILE has no directory")?;
    let mut ranks = Ranks::meet(&rank, directory, Options::new().memory_bytes_max(64 << 20)).wait()?;
    let engine = Engine::start(Config::new())?;
    let file = engine.open(path, if is_write { Open::create() } else { Open::read() }).wait()?;
    let (nothing, mut spent) = (View::range(0..0)?, Duration::ZERO);
    for done in (0..pieces).step_by(most as usize) {
        let count = most.min(pieces - done);
        let first = start + (done * size + number) * piece;
        let view = View::vector(first, piece, piece * size, count)?;
        let words = (0..count).flat_map(|index| {
            let at = first + index * piece * size;
            (0..piece / 8).map(move |word| (at + word).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        });
        if is_write {
            let given = Bytes::from_iter(words.flat_map(u64::to_le_bytes));
            // Until all are ready.
            ranks.read(&file, &nothing).wait()?;
            let begun = Instant::now();
            ranks.write(&file, &view, given, Durability::None).wait()?;
            spent += begun.elapsed();
        } else {
            ranks.read(&file, &nothing).wait()?;
            let begun = Instant::now();
            let found = ranks.read(&file, &view).wait()?;
            spent += begun.elapsed();
            let word =
                |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |all, byte| (all << 8) | u64::from(*byte));
            if !words.eq(found.chunks_exact(8).map(word)) {
                return Err("other bytes than were written".into());
            }
        }
    }
    let begun = Instant::now();
    if is_write {
        ranks.write(&file, &nothing, Bytes::new(), Durability::All).wait()?;
    }
    file.close().wait()?;
    println!("{}", (spent + begun.elapsed()).as_secs_f64());
    Ok(())
}
