//! The program's command line, environment and limits.

use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_test::children::end_with_parent;

/// Only a hang lasts so long.
const LONG: Duration = Duration::from_secs(60);

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

/// Connects to a server, once it listens.
fn connect(socket: &Path) -> UnixStream {
    let started = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(client) => return client,
            Err(error) => assert!(started.elapsed() < LONG, "{error}"),
        }
        std::thread::yield_now();
    }
}

/// Returns the reply to a request for the server's health.
fn health(socket: &Path) -> String {
    let (mut client, mut reply) = (connect(socket), String::new());
    client.set_read_timeout(Some(LONG)).unwrap();
    client.write_all(b"GET /health HTTP/1.0\r\n\r\n").unwrap();
    client.read_to_string(&mut reply).unwrap();
    reply
}

/// Story: a server was started by a shell in which a program has 1,024 files, or more if it asks for them. Its thousandth client got no
/// reply. etcd asks, as each program in Go does.
#[test]
fn clients_are_as_many_as_the_system_allows() {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("client");
    let url = format!("unix://{}", socket.display());
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 200 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_forebay-etcd")]);
    command.arg(format!("--data-dir={}", place.path().join("data").display()));
    command.arg(format!("--listen-client-urls={url}")).arg(format!("--advertise-client-urls={url}"));
    command.arg("--listen-peer-urls=http://127.0.0.1:0").stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = end_with_parent(&mut command).spawn().unwrap();
    let clients: Vec<UnixStream> = (0..300).map(|_| connect(&socket)).collect();
    let started = Instant::now();
    // Until it has a leader, which is itself.
    while !health(&socket).contains("\"health\":\"true\"") {
        assert!(started.elapsed() < LONG, "{}", health(&socket));
    }
    drop(clients);
    server.kill().unwrap();
    server.wait().unwrap();
}
