//! Helpers that the tests of the program share: running it, and directories of their own.

#![allow(dead_code, unreachable_pub, reason = "every test file uses its own part of this module")]

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_test::children::{end_with_parent, signal};
use serde_json::Value;

/// Returns a command for the program, with nothing on standard input. It ends with the test that starts it.
pub fn forebay(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(arguments).stdin(Stdio::null()).env_remove("NO_COLOR");
    end_with_parent(&mut command);
    command
}

/// The result of running the program.
pub struct Outcome {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Runs the program to its end.
pub fn run(arguments: &[&str]) -> Outcome {
    let output = forebay(arguments).output().expect("the program starts");
    outcome(&output)
}

/// Runs the program where a process has no more than this many files open, unless it sets the limit itself.
pub fn run_with_files(files: u32, arguments: &[&str]) -> Outcome {
    run_limited(&format!("ulimit -Sn {files}"), arguments)
}

/// Runs the program after a command of the shell that sets limits.
pub fn run_limited(limits: &str, arguments: &[&str]) -> Outcome {
    let limited = format!("{limits} && exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", limited.as_str(), env!("CARGO_BIN_EXE_forebay")]).args(arguments);
    command.stdin(Stdio::null());
    end_with_parent(&mut command);
    outcome(&command.output().expect("the shell starts"))
}

/// Returns the texts of an output.
pub fn outcome(output: &Output) -> Outcome {
    Outcome {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A process, and the lines of its standard error that were not read yet.
pub type TestProcess = (Child, Lines<BufReader<ChildStderr>>);

/// Starts a command. Returns once its standard error has a line with these words.
pub fn begun(command: &mut Command, words: &str) -> TestProcess {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let is_there = lines.by_ref().map_while(Result::ok).any(|line| line.contains(words));
    assert!(is_there, "{command:?} never said {words:?}");
    (child, lines)
}

/// Sends a process a signal, which ends it with the exit code for that.
pub fn interrupt((mut child, lines): TestProcess, number: i32) {
    signal(&child, number).expect("it is our child");
    // Reading to the end keeps the child from blocking on the pipe.
    lines.for_each(drop);
    assert_eq!(child.wait().expect("it ends").code(), Some(128 + number));
}

/// Checks that `measure` refuses these arguments of an experiment, with these words.
pub fn is_refused(experiment: &str, arguments: &[&str], known: &str) {
    let outcome = run(&[&["measure", experiment][..], arguments].concat());
    assert_eq!((outcome.code, outcome.out.as_str()), (Some(2), ""), "{arguments:?}: {}", outcome.err);
    assert!(outcome.err.contains(known), "{arguments:?}: {}", outcome.err);
}

/// Checks that an experiment does not start with a file that fits no disk.
pub fn needs_space(experiment: &str) {
    let directory = Directory::new("space");
    let outcome = run(&["measure", experiment, directory.text(), "--size", "8000TiB"]);
    assert_eq!(outcome.code, Some(4), "{}", outcome.err);
    assert_eq!(directory.names(), Vec::<String>::new());
}

/// Returns the experiments of a document.
pub fn experiments(value: &Value) -> &[Value] {
    value["experiments"].as_array().expect("experiments is a list")
}

/// Returns the rows of an experiment.
pub fn rows(experiment: &Value) -> &[Value] {
    experiment["rows"].as_array().expect("rows is a list")
}

/// Returns the names of an experiment's rows.
pub fn names_of_rows(experiment: &Value) -> Vec<&str> {
    rows(experiment).iter().filter_map(|row| row["name"].as_str()).collect()
}

/// Returns a figure of a row.
pub fn metric(row: &Value, name: &str) -> f64 {
    row["metrics"][name].as_f64().unwrap_or_else(|| panic!("{name} is missing in {row}"))
}

/// Checks that a sentence has these words. Story: tests that use the device meanwhile made it move 1.06 times the bytes that a
/// row counted; such a row takes no part in sentences, so a document with one may lack them.
pub fn check_sentence(value: &Value, words: &str) {
    let is_disturbed = experiments(value).iter().flat_map(rows).any(|row| {
        let conditions = row["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|gate| gate["name"] == "device_bytes" && gate["passed"] == false)
    });
    let verdicts = value["verdicts"].to_string();
    assert!(is_disturbed || verdicts.contains(words), "{words}: {verdicts}");
}

/// Checks that a row was measured this many times.
pub fn has_samples(row: &Value, count: usize) {
    assert_eq!(row["skipped"], Value::Null, "{row}");
    assert_eq!(row["samples"].as_array().map(Vec::len), Some(count), "{row}");
}

/// Returns the program's standard output as JSON, after the checks for every document.
pub fn document(outcome: &Outcome) -> Value {
    let value: Value = serde_json::from_str(&outcome.out)
        .unwrap_or_else(|error| panic!("not JSON ({error}): {}\n{}", outcome.out, outcome.err));
    check_document(&value);
    value
}

/// Checks the parts common to every document of the schema.
pub fn check_document(value: &Value) {
    assert_eq!(value["schema"], 2);
    assert_eq!(value["forebay"], env!("CARGO_PKG_VERSION"));
    assert!(value["environment"]["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()));
    assert!(value["environment"]["cpus_allowed"].as_u64().is_some_and(|count| count > 0));
    for experiment in value["experiments"].as_array().expect("experiments is a list") {
        assert!(experiment["parameters"].is_object());
        for row in experiment["rows"].as_array().expect("rows is a list") {
            assert!(row["name"].is_string() && row["gates"].is_array());
            let samples = row["samples"].as_array().expect("samples is a list");
            assert_eq!(samples.is_empty(), row["skipped"].is_string(), "{row}");
            for name in row["metrics"].as_object().expect("metrics is an object").keys() {
                assert!(samples.iter().any(|sample| sample[name].is_number()), "{name} has no sample: {row}");
            }
        }
    }
}

/// Returns a percentile of a row. Where it rests on too few operations, which the row must report,
/// returns infinity.
pub fn tail(row: &Value, name: &str) -> f64 {
    row["metrics"][name].as_f64().unwrap_or_else(|| {
        let why = row["left_out"][name].as_str().unwrap_or_default();
        assert!(why.contains("are needed") || why.contains("too short"), "{name}: {row}");
        f64::INFINITY
    })
}

/// A directory of the test's own on the disk that holds the build, removed at the end.
pub struct Directory(PathBuf);

impl Directory {
    /// Creates the directory.
    pub fn new(label: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{label}-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("the build directory is writable");
        Self(path)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns its path as an argument.
    pub fn text(&self) -> &str {
        self.0.to_str().expect("the build directory has a readable name")
    }

    /// Creates a file of `bytes` incompressible bytes.
    pub fn file(&self, name: &str, bytes: usize) -> PathBuf {
        let mut state = 88_172_645_463_325_252_u64;
        let mut data = Vec::with_capacity(bytes + 8);
        while data.len() < bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            data.extend_from_slice(&state.to_le_bytes());
        }
        data.truncate(bytes);
        let path = self.0.join(name);
        fs::write(&path, data).expect("it has space");
        path
    }

    /// Returns the names in it.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.0)
            .expect("it exists")
            .map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A failed test has already reported enough.
        let _ = fs::remove_dir_all(&self.0);
    }
}
