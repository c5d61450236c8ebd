//! One line of JSON with everything that is reported about an engine.

use std::fmt::{Display, Write as _};

use super::Snapshot;
use crate::io::stats::{ClassStats, DeviceStats, FileStats, FlowStats, ShardStats, Stall};

/// The version of the line's format.
const VERSION: u32 = 1;
/// The most files in a line: those with the most operations.
const FILES_MAX: usize = 256;

/// Returns the line, including its line end.
pub(super) fn line(snapshot: &Snapshot) -> String {
    let Snapshot { at_ns, driver, degraded, stats, files } = snapshot;
    let mut busiest: Vec<&FileStats> = files.iter().collect();
    busiest.sort_by_key(|file| std::cmp::Reverse(file.reads + file.writes + file.syncs));
    let left_out = busiest.len().saturating_sub(FILES_MAX);
    busiest.truncate(FILES_MAX);
    let mut text = String::new();
    object(&mut text, |object| {
        object.number("forebay_stats", VERSION);
        object.text("version", env!("CARGO_PKG_VERSION"));
        object.number("pid", std::process::id());
        object.number("at_ns", at_ns);
        object.text("driver", driver);
        object.list("shards", &stats.shards, shard);
        object.list("worker_rings", &stats.worker_rings, shard);
        object.list("devices", &stats.devices, device);
        object.list("classes", &stats.classes, class);
        object.list("flows", &stats.flows, flow);
        object.list("files", busiest, file);
        object.number("files_left_out", left_out);
        object.list("stalls", &stats.stalls, stall);
        object.number("wait_calls", stats.wait_calls);
        object.number("page_cache_reads", stats.page_cache_reads);
        object.number("page_cache_bytes", stats.page_cache_bytes);
        object.number("page_cache_misses", stats.page_cache_misses);
        object.number("page_cache_skips", stats.page_cache_skips);
        object.key("memory");
        let memory = stats.memory;
        self::object(object.0, |object| {
            object.number("arena_bytes", memory.arena_bytes);
            object.number("arena_bytes_max", memory.arena_bytes_max);
            object.number("held_bytes", memory.held_bytes);
            object.number("overflow_bytes", memory.overflow_bytes);
            object.number("result_bytes", memory.result_bytes);
            object.number("leaked_lends", memory.leaked_lends);
        });
        object.key("degraded");
        list(object.0, degraded, |text, degradation| quote(text, degradation));
    });
    text.push('\n');
    text
}

fn shard(object: &mut Object<'_>, shard: &ShardStats) {
    object.number("turns", shard.turns);
    object.number("enters", shard.enters);
    object.number("in_flight", shard.in_flight);
    object.number("slots_used", shard.slots_used);
    object.number("tasks", shard.tasks);
    object.number("memory_waits", shard.memory_waits);
}

fn device(object: &mut Object<'_>, device: &DeviceStats) {
    object.text("device", &device.device);
    object.number("budget_bytes", device.budget_bytes);
    object.number("write_cost", device.write_cost);
    object.number("calibrated", device.calibrated);
}

fn class(object: &mut Object<'_>, class: &ClassStats) {
    object.text("class", &class.class);
    object.text("device", &class.device);
    object.number("queued", class.queued);
    object.number("received", class.received);
    object.number("due", class.due);
    object.number("starved_ns", class.starved_ns);
}

fn flow(object: &mut Object<'_>, flow: &FlowStats) {
    object.text("class", &flow.class);
    object.text("device", &flow.device);
    object.number("reads", flow.reads);
    object.number("writes", flow.writes);
    object.number("syncs", flow.syncs);
    object.number("failures", flow.failures);
    object.number("read_bytes", flow.read_bytes);
    object.number("write_bytes", flow.write_bytes);
    for (name, times) in [("queued", &flow.queued_ns), ("device", &flow.device_ns)] {
        object.number(&format!("{name}_p50_ns"), times.ns_at(0.5));
        object.number(&format!("{name}_p99_ns"), times.ns_at(0.99));
    }
}

