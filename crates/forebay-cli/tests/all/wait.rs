//! `forebay wait`: the command line, the outputs and the exit codes. The tests of the measurement are in the crate `forebay-wait`.

use crate::support::run;

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

#[cfg(feature = "wait")]
mod with {
    use std::fs;

    use serde_json::{Value, json};

    use crate::support::{Directory, Outcome, document, run};

    /// Returns whether it was refused for lack of privileges; then the error must report that.
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

    /// Regression: a page that could not be written at the end, such as on a disk that the command had filled, took the JSON and
    /// the text with it.
    #[test]
    fn a_page_that_cannot_be_written_costs_neither_json_nor_text() {
        let directory = Directory::new("wait-lost");
        let (gone, json) = (directory.path().join("gone"), directory.path().join("wait.json"));
        fs::create_dir(&gone).expect("it is writable");
        let (page, to_file) = (gone.join("page.html"), format!("--json={}", json.display()));
        let [gone, page] = [&gone, &page].map(|path| path.to_str().expect("a readable name"));
        let outcome = run(&["wait", &to_file, "--html", page, "--", "rmdir", gone]);
        if refused(&outcome) {
            return;
        }
        assert_eq!(outcome.code, Some(3), "{}", outcome.err);
        assert!(outcome.err.contains("full wait") && outcome.err.contains("page.html"), "{}", outcome.err);
        assert!(json.is_file());
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
    fn a_process_that_does_not_run_is_reported() {
        let outcome = run(&["wait", "--pid", "4000000000", "--seconds", "1"]);
        assert_eq!(outcome.code, Some(2), "{}", outcome.err);
        assert!(outcome.err.contains("there is no process 4000000000"), "{}", outcome.err);
    }

    /// Regression: a search through a folder used 3,643 files, and its page had 7.7 MB, nearly all of
    /// them numbers in its source.
    #[test]
    fn the_page_of_a_program_with_many_files_stays_small_and_names_the_omissions() {
        const FILES: usize = 2500;
        let directory = Directory::new("wait-many");
        let many = directory.path().join("many");
        fs::create_dir(&many).expect("it is writable");
        for number in 0..FILES {
            fs::write(many.join(format!("file-{number}")), "text").expect("it has space");
        }
        let (json, html) = (directory.path().join("wait.json"), directory.path().join("wait.html"));
        let words = |path: &std::path::Path| path.to_str().expect("a readable name").to_owned();
        let (json_name, html_name) = (words(&json), words(&html));
        let outcome = run(&[
            "wait",
            &format!("--json={json_name}"),
            "--html",
            &html_name,
            "--",
            "grep",
            "-rc",
            "other",
            &words(&many),
        ]);
        if refused(&outcome) {
            return;
        }
        let read = |text: &str| serde_json::from_str::<Value>(text).expect("it is JSON");
        let value = read(&fs::read_to_string(&json).expect("it was written"));
        if value["method"] != "tracepoints" {
            return;
        }
        let count = |value: &Value| value["files"].as_array().expect("a list").len();
        let all = count(&value);
        assert!(all >= FILES, "{all}");
        let page = fs::read_to_string(&html).expect("it was written");
        assert!(page.len() <= 2_000_000, "{} bytes", page.len());
        let (_, source) = page.split_once("id=\"forebay-result\">").expect("the numbers are in it");
        let known = count(&read(source.split_once("</script>").expect("they end").0));
        assert!(known >= 500 && known < all, "{known} of {all}");
        assert!(page.contains(&format!("of {known} files of {all}, those that were waited for longest")));
        assert_eq!(
            run(&["report", "--from", &json_name, "--out", &words(&directory.path().join("report.html"))])
                .code,
            Some(0)
        );
    }

    #[test]
    fn the_numbers_and_the_page_are_written_and_say_the_same() {
        let directory = Directory::new("wait");
        let data = directory.file("data<b>.bin", 1 << 20);
        let (json, html) = (directory.path().join("wait.json"), directory.path().join("wait.html"));
        let words = |path: &std::path::Path| path.to_str().expect("a readable name").to_owned();
        let (json_name, html_name, data_name) = (words(&json), words(&html), words(&data));
        let outcome = run(&[
            "wait",
            &format!("--json={json_name}"),
            "--html",
            &html_name,
            "--",
            "cat",
            "--",
            &data_name,
        ]);
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
        assert!(page.starts_with("<!DOCTYPE html>") && page.contains("Verdicts"));
        assert!(!page.contains("data<b>"), "names are escaped");
        assert!(!page.contains("http://") && !page.contains("https://"), "it needs nothing else");
        // It also serves the report's last question.
        let out = directory.path().join("report.html");
        let made = run(&["report", "--from", &json_name, "--out", &words(&out)]);
        assert_eq!(made.code, Some(0), "{}", made.err);
        let report = fs::read_to_string(&out).expect("it was written");
        assert!(
            report.contains("% of its time") && report.contains("was blocked for"),
            "the figure is shown"
        );
        // This program wrote it, so it may be replaced; a file from elsewhere may not.
        let again = run(&["wait", &format!("--json={json_name}"), "--", "true"]);
        assert_eq!(again.code, Some(0), "{}", again.err);
        let foreign = run(&["wait", &format!("--json={data_name}"), "--", "true"]);
        assert_eq!(foreign.code, Some(3), "{}", foreign.err);
    }

    /// Returns a result with the figures of the device below `directory` at three depths.
    fn measured(directory: &Directory) -> Value {
        let mut result = document(&run(&["doctor", directory.text(), "--json"]));
        let experiments = [(1, 10_000.0), (8, 44_000.0), (32, 45_000.0)].map(|(depth, iops)| {
            let sample = json!({ "repeat": 0, "iops": iops });
            let row =
                json!({ "name": "direct", "metrics": { "iops": iops }, "samples": [sample], "gates": [] });
            let parameters = json!({ "depth": depth, "block_bytes": 4096, "span_bytes": 9, "file_bytes": 9 });
            json!({ "name": "random", "parameters": parameters, "rows": [row] })
        });
        result["experiments"] = Value::from(experiments.to_vec());
        // Without views: a saved result of an earlier program.
        result["schema"] = Value::from(1);
        result
    }

    /// The advice names a gain only where it was measured. The program reads one block at a time, in
    /// no order.
    #[test]
    fn a_gain_comes_from_measured_figures() {
        let directory = Directory::new("gain");
        let data = directory.file("index.db", 1 << 20);
        let base = directory.path().join("base.json");
        fs::write(&base, measured(&directory).to_string()).expect("it is our directory");
        let json = directory.path().join("wait.json");
        let words = |path: &std::path::Path| path.to_str().expect("a readable name").to_owned();
        let (json, base, data) = (words(&json), words(&base), words(&data));
        let reads = format!(
            "for i in $(seq 64); do dd if='{data}' of=/dev/null bs=4096 count=1 skip=$((i * 7919 % 256)) iflag=direct \
             status=none; done"
        );
        let advice = |arguments: &[&str]| {
            let to_file = format!("--json={json}");
            let mut all = vec!["wait", &to_file];
            all.extend(arguments);
            all.extend(["--", "sh", "-c", &reads]);
            let outcome = run(&all);
            if refused(&outcome) {
                return None;
            }
            assert_eq!(outcome.code, Some(0), "{}", outcome.err);
            let value: Value =
                serde_json::from_str(&fs::read_to_string(&json).expect("it was written")).expect("JSON");
            Some((value["advice"].to_string(), value["files"].to_string()))
        };
        let Some((known, files)) = advice(&["--report", &base]) else { return };
        if !known.contains("4 KiB random reads of index.db, one at a time") {
            eprintln!("SKIPPED: these reads are not most of the wait here: {known} {files}");
            return;
        }
        let gain = "this device serves 4.4 times more at depth 8 (10,000 a second one at a time, 44,000 with 8; random in \
            base.json)";
        assert!(known.contains(gain) || known.contains("is of another device"), "{known}");
        let (unknown, _) = advice(&[]).expect("it could be measured before");
        assert!(!unknown.contains("times more"), "{unknown}");
        let nothing = run(&["wait", "--report", &json, "--", "true"]);
        assert_eq!(nothing.code, Some(2), "{}", nothing.err);
        assert!(nothing.err.contains("measure saturate --json"), "{}", nothing.err);
    }
}
