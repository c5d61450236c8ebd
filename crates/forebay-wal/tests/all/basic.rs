//! A log is opened, appended to, closed and opened again: from threads, from Tokio, from shards.

use crate::common::{
    append, dir, engine, expected, hold, open, open_after_drop, options, quiet, record, records, records_wait,
};
use forebay::{Class, Open};
use forebay_sim::{self as sim, Dirty, Fault, MetadataOrder, Profile, Rule, World};
use forebay_wal::inspect::inspect;
use forebay_wal::{ErrorKind, Fill, Lsn, Options, Wal};

#[test]
fn what_was_appended_comes_back_after_a_close() {
    let (engine, dir) = (engine(), dir());
    let (wal, recovery) = open(&engine, &dir);
    assert!(recovery.created);
    assert_eq!((wal.first_lsn(), wal.next_lsn(), wal.durable_lsn()), (Lsn(1), Lsn(1), Lsn(0)));
    for number in 1..=100 {
        assert_eq!(wal.append(&record(number)).wait().unwrap(), Lsn(number));
        assert_eq!(wal.durable_lsn(), Lsn(number));
    }
    assert_eq!(records_wait(&wal, 1).unwrap(), expected(1..=100));
    wal.close().wait().unwrap();
    assert_eq!(wal.append(b"late").wait().unwrap_err().kind(), ErrorKind::Closed);

    let (wal, recovery) = open(&engine, &dir);
    assert!(!recovery.created && recovery.truncated_at.is_none() && recovery.lost.is_empty(), "{recovery:?}");
    assert_eq!((recovery.first, recovery.last, recovery.durable_lsn), (Lsn(1), Lsn(100), Lsn(100)));
    assert_eq!(recovery.tail_records, 0);
    assert_eq!(records_wait(&wal, 1).unwrap(), expected(1..=100));
    assert_eq!(wal.append(&record(101)).wait().unwrap(), Lsn(101));
    assert_eq!(records_wait(&wal, 90).unwrap(), expected(90..=101));
}

#[test]
fn what_was_appended_comes_back_without_a_close() {
    let (engine, dir) = (engine(), dir());
    for round in 0..5u64 {
        // The last handle of the previous log is dropped; retry until that log has ended.
        let (wal, recovery) = loop {
            match Wal::open(&engine, dir.path(), options().mark_after(std::time::Duration::from_secs(3600)))
                .wait()
            {
                Err(error) if error.kind() == ErrorKind::Locked => std::thread::yield_now(),
                opened => break opened.unwrap(),
            }
        };
        assert_eq!(recovery.last, Lsn(round * 20));
        assert_eq!(records_wait(&wal, 1).unwrap(), expected(1..=round * 20));
        for number in round * 20 + 1..=round * 20 + 20 {
            assert_eq!(wal.append(&record(number)).queued().wait().unwrap().lsn(), Lsn(number));
        }
    }
}

