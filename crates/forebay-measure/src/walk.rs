//! `measure walk`: lookups in an index on the device. Each is a chain of reads, and every read depends
//! on the one before.
//!
//! [`tree`] is the index and its file, [`lookups`] runs a sample, all of whose rows are made of lanes: one lookup after the
//! other, each result verified.

use crate::gates::processors;
use crate::options::Length;
use crate::prelude::*;
use crate::residency::evict;
use crate::sentences::{Bound, Limit, compared, hold, is_published, measured, ranked};
use crate::timers;
use crate::units::show_bytes;
use forebay_report::result::{Gate, median};
use lookups::{WARM, Work};
use tree::{IndexFile, Tree, fan_out_max};

mod lookups;
mod tree;

#[derive(Debug)]
pub(crate) struct Walk;

static SPEC: Spec = Spec {
    name: "walk",
    about: "Look keys up in an index on the device, each a chain of dependent reads, in several ways",
    quick_seconds: 4,
    full_seconds: 80,
    needs_directory: true,
    options: &[
        Opt::count("depth", "Nodes from root to leaf", 32)
            .list()
            .chosen("1 to 8 with one thread and 6 with more, with --quick 6"),
        Opt::bytes("node", "Bytes of a node, each in a file of its own: 512 or 4096", 512, 4096)
            .list()
            .or("512,4096")
            .quick("512"),
        Opt::count("fanout", "Records of a node", 254)
            .at_least(2)
            .chosen("as many as there is room for: 30 and 254"),
        Opt::count("in-flight", "Lookups in flight, all threads together", 4096).or("64"),
        Opt::count(
            "threads",
            "Threads that lookups come from: rings, shards, workers of the Tokio runtime; `pread` has one for each \
             lookup in flight",
            256,
        )
        .list()
        .chosen("1, and as many as processors and 4 times as many at depth 6, with --quick 1"),
        Opt::word(
            "beside",
            "Only lookups with nothing beside them, or only beside a thousand timer tasks whose lateness is measured",
            &["nothing", "timers"],
        )
        .chosen("nothing, and timers at depth 6 from one thread, with --quick nothing"),
        Opt::bytes("size", "Size of a file", 1 << 20, u64::MAX).or("1GiB").quick("128MiB"),
        Opt::seconds("0.5", "0.3"),
        Opt::repeats("3").quick("1"),
        Opt::flag(
            "as-published",
            "Count as published benchmarks do: each lookup makes a file with its nodes and removes it. `io_uring`, whose \
             file is registered once, is left out",
        ),
        Opt::flag("check", "Compare the figures with the project's limits; the exit code is 1 when one is missed"),
    ],
    ways: &[
        Way::base(BASE, "no lookups: the timer tasks alone"),
        Way::direct("pread", "a std thread for each lookup in flight, pread with O_DIRECT"),
        Way::direct(
            "io_uring",
            "a loop on a bare ring that submits the next read where the last one completes, with registered file and \
             memory, O_DIRECT: the limit",
        ),
        Way::direct(
            "forebay-task",
            "tasks on Forebay's shards, one File::read().await for each node, O_DIRECT",
        ),
        Way::direct(WALK, "tasks on Forebay's shards, one File::walk().await for each lookup, O_DIRECT"),
        Way::direct(TOKIO, "tasks of a Tokio runtime, one File::walk().await for each lookup, O_DIRECT"),
        Way::direct(
            "blocking-per-hop",
            "tasks of a Tokio runtime, a spawn_blocking with pread for each node, O_DIRECT",
        ),
        Way::direct(
            "blocking-whole",
            "tasks of a Tokio runtime, a spawn_blocking with all preads of a lookup, O_DIRECT",
        ),
        Way::cached(
            "tokio-fs",
            "tasks of a Tokio runtime, seek and read_exact of a tokio::fs::File each, through the page cache",
        ),
    ],
    columns: &[
        columns::LOOKUPS_PER_S,
        columns::P50_US,
        columns::P99_US,
        columns::CPU_US_PER_LOOKUP,
        columns::CONTEXT_SWITCHES_PER_LOOKUP,
        columns::WAKES_PER_LOOKUP,
        columns::TIMERS_LATE[0],
        columns::TIMERS_LATE[1],
        columns::TIMERS_LATE[2],
        columns::TIMERS_CPU_SHARE,
        columns::IN_FLIGHT_AVG,
        columns::DEVICE_SHARE,
    ],
    compared: RATE,
    charts: &[RATE, metric::P99_US, CPU, metric::WAKES_PER_LOOKUP, metric::TIMERS_LATE[1]],
    axis: Axis::new("depth", "reads of a lookup"),
    role: Role::Other,
    gains: || {
        let usual = &["blocking-per-hop", "tokio-fs"];
        let rate = "Send dependent reads from where the last one ends";
        let cpu = "Spend less processor time on each lookup";
        vec![
            Gain::new(RATE, true, usual, &["io_uring", WALK, TOKIO], "lookups a second", rate),
            Gain::new(
                CPU,
                false,
                usual,
                &["pread", "io_uring", "forebay-task", WALK, TOKIO, "blocking-whole"],
                "µs of processor time for a lookup",
                cpu,
            ),
        ]
    },
};

