//! End-to-end tests of `top`: an engine in this process, and the program that inspects it.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Stdio;

use crate::support::{forebay, run};
use forebay::{Class, Config, Engine, Open, StatsServer};
use serde_json::Value;

/// An engine that serves at a short path, and a file that it has read.
struct Scene {
    engine: Engine,
    server: Option<StatsServer>,
    directory: PathBuf,
}

impl Scene {
    fn new(label: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("forebay-top-{label}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("the temp directory is writable");
        let engine = Engine::start(Config::default().shards(1)).expect("an engine");
        let server = engine.serve_stats(directory.join("s")).expect("a socket");
        Self { engine, server: Some(server), directory }
    }

    fn socket(&self) -> String {
        self.directory.join("s").to_str().expect("readable").to_owned()
    }

    fn work(&self) {
        let open = self.engine.open(self.directory.join("data"), Open::create().buffered());
        let file = open.wait().expect("a file");
        for number in 0..10 {
            file.write(number * 100, vec![1; 100]).class(Class::LOG).wait().expect("it has space");
        }
        // It stays open during the inspection.
        std::mem::forget(file);
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        drop(self.server.take());
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn once_shows_classes_devices_and_files_in_eighty_columns() {
    let scene = Scene::new("once");
    scene.work();
    let outcome = run(&["top", &scene.socket(), "--once", "--interval", "0.1"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    for words in ["READ/s", "QUEUE-DEV p99", "log ", "A WRITE COSTS", "1.00 reads", "FILE", "/data", "pid "] {
        assert!(outcome.out.contains(words), "{words:?} is not in:\n{}", outcome.out);
    }
    assert!(outcome.out.lines().all(|line| line.chars().count() <= 80), "{}", outcome.out);
    assert!(!outcome.out.contains('\x1b'), "it is no terminal: {:?}", outcome.out);
}

#[test]
fn json_is_the_line_of_the_engine() {
    let scene = Scene::new("json");
    scene.work();
    let outcome = run(&["top", &scene.socket(), "--once", "--json"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let snapshot: Value = serde_json::from_str(&outcome.out).expect("one line of JSON");
    assert_eq!((&snapshot["forebay_stats"], &snapshot["pid"]), (&1.into(), &std::process::id().into()));
    assert_eq!(snapshot["files"][0]["writes"], 10);
    assert_eq!(snapshot["files"][0]["write_bytes"], 1000);
    let flows = snapshot["flows"].as_array().expect("a list");
    assert!(flows.iter().any(|flow| flow["class"] == "log" && flow["writes"] == 10), "{snapshot}");
    assert!(
        snapshot["shards"][0]["turns"].as_u64() > Some(0)
            && snapshot["memory"]["arena_bytes_max"].as_u64() > Some(0)
    );
    assert!(
        snapshot["devices"][0]["write_cost"] == 1 && snapshot["devices"][0]["calibrated"] == false,
        "{snapshot}"
    );
}

#[test]
fn json_is_recorded_in_a_file_beside_the_tables() {
    let scene = Scene::new("record");
    scene.work();
    let file = scene.directory.join("top.jsonl");
    let to_file = format!("--json={}", file.display());
    // The second time the file is its own, and begins anew.
    for _ in 0..2 {
        let outcome = run(&["top", &scene.socket(), "--once", "--interval", "0.1", &to_file]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        assert!(outcome.out.contains("READ/s"), "{}", outcome.out);
        let lines = std::fs::read_to_string(&file).expect("it was written");
        let times: Vec<u64> = lines
            .lines()
            .map(|line| {
                serde_json::from_str::<Value>(line).expect("JSON")["at_ns"].as_u64().expect("a number")
            })
            .collect();
        assert!(times.len() == 2 && times[0] < times[1], "both ends of the interval: {times:?}");
    }
    std::fs::write(&file, "dear diary").expect("writable");
    let outcome = run(&["top", &scene.socket(), "--once", &to_file]);
    assert_eq!(outcome.code, Some(3), "{}", outcome.err);
}

#[test]
fn it_goes_on_until_the_engine_ends() {
    let scene = Scene::new("ends");
    let mut child = forebay(&["top", &scene.socket(), "--json", "--interval", "0.05"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let times: Vec<u64> = (0..3)
        .map(|_| {
            let line = lines.next().expect("it goes on").expect("a line");
            let snapshot: Value = serde_json::from_str(&line).expect("JSON");
            snapshot["at_ns"].as_u64().expect("a number")
        })
        .collect();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 40_000_000), "{times:?}");
    scene.engine.clone().close().wait().expect("it closes");
    assert!(lines.all(|line| line.is_ok()));
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_socket_without_an_engine_is_reported() {
    let scene = Scene::new("nobody");
    let dead = scene.directory.join("dead");
    drop(UnixListener::bind(&dead).expect("writable"));
    let unrelated = scene.directory.join("stranger");
    let listener = UnixListener::bind(&unrelated).expect("writable");
    let wrong_reply = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody connects");
        let _ = std::io::Write::write_all(&mut stream, b"220 mail ready\n");
        // Blocks until the program has gone.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let text = |path: &PathBuf| path.to_str().expect("readable").to_owned();
    for (socket, code, known) in [
        (text(&dead), 3, "no engine serves"),
        (text(&scene.directory.join("missing")), 3, "does not exist"),
        (text(&unrelated), 1, "not an engine's statistics"),
    ] {
        let outcome = run(&["top", &socket, "--once"]);
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(code), ""), "{socket}: {}", outcome.err);
        assert!(outcome.err.contains(known), "{socket}: {}", outcome.err);
    }
    wrong_reply.join().expect("it ends");
    let outcome = run(&["top", &scene.socket(), "--interval", "0"]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.err);
}
