//! Rows of two hosts, from samples made by hand.

use std::time::Duration;

use super::super::super::startline::Timed;
use super::*;

fn answer(seconds: f64, operations: u64) -> Answer {
    Answer {
        seconds,
        cpu_seconds: 0.1,
        context_switches: 10,
        in_flight_avg: Some(4.0),
        bytes: operations * 4096,
        operations,
        p50_us: Some(1.0),
        p99_us: Some(1.0),
        p99_9_us: Some(1.0),
        buffers_peak_bytes: None,
        resident_peak_bytes: None,
        folded: 0,
    }
}

/// A host whose every operation took `us` microseconds.
fn sample(begun_ns: i128, seconds: f64, operations: u64, us: u64) -> HostSample {
    let mut latency = Latency::new().expect("a few kilobytes");
    for _ in 0..operations {
        latency.record(Duration::from_micros(us));
    }
    HostSample {
        timed: Timed {
            answer: answer(seconds, operations),
            begun_ns: 0,
            histogram: Some(latency.to_text().expect("memory")),
            device_bytes: Some(operations * 4096),
        },
        memory_peak_bytes: Some(1 << 20),
        begun_ns,
        clock_error_ns: 3_000,
    }
}

fn way() -> Way {
    Way {
        name: "direct",
        description: "reads",
        cache: CacheState::Direct,
        direct: true,
        metrics: super::super::super::random::metrics,
    }
}

#[test]
fn operations_add_up_over_the_whole_window_and_histograms_are_merged() {
    // A fast and a slow host: an average of their percentiles would be 525 and true of nobody.
    let round = [sample(-1_000_000_000, 1.0, 990, 50), sample(-999_500_000, 3.0, 110, 1000)];
    let metrics = together(&way(), &round).expect("its own histograms");
    let value = |name: &str| metrics.get(name).unwrap_or_else(|| panic!("no {name}"));
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
    near(HISTOGRAM_SHARE, 1.0);
    assert_eq!(metrics.get(metric::IN_FLIGHT_AVG), None);
}

#[test]
fn gates_can_pass_and_can_be_missed() {
    let verdicts = |round: &[HostSample]| -> Vec<bool> {
        let samples = vec![Sample { repeat: 0, metrics: together(&way(), round).expect("readable") }];
        let mut gates = gates_of_all(&Row::from_samples("direct", samples));
        for host in round {
            let samples = vec![Sample { repeat: 0, metrics: alone(&way(), host) }];
            gates.extend(gates_of_host(&Row::from_samples("direct@1", samples), &way()));
        }
        gates.into_iter().map(|gate| gate.passed).collect()
    };
    assert_eq!(verdicts(&[sample(0, 1.0, 100, 50), sample(10, 1.0, 100, 50)]), [true; 4]);
    assert!(!verdicts(&[sample(0, 1.0, 100, 50), sample(200_000_000, 1.0, 100, 50)])[0]);
    let mut short = sample(0, 1.0, 100, 50);
    short.timed.answer.operations = 101;
    assert!(!verdicts(&[short, sample(0, 1.0, 100, 50)])[1]);
    let mut cached = sample(0, 1.0, 100, 50);
    cached.timed.device_bytes = Some(100 * 4096 / 2);
    assert_eq!(verdicts(&[cached, sample(0, 1.0, 100, 50)])[2..], [false, true]);
}

#[test]
fn a_row_without_rounds_says_why() {
    let rows = rows(&way(), &Err("host 2 (b): no".to_owned()), &[]).expect("nothing to read");
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].skipped.as_deref(), Some("host 2 (b): no"));
}