const RATE: &str = metric::LOOKUPS_PER_S;
const CPU: &str = metric::CPU_US_PER_LOOKUP;
/// The baseline for the timer tasks.
const BASE: &str = "no-lookups";
const WALK: &str = "forebay-walk";
const TOKIO: &str = "forebay-walk-tokio";
/// Depth for which the project's targets are set.
const DEPTH: u64 = 6;
const DEPTH_MAX: u64 = 8;

impl Experiment for Walk {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>> {
        let nodes = options.counts("node");
        refuse(options, &nodes)?;
        let scratch = ScratchDir::find(context, SPEC.name)?;
        let settings = settings(options, processors() as u64);
        let levels = settings.iter().map(|(depth, ..)| *depth).max().unwrap_or(1);
        let is_published = options.given("as-published");
        let make = |node_bytes: &u64| {
            let fan_out = options.number("fanout").map_or(fan_out_max(*node_bytes), |count| count as u64);
            let nodes = (options.count("size") / (levels * node_bytes)).max(1);
            // If each lookup has its own file, this file only shows the alignment of direct reads.
            let nodes = if is_published { 1 } else { nodes };
            let tree = Tree { node_bytes: *node_bytes, fan_out, levels, nodes, seed: context.seed };
            IndexFile::make(&scratch, tree, context)
        };
        let files: Vec<IndexFile> = nodes.iter().map(make).collect::<anyhow::Result<_>>()?;
        let mut works = Vec::new();
        for (file, index) in files.iter().enumerate() {
            works.extend(settings.iter().map(|(depth, threads, timers)| {
                let tree = if is_published { Tree { levels: *depth, ..index.tree } } else { index.tree };
                let work = Work {
                    tree,
                    file_bytes: tree.file_bytes(),
                    read_bytes: tree.node_bytes.max(index.unit_bytes) as usize,
                    depth: *depth,
                    in_flight: options.count("in-flight") as usize,
                    threads: *threads as usize,
                    beside: if *timers { "timers" } else { "nothing" }.to_owned(),
                    as_published: is_published,
                    device: index.device.clone(),
                };
                (file, work)
            }));
        }
        Ok(Box::new(Run { scratch, files, works, context }))
    }

    fn check(&self, tables: &mut [Table]) {
        check(tables, processors());
    }

    fn sample(&self, job: &Job) -> anyhow::Result<Outcome> {
        lookups::sample(job, SPEC.way(&job.row)?)
    }

    fn title(&self, table: &Table) -> (String, String) {
        let count = |name| shown(table, name);
        let heading = format!(
            "{} in nodes of {}, {} in flight from {} thread(s){}",
            if is_published(table) { "Lookups, each in a file that is made and removed," } else { "Lookups" },
            shown_bytes(table, "node_bytes"),
            count("in_flight"),
            count("threads"),
            if is_beside_timers(table) { ", beside 1,000 timers" } else { "" }
        );
        (format!("{heading}, {} read(s) each", count("depth")), heading)
    }

