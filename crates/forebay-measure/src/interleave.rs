//! The common part of all experiments. Every way in every setting is a cell, cells take turns
//! within a repeat, and the samples of a cell become a row.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::gates::{self, Claim};
use super::latency::Latency;
use super::pattern::SplitMix;
use super::plan::{another_repeat, interleaved};
use super::system_counters::CounterDeltas;
use crate::context::Context;
use crate::progress::Unit;
use forebay_report::result::{Metrics, Row, Sample};

/// A way to do the work; each is a row.
pub(super) trait Way: Copy {
    /// Returns a stable name.
    fn name(&self) -> &'static str;
    /// Describes the way in one sentence.
    fn description(&self) -> &'static str;
}

/// Parses the name of one of `ways`.
///
/// # Errors
/// The text names none of them; the sentence lists the names.
pub(super) fn parse_way<W: Way>(text: &str, ways: &[W]) -> Result<String, String> {
    let names: Vec<&str> = ways.iter().map(Way::name).collect();
    if names.contains(&text) {
        Ok(text.to_owned())
    } else {
        Err(format!("there is no row {text:?}; there are {}", names.join(", ")))
    }
}

/// Returns those of `ways` that were named, or all when none was.
pub(super) fn chosen<W: Way>(ways: &[W], named: &[String]) -> Vec<W> {
    let wanted = |way: &&W| named.is_empty() || named.iter().any(|name| name == way.name());
    ways.iter().filter(wanted).copied().collect()
}

/// Measurements of a child beside its result; every result has them as a field.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Evidence {
    // The name in the protocol between hosts.
    #[serde(rename = "witness")]
    pub(super) counter_deltas: CounterDeltas,
    /// Times of single operations. `latency` stands for metrics such as `p50_us`, any other name
    /// for metrics that begin with it, such as `durable_p50_us`.
    pub(super) times: BTreeMap<String, Latency>,
}

/// The result of one sample.
#[derive(Debug, Default)]
pub(super) struct SampleFigures {
    pub(super) metrics: Metrics,
    pub(super) evidence: Evidence,
    pub(super) claim: Claim,
}

/// One way in one setting.
#[derive(Debug)]
pub(super) struct Cell<S, W> {
    pub(super) setting: S,
    pub(super) way: W,
    /// Samples by number of repeat, or the reason why there are none.
    pub(super) sampled: Result<Vec<(u32, SampleFigures)>, String>,
}

/// How many turns the cells take, and until when.
#[derive(Debug)]
pub(super) struct Interleaving<'a> {
    pub(super) label: String,
    pub(super) repeats: usize,
    /// No repeat begins that would not end by then, except the first.
    pub(super) until: Option<Instant>,
    /// Path of the measurement, for the error when every cell failed.
    pub(super) place: &'a Path,
    pub(super) context: &'a Context,
}

impl Interleaving<'_> {
    /// Takes a sample of every cell in each repeat, starting each repeat with the next cell, and
    /// returns the number of repeats. A cell that fails once is skipped from then on.
    ///
    /// # Errors
    /// Every cell failed.
    pub(super) fn run<S: Display, W: Way>(
        &self,
        cells: &mut [Cell<S, W>],
        sample: impl FnMut(&S, W, usize) -> anyhow::Result<SampleFigures>,
    ) -> anyhow::Result<usize> {
        self.run_in_order(cells, |repeat, count| interleaved(repeat, count).collect(), sample)
    }

    /// Does the same as [`run`](Self::run) with the order of each repeat from `order`, which
    /// receives the number of the repeat and the number of cells.
    ///
    /// # Errors
    /// Every cell failed.
    pub(super) fn run_in_order<S: Display, W: Way>(
        &self,
        cells: &mut [Cell<S, W>],
        mut order: impl FnMut(usize, usize) -> Vec<usize>,
        mut sample: impl FnMut(&S, W, usize) -> anyhow::Result<SampleFigures>,
    ) -> anyhow::Result<usize> {
        let count = cells.len();
        let step = self.context.step(self.label.as_str(), (count * self.repeats) as u64, Unit::Count);
        let (begun, mut done) = (Instant::now(), 0);
        let remaining = || self.until.map(|until| until.saturating_duration_since(Instant::now()));
        while done < self.repeats && another_repeat(done, begun.elapsed(), remaining()) {
            for (position, index) in order(done, count).into_iter().enumerate() {
                let Cell { setting, way, sampled } = &mut cells[index];
                step.set((done * count + position) as u64);
                step.message(format!("{}{setting}", way.name()));
                let Ok(samples) = sampled else { continue };
                match sample(setting, *way, done) {
                    Ok(found) => samples.push((done as u32, found)),
                    Err(error) => *sampled = Err(format!("{error:#}")),
                }
            }
            done += 1;
        }
        step.finish(&format!("{done} repeats of {count} cells"));
        let failed: Vec<&String> = cells.iter().filter_map(|cell| cell.sampled.as_ref().err()).collect();
        if let Some(why) = failed.first().filter(|_| failed.len() == count) {
            anyhow::bail!("nothing could be measured on {}: {why}", self.place.display());
        }
        Ok(done)
    }
}

