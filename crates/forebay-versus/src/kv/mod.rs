//! `kv`: gets, loads and durable puts of forebay-kv, compared with the disk itself and other stores.

mod drive;
mod forebay_store;
mod stores;

use std::collections::BTreeMap;

use forebay_measure::check_space;
use forebay_measure::cleanup::TempDirectory;
use forebay_report::result::columns::{Definition, MEMORY_PEAK_BYTES};
use forebay_report::units::bytes;

use crate::prelude::*;
use crate::run::RESIDENT_PEAK_BYTES;
use drive::ENTRY_BYTES;

/// Threads of a store whose calls block, where many gets are in flight.
const THREADS: usize = 32;
/// Gets and puts in flight where they are tasks, and writers of durable puts.
const IN_FLIGHT: usize = 64;
/// Gets in flight while writers run.
const BUSY_GETS: usize = 8;
const BUSY_WRITERS: usize = 2;
/// Entries of one write by these writers.
const BATCH: usize = 100;
/// Bytes of the value of a durable put.
const PUT_BYTES: usize = 256;
/// Smaller files are not checked for cached pages.
const EVICTED_BYTES_MIN: u64 = 1 << 20;
/// The number of keys that the targets were set with; fewer fit into memory, or nearly.
const KEYS_FULL: f64 = 4e6;
/// The name of an empty file in the folder of a store that was loaded.
const LOADED: &str = "loaded";

/// The workloads, each with its rows in addition to the other stores', and its description.
const WORKLOADS: &[(&str, &str, &str)] = &[
    ("load", "raw forebay", "a sorted load, once"),
    ("one", "raw raw-again forebay forebay-wait", "random gets, one at a time"),
    (
        "many",
        "raw raw-again forebay forebay-wait forebay-shard",
        "random gets, 64 tasks on at most 2 threads or 32 threads",
    ),
    (
        "small",
        "raw raw-again forebay",
        "random gets, 64 tasks on at most 2 threads or 32 threads, with little memory",
    ),
    (
        "tokio",
        "raw-ring raw-ring-again forebay-native forebay",
        "random gets from 64 tasks of Tokio beside a timer of 1 ms",
    ),
    ("busy", "forebay forebay-no-classes", "8 random gets at a time beside 2 writers of batches of 100 keys"),
    (
        "puts",
        "forebay forebay-shard forebay-other forebay-tokio forebay-threads forebay-log",
        "durable puts, 64 writers x 256 B, into an empty store",
    ),
    (
        "random",
        "forebay",
        "a load in random order by durable batches of 100 x 200 B, until compaction rests; gets, scans",
    ),
    (
        "large",
        "forebay forebay-together rocksdb-blobs",
        "each key three times in random order by durable batches of 4 x 48,000 B, until compaction rests; gets, scans",
    ),
];
/// Keys of the workload `large`.
const LARGE_KEYS: &str = "large-keys";
/// Keys of the workload `random`, which has a separate store.
const RANDOM_KEYS: &str = "random-keys";
/// The other stores.
const OTHERS: &[&str] = &["redb", "fjall", "heed", "rocksdb"];

const RAW: &[&str] = &["raw"];
const NATIVE: &[&str] = &["forebay-native"];

