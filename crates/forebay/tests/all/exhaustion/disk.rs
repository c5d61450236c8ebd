//! A full disk, and files that may not grow.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use forebay::{Durability, Engine, Error, ErrorKind, Flush, Open};
use forebay_test::children::{limits, set_limit};

use super::child::{given, is_child, is_root, scene, scene_of};
use super::scenery::{Holdings, close, everything_works, names};
use crate::common::{bytes_of, config, dir};

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 32 << 20;
/// The number of files on the disk, its own included.
const INODES: u32 = 64;

/// A small file system in a file, mounted; unmounted and removed with this value.
struct Disk {
    mount: PathBuf,
    _dir: tempfile::TempDir,
}

impl Disk {
    /// Mounts a new disk. The error is the reason for a failure.
    fn mount() -> Result<Disk, String> {
        if !is_root() {
            return Err("mounting needs root".to_string());
        }
        let dir = dir();
        let (image, mount) = (dir.path().join("image"), dir.path().join("mount"));
        std::fs::File::create(&image).unwrap().set_len(DISK_BYTES).unwrap();
        std::fs::create_dir(&mount).unwrap();
        let inodes = INODES.to_string();
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-b", "4096", "-m", "0", "-N", &inodes])
            .arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mount))?;
        Ok(Disk { mount, _dir: dir })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily where something is still open, so that the directory can be removed in any case.
        if run(Command::new("umount").arg(&self.mount)).is_err() {
            let _ = run(Command::new("umount").arg("--lazy").arg(&self.mount));
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// Runs `body` in a child with the mount of an empty disk.
fn with_disk(name: &str, body: impl FnOnce(&Path)) {
    if is_child(name) {
        return scene_of(name).play(|| body(&given("FOREBAY_EXHAUSTION_DISK")));
    }
    match Disk::mount() {
        Ok(disk) => scene_of(name).give("FOREBAY_EXHAUSTION_DISK", &disk.mount).play(|| ()),
        Err(why) => println!("skipped: no small disk can be mounted here: {why}"),
    }
}

/// Checks that the error of a full disk names the file, the cause and the remedy.
#[track_caller]
fn is_full(error: &Error, operation: &str, path: &Path) {
    assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::NoSpace, Some(libc::ENOSPC)), "{error}");
    assert_eq!((error.operation(), error.path()), (operation, Some(path)));
    names(error, &[operation, path.to_str().unwrap(), "No space left", "free space"]);
}

fn free_blocks(disk: &Path) -> u64 {
    rustix::fs::statvfs(disk).unwrap().f_bfree
}

/// Waits until the blocks of removed files are free. Those of a file are when the last descriptor of it is closed, which the shards
/// do a moment after its last handle is dropped.
#[track_caller]
fn is_empty_again(disk: &Path, empty: u64) {
    let begun = Instant::now();
    while free_blocks(disk) < empty {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "{} blocks are free of {empty}",
            free_blocks(disk)
        );
        std::thread::yield_now();
    }
}

