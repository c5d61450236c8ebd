//! A separate program, with only one test: the working directory belongs to the process.
//!
//! A log that was opened by a relative path, in a process that changes its working directory.
//!
//! Regression: the log looked its files up by the relative path as long as it was open. After chdir(2) it
//! failed at the next segment, or changed the files of another log there.

mod common;

use common::{dir, engine, expected, options, record, records_wait};
use forebay_wal::{Lsn, Wal};

#[test]
fn a_log_opened_by_a_relative_path_stays_where_it_is() {
    let (engine, dir) = (engine(), dir());
    let [here, there] = ["here", "there"].map(|name| dir.path().join(name));
    for place in [&here, &there] {
        std::fs::create_dir_all(place.join("data")).unwrap();
    }
    std::env::set_current_dir(&here).unwrap();
    let (wal, _) = Wal::open(&engine, "data", options()).wait().unwrap();
    std::env::set_current_dir(&there).unwrap();
    for lsn in 1..=300 {
        assert_eq!(wal.append(&record(lsn)).wait().unwrap(), Lsn(lsn));
    }
    wal.truncate_before(Lsn(150)).wait().unwrap();
    wal.append(&record(301)).wait().unwrap();
    wal.close().wait().unwrap();
    assert_eq!(std::fs::read_dir(there.join("data")).unwrap().count(), 0);
    let (wal, recovery) = Wal::open(&engine, here.join("data"), options()).wait().unwrap();
    assert_eq!(recovery.last, Lsn(301));
    assert_eq!(records_wait(&wal, 150).unwrap(), expected(150..=301));
}
