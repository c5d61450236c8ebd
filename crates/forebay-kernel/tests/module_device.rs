//! A separate program: it watches the module as a whole, and removes it.
//!
//! The module's device, used as no library would: commands before their time, numbers that do not exist, two
//! rings on one session, garbage; and the module's removal while it walks. Where the module is not loaded
//! these tests report it and pass; FOREBAY_KERNEL_ENGINES with `module` in it makes that a failure.

mod common;

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use common::{Tree, engine, has_module, mix};
use forebay_kernel::{EngineKind, KernelWalk, Lookup, Options, TreeLookup};
use io_uring::{IoUring, opcode, squeue, types};

// The module's numbers, as kernel/include/forebay_walk.h has them.
const BIND: libc::c_ulong = 0xc024_fb01;
const UNBIND: libc::c_ulong = 0xfb02;
const WALK: u32 = 1;
const LAYOUT: u32 = 2;
const REFUSED: usize = 5;
const POLLED: usize = 6;

fn device() -> File {
    OpenOptions::new().read(true).write(true).open("/dev/forebay_walk").expect("the module is loaded")
}

fn call(device: &File, what: libc::c_ulong, words: &mut [u32; 9]) -> io::Result<()> {
    // SAFETY: the module reads and writes 36 bytes, which is the size of the array.
    let answer = unsafe { libc::ioctl(device.as_raw_fd(), what as _, words.as_mut_ptr()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn binding(file: &File, page_bytes: u32, slots: u32, reads_each: u32) -> [u32; 9] {
    [LAYOUT, file.as_raw_fd() as u32, page_bytes, slots, reads_each, 0, 0, 0, 0]
}

fn planted(dir: &Path) -> File {
    let path = dir.join("tree");
    std::fs::write(&path, Tree::new(4096, 20, 2, 10).bytes).expect("the directory takes files");
    File::open(path).expect("just written")
}

fn walk(device: &File, slot: u32) -> squeue::Entry {
    let mut command = [0; 16];
    command[..4].copy_from_slice(&slot.to_ne_bytes());
    opcode::UringCmd16::new(types::Fd(device.as_raw_fd()), WALK).cmd(command).build()
}

fn ring() -> IoUring {
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(8).expect("a ring")
}

/// Runs commands, and returns their results, in any order.
fn run(ring: &mut IoUring, commands: &[squeue::Entry]) -> Vec<i32> {
    for command in commands {
        // SAFETY: the commands work on memory of the module.
        unsafe { ring.submission().push(command) }.expect("there is room");
    }
    ring.submit_and_wait(commands.len()).expect("the ring works");
    let mut all: Vec<i32> = ring.completion().map(|entry| entry.result()).collect();
    all.sort_unstable();
    all
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    if !has_module() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = planted(dir.path());
    let device = device();
    for (page_bytes, slots, reads_each) in [
        (0, 1, 1),
        (256, 1, 1),
        (4097, 1, 1),
        (1 << 17, 1, 1),
        (u32::MAX, 1, 1),
        (4096, 0, 1),
        (4096, 65, 1),
        (4096, u32::MAX, 1),
        (4096, 1, 0),
        (4096, 1, 17),
    ] {
        let mut words = binding(&file, page_bytes, slots, reads_each);
        let refused = call(&device, BIND, &mut words).expect_err("it cannot be");
        assert_eq!((refused.raw_os_error(), words[REFUSED]), (Some(libc::EINVAL), 2));
    }
    let mut words = binding(&file, 4096, 1, 1);
    words[0] = 77;
    let refused = call(&device, BIND, &mut words).expect_err("another layout");
    assert_eq!((refused.raw_os_error(), words[REFUSED]), (Some(libc::EPROTO), 1));
    words = binding(&file, 4096, 1, 1);
    words[1] = u32::MAX;
    let refused = call(&device, BIND, &mut words).expect_err("no such descriptor");
    assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
    // After all of that it may be bound once, and not again, not even when the binding has ended.
    call(&device, BIND, &mut binding(&file, 4096, 1, 1)).expect("this can be");
    let refused = call(&device, BIND, &mut binding(&file, 4096, 1, 1)).expect_err("it is bound");
    assert_eq!(refused.raw_os_error(), Some(libc::EBUSY));
    call(&device, UNBIND, &mut [0; 9]).expect("the end");
    let refused = call(&device, BIND, &mut binding(&file, 4096, 1, 1)).expect_err("it was bound");
    assert_eq!(refused.raw_os_error(), Some(libc::EBUSY));
}

/// For any bytes of user space in the binding, the kernel returns an error or binds.
#[test]
fn garbage_is_answered() {
    if !has_module() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = planted(dir.path());
    for seed in 0..3_000 {
        let device = device();
        let mut words = binding(&file, 4096, 4, 4);
        for bit in 0..1 + mix(seed) % 3 {
            let place = mix(seed * 8 + bit) as usize % (words.len() * 32);
            words[place / 32] ^= 1 << (place % 32);
        }
        let _ = call(&device, BIND, &mut words);
        if seed % 7 == 0 {
            let _ = call(&device, mix(seed + 1) & 0xffff_ffff, &mut words);
        }
    }
    call(&device(), BIND, &mut binding(&file, 4096, 4, 4)).expect("as well as before");
}

#[test]
fn commands_that_cannot_be_are_refused() {
    if !has_module() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = planted(dir.path());
    let device = device();
    let mut ring = ring();
    assert_eq!(run(&mut ring, &[walk(&device, 0)]), [-libc::ENXIO], "before it is bound");
    call(&device, BIND, &mut binding(&file, 4096, 2, 1)).expect("it can be bound");
    for slot in [2, 64, 1 << 31, u32::MAX] {
        assert_eq!(run(&mut ring, &[walk(&device, slot)]), [-libc::EINVAL], "slot {slot}");
    }
    let unknown = opcode::UringCmd16::new(types::Fd(device.as_raw_fd()), 99).build();
    assert_eq!(run(&mut ring, &[unknown]), [-libc::ENOTTY]);
    // One slot has one walk. Both have no program: they end when they would run it.
    assert_eq!(run(&mut ring, &[walk(&device, 0), walk(&device, 0)]), [-libc::EBUSY, 0]);
    assert_eq!(run(&mut ring, &[walk(&device, 1), walk(&device, 0)]), [0, 0]);
    // A session belongs to the ring that walked first.
    let mut other = self::ring();
    assert_eq!(run(&mut other, &[walk(&device, 1)]), [-libc::EXDEV]);
    // Nor may the kernel's own workers walk, or a ring of several tasks: steps of one session run one after the other.
    let by_worker = walk(&device, 0).flags(squeue::Flags::ASYNC);
    assert_eq!(run(&mut ring, &[by_worker]), [-libc::EOPNOTSUPP]);
    let mut of_many = IoUring::new(8).expect("a ring");
    assert_eq!(run(&mut of_many, &[walk(&device, 0)]), [-libc::EOPNOTSUPP]);
    call(&device, UNBIND, &mut [0; 9]).expect("the end");
    assert_eq!(run(&mut ring, &[walk(&device, 0)]), [0], "it ends as one that has to go elsewhere");
}

#[test]
fn the_memory_is_mapped_whole_and_only_when_there_is_some() {
    if !has_module() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = planted(dir.path());
    let device = device();
    let map = |bytes: usize, offset: libc::off_t| {
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, device.as_raw_fd());
        // SAFETY: a new mapping, whose memory nothing reads or writes.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().raw_os_error());
        }
        // SAFETY: the mapping made above.
        assert_eq!(unsafe { libc::munmap(base, bytes) }, 0);
        Ok(())
    };
    let whole = 36_864 + 2 * 4096 + 4096;
    assert_eq!(map(whole, 0), Err(Some(libc::ENXIO)), "before it is bound");
    call(&device, BIND, &mut binding(&file, 4096, 2, 1)).expect("it can be bound");
    assert_eq!(map(whole, 0), Ok(()));
    for (bytes, offset) in [(4096, 0), (whole + 4096, 0), (whole - 4096, 0), (whole, 4096)] {
        assert_eq!(map(bytes, offset), Err(Some(libc::EINVAL)), "{bytes} bytes from {offset}");
    }
}

/// A session's memory belongs to its caller's control group, whose limit it would bypass otherwise. The test creates such a group,
/// which it may do only in a virtual machine: there FOREBAY_KERNEL_MODULE is set.
#[test]
fn a_sessions_memory_is_its_control_groups() {
    if std::env::var_os("FOREBAY_KERNEL_MODULE").is_none() || !has_module() {
        return;
    }
    let groups = tempfile::tempdir().expect("a directory");
    let (place, kind) = (
        CString::new(groups.path().as_os_str().as_encoded_bytes()).expect("no zero in it"),
        CString::new("cgroup2").expect("no zero in it"),
    );
    let (at, kind) = (place.as_ptr(), kind.as_ptr());
    // SAFETY: the call reads three texts that end with a zero.
    let mounted = unsafe { libc::mount(kind, at, kind, 0, std::ptr::null()) };
    assert_eq!(mounted, 0, "{}", io::Error::last_os_error());
    let known = std::fs::read_to_string(groups.path().join("cgroup.controllers")).expect("a list");
    if known.split_whitespace().any(|controller| controller == "memory") {
        let group = groups.path().join("walks");
        std::fs::write(groups.path().join("cgroup.subtree_control"), "+memory").expect("it is there");
        std::fs::create_dir(&group).expect("a group");
        std::fs::write(group.join("cgroup.procs"), "0").expect("this process may go there");
        let bytes = || {
            let text = std::fs::read_to_string(group.join("memory.current")).expect("the group counts");
            text.trim().parse::<u64>().expect("a number")
        };
        let dir = tempfile::tempdir().expect("a directory");
        let file = planted(dir.path());
        let device = device();
        let before = bytes();
        call(&device, BIND, &mut binding(&file, 65_536, 16, 16)).expect("it can be bound");
        let taken = bytes().saturating_sub(before);
        std::fs::write(groups.path().join("cgroup.procs"), "0").expect("and back");
        assert!(taken >= 16 << 20, "the group counts {taken} bytes of 16 MiB");
        drop(device);
        // Memory that is still counted is freed with the group's last pages.
        let _ = std::fs::remove_dir(&group);
    } else {
        eprintln!("this kernel counts no group's memory");
    }
    // SAFETY: as above, with one text.
    unsafe { libc::umount2(at, libc::MNT_DETACH) };
}

fn remove_module() -> io::Result<()> {
    let name = CString::new("forebay_walk").expect("no zero in it");
    // SAFETY: the call reads a name that ends with a zero.
    let answer = unsafe { libc::syscall(libc::SYS_delete_module, name.as_ptr(), libc::O_NONBLOCK) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn insert_module(path: &Path) -> io::Result<()> {
    let (file, none) = (File::open(path)?, CString::default());
    // SAFETY: the call reads a descriptor and a text that ends with a zero.
    let answer = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), none.as_ptr(), 0) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The module stays loaded while a session exists, even if it is busy. Afterwards it can be removed and loaded again.
/// FOREBAY_KERNEL_MODULE names its file.
#[test]
fn the_module_is_not_removed_under_load() {
    let Ok(module) = std::env::var("FOREBAY_KERNEL_MODULE") else {
        eprintln!("FOREBAY_KERNEL_MODULE names no module");
        return;
    };
    if !has_module() {
        return;
    }
    let engine = engine();
    let dir = tempfile::tempdir().expect("a directory");
    let tree = Tree::new(4096, 50, 5, 60);
    for round in 0..5 {
        let file = tree.plant(&engine, &dir.path().join(format!("tree-{round}")));
        let options = Options::new().only(EngineKind::Module).polled(round % 2 == 1);
        let walk = KernelWalk::open_with(&engine, &file, TreeLookup { node_bytes: 4096 }, options)
            .expect("the module takes it");
        let lookups: Vec<Lookup> =
            (0..1_000).map(|key| Lookup { root: tree.root(5, key), level: 4, key }).collect();
        let walks = walk.walk_many(&lookups);
        for _ in 0..50 {
            let refused = remove_module().expect_err("it is in use").raw_os_error();
            assert!(matches!(refused, Some(libc::EAGAIN | libc::EBUSY)), "{refused:?}");
        }
        for (lookup, found) in lookups.iter().zip(walks.wait().expect("not on a shard")) {
            assert_eq!(found.ok(), Some(tree.lookup(lookup.root, lookup.key)));
        }
        walk.close();
        // Rings, mappings and programs end a little later.
        let begun = std::time::Instant::now();
        while let Err(error) = remove_module() {
            assert!(matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)), "{error}");
            assert!(begun.elapsed().as_secs() < 30, "the module is still in use");
            std::thread::yield_now();
        }
        assert!(!Path::new("/dev/forebay_walk").exists());
        insert_module(Path::new(&module)).expect("it comes again");
    }
}

/// A ring that polls is useless where the device is not polled: some targets of the device mapper refuse a read that must not wait,
/// even if they report support for polling, and walks failed there.
#[test]
fn a_ring_that_polls_is_refused_on_a_device_that_is_not_polled() {
    let Ok(devices) = std::env::var("FOREBAY_KERNEL_STACKED") else {
        eprintln!("FOREBAY_KERNEL_STACKED names no device");
        return;
    };
    if !has_module() {
        return;
    }
    let file = File::open(devices.split(',').next().unwrap_or_default()).expect("the device is there");
    let device = device();
    let mut words = binding(&file, 4096, 2, 1);
    call(&device, BIND, &mut words).expect("it can be bound");
    assert_eq!(words[POLLED], 0, "devices on top of others are not polled");
    let mut polling = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_iopoll()
        .build(8)
        .expect("a ring that polls");
    assert_eq!(run(&mut polling, &[walk(&device, 0)]), [-libc::EOPNOTSUPP]);
}
