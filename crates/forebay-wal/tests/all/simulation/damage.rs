//! Reads and damages the bytes of a log that is not open, through the world's own files.

use std::collections::BTreeMap;

use forebay::{Durability, Engine, Open, Result};
use forebay_sim as sim;

use crate::simulation::groups::{self, GRAIN};
use crate::simulation::log::DIR;
use crate::simulation::model::Hit;

/// Records the log's end, outside of its segments, in two slots.
const END: &str = "wal.end";
const SLOT: u64 = 64 << 10;

/// Returns all files of the log.
pub(crate) async fn files(engine: &Engine) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in engine.read_dir(DIR).await? {
        let name = entry.name().to_string_lossy().into_owned();
        let file = engine.open(format!("{DIR}/{name}"), Open::read()).await?;
        let len = file.len().await?;
        let mut bytes = Vec::with_capacity(len as usize);
        while (bytes.len() as u64) < len {
            let at = bytes.len() as u64;
            bytes.extend_from_slice(&file.read(at..len.min(at + (128 << 10))).await?);
        }
        files.insert(name, bytes);
    }
    Ok(files)
}

/// Damages one group that counts, or bytes that do not: one bit, or a page. Returns the group that was hit.
pub(crate) async fn strike(engine: &Engine) -> Result<Option<Hit>> {
    let files = files(engine).await?;
    let groups = groups::live(&files);
    if sim::random(8) == 0 {
        return recorded_end(engine, &files).await.map(|()| None);
    }
    // Without its only group a log has nothing from which to continue.
    if groups.len() < 2 || sim::random(8) == 0 {
        return beside(engine, &files, &groups).await.map(|()| None);
    }
    // The newest groups are the most interesting.
    let back = if sim::random(2) == 0 { sim::random(3) } else { sim::random(groups.len() as u64) };
    let Some(group) = groups.iter().rev().nth(back as usize) else { return Ok(None) };
    let page = sim::random((group.len / GRAIN) as u64) * GRAIN as u64;
    let way = sim::random(4);
    change(engine, &group.file(), group.offset + page, |bytes| match way {
        0 => bytes.fill(0),
        1 => bytes.fill(0xa5),
        _ => {
            let bit = sim::random(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    })
    .await?;
    // More zeros do not damage a page that was all zeros.
    let after = self::files(engine).await?;
    if groups::live(&after).iter().any(|there| there.place() == group.place()) {
        return Ok(None);
    }
    Ok(Some(Hit {
        lsns: group.lsns.clone(),
        file: group.file(),
        offset: group.offset,
        last: back == 0,
        erased: way <= 1 && page == 0,
    }))
}

/// Damages the record of the log's end, in one slot or in both, or removes it: the segments lose nothing.
async fn recorded_end(engine: &Engine, files: &BTreeMap<String, Vec<u8>>) -> Result<()> {
    let Some(bytes) = files.get(END) else { return Ok(()) };
    let struck = sim::random(4);
    if struck == 3 {
        return engine.remove_file(format!("{DIR}/{END}")).await;
    }
    for slot in [0, SLOT].into_iter().filter(|slot| struck == 2 || struck * SLOT == *slot) {
        if slot + GRAIN as u64 <= bytes.len() as u64 {
            let way = sim::random(2);
            change(engine, END, slot, |bytes| match way {
                0 => bytes.fill(0),
                _ => bytes[40] ^= 4,
            })
            .await?;
        }
    }
    Ok(())
}

/// Writes garbage after the newest group, where nothing was.
async fn beside(engine: &Engine, files: &BTreeMap<String, Vec<u8>>, groups: &[groups::Group]) -> Result<()> {
    let Some(last) = groups.last() else { return Ok(()) };
    let end = last.offset + last.len as u64;
    if files.get(&last.file()).is_none_or(|bytes| (bytes.len() as u64) < end + GRAIN as u64) {
        return Ok(());
    }
    change(engine, &last.file(), end, |bytes| bytes[..64].fill(0x5a)).await
}

async fn change(engine: &Engine, name: &str, page: u64, change: impl FnOnce(&mut [u8])) -> Result<()> {
    let file = engine.open(format!("{DIR}/{name}"), Open::write()).await?;
    let mut bytes = file.read_up_to(page..page + GRAIN as u64).await?.to_vec();
    change(&mut bytes);
    file.write(page, bytes).durable(Durability::Data).await?;
    Ok(())
}