#[test]
fn an_engine_that_ends_leaves_an_unproven_tail_that_is_kept() {
    let dir = dir();
    let mut last = 0;
    for _ in 0..4 {
        let engine = engine();
        let options = options().mark_after(std::time::Duration::from_secs(3600));
        let (wal, recovery) = Wal::open(&engine, dir.path(), options).wait().unwrap();
        assert_eq!((recovery.last, recovery.truncated_at.clone()), (Lsn(last), None), "{recovery:?}");
        assert_eq!(recovery.tail_records, u64::from(last > 0), "{recovery:?}");
        assert_eq!(records_wait(&wal, 1).unwrap(), expected(1..=last));
        for _ in 0..30 {
            last += 1;
            assert_eq!(wal.append(&record(last)).wait().unwrap(), Lsn(last));
        }
        engine.close().wait().unwrap();
        // The log ends with its engine: every call fails instead of hanging.
        assert_eq!(wal.append(b"late").wait().unwrap_err().kind(), ErrorKind::Closed);
        // Everything queued is durable, and the log is closed.
        wal.sync().wait().unwrap();
        wal.close().wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_tokio_tasks_share_groups() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).await.unwrap();
    let tasks: Vec<_> = (0..64u64)
        .map(|task| {
            let wal = wal.clone();
            tokio::spawn(async move {
                let mut mine = Vec::new();
                for number in 0..50 {
                    let text = record(task * 50 + number);
                    let lsn = wal.append(&text).await.unwrap();
                    assert!(wal.durable_lsn() >= lsn);
                    mine.push((lsn.0, text));
                }
                assert!(mine.is_sorted_by_key(|(lsn, _)| *lsn), "one task's records are in its order");
                mine
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all.sort_unstable();
    assert_eq!(all.iter().map(|(lsn, _)| *lsn).collect::<Vec<_>>(), (1..=3200).collect::<Vec<_>>());
    assert_eq!(records(&wal, 1).await.unwrap(), all);
    let stats = wal.stats();
    assert_eq!((stats.records, stats.pending_bytes), (3200, 0));
    assert!(stats.groups - stats.control_groups < 3200, "{stats:?}");
    assert!(stats.flush_ns.count() > 0 && stats.queued_ns.count() > 0, "{stats:?}");
    wal.close().await.unwrap();
    let (wal, recovery) =
        Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).await.unwrap();
    assert_eq!(recovery.last, Lsn(3200));
    assert_eq!(records(&wal, 1).await.unwrap(), all);
}

#[test]
fn a_task_on_a_shard_does_it_all() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().to_path_buf();
    let inner = engine.clone();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let (wal, _) = Wal::open(&inner, &path, options()).await.unwrap();
        for number in 1..=50 {
            assert_eq!(wal.append(&record(number)).await.unwrap(), Lsn(number));
        }
        assert_eq!(wal.append(b"wait").wait().unwrap_err().kind(), ErrorKind::WaitOnShard);
        assert_eq!(
            wal.read_from(Lsn(1)).next().wait().transpose().unwrap_err().kind(),
            ErrorKind::WaitOnShard
        );
        assert_eq!(Wal::open(&inner, &path, options()).wait().unwrap_err().kind(), ErrorKind::WaitOnShard);
        let found = records(&wal, 1).await.unwrap();
        wal.close().await.unwrap();
        found
    });
    assert_eq!(task.wait().unwrap(), expected(1..=50));
}

#[test]
fn plain_threads_wait() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = open(&engine, &dir);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let wal = wal.clone();
            std::thread::spawn(move || {
                let lsns = (0..25).map(|_| wal.append(b"from a thread").wait().unwrap());
                lsns.collect::<Vec<_>>()
            })
        })
        .collect();
    let mut all: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, (1..=200).map(Lsn).collect::<Vec<_>>());
}

#[test]
fn batches_are_numbered_in_a_row_and_in_one_group() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = open(&engine, &dir);
    let all: Vec<_> = (1..=40).map(record).collect();
    let parts: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    assert_eq!(wal.append(&parts[..]).wait().unwrap(), Lsn(1));
    assert_eq!(wal.next_lsn(), Lsn(41));
    let stats = wal.stats();
    assert_eq!((stats.groups - stats.control_groups, stats.records), (1, 40), "one group");
    assert_eq!(wal.append(&parts[..0]).wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(wal.append(&record(41)).queued().wait().unwrap().lsn(), Lsn(41));
    wal.sync().wait().unwrap();
    assert_eq!(wal.durable_lsn(), Lsn(41));
    wal.sync().wait().unwrap();
    assert_eq!(records_wait(&wal, 1).unwrap(), expected(1..=41));
}

