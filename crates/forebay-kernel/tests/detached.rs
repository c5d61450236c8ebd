//! A separate program: it counts the BPF objects of the whole machine, and detaches every link created since its start.
//!
//! A program is detached under its walks, as root can do from outside (`bpftool link detach`). The walks end, with the right
//! results where the reactor can continue them, and nothing is left in the kernel. Where no engine inside the kernel is possible
//! these tests try nothing.

mod common;

use std::collections::BTreeSet;
use std::fs::File;
use std::time::{Duration, Instant};

use common::child::turn;
use common::{Tree, engine, engines, told};
use forebay_kernel::{
    EngineKind, Error, KernelWalk, LocalWalk, Lookup, Next, Options, Program, Scratch, TreeLookup,
};
use libbpf_rs::libbpf_sys;
use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter};

const PROGRAM: TreeLookup = TreeLookup { node_bytes: 4096 };
const INSIDE: [EngineKind; 2] = [EngineKind::BpfLoop, EngineKind::Module];

fn links() -> BTreeSet<u32> {
    LinkInfoIter::default().map(|link| link.id).collect()
}

/// Counts all BPF objects that the kernel has: links, programs, maps.
fn held() -> [usize; 3] {
    [LinkInfoIter::default().count(), ProgInfoIter::default().count(), MapInfoIter::default().count()]
}

/// Detaches every link attached since `before`, and no other.
fn detach_all_but(before: &BTreeSet<u32>) {
    let new: Vec<u32> = links().difference(before).copied().collect();
    assert!(!new.is_empty(), "a program is attached by a link");
    for id in new {
        // SAFETY: these calls pass numbers; the descriptor is closed once.
        unsafe {
            let fd = libbpf_sys::bpf_link_get_fd_by_id(id);
            assert!(fd >= 0, "link {id}: {}", std::io::Error::last_os_error());
            let detached = libbpf_sys::bpf_link_detach(fd);
            assert_eq!(detached, 0, "link {id}: {}", std::io::Error::last_os_error());
            libc::close(fd);
        }
    }
}

/// Waits until the kernel has no more than `most`: it frees closed objects a little later.
fn wait_until_held(most: [usize; 3]) {
    let begun = Instant::now();
    while held().iter().zip(most).any(|(held, most)| *held > most) {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?} are held, and {most:?} were", held());
        std::thread::yield_now();
    }
}

/// Its walks run in a circle until their hops are used up, which leaves time to detach it.
#[derive(Clone, Copy)]
struct NeverEnds;

impl Program for NeverEnds {
    type Args = ();
    type Output = ();

    fn name(&self) -> &'static str {
        "never_ends"
    }

    fn page_bytes(&self) -> u32 {
        4096
    }

    fn object(&self) -> Option<&[u8]> {
        Some(include_bytes!("objects/never_ends.loop.bpf.o"))
    }

    fn module_object(&self) -> Option<&[u8]> {
        Some(include_bytes!("objects/never_ends.module.bpf.o"))
    }

    fn begin(&self, _: &(), _: &mut Scratch) -> u64 {
        0
    }

    fn step(&self, _: &[u8], at: u64, _: &mut Scratch) -> Next {
        Next::read(at)
    }

    fn end(&self, _: &Scratch, _: &[u8]) {}
}

/// Returns the engines of `engines` that are inside the kernel; their own walks are closed again.
fn inside() -> Vec<EngineKind> {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let file = Tree::new(4096, 9, 1, 8).plant(&engine, &dir.path().join("tree"));
    let mut kinds = Vec::new();
    for (kind, walk) in engines(&engine, &file, || PROGRAM, Options::new()) {
        if INSIDE.contains(&kind) && !kinds.contains(&kind) {
            kinds.push(kind);
        }
        walk.close();
    }
    kinds
}

