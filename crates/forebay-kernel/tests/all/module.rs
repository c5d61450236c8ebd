//! The module and the file that it is bound to: the file stays as it is under every attempt to change it, and
//! is free afterwards. Also the files that the module refuses, and why. Where the module is not loaded these
//! tests report it and pass; FOREBAY_KERNEL_ENGINES with `module` in it makes that a failure.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::child::spawn;
use crate::common::{Tree, engine, has_module, told};
use forebay::{Engine, Open};
use forebay_kernel::{
    EngineKind, Error, KernelWalk, LocalWalk, Lookup, Next, Options, Program, Scratch, TreeLookup,
};

const PROGRAM: TreeLookup = TreeLookup { node_bytes: 4096 };

fn module_only() -> Options {
    Options::new().only(EngineKind::Module)
}

/// A tree in a file, and walks of the module on it.
struct Bound {
    engine: Engine,
    dir: tempfile::TempDir,
    path: PathBuf,
    tree: Tree,
    walk: KernelWalk<TreeLookup>,
    /// Opened for writing before the file was bound.
    writer: File,
}

impl Bound {
    fn new() -> Option<Bound> {
        if !has_module() {
            return None;
        }
        let engine = engine();
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("tree");
        let tree = Tree::new(4096, 50, 4, 60);
        let file = tree.plant(&engine, &path);
        let writer = OpenOptions::new().read(true).write(true).open(&path).expect("the same file");
        let walk =
            KernelWalk::open_with(&engine, &file, PROGRAM, module_only()).expect("the module takes it");
        Some(Bound { engine, dir, path, tree, walk, writer })
    }

    /// Checks that all walks find the right values, in the module.
    fn check(&self) {
        let fell_back = self.walk.stats().fell_back;
        let lookups: Vec<Lookup> =
            (0..200).map(|key| Lookup { root: self.tree.root(4, key), level: 3, key }).collect();
        for (lookup, found) in lookups.iter().zip(self.walk.walk_many(&lookups).wait().expect("no shard")) {
            assert_eq!(found.ok(), Some(self.tree.lookup(lookup.root, lookup.key)));
        }
        assert_eq!(self.walk.stats().fell_back, fell_back);
    }

    /// Checks that `change` is refused with `errno` while the file is bound, that walks continue, and that it
    /// works afterwards.
    fn refuses(self, errno: i32, change: impl Fn(&Path, &File) -> io::Result<()>) {
        self.check();
        let refused = change(&self.path, &self.writer).expect_err("the file is bound");
        assert_eq!(refused.raw_os_error(), Some(errno), "{refused}");
        self.check();
        self.walk.close();
        change(&self.path, &self.writer).expect("the file is free again");
    }
}

fn checked(answer: libc::c_int) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn fallocate(file: &File, mode: libc::c_int, at: i64, len: i64) -> io::Result<()> {
    // SAFETY: the call passes numbers only.
    checked(unsafe { libc::fallocate(file.as_raw_fd(), mode, at, len) })
}

#[test]
fn a_bound_file_is_not_written_to() {
    let Some(bound) = Bound::new() else { return };
    bound.refuses(libc::ETXTBSY, |_, writer| writer.write_all_at(&[1; 100], 5000));
}

#[test]
fn a_bound_file_is_not_written_to_past_the_page_cache() {
    let Some(bound) = Bound::new() else { return };
    bound.refuses(libc::ETXTBSY, |path, _| {
        let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path)?;
        let memory = vec![7_u8; 2 * 4096];
        let aligned = memory.as_ptr().align_offset(4096);
        direct.write_all_at(&memory[aligned..aligned + 4096], 4096)
    });
}

#[test]
fn a_bound_file_is_not_mapped_for_writing() {
    let Some(bound) = Bound::new() else { return };
    bound.refuses(libc::ETXTBSY, |_, writer| {
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, writer.as_raw_fd());
        // SAFETY: a new mapping, whose memory nothing reads or writes.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping made above.
        checked(unsafe { libc::munmap(base, 4096) })
    });
}

#[test]
fn a_bound_file_is_not_cut() {
    let Some(bound) = Bound::new() else { return };
    bound.refuses(libc::ETXTBSY, |_, writer| writer.set_len(4096 * 10));
}

#[test]
fn a_bound_file_is_not_punched() {
    let Some(bound) = Bound::new() else { return };
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    bound.refuses(libc::ETXTBSY, move |_, writer| fallocate(writer, punch, 4096, 4096));
}

#[test]
fn a_bound_file_is_not_renamed() {
    let Some(bound) = Bound::new() else { return };
    bound.refuses(libc::EPERM, |path, _| std::fs::rename(path, path.with_extension("other")));
}

