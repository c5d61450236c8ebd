//! The same trees and the same keys on every available engine: identical results, errors included.

use std::future::Future as _;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::common::{Tree, counted, engine, engines, mix, told};
use forebay::Open;
use forebay_kernel::{Count, EngineKind, Error, Lookup, Options, TreeCount, TreeLookup};

#[test]
fn lookups_of_every_depth_find_what_a_search_in_memory_finds() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    for (node_bytes, fan_out) in [(512, 2), (512, 30), (4096, 17), (4096, 254)] {
        let tree = Tree::new(node_bytes, fan_out, 6, 40);
        let file = tree.plant(&engine, &dir.path().join(format!("tree-{node_bytes}-{fan_out}")));
        let program = || TreeLookup { node_bytes: node_bytes as u32 };
        if file.alignment().read_offset as usize > node_bytes {
            eprintln!("nodes of {node_bytes} bytes are smaller than a read of this file system");
            continue;
        }
        for (kind, walk) in engines(&engine, &file, program, Options::new()) {
            for depth in 1..=6 {
                let lookups: Vec<Lookup> = (0..300)
                    .map(|key| Lookup { root: tree.root(depth, key), level: (depth - 1) as u16, key })
                    .collect();
                let found = walk.walk_many(&lookups).wait().expect("not on a shard");
                for (lookup, found) in lookups.iter().zip(found) {
                    let expected = tree.lookup(lookup.root, lookup.key);
                    assert_eq!(found.ok(), Some(expected), "{kind}, depth {depth}, {lookup:?}");
                }
            }
            let one = Lookup { root: tree.root(6, 5), level: 5, key: 5 };
            assert_eq!(walk.walk(&one).wait().ok(), Some(tree.lookup(one.root, 5)));
            assert_eq!((walk.stats().walks, walk.stats().fell_back), (6 * 300 + 1, 0));
        }
    }
}

/// A walk has 64 hops at most, so that is the deepest tree; one more level is one hop too many, on every engine.
#[test]
fn trees_of_up_to_sixty_four_levels() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    for node_bytes in [512, 4096] {
        let tree = Tree::new(node_bytes, 7, 65, 6);
        let file = tree.plant(&engine, &dir.path().join(format!("tree-{node_bytes}")));
        let program = || TreeLookup { node_bytes: node_bytes as u32 };
        if file.alignment().read_offset as usize > node_bytes {
            eprintln!("nodes of {node_bytes} bytes are smaller than a read of this file system");
            continue;
        }
        for (kind, walk) in engines(&engine, &file, program, Options::new()) {
            for depth in [1, 2, 7, 16, 33, 63, 64] {
                let lookups: Vec<Lookup> = (0..40)
                    .map(|key| Lookup { root: tree.root(depth, key), level: (depth - 1) as u16, key })
                    .collect();
                let found = walk.walk_many(&lookups).wait().expect("not on a shard");
                for (lookup, found) in lookups.iter().zip(found) {
                    let expected = tree.lookup(lookup.root, lookup.key);
                    assert_eq!(found.ok(), Some(expected), "{kind}, depth {depth}, {lookup:?}");
                }
            }
            let deeper = walk.walk(&Lookup { root: tree.root(65, 1), level: 64, key: 1 }).wait();
            assert!(matches!(deeper, Err(Error::TooManyHops { limit: 64, .. })), "{kind}: {deeper:?}");
        }
    }
}

#[test]
fn ranges_are_counted_over_up_to_sixteen_leaves_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let tree = Tree::new(4096, 60, 4, 50);
    let file = tree.plant(&engine, &dir.path().join("tree"));
    let mut most = 0;
    for (kind, walk) in engines(&engine, &file, || TreeCount { node_bytes: 4096 }, Options::new()) {
        for key in 0..400 {
            let (one, other) = (mix(key), mix(key + 1000));
            let width = [u64::MAX, u64::MAX / 5, u64::MAX / 60, 10][key as usize / 4 % 4];
            let low = one.min(other);
            let high = low.saturating_add(width);
            let level = (key % 4) as u16;
            let count = Count { root: tree.root(key % 4 + 1, key), level, key, low, high };
            let found = walk.walk(&count).wait().map(counted);
            assert_eq!(found.ok(), Some(tree.count(&count)), "{kind}, {count:?}");
            most = most.max(tree.count(&count).1);
        }
        let empty = Count { root: tree.root(2, 1), level: 1, key: 1, low: 9, high: 8 };
        assert_eq!(walk.walk(&empty).wait().map(counted).ok(), Some(tree.count(&empty)), "{kind}");
    }
    assert_eq!(most, 16);
}