#[test]
fn walks_under_way_go_on_in_the_reactor() {
    let _turn = turn();
    let kinds = inside();
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let file = Tree::new(4096, 9, 1, 8).plant(&engine, &dir.path().join("tree"));
    for kind in kinds {
        let (before, attached) = (held(), links());
        let mut turns = 0;
        while turns < 2 {
            let only = Options::new().only(kind);
            let walk = KernelWalk::open_with(&engine, &file, NeverEnds, only).expect("it is possible here");
            let walks = walk.walk_many(&[(); 60]);
            detach_all_but(&attached);
            for ended in walks.wait().expect("not on a shard") {
                assert_eq!(told(ended), "TooManyHops { limit: 64 }", "{kind}");
            }
            // On a busy machine all of them may be over before the program is detached.
            if walk.stats().fell_back == 0 {
                walk.close();
                continue;
            }
            turns += 1;
            assert_eq!(told(walk.walk(&()).wait()), "TooManyHops { limit: 64 }", "{kind}");
            // Why it broke was said nowhere, and the module was tried for each walk from then on.
            assert_eq!(walk.engine(), EngineKind::Reactor, "{kind}");
            // After a detach a running loop ends with an error, and a later one without.
            let says = |why: &str| why.contains("detached") || why.contains("io_uring's loop has ended");
            assert!(walk.why().contains(&format!("{kind} broke")) && says(walk.why()), "{}", walk.why());
            let health = engine.health();
            let walks: Vec<_> = health.degraded.iter().filter(|entry| entry.what == "kernel walks").collect();
            assert!(walks.len() == 1 && says(&walks[0].why), "{walks:?}");
            walk.close();
        }
        wait_until_held(before);
    }
}

/// The detach happens between two calls into the kernel, with reads in flight: no step can run any more. A walk whose last step ran
/// before it has its result. Regression: the test mistook such a result for a step without a program, once in some hundred runs,
/// when all reads of a round completed together.
#[test]
fn walks_of_a_thread_of_its_own_end() {
    let _turn = turn();
    let kinds = inside();
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let tree = Tree::new(4096, 50, 6, 60);
    let path = dir.path().join("tree");
    tree.plant(&engine, &path);
    let file = File::open(&path).expect("the same file");
    for (kind, polled) in kinds.iter().flat_map(|kind| [(*kind, false), (*kind, true)]) {
        let (before, attached) = (held(), links());
        let options = Options::new().only(kind).polled(polled);
        let mut walk = LocalWalk::open_with(&file, PROGRAM, options).expect("it is possible here");
        for key in 0..32 {
            walk.begin(&Lookup { root: tree.root(6, key), level: 5, key }).expect("there is room");
        }
        walk.run(1, |finished| assert!(finished.result.is_ok(), "{kind}")).expect("the session works");
        // Walks that the kernel has not seen, in the places of those that have ended.
        let mut unseen = Vec::new();
        for key in walk.under_way()..32 {
            let number = walk.begin(&Lookup { root: tree.root(6, key.into()), level: 5, key: key.into() });
            unseen.push(number.expect("there is room"));
        }
        let left = walk.under_way();
        detach_all_but(&attached);
        match kind {
            EngineKind::Module => {
                let mut ended = 0;
                while walk.under_way() > 0 {
                    walk.run(left, |finished| {
                        ended += 1;
                        match finished.result {
                            Err(Error::Elsewhere { source, .. }) => {
                                assert_eq!(source.raw_os_error(), Some(libc::ENODEV));
                            }
                            // Its last read completed before the detach.
                            Ok(_) if !unseen.contains(&finished.number) => {}
                            other => panic!("a step ran without its program: {other:?}"),
                        }
                    })
                    .expect("the session works");
                }
                assert_eq!(ended, left);
            }
            _ => {
                let error = walk.run(left, |_| {}).expect_err("there is no loop any more");
                assert!(error.to_string().contains("detached"), "{error}");
            }
        }
        drop(walk);
        wait_until_held(before);
    }
}
