//! `measure saturate`: throughput and latency over the number of readers, and at a rate that does not wait
//! for the device.
//!
//! First a closed loop: 1 to 256 readers, each of which starts its next read as the last one ends. Then an open loop at shares of
//! each row's maximum, latencies counted from when a read was *due*.

use std::path::Path;

use crate::options::Length;
use crate::plan::fit_seconds;
use crate::prelude::*;
use crate::reads::{self, BLOCK, DEFER_TASKRUN, FOREBAY_TOKIO, PREAD, Run, SHARE, SIZE, of_block};
use crate::runner;
use forebay_report::page::facts::{self, IO_LIMIT_BY};
use forebay_report::page::histogram::{counts_us, two_sorts};
use forebay_report::page::knee::{KNEES, Level, Saturation, saturation};
use forebay_report::result::columns::Definition;

#[derive(Debug)]
pub(crate) struct Saturate;

const OFFERED: Definition = column(metric::OFFERED_PER_S, "asked/s", 1.0, "reads that were due in a second");
const MEAN: Definition = column(metric::MEAN_US, "mean µs", 1.0, "mean time of a read");
const UNANSWERED: Definition = column(
    metric::UNANSWERED,
    "unanswered",
    1.0,
    "reads that had not completed when the sample was given up",
);

static SPEC: Spec = Spec {
    name: "saturate",
    about: "Find the number of readers, and the rate, from which on latency only grows",
    quick_seconds: 11,
    full_seconds: 120,
    needs_directory: false,
    options: &[
        Opt::count("readers", "Readers of the closed loop", 4096)
            .list()
            .or("1,2,4,8,16,32,64,128,256")
            .quick("1,8,64,256"),
        Opt::count(
            "load",
            "Rates of the open loop, in per cent of the most that the row reached; 0: no open loop",
            200,
        )
        .zero_too()
        .list()
        .or("10,25,50,75,90,95")
        .quick("50,90"),
        BLOCK,
        SIZE,
        Opt::seconds("0.5", "0.15"),
        Opt::repeats("3"),
    ],
    ways: &[PREAD, DEFER_TASKRUN, FOREBAY_TOKIO],
    columns: &[
        OFFERED,
        columns::IOPS,
        MEAN,
        columns::P50_US,
        columns::P99_US,
        columns::P99_9_US,
        columns::LATE_P99_US,
        UNANSWERED,
        columns::CPU_US_PER_IO,
        SHARE,
        columns::CONTEXT_SWITCHES_PER_IO,
        columns::IN_FLIGHT_AVG,
    ],
    compared: metric::IOPS,
    charts: &[metric::IOPS, metric::P99_US, metric::MEAN_US, metric::CPU_SHARE],
    axis: Axis::new("load", "readers, or in the open loop % of the row's most"),
    role: Role::Saturation,
    gains: Vec::new,
};

impl Experiment for Saturate {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>> {
        Ok(Box::new(closed_loop(options, context)?))
    }

    /// Measures the closed loop, and then the open one at rates that follow from it.
    fn measure(&self, options: &Values, length: Length, context: &Context) -> anyhow::Result<Vec<Table>> {
        let mut run = closed_loop(options, context)?;
        let readers = ascending(options.counts("readers"));
        let mut loads = ascending(options.counts("load"));
        loads.retain(|load| *load > 0);
        // The loops share the budget.
        let rows = if options.rows.is_empty() { SPEC.ways.len() } else { options.rows.len() };
        let samples = (readers.len() + loads.len()) * rows * options.count("repeats") as usize;
        let (wanted, extra) = (options.number("seconds").unwrap_or(0.5), run.extra_seconds());
        let fitted = fit_seconds(wanted + extra, samples, context.remaining()) - extra;
        let mut options = options.clone();
        options.set("seconds", fitted.max(wanted.min(0.1)));
        let tables = runner::run(&SPEC, &options, length, context, &mut run)?;
        for row in tables.iter().flat_map(|table| &table.rows) {
            if let Some(rate) = row.metrics.get(metric::IOPS).filter(|rate| *rate > 0.0) {
                let most = run.full_loads.entry(row.name.clone()).or_insert(rate);
                *most = most.max(rate);
            }
        }
        if loads.is_empty() || run.full_loads.is_empty() {
            return Ok(tables);
        }
        // A rate does not determine how many readers are needed: as many as the most before.
        let places = readers.last().copied().unwrap_or(1);
        let of = |load| json!({ "loop": "open", "load": load, "load_percent": load, "readers_max": places });
        run.tables = loads.iter().map(|load| parameters(of(load))).collect();
        Ok(with_open(tables, runner::run(&SPEC, &options, length, context, &mut run)))
    }

