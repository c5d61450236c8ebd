//! Programs that break the rules: the verifier refuses them and walks run in the reactor, or the loop ends
//! them.

use std::process::{Command, Stdio};

use crate::common::child::spawn;
use crate::common::{Tree, drop_capabilities, engine, engines, engines_but, has_module, told};
use forebay::{Engine, File, Open};
use forebay_kernel::{
    EngineKind, Error, KernelWalk, LocalWalk, Lookup, Next, Options, Positions, Program, Scratch, TreeLookup,
};

/// A program's objects, for the loop and for the module.
type Objects = [&'static [u8]; 2];

/// A program whose objects are of tests/objects, and its step in Rust.
#[derive(Clone, Copy)]
struct Odd {
    objects: Objects,
    step: fn(&[u8], u64, &Scratch) -> Next,
}

impl Program for Odd {
    type Args = (u64, u64);
    type Output = ();

    fn name(&self) -> &'static str {
        "odd"
    }

    fn page_bytes(&self) -> u32 {
        4096
    }

    fn object(&self) -> Option<&[u8]> {
        Some(self.objects[0])
    }

    fn module_object(&self) -> Option<&[u8]> {
        Some(self.objects[1])
    }

    fn begin(&self, (root, what): &(u64, u64), scratch: &mut Scratch) -> u64 {
        scratch.set_u64(0, *what);
        *root
    }

    fn step(&self, page: &[u8], at: u64, scratch: &mut Scratch) -> Next {
        (self.step)(page, at, scratch)
    }

    fn end(&self, _scratch: &Scratch, _page: &[u8]) {}
}

macro_rules! objects {
    ($name:literal) => {
        [
            include_bytes!(concat!("../objects/", $name, ".loop.bpf.o")) as &'static [u8],
            include_bytes!(concat!("../objects/", $name, ".module.bpf.o")) as &'static [u8],
        ]
    };
}

const NEVER_ENDS: Odd = Odd { objects: objects!("never_ends"), step: |_, at, _| Next::read(at) };

fn planted(engine: &Engine) -> (tempfile::TempDir, File) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = Tree::new(4096, 9, 1, 8).plant(engine, &dir.path().join("tree"));
    (dir, file)
}

/// Returns the available engines inside the kernel: without one nothing is loaded, and nothing refused for
/// its own sake.
fn inside(engine: &Engine, file: &File) -> Vec<EngineKind> {
    let all = engines(engine, file, || TreeLookup { node_bytes: 4096 }, Options::new());
    all.into_iter().map(|(kind, _)| kind).filter(|kind| *kind != EngineKind::Reactor).collect()
}

/// A user gave a program nodes of 100 bytes. The walks of all threads refused them; those of one thread mapped memory for any
/// length, up to terabytes, and let the kernel's program run on pages that it cannot have.
#[test]
fn pages_that_cannot_be_are_refused_by_every_handle() {
    let engine = engine();
    let (_dir, file) = planted(&engine);
    for node_bytes in [0, 100, 256, 5000, 1 << 17, u32::MAX] {
        let program = || TreeLookup { node_bytes };
        let of_all = KernelWalk::open(&engine, &file, program()).map(drop);
        let of_one = LocalWalk::open(&file, program(), 64).map(drop);
        let words = format!("pages of {node_bytes} bytes; they are a power of two from 512 to 65,536");
        for refused in [of_all, of_one] {
            let error = refused.expect_err("no such pages").to_string();
            assert!(error.contains(&words), "{error}");
        }
    }
}

#[test]
fn what_reads_or_writes_outside_or_never_returns_is_refused_and_the_reactor_takes_over() {
    let engine = engine();
    let (_dir, file) = planted(&engine);
    let inside = inside(&engine, &file);
    let programs: [(&str, Objects, &[&str]); 4] = [
        ("reads_outside", objects!("reads_outside"), &["invalid access", "memory"]),
        ("reads_unchecked", objects!("reads_unchecked"), &["unbounded memory access", "memory"]),
        ("writes_outside", objects!("writes_outside"), &["invalid access", "memory", "value"]),
        ("never_returns", objects!("never_returns"), &["infinite loop", "too large", "too complex"]),
    ];
    for (name, objects, reasons) in programs {
        let program = Odd { objects, step: |_, _, _| Next::Over };
        let walk = KernelWalk::open(&engine, &file, program).expect("the reactor at least");
        eprintln!("{name}: {}", walk.why());
        assert_eq!(walk.engine(), EngineKind::Reactor, "{name}");
        walk.walk(&(0, 0)).wait().expect("the reactor's step is harmless");
        for kind in [EngineKind::BpfLoop, EngineKind::Module] {
            let only = Options::new().only(kind);
            let demanded = KernelWalk::open_with(&engine, &file, program, only);
            let Err(Error::Unavailable(why)) = demanded else { panic!("{name} on {kind}: {demanded:?}") };
            if inside.contains(&kind) {
                assert!(why.contains("the kernel refused the program"), "{name} on {kind}: {why}");
                assert!(reasons.iter().any(|reason| why.contains(reason)), "{name} on {kind}: {why}");
            }
        }
    }
}

