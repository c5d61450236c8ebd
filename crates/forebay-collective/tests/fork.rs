//! A separate program: it forks, and until a child has ended it holds every descriptor of the process.

#![cfg(target_os = "linux")]

use std::io::{Read as _, Write as _, pipe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use forebay::{Config, Durability, Engine, ErrorKind, Open};
use forebay_collective::{Collective, Options, Rank, Ranks, View, WriteCombiner, WriteStats};
use forebay_test::children::in_fork;

/// Regression: counters were read under the writer's lock, which a thread of the parent may hold at the fork: the child hung.
#[test]
fn a_forked_child_takes_no_writers_lock() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let engine = Engine::start(Config::new().shards(1)).unwrap();
    let open = |name: &str| engine.open(dir.path().join(name), Open::create()).wait().unwrap();
    let combiner = WriteCombiner::start(&open("combined"), Options::new());
    let collective = Collective::start(&open("collective"), 1, Options::new()).remove(0);
    combiner.write(5, b"some bytes").wait().unwrap();
    let writers = Arc::new((combiner, collective, AtomicBool::new(false)));
    let looks = {
        let writers = writers.clone();
        thread::spawn(move || {
            while !writers.2.load(Ordering::Relaxed) {
                let _ = (writers.0.stats(), writers.0.held_bytes(), writers.1.stats());
            }
        })
    };
    let (combiner, collective, is_over) = &*writers;
    for _ in 0..20 {
        let code = in_fork(|| {
            assert_eq!((combiner.stats(), combiner.held_bytes()), (WriteStats::default(), 0));
            assert_eq!(collective.stats(), WriteStats::default());
            let refused = combiner.write(0, b"more").wait().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Forked);
            0
        });
        assert_eq!(code, 0);
    }
    is_over.store(true, Ordering::Relaxed);
    looks.join().unwrap();
    assert_eq!(combiner.stats().taken_bytes, 10);
}

/// Regression: with a file of the child's own engine, a call of inherited ranks used the parent's connections.
#[test]
fn a_forked_child_does_not_use_its_parents_connections() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("file");
    let engine = Engine::start(Config::new().shards(1)).unwrap();
    let file = engine.open(&path, Open::create()).wait().unwrap();
    let mut ranks = Ranks::meet(&Rank::new(0, 1), dir.path(), Options::new()).wait().unwrap();
    let view = View::range(0..10).unwrap();
    ranks.write(&file, &view, &b"some bytes"[..], Durability::None).wait().unwrap();
    let code = in_fork(|| {
        let own = Engine::start(Config::new().shards(1)).unwrap();
        let file = own.open(&path, Open::write()).wait().unwrap();
        let refused = ranks.write(&file, &view, &b"other text"[..], Durability::None).wait().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Forked);
        assert_eq!(ranks.stats(), WriteStats::default());
        0
    });
    assert_eq!(code, 0);
    assert_eq!(ranks.read(&file, &view).wait().unwrap(), b"some bytes");
    assert_eq!(ranks.stats().taken_bytes, 10);
}

/// A rank had forked a child, and ended while the child lived. The child kept the rank's connections open, so that the others learnt it
/// after the deadline alone, as that of a rank that did not call.
#[test]
fn ranks_end_while_a_forked_child_lives() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let engine = Engine::start(Config::new().shards(1)).unwrap();
    let file = engine.open(dir.path().join("file"), Open::create()).wait().unwrap();
    let meet = |number| Ranks::meet(&Rank::new(number, 2), dir.path(), Options::new()).wait().unwrap();
    let (mut first, second) = thread::scope(|scope| {
        let second = scope.spawn(|| meet(1));
        (meet(0), second.join().unwrap())
    });
    let ((mut lives, of_child), (ends, mut of_parent)) = (pipe().unwrap(), pipe().unwrap());
    let (written, code) = thread::scope(|scope| {
        let child = scope.spawn(|| {
            in_fork(|| {
                (&of_child).write_all(&[1]).unwrap();
                (&ends).read_exact(&mut [0]).unwrap();
                0
            })
        });
        lives.read_exact(&mut [0]).unwrap();
        drop(second);
        let view = View::range(0..4).unwrap();
        let written = first.write(&file, &view, &b"text"[..], Durability::None).wait();
        of_parent.write_all(&[1]).unwrap();
        (written, child.join().unwrap())
    });
    let error = written.expect_err("rank 1 has ended");
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    assert!(error.to_string().contains("rank 1 is gone"), "{error}");
    assert_eq!(code, 0);
}