    fn sample(&self, job: &Job) -> anyhow::Result<Outcome> {
        reads::sample(job)
    }

    fn fio(&self, table: &Table, row: &Row, path: &Path) -> Option<String> {
        reads::fio(table, row, path)
    }

    fn title(&self, table: &Table) -> (String, String) {
        title(table)
    }

    fn verdicts(&self, tables: &[&Table]) -> Vec<String> {
        // For the fastest row all sentences, for the others their limits.
        let curves = curves(tables);
        let Some((fastest, others)) = curves.split_first() else { return Vec::new() };
        let mut sentences = Vec::new();
        match saturation(&fastest.levels) {
            Some(found) => {
                sentences.push(limit(fastest, &found));
                sentences.extend(programs(fastest, &found));
                sentences.extend(sorts(fastest));
                sentences.extend(knees(fastest, &found));
            }
            None => {
                sentences.extend(no_limit(fastest));
                sentences.extend(sorts(fastest));
            }
        }
        sentences.extend(limits_of_others(others));
        sentences.truncate(SENTENCES);
        sentences.extend(at_a_rate(fastest.name, tables));
        sentences
    }
}

fn closed_loop(options: &Values, context: &Context) -> anyhow::Result<Run> {
    let mut run = Run::new(options, context, method)?;
    let of = |readers| parameters(json!({ "loop": "closed", "load": readers, "readers": readers }));
    run.tables = ascending(options.counts("readers")).into_iter().map(of).collect();
    let cached = "a drive, a RAID controller or a virtual machine's host may hold the file in its memory; then this is the limit \
        of the path to it and not of the medium";
    run.notes.insert(0, cached.to_owned());
    Ok(run)
}

/// Adds the tables of the open loop. Where nothing of it could be measured, those of the closed loop stay.
fn with_open(mut closed: Vec<Table>, open: anyhow::Result<Vec<Table>>) -> Vec<Table> {
    match open {
        Ok(open) => closed.extend(open),
        Err(error) => {
            let why = format!("there is no open loop: {error:#}");
            closed.iter_mut().take(1).for_each(|first| first.notes.push(why.clone()));
        }
    }
    closed
}

