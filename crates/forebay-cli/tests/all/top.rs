//! End-to-end tests of `top`: an engine in this process, and the program that inspects it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Stdio;

use crate::support::{forebay, run};
use forebay::{Class, Config, Engine, Open, StatsServer};
use forebay_test::exposition::{Family, open_metrics};
use serde_json::{Value, json};

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
        let engine = Engine::start(Config::new().shards(1)).expect("an engine");
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

/// An exposition of an engine with all that `top` shows.
const RECORDED: &str = include_str!("../fixtures/engine.txt");

/// Serves these texts, one to each client, at a socket in the directory, and then ends.
fn serve(directory: &std::path::Path, texts: Vec<String>) -> String {
    let socket = directory.join("recorded");
    let listener = UnixListener::bind(&socket).expect("writable");
    std::thread::spawn(move || {
        for text in texts {
            let (stream, _) = listener.accept().expect("a client");
            let mut lines = BufReader::new(&stream).lines();
            let request = lines.next().expect("a request").expect("a line");
            assert_eq!(request, "GET /metrics?files HTTP/1.1");
            assert!(lines.any(|line| line.expect("a line").is_empty()), "the head ends");
            let reply = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{text}");
            (&stream).write_all(reply.as_bytes()).expect("the client reads");
        }
    });
    socket.to_str().expect("readable").to_owned()
}

