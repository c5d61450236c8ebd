//! Finds matching experiments: in another result, or by the names in an expression.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::result::Experiment;
use crate::units::number;

/// Parameters of the amount, the duration or the circumstances of a measurement. Two experiments match
/// whether these agree or not.
const CIRCUMSTANCES: [&str; 26] = [
    "cold",
    "command",
    "device",
    "fan_out",
    "file_bytes",
    "file_seed",
    "file_system",
    "io_limit_by",
    "io_limit_bytes_per_s",
    "io_limit_reads_per_s",
    "levels",
    "load_tasks",
    "memory_limit_bytes",
    "memory_touched_bytes",
    "nodes_per_level",
    "own_file",
    "read_bytes",
    "repeats",
    "seconds",
    "seconds_max",
    "seed",
    "sorted_numbers",
    "source_priority",
    "span_bytes",
    "workers",
    "write_cache",
];

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
                CIRCUMSTANCES.contains(&key.as_str()) == is_circumstance
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

/// Returns whether two experiments have the same value of a parameter, or neither has it.
pub(crate) fn same(one: &Experiment, other: &Experiment, key: &str) -> bool {
    one.parameters.get(key) == other.parameters.get(key)
}

/// Returns a label: `random[depth=8,span=whole file]`.
pub(crate) fn label(experiment: &Experiment, keys: &[String]) -> String {
    let listed: Vec<String> = keys
        .iter()
        .filter_map(|key| Some(format!("{key}={}", plain(experiment.parameters.get(key)?))))
        .collect();
    let listed = if listed.is_empty() { String::new() } else { format!("[{}]", listed.join(",")) };
    format!("{}{listed}", experiment.name)
}

/// Returns a parameter's value as it is written in an expression.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns whether a parameter has the written value: compared as a number where both are, as a text
/// otherwise.
pub(crate) fn matches(value: &Value, text: &str) -> bool {
    match (value.as_f64(), text.parse::<f64>()) {
        (Some(value), Ok(wanted)) => value == wanted,
        _ => plain(value) == text,
    }
}

/// Returns the parameters that show that two matching experiments were not measured alike.
pub(crate) fn unlike(before: &Experiment, after: &Experiment) -> Vec<String> {
    let names: BTreeSet<&String> = before.parameters.keys().chain(after.parameters.keys()).collect();
    let show = |experiment: &Experiment, name: &str| match experiment.parameters.get(name) {
        Some(value) => value.as_f64().map_or_else(|| plain(value), number),
        None => "none".to_owned(),
    };
    names
        .into_iter()
        .filter(|name| !["seed", "file_seed"].contains(&name.as_str()) && !same(before, after, name))
        .map(|name| format!("{name} {} -> {}", show(before, name), show(after, name)))
        .collect()
}

#[cfg(test)]
mod tests {
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
        let files = [random(1, 10), random(1, 20)];
        assert_eq!(keys(&[&files], "random"), ["file_bytes"], "nothing else tells these apart");
        assert_eq!(unlike(&one[1], &other[0]), ["file_bytes 10 -> 99"]);
    }

    #[test]
    fn values_match_as_numbers_or_as_texts() {
        assert!(matches(&Value::from(8), "8") && matches(&Value::from(0.5), "0.50"));
        assert!(matches(&Value::from("whole file"), "whole file"));
        assert!(matches(&Value::from(true), "true") && !matches(&Value::from(8), "80"));
    }
}
