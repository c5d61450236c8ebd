//! Shows: a flush, a snapshot that is built, one that is received and installed, and a close that return Ok are durable, with the layer below
//! closed, failing or full before, during and after the call; after an error the state is one of those that may be. How: simulated worlds
//! whose power fails afterwards. The log's calls have their table in forebay-wal.

use std::io;

use crate::common::{WorldTypes, entry, log_id};
use forebay::Engine;
use forebay::sim::{Fault, MetadataOrder, Profile, World};
use forebay_kv::{Batch, Keyspace, Options};
use forebay_raft::{Apply, Error, ErrorKind, RaftStore, Result, SnapshotPart};
use forebay_test::below::{Below, Moment};
use openraft::alias::EntryOf;
use openraft::entry::RaftEntry;
use openraft::storage::{RaftSnapshotBuilder, RaftStateMachine};

type C = WorldTypes;
type Store = RaftStore<C, Texts>;

const DIR: &str = "/disk/node";
const LEADER: &str = "/disk/leader";
/// Entries that the node has, and those that a snapshot of its leader has.
const OWN: u64 = 30;
const SENT: u64 = 50;

/// Keeps each entry's text by its index.
struct Texts;

impl Apply<C> for Texts {
    async fn apply(
        &self,
        entry: EntryOf<C>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<String> {
        let text = entry.to_string();
        batch.put(&keyspaces[0], entry.log_id().index.to_be_bytes(), text.repeat(30));
        Ok(text)
    }
}

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
    let options = Options::new().memory(Options::MEMORY_MIN).log_segment_bytes(64 << 10).clock(|| 1_000);
    RaftStore::open(engine, dir, options, Texts).await
}

async fn apply(store: &mut Store, entries: u64) {
    let entries = (0..entries).map(|index| Ok((entry::<C>(1, index, format!("entry {index}")), None)));
    store.apply(futures_util::stream::iter(entries.collect::<Vec<_>>())).await.expect("entries are applied");
}

async fn parts(store: &mut Store) -> Vec<SnapshotPart> {
    let mut reader = store.build_snapshot().await.expect("a snapshot").snapshot.reader();
    let mut parts = Vec::new();
    while let Some(part) = reader.next().await.expect("a part") {
        parts.push(part);
    }
    parts
}

/// Runs one case; returns what the call returned.
async fn act(engine: Engine, call: Call, below: Below, moment: Moment, polls: usize) -> Result<()> {
    let mut sent = Vec::new();
    if call == Call::Install {
        let mut leader = open(&engine, LEADER).await?;
        apply(&mut leader, SENT).await;
        sent = parts(&mut leader).await;
        leader.close().await?;
    }
    let mut store = open(&engine, DIR).await?;
    apply(&mut store, OWN).await;
    below.around(moment, polls, engine, call.run(store, sent)).await
}

/// Returns the number of entries that a state has, all of which must be there.
async fn entries(store: &mut Store) -> u64 {
    let (applied, _) = store.applied_state().await.expect("a state");
    let count = applied.map_or(0, |id| id.index + 1);
    let keyspaces = store.keyspaces();
    let (mut all, mut found) = (keyspaces[0].iter(), 0u64);
    while let Some(next) = all.next().await {
        let (key, value) = next.expect("an entry");
        assert_eq!(key, found.to_be_bytes());
        let text = entry::<C>(1, found, format!("entry {found}")).to_string().repeat(30);
        assert_eq!(&value[..], text.as_bytes());
        found += 1;
    }
    assert_eq!(found, count);
    count
}

/// Returns the entries of the state and of the snapshot that a later program finds. A snapshot is whole.
async fn found(engine: Engine) -> (u64, Option<u64>) {
    let mut store = open(&engine, DIR).await.expect("a node's store opens again");
    let state = entries(&mut store).await;
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

/// Runs one case; returns whether the call succeeded.
fn case(seed: u64, call: Call, below: Below, moment: Moment) -> bool {
    let what = format!("{call:?}, {below:?} {moment:?}, seed {seed}");
    let order = [MetadataOrder::Journal, MetadataOrder::Posix][(seed % 2) as usize];
    let mut world = World::new(seed).disk(Profile::nand().at("/disk").metadata_order(order));
    let polls = 1 + 3 * seed as usize;
    let acted = world.run(async move |engine| act(engine, call, below, moment, polls).await);
    let acted = acted.unwrap_or_else(|failure| panic!("{what}: {failure}"));
    world.clear_faults();
    world.power_cut();
    world.reboot();
    let now = world.run(async move |engine| found(engine).await);
    let now = now.unwrap_or_else(|failure| panic!("{what}: {acted:?}: {failure}"));
    let after = call.promises();
    if let Err(error) = &acted {
        assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::Poisoned), "{what}: {error:?}");
        assert!(
            below != Below::Works && moment != Moment::After,
            "{what}: it failed before its fault: {error}"
        );
        // openraft applies the entries after these again. A failure may come after the call has become durable.
        let may_be = now == after || now.0 <= OWN && now.1.is_none();
        assert!(may_be, "{what}: {error}: {now:?}");
        return false;
    }
    assert_eq!(now, after, "{what}: it was a success");
    true
}

#[test]
fn a_call_of_the_state_machine_that_succeeds_is_durable() {
    let mut failed = Vec::new();
    for call in Call::ALL {
        for below in Below::ALL {
            for moment in Moment::ALL {
                let successes = (0..4).filter(|seed| case(*seed, call, below, moment)).count();
                println!("{call:?}, {below:?} {moment:?}: {successes} of 4 succeed");
                if matches!(below, Below::Works | Below::EngineDropped) || moment == Moment::After {
                    assert_eq!(successes, 4, "{call:?}, {below:?} {moment:?}");
                } else if successes < 4 {
                    failed.push((call, below));
                }
            }
        }
    }
    for call in Call::ALL {
        for below in [Below::EngineClosed, Below::Fails(Fault::WriteError), Below::Fails(Fault::NoSpace)] {
            assert!(
                failed.contains(&(call, below)),
                "{call:?}, {below:?}: it never failed, so it shows little"
            );
        }
    }
}
