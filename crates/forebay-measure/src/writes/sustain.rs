//! `measure sustain`: runs one load for a minute or longer on a device that was idle before. Reports the level at first,
//! the level that lasts, and when the level changes ([`level`]), the times when the load stalls ([`stall`]), and when it is
//! steady ([`snia`]), for which a whole device is purged before ([`purge`]).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay::{Class, Config, Durability, File, Open};

use crate::aligned::AlignedBuffer;
use crate::prelude::*;

mod level;
mod purge;
mod snia;
mod stall;

use purge::WholeDevice;

#[derive(Debug)]
pub(crate) struct Sustain;

/// Bytes of one random read or write.
const RANDOM_BYTES: u64 = 4096;
/// Bytes of one sequential write, and the number in flight.
const SEQUENTIAL_BYTES: u64 = 512 << 10;
const SEQUENTIAL_DEPTH: usize = 8;
/// Length of a bin.
const BIN_MS: u64 = 100;
const BIN_SECONDS: f64 = BIN_MS as f64 / 1000.0;
/// Length of a step; operations are counted in steps to find stalls.
const STEP_MS: u64 = 10;
/// A shorter load does not show a sustained level.
const SECONDS: f64 = 60.0;
/// Seconds of a round of SNIA's method.
const ROUND_SECONDS: f64 = 60.0;
/// Minimum share of the time for stalls that are not regular; below it they are not mentioned.
const STALL_SHARE_MIN: f64 = 0.01;

static SPEC: Spec = Spec {
    name: "sustain",
    about: "Keep one load up after an idle time: the level at first, the level that lasts, and where it changes",
    quick_seconds: 11,
    full_seconds: 220,
    needs_directory: true,
    options: &[
        Opt::time(
            "seconds",
            "Seconds of each load; fewer than 60 do not show a sustained level",
            1.0,
            1800.0,
        )
        .or("60")
        .quick("5"),
        Opt::time("idle", "Seconds without any load before each", 0.01, 86_400.0).or("10").quick("0.5"),
        Opt::bytes("size", "Bytes of the file", 8 << 20, u64::MAX).or("2GiB").quick("256MiB"),
        Opt::count("depth", "Reads or writes of 4 KiB in flight", 1024).or("32"),
        Opt::repeats("1"),
    ],
    ways: &[
        Way::direct("random-read", "reads of 4 KiB anywhere in the file, Forebay on one shard, O_DIRECT"),
        Way::direct(
            "random-write",
            "writes of 4 KiB anywhere in the file, Forebay on one shard, O_DIRECT, no sync",
        ),
        Way::direct(
            "sequential-write",
            "writes of 8 x 512 KiB in the order of the file, Forebay on one shard, O_DIRECT, no sync",
        ),
    ],
    columns: &[
        column(metric::BURST_MB_PER_S, "burst MB/s", 1.0, "median rate of the tenths of a second at first"),
        column(metric::SUSTAINED_MB_PER_S, "sustained MB/s", 1.0, "the same after the change, if any"),
        column(
            metric::CHANGE_S,
            "change s",
            1.0,
            "seconds until the level changed; nothing where it did not",
        ),
        column(metric::DROP_BYTES, "GB until the drop", 1e9, "bytes moved before the level fell, if it did"),
        column(metric::VARIATION, "variation %", 0.01, "deviation at the sustained level, by its mean"),
        column(
            metric::STEADY_ROUND,
            "steady round",
            1.0,
            "the last of the first five rounds, of 25, that are steady by SNIA's window; 0: none are",
        ),
        column(metric::STALL_COUNT, "standstills", 1.0, "times at that level in which next to nothing ended"),
        column(metric::STALL_EVERY_S, "one every s", 1.0, "from one to the next, where that is regular"),
        column(metric::STALL_MS, "standstill ms", 1.0, "how long one lasts, in the middle"),
        column(metric::STALL_SHARE, "standing still %", 0.01, "all of them together, as a share of the time"),
        column(metric::IOPS, "IOPS", 1.0, "blocks a second, over the whole time"),
        columns::P50_US,
        columns::P99_US,
        columns::CPU_US_PER_IO,
        column(metric::SYNC_MS, "sync ms", 1.0, "how long the sync took after the load"),
    ],
    compared: metric::SUSTAINED_MB_PER_S,
    charts: &[metric::BURST_MB_PER_S, metric::SUSTAINED_MB_PER_S, metric::P99_US],
    axis: Axis::new("depth", "in flight"),
    role: Role::Other,
    gains: Vec::new,
};