    fn verdicts(&self, tables: &[&Table]) -> Vec<String> {
        // For each index on the lookups with the most reads, from the fewest threads.
        let order = |table: &Table| {
            let number = |name| table.number(name).unwrap_or_default();
            (-number("threads"), number("depth"))
        };
        let mut best: Vec<&Table> = Vec::new();
        for table in tables.iter().filter(|table| !is_beside_timers(table)) {
            match best.iter_mut().find(|other| other.number("node_bytes") == table.number("node_bytes")) {
                Some(other) if order(table) >= order(other) => *other = table,
                Some(_) => {}
                None => best.push(table),
            }
        }
        let mut sentences = Vec::new();
        for table in best {
            sentences.extend(against(table, WALK, &["io_uring"]));
            sentences.extend(against(table, WALK, &["pread", "forebay-task"]));
            sentences.extend(against(table, TOKIO, &["blocking-per-hop", "blocking-whole", "tokio-fs"]));
            sentences.extend(on_the_device(table));
        }
        for table in tables.iter().filter(|table| is_beside_timers(table)) {
            sentences.extend(timers::verdicts(table, BASE, &setting_of(table)));
        }
        sentences
    }
}

/// Refuses options that contradict each other.
fn refuse(options: &Values, nodes: &[u64]) -> Result<(), Failure> {
    let fan_out = options.count("fanout");
    let too_small = nodes.iter().find(|node| fan_out > fan_out_max(**node));
    let is_published = options.given("as-published");
    Err(Failure::Usage(if let Some(node) = nodes.iter().find(|node| ![512, 4096].contains(*node)) {
        format!("a node cannot have {node} bytes here: give --node 512 or 4096")
    } else if let Some(small) = too_small {
        format!(
            "a node of {small} bytes has room for {} records: give a smaller --fanout, or only --node 4096",
            fan_out_max(*small)
        )
    } else if is_published && options.rows == ["io_uring"] {
        "`io_uring` reads a file that is registered once and cannot be counted as published: choose other --rows".to_owned()
    } else if options.given("check") && (is_published || options.given("beside")) {
        "--check has limits for plain lookups only: leave out --as-published and --beside, or --check"
            .to_owned()
    } else {
        return Ok(());
    }))
}

/// Returns the combinations of depths and threads, and whether timers run meanwhile.
fn settings(options: &Values, processors: u64) -> Vec<(u64, u64, bool)> {
    let (depths, threads) = (options.counts("depth"), options.counts("threads"));
    let or = |given: &[u64], usual| if given.is_empty() { vec![usual] } else { given.to_vec() };
    let nothing_chosen = depths.is_empty() && threads.is_empty();
    let interference = options.words("beside") == ["timers"];
    let mut settings: Vec<_> = if nothing_chosen && options.length == Length::Full && !interference {
        let more = [processors, 4 * processors].into_iter().filter(|threads| *threads > 1);
        let all = (1..=DEPTH_MAX).map(|depth| (depth, 1)).chain(more.map(|threads| (DEPTH, threads)));
        all.map(|(depth, threads)| (depth, threads, false)).collect()
    } else {
        let (depths, threads) = (or(&depths, DEPTH), or(&threads, 1));
        let all = threads.iter().flat_map(|threads| depths.iter().map(move |depth| (*depth, *threads)));
        all.map(|(depth, threads)| (depth, threads, interference)).collect()
    };
    // Interference that is only observed has no place in a quick report, nor where other settings were requested.
    let is_observed = nothing_chosen && options.length != Length::Quick;
    if is_observed && !options.given("beside") && !options.given("check") {
        settings.push((DEPTH, 1, true));
    }
    settings
}

/// One run: a file for each size of nodes.
#[derive(Debug)]
struct Run<'a> {
    scratch: ScratchDir,
    files: Vec<IndexFile>,
    /// The tables, each with the number of its file.
    works: Vec<(usize, Work)>,
    context: &'a Context,
}

