//! A separate program, with only one test: the limit that makes writes fail (RLIMIT_FSIZE) applies to the whole process.
//!
//! Both ways to make groups durable: a log recovers, and a log's first failure is final.
#![cfg(target_os = "linux")]

mod common;

use common::{dir, engine, expected, options, record, records_wait};
use forebay::{Class, Durability, Flush};
use forebay_test::children::{limits, set_limit};
use forebay_wal::{ErrorKind, Lsn, Wal};

/// Beyond a file's start; a log of 64 KiB segments soon writes past it.
const LIMIT: libc::rlim_t = 16 << 10;

#[test]
fn either_way_a_log_recovers_and_a_failed_write_poisons_it() {
    for (flush, durability) in [
        (Flush::Queued, Durability::Data),
        (Flush::Blocking, Durability::Data),
        (Flush::Blocking, Durability::All),
    ] {
        let (engine, dir) = (engine(), dir());
        let options = || options().flush(flush).durability(durability);
        let open = || Wal::open(&engine, dir.path(), options()).wait();
        let (wal, _) = open().unwrap();
        // Through several segments, and with groups of several records.
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let wal = wal.clone();
                engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
                    for _ in 0..250 {
                        wal.append(&[7; 500]).await?;
                    }
                    Ok::<_, forebay_wal::Error>(())
                })
            })
            .collect();
        for task in tasks {
            task.wait().unwrap().unwrap();
        }
        assert!(wal.stats().segments_made > 2, "{flush:?}: {:?}", wal.stats());
        for number in 1001..=1100 {
            assert_eq!(wal.append(&record(number)).wait().unwrap(), Lsn(number));
        }
        wal.close().wait().unwrap();
        let (wal, recovery) = open().unwrap();
        assert!(recovery.lost.is_empty() && recovery.truncated_at.is_none(), "{recovery:?}");
        assert_eq!(recovery.last, Lsn(1100));
        assert_eq!(records_wait(&wal, 1001).unwrap(), expected(1001..=1100));

        let (before, _) = limits(libc::RLIMIT_FSIZE);
        set_limit(libc::RLIMIT_FSIZE, LIMIT);
        let mut acknowledged = 1100;
        let error = loop {
            match wal.append(&record(acknowledged + 1)).wait() {
                Ok(lsn) => acknowledged = lsn.0,
                Err(error) => break error,
            }
        };
        set_limit(libc::RLIMIT_FSIZE, before);
        // The limit is lifted, but the log stays failed: the data that a failed flush lost is unknown.
        for error in [error, wal.append(b"later").wait().unwrap_err(), wal.close().wait().unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Poisoned, "{flush:?}: {error}");
            assert_eq!(error.raw_os_error(), Some(libc::EFBIG), "{error}");
        }
        let (wal, recovery) = open().unwrap();
        assert!(recovery.last.0 >= acknowledged && recovery.lost.is_empty(), "{recovery:?}");
        assert_eq!(records_wait(&wal, 1001).unwrap(), expected(1001..=recovery.last.0));
        wal.close().wait().unwrap();
    }
}
