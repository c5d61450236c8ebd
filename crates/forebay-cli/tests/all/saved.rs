//! `diff`, `assert` and `convert` on results in files: valid, and typical invalid files.

use std::fs;

use crate::support::{Directory, run};
use serde_json::{Value, json};

/// Returns a result with one table of random reads for each depth.
fn result(name: &str, figures: &[(u32, [f64; 3], f64)]) -> Value {
    let row = |name: &str, values: &[f64]| {
        let samples: Vec<Value> = values
            .iter()
            .enumerate()
            .map(|(repeat, iops)| json!({ "repeat": repeat, "iops": iops }))
            .collect();
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let metrics = json!({ "iops": sorted[values.len() / 2] });
        json!({ "name": name, "metrics": metrics, "samples": samples, "gates": [] })
    };
    let experiments: Vec<Value> = figures
        .iter()
        .map(|(depth, direct, bare)| {
            let rows = [row("direct", direct), row("bare", &[*bare])];
            json!({ "name": name, "parameters": { "depth": depth, "seed": depth * 7 }, "rows": rows })
        })
        .collect();
    json!({
        "schema": 1, "forebay": "0.1.0", "experiments": experiments,
        "environment": {
            "time_unix_s": 1, "kernel": "Linux 6.18.0", "architecture": "x86_64", "cpus_allowed": 2, "cpus_online": 2,
            "virtual_machine": true, "memory_total_bytes": 1, "memory_available_bytes": 1, "optimized_build": true
        }
    })
}

struct Files(Directory);

impl Files {
    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, text).expect("it is our directory");
        path.to_str().expect("readable name").to_owned()
    }

    fn json(&self, name: &str, value: &Value) -> String {
        self.write(name, &value.to_string())
    }
}

/// Runs the program and checks its exit code, and that its output has every one of `words`.
fn expect_output(arguments: &[&str], code: i32, words: &[&str]) {
    let outcome = run(arguments);
    assert_eq!(outcome.code, Some(code), "{arguments:?}: {}{}", outcome.out, outcome.err);
    // Refusals are written to standard error, with nothing on standard output that a script could mistake for a result.
    let text = if code >= 2 { &outcome.err } else { &outcome.out };
    assert!(code < 2 || outcome.out.is_empty(), "{arguments:?}: {}", outcome.out);
    for word in words {
        assert!(text.contains(word), "{arguments:?}: {word:?} is not in {text}");
    }
}

#[test]
fn two_runs_are_compared_beyond_their_noise() {
    let files = Files(Directory::new("diff"));
    let before = files.json(
        "a.json",
        &result("random", &[(1, [100.0, 99.0, 101.0], 100.0), (32, [900.0, 910.0, 890.0], 1000.0)]),
    );
    let after = files.json(
        "b.json",
        &result("random", &[(1, [102.0, 99.0, 104.0], 100.0), (32, [450.0, 455.0, 445.0], 1000.0)]),
    );
    let changed =
        "random[depth=32].direct\n    iops (IOPS): 900 (890 to 910) -> 450 (445 to 455): 2 times less";
    expect_output(
        &["diff", &before, &after],
        0,
        &[changed, "4 figures compared: 1 changed beyond noise, 1 alike, 2 unclear: "],
    );
    expect_output(&["diff", &before, &before], 0, &["0 changed beyond noise, 2 alike, 2 unclear: "]);
    let found: Value = serde_json::from_str(&run(&["diff", &before, &after, "--json"]).out).expect("JSON");
    let change = &found["diff"]["rows"][0]["changes"][0];
    assert_eq!((&change["metric"], &change["times"]), (&json!("iops"), &json!(2.0)), "{found}");
}

