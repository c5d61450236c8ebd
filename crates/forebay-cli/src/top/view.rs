//! The tables of `top`, in lines that fit the terminal.

use forebay_report::units::bytes;
use serde_json::Value;

use super::exposition::{number, rows, text};

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    /// `None`: all rows are shown.
    pub(super) rows: Option<usize>,
}

impl Default for Size {
    fn default() -> Self {
        Self { columns: 80, rows: None }
    }
}

/// Minimum lines that all other tables together leave for the files.
const FILES_MIN: usize = 3;

/// The columns of flows and files.
const COUNTS: [&str; 5] = ["reads", "read_bytes", "writes", "write_bytes", "syncs"];
/// A header for the columns that `rates` returns.
const COUNTS_HEAD: &str = " READ/s     B/s WRITE/s     B/s  SYNC/s";

/// Two looks at an engine: the figures of the later one, and rates between them.
struct View<'v> {
    now: &'v Value,
    before: &'v Value,
    /// `None` without an earlier look.
    seconds: Option<f64>,
}

/// Returns all tables, with rates since `before`.
pub(super) fn render(now: &Value, before: Option<&Value>, size: Size) -> String {
    let before = before.unwrap_or(&Value::Null);
    let seconds = number(now, "at_ns").saturating_sub(number(before, "at_ns")) as f64 / 1e9;
    let view = View { now, before, seconds: (!before.is_null() && seconds > 0.0).then_some(seconds) };
    let mut lines = view.head();
    lines.extend(view.flows());
    lines.extend(view.shares());
    lines.extend(view.devices());
    lines.extend(view.stalls());
    let degraded = rows(now, "degraded").iter().filter_map(Value::as_str);
    lines.extend(degraded.map(|degraded| format!("degraded: {degraded}")));
    let room = size.rows.map_or(usize::MAX, |rows| rows.saturating_sub(lines.len()).max(FILES_MIN));
    lines.extend(view.files(size.columns).into_iter().take(room));
    lines.truncate(size.rows.unwrap_or(usize::MAX));
    lines.iter().map(|line| fitted(line, size.columns) + "\n").collect()
}

/// Returns an empty line, the header and the rows; nothing without rows.
fn table(header: String, rows: impl Iterator<Item = String>) -> Vec<String> {
    let lines: Vec<String> = [String::new(), header].into_iter().chain(rows).collect();
    if lines.len() > 2 { lines } else { Vec::new() }
}

/// Number of lines of a back-trace that are shown: the innermost are the most useful.
const FRAMES: usize = 3;

