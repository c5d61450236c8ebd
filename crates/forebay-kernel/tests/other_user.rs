//! Walks of a user who is not root: with the two capabilities that loading takes and a small limit of locked
//! memory, and with less than that. Each scene is a process of its own.

mod common;

use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use common::{Tree, become_another_user, engine};
use forebay::Open;
use forebay_kernel::{EngineKind, Error, KernelWalk, Lookup, Options, TreeLookup, probe};

const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;
const PROGRAM: TreeLookup = TreeLookup { node_bytes: 4096 };
/// The environment variable with the name of the scene that a child plays.
const SCENE: &str = "FOREBAY_KERNEL_SCENE";

/// Locked from the copy of a program to its start.
static COPY: Mutex<()> = Mutex::new(());

/// Runs the test `name` again in a child, where this call runs `body` with a tree that has been planted for
/// it.
fn scene(name: &str, body: impl FnOnce(&Path)) {
    if let Some(path) = std::env::var_os(SCENE) {
        return body(Path::new(&path));
    }
    // SAFETY: a system call that only looks a number up.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("SKIPPED: only root can become another user");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("tree");
    std::fs::write(&path, &Tree::new(4096, 9, 1, 8).bytes).expect("the directory takes files");
    let program = dir.path().join("program");
    let child = {
        // A child that is born while another test writes its copy keeps that copy open until it runs, and a
        // program that is open for writing cannot be run.
        let _turn = COPY.lock().unwrap_or_else(PoisonError::into_inner);
        std::fs::copy(std::env::current_exe().expect("this test has a file"), &program)
            .expect("there is space");
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("it is ours");
        Command::new(program)
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(SCENE, &path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("another process")
    };
    let output = child.wait_with_output().expect("it is our child");
    let text =
        format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{name}: {}\n{text}", output.status);
    text.lines().filter(|line| line.contains("SKIPPED")).for_each(|line| eprintln!("{line}"));
}

fn lock_at_most(bytes: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: setrlimit(2) reads the structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0, "root may set limits");
}

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

/// Regression: with CAP_BPF, CAP_PERFMON and 8 MiB of locked memory a session opened before the engine's
/// first read and never after it. The engine had registered all that the user may lock, the walks' ring got
/// ENOMEM, and the reactor took over.
#[test]
fn a_session_opens_after_the_engines_first_read() {
    scene("a_session_opens_after_the_engines_first_read", |path| {
        if !has_loop() {
            return;
        }
        chown(path, Some(1_500_000_000 + std::process::id()), None).expect("root may give files away");
        lock_at_most(8 << 20);
        become_another_user(&[CAP_BPF, CAP_PERFMON]);
        let engine = engine();
        let file = engine.open(path, Open::read()).wait().expect("a file of this user");
        file.read(0..4096).wait().expect("the first read, which registers memory");
        let mut only = Options::default();
        only.only = Some(EngineKind::BpfLoop);
        let walk = KernelWalk::open_with(&engine, &file, PROGRAM, only);
        let walk = walk.unwrap_or_else(|error| panic!("{error}; {:?}", engine.health().degraded));
        assert!(walk.walk(&Lookup { root: 0, level: 0, key: 1 }).wait().is_ok());
    });
}

/// Regression: without rights and with little locked memory the error named `ulimit -l` alone, and a user who
/// raised that got the next error.
#[test]
fn without_rights_the_error_names_the_capabilities() {
    scene("without_rights_the_error_names_the_capabilities", |path| {
        let has_loop = has_loop();
        lock_at_most(256 << 10);
        become_another_user(&[]);
        let engine = engine();
        let file = engine.open(path, Open::read()).wait().expect("a file that all may read");
        let mut only = Options::default();
        only.only = Some(EngineKind::BpfLoop);
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
