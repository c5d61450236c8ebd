//! A block-distributed array of three dimensions, written and read by eight processes.
//!
//! Each of 2 x 2 x 2 processes has a block of an array of 64-bit numbers. In the file, the array's rows are one after the other, so that
//! a block is thousands of short pieces with those of other processes between them. Together they are a few large writes.
//!
//! ```text
//! cargo run --release --example subarrays -- [DIRECTORY]           # starts eight processes
//! srun -n 8 target/release/examples/subarrays DIRECTORY            # or: mpirun -n 8 ..., one each
//! ```

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

use forebay::{Config, Durability, Engine, Open};
use forebay_collective::{Options, Rank, Ranks, View};

/// The elements of the array in each dimension.
const SIZES: [u64; 3] = [256, 256, 256];
/// The processes in each dimension.
const GRID: [u64; 3] = [2, 2, 2];
const ELEMENT: u64 = 8;

/// The block of one process.
struct Block {
    starts: [u64; 3],
    lengths: [u64; 3],
}

impl Block {
    /// Returns the block of a rank: ranks are numbered as the elements of the array are, the last dimension first.
    fn of(rank: u64) -> Block {
        let place = [rank / (GRID[1] * GRID[2]), rank / GRID[2] % GRID[1], rank % GRID[2]];
        let bound = |dimension: usize, place: u64| SIZES[dimension] * place / GRID[dimension];
        let starts = [0, 1, 2].map(|dimension| bound(dimension, place[dimension]));
        let lengths = [0, 1, 2].map(|dimension| bound(dimension, place[dimension] + 1) - starts[dimension]);
        Block { starts, lengths }
    }

    /// Returns the elements of the block: each is its own place in the array.
    fn elements(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for x in self.starts[0]..self.starts[0] + self.lengths[0] {
            for y in self.starts[1]..self.starts[1] + self.lengths[1] {
                for z in self.starts[2]..self.starts[2] + self.lengths[2] {
                    bytes.extend_from_slice(&((x * SIZES[1] + y) * SIZES[2] + z).to_le_bytes());
                }
            }
        }
        bytes
    }

    fn view(&self) -> forebay::Result<View> {
        View::subarray(0, ELEMENT, &SIZES, &self.lengths, &self.starts)
    }
}

/// Writes this process's block, and reads another one's.
fn work(rank: &Rank, directory: &Path) -> Result<(), Box<dyn Error>> {
    let mut ranks = Ranks::meet(rank, directory, Options::new().memory_bytes_max(64 << 20)).wait()?;
    let engine = Engine::start(Config::new())?;
    let file = engine.open(directory.join("array"), Open::create()).wait()?;
    let (number, size) = (u64::from(rank.number()), u64::from(rank.size()));
    let block = Block::of(number);
    let elements = block.elements();

    let begun = Instant::now();
    ranks.write(&file, &block.view()?, elements, Durability::Data).wait()?;
    if number == 0 {
        let (bytes, seconds) = (SIZES.iter().product::<u64>() * ELEMENT, begun.elapsed().as_secs_f64());
        println!("{} MB written and synced in {seconds:.2} s: {:?}", bytes / 1_000_000, ranks.stats());
    }
    let other = Block::of((number + 1) % size);
    if ranks.read(&file, &other.view()?).wait()? != other.elements() {
        return Err(format!("rank {number} has read other bytes than were written").into());
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = PathBuf::from(env::args().nth(1).unwrap_or_else(|| ".".to_owned()));
    let count = GRID.iter().product::<u64>();
    if let Some(rank) = Rank::of_launcher()? {
        if u64::from(rank.size()) != count {
            return Err(
                format!("the array is distributed over {count} processes, not {}", rank.size()).into()
            );
        }
        return work(&rank, &directory);
    }
    // Without a launcher this process is one: it numbers the others by the variables that MPICH's sets.
    let start = |number: u64| {
        let mut command = Command::new(env::current_exe()?);
        let variables = [("PMI_RANK", number), ("PMI_SIZE", count), ("MPI_LOCALNRANKS", count)];
        command.arg(&directory).envs(variables.map(|(name, value)| (name, value.to_string()))).spawn()
    };
    let children = (0..count).map(start).collect::<Result<Vec<Child>, _>>()?;
    let ended = children.into_iter().map(|mut child| child.wait()).collect::<Result<Vec<_>, _>>()?;
    if ended.iter().all(|status| status.success()) { Ok(()) } else { Err("a process has failed".into()) }
}
