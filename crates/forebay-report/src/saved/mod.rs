//! Work on results that were saved as JSON: `diff`, `assert`, `convert`. Experiments match by name and by the parameters that
//! distinguish them.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::failure::Failure;
use crate::result::{Experiment, Report, SCHEMA};
use crate::units::{number, printable};

pub mod assertion;
pub mod convert;
pub mod diff;
pub mod waited;

/// The texts of other programs that can be read.
const READABLE: &str =
    "`forebay convert` reads the JSON of forebay, fio, elbencho and IOR, and the text of IOR and mdtest";

/// Reads a result of this program.
///
/// # Errors
/// A sentence that names the file and its fault.
pub fn parse(name: &str, text: &str) -> Result<Report, Failure> {
    let wrong = |what: String| Failure::Usage(format!("{name} {what}"));
    // Editors add a byte order mark.
    let text = text.trim_start_matches('\u{feff}');
    let fault = |error| unread_text(text).unwrap_or_else(|| not_json(&error));
    let value: Value = serde_json::from_str(text).map_err(|error| wrong(fault(error)))?;
    let (Some(schema), Some(program)) = (value.get("schema"), value.get("forebay").and_then(Value::as_str))
    else {
        return Err(wrong(format!("was not written by forebay ({READABLE})")));
    };
    if !(1..=SCHEMA).any(|readable| schema.as_u64() == Some(u64::from(readable))) {
        return Err(wrong(format!(
            "has version {schema} of the schema, of forebay {program}; this program reads up to version \
             {SCHEMA}: use the one that wrote it, or measure again"
        )));
    }
    if let Some(report) = waited::report(&value) {
        return report
            .map_err(|error| wrong(format!("does not follow the schema of `forebay wait`: {error}")));
    }
    if value.get("experiments").is_none() {
        return Err(wrong("has no experiments: it is the output of another command".to_owned()));
    }
    Report::read(value).map_err(|error| wrong(format!("does not follow the schema: {error}")))
}

/// Texts that are not read: words that only such a text has, the program, and the output of it that is read.
const UNREAD: [(&str, &str, &str); 11] = [
    (": (groupid=", "fio", "run it with --output-format=json"),
    (";fio-", "fio (--minimal)", "run it with --output-format=json"),
    ("[SCORE", "IO500", "name the outputs of its IOR and mdtest runs"),
    ("RESULT TYPE", "elbencho", "run it with --jsonfile"),
    ("ISO date,", "elbencho (--csvfile)", "run it with --jsonfile"),
    ("access,bw(", "IOR (CSV)", "run it with -O summaryFormat=JSON"),
    ("Sequential Output", "bonnie++", ""),
    ("sysbench ", "sysbench", ""),
    ("Iozone: ", "iozone", ""),
    ("records out", "dd", ""),
    ("filebench ", "filebench", ""),
];

/// Returns the fault of a text that another program wrote for people, to follow its name: the program, and what of it is read.
fn unread_text(text: &str) -> Option<String> {
    // A document that was cut off may have any of these words.
    let is_text = !text.trim_start().starts_with('{');
    let (_, program, remedy) = UNREAD.iter().find(|(mark, ..)| is_text && text.contains(*mark))?;
    let remedy = if remedy.is_empty() { READABLE } else { *remedy };
    Some(format!("is not JSON: it is a text of {program}, which is not read ({remedy})"))
}

/// Returns the fault of a text that is not JSON, to follow its name.
fn not_json(error: &serde_json::Error) -> String {
    if error.is_eof() {
        format!("ends in the middle of its JSON ({error}): it was cut off")
    } else {
        format!("is not JSON: {error} ({READABLE})")
    }
}

/// Parameters of the amount, the duration or the circumstances of a measurement. Two experiments match
/// whether these agree or not.
const CIRCUMSTANCES: &str = "cold command device fan_out file_bytes file_seed file_system io_limit_by io_limit_bytes_per_s \
    io_limit_reads_per_s levels load_tasks memory_limit_bytes memory_touched_bytes nodes_per_level own_file read_bytes repeats \
    seconds seconds_max seed sorted_numbers source_priority span_bytes workers write_cache";

/// Parameters that may differ between two experiments whose figures are compared: how long, by which calls and under which name the
/// same work was done, and circumstances that are not sizes. Rows have the state of the page cache.
const COMPARABLE: &str = "api, apiVersion, cold, description, device, directory, file_system, filename, fixedbufs, group_reporting, \
    hipri, io_limit_by, io_limit_bytes_per_s, io_limit_reads_per_s, ioengine, job, label, load_tasks, log_flush, loops, \
    memory_touched_bytes, nonvectored, number_ios, own_file, ramp_time, registerfiles, repeats, repetitions, runtime, seconds, \
    seconds_max, source_priority, sqthread_poll, startdelay, test filename, testFileName, testID, thread, time_based, timeout, \
    too_short, version, workers, write_cache";
