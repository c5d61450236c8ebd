//! Builds rows from the results of each host: one for all hosts together, and one for each. Histograms are
//! merged; nothing is averaged over hosts.

use super::super::interleave::{Evidence, SampleFigures, row_of};
use super::super::job::SampleResult;
use super::super::latency::Latency;
use super::super::sampler::Outcome;
use super::controller::{Host, HostSample};
use forebay_report::result::{CacheState, Condition, Row, metric};

/// The largest spread of the starts, as a share of the sample's time. A larger one makes the sum of the
/// hosts doubtful.
const SKEW_SHARE_MAX: f64 = 0.05;

/// A way of reading, at one setting.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    pub(super) cache: CacheState,
}

/// A function that returns the figures and claims of a sample; rows that use the page cache need its state.
pub(super) type Figures = Box<dyn Fn(Outcome, CacheState) -> SampleFigures>;

/// One repeat: the result of every host.
pub(super) struct Round {
    pub(super) repeat: u32,
    pub(super) figures: Figures,
    pub(super) hosts: Vec<HostSample>,
}

/// All repeats of a way, or the reason why there are none.
pub(super) type Rounds = Result<Vec<Round>, String>;

/// Returns the rows of one way.
///
/// # Errors
/// Fails when hosts sent histograms that do not fit together.
pub(super) fn rows(way: &Way, rounds: &Rounds, hosts: &[Host]) -> anyhow::Result<Vec<Row>> {
    let rounds = match rounds {
        Ok(rounds) => rounds,
        Err(why) => return Ok(vec![finish(Row::skipped(way.name, why.as_str()), way, None)]),
    };
    let sampled = rounds
        .iter()
        .map(|round| Ok((round.repeat, together(round)?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut all = row_of(way.name, sampled, 1);
    // Gates of a process belong to the hosts' rows.
    all.conditions = conditions(rounds);
    let mut rows = vec![finish(all, way, None)];
    for (index, host) in hosts.iter().enumerate() {
        let cache = host.prepared.as_ref().map_or(CacheState::Warm, |prepared| prepared.cache);
        let sampled =
            rounds.iter().map(|round| (round.repeat, alone(round, &round.hosts[index], cache))).collect();
        let processors = host.facts.cpus_allowed.clamp(1, 1 << 16) as usize;
        let row = row_of(&format!("{}@{}", way.name, host.label), sampled, processors);
        rows.push(finish(row, way, Some(host)));
    }
    Ok(rows)
}

fn finish(row: Row, way: &Way, host: Option<&Host>) -> Row {
    let whose =
        host.map_or_else(|| "all hosts together".to_owned(), |host| format!("{} alone", host.title()));
    row.describe(format!("{}; {whose}", way.description)).cache(way.cache)
}

/// Returns one host's sample.
fn alone(round: &Round, sample: &HostSample, cache: CacheState) -> SampleFigures {
    let result = sample.timed.result.clone();
    (round.figures)(Outcome { result, memory_peak_bytes: sample.memory_peak_bytes }, cache)
}

/// Returns all hosts' samples of one round as one: operations of all, from the first start to the last end.
fn together(round: &Round) -> anyhow::Result<SampleFigures> {
    let window = Window::of(&round.hosts);
    let results = || round.hosts.iter().map(|sample| &sample.timed.result);
    let mut evidence = Evidence::default();
    for (name, latency) in results().flat_map(|result| &result.evidence.times) {
        match evidence.times.get_mut(name) {
            Some(all) => all.add(latency)?,
            None => drop(evidence.times.insert(name.clone(), latency.clone())),
        }
    }
    let latency = evidence.times.get("latency");
    let percentile = |quantile| latency.and_then(|latency| latency.quantile_us(quantile));
    let result = SampleResult {
        seconds: window.last_done_s,
        cpu_seconds: results().map(|result| result.cpu_seconds).sum(),
        context_switches: results().map(|result| result.context_switches).sum(),
        // Hosts may share a device; its requests would be counted for each of them.
        in_flight_avg: None,
        bytes: results().map(|result| result.bytes).sum(),
        operations: results().map(|result| result.operations).sum(),
        p50_us: percentile(0.5),
        p99_us: percentile(0.99),
        p99_9_us: percentile(0.999),
        evidence,
        ..SampleResult::default()
    };
    let mut sampled = (round.figures)(Outcome { result, memory_peak_bytes: None }, CacheState::Warm);
    let error_ns = round.hosts.iter().map(|sample| sample.clock_error_ns).max().unwrap_or(0);
    sampled
        .metrics
        .set(metric::FIRST_DONE_S, window.first_done_s)
        .set(metric::LAST_DONE_S, window.last_done_s)
        .set(metric::START_SKEW_US, window.skew_s * 1e6)
        .set(metric::CLOCK_ERROR_US, error_ns as f64 / 1e3);
    Ok(sampled)
}

/// Times in seconds since the first host's start.
#[derive(Debug)]
struct Window {
    first_done_s: f64,
    last_done_s: f64,
    /// The time until the last host's start.
    skew_s: f64,
}

impl Window {
    fn of(hosts: &[HostSample]) -> Self {
        let first = hosts.iter().map(|sample| sample.begun_ns).min().unwrap_or(0);
        let starts = || hosts.iter().map(|sample| (sample.begun_ns - first) as f64 / 1e9);
        let ends = || starts().zip(hosts).map(|(start, sample)| start + sample.timed.result.seconds);
        Self {
            first_done_s: ends().fold(f64::INFINITY, f64::min),
            last_done_s: ends().fold(0.0, f64::max),
            skew_s: starts().fold(0.0, f64::max),
        }
    }
}

/// Returns the gates of all hosts together.
fn conditions(rounds: &[Round]) -> Vec<Condition> {
    let skews = rounds.iter().map(|round| {
        let window = Window::of(&round.hosts);
        let share = window.skew_s / window.last_done_s;
        (round.repeat, Condition::at_most("start_skew", share, SKEW_SHARE_MAX))
    });
    let counts = rounds.iter().filter_map(|round| {
        let results = || round.hosts.iter().map(|sample| &sample.timed.result);
        let operations: u64 = results().map(|result| result.operations).sum();
        let times = results().filter_map(|result| result.evidence.times.get("latency"));
        let counted = times.map(Latency::count).reduce(|one, other| one + other)?;
        let share = counted.min(operations) as f64 / counted.max(operations) as f64;
        Some((round.repeat, Condition::at_least("sums", share, 1.0)))
    });
    let skew = worst(skews.collect()).map(|gate| {
        gate.with_meaning("how far the hosts' starts lay apart, as a share of the sample's time")
    });
    let count = worst(counts.collect()).map(|gate| {
        gate.with_meaning("the hosts' operations and those in the merged histogram, smaller by larger")
    });
    skew.into_iter().chain(count).collect()
}

/// Returns the gate of the worst repeat, with all repeats that failed.
fn worst(all: Vec<(u32, Condition)>) -> Option<Condition> {
    let repeats = all.iter().filter(|(_, gate)| gate.failed()).map(|(repeat, _)| *repeat).collect();
    let distance = |gate: &Condition| match (gate.value, gate.at_least, gate.at_most) {
        (Some(value), Some(least), _) => least - value,
        (Some(value), None, Some(most)) => value - most,
        _ => f64::NEG_INFINITY,
    };
    let (_, gate) =
        all.into_iter().max_by(|(_, one), (_, other)| distance(one).total_cmp(&distance(other)))?;
    Some(Condition { repeats, ..gate })
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
