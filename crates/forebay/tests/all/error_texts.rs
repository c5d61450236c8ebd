//! Shows: an error is one sentence that names operation, path, place, cause and remedy. How: real causes (no
//! such file, a directory, no permission, a full table, closed handles), and a check of the text.

use crate::common::{self, bytes_of, dir, engine, write_file};
use forebay::{Class, Engine, Error, ErrorKind, Open, shard};

fn text_has(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
}

#[test]
fn files_that_cannot_be_opened_say_why() {
    let (engine, dir) = (engine(), dir());
    let missing = dir.path().join("missing");
    let error = engine.open(&missing, Open::read()).wait().unwrap_err();
    assert_eq!(
        (error.kind(), error.raw_os_error(), error.operation()),
        (ErrorKind::NotFound, Some(libc::ENOENT), "open")
    );
    assert_eq!(error.path(), Some(missing.as_path()));
    text_has(&error, &["open", missing.to_str().unwrap(), "No such file", "check the path"]);
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::NotFound);

    let error = engine.open(dir.path(), Open::read()).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    text_has(&error, &["open", dir.path().to_str().unwrap(), "directory"]);

    let there = dir.path().join("there");
    write_file(&there, 10);
    let error = engine.open(&there, Open::create_new()).wait().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
    let error = engine.open(&there, Open::read().truncate()).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(std::fs::read(&there).unwrap(), bytes_of(0..10));
    let error = engine.open(there.join("below"), Open::read()).wait().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR));
    let error = engine.open("", Open::read()).wait().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    text_has(&error, &["open (an empty path): No such file"]);
    let error = engine.open("/dev/null", Open::read()).wait().unwrap_err();
    text_has(&error, &["/dev/null", "character device"]);
}

/// Removes the immutable mark from a file again on drop, also after a panic.
struct ImmutableMark(std::fs::File);

impl Drop for ImmutableMark {
    fn drop(&mut self) {
        let _ = rustix::fs::ioctl_setflags(&self.0, rustix::fs::IFlags::empty());
    }
}

#[test]
fn no_permission_says_so() {
    use std::os::unix::fs::PermissionsExt;
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 10);
    // Permissions do not bind root; the immutable mark does.
    let root = rustix::process::geteuid().is_root();
    let marked = ImmutableMark(std::fs::File::open(&path).unwrap());
    if root {
        let set = rustix::fs::ioctl_setflags(&marked.0, rustix::fs::IFlags::IMMUTABLE);
        if let Err(error) = set {
            eprintln!("not shown here: this root cannot mark files immutable ({error})");
            return;
        }
    } else {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o000)).unwrap();
    }
    let error = engine.open(&path, Open::write()).wait().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(if root { libc::EPERM } else { libc::EACCES }));
    text_has(&error, &["open", path.to_str().unwrap(), "check the permissions"]);
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::PermissionDenied);
}

#[test]
fn operations_name_place_device_and_remedy() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 10_000);
    let name = path.to_str().unwrap();
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let error = file.read(9_990..10_010).wait().unwrap_err();
    assert_eq!((error.operation(), error.range()), ("read", Some((9_990, 20))));
    text_has(&error, &["read", name, "20 bytes at 9990", "after 10", "read_up_to", file.device().name()]);
    let error = file.write(4096, &[0u8; 4096]).wait().unwrap_err();
    assert_eq!((error.operation(), error.range()), ("write", Some((4096, 4096))));
    text_has(&error, &["write", name, "4096 bytes at 4096", "Bad file descriptor"]);

    let held = file.clone();
    file.close().wait().unwrap();
    text_has(
        &held.read(0..1).wait().unwrap_err(),
        &["read", name, "the file is closed", "open the file again"],
    );
    let file = engine.open(&path, Open::read()).wait().unwrap();
    engine.close().wait().unwrap();
    for error in [
        file.read(0..1).wait().unwrap_err(),
        file.read_many(std::iter::once(0..1)).wait().unwrap_err(),
        file.len().wait().unwrap_err(),
        file.scan().start().next().wait().transpose().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::EngineClosed, "{error}");
        text_has(&error, &[name, "the engine is closed", "keep an Engine handle"]);
    }
}

