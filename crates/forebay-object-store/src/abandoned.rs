//! The end of staged files whose processes were killed.

use std::future::Future;
use std::time::Duration;

use forebay::{ErrorKind, FileKind, Lock, Open, Waitable};

use crate::line::LOCKS;
use crate::location;
use crate::locks::PATIENCE;
use crate::store::{ForebayStore, StoreState};

impl ForebayStore {
    /// Removes staged files that were not written to for `age`, by the clock of the file system: those of puts and uploads whose
    /// processes were killed. Returns their number.
    ///
    /// An upload in progress that has received no part for this long, in any process, fails when it is completed; a day is a good
    /// age. Other programs' files with names that end in `#` and digits count as staged files, as they do in lists. A staged name
    /// of an object with another name stays until it is the object's last name. Symbolic links are not followed.
    ///
    /// # Errors
    /// The first error of a directory or file, after all others were tried. [`ErrorKind::Locked`] while another process does the
    /// same.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_object_store::ForebayStore;
    /// # #[tokio::main]
    /// # async fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::new())?;
    /// # let dir = tempfile::tempdir().unwrap();
    /// let store = ForebayStore::builder(&engine, dir.path()).open().await?;
    /// let removed = store.remove_abandoned(std::time::Duration::from_secs(24 * 60 * 60)).await?;
    /// assert_eq!(removed, 0);
    /// # engine.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn remove_abandoned(
        &self,
        age: Duration,
    ) -> Waitable<impl Future<Output = forebay::Result<u64>> + use<>> {
        let shared = self.shared.clone();
        Waitable::new("remove_abandoned", async move { remove(&shared, age).await })
    }
}

async fn remove(shared: &StoreState, age: Duration) -> forebay::Result<u64> {
    // Two concurrent calls could mistake a new file for the old file of its name. The lock is not the lock of any name.
    let lock = shared.root.join(location::lock(LOCKS));
    // open(2): `O_TRUNC` sets the time of a file's change to that of the clock, and allocates no block on a full disk.
    let open = Open::create().truncate().permissions(0o666).buffered();
    let lock = shared.engine.open(lock, open).await?;
    lock.lock_within(Lock::Exclusive, PATIENCE).await?;
    let now = lock.metadata().await?.modified();
    let Some(limit) = now.and_then(|now| now.checked_sub(age)) else { return Ok(0) };
    let (mut dirs, mut removed, mut failure) = (vec![shared.root.clone()], 0, None);
    while let Some(dir) = dirs.pop() {
        let entries = match shared.engine.read_dir(&dir).await {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            // What is behind it may be removed all the same.
            Err(error) => {
                failure.get_or_insert(error);
                continue;
            }
            Ok(entries) => entries,
        };
        for entry in entries {
            let path = dir.join(entry.name());
            match entry.kind() {
                FileKind::Dir => dirs.push(path),
                FileKind::File if entry.name().to_str().is_some_and(location::is_staged) => {
                    let Ok(found) = shared.engine.symlink_metadata(&path).await else { continue };
                    // A copy under way has a second name of an old file.
                    let is_last = found.is_file() && found.links() == 1;
                    if !is_last || found.modified().is_none_or(|modified| modified >= limit) {
                        continue;
                    }
                    match shared.engine.remove_file(&path).await {
                        Err(error) if error.kind() == ErrorKind::NotFound => {}
                        Err(error) => drop(failure.get_or_insert(error)),
                        Ok(()) => removed += 1,
                    }
                }
                _ => {}
            }
        }
    }
    failure.map_or(Ok(removed), Err)
}
