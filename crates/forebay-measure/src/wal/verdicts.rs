//! Titles and sentences of `measure wal` and `measure blocking`, and the limits of `--check`: the project's goals for a log with
//! busy processors.

use super::BASE;
use crate::experiment::{once, shown};
use crate::sentences::{Limit, compared, hold, is_published, measured, ranked};
use crate::timers;
use forebay_report::page::noise::NOTEWORTHY;
use forebay_report::result::{Experiment as Table, Gate, Row, metric};
use forebay_report::units::{number, time};

const P99: &str = metric::DURABLE[1];
/// The log's rows, the most prompt first.
const LOGS: [&str; 3] = ["forebay-realtime", "forebay-prompt", "forebay"];
const OTHERS: [&str; 5] = ["tokio-fs", "spawn-blocking", "own-runtime", "std-thread", "std-in-task"];

pub(super) fn title(table: &Table) -> String {
    let count = |name| shown(table, name);
    let threads = table.number("threads").map_or_else(String::new, |count| format!("{count} "));
    let load = match table.text("load") {
        "cpu" => "workers busy",
        "timers" => "workers beside 1,000 timers",
        _ => "workers idle",
    };
    let appends =
        if is_published(table) { "Appends to a file each, made and removed" } else { "Durable appends" };
    let what = match (table.name.as_str(), table.text("loop")) {
        ("blocking", _) => {
            format!("Batches of {} records, {} caller(s)", count("batch_records"), count("appenders"))
        }
        (_, "open") => format!("{appends}, {} a second at fixed times", count("rate_per_s")),
        _ => format!("{appends}, {} appender(s)", count("appenders")),
    };
    format!("{what}, {threads}{load}")
}

/// Returns the sentences on tables of one of the two experiments.
pub(super) fn verdicts(tables: &[&Table]) -> Vec<String> {
    let mut sentences: Vec<String> = tables.iter().filter_map(|table| published(table)).collect();
    let all = || tables.iter().copied().filter(|table| !is_published(table) && table.name != "blocking");
    let open = |load: &str| {
        let mut loops = all().filter(|table| is(table, "open", load));
        let first = loops.clone().next();
        loops.find(|table| table.number("threads").is_none()).or(first)
    };
    if let Some(busy) = open("cpu") {
        sentences.extend(busy_workers(busy, open("none")));
    }
    let closed = all().filter(|table| table.text("loop") == "closed" && table.text("load") != "timers");
    sentences.extend(closed.filter_map(throughput));
    let batches = tables.iter().filter(|table| table.name == "blocking");
    sentences.extend(batches.flat_map(|table| ["", "store-"].map(|of| three_ways(table, of))).flatten());
    for table in tables.iter().filter(|table| table.text("load") == "timers") {
        sentences.extend(timers::verdicts(table, BASE, &load_of(table)));
    }
    let mut degraded: Vec<&str> = Vec::new();
    for row in tables.iter().flat_map(|table| &table.rows).filter(|row| row.degraded.is_some()) {
        if !degraded.contains(&&*row.name) {
            degraded.push(&row.name);
            sentences.push(format!(
                "`{}` ran degraded: its figures are not compared; the notes say why",
                row.name
            ));
        }
    }
    sentences
}

/// Returns whether the table has this loop and this load.
fn is(table: &Table, kind: &str, load: &str) -> bool {
    table.text("loop") == kind && table.text("load") == load
}

/// Describes the load of a table in few words: `64 appender(s), 8 thread(s)`.
fn load_of(table: &Table) -> String {
    let count = |name| shown(table, name);
    let mut load = if table.text("loop") == "open" {
        format!("{} appends/s", count("rate_per_s"))
    } else {
        format!("{} appender(s)", count("appenders"))
    };
    if table.number("threads").is_some() {
        load += &format!(", {} thread(s)", count("threads"));
    }
    load
}

fn time_of(row: &Row, metric: &str) -> Option<String> {
    row.metrics.get(metric).map(time)
}

/// Returns the most prompt of the log's rows that was measured.
fn log(table: &Table) -> Option<&Row> {
    LOGS.iter().find_map(|name| measured(table, name))
}

