//! A file in a simulated world: a program that writes it, and may meet faults or a power cut.

use std::time::Duration;

use forebay::{Durability, Engine, Error, Open};
use forebay_sim::{self as sim, Fault, Profile, Rule, World};

pub(crate) const PATH: &str = "/file";

/// Returns a number of a range, drawn by the world.
pub(crate) fn draw(range: std::ops::Range<u64>) -> u64 {
    range.start + sim::random(range.end - range.start)
}

/// Returns a disk of any kind, with the faults that the engine hides.
pub(crate) fn disk(kind: u64) -> Profile {
    let disk = [Profile::ideal(), Profile::nand(), Profile::optane()][kind as usize % 3].clone();
    disk.fault(Rule::new(Fault::ShortRead).chance_ppm(50_000))
        .fault(Rule::new(Fault::ShortWrite).chance_ppm(50_000))
        .fault(Rule::new(Fault::TornWrite).chance_ppm(300_000))
}

/// Returns the bytes of the file.
pub(crate) async fn content(engine: &Engine) -> Result<Vec<u8>, Error> {
    let file = engine.open(PATH, Open::read().buffered()).await?;
    let len = file.len().await?;
    Ok(file.read(0..len).await?.to_vec())
}

/// Returns the bytes of the file after a restart. `planted` gets those before, which are durable; then `program` runs, with a fault
/// (its number, and its chance in a million) or a power cut after some time.
pub(crate) fn survive(
    mut world: World,
    fault: Option<(u64, u32)>,
    cut: Option<Duration>,
    planted: impl FnOnce(Vec<u8>),
    program: impl AsyncFn(&Engine) -> Result<(), Error>,
) -> Result<Vec<u8>, String> {
    let before = world.run(async |engine| {
        let bytes: Vec<u8> = (0..sim::random(120_000)).map(|_| sim::random(256) as u8).collect();
        let file = engine.open(PATH, Open::create().buffered()).await.unwrap();
        file.write(0, bytes.clone()).durable(Durability::All).await.unwrap();
        engine.sync_dir("/").await.unwrap();
        bytes
    });
    planted(before.map_err(|failure| failure.to_string())?);
    if let Some((number, ppm)) = fault {
        let faults = [Fault::WriteError, Fault::FlushError, Fault::ReadError, Fault::NoSpace];
        world.inject(Rule::new(faults[number as usize % 4]).on(PATH).chance_ppm(ppm));
    }
    if let Some(time) = cut {
        world.power_cut_after(time);
    }
    match world.run(async |engine| program(&engine).await) {
        Ok(Ok(())) => {}
        Ok(Err(error)) if fault.is_some() => {
            let injected = matches!(error.raw_os_error(), Some(libc::EIO | libc::ENOSPC));
            assert!(injected, "an error that no rule made: {error}");
        }
        Ok(Err(error)) => return Err(error.to_string()),
        Err(failure) if cut.is_some() && failure.is_power_cut() => {}
        Err(failure) => return Err(failure.to_string()),
    }
    world.power_cut();
    world.reboot();
    world.clear_faults();
    let found = world.run(async |engine| content(&engine).await).map_err(|failure| failure.to_string())?;
    found.map_err(|error| error.to_string())
}
