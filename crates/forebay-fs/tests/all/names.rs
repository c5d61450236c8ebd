//! Each function and tokio's with the same inputs: the same results, in good cases and in bad ones.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs::Permissions;
use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::common::{comparable, dir};

/// Makes the same small tree in two directories.
struct Twins {
    _dirs: [tempfile::TempDir; 2],
    tokio: PathBuf,
    forebay: PathBuf,
}

impl Twins {
    fn make() -> Twins {
        let dirs = [dir(), dir()];
        for dir in &dirs {
            let root = dir.path();
            std::fs::create_dir_all(root.join("full/below")).unwrap();
            std::fs::create_dir(root.join("empty")).unwrap();
            std::fs::write(root.join("text"), "some text").unwrap();
            std::fs::write(root.join("full/bytes"), [0xff, 0xfe, 0]).unwrap();
            std::os::unix::fs::symlink("text", root.join("link")).unwrap();
            std::os::unix::fs::symlink("nowhere", root.join("broken")).unwrap();
        }
        let [tokio, forebay] = dirs.each_ref().map(|dir| dir.path().to_path_buf());
        Twins { _dirs: dirs, tokio, forebay }
    }

    /// Makes both calls, and compares their results and both trees.
    async fn same<T: Debug + PartialEq, A, B>(
        &self,
        call: &str,
        tokio: impl FnOnce(PathBuf) -> A,
        forebay: impl FnOnce(PathBuf) -> B,
    ) where
        A: Future<Output = io::Result<T>>,
        B: Future<Output = io::Result<T>>,
    {
        let expected = comparable(tokio(self.tokio.clone()).await);
        let found = comparable(forebay(self.forebay.clone()).await);
        assert_eq!(found, expected, "{call}");
        assert_eq!(tree(&self.forebay), tree(&self.tokio), "{call}");
    }
}

/// Returns all paths below a directory, with their types, permissions and contents.
fn tree(root: &Path) -> BTreeSet<(PathBuf, u32, Option<Vec<u8>>)> {
    let (mut unread, mut all) = (vec![root.to_path_buf()], BTreeSet::new());
    while let Some(dir) = unread.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            let contents = metadata.is_file().then(|| std::fs::read(&path).unwrap());
            if metadata.is_dir() {
                unread.push(path.clone());
            }
            let name = path.strip_prefix(root).unwrap().to_path_buf();
            all.insert((name, metadata.permissions().mode(), contents));
        }
    }
    all
}

macro_rules! same {
    ($twins:ident, $function:ident($($name:expr),*; $($argument:expr),*) $then:expr) => {{
        let text = format!("{}{:?}", stringify!($function), ($($name,)*));
        let tokio = |root: PathBuf| async move {
            tokio::fs::$function($(root.join($name),)* $($argument),*).await.map($then)
        };
        let forebay = |root: PathBuf| async move {
            forebay_fs::$function($(root.join($name),)* $($argument),*).await.map($then)
        };
        $twins.same(&text, tokio, forebay).await;
    }};
}

#[tokio::test]
async fn functions_of_one_name_have_the_results_of_tokio() {
    let twins = Twins::make();
    for name in
        ["text", "full", "full/bytes", "empty", "link", "broken", "missing", "text/below", "missing/below"]
    {
        same!(twins, metadata(name;) |found| (found.len() * u64::from(found.is_file()), found.file_type()));
        same!(twins, symlink_metadata(name;) |found| (found.is_symlink(), found.file_type()));
        same!(twins, read(name;) |bytes| bytes);
        same!(twins, read_to_string(name;) |text| text);
        same!(twins, read_link(name;) |target| target);
        same!(twins, try_exists(name;) |found| found);
        same!(twins, canonicalize(name;) |path| path.file_name().map(|name| name.to_owned()));
        same!(twins, remove_dir(name;) |nothing| nothing);
        same!(twins, create_dir(name;) |nothing| nothing);
        same!(twins, create_dir_all(name;) |nothing| nothing);
        same!(twins, write(name; "other text") |nothing| nothing);
        same!(twins, set_permissions(name; Permissions::from_mode(0o700)) |nothing| nothing);
    }
    for name in ["text/below", "missing/below", "link", "full", "text", "text"] {
        same!(twins, remove_file(name;) |nothing| nothing);
        same!(twins, remove_dir_all(name;) |nothing| nothing);
    }
}

