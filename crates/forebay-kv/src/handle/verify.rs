//! Verification of a store: reads and checks everything, changes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::{Class, Engine};

use crate::engine::shared::StoreCore;
use crate::error::{Error, Result};
use crate::wait::Pending;

mod verifier;

use verifier::Verifier;

/// The result of [`verify`] and [`Store::verify`](crate::Store::verify).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The defects found, each with its file, and its offset in bytes if known.
    pub findings: Vec<Error>,
    /// Tables read, including those with a finding.
    pub tables: u64,
    /// Bytes of their files.
    pub table_bytes: u64,
    /// Entries of the tables without a finding, deletions included.
    pub entries: u64,
    /// Deletions among them.
    pub deleted: u64,
    /// Values among them that expire.
    pub expiring: u64,
    /// Values among them that are stored outside of their leaf.
    pub blobs: u64,
    /// Records of the log that are not in tables yet.
    pub records: u64,
    /// Whether the log or the manifest ends with an unfinished part, which an open cuts off. A crash during a
    /// write leaves one. It is not a finding.
    pub cut: bool,
    /// Table files that a crash left and the manifest does not name. An open removes them.
    pub leftovers: Vec<PathBuf>,
    /// Such files where one of them may be the only copy of missing data: in a store with a finding, or whose
    /// manifest has no record of its end. An open keeps them.
    pub kept: Vec<PathBuf>,
}

impl VerifyReport {
    /// Returns whether the report has no findings.
    pub fn is_whole(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Verifies the store in `dir`, which no process has open, and returns its faults. Reads all of its tables,
/// its manifest and its log, and checks every checksum, the order and the counts of all entries, the filters
/// and the trees. Continues after a finding where it can; a damaged manifest ends the verification.
///
/// Changes nothing, not even a lock file. It holds the store's locks shared meanwhile, so an open for writing is refused. It runs
/// on the engine's shard 0. It needs some 6 MiB of memory, plus the memory for the longest group of the log. It ends soon after
/// its future was dropped. For an open store, use [`Store::verify`](crate::Store::verify).
///
/// # Errors
/// [`ErrorKind::Locked`](crate::ErrorKind::Locked) while the store is open elsewhere, after a wait of up to ten seconds if the
/// process that had it open has ended: its locks are released late; [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) and
/// [`ErrorKind::Foreign`](crate::ErrorKind::Foreign) if the directory has no store;
/// [`ErrorKind::Unfinished`](crate::ErrorKind::Unfinished), [`ErrorKind::Version`](crate::ErrorKind::Version),
/// [`ErrorKind::MissingFeature`](crate::ErrorKind::MissingFeature), [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput);
/// the system's. Damage is not an error but a finding.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use forebay_kv::{Options, Store};
/// # let dir = tempfile::tempdir()?;
/// # let engine = forebay::Engine::start(forebay::Config::new())?;
/// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
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
pub fn verify(engine: &Engine, dir: impl AsRef<Path>) -> Pending<'static, VerifyReport> {
    verify_with(engine, dir, |_, _| ())
}

/// Verifies a store as [`verify`] does, and returns its faults. Calls `progress` before the first table and
/// after each one, on the shard's thread, with the bytes verified and the total.
///
/// # Errors
/// Those of [`verify`].
pub fn verify_with(
    engine: &Engine,
    dir: impl AsRef<Path>,
    progress: impl FnMut(u64, u64) + Send + 'static,
) -> Pending<'static, VerifyReport> {
    let (owned, named) = (engine.clone(), dir.as_ref().to_path_buf());
    Pending::new(engine, async move {
        let awaited = Arc::new(());
        let (engine, watch, dir) = (owned.clone(), Arc::downgrade(&awaited), named.clone());
        let verifying = owned.spawn_on_shard(0, Class::DEFAULT, move || async move {
            Verifier { engine, watch, report: VerifyReport::default(), progress }.closed_store(&dir).await
        });
        verifying.await.map_err(|error| Error::from(error).named(&named))?
    })
}

/// Verifies a store's current tables, the durable part of its log, and its manifest.
pub(crate) async fn open_store(shared: &Arc<StoreCore>, class: Class) -> Result<VerifyReport> {
    let awaited = Arc::new(());
    let (owned, watch) = (shared.clone(), Arc::downgrade(&awaited));
    let verifying = shared.engine.spawn_on_shard(shared.background_shard(), class, move || async move {
        let (engine, report) = (owned.engine.clone(), VerifyReport::default());
        Verifier { engine, watch, report, progress: |_, _| () }.open_store(&owned, class).await
    });
    verifying.await.map_err(|error| Error::from(error).named(&shared.dir))?
}
