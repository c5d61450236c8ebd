//! Shows: an upload of 100 GB uses bounded memory, and its parts are at their offsets. How: in a separate process, whose peak
//! memory is checked; the blocks of all parts but the outermost are freed immediately, so that the disk need not hold them.
#![cfg(target_os = "linux")]

use std::fs::File;

use bytes::Bytes;
use forebay_test::children::Scene;
use futures::future::try_join_all;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::common::{bytes_of, dir, store};

const PART: u64 = 64 << 20;
/// At a time.
const PARTS: u64 = 4;
const ROUND: u64 = PARTS * PART;
const ROUNDS: u64 = 100_000_000_000 / ROUND;
/// After this many the process has all that it needs.
const EARLY: u64 = 10;

/// Returns the most memory that this process has had so far.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
#[ignore = "minutes: 100 GB go through the page cache"]
fn an_upload_of_100_gigabytes_takes_bounded_memory() {
    Scene::new("large::an_upload_of_100_gigabytes_takes_bounded_memory").play(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.unwrap().block_on(upload());
    });
}

async fn upload() {
    let root = dir();
    let store = store(root.path()).await;
    let at = Path::from("large");
    let part = Bytes::from(bytes_of(0..PART));
    let mut upload = store.put_multipart(&at).await.unwrap();
    let staged = File::options().write(true).open(root.path().join("large#1")).unwrap();
    let mut early = 0;
    for round in 0..ROUNDS {
        let parts: Vec<_> = (0..PARTS).map(|_| upload.put_part(part.clone().into())).collect();
        try_join_all(parts).await.unwrap();
        if (1..ROUNDS - 1).contains(&round) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match fallocate(&staged, flags, round * ROUND, ROUND) {
                Err(Errno::OPNOTSUPP) => return println!("skipped: this file system gives no blocks back"),
                punched => punched.unwrap(),
            }
        }
        if round == EARLY {
            early = peak_bytes();
        }
    }
    upload.complete().await.unwrap();
    let late = peak_bytes();
    assert!(late - early <= PART, "{early} bytes of memory became {late}");
    assert_eq!(store.head(&at).await.unwrap().size, ROUNDS * ROUND);
    let last = (ROUNDS - 1) * ROUND;
    let ranges = [0..ROUND, ROUND..ROUND + 4096, last - 4096..last, last..last + ROUND];
    let found = store.get_ranges(&at, &ranges).await.unwrap();
    assert!(found[0].chunks(part.len()).chain(found[3].chunks(part.len())).all(|found| found == part));
    assert!(found[1].iter().chain(&found[2]).all(|byte| *byte == 0));
}
