//! Shows: locations, symbolic links, staged names and odd names are those of object_store's `LocalFileSystem`. How: tables of them, on both
//! stores over one tree.
#![allow(clippy::single_range_in_vec_init, reason = "a batch of one range")]

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::common::{self, dir, settings, store};
use forebay::Durability;
use forebay_object_store::ForebayStore;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{Error, GetResultPayload, ObjectStore, ObjectStoreExt};

async fn list(store: &dyn ObjectStore, prefix: &str) -> Result<Vec<String>, String> {
    let prefix = Path::parse(prefix).unwrap();
    let listed: Result<Vec<_>, _> =
        store.list(Some(&prefix)).map_ok(|meta| meta.location).try_collect().await;
    let mut listed: Vec<String> =
        listed.map_err(|error| error.to_string())?.into_iter().map(String::from).collect();
    listed.sort();
    Ok(listed)
}

/// What can be done about a location, in words that both stores have in common.
async fn fate(store: &dyn ObjectStore, location: &Path) -> String {
    let kind = |error: Error| match error {
        Error::NotFound { .. } => "not found",
        Error::Generic { .. } => "refused",
        Error::AlreadyExists { .. } => "exists",
        _ => "another error",
    };
    let get = store.get(location).await.map(|got| got.meta.size).map_err(kind);
    let head = store.head(location).await.map(|meta| meta.size).map_err(kind);
    let ranges = store.get_ranges(location, &[0..1]).await.map(|parts| parts[0].to_vec()).map_err(kind);
    let listed = list(store, location.as_ref()).await.map_err(drop);
    format!("get {get:?}, head {head:?}, ranges {ranges:?}, list {listed:?}")
}

#[tokio::test]
async fn a_location_is_a_name_below_the_root_whatever_is_in_it() {
    let above = dir();
    let root = above.path().join("root");
    fs::create_dir(&root).unwrap();
    fs::write(above.path().join("secret"), "secret").unwrap();
    let (store, local) = (store(&root).await, LocalFileSystem::new_with_prefix(&root).unwrap());
    // Path::from encodes, Path::parse refuses.
    for text in [
        "../secret",
        "..",
        ".",
        "a/../../secret",
        "%2e%2e/secret",
        "%2E%2E/secret",
        "..%2Fsecret",
        "a\\..\\..\\secret",
        "\0",
        "a\nb",
        "~/x",
        "a b",
        "a?b#c",
        "😁",
        "L%3AC",
        "con",
        "a//b",
        "/etc/passwd",
        "file:///etc/passwd",
        "-rf",
    ] {
        for location in [Some(Path::from(text)), Path::parse(text).ok(), Path::from_url_path(text).ok()] {
            let Some(location) = location.filter(|location| !location.as_ref().is_empty()) else { continue };
            assert_eq!(fate(&store, &location).await, fate(&local, &location).await, "{location}");
            // What one puts the other reads, from a file below the root.
            store.put(&location, text.to_string().into()).await.unwrap();
            let got = local.get(&location).await.unwrap().bytes().await.unwrap();
            assert_eq!(got, text.as_bytes(), "{location}");
            let file = root.join(location.as_ref());
            assert_eq!(fs::read(&file).unwrap(), text.as_bytes());
            assert_eq!(local.path_to_filesystem(&location).unwrap(), file.canonicalize().unwrap());
            assert_eq!(list(&store, "").await, list(&local, "").await);
            assert_eq!(list(&store, "").await.unwrap(), [location.as_ref()]);
            local.delete(&location).await.unwrap();
            for entry in fs::read_dir(&root).unwrap() {
                let _ = fs::remove_dir_all(entry.unwrap().path());
            }
        }
    }
    assert_eq!(fs::read(above.path().join("secret")).unwrap(), b"secret");
    assert_eq!(fs::read_dir(above.path()).unwrap().count(), 2, "nothing came to lie above the root");
}