impl Plan for Run<'_> {
    fn place(&self) -> Place {
        self.scratch.place_of(self.files.first().map(|file| &file.preconditions))
    }

    fn settings(&self) -> Vec<Parameters> {
        self.works.iter().map(|(_, work)| parameters(json!(work))).collect()
    }

    fn has(&self, setting: &Parameters, way: &Way) -> bool {
        match way.name {
            BASE => setting["beside"] == "timers",
            // Its file is registered once.
            "io_uring" => !setting.contains_key("as_published"),
            _ => true,
        }
    }

    fn extra_seconds(&self) -> f64 {
        WARM.as_secs_f64()
    }

    fn start(&mut self, turn: &Turn<'_>, mut job: Job) -> anyhow::Result<Start> {
        let (file, work) = &self.works[turn.setting];
        evict(self.files[*file].temp.file())?;
        if work.as_published {
            let own = self.scratch.temp_directory(self.context, "walk")?;
            job.path = own.path().to_owned();
            return Ok(Start { held: Some(Box::new(own)), ..job.into() });
        }
        job.path = self.files[*file].temp.path().to_owned();
        Ok(job.into())
    }

    fn claim(&self, turn: &Turn<'_>, outcome: &Outcome) -> Claim {
        Claim {
            // A page cache that fills during the reads requests less from the device.
            read_bytes: (!turn.way.cached).then_some(outcome.bytes),
            workers: Some(self.works[turn.setting].1.workers(turn.way)),
            exact: true,
            ..Claim::default()
        }
    }

    fn cache(&self, setting: &Parameters, way: &Way) -> Option<CacheState> {
        (!way.always).then_some(match (way.cached, setting.contains_key("as_published")) {
            (false, _) => CacheState::Direct,
            // The lookup reads data that it has just written.
            (true, true) => CacheState::Warm,
            (true, false) => CacheState::Evicted,
        })
    }

    fn method(&self, setting: &Parameters, seconds: f64) -> String {
        let count = |name: &str| setting.get(name).and_then(Value::as_u64).unwrap_or_default();
        let (node, read) = (show_bytes(count("node_bytes")), show_bytes(count("read_bytes")));
        let index = if setting.contains_key("as_published") {
            format!(
                "As published benchmarks count, a lookup makes a file of {} nodes of {node}, descends it and removes it, \
                 without a sync.",
                count("depth")
            )
        } else {
            format!(
                "The index has {} levels of {} nodes of {node} with {} records each; a lookup is {} dependent reads of \
                 {read}, each at random within {}. All rows of a repeat look up the same keys.",
                count("levels"),
                count("nodes_per_level"),
                count("fan_out"),
                count("depth"),
                show_bytes(count("file_bytes"))
            )
        };
        let beside = if setting["beside"] == "timers" { timers::method() + " " } else { String::new() };
        format!(
            "{index} {beside}Each sample is a fresh process with {} lookup(s) in flight from {} thread(s), {seconds:.2} s after \
             0.1 s of warming up. Every result is verified, which the CPU time includes. Latency counts from the end of the \
             last lookup; wakes are polls of its task after the first. Rows take turns; figures are medians of the repeats.",
            count("in_flight"),
            count("threads")
        )
    }

    fn notes(&self, setting: &Parameters) -> Vec<String> {
        let notes: &[&str] = if setting.contains_key("as_published") {
            &["`tokio-fs` reads its fresh data from the page cache; all other rows write and read past it"]
        } else {
            &[
                "the file is new and rows of a repeat read the same nodes: a device, or the host of a virtual machine, that \
                 caches serves all rows alike from its memory",
                "`tokio-fs` reads through the page cache, from which the file is evicted before each sample; all other \
                 rows go past it",
            ]
        };
        notes.iter().map(|note| (*note).to_owned()).collect()
    }

    fn finish(&self, _: &Parameters, table: &mut Table) {
        table.notes.extend(timers::own_cost(table, BASE));
    }
}

/// Returns whether a thousand timer tasks ran during the lookups.
fn is_beside_timers(table: &Table) -> bool {
    table.text("beside") == "timers"
}

/// Describes a table in few words: `depth 6, 512 B`.
fn setting_of(table: &Table) -> String {
    let published = if is_published(table) { "published, " } else { "" };
    let (depth, node) = (shown(table, "depth"), shown_bytes(table, "node_bytes"));
    format!("{published}depth {depth}, {node}")
}

/// Compares a row with the fastest of the others.
fn against(table: &Table, name: &str, others: &[&str]) -> Option<String> {
    let own = measured(table, name)?;
    let (other, _) = *ranked(table, others, RATE).last()?;
    Some(format!(
        "{}: {} lookups/s with `{name}`, {} `{}`, {} CPU{}",
        setting_of(table),
        number(own.metrics.get(RATE)?),
        compared(own, other, RATE, ["more than", "fewer than", "as many as"])?,
        other.name,
        compared(own, other, CPU, ["more", "less", "the same"])?,
        once(&[own])
    ))
}

