//! Walks that no caller waits for, sessions that end with walks in flight, many threads on one session.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Tree, engine, engines};
use forebay::{Class, Config, DriverChoice, Engine};
use forebay_kernel::{
    EngineKind, Error, KernelWalk, LocalWalk, Lookup, Next, Options, Program, Scratch, TreeLookup,
};

const PROGRAM: fn() -> TreeLookup = || TreeLookup { node_bytes: 4096 };

#[test]
fn many_threads_share_a_session() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let tree = Tree::new(4096, 60, 5, 40);
    let file = tree.plant(&engine, &dir.path().join("tree"));
    let options = Options::new().depth(4);
    for (kind, walk) in engines(&engine, &file, PROGRAM, options) {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (walk, tree) = (&walk, &tree);
                scope.spawn(move || {
                    for key in (0..200).map(|key| key * 8 + thread) {
                        let lookup = Lookup { root: tree.root(5, key), level: 4, key };
                        assert_eq!(
                            walk.walk(&lookup).wait().ok(),
                            Some(tree.lookup(lookup.root, key)),
                            "{kind}"
                        );
                    }
                });
            }
        });
        assert_eq!(walk.stats().walks, 1600);
    }
}

#[test]
fn walks_that_were_dropped_leave_room_for_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let tree = Tree::new(4096, 60, 5, 40);
    let file = tree.plant(&engine, &dir.path().join("tree"));
    let options = Options::new().depth(2);
    for (kind, walk) in engines(&engine, &file, PROGRAM, options) {
        for key in 0..300 {
            let lookup = Lookup { root: tree.root(5, key), level: 4, key };
            drop(walk.walk(&lookup));
            if key % 50 == 0 {
                assert_eq!(walk.walk(&lookup).wait().ok(), Some(tree.lookup(lookup.root, key)), "{kind}");
            }
        }
    }
}

#[test]
fn a_session_ends_with_walks_in_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let tree = Tree::new(4096, 60, 6, 40);
    let file = tree.plant(&engine, &dir.path().join("tree"));
    for round in 0..20 {
        for (kind, walk) in engines(&engine, &file, PROGRAM, Options::new()) {
            let lookups: Vec<Lookup> =
                (0..100 + round).map(|key| Lookup { root: tree.root(6, key), level: 5, key }).collect();
            let walks = walk.walk_many(&lookups);
            drop(walk);
            for (lookup, found) in lookups.iter().zip(walks.wait().expect("not on a shard")) {
                match found {
                    Ok(value) => assert_eq!(value, tree.lookup(lookup.root, lookup.key), "{kind}"),
                    Err(Error::Closed) => assert_ne!(kind, EngineKind::Reactor),
                    Err(other) => panic!("{kind}: {other}"),
                }
            }
        }
    }
}

#[test]
fn a_shard_awaits_walks_and_must_not_wait_for_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let tree = Tree::new(4096, 60, 4, 40);
    let file = tree.plant(&engine, &dir.path().join("tree"));
    for (kind, walk) in engines(&engine, &file, PROGRAM, Options::new()) {
        let lookup = Lookup { root: tree.root(4, 9), level: 3, key: 9 };
        let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let refused = walk.walk(&lookup).wait();
            assert!(matches!(refused, Err(Error::WaitOnShard)), "{kind}");
            let one = walk.walk(&lookup).await;
            let many = walk.walk_many(&[lookup, lookup]).await;
            (one.ok(), many.into_iter().map(Result::ok).collect::<Vec<_>>())
        });
        let expected = Some(tree.lookup(lookup.root, 9));
        assert_eq!(task.wait().expect("the task ends"), (expected, vec![expected, expected]), "{kind}");
    }
}

/// The threads driver has no ring; walks have their own, and the choice is reported.
#[test]
fn the_choice_is_told_whatever_the_driver() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = Engine::start(Config::new().driver(DriverChoice::Threads)).expect("an engine");
    let tree = Tree::new(4096, 60, 2, 10);
    let file = tree.plant(&engine, &dir.path().join("tree"));
    let walk = KernelWalk::open(&engine, &file, PROGRAM()).expect("the reactor at least");
    match walk.engine() {
        EngineKind::Reactor => assert!(walk.why().contains("not possible: "), "{}", walk.why()),
        kind => assert!(walk.why().starts_with(&kind.to_string()), "{}", walk.why()),
    }
    let lookup = Lookup { root: tree.root(2, 9), level: 1, key: 9 };
    assert_eq!(walk.walk(&lookup).wait().ok(), Some(tree.lookup(lookup.root, 9)));
}