/// Returns a sentence on the way of the shortest and that of the longest time.
fn published(table: &Table) -> Option<String> {
    let p50 = metric::SEEN[0];
    let names: Vec<&str> = table.rows.iter().map(|row| &*row.name).collect();
    let rows = ranked(table, &names, p50);
    let ((first, least), (last, most)) = (rows.first().filter(|_| is_published(table))?, rows.last()?);
    Some(format!(
        "{} as published (files made and removed): p50 {} (`{}`) to {} (`{}`){}",
        load_of(table),
        time(*least),
        first.name,
        time(*most),
        last.name,
        once(&[*first])
    ))
}

/// Compares the log with busy workers with the best other way and with itself at idle workers.
fn busy_workers(busy: &Table, idle: Option<&Table>) -> Vec<String> {
    let mut sentences = Vec::new();
    let Some(own) = log(busy) else { return sentences };
    let others = ranked(busy, &OTHERS, P99);
    if let (Some((other, theirs)), Some(time_own)) = (others.first(), time_of(own, P99)) {
        let than =
            compared(own, other, P99, ["more than", "less than", "about as much as"]).unwrap_or_default();
        sentences.push(format!(
            "with the workers busy, p99 until durable: {time_own} with `{}`, {than} `{}` ({}){}",
            own.name,
            other.name,
            time(*theirs),
            once(&[own])
        ));
        if let (Some(own), Some(theirs)) = (time_of(own, metric::SEEN[1]), time_of(other, metric::SEEN[1])) {
            sentences.push(format!(
                "the awaiting task is then woken within {own} at p99 (`{}`: {theirs})",
                other.name
            ));
        }
    }
    let factor = |name: &&str| {
        let words = ["more", "less", "no clear difference"];
        Some(format!("`{name}` {}", compared(measured(busy, name)?, measured(idle?, name)?, P99, words)?))
    };
    let factors: Vec<String> = LOGS.iter().filter_map(factor).collect();
    if !factors.is_empty() {
        sentences.push(format!("p99 until durable, busy against idle workers: {}", factors.join(", ")));
    }
    // More than all of it means that something else slowed the runtime down while it was alone.
    let is_known = |kept: f64| kept <= NOTEWORTHY;
    let most = ranked(busy, &OTHERS, metric::WORK_KEPT).last().map_or(0.0, |(_, kept)| *kept);
    if let Some(kept) = own.metrics.get(metric::WORK_KEPT).filter(|kept| is_known(kept.max(most))) {
        let percent = |kept: f64| number(kept * 100.0);
        let beside =
            ranked(busy, &OTHERS, metric::WORK_KEPT).last().map_or_else(String::new, |(row, kept)| {
                format!(", at best {} % beside others (`{}`)", percent(*kept), row.name)
            });
        sentences.push(format!(
            "the runtime keeps {} % of its work beside `{}`{beside}",
            percent(kept),
            own.name
        ));
    }
    sentences
}

fn throughput(table: &Table) -> Option<String> {
    let rate = metric::APPENDS_PER_S;
    let (own, ours) = *ranked(table, &LOGS, rate).last()?;
    let (other, theirs) = *ranked(table, &OTHERS, rate).last()?;
    let load = if table.text("load") == "cpu" { "busy" } else { "idle" };
    Some(format!(
        "{}, {load} workers: {} appends/s with `{}`, {} `{}` ({}){}",
        load_of(table),
        number(ours),
        own.name,
        compared(own, other, rate, ["more than", "fewer than", "no clear difference to"])?,
        other.name,
        number(theirs),
        once(&[own])
    ))
}

/// Compares the three ways of a batch into the log, or into the store.
fn three_ways(table: &Table, of: &str) -> Option<String> {
    let row = |name: &str| measured(table, &format!("{of}{name}"));
    let (waits, moved, awaits) = (row("direct")?, row("spawn-blocking")?, row("async")?);
    let p50 = metric::SEEN[0];
    let load = if table.text("load") == "cpu" { "busy" } else { "idle" };
    Some(format!(
        "{}, {load} workers: `{}` p50 {}, {} `{}`; `{}` {}{}",
        load_of(table).replace("appender", "caller"),
        awaits.name,
        time_of(awaits, p50)?,
        compared(awaits, moved, p50, ["more than", "less than", "about as much as"])?,
        moved.name,
        waits.name,
        time_of(waits, p50)?,
        once(&[awaits])
    ))
}

