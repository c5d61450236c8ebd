//! Readers during appends, truncations and recycling.

use crate::common::{dir, engine, expected, open, options, record, records, records_wait};
use forebay::Block;
use forebay_wal::{ErrorKind, Lsn, Options, Wal};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_follow_while_records_are_appended() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = Wal::open(&engine, dir.path(), options()).await.unwrap();
    for number in 1..=300 {
        wal.append(&record(number)).queued().await.unwrap();
    }
    let readers: Vec<_> = (0..3u64)
        .map(|start| {
            let wal = wal.clone();
            tokio::spawn(async move {
                let mut reader = wal.read_from(Lsn(1 + start * 100));
                let mut next = 1 + start * 100;
                while next <= 3_000 {
                    match reader.next().await.transpose().unwrap() {
                        Some(found) => {
                            assert_eq!((found.lsn(), &found[..]), (Lsn(next), &record(next)[..]));
                            assert!(wal.durable_lsn() >= found.lsn(), "only what is durable is read");
                            next += 1;
                        }
                        None => tokio::task::yield_now().await,
                    }
                }
                assert!(reader.next().await.transpose().unwrap().is_none());
            })
        })
        .collect();
    for number in 301..=3_000 {
        if number % 7 == 0 {
            wal.append(&record(number)).await.unwrap();
        } else {
            wal.append(&record(number)).queued().await.unwrap();
        }
    }
    wal.sync().await.unwrap();
    for reader in readers {
        reader.await.unwrap();
    }
}

#[test]
fn a_reader_beyond_the_log_or_before_it_is_told() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = open(&engine, &dir);
    assert!(wal.read_from(Lsn(1)).next().wait().transpose().unwrap().is_none());
    let range = ErrorKind::OutOfRange { first: Lsn(1), last: Lsn(0) };
    for lsn in [0, 2, u64::MAX] {
        assert_eq!(wal.read_from(Lsn(lsn)).next().wait().transpose().unwrap_err().kind(), range);
    }
    wal.append(&record(1)).wait().unwrap();
    let mut reader = wal.read_from(Lsn(1));
    assert_eq!(reader.position(), Lsn(1));
    let first = reader.next().wait().transpose().unwrap().unwrap();
    assert_eq!((reader.position(), first.len()), (Lsn(2), record(1).len()));
    assert!(reader.next().wait().transpose().unwrap().is_none());
    wal.append(&record(2)).wait().unwrap();
    let second = Block::from(reader.next().wait().transpose().unwrap().unwrap());
    assert_eq!(second[..], record(2));
}

#[test]
fn a_reader_goes_on_after_truncations_with_what_is_there() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = open(&engine, &dir);
    for number in 1..=100 {
        wal.append(&record(number)).queued().wait().unwrap();
    }
    wal.sync().wait().unwrap();
    let mut reader = wal.read_from(Lsn(50));
    assert_eq!(reader.next().wait().transpose().unwrap().unwrap().lsn(), Lsn(50));
    wal.truncate_from(Lsn(61)).wait().unwrap();
    for number in 51..=60 {
        let found = reader.next().wait().transpose().unwrap().unwrap();
        assert_eq!((found.lsn(), found.to_vec()), (Lsn(number), record(number)));
    }
    assert!(reader.next().wait().transpose().unwrap().is_none());
    wal.append(b"another 61").wait().unwrap();
    assert_eq!(reader.next().wait().transpose().unwrap().unwrap()[..], *b"another 61");

    let mut late = wal.read_from(Lsn(10));
    assert!(late.next().wait().transpose().unwrap().is_some());
    wal.truncate_before(Lsn(40)).wait().unwrap();
    let error = late.next().wait().transpose().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange { first: Lsn(40), last: Lsn(61) });
    wal.reset_to(Lsn(1_000)).wait().unwrap();
    assert!(matches!(reader.next().wait().transpose().unwrap_err().kind(), ErrorKind::OutOfRange { .. }));
}