// Rates are judged as ratios to the disk's in the same repeat, as they were when the targets were set: figures move with the
// machine.
experiment! {
    KV "kv", "Gets, loads and durable puts of a key-value store, beside the disk and other stores",
        compared by "ratio_to_raw", per |work| match &*work.workload { "load" | "random" | "large" => "key", "puts" => "put", _ => "get" };
    options {
        word("workloads", "What to measure", &["load", "one", "many", "small", "tokio", "busy", "puts", "random", "large"])
            .list().or("load,one,many,small,tokio,busy,puts,random,large");
        count("keys", "Keys that are loaded, each with 1,000 bytes; 10,000 at least", 1 << 32).or("4000000");
        count(RANDOM_KEYS, "Keys of the workload `random`, each with 200 bytes; 10,000 at least", 1 << 32).or("1500000");
        count(LARGE_KEYS, "Keys of the workload `large`, each with 48,000 bytes; 1,000 at least", 1 << 32).or("8000");
        count("repeats", "Interleaved repeats; the targets want five or more. A load is done once", 1000).or("5");
        seconds("2", "2");
        time("busy-seconds", "Seconds of gets beside writers, and as many of the same gets at rest before", 0.01, 86_400.0)
            .or("5");
        time("warm-up-seconds",
            "Seconds before that do not count: caches fill, and memory is touched for the first time", 0.0, 86_400.0)
            .or("3");
        count("memory-mib", "Memory of each row, page cache included, in MiB (root); 64 at least", 1 << 40).or("1024");
        count("small-memory-mib", "The same for the workload `small`; 32 at least", 1 << 40).or("40");
        count("disk-gb",
            "The most space on the disk, in GB; rows whose data do not fit at once run in groups, each beside `raw`",
            1 << 40).or("20");
    }
    rows {
        direct "raw", "direct reads of 4 KiB of a file as large as the data; of a load: direct writes of 1 MiB"
            => stores::raw, twin direct;
        direct "raw-ring", "such reads from tasks of Tokio, through a ring of each worker" => stores::raw, twin direct;
        direct "forebay", "forebay-kv with two shards; gets and puts are tasks on them, or of Tokio" => forebay_store::sample;
        direct "forebay-wait", "threads that wait for each get" => forebay_store::sample;
        direct "forebay-shard", "all gets, or puts, on the shard that owns the log" => forebay_store::sample;
        direct "forebay-other", "all puts on the other shard" => forebay_store::sample;
        direct "forebay-tokio", "puts of tasks of Tokio" => forebay_store::sample;
        direct "forebay-log", "no store: as many appends of that size to a log" => forebay_store::sample;
        direct "forebay-native", "the gets of `tokio` as tasks on shards" => forebay_store::sample;
        direct "forebay-threads", "threads that wait for each put" => forebay_store::sample;
        direct "forebay-together", "long values rewritten with their keys" => forebay_store::sample;
        direct "forebay-no-classes", "the log and compaction in the class of the gets" => forebay_store::sample;
        cached "redb", "redb 4.4, half of the memory as its cache"
            => |work| drive::sample(work, stores::Redb::open);
        cached "fjall", "fjall 3.1, half of the memory as its cache, no compression"
            => |work| drive::sample(work, stores::Fjall::open);
        cached "heed", "LMDB by heed 0.22, no read-ahead" => |work| drive::sample(work, stores::Lmdb::open);
        direct "rocksdb", "RocksDB 10.4 by rocksdb 0.24, direct I/O, three quarters of the memory as its cache, no compression"
            => stores::rocksdb;
        direct "rocksdb-blobs", "the same with values from 32 KiB on in blob files, which it collects" => stores::rocksdb;
    }
    columns {
        "gets_per_s" "gets/s", "gets that completed in a second";
        "keys_per_s" "keys/s", "keys that were loaded in a second";
        "puts_per_s" "puts/s", "puts that became durable in a second";
        "ratio_to_raw" "to raw", "the rate against the disk's in the same repeat";
        "ratio_to_native" "to native", "the rate against that of `forebay-native`";
        P50_US;
        P99_US;
        "idle_p99_us" "idle p99", "99 of 100 gets took no longer at rest";
        "p99_to_idle" "to idle", "the p99 beside writers against that at rest";
        "idle_gets_per_s" "idle gets/s", "gets in a second at rest";
        "timer_late_p99_us" "timer us", "how late a timer of a millisecond was, 99th percentile";
        "timer_idle_late_p99_us" "timer idle", "the same before the gets began";
        "cpu_us_per_get" "CPU us", "processor microseconds for one get";
        "cpu_us_per_key" "CPU us", "processor microseconds for one key";
        "cpu_us_per_put" "CPU us", "processor microseconds for one put";
        "device_reads_per_get" "dev reads", "reads of the device for one get";
        "device_writes_per_put" "dev writes", "writes and flushes of the device for one put";
        "context_switches_per_get" "switches", "context switches for one get";
        "write_amplification" "written", "bytes that the device wrote for each byte loaded";
        "space" "space", "bytes of the files for each byte loaded";
        "batch_p99_us" "batch p99", "99 of 100 durable batches took no longer";
        "batch_max_us" "batch max", "the longest durable batch";
        "settle_s" "settle s", "seconds after the load until the store had nothing left to do";
        "gets_after_per_s" "gets/s after", "gets in a second of 32 threads after the load";
        "gets_after_p99_us" "p99 after", "99 of 100 of these gets took no longer";
        "scans_per_s" "scans/s", "scans of 100 entries in a second, one at a time";
        "scan_keys_per_s" "scan keys/s", "keys in a second of a scan of all";
        COMPACTED_BYTES;
        RESIDENT_PEAK_BYTES;
        MEMORY_PEAK_BYTES;
    }
    ranked by "ratio_to_raw"
    ratios {
        "ratio_to_raw" "gets_per_s" Over RAW;
        "ratio_to_raw" "keys_per_s" Over RAW;
        "ratio_to_native" "gets_per_s" Over NATIVE;
    }
    spreads {
        "raw-again" "gets_per_s" "a_a_spread";
        "raw-ring-again" "gets_per_s" "a_a_spread";
    }
    limits {
        // 500 thousand keys a second where LMDB loaded 774.
        "forebay" "keys_per_s" over &["heed"], at_least 500.0 / 774.0, when |table| is(table, "load");
        "forebay" "keys_per_s" at_least 500_000.0, when |table| is(table, "load");
        "forebay" "write_amplification" at_most 1.05, when |table| is(table, "load");
        "forebay" "space" at_most 1.05, when |table| is(table, "load");
        // 17.5 thousand gets a second where the disk's rate was 18.7.
        "forebay" "gets_per_s" over RAW, at_least 17.5 / 18.7, within "raw-again", when |table| is(table, "one");
        // 75 thousand where the disk's rate with 32 threads was 73.6.
        "forebay" "gets_per_s" over RAW, at_least 75.0 / 73.6, within "raw-again", when |table| is(table, "many");
        "forebay" "cpu_us_per_get" at_most 10.0, when |table| is(table, "many");
        "forebay" "p99_us" at_most 1000.0, when |table| is(table, "many");
        // 55 thousand with little memory, where the disk's rate was 73.6 and the best other store's 39; the store through the
        // disk's rate, because it may have run in another group.
        "forebay" "gets_per_s" over RAW, at_least 55.0 / 73.6, within "raw-again", when |table| is(table, "small");
        "forebay" "ratio_to_raw" over OTHERS, at_least 55.0 / 39.0, within "raw-again",
            when |table| is(table, "small");
        "forebay" "device_reads_per_get" at_most 1.35, when |table| is(table, "small");
        "forebay" "gets_per_s" over NATIVE, at_least 0.95, within "raw-ring-again", when |table| is(table, "tokio");
        "forebay" "gets_per_s" over &["raw-ring"], at_least 0.95, within "raw-ring-again",
            when |table| is(table, "tokio");
        // Tokio's timer has a grain of a millisecond itself, so the figure is how much later than at rest it is.
        "forebay" "timer_later_p99_us" at_most 1000.0, when |table| is(table, "tokio");
        "forebay" "p99_to_idle" at_most 3.0, when |table| is(table, "busy");
        // 120 thousand puts a second where RocksDB had 45.
        "forebay" "puts_per_s" over &["rocksdb"], at_least 120.0 / 45.0, when |table| is(table, "puts");
        "forebay" "puts_per_s" at_least 120_000.0, when |table| is(table, "puts");
        "forebay" "p99_us" at_most 1500.0, when |table| is(table, "puts");
        "forebay" "write_amplification" over &["rocksdb"], at_most 1.2, when |table| is(table, "random");
        "forebay" "space" over &["rocksdb"], at_most 1.2, when |table| is(table, "random");
        "forebay" "scans_per_s" over &["rocksdb"], at_least 2.0, when |table| is(table, "random");
        "forebay" "scan_keys_per_s" at_least 1_500_000.0, when |table| is(table, "random");
        "forebay" "batch_max_us" at_most 30_000.0, when |table| is(table, "random");
        "forebay" "write_amplification" over &["rocksdb", "rocksdb-blobs"], at_most 1.2, when |table| is(table, "large");
        "forebay" "space" over &["rocksdb"], at_most 1.2, when |table| is(table, "large");
        "forebay" "puts_per_s" over &["forebay-log"], at_least 0.9, when |table| is(table, "puts");
        "forebay-shard" "puts_per_s" over &["forebay-log"], at_least 0.9, when |table| is(table, "puts");
        "forebay-other" "puts_per_s" over &["forebay-log"], at_least 0.9, when |table| is(table, "puts");
        "forebay-tokio" "puts_per_s" over &["forebay-log"], at_least 0.9, when |table| is(table, "puts");
    }
}

