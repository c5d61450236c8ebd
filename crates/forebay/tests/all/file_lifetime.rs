//! Shows: the life of files: files passed to the engine, unnamed files, locks, descriptors, and the effect of close on all handles.
//! How: /proc/self/fd lists the descriptors of a path that this process really has; flock(2) by `std` is the other holder.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::common::{self, bytes_of, dir, engine, write_file};
use forebay::{Class, Engine, ErrorKind, Lock, Mode, Open};

/// Returns the number of descriptors of this process that name `path`.
fn descriptors_of(path: &Path) -> usize {
    let path = path.canonicalize().unwrap();
    let links = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| *link == path).count()
}

#[test]
fn close_ends_every_handle_and_the_descriptor() {
    let dir = dir();
    let engine = Engine::start(common::config().shards(3)).unwrap();
    for round in 0..50 {
        let path = dir.path().join(round.to_string());
        write_file(&path, 100_000);
        let file = engine.open(&path, Open::write()).wait().unwrap();
        // Every shard gets an entry for it.
        for shard in 0..3 {
            let file = file.clone();
            let task =
                engine.spawn_on_shard(shard, Class::DEFAULT, move || async move { file.read(5..500).await });
            assert_eq!(&task.wait().unwrap().unwrap()[..], &bytes_of(5..500)[..]);
        }
        assert_eq!(descriptors_of(&path), 1);
        match round % 2 {
            0 => {
                let other = file.clone();
                file.close().wait().unwrap();
                for error in [
                    other.read(0..1).wait().unwrap_err(),
                    other.read(0..0).wait().unwrap_err(),
                    other.read_up_to(0..1).wait().unwrap_err(),
                    other.read_into(0, engine.block(4096).unwrap()).wait().0.unwrap_err(),
                    other.write(0, &[1u8; 4096]).wait().unwrap_err(),
                    other.write(0, &[]).wait().unwrap_err(),
                    other.sync(forebay::Durability::All).wait().unwrap_err(),
                    other.sync(forebay::Durability::None).wait().unwrap_err(),
                    other.read_many(std::iter::once(0..1)).wait().unwrap_err(),
                    other.scan().start().next().wait().transpose().unwrap_err(),
                    other.len().wait().unwrap_err(),
                    other.truncate(0).wait().unwrap_err(),
                    other.try_lock(Lock::Shared).wait().unwrap_err(),
                    other.is_removed().unwrap_err(),
                    other.clone().close().wait().unwrap_err(),
                ] {
                    assert_eq!(error.kind(), ErrorKind::FileClosed, "{error}");
                    assert_eq!(error.path(), Some(path.as_path()), "{error}");
                }
                // The descriptor is closed with the last handle.
                assert_eq!(descriptors_of(&path), 1);
                drop(other);
                // The refused reads have left the shard once it replies to a later query.
                engine.stats().wait().unwrap();
                assert_eq!(descriptors_of(&path), 0);
            }
            _ => {
                // Regression: close returned while the shard still held the last count of the file.
                file.close().wait().unwrap();
                assert_eq!(descriptors_of(&path), 0, "round {round}");
            }
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes_of(0..100_000));
    }
}

#[test]
fn close_waits_for_what_is_in_flight_and_that_comes_to_its_end() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let other = file.clone();
    futures::executor::block_on(async {
        let reads = (0..64u64).map(|n| {
            let other = other.clone();
            async move { (n, other.read(n * 4096..(n + 1) * 4096).await) }
        });
        let reads = futures::future::join_all(reads);
        let (closed, reads) = futures::join!(file.close(), reads);
        closed.unwrap();
        for (n, read) in reads {
            match read {
                Ok(block) => assert_eq!(&block[..], &bytes_of(n * 4096..(n + 1) * 4096)[..]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::FileClosed),
            }
        }
    });
}

#[test]
fn the_last_handle_dropped_closes_the_file() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 4096);
    for _ in 0..20 {
        let file = engine.open(&path, Open::read()).wait().unwrap();
        file.read(0..100).wait().unwrap();
        drop(file);
    }
    engine.close().wait().unwrap();
    assert_eq!(descriptors_of(&path), 0, "the engine's end closes what its shards still had");
}

#[test]
fn given_files_keep_their_mode_of_access() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 10_000);
    let direct = || std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let plain = || std::fs::File::open(&path).unwrap();
    for (given, open, mode) in [
        (direct(), Open::read(), Mode::Direct),
        (direct(), Open::read().buffered(), Mode::Direct),
        (plain(), Open::read(), Mode::Buffered),
        (plain(), Open::read().uncached(), Mode::Uncached),
    ] {
        let number = given.as_raw_fd();
        let file = engine.from_std(given, open).wait().unwrap();
        assert_eq!((file.mode(), file.as_fd().as_raw_fd()), (mode, number));
        assert_eq!(&file.read(4_001..9_999).wait().unwrap()[..], &bytes_of(4_001..9_999)[..]);
        assert_eq!(file.write(0, &[1u8; 4096]).wait().unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
    assert_eq!(std::fs::read(&path).unwrap(), bytes_of(0..10_000));
}

#[test]
fn the_descriptor_can_be_lent() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 10_000);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let copy = std::fs::File::from(file.as_fd().try_clone_to_owned().unwrap());
    file.close().wait().unwrap();
    assert_eq!(copy.metadata().unwrap().len(), 10_000, "a duplicate lives on its own");
}

#[test]
fn unnamed_files_are_private_and_gone() {
    let (engine, dir) = (engine(), dir());
    for open in [Open::create(), Open::create().buffered()] {
        let file = engine.temp_file(dir.path(), open).wait().unwrap();
        file.write(0, bytes_of(0..8192)).wait().unwrap();
        assert_eq!(&file.read(100..8000).wait().unwrap()[..], &bytes_of(100..8000)[..]);
        assert_eq!(file.metadata().wait().unwrap().links(), 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        file.close().wait().unwrap();
    }
    let error = engine.temp_file(dir.path().join("missing"), Open::create()).wait().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
}

#[test]
fn locks_bind_other_holders_and_go_with_the_file() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 4096);
    let open = || engine.open(&path, Open::write()).wait().unwrap();
    let (one, two) = (open(), open());
    one.try_lock(Lock::Exclusive).wait().unwrap();
    one.clone().try_lock(Lock::Exclusive).wait().unwrap();
    for lock in [Lock::Shared, Lock::Exclusive] {
        let error = two.try_lock(lock).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked);
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::WouldBlock);
    }
    one.unlock().wait().unwrap();
    two.try_lock(Lock::Shared).wait().unwrap();
    one.try_lock(Lock::Shared).wait().unwrap();
    assert_eq!(one.try_lock(Lock::Exclusive).wait().unwrap_err().kind(), ErrorKind::Locked);
    two.close().wait().unwrap();
    one.try_lock(Lock::Exclusive).wait().unwrap();
    let outside = std::fs::File::open(&path).unwrap();
    assert!(rustix::fs::flock(&outside, rustix::fs::FlockOperation::NonBlockingLockShared).is_err());
    one.close().wait().unwrap();
    // A child of a concurrent test has the descriptors until its exec.
    rustix::fs::flock(&outside, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(open().try_lock(Lock::Shared).wait().unwrap_err().kind(), ErrorKind::Locked);
}