impl Experiment for Sustain {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>> {
        let whole = WholeDevice::of(&context.target)?;
        let file = if whole.is_some() {
            TestFile::existing(context.target.path(), u64::MAX, None)?
        } else {
            ScratchDir::find(context, SPEC.name)?;
            TestFile::prepare(context, options.count("size").next_multiple_of(SEQUENTIAL_BYTES), None)?
        };
        let file_bytes = file.bytes - file.bytes % SEQUENTIAL_BYTES;
        if file_bytes == 0 {
            let path = file.path.display();
            return Err(
                Failure::Unsuitable(format!("{path} is too small to measure: name another one")).into()
            );
        }
        // SNIA's load follows the writes before it immediately.
        let idle_seconds = options.number("idle").filter(|_| whole.is_none()).unwrap_or_default();
        let setting = parameters(json!({
            "idle_seconds": idle_seconds, "bin_seconds": BIN_SECONDS, "depth": options.count("depth"),
            "file_bytes": file_bytes,
        }));
        Ok(Box::new(Run { file, setting, idle_seconds, whole, context }))
    }

    fn sample(&self, job: &Job) -> anyhow::Result<Outcome> {
        let shared = shared::<Work>(job)?;
        let depth = depth(&shared);
        with_engine(Config::new().shards(1), |engine| {
            let file = engine.open(&job.path, Open::write()).wait()?;
            std::thread::sleep(Duration::from_secs_f64(shared.1.idle_seconds));
            let gauge = Gauge::start(job.device_stat.as_deref())?;
            let begun = gauge.begun();
            let load = {
                let (file, shared) = (file.clone(), Arc::clone(&shared));
                move || load(file, shared, begun)
            };
            let Tally { timeline, latency, .. } = engine.spawn_on_shard(0, Class::DEFAULT, load).wait()??;
            let written = Instant::now();
            let seconds = (written - begun).as_secs_f64();
            file.sync(Durability::All).wait()?;
            let sync_ms = written.elapsed().as_secs_f64() * 1e3;
            let operations = latency.count();
            let bytes = operations * block_bytes(&job.row);
            let outcome = Outcome::new(gauge.stop()?, operations, bytes, latency);
            let (series, mut figures) = (timeline.series(), timeline.figures(depth)?);
            if shared.0.seconds >= SECONDS {
                let round = snia::steady_round(&timeline.rates()).unwrap_or_default();
                figures.set(metric::STEADY_ROUND, round as f64);
            }
            Ok(Outcome { seconds, series, figures, ..outcome }.figure(metric::SYNC_MS, sync_ms))
        })
    }

    fn title(&self, table: &Table) -> (String, String) {
        let (seconds, idle) = (shown(table, "seconds"), shown(table, "idle_seconds"));
        let title = format!("One load for {seconds} s after {idle} s without any");
        (title.clone(), title)
    }

    /// Returns for each load whether its level lasts, whether random writes are steady, and the load that stalls for the most time.
    fn verdicts(&self, tables: &[&Table]) -> Vec<String> {
        let of = |table: &&Table| {
            let levels = table.rows.iter().filter_map(|row| lasts(table, row));
            let stalls = table.rows.iter().filter_map(stalls).max_by(|a, b| a.0.total_cmp(&b.0));
            let steady = table.row("random-write").and_then(|row| steady(table, row));
            levels.chain(steady).chain(stalls.map(|(_, sentence)| sentence)).collect::<Vec<_>>()
        };
        tables.iter().flat_map(of).collect()
    }
}

fn block_bytes(row: &str) -> u64 {
    if row == "sequential-write" { SEQUENTIAL_BYTES } else { RANDOM_BYTES }
}

