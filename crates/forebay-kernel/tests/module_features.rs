//! A separate program: it counts the threads of its process.
//!
//! Files that the module refuses because of features of their file system, and devices of all kinds. FOREBAY_KERNEL_FEATURES names
//! a folder of an ext4 file system with `inline_data`, `verity` and `encrypt`, FOREBAY_KERNEL_DAX one on persistent memory, mounted
//! with `dax`, and FOREBAY_KERNEL_BLOCKS a block device of 4,096-byte blocks. And devices that it accepts: FOREBAY_KERNEL_STACKED
//! names, separated by commas, some on top of others, and FOREBAY_KERNEL_NARROW a device with a queue of one request. Without them
//! these tests report it and pass.

mod common;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use common::{Tree, engines, engines_but, has_module};
use forebay::Open;
use forebay_kernel::{EngineKind, Error, LocalWalk, Lookup, Options, TreeLookup};
use tempfile::TempDir;

fn refusal(file: &File, node_bytes: u32) -> String {
    let options = Options::new().only(EngineKind::Module);
    match LocalWalk::open_with(file, TreeLookup { node_bytes }, options) {
        Err(Error::Unavailable(why)) => why,
        Ok(_) => panic!("the module took it"),
        Err(other) => panic!("{other}"),
    }
}

fn named(variable: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    if named.is_none() {
        eprintln!("{variable} is not set");
    }
    named.filter(|_| has_module())
}

/// Returns a new folder in the one that the variable names, so that a test may run again there.
fn folder_in(variable: &str) -> Option<TempDir> {
    named(variable).map(|folder| tempfile::tempdir_in(folder).expect("the folder takes folders"))
}

fn call(file: &File, what: u32, argument: &mut [u8]) -> io::Result<()> {
    // SAFETY: each caller passes as many bytes as the operation reads and writes.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), what as _, argument.as_mut_ptr()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[test]
fn data_in_the_inode_is_refused() {
    let Some(folder) = folder_in("FOREBAY_KERNEL_FEATURES") else { return };
    let path = folder.path().join("inline");
    std::fs::write(&path, [1; 40]).expect("the folder takes files");
    let why = refusal(&File::open(&path).expect("just written"), 4096);
    assert!(why.contains("in its inode"), "{why}");
}

#[test]
fn a_verity_file_is_refused() {
    let Some(folder) = folder_in("FOREBAY_KERNEL_FEATURES") else { return };
    let path = folder.path().join("verity");
    std::fs::write(&path, [1; 65_536]).expect("the folder takes files");
    let file = File::open(&path).expect("just written");
    // struct fsverity_enable_arg: version 1, SHA-256, blocks of 4,096 bytes.
    let mut enable = [0; 128];
    for (place, word) in [(0, 1_u32), (4, 1), (8, 4096)] {
        enable[place..place + 4].copy_from_slice(&word.to_ne_bytes());
    }
    call(&file, 0x4080_6685, &mut enable).expect("the file system has verity");
    let why = refusal(&file, 4096);
    assert!(why.contains("fs-verity"), "{why}");
}

#[test]
fn an_encrypted_file_is_refused() {
    let Some(folder) = folder_in("FOREBAY_KERNEL_FEATURES") else { return };
    let directory = File::open(folder.path()).expect("just made");
    // struct fscrypt_add_key_arg with 64 bytes of key: the kernel fills its identifier in.
    let mut key = [0; 80 + 64];
    key[0] = 2;
    key[40] = 64;
    key[80..].fill(7);
    call(&directory, 0xc050_6617, &mut key).expect("the file system has encryption");
    // struct fscrypt_policy_v2: AES-256-XTS and AES-256-CTS.
    let mut policy = [0; 24];
    policy[..3].copy_from_slice(&[2, 1, 4]);
    policy[8..].copy_from_slice(&key[8..24]);
    call(&directory, 0x800c_6613, &mut policy).expect("the folder is empty");
    let path = folder.path().join("file");
    std::fs::write(&path, [1; 65_536]).expect("the key is there");
    let why = refusal(&File::open(&path).expect("just written"), 4096);
    assert!(why.contains("encrypted"), "{why}");
}

#[test]
fn a_file_in_memory_is_refused() {
    let Some(folder) = folder_in("FOREBAY_KERNEL_DAX") else { return };
    let path = folder.path().join("file");
    std::fs::write(&path, [1; 65_536]).expect("the folder takes files");
    let why = refusal(&File::open(&path).expect("just written"), 4096);
    assert!(why.contains("lies in memory (DAX)"), "{why}");
}

/// Such a device ends a read at its start, delays it, or splits it in two.
#[test]
fn devices_on_top_of_others_are_walked() {
    let Some(devices) = named("FOREBAY_KERNEL_STACKED") else { return };
    let engine = common::engine();
    let tree = Tree::new(4096, 200, 5, 20);
    for device in devices.to_string_lossy().split(',') {
        let file = OpenOptions::new().read(true).write(true).open(device).expect("the device is there");
        file.write_all_at(&tree.bytes, 0).and_then(|()| file.sync_all()).expect("it takes bytes");
        let file = engine.open(device, Open::read()).wait().expect("a block device is a file");
        // A device that holds reads back cannot report that they would have to wait.
        let refused = device.ends_with("slow").then_some((EngineKind::BpfLoop, "RWF_NOWAIT"));
        let program = || TreeLookup { node_bytes: 4096 };
        let walks = engines_but(&engine, &file, program, Options::new(), refused);
        assert!(refused.is_none() || walks.iter().all(|(kind, _)| *kind != EngineKind::BpfLoop));
        for (kind, walk) in walks {
            let lookups: Vec<Lookup> =
                (0..200).map(|key| Lookup { root: tree.root(5, key), level: 4, key }).collect();
            let found = walk.walk_many(&lookups).wait().expect("not on a shard");
            for (lookup, found) in lookups.iter().zip(found) {
                let expected = tree.lookup(lookup.root, lookup.key);
                assert_eq!(found.ok(), Some(expected), "{kind} on {device}");
            }
            assert_eq!(walk.stats().fell_back, 0, "{kind} on {device}");
        }
    }
}

/// Returns how many threads of this process io_uring has for operations that may not wait.
fn workers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("there is /proc");
    let names = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("iou-wrk")).count()
}