impl<S, W: Way> Cell<S, W> {
    pub(super) fn new(setting: S, way: W) -> Self {
        Self { setting, way, sampled: Ok(Vec::new()) }
    }

    /// Returns the row: medians of the samples, percentiles over the operations of all samples
    /// together, and the gates.
    pub(super) fn into_row(self) -> Row {
        let row = match self.sampled {
            Ok(sampled) => row_of(self.way.name(), sampled, gates::processors()),
            Err(why) => Row::skipped(self.way.name(), why),
        };
        row.describe(self.way.description())
    }
}

/// Returns all cells. Those of one setting are adjacent, so that ways that are compared run one
/// after the other.
pub(super) fn cells<S: Copy, W: Way>(settings: &[S], ways: &[W]) -> Vec<Cell<S, W>> {
    settings.iter().flat_map(|setting| ways.iter().map(|way| Cell::new(*setting, *way))).collect()
}

/// Returns a seed for each repeat, shared by all cells. It has 53 bits, which every JSON parser
/// stores exactly.
pub(super) fn seeds(context: &Context, repeats: usize) -> Vec<u64> {
    let mut seeds = SplitMix::new(context.seed);
    (0..repeats).map(|_| seeds.next_u64() >> 11).collect()
}

/// Returns a note when the budget did not suffice.
pub(super) fn cut_short(done: usize, wanted: usize) -> Option<String> {
    (done < wanted).then(|| format!("{done} of {wanted} repeats were run: the time given was over"))
}

/// Returns the row of samples taken on `processors` processors, by number of repeat; see [`Cell::into_row`].
pub(super) fn row_of(name: &str, sampled: Vec<(u32, SampleFigures)>, processors: usize) -> Row {
    let seen: Vec<_> = sampled
        .iter()
        .map(|(repeat, sampled)| (*repeat, &sampled.evidence.counter_deltas, sampled.claim))
        .collect();
    let conditions = gates::of_row(&seen, processors);
    let mut merged: BTreeMap<String, Latency> = BTreeMap::new();
    let mut samples = Vec::with_capacity(sampled.len());
    let mut left_out = BTreeMap::new();
    for (repeat, mut sampled) in sampled {
        for (metric, why) in gates::implausible(&sampled) {
            sampled.metrics.0.remove(&metric);
            left_out.entry(metric).or_insert(why);
        }
        for (name, latency) in sampled.evidence.times {
            match merged.get_mut(&name) {
                // All histograms of this program have the same bounds.
                Some(all) => drop(all.add(&latency)),
                None => drop(merged.insert(name, latency)),
            }
        }
        samples.push(Sample { repeat, metrics: sampled.metrics });
    }
    let mut row = Row::from_samples(name, samples);
    for (name, latency) in &merged {
        let prefix = if name == "latency" { String::new() } else { format!("{name}_") };
        for (percentile, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99_9", 0.999), ("max", 1.0)] {
            let metric = format!("{prefix}{percentile}_us");
            if let Some(value) = latency.quantile_us(quantile).filter(|_| row.metrics.get(&metric).is_some())
            {
                row.metrics.set(&metric, value);
            }
        }
        if let Ok(text) = latency.to_text() {
            row.histograms.insert(name.clone(), text);
        }
    }
    row.conditions = conditions;
    row.left_out = left_out;
    row
}

