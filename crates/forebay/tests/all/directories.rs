//! Names, directories and metadata through an engine.

use std::fs;
use std::future::Future;
use std::path::Path;
use std::time::{Duration, SystemTime};

use forebay::{Config, Engine, ErrorKind, FileKind};

fn engine() -> Engine {
    Engine::start(Config::new()).unwrap()
}

#[test]
fn rename_moves_and_replaces() {
    let (engine, dir) = (engine(), tempfile::tempdir().unwrap());
    let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
    fs::write(&from, b"new").unwrap();
    fs::write(&to, b"old").unwrap();
    engine.rename(&from, &to).wait().unwrap();
    assert_eq!((fs::read(&to).unwrap(), from.exists()), (b"new".to_vec(), false));
    engine.create_dir(dir.path().join("below")).wait().unwrap();
    engine.rename(&to, dir.path().join("below/there")).wait().unwrap();
    assert_eq!(fs::read(dir.path().join("below/there")).unwrap(), b"new");
    let error = engine.rename(&from, &to).wait().unwrap_err();
    assert_eq!(
        (error.operation(), error.raw_os_error(), error.path()),
        ("rename", Some(2), Some(from.as_path()))
    );
}

#[test]
fn hard_links_are_the_same_file() {
    let (engine, dir) = (engine(), tempfile::tempdir().unwrap());
    let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
    fs::write(&one, b"abc").unwrap();
    engine.hard_link(&one, &two).wait().unwrap();
    let [first, second] = [&one, &two].map(|path| engine.metadata(path).wait().unwrap());
    assert_eq!((first.inode(), first.device(), first.links()), (second.inode(), second.device(), 2));
    assert_eq!(engine.hard_link(&one, &two).wait().unwrap_err().raw_os_error(), Some(17)); // EEXIST
    engine.remove_file(&one).wait().unwrap();
    assert_eq!(
        (fs::read(&two).unwrap(), engine.metadata(&two).wait().unwrap().links()),
        (b"abc".to_vec(), 1)
    );
}

#[test]
fn directories_are_made_listed_and_removed() {
    let (engine, dir) = (engine(), tempfile::tempdir().unwrap());
    let deep = dir.path().join("a/b/c");
    assert_eq!(engine.create_dir(&deep).wait().unwrap_err().raw_os_error(), Some(2));
    engine.create_dir_all(&deep).wait().unwrap();
    engine.create_dir_all(&deep).wait().unwrap();
    for name in ["z", "m", "y"] {
        fs::write(deep.join(name), name).unwrap();
    }
    engine.create_dir(deep.join("d")).wait().unwrap();
    std::os::unix::fs::symlink("z", deep.join("link")).unwrap();
    engine.sync_dir(&deep).wait().unwrap();
    let entries = engine.read_dir(&deep).wait().unwrap();
    let found: Vec<_> = entries.iter().map(|entry| (entry.name().to_str().unwrap(), entry.kind())).collect();
    let (file, folder, link) = (FileKind::File, FileKind::Dir, FileKind::Symlink);
    assert_eq!(found, [("d", folder), ("link", link), ("m", file), ("y", file), ("z", file)]);
    assert_eq!(engine.remove_dir(&deep).wait().unwrap_err().raw_os_error(), Some(39)); // ENOTEMPTY
    for entry in entries {
        let path = deep.join(entry.name());
        match entry.kind() {
            FileKind::Dir => engine.remove_dir(path),
            _ => engine.remove_file(path),
        }
        .wait()
        .unwrap();
    }
    engine.remove_dir(&deep).wait().unwrap();
    assert!(!deep.exists());
    let error = engine.read_dir(&deep).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("a/b/c"), "{error}");
}

#[test]
fn metadata_agrees_with_std() {
    let (engine, dir) = (engine(), tempfile::tempdir().unwrap());
    let path = dir.path().join("file");
    fs::write(&path, vec![1; 10_000]).unwrap();
    std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
    let std = fs::metadata(&path).unwrap();
    let ours = engine.metadata(dir.path().join("link")).wait().unwrap();
    assert_eq!(
        (ours.len(), ours.is_file(), ours.is_dir(), ours.kind()),
        (10_000, true, false, FileKind::File)
    );
    assert_eq!((ours.modified(), ours.created()), (std.modified().ok(), std.created().ok()));
    let age = SystemTime::now().duration_since(ours.modified().unwrap()).unwrap_or_default();
    assert!(age < Duration::from_secs(3600));
    use std::os::unix::fs::MetadataExt;
    assert_eq!((ours.mode(), ours.inode(), ours.links()), (std.mode(), std.ino(), std.nlink()));
    assert_eq!(ours.blocks_bytes(), std.blocks() * 512);
    assert!(engine.metadata(dir.path()).wait().unwrap().is_dir());
    assert_eq!(engine.metadata("no/such/file").wait().unwrap_err().path(), Some(Path::new("no/such/file")));
}