#[test]
fn a_full_disk() {
    with_disk("disk::a_full_disk", |disk| {
        let (before, empty) = (Holdings::now(), free_blocks(disk));
        let engine = Engine::start(config()).unwrap();
        for (open, flush) in [
            (Open::create(), Flush::Queued),
            (Open::create().buffered(), Flush::Blocking),
            (Open::create().uncached(), Flush::Queued),
            (Open::create(), Flush::Blocking),
        ] {
            let path = disk.join("file");
            let filler = engine.open(disk.join("filler"), Open::create()).wait().unwrap();
            let file = engine.open(&path, open).wait().unwrap();
            // Durable writes until the disk is full; the bytes of each acknowledged write are there
            // afterwards.
            let mut written = 0;
            let error = loop {
                let write = file.write(written, bytes_of(written..written + MIB)).flush(flush);
                match write.durable(Durability::Data).wait() {
                    Ok(()) => written += MIB,
                    Err(error) => break error,
                }
                assert!(written <= DISK_BYTES);
            };
            is_full(&error, "write", &path);
            assert_eq!(error.range(), Some((written, MIB)));
            assert!(written > DISK_BYTES / 2, "{written} bytes");
            // The last pages, and then all other operations that need space.
            let mut offset = 0;
            let error = loop {
                match filler.write(offset, bytes_of(0..4096)).wait() {
                    Ok(()) => offset += 4096,
                    Err(error) => break error,
                }
                assert!(offset <= DISK_BYTES);
            };
            is_full(&error, "write", filler.path());
            let mut append = filler.append().at(DISK_BYTES).start();
            let error = append
                .write(&bytes_of(0..8 * MIB))
                .wait()
                .and_then(|()| append.sync(Durability::Data).wait());
            is_full(&error.unwrap_err(), "append", filler.path());
            // An append that has lost bytes reports it for ever: later bytes have no place.
            is_full(&append.write(b"more").wait().unwrap_err(), "append", filler.path());
            is_full(&append.close().wait().unwrap_err(), "append", filler.path());
            is_full(&filler.allocate(0..DISK_BYTES).wait().unwrap_err(), "allocate", filler.path());
            // No acknowledged byte is lost, and the existing bytes can be overwritten.
            let holds = |file: &forebay::File| {
                for at in (0..written).step_by(MIB as usize) {
                    let block = file.read(at..at + MIB).wait().unwrap();
                    assert!(block[..] == bytes_of(at..at + MIB)[..], "at {at}");
                }
            };
            holds(&file);
            file.write(4096, bytes_of(4096..8192)).durable(Durability::All).wait().unwrap();
            // Space becomes free, and the same handles work again.
            filler.truncate(0).wait().unwrap();
            engine.remove_file(filler.path()).wait().unwrap();
            drop(filler);
            file.truncate(written / 2).wait().unwrap();
            file.sync(Durability::All).wait().unwrap();
            everything_works(&engine, disk);
            let more = bytes_of(written / 2..written);
            let mut append = file.append().at(written / 2).start();
            append.write(&more).wait().unwrap();
            append.close().wait().unwrap();
            holds(&file);
            drop(file);
            holds(&engine.open(&path, Open::read()).wait().unwrap());
            engine.remove_file(&path).wait().unwrap();
            is_empty_again(disk, empty);
        }
        close(engine);
        before.is_all_again();
    });
}

#[test]
fn a_disk_without_room_for_names() {
    with_disk("disk::a_disk_without_room_for_names", |disk| {
        let engine = Engine::start(config()).unwrap();
        let path = |n: u32| disk.join(n.to_string());
        let mut files = Vec::new();
        let error = loop {
            match engine.open(path(files.len() as u32), Open::create_new()).wait() {
                Ok(file) => files.push(file),
                Err(error) => break error,
            }
            assert!(files.len() <= INODES as usize);
        };
        is_full(&error, "open", &path(files.len() as u32));
        names(&error, &["df -i"]);
        files[0].write(0, bytes_of(0..4096)).durable(Durability::All).wait().unwrap();
        assert_eq!(&files[0].read(1..4096).wait().unwrap()[..], &bytes_of(1..4096)[..]);
        engine.remove_file(path(1)).wait().unwrap();
        drop(files);
        everything_works(&engine, disk);
        close(engine);
    });
}