impl View<'_> {
    fn head(&self) -> Vec<String> {
        let (now, memory) = (self.now, &self.now["memory"]);
        let sum = |list, name| rows(now, list).iter().map(|row| number(row, name)).sum::<u64>();
        let mut lines = vec![format!(
            "forebay  pid {}  {}  shards {}  in flight {}  tasks {}  memory {}/{}",
            number(now, "pid"),
            text(now, "driver"),
            rows(now, "shards").len(),
            sum("shards", "in_flight") + sum("worker_rings", "in_flight"),
            sum("shards", "tasks"),
            bytes(number(memory, "held_bytes")),
            bytes(number(memory, "arena_bytes"))
        )];
        if number(memory, "overflow_bytes") > 0 {
            lines[0] += &format!(" +{}", bytes(number(memory, "overflow_bytes")));
        }
        let rate = |name| self.rate(number(now, name).saturating_sub(number(self.before, name)));
        if number(now, "wait_calls") > 0 {
            lines.push(format!("on waiting threads: {} operations/s", rate("wait_calls")));
        }
        let tried = number(now, "page_cache_misses") + number(now, "page_cache_skips");
        if number(now, "page_cache_reads") + tried > 0 {
            let (reads, moved) = (rate("page_cache_reads"), rate("page_cache_bytes"));
            let mut line = format!("page cache, on callers' threads: {reads} reads/s, {moved}B/s");
            if tried > 0 {
                let (misses, skips) = (rate("page_cache_misses"), rate("page_cache_skips"));
                line += &format!(", {misses} in vain/s, {skips} not tried/s");
            }
            lines.push(line);
        }
        lines
    }

    fn flows(&self) -> Vec<String> {
        let row = |flow| {
            let rates = self.rates(self.since("flows", flow, COUNTS));
            let (queued, device) = (time(number(flow, "queued_p99_ns")), time(number(flow, "device_p99_ns")));
            let failures = number(flow, "failures");
            let failed = if failures > 0 { format!(" {failures} failed") } else { String::new() };
            format!("{}{rates}  {queued:>6}+{device}{failed}", class_on_device(flow))
        };
        let header = format!("{:<12} {:<11}{COUNTS_HEAD}  QUEUE+DEV p99", "CLASS", "DEVICE");
        [String::new(), header].into_iter().chain(rows(self.now, "flows").iter().map(row)).collect()
    }

    /// Returns the table of classes that had to share a device.
    fn shares(&self) -> Vec<String> {
        let names = ["received", "due", "queued", "starved_ns"];
        let classes = rows(self.now, "classes");
        let row = |class: &Value| {
            let [received, due, queued, starved] = self.since("classes", class, names);
            let here = || classes.iter().filter(|other| other["device"] == class["device"]);
            let part = |share: u64, at: usize| match here()
                .map(|other| self.since("classes", other, names)[at])
                .sum::<u64>()
            {
                0 => "-".to_owned(),
                all => format!("{:.1}%", share as f64 * 100.0 / all as f64),
            };
            let (received, due, queued) = (part(received, 0), part(due, 1), self.rate(queued));
            let starved = time(starved);
            format!("{} {received:>8} {due:>7} {queued:>9} {starved:>8}", class_on_device(class))
        };
        let header = format!("{:<12} {:<11} RECEIVED     DUE  WAITED/s  STARVED", "CLASS", "DEVICE");
        table(header, classes.iter().map(row))
    }

    fn devices(&self) -> Vec<String> {
        let rows = rows(self.now, "devices").iter().map(|device| {
            let (name, budget) = (cell(text(device, "device"), 24), bytes(number(device, "budget_bytes")));
            let calibrated = if device["calibrated"] == true { "  calibrated" } else { "" };
            let write_cost = device["write_cost"].as_f64().unwrap_or(0.0);
            format!("{name:<24} {budget:>9}  {write_cost:.2} reads{calibrated}")
        });
        table(format!("{:<24} {:>9}  A WRITE COSTS", "DEVICE", "BUDGET"), rows)
    }

    fn stalls(&self) -> Vec<String> {
        let mut sorted: Vec<_> = rows(self.now, "stalls").iter().collect();
        sorted.sort_by_key(|stall| std::cmp::Reverse(number(stall, "longest_ns")));
        let rows = sorted.into_iter().take(5).flat_map(|stall| {
            let (polls, longest) = (number(stall, "polls"), time(number(stall, "longest_ns")));
            let row = format!("{polls:>7}  {longest:>7}  {}", text(stall, "task"));
            let frames = text(stall, "back_trace").lines().take(FRAMES);
            std::iter::once(row).chain(frames.map(|frame| format!("{:>20}{frame}", "at ")))
        });
        table("  TIMES  LONGEST  TASK THAT HELD ITS SHARD".to_owned(), rows)
    }

    fn files(&self, columns: usize) -> Vec<String> {
        let files = rows(self.now, "files").iter();
        let mut moved: Vec<_> = files.map(|file| (self.since("files", file, COUNTS), file)).collect();
        moved.sort_by_key(|([reads, _, writes, _, syncs], _)| std::cmp::Reverse(reads + writes + syncs));
        let room = columns.saturating_sub(COUNTS_HEAD.len() + 2).max(10);
        let mut lines = vec![String::new(), format!("{COUNTS_HEAD}  FILE")];
        lines.extend(moved.into_iter().map(|(counts, file)| {
            let path = Some(text(file, "path")).filter(|path| !path.is_empty());
            format!("{}  {}", self.rates(counts), path_end(path.unwrap_or(text(file, "device")), room))
        }));
        let left_out = number(self.now, "files_left_out");
        if left_out > 0 {
            lines.push(format!("{left_out} files with fewer operations are not shown"));
        }
        lines
    }

    /// Returns the differences of counts to the earlier look; all of a count that is smaller now, as of a file that was closed meanwhile.
    fn since<const N: usize>(&self, list: &str, row: &Value, names: [&str; N]) -> [u64; N] {
        let same = |known: &&Value| ["path", "class", "device"].iter().all(|name| known[name] == row[name]);
        let known = rows(self.before, list).iter().find(same).unwrap_or(&Value::Null);
        names.map(|name| {
            let count = number(row, name);
            count.checked_sub(number(known, name)).unwrap_or(count)
        })
    }

    fn rates(&self, counts: [u64; 5]) -> String {
        counts.map(|value| format!("{:>7}", self.rate(value))).join(" ")
    }

    /// Formats a rate per second; `-` without an interval, as for counts since the start.
    fn rate(&self, value: u64) -> String {
        self.seconds.map_or("-".to_owned(), |seconds| count(value as f64 / seconds))
    }
}