const COMPACTED_BYTES: Definition =
    column("compacted_bytes", "compacted MiB", 1_048_576.0, "bytes that compaction wrote");

/// Returns whether a table is of a workload; a load that was not asked for has no targets.
fn is(table: &Table, workload: &str) -> bool {
    table.text("workload") == workload && !table.parameters.contains_key("only_prepares")
}

fn title(table: &Table) -> String {
    let (workload, keys) = (table.text("workload"), table.number("keys").unwrap_or(0.0));
    let what = WORKLOADS.iter().find(|(name, ..)| *name == workload).map_or("", |(.., what)| what);
    let memory = bytes(table.number("memory_bytes").unwrap_or(0.0) as u64);
    let mut title = format!("kv {workload}: {what}; {memory} of memory");
    if workload == "random" {
        title.push_str(&format!("; {:.1} M keys", keys / 1e6));
    } else if workload == "large" {
        title.push_str(&format!("; {keys} keys"));
    } else if workload != "puts" {
        title.push_str(&format!("; {:.1} M keys x 1000 B", keys / 1e6));
        title.push_str(if keys < KEYS_FULL { " (FEWER KEYS than the 4 M of the targets)" } else { "" });
    }
    title
}

fn plan<'c>(options: &Values, context: &'c Context) -> Result<Run<'c>> {
    let method = "Each sample is a process of its own; rows take turns within a repeat. None of its data is in the page cache \
        when a sample begins, and its time begins after a warm-up. Every get checks both ends of the value. Stores whose \
        data do not fit on the disk at once are measured in groups, each beside the disk itself. Ratios are those of the \
        same repeat, and figures medians.";
    let (mut run, scratch) = Run::in_directory(context, KV.spec.name, true, method)?;
    let (keys, mib) = (options.count("keys"), |name| options.count(name) << 20);
    ensure!(
        keys >= 10_000 && options.count(RANDOM_KEYS) >= 10_000 && options.count(LARGE_KEYS) >= 1000,
        "--keys and --random-keys are at least 10,000, --large-keys 1,000"
    );
    ensure!(
        options.count("memory-mib") >= 64 && options.count("small-memory-mib") >= 32,
        "--memory-mib is at least 64, --small-memory-mib 32"
    );
    let mut rows: Vec<String> = KV.spec.ways.iter().map(|way| way.name.to_owned()).collect();
    rows.retain(|row| options.rows.is_empty() || options.rows.contains(row));
    if !cfg!(feature = "rocksdb") && rows.iter().any(|row| row.starts_with("rocksdb")) {
        context.progress.print_line("built without the feature rocksdb: its rows are left out");
        rows.retain(|row| !row.starts_with("rocksdb"));
    }
    let groups = groups(options.count("disk-gb"), keys, &rows)?;
    let room = groups.iter().map(|group| bytes_of(group, keys)).max().unwrap_or(0);
    check_space(&scratch.directory, room, "name another directory with --dir, or give fewer --keys")?;
    let is_limited = run.limit_memory(mib("small-memory-mib").min(mib("memory-mib")));
    let workloads = options.words("workloads");
    for group in 1..=groups.len() {
        for (workload, ..) in WORKLOADS {
            let is_wanted = workloads.contains(workload);
            // Some start with an empty store, the others need the loaded store.
            let is_needed = *workload == "load" && workloads.iter().any(|workload| !is_alone(workload));
            if !is_wanted && !is_needed {
                continue;
            }
            let memory_bytes = mib(if *workload == "small" { "small-memory-mib" } else { "memory-mib" });
            let mut setting = json!({
                "workload": workload, "keys": keys, "memory_bytes": memory_bytes,
                "memory_limit_bytes": is_limited.then_some(memory_bytes),
                "warm_up_seconds": options.number("warm-up-seconds"), "tokio_workers": cores(),
                "group": group, "groups": groups.len(),
            });
            if *workload == "random" {
                setting["keys"] = json!(options.count(RANDOM_KEYS));
            }
            if *workload == "large" {
                setting["keys"] = json!(options.count(LARGE_KEYS));
            }
            if *workload == "load" {
                setting["repeats"] = Value::from(1);
            }
            if *workload == "busy" {
                setting["seconds"] = json!(options.number("busy-seconds"));
            }
            if !is_wanted {
                setting["only_prepares"] = Value::from(true);
            }
            run.table(setting);
        }
    }
    let members = groups.clone();
    run.has = Box::new(move |setting, row| {
        let group = setting.get("group").and_then(Value::as_u64).unwrap_or(1) as usize;
        rows.iter().any(|wanted| wanted == row || is_load_of(setting, row, wanted))
            && has_row(setting, row)
            && members[group - 1].contains(&store_of(row))
    });
    let mut stores: BTreeMap<String, TempDirectory> = BTreeMap::new();
    let mut group = 0;
    run.prepare = Box::new(move |turn, job| {
        if std::mem::replace(&mut group, turn.count("group")) != turn.count("group") {
            // The stores of the previous group are removed for space.
            stores.clear();
        }
        let (store, workload) = (store_of(turn.way.name), turn.text("workload"));
        if is_alone(workload) {
            let directory = scratch.temp_directory(context, workload)?;
            job.path = directory.path().to_owned();
            return Ok(Some(Box::new(directory)));
        }
        if workload == "load" {
            stores.insert(store.to_owned(), scratch.temp_directory(context, store)?);
        }
        let directory = stores.get(store).context("its data were not loaded")?;
        job.path = directory.path().to_owned();
        ensure!(workload == "load" || job.path.join(LOADED).exists(), "its data were not loaded");
        // No row's memory would be charged for pages that an earlier process left in the page cache.
        for (path, metadata) in drive::files_below(&job.path)? {
            if metadata.len() >= EVICTED_BYTES_MIN {
                files::evict(&path, false)?;
            }
        }
        Ok(None)
    });
    Ok(run)
}

