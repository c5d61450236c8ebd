//! Queries with both stores in turn, cold and warm.

use std::fs::File;
use std::io;
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

use crate::{Result, session, tables};

/// What each query does, and its text. Each orders its result, or has one row.
const QUERIES: [(&str, &str); 12] = [
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
    /// Directory that `make` wrote
    dir: PathBuf,
    /// Runs of each query with each store, cold and warm
    #[arg(long, default_value_t = 5)]
    repeats: usize,
}

/// The state of the page cache in which a query begins.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Cold,
    Warm,
}

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
    for (state, name) in [(State::Cold, "cold"), (State::Warm, "warm")] {
        if state == State::Warm {
            for file in &files {
                io::copy(&mut &*file, &mut io::sink())?;
            }
        }
        println!("\n{:<26} {:>18} {:>18} {:>8}", name, STORES[0], STORES[1], "ratio");
        let mut sums = [0.0; 2];
        for number in 0..=QUERIES.len() {
            let mut samples = [Vec::new(), Vec::new()];
            for repeat in 0..options.repeats {
                let mut results = [const { String::new() }; 2];
                for turn in 0..2 {
                    // Which store is first alternates.
                    let which = (repeat + turn) % 2;
                    let (sample, result) = one(&stores[which], &options.dir, &files, number, state).await?;
                    samples[which].push(sample);
                    results[which] = result;
                }
                if results[0] != results[1] {
                    let what = query_name(number);
                    return Err(format!("{what}: results differ:\n{}\n{}", results[0], results[1]).into());
                }
            }
            let medians = samples.each_ref().map(|samples| median(samples.iter().map(milliseconds)));
            let processor = samples
                .each_ref()
                .map(|samples| median(samples.iter().map(|sample| sample.processor.as_secs_f64() * 1e3)));
            let ratios = samples[1].iter().zip(&samples[0]);
            let ratio = median(ratios.map(|(ours, theirs)| milliseconds(ours) / milliseconds(theirs)));
            sums.iter_mut().zip(medians).for_each(|(sum, median)| *sum += median);
            let cell = |which: usize| format!("{:.0} ({:.0})", medians[which], processor[which]);
            println!("{:<26} {:>18} {:>18} {ratio:>8.2}", query_name(number), cell(0), cell(1));
        }
        println!("{:<26} {:>18.0} {:>18.0} {:>8.2}", "sum", sums[0], sums[1], sums[1] / sums[0]);
    }
    Ok(())
}

fn query_name(number: usize) -> &'static str {
    if number == 0 { "open: schemas, statistics" } else { QUERIES[number - 1].0 }
}

/// Runs one query in a session of its own; number 0 is the making of a session, which reads the footer of each file.
async fn one(
    store: &Arc<dyn ObjectStore>,
    dir: &Path,
    files: &[File],
    number: usize,
    state: State,
) -> Result<(Sample, String)> {
    if number == 0 {
        return timed(files, state, async || session(store.clone(), dir).await.map(|_| String::new())).await;
    }
    let session: SessionContext = session(store.clone(), dir).await?;
    timed(files, state, async || {
        let batches = session.sql(QUERIES[number - 1].1).await?.collect().await?;
        Ok(pretty_format_batches(&batches)?.to_string())
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
    for table in tables::NAMES {
        for entry in
            dir.join(table).read_dir().map_err(|error| format!("{}: {error}", dir.join(table).display()))?
        {
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
