//! Queries with both stores in turn, cold and warm.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::SessionContext;
use forebay::{Config, Engine};
use forebay_object_store::ForebayStore;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use rustix::fs::{Advice, fadvise};
use rustix::time::{ClockId, clock_gettime};

use crate::{Result, clickbench, session, table_names};

/// What each query over the tables of TPC-H does, and its text. Each orders its result, or has one row.
const TPC_H: [(&str, &str); 12] = [
    (
        "sums by flag and status",
        "select l_returnflag, l_linestatus, count(*), sum(l_quantity), sum(l_extendedprice), avg(l_discount) \
         from lineitem group by 1, 2 order by 1, 2",
    ),
    (
        "revenue of one month",
        "select sum(l_extendedprice * l_discount) from lineitem \
         where l_shipdate >= date '1995-03-01' and l_shipdate < date '1995-04-01' and l_discount > 0.04 and l_quantity < 25",
    ),
    ("lines of one order", "select * from lineitem where l_orderkey = 7654324 order by l_linenumber"),
    ("orders of one customer", "select * from orders where o_custkey = 4321 order by o_orderkey"),
    (
        "the dearest orders",
        "select o_orderkey, o_custkey, o_totalprice, o_comment from orders order by o_totalprice desc, o_orderkey limit 20",
    ),
    (
        "a word in comments",
        "select l_shipmode, count(*) from lineitem where l_comment like '%express%' group by 1 order by 1",
    ),
    (
        "ranges of all numbers",
        "select min(l_orderkey), max(l_partkey), max(l_suppkey), max(l_linenumber), sum(l_quantity), sum(l_extendedprice), \
         sum(l_discount), sum(l_tax), min(l_shipdate), min(l_commitdate), max(l_receiptdate) from lineitem",
    ),
    (
        "all columns, few rows",
        "select * from lineitem where l_partkey between 1000 and 1010 order by l_orderkey, l_linenumber",
    ),
    (
        "revenue by nation",
        "select n_name, sum(l_extendedprice * (1 - l_discount)) from nation \
         join customer on c_nationkey = n_nationkey join orders on o_custkey = c_custkey join lineitem on l_orderkey = o_orderkey \
         where o_orderdate >= date '1994-01-01' and o_orderdate < date '1994-04-01' group by 1 order by 1",
    ),
    (
        "late lines by priority",
        "select o_orderpriority, count(*) from orders join lineitem on l_orderkey = o_orderkey \
         where l_receiptdate > l_commitdate and l_shipmode = 'AIR' group by 1 order by 1",
    ),
    (
        "stock by brand",
        "select p_brand, sum(ps_availqty), min(ps_supplycost) from partsupp join part on p_partkey = ps_partkey \
         group by 1 order by 1",
    ),
    (
        "suppliers of large parts",
        "select s_name, count(*) from supplier join partsupp on ps_suppkey = s_suppkey join part on p_partkey = ps_partkey \
         where p_size = 50 and p_type like '%BRASS' group by 1 order by 2 desc, 1 limit 20",
    ),
];

const STORES: [&str; 2] = ["LocalFileSystem", "Forebay"];

#[derive(Args)]
pub(crate) struct Options {
    /// Directory that `make` or `make-hits` wrote
    dir: PathBuf,
    /// Runs of each query with each store, cold and warm
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// SVG file to write with the ratio of each query
    #[arg(long)]
    chart: Option<PathBuf>,
}

struct Query {
    name: String,
    text: String,
    /// Whether each run has the same result, and not only as many rows.
    has_one_result: bool,
}

