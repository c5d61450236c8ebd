//! `forebay convert`: results of other programs to this program's schema, and its own to CSV.

use anyhow::Context as _;
use serde_json::{Deserializer, Value};

use super::not_json;
use super::select::plain;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::result::{Condition, Experiment, Report, Row};

mod foreign;

/// Note of an experiment without repeats.
const ONCE: &str = "One run: the spread between runs is unknown. Name the files of several runs of the same work to \
                    make them repeats.";

/// A result of another program: the program with its version, the time where it is known, and the experiments.
type Foreign = (String, u64, Vec<Experiment>);

/// Converts the named texts of other programs, with an experiment for each job or phase. Runs of the same work become
/// repeats. `None` when there is a single text that is from no such program.
///
/// # Errors
/// [`Failure::Usage`] when a result has no figures, or one of several is of another program.
pub fn of_others(texts: &[(String, String)]) -> Result<Option<Report>, Failure> {
    let (mut programs, mut experiments, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for (name, text) in texts {
        let wrong = |what: String| Failure::Usage(format!("{name} {what}"));
        let Some((program, time_unix_s, mut found)) = foreign(text).map_err(wrong)? else {
            if texts.len() == 1 {
                return Ok(None);
            }
            super::parse(name, text)?;
            return Err(wrong("is a result of forebay: it is converted alone".to_owned()));
        };
        found.retain(|experiment| !experiment.rows.is_empty());
        if found.is_empty() {
            return Err(wrong(format!("is of {program} and has no job with any figures")));
        }
        for experiment in &mut found {
            experiment.method = format!("Measured by {program} and converted. {}", experiment.method);
        }
        experiments.append(&mut found);
        times.push(time_unix_s);
        programs.push(program);
    }
    programs.dedup();
    let environment = Environment {
        time_unix_s: times.first().copied().unwrap_or_default(),
        kernel: format!("unknown: measured by {}", programs.join(" and ")),
        optimized_build: true,
        ..Environment::default()
    };
    Ok(Some(Report::new(environment, merge(experiments))))
}

/// Finds the program that wrote a text, and reads it; `None` when it is none of these.
///
/// # Errors
/// What is wrong with the text, to follow its name.
fn foreign(text: &str) -> Result<Option<Foreign>, String> {
    // fio and launchers print their warnings before the JSON.
    let lines = text.split_inclusive('\n');
    let start: usize = lines.take_while(|line| !line.trim_start().starts_with('{')).map(str::len).sum();
    let (mut documents, mut fault) = (Vec::new(), None);
    for document in Deserializer::from_str(&text[start..]).into_iter::<Value>() {
        document.map_or_else(|error| fault = Some(error), |document| documents.push(document));
    }
    let has = |name: &str| documents.first().is_some_and(|first| first.get(name).is_some());
    let first = documents.first().unwrap_or(&Value::Null);
    let version = |name: &str| first[name].as_str().unwrap_or("unknown");
    Ok(Some(match fault {
        _ if has("fio version") => {
            if text.matches("\"fio version\"").count() > 1 {
                return Err(
                    "has several results of fio: --status-interval writes running totals; keep the last of \
                            them, or give each run a file"
                        .to_owned(),
                );
            }
            let time_unix_s = first["timestamp"].as_u64().unwrap_or_default();
            (version("fio version").to_owned(), time_unix_s, foreign::fio(first))
        }
        Some(error) if has("phase_type") => return Err(not_json(&error)),
        None if has("phase_type") => {
            ("elbencho".to_owned(), 0, documents.iter().map(foreign::elbencho).collect())
        }
        _ if has("tests") && has("Version") => {
            (format!("IOR-{}", version("Version")), 0, foreign::ior_json(first))
        }
        _ if text.lines().any(foreign::begins_table) => {
            let (version, found) = foreign::text(text);
            (version.to_owned(), 0, found)
        }
        _ => return Ok(None),
    }))
}

/// Joins experiments with the same name, parameters and method: their samples are repeats of one row.
fn merge(found: Vec<Experiment>) -> Vec<Experiment> {
    let mut merged: Vec<Experiment> = Vec::new();
    for one in found {
        let same = |other: &&mut Experiment| {
            (&other.name, &other.parameters, &other.method) == (&one.name, &one.parameters, &one.method)
        };
        let Some(into) = merged.iter_mut().find(same) else {
            merged.push(one);
            continue;
        };
        into.notes.extend(one.notes);
        for mut row in one.rows {
            match into.rows.iter_mut().find(|known| known.name == row.name) {
                Some(known) => known.samples.append(&mut row.samples),
                None => into.rows.push(row),
            }
        }
    }
    for experiment in &mut merged {
        experiment.notes.sort();
        experiment.notes.dedup();
        for row in &mut experiment.rows {
            let mut samples = std::mem::take(&mut row.samples);
            (0..).zip(&mut samples).for_each(|(repeat, sample)| sample.repeat = repeat);
            *row = Row::from_samples(std::mem::take(&mut row.name), samples).describe(&row.description);
        }
        if experiment.rows.iter().all(|row| row.samples.len() < 2) {
            experiment.notes.push(ONCE.to_owned());
        }
    }
    merged
}

/// Returns a line for each figure: of a row (`repeat` is `all`) and of each of its repeats.
///
/// # Errors
/// None that can happen with a text in memory.
pub fn to_csv(report: &Report) -> anyhow::Result<String> {
    let mut table = csv::Writer::from_writer(Vec::new());
    let heading = ["experiment", "parameters", "row", "repeat", "metric", "value", "failed_gates", "skipped"];
    table.write_record(heading)?;
    for experiment in &report.experiments {
        let parameters = experiment.parameters.iter().map(|(name, value)| format!("{name}={}", plain(value)));
        let parameters = parameters.collect::<Vec<_>>().join(";");
        for row in &experiment.rows {
            let gates = experiment.conditions.iter().chain(&row.conditions);
            let failed = gates.filter(|gate| Condition::failed(gate)).map(|gate| gate.name.as_str());
            let failed = failed.collect::<Vec<_>>().join(";");
            let skipped = row.skipped.as_deref().unwrap_or("");
            let mut line = |repeat: &str, metric: &str, value: &str| {
                let name = experiment.name.as_str();
                table.write_record([name, &parameters, &row.name, repeat, metric, value, &failed, skipped])
            };
            if row.skipped.is_some() {
                line("", "", "")?;
            }
            let samples = row.samples.iter().map(|sample| (sample.repeat.to_string(), &sample.metrics));
            for (repeat, metrics) in std::iter::once(("all".to_owned(), &row.metrics)).chain(samples) {
                for (metric, value) in &metrics.0 {
                    line(&repeat, metric, &value.to_string())?;
                }
            }
        }
    }
    let bytes = table.into_inner().map_err(|error| error.into_error());
    Ok(String::from_utf8(bytes.context("the table could not be written")?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::metric;
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
        for empty in [r#"{"fio version": "fio-3.1"}"#, r#"{"fio version": "fio-3.1", "jobs": [{"read": 7}]}"#]
        {
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

    #[test]
    fn files_of_the_same_job_are_repeats_and_jobs_at_the_same_time_are_one_run() {
        let [one, two] = ["fio-1.json", "fio-2.json"].map(fixture);
        let report = convert(&[&one, &two]);
        assert_eq!(report.environment.time_unix_s, 1_700_000_000);
        let [point, mix] = report.experiments.as_slice() else { panic!("{report:?}") };
        // 8,000 reads in a second and 4,000 in 0.8 s, beside each other.
        assert_eq!(samples(point, "read", metric::IOPS), [12_000.0, 13_200.0]);
        let row = point.row("read").expect("it read");
        assert_eq!(row.samples[1].repeat, 1);
        assert_eq!(row.metrics.get(metric::IOPS), Some(12_600.0));
        assert_eq!(row.metrics.get(metric::SECONDS), Some(1.0));
        // The largest of both jobs: none of these is the percentile of all reads.
        let times = [metric::P50_US, metric::P99_US, metric::P99_9_US].map(|name| row.metrics.get(name));
        assert_eq!(times, [Some(310.0), Some(950.0), Some(2000.0)]);
        assert_eq!(samples(point, "read", metric::CONTEXT_SWITCHES_PER_IO)[0], 0.1);
        assert_eq!(samples(point, "read", metric::CPU_US_PER_IO)[0], 30.0);
        assert!(point.notes.iter().any(|note| note.contains("sum of 2 jobs")), "{:?}", point.notes);
        assert_eq!((mix.rows.len(), mix.notes.len()), (2, 0), "two runs have a spread: {:?}", mix.notes);
        assert_eq!(mix.row("read").and_then(|row| row.metrics.get(metric::CPU_US_PER_IO)), None);
        let alone = convert(&[&one]);
        assert!(alone.experiments.iter().all(|one| one.notes.iter().any(|note| note == ONCE)));
    }

    #[test]
    fn jobs_of_the_same_name_one_after_the_other_are_repeats() {
        let job = |group: u32, options: &str| {
            format!(
                r#"{{"jobname": "a", "groupid": {group}, "job options": {{"rw": "read"{options}}},
                    "read": {{"total_ios": 10, "iops": 5.0, "runtime": 2000}}}}"#
            )
        };
        let fio =
            |jobs: [String; 2]| format!(r#"{{"fio version": "fio-3.36", "jobs": [{}]}}"#, jobs.join(","));
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
        let text = fixture("fio-2.json");
        assert!(refused(&[&format!("{text}{text}")]).contains("--status-interval"));
        assert!(
            refused(&[&format!("{text}\npoint: (groupid=0, jobs=2)\n{text}")]).contains("running totals")
        );
        // `--output-format=json,normal` has a text after the JSON.
        assert_eq!(convert(&[&format!("{text}\npoint: (groupid=0, jobs=2)\n")]).experiments.len(), 2);
    }

    #[test]
    fn text_and_json_of_ior_have_the_same_figures() {
        let reports = ["ior.out", "ior.json"].map(|name| convert(&[&fixture(name)]));
        for report in &reports {
            let [experiment] = report.experiments.as_slice() else { panic!("{report:?}") };
            assert_eq!(experiment.rows.len(), 2, "a removal has no figures");
            assert_eq!(samples(experiment, "write", metric::MB_PER_S), [1048.576, 943.7184]);
            assert_eq!(samples(experiment, "read", metric::IOPS), [2048.0, 2150.0]);
            assert_eq!(samples(experiment, "write", metric::OPEN_MS), [1.0, 1.2]);
            assert_eq!(samples(experiment, "write", "mean_us"), [7812.0, 8800.0]);
            assert_eq!(experiment.parameters["xfersize"], "1 MiB");
            assert_eq!(experiment.number("tasks"), Some(8.0));
            assert!(experiment.method.contains("IOR-4.0.0"), "{}", experiment.method);
            assert_eq!(experiment.notes, [""; 0], "two repetitions");
        }
        let [text, json] = reports.map(|report| report.experiments);
        let without_command = |mut one: Experiment| {
            one.parameters.remove("command").expect("both have it");
            one.parameters
        };
        assert_eq!(
            text.into_iter().map(without_command).collect::<Vec<_>>(),
            json.into_iter().map(without_command).collect::<Vec<_>>()
        );
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
        let text = fixture("mdtest.out");
        let report = convert(&[&text]);
        let [experiment] = report.experiments.as_slice() else { panic!("{report:?}") };
        assert_eq!(experiment.rows.len(), 8, "files were not read");
        let created = samples(experiment, "file-creation", metric::FILES_PER_S);
        let near = |found: &[f64], wanted: &[f64]| {
            found.len() == wanted.len()
                && found.iter().zip(wanted).all(|(one, other)| (one - other).abs() < 0.01)
        };
        assert!(near(&created, &[5000.0, 5200.0, 6000.0]), "{created:?}");
        assert_eq!((experiment.number("tasks"), experiment.number("nodes")), (Some(8.0), Some(2.0)));
        assert_eq!(experiment.parameters["items"], "8000 files/directories");
        assert_eq!(experiment.notes, [""; 0]);
        let many = text.replace("of 3 iterations", "of 9 iterations");
        let report = convert(&[&many, &many]);
        let created = samples(&report.experiments[0], "file-creation", metric::FILES_PER_S);
        assert!(near(&created, &[5400.0, 5400.0]), "{created:?}");
        let notes = &report.experiments[0].notes;
        assert!(
            notes.iter().any(|note| note.contains("File creation: only the mean of 9 iterations")),
            "{notes:?}"
        );
        // Version 1 has colons, and newer ones can have columns of single ranks.
        let old = "mdtest-1.9.3 was launched with 2 total task(s) on 1 node(s)\n\nSUMMARY: (of 1 iterations)\n   Operation  \
            Max            Min           Mean        Std Dev\n   ---\n   File stat         :        9.5   9.5   9.5   0.0\n";
        assert_eq!(samples(&convert(&[old]).experiments[0], "file-stat", metric::FILES_PER_S), [9.5]);
        let ranks = old
            .replace("Operation ", "Operation per Rank: Max Min Mean per Iteration: ")
            .replace(":        9.5", "1.0 2.0 3.0 9.5");
        assert_eq!(samples(&convert(&[&ranks]).experiments[0], "file-stat", metric::FILES_PER_S), [9.5]);
        // Times are no rates.
        assert!(
            refused(&[&old.replace("SUMMARY:", "SUMMARY time (in ms/op):")])
                .contains("no job with any figures")
        );
    }

    #[test]
    fn phases_of_elbencho_become_experiments() {
        let text = fixture("elbencho.json");
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
        assert_eq!(write.parameters["version"], "3.0-27");
        assert!(refused(&[&text[..text.len() - 9]]).contains("was cut off"));
    }

    #[test]
    fn several_files_are_of_programs_that_are_known() {
        let [ior, fio] = ["ior.out", "fio-1.json"].map(fixture);
        assert_eq!(convert(&[&ior, &fio]).environment.kernel, "unknown: measured by IOR-4.0.0 and fio-3.36");
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
        let foreign =
            ["fio-1.json", "fio-2.json", "elbencho.json", "ior.json", "ior.out", "mdtest.out"].map(fixture);
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
}
