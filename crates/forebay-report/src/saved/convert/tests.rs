//! Results of other programs as they wrote them, and what becomes of them.

use super::*;
use crate::saved::parse;

fn named(text: &str) -> (String, String) {
    ("x.json".to_owned(), text.to_owned())
}

fn convert(texts: &[&str]) -> Report {
    let texts: Vec<_> = texts.iter().map(|text| named(text)).collect();
    of_others(&texts).expect("there are figures").expect("the program is known")
}

fn refused(texts: &[&str]) -> String {
    let texts: Vec<_> = texts.iter().map(|text| named(text)).collect();
    of_others(&texts).expect_err("it is no result").to_string()
}

fn fixture(name: &str) -> String {
    let path = format!("{}/tests/fixtures/foreign/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("the fixture is there")
}

/// Returns the figures of a row in each repeat.
fn samples(experiment: &Experiment, row: &str, metric: &str) -> Vec<f64> {
    let row = experiment.row(row).unwrap_or_else(|| panic!("no {row}: {experiment:?}"));
    row.samples.iter().filter_map(|sample| sample.metrics.get(metric)).collect()
}

const MODERN: &str = r#"fio: this platform does not support process shared mutexes
{ "fio version": "fio-3.36", "timestamp": 1700000000, "global options": { "ioengine": "io_uring", "bs": "4k" },
  "jobs": [ { "jobname": "rand", "error": 0, "job options": { "iodepth": "32", "rw": "randread" },
"read": { "total_ios": 1000, "iops": 2000.5, "bw": 8000, "bw_bytes": 8192000, "runtime": 500,
  "clat_ns": { "percentile": { "50.000000": 90000, "99.000000": 200000, "99.900000": 400000 } } },
"write": { "total_ios": 0, "iops": 0.0 }, "trim": { "total_ios": 0 },
"job_runtime": 500, "usr_cpu": 5.0, "sys_cpu": 15.0, "ctx": 2000 } ] }"#;

#[test]
fn a_job_of_fio_becomes_an_experiment() {
    let report = convert(&[MODERN]);
    let [experiment] = report.experiments.as_slice() else { panic!("{report:?}") };
    assert_eq!((experiment.number("depth"), experiment.rows.len()), (Some(32.0), 1));
    assert_eq!(experiment.parameters["rw"], "randread");
    let row = experiment.row("read").expect("it read");
    let metric = |name| row.metrics.get(name);
    assert_eq!((metric(metric::IOPS), metric(metric::MB_PER_S)), (Some(2000.5), Some(8.192)));
    assert_eq!((metric(metric::P50_US), metric(metric::P99_9_US)), (Some(90.0), Some(400.0)));
    assert_eq!((metric(metric::CPU_US_PER_IO), metric(metric::SECONDS)), (Some(100.0), Some(0.5)));
    assert_eq!(metric(metric::CONTEXT_SWITCHES_PER_IO), Some(2.0));
}

#[test]
fn old_versions_count_in_other_units() {
    let old = r#"{"fio version": "fio-2.16", "jobs": [{"jobname": "w", "write": {"total_ios": 10, "iops": 5.0,
        "bw": 1000, "clat": {"percentile": {"50.000000": 90}}}}]}"#;
    let report = convert(&[old]);
    let row = report.experiments[0].row("write").expect("it wrote").clone();
    assert_eq!(row.metrics.get(metric::MB_PER_S), Some(1.024));
    assert_eq!((row.metrics.get(metric::P50_US), row.metrics.get(metric::P99_US)), (Some(90.0), None));
}

#[test]
fn only_output_of_fio_with_figures_is_converted() {
    for other in ["", "{}", "[1]", "{\"schema\":1}", &MODERN[..MODERN.len() / 2]] {
        assert!(of_others(&[named(other)]).expect("no complaint").is_none(), "{other}");
    }
    for empty in [r#"{"fio version": "fio-3.1"}"#, r#"{"fio version": "fio-3.1", "jobs": [{"read": 7}]}"#] {
        let error = refused(&[empty]);
        assert!(error.contains("no job with any figures"), "{error}");
    }
}

