//! Regression: `Store::close` returned Ok after the engine was closed below it, and writes that it had acknowledged were lost: up
//! to 306 of 1,000 relaxed writes, all 1,000 of a keyspace that is not logged. Every call that promises durability is called here
//! with the layer below closed, failing or full, before, during and after the call. It returns an error, or all data survives a
//! power cut.

use crate::common::{dir, engines, options};
use forebay::Engine;
use forebay_kv::{ErrorKind, Result, Store};
use forebay_sim::Fault;
use forebay_test::below::{self, Below, Case};

const WRITES: u32 = 40;
const STORE: &str = "/disk/store";
const COPY: &str = "/disk/copy";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Sync,
    Flush,
    Compact,
    Settle,
    Checkpoint,
    Close,
}

impl Call {
    const ALL: [Call; 6] =
        [Call::Sync, Call::Flush, Call::Compact, Call::Settle, Call::Checkpoint, Call::Close];

    async fn run(self, store: &Store) -> Result<()> {
        match self {
            Call::Sync => store.sync().await,
            Call::Flush => store.flush().await,
            Call::Compact => store.compact().await,
            Call::Settle => store.settle().await,
            Call::Checkpoint => store.checkpoint(COPY).await,
            Call::Close => store.close().await,
        }
    }

    /// Returns whether its success promises that relaxed writes are durable, and those of keyspaces that are not logged.
    fn promises(self) -> (bool, bool) {
        match self {
            Call::Sync => (true, false),
            _ => (true, true),
        }
    }
}

async fn open(engine: &Engine, dir: &str) -> Result<Store> {
    let options = options().log_segment_bytes(64 << 10).clock(|| 1_000);
    Store::open(engine, dir, options).await
}

async fn act(engine: Engine, case: Case<Call>) -> Result<()> {
    let store = open(&engine, STORE).await?;
    let (logged, unlogged) = (store.default_keyspace(), store.unlogged_keyspace("unlogged").await?);
    logged.put("durable", "1").await?;
    for number in 0..WRITES {
        logged.put(number.to_be_bytes(), [1; 200]).relaxed().await?;
        unlogged.put(number.to_be_bytes(), [2; 200]).await?;
    }
    case.around(engine, case.call.run(&store)).await
}

/// Returns the writes found: those with log, and those without.
async fn found(engine: Engine, dir: &str) -> Result<(u32, u32)> {
    let store = open(&engine, dir).await?;
    let (logged, unlogged) = (store.default_keyspace(), store.unlogged_keyspace("unlogged").await?);
    assert!(logged.contains_key("durable").await?, "it was acknowledged as durable");
    let mut counts = (0, 0);
    for number in 0..WRITES {
        counts.0 += u32::from(logged.contains_key(&number.to_be_bytes()).await?);
        counts.1 += u32::from(unlogged.contains_key(&number.to_be_bytes()).await?);
    }
    store.close().await?;
    Ok(counts)
}

fn judge(case: Case<Call>) -> Result<()> {
    let (acted, now) = case.run(
        async |engine| act(engine, case).await,
        async |engine, acted: &Result<()>| {
            let dir = if case.call == Call::Checkpoint && acted.is_ok() { COPY } else { STORE };
            found(engine, dir).await
        },
    );
    let (logged, unlogged) = now.unwrap_or_else(|error| panic!("{case}: {error}"));
    if let Err(error) = &acted {
        let is_right = match case.below {
            Below::EngineClosed => error.kind() == ErrorKind::Closed,
            Below::Fails(Fault::NoSpace) => matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::ReadOnly),
            Below::Fails(_) => matches!(error.kind(), ErrorKind::Io | ErrorKind::ReadOnly),
            _ => false,
        };
        assert!(is_right, "{case}: {error:?}");
        return acted;
    }
    let (of_logged, of_unlogged) = case.call.promises();
    assert!(!of_logged || logged == WRITES, "{case}: it was a success, and {logged} of {WRITES} are there");
    assert!(
        !of_unlogged || unlogged == WRITES,
        "{case}: it was a success, and {unlogged} of {WRITES} not logged are there"
    );
    Ok(())
}

#[test]
fn a_call_that_succeeds_has_made_everything_durable() {
    below::table(&Call::ALL, &Below::ALL[2..], judge);
}

/// The case that was found, on real engines.
#[test]
fn a_close_after_the_engine_was_closed_names_what_may_be_lost() {
    for engine in engines() {
        let dir = dir();
        let store = Store::open(&engine, dir.path(), options()).wait().unwrap();
        let unlogged = store.unlogged_keyspace("unlogged").wait().unwrap();
        unlogged.put("a", "1").wait().unwrap();
        engine.close().wait().unwrap();
        let error = store.close().wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        assert!(error.to_string().contains("\"unlogged\""), "{error}");
        drop((unlogged, store));
        // One without anything to lose is closed.
        let engine = Engine::start(forebay::Config::new()).unwrap();
        let store = Store::open(&engine, dir.path(), options()).wait().unwrap();
        store.default_keyspace().put("a", "1").wait().unwrap();
        engine.close().wait().unwrap();
        store.close().wait().unwrap();
    }
}