/// Returns a sentence on the share of a lookup that is spent on the device, and so on the rest above it.
fn on_the_device(table: &Table) -> Option<String> {
    let names: Vec<&str> = SPEC.ways.iter().map(|way| way.name).collect();
    let shares = ranked(table, &names, metric::DEVICE_SHARE);
    let phrase =
        |(row, share): &(&Row, f64)| format!("{} % with `{}`", number((100.0 * share).round()), row.name);
    let shares = match shares.as_slice() {
        [] => return None,
        [only] => phrase(only),
        [least, .., most] => format!("{}, {}", phrase(most), phrase(least)),
    };
    Some(format!("{}: share of a lookup on the device: {shares}", setting_of(table)))
}

/// Fills the gates of `--check`, the project's goals for dependent reads: for depth 6 with 64 lookups in flight. On zram only
/// the processor limits.
fn check(tables: &mut [Table], processors: usize) {
    let has = |table: &Table, name: &str, value: f64| table.number(name) == Some(value);
    let same = |one: &Table, other: &Table| {
        ["depth", "in_flight", "node_bytes"].iter().all(|name| one.number(name) == other.number(name))
    };
    let all = tables.to_vec();
    let checked = tables.iter_mut().zip(&all);
    for (table, own) in
        checked.filter(|(_, own)| has(own, "depth", DEPTH as f64) && has(own, "in_flight", 64.0))
    {
        let (one, many) = (has(own, "threads", 1.0), has(own, "threads", 4.0 * processors as f64));
        let few = all.iter().find(|few| many && has(few, "threads", processors as f64) && same(few, own));
        let is_zram = own.text("device").starts_with("zram");
        let worst = |name: &str, others: &[&str], metric: &str| {
            let ratios = others.iter().filter_map(|other| ratio(own.row(name)?, own.row(other)?, metric));
            ratios.max_by(f64::total_cmp).filter(|_| one)
        };
        let task = worst("forebay-task", &[WALK], CPU).filter(|_| is_zram);
        let pread = worst(WALK, &["pread"], CPU).filter(|_| !is_zram);
        let blocking = worst(TOKIO, &["blocking-per-hop", "blocking-whole"], CPU);
        let per_hop = worst(TOKIO, &["blocking-per-hop"], RATE);
        let (least, most): (Bound, Bound) = (Gate::at_least, Gate::at_most);
        for row in table.rows.iter_mut().filter(|row| [WALK, TOKIO].contains(&&*row.name)) {
            // A lookup whose walk completes immediately has no wake.
            let wakes = row.metrics.get(metric::WAKES_PER_LOOKUP).filter(|_| one);
            let few = few.and_then(|few| ratio(row, few.row(&row.name)?, RATE));
            let of_walk = [
                ("lookups: this against io_uring", RATE, worst(WALK, &["io_uring"], RATE), least, 0.95),
                ("CPU: this against io_uring", CPU, worst(WALK, &["io_uring"], CPU), most, 1.05),
                ("wakes of a lookup", metric::WAKES_PER_LOOKUP, wakes, most, 1.01),
                ("CPU: forebay-task against this", CPU, task, least, 1.15),
                ("CPU: this against pread", CPU, pread, most, 0.5),
            ];
            let times = if is_zram { 2.0 } else { 1.3 };
            let of_tokio = [
                ("lookups: this against blocking-per-hop", RATE, per_hop, least, times),
                ("CPU: this against the better blocking row", CPU, blocking, most, 0.5),
            ];
            let threads = "lookups: 4 times as many threads as processors against as many";
            let limits: &[Limit<'_>] = if row.name == WALK { &of_walk } else { &of_tokio };
            hold(row, limits.iter().copied().chain([(threads, RATE, few, least, 0.95)]));
        }
    }
}

/// Returns the median of the ratios within a repeat. A slowdown of the whole machine affects both sides.
fn ratio(row: &Row, other: &Row, metric: &str) -> Option<f64> {
    let ratios = row.samples.iter().filter_map(|sample| {
        let same = other.samples.iter().find(|other| other.repeat == sample.repeat)?;
        Some(sample.metrics.get(metric)? / same.metrics.get(metric)?)
    });
    median(ratios.filter(|ratio| ratio.is_finite()).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::lanes::{test_context, test_job, test_options, test_row, test_table};
    use super::*;
    use crate::cleanup::Cleanup;

    pub(super) fn work() -> Work {
        let tree = Tree { node_bytes: 512, fan_out: 11, levels: 4, nodes: 100, seed: 3 };
        let (beside, device) = ("nothing".to_owned(), None);
        let (in_flight, threads, as_published) = (1, 1, false);
        let file_bytes = tree.file_bytes();
        Work { tree, file_bytes, read_bytes: 512, depth: 4, in_flight, threads, beside, as_published, device }
    }

    fn index_file(node_bytes: u64) -> (IndexFile, Work) {
        let context = test_context();
        let scratch = ScratchDir::find(&context, "walk").expect("a directory on a disk");
        let tree = Tree { node_bytes, ..work().tree };
        let file = IndexFile::make(&scratch, tree, &context).expect("space for 2 MiB");
        let read_bytes = node_bytes.max(file.unit_bytes) as usize;
        (file, Work { tree, read_bytes, ..work() })
    }

    fn sample(way: &Way, path: &std::path::Path, work: &Work) -> anyhow::Result<Outcome> {
        Walk.sample(&Job { seconds: 0.05, ..test_job("walk", way.name, path, json!(work), 9) })
    }

    fn rows() -> impl Iterator<Item = &'static Way> {
        SPEC.ways.iter().filter(|way| !way.always)
    }

    #[test]
    fn every_row_descends_and_counts() {
        for node_bytes in [512, 4096] {
            let (file, work) = index_file(node_bytes);
            for way in rows() {
                for (depth, in_flight, threads) in [(1, 1, 1), (4, 19, 3)] {
                    let work = Work { depth, in_flight, threads, ..work.clone() };
                    let outcome = sample(way, file.temp.path(), &work)
                        .unwrap_or_else(|error| panic!("{} {node_bytes}: {error:#}", way.name));
                    assert!(outcome.seconds >= 0.05, "{} {outcome:?}", way.name);
                    let has_tasks = !matches!(way.name, "pread" | "io_uring") && outcome.operations > 0;
                    let metrics = outcome.metrics();
                    assert_eq!(metrics.get(metric::WAKES_PER_LOOKUP).is_some(), has_tasks, "{}", way.name);
                    assert_eq!(metrics.get(metric::P50_US).is_some(), outcome.operations > 0, "{}", way.name);
                }
            }
        }
    }

    #[test]
    fn every_row_makes_and_removes_a_file_for_each_lookup_beside_timers() {
        let (_file, work) = index_file(512);
        let tree = Tree { nodes: 1, ..work.tree };
        let beside = "timers".to_owned();
        let work = Work { tree, in_flight: 3, threads: 2, beside, as_published: true, ..work };
        for way in rows().filter(|way| way.name != "io_uring") {
            let parent = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
            let directory = Cleanup::default().temp_directory(parent, "walk").expect("writable");
            let outcome = sample(way, directory.path(), &work)
                .unwrap_or_else(|error| panic!("{}: {error:#}", way.name));
            let metrics = outcome.metrics();
            assert_eq!(metrics.get(CPU), None, "{}: the timers' own is in it", way.name);
            assert!(metrics.get(metric::TIMERS_LATE[3]).is_some(), "{} {metrics:?}", way.name);
        }
    }

    /// A row that trusted its reads would look faster than it is.
    #[test]
    fn every_row_notices_wrong_nodes_and_wrong_values() {
        let (file, work) = index_file(512);
        let work = Work { in_flight: 3, ..work };
        for way in rows() {
            // The values of another tree, found in nodes that are whole.
            let other = Work { tree: Tree { seed: 4, ..work.tree }, ..work.clone() };
            let error = sample(way, file.temp.path(), &other).expect_err("values of another tree");
            assert!(format!("{error:#}").contains("gave 0x"), "{}: {error:#}", way.name);
        }
        let zeros = vec![0; work.tree.file_bytes() as usize];
        file.temp.file().write_all_at(&zeros, 0).expect("it may be written");
        file.temp.file().sync_all().expect("it can be flushed");
        for way in rows() {
            let error = sample(way, file.temp.path(), &work).expect_err("zeros");
            assert!(
                format!("{error:#}").contains("not the node that was written"),
                "{}: {error:#}",
                way.name
            );
        }
    }

    #[test]
    fn metrics_are_divided_by_the_lookups() {
        let (file, work) = index_file(512);
        let way = SPEC.way("forebay-task").expect("a row");
        let outcome =
            sample(way, file.temp.path(), &Work { in_flight: 2, ..work.clone() }).expect("it works");
        assert_eq!(outcome.bytes, outcome.operations * 4 * work.read_bytes as u64);
        let rate = outcome.metrics().get(RATE).expect("measured");
        assert!((rate * outcome.seconds - outcome.operations as f64).abs() < 1e-6);
        let base = SPEC.way(BASE).expect("a row");
        let timers = Work { beside: "timers".to_owned(), ..work };
        let metrics = sample(base, file.temp.path(), &timers).expect("no reads").metrics();
        assert!(metrics.get(metric::TIMERS_CPU_SHARE).is_some_and(|share| share > 0.0), "{metrics:?}");
        assert_eq!((metrics.get(RATE), metrics.get(metric::DEVICE_SHARE)), (None, None));
    }

    fn options(length: Length, words: &[&str]) -> Values {
        test_options(&SPEC, length, words)
    }

    #[test]
    fn all_depths_run_from_one_thread_and_the_sixth_from_more() {
        let of = |length, words: &[&str], processors| settings(&options(length, words), processors);
        let all = of(Length::Full, &[], 2);
        assert_eq!(all.len(), 11);
        assert_eq!(all[8..], [(6, 2, false), (6, 8, false), (6, 1, true)]);
        assert_eq!(of(Length::Full, &[], 1).len(), 10);
        assert_eq!(of(Length::Quick, &[], 2), [(6, 1, false)]);
        assert_eq!(of(Length::Report, &[], 2), [(6, 1, false), (6, 1, true)]);
        let words = ["--depth", "1,3", "--threads", "2,5", "--beside", "nothing"];
        let expected = [(1, 2, false), (3, 2, false), (1, 5, false), (3, 5, false)];
        assert_eq!(of(Length::Full, &words, 2), expected);
        assert!(of(Length::Quick, &["--beside", "timers"], 2).iter().all(|(.., timers)| *timers));
        let checked = of(Length::Full, &["--check"], 2);
        assert!(checked.iter().all(|(.., timers)| !timers), "it has no limits");
    }

    #[test]
    fn contradicting_options_are_refused() {
        for (words, part) in [
            (&["--node", "1024"][..], "512 or 4096"),
            (&["--fanout", "31"], "--fanout"),
            (&["--as-published", "--rows", "io_uring"], "registered once"),
            (&["--as-published", "--check"], "--check"),
            (&["--beside", "timers", "--check"], "--check"),
        ] {
            let options = options(Length::Full, words);
            let error = refuse(&options, &options.counts("node")).expect_err("refused");
            assert!(error.to_string().contains(part), "{words:?}: {error}");
        }
        let options = options(Length::Full, &["--node", "4KiB,512", "--fanout", "30", "--as-published"]);
        refuse(&options, &options.counts("node")).expect("all of it is possible");
    }

    fn row(name: &str, rates: &[f64], cpu_us: f64) -> Row {
        let factors: Vec<f64> = rates.iter().map(|rate| rate / rates[0]).collect();
        test_row(name, &factors, &[(RATE, rates[0]), (CPU, cpu_us), (metric::WAKES_PER_LOOKUP, 1.0)])
    }

    fn table(device: &str, depth: u64, threads: u32, rows: Vec<Row>) -> Table {
        let all = json!({
            "depth": depth, "in_flight": 64, "threads": threads, "node_bytes": 512, "device": device,
        });
        test_table("walk", all, rows)
    }

    #[test]
    fn the_deepest_lookups_from_one_thread_are_reported() {
        let around = |rate: f64| [rate, rate * 0.99, rate * 1.01];
        let rows = || {
            vec![
                row("io_uring", &around(10_000.0), 20.0),
                row(WALK, &around(9_900.0), 20.5),
                row(TOKIO, &around(9_000.0), 30.0),
                row("blocking-whole", &around(4_500.0), 90.0),
            ]
        };
        let all = [table("vda", 1, 1, rows()), table("vda", 6, 1, rows()), table("vda", 6, 8, rows())];
        let sentences = Walk.verdicts(&all.each_ref());
        assert_eq!(
            sentences,
            [
                "depth 6, 512 B: 9,900 lookups/s with `forebay-walk`, as many as `io_uring`, the same CPU",
                "depth 6, 512 B: 9,000 lookups/s with `forebay-walk-tokio`, 2 times more than `blocking-whole`, 3 times less CPU",
            ]
        );
        let longest = "published, depth 6, 512 B (measured once)".split(' ').count();
        assert!(sentences.iter().all(|sentence| sentence.split(' ').count() - 4 + longest <= 20));
    }

    #[test]
    fn the_share_on_the_device_is_reported_where_it_is_known() {
        let mut rows = vec![row(WALK, &[9_900.0], 21.0), row("pread", &[5_000.0], 60.0)];
        rows[0].metrics.set(metric::DEVICE_SHARE, 0.914);
        rows[1].metrics.set(metric::DEVICE_SHARE, 0.4);
        let text = on_the_device(&table("vda", 6, 1, rows)).expect("two of them have it");
        assert_eq!(
            text,
            "depth 6, 512 B: share of a lookup on the device: 91 % with `forebay-walk`, 40 % with `pread`"
        );
        assert_eq!(on_the_device(&table("vda", 6, 1, vec![row("pread", &[5_000.0], 60.0)])), None);
    }

    #[test]
    fn depths_belong_together_and_threads_do_not() {
        let [one, six, many] =
            [(1, 1), (6, 1), (6, 4)].map(|(depth, threads)| table("vda", depth, threads, vec![]));
        let heading = |table: &Table| Walk.title(table).1;
        assert!(heading(&one) == heading(&six) && heading(&six) != heading(&many));
        let title = "Lookups in nodes of 512 B, 64 in flight from 1 thread(s), 1 read(s) each";
        assert_eq!(Walk.title(&one).0, title);
        assert!(Walk.verdicts(&[&one]).is_empty());
    }

    fn passed(row: &Row) -> Vec<bool> {
        row.gates.iter().map(|gate| gate.passed).collect()
    }

    #[test]
    fn a_walk_is_held_against_the_limit_and_the_blocking_rows() {
        let rows = || {
            vec![
                row("pread", &[100.0, 50.0], 50.0),
                row("io_uring", &[100.0, 50.0], 10.0),
                row("forebay-task", &[90.0, 45.0], 11.4),
                // The second repeat is slow for all rows, through no fault of theirs.
                row(WALK, &[96.0, 48.0], 10.4),
                row(TOKIO, &[90.0, 45.0], 16.0),
                row("blocking-per-hop", &[60.0, 30.0], 60.0),
                row("blocking-whole", &[80.0, 40.0], 30.0),
            ]
        };
        let mut tables = [table("vda", 6, 1, rows()), table("zram3", 6, 1, rows())];
        check(&mut tables, 2);
        let [disk, zram] = &tables;
        assert_eq!(passed(&disk.rows[3]), [true, true, true, true], "{:?}", disk.rows[3].gates);
        assert_eq!(passed(&zram.rows[3]), [true, true, true, false], "{:?}", zram.rows[3].gates);
        assert_eq!(passed(&disk.rows[4]), [true, false], "{:?}", disk.rows[4].gates);
        assert_eq!(passed(&zram.rows[4]), [false, false], "{:?}", zram.rows[4].gates);
        assert!(disk.rows[5].gates.is_empty() && disk.rows[0].gates.is_empty());
    }

    #[test]
    fn many_threads_are_held_against_few() {
        let of = |threads, rate| table("vda", 6, threads, vec![row(WALK, &[rate], 9.0)]);
        let mut tables = [of(2, 100.0), of(8, 96.0), of(5, 1.0)];
        check(&mut tables, 2);
        let gates: Vec<Vec<bool>> = tables.iter().map(|found| passed(&found.rows[0])).collect();
        assert_eq!(gates, [vec![], vec![true], vec![]]);
    }

    #[test]
    fn other_depths_have_no_limits() {
        let rows = vec![row("io_uring", &[100.0], 1.0), row(WALK, &[1.0], 99.0)];
        let mut tables = [table("vda", 5, 1, rows)];
        check(&mut tables, 2);
        assert!(tables[0].rows.iter().all(|row| row.gates.is_empty()));
    }
}