#[test]
fn a_bound_file_is_not_removed() {
    let Some(bound) = Bound::new() else { return };
    bound.refuses(libc::EPERM, |path, _| std::fs::remove_file(path));
}

/// FICLONE of Linux: the whole of another file.
const FICLONE: libc::c_ulong = 0x4004_9409;

fn reflink(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (File::open(from)?, File::create(to)?);
    // SAFETY: the call passes two descriptors.
    checked(unsafe { libc::ioctl(to.as_raw_fd(), FICLONE as _, from.as_raw_fd()) })
}

#[test]
fn a_bound_file_is_not_reflinked() {
    let Some(bound) = Bound::new() else { return };
    let other = bound.dir.path().join("other");
    match reflink(&bound.path, &other) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            eprintln!("this file system has no reflinks")
        }
        _ => bound.refuses(libc::ETXTBSY, |path, _| reflink(path, &path.with_extension("other"))),
    }
}

/// Growth is allowed: the reactor reads the new bytes, with the results that it always has.
#[test]
fn a_bound_file_may_grow() {
    let Some(bound) = Bound::new() else { return };
    let end = bound.tree.bytes.len() as u64;
    bound.writer.set_len(end + 8192).expect("a file may be made longer");
    bound.check();
    let file = bound.engine.open(&bound.path, Open::read()).wait().expect("the same file");
    let options = Options::new().only(EngineKind::Reactor);
    let reactor = KernelWalk::open_with(&bound.engine, &file, PROGRAM, options).expect("the reactor");
    for root in [end, end + 4096, end + 8192] {
        let lookup = Lookup { root, level: 0, key: 1 };
        let expected = told(reactor.walk(&lookup).wait());
        assert_eq!(told(bound.walk.walk(&lookup).wait()), expected, "at {root}");
    }
    assert_eq!(bound.walk.stats().fell_back, 2);
}

/// The file is free when the last of its sessions is dropped.
#[test]
fn two_sessions_pin_one_file() {
    let Some(bound) = Bound::new() else { return };
    let file = bound.engine.open(&bound.path, Open::read()).wait().expect("the same file");
    let second = KernelWalk::open_with(&bound.engine, &file, PROGRAM, module_only()).expect("a second one");
    let lookup = Lookup { root: bound.tree.root(4, 1), level: 3, key: 1 };
    assert_eq!(second.walk(&lookup).wait().ok(), Some(bound.tree.lookup(lookup.root, 1)));
    second.close();
    bound.refuses(libc::ETXTBSY, |_, writer| writer.write_all_at(&[1; 100], 5000));
}