/// Sizes that follow from the memory that was free. Such a difference by less than this factor does not count.
const SIZES: [&str; 3] = ["file_bytes", "memory_limit_bytes", "span_bytes"];
const NEAR: f64 = 1.1;

/// Returns the experiments called `name`.
pub(crate) fn called<'a>(experiments: &'a [Experiment], name: &str) -> Vec<&'a Experiment> {
    experiments.iter().filter(|experiment| experiment.name == name).collect()
}

/// Returns the names of the parameters that distinguish the experiments called `name`, in all of `results`.
pub(crate) fn keys(results: &[&[Experiment]], name: &str) -> Vec<String> {
    let results: Vec<Vec<&Experiment>> = results.iter().map(|result| called(result, name)).collect();
    let mut keys: BTreeSet<String> = BTreeSet::new();
    for is_circumstance in [false, true] {
        // Circumstances are used only where no other parameter distinguishes two.
        let is_ambiguous = |own: &Vec<&Experiment>| {
            let is_alike = |one, other| keys.iter().all(|key| same(one, other, key));
            (1..own.len()).any(|at| own[..at].iter().any(|other| is_alike(own[at], other)))
        };
        if is_circumstance && !results.iter().any(is_ambiguous) {
            break;
        }
        for own in &results {
            let varies = |key: &&String| {
                CIRCUMSTANCES.split(' ').any(|name| name == *key) == is_circumstance
                    && key.as_str() != "seed"
                    && own.iter().any(|experiment| !same(experiment, own[0], key))
            };
            keys.extend(
                own.iter().flat_map(|experiment| experiment.parameters.keys()).filter(varies).cloned(),
            );
        }
    }
    keys.into_iter().collect()
}

/// Returns the names of the experiments of a result.
fn names(report: &Report) -> Vec<&str> {
    let mut names: Vec<&str> = report.experiments.iter().map(|experiment| experiment.name.as_str()).collect();
    names.dedup();
    names
}

