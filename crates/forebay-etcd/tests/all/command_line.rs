//! The program's command line and environment.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

/// Story: a login had a variable with a name in Latin-1, of no concern to the server. It panicked at the start, and
/// named no variable. So did `--data-dir` with such a name.
#[test]
fn bytes_that_are_not_utf_8_are_passed_over_or_named() {
    let (server, odd) = (|| Command::new(env!("CARGO_BIN_EXE_forebay-etcd")), OsStr::from_bytes(b"caf\xe9"));
    let printed = server().arg("--version").env("PLACE", odd).env(odd, "place").output().unwrap();
    assert!(printed.status.success(), "{printed:?}");
    for (refused, part) in [
        (server().env("ETCD_DATA_DIR", odd).output().unwrap(), "the variable ETCD_DATA_DIR cannot be used"),
        (server().arg("--data-dir").arg(odd).output().unwrap(), "the command line cannot be used"),
    ] {
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(text.contains(part) && text.contains("\"caf\\xE9\" is not UTF-8"), "{text}");
    }
}