#[test]
fn a_table_has_a_line_for_each_figure() {
    let mut report = convert(&[MODERN]);
    report.experiments[0].rows[0].metrics.0.retain(|name, _| name == metric::IOPS);
    report.experiments[0].rows[0].samples[0].metrics.0.retain(|name, _| name == metric::IOPS);
    report.experiments[0].rows[0].conditions = vec![Condition::at_most("steal", 0.5, 0.02)];
    report.experiments[0].rows.push(Row::skipped("trim", "refused, \"no\""));
    report.experiments[0].parameters = [("bs".to_owned(), Value::from("4k"))].into();
    let expected = "experiment,parameters,row,repeat,metric,value,failed_gates,skipped\n\
        fio,bs=4k,read,all,iops,2000.5,steal,\n\
        fio,bs=4k,read,0,iops,2000.5,steal,\n\
        fio,bs=4k,trim,,,,,\"refused, \"\"no\"\"\"\n";
    assert_eq!(to_csv(&report).expect("in memory"), expected);
}

/// A document of fio as it is, without what this program makes of it.
fn raw(text: &str) -> Value {
    let start = text.find("\n{").map_or(0, |at| at + 1);
    let mut documents = Deserializer::from_str(&text[start..]).into_iter();
    documents.next().expect("a document").expect("JSON")
}

#[test]
fn files_of_the_same_job_are_repeats_and_jobs_at_the_same_time_are_one_run() {
    let [one, two] = ["fio-3.33-jobs-1.json", "fio-3.33-jobs-2.json"].map(fixture);
    let report = convert(&[&one, &two]);
    let first = raw(&one);
    assert_eq!(report.environment.time_unix_s, first["timestamp"].as_u64().expect("a time"));
    let [point, mix] = report.experiments.as_slice() else { panic!("{report:?}") };
    let jobs: Vec<&Value> = list(&first["jobs"]).filter(|job| job["jobname"] == "point").collect();
    let of = |of: &dyn Fn(&Value) -> f64| jobs.iter().map(|job| of(job)).collect::<Vec<_>>();
    let longest = of(&|job| job["read"]["runtime"].as_f64().expect("ms")).into_iter().fold(0.0, f64::max);
    let row = point.row("read").expect("it read");
    let near = |metric: &str, wanted: f64| {
        let found = row.samples[0].metrics.get(metric).expect("a figure");
        assert!((found / wanted - 1.0).abs() < 1e-6, "{metric}: {found}, not {wanted}");
    };
    // Two jobs of 500 reads in parallel, in the time of the longer job.
    near(metric::IOPS, 1000.0 / longest * 1000.0);
    near(metric::SECONDS, longest / 1000.0);
    assert_eq!(row.samples[1].repeat, 1);
    // The largest of both jobs: no such value is the percentile of all reads.
    for (name, key, _) in PERCENTILES {
        let all = of(&|job| job["read"]["clat_ns"]["percentile"][key].as_f64().expect("ns"));
        near(name, all.into_iter().fold(0.0, f64::max) / 1000.0);
    }
    let figure = |job: &Value, name: &str| job[name].as_f64().expect("a number");
    near(metric::CONTEXT_SWITCHES_PER_IO, of(&|job| figure(job, "ctx")).iter().sum::<f64>() / 1000.0);
    let cpu_us =
        of(&|job| (figure(job, "usr_cpu") + figure(job, "sys_cpu")) * 10.0 * figure(job, "job_runtime"));
    near(metric::CPU_US_PER_IO, cpu_us.iter().sum::<f64>() / 1000.0);
    assert!(point.notes.iter().any(|note| note.contains("sum of 2 jobs")), "{:?}", point.notes);
    assert_eq!((mix.rows.len(), mix.notes.len()), (2, 0), "two runs have a spread: {:?}", mix.notes);
    assert_eq!(mix.row("read").and_then(|row| row.metrics.get(metric::CPU_US_PER_IO)), None);
    let alone = convert(&[&one]);
    assert!(alone.experiments.iter().all(|one| one.notes.iter().any(|note| note == ONCE)));
}