/// Story: two runs of the same program on a machine that other users shared, one repeat each. By the rule
/// that a figure changed when it lies outside the range of the other's repeats, 154 of 219 figures had.
#[test]
fn two_runs_of_the_same_program_on_a_busy_machine_are_not_called_different() {
    let fixture =
        |number| format!("{}/tests/fixtures/same-program-{number}.json", env!("CARGO_MANIFEST_DIR"));
    let outcome = run(&["diff", &fixture(1), &fixture(2), "--json"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let found: Value = serde_json::from_str(&outcome.out).expect("JSON");
    let count = |name: &str| found["diff"][name].as_u64().expect("a number");
    assert_eq!(count("compared"), 219, "{found}");
    assert!(count("changed") * 20 <= count("compared"), "{found}");
    assert_eq!(count("changed") + count("alike") + count("unclear"), count("compared"), "{found}");
}

/// A user wrote `--json=b.json` behind the two results: the comparison replaced the second, which had taken an hour to measure.
#[test]
fn a_result_that_is_read_is_not_replaced() {
    let files = Files(Directory::new("read"));
    let text = result("random", &[(1, [100.0; 3], 100.0)]).to_string();
    let [before, after] = ["a.json", "b.json"].map(|name| files.write(name, &text));
    let again = format!("{}/./b.json", files.0.text());
    let page = files.0.path().join("page.html");
    let page = page.to_str().expect("readable name");
    for name in [&before, &after, &again] {
        let json = format!("--json={name}");
        let words = ["would replace", ".json, which is read: name another file"];
        expect_output(&["diff", &before, &after, &json], 2, &words);
    }
    let json = format!("--json={after}");
    expect_output(&["report", files.0.text(), "--out", page, "--wait", &after, &json], 2, &["which is read"]);
    assert_eq!(fs::read_to_string(&after).expect("it is there"), text);
    // Another result of this program is replaced, as ever.
    let other = format!("--json={}", files.write("c.json", &text));
    expect_output(&["diff", &before, &after, &other], 0, &["0 changed beyond noise"]);
}

#[test]
fn an_expression_that_fails_has_an_exit_code_of_its_own() {
    let files = Files(Directory::new("assert"));
    let file = files.json("a.json", &result("random", &[(1, [100.0; 3], 100.0), (32, [900.0; 3], 1000.0)]));
    let holds = "random[depth=32].direct.iops >= 0.85 * random[depth=32].bare.iops";
    let fails = "random[depth=32].direct.iops >= 0.95 * random[depth=32].bare.iops";
    expect_output(
        &["assert", &file, holds],
        0,
        &["holds: random[depth=32].direct.iops = 900, wanted >= 850"],
    );
    expect_output(&["assert", &file, holds, fails], 1, &["holds: ", "FAILS: ", "wanted >= 950"]);
    expect_output(
        &["assert", &file, "random.direct.iops > 1"],
        2,
        &["experiments fit", "random[depth=1]", "random[depth=32]"],
    );
    expect_output(
        &["assert", &file, "random[depth=2].direct.iops > 1"],
        2,
        &["no experiment has these", "random[depth=1]"],
    );
    expect_output(&["assert", &file, fails, "random is fast"], 2, &["no operator"]);
    expect_output(&["assert", &file], 2, &["EXPRESSION"]);
}

/// A build server reads outcomes as JUnit's test cases, Prometheus as series.
#[test]
fn outcomes_are_written_for_other_programs() {
    let files = Files(Directory::new("outcomes"));
    let file = files.json("a.json", &result("random", &[(1, [100.0; 3], 100.0)]));
    let [junit, metrics] = ["junit.xml", "metrics.txt"].map(|name| files.0.path().join(name));
    let [junit, metrics] = [&junit, &metrics].map(|path| path.to_str().expect("readable name"));
    let both = ["--junit", junit, "--openmetrics", metrics];
    let conditions = [file.as_str(), "random.direct.iops >= 100", "random.direct.iops > 100"];
    // The second time the files are replaced.
    for _ in 0..2 {
        expect_output(&[&["assert"][..], &conditions, &both].concat(), 1, &["holds: ", "FAILS: "]);
    }
    let text = fs::read_to_string(junit).expect("it was written");
    assert!(text.contains("tests=\"2\" failures=\"1\"") && text.contains("<failure message="), "{text}");
    let text = fs::read_to_string(metrics).expect("it was written");
    let families =
        forebay_test::exposition::open_metrics(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let holds = families.iter().find(|family| family.name == "forebay_assert_holds").expect("a family");
    let values = conditions[1..].iter().map(|condition| holds.value(&[("expression", *condition)]));
    assert_eq!(values.collect::<Vec<_>>(), [1.0, 0.0]);
    let outcome = run(&[&["assert"][..], &conditions, &["--openmetrics", "-"]].concat());
    assert_eq!((outcome.code, outcome.out), (Some(1), text));
    let other = files.write("diary.txt", "a diary");
    expect_output(
        &[&["assert"][..], &conditions, &["--junit", &other]].concat(),
        3,
        &["not written by this program"],
    );
    expect_output(
        &[&["assert"][..], &conditions, &["--junit", "-", "--openmetrics", "-"]].concat(),
        2,
        &["two files"],
    );
}

/// Any result, of this program or of another, can be compared with any other.
#[test]
fn results_of_all_programs_are_shown_beside_each_other() {
    let files = Files(Directory::new("beside"));
    let page = files.0.path().join("page.html");
    let page = page.to_str().expect("readable name");
    let fixture =
        |name| format!("{}/../forebay-report/tests/fixtures/foreign/{name}", env!("CARGO_MANIFEST_DIR"));
    let before = files.json("a.json", &result("random", &[(32, [900.0, 910.0, 890.0], 1000.0)]));
    let after = files.json("b.json", &result("random", &[(32, [450.0, 455.0, 445.0], 1000.0)]));
    let mut elsewhere = result("random", &[(32, [450.0, 455.0, 445.0], 1000.0)]);
    elsewhere["environment"]["host"] = json!("node7");
    elsewhere["environment"]["cpus_online"] = json!(64);
    let elsewhere = files.json("c.json", &elsewhere);
    let fio = fixture("fio-3.33-client.json");
    let all = ["report", "--out", page, "--from", &before, &after, &elsewhere, &fio, &before];
    expect_output(
        &all,
        0,
        &[
            "a.json: IOPS 900 (890 to 910)",
            "2 times less",
            "another machine",
            "no experiment is in both",
            "a.json (5)",
        ],
    );
    let text = fs::read_to_string(page).expect("it was written");
    for words in ["What differs beyond noise", "What cannot be compared", "processors 2 -&gt; 64", "p99 µs"]
    {
        assert!(text.contains(words), "{words}");
    }
    for (name, unit) in
        [("ior-4.0.0.out", "MB/s"), ("mdtest-4.0.0.out", "files/s"), ("elbencho-3.1-9.json", "IOPS")]
    {
        expect_output(&["report", "--out", page, "--from", &fixture(name)], 0, &[unit, "The page: "]);
    }
    expect_output(&["report", "--out", page, "--claims", "--from", &before, &after], 2, &["one result"]);
    let terse = files.write("fio.txt", "job: (groupid=0, jobs=1): err= 0");
    expect_output(
        &["report", "--out", page, "--from", &before, &terse],
        2,
        &["text of fio", "--output-format=json"],
    );
}

#[test]
fn a_measured_result_goes_through_all_three() {
    let directory = Directory::new("whole");
    let mut arguments = vec!["measure", "random", directory.text(), "--json", "--quiet", "--repeats", "2"];
    arguments.extend(["--memory", "32MiB", "--size", "48MiB", "--seconds", "0.05", "--depth", "1,4"]);
    arguments.extend(["--rows", "direct,direct-pread"]);
    let outcome = run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let files = Files(directory);
    let file = files.write("a.json", &outcome.out);
    expect_output(&["diff", &file, &file], 0, &["0 changed beyond noise"]);
    let figure = "random[depth=4,span=whole file].direct.iops";
    expect_output(
        &["assert", &file, &format!("{figure} == {figure}"), &format!("{figure} > 0")],
        0,
        &["holds"],
    );
    expect_output(
        &["assert", &file, "random[depth=4].direct.iops > 0"],
        2,
        &["2 experiments fit", "span=whole file"],
    );
    let outcome = run(&["convert", &file]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let lines: Vec<&str> = outcome.out.lines().collect();
    assert!(lines[0].starts_with("experiment,parameters,row,repeat,metric,value"), "{}", lines[0]);
    // Two spans, two depths, two rows; each figure for all and for both repeats.
    assert_eq!(lines.iter().filter(|line| line.contains(",iops,")).count(), 2 * 2 * 2 * 3);
}

#[test]
fn a_result_of_fio_is_converted_and_can_be_compared() {
    let files = Files(Directory::new("fio"));
    let fio = |iops: f64| {
        format!(
            "fio: a warning\n{{\"fio version\": \"fio-3.36\", \"jobs\": [{{\"jobname\": \"j\", \"job options\": \
             {{\"iodepth\": \"8\"}}, \"read\": {{\"total_ios\": 5, \"iops\": {iops}}}}}]}}"
        )
    };
    let [one, other] = [100.0, 300.0].map(|iops| {
        let outcome = run(&["convert", &files.write("fio.json", &fio(iops))]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        files.write(&format!("{iops}.json"), &outcome.out)
    });
    // It ran once, so its noise is unknown.
    expect_output(
        &["diff", &one, &other],
        0,
        &["0 changed beyond noise, 0 alike, 1 unclear: ", " repeats of both"],
    );
    expect_output(&["assert", &one, "fio[depth=8].read.iops == 100"], 0, &["holds"]);
    expect_output(
        &["convert", &files.write("fio.json", &fio(1.0)), "--to", "csv"],
        0,
        &["fio,depth=8;iodepth=8;job=j,read,all,iops,1"],
    );
    expect_output(&["diff", &files.write("fio.json", &fio(1.0)), &one], 2, &["fio.json", "is not JSON"]);
}

/// Several files of the same job are its repeats, so that a change can be told from noise.
#[test]
fn repeats_of_other_programs_can_be_compared() {
    let files = Files(Directory::new("foreign"));
    let fixture =
        |name| format!("{}/../forebay-report/tests/fixtures/foreign/{name}", env!("CARGO_MANIFEST_DIR"));
    let [one, two] = ["fio-3.33-jobs-1.json", "fio-3.33-jobs-2.json"].map(fixture);
    let outcome = run(&["convert", &one, &two, &one, &two]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let before = files.write("before.json", &outcome.out);
    let mut faster = serde_json::from_str::<Value>(&outcome.out).expect("JSON");
    let row = &mut faster["experiments"][0]["rows"][0];
    let scale = |metrics: &mut Value| {
        let rate = metrics["iops"].as_f64().expect("a rate");
        metrics["iops"] = Value::from(100.0 * rate);
    };
    let rate = row["metrics"]["iops"].as_f64().expect("a rate");
    scale(&mut row["metrics"]);
    row["samples"].as_array_mut().expect("repeats").iter_mut().for_each(scale);
    let after = files.write("after.json", &faster.to_string());
    expect_output(&["diff", &before, &before], 0, &["0 changed beyond noise"]);
    expect_output(&["diff", &before, &after], 0, &["].read\n    iops (IOPS): ", ": 100 times more"]);
    let condition = format!("fio[job=point].read.iops <= {}", rate + 1.0);
    expect_output(&["assert", &before, &condition], 0, &["holds"]);
    for (name, condition) in [
        ("ior-3.3.0.out", "ior.write.mb_per_s > 100"),
        ("ior-4.0.0.json", "ior[xfersize=65536 bytes].read.mb_per_s > 1"),
        ("mdtest-4.0.0.out", "mdtest.file-creation.files_per_s >= 100"),
        ("elbencho-3.1-9.json", "elbencho[phase=WRITE].last_done.p99_us == 1024"),
    ] {
        let outcome = run(&["convert", &fixture(name)]);
        assert_eq!(outcome.code, Some(0), "{name}: {}", outcome.err);
        expect_output(&["assert", &files.write("one.json", &outcome.out), condition], 0, &["holds: "]);
    }
    // The page has a column for each figure.
    let mdtest = files.write("mdtest.json", &run(&["convert", &fixture("mdtest-4.0.0.out")]).out);
    let page = files.0.path().join("page.html");
    let page = page.to_str().expect("readable name");
    expect_output(
        &["report", "--verbose", "--from", &mdtest, "--out", page],
        0,
        &["files/s", "file-creation"],
    );
    let unknown = files.write("bonnie.txt", "Version 2.00a ------Sequential Output------");
    let known =
        "`forebay convert` reads the JSON of forebay, fio, elbencho and IOR, and the text of IOR and mdtest";
    expect_output(&["convert", &unknown], 2, &["bonnie.txt is not JSON", known]);
    expect_output(&["convert", &one, &unknown], 2, &["bonnie.txt is not JSON", known]);
    expect_output(
        &["convert", &one, &before],
        2,
        &["before.json is a result of forebay: it is converted alone"],
    );
    expect_output(&["convert"], 2, &["FILE"]);
}

/// A file that is not a whole result of this version is reported with its name and the reason, and
/// nothing is compared.
#[test]
fn bad_input() {
    let files = Files(Directory::new("bad"));
    let good = result("random", &[(1, [100.0; 3], 100.0)]);
    let whole = good.to_string();
    let good = files.json("good.json", &good);
    let mut other = result("random", &[]);
    other["schema"] = json!(3);
    let absurd = whole.replacen("100.0", "1e400", 1);
    let twisted = whole.replacen("\"iops\":100.0", "\"iops\":\"fast\"", 1);
    let negative = whole.replacen("\"repeat\":0", "\"repeat\":-1", 1);
    for (name, text, words) in [
        ("version.json", other.to_string().as_str(), &["version 3 of the schema", "measure again"][..]),
        ("cut.json", &whole[..whole.len() - 9], &["was cut off"]),
        ("empty.json", "", &["is empty"]),
        ("page.html", "<!DOCTYPE html>", &["is not JSON"]),
        ("number.json", &absurd, &["is not JSON", "out of range"]),
        ("word.json", &twisted, &["does not follow the schema"]),
        ("negative.json", &negative, &["does not follow the schema"]),
        ("foreign.json", "{\"jobs\": []}", &["was not written by forebay"]),
        ("list.json", "[]", &["was not written by forebay"]),
        (
            "kv.json",
            "{\"schema\": 1, \"forebay\": \"0.1.0\", \"kv\": {}}",
            &["the output of another command"],
        ),
    ] {
        let file = files.write(name, text);
        let words: Vec<&str> = words.iter().copied().chain([name]).collect();
        expect_output(&["diff", &file, &good], 2, &words);
        expect_output(&["diff", &good, &file], 2, &words);
        expect_output(&["assert", &file, "random.direct.iops > 0"], 2, &words);
        expect_output(&["convert", &file], 2, &words);
    }
    let scan = files.json("scan.json", &result("scan", &[(1, [100.0; 3], 100.0)]));
    expect_output(
        &["diff", &good, &scan],
        2,
        &["no experiment is in both", "the first has random, the second scan"],
    );
    expect_output(&["diff", &good, "no-such-file.json"], 3, &["no-such-file.json", "does not exist"]);
    expect_output(&["diff", "-", "-"], 2, &["standard input"]);
    expect_output(&["convert", files.0.text()], 3, &[files.0.text()]);
    expect_output(&["convert", &good, "--to", "xml"], 2, &["xml"]);
    // Figures at the limits of a number's range are compared without a panic.
    let huge = files.json("huge.json", &result("random", &[(1, [1e308; 3], 5e-324)]));
    expect_output(&["diff", &good, &huge], 0, &["1 changed beyond noise"]);
    expect_output(&["assert", &huge, "random.direct.iops > 10 * random.direct.iops"], 1, &["FAILS"]);
}

/// Returns the output of `forebay wait --json`, as far as other commands show it.
fn waited() -> Value {
    json!({
        "schema": 1, "forebay": "0.1.0", "kind": "wait", "time_unix_s": 1, "kernel": "Linux 6.18.0",
        "command": ["index", "--build"], "pid": 7, "exit_code": 0, "signal": null, "method": "tracepoints",
        "wall_ns": 2_000_000_000_u64, "full_wait_ns": 1_440_000_000_u64, "full_wait_share": 0.72,
        "some_wait_ns": 1_600_000_000_u64, "some_wait_share": 0.8, "wait_sum_ns": 1_700_000_000_u64,
        "iowait": { "some_ns": 1, "full_ns": 1, "some_share": 0.7, "full_share": 0.65 },
        "files": [
            { "path": "/srv/index.db", "wait_ns": 1_360_000_000_u64, "wait_share": 0.8 },
            { "path": "/srv/unused", "wait_ns": 0, "wait_share": 0.0 }
        ],
        "advice": ["80 % of the wait is 4 KiB random reads of index.db, one at a time"], "notes": ["a note"]
    })
}

/// Regression: the report's last question searched for an experiment that no command wrote, and a
/// result of `wait` was refused by every command that reads one.
#[test]
fn the_wait_of_a_program_is_in_the_last_question_of_the_report() {
    let files = Files(Directory::new("waited"));
    let wait = files.json("wait.json", &waited());
    let other = files.json("a.json", &result("random", &[(1, [100.0, 99.0, 101.0], 100.0)]));
    let page = files.0.path().join("page.html");
    let out = page.to_str().expect("readable name");
    let from = |arguments: &[&str]| {
        let mut all = vec!["report", "--out", out];
        all.extend(arguments);
        expect_output(
            &all,
            0,
            &["Is the program blocked on I/O? (72 % of its time)", "`index` was blocked for 72 %"],
        );
        fs::read_to_string(&page).expect("it was written")
    };
    let alone = from(&["--from", &wait]);
    let both = from(&["--from", &other, "--wait", &wait]);
    for text in [&alone, &both] {
        assert!(text.contains("72 % of its time"), "the figure is told");
        assert!(text.contains("Time blocked on I/O: index --build"), "and of which program");
        assert!(text.contains("<code>index --build</code>: 80 % of the wait"), "its advice");
        assert!(text.contains("/srv/index.db") && text.contains("a note"));
        assert!(!text.contains("/srv/unused</th>"), "a file without waits is not shown");
    }
    assert!(
        !alone.contains("0 of 0 processors") && !alone.contains("cpus allowed"),
        "what is not known is not shown"
    );
    assert!(!alone.contains("unoptimised"), "nor doubted");
    assert!(both.contains("random"));
    expect_output(
        &["assert", &wait, "wait.program.full_wait_share < 0.8"],
        0,
        &["wait.program.full_wait_share"],
    );
    expect_output(
        &["assert", &wait, "wait.program.full_wait_share < 0.7"],
        1,
        &["wait.program.full_wait_share"],
    );
    expect_output(
        &["report", "--from", &other, "--wait", &other, "--out", out],
        2,
        &["is not a result of `forebay wait --json`"],
    );
    let mut twisted = waited();
    twisted["files"] = json!(7);
    let twisted = files.json("twisted.json", &twisted);
    expect_output(
        &["report", "--from", &twisted, "--out", out],
        2,
        &["does not follow the schema of `forebay wait`"],
    );
}
