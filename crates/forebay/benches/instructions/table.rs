//! The table: medians, and how far apart the repeats are.

use std::io::Write as _;

use crate::rows::{Row, Side};
use forebay::DriverChoice;

/// A row and its counts.
pub(crate) struct Line {
    pub(crate) row: &'static Row,
    pub(crate) own: Vec<f64>,
    pub(crate) base: Vec<f64>,
}

impl Line {
    pub(crate) fn new(row: &'static Row) -> Line {
        Line { row, own: Vec::new(), base: Vec::new() }
    }

    fn driver(&self) -> &'static str {
        if self.row.driver == DriverChoice::Threads { "threads" } else { "uring" }
    }

    fn thread(&self) -> &'static str {
        if self.row.side == Side::Caller { "caller" } else { "shard" }
    }

    /// Returns this tree's median divided by the base's.
    pub(crate) fn ratio(&self) -> f64 {
        median(&self.own) / median(&self.base)
    }
}

pub(crate) fn print(lines: &[Line], compared: bool) {
    let base = if compared { " base (min to max) |" } else { "" };
    let ratio = if compared { " ratio |" } else { "" };
    println!("| row | operation | driver | thread |{base} instructions (min to max) |{ratio}");
    println!("|---|---|---|---|---|{}", if compared { "---|---|" } else { "" });
    for line in lines {
        let Line { row, own, base } = line;
        let mut text = format!("| {} | {} | {} | {} |", row.name, row.what, line.driver(), line.thread());
        if compared {
            text += &format!(" {} |", cell(base));
        }
        text += &format!(" {} |", cell(own));
        if compared {
            text += &format!(" {:.4} |", line.ratio());
        }
        println!("{text}");
    }
}

/// Records the table for docs/results, as `forebay_test::record` does, which the base's checkout may lack.
pub(crate) fn record(lines: &[Line], compared: bool) -> std::io::Result<()> {
    let Some(path) = std::env::var_os("FOREBAY_BENCH_ROWS") else { return Ok(()) };
    let mut rows = String::new();
    for line in lines {
        let row = format!("{}, {}, {}", line.row.what, line.driver(), line.thread());
        let mut add = |figure: &str, unit: &str| {
            let (figure, spread) = figure.trim_end_matches(')').split_once(" (").unwrap_or((figure, ""));
            rows += &format!("instructions\t{row}\t{figure}\t{unit}\t{spread}\n");
        };
        if compared {
            add(&cell(&line.base), "before");
            add(&format!("{:.4}", line.ratio()), "ratio");
        }
        add(&cell(&line.own), if compared { "after" } else { "instructions" });
    }
    std::fs::OpenOptions::new().append(true).create(true).open(path)?.write_all(rows.as_bytes())
}

/// Returns the table as JSON, with every single value; names need no escapes.
pub(crate) fn json(lines: &[Line]) -> String {
    let list = |values: &[f64]| {
        let texts: Vec<String> = values.iter().map(|value| format!("{value:.3}")).collect();
        texts.join(", ")
    };
    let rows: Vec<String> = lines
        .iter()
        .map(|line| {
            let Line { row, own, base } = line;
            let (name, driver, thread) = (row.name, line.driver(), line.thread());
            let of = format!(r#""row": "{name}", "driver": "{driver}", "thread": "{thread}""#);
            format!(r#"    {{ {of}, "base": [{}], "instructions": [{}] }}"#, list(base), list(own))
        })
        .collect();
    let rows = rows.join(",\n");
    format!("{{\n  \"unit\": \"instructions per operation\",\n  \"rows\": [\n{rows}\n  ]\n}}\n")
}

fn cell(values: &[f64]) -> String {
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{:.1} ({min:.1} to {max:.1})", median(values))
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