/// Returns the operations in flight.
fn depth((job, work): &(Job, Work)) -> usize {
    if job.row == "sequential-write" { SEQUENTIAL_DEPTH } else { work.depth }
}

/// One run: a file, and one table.
#[derive(Debug)]
struct Run<'a> {
    file: TestFile,
    setting: Parameters,
    idle_seconds: f64,
    whole: Option<WholeDevice>,
    context: &'a Context,
}

impl Plan for Run<'_> {
    fn place(&self) -> Place {
        self.file.place()
    }

    fn settings(&self) -> Vec<Parameters> {
        vec![self.setting.clone()]
    }

    fn extra_seconds(&self) -> f64 {
        self.idle_seconds
    }

    fn seconds_min(&self) -> f64 {
        // A shorter load has no level.
        1.0
    }

    fn start(&mut self, turn: &Turn<'_>, mut job: Job) -> anyhow::Result<Start> {
        if let Some(whole) = &mut self.whole {
            whole.prepare(&self.file, turn.seed, self.context)?;
        }
        // The sync can last as long as the load.
        job.seconds_max = self.idle_seconds + 2.0 * turn.seconds;
        Ok(job.into())
    }

    fn claim(&self, turn: &Turn<'_>, outcome: &Outcome) -> Claim {
        let is_read = turn.way.name == "random-read";
        Claim {
            read_bytes: is_read.then_some(outcome.bytes),
            written_bytes: (!is_read).then_some(outcome.bytes),
            workers: Some(1),
            ..Claim::default()
        }
    }

    fn method(&self, _: &Parameters, seconds: f64) -> String {
        format!(
            "{}Each load is a fresh process that idles for {:.1} s, then reads or writes for {seconds:.1} s, past the page \
             cache; the sync at the end counts apart. The change is the cut of the tenths of a second around whose two means \
             the sum of squares is least, where it explains far more than chance and the medians differ by a seventh and by \
             three times the scatter. Burst and sustained level are these medians. Standstills are steps of 10 ms or longer, \
             in which 32 operations and four times those in flight end on average, with less than a quarter of what busy \
             steps have; what is shorter than two steps may not show. A load is steady by the window of SNIA's PTS where of five \
             rounds, each a 25th of the load, the largest and the smallest differ by at most 20 % of their mean, and the line of \
             least squares through them by 10 % from end to end.",
            if self.whole.is_some() {
                "Before each load the whole device is discarded, and written twice by requests of 128 KiB in order. "
            } else {
                ""
            },
            self.idle_seconds
        )
    }

    fn finish(&self, _: &Parameters, table: &mut Table) {
        let seconds = table.number("seconds").unwrap_or_default();
        table.parameters.insert("too_short".to_owned(), (seconds < SECONDS).into());
        if seconds < SECONDS {
            table.notes.push(format!(
                "{seconds:.0} s a load are too short for a sustained level: caches and budgets of devices last a minute and \
                 longer; give --seconds {SECONDS:.0} or more"
            ));
        }
        match self.whole.as_ref().map(|whole| &whole.obstacle) {
            Some(Some(why)) => {
                table.notes.push(format!("not a single local drive, as SNIA's method wants: {why}"))
            }
            Some(None) => {
                table.parameters.insert("whole_drive".to_owned(), true.into());
            }
            None => {}
        }
    }
}

/// The parameters that a sample needs.
#[derive(Debug, Deserialize)]
struct Work {
    idle_seconds: f64,
    /// Queue depth of random operations; sequential writes have a separate depth.
    depth: usize,
    file_bytes: u64,
}

/// The completed operations over time.
#[derive(Debug)]
struct Timeline {
    /// Bytes of the operations that completed in each tenth of a second.
    bins: Vec<u64>,
    /// Number of operations that completed in each [`STEP_MS`].
    steps: Vec<u32>,
}

impl Timeline {
    /// Reserves memory for `seconds` seconds.
    fn new(seconds: f64) -> Self {
        let bins = (seconds / BIN_SECONDS).round() as usize;
        Self { bins: vec![0; bins], steps: vec![0; bins * (BIN_MS / STEP_MS) as usize] }
    }