#[tokio::test]
async fn functions_of_two_names_have_the_results_of_tokio() {
    let pairs = [
        ("text", "copy"),
        ("text", "full"),
        ("text", "full/bytes"),
        ("full", "empty"),
        ("full", "empty/full"),
        ("empty", "full"),
        ("link", "other"),
        ("missing", "text"),
        ("text", "missing/below"),
    ];
    for (from, to) in pairs {
        let twins = Twins::make();
        same!(twins, copy(from, to;) |bytes| bytes);
        let twins = Twins::make();
        same!(twins, hard_link(from, to;) |nothing| nothing);
        let twins = Twins::make();
        same!(twins, rename(from, to;) |nothing| nothing);
        let twins = Twins::make();
        let text = format!("symlink {from} {to}");
        let tokio = |root: PathBuf| async move { tokio::fs::symlink(from, root.join(to)).await };
        let forebay = |root: PathBuf| async move { forebay_fs::symlink(from, root.join(to)).await };
        twins.same(&text, tokio, forebay).await;
    }
}

#[tokio::test]
async fn a_directory_is_read_as_tokio_reads_it() {
    let dir = dir();
    for number in 0..200 {
        std::fs::write(dir.path().join(format!("file {number}")), "x").unwrap();
    }
    std::fs::create_dir(dir.path().join("directory")).unwrap();
    let mut expected = Vec::new();
    let mut entries = tokio::fs::read_dir(dir.path()).await.unwrap();
    while let Some(entry) = entries.next_entry().await.unwrap() {
        let is_file = entry.metadata().await.unwrap().is_file();
        expected.push((
            entry.path(),
            entry.file_name(),
            entry.ino(),
            entry.file_type().await.unwrap(),
            is_file,
        ));
    }
    let mut found = Vec::new();
    let mut entries = forebay_fs::read_dir(dir.path()).await.unwrap();
    while let Some(entry) = entries.next_entry().await.unwrap() {
        let is_file = entry.metadata().await.unwrap().is_file();
        found.push((entry.path(), entry.file_name(), entry.ino(), entry.file_type().await.unwrap(), is_file));
    }
    assert_eq!(found, expected);
    assert!(entries.next_entry().await.unwrap().is_none());

    for path in [dir.path().join("missing"), dir.path().join("file 1")] {
        let expected = comparable(tokio::fs::read_dir(&path).await.map(drop));
        assert_eq!(comparable(forebay_fs::read_dir(&path).await.map(drop)), expected);
    }
}

#[tokio::test]
async fn opens_have_the_results_of_tokio() {
    for options in 0..64_u32 {
        let is = |bit: u32| (options >> bit) & 1 == 1;
        for name in ["text", "new", "full", "broken"] {
            let twins = Twins::make();
            let tokio = |root: PathBuf| async move {
                let mut how = tokio::fs::OpenOptions::new();
                how.read(is(0))
                    .write(is(1))
                    .append(is(2))
                    .truncate(is(3))
                    .create(is(4))
                    .create_new(is(5))
                    .mode(0o600);
                how.open(root.join(name)).await.map(drop)
            };
            let forebay = |root: PathBuf| async move {
                let mut how = forebay_fs::OpenOptions::new();
                how.read(is(0))
                    .write(is(1))
                    .append(is(2))
                    .truncate(is(3))
                    .create(is(4))
                    .create_new(is(5))
                    .mode(0o600);
                how.open(root.join(name)).await.map(drop)
            };
            twins.same(&format!("open {name} with {options:06b}"), tokio, forebay).await;
        }
    }
}
