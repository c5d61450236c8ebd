//! Every call that promises durability is called with the layer below closed, failing or full, before, during and after the call. It
//! returns an error, or everything is there after a power cut. The store had one that did neither: its close returned Ok after the
//! engine was closed below it.

use crate::common::{expected, options, record, records};
use forebay::Engine;
use forebay::sim::{Fault, Profile, World};
use forebay_test::below::{Below, Moment};
use forebay_wal::{ErrorKind, Lsn, Result, Wal};

const DIR: &str = "/log";
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
    engine.create_dir_all(DIR).await?;
    Ok(Wal::open(engine, DIR, options().log_id(7)).await?.0)
}

async fn act(engine: Engine, call: Call, below: Below, moment: Moment, polls: usize) -> Result<()> {
    let wal = open(&engine).await?;
    for number in 1..=RECORDS {
        wal.append(&record(number)).queued().await?;
    }
    if call == Call::TruncateFrom {
        wal.append(b"to be removed").queued().await?;
    }
    below.around(moment, polls, engine, call.run(&wal)).await
}

/// Runs one case; returns whether the call succeeded.
fn case(seed: u64, call: Call, below: Below, moment: Moment) -> bool {
    let what = format!("{call:?}, {below:?} {moment:?}, seed {seed}");
    let mut world = World::new(seed).disk(Profile::nand());
    let polls = 1 + seed as usize;
    let acted = world.run(async move |engine| act(engine, call, below, moment, polls).await);
    let acted = acted.unwrap_or_else(|failure| panic!("{what}: {failure}"));
    world.clear_faults();
    world.power_cut();
    world.reboot();
    let found = world.run(async move |engine| {
        let wal = open(&engine).await?;
        let (found, value) = (records(&wal, wal.first_lsn().0).await?, wal.value("key").is_some());
        wal.close().await?;
        Ok::<_, forebay_wal::Error>((found, value))
    });
    let (found, has_value) = found.unwrap().expect(&what);
    if let Err(error) = &acted {
        let is_right = match below {
            Below::EngineClosed => *error.kind() == ErrorKind::Closed,
            Below::Fails(_) => matches!(error.kind(), ErrorKind::Poisoned | ErrorKind::NoSpace),
            _ => false,
        };
        assert!(is_right && moment != Moment::After, "{what}: {error:?}");
        return false;
    }
    let end = if call == Call::Append { RECORDS + 1 } else { RECORDS };
    let begin =
        if call == Call::TruncateBefore { found.first().map_or(0, |(lsn, _)| *lsn).clamp(1, 2) } else { 1 };
    assert!(
        found == expected(begin..=end),
        "{what}: it was a success, and {} records are there",
        found.len()
    );
    assert!(has_value || call != Call::Set, "{what}: it was a success, and the value is lost");
    true
}

#[test]
fn a_call_that_succeeds_has_made_everything_durable() {
    for below in Below::ALL {
        let mut failed = 0;
        for call in Call::ALL {
            for moment in Moment::ALL {
                let successes = (0..4).filter(|seed| case(*seed, call, below, moment)).count();
                println!("{call:?}, {below:?} {moment:?}: {successes} of 4 succeed");
                failed += 4 - successes;
            }
        }
        let works = matches!(below, Below::Works | Below::EngineDropped);
        assert!(
            works == (failed == 0) || below == Below::Fails(Fault::NoSpace),
            "{below:?}: {failed} failed"
        );
    }
}
