//! Functions on names, and on whole files.

use std::fs::{Metadata, Permissions};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};

use forebay::Engine;

use crate::accept;
use crate::engines;
use crate::simulated::{self, unsupported};
use crate::threads;

/// Makes the call of the standard library on one of the threads, or its like in a simulated world. It continues when the future is
/// dropped.
async fn call<T, W>(
    here: impl FnOnce() -> io::Result<T> + Send + 'static,
    there: impl FnOnce(Engine) -> W + Send + 'static,
) -> io::Result<T>
where
    T: Send + 'static,
    W: Future<Output = forebay::Result<T>> + 'static,
{
    match engines::world()? {
        None => threads::run(here).await?,
        Some(engine) => engines::in_world(engine, there).await,
    }
}

/// As [`call`], for what worlds have nothing for.
async fn call_here<T: Send + 'static>(
    name: &str,
    here: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match engines::world()? {
        None => threads::run(here).await?,
        Some(_) => Err(unsupported(name)),
    }
}

/// Counts a call that writes for the end of the runtime, which waits for it.
fn accepted<T>(call: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let accepted = accept::accept();
    move || {
        let result = call();
        drop(accepted);
        result
    }
}

/// Returns the path from the root, without symbolic links and dots.
///
/// # Errors
/// Those of realpath(3).
pub async fn canonicalize(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    let path = path.as_ref().to_owned();
    let absolute = simulated::absolute(&path);
    let find = move |engine: Engine| async move { engine.metadata(&absolute).await.map(|_| absolute) };
    call(move || std::fs::canonicalize(path), find).await
}

/// Copies the contents and the permissions of a file to another one, which is created or emptied, and returns the number of bytes.
///
/// # Errors
/// Those of [`std::fs::copy`].
pub async fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64, std::io::Error> {
    let (from, to) = (from.as_ref().to_owned(), to.as_ref().to_owned());
    match engines::world()? {
        None => threads::run(accepted(move || std::fs::copy(from, to))).await?,
        Some(engine) => engines::in_world(engine, move |engine| simulated::copy(engine, from, to)).await,
    }
}

/// Makes a directory.
///
/// # Errors
/// Those of mkdir(2).
pub async fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    let own = path.clone();
    call(move || std::fs::create_dir(path), move |engine| engine.create_dir(own)).await
}

/// Makes a directory and those above it that are missing.
///
/// # Errors
/// Those of mkdir(2).
pub async fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    let own = path.clone();
    call(move || std::fs::create_dir_all(path), move |engine| engine.create_dir_all(own)).await
}

/// Gives a file another name.
///
/// # Errors
/// Those of link(2).
pub async fn hard_link(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    let (original, link) = (original.as_ref().to_owned(), link.as_ref().to_owned());
    let (own_original, own_link) = (original.clone(), link.clone());
    let there = move |engine: Engine| engine.hard_link_unsynced(own_original, own_link);
    call(move || std::fs::hard_link(original, link), there).await
}

/// Returns the metadata of the file or directory at a path.
///
/// # Errors
/// Those of stat(2).
pub async fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    let path = path.as_ref().to_owned();
    match engines::world()? {
        None => threads::run(move || std::fs::metadata(path)).await?,
        Some(engine) => {
            simulated::metadata(&engines::in_world(engine, move |engine| engine.metadata(path)).await?)
        }
    }
}

/// Returns the contents of a file.
///
/// # Errors
/// Those of [`std::fs::read`].
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> std::io::Result<()> {
/// assert!(forebay_fs::read("Cargo.toml").await?.starts_with(b"[package]"));
/// # Ok(()) }
/// ```
pub async fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let path = path.as_ref().to_owned();
    let own = path.clone();
    call(move || std::fs::read(path), move |engine| simulated::read(engine, own)).await
}

/// Returns the target of a symbolic link.
///
/// # Errors
/// Those of readlink(2); [`Unsupported`](io::ErrorKind::Unsupported) in a simulated world.
pub async fn read_link(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    let path = path.as_ref().to_owned();
    call_here("symbolic links", move || std::fs::read_link(path)).await
}