    /// Counts an operation that completed `since` after the start. An operation after the end is not counted.
    fn count(&mut self, since: Duration, bytes: u64) {
        let place = |width_ms: u64| (since.as_millis() / u128::from(width_ms)) as usize;
        if let (Some(sum), Some(count)) =
            (self.bins.get_mut(place(BIN_MS)), self.steps.get_mut(place(STEP_MS)))
        {
            *sum += bytes;
            *count += 1;
        }
    }

    /// Returns the steps from bin number `bin` on.
    fn steps_from(&self, bin: usize) -> &[u32] {
        self.steps.get(bin * (BIN_MS / STEP_MS) as usize..).unwrap_or_default()
    }

    /// Returns the rate of each bin in millions of bytes per second.
    fn rates(&self) -> Vec<f64> {
        self.bins.iter().map(|bytes| *bytes as f64 / 1e6 / BIN_SECONDS).collect()
    }

    fn series(&self) -> forebay_report::result::Series {
        let at = (0..self.bins.len()).map(|bin| (bin as f64 * BIN_SECONDS * 10.0).round() / 10.0);
        [("at_s".to_owned(), at.collect()), (metric::MB_PER_S.to_owned(), self.rates())].into()
    }

    /// Returns the levels and the stalls of a load with `depth` operations in flight.
    ///
    /// # Errors
    /// The load lasted no time.
    fn figures(&self, depth: usize) -> anyhow::Result<Metrics> {
        let levels = level::find(&self.rates()).context("the load had no time")?;
        let mut metrics = Metrics::default();
        metrics
            .set(metric::BURST_MB_PER_S, levels.burst)
            .set(metric::SUSTAINED_MB_PER_S, levels.sustained)
            .set(metric::VARIATION, levels.variation);
        if let Some(change) = levels.change {
            metrics.set(metric::CHANGE_S, change as f64 * BIN_SECONDS);
            if levels.sustained < levels.burst {
                metrics.set(metric::DROP_BYTES, self.bins[..change].iter().sum::<u64>() as f64);
            }
        }
        // Only at the level that lasts: the usual number of operations in a step is different before it.
        if let Some(stalls) = stall::find(self.steps_from(levels.change.unwrap_or(0)), depth) {
            metrics
                .set(metric::STALL_COUNT, stalls.count as f64)
                .set(metric::STALL_SHARE, stalls.share)
                .set(metric::STALL_STEP_MS, stalls.step_ms);
            if stalls.count > 0 {
                metrics.set(metric::STALL_MS, stalls.length_ms);
            }
            if let Some(every_s) = stalls.every_s {
                metrics.set(metric::STALL_EVERY_S, every_s);
            }
        }
        Ok(metrics)
    }
}

/// The state that the lanes of a load share; they never leave their thread.
#[derive(Debug)]
struct Tally {
    timeline: Timeline,
    latency: Latency,
    /// Offset of the next sequential write.
    next_offset: u64,
}

/// Runs all lanes on this shard.
async fn load(file: File, shared: Arc<(Job, Work)>, begun: Instant) -> anyhow::Result<Tally> {
    let tally = Tally { timeline: Timeline::new(shared.0.seconds), latency: Latency::new()?, next_offset: 0 };
    let tally = Rc::new(RefCell::new(tally));
    let spawn = |number| {
        let lane = lane(file.clone(), Arc::clone(&shared), begun, number, Rc::clone(&tally));
        Ok(forebay::shard::spawn(lane)?)
    };
    for lane in (0..depth(&shared)).map(spawn).collect::<anyhow::Result<Vec<_>>>()? {
        lane.await??;
    }
    Rc::into_inner(tally).map(RefCell::into_inner).context("a lane of the load is still there")
}

