//! `forebay wait`: the command line, the outputs and the exit codes, in a build with the feature and in one without. What
//! is measured is tested in the crate `forebay-wait`.

mod support;

use support::run;

#[test]
fn a_command_or_a_process_must_be_named() {
    for arguments in [&["wait"][..], &["wait", "--pid", "1"], &["wait", "--seconds", "1", "--", "true"]] {
        assert_eq!(run(arguments).code, Some(2), "{arguments:?}");
    }
    for seconds in ["0", "-1", "nan", "1e9", "soon"] {
        let outcome = run(&["wait", "--pid", "1", "--seconds", seconds]);
        assert_eq!(outcome.code, Some(2), "{seconds}: {}", outcome.err);
    }
}

#[cfg(not(feature = "wait"))]
#[test]
fn a_build_without_the_feature_says_so_and_how_to_get_it() {
    let outcome = run(&["wait", "--", "true"]);
    assert_eq!(outcome.code, Some(5));
    assert!(outcome.err.contains("this build of forebay has no `wait`"), "{}", outcome.err);
    assert!(outcome.err.contains("--features wait"), "{}", outcome.err);
    let doctor = run(&["doctor", env!("CARGO_TARGET_TMPDIR")]);
    assert!(doctor.out.contains("this build of forebay has no `wait`"), "{}", doctor.out);
}

#[cfg(feature = "wait")]
mod with {
    use std::fs;

    use serde_json::Value;

    use super::support::{Directory, Outcome, run};

    /// Whether it was refused for want of privileges; then the error must say so.
    fn refused(outcome: &Outcome) -> bool {
        if outcome.code != Some(5) {
            return false;
        }
        assert!(outcome.err.contains("run as root") || outcome.err.contains("kernel"), "{}", outcome.err);
        eprintln!("SKIPPED: {}", outcome.err);
        true
    }

    #[test]
    fn the_commands_output_and_code_stay_its_own() {
        let outcome = run(&["wait", "--", "sh", "-c", "echo out; exit 7"]);
        if refused(&outcome) {
            return;
        }
        assert_eq!(outcome.code, Some(7), "{}", outcome.err);
        assert_eq!(outcome.out, "out\n");
        assert!(outcome.err.contains("which ended with code 7"), "{}", outcome.err);
        assert!(outcome.err.contains("full wait"), "{}", outcome.err);
        let killed = run(&["wait", "--", "sh", "-c", "kill -9 $$"]);
        assert_eq!(killed.code, Some(137), "{}", killed.err);
    }

    #[test]
    fn a_command_that_is_missing_or_no_program_has_the_codes_of_a_shell() {
        let missing = run(&["wait", "--", "forebay-no-such-program"]);
        if refused(&missing) {
            return;
        }
        assert_eq!(missing.code, Some(127), "{}", missing.err);
        assert!(missing.err.contains("there is no program forebay-no-such-program"), "{}", missing.err);
        let directory = Directory::new("wait");
        let file = directory.file("data", 10);
        let text = run(&["wait", "--", file.to_str().expect("a readable name")]);
        assert_eq!(text.code, Some(126), "{}", text.err);
    }

    #[test]
    fn a_process_that_does_not_run_is_told() {
        let outcome = run(&["wait", "--pid", "4000000000", "--seconds", "1"]);
        assert_eq!(outcome.code, Some(2), "{}", outcome.err);
        assert!(outcome.err.contains("there is no process 4000000000"), "{}", outcome.err);
    }

    #[test]
    fn the_numbers_and_the_page_are_written_and_say_the_same() {
        let directory = Directory::new("wait");
        let data = directory.file("data<b>.bin", 1 << 20);
        let (json, html) = (directory.path().join("wait.json"), directory.path().join("wait.html"));
        let words = |path: &std::path::Path| path.to_str().expect("a readable name").to_owned();
        let (json_name, html_name, data_name) = (words(&json), words(&html), words(&data));
        let outcome =
            run(&["wait", "--json", &json_name, "--html", &html_name, "--", "cat", "--", &data_name]);
        if refused(&outcome) {
            return;
        }
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        let text = fs::read_to_string(&json).expect("it was written");
        let value: Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!((&value["schema"], &value["kind"]), (&Value::from(1), &Value::from("wait")));
        for share in ["full_wait_share", "some_wait_share"] {
            assert!(value[share].as_f64().is_some_and(|share| (0.0..=1.0).contains(&share)), "{share}");
        }
        assert!(value["wall_ns"].as_u64().is_some_and(|time| time > 0));
        assert_eq!(value["command"][0], "cat");
        if value["method"] == "tracepoints" {
            let files = value["files"].as_array().expect("a list");
            let file = files.iter().find(|file| {
                file["path"].as_str().is_some_and(|path| data_name.ends_with(path.trim_start_matches("...")))
            });
            assert_eq!(file.expect("the file was read")["bytes"], 1 << 20);
        }
        let page = fs::read_to_string(&html).expect("it was written");
        assert!(page.starts_with("<!DOCTYPE html>") && page.contains("What the numbers say"));
        assert!(!page.contains("data<b>"), "names are escaped");
        assert!(!page.contains("http://") && !page.contains("https://"), "it needs nothing else");
        // Written by this program, so it may be replaced; somebody else's may not.
        let again = run(&["wait", "--json", &json_name, "--", "true"]);
        assert_eq!(again.code, Some(0), "{}", again.err);
        let foreign = run(&["wait", "--json", &data_name, "--", "true"]);
        assert_eq!(foreign.code, Some(3), "{}", foreign.err);
    }
}