/// Fills the gates. A row without its requested priority, or without figures, has no gates.
pub(super) fn check(tables: &mut [Table]) {
    let usual = |table: &Table, kind, load| is(table, kind, load) && table.number("threads").is_none();
    let idle = tables.iter().find(|table| usual(table, "open", "none")).cloned();
    for table in tables {
        let all = table.clone();
        let p99 = |table: &Table, name: &str| table.row(name)?.metrics.get(P99);
        for row in table.rows.iter_mut().filter(|row| row.degraded.is_none()) {
            let value = |metric| row.metrics.get(metric);
            let own = value(P99);
            let against = |other: Option<f64>| Some(other? / own?);
            // Maximum under load, as a multiple of that without load.
            let calm = match &*row.name {
                "forebay-realtime" => Some(1.3),
                "forebay-prompt" => Some(1.5),
                _ => None,
            };
            let without = idle.as_ref().and_then(|idle| p99(idle, &row.name));
            let (rate, kept) = (metric::APPENDS_PER_S, metric::WORK_KEPT);
            let limits: Vec<Limit<'_>> = if let Some(times) = calm.filter(|_| usual(&all, "open", "cpu")) {
                let [tokio, blocking] = ["tokio-fs", "spawn-blocking"].map(|other| against(p99(&all, other)));
                let load = without.and_then(|without| Some(own? / without));
                vec![
                    ("p99 until durable: load against no load", P99, load, Gate::at_most, times),
                    ("p99 until durable: tokio-fs against this", P99, tokio, Gate::at_least, 5.0),
                    ("p99 until durable: spawn-blocking against this", P99, blocking, Gate::at_least, 5.0),
                    (
                        "work that the runtime keeps",
                        kept,
                        value(kept).filter(|_| own.is_some()),
                        Gate::at_least,
                        0.95,
                    ),
                ]
            } else if usual(&all, "closed", "none")
                && all.number("appenders") == Some(64.0)
                && LOGS.contains(&&*row.name)
            {
                vec![
                    ("appends of 64 appenders", rate, value(rate), Gate::at_least, 120_000.0),
                    ("p99 until durable of 64 appenders", P99, own, Gate::at_most, 300.0),
                ]
            } else {
                continue;
            };
            hold(row, limits);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::lanes::{test_row, test_table};
    use super::*;

    fn of(tables: &[Table]) -> Vec<String> {
        verdicts(&tables.iter().collect::<Vec<_>>())
    }

    fn row(name: &str, p99_us: f64, rate: f64, kept: f64) -> Row {
        let times = [(P99, p99_us), (metric::SEEN[0], p99_us), (metric::SEEN[1], p99_us * 2.0)];
        let metrics = [&times[..], &[(metric::WORK_KEPT, kept), (metric::APPENDS_PER_S, rate)]].concat();
        test_row(name, &[0.99, 1.0, 1.01], &metrics)
    }

    fn table(kind: &str, load: &str, rows: Vec<Row>) -> Table {
        let all = json!({ "loop": kind, "load": load, "rate_per_s": 500, "appenders": 64 });
        test_table("wal", all, rows)
    }

    fn refused(name: &str, p99_us: f64) -> Row {
        Row { degraded: Some("no privilege".to_owned()), ..row(name, p99_us, 500.0, 0.1) }
    }

    #[test]
    fn a_calm_log_is_reported_with_its_figures() {
        let idle = table("open", "none", vec![row("forebay-realtime", 300.0, 500.0, 0.97)]);
        let rows = vec![row("tokio-fs", 2900.0, 500.0, 0.95), row("forebay-realtime", 310.0, 500.0, 0.97)];
        assert_eq!(
            of(&[idle, table("open", "cpu", rows)]),
            [
                "with the workers busy, p99 until durable: 310 µs with `forebay-realtime`, 9.35 times less than \
                 `tokio-fs` (2.90 ms)",
                "the awaiting task is then woken within 620 µs at p99 (`tokio-fs`: 5.80 ms)",
                "p99 until durable, busy against idle workers: `forebay-realtime` no clear difference",
                "the runtime keeps 97 % of its work beside `forebay-realtime`, at best 95 % beside others (`tokio-fs`)",
            ]
        );
    }

    /// Regression: "keeps 97 % of its work, at best 589 % beside others".
    #[test]
    fn more_than_all_of_the_work_is_no_figure() {
        let rows = vec![row("tokio-fs", 2900.0, 500.0, 5.89), row("forebay", 310.0, 500.0, 0.97)];
        let sentences = of(&[table("open", "cpu", rows)]);
        assert!(sentences.iter().all(|sentence| !sentence.contains("of its work")), "{sentences:?}");
    }

    #[test]
    fn a_loss_is_reported_too() {
        let rows = vec![row("std-thread", 200.0, 100e3, 1.0), row("forebay", 400.0, 50e3, 1.0)];
        let sentences = of(&[table("closed", "none", rows)]);
        assert_eq!(
            sentences,
            [
                "64 appender(s), idle workers: 50,000 appends/s with `forebay`, 2 times fewer than `std-thread` (100,000)"
            ]
        );
        let rows = vec![row("tokio-fs", 200.0, 500.0, 1.0), row("forebay", 400.0, 500.0, 1.0)];
        let sentences = of(&[table("open", "cpu", rows)]);
        assert!(sentences[0].contains("2 times more than `tokio-fs`"), "{}", sentences[0]);
    }

    #[test]
    fn a_priority_that_was_refused_is_no_result() {
        let rows = vec![
            row("tokio-fs", 2900.0, 500.0, 1.0),
            refused("forebay-realtime", 3000.0),
            row("forebay", 2500.0, 500.0, 1.0),
        ];
        let sentences = of(&[table("open", "cpu", rows)]);
        assert!(sentences[0].contains("2.50 ms with `forebay`"), "{}", sentences[0]);
        let last = sentences.last().expect("several");
        assert!(last.contains("`forebay-realtime` ran degraded") && last.contains("not compared"), "{last}");
    }

    #[test]
    fn the_three_ways_of_a_batch_are_compared() {
        let rows = ["direct", "spawn-blocking", "async"].map(|name| {
            let time = if name == "spawn-blocking" { 200.0 } else { 100.0 };
            row(name, time, 1.0, 1.0)
        });
        let mut batches = table("closed", "none", rows.into());
        batches.name = "blocking".to_owned();
        assert_eq!(
            of(&[batches]),
            [
                "64 caller(s), idle workers: `async` p50 100 µs, 2 times less than `spawn-blocking`; `direct` 100 µs"
            ]
        );
    }

    #[test]
    fn published_figures_include_the_file() {
        let rows = vec![row("forebay", 200.0, 1.0, 1.0), row("tokio-fs", 900.0, 1.0, 1.0)];
        let sentences = of(&[table("open", "cpu", rows).parameter("as_published", true)]);
        assert_eq!(
            sentences,
            [
                "500 appends/s as published (files made and removed): p50 200 µs (`forebay`) to 900 µs (`tokio-fs`)"
            ]
        );
    }

    #[test]
    fn sentences_are_short() {
        let rows =
            || [LOGS.as_slice(), &OTHERS].concat().iter().map(|name| row(name, 300.0, 500.0, 0.9)).collect();
        let tables =
            [table("open", "none", rows()), table("open", "cpu", rows()), table("closed", "cpu", rows())];
        for sentence in of(&tables) {
            assert!(sentence.split(' ').count() <= 20, "{sentence}");
        }
    }

    #[test]
    fn a_row_is_held_against_itself_and_the_others() {
        let mut tables = [
            table("open", "none", vec![row("forebay-realtime", 300.0, 1.0, 1.0)]),
            table(
                "open",
                "cpu",
                vec![row("tokio-fs", 2000.0, 1.0, 1.0), row("forebay-realtime", 330.0, 1.0, 0.9)],
            ),
            table("closed", "none", vec![row("forebay", 330.0, 130e3, 1.0)]),
        ];
        check(&mut tables);
        assert!(tables[0].rows[0].gates.is_empty() && tables[1].rows[0].gates.is_empty());
        let passed = |row: &Row| row.gates.iter().map(|gate| gate.passed).collect::<Vec<_>>();
        assert_eq!(passed(&tables[1].rows[1]), [true, true, false], "{:?}", tables[1].rows[1].gates);
        assert_eq!(passed(&tables[2].rows[0]), [true, false], "{:?}", tables[2].rows[0].gates);
    }

    #[test]
    fn a_row_without_its_priority_does_not_count() {
        let rows = vec![row("tokio-fs", 2000.0, 1.0, 1.0), refused("forebay-realtime", 9000.0)];
        let mut tables = [table("open", "cpu", rows)];
        check(&mut tables);
        assert!(tables[0].rows.iter().all(|row| row.gates.is_empty()));
    }
}