async fn lane(
    file: File,
    shared: Arc<(Job, Work)>,
    begun: Instant,
    number: usize,
    tally: Rc<RefCell<Tally>>,
) -> anyhow::Result<()> {
    let (Job { row, seed, seconds, .. }, Work { file_bytes, .. }) = &*shared;
    let (bytes, deadline) = (block_bytes(row), begun + Duration::from_secs_f64(*seconds));
    let mut random = SplitMix::new(seed ^ SplitMix::new(number as u64 + 1).next_u64());
    let mut memory = AlignedBuffer::new(bytes as usize);
    Pattern::new(random.next_u64()).fill(0, memory.bytes_mut());
    let mut before = Instant::now();
    while before < deadline {
        let offset = if row == "sequential-write" {
            let mut tally = tally.borrow_mut();
            let next = (tally.next_offset + bytes) % file_bytes;
            std::mem::replace(&mut tally.next_offset, next)
        } else {
            random.below(file_bytes / bytes) * bytes
        };
        if row == "random-read" {
            file.read(offset..offset + bytes).await?;
        } else {
            // All pages differ, because some devices store equal pages only once.
            for page in memory.bytes_mut().chunks_exact_mut(PAGE_BYTES) {
                page[..8].copy_from_slice(&random.next_u64().to_le_bytes());
            }
            file.write(offset, memory.bytes()).await?;
        }
        let now = Instant::now();
        let mut tally = tally.borrow_mut();
        tally.latency.record(now - before);
        tally.timeline.count(now - begun, bytes);
        before = now;
    }
    Ok(())
}

/// Returns the value of a metric that most repeats have.
fn of_most_repeats(row: &Row, metric: &str) -> Option<f64> {
    let seen = row.samples.iter().filter(|sample| sample.metrics.get(metric).is_some()).count();
    row.metrics.get(metric).filter(|_| 2 * seen > row.samples.len())
}

fn lasts(table: &Table, row: &Row) -> Option<String> {
    let get = |name: &str| row.metrics.get(name);
    let (burst, sustained) = (get(metric::BURST_MB_PER_S)?, get(metric::SUSTAINED_MB_PER_S)?);
    let level = match of_most_repeats(row, metric::CHANGE_S) {
        Some(at) => {
            let moved = get(metric::DROP_BYTES).filter(|_| sustained < burst);
            let moved = moved.map_or_else(String::new, |moved| format!(" and {}", bytes(moved as u64)));
            let does = if sustained < burst { "falls" } else { "rises" };
            format!(
                "{does} from {} to {} MB/s after {} s{moved}",
                number(burst),
                number(sustained),
                number(at)
            )
        }
        None => format!("keeps {} MB/s over all of {} s", number(sustained), shown(table, "seconds")),
    };
    let rest = if table.parameters.get("too_short").and_then(Value::as_bool) == Some(true) {
        "too short for a sustained level".to_owned()
    } else {
        format!("variation {} %", number((1000.0 * get(metric::VARIATION)?).round() / 10.0))
    };
    Some(format!("`{}` {level}; {rest}", row.name))
}

/// Returns whether a load is steady. Only a whole drive that was purged and written twice over, in rounds of a minute, is so by
/// SNIA's method.
fn steady(table: &Table, row: &Row) -> Option<String> {
    row.metrics.get(metric::STEADY_ROUND)?;
    // Of several repeats the one that was steady last, if all were.
    let ends = || row.samples.iter().filter_map(|sample| sample.metrics.get(metric::STEADY_ROUND));
    let round = if ends().any(|end| end < 1.0) { 0 } else { ends().fold(0.0, f64::max) as usize };
    let bins = (table.number("seconds")? / BIN_SECONDS).round() as usize;
    let length = snia::round_bins(bins) as f64 * BIN_SECONDS;
    let is_whole = table.parameters.get("whole_drive").and_then(Value::as_bool) == Some(true);
    let is_method = is_whole && length >= ROUND_SECONDS;
    let by =
        if is_method { "in SNIA's steady state (PTS)" } else { "steady by SNIA's window, not by its method" };
    let (name, seconds) = (&row.name, number((length * 10.0).round() / 10.0));
    Some(match round {
        0 => format!("`{name}` is not steady by SNIA's window: no 5 of 25 rounds of {seconds} s are"),
        end => {
            let start = snia::window_start(end);
            format!("`{name}` is {by}: rounds {start} to {end} of {seconds} s each")
        }
    })
}

