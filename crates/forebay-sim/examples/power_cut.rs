//! A small log that is written during a power cut, in a simulated world that one seed determines, down to the
//! last bit.
//!
//! Run with `cargo run --release -p forebay-sim --example power_cut -- SEED`. The same seed prints
//! the same digest in every process and on every machine; another seed is another disaster.

use std::cell::Cell;
use std::error::Error;
use std::time::Duration;

use forebay::{Durability, Engine, Open, Result};
use forebay_sim::{self as sim, Fault, Profile, Rule, World};

const RECORD: u64 = 4096;

/// Appends records until the power cut; each counts as acknowledged once it is durable.
async fn append(engine: &Engine, acknowledged: &Cell<u64>) -> Result<()> {
    let log = engine.open("/log", Open::create()).await?;
    engine.sync_dir("/").await?;
    for number in 1.. {
        log.write((number - 1) * RECORD, record(number)).durable(Durability::Data).await?;
        acknowledged.set(number);
        // The program has other things to do.
        sim::sleep(Duration::from_micros(sim::random(300))).await?;
    }
    Ok(())
}

/// Returns how many records the log holds without a gap.
async fn recover(engine: &Engine) -> Result<u64> {
    let log = engine.open("/log", Open::read()).await?;
    let len = log.metadata().await?.len();
    let mut number = 0;
    while (number + 1) * RECORD <= len {
        let block = log.read(number * RECORD..(number + 1) * RECORD).await?;
        if block[..] != record(number + 1)[..] {
            break;
        }
        number += 1;
    }
    Ok(number)
}

fn record(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(RECORD as usize / 8)
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let seed = std::env::args().nth(1).map_or(Ok(1), |text| text.parse())?;
    // A disk that tears writes, and is slow now and then.
    let profile =
        Profile::nand().fault(Rule::new(Fault::TornWrite)).fault(Rule::new(Fault::Slow).chance_ppm(1_000));
    let mut world = World::new(seed).disk(profile);

    // The power is cut within the first 20 milliseconds of the world's time; the seed determines when.
    let acknowledged = Cell::new(0);
    world.power_cut_after(Duration::from_micros(500 + seed.wrapping_mul(7919) % 20_000));
    let failure = world.run(async |engine| append(&engine, &acknowledged).await).unwrap_err();
    if !failure.is_power_cut() {
        return Err(failure.into());
    }
    world.reboot();
    let found = world.run(async |engine| recover(&engine).await)??;

    println!("seed {seed}: the power went after {:?}", failure.at());
    println!("  records acknowledged as durable: {}", acknowledged.get());
    println!("  records found after the reboot:  {found}");
    println!("  steps: {}, digest: {:016x}", world.steps(), world.history_digest());
    if found < acknowledged.get() {
        return Err("acknowledged records are lost".into());
    }
    Ok(())
}
