//! The tables of `top`, in lines that fit the terminal.

use super::snapshot::{Class, Counts, File, Flow, Snapshot};

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

/// Returns all tables, with rates since `before`.
pub(super) fn render(now: &Snapshot, before: Option<&Snapshot>, size: Size) -> String {
    let seconds = before.map(|before| now.at_ns.saturating_sub(before.at_ns) as f64 / 1e9);
    let seconds = seconds.filter(|seconds| *seconds > 0.0);
    let mut lines = head(now, before, seconds);
    lines.extend(flows(now, before, seconds));
    lines.extend(shares(now, before, seconds));
    lines.extend(devices(now));
    lines.extend(stalls(now));
    lines.extend(now.degraded.iter().map(|degraded| format!("degraded: {degraded}")));
    let room = size.rows.map_or(usize::MAX, |rows| rows.saturating_sub(lines.len()).max(FILES_MIN));
    lines.extend(files(now, before, seconds, size.columns).into_iter().take(room));
    lines.truncate(size.rows.unwrap_or(usize::MAX));
    lines.iter().map(|line| fitted(line, size.columns) + "\n").collect()
}

/// Returns an empty line, the header and the rows; nothing when there are no rows.
fn table(header: String, rows: impl Iterator<Item = String>) -> Vec<String> {
    let lines: Vec<String> = [String::new(), header].into_iter().chain(rows).collect();
    if lines.len() > 2 { lines } else { Vec::new() }
}

fn head(now: &Snapshot, before: Option<&Snapshot>, seconds: Option<f64>) -> Vec<String> {
    let in_flight: u64 = now.shards.iter().chain(&now.worker_rings).map(|shard| shard.in_flight).sum();
    let tasks: u64 = now.shards.iter().map(|shard| shard.tasks).sum();
    let memory = &now.memory;
    let mut lines = vec![format!(
        "forebay  pid {}  {}  shards {}  in flight {in_flight}  tasks {tasks}  memory {}/{}",
        now.pid,
        now.driver,
        now.shards.len(),
        bytes(memory.held_bytes as f64),
        bytes(memory.arena_bytes as f64)
    )];
    if memory.overflow_bytes > 0 {
        lines[0] += &format!(" +{}", bytes(memory.overflow_bytes as f64));
    }
    let since = |of: fn(&Snapshot) -> u64| count(rate(of(now).saturating_sub(before.map_or(0, of)), seconds));
    if now.wait_calls > 0 {
        lines.push(format!("on waiting threads: {} operations/s", since(|all| all.wait_calls)));
    }
    if now.page_cache_reads + now.page_cache_misses + now.page_cache_skips > 0 {
        let (reads, moved) = (since(|all| all.page_cache_reads), since(|all| all.page_cache_bytes));
        let mut line = format!("page cache, on callers' threads: {reads} reads/s, {moved}B/s");
        if now.page_cache_misses + now.page_cache_skips > 0 {
            let (misses, skips) = (since(|all| all.page_cache_misses), since(|all| all.page_cache_skips));
            line += &format!(", {misses} in vain/s, {skips} not tried/s");
        }
        lines.push(line);
    }
    lines
}

/// A header for the columns that `rates` returns for counts.
const COUNTS_HEAD: &str = " READ/s     B/s WRITE/s     B/s  SYNC/s";

fn rates(counts: Counts, seconds: Option<f64>) -> String {
    [counts.reads, counts.read_bytes, counts.writes, counts.write_bytes, counts.syncs]
        .map(|value| format!("{:>7}", count(rate(value, seconds))))
        .join(" ")
}

fn flows(now: &Snapshot, before: Option<&Snapshot>, seconds: Option<f64>) -> Vec<String> {
    let rows = now.flows.iter().map(|flow| {
        let same = |known: &&Flow| known.class == flow.class && known.device == flow.device;
        let known = before.and_then(|before| before.flows.iter().find(same));
        let counts = flow.counts.since(known.map_or_else(Counts::default, |known| known.counts));
        let (rates, queued, device) =
            (rates(counts, seconds), time(flow.queued_p99_ns), time(flow.device_p99_ns));
        let failed = if flow.failures > 0 { format!(" {} failed", flow.failures) } else { String::new() };
        format!("{}{rates}  {queued:>6}-{device}{failed}", class_on_device(&flow.class, &flow.device))
    });
    let header = format!("{}{COUNTS_HEAD}  QUEUE-DEV p99", class_on_device("CLASS", "DEVICE"));
    [String::new(), header].into_iter().chain(rows).collect()
}