#[test]
fn pages_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let file = Tree::new(4096, 60, 1, 1).plant(&engine, &dir.path().join("tree"));
    for node_bytes in [0, 256, 1000, 5000, 131_072] {
        let refused = KernelWalk::open(&engine, &file, TreeLookup { node_bytes });
        assert!(matches!(refused, Err(Error::Unavailable(_))), "{node_bytes}");
    }
}

/// Returns how many worker threads io_uring may make for this thread, of those for files and of the others.
fn workers_max(ring: &OwnedFd) -> [u32; 2] {
    const IOWQ_MAX_WORKERS: u32 = 19;
    let mut limits = [0_u32; 2];
    let (fd, at) = (ring.as_raw_fd(), limits.as_mut_ptr());
    // SAFETY: the kernel reads two words, of which 0 changes nothing, and writes two.
    let answer = unsafe { libc::syscall(libc::SYS_io_uring_register, fd, IOWQ_MAX_WORKERS, at, 2) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    limits
}

/// A loop's thread has one worker of a kind; a thread of the program regains the other workers when its last loop is dropped.
#[test]
fn a_thread_gets_its_workers_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let tree = Tree::new(4096, 60, 5, 40);
    drop(tree.plant(&engine, &dir.path().join("tree")));
    let file = std::fs::File::open(dir.path().join("tree")).expect("just planted");
    // struct io_uring_params, all zeros.
    let mut params = [0_u8; 120];
    // SAFETY: the kernel fills the structure.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, params.as_mut_ptr()) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new.
    let ring = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let before = workers_max(&ring);
    assert!(before[0] > 1 && before[1] > 1, "{before:?}");
    let only = Options::new().only(EngineKind::BpfLoop);
    let open = || LocalWalk::open_with(&file, PROGRAM(), only);
    let first = match open() {
        Ok(walk) => walk,
        Err(why) => {
            let demanded = std::env::var("FOREBAY_KERNEL_ENGINES").unwrap_or_default();
            assert!(!demanded.contains("bpf-loop"), "{why}");
            return eprintln!("no loop here: {why}");
        }
    };
    assert_eq!(workers_max(&ring), [1, 1]);
    let second = open().expect("a thread has as many as it likes");
    drop(first);
    assert_eq!(workers_max(&ring), [1, 1]);
    drop(second);
    assert_eq!(workers_max(&ring), before);
    drop(open().expect("and again"));
    assert_eq!(workers_max(&ring), before);
}

/// The thread of the loop's walks ended with a panic of the program's own end, and walks that it had were never over. Such a panic
/// is that walk's error on every engine, and the next walk has its result.
#[test]
fn a_program_that_panics_ends_neither_shard_nor_thread() {
    static PANICS: AtomicBool = AtomicBool::new(true);
    struct Panics(TreeLookup);
    impl Program for Panics {
        type Args = Lookup;
        type Output = u64;

        fn name(&self) -> &'static str {
            self.0.name()
        }

        fn page_bytes(&self) -> u32 {
            self.0.page_bytes()
        }

        fn object(&self) -> Option<&[u8]> {
            self.0.object()
        }

        fn module_object(&self) -> Option<&[u8]> {
            self.0.module_object()
        }

        fn begin(&self, args: &Lookup, scratch: &mut Scratch) -> u64 {
            self.0.begin(args, scratch)
        }

        fn step(&self, page: &[u8], at: u64, scratch: &mut Scratch) -> Next {
            self.0.step(page, at, scratch)
        }

        fn end(&self, scratch: &Scratch, page: &[u8]) -> u64 {
            assert!(!PANICS.load(Ordering::SeqCst), "this program panics");
            self.0.end(scratch, page)
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let tree = Tree::new(4096, 60, 5, 40);
    let file = tree.plant(&engine, &dir.path().join("tree"));
    let one = Lookup { root: tree.root(5, 5), level: 4, key: 5 };
    for (kind, walk) in engines(&engine, &file, || Panics(PROGRAM()), Options::new()) {
        PANICS.store(true, Ordering::SeqCst);
        let others = walk.walk_many(&[one, one]);
        let failed = walk.walk(&one).wait();
        assert!(matches!(&failed, Err(Error::Core(_))), "{kind}: as in the reactor: {failed:?}");
        for failed in others.wait().expect("not on a shard") {
            assert!(matches!(&failed, Err(Error::Core(_))), "{kind}: {failed:?}");
        }
        PANICS.store(false, Ordering::SeqCst);
        assert_eq!(walk.walk(&one).wait().ok(), Some(tree.lookup(one.root, 5)), "{kind}");
    }
}
