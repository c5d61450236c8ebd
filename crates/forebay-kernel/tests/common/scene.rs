//! Tests in their own processes, for changes to a whole process: its user, its limits.

use std::path::Path;
use std::process::{Command, Stdio};

use super::Tree;
use super::child::no_births;

/// The environment variable with the path of the tree for the scene that a child plays.
const SCENE: &str = "FOREBAY_KERNEL_SCENE";

/// Runs the test `name` again in a child, where this call runs `body` with a tree that has been planted for
/// it.
pub(crate) fn scene(name: &str, body: impl FnOnce(&Path)) {
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
        // A child that is born meanwhile would have the copy open for writing.
        let _turn = no_births();
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

/// Limits the locked memory of this process, of which the ring's pages are a part.
pub(crate) fn lock_at_most(bytes: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: setrlimit(2) reads the structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0, "root may set limits");
}
