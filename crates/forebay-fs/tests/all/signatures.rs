//! The traits of tokio's types and futures: a program that compiles with `tokio::fs` compiles with these.

use std::fmt::Debug;
use std::fs::{File as StdFile, OpenOptions as StdOpenOptions, Permissions};
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite};

fn is_file<F>()
where
    F: AsyncRead + AsyncWrite + AsyncSeek + AsFd + AsRawFd + FromRawFd + From<StdFile> + From<OwnedFd>,
    F: Debug + Send + Sync + Unpin + 'static,
{
}

fn is_value<T: Debug + Send + Sync + Unpin + 'static>() {}

fn is_options<T: Clone + Default + From<StdOpenOptions>>() {}

/// Returns a future that tasks of any worker may run.
fn send<T>(future: impl Future<Output = T> + Send) -> impl Future<Output = T> + Send {
    future
}

#[test]
fn types_have_the_traits_of_tokios() {
    is_file::<tokio::fs::File>();
    is_file::<forebay_fs::File>();
    is_value::<forebay_fs::OpenOptions>();
    is_value::<forebay_fs::DirBuilder>();
    is_value::<forebay_fs::ReadDir>();
    is_value::<forebay_fs::DirEntry>();
    is_value::<forebay_fs::FileTimes>();
    is_options::<tokio::fs::OpenOptions>();
    is_options::<forebay_fs::OpenOptions>();
    let _: fn() -> forebay_fs::DirBuilder = forebay_fs::DirBuilder::default;
    let _: fn() -> forebay_fs::FileTimes = forebay_fs::FileTimes::default;
    let _: fn(&forebay_fs::FileTimes) -> forebay_fs::FileTimes = Clone::clone;
}

/// Never called: it compiles once for each of the two crates.
macro_rules! signatures {
    ($name:ident, $fs:ident $(:: $module:ident)?) => {
        #[allow(dead_code, reason = "its compilation is the test")]
        async fn $name(path: PathBuf, permissions: Permissions) -> io::Result<()> {
            use $fs$(::$module)? as fs;

            let file: fs::File = send(fs::File::open(&path)).await?;
            let _: fs::File = send(fs::File::create(path.clone())).await?;
            let mut file_two: fs::File = send(fs::File::create_new("new")).await?;
            let mut options: fs::OpenOptions = fs::File::options();
            let options: &mut fs::OpenOptions = options.read(true).write(true).append(false);
            let options = options.truncate(true).create(true).create_new(true).mode(0o600).custom_flags(0);
            let _: fs::File = send(options.open("other")).await?;
            send(file.sync_all()).await?;
            send(file.sync_data()).await?;
            send(file.set_len(7)).await?;
            let metadata: std::fs::Metadata = send(file.metadata()).await?;
            let clone: fs::File = send(file.try_clone()).await?;
            let _: StdFile = send(clone.into_std()).await;
            send(file.set_permissions(permissions.clone())).await?;
            let times: fs::FileTimes = fs::FileTimes::new().set_modified(metadata.modified()?).set_accessed(metadata.accessed()?);
            send(file.set_times(times)).await?;
            send(file.set_modified(metadata.modified()?)).await?;
            file_two.set_max_buf_size(file.max_buf_size());
            let file: Result<StdFile, fs::File> = file.try_into_std();
            let _: fs::File = fs::File::from_std(file.map_err(|_| io::Error::other("in use"))?);

            let mut entries: fs::ReadDir = send(fs::read_dir(&path)).await?;
            let _: Option<fs::DirEntry> = send(entries.next_entry()).await?;
            let _: fn(&mut fs::ReadDir, &mut Context<'_>) -> Poll<io::Result<Option<fs::DirEntry>>> = fs::ReadDir::poll_next_entry;
            while let Some(entry) = entries.next_entry().await? {
                let _: (PathBuf, std::ffi::OsString, u64) = (entry.path(), entry.file_name(), entry.ino());
                let _: std::fs::Metadata = send(entry.metadata()).await?;
                let _: std::fs::FileType = send(entry.file_type()).await?;
            }
            let mut builder: fs::DirBuilder = fs::DirBuilder::new();
            let builder: &mut fs::DirBuilder = builder.recursive(true).mode(0o700);
            send(builder.create("directory")).await?;

            let _: PathBuf = send(fs::canonicalize(&path)).await?;
            let _: u64 = send(fs::copy(&path, "copy")).await?;
            send(fs::create_dir(&path)).await?;
            send(fs::create_dir_all(&path)).await?;
            send(fs::hard_link(&path, "link")).await?;
            let _: std::fs::Metadata = send(fs::metadata(&path)).await?;
            let _: Vec<u8> = send(fs::read(&path)).await?;
            let _: PathBuf = send(fs::read_link(&path)).await?;
            let _: String = send(fs::read_to_string(&path)).await?;
            send(fs::remove_dir(&path)).await?;
            send(fs::remove_dir_all(&path)).await?;
            send(fs::remove_file(&path)).await?;
            send(fs::rename(&path, "new")).await?;
            send(fs::set_permissions(&path, permissions)).await?;
            send(fs::symlink(&path, "link")).await?;
            let _: std::fs::Metadata = send(fs::symlink_metadata(&path)).await?;
            let _: bool = send(fs::try_exists(&path)).await?;
            send(fs::write(&path, "text")).await?;
            send(fs::write(&path, vec![7; 7])).await?;
            send(fs::write(&path, b"bytes")).await
        }
    };
}

signatures!(of_tokio, tokio::fs);
signatures!(of_this_crate, forebay_fs);