#[test]
fn records_of_any_length_up_to_the_limit() {
    let (engine, dir) = (engine(), dir());
    let options = options().segment_bytes(256 << 10).record_bytes_max(200_000).group_bytes_max(16 << 10);
    let (wal, _) = Wal::open(&engine, dir.path(), options.clone()).wait().unwrap();
    let lengths = [0, 1, 0, 3_899, 3_900, 3_901, 16_000, 16_188, 16_189, 100_000, 199_999, 200_000, 0];
    for (number, &length) in lengths.iter().enumerate() {
        assert_eq!(wal.append(&vec![number as u8; length]).wait().unwrap(), Lsn(number as u64 + 1));
    }
    let error = wal.append(&vec![0; 200_001]).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge { limit: 200_000 });
    let halves = [vec![1; 150_000], vec![2; 150_000]];
    let error = wal.append(&[&halves[0][..], &halves[1]]).wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooLarge { .. }), "{error:?}");
    // Neither left a trace.
    let check = |wal: &Wal| {
        let found = records_wait(wal, 1).unwrap();
        assert_eq!(found.len(), lengths.len());
        for (number, (record, &length)) in found.iter().zip(&lengths).enumerate() {
            assert!(
                record.1.len() == length && record.1.iter().all(|&byte| byte == number as u8),
                "{number}"
            );
        }
    };
    check(&wal);
    wal.close().wait().unwrap();
    let (wal, recovery) = Wal::open(&engine, dir.path(), options).wait().unwrap();
    assert_eq!(recovery.last, Lsn(lengths.len() as u64));
    check(&wal);
    assert!(wal.stats().segments_made <= 1);
}

/// The log's own thread waits for no task, so appends end while one keeps the log's shard.
#[test]
fn appends_go_on_while_a_task_keeps_the_logs_shard() {
    let (engine, dir) = (engine(), dir());
    if !engine.makes_wait_calls() {
        return println!("skipped: waiting threads make no calls here");
    }
    // Without marks, of which a busy machine has one behind each append: they would fill the segment, and the shard makes the next one.
    let (wal, _) = Wal::open(&engine, dir.path(), quiet()).wait().unwrap();
    let held = hold(&engine);
    for number in 1..=10 {
        assert_eq!(wal.append(&record(number)).wait().unwrap(), Lsn(number));
    }
    drop(held);
    wal.close().wait().unwrap();
}

/// Short groups are written to segments filled with zeros, long groups to segments that are only allocated, unless the options say
/// otherwise; the records are the same.
#[test]
fn a_growing_log_writes_zeros_for_short_groups_only() {
    for (fill, record_bytes, zeros) in [
        (Fill::ByGroup, 3_000, true),
        (Fill::ByGroup, 60_000, false),
        (Fill::Zeros, 60_000, true),
        (Fill::Allocated, 3_000, false),
    ] {
        let (engine, dir) = (engine(), dir());
        let options = || options().segment_bytes(256 << 10).record_bytes_max(64 << 10).fill(fill);
        let (wal, _) = Wal::open(&engine, dir.path(), options()).wait().unwrap();
        let records = 100u64;
        let bytes = |number: u64| vec![number as u8; record_bytes];
        for number in 1..=records {
            assert_eq!(wal.append(&bytes(number)).wait().unwrap(), Lsn(number));
        }
        let stats = wal.stats();
        const SEGMENT: u64 = 256 << 10;
        let made = stats.segments_made * SEGMENT;
        // The device may write them by itself.
        let probe = engine.open(dir.path().join("probe"), Open::create()).wait().unwrap();
        let zeros = zeros && probe.write_zeros(0..4096).wait().is_err();
        // With the first segment, which is made by the open, and the record of the end. The mean of the groups is not known before
        // some were written.
        let zero_bytes = stats.written_bytes - stats.write_bytes;
        let is_right = if zeros { zero_bytes > made } else { zero_bytes < made / 2 + SEGMENT + (64 << 10) };
        assert!(stats.segments_made >= 1 && is_right, "{fill:?}: {stats:?}");
        wal.close().wait().unwrap();
        let (wal, recovery) = Wal::open(&engine, dir.path(), options()).wait().unwrap();
        assert!(recovery.lost.is_empty() && recovery.last == Lsn(records), "{recovery:?}");
        for (number, record) in records_wait(&wal, 1).unwrap() {
            assert!(record == bytes(number), "record {number}");
        }
        wal.close().wait().unwrap();
    }
}

#[test]
fn a_second_opener_is_told() {
    let (first, second, dir) = (engine(), engine(), dir());
    let (wal, _) = open(&first, &dir);
    for engine in [&first, &second] {
        let error = Wal::open(engine, dir.path(), options()).wait().unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::Locked, Some(&*dir.path().join("wal.lock"))));
    }
    wal.append(b"unharmed").wait().unwrap();
    wal.close().wait().unwrap();
    assert_eq!(open(&second, &dir).1.last, Lsn(1));
}