/// Returns the share of the time in which a load stalls, and a sentence on it.
fn stalls(row: &Row) -> Option<(f64, String)> {
    let get = |name: &str| row.metrics.get(name);
    let (count, length) = (get(metric::STALL_COUNT)?, of_most_repeats(row, metric::STALL_MS)?);
    let (share, step) = (get(metric::STALL_SHARE)?, get(metric::STALL_STEP_MS)?);
    let when = match of_most_repeats(row, metric::STALL_EVERY_S) {
        Some(every) => format!("every {} s", number((every * 100.0).round() / 100.0)),
        None if share >= STALL_SHARE_MIN => format!("{} times, irregularly,", number(count)),
        None => return None,
    };
    let sentence = format!(
        "`{}` stalls {when} for about {} ms, {} % of the time (steps of {} ms)",
        row.name,
        number(length.round()),
        number((1000.0 * share).round() / 10.0),
        number(step)
    );
    Some((share, sentence))
}

/// Returns the table of random writes with these completed operations, each with its time and its bytes.
#[cfg(test)]
pub(crate) fn simulated(time: Duration, depth: usize, operations: &[(Duration, u64)]) -> Table {
    use forebay_report::result::Sample;
    let seconds = time.as_secs_f64();
    let mut timeline = Timeline::new(seconds);
    operations.iter().for_each(|(since, bytes)| timeline.count(*since, *bytes));
    let metrics = timeline.figures(depth).expect("it has bins");
    let mut table = Table::new(SPEC.name, "").parameter("seconds", seconds);
    table.rows.push(Row::from_samples("random-write", vec![Sample { repeat: 0, metrics }]));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{sparse_file, test_job, test_row, test_table};

    fn load(parts: &[(u64, usize)]) -> Timeline {
        let bins: Vec<u64> = parts.iter().flat_map(|(bytes, count)| vec![*bytes; *count]).collect();
        Timeline { steps: vec![100; 10 * bins.len()], bins }
    }

    #[test]
    fn a_drop_is_reported_with_its_time_and_bytes() {
        let metrics = load(&[(10_000_000, 50), (2_000_000, 100)]).figures(32).expect("it has bins");
        let get = |name: &str| metrics.get(name).expect("it was set");
        assert_eq!((get(metric::BURST_MB_PER_S), get(metric::SUSTAINED_MB_PER_S)), (100.0, 20.0));
        assert_eq!((get(metric::CHANGE_S), get(metric::DROP_BYTES)), (5.0, 500_000_000.0));
        assert_eq!(get(metric::VARIATION), 0.0);
    }

    #[test]
    fn a_rise_has_no_drop_and_a_level_no_change() {
        let rise = load(&[(2_000_000, 50), (10_000_000, 50)]).figures(32).expect("it has bins");
        assert_eq!((rise.get(metric::CHANGE_S), rise.get(metric::DROP_BYTES)), (Some(5.0), None));
        let level = load(&[(2_000_000, 100)]).figures(32).expect("it has bins");
        assert_eq!((level.get(metric::CHANGE_S), level.get(metric::DROP_BYTES)), (None, None));
        assert!(load(&[]).figures(32).is_err());
    }

    #[test]
    fn stalls_are_those_of_the_level_that_lasts() {
        let mut stalling = load(&[(10_000_000, 20), (2_000_000, 100)]);
        stalling.steps[200..].chunks_mut(100).for_each(|second| second[90..].fill(0));
        let found = stalling.figures(8).expect("it has bins");
        let get = |name: &str| found.get(name).expect("it was set");
        assert_eq!((get(metric::STALL_COUNT), get(metric::STALL_STEP_MS)), (10.0, 10.0));
        assert_eq!((get(metric::STALL_EVERY_S), get(metric::STALL_MS)), (1.0, 100.0));
        assert!((get(metric::STALL_SHARE) - 0.1).abs() < 1e-9);
        let steady = load(&[(2_000_000, 100)]).figures(8).expect("it has bins");
        assert_eq!((steady.get(metric::STALL_COUNT), steady.get(metric::STALL_MS)), (Some(0.0), None));
    }

    #[test]
    fn a_series_has_a_time_for_each_value() {
        let series = load(&[(1_000_000, 4)]).series();
        assert_eq!(series["at_s"], [0.0, 0.1, 0.2, 0.3]);
        assert_eq!(series["mb_per_s"], [10.0; 4]);
    }

    #[test]
    fn completions_belong_to_their_bin_and_their_step() {
        let mut timeline = Timeline::new(0.3);
        for (milliseconds, bytes) in [(10, 1), (99, 2), (101, 4), (250, 8), (300, 16), (900, 32)] {
            timeline.count(Duration::from_millis(milliseconds), bytes);
        }
        assert_eq!((timeline.bins.as_slice(), timeline.steps.len()), (&[3, 4, 8][..], 30));
        let some: Vec<usize> = (0..30).filter(|step| timeline.steps[*step] > 0).collect();
        assert_eq!(some, [1, 9, 10, 25]);
        assert_eq!((timeline.steps_from(2).len(), timeline.steps_from(9).len()), (10, 0));
    }

    #[test]
    fn every_load_fills_its_bins_and_reaches_the_whole_file() {
        for Way { name, .. } in SPEC.ways {
            let temp = sparse_file(8 << 20);
            let all = json!({ "idle_seconds": 0.01, "depth": 4, "file_bytes": 8 << 20 });
            let job = Job { seconds: 0.5, ..test_job(SPEC.name, name, temp.path(), all, 2) };
            let outcome = Sustain.sample(&job).unwrap_or_else(|error| panic!("{name}: {error:#}"));
            let rates = &outcome.series["mb_per_s"];
            assert_eq!(rates.len(), 5, "{name}");
            let bytes = (rates.iter().sum::<f64>() * 1e6 * BIN_SECONDS).round() as u64;
            // The bytes of the last operations, which completed too late, are in no bin.
            // A slow device completes all of them too late.
            assert!(bytes <= outcome.bytes, "{name} {outcome:?}");
            assert!(bytes.is_multiple_of(block_bytes(name)) && outcome.seconds >= 0.5, "{name} {outcome:?}");
            let found = std::fs::read(temp.path()).expect("readable");
            assert_eq!(found.len(), 8 << 20, "{name}");
            let is_read = *name == "random-read" || outcome.operations == 0;
            assert_eq!(found.iter().all(|byte| *byte == 0), is_read, "{name}");
        }
    }

    fn row(name: &str, burst: f64, sustained: f64, changes: &[Option<f64>]) -> Row {
        let figures = |change: &Option<f64>| {
            [
                (metric::BURST_MB_PER_S, Some(burst)),
                (metric::SUSTAINED_MB_PER_S, Some(sustained)),
                (metric::VARIATION, Some(0.041)),
                (metric::CHANGE_S, *change),
                (metric::DROP_BYTES, change.filter(|_| sustained < burst).map(|_| f64::from(3 << 29))),
            ]
        };
        Row::of_repeats(name, changes.iter().map(figures))
    }

    fn verdicts(seconds: u32, rows: Vec<Row>) -> Vec<String> {
        let all = json!({ "seconds": seconds, "too_short": seconds < 60 });
        Sustain.verdicts(&[&test_table(SPEC.name, all, rows)])
    }

    fn stalling(figures: &[(&str, f64)]) -> Vec<String> {
        let figures = [figures, &[(metric::STALL_STEP_MS, 20.0)]].concat();
        verdicts(60, vec![test_row("random-write", &[1.0], &figures)])
    }

    #[test]
    fn stalls_are_reported_with_their_rhythm_and_the_width_of_a_step() {
        let regular = [
            (metric::STALL_COUNT, 59.0),
            (metric::STALL_MS, 98.4),
            (metric::STALL_SHARE, 0.098),
            (metric::STALL_EVERY_S, 1.002),
        ];
        assert_eq!(
            stalling(&regular),
            ["`random-write` stalls every 1 s for about 98 ms, 9.80 % of the time (steps of 20 ms)"]
        );
        let sentences = stalling(&regular[..3]);
        assert!(sentences[0].contains("stalls 59 times, irregularly, for about 98 ms"), "{sentences:?}");
        let seldom = [(metric::STALL_COUNT, 2.0), (metric::STALL_MS, 40.0), (metric::STALL_SHARE, 0.0013)];
        assert!(stalling(&seldom).is_empty());
        assert!(stalling(&[(metric::STALL_COUNT, 0.0), (metric::STALL_SHARE, 0.0)]).is_empty());
    }

    #[test]
    fn of_several_loads_that_stall_the_worst_is_reported() {
        let row = |name: &str, share: f64| {
            let lengths = [(metric::STALL_MS, 50.0), (metric::STALL_STEP_MS, 10.0)];
            let shares = [(metric::STALL_COUNT, 9.0), (metric::STALL_SHARE, share)];
            test_row(name, &[1.0], &[lengths, shares].concat())
        };
        let sentences = verdicts(60, vec![row("random-read", 0.02), row("random-write", 0.2)]);
        assert!(sentences.len() == 1 && sentences[0].starts_with("`random-write` stalls"), "{sentences:?}");
    }

    #[test]
    fn a_drop_is_reported_with_the_level_before_it() {
        let rows = || vec![row("sequential-write", 500.0, 125.0, &[Some(14.2)])];
        let falls = "`sequential-write` falls from 500 to 125 MB/s after 14.2 s and 1.5 GiB";
        assert_eq!(verdicts(60, rows()), [format!("{falls}; variation 4.10 %")]);
        assert_eq!(verdicts(20, rows()), [format!("{falls}; too short for a sustained level")]);
    }

    /// SNIA's name is only for a whole drive, purged and written twice over, in rounds of a minute.
    #[test]
    fn a_steady_load_has_the_name_of_the_method_only_where_it_was_kept() {
        let sentence = |round: f64, seconds: u32, whole: bool| {
            let row = test_row("random-write", &[1.0], &[(metric::STEADY_ROUND, round)]);
            let all = json!({ "seconds": seconds, "whole_drive": whole });
            Sustain.verdicts(&[&test_table(SPEC.name, all, vec![row])]).join("; ")
        };
        let method = "`random-write` is in SNIA's steady state (PTS): rounds 3 to 7 of 60 s each";
        assert_eq!(sentence(7.0, 1500, true), method);
        let window = "`random-write` is steady by SNIA's window, not by its method: rounds 3 to 7 of";
        for (seconds, whole, length) in [(1500, false, "60"), (1499, true, "59.9"), (60, false, "2.40")] {
            assert_eq!(sentence(7.0, seconds, whole), format!("{window} {length} s each"));
        }
        let never = "`random-write` is not steady by SNIA's window: no 5 of 25 rounds of 2.40 s are";
        assert_eq!(sentence(0.0, 60, false), never);
        // Of two repeats one is not.
        let mixed = test_row("random-write", &[1.0, 0.0], &[(metric::STEADY_ROUND, 7.0)]);
        let table = test_table(SPEC.name, json!({ "seconds": 60 }), vec![mixed]);
        assert_eq!(Sustain.verdicts(&[&table]), [never]);
        // A load too short for a level has no such figure.
        let row = row("random-write", 180.0, 180.0, &[None]);
        assert!(verdicts(60, vec![row]).iter().all(|sentence| !sentence.contains("SNIA")));
    }

    #[test]
    fn a_level_that_lasts_and_one_that_rises_are_no_drops() {
        let rows =
            vec![row("random-read", 180.0, 180.0, &[None]), row("random-write", 50.0, 100.0, &[Some(2.0)])];
        assert_eq!(
            verdicts(60, rows),
            [
                "`random-read` keeps 180 MB/s over all of 60 s; variation 4.10 %",
                "`random-write` rises from 50 to 100 MB/s after 2 s; variation 4.10 %",
            ]
        );
    }

    #[test]
    fn a_change_in_one_repeat_of_three_is_not_reported_and_short_loads_are_marked() {
        let sentences = verdicts(5, vec![row("random-read", 180.0, 90.0, &[None, Some(3.0), None])]);
        assert_eq!(
            sentences,
            ["`random-read` keeps 90 MB/s over all of 5 s; too short for a sustained level"]
        );
        assert!(verdicts(5, vec![Row::skipped("random-read", "no")]).is_empty());
    }
}
