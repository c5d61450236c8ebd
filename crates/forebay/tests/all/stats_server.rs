//! Shows: an engine's statistics are served to every process that its user allows, at a socket that exists as long as the engine,
//! and every file has its own counts. How: programs that connect as `forebay top` does, and some that behave badly.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common;
use forebay::{Durability, Engine, Open};
use forebay_test::exposition::{Family, family, open_metrics};

fn engine() -> Engine {
    Engine::start(common::config().shards(2)).unwrap()
}

/// Waits for an effect of another thread; the limit is for a test that would hang.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        std::thread::yield_now();
    }
}

const REQUEST: &[u8] = b"GET /metrics?files HTTP/1.1\r\nHost: engine\r\nAccept: */*\r\n\r\n";

/// Sends a request, and returns the reply when the connection has been closed.
fn ask(mut stream: UnixStream, request: &[u8]) -> String {
    stream.write_all(request).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// Returns the families of a reply, after the checks of its head.
fn families(reply: &str) -> Vec<Family> {
    let (head, page) = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {reply:?}"));
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n")
    );
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", page.len())), "{head}");
    open_metrics(page).unwrap()
}

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    // Longer than any test: only so that a broken server fails a test instead of hanging it.
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Reads until the other side closes; returns whether it did.
fn is_closed(mut stream: UnixStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn only_its_user_may_connect_and_the_socket_goes_with_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let engine = engine();
    let server = engine.serve_stats(&path).unwrap();
    let found = path.symlink_metadata().unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    assert_eq!(server.path(), path);
    drop(server);
    assert!(path.symlink_metadata().is_err());
    engine.stats().wait().unwrap();
    // The name is free again.
    engine.serve_stats(&path).unwrap();
}

#[test]
fn each_request_is_answered_with_what_happened_until_then() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let engine = engine();
    let _server = engine.serve_stats(&path).unwrap();
    let before = families(&ask(connect(&path), REQUEST));
    assert!(family(&before, "forebay_file_writes").samples.is_empty());
    let (first, second) = (connect(&path), connect(&path));
    let file = engine.open(dir.path().join("data"), Open::create().buffered()).wait().unwrap();
    for number in 0..3 {
        file.write(number * 100, vec![1; 100]).wait().unwrap();
    }
    for stream in [first, second] {
        let now = families(&ask(stream, REQUEST));
        let path = dir.path().join("data");
        let labels = [("path", path.to_str().unwrap())];
        let of = |name: &str| family(&now, name).value(&labels);
        assert_eq!((of("forebay_file_reads"), of("forebay_file_writes")), (0.0, 3.0));
        assert_eq!(of("forebay_file_write_bytes"), 300.0);
        let at = |families| family(families, "forebay_at_seconds").value(&[]);
        assert!(at(&now) > at(&before));
        assert_eq!(family(&now, "forebay_pid").value(&[]), f64::from(std::process::id()));
        let driver = engine.health().driver;
        family(&now, "forebay_engine").value(&[("version", env!("CARGO_PKG_VERSION")), ("driver", driver)]);
    }
    // Paths are for those who ask.
    let page = ask(connect(&path), b"GET /metrics HTTP/1.0\n\n");
    assert!(!page.contains("forebay_file") && !families(&page).is_empty());
    // A request whose head has no end, and then nothing more.
    let mut stream = connect(&path);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: eng").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    families(&reply);
}

#[test]
fn other_requests_are_refused_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let engine = engine();
    let _server = engine.serve_stats(&path).unwrap();
    for other in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET /metrics/ HTTP/1.1\r\n\r\n",
        "POST /metrics HTTP/1.1\r\n",
        "hello\n",
        "\n",
    ] {
        let reply = ask(connect(&path), other.as_bytes());
        assert!(reply.starts_with("HTTP/1.1 404 Not Found\r\n"), "{other:?}: {reply}");
        assert!(reply.ends_with(
            "\r\n\r\nAn engine's statistics are served here: GET /metrics, or GET /metrics?files.\n"
        ));
    }
    // An earlier release of the program says of this that it reads version 1 alone.
    assert_eq!(ask(connect(&path), b"stats\n"), "{\"forebay_stats\":2}\n");
}