#[test]
fn rates_are_of_the_time_between_two_looks() {
    let scene = Scene::new("recorded");
    // A file whose count is smaller than before was opened again.
    let idle =
        |reads| format!("file_reads_total{{path=\"/data/idle \\\"\\\\\",device=\"nvme0n1\"}} {reads}\n");
    let now = RECORDED.replace(&idle(1), &idle(40));
    // 2 s and 2,000 reads before.
    let before =
        now.replace(" 3000", " 1000").replace(" 0.000003", " 0.000001").replace(&idle(40), &idle(50));
    let before = before.replace("forebay_at_seconds 4", "forebay_at_seconds 2");
    let socket = serve(&scene.directory, vec![before, now]);
    let outcome = run(&["top", &socket, "--once", "--interval", "0.05"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let text = outcome.out;
    for line in [
        "forebay  pid 7  uring  shards 2  in flight 7  tasks 2  memory 64 KiB/8 MiB",
        "default      nvme0n1      1.00k   1.00M       0       0       0   1.5us+98.8ms 2",
        "default      nvme0n1        50.0%  100.0%     1.00k    2.0us",
        "a class wit~ nvme0n1        50.0%    0.0%         0        -",
        "nvme0n1                    576 KiB  1.25 reads  calibrated",
        "      3   25.0ms  app::index::build::{{closure}}\n                 at app::index::sum (a.rs:3)\n                 at b (a.rs:9)",
        "degraded: huge pages: the kernel gave none",
        "  1.00k   1.00M       0       0       0  ~/whose/name/matters/table-000123.?[31m",
        "     20       0       0       0       0  /data/idle \"\\",
        "4 files with fewer operations are not shown",
    ] {
        assert!(text.contains(line), "{line:?} is not in:\n{text}");
    }
    assert!(!text.contains("d (a.rs:2)"), "the innermost frames only:\n{text}");
    assert!(text.find("table-000123") < text.find("/data/idle"), "the busiest first:\n{text}");
}

#[test]
fn a_recorded_exposition_becomes_the_documented_json() {
    let scene = Scene::new("document");
    let socket = serve(&scene.directory, vec![RECORDED.to_owned()]);
    let outcome = run(&["top", &socket, "--once", "--json"]);
    assert!(outcome.out.starts_with("{\"forebay_stats\":1,\"at_ns\":4000000000,"), "{}", outcome.out);
    let document: Value = serde_json::from_str(&outcome.out).expect("one line of JSON");
    for (place, expected) in [
        ("/driver", json!("uring")),
        ("/version", json!("0.1.0")),
        ("/pid", json!(7)),
        ("/memory/arena_bytes_max", json!(1 << 30)),
        ("/shards/1/turns", json!(3000)),
        ("/worker_rings/0/in_flight", json!(1)),
        ("/devices/0/write_cost", json!(1.25)),
        ("/devices/0/calibrated", json!(true)),
        ("/classes/0/starved_ns", json!(3000)),
        ("/classes/1/class", json!("a class with a long name")),
        ("/flows/0/queued_p50_ns", json!(1200)),
        ("/flows/0/device_p99_ns", json!(98_765_432)),
        ("/files/0/path", json!("/data/idle \"\\")),
        ("/files/1/read_bytes", json!(3_000_000)),
        ("/files_left_out", json!(4)),
        ("/stalls/0/longest_ns", json!(25_000_000)),
        ("/stalls/0/back_trace", json!("app::index::sum (a.rs:3)\nb (a.rs:9)\nc (a.rs:1)\nd (a.rs:2)")),
        ("/slow_steps/0/walk", json!("app::index::Lookup")),
        ("/walks/hops", json!(9)),
    ] {
        assert_eq!(document.pointer(place), Some(&expected), "{place}");
    }
    assert!(document["degraded"][0].as_str().is_some_and(|reason| reason.starts_with("huge pages: ")));
    let lengths = ["shards", "worker_rings", "devices", "classes", "flows", "files", "stalls"];
    let lengths = lengths.map(|list| document[list].as_array().map_or(0, Vec::len));
    assert_eq!(lengths, [2, 1, 1, 2, 1, 2, 1], "a row for each set of labels: {document}");
}

#[test]
fn the_recorded_exposition_is_what_an_engine_serves() {
    let recorded = open_metrics(RECORDED).expect("it is OpenMetrics");
    let scene = Scene::new("served");
    let stats =
        open_metrics(&scene.engine.stats().wait().expect("it runs").to_open_metrics()).expect("so is this");
    let names = |families: &[Family]| -> Vec<String> {
        let of = |family: &Family| format!("{} {}", family.name, family.kind);
        families.iter().map(of).filter(|name| !name.starts_with("forebay_file")).collect()
    };
    // The server adds four families before them.
    assert_eq!(names(&recorded)[4..], names(&stats));
}

#[test]
fn once_shows_classes_devices_and_files_in_eighty_columns() {
    let scene = Scene::new("once");
    scene.work();
    let outcome = run(&["top", &scene.socket(), "--once", "--interval", "0.1"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    for words in ["READ/s", "QUEUE+DEV p99", "log ", "A WRITE COSTS", "1.00 reads", "FILE", "/data", "pid "] {
        assert!(outcome.out.contains(words), "{words:?} is not in:\n{}", outcome.out);
    }
    assert!(outcome.out.lines().all(|line| line.chars().count() <= 80), "{}", outcome.out);
    assert!(!outcome.out.contains('\x1b'), "it is no terminal: {:?}", outcome.out);
}

#[test]
fn json_is_of_the_engine() {
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
    // The second time the file is its own, and is overwritten.
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
    // A user named the socket of another program: the recording was emptied.
    let recorded = std::fs::read_to_string(&file).expect("it was written");
    let other = serve(&scene.directory, vec!["other 1\n# EOF\n".to_owned()]);
    let outcome = run(&["top", &other, "--once", &to_file]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.err);
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), recorded);
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
        let _ = stream.write_all(b"220 mail ready\n");
        // Blocks until the program has exited.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let text = |path: &PathBuf| path.to_str().expect("readable").to_owned();
    // An engine from before OpenMetrics accepts only the line `stats`.
    let earlier = scene.directory.join("earlier");
    let listener = UnixListener::bind(&earlier).expect("writable");
    let closing = std::thread::spawn(move || drop(listener.accept().expect("a client")));
    // A user looked at a program that a debugger had stopped: `top` waited for it, and took no `q`.
    let stopped = scene.directory.join("stopped");
    let _accepts_nothing = UnixListener::bind(&stopped).expect("writable");
    // After some looks at it no further connection was possible, and `top` waited without an end.
    let crowded = scene.directory.join("crowded");
    let accepts_nothing = UnixListener::bind(&crowded).expect("writable");
    rustix::net::listen(&accepts_nothing, 0).expect("it listens");
    let _the_only_one = UnixStream::connect(&crowded).expect("there is room for one");
    for (socket, code, known) in [
        (text(&stopped), 1, "gave no reply"),
        (text(&crowded), 1, "gave no reply"),
        (text(&dead), 3, "no engine serves"),
        (text(&earlier), 3, "or it is of an earlier release"),
        (text(&scene.directory.join("missing")), 3, "does not exist"),
        (text(&unrelated), 1, "not an engine's statistics"),
    ] {
        let outcome = run(&["top", &socket, "--once"]);
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(code), ""), "{socket}: {}", outcome.err);
        assert!(outcome.err.contains(known), "{socket}: {}", outcome.err);
    }
    wrong_reply.join().expect("it ends");
    closing.join().expect("it ends");
    let outcome = run(&["top", &scene.socket(), "--interval", "0"]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.err);
}