#[tokio::test]
async fn links_are_followed_wherever_they_lead() {
    let (above, root) = (dir(), dir());
    let (above, root) = (above.path(), root.path());
    let (store, local) = (store(root).await, LocalFileSystem::new_with_prefix(root).unwrap());
    fs::create_dir(root.join("a")).unwrap();
    fs::write(root.join("a/file"), "one").unwrap();
    fs::write(above.join("other"), "other").unwrap();
    let links = [
        ("out", above.join("other"), "a file outside of the root"),
        ("outside", above.to_path_buf(), "a directory outside of the root"),
        ("b", root.join("a"), "a directory of the store"),
        ("c", root.join("none"), "nothing"),
        ("a/again", "file".into(), "a file beside it, by a relative name"),
        ("chain", "out".into(), "a link"),
    ];
    for (name, target, what) in &links {
        symlink(target, root.join(name)).unwrap();
        for location in ["a/file", "out", "outside/other", "b/file", "b", "c", "a/again", "chain", "c/x"] {
            let location = Path::parse(location).unwrap();
            assert_eq!(
                fate(&store, &location).await,
                fate(&local, &location).await,
                "{location} with {what}"
            );
        }
        let levels = [&store as &dyn ObjectStore, &local].map(|store| async {
            let mut level = store.list_with_delimiter(None).await.unwrap();
            level.objects.sort_by(|one, other| one.location.cmp(&other.location));
            (level.common_prefixes, level.objects)
        });
        let [ours, theirs] = levels;
        assert_eq!(ours.await, theirs.await, "{what}");
    }
    let all = ["a/again", "a/file", "b/again", "b/file", "chain", "out", "outside/other"];
    assert_eq!(list(&store, "").await.unwrap(), all);
    // A deletion removes the link; a put follows a directory's link and replaces a file's.
    store.delete(&Path::from("out")).await.unwrap();
    assert_eq!(fs::read(above.join("other")).unwrap(), b"other");
    store.put(&Path::from("b/new"), "new".into()).await.unwrap();
    assert_eq!(fs::read(root.join("a/new")).unwrap(), b"new");
    store.put(&Path::from("a/again"), "again".into()).await.unwrap();
    assert_eq!(fs::read(root.join("a/file")).unwrap(), b"one", "a put changes no other file");
    // A loop ends the list with an error that names it.
    symlink("..", root.join("a/up")).unwrap();
    assert!(list(&local, "").await.is_err());
    let error = list(&store, "").await.unwrap_err();
    assert!(error.contains("/up leads to"), "{error}");
    fs::remove_file(root.join("a/up")).unwrap();
    symlink("self", root.join("self")).unwrap();
    assert_eq!(list(&store, "").await.is_err(), list(&local, "").await.is_err());
}

#[tokio::test]
async fn staged_names_are_no_objects_and_hide_nothing_else() {
    let root = dir();
    let (store, local) = (store(root.path()).await, LocalFileSystem::new_with_prefix(root.path()).unwrap());
    for name in ["a#1", "d/a#23", "a#", "a#b", "a#1b", "a#1#2", "e#4/f", "e#4/f#5"] {
        let location = Path::parse(name).unwrap();
        let file = root.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, name).unwrap();
        assert_eq!(fate(&store, &location).await, fate(&local, &location).await, "{name}");
        let put = [&store as &dyn ObjectStore, &local].map(async |store| {
            let refused =
                store.put(&location, "new".into()).await.map(drop).map_err(|error| error.to_string());
            let copied = store.copy(&location, &Path::from("z")).await.is_ok();
            (refused.is_ok(), store.put_multipart(&location).await.is_ok(), copied)
        });
        let [ours, theirs] = put;
        assert_eq!(ours.await, theirs.await, "{name}");
    }
    assert_eq!(list(&store, "").await, list(&local, "").await);
    let error = store.head(&Path::parse("a#1").unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("a#1") && matches!(error, Error::Generic { .. }), "{error}");
    // Two uploads of one object are hidden, and have different names.
    let location = Path::from("object");
    let mut uploads =
        [store.put_multipart(&location).await.unwrap(), local.put_multipart(&location).await.unwrap()];
    for upload in &mut uploads {
        upload.put_part("part".into()).await.unwrap();
    }
    assert!(root.path().join("object#1").exists() && root.path().join("object#2").exists());
    assert!(!list(&store, "").await.unwrap().contains(&"object".to_string()));
    assert_eq!(list(&store, "").await, list(&local, "").await);
}

#[tokio::test]
async fn names_that_are_no_utf8_fail_a_list() {
    let root = dir();
    let (store, local) = (store(root.path()).await, LocalFileSystem::new_with_prefix(root.path()).unwrap());
    fs::write(root.path().join("good"), "x").unwrap();
    fs::write(root.path().join(std::ffi::OsStr::from_bytes(b"b\xFFd")), "x").unwrap();
    assert!(list(&local, "").await.is_err());
    let error = list(&store, "").await.unwrap_err();
    assert!(error.contains("b\\xFFd") && error.contains("UTF-8"), "{error}");
    assert!(store.list_with_delimiter(None).await.is_err());
    store.head(&Path::from("good")).await.unwrap();
}