#[test]
fn waiting_on_a_shard_is_an_error_and_not_a_deadlock() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 10_000);
    let file = engine.open(&path, Open::write()).wait().unwrap();
    let inner = engine.clone();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let block = inner.block(4096).unwrap();
        let (into, block) = file.read_into(0, block).wait();
        assert_eq!(block.len(), 4096, "the memory comes back");
        let spawned = shard::spawn(async {}).unwrap();
        vec![
            file.read(0..1).wait().unwrap_err(),
            file.read_up_to(0..1).wait().unwrap_err(),
            into.unwrap_err(),
            file.write(0, &[0u8; 4096]).wait().unwrap_err(),
            file.sync(forebay::Durability::Data).wait().unwrap_err(),
            file.read_many(std::iter::once(0..1)).wait().unwrap_err(),
            file.read_many(std::iter::once(0..1)).stream().next().wait().unwrap().1.unwrap_err(),
            file.scan().start().next().wait().transpose().unwrap_err(),
            file.len().wait().unwrap_err(),
            inner.open("x", Open::read()).wait().unwrap_err(),
            inner.stats().wait().unwrap_err(),
            inner.nop().wait().unwrap_err(),
            spawned.wait().unwrap_err(),
        ]
    });
    for error in task.wait().unwrap() {
        assert_eq!(error.kind(), ErrorKind::WaitOnShard, "{error}");
        text_has(&error, &[".await"]);
    }
    assert_eq!(std::fs::read(&path).unwrap(), bytes_of(0..10_000));
}

#[test]
fn memory_that_is_not_there_is_told_with_what_is_held() {
    let config =
        common::config().shards(1).arena_bytes(1 << 20).arena_bytes_max(1 << 20).overflow_bytes_max(64 << 10);
    let (engine, dir) = (Engine::start(config).unwrap(), dir());
    let path = dir.path().join("a");
    write_file(&path, 4 << 20);
    let file = engine.open(&path, Open::write()).wait().unwrap();
    let mut held = Vec::new();
    let error = loop {
        match file.read(0..64 << 10).wait() {
            Ok(block) => held.push(block),
            Err(error) => break error,
        }
        assert!(held.len() < 1000, "the limit is not kept");
    };
    let ErrorKind::ArenaExhausted { held: bytes } = error.kind() else { panic!("{error}") };
    assert!(bytes >= 1 << 20, "{error}");
    text_has(&error, &["read", path.to_str().unwrap(), "65536 bytes at 0", "drop blocks", "arena_bytes_max"]);
    assert!(matches!(engine.block(64 << 10).unwrap_err().kind(), ErrorKind::ArenaExhausted { .. }));
    assert!(matches!(
        file.write(0, vec![0; 64 << 10]).wait().unwrap_err().kind(),
        ErrorKind::ArenaExhausted { .. }
    ));
    // A write from a block that the program still holds works, and releasing that block is enough for a read.
    let block = held.pop().unwrap();
    file.write(0, block).wait().unwrap();
    assert_eq!(&file.read(0..64 << 10).wait().unwrap()[..], &bytes_of(0..64 << 10)[..]);
    assert!(engine.memory().overflow_allocations > 0);
}