fn file(object: &mut Object<'_>, file: &FileStats) {
    object.text("path", &file.path.to_string_lossy());
    object.text("device", &file.device);
    object.number("reads", file.reads);
    object.number("writes", file.writes);
    object.number("syncs", file.syncs);
    object.number("read_bytes", file.read_bytes);
    object.number("write_bytes", file.write_bytes);
    object.number("page_cache_reads", file.page_cache_reads);
    object.number("page_cache_bytes", file.page_cache_bytes);
    object.number("page_cache_misses", file.page_cache_misses);
    object.number("page_cache_skips", file.page_cache_skips);
}

fn stall(object: &mut Object<'_>, stall: &Stall) {
    object.text("task", stall.task);
    object.number("polls", stall.polls);
    object.number("longest_ns", stall.longest_ns);
    if let Some(back_trace) = &stall.back_trace {
        object.text("back_trace", back_trace);
    }
}

/// An object that is being written.
struct Object<'t>(&'t mut String);

fn object(text: &mut String, fill: impl FnOnce(&mut Object<'_>)) {
    text.push('{');
    fill(&mut Object(text));
    text.push('}');
}

fn list<T>(text: &mut String, items: impl IntoIterator<Item = T>, write: impl Fn(&mut String, T)) {
    text.push('[');
    for (number, item) in items.into_iter().enumerate() {
        if number > 0 {
            text.push(',');
        }
        write(text, item);
    }
    text.push(']');
}

impl Object<'_> {
    fn key(&mut self, name: &str) {
        if !self.0.ends_with('{') {
            self.0.push(',');
        }
        quote(self.0, name);
        self.0.push(':');
    }

    /// Writes a value that has the same form in JSON and in Rust: a finite number, `true` or `false`.
    fn number(&mut self, name: &str, value: impl Display) {
        self.key(name);
        let _ = write!(self.0, "{value}");
    }

    fn text(&mut self, name: &str, value: &str) {
        self.key(name);
        quote(self.0, value);
    }

    fn list<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        write: impl Fn(&mut Object<'_>, T),
    ) {
        self.key(name);
        list(self.0, items, |text, item| object(text, |object| write(object, item)));
    }
}

fn quote(text: &mut String, value: &str) {
    text.push('"');
    for letter in value.chars() {
        match letter {
            '"' | '\\' => text.extend(['\\', letter]),
            letter if u32::from(letter) < 0x20 => {
                let _ = write!(text, "\\u{:04x}", u32::from(letter));
            }
            letter => text.push(letter),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::stats::Stats;

    fn snapshot(files: Vec<FileStats>) -> Snapshot {
        let degraded = vec!["a \"b\" \\ \n\u{e9}".to_string()];
        Snapshot { at_ns: 5, driver: "uring", degraded, stats: Stats::default(), files }
    }

    #[test]
    fn texts_are_escaped_and_the_line_is_one_line() {
        let line = line(&snapshot(vec![FileStats { path: "/a\u{1}\"".into(), ..FileStats::default() }]));
        assert_eq!(line.matches('\n').count(), 1);
        assert!(line.starts_with("{\"forebay_stats\":1,\"version\":\"") && line.ends_with("}\n"));
        assert!(line.contains(r#""degraded":["a \"b\" \\ \u000aé"]"#), "{line}");
        assert!(line.contains(r#""path":"/a\u0001\"""#), "{line}");
        assert!(line.contains(r#""shards":[],"#), "{line}");
    }

    #[test]
    fn the_busiest_files_are_told_and_the_others_counted() {
        let files = (0..300).map(|reads| FileStats { reads, ..FileStats::default() }).collect();
        let line = line(&snapshot(files));
        assert_eq!(line.matches("\"path\":").count(), FILES_MAX);
        assert!(line.contains("\"files_left_out\":44") && line.contains("\"reads\":299"));
        assert!(!line.contains("\"reads\":43,"), "the least busy are left out");
    }
}