/// Returns the queries for the tables in a directory. The first one is none: the making of a session, which reads the footer of
/// each file.
fn queries(dir: &Path) -> Vec<Query> {
    let query = |name: &str, text: &str, has_one_result| Query {
        name: name.to_string(),
        text: text.to_string(),
        has_one_result,
    };
    let mut queries = vec![query("open: schemas, statistics", "", true)];
    if dir.join("hits").is_dir() {
        let hits = clickbench::queries();
        queries.extend(hits.iter().enumerate().map(|(number, text)| query(&number.to_string(), text, false)));
    } else {
        queries.extend(TPC_H.map(|(name, text)| query(name, text, true)));
    }
    queries
}

/// The state of the page cache in which a query begins.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Cold,
    Warm,
}

const STATES: [(State, &str); 2] = [(State::Cold, "cold"), (State::Warm, "warm")];

/// One run of a query.
struct Sample {
    elapsed: Duration,
    processor: Duration,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let engine = Engine::start(Config::new())?;
    let stores: [Arc<dyn ObjectStore>; 2] =
        [Arc::new(LocalFileSystem::new()), Arc::new(ForebayStore::builder(&engine, "/").open().await?)];
    let files = files(&options.dir)?;
    let bytes = files.iter().map(|file| Ok(file.metadata()?.len())).sum::<Result<u64>>()?;
    println!(
        "{} files of {:.2} GB; {} runs each; medians in ms, processor ms in parentheses; ratio: the median of those of each pair",
        files.len(),
        bytes as f64 / 1e9,
        options.repeats
    );
    let queries = queries(&options.dir);
    let mut rows = String::new();
    let (mut sums, mut ratios) = ([[0.0; 2]; 2], [Vec::new(), Vec::new()]);
    for (state_number, (state, name)) in STATES.into_iter().enumerate() {
        if state == State::Warm {
            for file in &files {
                io::copy(&mut &*file, &mut io::sink())?;
            }
        }
        println!("\n{:<26} {:>18} {:>18} {:>8} {:>8}", name, STORES[0], STORES[1], "ratio", "A-A");
        for query in &queries {
            let mut samples = [Vec::new(), Vec::new()];
            for repeat in 0..options.repeats {
                let mut results = [const { String::new() }; 2];
                for turn in 0..2 {
                    // Which store is first alternates.
                    let which = (repeat + turn) % 2;
                    let (sample, result) = one(&stores[which], &options.dir, &files, query, state).await?;
                    samples[which].push(sample);
                    results[which] = result;
                }
                if results[0] != results[1] {
                    let what = &query.name;
                    return Err(format!("{what}: results differ:\n{}\n{}", results[0], results[1]).into());
                }
            }
            let medians = samples.each_ref().map(|samples| median(samples.iter().map(milliseconds)));
            let processor = samples
                .each_ref()
                .map(|samples| median(samples.iter().map(|sample| sample.processor.as_secs_f64() * 1e3)));
            let pairs = samples[1].iter().zip(&samples[0]);
            let ratio = median(pairs.map(|(ours, theirs)| milliseconds(ours) / milliseconds(theirs)));
            // Of the runs with the same store, beside which a ratio means something.
            let own = samples[0].iter().map(milliseconds);
            let spread = own.clone().fold(0.0, f64::max) / own.fold(f64::INFINITY, f64::min);
            sums[state_number].iter_mut().zip(medians).for_each(|(sum, median)| *sum += median);
            ratios[state_number].push(ratio);
            let cell = |which: usize| format!("{:.0} ({:.0})", medians[which], processor[which]);
            println!("{:<26} {:>18} {:>18} {ratio:>8.2} {spread:>8.2}", query.name, cell(0), cell(1));
            let row = format!("datafusion\t{}, {name}", query.name);
            for (store, ms) in STORES.iter().zip(medians) {
                writeln!(rows, "{row}\t{ms:.0}\tms, {store}\t")?;
            }
            writeln!(rows, "{row}\t{ratio:.2}\tratio\t")?;
        }
        let [theirs, ours] = sums[state_number];
        println!("{:<26} {theirs:>18.0} {ours:>18.0} {:>8.2}", "sum", ours / theirs);
    }
    let [cold, warm] = sums;
    let above = |which: usize| cold[which] - warm[which];
    println!(
        "\n{:<26} {:>18.0} {:>18.0} {:>8.2}",
        "cold above warm",
        above(0),
        above(1),
        above(1) / above(0)
    );
    // `scripts/bench --record` collects them.
    if let Some(path) = std::env::var_os("FOREBAY_BENCH_ROWS") {
        File::options().append(true).create(true).open(path)?.write_all(rows.as_bytes())?;
    }
    if let Some(path) = &options.chart {
        fs::write(path, chart(&queries, &ratios)?)?;
    }
    Ok(())
}