#[tokio::test]
async fn what_is_no_file_has_no_bytes() {
    let root = dir();
    let (store, local) = (store(root.path()).await, LocalFileSystem::new_with_prefix(root.path()).unwrap());
    let pipe = root.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::create_dir(root.path().join("d")).unwrap();
    // No other end is needed, and no thread waits for one.
    let got = store.get(&Path::from("pipe")).await.unwrap();
    assert_eq!((got.meta.size, got.bytes().await.unwrap().len()), (0, 0));
    assert!(store.get_ranges(&Path::from("pipe"), &[0..1]).await.is_err());
    assert_eq!(list(&store, "").await, list(&local, "").await);
    let level = store.list_with_delimiter(None).await.unwrap();
    assert_eq!(level.objects[0].location, Path::from("pipe"), "as theirs has it");
    for store in [&store as &dyn ObjectStore, &local] {
        assert!(matches!(store.get(&Path::from("d")).await, Err(Error::NotFound { .. })));
        assert!(matches!(store.head(&Path::from("d")).await, Err(Error::NotFound { .. })));
        assert!(matches!(store.get_ranges(&Path::from("d"), &[0..1]).await, Err(Error::Generic { .. })));
    }
}

#[tokio::test]
async fn a_relative_root_is_that_of_the_start_and_the_whole_system_is_one_as_well() {
    let engine = common::engine();
    let store = ForebayStore::builder(&engine, ".").open().await.unwrap();
    assert_eq!(store.root(), std::env::current_dir().unwrap());
    store.head(&Path::from("Cargo.toml")).await.unwrap();
    let whole = ForebayStore::builder(&engine, "/").open().await.unwrap();
    let manifest = Path::from_filesystem_path("Cargo.toml").unwrap();
    assert_eq!(
        whole.head(&manifest).await.unwrap().e_tag,
        store.head(&Path::from("Cargo.toml")).await.unwrap().e_tag
    );
    whole.list_with_delimiter(None).await.unwrap();
    let missing = ForebayStore::builder(&engine, "none").open().await.unwrap_err();
    assert_eq!(missing.kind(), forebay::ErrorKind::NotFound, "{missing}");
    let file = ForebayStore::builder(&engine, "Cargo.toml").open().await.unwrap_err();
    assert_eq!(file.kind(), forebay::ErrorKind::NotADirectory, "{file}");
    assert!(store.to_string().starts_with("ForebayStore(/"), "{store}");
}

#[tokio::test]
async fn a_list_goes_through_directories_of_thousands_and_skips_before_the_offset() {
    let root = dir();
    let settings = settings(root.path()).put_durability(Durability::None);
    let (store, local) =
        (settings.open().await.unwrap(), LocalFileSystem::new_with_prefix(root.path()).unwrap());
    for number in 0..1300 {
        let path = root.path().join(format!("d{}/{number:04}", number % 3));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![0; number]).unwrap();
    }
    fs::create_dir(root.path().join("empty")).unwrap();
    let sorted = async |store: &dyn ObjectStore, prefix: &str, offset: Option<&str>| {
        let prefix = Path::parse(prefix).unwrap();
        let listed = match offset {
            Some(offset) => store.list_with_offset(Some(&prefix), &Path::parse(offset).unwrap()),
            None => store.list(Some(&prefix)),
        };
        let mut listed: Vec<_> = listed.try_collect().await.unwrap();
        listed.sort_by(|one, other| one.location.cmp(&other.location));
        listed
    };
    for (prefix, offset, count) in [
        ("", None, 1300),
        ("d1", None, 433),
        ("empty", None, 0),
        ("none", None, 0),
        ("d1/0001", None, 0),
        ("", Some("d1/0700"), 632),
        ("d2", Some("d2/1298"), 0),
        ("d2", Some("d2/1297"), 1),
        ("", Some(""), 1300),
    ] {
        let (ours, theirs) = (sorted(&store, prefix, offset).await, sorted(&local, prefix, offset).await);
        assert!(ours == theirs, "{prefix} {offset:?}: {} and {}", ours.len(), theirs.len());
        assert_eq!(ours.len(), count, "{prefix} {offset:?}");
    }
    let level = store.list_with_delimiter(Some(&Path::from("d0"))).await.unwrap();
    assert_eq!((level.common_prefixes.len(), level.objects.len()), (0, 434));
    // A list that is dropped half way, and a list of a tree that is removed meanwhile.
    let mut half = store.list(None);
    half.try_next().await.unwrap().unwrap();
    drop(half);
    let mut rest = store.list(None);
    rest.try_next().await.unwrap().unwrap();
    fs::remove_dir_all(root.path().join("d2")).unwrap();
    rest.try_collect::<Vec<_>>().await.unwrap();
}

