//! The gate's program with test programs made of a few lines of shell.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const GATE: &str = env!("CARGO_BIN_EXE_forebay-gate");

/// A process in a new session, as a server is. Before that it is in the group that ends with the test.
const LEAVES_A_PROCESS: &str = "setsid sh -c 'touch ready; exec sleep 1000' & until [ -e ready ]; do :; done";

/// A package with one test program. Each test is a line of shell.
struct Package {
    dir: tempfile::TempDir,
}

impl Package {
    fn new(tests: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("crates/pkg");
        std::fs::create_dir_all(&folder).unwrap();
        let names: Vec<String> = tests.iter().map(|(name, _)| format!("echo '{name}: test'")).collect();
        let cases: Vec<String> = tests.iter().map(|(name, text)| format!("'{name}') {text} ;;")).collect();
        let script = format!(
            "#!/bin/sh\ncase $1 in --list) [ \"$4\" = --ignored ] || {{ {}; }}; exit ;; esac\ncase $2 in\n{}\nesac\n",
            names.join("; "),
            cases.join("\n")
        );
        let program = dir.path().join("all-0123");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let message = format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"{}/Cargo.toml","target":{{"kind":["test"],"name":"all"}},"profile":{{"test":true}},"executable":"{}"}}"#,
            folder.display(),
            program.display()
        );
        std::fs::write(dir.path().join("messages"), message).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn rules(&self, text: &str) {
        std::fs::write(self.path("rules"), text).unwrap();
    }

    fn gate(&self, command: &str, arguments: &[&str]) -> Command {
        let mut gate = Command::new(GATE);
        gate.arg(command).arg("--messages").arg(self.path("messages")).arg("--work").arg(self.path("work"));
        if self.path("rules").exists() {
            gate.arg("--rules").arg(self.path("rules"));
        }
        gate.args(arguments);
        gate
    }

    fn tests(&self, arguments: &[&str]) -> (String, Option<i32>) {
        said(&self.gate("tests", arguments).output().unwrap())
    }
}

fn said(output: &Output) -> (String, Option<i32>) {
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (text, output.status.code())
}

#[test]
fn tests_that_pass_are_counted() {
    let package = Package::new(&[("one", "exit 0"), ("two::three", "echo x; [ -d $TMPDIR ]")]);
    let (text, status) = package.tests(&[]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.ends_with("\n2 passed, 0 failed\n"), "{text}");
}

#[test]
fn a_failure_says_where_why_and_how_to_repeat_it() {
    let package = Package::new(&[
        ("one", "exit 0"),
        ("bad::one", "echo 'thread panicked at src/x.rs:3:'; echo '1 is not 2, seed 77'; exit 101"),
    ]);
    let (text, status) = package.tests(&[]);
    assert_eq!(status, Some(1), "{text}");
    for expected in [
        "FAILED pkg/all::bad::one: exit status 101",
        "panicked at src/x.rs:3:",
        "1 is not 2, seed 77",
        "again: cargo test -p pkg --test all --all-features -- --exact bad::one",
        "1 passed, 1 failed",
    ] {
        assert!(text.contains(expected), "{expected} is not in:\n{text}");
    }
    let log = package.path("work/logs/pkg_all__bad__one");
    assert!(std::fs::read_to_string(log).unwrap().contains("1 is not 2"));
}

/// One that hangs was once the end of its whole program, and nothing said which it was.
#[test]
fn a_test_that_hangs_is_named_and_the_others_run() {
    let package = Package::new(&[("a_hang", "sleep 1000"), ("other", "exit 0")]);
    package.rules("limit=1 pkg/all::a_hang | it must end soon here\n");
    let (text, status) = package.tests(&["--lanes", "1"]);
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains("FAILED pkg/all::a_hang: stopped after 1 s: it hangs")
            && text.contains("1 passed, 1 failed"),
        "{text}"
    );
}

#[test]
fn whatever_a_test_leaves_is_a_failure() {
    for (script, expected) in [
        ("touch $TMPDIR/rest", "it left files in its TMPDIR: rest"),
        (LEAVES_A_PROCESS, "it left a process running: "),
    ] {
        let package = Package::new(&[("one", script)]);
        let (text, status) = package.tests(&[]);
        assert_eq!(status, Some(1), "{text}");
        assert!(text.contains(expected), "{text}");
        assert!(!package.path("work/t").exists());
    }
}

/// A test killed the process that it had started, and was blamed for it a moment later.
#[test]
fn a_process_that_is_about_to_end_is_not_left() {
    let package = Package::new(&[(
        "one",
        "setsid sh -c 'touch ready; exec sleep 0.1' & until [ -e ready ]; do :; done",
    )]);
    let (text, status) = package.tests(&[]);
    assert_eq!(status, Some(0), "{text}");
}