/// Walks are in the kernel when the session is dropped; the file is free immediately.
#[test]
fn a_session_that_ends_with_walks_in_it_frees_its_file() {
    if !has_module() {
        return;
    }
    for polled in [false, true] {
        for round in 0..20 {
            let engine = engine();
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("tree");
            let tree = Tree::new(4096, 50, 6, 60);
            tree.plant(&engine, &path);
            let file = File::open(&path).expect("the same file");
            let options = module_only().polled(polled);
            let mut walk = LocalWalk::open_with(&file, PROGRAM, options).expect("the module takes it");
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
}

/// The process of a session was killed: the file that it had pinned is free a little later.
#[test]
fn a_file_whose_process_was_killed_is_free() {
    let Some(bound) = Bound::new() else { return };
    bound.walk.close();
    let myself = std::env::current_exe().expect("this test has a file");
    for _ in 0..5 {
        let mut command = std::process::Command::new(&myself);
        command
            .args(["--exact", "module::walks_until_it_is_killed", "--ignored", "--nocapture"])
            .env("FOREBAY_KERNEL_FILE", &bound.path)
            .stdout(std::process::Stdio::piped());
        let mut child = spawn(&mut command);
        let out = child.stdout.take().expect("its output");
        let told = io::BufRead::lines(io::BufReader::new(out))
            .any(|line| line.is_ok_and(|line| line.contains("walking")));
        assert!(told, "the other process never walked");
        let refused = bound.writer.set_len(4096).expect_err("the file is bound");
        assert_eq!(refused.raw_os_error(), Some(libc::ETXTBSY));
        child.kill().expect("it runs");
        child.wait().expect("and is gone");
        // Rings end after their processes.
        let begun = Instant::now();
        while let Err(error) = bound.writer.write_all_at(&bound.tree.bytes, 0) {
            assert_eq!(error.raw_os_error(), Some(libc::ETXTBSY));
            assert!(begun.elapsed() < Duration::from_secs(30), "the file is still bound");
            std::thread::yield_now();
        }
    }
}

#[test]
#[ignore = "the other process of a_file_whose_process_was_killed_is_free"]
fn walks_until_it_is_killed() {
    let Ok(path) = std::env::var("FOREBAY_KERNEL_FILE") else { return };
    let engine = engine();
    let file = engine.open(path, Open::read()).wait().expect("the file of the other test");
    let walk = KernelWalk::open_with(&engine, &file, PROGRAM, module_only()).expect("the module takes it");
    for round in 0_u64.. {
        let lookups: Vec<Lookup> = (0..200).map(|key| Lookup { root: 3 * 4096, level: 3, key }).collect();
        let walks = walk.walk_many(&lookups);
        if round == 3 {
            println!("walking");
        }
        drop(walks.wait());
    }
}

fn refusal(file: &File) -> String {
    match LocalWalk::open_with(file, PROGRAM, module_only()) {
        Err(Error::Unavailable(why)) => why,
        Ok(_) => panic!("the module took it"),
        Err(other) => panic!("{other}"),
    }
}

/// Checks that a file that `make` makes at a path is refused with `reason`, and stays as usable as it was.
fn refused(reason: &str, make: impl FnOnce(&Path) -> File) {
    if !has_module() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file");
    let file = make(&path);
    let why = refusal(&file);
    assert!(why.contains(reason), "{why}");
    if let Ok(writer) = OpenOptions::new().write(true).open(&path) {
        writer.write_all_at(&[3; 10], 0).expect("a file that was refused is free");
    }
}

fn made(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).expect("a new file")
}

#[test]
fn a_file_with_holes_is_refused() {
    refused("holes", |path| {
        let file = made(path);
        file.write_all_at(&[1; 4096], 0).expect("a page");
        file.write_all_at(&[1; 4096], 1 << 20).expect("and another far behind");
        file
    });
}

#[test]
fn a_file_with_unwritten_extents_is_refused() {
    refused("unwritten", |path| {
        let file = made(path);
        fallocate(&file, 0, 0, 1 << 20).expect("space");
        file
    });
}

#[test]
fn a_file_with_shared_extents_is_refused() {
    refused("", |path| {
        let file = made(path);
        file.write_all_at(&[1; 65_536], 0).expect("pages");
        match reflink(path, &path.with_extension("other")) {
            Ok(()) => file,
            // No reflinks here: a file that is refused for its holes serves instead.
            Err(_) => {
                file.set_len(1 << 20).expect("it may grow");
                file
            }
        }
    });
}

#[test]
fn a_file_that_is_mapped_for_writing_is_refused() {
    let Some(bound) = Bound::new() else { return };
    bound.walk.close();
    let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, bound.writer.as_raw_fd());
    // SAFETY: a new mapping, whose memory nothing reads or writes.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, fd, 0) };
    assert_ne!(base, libc::MAP_FAILED);
    let why = refusal(&bound.writer);
    assert!(why.contains("mapped for shared writing"), "{why}");
    // SAFETY: the mapping made above.
    checked(unsafe { libc::munmap(base, 4096) }).expect("it was mapped");
    LocalWalk::open_with(&bound.writer, PROGRAM, module_only()).expect("nothing stands against it now");
}

/// The least content that `swapon` accepts as a swap space: a page with the header's words, and pages behind it.
fn swap_space(path: &Path) -> File {
    const PAGES: u32 = 64;
    let mut bytes = vec![0; PAGES as usize * 4096];
    for (at, word) in [(1024, 1), (1028, PAGES - 1)] {
        bytes[at..at + 4].copy_from_slice(&u32::to_ne_bytes(word));
    }
    bytes[4086..4096].copy_from_slice(b"SWAPSPACE2");
    let file = made(path);
    file.write_all_at(&bytes, 0).and_then(|()| file.sync_all()).expect("the directory takes files");
    chown(path, Some(0), Some(0)).expect("root's own");
    file
}

fn swap(path: &Path, is_on: bool) -> io::Result<()> {
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("no zero in it");
    // SAFETY: both calls read a path that ends with a zero.
    checked(unsafe { if is_on { libc::swapon(name.as_ptr(), 0) } else { libc::swapoff(name.as_ptr()) } })
}

