//! Rows of two hosts, from samples made by hand.

use std::time::Duration;

use super::*;
use crate::reads::Random;

/// Returns a sample of a host whose every operation lasted `us` microseconds.
fn sample(begun_ns: i128, seconds: f64, operations: u64, us: u64) -> HostSample {
    let mut latency = Latency::new().expect("a few kilobytes");
    for _ in 0..operations {
        latency.record(Duration::from_micros(us));
    }
    let mut outcome = Outcome {
        seconds,
        cpu_seconds: 0.1,
        bytes: operations * 4096,
        operations,
        in_flight_avg: Some(4.0),
        ..Outcome::default()
    };
    outcome.times("latency", latency);
    HostSample { outcome, claim: Claim::default(), conditions: Vec::new(), begun_ns, clock_error_ns: 3_000 }
}

fn round(repeat: u32, hosts: Vec<HostSample>) -> Round {
    Round { repeat, hosts }
}

fn rows_of(rounds: &Rounds) -> Vec<Row> {
    let frame = Row { name: "direct".to_owned(), ..Row::default() };
    rows(Random.spec(), &frame, rounds, &[]).expect("histograms of the same bounds")
}

#[test]
fn operations_add_up_over_the_whole_window_and_histograms_are_merged() {
    // A fast and a slow host: the average of their percentiles would be 525, which is true of neither.
    let hosts = vec![sample(-1_000_000_000, 1.0, 990, 50), sample(-999_500_000, 3.0, 110, 1000)];
    let rows = rows_of(&Ok(vec![round(0, hosts)]));
    let value = |name: &str| rows[0].metrics.get(name).unwrap_or_else(|| panic!("no {name}"));
    let near = |name: &str, expected: f64| {
        assert!((value(name) / expected - 1.0).abs() < 0.01, "{name}: {}", value(name));
    };
    near(metric::LAST_DONE_S, 3.0005);
    near(metric::FIRST_DONE_S, 1.0);
    near(metric::IOPS, 1100.0 / 3.0005);
    near(metric::P50_US, 50.0);
    near(metric::P99_US, 1000.0);
    near(metric::START_SKEW_US, 500.0);
    near(metric::CLOCK_ERROR_US, 3.0);
    assert_eq!(rows[0].metrics.get(metric::IN_FLIGHT_AVG), None);
    let merged = Latency::try_from(rows[0].histograms["latency"].clone()).expect("its own text");
    assert_eq!(merged.count(), 1100);
}

#[test]
fn gates_can_pass_and_can_fail_in_the_repeat_that_is_named() {
    let good = || round(0, vec![sample(0, 1.0, 100, 50), sample(10, 1.0, 100, 50)]);
    let verdicts = |second: Round| -> Vec<(String, Option<bool>, Vec<u32>)> {
        let gates = conditions(&[good(), second]);
        gates.into_iter().map(|gate| (gate.name, gate.passed, gate.repeats)).collect()
    };
    let (skew, sums) = ("start_skew".to_owned(), "sums".to_owned());
    let also_good = Round { repeat: 1, ..good() };
    assert_eq!(verdicts(also_good), [(skew.clone(), Some(true), vec![]), (sums.clone(), Some(true), vec![])]);
    let late = round(1, vec![sample(0, 1.0, 100, 50), sample(200_000_000, 1.0, 100, 50)]);
    assert_eq!(verdicts(late)[0], (skew, Some(false), vec![1]));
    for operations in [99, 101] {
        let mut wrong = sample(0, 1.0, 100, 50);
        wrong.outcome.operations = operations;
        let wrong = round(1, vec![wrong, sample(0, 1.0, 100, 50)]);
        assert_eq!(verdicts(wrong)[1], (sums.clone(), Some(false), vec![1]));
    }
}

#[test]
fn a_row_without_rounds_has_its_reason() {
    let rows = rows_of(&Err("host 2 (b): no".to_owned()));
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].skipped.as_deref(), Some("host 2 (b): no"));
}