#[test]
fn who_behaves_badly_is_closed_and_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let engine = engine();
    let _server = engine.serve_stats(&path).unwrap();
    let long = [b"GET /metrics HTTP/1.1\r\nCookie: ".as_slice(), &[b'x'; 1 << 20]].concat();
    for bad in [&long[..], &[b'x'; 1 << 20], b"\0\xff\n"] {
        let mut stream = connect(&path);
        // It may be closed before everything is written.
        let _ = stream.write_all(bad);
        assert!(is_closed(stream));
    }
    // These send requests again and again, and never read.
    let deaf: Vec<UnixStream> = (0..4)
        .map(|_| {
            let mut stream = connect(&path);
            stream.set_nonblocking(true).unwrap();
            while stream.write_all(&REQUEST.repeat(1000)).is_ok() {}
            stream
        })
        .collect();
    families(&ask(connect(&path), REQUEST));
    drop(deaf);
    // These connect and send nothing. Regression: a ninth waited until one of them disconnected by itself.
    let silent: Vec<UnixStream> = (0..8).map(|_| connect(&path)).collect();
    families(&ask(connect(&path), REQUEST));
    drop(silent);
}

#[test]
fn a_server_does_not_keep_its_engine_and_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let engine = engine();
    let server = engine.serve_stats(&path).unwrap();
    let stream = connect(&path);
    engine.close().wait().unwrap();
    assert!(is_closed(stream), "whoever is connected is told the end");
    wait_until("the socket is gone", || path.symlink_metadata().is_err());
    drop(server);
    let again = Engine::start(common::config().shards(1)).unwrap();
    let second = again.serve_stats(&path).unwrap();
    drop(again);
    wait_until("the socket is gone", || path.symlink_metadata().is_err());
    drop(second);
}

#[test]
fn what_a_dead_process_left_is_replaced_and_nothing_else_is() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine();
    let path = dir.path().join("s");
    // A listener that is dropped leaves its name, as a killed process does.
    drop(UnixListener::bind(&path).unwrap());
    let server = engine.serve_stats(&path).unwrap();
    families(&ask(connect(&path), REQUEST));

    let error = engine.serve_stats(&path).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EADDRINUSE));
    assert!(error.to_string().contains("a living process serves there"), "{error}");
    families(&ask(connect(&path), REQUEST));

    let other = dir.path().join("file");
    std::fs::write(&other, "mine").unwrap();
    let error = engine.serve_stats(&other).unwrap_err();
    assert_eq!(error.kind(), forebay::ErrorKind::InvalidInput);
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(engine.serve_stats(&link).is_err() && link.symlink_metadata().unwrap().is_symlink());

    let error = engine.serve_stats(dir.path().join("x".repeat(200))).unwrap_err();
    assert_eq!(error.kind(), forebay::ErrorKind::InvalidInput);
    assert!(engine.serve_stats(dir.path().join("missing/s")).unwrap_err().path().is_some());

    // The socket was replaced: the new one is not ours to remove.
    std::fs::remove_file(&path).unwrap();
    let _theirs = UnixListener::bind(&path).unwrap();
    drop(server);
    assert!(path.symlink_metadata().unwrap().file_type().is_socket());
    let mut names: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["file", "link", "s"]);
}

#[test]
fn every_file_has_its_own_counts_from_all_shards() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine();
    let open = |name: &str| engine.open(dir.path().join(name), Open::create().buffered()).wait().unwrap();
    let (a, b) = (open("a"), open("b"));
    let idle = open("idle");
    for shard in 0..2 {
        let (a, b) = (a.clone(), b.clone());
        let work = move || async move {
            a.write(0, vec![7; 1000]).await.unwrap();
            a.write(0, vec![7; 10]).durable(Durability::Data).await.unwrap();
            a.sync(Durability::Data).await.unwrap();
            assert_eq!(b.read_up_to(0..50).await.unwrap().len(), 0);
        };
        engine.spawn_on_shard(shard, forebay::Class::DEFAULT, work).wait().unwrap();
    }
    let files = engine.file_stats().wait().unwrap();
    let names: Vec<_> = files.iter().map(|file| file.path.file_name().unwrap()).collect();
    assert_eq!(names, ["a", "b"], "nothing was done with the third");
    let (first, second) = (&files[0], &files[1]);
    assert_eq!((first.writes, first.write_bytes, first.syncs), (4, 2020, 2), "{first:?}");
    assert_eq!((first.reads, second.reads, second.writes), (0, 2, 0), "{files:?}");
    drop(idle);
    a.close().wait().unwrap();
    let files = engine.file_stats().wait().unwrap();
    assert_eq!(files.len(), 1, "a closed file is not open: {files:?}");
    engine.clone().close().wait().unwrap();
    assert_eq!(engine.file_stats().wait().unwrap_err().kind(), forebay::ErrorKind::EngineClosed);
}
