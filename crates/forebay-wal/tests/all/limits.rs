//! Every numeric option of a log, with 0, with 1 and with the largest value: the log opens and works, or it
//! is rejected with a clear error.
//!
//! Story: of the first record's number this was not tried: with the largest one a log opened that took no record.

use std::time::Duration;

use forebay::{Config, Engine};
use forebay_wal::{ErrorKind, Lsn, Options, Wal};

#[test]
fn every_number_of_the_options_works_or_is_refused_with_a_sentence() {
    type Set = fn(Options, u64) -> Options;
    let settings: [(&str, Set); 8] = [
        ("segment_bytes", |options, n| options.segment_bytes(n)),
        ("record_bytes_max", |options, n| options.record_bytes_max(n as usize)),
        ("pending_bytes_max", |options, n| options.pending_bytes_max(n as usize)),
        ("group_bytes_max", |options, n| options.group_bytes_max(n as usize)),
        ("mark_after", |options, n| {
            options.mark_after(if n == u64::MAX { Duration::MAX } else { Duration::from_nanos(n) })
        }),
        ("shard", |options, n| options.shard(n as usize)),
        ("first_lsn", |options, n| options.first_lsn(Lsn(n))),
        ("recent_bytes", |options, n| options.recent_bytes(n as usize)),
    ];
    let engine = Engine::start(Config::new().shards(2)).unwrap();
    for (name, set) in settings {
        for number in [0, 1, u64::MAX] {
            let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let options = set(Options::new().segment_bytes(1 << 20), number);
            match Wal::open(&engine, dir.path(), options).wait() {
                Ok((wal, _)) => {
                    if let Err(error) = wal.append(b"a").wait() {
                        assert_eq!(
                            error.kind(),
                            ErrorKind::TooLarge { limit: 0 },
                            "{name}({number}): {error}"
                        );
                    }
                    wal.close().wait().unwrap();
                }
                Err(error) => {
                    assert!(
                        matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::TooLarge { .. }),
                        "{name}({number}): {error}"
                    );
                }
            }
        }
    }
}