/// The module's pages are read-only, and it has sixteen places for the next reads.
#[test]
fn what_writes_where_the_module_lets_nobody_write_is_refused() {
    if !has_module() {
        return;
    }
    let engine = engine();
    let (_dir, file) = planted(&engine);
    for (name, objects, reason) in [
        ("writes_the_page", objects!("writes_the_page"), "cannot write into"),
        ("writes_behind_the_places", objects!("writes_behind_the_places"), "invalid access"),
    ] {
        let only = Options::new().only(EngineKind::Module);
        let program = Odd { objects, step: |_, _, _| Next::Over };
        match KernelWalk::open_with(&engine, &file, program, only) {
            Err(Error::Unavailable(why)) => assert!(why.contains(reason), "{name}: {why}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// The kernel attaches a structure of which no member has a program. The module used it as a step, and called the address 0 when
/// the first page arrived.
#[test]
fn a_structure_without_a_step_is_refused() {
    if !has_module() {
        return;
    }
    let engine = engine();
    let (_dir, file) = planted(&engine);
    let only = Options::new().only(EngineKind::Module);
    let program = Odd { objects: objects!("has_no_step"), step: |_, _, _| Next::Over };
    let why = match KernelWalk::open_with(&engine, &file, program, only) {
        Err(Error::Unavailable(why)) => why,
        Ok(walk) => panic!("it was attached, and a walk ends with {:?}", walk.walk(&(0, 0)).wait()),
        Err(other) => panic!("{other:?}"),
    };
    assert!(why.contains("the program cannot be attached") && why.contains("Invalid argument"), "{why}");
}

#[test]
fn what_is_no_program_is_refused_with_words() {
    let engine = engine();
    let (_dir, file) = planted(&engine);
    let whole: [&[u8]; 2] = objects!("never_ends");
    for objects in [[&[][..]; 2], [&[1, 2, 3][..]; 2], whole.map(|object| &object[..1000])] {
        let program = Odd { objects, step: |_, _, _| Next::Over };
        let walk = KernelWalk::open(&engine, &file, program).expect("the reactor at least");
        assert_eq!(walk.engine(), EngineKind::Reactor);
        assert!(walk.why().contains("not possible: "), "{}", walk.why());
    }
}

#[test]
fn a_walk_that_goes_in_a_circle_ends_after_its_hops() {
    let engine = engine();
    let (_dir, file) = planted(&engine);
    for (kind, walk) in engines(&engine, &file, || NEVER_ENDS, Options::new()) {
        for _ in 0..3 {
            let answers = walk.walk_many(&[(0, 0); 100]).wait().expect("not on a shard");
            for answer in answers {
                assert!(matches!(answer, Err(Error::TooManyHops { limit: 64, .. })), "{kind}: {answer:?}");
            }
        }
    }
}

#[test]
fn nonsense_is_an_answer_that_fails_the_walk() {
    let engine = engine();
    let (_dir, file) = planted(&engine);
    let program = || Odd {
        objects: objects!("answers_nonsense"),
        step: |_, at, scratch| match scratch.u64(0) {
            1 => Next::Wait,
            3 => Next::Read(Positions::default()),
            _ => Next::Read([at; 17].into_iter().collect()),
        },
    };
    for (kind, walk) in engines(&engine, &file, program, Options::new()) {
        for what in 1..=4 {
            let answer = walk.walk(&(4096, what)).wait();
            assert!(matches!(answer, Err(Error::BadAnswer { offset: 4096, .. })), "{kind}: {answer:?}");
        }
    }
}

/// For io_uring the offset -1 is the descriptor's current position: a page with that offset made the loop read the file's start and
/// continue from it, where the reactor reported an invalid position.
#[test]
fn a_page_that_leads_anywhere_gives_the_same_error_everywhere() {
    let engine = engine();
    let dir = tempfile::tempdir().expect("a directory");
    let places: [u64; 8] =
        [4096 * 100, 1, 4095, 511, 1 << 63, u64::MAX, u64::MAX - 4095, i64::MAX as u64 - 4095];
    let mut bytes = vec![0; 4096 * places.len()];
    for (page, place) in bytes.chunks_mut(4096).zip(places) {
        page[..8].copy_from_slice(&place.to_le_bytes());
    }
    let path = dir.path().join("places");
    std::fs::write(&path, &bytes).expect("the directory takes files");
    let file = engine.open(&path, Open::read()).wait().expect("a file that was just written");
    let program = || Odd {
        objects: objects!("follows_the_page"),
        step: |page, _, _| Next::read(page.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))),
    };
    let all = engines(&engine, &file, program, Options::new());
    for (index, place) in places.iter().enumerate() {
        let answers: Vec<String> =
            all.iter().map(|(_, walk)| told(walk.walk(&(index as u64 * 4096, 0)).wait())).collect();
        eprintln!("{place:#x}: {}", answers[0]);
        assert!(answers[0] != "()" && answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    }
}

/// A user who may not load programs gets the reactor, and a report of the missing rights.
#[test]
fn a_user_without_rights_walks_in_the_reactor() {
    let engine = engine();
    let (_dir, file) = planted(&engine);
    let has_any = !inside(&engine, &file).is_empty();
    std::thread::spawn(move || {
        drop_capabilities();
        let walk = KernelWalk::open(&engine, &file, NEVER_ENDS).expect("the reactor at least");
        assert_eq!(walk.engine(), EngineKind::Reactor);
        if has_any {
            assert!(walk.why().contains("CAP_BPF"), "{}", walk.why());
        }
        let answer = walk.walk(&(0, 0)).wait();
        assert!(matches!(answer, Err(Error::TooManyHops { .. })), "{answer:?}");
    })
    .join()
    .expect("the thread has seen what it should");
}

/// A process is killed with walks in the kernel. Its remains are the kernel's to clear away: the log is
/// checked by the person who runs this in a virtual machine. The file system can be used and the program
/// loaded as before.
#[test]
fn a_process_that_is_killed_leaves_nothing_behind() {
    let engine = engine();
    let (_dir, file) = planted(&engine);
    let myself = std::env::current_exe().expect("this test has a file");
    for _ in 0..5 {
        let mut command = Command::new(&myself);
        command
            .args(["--exact", "programs::walks_until_it_is_killed", "--ignored", "--nocapture"])
            .env("FOREBAY_KERNEL_FILE", file.path())
            .stdout(Stdio::piped());
        let mut child = spawn(&mut command);
        let out = child.stdout.take().expect("its output");
        let told = std::io::BufRead::lines(std::io::BufReader::new(out))
            .any(|line| line.is_ok_and(|line| line.contains("walking")));
        assert!(told, "the other process never walked");
        child.kill().expect("it runs");
        child.wait().expect("and is gone");
    }
    for (kind, walk) in engines(&engine, &file, || TreeLookup { node_bytes: 4096 }, Options::new()) {
        assert!(walk.walk(&Lookup { root: 0, level: 0, key: 1 }).wait().is_ok(), "{kind}");
    }
}

#[test]
#[ignore = "the other process of a_process_that_is_killed_leaves_nothing_behind"]
fn walks_until_it_is_killed() {
    let Ok(path) = std::env::var("FOREBAY_KERNEL_FILE") else { return };
    let engine = engine();
    let file = engine.open(path, Open::read()).wait().expect("the file of the other test");
    let walk = KernelWalk::open(&engine, &file, NEVER_ENDS).expect("the reactor at least");
    for round in 0_u64.. {
        let walks = walk.walk_many(&[(0, 0); 200]);
        if round == 3 {
            println!("walking");
        }
        drop(walks.wait());
    }
}

/// A device fails one page: the walk that reads it fails, the others do not. FOREBAY_KERNEL_BAD_DEVICES names
/// block devices, separated by commas, of which bytes 40,960 to 45,055 cannot be read.
#[test]
fn an_error_of_the_device_in_the_middle_of_a_walk_is_that_walks() {
    let Ok(devices) = std::env::var("FOREBAY_KERNEL_BAD_DEVICES") else {
        eprintln!("FOREBAY_KERNEL_BAD_DEVICES names no device");
        return;
    };
    devices.split(',').for_each(walks_on_bad_device);
}

fn walks_on_bad_device(device: &str) {
    let engine = engine();
    let mut pages = vec![0_u8; 20 * 4096];
    for (index, page) in pages.chunks_mut(4096).enumerate() {
        // Pages lead to the tenth, except the tenth and a few that lead to themselves.
        let next = if index < 5 { 40_960 } else { index as u64 * 4096 };
        page[..8].copy_from_slice(&next.to_le_bytes());
    }
    let writer = std::fs::OpenOptions::new().write(true).open(device).expect("the device is there");
    for index in (0..20).filter(|index| *index != 10) {
        let at = index * 4096;
        std::os::unix::fs::FileExt::write_all_at(&writer, &pages[at..at + 4096], at as u64)
            .expect("pages are written");
    }
    writer.sync_all().expect("to the device");
    let file = engine.open(device, Open::read()).wait().expect("a block device is a file");
    let program = || Odd {
        objects: objects!("follows_the_page"),
        step: |page, _, _| Next::read(page.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))),
    };
    // Not every target of the device mapper can report that a read would have to wait.
    let refused = device.starts_with("/dev/mapper/").then_some((EngineKind::BpfLoop, "RWF_NOWAIT"));
    for (kind, walk) in engines_but(&engine, &file, program, Options::new(), refused) {
        let roots: Vec<(u64, u64)> = (0..100).map(|index| (index % 8 * 4096, 0)).collect();
        for ((root, _), answer) in roots.iter().zip(walk.walk_many(&roots).wait().expect("not on a shard")) {
            match answer {
                Err(Error::Io { offset: 40_960, hop: 2, source, .. }) => {
                    assert!(*root < 5 * 4096, "{kind}");
                    assert_eq!(source.raw_os_error(), Some(libc::EIO), "{kind}");
                }
                Err(Error::TooManyHops { .. }) => assert!(*root >= 5 * 4096, "{kind}"),
                other => panic!("{kind}: {other:?}"),
            }
        }
    }
}