/// Joins names for an error.
fn listed(names: &[impl AsRef<str>]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Returns whether two experiments have the same value of a parameter, or neither has it.
fn same(one: &Experiment, other: &Experiment, key: &str) -> bool {
    one.parameters.get(key) == other.parameters.get(key)
}

/// Returns a label: `random[depth=8,span=whole file]`.
pub(crate) fn label(experiment: &Experiment, keys: &[String]) -> String {
    let listed =
        keys.iter().filter_map(|key| Some(format!("{key}={}", plain(experiment.parameters.get(key)?))));
    let listed: Vec<String> = listed.collect();
    let name = &experiment.name;
    let label = if listed.is_empty() { name.clone() } else { format!("{name}[{}]", listed.join(",")) };
    printable(&label).into_owned()
}

/// Returns a parameter's value as it is written in an expression.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns whether a parameter has the written value: compared as a number where both are, as a text
/// otherwise.
fn matches(value: &Value, text: &str) -> bool {
    match (value.as_f64(), text.parse::<f64>()) {
        (Some(value), Ok(wanted)) => value == wanted,
        _ => plain(value) == text,
    }
}

/// Returns the parameters that show that two matching experiments were not measured alike: those with which figures are comparable, or
/// the others.
fn unlike(before: &Experiment, after: &Experiment, comparable: bool) -> Vec<String> {
    let names: BTreeSet<&String> = before.parameters.keys().chain(after.parameters.keys()).collect();
    let show = |experiment: &Experiment, name: &str| {
        let value = experiment.parameters.get(name);
        value.map_or_else(|| "none".to_owned(), |value| value.as_f64().map_or_else(|| plain(value), number))
    };
    names
        .into_iter()
        .filter(|name| !["seed", "file_seed"].contains(&name.as_str()) && !same(before, after, name))
        .filter(|name| is_comparable(before, after, name) == comparable)
        .map(|name| format!("{name} {} -> {}", show(before, name), show(after, name)))
        .collect()
}

/// Returns whether figures can be compared though this parameter differs. Of a command, paths may.
fn is_comparable(before: &Experiment, after: &Experiment, name: &str) -> bool {
    fn words(experiment: &Experiment) -> impl Iterator<Item = &str> {
        experiment.text("command").split_whitespace().filter(|word| !word.contains('/'))
    }
    let size = |experiment: &Experiment| experiment.parameters.get(name).and_then(Value::as_f64);
    let is_near = || match (size(before), size(after)) {
        (Some(one), Some(other)) => one.max(other) < NEAR * one.min(other),
        _ => false,
    };
    COMPARABLE.split(", ").any(|known| known == name)
        || (SIZES.contains(&name) && is_near())
        || (name == "command" && words(before).eq(words(after)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;

    #[test]
    fn a_file_that_is_no_result_is_identified() {
        let whole = Report::new(Environment::default(), Vec::new()).to_json().expect("finite");
        assert!(parse("a.json", &whole).is_ok());
        assert!(parse("a.json", &format!("\u{feff}{whole}")).is_ok(), "an editor's mark");
        let other = whole.replace("\"schema\": 2", "\"schema\": 7");
        let wrong = |text: &str| parse("a.json", text).expect_err("refused").to_string();
        assert!(wrong(&other).contains("version 7 of the schema"), "{}", wrong(&other));
        assert!(wrong(&whole[..whole.len() / 2]).contains("was cut off"));
        assert!(wrong("<html>").contains("is not JSON"));
        assert!(wrong("{\"schema\": 1}").contains("not written by forebay"));
        assert!(wrong("{\"schema\": 1, \"forebay\": \"0\"}").contains("another command"));
        let twisted = whole.replace("\"experiments\": []", "\"experiments\": [{\"rows\": 7}]");
        assert!(wrong(&twisted).contains("does not follow the schema"), "{}", wrong(&twisted));
        let absurd = "{\"schema\":1,\"forebay\":\"0\",\"experiments\":[1e999]}";
        assert!(wrong(absurd).contains("is not JSON"), "{}", wrong(absurd));
    }

    /// Regression: "not JSON: expected value at line 1 column 1" for the output of a known program.
    #[test]
    fn a_text_of_another_program_is_named_with_the_output_that_is_read() {
        for (text, words) in [
            ("r: (g=0): rw=read\nr: (groupid=0, jobs=1): err= 0\n", ["text of fio", "--output-format=json"]),
            ("3;fio-3.41;r;0;0;1048576\n", ["text of fio", "--output-format=json"]),
            ("IO500 version io500-sc24\n[SCORE ] Bandwidth 1.2 GiB/s\n", ["text of IO500", "IOR and mdtest"]),
            ("OPERATION   RESULT TYPE   FIRST DONE\n", ["text of elbencho", "--jsonfile"]),
            ("access,bw(MiB/s),IOPS\nwrite,100,100\n", ["text of IOR", "summaryFormat=JSON"]),
            ("8+0 records in\n8+0 records out\n", ["text of dd", "the JSON of forebay"]),
        ] {
            let wrong = parse("a.txt", text).expect_err("refused").to_string();
            assert!(words.iter().all(|word| wrong.contains(word)), "{wrong}");
        }
    }

    mod select {
        use super::*;

        fn random(depth: u32, file_bytes: u64) -> Experiment {
            Experiment::new("random", "")
                .parameter("depth", depth)
                .parameter("block_bytes", 4096)
                .parameter("file_bytes", file_bytes)
                .parameter("seed", depth)
        }

        #[test]
        fn experiments_are_distinguished_by_varied_parameters_and_not_by_circumstances() {
            let one = [random(1, 10), random(8, 10)];
            let other = [random(8, 99)];
            assert_eq!(keys(&[&one, &other], "random"), ["depth"]);
            assert_eq!(label(&one[1], &["depth".to_owned()]), "random[depth=8]");
            assert_eq!(keys(&[&other, &other], "random"), [""; 0]);
            assert_eq!(label(&other[0], &[]), "random");
            // Regression: the name of a job began a new line of what was printed.
            let job = Experiment::new("fio", "").parameter("job", "a\nb");
            assert_eq!(label(&job, &["job".to_owned()]), "fio[job=a\\nb]");
            let files = [random(1, 10), random(1, 20)];
            assert_eq!(keys(&[&files], "random"), ["file_bytes"], "nothing else tells these apart");
            assert_eq!(unlike(&one[1], &other[0], false), ["file_bytes 10 -> 99"]);
            let large = |bytes: u64| Experiment::new("scan", "").parameter("file_bytes", bytes);
            assert_eq!(
                unlike(&large(1000), &large(1040), false),
                [""; 0],
                "as much, but for the memory that was free"
            );
            let ran = |command: &str| Experiment::new("ior", "").parameter("command", command);
            let commands = ["ior -o /data/f", "ior -o /srv/f", "ior --posix.odirect -o /data/f"].map(ran);
            assert_eq!(unlike(&commands[0], &commands[1], false), [""; 0], "another path");
            assert_eq!(unlike(&commands[0], &commands[1], true).len(), 1);
            assert_eq!(unlike(&commands[0], &commands[2], false).len(), 1, "another state of the cache");
        }

        #[test]
        fn values_match_as_numbers_or_as_texts() {
            assert!(matches(&Value::from(8), "8") && matches(&Value::from(0.5), "0.50"));
            assert!(matches(&Value::from("whole file"), "whole file"));
            assert!(matches(&Value::from(true), "true") && !matches(&Value::from(8), "80"));
        }
    }
}
