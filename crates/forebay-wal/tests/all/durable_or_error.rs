//! Every call that promises durability is called with the layer below closed, failing or full, before, during and after the call. It
//! returns an error, or everything is there after a power cut. The store had one that did neither: its close returned Ok after the
//! engine was closed below it.

use crate::common::{expected, options, record, records};
use forebay::Engine;
use forebay_test::below::{self, Below, Case};
use forebay_wal::{ErrorKind, Lsn, Result, Wal};

const DIR: &str = "/disk/log";
const RECORDS: u64 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Append,
    Sync,
    RecordEnd,
    Set,
    TruncateBefore,
    TruncateFrom,
    Close,
}

impl Call {
    const ALL: [Call; 7] = [
        Call::Append,
        Call::Sync,
        Call::RecordEnd,
        Call::Set,
        Call::TruncateBefore,
        Call::TruncateFrom,
        Call::Close,
    ];

    async fn run(self, wal: &Wal) -> Result<()> {
        match self {
            Call::Append => wal.append(&record(RECORDS + 1)).await.map(drop),
            Call::Sync => wal.sync().await,
            Call::RecordEnd => wal.record_end().await,
            Call::Set => wal.set("key", b"value").await.map(drop),
            Call::TruncateBefore => wal.truncate_before(Lsn(2)).await,
            Call::TruncateFrom => wal.truncate_from(Lsn(RECORDS + 1)).await,
            Call::Close => wal.close().await,
        }
    }
}

async fn open(engine: &Engine) -> Result<Wal> {
    Ok(Wal::open(engine, DIR, options().log_id(7)).await?.0)
}

async fn act(engine: Engine, case: Case<Call>) -> Result<()> {
    let wal = open(&engine).await?;
    for number in 1..=RECORDS {
        wal.append(&record(number)).queued().await?;
    }
    if case.call == Call::TruncateFrom {
        wal.append(b"to be removed").queued().await?;
    }
    case.around(engine, case.call.run(&wal)).await
}

/// Returns the records found, and whether the value is there.
async fn found(engine: Engine) -> Result<(Vec<(u64, Vec<u8>)>, bool)> {
    let wal = open(&engine).await?;
    let found = (records(&wal, wal.first_lsn().0).await?, wal.value("key").is_some());
    wal.close().await?;
    Ok(found)
}

fn judge(case: Case<Call>) -> Result<()> {
    let (acted, now) =
        case.run(async |engine| act(engine, case).await, async |engine, _| found(engine).await);
    let (found, has_value) = now.unwrap_or_else(|error| panic!("{case}: {error}"));
    if let Err(error) = &acted {
        let is_right = match case.below {
            Below::EngineClosed => error.kind() == ErrorKind::Closed,
            Below::Fails(_) => matches!(error.kind(), ErrorKind::Poisoned | ErrorKind::NoSpace),
            _ => false,
        };
        assert!(is_right, "{case}: {error:?}");
        return acted;
    }
    let end = if case.call == Call::Append { RECORDS + 1 } else { RECORDS };
    let begin = match case.call {
        Call::TruncateBefore => found.first().map_or(0, |(lsn, _)| *lsn).clamp(1, 2),
        _ => 1,
    };
    let count = found.len();
    assert!(found == expected(begin..=end), "{case}: it was a success, and {count} records are there");
    assert!(has_value || case.call != Call::Set, "{case}: it was a success, and the value is lost");
    Ok(())
}

/// Without space an open log may continue for as long as these calls need.
#[test]
fn a_call_that_succeeds_has_made_everything_durable() {
    below::table(&Call::ALL, &Below::ALL[2..5], judge);
}
