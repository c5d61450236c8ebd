//! Copies, renames and deletions: changes of names only.

use std::path::Path;
use std::sync::Arc;

use forebay::ErrorKind;

use crate::failure::{Failure, Result};
use crate::finish::{Finish, finish};
use crate::handles::look_up;
use crate::location;
use crate::locks::{NameLocks, under_locks};
use crate::store::{ForebayStore, StoreState};
use crate::write::{make_parents, sync_parents};

impl ForebayStore {
    /// Gives an object a second name; with `creates`, only if that name is free.
    pub(crate) fn copy(&self, from: &str, to: &str, creates: bool) -> Result<Finish<Result<()>>> {
        let (source, target) =
            (location::object(&self.shared.root, from)?, location::object(&self.shared.root, to)?);
        Ok(self.change(vec![to.to_string()], move |shared| async move {
            if creates {
                link(&shared, &source, &target).await
            } else {
                replace_by_link(&shared, &source, &target).await
            }
        }))
    }

    /// Moves an object; with `creates`, only if the new name is free.
    pub(crate) fn rename(&self, from: &str, to: &str, creates: bool) -> Result<Finish<Result<()>>> {
        let (source, target) =
            (location::object(&self.shared.root, from)?, location::object(&self.shared.root, to)?);
        Ok(self.change(vec![from.to_string(), to.to_string()], move |shared| async move {
            if !creates {
                return move_over(&shared, &source, &target).await;
            }
            // A rename that replaces nothing is not to be had on every file system; a link is.
            link(&shared, &source, &target).await?;
            delete(&shared, &source, shared.is_durable()).await
        }))
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, location: &str) -> Result<Finish<Result<()>>> {
        let path = location::object(&self.shared.root, location)?;
        Ok(self.change(vec![location.to_string()], move |shared| async move {
            delete(&shared, &path, false).await
        }))
    }

    /// Makes a change of names, whose locks it holds.
    fn change<F: Future<Output = Result<()>> + 'static>(
        &self,
        locations: Vec<String>,
        change: impl FnOnce(Arc<StoreState>) -> F + Send + 'static,
    ) -> Finish<Result<()>> {
        let (shared, class) = (self.shared.clone(), self.class());
        // Lock files are open in addition to files being read, as are files being put.
        let locked = move |place| async move {
            let (_place, _counted) = (place, shared.handles.cache.count());
            let changed = move |shared: Arc<StoreState>, locks: NameLocks| async move {
                let _locks = locks;
                change(shared).await
            };
            let result = under_locks(&shared, class, &locations, changed).await;
            locations.iter().for_each(|location| shared.handles.forget(location));
            result
        };
        let cache = self.shared.handles.cache.clone();
        finish(&self.shared.engine, async move { cache.run(class, locked).await? })
    }
}

/// Gives the file `from` the second name `to`, which nothing has.
async fn link(shared: &StoreState, from: &Path, to: &Path) -> Result<()> {
    loop {
        // Synced afterwards: a durable link would look at the directory of `to` before it looks for `from`.
        match shared.engine.hard_link_unsynced(from, to).await {
            Ok(()) => break,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                make_parents_of_target(shared, from, to).await?;
            }
            Err(error) => return Err(Failure::of_new_name(to, error)),
        }
    }
    shared.sync_name(to).await?;
    sync_parents(shared, to).await
}

/// Gives the file `from` the second name `to`, in place of the object that has it: by way of a staged name.
async fn replace_by_link(shared: &StoreState, from: &Path, to: &Path) -> Result<()> {
    let mut number = 0;
    let staged = loop {
        let staged = location::staged(to, number);
        let Err(error) = shared.engine.hard_link_unsynced(from, &staged).await else { break staged };
        match error.kind() {
            ErrorKind::AlreadyExists => number += 1,
            ErrorKind::NotFound => make_parents_of_target(shared, from, to).await?,
            _ => return Err(error.into()),
        }
    };
    match replace(shared, &staged, to).await {
        Ok(()) => sync_parents(shared, to).await,
        Err(error) => {
            // A rename that has happened and could not be synced leaves no staged name: another copy may have it by now.
            if is_one_file(shared, from, &staged).await {
                let _ = shared.engine.remove_file(&staged).await;
            }
            Err(error)
        }
    }
}