fn ascending(mut numbers: Vec<u64>) -> Vec<u64> {
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn method(setting: &Parameters, block: &str, seconds: f64) -> String {
    let begins = if setting.contains_key("load_percent") {
        "Open loop: reads are due at random times (exponentially distributed gaps, as of many independent callers), at a \
         share of the most that the row reached in the closed loop. Latency counts from when a read was due, however late \
         it was begun (no coordinated omission); `late` is the part until then. A read that has not completed one second \
         after the end counts with the time that it had waited."
    } else {
        "Closed loop: each reader begins its next read as the last one ends. Latency is the caller's wait. CPU is user and \
         system time of all threads of the process."
    };
    format!(
        "{begins} Reads of {block} at random offsets, directly, for {seconds:.2} s after a warm-up of 0.1 s. Each sample is a \
         fresh process; the order of all samples of a repeat is shuffled, and a figure is the median of the repeats."
    )
}

fn is_open(table: &Table) -> bool {
    table.number("load_percent").is_some()
}

fn title(table: &Table) -> (String, String) {
    let block = of_block(table);
    let heading = if is_open(table) {
        format!("Random reads{block} at times of the callers' choosing, at a share of each row's most")
    } else {
        format!("Random reads{block} by more and more readers")
    };
    let title = match (table.number("readers"), table.number("load_percent")) {
        (Some(readers), _) => format!("{heading}, {} at once", number(readers)),
        (_, Some(load)) => format!("{heading}, {} %", number(load)),
        _ => heading.clone(),
    };
    (title, heading)
}

/// Load of the processors from which a way is limited by them.
const BUSY: f64 = 0.9;
/// Minimum share of its rate that an open loop must reach to keep up.
const KEPT_UP: f64 = 0.97;
/// Maximum difference between repeats, as a share of their median; above it the median is not trusted.
const UNSTEADY: f64 = 0.25;
/// Tolerance of a program's full speed: one that lacks less than a twentieth of it still has it.
const ROUNDED: f64 = 1.05;
/// Growth of latency that is worth mentioning: doubled.
const DOUBLED: f64 = 2.0;
/// The most sentences on the closed loop.
const SENTENCES: usize = 4;

/// A row with its figures at each number of readers.
struct Curve<'a> {
    name: &'a str,
    levels: Vec<Level>,
    rows: Vec<&'a Row>,
    /// The file of a control group whose limit its maximum reaches.
    limited_by: Option<String>,
}

impl Curve<'_> {
    /// Returns whether it has enough levels for a limit.
    fn is_long(&self) -> bool {
        self.levels.len() >= 3
    }

    fn most(&self) -> f64 {
        self.levels.iter().map(|level| level.per_second).fold(0.0, f64::max)
    }

    /// Returns whether the processors were busy where the row was fastest.
    fn is_bound_by_processors(&self) -> bool {
        let rate = |row: &Row| row.metrics.get(metric::IOPS).unwrap_or(0.0);
        let fastest = self.rows.iter().max_by(|a, b| rate(a).total_cmp(&rate(b)));
        fastest.and_then(|row| row.metrics.get(metric::CPU_SHARE)).is_some_and(|share| share >= BUSY)
    }

    fn p99_at(&self, place: usize) -> String {
        let p99 = self.rows.get(place).and_then(|row| row.metrics.get(metric::P99_US));
        p99.map_or_else(|| "-".to_owned(), number)
    }

    fn hint(&self) -> &'static str {
        let differ = |row: &&Row| {
            let (low, high) = row.spread(metric::IOPS)?;
            Some((high - low) / row.metrics.get(metric::IOPS)?)
        };
        if self.rows.iter().any(|row| row.samples.len() < 2) {
            " (measured once)"
        } else if self.rows.iter().filter_map(differ).any(|most| most > UNSTEADY) {
            " (repeats differ)"
        } else {
            ""
        }
    }
}

/// Returns the closed loops by row, the fastest first, each ascending in its readers.
fn curves<'a>(tables: &[&'a Table]) -> Vec<Curve<'a>> {
    let mut closed: Vec<(f64, &Table)> =
        tables.iter().filter_map(|table| Some((table.number("readers")?, *table))).collect();
    closed.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut curves: Vec<Curve<'a>> = Vec::new();
    for (readers, table) in closed {
        for row in &table.rows {
            let figures = (row.metrics.get(metric::IOPS), row.metrics.get(metric::MEAN_US));
            let (Some(per_second), Some(mean_us)) = figures else { continue };
            let known = curves.iter().position(|curve| curve.name == row.name);
            let place = known.unwrap_or_else(|| {
                curves.push(Curve {
                    name: &row.name,
                    levels: Vec::new(),
                    rows: Vec::new(),
                    limited_by: None,
                });
                curves.len() - 1
            });
            curves[place].levels.push(Level { readers, per_second, mean_us });
            curves[place].rows.push(row);
        }
    }
    for curve in &mut curves {
        curve.limited_by = tables.first().and_then(|table| {
            facts::limit(table, curve.most())?;
            Some(table.parameters.get(IO_LIMIT_BY)?.as_str()?.to_owned())
        });
    }
    // A row that lacks levels shows no limit, and must not hide those of others.
    curves.sort_by(|a, b| b.is_long().cmp(&a.is_long()).then(b.most().total_cmp(&a.most())));
    curves
}

