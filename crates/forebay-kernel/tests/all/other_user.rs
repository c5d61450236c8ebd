//! Walks of a user who is not root: with the two capabilities that loading needs and a small limit of locked memory, and with less
//! than that. Each scene is a separate process.

use std::os::unix::fs::chown;

use crate::common::scene::{lock_at_most, scene};
use crate::common::{become_another_user, engine};
use forebay::Open;
use forebay_kernel::{EngineKind, Error, KernelWalk, Lookup, Options, TreeLookup, probe};

const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;
const PROGRAM: TreeLookup = TreeLookup { node_bytes: 4096 };
fn has_loop() -> bool {
    let demanded = std::env::var("FOREBAY_KERNEL_ENGINES").unwrap_or_default();
    match probe(EngineKind::BpfLoop) {
        Ok(()) => true,
        Err(why) => {
            assert!(!demanded.split(',').any(|name| name == "bpf-loop"), "the loop is demanded: {why}");
            eprintln!("SKIPPED: {why}");
            false
        }
    }
}

/// Regression: with CAP_BPF, CAP_PERFMON and 8 MiB of locked memory a session opened before the engine's first read and never after
/// it. The engine had registered all that the user may lock, the walks' ring got ENOMEM, and the reactor was used instead.
#[test]
fn a_session_opens_after_the_engines_first_read() {
    scene("other_user::a_session_opens_after_the_engines_first_read", |path| {
        if !has_loop() {
            return;
        }
        chown(path, Some(1_500_000_000 + std::process::id()), None).expect("root may give files away");
        lock_at_most(8 << 20);
        become_another_user(&[CAP_BPF, CAP_PERFMON]);
        let engine = engine();
        let file = engine.open(path, Open::read()).wait().expect("a file of this user");
        file.read(0..4096).wait().expect("the first read, which registers memory");
        let only = Options::new().only(EngineKind::BpfLoop);
        let walk = KernelWalk::open_with(&engine, &file, PROGRAM, only);
        let walk = walk.unwrap_or_else(|error| panic!("{error}; {:?}", engine.health().degraded));
        assert!(walk.walk(&Lookup { root: 0, level: 0, key: 1 }).wait().is_ok());
    });
}

/// Regression: without rights and with little locked memory the error named `ulimit -l` alone, and a user who
/// raised that got the next error.
#[test]
fn without_rights_the_error_names_the_capabilities() {
    scene("other_user::without_rights_the_error_names_the_capabilities", |path| {
        let has_loop = has_loop();
        lock_at_most(256 << 10);
        become_another_user(&[]);
        let engine = engine();
        let file = engine.open(path, Open::read()).wait().expect("a file that all may read");
        let only = Options::new().only(EngineKind::BpfLoop);
        let Err(Error::Unavailable(why)) = KernelWalk::open_with(&engine, &file, PROGRAM, only) else {
            panic!("nobody may load programs without rights")
        };
        if has_loop {
            assert!(why.contains("lacks CAP_BPF and CAP_PERFMON"), "{why}");
        }
        // An engine that was not requested by name is the reactor, and the engine's health has the reason.
        let walk = KernelWalk::open(&engine, &file, PROGRAM).expect("the reactor at least");
        assert_eq!(walk.engine(), EngineKind::Reactor);
        let health = engine.health();
        let told = health.degraded.iter().find(|known| known.what == "kernel walks");
        let told = told.unwrap_or_else(|| panic!("nothing is said about it: {:?}", health.degraded));
        assert_eq!(told.why, walk.why());
        assert!(walk.walk(&Lookup { root: 0, level: 0, key: 1 }).wait().is_ok());
    });
}
