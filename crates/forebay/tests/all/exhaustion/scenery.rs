//! Operations of the scenes on an engine, and checks that nothing of it is left.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay::{Durability, Engine, Error, Open};

use crate::common::bytes_of;

const KIB: u64 = 1024;
const MIB: u64 = 1 << 20;

/// Numbers of descriptors and threads of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    descriptors: usize,
    threads: usize,
}

impl Holdings {
    pub(crate) fn now() -> Holdings {
        let count = |dir| std::fs::read_dir(dir).map_or(usize::MAX, Iterator::count);
        Holdings { descriptors: count("/proc/self/fd"), threads: count("/proc/self/task") }
    }

    pub(crate) fn threads(self) -> usize {
        self.threads
    }

    /// Returns the largest number of a descriptor that is open.
    pub(crate) fn highest_descriptor(self) -> u64 {
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let numbers = open.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap());
        // The last one is the directory itself, which is closed by now.
        let numbers: std::collections::BTreeSet<u64> = numbers.collect();
        numbers.into_iter().rev().nth(1).unwrap_or(2)
    }

    /// Waits until no more than this is held again; threads end a moment after the caller that waited for them returns, and those that
    /// were idle before may have ended meanwhile.
    #[track_caller]
    pub(crate) fn is_all_again(self) {
        let begun = Instant::now();
        let is_again = |now: Holdings| now.descriptors == self.descriptors && now.threads <= self.threads;
        while !is_again(Holdings::now()) {
            assert!(begun.elapsed() < Duration::from_secs(30), "{self:?} before, now {:?}", Holdings::now());
            std::thread::yield_now();
        }
    }
}

/// Moves bytes once in every way, and checks each.
#[track_caller]
pub(crate) fn everything_works(engine: &Engine, dir: &Path) {
    let path = dir.join("everything");
    let file = engine.open(&path, Open::create().truncate()).wait().unwrap();
    file.write(0, bytes_of(0..MIB)).wait().unwrap();
    file.write(MIB, bytes_of(MIB..MIB + 64 * KIB)).durable(Durability::All).wait().unwrap();
    let mut append = file.append().at(MIB + 64 * KIB).start();
    append.write(&bytes_of(MIB + 64 * KIB..2 * MIB + 100)).wait().unwrap();
    append.close().wait().unwrap();
    let len = 2 * MIB + 100;
    assert_eq!(file.len().wait().unwrap(), len);
    assert_eq!(&file.read(1001..9999).wait().unwrap()[..], &bytes_of(1001..9999)[..]);
    let ranges = (0..100).map(|n| n * 20_011..n * 20_011 + 3000);
    for (n, block) in file.read_many(ranges).wait().unwrap().into_iter().enumerate() {
        let start = n as u64 * 20_011;
        assert_eq!(&block.unwrap()[..], &bytes_of(start..start + 3000)[..]);
    }
    let mut scan = file.scan().start();
    let mut at = 0;
    while let Some(block) = scan.next().wait().transpose().unwrap() {
        assert!(block[..] == bytes_of(at..at + block.len() as u64)[..], "at {at}");
        at += block.len() as u64;
    }
    assert_eq!(at, len);
    drop((scan, file));
    engine.remove_file(&path).wait().unwrap();
}

/// Closes the engine, and checks that nothing of it is left.
#[track_caller]
pub(crate) fn close(engine: Engine) {
    let report = engine.close().wait().unwrap();
    assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
}

/// Checks that the text names all of these.
#[track_caller]
pub(crate) fn names(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
}

/// Checks that health reports `what`, and that its remedy names one of `remedies`.
#[track_caller]
pub(crate) fn tells(engine: &Engine, what: &[&str], remedy: &str) {
    let degraded = engine.health().degraded;
    let told = degraded.iter().find(|known| what.contains(&known.what.as_str()));
    assert!(told.is_some_and(|told| told.remedy.contains(remedy)), "{what:?} is not told: {degraded:?}");
}