#[test]
fn rules_and_patterns_choose() {
    let package = Package::new(&[("quick", "exit 0"), ("slow::one", "exit 0"), ("slow::two", "exit 0")]);
    package.rules("all *::slow::one | it takes minutes elsewhere\nalone *::quick | nothing runs beside it\n");
    let count = |arguments: &[&str]| {
        let (text, status) = package.tests(arguments);
        assert_eq!(status, Some(0), "{text}");
        text.lines().last().unwrap().to_owned()
    };
    assert_eq!(count(&[]), "2 passed, 0 failed");
    assert_eq!(count(&["--all", "--check-rules"]), "3 passed, 0 failed");
    assert_eq!(count(&["--all", "--only", "pkg/all::slow::*", "--skip", "*two"]), "1 passed, 0 failed");
    package.rules("all pkg/all::gone | it was renamed since then\n");
    let (text, status) = package.tests(&["--check-rules"]);
    assert_eq!(status, Some(2));
    assert!(text.contains("these rules describe no test: pkg/all::gone"), "{text}");
}

/// Ctrl-C left servers and folders behind.
#[test]
fn a_signal_ends_the_tests_and_removes_their_files() {
    let package =
        Package::new(&[("one", "touch $TMPDIR/file; echo $$ >$TMPDIR/pid; touch ready; sleep 1000")]);
    let mut gate = package.gate("tests", &["--lanes", "1"]).stdout(Stdio::null()).spawn().unwrap();
    let ready = package.path("crates/pkg/ready");
    while !ready.exists() {
        std::thread::yield_now();
    }
    let pid = std::fs::read_to_string(package.path("work/t/0/pid")).unwrap();
    assert!(Command::new("kill").arg(gate.id().to_string()).status().unwrap().success());
    assert_eq!(gate.wait().unwrap().code(), Some(1));
    assert!(!package.path("work/t").exists());
    assert!(!Path::new("/proc").join(pid.trim()).exists());
}

#[test]
fn steady_repeats_and_goes_on_where_it_ended() {
    let package = Package::new(&[
        ("one", "echo x >>runs"),
        ("world", "echo x >>worlds"),
        ("bad", "echo x >>bads; exit 1"),
    ]);
    package.rules("once *::world | it depends on its seed\n");
    let run = || said(&package.gate("steady", &["--runs", "3", "--lanes", "1"]).output().unwrap());
    let lines =
        |name: &str| std::fs::read_to_string(package.path("crates/pkg").join(name)).unwrap().lines().count();
    let (text, status) = run();
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains("failed 3 times: pkg/all::bad") && text.ends_with("2 passed, 1 failed\n"),
        "{text}"
    );
    assert_eq!((lines("runs"), lines("worlds"), lines("bads")), (3, 1, 3));
    let (text, _) = run();
    assert!(text.contains("3 runs of 3 tests, 4 of them passed earlier"), "{text}");
    assert_eq!((lines("runs"), lines("worlds"), lines("bads")), (3, 1, 6));
}

/// The run that ended first mistook the other run of its test for a process that it had left, and killed it.
#[test]
fn runs_of_one_test_beside_each_other_are_told_apart() {
    let package = Package::new(&[(
        "one",
        "if mkdir x; then echo $TMPDIR >name; mv name first; until [ -e second ]; do :; done; \
         else until [ -e first ]; do :; done; touch second; while [ -d $(cat first) ]; do :; done; fi",
    )]);
    let (text, status) = said(&package.gate("steady", &["--runs", "2", "--lanes", "2"]).output().unwrap());
    assert_eq!(status, Some(0), "{text}");
}

fn step(script: &str) -> (String, Option<i32>, String) {
    step_with(&[], script)
}

fn step_with(options: &[&str], script: &str) -> (String, Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let mut gate = Command::new(GATE);
    gate.current_dir(dir.path())
        .arg("step")
        .arg("--log")
        .arg(dir.path().join("log"))
        .arg("--result")
        .arg(dir.path().join("result"));
    gate.arg("--folder").arg(dir.path().join("folder")).args(options).args(["--", "sh", "-c", script]);
    let (text, status) = said(&gate.output().unwrap());
    assert_eq!(std::fs::read_to_string(dir.path().join("log")).unwrap(), text);
    assert!(!dir.path().join("folder").exists());
    (text, status, std::fs::read_to_string(dir.path().join("result")).unwrap())
}

#[test]
fn a_step_is_metered_with_its_descendants() {
    /// The verdict, the seconds by the clock, and those of the processors.
    fn parts(result: &str) -> (&str, u64, u64) {
        let [verdict, wall, processor] = result.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("{result}")
        };
        (verdict, wall.parse().unwrap(), processor.parse().unwrap())
    }
    let (text, status, result) = step("echo said; echo and this >&2");
    assert_eq!((text.as_str(), status), ("said\nand this\n", Some(0)));
    assert!(matches!(parts(&result), ("ok", _, 0)), "{result}");
    // Until it has had the processor for more than a second, by the kernel's ticks of 10 ms.
    let computes =
        "until read -r stat </proc/$$/stat; set -- $stat; [ $((${14} + ${15})) -ge 120 ]; do :; done";
    let (_, status, result) = step(&format!("sh -c '{computes}'; exit 0"));
    assert_eq!(status, Some(0));
    assert!(parts(&result).2 > 0, "{result}");
    assert_eq!(step("exit 3").1, Some(1));
}