#[test]
fn settings_that_cannot_work_are_refused_with_a_reason() {
    for (config, part) in [
        (common::config().shards(0), "shards"),
        (common::config().shards(65), "shards"),
        (common::config().queue_depth(0), "queue_depth"),
        (common::config().inbox_depth(0), "inbox_depth"),
        (common::config().arena_bytes(2 << 20).arena_bytes_max(1 << 20), "arena_bytes_max"),
    ] {
        let error = Engine::start(config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        text_has(&error, &["start", part]);
    }
    let engine = engine();
    for result in [engine.class("", 5), engine.class("x", 0), engine.class("x", 10_001)] {
        text_has(&result.unwrap_err(), &["class"]);
    }
    let classes: Vec<_> = (0..13).map(|n| engine.class(&format!("c{n}"), 10).unwrap()).collect();
    assert_eq!(engine.class("c3", 70).unwrap(), classes[3]);
    text_has(&engine.class("one more", 10).unwrap_err(), &["16 classes"]);
}

/// Regression: everything that the system refused was `ErrorKind::Io`, so a program needed errno numbers to
/// distinguish a missing file from a full disk, and an error could not be kept and returned twice.
#[test]
fn what_the_system_refuses_has_kinds_that_io_errors_keep() {
    use std::io::ErrorKind as Std;
    let (engine, dir) = (engine(), dir());
    let (path, inner) = (dir.path().join("a"), dir.path().join("dir"));
    std::fs::write(&path, b"a").unwrap();
    std::fs::create_dir(&inner).unwrap();
    std::fs::write(inner.join("b"), b"b").unwrap();
    let errors = [
        (
            engine.open(dir.path().join("none"), Open::read()).wait().unwrap_err(),
            ErrorKind::NotFound,
            Std::NotFound,
        ),
        (
            engine.open(&path, Open::create_new()).wait().unwrap_err(),
            ErrorKind::AlreadyExists,
            Std::AlreadyExists,
        ),
        (engine.create_dir(&inner).wait().unwrap_err(), ErrorKind::AlreadyExists, Std::AlreadyExists),
        (engine.rename(&path, &inner).wait().unwrap_err(), ErrorKind::IsADirectory, Std::IsADirectory),
        (engine.read_dir(&path).wait().unwrap_err(), ErrorKind::NotADirectory, Std::NotADirectory),
        (engine.remove_dir(&inner).wait().unwrap_err(), ErrorKind::DirectoryNotEmpty, Std::DirectoryNotEmpty),
    ];
    for (error, kind, std) in errors {
        assert_eq!(error.kind(), kind, "{error}");
        assert!(kind.is_system() && error.raw_os_error().is_some(), "{error}");
        let kept = error.clone();
        assert_eq!(std::io::Error::from(error).kind(), std);
        assert_eq!((kept.kind(), kept.path().is_some()), (kind, true), "a clone keeps what it says");
        assert!(kept.to_string().contains('('), "no remedy: {kept}");
    }
    assert!(!ErrorKind::EngineClosed.is_system());
}

#[test]
fn health_prints_one_line_for_each_degradation() {
    let health = engine().health();
    let text = health.to_string();
    assert_eq!(text.lines().count(), 1 + health.degraded.len(), "{text}");
    for (line, degradation) in text.lines().skip(1).zip(&health.degraded) {
        assert!(line.contains(&degradation.what) && line.contains(&degradation.remedy), "{line}");
    }
}

/// The error of a read without memory said to drop blocks, though none were live: "live blocks hold 0 bytes (drop blocks sooner)".
#[test]
fn memory_that_never_was_there_is_not_blamed_on_blocks() {
    let config = common::config().shards(1).arena_bytes(0).arena_bytes_max(0).overflow_bytes_max(64 << 10);
    let (engine, dir) = (Engine::start(config).unwrap(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let error = file.read(0..100 << 10).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ArenaExhausted { held: 0 }, "{error}");
    text_has(&error, &["no memory for that many bytes", "arena_bytes_max", "overflow_bytes_max"]);
    assert!(!error.to_string().contains("drop blocks"), "{error}");
    assert_eq!(file.read(0..100).wait().unwrap()[..], bytes_of(0..100)[..], "a shorter one goes");
    // The limits were accepted without an error.
    for bytes in [0, 4096] {
        let engine = Engine::start(common::config().arena_bytes_max(bytes)).unwrap();
        let health = engine.health();
        let told = health.degraded.iter().find(|known| known.what == "limit of I/O memory");
        let told = told.unwrap_or_else(|| panic!("{health}"));
        assert!(told.why.starts_with(&format!("{bytes} bytes")), "{told}");
        assert!(told.remedy.contains("Config::arena_bytes_max"), "{told}");
    }
    let nothing = common::config().arena_bytes_max(0).overflow_bytes_max(0);
    let refused = Engine::start(nothing).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    text_has(&refused, &["start", "arena_bytes_max", "overflow_bytes_max"]);
}
