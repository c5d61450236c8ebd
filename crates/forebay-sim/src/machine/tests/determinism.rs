//! Random programs. The same seed gives the same run, synced data survives every cut, and each file always
//! has the content of a plain vector of bytes with the same writes.

use std::collections::BTreeMap;

use super::*;
use crate::profile::{Loss, MetadataOrder};

fn profiles(random: &mut Source) -> Profile {
    let base = [Profile::ideal(), Profile::nand(), Profile::optane(), Profile::cloud()];
    let profile = base[random.below(4) as usize].clone();
    let lost = [Loss::Nothing, Loss::Prefix, Loss::Subset][random.below(3) as usize];
    let order = [MetadataOrder::Journal, MetadataOrder::Posix][random.below(2) as usize];
    let cache = [0, 8192, 64 << 20][random.below(3) as usize];
    profile.lost(lost).metadata_order(order).write_cache(cache).torn(random.below(2) == 0)
}

/// Runs a random program and returns its digest. Compares every read with `model` (live bytes) and every cut
/// with `synced` (bytes at the last full sync; only files that were not touched since are compared).
fn run(seed: u64, faults: bool) -> u64 {
    let mut random = Source::new(seed ^ 0x5eed);
    let mut profile = profiles(&mut random);
    if faults {
        for fault in Fault::ALL.into_iter().filter(|fault| *fault != Fault::Stuck) {
            profile = profile.fault(Rule::new(fault).chance_ppm(30_000));
        }
    }
    let sector = u64::from(profile.offset_alignment);
    let mut rig = Rig::new(seed, profile);
    let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut synced: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let name = |file: u64| format!("/f{file}");
    for step in 0..60u8 {
        let which = random.below(3);
        let direct = random.below(2) == 0;
        let opened = rig.opened(MetaRequest::Open {
            path: At::from(name(which).as_str()),
            how: if direct { CREATE } else { BUFFERED },
        });
        let Ok(OpenedFile { number: file, .. }) = opened else { continue };
        let grain = if direct { sector } else { 1 };
        let offset = random.below(20_000) / grain * grain;
        let len = (1 + random.below(9_000)).next_multiple_of(grain);
        let bytes = model.entry(which).or_default();
        match random.below(10) {
            0..4 => {
                let wrote = rig.write(file, offset, &vec![step + 1; len as usize]);
                let end = offset as usize + len as usize;
                assert!(faults || wrote == len as i32);
                bytes.resize(bytes.len().max(end), 0);
                bytes[offset as usize..end].fill(step + 1);
                synced.remove(&which);
            }
            4 => {
                let reply = rig.ask(MetaRequest::Truncate { file: owner(file), len: offset });
                assert!(reply.is_ok());
                bytes.resize(offset as usize, 0);
                synced.remove(&which);
            }
            5 => {
                rig.done(MetaRequest::PunchHole { file: owner(file), offset, len });
                let end = bytes.len().min((offset + len) as usize);
                bytes[(offset as usize).min(end)..end].fill(0);
                synced.remove(&which);
            }
            6 | 7 => {
                let got = rig.read(file, offset, len as usize);
                let end = bytes.len().min((offset + len) as usize);
                assert!(faults || got.unwrap() == bytes[(offset as usize).min(end)..end]);
            }
            8 => {
                let whole = rig.sync(OpKind::SyncAll, file) == 0
                    && rig.ask(MetaRequest::SyncDir { path: path("/") }).is_ok();
                if whole {
                    synced.insert(which, bytes.clone());
                }
            }
            _ if random.below(3) == 0 => {
                rig.cut();
                for (file, want) in synced.iter().filter(|_| !faults) {
                    assert!(rig.content(&name(*file)).as_ref() == Some(want), "file {file}");
                }
                // Unsynced bytes may have any value after the cut: the model continues from the bytes that
                // are there.
                for file in 0..3 {
                    model.insert(
                        file,
                        if faults { Vec::new() } else { rig.content(&name(file)).unwrap_or_default() },
                    );
                }
            }
            _ if random.below(2) == 0 => {
                rig.machine.reboot(&mut rig.fate);
                for (file, want) in model.iter().filter(|_| !faults) {
                    let got = rig.content(&name(*file)).unwrap_or_default();
                    assert!(got == *want, "file {file} in an orderly restart");
                }
            }
            _ => rig.machine.close(file),
        }
        let used: u64 = rig.machine.disks.iter().map(|disk| disk.tree.used).sum();
        let blocks =
            |disk: &Disk| disk.tree.inodes.values().map(|inode| inode.content.blocks.total()).sum::<u64>();
        assert_eq!(used, rig.machine.disks.iter().map(|disk| blocks(disk) * 4096).sum());
    }
    assert!(rig.machine.violations().is_empty());
    rig.fate.history.digest()
}

#[test]
fn files_are_vectors_of_bytes_and_what_is_synced_survives() {
    for seed in 0..400 {
        run(seed, false);
    }
}

#[test]
fn the_same_seed_gives_the_same_run_with_all_faults() {
    let digests: Vec<u64> = (0..200).map(|seed| run(seed, true)).collect();
    assert_eq!(digests, (0..200).map(|seed| run(seed, true)).collect::<Vec<_>>());
    let different: std::collections::BTreeSet<_> = digests.iter().collect();
    assert_eq!(different.len(), digests.len());
}