/// Regression: reads that would have had to wait for a slot of the device's queue were passed to io_uring's threads, which were
/// created where the reads were submitted: in the loop's program. While a program runs its thread must not change processors, its
/// new threads inherited that forever, and the scheduler of Linux 7.2 warned when it moved such a thread.
#[test]
fn no_thread_is_made_inside_of_the_loop() {
    let Some(device) = named("FOREBAY_KERNEL_NARROW") else { return };
    let engine = common::engine();
    let tree = Tree::new(4096, 200, 5, 20);
    let file = OpenOptions::new().read(true).write(true).open(&device).expect("the device is there");
    file.write_all_at(&tree.bytes, 0).and_then(|()| file.sync_all()).expect("it takes bytes");
    let file = engine.open(&device, Open::read()).wait().expect("a block device is a file");
    for (kind, walk) in engines(&engine, &file, || TreeLookup { node_bytes: 4096 }, Options::new()) {
        if kind != EngineKind::BpfLoop {
            continue;
        }
        let lookups: Vec<Lookup> =
            (0..2000).map(|key| Lookup { root: tree.root(5, key), level: 4, key }).collect();
        let mut most = 0;
        for _ in 0..5 {
            let found = walk.walk_many(&lookups).wait().expect("not on a shard");
            for (lookup, found) in lookups.iter().zip(found) {
                assert_eq!(found.ok(), Some(tree.lookup(lookup.root, lookup.key)));
            }
            most = most.max(workers());
        }
        assert_eq!(walk.stats().fell_back, 0);
        // The worker exists, so reads that would have had to wait were passed to it; and it is the only worker.
        assert!(most == 1, "{most} worker threads");
    }
}

#[test]
fn pages_smaller_than_the_devices_blocks_are_refused() {
    let Some(device) = named("FOREBAY_KERNEL_BLOCKS") else { return };
    let file = OpenOptions::new().read(true).write(true).open(device).expect("the device is there");
    file.write_all_at(&[0; 4096], 0).expect("it takes bytes");
    let why = refusal(&file, 512);
    assert!(why.contains("smaller than its device's blocks"), "{why}");
}
