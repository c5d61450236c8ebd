//! The directory of a log or a store: made, with a name that a power cut leaves.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;

use forebay::{Engine, Error, ErrorKind, Result};

/// The future of the calls here.
type Work<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// Returns the directory that contains the entry `path`. For our crates.
#[doc(hidden)]
pub fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates a directory and those above it that are missing. For our crates.
///
/// The name of each is durable before a directory is made in it, and the name of the lowest existing directory is synced first: the
/// call that made it may have ended before its sync. So the next call completes the work of an interrupted one.
///
/// # Errors
/// Those of the calls. Directories created before the failure stay.
#[doc(hidden)]
pub fn make_dirs<'a>(engine: &'a Engine, dir: &'a Path) -> Work<'a> {
    Box::pin(async move {
        let (mut lowest, mut missing) = (dir, Vec::new());
        while let Err(error) = engine.metadata(lowest).await {
            let above = parent_of(lowest);
            if error.kind() != ErrorKind::NotFound || above == lowest {
                return Err(error);
            }
            missing.push(lowest);
            lowest = above;
        }
        if !missing.is_empty() {
            sync_name(engine, lowest).await?;
        }
        for dir in missing.into_iter().rev() {
            match engine.create_dir(dir).await {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => made?,
            }
            engine.sync_dir(parent_of(dir)).await?;
        }
        Ok(())
    })
}

/// Makes a directory's own name durable, which its maker may not have done. Where the parent may not be read, or the directory has
/// been moved since it was opened, this is left to the maker. A mount point needs no sync. For our crates.
///
/// # Errors
/// Those of fsync(2) on the parent.
#[doc(hidden)]
pub fn sync_name<'a>(engine: &'a Engine, dir: &'a Path) -> Work<'a> {
    Box::pin(async move {
        let synced = async {
            let parent = parent_of(dir);
            let (own, above) = (engine.metadata(dir).await?, engine.metadata(parent).await?);
            if own.device() == above.device() && own.inode() != above.inode() {
                engine.sync_dir(parent).await?;
            }
            Ok::<(), Error>(())
        };
        match synced.await {
            Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound) => Ok(()),
            synced => synced,
        }
    })
}