/// Compares the wait of the fastest row at its saturation point with that of the most readers.
pub(crate) fn past_saturation(tables: &[&Table]) -> Result<(bool, String), String> {
    let curves = curves(tables);
    let curve = curves.first().ok_or("this result has no closed loop")?;
    let found = saturation(&curve.levels).ok_or("the most readers were too few to saturate this device")?;
    let (at, last) = (found.knees[2], curve.levels.len() - 1);
    let waits = [at, last].map(|place| curve.rows[place].metrics.get(metric::MEAN_US));
    let [Some(before), Some(after)] = waits else {
        return Err(format!("this result has no {}", metric::MEAN_US));
    };
    let of = |place: usize, wait: f64| {
        let level = &curve.levels[place];
        format!("{}: {} IOPS, mean {} µs", readers(level), number(level.per_second), number(wait))
    };
    let figures = format!("`{}`, {}; {}{}", curve.name, of(at, before), of(last, after), curve.hint());
    Ok((after >= DOUBLED * before, format!("{figures} (holds when the wait doubles)")))
}

fn readers(level: &Level) -> String {
    format!("{} reader{}", number(level.readers), if level.readers == 1.0 { "" } else { "s" })
}

/// Returns a sentence on the number of readers from which more bring nothing.
fn limit(curve: &Curve<'_>, found: &Saturation) -> String {
    let [_, _, place] = found.knees;
    let last = curve.levels.len() - 1;
    let (at, end) = (curve.levels[place], curve.levels[last]);
    let more = ((end.per_second / at.per_second - 1.0) * 100.0).round();
    let more = if more >= 1.0 { format!(" (+{} %)", number(more)) } else { String::new() };
    let why = match (curve.is_bound_by_processors(), &curve.limited_by) {
        (true, _) => "; CPU-bound".to_owned(),
        (false, Some(file)) => format!("; limited by {file}"),
        (false, None) => String::new(),
    };
    format!(
        "`{}` saturates at {}: {} IOPS, p99 {} µs; with {}{more} p99 {} µs{why}{}",
        curve.name,
        readers(&at),
        number(at.per_second),
        curve.p99_at(place),
        number(end.readers),
        curve.p99_at(last),
        curve.hint()
    )
}

fn programs(curve: &Curve<'_>, found: &Saturation) -> Option<String> {
    let alone = curve.levels.first()?.per_second;
    let carrier = match (curve.is_bound_by_processors(), &curve.limited_by) {
        (true, _) => "this machine",
        (false, Some(_)) => "this limit",
        (false, None) => "this device",
    };
    // A device for two serves 1.98 times the speed of one: the rest is lost to waiting for each other.
    let programs = match (found.places? * ROUNDED).floor() {
        one if one <= 1.0 => "one such program; more of them share it".to_owned(),
        many => format!("{} such programs at full speed", number(many)),
    };
    Some(format!("one reader alone gets {} IOPS; {carrier} carries {programs}", number(alone)))
}

/// Returns a sentence when the reads of the fewest readers, which hardly wait for each other, are of
/// two sorts.
fn sorts(curve: &Curve<'_>) -> Option<String> {
    let found = two_sorts(&counts_us(curve.rows.first()?.histograms.get("latency")?))?;
    Some(format!(
        "`{}` latency is bimodal with {}: {} % of reads take about {} µs, others {} µs",
        curve.name,
        readers(curve.levels.first()?),
        number((found.slow_share * 1000.0).round() / 10.0),
        number(found.slow_us),
        number(found.fast_us)
    ))
}

