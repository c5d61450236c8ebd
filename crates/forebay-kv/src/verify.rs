//! Verifying a store: everything is read and checked, nothing is changed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::{Class, Engine};

use crate::error::{Error, Result};
use crate::store::shared::Shared;
use crate::wait::Answer;

mod run;

use run::Verifying;

/// What [`verify`] and [`Store::verify`](crate::Store::verify) found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Verified {
    /// What is wrong, each with its file, and its place in bytes where there is one.
    pub findings: Vec<Error>,
    /// Tables that were read, those with a finding included.
    pub tables: u64,
    /// Bytes of their files.
    pub table_bytes: u64,
    /// Entries of the tables without a finding, deletions included.
    pub entries: u64,
    /// Deletions among them.
    pub deleted: u64,
    /// Values among them that expire.
    pub expiring: u64,
    /// Values among them that do not lie in their leaf.
    pub blobs: u64,
    /// Records of the log that are not in tables yet.
    pub records: u64,
    /// The log or the manifest ends with something unfinished, which an open cuts off: what a crash in a
    /// write leaves. It is no finding.
    pub cut: bool,
    /// Files with names of tables that nothing names: what a crash left. An open removes them.
    pub leftovers: Vec<PathBuf>,
    /// The same where one of them may be the only copy of what is missing: in a store with a finding, or whose manifest
    /// has no record of its end. An open keeps them.
    pub kept: Vec<PathBuf>,
}

impl Verified {
    /// Nothing is wrong.
    pub fn is_whole(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Verifies the store in `dir`, which nobody has open: reads all of its tables, its manifest and its log, and
/// checks every checksum, the order and the counts of all entries, the filters and the trees. Works on after
/// a finding where it can: a damaged manifest ends it.
///
/// Changes nothing, not even a lock file. It holds the store's locks shared meanwhile, so who opens the store
/// is refused. It runs on the engine's shard 0, needs some 6 MiB of memory and that for the longest group of
/// the log, and ends soon after its answer was dropped. For a store that is open:
/// [`Store::verify`](crate::Store::verify).
///
/// # Errors
/// [`ErrorKind::Locked`](crate::ErrorKind::Locked) while somebody has the store open;
/// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) and [`ErrorKind::Foreign`](crate::ErrorKind::Foreign)
/// if there is none; [`ErrorKind::Unfinished`](crate::ErrorKind::Unfinished),
/// [`ErrorKind::Version`](crate::ErrorKind::Version),
/// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput); the system's. What is damaged is no error but
/// a finding.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use forebay_kv::{Options, Store};
/// # let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))?;
/// # let engine = forebay::Engine::start(forebay::Config::default())?;
/// # let store = Store::open(&engine, dir.path(), Options::new().memory(16 << 20)).wait()?;
/// # store.default_keyspace().put("a", "1").wait()?;
/// # store.close().wait()?;
/// # let dir = dir.path();
/// let verified = forebay_kv::verify(&engine, dir).wait()?;
/// for finding in &verified.findings {
///     println!("{finding}"); // names file and byte
/// }
/// assert!(verified.is_whole());
/// # Ok(()) }
/// ```
pub fn verify(engine: &Engine, dir: impl AsRef<Path>) -> Answer<'static, Verified> {
    verify_with(engine, dir, |_, _| ())
}

/// As [`verify`]; tells after each table how many bytes of how many are done, on the shard's thread.
///
/// # Errors
/// As [`verify`].
pub fn verify_with(
    engine: &Engine,
    dir: impl AsRef<Path>,
    progress: impl FnMut(u64, u64) + Send + 'static,
) -> Answer<'static, Verified> {
    let (owned, dir) = (engine.clone(), dir.as_ref().to_path_buf());
    Answer::new(engine, async move {
        let awaited = Arc::new(());
        let (engine, watch) = (owned.clone(), Arc::downgrade(&awaited));
        let verifying = owned.spawn_on_shard(0, Class::DEFAULT, move || async move {
            Verifying { engine, watch, found: Verified::default(), progress }.closed_store(&dir).await
        });
        verifying.await?
    })
}

/// Verifies the tables that a store has now, what is durable of its log, and its manifest.
pub(crate) async fn open_store(shared: &Arc<Shared>) -> Result<Verified> {
    let awaited = Arc::new(());
    let (owned, watch) = (shared.clone(), Arc::downgrade(&awaited));
    let verifying = shared.engine.spawn_on_shard(
        shared.background_shard(),
        shared.options.background,
        move || async move {
            let (engine, found) = (owned.engine.clone(), Verified::default());
            Verifying { engine, watch, found, progress: |_, _| () }.open_store(&owned).await
        },
    );
    verifying.await?
}