/// The kernel sends SIGXFSZ to the thread whose write crosses RLIMIT_FSIZE, which ends the process by
/// default.
///
/// Regression: a write through the engine did that to the whole program. The engine's threads block that signal, so the write fails
/// with EFBIG, which the error's text explains.
#[test]
fn a_file_may_not_grow() {
    scene("disk::a_file_may_not_grow", || {
        let (before, dir) = (Holdings::now(), dir());
        let engine = Engine::start(config()).unwrap();
        let (enough, _) = limits(libc::RLIMIT_FSIZE);
        set_limit(libc::RLIMIT_FSIZE, 4 * MIB);
        for open in [Open::create(), Open::create().buffered(), Open::create().uncached()] {
            let path = dir.path().join("file");
            let file = engine.open(&path, open).wait().unwrap();
            file.write(3 * MIB, bytes_of(3 * MIB..4 * MIB)).wait().unwrap();
            let mut append = file.append().at(4 * MIB).start();
            let durable = |flush| {
                let write = file.write(3 * MIB, bytes_of(3 * MIB..5 * MIB));
                write.durable(Durability::Data).flush(flush)
            };
            let appended = append
                .write(&bytes_of(0..2 * MIB))
                .wait()
                .and_then(|()| append.sync(Durability::Data).wait());
            for (error, operation) in [
                (file.write(4 * MIB, bytes_of(0..4096)).wait().unwrap_err(), "write"),
                // The part that fits is written first, the rest fails.
                (file.write(3 * MIB, bytes_of(3 * MIB..5 * MIB)).wait().unwrap_err(), "write"),
                (durable(Flush::Queued).wait().unwrap_err(), "write"),
                (durable(Flush::Blocking).wait().unwrap_err(), "write"),
                (appended.unwrap_err(), "append"),
                (file.truncate(5 * MIB).wait().unwrap_err(), "truncate"),
                (file.allocate(0..5 * MIB).wait().unwrap_err(), "allocate"),
            ] {
                assert_eq!(error.raw_os_error(), Some(libc::EFBIG), "{error}");
                names(&error, &[operation, path.to_str().unwrap(), "ulimit -f"]);
            }
            let block = file.read(3 * MIB..4 * MIB).wait().unwrap();
            assert!(block[..] == bytes_of(3 * MIB..4 * MIB)[..]);
            drop((file, append));
            engine.remove_file(&path).wait().unwrap();
        }
        // The kernel shortens a write to the limit, and refuses the rest of a direct one, which is no longer aligned: EINVAL.
        for limit in [4 * MIB - 1, 4 * MIB - 4095, 4 * MIB + 1, 4 * MIB + 4095] {
            set_limit(libc::RLIMIT_FSIZE, limit);
            for open in [Open::create(), Open::create().buffered(), Open::create().uncached()] {
                let path = dir.path().join("file");
                let file = engine.open(&path, open).wait().unwrap();
                for start in [3 * MIB, 4 * MIB - 4096, 4 * MIB] {
                    let write = file.write(start, bytes_of(start..5 * MIB));
                    for error in [
                        write.wait().unwrap_err(),
                        engine.block_on(file.write(start, bytes_of(start..5 * MIB))).unwrap().unwrap_err(),
                    ] {
                        assert_eq!(error.raw_os_error(), Some(libc::EFBIG), "{start} {limit}: {error}");
                    }
                }
                drop(file);
                engine.remove_file(&path).wait().unwrap();
            }
        }
        set_limit(libc::RLIMIT_FSIZE, 4 * MIB);
        everything_works(&engine, dir.path());
        set_limit(libc::RLIMIT_FSIZE, enough);
        let file = engine.open(dir.path().join("large"), Open::create()).wait().unwrap();
        file.write(8 * MIB, bytes_of(0..4096)).wait().unwrap();
        drop(file);
        close(engine);
        before.is_all_again();
    });
}

/// A request for more than one buffer can hold is refused before anything is allocated for it.
#[test]
fn one_operation_asks_for_too_much() {
    let (engine, dir) = (crate::common::engine(), dir());
    let file = engine.open(dir.path().join("file"), Open::create_new()).wait().unwrap();
    file.truncate(4 << 30).wait().unwrap();
    let limit = 1u64 << 30;
    let before = engine.memory();
    for error in [
        engine.block(limit as usize + 1).unwrap_err(),
        engine.block(usize::MAX).unwrap_err(),
        file.read(0..limit + 1).wait().unwrap_err(),
        file.read(7..u64::MAX / 4).wait().unwrap_err(),
        // Within the limit, but not after rounding to whole units.
        file.read(1..limit + 1).wait().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::TooLarge { limit }, "{error}");
        names(&error, &["at most 1073741824 bytes", "read_many"]);
    }
    assert_eq!(engine.memory().arena_bytes, before.arena_bytes);
    // A read of the largest size of one operation succeeds, or fails with an error that names the settings.
    match file.read(0..limit).wait() {
        Ok(block) => assert_eq!((block.len() as u64, block[0], block[limit as usize - 1]), (limit, 0, 0)),
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::ArenaExhausted { .. }), "{error}");
            names(&error, &["Config::arena_bytes_max"]);
        }
    }
    everything_works(&engine, dir.path());
}
