//! Walks of one thread on one file after another.

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::common::Tree;
use forebay_kernel::{EngineKind, Error, LocalWalk, Lookup, Options, TreeLookup};

const PROGRAM: TreeLookup = TreeLookup { node_bytes: 512 };

fn look_up(walk: &mut LocalWalk<TreeLookup>, tree: &Tree, key: u64) -> Result<u64, Error> {
    let root = tree.root(3, key);
    walk.begin(&Lookup { root, level: 2, key }).expect("there is room");
    let mut result = None;
    walk.run(1, |finished| result = Some(finished.result)).expect("the loop runs");
    result.expect("the walk is over")
}

/// Acquires the lock that an open file has until its last descriptor is closed. Returns `false` if it is held.
fn lock(file: &File) -> bool {
    // SAFETY: the call touches no memory.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

/// Opens the loop's engine on a file; `None` where it is not possible and not demanded.
fn open(file: &File, depth: u32) -> Option<LocalWalk<TreeLookup>> {
    // The module keeps to one file.
    let options = Options::new().only(EngineKind::BpfLoop).depth(depth);
    match LocalWalk::open_with(file, PROGRAM, options) {
        Ok(walk) => Some(walk),
        Err(error) => {
            let demanded = std::env::var("FOREBAY_KERNEL_ENGINES").unwrap_or_default();
            assert!(!demanded.contains("bpf-loop"), "{error}");
            eprintln!("not possible here: {error}");
            None
        }
    }
}

#[test]
fn walks_of_one_call_are_each_on_a_file_of_its_own() {
    let dir = tempfile::tempdir().expect("a directory");
    let plant = |number: u64| {
        let (tree, path) = (Tree::new(512, 12, 3, 20 + 5 * number), dir.path().join(number.to_string()));
        std::fs::write(&path, &tree.bytes).expect("the directory takes files");
        (tree, File::open(path).expect("just written"))
    };
    let mut planted: Vec<(Tree, File)> = (0..20).map(plant).collect();
    let Some(mut walk) = open(&planted[0].1, 16) else { return };
    for count in [1, 2, 15, 16, 17, 20, 100] {
        let walks = |at: u64| (&planted[(at * 7 % 20) as usize], at * 3);
        let starts = (0..count).map(|at| {
            let ((tree, file), key) = walks(at);
            (file, Lookup { root: tree.root(3, key), level: 2, key })
        });
        let mut found = vec![None; count as usize];
        walk.run_on(starts, |finished, _| {
            let scratch = finished.result.expect("a leaf");
            let before = found[finished.number as usize].replace(scratch.u64(8));
            assert!(before.is_none(), "each walk ends once");
        })
        .expect("the loop runs");
        for (at, found) in (0..count).zip(found) {
            let ((tree, _), key) = walks(at);
            assert_eq!(found, Some(tree.lookup(tree.root(3, key), key)), "walk {at} of {count}");
        }
    }
    let (enters, _) = walk.counts();
    assert!((7..40).contains(&enters), "{enters} system calls for 171 walks");
    // A file that is not open for reading, next to a readable file.
    let blind = std::fs::OpenOptions::new().write(true).open(dir.path().join("3")).expect("it exists");
    let lookup = |tree: &Tree| Lookup { root: tree.root(3, 1), level: 2, key: 1 };
    let mut results = [None, None];
    walk.run_on([(&blind, lookup(&planted[3].0)), (&planted[4].1, lookup(&planted[4].0))], |finished, _| {
        results[finished.number as usize] = Some(finished.result.map(|_| ()));
    })
    .expect("the loop runs");
    match &results[0] {
        Some(Err(Error::Io { source, hop: 1, .. })) => {
            assert_eq!(source.raw_os_error(), Some(libc::EBADF));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(results[1], Some(Ok(()))), "{results:?}");
    // Walks on the session's file continue as before.
    let tree = &planted[0].0;
    assert_eq!(look_up(&mut walk, tree, 9).expect("a leaf"), tree.lookup(tree.root(3, 9), 9));
    walk.begin(&lookup(tree)).expect("there is room");
    let refused = walk.run_on([(&planted[1].1, lookup(&planted[1].0))], |_, _| ());
    assert!(matches!(refused, Err(Error::Unavailable(_))), "a walk is under way");
    walk.run(1, |finished| assert!(finished.result.is_ok())).expect("the loop runs");
    // No file is kept open but the session's own.
    let (_, file) = planted.swap_remove(1);
    assert!(lock(&file), "nobody else has it");
    drop(file);
    assert!(lock(&File::open(dir.path().join("1")).expect("still there")), "the session does not keep it");
}

/// Regression: the session opened, and every walk failed with EBADF.
#[test]
fn a_file_that_is_not_open_for_reading_has_no_session() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("one");
    std::fs::write(&path, [1; 8192]).expect("the directory takes files");
    if open(&File::open(&path).expect("just written"), 1).is_none() {
        return;
    }
    let blind = std::fs::OpenOptions::new().write(true).open(&path).expect("just written");
    let error = LocalWalk::open_with(&blind, PROGRAM, Options::new().only(EngineKind::BpfLoop));
    let error = error.expect_err("it cannot read").to_string();
    assert!(error.contains("not opened for reading"), "{error}");
}

#[test]
fn a_call_that_is_cut_short_ends_the_session() {
    let dir = tempfile::tempdir().expect("a directory");
    let (tree, path) = (Tree::new(512, 12, 3, 40), dir.path().join("one"));
    std::fs::write(&path, &tree.bytes).expect("the directory takes files");
    let file = File::open(&path).expect("just written");
    let Some(mut walk) = open(&file, 2) else { return };
    let lookup = |key| Lookup { root: tree.root(3, key), level: 2, key };
    let cut = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        walk.run_on((0..5).map(|key| (&file, lookup(key))), |_, _| panic!("on purpose"))
    }));
    assert!(cut.is_err());
    assert!(matches!(walk.run(1, |_| ()), Err(Error::Unavailable(_))), "its walks would read closed files");
    let again = walk.run_on([(&file, lookup(1))], |_, _| ());
    assert!(matches!(again, Err(Error::Unavailable(_))));
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
    let Some(mut walk) = open(&file, 2) else { return };
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