/// The sums of a group were divided by the time of its longest job, a fourth of the truth for four jobs.
#[test]
fn processor_time_is_that_of_all_jobs_of_a_group_or_unknown() {
    let text = fixture("fio-3.33-group.json");
    let job = raw(&text)["jobs"][0].clone();
    let row = convert(&[&text]).experiments[0].row("read").expect("it read").clone();
    let figure = |name: &str| job[name].as_f64().expect("a number");
    let wanted = (figure("usr_cpu") + figure("sys_cpu")) * 10.0 * figure("job_runtime") / 1000.0;
    assert!(figure("job_runtime") > 1.5 * job["read"]["runtime"].as_f64().expect("ms"));
    assert_eq!(row.metrics.get(metric::CPU_US_PER_IO), Some(wanted));
    // Before 3.8 the time of all is not there. The structure is that of fio 3.1, read in its sources.
    let old = r#"{"fio version": "fio-3.1", "global options": {"numjobs": "4", "group_reporting": ""}, "jobs": [{"jobname": "r",
        "job options": {"rw": "randread"}, "read": {"total_ios": 100000, "iops": 10000.0, "runtime": 10000},
        "usr_cpu": 5.0, "sys_cpu": 20.0, "ctx": 100000}]}"#;
    let row = convert(&[old]).experiments[0].row("read").expect("it read").clone();
    assert_eq!(
        (row.metrics.get(metric::CPU_US_PER_IO), row.metrics.get(metric::IOPS)),
        (None, Some(10_000.0))
    );
}

#[test]
fn syncs_hosts_and_marks_of_fio_are_read() {
    // Of fdatasync it has the times, and a number of 0.
    for name in ["fio-3.33-sync.json", "fio-3.33-fdatasync.json"] {
        let text = fixture(name);
        let found = convert(&[&text]).experiments;
        let wanted = raw(&text)["jobs"][0]["sync"]["lat_ns"]["percentile"]["99.000000"].as_f64().expect("ns");
        assert_eq!(samples(&found[0], "sync", metric::P99_US), [wanted / 1000.0], "{name}");
        let mean = raw(&text)["jobs"][0]["write"]["clat_ns"]["mean"].as_f64().expect("ns") / 1000.0;
        assert!((samples(&found[0], "write", metric::MEAN_US)[0] / mean - 1.0).abs() < 1e-9, "{name}");
        assert_ne!(samples(&found[0], "write", metric::P99_US), [wanted / 1000.0], "{name}");
    }
    // A client's output starts with the lines of its hosts.
    let text = fixture("fio-3.33-client.json");
    let found = convert(&[&text]).experiments;
    let job = &raw(&text)["client_stats"][0];
    assert_eq!(samples(&found[0], "read", metric::IOPS), [job["read"]["iops"].as_f64().expect("a rate")]);
    assert_eq!(Some(&found[0].parameters["host"]), job.get("hostname"));
    let with_sum = text.replace(
        "\"client_stats\" : [",
        "\"client_stats\" : [{\"jobname\": \"All clients\", \"read\": {\"total_ios\": 1}},",
    );
    assert_eq!(convert(&[&with_sum]).experiments.len(), 1);
    let marked = format!(
        "\u{feff}{}",
        MODERN.replace("\"trim\": { \"total_ios\": 0 }", "\"trim\": { \"iops\" : -nan }")
    );
    assert_eq!(convert(&[&marked]).to_json().expect("finite"), convert(&[MODERN]).to_json().expect("finite"));
    // The structure of fio 2.1.10, read in its sources: no number of operations, no options.
    let oldest = r#"{"fio version": "fio-2.1.10", "jobs": [{"jobname": "r", "read": {"bw": 26040, "iops": 6510, "runtime": 30001,
        "clat": {"percentile": {"50.000000": 145, "0.00": 0}}}, "usr_cpu": 1.5, "sys_cpu": 6.2, "ctx": 195400}]}"#;
    let row = convert(&[oldest]).experiments[0].row("read").expect("it read").clone();
    assert_eq!((row.metrics.get(metric::IOPS), row.metrics.get(metric::P50_US)), (Some(6510.0), Some(145.0)));
}