#[test]
fn a_step_leaves_nothing() {
    let (text, status, result) = step(LEAVES_A_PROCESS);
    assert!(text.contains("error: the step left a process running: "), "{text}");
    assert_eq!((status, &result[..6]), (Some(1), "FAILED"));
    let (text, status, _) = step("mkdir $TMPDIR/rest");
    assert!(text.contains("left files in its TMPDIR") && text.contains("rest"), "{text}");
    assert_eq!(status, Some(1));
}

/// Steps of --long that last for hours were stopped after one, and the log, which the last page quotes, did not say so.
#[test]
fn a_step_that_is_stopped_says_so_in_its_log() {
    let (text, status, result) = step_with(&["--limit", "1"], "exec sleep 1000");
    assert_eq!(text, "error: stopped after 1 s\n");
    assert_eq!((status, &result[..6]), (Some(1), "FAILED"));
}

/// A step that is asked to end has ten seconds to clean up. A second signal, such as that of the script after Ctrl-C, took them away.
#[test]
fn a_second_signal_takes_no_time_from_a_step() {
    let dir = tempfile::tempdir().unwrap();
    let script = "trap 'touch ending; until [ -e second ]; do sleep 0.01; done; touch cleaned; exit' TERM; \
        touch ready; while :; do sleep 0.01; done";
    let mut gate = Command::new(GATE)
        .current_dir(dir.path())
        .args(["step", "--log", "log", "--result", "result", "--folder", "folder", "--", "sh", "-c", script])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let wait_for = |name: &str| {
        while !dir.path().join(name).exists() {
            std::thread::yield_now();
        }
    };
    let ask = || assert!(Command::new("kill").arg(gate.id().to_string()).status().unwrap().success());
    wait_for("ready");
    ask();
    wait_for("ending");
    ask();
    std::fs::write(dir.path().join("second"), "").unwrap();
    assert_eq!(gate.wait().unwrap().code(), Some(1));
    assert!(dir.path().join("cleaned").exists());
}

/// A checkout with the gate's script, a cargo that does nothing, and a few lines in the place of the step `tidy`.
struct Checkout {
    dir: tempfile::TempDir,
}

impl Checkout {
    fn new(tidy: &str) -> Self {
        let checkout = Self { dir: tempfile::tempdir().unwrap() };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for folder in [".ci", "bin", "scripts/checks", "scripts/lib", "target/debug"] {
            std::fs::create_dir_all(checkout.path(folder)).unwrap();
        }
        for file in ["scripts/test", "scripts/lib/setup.sh", ".ci/budget"] {
            std::fs::copy(root.join(file), checkout.path(file)).unwrap();
        }
        std::fs::write(checkout.path("Cargo.toml"), "rust-version = \"1.0\"\n").unwrap();
        std::os::unix::fs::symlink(GATE, checkout.path("target/debug/forebay-gate")).unwrap();
        let version = "echo cargo 1.99.0";
        for (file, text) in [("bin/cargo", version), ("bin/rustc", version), ("scripts/checks/tidy", tidy)] {
            let program = checkout.path(file);
            std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        checkout
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `scripts/test --only STEP`.
    fn test(&self, step: &str) -> Command {
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        let mut test = Command::new(self.path("scripts/test"));
        test.args(["--only", step]).env("PATH", path).env("FOREBAY_TEST_OFFLINE", "1");
        test.env_remove("CARGO_TARGET_DIR");
        // The folder may lie in a repository of many files.
        test.env("GIT_DIR", self.path("absent"));
        test
    }
}

/// A step's name was mistyped, nothing ran, and all checks had passed.
#[test]
fn a_step_that_does_not_exist_is_refused() {
    let checkout = Checkout::new("echo checked");
    let (text, status) = said(&checkout.test("tidy").output().unwrap());
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("\nchecked\n") && text.contains("\nall checks passed\n"), "{text}");
    let (text, status) = said(&checkout.test("tidyy").output().unwrap());
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("error: there is no step tidyy"), "{text}");
}

/// SIGTERM, by which CI ends a run, was seen when the step had ended by itself, and steps in the background went on without the script.
#[test]
fn a_signal_to_the_script_ends_its_step() {
    let checkout = Checkout::new("echo $$ >pid; mv pid started; exec sleep 1000");
    let mut test = checkout.test("tidy").stdout(Stdio::null()).spawn().unwrap();
    let started = checkout.path("started");
    while !started.exists() {
        std::thread::yield_now();
    }
    let pid = std::fs::read_to_string(started).unwrap();
    assert!(Command::new("kill").arg(test.id().to_string()).status().unwrap().success());
    assert_eq!(test.wait().unwrap().code(), Some(143));
    assert!(!Path::new("/proc").join(pid.trim()).exists());
    assert!(!checkout.path("target/gate/s/tidy").exists());
}
