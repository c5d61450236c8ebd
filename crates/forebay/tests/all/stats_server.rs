//! Shows: an engine's statistics are served to every process that its user allows, at a socket that comes and
//! goes with the engine, and every file has its own counts. How: programs that connect as `forebay top` does,
//! and some that behave badly.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common;
use forebay::{Durability, Engine, Open};

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

/// Sends a request and returns the reply's line.
fn ask(stream: &mut UnixStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
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
    let mut first = connect(&path);
    let mut second = connect(&path);
    assert!(ask(&mut first, "stats\n").contains("\"files\":[],"));
    let file = engine.open(dir.path().join("data"), Open::create().buffered()).wait().unwrap();
    for number in 0..3 {
        file.write(number * 100, vec![1; 100]).wait().unwrap();
    }
    for stream in [&mut first, &mut second] {
        let line = ask(stream, "stats\n");
        assert!(line.starts_with("{\"forebay_stats\":1,") && line.ends_with("}\n"), "{line}");
        let wanted = "\"reads\":0,\"writes\":3,\"syncs\":0,\"read_bytes\":0,\"write_bytes\":300,";
        assert!(line.contains(wanted), "{line}");
    }
    // A last line without its end, and then nothing more.
    first.write_all(b"stats").unwrap();
    first.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = String::new();
    first.read_to_string(&mut rest).unwrap();
    assert_eq!(rest.matches("forebay_stats").count(), 1);
}

#[test]
fn who_behaves_badly_is_closed_and_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let engine = engine();
    let _server = engine.serve_stats(&path).unwrap();
    for bad in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[b'x'; 4096], b"\n", b"\0\xff\n"] {
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
            while stream.write_all(&b"stats\n".repeat(1000)).is_ok() {}
            stream
        })
        .collect();
    assert!(ask(&mut connect(&path), "stats\n").contains("forebay_stats"));
    // These connect and send nothing; a ninth waits until one of them goes.
    let silent: Vec<UnixStream> = (0..4).map(|_| connect(&path)).collect();
    let mut ninth = connect(&path);
    ninth.write_all(b"stats\n").unwrap();
    drop((deaf, silent));
    assert!(ask(&mut ninth, "").contains("forebay_stats"));
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
    assert!(ask(&mut connect(&path), "stats\n").contains("forebay_stats"));

    let error = engine.serve_stats(&path).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EADDRINUSE));
    assert!(error.to_string().contains("a living process serves there"), "{error}");
    assert!(ask(&mut connect(&path), "stats\n").contains("forebay_stats"), "and still does");

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