/// Returns the knees where their definitions disagree.
fn knees(curve: &Curve<'_>, found: &Saturation) -> Option<String> {
    let [first, ..] = found.knees;
    let of = |((name, _), place): (_, usize)| format!("{}, {name}", number(curve.levels[place].readers));
    let parts: Vec<String> = KNEES.into_iter().zip(found.knees).map(of).collect();
    let disagree = found.knees.iter().any(|place| *place != first);
    disagree.then(|| format!("`{}` knee: {}", curve.name, parts.join("; ")))
}

fn no_limit(curve: &Curve<'_>) -> Option<String> {
    let last = curve.levels.last().filter(|_| curve.is_long())?;
    Some(format!(
        "`{}`: no saturation up to {}: throughput still grows ({} IOPS){}",
        curve.name,
        readers(last),
        number(last.per_second),
        curve.hint()
    ))
}

fn limits_of_others(others: &[Curve<'_>]) -> Option<String> {
    let of = |curve: &Curve<'_>| match saturation(&curve.levels) {
        Some(found) => {
            let at = curve.levels[found.knees[2]];
            Some(format!("`{}` at {} ({} IOPS)", curve.name, readers(&at), number(at.per_second)))
        }
        None => {
            let last = curve.levels.last().filter(|_| curve.is_long())?;
            Some(format!("`{}` not up to {}", curve.name, readers(last)))
        }
    };
    let parts: Vec<String> = others.iter().filter_map(of).collect();
    (!parts.is_empty()).then(|| format!("saturation of others: {}", parts.join(", ")))
}

/// Returns sentences on the wait of callers that do not wait for each other.
fn at_a_rate(name: &str, tables: &[&Table]) -> Vec<String> {
    let mut loads: Vec<(f64, &Row, f64)> = tables
        .iter()
        .filter_map(|table| Some((table.number("load_percent")?, table.row(name)?)))
        .filter_map(|(load, row)| Some((load, row, row.metrics.get(metric::P99_US)?)))
        .collect();
    loads.sort_by(|a, b| a.0.total_cmp(&b.0));
    let Some((least, first, p99)) = loads.first().copied() else { return Vec::new() };
    let end = match (loads.iter().find(|(.., wait)| *wait > DOUBLED * p99), loads.last()) {
        _ if !keeps_up(first) || loads.len() < 2 => String::new(),
        (Some((load, _, wait)), _) => {
            format!(", more than doubled at {} % ({} µs)", number(*load), number(*wait))
        }
        (None, Some((load, _, wait))) => {
            format!(", not doubled up to {} % ({} µs)", number(*load), number(*wait))
        }
        (None, None) => String::new(),
    };
    let mut sentences =
        vec![format!("`{name}`, open loop: p99 {} µs at {} % load{end}", number(p99), number(least))];
    if let Some((load, ..)) = loads.iter().find(|(_, row, _)| !keeps_up(row)) {
        sentences.push(format!("`{name}` falls behind its open loop at {} % load", number(*load)));
    }
    sentences
}

