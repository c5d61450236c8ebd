//! A separate program: its tests fork.
//!
//! Forked children: they have their parent's handles, and neither its threads nor the memory of its walks. Their calls fail, nothing
//! of theirs hangs, and what they drop is the parent's all the same. Where no engine inside the kernel is possible these
//! tests try nothing. Walks on a shard's ring are in `on_shard.rs`.

mod common;

use std::fs::{File, OpenOptions};

use common::child::{are_mapped, fill_holes, in_child, mappings};
use common::{Tree, engine, has_module};
use forebay::{Config, DriverChoice, Engine};
use forebay_kernel::{EngineKind, Error, KernelWalk, LocalWalk, Lookup, Options, TreeLookup};

const PROGRAM: TreeLookup = TreeLookup { node_bytes: 4096 };
const LEVELS: u64 = 6;

fn lookup(tree: &Tree, key: u64) -> Lookup {
    Lookup { root: tree.root(LEVELS, key), level: LEVELS as u16 - 1, key }
}

/// Returns the engines inside the kernel that are possible here.
fn inside() -> Vec<EngineKind> {
    let demanded = std::env::var("FOREBAY_KERNEL_ENGINES").unwrap_or_default();
    let mut kinds = Vec::new();
    match forebay_kernel::probe(EngineKind::BpfLoop) {
        Ok(()) => kinds.push(EngineKind::BpfLoop),
        Err(why) => assert!(!demanded.contains("bpf-loop"), "the loop is demanded: {why}"),
    }
    if has_module() {
        kinds.push(EngineKind::Module);
    }
    kinds
}

fn only(kind: EngineKind, depth: u32) -> Options {
    Options::new().only(kind).depth(depth)
}

fn is_forked(error: &Error) -> bool {
    matches!(error, Error::Core(error) if error.kind() == forebay::ErrorKind::Forked)
}

/// A child waited forever for a walk, because the thread that would run it is its parent's alone, and it joined that thread.
#[test]
fn walks_that_have_a_thread_fail_in_a_child_and_go_on_in_the_parent() {
    for kind in inside() {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = Engine::start(Config::new().driver(DriverChoice::Threads)).expect("an engine");
        let (tree, path) = (Tree::new(4096, 50, LEVELS, 60), dir.path().join("tree"));
        let file = tree.plant(&engine, &path);
        let mut walk =
            KernelWalk::open_with(&engine, &file, PROGRAM, only(kind, 8)).expect("it is possible here");
        let one = lookup(&tree, 5);
        let expected = tree.lookup(one.root, 5);
        assert_eq!(walk.walk(&one).wait().ok(), Some(expected), "{kind}");
        for is_closed in [true, false] {
            let before = walk.walk_many(&[one; 40]);
            let mut handle = Some(walk);
            let mut begun = Some(before);
            in_child(|| {
                let walk = handle.take().expect("the child's copy");
                // Walks of the parent's: some may have ended before the fork.
                for ended in begun.take().expect("the child's copy").wait().expect("not on a shard") {
                    match ended {
                        Ok(found) if found == expected => {}
                        Err(error) if is_forked(&error) => {}
                        other => return Some(format!("{kind}: a walk from before: {other:?}")),
                    }
                }
                if walk.engine() != EngineKind::Reactor {
                    return Some(format!("{kind}: there is no thread for it"));
                }
                match walk.walk(&one).wait() {
                    Err(error) if is_forked(&error) => {}
                    other => return Some(format!("{kind}: {other:?}")),
                }
                if is_closed {
                    walk.close();
                } else {
                    drop(walk);
                }
                None
            });
            walk = handle.take().expect("the parent's own");
            for ended in begun.take().expect("the parent's own").wait().expect("not on a shard") {
                assert_eq!(ended.ok(), Some(expected), "{kind}");
            }
            assert_eq!(walk.walk(&one).wait().ok(), Some(expected), "{kind}");
        }
        assert_eq!((walk.engine(), walk.stats().fell_back), (kind, 0));
        walk.close();
        OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(0)).expect("it is free");
    }
}

/// A child's drop ended all walks of its parent's session of the module with ECANCELED, and unmapped memory that the child had
/// mapped where the session's memory is in the parent. Its calls wrote there.
#[test]
fn a_threads_own_walks_fail_in_a_child_and_go_on_in_the_parent() {
    for kind in inside() {
        let dir = tempfile::tempdir().expect("a directory");
        let (tree, path) = (Tree::new(4096, 50, LEVELS, 60), dir.path().join("tree"));
        tree.plant(&engine(), &path);
        let file = File::open(&path).expect("just written");
        let mut walk =
            Some(LocalWalk::open_with(&file, PROGRAM, only(kind, 32)).expect("it is possible here"));
        for round in 0..2 {
            let mut numbers = [0; 64];
            for key in 0..16 {
                let number =
                    walk.as_mut().and_then(|walk| walk.begin(&lookup(&tree, key))).expect("there is room");
                numbers[number as usize] = key;
            }
            let before = mappings();
            in_child(|| {
                let mut walk = walk.take().expect("the child's copy");
                let holes = fill_holes(&before);
                if holes.is_empty() {
                    return Some(format!("{kind}: the session has no memory of its own"));
                }
                if walk.begin(&lookup(&tree, 1)).is_some() {
                    return Some(format!("{kind}: a walk has begun"));
                }
                let failed = [
                    walk.run(1, |_| {}),
                    walk.run_for_pages(1, |_, _| {}),
                    walk.run_on([(&file, lookup(&tree, 1))], |_, _| {}),
                    walk.turn_to(&file),
                    walk.let_go(),
                ];
                for (call, failed) in failed.into_iter().enumerate() {
                    match failed {
                        Err(Error::Unavailable(why)) if why.contains("forked") => {}
                        other => return Some(format!("{kind}: call {call}: {other:?}")),
                    }
                }
                if walk.counts() != (0, 0) {
                    return Some(format!("{kind}: {:?}", walk.counts()));
                }
                if round == 0 {
                    drop(walk);
                } else {
                    std::thread::spawn(|| {}).join().expect("a thread of the child's");
                    drop(walk);
                    // A child that needs walks opens its own.
                    let mut own = match LocalWalk::open_with(&file, PROGRAM, only(kind, 4)) {
                        Ok(own) => own,
                        Err(why) => return Some(format!("{kind}: {why}")),
                    };
                    own.begin(&lookup(&tree, 1));
                    let mut found = None;
                    if let Err(why) = own.run(1, |finished| found = finished.result.ok()) {
                        return Some(format!("{kind}: {why}"));
                    }
                    if found != Some(tree.lookup(lookup(&tree, 1).root, 1)) {
                        return Some(format!("{kind}: {found:?}"));
                    }
                }
                (!are_mapped(&holes)).then(|| format!("{kind}: the child's own memory is gone"))
            });
            let walk = walk.as_mut().expect("the parent's own");
            let mut ended = 0;
            while walk.under_way() > 0 {
                walk.run(16, |finished| {
                    let key = numbers[finished.number as usize];
                    let found = finished.result.map_err(|error| error.to_string());
                    assert_eq!(found, Ok(tree.lookup(lookup(&tree, key).root, key)), "{kind}");
                    ended += 1;
                })
                .expect("the session works");
            }
            assert_eq!(ended, 16);
        }
        drop(walk);
        OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(0)).expect("it is free");
    }
}
