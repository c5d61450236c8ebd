//! Shows: a put, a multipart upload, a copy and a rename that return Ok are durable, with the layer below closed, failing or full before,
//! during and after the call, and so is the end of the name that a rename took away. How: simulated worlds whose power fails afterwards.

use bytes::Bytes;
use forebay::Engine;
use forebay::sim::{MetadataOrder, Profile, World};
use forebay_object_store::ForebayStore;
use forebay_test::below::{Below, Moment};
use object_store::path::Path;
use object_store::{ObjectStoreExt, Result};

const ROOT: &str = "/disk";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Put,
    Multipart,
    Copy,
    Rename,
}

impl Call {
    const ALL: [Call; 4] = [Call::Put, Call::Multipart, Call::Copy, Call::Rename];

    /// Makes the object `made`, in directories that are new.
    async fn run(self, store: &ForebayStore) -> Result<()> {
        let (made, old) = (made(), old());
        match self {
            Call::Put => store.put(&made, content().into()).await.map(drop),
            Call::Multipart => {
                let mut upload = store.put_multipart(&made).await?;
                upload.put_part(content().into()).await?;
                upload.complete().await.map(drop)
            }
            Call::Copy => store.copy(&old, &made).await,
            Call::Rename => store.rename(&old, &made).await,
        }
    }
}

fn made() -> Path {
    Path::from("a/b/made")
}

fn old() -> Path {
    Path::from("old")
}

/// Longer than a read's least length, and no multiple of a page.
fn content() -> Bytes {
    Bytes::from(vec![7; 70_003])
}

async fn act(engine: Engine, call: Call, below: Below, moment: Moment, polls: usize) -> Result<()> {
    let store = ForebayStore::new(&engine, ROOT).open().await.expect("a store");
    store.put(&old(), content().into()).await?;
    below.around(moment, polls, engine, call.run(&store)).await
}

async fn found(engine: Engine, at: &Path) -> Option<Bytes> {
    let store = ForebayStore::new(&engine, ROOT).open().await.unwrap();
    let found = store.get(at).await.ok()?;
    Some(found.bytes().await.unwrap())
}

/// Runs one case; returns whether the call succeeded.
fn case(seed: u64, call: Call, below: Below, moment: Moment) -> bool {
    let what = format!("{call:?}, {below:?} {moment:?}, seed {seed}");
    let order = [MetadataOrder::Journal, MetadataOrder::Posix][(seed % 2) as usize];
    let mut world = World::new(seed).disk(Profile::nand().at("/disk").metadata_order(order));
    let polls = 1 + seed as usize;
    let acted = world.run(async move |engine| act(engine, call, below, moment, polls).await);
    let acted = acted.unwrap_or_else(|failure| panic!("{what}: {failure}"));
    world.clear_faults();
    world.power_cut();
    world.reboot();
    let (read, left) = world
        .run(async |engine| (found(engine.clone(), &made()).await, found(engine, &old()).await))
        .unwrap();
    if let Err(error) = acted {
        assert!(!matches!(below, Below::Works | Below::EngineDropped), "{what}: {error}");
        assert!(moment != Moment::After, "{what}: it failed before its fault: {error}");
        // Whole or not at all, and where a rename is one change of the journal under one of its names.
        assert!(read.as_ref().is_none_or(|read| *read == content()), "{what}: torn");
        assert!(order == MetadataOrder::Posix || left.or(read) == Some(content()), "{what}: lost");
        return false;
    }
    assert_eq!(read, Some(content()), "{what}: it was a success");
    assert_eq!(left, (call != Call::Rename).then(content), "{what}: the object of before");
    true
}

#[test]
fn a_call_that_succeeds_has_made_its_object_durable() {
    let mut failed = Vec::new();
    for call in Call::ALL {
        for below in Below::ALL {
            for moment in Moment::ALL {
                let successes = (0..4).filter(|seed| case(*seed, call, below, moment)).count();
                if matches!(below, Below::Works | Below::EngineDropped) || moment == Moment::After {
                    assert_eq!(successes, 4, "{call:?}, {below:?} {moment:?}");
                } else if successes < 4 {
                    failed.push((call, below));
                }
            }
        }
    }
    for below in Below::ALL.into_iter().skip(2) {
        assert!(failed.iter().any(|(_, of)| *of == below), "{below:?}: no call failed, so this shows little");
    }
}

/// Test of the table: it catches a store that returns too early.
#[cfg(feature = "_mutants")]
#[test]
fn a_store_that_returns_too_early_is_caught() {
    use forebay_object_store::mutants::{self, Mutant};

    for mutant in [Mutant::BytesNotSynced, Mutant::NameNotSynced, Mutant::DirectoriesNotSynced] {
        let run = || (0..4).all(|seed| case(seed, Call::Put, Below::Works, Moment::After));
        let caught = std::panic::catch_unwind(|| mutants::with(mutant, run));
        assert!(caught.is_err(), "{mutant:?}");
    }
}
