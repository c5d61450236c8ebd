//! End-to-end tests of `calibrate`: the contents of its file, its refusals, and no leftovers.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{Directory, forebay, run};
use forebay::Calibration;
use forebay::device::Device;

const TINY: [&str; 5] = ["--size", "8MiB", "--seconds", "0.02", "--quiet"];

#[test]
fn the_file_describes_the_device_and_can_be_loaded() {
    let directory = Directory::new("calibrate");
    let file = directory.path().join("disk.toml");
    let out = file.to_str().expect("readable");
    for _ in 0..2 {
        // The second run replaces the file of the first.
        let outcome = run(&[&["calibrate", directory.text(), "--out", out][..], &TINY].concat());
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        assert!(outcome.out.contains("requests of 64 KiB in flight") && outcome.out.contains("disk.toml"));
        assert_eq!(directory.names(), ["disk.toml"]);
    }
    let calibration = Calibration::load(&file).expect("its own file");
    assert!(calibration.fits(&Device::of_path(directory.path()).expect("it is there")), "{calibration:?}");
    for rates in [calibration.read, calibration.write] {
        assert!(rates.bytes_per_second > 0 && rates.operations_per_second > 0, "{calibration:?}");
        assert!(rates.latency_ns > 0, "{calibration:?}");
    }
    forebay::Engine::start(forebay::Config::new().calibration(calibration)).expect("it is in range");

    let outcome = run(&[&["calibrate", directory.text(), "--out", "-"][..], &TINY].concat());
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    Calibration::from_toml(&outcome.out).expect("nothing else on standard output");
}

#[test]
fn impossible_values_are_refused_before_anything_is_measured() {
    let directory = Directory::new("calibrate-refused");
    let other = directory.path().join("other.toml");
    std::fs::write(&other, "[package]\n").expect("writable");
    let (here, other) = (directory.text(), other.to_str().expect("readable"));
    for (arguments, code, known) in [
        (&["calibrate", here, "--out", other][..], 3, "not written by this program"),
        (&["calibrate", other, "--out", "-"], 3, "is not a directory"),
        (&["calibrate", "no-such-directory", "--out", "-"], 3, "does not exist"),
        (&["calibrate", here, "--out", "-", "--size", "1MiB"], 2, "8MiB"),
        (&["calibrate", here, "--out", "-", "--seconds", "0"], 2, "seconds"),
        (&["calibrate", here, "--out", "-", "--size", "8000TiB"], 4, "free"),
        (&["calibrate", "/dev/shm", "--out", "-", "--size", "8MiB"], 4, "in memory"),
    ] {
        // Not every system has an in-memory file system there.
        if arguments[1] == "/dev/shm" && !std::path::Path::new("/dev/shm").is_dir() {
            continue;
        }
        let outcome = run(arguments);
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(code), ""), "{arguments:?}: {}", outcome.err);
        assert!(outcome.err.contains(known), "{arguments:?}: {}", outcome.err);
        assert_eq!(directory.names(), ["other.toml"]);
    }
}

#[test]
fn an_interrupt_leaves_nothing() {
    let directory = Directory::new("calibrate-interrupt");
    let mut child = forebay(&[
        "calibrate",
        directory.text(),
        "--out",
        "-",
        "--size",
        "64MiB",
        "--seconds",
        "60",
        "--quiet",
    ])
    .stdout(Stdio::null())
    .stderr(Stdio::null())
    .spawn()
    .expect("the program starts");
    let begun = Instant::now();
    while !directory.names().iter().any(|name| name.starts_with(".forebay-measure")) {
        assert!(child.try_wait().expect("it can be asked").is_none(), "it is over already");
        assert!(begun.elapsed() < Duration::from_secs(120), "its file does not come");
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is ours");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(directory.names(), Vec::<String>::new());
}
