//! Shows: where the system refuses io_uring, as container runtimes do, the store does all the same. How: the other tests of the store, in
//! a child process whose system calls a filter refuses from its first instruction on.
#![cfg(target_os = "linux")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use forebay::{Config, Engine, ErrorKind};
use forebay_object_store::ForebayStore;

/// The environment variable that is set where a restriction is in place.
const RESTRICTED: &str = "FOREBAY_TEST_RESTRICTED";

/// Lets the calls of io_uring, and openat2(2) if asked, fail with EPERM in this process and those that it starts (seccomp(2)).
fn refuse(openat2: bool) -> std::io::Result<()> {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let fourth = if openat2 { libc::SYS_openat2 } else { libc::SYS_io_uring_register };
    let program = [
        // The first word of struct seccomp_data is the call's number.
        step(LOAD_WORD, 0, 0, 0),
        step(JUMP_IF_EQUAL, 4, 0, libc::SYS_io_uring_setup as u32),
        step(JUMP_IF_EQUAL, 3, 0, libc::SYS_io_uring_enter as u32),
        step(JUMP_IF_EQUAL, 2, 0, libc::SYS_io_uring_register as u32),
        step(JUMP_IF_EQUAL, 1, 0, fourth as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: prctl(2) reads the program and its steps, which outlive the call. Without new privileges any user may set a filter.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program, 0, 0) != 0
        {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Runs the tests of this program whose names contain one of `names` in a child under the restriction.
fn run_restricted(names: &[&str], openat2: bool) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(names).args(["--include-ignored", "--test-threads=2"]).env_remove("FOREBAY_TEST_DRIVER");
    command.env(RESTRICTED, if openat2 { "openat2" } else { "io_uring" });
    // SAFETY: the closure makes system calls only; it neither allocates nor locks.
    unsafe { command.pre_exec(move || refuse(openat2)) };
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("test result: ok") && !text.contains(" 0 passed"), "nothing ran:\n{text}");
}

#[test]
fn without_io_uring() {
    run_restricted(
        &["refused::refused_for::it_is_refused", "integration::automatic", "paths::", "puts::", "reads::"],
        false,
    );
}

/// The names are then looked up by the pool's threads.
#[test]
fn without_io_uring_and_openat2() {
    run_restricted(&["refused::refused_for::it_is_refused", "integration::automatic", "reads::"], true);
}

/// Scenes for the children; in the parent they pass without a look.
mod refused_for {
    use super::*;

    #[test]
    fn it_is_refused() {
        let Some(restricted) = std::env::var_os(RESTRICTED) else { return };
        let engine = Engine::start(Config::default()).unwrap();
        assert_eq!(engine.driver(), "threads");
        let ring = forebay::Config::default().driver(forebay::DriverChoice::Uring);
        assert!(Engine::start(ring).is_err(), "rings are refused");
        assert_eq!(engine.try_metadata("Cargo.toml").is_none(), restricted == "openat2");
        let missing = ForebayStore::new(&engine, "none").open().wait().unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}
