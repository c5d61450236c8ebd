//! From what each host measured to rows: one for all hosts together, and one for each. Histograms are merged; nothing is
//! averaged over hosts.

use super::super::job::Answer;
use super::super::latency::Latency;
use super::super::sampler::Outcome;
use super::fleet::{Host, HostSample};
use crate::result::{CacheState, Gate, Metrics, Row, Sample, metric};

/// Less than this share of the bytes that a row claims, counted by the device, means that something else answered.
const DEVICE_SHARE_MIN: f64 = 0.95;
/// A start that differs by more of the sample's time makes the sum of the hosts doubtful.
const SKEW_SHARE_MAX: f64 = 0.05;

/// A way of reading, at one setting.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    pub(super) cache: CacheState,
    /// Whether every byte must come from a device.
    pub(super) direct: bool,
    /// How the metrics of one sample are made of what it measured.
    pub(super) metrics: fn(&Outcome) -> Metrics,
}

/// All repeats of a way, each with a sample of every host; or why there are none.
pub(super) type Rounds = Result<Vec<Vec<HostSample>>, String>;

/// The rows of one way.
///
/// # Errors
/// A host sent a histogram that cannot be read.
pub(super) fn rows(way: &Way, rounds: &Rounds, hosts: &[Host]) -> anyhow::Result<Vec<Row>> {
    let rounds = match rounds {
        Ok(rounds) => rounds,
        Err(why) => return Ok(vec![finish(Row::skipped(way.name, why.as_str()), way, None)]),
    };
    let samples: Vec<Sample> = rounds
        .iter()
        .zip(0..)
        .map(|(round, repeat)| Ok(Sample { repeat, metrics: together(way, round)? }))
        .collect::<anyhow::Result<_>>()?;
    let mut all = Row::from_samples(way.name, samples);
    all.gates = gates_of_all(&all);
    let mut rows = vec![finish(all, way, None)];
    for (index, host) in hosts.iter().enumerate() {
        let samples = rounds
            .iter()
            .zip(0..)
            .map(|(round, repeat)| Sample { repeat, metrics: alone(way, &round[index]) })
            .collect();
        let mut row = Row::from_samples(format!("{}@{}", way.name, host.label), samples);
        row.gates = gates_of_host(&row, way);
        rows.push(finish(row, way, Some(host)));
    }
    Ok(rows)
}

fn finish(row: Row, way: &Way, host: Option<&Host>) -> Row {
    let whose =
        host.map_or_else(|| "all hosts together".to_owned(), |host| format!("{} alone", host.title()));
    row.describe(format!("{}; {whose}", way.description)).cache(way.cache)
}

/// One host's sample.
fn alone(way: &Way, sample: &HostSample) -> Metrics {
    let answer = sample.timed.answer.clone();
    let mut metrics = (way.metrics)(&Outcome { answer, memory_peak_bytes: sample.memory_peak_bytes });
    if let Some(bytes) = sample.timed.device_bytes {
        metrics.set(metric::DEVICE_BYTES_PER_BYTE, bytes as f64 / sample.timed.answer.bytes as f64);
    }
    metrics
}

/// All hosts' samples of one round: operations of all, from the first start to the last end.
fn together(way: &Way, round: &[HostSample]) -> anyhow::Result<Metrics> {
    let starts = || round.iter().map(|sample| sample.begun_ns);
    let ends = || round.iter().map(|sample| sample.begun_ns + (sample.timed.answer.seconds * 1e9) as i128);
    let (first, last) = (starts().min().unwrap_or(0), starts().max().unwrap_or(0));
    let seconds_since_first = |instant: Option<i128>| (instant.unwrap_or(first) - first) as f64 / 1e9;
    let sum = |of: fn(&Answer) -> f64| round.iter().map(|sample| of(&sample.timed.answer)).sum::<f64>();

    let mut latency = Latency::new()?;
    for text in round.iter().filter_map(|sample| sample.timed.histogram.as_deref()) {
        latency.add(&Latency::from_text(text)?)?;
    }
    let operations: u64 = round.iter().map(|sample| sample.timed.answer.operations).sum();
    let answer = Answer {
        seconds: seconds_since_first(ends().max()),
        cpu_seconds: sum(|answer| answer.cpu_seconds),
        context_switches: round.iter().map(|sample| sample.timed.answer.context_switches).sum(),
        // Hosts may share a device: its requests would be counted for each of them.
        in_flight_avg: None,
        bytes: round.iter().map(|sample| sample.timed.answer.bytes).sum(),
        operations,
        p50_us: latency.quantile_us(0.5),
        p99_us: latency.quantile_us(0.99),
        p99_9_us: latency.quantile_us(0.999),
        buffers_peak_bytes: None,
        resident_peak_bytes: None,
        folded: 0,
    };
    let seconds = answer.seconds;
    let mut metrics = (way.metrics)(&Outcome { answer, memory_peak_bytes: None });
    let skew_ns = (last - first) as f64;
    let error_ns = round.iter().map(|sample| sample.clock_error_ns).max().unwrap_or(0) as f64;
    metrics
        .set(metric::FIRST_DONE_S, seconds_since_first(ends().min()))
        .set(metric::LAST_DONE_S, seconds)
        .set(metric::START_SKEW_US, skew_ns / 1e3)
        .set(metric::CLOCK_ERROR_US, error_ns / 1e3)
        .set(START_SKEW_SHARE, skew_ns / 1e9 / seconds);
    if latency.count() > 0 {
        metrics.set(HISTOGRAM_SHARE, latency.count() as f64 / operations as f64);
    }
    Ok(metrics)
}

const START_SKEW_SHARE: &str = "start_skew_share";
const HISTOGRAM_SHARE: &str = "histogram_share";

fn gates_of_all(row: &Row) -> Vec<Gate> {
    let skew = row.metrics.get(START_SKEW_SHARE);
    let counted = row.spread(HISTOGRAM_SHARE);
    let mut gates = Vec::new();
    if let Some(value) = skew {
        gates.push(gate("hosts started together", START_SKEW_SHARE, value, None, Some(SKEW_SHARE_MAX)));
    }
    if let Some((low, high)) = counted {
        // Whichever repeat is farther from all operations having their latency in the merged histogram.
        let value = if (low - 1.0).abs() > (high - 1.0).abs() { low } else { high };
        gates.push(gate("every operation is in the histogram", HISTOGRAM_SHARE, value, Some(1.0), Some(1.0)));
    }
    gates
}

fn gates_of_host(row: &Row, way: &Way) -> Vec<Gate> {
    let least = row.spread(metric::DEVICE_BYTES_PER_BYTE).map(|(low, _)| low).filter(|_| way.direct);
    let name = "the device counted what was claimed";
    let metric = metric::DEVICE_BYTES_PER_BYTE;
    least.map(|value| gate(name, metric, value, Some(DEVICE_SHARE_MIN), None)).into_iter().collect()
}

fn gate(name: &str, metric: &str, value: f64, at_least: Option<f64>, at_most: Option<f64>) -> Gate {
    let passed = at_least.is_none_or(|least| value >= least) && at_most.is_none_or(|most| value <= most);
    Gate { name: name.to_owned(), metric: metric.to_owned(), value, at_least, at_most, passed }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