/// Returns the table of classes that had to share a device.
fn shares(now: &Snapshot, before: Option<&Snapshot>, seconds: Option<f64>) -> Vec<String> {
    let since = |class: &Class, of: fn(&Class) -> u64| {
        let same = |known: &&Class| known.class == class.class && known.device == class.device;
        of(class).saturating_sub(before.and_then(|before| before.classes.iter().find(same)).map_or(0, of))
    };
    let rows = now.classes.iter().map(|class| {
        let part = |of: fn(&Class) -> u64| {
            let here = now.classes.iter().filter(|other| other.device == class.device);
            match here.map(|other| since(other, of)).sum::<u64>() {
                0 => "-".to_owned(),
                all => format!("{:.1}%", since(class, of) as f64 * 100.0 / all as f64),
            }
        };
        format!(
            "{} {:>8} {:>7} {:>9} {:>8}",
            class_on_device(&class.class, &class.device),
            part(|class| class.received),
            part(|class| class.due),
            count(rate(since(class, |class| class.queued), seconds)),
            time(since(class, |class| class.starved_ns))
        )
    });
    table(format!("{} RECEIVED     DUE  WAITED/s  STARVED", class_on_device("CLASS", "DEVICE")), rows)
}

fn devices(now: &Snapshot) -> Vec<String> {
    let rows = now.devices.iter().map(|device| {
        let (name, budget) = (cell(&device.device, 24), bytes(device.budget_bytes as f64));
        let calibrated = if device.calibrated { "  calibrated" } else { "" };
        format!("{name:<24} {budget:>9}  {:.2} reads{calibrated}", device.write_cost)
    });
    table(format!("{:<24} {:>9}  A WRITE COSTS", "DEVICE", "BUDGET"), rows)
}

/// Number of lines of a back-trace that are shown: the innermost are the most useful.
const FRAMES: usize = 3;

fn stalls(now: &Snapshot) -> Vec<String> {
    let mut sorted: Vec<_> = now.stalls.iter().collect();
    sorted.sort_by_key(|stall| std::cmp::Reverse(stall.longest_ns));
    let rows = sorted.into_iter().take(5).flat_map(|stall| {
        let row = format!("{:>7}  {:>7}  {}", stall.polls, time(stall.longest_ns), stall.task);
        let frames = stall.back_trace.lines().take(FRAMES).map(|frame| format!("{:>20}{frame}", "at "));
        std::iter::once(row).chain(frames)
    });
    table("  TIMES  LONGEST  TASK THAT HELD ITS SHARD".to_owned(), rows)
}

fn files(now: &Snapshot, before: Option<&Snapshot>, seconds: Option<f64>, columns: usize) -> Vec<String> {
    let since = |file: &File| {
        let known = before.and_then(|before| before.files.iter().find(|known| known.path == file.path));
        file.counts.since(known.map_or_else(Counts::default, |known| known.counts))
    };
    let mut moved: Vec<_> = now.files.iter().map(|file| (since(file), file)).collect();
    moved.sort_by_key(|(counts, _)| std::cmp::Reverse(counts.operations()));
    let room = columns.saturating_sub(COUNTS_HEAD.len() + 2).max(10);
    let mut lines = vec![String::new(), format!("{COUNTS_HEAD}  FILE")];
    lines.extend(moved.into_iter().map(|(counts, file)| {
        let path = if file.path.is_empty() { &file.device } else { &file.path };
        format!("{}  {}", rates(counts, seconds), path_end(path, room))
    }));
    if now.files_left_out > 0 {
        lines.push(format!("{} files with fewer operations are not shown", now.files_left_out));
    }
    lines
}

/// Returns the rate per second; `None` without an interval, as for counts since the start.
fn rate(value: u64, seconds: Option<f64>) -> Option<f64> {
    seconds.map(|seconds| value as f64 / seconds)
}