/// Returns whether an open loop reached its rate.
fn keeps_up(row: &Row) -> bool {
    let (Some(got), Some(offered)) = (row.metrics.get(metric::IOPS), row.metrics.get(metric::OFFERED_PER_S))
    else {
        return true;
    };
    got >= KEPT_UP * offered && row.metrics.get(metric::UNANSWERED).unwrap_or(0.0) == 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{test_row, test_table};

    #[test]
    fn readers_go_to_256_in_powers_of_two_and_rates_to_95_percent() {
        let values = Values::new(SPEC.options, None, Length::Full).expect("they parse");
        let (readers, loads) = (values.counts("readers"), values.counts("load"));
        assert_eq!((readers.len(), readers[0], readers[8]), (9, 1, 256));
        assert!(readers.windows(2).all(|pair| pair[1] == 2 * pair[0]));
        assert_eq!((loads[0], loads[5]), (10, 95));
        assert_eq!(ascending(vec![8, 1, 8]), [1, 8]);
    }

    fn of(tables: &[Table]) -> Vec<String> {
        let sentences = Saturate.verdicts(&tables.iter().collect::<Vec<_>>());
        for sentence in &sentences {
            assert!(sentence.split_whitespace().count() <= 20, "{sentence}");
        }
        sentences
    }

    fn row(name: &str, figures: &[(&str, f64)]) -> Row {
        test_row(name, &[0.99, 1.0, 1.01], figures)
    }

    /// Returns the tables of a device with `places` places, each read in 100 us.
    fn closed(name: &str, places: f64, share: f64) -> Vec<Table> {
        let of_readers = |doublings| {
            let readers = f64::from(1 << doublings);
            let per_second = readers.min(places) * 10_000.0;
            let mean_us = readers / per_second * 1e6;
            let figures = [
                (metric::IOPS, per_second),
                (metric::MEAN_US, mean_us),
                (metric::P99_US, 2.0 * mean_us),
                (metric::CPU_SHARE, share),
            ];
            let all = json!({ "loop": "closed", "block_bytes": 4096, "readers": readers });
            test_table(SPEC.name, all, vec![row(name, &figures)])
        };
        (0..=8).map(of_readers).collect()
    }

    fn open(load: u32, offered: f64, got: f64, wait_us: f64) -> Table {
        let figures = [(metric::OFFERED_PER_S, offered), (metric::IOPS, got), (metric::P99_US, wait_us)];
        test_table(SPEC.name, json!({ "loop": "open", "load_percent": load }), vec![row("pread", &figures)])
    }

    /// A user measured 1, 8 and 4,096 readers in a container that allows 2,048 threads. The open loop has as many as the most readers:
    /// it failed, and the figures of the others were thrown away.
    #[test]
    fn a_closed_loop_stays_where_the_open_loop_fails() {
        let failed = || Err(anyhow::anyhow!("nothing could be measured on /data: no threads"));
        let kept = with_open(closed("pread", 16.0, 0.3), failed());
        assert_eq!((kept.len(), kept[1].notes.len()), (9, 0));
        assert_eq!(kept[0].notes, ["there is no open loop: nothing could be measured on /data: no threads"]);
        assert_eq!(with_open(Vec::new(), failed()).len(), 0);
        let both = with_open(closed("pread", 16.0, 0.3), Ok(vec![open(50, 100.0, 100.0, 1.0)]));
        assert_eq!((both.len(), both[0].notes.len()), (10, 0));
    }

    #[test]
    fn the_limit_and_the_number_of_programs_are_reported() {
        assert_eq!(
            of(&closed("pread", 16.0, 0.3)),
            [
                "`pread` saturates at 16 readers: 160,000 IOPS, p99 200 µs; with 256 p99 3,200 µs",
                "one reader alone gets 10,000 IOPS; this device carries 16 such programs at full speed",
            ]
        );
    }

    #[test]
    fn knees_are_reported_where_they_disagree() {
        let mut tables = closed("pread", 16.0, 0.3);
        // A little more than the limit, and much latency: the power is largest before.
        for table in &mut tables[5..] {
            let figures = [(metric::IOPS, 180_000.0), (metric::MEAN_US, 900.0), (metric::P99_US, 2000.0)];
            table.rows = vec![row("pread", &figures)];
        }
        assert_eq!(
            of(&tables)[2],
            "`pread` knee: 16, largest power (Kleinrock); 32, farthest from the chord (Kneedle); 32, under 10 % a doubling"
        );
    }

    #[test]
    fn no_limit_is_claimed_where_none_was_reached() {
        let sentences = of(&closed("pread", 1e9, 0.3));
        assert_eq!(
            sentences,
            ["`pread`: no saturation up to 256 readers: throughput still grows (2,560,000 IOPS)"]
        );
        assert!(of(&closed("pread", 16.0, 0.3)[..2]).is_empty());
    }

    #[test]
    fn a_limit_of_the_processors_is_not_called_one_of_the_device() {
        let sentences = of(&closed("pread", 4.0, 0.97));
        assert!(sentences[0].ends_with("; CPU-bound"), "{sentences:?}");
        assert!(sentences[1].contains("this machine carries 4 such programs"), "{sentences:?}");
        let one = of(&closed("pread", 1.0, 0.1));
        assert!(
            one[0].contains("at 1 reader:") && one[1].contains("this device carries one such program;"),
            "{one:?}"
        );
    }

    /// Regression: for a container with `io.max riops=160000`, the sentence was "this device carries
    /// 16 such programs".
    #[test]
    fn a_limit_of_a_control_group_is_not_called_one_of_the_device() {
        let limited = |reads: u32| -> Vec<Table> {
            let note = |table: Table| {
                table
                    .parameter(facts::IO_LIMIT_BY, "/sys/fs/cgroup/a/io.max")
                    .parameter(facts::IO_LIMIT_READS, reads)
            };
            closed("pread", 16.0, 0.3).into_iter().map(note).collect()
        };
        let sentences = of(&limited(160_000));
        assert!(
            sentences[0].ends_with("; limited by /sys/fs/cgroup/a/io.max")
                && sentences[1].contains("this limit carries 16 such programs"),
            "{sentences:?}"
        );
        // A limit far above the rate limits nothing.
        assert!(of(&limited(900_000))[1].contains("this device carries 16 such programs"));
    }

    #[test]
    fn repeats_that_differ_much_are_a_hint() {
        let mut all = closed("pread", 16.0, 0.3);
        all[3].rows[0].samples[0].metrics.set(metric::IOPS, 1.0);
        assert!(of(&all)[0].ends_with(" (repeats differ)"), "{:?}", of(&all));
        all[3].rows[0].samples.truncate(1);
        assert!(of(&all)[0].ends_with(" (measured once)"));
    }

    #[test]
    fn only_the_fastest_row_has_all_sentences() {
        let mut all = closed("pread", 8.0, 0.1);
        for (name, places) in [("forebay-tokio", 32.0), ("io_uring-defer-taskrun", 1e9)] {
            for (table, other) in all.iter_mut().zip(closed(name, places, 0.1)) {
                table.rows.extend(other.rows);
            }
        }
        let sentences = of(&all);
        let [no_limit, others] = &sentences[..] else { panic!("{sentences:?}") };
        assert!(no_limit.starts_with("`io_uring-defer-taskrun`: no saturation"), "{no_limit}");
        assert_eq!(
            others,
            "saturation of others: `forebay-tokio` at 32 readers (320,000 IOPS), `pread` at 8 readers (80,000 IOPS)"
        );
    }

    /// Regression: on a busy machine the fastest row had too few levels, and no limit at all was reported.
    #[test]
    fn a_row_that_lacks_levels_does_not_hide_the_others() {
        let mut all = closed("pread", 8.0, 0.1);
        let others = closed("forebay-tokio", 32.0, 0.1);
        all[7].rows.extend(others.into_iter().nth(7).expect("it has nine").rows);
        let sentences = of(&all);
        assert!(sentences[0].starts_with("`pread` saturates at 8 readers"), "{sentences:?}");
        assert!(sentences.iter().all(|sentence| !sentence.contains("forebay-tokio")), "{sentences:?}");
    }

    #[test]
    fn an_open_loop_reports_where_latency_doubles_and_which_rows_fall_behind() {
        let mut all = closed("pread", 16.0, 0.1);
        all.extend([open(95, 152e3, 120e3, 90e3), open(10, 16e3, 16e3, 110.0), open(50, 80e3, 80e3, 150.0)]);
        assert_eq!(
            of(&all)[2..],
            [
                "`pread`, open loop: p99 110 µs at 10 % load, more than doubled at 95 % (90,000 µs)",
                "`pread` falls behind its open loop at 95 % load",
            ]
        );
        all.remove(9);
        assert!(of(&all)[2].ends_with("at 10 % load, not doubled up to 50 % (150 µs)"), "{:?}", of(&all));
        let [(first, closed), (_, also), (last, open)] = [&all[0], &all[1], &all[9]].map(title);
        assert!(first.ends_with("readers, 1 at once") && last.ends_with("most, 10 %"), "{first} {last}");
        assert!(closed == also && closed != open);
    }
}