#[test]
fn what_was_read_stays_while_its_segment_is_used_again() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = open(&engine, &dir);
    let mut kept = Vec::new();
    let mut last = 0;
    for _ in 0..10 {
        for _ in 0..1_000 {
            last += 1;
            wal.append(&record(last)).queued().wait().unwrap();
        }
        wal.sync().wait().unwrap();
        let mut reader = wal.read_from(Lsn(last - 500));
        let record = reader.next().wait().transpose().unwrap().unwrap();
        kept.push((reader, record));
        wal.truncate_before(Lsn(last - 400)).wait().unwrap();
    }
    assert!(wal.stats().segments_recycled > 0);
    for (mut reader, found) in kept {
        assert_eq!(found[..], record(found.lsn().0)[..]);
        assert!(matches!(reader.next().wait().transpose().unwrap_err().kind(), ErrorKind::OutOfRange { .. }));
    }
}

#[test]
fn reading_goes_on_after_a_close_and_keeps_nobody_out() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = open(&engine, &dir);
    for number in 1..=2_000 {
        wal.append(&record(number)).queued().wait().unwrap();
    }
    wal.close().wait().unwrap();
    let mut reader = wal.read_from(Lsn(1));
    assert!(reader.next().wait().transpose().unwrap().is_some());
    let (again, _) = open(&engine, &dir);
    again.append(&record(2_001)).wait().unwrap();
    assert_eq!(records_wait(&wal, 1).unwrap(), expected(1..=2_000), "as far as it was open");
    assert_eq!(records_wait(&again, 1).unwrap(), expected(1..=2_001));
}

#[test]
fn a_damaged_record_is_an_error_and_never_data() {
    let (engine, dir) = (engine(), dir());
    // Without marks the positions of the groups are known.
    let options = options().mark_after(std::time::Duration::from_secs(3600));
    let (wal, _) = Wal::open(&engine, dir.path(), options).wait().unwrap();
    for number in 1..=20 {
        wal.append(&record(number + 300)).wait().unwrap();
    }
    let path = dir.path().join("0000000000000001.wal");
    let mut bytes = std::fs::read(&path).unwrap();
    // The tenth record's group: the first group is the log's own, and each append made one.
    let at = 10 * 4096 + 200;
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let mut reader = wal.read_from(Lsn(1));
    for number in 1..=9 {
        assert_eq!(reader.next().wait().transpose().unwrap().unwrap()[..], record(number + 300)[..]);
    }
    let error = reader.next().wait().transpose().unwrap_err();
    let Some(lost) = error.loss() else { panic!("{error:?}") };
    assert_eq!((lost.first, lost.last, lost.offset), (Lsn(10), Lsn(10), 10 * 4096));
    assert_eq!((error.path(), reader.position()), (Some(&*path), Lsn(10)));
    // More records follow it.
    assert!(reader.next().wait().transpose().is_err());
    assert_eq!(records_wait(&wal, 11).unwrap().len(), 10);
}

#[test]
fn long_groups_and_short_ones_are_read_alike() {
    let (engine, dir) = (engine(), dir());
    let options = Options::new().segment_bytes(2 << 20).group_bytes_max(1 << 20);
    let (wal, _) = Wal::open(&engine, dir.path(), options).wait().unwrap();
    let mut lengths = Vec::new();
    for round in 0..10usize {
        let batch: Vec<Vec<u8>> = (0..1 + round * 97).map(|at| vec![at as u8; at * 3 % 2_000]).collect();
        let parts: Vec<&[u8]> = batch.iter().map(Vec::as_slice).collect();
        wal.append(&parts[..]).wait().unwrap();
        wal.append(&vec![1; 700_000]).wait().unwrap();
        lengths.extend(batch.iter().map(Vec::len).chain([700_000]));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let found = runtime.block_on(records(&wal, 1)).unwrap();
    assert_eq!(found.iter().map(|(_, record)| record.len()).collect::<Vec<_>>(), lengths);
    for start in [2, 99, 100, 101, 1_000] {
        assert_eq!(records_wait(&wal, start).unwrap()[..], found[start as usize - 1..]);
    }
}
