//! Shows: a flush, a snapshot that is built, one that is received and installed, and a close that return Ok are durable, with the layer below
//! closed, failing or full before, during and after the call; after an error the state is one of those that may be. How: simulated worlds
//! whose power fails afterwards. The log's calls have their table in forebay-wal.

use std::io;

use crate::common::{Texts, WorldTypes, apply, count, log_id, parts};
use forebay::Engine;
use forebay_kv::Options;
use forebay_raft::{Error, ErrorKind, RaftStore, Result, SnapshotPart};
use forebay_sim::Fault;
use forebay_test::below::{self, Below, Case};
use openraft::storage::{RaftSnapshotBuilder, RaftStateMachine};

type C = WorldTypes;
type Store = RaftStore<C, Texts>;

const DIR: &str = "/disk/node";
const LEADER: &str = "/disk/leader";
/// Entries that the node has, and those that a snapshot of its leader has.
const OWN: u64 = 30;
const SENT: u64 = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Flush,
    Build,
    Install,
    Close,
}

impl Call {
    const ALL: [Call; 4] = [Call::Flush, Call::Build, Call::Install, Call::Close];

    async fn run(self, mut store: Store, sent: Vec<SnapshotPart>) -> Result<()> {
        match self {
            Call::Flush => store.flush().await,
            Call::Build => store.build_snapshot().await.map(drop).map_err(own),
            Call::Install => {
                let mut receiver = store.receive_snapshot().await?;
                for part in &sent {
                    receiver.write(part).await?;
                }
                let snapshot = receiver.finish().await?;
                let (last_log_id, last_membership) = (Some(log_id::<C>(1, SENT - 1)), Default::default());
                let meta = openraft::alias::SnapshotMetaOf::<C> { last_log_id, last_membership };
                store.install_snapshot(&meta, snapshot).await.map_err(own)
            }
            Call::Close => store.close().await,
        }
    }

    /// Returns the entries of the state, and those of the snapshot, after its success.
    fn promises(self) -> (u64, Option<u64>) {
        match self {
            Call::Flush | Call::Close => (OWN, None),
            Call::Build => (OWN, Some(OWN)),
            Call::Install => (SENT, Some(SENT)),
        }
    }
}

/// Returns this crate's error inside of one for openraft.
fn own(error: io::Error) -> Error {
    error.get_ref().and_then(|error| error.downcast_ref::<Error>()).expect("an error of this crate").clone()
}

async fn open(engine: &Engine, dir: &str) -> Result<Store> {
    let options = Options::new()
        .memory_bytes_max(Options::MEMORY_BYTES_MIN)
        .log_segment_bytes(64 << 10)
        .clock(|| 1_000);
    RaftStore::open(engine, dir, options, Texts).await
}

async fn act(engine: Engine, case: Case<Call>) -> Result<()> {
    let mut sent = Vec::new();
    if case.call == Call::Install {
        let mut leader = open(&engine, LEADER).await?;
        apply(&mut leader, 0..SENT).await.expect("entries are applied");
        sent = parts(&leader.build_snapshot().await.expect("a snapshot").snapshot).await;
        leader.close().await?;
    }
    let mut store = open(&engine, DIR).await?;
    apply(&mut store, 0..OWN).await.expect("entries are applied");
    // These calls have many steps.
    let case = Case { polls: 1 + 3 * case.seed as usize, ..case };
    case.around(engine, case.call.run(store, sent)).await
}

/// Returns the entries of the state and of the snapshot that a later program finds. A snapshot is whole.
async fn found(engine: Engine) -> (u64, Option<u64>) {
    let mut store = open(&engine, DIR).await.expect("a node's store opens again");
    let state = count(&mut store).await;
    let snapshot = store.get_current_snapshot().await.expect("a snapshot or none");
    let mut of_snapshot = None;
    if let Some(current) = snapshot {
        let verified = forebay_kv::verify(&engine, current.snapshot.path()).await.expect("a report");
        assert!(verified.is_whole(), "{verified:?}");
        of_snapshot = current.meta.last_log_id.map(|id| id.index + 1);
    }
    store.close().await.expect("it closes");
    (state, of_snapshot)
}

fn judge(case: Case<Call>) -> Result<()> {
    let (acted, now) =
        case.run(async |engine| act(engine, case).await, async |engine, _| found(engine).await);
    let after = case.call.promises();
    if let Err(error) = &acted {
        assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::Poisoned), "{case}: {error:?}");
        // openraft applies the entries after these again. A call may fail after it has become durable.
        let may_be = now == after || now.0 <= OWN && now.1.is_none();
        assert!(may_be, "{case}: {error}: {now:?}");
        return acted;
    }
    assert_eq!(now, after, "{case}: it was a success");
    Ok(())
}

#[test]
fn a_call_of_the_state_machine_that_succeeds_is_durable() {
    let failed = below::table(&Call::ALL, &[], judge);
    for call in Call::ALL {
        for below in [Below::EngineClosed, Below::Fails(Fault::WriteError), Below::Fails(Fault::NoSpace)] {
            assert!(
                failed.contains(&(call, below)),
                "{call:?}, {below:?}: it never failed, so it shows little"
            );
        }
    }
}
