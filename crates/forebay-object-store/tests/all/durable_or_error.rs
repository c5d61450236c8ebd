//! Shows: a put, a multipart upload, a copy and a rename that return Ok are durable, with the layer below closed, failing or full
//! before, during and after the call, and so is the removal of the old name by a rename. How: simulated worlds whose power fails
//! afterwards.

use bytes::Bytes;
use forebay::Engine;
use forebay_object_store::ForebayStore;
use forebay_sim::MetadataOrder;
use forebay_test::below::{self, Below, Case};
use forebay_test::worlds;
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

async fn act(engine: Engine, case: Case<Call>) -> Result<()> {
    let store = ForebayStore::builder(&engine, ROOT).open().await.expect("a store");
    store.put(&old(), content().into()).await?;
    case.around(engine, case.call.run(&store)).await
}

async fn found(engine: Engine, at: &Path) -> Option<Bytes> {
    let store = ForebayStore::builder(&engine, ROOT).open().await.unwrap();
    let found = store.get(at).await.ok()?;
    Some(found.bytes().await.unwrap())
}

fn judge(case: Case<Call>) -> Result<()> {
    let (acted, (read, left)) = case.run(
        async |engine| act(engine, case).await,
        async |engine: Engine, _| (found(engine.clone(), &made()).await, found(engine, &old()).await),
    );
    if let Err(error) = acted {
        assert!(!matches!(case.below, Below::Works | Below::EngineDropped), "{case}: {error}");
        // Whole or not at all, and where a rename is one change of the journal under one of its names.
        assert!(read.as_ref().is_none_or(|read| *read == content()), "{case}: torn");
        let is_one_change = worlds::order(case.seed) == MetadataOrder::Journal;
        assert!(!is_one_change || left.or(read) == Some(content()), "{case}: lost");
        return Err(error);
    }
    assert_eq!(read, Some(content()), "{case}: it was a success");
    assert_eq!(left, (case.call != Call::Rename).then(content), "{case}: the object of before");
    Ok(())
}

#[test]
fn a_call_that_succeeds_has_made_its_object_durable() {
    below::table(&Call::ALL, &Below::ALL[2..], judge);
}

/// Test of the table: it catches a store that returns too early.
#[cfg(feature = "_mutants")]
#[test]
fn a_store_that_returns_too_early_is_caught() {
    use forebay_object_store::mutants::{self, Mutant};
    use forebay_test::below::Moment;

    let case = |seed| Case { call: Call::Put, below: Below::Works, moment: Moment::After, polls: 1, seed };
    for mutant in [Mutant::BytesNotSynced, Mutant::NameNotSynced, Mutant::DirectoriesNotSynced] {
        let run = || (0..4).all(|seed| judge(case(seed)).is_ok());
        let caught = std::panic::catch_unwind(|| mutants::with(mutant, run));
        assert!(caught.is_err(), "{mutant:?}");
    }
}