#[test]
fn a_file_in_use_as_swap_is_refused_and_a_bound_one_does_not_become_swap() {
    if !has_module() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("swap");
    let file = swap_space(&path);
    swap(&path, true).expect("it is a swap space");
    let why = refusal(&file);
    assert!(why.contains("in use as swap"), "{why}");
    // The file is still swap: nothing but swapoff releases it.
    let refused = file.set_len(4096).expect_err("swap is not cut");
    assert_eq!(refused.raw_os_error(), Some(libc::ETXTBSY));
    swap(&path, false).expect("it was one");
    let walk = LocalWalk::open_with(&file, PROGRAM, module_only()).expect("nothing stands against it now");
    let refused = swap(&path, true).expect_err("the file is bound");
    assert_eq!(refused.raw_os_error(), Some(libc::EBUSY));
    drop(walk);
    swap(&path, true).and_then(|()| swap(&path, false)).expect("the file is free again");
}

#[test]
fn a_file_system_without_stable_extents_is_refused() {
    if !has_module() {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = dir.path().join("file");
    std::fs::write(&path, [1; 8192]).expect("it takes files");
    let why = refusal(&File::open(&path).expect("just written"));
    assert!(why.contains("no stable extents"), "{why}");
}

#[test]
fn what_is_no_file_is_refused() {
    if !has_module() {
        return;
    }
    let why = refusal(&File::open("/dev/null").expect("everybody has it"));
    assert!(why.contains("neither a regular file nor a block device"), "{why}");
}

#[test]
fn a_file_that_was_not_opened_for_reading_is_refused() {
    refused("not opened for reading", |path| {
        std::fs::write(path, [1; 8192]).expect("the directory takes files");
        OpenOptions::new().write(true).open(path).expect("just written")
    });
}

/// Pinning keeps others from writing: a user may do that with their own files.
#[test]
fn another_users_file_is_refused() {
    if !has_module() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file");
    std::fs::write(&path, [1; 8192]).expect("the directory takes files");
    chown(&path, Some(65_534), None).expect("root may give files away");
    let file = File::open(&path).expect("just written");
    let why = std::thread::spawn(move || {
        crate::common::drop_capabilities();
        refusal(&file)
    });
    let why = why.join().expect("the thread ends");
    assert!(why.contains("another user's"), "{why}");
}

/// A file in many pieces; the reactor reads pages of two blocks that lie in two of them.
#[test]
fn a_file_in_pieces_is_walked_in_all_of_them() {
    if !has_module() {
        return;
    }
    let engine = engine();
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pieces");
    let file = made(&path);
    for page in 0..200_u64 {
        // Of the blocks that stay, each leads to the one after the next.
        let next = if page % 2 == 0 { page / 2 + 2 } else { 0 };
        let mut bytes = [0; 4096];
        bytes[..8].copy_from_slice(&(next * 4096).to_le_bytes());
        file.write_all_at(&bytes, page * 4096).expect("a page");
    }
    file.sync_all().expect("to the device");
    for kept in 1..=99 {
        fallocate(&file, libc::FALLOC_FL_COLLAPSE_RANGE, kept * 4096, 4096)
            .expect("a block can be taken out");
    }
    let file = engine.open(&path, Open::read()).wait().expect("just written");
    for (page_bytes, falls_back) in [(512, false), (4096, false), (8192, true)] {
        let options = module_only().hops_max(40);
        let walk = KernelWalk::open_with(&engine, &file, Follow { page_bytes }, options)
            .expect("the module takes it");
        let options = options.only(EngineKind::Reactor);
        let reactor =
            KernelWalk::open_with(&engine, &file, Follow { page_bytes }, options).expect("the reactor");
        for root in [0, 4096, 40 * 4096, 70 * 4096] {
            let expected = told(reactor.walk(&root).wait());
            assert_eq!(told(walk.walk(&root).wait()), expected, "pages of {page_bytes} bytes from {root}");
        }
        assert_eq!(walk.stats().fell_back > 0, falls_back, "pages of {page_bytes} bytes");
    }
}

/// A program whose step moves to the position in the page.
struct Follow {
    page_bytes: u32,
}

impl Program for Follow {
    type Args = u64;
    type Output = ();

    fn name(&self) -> &'static str {
        "follow"
    }

    fn page_bytes(&self) -> u32 {
        self.page_bytes
    }

    fn object(&self) -> Option<&[u8]> {
        None
    }

    fn module_object(&self) -> Option<&[u8]> {
        Some(include_bytes!("../objects/follows_the_page.module.bpf.o"))
    }

    fn begin(&self, root: &u64, _scratch: &mut Scratch) -> u64 {
        *root
    }

    fn step(&self, page: &[u8], _at: u64, _scratch: &mut Scratch) -> Next {
        Next::read(page.first_chunk().map_or(0, |word| u64::from_le_bytes(*word)))
    }

    fn end(&self, _scratch: &Scratch, _page: &[u8]) {}
}