/// Renames `staged` to `to`. The name that it was linked from may be another file's by now: only that of `to` is locked.
async fn replace(shared: &StoreState, staged: &Path, to: &Path) -> Result<()> {
    if !is_one_file(shared, staged, to).await {
        return Ok(shared.rename(staged, to).await?);
    }
    // rename(2) with two names of one file does nothing, so the staged name would stay.
    shared.engine.remove_file(staged).await?;
    // The copy that made them one file may have failed to make that durable.
    Ok(shared.sync_name(to).await?)
}

/// Returns whether both are names of one file, or of one symbolic link.
async fn is_one_file(shared: &StoreState, one: &Path, other: &Path) -> bool {
    let both = (shared.engine.symlink_metadata(one).await, shared.engine.symlink_metadata(other).await);
    matches!(both, (Ok(one), Ok(other)) if (one.device(), one.inode()) == (other.device(), other.inode()))
}

/// Moves the file `from` to `to`, in place of the object there.
async fn move_over(shared: &StoreState, from: &Path, to: &Path) -> Result<()> {
    loop {
        // First: the rename makes it durable that the old name is gone, and the new name needs its directories. If those are removed
        // meanwhile, the rename does not find them.
        if shared.is_durable()
            && has_parent(shared, to).await
            && let Err(failure) = sync_parents(shared, to).await
            && has_parent(shared, to).await
        {
            return Err(failure);
        }
        match shared.rename(from, to).await {
            Ok(()) => {
                sync_parents(shared, to).await?;
                return remove_other_name(shared, from, to).await;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                make_parents_of_target(shared, from, to).await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns whether the directory above `path` exists.
async fn has_parent(shared: &StoreState, path: &Path) -> bool {
    let above = path.parent().unwrap_or(path);
    look_up(&shared.engine, above).await.is_ok_and(|found| found.is_dir())
}

/// Removes the name `from` where it leads to the file at `to` still: rename(2) with two names of one file does nothing.
async fn remove_other_name(shared: &StoreState, from: &Path, to: &Path) -> Result<()> {
    let has_others = look_up(&shared.engine, to).await.is_ok_and(|found| found.links() > 1);
    if !has_others || !is_one_file(shared, from, to).await || is_one_name(shared, from, to).await {
        return Ok(());
    }
    // The copy that made them one file may have failed to make that durable.
    shared.sync_name(to).await?;
    delete(shared, from, shared.is_durable()).await
}

/// Returns whether both lead to one entry of a directory, in which case may not count.
async fn is_one_name(shared: &StoreState, one: &Path, other: &Path) -> bool {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().to_lowercase());
    if name(one) != name(other) {
        return false;
    }
    let [one, other] = [one, other].map(|path| path.parent().unwrap_or(path));
    let both = (shared.engine.metadata(one).await, shared.engine.metadata(other).await);
    !matches!(both, (Ok(one), Ok(other)) if (one.device(), one.inode()) != (other.device(), other.inode()))
}

/// Makes the directories above `to`. If `from` does not exist, or is a link that leads nowhere, that was the reason why a call on
/// both failed.
async fn make_parents_of_target(shared: &StoreState, from: &Path, to: &Path) -> Result<()> {
    match shared.engine.metadata(from).await {
        Ok(_) => make_parents(shared, to).await,
        Err(error) if error.kind() == ErrorKind::NotADirectory => Err(error.into()),
        Err(error) => Err(Failure::not_found(from, error)),
    }
}

/// Removes a name, and the directories that it leaves empty if the store does that.
async fn delete(shared: &StoreState, path: &Path, is_durable: bool) -> Result<()> {
    shared.engine.remove_file(path).await.map_err(|error| Failure::of_file(path, error))?;
    let Some(above) = path.parent() else { return Ok(()) };
    if is_durable {
        shared.engine.sync_dir(above).await?;
    }
    if shared.settings.automatic_cleanup {
        shared.directories.remove_empty(&shared.engine, &shared.root, above).await;
    }
    Ok(())
}
