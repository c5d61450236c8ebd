//! Walks of the module whose thread spins for the next read: the same results as without, on fast and slow devices, and no
//! harm to others. Where the module is not loaded these tests report it and pass; FOREBAY_KERNEL_ENGINES with `module` in
//! it makes that a failure.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::child::spawn;
use crate::common::{Tree, engine, has_module};
use forebay_kernel::{Count, EngineKind, LocalWalk, Lookup, Options, TreeCount, TreeLookup};

const PROGRAM: TreeLookup = TreeLookup { node_bytes: 4096 };
/// The module is not slower.
const LONGEST: Duration = Duration::from_micros(200);

fn spinning(spin: Duration, depth: u32) -> Options {
    Options::new().only(EngineKind::Module).spin(spin).depth(depth)
}

/// Looks up this many keys, always as many in flight as the session allows.
fn check(tree: &Tree, walk: &mut LocalWalk<TreeLookup>, lookups: u64, at_once: u32) {
    let (mut keys, mut numbers, mut found) = (0..lookups, vec![None; 64], 0);
    while found < lookups {
        while walk.under_way() < at_once
            && let Some(key) = keys.next()
        {
            let lookup = Lookup { root: tree.root(tree.levels, key), level: tree.levels as u16 - 1, key };
            numbers[walk.begin(&lookup).expect("there is room") as usize] = Some(lookup);
        }
        walk.run(at_once / 4, |finished| {
            let lookup = numbers[finished.number as usize].take().expect("it was begun");
            assert_eq!(finished.result.ok(), Some(tree.lookup(lookup.root, lookup.key)));
            found += 1;
        })
        .expect("the session works");
    }
}

fn planted(tree: &Tree, path: &Path) -> File {
    tree.plant(&engine(), path);
    File::open(path).expect("just written")
}

#[test]
fn walks_find_the_same_however_long_they_spin() {
    if !has_module() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let tree = Tree::new(4096, 50, 6, 60);
    let file = planted(&tree, &dir.path().join("tree"));
    for spin in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(20), LONGEST, Duration::MAX] {
        for depth in [1, 4, 32, 64] {
            let mut walk = LocalWalk::open_with(&file, PROGRAM, spinning(spin, depth)).expect("the module");
            check(&tree, &mut walk, 300, depth);
            assert_eq!(walk.under_way(), 0);
        }
    }
}

/// Several reads of one walk arrive while the thread spins, in any order.
#[test]
fn ranges_are_counted_the_same() {
    if !has_module() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let tree = Tree::new(4096, 50, 4, 60);
    let file = planted(&tree, &dir.path().join("tree"));
    let program = TreeCount { node_bytes: 4096 };
    let mut walk = LocalWalk::open_with(&file, program, spinning(LONGEST, 4)).expect("the module");
    for key in 0..200 {
        let low = key << 56;
        let count = Count { root: tree.root(4, key), level: 3, key, low, high: low + (u64::MAX >> 5) };
        walk.begin(&count).expect("there is room");
        walk.run(1, |finished| {
            assert_eq!(finished.result.ok().map(crate::common::counted), Some(tree.count(&count)));
        })
        .expect("the session works");
    }
}

/// The device needs a millisecond for a read: the thread spins in vain, and soon leaves it.
#[test]
fn a_slow_device_is_waited_for() {
    let Ok(devices) = std::env::var("FOREBAY_KERNEL_STACKED") else {
        eprintln!("FOREBAY_KERNEL_STACKED names no device");
        return;
    };
    if !has_module() {
        return;
    }
    let tree = Tree::new(4096, 200, 5, 20);
    for device in devices.split(',') {
        let file = OpenOptions::new().read(true).write(true).open(device).expect("the device is there");
        file.write_all_at(&tree.bytes, 0).and_then(|()| file.sync_all()).expect("it takes bytes");
        for depth in [1, 32] {
            let mut walk =
                LocalWalk::open_with(&file, PROGRAM, spinning(LONGEST, depth)).expect("the module");
            check(&tree, &mut walk, 100, depth);
        }
    }
}

/// Another thread of the same processor runs a thousand times while this thread walks and spins.
#[test]
fn another_thread_has_its_turn() {
    if !has_module() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let tree = Tree::new(4096, 50, 6, 60);
    let file = planted(&tree, &dir.path().join("tree"));
    let here = || {
        // SAFETY: a set of processors is plain memory; the calls read and write it.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(0, &mut set);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0);
        }
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            here();
            (0..1_000).for_each(|_| thread::yield_now());
            is_over.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            here();
            let mut walk = LocalWalk::open_with(&file, PROGRAM, spinning(LONGEST, 1)).expect("the module");
            while !is_over.load(Ordering::Acquire) {
                check(&tree, &mut walk, 5, 1);
            }
            check(&tree, &mut walk, 50, 1);
        });
    });
}

/// Walks are in the kernel when the session is dropped; the file is free immediately.
#[test]
fn a_session_ends_with_walks_in_it() {
    if !has_module() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("tree");
    let tree = Tree::new(4096, 50, 6, 60);
    for round in 0..20 {
        let file = planted(&tree, &path);
        let mut walk = LocalWalk::open_with(&file, PROGRAM, spinning(LONGEST, 32)).expect("the module");
        for key in 0..32 {
            walk.begin(&Lookup { root: tree.root(6, key), level: 5, key }).expect("there is room");
        }
        if round % 2 == 0 {
            walk.run(1, |_| {}).expect("the session works");
        }
        drop(walk);
        OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(0)).expect("it is free");
    }
}

/// The process is killed while it spins: its file is free a little later.
#[test]
fn a_process_that_spins_can_be_killed() {
    if !has_module() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("tree");
    let tree = Tree::new(4096, 50, 6, 60);
    drop(planted(&tree, &path));
    let writer = OpenOptions::new().write(true).open(&path).expect("the same file");
    for _ in 0..5 {
        let mut command = Command::new(std::env::current_exe().expect("this test has a file"));
        command
            .args(["--exact", "spinning::walks_until_it_is_killed", "--ignored", "--nocapture"])
            .env("FOREBAY_KERNEL_FILE", &path)
            .stdout(Stdio::piped());
        let mut child = spawn(&mut command);
        let out = child.stdout.take().expect("its output");
        let has_walked =
            io::BufReader::new(out).lines().any(|line| line.is_ok_and(|line| line.contains("walking")));
        assert!(has_walked, "the other process never walked");
        child.kill().expect("it runs");
        child.wait().expect("and is gone");
        // Rings end after their processes.
        while let Err(error) = writer.write_all_at(&tree.bytes, 0) {
            assert_eq!(error.raw_os_error(), Some(libc::ETXTBSY));
            thread::yield_now();
        }
    }
}

#[test]
#[ignore = "the other process of a_process_that_spins_can_be_killed"]
fn walks_until_it_is_killed() {
    let Ok(path) = std::env::var("FOREBAY_KERNEL_FILE") else { return };
    let file = File::open(path).expect("the file of the other test");
    let mut walk = LocalWalk::open_with(&file, PROGRAM, spinning(LONGEST, 1)).expect("the module takes it");
    for round in 0_u64.. {
        walk.begin(&Lookup { root: 5 * 4096, level: 5, key: round }).expect("there is room");
        walk.run(1, |_| {}).expect("the session works");
        if round == 100 {
            println!("walking");
        }
    }
}