/// Measures a row with values of `record_bytes`, at least 16: a load in random order, gets, and scans of ten.
pub(crate) fn sweep(work: &Work) -> Result<Outcome> {
    let work = &Work { workload: "sweep".to_owned(), ..work.clone() };
    match &*work.row {
        "fjall" => drive::sample(work, stores::Fjall::open),
        "rocksdb" => stores::rocksdb(work),
        _ => forebay_store::sample(work),
    }
}

/// Returns whether each sample of a workload starts with an empty store.
fn is_alone(workload: &str) -> bool {
    matches!(workload, "puts" | "random" | "large")
}

fn has_row(setting: &Parameters, row: &str) -> bool {
    let workload = setting.get("workload").and_then(Value::as_str);
    let rows = WORKLOADS.iter().find(|(name, ..)| Some(*name) == workload).map_or("", |(_, rows, _)| rows);
    OTHERS.contains(&row) || rows.split(' ').any(|own| own == row)
}

/// Returns whether a row of the load prepares the data of another row that is wanted.
fn is_load_of(setting: &Parameters, row: &str, wanted: &str) -> bool {
    setting.get("workload") == Some(&Value::from("load")) && store_of(wanted) == row
}

/// Stores with separate data, and their maximum disk space in percent of the bytes of keys and values: after a load, plus the
/// temporary growth by overwriting.
const STORES: &[(&str, u64)] =
    &[("raw", 101), ("forebay", 120), ("heed", 150), ("redb", 160), ("fjall", 120), ("rocksdb", 120)];