/// Formats a count in at most six characters: `0`, `999`, `12.3k`, `4.56M`.
fn count(mut value: f64) -> String {
    for unit in ["", "k", "M", "G", "T"] {
        if value < 999.5 {
            return match unit {
                "" => format!("{value:.0}"),
                _ if value < 9.995 => format!("{value:.2}{unit}"),
                _ if value < 99.95 => format!("{value:.1}{unit}"),
                _ => format!("{value:.0}{unit}"),
            };
        }
        value /= 1000.0;
    }
    format!("{value:.0}P")
}

/// Formats a time in at most six characters: `850ns`, `12.3us`, `4.1ms`, `12.0s`.
fn time(ns: u64) -> String {
    let ns = ns as f64;
    match ns {
        0.0 => "-".to_owned(),
        _ if ns < 999.5 => format!("{ns:.0}ns"),
        _ if ns < 999_500.0 => short(ns / 1e3, "us"),
        _ if ns < 999_500_000.0 => short(ns / 1e6, "ms"),
        _ => short(ns / 1e9, "s"),
    }
}

fn short(value: f64, unit: &str) -> String {
    if value < 99.95 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

fn class_on_device(row: &Value) -> String {
    format!("{:<12} {:<11}", cell(text(row, "class"), 12), cell(text(row, "device"), 11))
}

/// Formats a name in a column.
fn cell(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width - 1).chain(['~']).collect()
}

/// Returns the end of a path, which is more useful than its start.
fn path_end(path: &str, width: usize) -> String {
    let letters = path.chars().count();
    if letters <= width {
        return path.to_owned();
    }
    std::iter::once('~').chain(path.chars().skip(letters + 1 - width)).collect()
}

/// Cuts a line at the terminal's edge and removes control characters: names are set by another program.
fn fitted(line: &str, columns: usize) -> String {
    let clean = |letter: char| if letter.is_control() { '?' } else { letter };
    line.trim_end().chars().map(clean).take(columns).collect()
}

#[cfg(test)]
mod tests {
    use super::super::exposition::parse;
    use super::*;

    fn recorded() -> Value {
        parse(include_str!("../../tests/fixtures/engine.txt")).expect("it is what an engine serves")
    }

    #[test]
    fn nothing_is_wider_or_higher_than_the_terminal() {
        let (now, mut before) = (recorded(), recorded());
        before["at_ns"] = 1.into();
        for (columns, rows) in [(80, None), (80, Some(24)), (40, Some(10)), (200, Some(50)), (1, Some(1))] {
            let size = Size { columns, rows };
            let text = render(&now, Some(&before), size);
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{size:?}\n{text}");
            assert!(text.lines().count() <= rows.unwrap_or(usize::MAX), "{size:?}\n{text}");
            assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{text:?}");
        }
    }

    #[test]
    fn without_an_earlier_snapshot_there_are_no_rates() {
        let text = render(&recorded(), None, Size::default());
        assert!(text.contains("default      nvme0n1          -       -       -"), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn numbers_are_short() {
        let counts = [0.0, 999.4, 1000.0, 12_345.0, 999_600.0, 4.56e6, 7.8e10, 3e15];
        let texts = counts.map(count);
        assert_eq!(texts, ["0", "999", "1.00k", "12.3k", "1.00M", "4.56M", "78.0G", "3P"]);
        let times = [0, 850, 12_345, 999_999, 4_100_000, 12_000_000_000].map(time);
        assert_eq!(times, ["-", "850ns", "12.3us", "1.0ms", "4.1ms", "12.0s"]);
    }
}