/// Returns an SVG image with a point for each query, cold and warm, at the ratio of its times.
fn chart(queries: &[Query], ratios: &[Vec<f64>; 2]) -> Result<String> {
    const STEP: usize = 18;
    const UNIT: f64 = 160.0;
    let (width, height, line) = (STEP * queries.len() + 60, 300.0, 40.0 + 0.5 * UNIT);
    let y = |ratio: f64| line + UNIT * (1.0 - ratio.min(1.5));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-size=\"10\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"40\" y=\"20\">{} / {}: cold blue, warm red</text>\n",
        STORES[1], STORES[0]
    );
    for ratio in [0.0, 0.5, 1.0, 1.5] {
        let y = y(ratio);
        let end = width - 20;
        writeln!(svg, "<line x1=\"40\" x2=\"{end}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#bbb\"/>")?;
        writeln!(svg, "<text x=\"10\" y=\"{y}\">{ratio:.1}</text>")?;
    }
    for (number, query) in queries.iter().enumerate() {
        let x = 50 + STEP * number;
        for (ratios, color) in ratios.iter().zip(["#1f6fb4", "#c23b22"]) {
            writeln!(svg, "<circle cx=\"{x}\" cy=\"{:.1}\" r=\"3\" fill=\"{color}\"/>", y(ratios[number]))?;
        }
        let label: String = query.name.chars().take(4).collect();
        let bottom = y(0.0) + 14.0;
        writeln!(svg, "<text x=\"{x}\" y=\"{bottom}\" text-anchor=\"middle\">{label}</text>")?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// Runs one query in a session of its own, or makes one.
async fn one(
    store: &Arc<dyn ObjectStore>,
    dir: &Path,
    files: &[File],
    query: &Query,
    state: State,
) -> Result<(Sample, String)> {
    if query.text.is_empty() {
        return timed(files, state, async || session(store.clone(), dir).await.map(|_| String::new())).await;
    }
    let session: SessionContext = session(store.clone(), dir).await?;
    timed(files, state, async || {
        let batches = session.sql(&query.text).await?.collect().await?;
        if query.has_one_result {
            return Ok(pretty_format_batches(&batches)?.to_string());
        }
        Ok(format!("{} rows", batches.iter().map(|batch| batch.num_rows()).sum::<usize>()))
    })
    .await
}

async fn timed(
    files: &[File],
    state: State,
    work: impl AsyncFnOnce() -> Result<String>,
) -> Result<(Sample, String)> {
    if state == State::Cold {
        for file in files {
            fadvise(file, 0, None, Advice::DontNeed)?;
        }
    }
    let (began, began_processor) = (Instant::now(), processor());
    let result = work().await?;
    Ok((Sample { elapsed: began.elapsed(), processor: processor() - began_processor }, result))
}

/// Returns the processor time of this process.
fn processor() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Opens all files of the tables.
fn files(dir: &Path) -> Result<Vec<File>> {
    let mut files = Vec::new();
    for table in table_names(dir)? {
        for entry in dir.join(table).read_dir()? {
            files.push(File::open(entry?.path())?);
        }
    }
    Ok(files)
}

fn milliseconds(sample: &Sample) -> f64 {
    sample.elapsed.as_secs_f64() * 1e3
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
