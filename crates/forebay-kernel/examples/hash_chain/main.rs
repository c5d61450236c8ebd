//! A program of one's own, for a layout that the crate does not know: a hash table whose buckets are chains
//! of pages. It writes a small table, looks keys up on every engine that is possible here, and checks each
//! value.
//!
//!     cargo run --release -p forebay-kernel --example hash_chain -- FILE [ENGINE...]
//!
//! The file is written (100 KiB), used and removed. Engines that are named (`loop`, `module`) must be possible,
//! or the example fails. `hash_chain.bpf.c` is the step for the kernel, `table.rs` the same for the reactor;
//! docs/kernel-walks.md explains both.

mod planted;
mod table;

use std::error::Error;
use std::fs;
use std::path::Path;

use forebay::{Config, Engine, Open};
use forebay_kernel::{EngineKind, KernelWalk, Options};
use planted::table_of;
use table::HashChain;

const BUCKETS: u64 = 8;
/// Keys that the table has: 625 in a bucket, which needs three pages. As many absent keys are looked up.
const KEYS: u64 = 5_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("give a file that may be written and removed")?;
    let wanted: Vec<String> = args.collect();
    if let Some(other) = wanted.iter().find(|name| !["reactor", "loop", "module"].contains(&name.as_str())) {
        return Err(format!("{other} is no engine: reactor, loop, module").into());
    }
    let path = Path::new(&path);
    fs::write(path, table_of((0..KEYS).map(|key| (key, value_of(key))), BUCKETS))?;
    fs::File::open(path)?.sync_all()?;
    let looked_up = look_up(path, &wanted);
    fs::remove_file(path)?;
    looked_up
}

fn value_of(key: u64) -> u64 {
    key * key + 1
}

/// Looks all keys up on each engine.
fn look_up(path: &Path, wanted: &[String]) -> Result<(), Box<dyn Error>> {
    let engine = Engine::start(Config::new())?;
    let file = engine.open(path, Open::read()).wait()?;
    let keys: Vec<u64> = (0..2 * KEYS).collect();
    for (kind, name) in
        [(EngineKind::Reactor, "reactor"), (EngineKind::BpfLoop, "loop"), (EngineKind::Module, "module")]
    {
        let options = Options::new().only(kind);
        let walk = match KernelWalk::open_with(&engine, &file, HashChain { buckets: BUCKETS }, options) {
            Ok(walk) => walk,
            Err(why) if wanted.iter().any(|wanted| wanted == name) => {
                return Err(format!("{name}: {why}").into());
            }
            Err(why) => {
                println!("{name}: {why}");
                continue;
            }
        };
        let mut found = 0;
        for (key, value) in keys.iter().zip(walk.walk_many(&keys).wait()?) {
            let value = value?;
            if value != (*key < KEYS).then(|| value_of(*key)) {
                return Err(format!("{name}: key {key} has the wrong value {value:?}").into());
            }
            found += usize::from(value.is_some());
        }
        let stats = walk.stats();
        if stats.fell_back > 0 {
            return Err(format!("{name}: {} walks fell back to the reactor", stats.fell_back).into());
        }
        println!(
            "{name}: {} keys looked up, {found} found, each value right; {} system calls",
            keys.len(),
            stats.enters
        );
        walk.close();
    }
    Ok(())
}