/// Returns the contents of a text file.
///
/// # Errors
/// Those of [`std::fs::read_to_string`]; [`InvalidData`](io::ErrorKind::InvalidData) where it is not UTF-8.
pub async fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    let path = path.as_ref().to_owned();
    match engines::world()? {
        None => threads::run(move || std::fs::read_to_string(path)).await?,
        Some(engine) => {
            let bytes = engines::in_world(engine, move |engine| simulated::read(engine, path)).await?;
            let invalid =
                |_| io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8");
            String::from_utf8(bytes).map_err(invalid)
        }
    }
}

/// Removes an empty directory.
///
/// # Errors
/// Those of rmdir(2).
pub async fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    let own = path.clone();
    call(move || std::fs::remove_dir(path), move |engine| engine.remove_dir(own)).await
}

/// Removes a directory and everything in it.
///
/// # Errors
/// Those of [`std::fs::remove_dir_all`].
pub async fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    let own = path.clone();
    call(move || std::fs::remove_dir_all(path), move |engine| simulated::remove_dir_all(engine, own)).await
}

/// Removes a file's name.
///
/// # Errors
/// Those of unlink(2).
pub async fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    let own = path.clone();
    call(move || std::fs::remove_file(path), move |engine| engine.remove_file(own)).await
}

/// Renames a file or directory, replacing an existing one. Not synced: to sync it, open the directory and call
/// [`sync_all`](crate::File::sync_all).
///
/// # Errors
/// Those of rename(2).
pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let (from, to) = (from.as_ref().to_owned(), to.as_ref().to_owned());
    let (own_from, own_to) = (from.clone(), to.clone());
    call(move || std::fs::rename(from, to), move |engine| engine.rename_unsynced(own_from, own_to)).await
}

/// Changes the permissions of the file or directory at a path.
///
/// # Errors
/// Those of chmod(2); [`Unsupported`](io::ErrorKind::Unsupported) in a simulated world.
pub async fn set_permissions(path: impl AsRef<Path>, perm: Permissions) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    call_here("permissions", move || std::fs::set_permissions(path, perm)).await
}

/// Makes a symbolic link.
///
/// # Errors
/// Those of symlink(2); [`Unsupported`](io::ErrorKind::Unsupported) in a simulated world.
pub async fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    let (original, link) = (original.as_ref().to_owned(), link.as_ref().to_owned());
    call_here("symbolic links", move || std::os::unix::fs::symlink(original, link)).await
}

/// Returns the metadata of a path, without following a symbolic link.
///
/// # Errors
/// Those of lstat(2).
pub async fn symlink_metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    let path = path.as_ref().to_owned();
    match engines::world()? {
        None => threads::run(move || std::fs::symlink_metadata(path)).await?,
        Some(engine) => simulated::metadata(
            &engines::in_world(engine, move |engine| engine.symlink_metadata(path)).await?,
        ),
    }
}

/// Returns whether `path` exists.
///
/// # Errors
/// Those of stat(2), except for a missing name.
pub async fn try_exists(path: impl AsRef<Path>) -> io::Result<bool> {
    let path = path.as_ref().to_owned();
    match engines::world()? {
        None => threads::run(move || path.try_exists()).await?,
        Some(engine) => match engines::in_world(engine, move |engine| engine.metadata(path)).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        },
    }
}

/// Creates a file with these contents, or replaces the contents of an existing file. It continues when the future is dropped
/// after its first poll, and the end of the runtime waits for it.
///
/// # Errors
/// Those of [`std::fs::write`].
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// let path = dir.path().join("greeting");
/// forebay_fs::write(&path, "hello").await?;
/// assert_eq!(forebay_fs::read_to_string(&path).await?, "hello");
/// # Ok(()) }
/// ```
pub async fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    // Dropped here: the owner of the bytes may belong to this thread.
    let contents = {
        let lender = contents;
        lender.as_ref().to_vec()
    };
    match engines::world()? {
        None => threads::run(accepted(move || std::fs::write(path, contents))).await?,
        Some(engine) => {
            engines::in_world(engine, move |engine| simulated::write(engine, path, contents)).await
        }
    }
}