/// Regression: a log whose directory was missing could not be opened, although it was to be created.
#[test]
fn a_directory_that_is_missing_is_made() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("above/log");
    let (wal, recovery) = Wal::open(&engine, &path, options()).wait().unwrap();
    assert!(recovery.created);
    wal.append(b"there").wait().unwrap();
    wal.close().wait().unwrap();
    assert_eq!(Wal::open(&engine, &path, options()).wait().unwrap().1.last, Lsn(1));
}

/// Regression: the last handle was dropped, and opening the log again in the same process failed, with the report
/// that it was open elsewhere.
#[test]
fn a_log_is_opened_again_right_after_its_last_drop() {
    let (engine, dir) = (engine(), dir());
    for number in 1..=20 {
        let (wal, recovery) = open_after_drop(&engine, &dir);
        assert_eq!(recovery.last, Lsn(number - 1));
        drop(wal.try_append(b"queued").unwrap().expect("room"));
        drop(wal);
    }
}

/// Regression: "somebody else has this log open" did not name the process.
#[test]
fn the_process_that_has_the_log_open_is_named() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = open(&engine, &dir);
    let error = Wal::open(&engine, dir.path(), options()).wait().unwrap_err();
    assert!(error.to_string().contains(&format!("({})", std::process::id())), "{error}");
    // The system knows better than the file.
    std::fs::write(dir.path().join("wal.lock"), "4194303").unwrap();
    let error = Wal::open(&engine, dir.path(), options()).wait().unwrap_err();
    assert!(!error.to_string().contains("4194303"), "{error}");
    wal.close().wait().unwrap();
}

#[test]
fn directories_that_cannot_be_used_are_named() {
    let (engine, dir) = (engine(), dir());
    let missing = dir.path().join("missing");
    let error = Wal::open(&engine, &missing, options().create(false)).wait().unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::Io, Some(&*missing)));
    assert!(!missing.exists());

    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let error = Wal::open(&engine, &file, options()).wait().unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::InvalidInput, Some(&*file)));

    // A place where the lock cannot be made.
    let taken = dir.path().join("taken");
    std::fs::create_dir_all(taken.join("wal.lock")).unwrap();
    let error = Wal::open(&engine, &taken, options()).wait().unwrap_err();
    assert!(error.to_string().contains("taken/wal.lock"), "{error}");

    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let error = Wal::open(&engine, &empty, options().create(false)).wait().unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::InvalidInput, Some(&*empty)));
}