/// Regression: fio without times of operations (disable_clat) had a mean of 0 us, in versions that do not count the times.
#[test]
fn times_that_fio_did_not_take_are_no_figures() {
    let job = |mean: &str| {
        let text = r#"{"fio version": "fio-3.1", "jobs": [{"jobname": "r",
            "read": {"total_ios": 10, "iops": 5.0, "runtime": 2000, "clat_ns": {"mean": MEAN}}}]}"#;
        samples(&convert(&[&text.replace("MEAN", mean)]).experiments[0], "read", metric::MEAN_US)
    };
    assert_eq!(job("0.000000"), [0.0; 0]);
    assert_eq!(job("5000.0"), [5.0]);
}

#[test]
fn jobs_of_the_same_name_one_after_the_other_are_repeats() {
    let job = |group: u32, options: &str| {
        format!(
            r#"{{"jobname": "a", "groupid": {group}, "job options": {{"rw": "read"{options}}},
                "read": {{"total_ios": 10, "iops": 5.0, "runtime": 2000}}}}"#
        )
    };
    let fio = |jobs: [String; 2]| format!(r#"{{"fio version": "fio-3.36", "jobs": [{}]}}"#, jobs.join(","));
    let counts = |text: String| {
        let found = convert(&[&text]).experiments;
        found.iter().map(|one| samples(one, "read", metric::IOPS)).collect::<Vec<_>>()
    };
    assert_eq!(counts(fio([job(0, ""), job(1, r#", "stonewall": """#)])), [[5.0, 5.0]]);
    assert_eq!(counts(fio([job(0, ""), job(0, "")])), [[10.0]]);
    let parallel = r#", "new_group": "1""#;
    assert_eq!(counts(fio([job(0, parallel), job(1, parallel)])), [[10.0]]);
    assert_eq!(counts(fio([job(0, r#", "bs": "4k""#), job(0, "")])), [[5.0], [5.0]]);
}

#[test]
fn running_totals_of_fio_are_no_repeats() {
    let text = fixture("fio-3.33-jobs-2.json");
    assert!(refused(&[&format!("{text}{text}")]).contains("--status-interval"));
    assert!(refused(&[&format!("{text}\npoint: (groupid=0, jobs=2)\n{text}")]).contains("running totals"));
    // `--output-format=json,normal` has a text after the JSON.
    assert_eq!(convert(&[&format!("{text}\npoint: (groupid=0, jobs=2)\n")]).experiments.len(), 2);
}

/// The JSON of 4.0 has a list of operations where 3.3 had a list of iterations, and was refused.
#[test]
fn text_and_json_of_ior_have_the_same_rows_in_each_version() {
    for version in ["3.3.0", "4.0.0"] {
        for (suffix, digits) in [("out", 1e-9), ("json", 1e-4)] {
            let text = fixture(&format!("ior-{version}.{suffix}"));
            let report = convert(&[&text]);
            let [experiment] = report.experiments.as_slice() else { panic!("{report:?}") };
            assert_eq!(experiment.rows.len(), 2, "a removal has no figures");
            assert_eq!(experiment.number("tasks"), Some(2.0));
            assert!(experiment.method.contains(&format!("IOR-{version}")), "{}", experiment.method);
            assert_eq!(experiment.notes, [""; 0], "two repetitions");
            assert_eq!(experiment.parameters["xfersize"], "65536 bytes");
            for access in ["write", "read"] {
                let rates = samples(experiment, access, metric::MB_PER_S);
                let seconds = samples(experiment, access, metric::SECONDS);
                assert_eq!((rates.len(), seconds.len()), (2, 2), "{version} {access}");
                // Its rate is that of a mebibyte in the time that it gives.
                for (rate, seconds) in rates.iter().zip(seconds) {
                    let near = (rate * seconds - MIB).abs() <= rate * 0.5f64.mul_add(digits, 5e-7) + 0.01;
                    assert!(near, "{version} {access}: {rate} MB/s in {seconds} s");
                }
            }
        }
    }
}

/// Regression: `info.dat` became `nullo.dat`, as fio's `inf` becomes `null`, and no longer was the work of an earlier result.
#[test]
fn a_name_of_ior_may_begin_as_a_number_that_is_none() {
    let text = fixture("ior-4.0.0.out");
    let line = text.lines().find(|line| line.starts_with("test filename")).expect("a setting");
    let named = text.replace(line, "test filename       : info.dat");
    assert_eq!(convert(&[&named]).experiments[0].parameters["test filename"], "info.dat");
}

#[test]
fn ior_before_3_3_has_fewer_columns() {
    let old = "IOR-3.0.1: MPI Coordinated Test of Parallel I/O\n\nSummary:\n\tapi                = MPIIO (version=3)\n\
        \ttasks              = 2\n\naccess    bw(MiB/s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   \
        total(s)   iter\n------    ---------\nwrite     125.00     1024 64.00      -          0.25   0.0625  0.5   0\n";
    let found = convert(&[old]).experiments;
    assert_eq!(samples(&found[0], "write", metric::MB_PER_S), [131.072]);
    assert_eq!(samples(&found[0], "write", metric::CLOSE_MS), [62.5]);
    assert_eq!(samples(&found[0], "write", metric::OPEN_MS), [0.0; 0]);
    assert_eq!(
        (&found[0].parameters["api"], found[0].number("tasks")),
        (&"MPIIO (version=3)".into(), Some(2.0))
    );
    assert!(refused(&[old.split("write").next().expect("a part")]).contains("no job with any figures"));
}

#[test]
fn rates_of_mdtest_have_the_iterations_that_can_be_known() {
    let text = fixture("mdtest-4.0.0.out");
    let report = convert(&[&text]);
    let [experiment] = report.experiments.as_slice() else { panic!("{report:?}") };
    assert_eq!(experiment.rows.len(), 10);
    // The largest, the smallest and the mean rate, of the line of the first table.
    let line = |text: &str| -> Vec<f64> {
        let line = text.lines().find(|line| line.trim_start().starts_with("File creation")).expect("a line");
        line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    let [max, min, mean, _] = line(&text)[..] else { panic!("four figures") };
    let created = samples(experiment, "file-creation", metric::FILES_PER_S);
    assert_eq!((created.len(), created[0], created[2]), (3, min, max));
    assert!((created.iter().sum::<f64>() / 3.0 - mean).abs() < 0.01, "{created:?}");
    assert_eq!((experiment.number("tasks"), experiment.number("nodes")), (Some(2.0), Some(1.0)));
    assert_eq!(experiment.parameters["items"], "200 files/directories");
    assert_eq!(experiment.notes, [""; 0]);
    let many = text.replace("of 3 iterations", "of 9 iterations");
    let report = convert(&[&many, &many]);
    let created = samples(&report.experiments[0], "file-creation", metric::FILES_PER_S);
    assert_eq!(created, [mean, mean]);
    let notes = &report.experiments[0].notes;
    assert!(
        notes.iter().any(|note| note.contains("File creation: only the mean of 9 iterations")),
        "{notes:?}"
    );
    // Version 1 has colons, and newer versions can have columns of single ranks.
    let old = "mdtest-1.9.3 was launched with 2 total task(s) on 1 node(s)\n\nSUMMARY: (of 1 iterations)\n   Operation  \
        Max            Min           Mean        Std Dev\n   ---\n   File stat         :        9.5   9.5   9.5   0.0\n";
    assert_eq!(samples(&convert(&[old]).experiments[0], "file-stat", metric::FILES_PER_S), [9.5]);
    let ranks = old
        .replace("Operation ", "Operation per Rank: Max Min Mean per Iteration: ")
        .replace(":        9.5", "1.0 2.0 3.0 9.5");
    assert_eq!(samples(&convert(&[&ranks]).experiments[0], "file-stat", metric::FILES_PER_S), [9.5]);
    // Version 3.3 computes the rates of all tasks together, so that three do not follow from them.
    let text = fixture("mdtest-3.3.0.out");
    let created = samples(&convert(&[&text]).experiments[0], "directory-creation", metric::FILES_PER_S);
    assert_eq!(created.len(), 1, "{created:?}");
}

/// A table of times was read as rates: 0.58 ms became 0.58 files a second.
#[test]
fn times_of_mdtest_are_no_rates() {
    for version in ["3.3.0", "4.0.0"] {
        let (both, times) =
            (fixture(&format!("mdtest-{version}.out")), fixture(&format!("mdtest-{version}-times.out")));
        assert!(both.contains("SUMMARY time:"), "{version}");
        assert!(refused(&[&times]).contains("no job with any figures"), "{version}");
        let rates = both.split("SUMMARY time:").next().expect("a part");
        assert_eq!(
            convert(&[&both]).to_json().expect("finite"),
            convert(&[rates]).to_json().expect("finite"),
            "{version}"
        );
        // As releases after 4.0 call it.
        let newer = times.replace("SUMMARY time:", "SUMMARY time (in ms/op):");
        assert!(refused(&[&newer]).contains("no job with any figures"), "{version}");
    }
    let infinite =
        fixture("mdtest-4.0.0.out").replace("   File stat     ", "   File stat   inf inf inf nan\n   X ");
    assert!(convert(&[&infinite]).experiments[0].row("file-stat").is_none());
}

#[test]
fn phases_of_elbencho_become_experiments() {
    let text = fixture("elbencho-3.1-9.json");
    let report = convert(&[&text]);
    let [directories, write, mixed] = report.experiments.as_slice() else { panic!("{report:?}") };
    assert_eq!(samples(directories, "last_done", metric::FILES_PER_S), [25_000.0]);
    assert_eq!(samples(directories, "last_done", "mean_us"), [31.0], "those of entries");
    assert_eq!(samples(write, "last_done", metric::IOPS), [20_000.0, 21_000.0], "the same phase twice");
    assert_eq!(samples(write, "last_done", metric::MB_PER_S), [81.92, 86.016]);
    assert_eq!(samples(write, "first_done", metric::SECONDS), [0.9, 0.856]);
    let row = write.row("last_done").expect("it ended");
    let times = [metric::P50_US, metric::P99_US, metric::P99_9_US].map(|name| row.metrics.get(name));
    assert_eq!(times, [Some(215.0), Some(1024.0), Some(1024.0)]);
    assert_eq!((&write.parameters["phase"], write.number("block_size")), (&"WRITE".into(), Some(4096.0)));
    assert_eq!(samples(mixed, "last_done.rwmix_read", metric::IOPS), [3000.0]);
    assert_eq!(samples(mixed, "last_done.rwmix_read", "mean_us"), [150.0]);
    assert_eq!(write.parameters["version"], "3.1-9");
    assert_eq!(samples(mixed, "last_done.rwmix_read", metric::P99_US), [152.0]);
    let exceeded = text.replace(
        r#"{"buckets":[{"range":"152"#,
        r#"{"histo_max_exceeded":"too long","buckets":[{"range":"152"#,
    );
    assert!(convert(&[&exceeded]).experiments[1].notes.iter().any(|note| note.contains("too long")));
    assert!(refused(&[&text[..text.len() - 9]]).contains("was cut off"));
}

#[test]
fn several_files_are_of_programs_that_are_known() {
    let [ior, fio] = ["ior-4.0.0.out", "fio-3.33-jobs-1.json"].map(fixture);
    assert_eq!(convert(&[&ior, &fio]).environment.kernel, "unknown: measured by IOR-4.0.0 and fio-3.33");
    let own = Report::new(Environment::default(), Vec::new()).to_json().expect("finite");
    assert!(refused(&[&ior, &own]).contains("it is converted alone"));
    assert!(refused(&[&ior, "<html>"]).contains("reads the JSON of forebay, fio, elbencho and IOR"));
}

/// A generator of numbers that look random (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// Reads a text with every reader that may get it, and prints and compares a result.
fn read_all(text: &str) {
    let report = of_others(&[named(text)]).ok().flatten().or_else(|| parse("x.json", text).ok());
    if let Some(report) = report {
        to_csv(&report).expect("in memory");
        report.to_json().expect("finite");
        let comparison = crate::saved::diff::compare(&report, &report);
        if let Ok(comparison) = comparison {
            comparison.to_json().expect("finite");
            comparison.to_text();
        }
    }
}

#[test]
fn no_reader_panics_on_a_damaged_file() {
    let words = [
        "-1",
        "0",
        "1e308",
        "-1e400",
        "NaN",
        "inf",
        "null",
        "[]",
        "{}",
        "\"\"",
        "\n",
        "\0",
        "{",
        "}",
        "\u{fffd}\u{2028}",
        "18446744073709551616",
        "4294967296",
        ":",
        ",",
        "write",
        "read",
        "(of 2 iterations)",
        "SUMMARY",
        "access bw(MiB/s)",
    ];
    let waited = r#"{"schema": 1, "forebay": "0", "kind": "wait", "time_unix_s": 1, "kernel": "", "command": [], "pid": 7,
        "method": "pressure", "wall_ns": 2, "full_wait_share": 0.5, "some_wait_share": 0.5, "wait_sum_ns": 3,
        "iowait": {"full_share": 0.5}, "files": [{"path": "a", "wait_ns": 1, "wait_share": 1.0}], "advice": ["b"], "notes": []}"#;
    let foreign = [
        "fio-3.33-jobs-1.json",
        "fio-3.33-sync.json",
        "elbencho-3.1-9.json",
        "ior-3.3.0.json",
        "ior-4.0.0.json",
        "ior-4.0.0.out",
        "mdtest-4.0.0.out",
    ]
    .map(fixture);
    let own = [convert(&[&foreign[0]]).to_json().expect("finite"), waited.to_owned()];
    let mut dice = Dice(0x2545_F491_4F6C_DD1D);
    for text in foreign.into_iter().chain(own) {
        // All places of a text are ASCII, so any of them can be cut.
        assert!(text.is_ascii());
        let step = (text.len() / 40).max(1);
        for at in (0..text.len()).step_by(step) {
            read_all(&text[..at]);
            read_all(&text[at..]);
            let word = words[dice.below(words.len())];
            let end = (at + dice.below(12)).min(text.len());
            read_all(&format!("{}{word}{}", &text[..at], &text[end..]));
        }
        // Values of every field in turn: digits, and whole words.
        let starts: Vec<usize> = text.match_indices([' ', ':', '\n']).map(|(at, _)| at + 1).collect();
        for at in starts.iter().copied().step_by((starts.len() / 100).max(1)) {
            let rest = &text[at..];
            let end = at + rest.find([' ', ',', '\n', '}']).unwrap_or(rest.len());
            let word = words[dice.below(words.len())];
            read_all(&format!("{}{word}{}", &text[..at], &text[end..]));
        }
    }
}
