//! An open log whose directory is moved away, replaced or removed.
//!
//! Regression: a log looked its files up by path as long as it was open. After `mv data data.old; mv good
//! data` under an open log in `data` it renamed, overwrote and removed the segments of the good one, and
//! reported success.

use std::path::Path;

use crate::common::{dir, engine, expected, options, record, records};
use forebay::{Engine, Open};
use forebay_sim::{Profile, World};
use forebay_wal::{Lsn, Wal};

/// Returns every file of a directory with its bytes.
async fn content(engine: &Engine, dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in engine.read_dir(dir).await.unwrap() {
        let file = engine.open(dir.join(entry.name()), Open::read().buffered()).await.unwrap();
        let len = file.len().await.unwrap();
        files.push((entry.name().to_string_lossy().into_owned(), file.read(0..len).await.unwrap().to_vec()));
    }
    files
}

async fn append(wal: &Wal, lsns: std::ops::RangeInclusive<u64>) {
    for lsn in lsns {
        assert_eq!(wal.append(&record(lsn)).await.unwrap(), Lsn(lsn));
    }
}

/// Another log is put in the place of an open one, which continues through many segments.
async fn is_moved_and_replaced(engine: &Engine, base: &Path) {
    let [data, good, moved] = ["data", "good", "moved"].map(|name| base.join(name));
    for dir in [&data, &good] {
        engine.create_dir_all(dir).await.unwrap();
    }
    let open = async |dir: &Path| Wal::open(engine, dir, options().log_id(7)).await.unwrap();
    let (wal, _) = open(&good).await;
    append(&wal, 1..=200).await;
    wal.close().await.unwrap();

    let (wal, _) = open(&data).await;
    append(&wal, 1..=10).await;
    engine.rename(&data, &moved).await.unwrap();
    engine.rename(&good, &data).await.unwrap();
    let before = content(engine, &data).await;
    // Segments are made, reused and removed.
    append(&wal, 11..=250).await;
    wal.truncate_before(Lsn(120)).await.unwrap();
    append(&wal, 251..=380).await;
    wal.truncate_before(Lsn(220)).await.unwrap();
    append(&wal, 381..=500).await;
    assert_eq!(records(&wal, 220).await.unwrap(), expected(220..=500));
    wal.close().await.unwrap();

    let after = content(engine, &data).await;
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&after), names(&before), "files of the other log");
    assert!(after == before, "bytes of the other log");
    let (wal, recovery) = open(&moved).await;
    assert_eq!((recovery.first, recovery.last), (Lsn(220), Lsn(500)));
    assert_eq!(records(&wal, 220).await.unwrap(), expected(220..=500));
    wal.close().await.unwrap();
    let (wal, _) = open(&data).await;
    assert_eq!(records(&wal, 1).await.unwrap(), expected(1..=200));
    wal.close().await.unwrap();
}

#[test]
fn a_log_goes_on_in_a_directory_that_is_moved_and_leaves_the_other_alone() {
    let (engine, dir) = (engine(), dir());
    futures::executor::block_on(is_moved_and_replaced(&engine, dir.path()));
}

#[test]
fn the_same_in_a_world() {
    World::new(1)
        .disk(Profile::nand())
        .run(async |engine| is_moved_and_replaced(&engine, Path::new("/logs")).await)
        .unwrap();
}

/// Removes the directory and all its contents: no append is acknowledged any more. Regression: records were still acknowledged in a
/// segment that had no name, until the segment was full.
async fn is_removed(engine: &Engine, base: &Path) {
    let data = base.join("data");
    engine.create_dir_all(&data).await.unwrap();
    let (wal, _) = Wal::open(engine, &data, options().log_id(7)).await.unwrap();
    append(&wal, 1..=10).await;
    // The log may be making its next segment and its reserve meanwhile.
    loop {
        for entry in engine.read_dir(&data).await.unwrap() {
            let _ = engine.remove_file(data.join(entry.name())).await;
        }
        match engine.remove_dir(&data).await {
            Err(error) if error.kind() == forebay::ErrorKind::DirectoryNotEmpty => {}
            removed => break removed.unwrap(),
        }
    }
    engine.create_dir(&data).await.unwrap();
    let error = wal.append(&record(11)).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("removed") && text.contains("data"), "{text}");
    let error = wal.append(&record(12)).await.unwrap_err();
    assert_eq!(error.kind(), forebay_wal::ErrorKind::Poisoned, "{error}");
    assert_eq!(wal.durable_lsn(), Lsn(10));
    // Records known to be durable can be read as long as the log is open.
    assert_eq!(records(&wal, 1).await.unwrap_or_default(), expected(1..=10));
    drop(wal.close().await);
    assert_eq!(engine.read_dir(&data).await.unwrap().len(), 0, "a directory of the same name is another");
}

#[test]
fn nothing_is_acknowledged_in_a_directory_that_was_removed() {
    let (engine, dir) = (engine(), dir());
    futures::executor::block_on(is_removed(&engine, dir.path()));
}

#[test]
fn nothing_is_acknowledged_in_a_directory_that_was_removed_in_a_world() {
    World::new(1)
        .disk(Profile::nand())
        .run(async |engine| is_removed(&engine, Path::new("/logs")).await)
        .unwrap();
}