/// Formats a count in at most six characters: `0`, `999`, `12.3k`, `4.56M`.
fn count(value: Option<f64>) -> String {
    let Some(mut value) = value else { return "-".to_owned() };
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

fn bytes(value: f64) -> String {
    let (mut value, mut unit) = (value, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if value < 10.0 && unit != "B" { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
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

fn class_on_device(class: &str, device: &str) -> String {
    format!("{:<12} {:<11}", cell(class, 12), cell(device, 11))
}

/// Formats a name in a column.
fn cell(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width - 1).chain(['~']).collect()
}

/// Returns the end of a path, which is more useful than its beginning.
fn path_end(path: &str, width: usize) -> String {
    let letters = path.chars().count();
    if letters <= width {
        return path.to_owned();
    }
    std::iter::once('~').chain(path.chars().skip(letters + 1 - width)).collect()
}

/// Cuts a line at the terminal's edge and removes control characters: names come from another program.
fn fitted(line: &str, columns: usize) -> String {
    let clean = |letter: char| if letter.is_control() { '?' } else { letter };
    line.trim_end().chars().map(clean).take(columns).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(at_ns: u64, reads: u64) -> Snapshot {
        let json = format!(
            r#"{{"forebay_stats":1,"version":"0.1.0","pid":7,"at_ns":{at_ns},"driver":"uring",
            "shards":[{{"in_flight":3,"tasks":2}},{{"in_flight":3,"tasks":0}}],"worker_rings":[{{"in_flight":1,"tasks":0}}],
            "devices":[{{"device":"nvme0n1","budget_bytes":589824,"write_cost":1.25,"calibrated":true}}],
            "classes":[{{"class":"default","device":"nvme0n1","queued":{reads},"received":{reads}000,"due":{reads}000,
              "starved_ns":{reads}}},
              {{"class":"a class with a long name","device":"nvme0n1","queued":0,"received":{reads}000,"due":0,"starved_ns":0}}],
            "flows":[{{"class":"default","device":"nvme0n1","reads":{reads},"writes":5,"syncs":1,"failures":2,
              "read_bytes":{reads}000,"write_bytes":9,"queued_p99_ns":1500,"device_p99_ns":98765432}}],
            "files":[{{"path":"/data/idle","device":"nvme0n1","reads":1,"writes":0,"syncs":0,"read_bytes":1,"write_bytes":0}},
              {{"path":"/data/a/very/long/way/to/a/file/whose/name/matters/table-000123.\u001b[31m","device":"nvme0n1",
              "reads":{reads},"writes":0,"syncs":0,"read_bytes":{reads}000,"write_bytes":0}}],
            "files_left_out":4,"wait_calls":0,"page_cache_reads":0,"page_cache_bytes":0,
            "stalls":[{{"task":"app::index::build::{{{{closure}}}}","polls":3,"longest_ns":25000000,
              "back_trace":"app::index::sum (a.rs:3)\nb (a.rs:9)\nc (a.rs:1)\nd (a.rs:2)"}}],
            "memory":{{"arena_bytes":8388608,"held_bytes":65536,"overflow_bytes":0}},
            "degraded":["huge pages: the kernel gave none for the I/O memory (echo madvise > /sys/kernel/mm/transparent_hugepage/enabled)"],
            "something_new":[1,2,3]}}"#
        );
        Snapshot::parse(&json).expect("it is what an engine tells")
    }

    #[test]
    fn rates_are_of_the_time_between_two_snapshots() {
        let text =
            render(&snapshot(4_000_000_000, 3_000), Some(&snapshot(2_000_000_000, 1_000)), Size::default());
        for line in [
            "forebay  pid 7  uring  shards 2  in flight 7  tasks 2  memory 64 KiB/8.0 MiB",
            "default      nvme0n1      1.00k   1.00M       0       0       0   1.5us-98.8ms 2",
            "default      nvme0n1        50.0%  100.0%     1.00k    2.0us",
            "a class wit~ nvme0n1        50.0%    0.0%         0        -",
            "nvme0n1                    576 KiB  1.25 reads  calibrated",
            "      3   25.0ms  app::index::build::{{closure}}\n                 at app::index::sum (a.rs:3)\n                 at b (a.rs:9)",
            "  1.00k   1.00M       0       0       0  ~/whose/name/matters/table-000123.?[31m",
            "      0       0       0       0       0  /data/idle",
            "4 files with fewer operations are not shown",
        ] {
            assert!(text.contains(line), "{line:?} is not in:\n{text}");
        }
        assert!(!text.contains("d (a.rs:2)"), "the innermost frames only:\n{text}");
        assert!(text.find("table-000123") < text.find("/data/idle"), "the busiest first:\n{text}");
    }

    #[test]
    fn nothing_is_wider_or_higher_than_the_terminal() {
        for (columns, rows) in [(80, None), (80, Some(24)), (40, Some(10)), (200, Some(50)), (1, Some(1))] {
            let size = Size { columns, rows };
            let text = render(&snapshot(2, 2), Some(&snapshot(1, 1)), size);
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{size:?}\n{text}");
            assert!(text.lines().count() <= rows.unwrap_or(usize::MAX), "{size:?}\n{text}");
            assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{text:?}");
        }
    }

    #[test]
    fn without_an_earlier_snapshot_there_are_no_rates() {
        let text = render(&snapshot(2, 2), None, Size::default());
        assert!(text.contains("default      nvme0n1          -       -       -"), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn a_file_that_was_opened_again_counts_from_its_opening() {
        let text = render(&snapshot(2_000_000_000, 10), Some(&snapshot(1_000_000_000, 50)), Size::default());
        assert!(text.contains("     10   10.0k       0       0       0  ~/whose"), "{text}");
    }

    #[test]
    fn numbers_are_short() {
        let counts = [0.0, 999.4, 1000.0, 12_345.0, 999_600.0, 4.56e6, 7.8e10, 3e15];
        let texts = counts.map(|value| count(Some(value)));
        assert_eq!(texts, ["0", "999", "1.00k", "12.3k", "1.00M", "4.56M", "78.0G", "3P"]);
        let times = [0, 850, 12_345, 999_999, 4_100_000, 12_000_000_000].map(time);
        assert_eq!(times, ["-", "850ns", "12.3us", "1.0ms", "4.1ms", "12.0s"]);
    }
}