#[test]
fn options_out_of_range_are_refused() {
    let (engine, dir) = (engine(), dir());
    for options in [
        options().segment_bytes(4096),
        options().segment_bytes(100_001),
        options().durability(forebay::Durability::None),
        options().pending_bytes_max(0),
        options().record_bytes_max(0),
        options().group_bytes_max(10),
    ] {
        let error = Wal::open(&engine, dir.path(), options).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Regression: `Wal::open` made a log anywhere, at the root of a store or at a mistyped path, where `Store::open` refuses; and a
/// file that was only named like a segment got a `wal.lock` next to it.
#[test]
fn a_log_is_made_where_nothing_else_is() {
    let (engine, dir) = (engine(), dir());
    let names = || {
        let entries = std::fs::read_dir(dir.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    for (name, is_dir) in [("manifest", true), ("notes.txt", false), ("0000000000000001.wal", true)] {
        let path = dir.path().join(name);
        if is_dir {
            std::fs::create_dir(&path).unwrap()
        } else {
            std::fs::write(&path, "mine").unwrap()
        }
        let error = Wal::open(&engine, dir.path(), options()).wait().unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::Foreign, Some(dir.path())), "{error}");
        assert!(error.to_string().contains(name), "{error}");
        let error = Wal::open(&engine, dir.path(), options().create(false)).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert_eq!(names(), [name]);
        if is_dir { std::fs::remove_dir(&path).unwrap() } else { std::fs::remove_file(&path).unwrap() }
    }
    // Its lock alone may exist, of an attempt that was cut short; the root of a file system has `lost+found`.
    std::fs::write(dir.path().join("wal.lock"), "").unwrap();
    std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    let error = Wal::open(&engine, dir.path(), options()).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    std::fs::remove_file(dir.path().join("notes.txt")).unwrap();
    std::fs::create_dir(dir.path().join("lost+found")).unwrap();
    assert!(open(&engine, &dir).1.created);
}

/// Regression: as above.
#[test]
fn a_file_that_is_no_segment_gets_no_lock() {
    let (engine, dir) = (engine(), dir());
    std::fs::write(dir.path().join("0000000000000001.wal"), [7; 10_000]).unwrap();
    for salvage in [false, true] {
        let error = Wal::open(&engine, dir.path(), options().salvage(salvage)).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        assert!(error.to_string().contains("not a log"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

/// A log without its lock file, as in a backup, is still a log.
#[test]
fn a_copy_without_a_lock_opens() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = open(&engine, &dir);
    append(&wal, 1..=3);
    wal.close().wait().unwrap();
    std::fs::remove_file(dir.path().join("wal.lock")).unwrap();
    assert_eq!(open(&engine, &dir).1.last, Lsn(3));
}

/// Story: `inspect` named `lost+found`, which the root of a file system has, and an open did not.
#[test]
fn other_files_in_the_directory_are_left_alone_and_named() {
    let (engine, dir) = (engine(), dir());
    open(&engine, &dir).0.close().wait().unwrap();
    std::fs::create_dir(dir.path().join("lost+found")).unwrap();
    let unknown = ["0.wal", "000000000000000G.wal", "00000000000000001.wal", "notes.txt"];
    for name in unknown {
        std::fs::write(dir.path().join(name), b"not a segment").unwrap();
    }
    std::fs::create_dir(dir.path().join("0000000000000009.wal")).unwrap();
    for _ in 0..2 {
        let (wal, recovery) = open(&engine, &dir);
        assert!(!recovery.created);
        wal.append(b"beside them").wait().unwrap();
        wal.close().wait().unwrap();
        let found = inspect(&engine, dir.path()).wait().unwrap().unknown_files;
        assert_eq!(found.len(), 5, "{found:?}");
        assert!(unknown.iter().all(|name| found.contains(&dir.path().join(name))));
    }
    assert!(unknown.iter().all(|name| std::fs::read(dir.path().join(name)).unwrap() == b"not a segment"));
}

#[test]
fn bounded_memory_makes_appends_wait_in_order() {
    let (engine, dir) = (engine(), dir());
    let options = Options::new().segment_bytes(1 << 20).pending_bytes_max(4096).group_bytes_max(4096);
    // On its shard, which is held while appends are polled: nothing is written meanwhile, and four fit.
    let (wal, _) = Wal::open(&engine, dir.path(), options.own_thread(false)).wait().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let text = vec![7; 1000];
        let appends: Vec<_> = (0..200).map(|_| wal.append(&text)).collect();
        let mut lsns = std::pin::pin!(futures::future::join_all(appends));
        let held = hold(&engine);
        assert!(futures::poll!(lsns.as_mut()).is_pending());
        assert!(wal.stats().full_waits >= 190, "{:?}", wal.stats());
        drop(held);
        let lsns: Vec<_> = lsns.await.into_iter().map(|lsn| lsn.unwrap().0).collect();
        assert_eq!(lsns, (1..=200).collect::<Vec<_>>(), "polled in order, appended in order");
    });

    // Futures that wait for room and are dropped let the others pass, and leave no record.
    runtime.block_on(async {
        let text = vec![8; 1000];
        let mut kept = Vec::new();
        let held = hold(&engine);
        for round in 0..100 {
            let mut append = Box::pin(wal.append(&text));
            let polled = futures::poll!(&mut append);
            assert!(polled.is_pending());
            if round % 3 == 0 {
                kept.push(append);
            }
        }
        drop(held);
        for lsn in futures::future::join_all(kept).await {
            lsn.unwrap();
        }
        wal.sync().await.unwrap();
        let last = wal.durable_lsn().0;
        assert_eq!(records(&wal, 1).await.unwrap().len() as u64, last);
        assert!((234..300).contains(&last), "{last}");
    });
}

/// Regression: the log synced the names of those directories alone that it had made itself. A directory that the program had just
/// made, and not synced, was lost in a power cut, with acknowledged records.
#[test]
fn a_new_log_makes_the_name_of_its_directory_durable() {
    for seed in 0..20 {
        let mut world = World::new(seed).disk(Profile::nand().metadata_order(MetadataOrder::Posix));
        let ran = world.run(async |engine| {
            engine.create_dir("/log").await.unwrap();
            let (wal, _) = Wal::open(&engine, "/log", options()).await.unwrap();
            wal.append(&record(1)).await.unwrap();
        });
        ran.unwrap();
        world.power_cut();
        world.reboot();
        let found = world.run(async |engine| {
            let (wal, _) = Wal::open(&engine, "/log", options().create(false)).await.unwrap();
            records(&wal, 1).await.unwrap()
        });
        assert_eq!(found.unwrap(), expected(1..=1), "seed {seed}");
    }
}

/// Regression: the directory's name was synced once the first segment had its own. An open whose sync failed there left a log, and the
/// next open, which found it, synced no name.
#[test]
fn an_open_after_one_that_failed_makes_the_name_of_its_directory_durable() {
    let mut failed = 0;
    for nth in 1..12 {
        let mut world = World::new(nth).disk(Profile::nand().metadata_order(MetadataOrder::Posix));
        world.inject(Rule::new(Fault::FlushError).nth(nth));
        let ran = world.run(async |engine| {
            engine.create_dir("/log").await.unwrap();
            let is_failed = match Wal::open(&engine, "/log", options()).await {
                Ok((wal, _)) => wal.close().await.is_err(),
                Err(_) => true,
            };
            // A fault that has not struck yet may strike this call.
            let Ok((wal, _)) = Wal::open(&engine, "/log", options()).await else { return (is_failed, false) };
            (is_failed, wal.append(&record(1)).await.is_ok())
        });
        let (is_failed, is_appended) = ran.unwrap();
        failed += u64::from(is_failed);
        world.power_cut();
        world.clear_faults();
        world.reboot();
        if is_appended {
            let found = world.run(async |engine| {
                let (wal, _) = Wal::open(&engine, "/log", options().create(false)).await.unwrap();
                records(&wal, 1).await.unwrap()
            });
            assert_eq!(found.unwrap(), expected(1..=1), "flush {nth}");
        }
    }
    assert!(failed > 1, "{failed} opens failed");
}

/// Regression: all missing directories were made by one call and synced after it. An open that failed at one of these syncs left them,
/// and the next one, which found them, synced the lowest name alone.
#[test]
fn an_open_after_one_that_failed_makes_the_names_above_its_directory_durable() {
    let mut failed = 0;
    for nth in 1..16 {
        let mut world = World::new(nth).disk(Profile::nand().metadata_order(MetadataOrder::Posix));
        world.inject(Rule::new(Fault::FlushError).nth(nth).dirty(Dirty::Kept));
        let ran = world.run(async |engine| {
            let is_failed = match Wal::open(&engine, "/a/b/c/log", options()).await {
                Ok((wal, _)) => wal.close().await.is_err(),
                Err(_) => true,
            };
            sim::clear_faults();
            let (wal, _) = Wal::open(&engine, "/a/b/c/log", options()).await.unwrap();
            wal.append(&record(1)).await.unwrap();
            is_failed
        });
        failed += u64::from(ran.unwrap());
        world.power_cut();
        world.reboot();
        let found = world.run(async |engine| {
            let (wal, _) = Wal::open(&engine, "/a/b/c/log", options().create(false)).await.unwrap();
            records(&wal, 1).await.unwrap()
        });
        assert_eq!(found.unwrap(), expected(1..=1), "flush {nth}");
    }
    assert!(failed > 4, "{failed} opens failed");
}