/// Every engine reports a failure in the same words.
#[test]
fn failures_are_the_same_everywhere() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let mut tree = Tree::new(4096, 100, 3, 20);
    let far = 1 << 40;
    // Nodes of level 2 with one record each, which leads to the place that a case needs.
    let lead = |tree: &mut Tree, node: u64, to: u64| {
        let at = tree.position(2, node) as usize;
        let head = tree.word(at) & 0xffff_ffff_ffff | 1 << 48;
        tree.put(at, head);
        tree.put(at + 32, to);
        tree.position(2, node)
    };
    let end = tree.bytes.len() as u64;
    let to_itself = tree.position(2, 0);
    let broken = tree.position(1, 3);
    tree.put(broken as usize, 17);
    let misplaced = tree.position(1, 4);
    tree.put(misplaced as usize + 8, misplaced + 1);
    let greedy = tree.position(2, 9);
    let head = tree.word(greedy as usize) & 0xffff_ffff_ffff | 300 << 48;
    tree.put(greedy as usize, head);
    let cases = [
        ("a circle", lead(&mut tree, 0, to_itself)),
        ("a damaged node", lead(&mut tree, 1, broken)),
        ("a node that belongs elsewhere", lead(&mut tree, 2, misplaced)),
        ("a page behind the end", lead(&mut tree, 3, end + 8192)),
        ("a page that the end cuts", lead(&mut tree, 4, end)),
        ("a page far behind the end", lead(&mut tree, 5, far)),
        ("a page at no aligned place", lead(&mut tree, 6, 4096 + 100)),
        ("a place that no file has", lead(&mut tree, 7, u64::MAX - 4095)),
        ("a negative place", lead(&mut tree, 8, 1 << 63)),
        ("more records than a node has room for", greedy),
        ("a root behind the end", far),
        ("an unaligned root", 512 * 3 + 1),
    ];
    // The file ends in the middle of a page.
    tree.bytes.extend([7; 1000]);
    let path = dir.path().join("tree");
    let file = tree.plant(&engine, &path);
    for (case, root) in cases {
        let lookup = Lookup { root, level: 2, key: 1 };
        let program = || TreeLookup { node_bytes: 4096 };
        let answers: Vec<(String, String)> = engines(&engine, &file, program, Options::new())
            .into_iter()
            .map(|(kind, walk)| (kind.to_string(), told(walk.walk(&lookup).wait())))
            .collect();
        let (_, first) = &answers[0];
        eprintln!("{case}: {first}");
        assert!(answers.iter().all(|(_, answer)| answer == first), "{case}: {answers:?}");
        let number = first.parse::<u64>();
        assert!(number.is_err(), "{case} has a result: {first}");
    }
}

#[test]
fn the_hops_are_limited_as_was_asked() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let tree = Tree::new(4096, 20, 6, 10);
    let file = tree.plant(&engine, &dir.path().join("tree"));
    for hops_max in 1..=6 {
        let options = Options::new().hops_max(hops_max);
        for (kind, walk) in engines(&engine, &file, || TreeLookup { node_bytes: 4096 }, options) {
            for depth in 1..=6 {
                let answer = walk
                    .walk(&Lookup { root: tree.root(depth, 3), level: (depth - 1) as u16, key: 3 })
                    .wait();
                match answer {
                    Ok(_) => assert!(depth <= u64::from(hops_max), "{kind}"),
                    Err(Error::TooManyHops { limit, .. }) => {
                        assert!(depth > u64::from(hops_max) && limit == hops_max, "{kind}");
                    }
                    Err(other) => panic!("{kind}: {other}"),
                }
            }
        }
    }
}

/// The page cache returns the same as the device, and a file that is open twice has walks on both.
#[test]
fn a_buffered_file_and_a_second_session_answer_the_same() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let tree = Tree::new(512, 30, 4, 64);
    let path = dir.path().join("tree");
    tree.plant(&engine, &path);
    let buffered = engine.open(&path, Open::read().buffered()).wait().expect("the same file");
    let program = || TreeLookup { node_bytes: 512 };
    let one = engines(&engine, &buffered, program, Options::new());
    let other = engines(&engine, &buffered, program, Options::new());
    for key in 0..200 {
        let lookup = Lookup { root: tree.root(4, key), level: 3, key };
        for (kind, walk) in one.iter().chain(&other) {
            assert_eq!(walk.walk(&lookup).wait().ok(), Some(tree.lookup(lookup.root, key)), "{kind}");
        }
    }
}