/// Space for the stores of `puts`, which are removed after each sample, and for small files.
const ROOM_BYTES: u64 = 2_000_000_000;

/// Returns the stores of these rows by groups whose data fit on the disk together; the disk itself is part of each.
fn groups(disk_gb: u64, keys: u64, rows: &[String]) -> Result<Vec<Vec<&'static str>>> {
    let wanted: Vec<&str> = STORES.iter().map(|(store, _)| *store).collect();
    let wanted = wanted.into_iter().filter(|store| rows.iter().any(|row| store_of(row) == *store));
    let (raw, stores): (Vec<_>, Vec<_>) = wanted.partition(|store| *store == "raw");
    let mut groups = vec![raw.clone()];
    for store in stores {
        let fits =
            |group: &[&'static str]| bytes_of(&[group, &[store]].concat(), keys) <= disk_gb * 1_000_000_000;
        let last = groups.len() - 1;
        if fits(&groups[last]) {
            groups[last].push(store);
            continue;
        }
        ensure!(
            fits(&raw),
            "--disk-gb is too little for {store}: it needs {}",
            bytes_of(&[&raw[..], &[store]].concat(), keys) / 1_000_000_000 + 1
        );
        if groups[last].len() == raw.len() {
            groups.pop();
        }
        groups.push([&raw[..], &[store]].concat());
    }
    Ok(groups)
}