#[test]
#[cfg(target_os = "linux")]
fn metadata_is_known_at_once_where_the_kernel_has_the_names() {
    let (engine, dir) = (engine(), tempfile::tempdir().unwrap());
    let [data, link, loop_, none] = ["data", "link", "loop", "none"].map(|name| dir.path().join(name));
    fs::write(&data, b"abc").unwrap();
    std::os::unix::fs::symlink(&data, &link).unwrap();
    std::os::unix::fs::symlink(&loop_, &loop_).unwrap();
    let looked_up = |_| {
        engine.metadata(&data).wait().unwrap();
        engine.try_metadata(&data)
    };
    let Some(found) = (0..100).find_map(looked_up) else {
        // Only before Linux 5.12, or where a seccomp profile refuses openat2(2).
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        assert!((numbers.next(), numbers.next()) < (Some(5), Some(12)), "{release}");
        return;
    };
    assert_eq!(found.unwrap(), engine.metadata(&data).wait().unwrap());
    // Stories: these failed on a busy machine. The kernel sets the access time of a link that is followed while that time is no
    // later than the link's change, which is more than a lookup in its cache: for the first tick of its clock. And the kernel may
    // forget a name at any time.
    let known = |path: &Path| {
        let found = (0..10_000).find_map(|_| {
            let _ = engine.metadata(path).wait();
            engine.try_metadata(path)
        });
        found.expect("a name that was just looked up")
    };
    assert_eq!(known(&link).unwrap(), engine.metadata(&data).wait().unwrap());
    assert!(known(dir.path()).unwrap().is_dir());
    assert_eq!(engine.symlink_metadata(&link).wait().unwrap().kind(), FileKind::Symlink);
    assert_eq!(engine.symlink_metadata(&data).wait().unwrap(), engine.metadata(&data).wait().unwrap());
    let missing = engine.symlink_metadata(&none).wait().unwrap_err();
    assert_eq!((missing.kind(), missing.operation()), (ErrorKind::NotFound, "symlink_metadata"));
    // A name that was looked up before is known not to be there.
    assert_eq!(engine.metadata(&none).wait().unwrap_err().kind(), ErrorKind::NotFound);
    let missing = known(&none).unwrap_err();
    assert_eq!((missing.kind(), missing.operation()), (ErrorKind::NotFound, "try_metadata"));
    // Another file under the same name is seen immediately.
    let other = dir.path().join("other");
    fs::write(&other, b"other").unwrap();
    fs::rename(&other, &data).unwrap();
    assert_eq!(engine.try_metadata(&data).map_or(5, |found| found.unwrap().len()), 5);
    // All other errors are left to the ordinary call.
    assert!(engine.try_metadata(&loop_).is_none());
    assert_eq!(engine.metadata(&loop_).wait().unwrap_err().raw_os_error(), Some(40)); // ELOOP
    engine.clone().close().wait().unwrap();
    assert_eq!(engine.try_metadata(&data).unwrap().unwrap_err().kind(), ErrorKind::EngineClosed);
}

#[test]
fn many_calls_at_once_are_all_answered() {
    let (engine, dir) = (engine(), tempfile::tempdir().unwrap());
    // More than the pool queues: the rest waits with its callers, whose threads are few here.
    let pending: Vec<_> = (0..1000).map(|n| engine.create_dir(dir.path().join(n.to_string()))).collect();
    for one in pending {
        one.wait().unwrap();
    }
    assert_eq!(engine.read_dir(dir.path()).wait().unwrap().len(), 1000);
}

#[test]
fn a_call_whose_answer_is_dropped_harms_nobody() {
    let (engine, dir) = (engine(), tempfile::tempdir().unwrap());
    for n in 0..100 {
        let mut pending = engine.create_dir(dir.path().join(n.to_string()));
        if n % 2 == 0 {
            let waker = std::task::Waker::noop();
            let mut context = std::task::Context::from_waker(waker);
            let _ = std::pin::Pin::new(&mut pending).poll(&mut context);
        }
    }
    engine.create_dir(dir.path().join("last")).wait().unwrap();
    assert!(dir.path().join("last").is_dir());
}

#[test]
fn after_close_calls_answer_engine_closed() {
    let (engine, dir) = (engine(), tempfile::tempdir().unwrap());
    engine.clone().close().wait().unwrap();
    let error = engine.create_dir(dir.path().join("late")).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EngineClosed);
    assert!(!dir.path().join("late").exists());
}