/// A file is cut short, and written to, while walks are on it: they find the new bytes or fail, and continue
/// afterwards.
#[test]
fn a_file_that_changes_gives_errors_and_no_nonsense() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let tree = Tree::new(4096, 50, 3, 60);
    let path = dir.path().join("tree");
    let file = tree.plant(&engine, &path);
    let lookups: Vec<Lookup> =
        (0..500).map(|key| Lookup { root: tree.root(3, key), level: 2, key }).collect();
    let writer = std::fs::OpenOptions::new().write(true).open(&path).expect("the same file");
    // The module keeps writers away instead: the tests in module.rs.
    let all = engines(&engine, &file, || TreeLookup { node_bytes: 4096 }, Options::new()).into_iter();
    let (pinning, changing): (Vec<_>, Vec<_>) = all.partition(|(kind, _)| *kind == EngineKind::Module);
    pinning.into_iter().for_each(|(_, walk)| walk.close());
    for (kind, walk) in changing {
        let walks = walk.walk_many(&lookups);
        writer.set_len(tree.bytes.len() as u64 / 2 + 100).expect("a file can be cut");
        for (lookup, found) in lookups.iter().zip(walks.wait().expect("not on a shard")) {
            match found {
                Ok(value) => assert_eq!(value, tree.lookup(lookup.root, lookup.key), "{kind}"),
                Err(Error::UnexpectedEof { .. } | Error::Failed { .. }) => {}
                Err(other) => panic!("{kind}: {other}"),
            }
        }
        let walks = walk.walk_many(&lookups);
        writer.write_all_at(&tree.bytes, 0).expect("and written again");
        writer.sync_all().expect("to the device");
        drop(walks);
        let found = walk.walk_many(&lookups).wait().expect("not on a shard");
        for (lookup, found) in lookups.iter().zip(found) {
            assert_eq!(found.ok(), Some(tree.lookup(lookup.root, lookup.key)), "{kind}");
        }
    }
    // Its name may be removed: the descriptor keeps the file.
    std::fs::remove_file(&path).expect("the name goes");
    for (kind, walk) in engines(&engine, &file, || TreeLookup { node_bytes: 4096 }, Options::new()) {
        let lookup = &lookups[3];
        assert_eq!(walk.walk(lookup).wait().ok(), Some(tree.lookup(lookup.root, lookup.key)), "{kind}");
    }
}

/// An inner node whose level a flipped bit had made 0 was treated as a leaf: the lookup's result was the position of its child, in
/// every engine. Each node must be one level below the one before it.
#[test]
fn a_node_of_another_level_than_its_parent_says_is_damaged_everywhere() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let whole = Tree::new(4096, 20, 4, 16);
    for (level, said) in (0..4_u64).flat_map(|level| (0..5_u64).map(move |said| (level, said))) {
        if level == said {
            continue;
        }
        let mut tree = Tree::new(4096, 20, 4, 16);
        for node in 0..tree.nodes {
            let at = tree.position(level, node) as usize;
            let head = tree.word(at) & !(0xffff << 32) | said << 32;
            tree.put(at, head);
        }
        let file = tree.plant(&engine, &dir.path().join(format!("tree {level} {said}")));
        let damaged = |answer: Result<(), Error>| match answer {
            Err(Error::Failed { code, offset, .. }) => {
                code == forebay_kernel::TREE_DAMAGED && offset / 4096 % 4 == level
            }
            _ => false,
        };
        for (kind, walk) in engines(&engine, &file, || TreeLookup { node_bytes: 4096 }, Options::new()) {
            for key in 0..20 {
                let lookup = Lookup { root: whole.root(4, key), level: 3, key };
                let answer = walk.walk(&lookup).wait().map(drop);
                assert!(damaged(answer), "{kind}: level {level} says {said}, key {key}");
            }
        }
        for (kind, walk) in engines(&engine, &file, || TreeCount { node_bytes: 4096 }, Options::new()) {
            let count = Count { root: whole.root(4, 3), level: 3, key: 3, low: 0, high: u64::MAX };
            let answer = walk.walk(&count).wait().map(drop);
            assert!(damaged(answer), "{kind}: a count where level {level} says {said}");
        }
    }
}

/// Regression: a batch registered its waker with each of its walks, so that the thread in the kernel woke the waiting thread up to
/// 256 times for 256 lookups: 1.31 times the instructions of a bare ring, where a lone session needed 1.05.
#[test]
fn a_batch_is_woken_a_few_times_and_not_for_each_walk() {
    struct WakeCounter {
        wakes: AtomicU32,
        waiting: Thread,
    }
    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.wakes.fetch_add(1, Ordering::SeqCst);
            self.waiting.unpark();
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let tree = Tree::new(4096, 17, 6, 40);
    let file = tree.plant(&engine, &dir.path().join("tree"));
    let lookups: Vec<Lookup> =
        (0..256).map(|key| Lookup { root: tree.root(6, key), level: 5, key }).collect();
    for (kind, walk) in engines(&engine, &file, || TreeLookup { node_bytes: 4096 }, Options::new()) {
        if kind == EngineKind::Reactor {
            continue;
        }
        let counting = Arc::new(WakeCounter { wakes: AtomicU32::new(0), waiting: thread::current() });
        let waker = Waker::from(Arc::clone(&counting));
        let mut batch = walk.walk_many(&lookups);
        let results = loop {
            match Pin::new(&mut batch).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(results) => break results,
                Poll::Pending => thread::park(),
            }
        };
        for (lookup, found) in lookups.iter().zip(results) {
            assert_eq!(found.ok(), Some(tree.lookup(lookup.root, lookup.key)), "{kind}");
        }
        let wakes = counting.wakes.load(Ordering::SeqCst);
        assert!(wakes <= 40, "{kind}: {wakes} wakes for {} walks", lookups.len());
    }
}