#[tokio::test]
async fn names_above_the_root_may_be_any_and_so_may_files_that_are_there_already() {
    let above = dir();
    let root = above.path().join("a %20#1 🙀");
    fs::create_dir(&root).unwrap();
    let (store, local) = (store(&root).await, LocalFileSystem::new_with_prefix(&root).unwrap());
    let object = Path::from("directory/child.txt");
    store.put(&object, "arbitrary".into()).await.unwrap();
    assert_eq!(local.get(&object).await.unwrap().bytes().await.unwrap(), "arbitrary");
    for name in ["💀", "L%3ABC.parquet", "a b", "a\\b", "{x}", "~", "a#b"] {
        fs::write(root.join(name), name).unwrap();
        let location = Path::parse(name).unwrap();
        assert_eq!(store.get(&location).await.unwrap().bytes().await.unwrap(), name.as_bytes());
        assert_eq!(fate(&store, &location).await, fate(&local, &location).await, "{name}");
    }
    assert_eq!(list(&store, "").await.unwrap().len(), 8);
    assert_eq!(list(&store, "").await, list(&local, "").await);
    let level = store.list_with_delimiter(Some(&Path::from("directory"))).await.unwrap();
    assert_eq!((level.common_prefixes.len(), level.objects[0].location.as_ref()), (0, "directory/child.txt"));
}

/// As root every directory can be read.
#[tokio::test]
async fn a_directory_that_may_not_be_read_fails_a_list() {
    let root = dir();
    let hidden = root.path().join("hidden");
    fs::create_dir(&hidden).unwrap();
    fs::write(hidden.join("file"), "x").unwrap();
    let store = store(root.path()).await;
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o000)).unwrap();
    let may_read = fs::read_dir(&hidden).is_ok();
    let listed = list(&store, "").await;
    let got = store.get(&Path::from("hidden/file")).await;
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(listed.is_ok(), may_read, "{listed:?}");
    assert_eq!(got.is_ok(), may_read);
}

/// A list left out each object that could not be looked up, as where its device failed: a query over a directory had fewer rows, and no
/// error. Here the path of the object is longer than the system accepts.
#[tokio::test]
async fn an_object_that_cannot_be_looked_up_fails_a_list() {
    use rustix::fs::{OFlags, mkdirat, open, openat};

    const PATH_BYTES_MAX: usize = 4095;
    let root = dir();
    let store = store(root.path()).await;
    store.put(&Path::from("found"), "x".into()).await.unwrap();
    assert_eq!(list(&store, "").await.unwrap(), ["found"]);
    // The path of the last directory is short enough.
    let mut left = PATH_BYTES_MAX - root.path().as_os_str().len();
    let mut names = Vec::new();
    let mut above = open(root.path(), OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
    while left > 200 {
        let name = "d".repeat(200);
        mkdirat(&above, name.as_str(), 0o700.into()).unwrap();
        above = openat(&above, name.as_str(), OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
        left -= name.len() + 1;
        names.push(name);
    }
    let deepest = names.join("/");
    assert_eq!(list(&store, &deepest).await.unwrap(), [""; 0]);
    drop(openat(&above, "f".repeat(250).as_str(), OFlags::CREATE | OFlags::WRONLY, 0o600.into()).unwrap());
    list(&store, &deepest).await.unwrap_err();
    list(&store, "").await.unwrap_err();
    store.list_with_delimiter(Some(&Path::parse(&deepest).unwrap())).await.unwrap_err();
    assert_eq!(store.list_with_delimiter(None).await.unwrap().objects.len(), 1);
}

#[tokio::test]
async fn a_get_never_hands_out_the_file() {
    let root = dir();
    let store = store(root.path()).await;
    store.put(&Path::from("a"), "a".into()).await.unwrap();
    let got = store.get(&Path::from("a")).await.unwrap();
    assert!(matches!(got.payload, GetResultPayload::Stream(_)));
}
