//! Walks of one thread on one file after another.

mod common;

use std::fs::File;
use std::os::fd::AsRawFd;

use common::Tree;
use forebay_kernel::{EngineKind, Error, LocalWalk, Lookup, Options, TreeLookup};

const PROGRAM: TreeLookup = TreeLookup { node_bytes: 512 };

fn look_up(walk: &mut LocalWalk<TreeLookup>, tree: &Tree, key: u64) -> Result<u64, Error> {
    let root = tree.root(3, key);
    walk.begin(&Lookup { root, level: 2, key }).expect("there is room");
    let mut result = None;
    walk.run(1, |finished| result = Some(finished.result)).expect("the loop runs");
    result.expect("the walk is over")
}

/// Takes the lock that an open file has until its last descriptor is closed. Returns `false` if it is taken.
fn lock(file: &File) -> bool {
    // SAFETY: the call touches no memory.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

#[test]
fn a_session_goes_from_file_to_file_and_keeps_none_open() {
    let dir = tempfile::tempdir().expect("a directory");
    let plant = |name: &str, nodes: u64| {
        let (tree, path) = (Tree::new(512, 12, 3, nodes), dir.path().join(name));
        std::fs::write(&path, &tree.bytes).expect("the directory takes files");
        (tree, path)
    };
    let ((one, first), (other, second)) = (plant("one", 40), plant("other", 70));
    let file = File::open(&first).expect("just written");
    // The module keeps to one file.
    let mut options = Options::default();
    (options.only, options.depth) = (Some(EngineKind::BpfLoop), 2);
    let mut walk = match LocalWalk::open_with(&file, PROGRAM, options) {
        Ok(walk) => walk,
        Err(error) => {
            let demanded = std::env::var("FOREBAY_KERNEL_ENGINES").unwrap_or_default();
            assert!(!demanded.contains("bpf-loop"), "{error}");
            return eprintln!("not possible here: {error}");
        }
    };
    assert!(lock(&file), "nobody else has it");
    drop(file);
    let again = File::open(&first).expect("still there");
    assert!(!lock(&again), "the session keeps the file open");
    for key in 0..50 {
        let root = one.root(3, key);
        assert_eq!(look_up(&mut walk, &one, key).expect("a leaf"), one.lookup(root, key));
    }
    walk.turn_to(&File::open(&second).expect("just written")).expect("nothing is under way");
    assert!(lock(&again), "the session has let it go");
    for key in 0..50 {
        let root = other.root(3, key);
        assert_eq!(look_up(&mut walk, &other, key).expect("a leaf"), other.lookup(root, key));
    }
    walk.begin(&Lookup { root: other.root(3, 1), level: 2, key: 1 }).expect("there is room");
    assert!(matches!(walk.turn_to(&again), Err(Error::Unavailable(_))), "a walk is under way");
    assert!(matches!(walk.let_go(), Err(Error::Unavailable(_))), "a walk is under way");
    walk.run(1, |finished| assert!(finished.result.is_ok())).expect("the loop runs");
    walk.let_go().expect("nothing is under way");
    match look_up(&mut walk, &other, 1) {
        Err(Error::Io { source, hop: 1, .. }) => assert_eq!(source.raw_os_error(), Some(libc::EBADF)),
        other => panic!("{other:?}"),
    }
    walk.turn_to(&again).expect("nothing is under way");
    assert_eq!(look_up(&mut walk, &one, 7).expect("a leaf"), one.lookup(one.root(3, 7), 7));
}
