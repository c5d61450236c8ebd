//! Builds rows from the results of each host: one for all hosts together, and one for each. Histograms are
//! merged; nothing is averaged over hosts.

use super::super::experiment::{Outcome, Spec};
use super::super::gates::Claim;
use super::super::latency::Latency;
use super::super::runner::figures;
use super::super::runner::{SampleFigures, row_of};
use super::controller::{Host, HostSample};
use forebay_report::result::{Condition, Row, metric};

/// The largest spread of the starts, as a share of the sample's time. A larger one makes the sum of the
/// hosts doubtful.
const SKEW_SHARE_MAX: f64 = 0.05;

/// One repeat: the result of every host.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) repeat: u32,
    pub(super) hosts: Vec<HostSample>,
}

/// All repeats of a row, or the reason why there are none.
pub(super) type Rounds = Result<Vec<Round>, String>;

/// Returns the rows of one way; `frame` has its name, description and state of the cache.
///
/// # Errors
/// Fails when hosts sent histograms that do not fit together.
pub(super) fn rows(spec: &Spec, frame: &Row, rounds: &Rounds, hosts: &[Host]) -> anyhow::Result<Vec<Row>> {
    let finish = |row: Row, whose: String| {
        let row = row.describe(format!("{}; {whose}", frame.description));
        match frame.cache {
            Some(cache) => row.cache(cache),
            None => row,
        }
    };
    let all_hosts = "all hosts together".to_owned();
    let name = &frame.name;
    let rounds = match rounds {
        Ok(rounds) => rounds,
        Err(why) => return Ok(vec![finish(Row::skipped(name, why), all_hosts)]),
    };
    let sampled = rounds
        .iter()
        .map(|round| Ok((round.repeat, together(spec, round)?)))
        .collect::<anyhow::Result<_>>()?;
    let mut all = row_of(name, sampled, 1);
    // Gates of a process belong to the hosts' rows.
    all.conditions = conditions(rounds);
    let mut rows = vec![finish(all, all_hosts)];
    for (index, host) in hosts.iter().enumerate() {
        let alone = |round: &Round| {
            let sample = &round.hosts[index];
            (round.repeat, figures(spec, sample.claim, &sample.outcome))
        };
        let processors = host.facts.cpus_allowed.clamp(1, 1 << 16) as usize;
        let sampled = rounds.iter().map(alone).collect();
        let row = row_of(&format!("{name}@{}", host.label), sampled, processors);
        rows.push(finish(row, format!("{} alone", host.title())));
    }
    Ok(rows)
}

/// Returns all hosts' samples of one round as one: operations of all, from the first start to the last end.
fn together(spec: &Spec, round: &Round) -> anyhow::Result<SampleFigures> {
    let mut sampled = figures(spec, Claim::default(), &whole(&round.hosts)?);
    let error_ns = round.hosts.iter().map(|sample| sample.clock_error_ns).max().unwrap_or(0);
    sampled.metrics.set(metric::CLOCK_ERROR_US, error_ns as f64 / 1e3);
    Ok(sampled)
}

/// Returns samples that began together as one.
///
/// # Errors
/// Their histograms do not fit together.
pub(crate) fn whole(hosts: &[HostSample]) -> anyhow::Result<Outcome> {
    let window = Window::of(hosts);
    // Requests in flight are left out: hosts may share a device, whose requests would be counted for each of them.
    let mut all = Outcome { seconds: window.last_done_s, ..Outcome::default() };
    for outcome in hosts.iter().map(|sample| &sample.outcome) {
        all.cpu_seconds += outcome.cpu_seconds;
        all.context_switches += outcome.context_switches;
        all.bytes += outcome.bytes;
        all.operations += outcome.operations;
        for (name, latency) in &outcome.evidence.times {
            match all.evidence.times.get_mut(name) {
                Some(all) => all.add(latency)?,
                None => drop(all.evidence.times.insert(name.clone(), latency.clone())),
            }
        }
    }
    all.figures
        .set(metric::FIRST_DONE_S, window.first_done_s)
        .set(metric::LAST_DONE_S, window.last_done_s)
        .set(metric::START_SKEW_US, window.skew_s * 1e6);
    Ok(all)
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
        let ends = || starts().zip(hosts).map(|(start, sample)| start + sample.outcome.seconds);
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
        let results = || round.hosts.iter().map(|sample| &sample.outcome);
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