fn bytes_of(stores: &[&str], keys: u64) -> u64 {
    let percent: u64 =
        STORES.iter().filter(|(store, _)| stores.contains(store)).map(|(_, percent)| percent).sum();
    keys * ENTRY_BYTES / 100 * percent + ROOM_BYTES
}

/// Returns the store whose data a row works on.
fn store_of(row: &str) -> &str {
    row.split('-').next().unwrap_or(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_whose_data_do_not_fit_at_once_run_in_groups_and_each_has_the_disk() {
        let rows: Vec<String> = KV.spec.ways.iter().map(|way| way.name.to_owned()).collect();
        let all = groups(20, 400_000, &rows).unwrap();
        assert_eq!(all, [["raw", "forebay", "heed", "redb", "fjall", "rocksdb"]]);
        let groups = |disk_gb| super::groups(disk_gb, 4_000_000, &rows);
        let some = groups(16).unwrap();
        assert!(some.len() > 1 && some.iter().all(|group| group[0] == "raw" && group.len() > 1));
        assert!(some.iter().all(|group| bytes_of(group, 4_000_000) <= 16_000_000_000));
        let stores: Vec<_> = some.iter().flat_map(|group| &group[1..]).copied().collect();
        assert_eq!(stores, ["forebay", "heed", "redb", "fjall", "rocksdb"]);
        groups(5).unwrap_err();
    }
}