/// Returns the end of the experiment's budget.
pub(super) fn until(context: &Context) -> Option<Instant> {
    context.remaining().and_then(|left: Duration| Instant::now().checked_add(left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;
    use crate::context::Target;
    use crate::progress::Progress;
    use forebay_report::result::metric;

    #[derive(Debug, Clone, Copy)]
    struct Named(&'static str);

    impl Way for Named {
        fn name(&self) -> &'static str {
            self.0
        }

        fn description(&self) -> &'static str {
            "does it"
        }
    }

    fn sampled(times_us: &[u64]) -> SampleFigures {
        let mut latency = Latency::new().expect("a few kilobytes");
        times_us.iter().for_each(|time| latency.record(Duration::from_micros(*time)));
        let mut found = SampleFigures::default();
        found.metrics.set(metric::P50_US, latency.quantile_us(0.5).expect("some"));
        found.evidence.times.insert("latency".to_owned(), latency);
        found
    }

    fn run(
        cells: &mut [Cell<&str, Named>],
        sample: impl FnMut(&&str, Named, usize) -> anyhow::Result<SampleFigures>,
    ) -> anyhow::Result<usize> {
        let target = Target::Directory("/".into());
        let context = Context::new(target, Progress::Silent, Cleanup::default(), 1);
        let place = Path::new("/data");
        Interleaving { label: "test".to_owned(), repeats: 3, until: None, place, context: &context }
            .run(cells, sample)
    }

    /// A median of medians would hide that one repeat was slow throughout.
    #[test]
    fn percentiles_are_those_of_all_operations_and_the_spread_is_that_of_the_samples() {
        let times: [&[u64]; 3] = [&[10, 10, 10], &[10], &[1000, 1000, 1000, 1000, 1000]];
        let mut cells = [Cell::new("", Named("a"))];
        let done = run(&mut cells, |_, _, repeat| Ok(sampled(times[repeat]))).expect("all work");
        assert_eq!(done, 3);
        let [cell] = cells;
        let row = cell.into_row();
        let p50 = row.metrics.get(metric::P50_US).expect("measured");
        assert!((p50 / 1000.0 - 1.0).abs() < 0.02, "{p50}");
        let (low, high) = row.spread(metric::P50_US).expect("measured");
        assert!(low < 11.0 && high > 990.0, "{low} {high}");
        let merged = Latency::try_from(row.histograms["latency"].clone()).expect("its own text");
        assert_eq!(merged.count(), 9);
        assert_eq!(row.metrics.get(metric::P99_US), None, "what no sample tells is not made up");
        assert_eq!((row.description.as_str(), row.conditions.len()), ("does it", 5));
    }

    #[test]
    fn one_that_fails_is_left_out_and_all_that_fail_are_an_error() {
        let mut cells = [Cell::new("", Named("a")), Cell::new("", Named("b"))];
        let mut calls = Vec::new();
        run(&mut cells, |_, way, repeat| {
            calls.push(format!("{}{repeat}", way.name()));
            anyhow::ensure!(way.name() != "b", "refused");
            Ok(sampled(&[1]))
        })
        .expect("one works");
        assert_eq!(calls, ["a0", "b0", "a1", "a2"]);
        let [first, second] = cells;
        assert_eq!(first.into_row().samples.len(), 3);
        assert_eq!(second.into_row().skipped.as_deref(), Some("refused"));
        let mut cells = [Cell::new("", Named("a"))];
        let error = run(&mut cells, |_, _, _| anyhow::bail!("refused")).expect_err("none works");
        assert_eq!(error.to_string(), "nothing could be measured on /data: refused");
    }

    #[test]
    fn names_of_rows_are_checked() {
        let ways = [Named("a"), Named("b")];
        assert_eq!(parse_way("b", &ways), Ok("b".to_owned()));
        assert!(parse_way("c", &ways).is_err_and(|sentence| sentence.contains("a, b")));
        assert_eq!(chosen(&ways, &[]).len(), 2);
        assert_eq!(chosen(&ways, &["b".to_owned()]).len(), 1);
        assert_eq!(cut_short(2, 2), None);
        assert!(cut_short(1, 2).is_some_and(|note| note.starts_with("1 of 2")));
    }
}
