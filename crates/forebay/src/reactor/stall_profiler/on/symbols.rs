//! From addresses to readable text.

use std::fmt::Write as _;
use std::sync::Arc;

use super::unwind::{FrameAddress, Unwinder};

/// The most bytes of a line: names of generic code can be of any length.
const LINE_BYTES_MAX: usize = 400;

/// Prefixes of the names of the frames that polled the task: nothing from there on is the program's.
const BELOW: [&str; 4] = [
    "<forebay::reactor::shard::executor::",
    "forebay::reactor::shard::executor::",
    "<async_task::",
    "async_task::",
];
/// Prefixes of the frames between the executor and the task's code, which carry no information.
const BETWEEN: [&str; 9] =
    ["core::", "<core::", "std::", "<std::", "alloc::", "<alloc::", "__rust_try", "__rustc", "<&mut "];

/// Returns one line a frame, `function (file:line)`, the innermost first, without the frames of the executor
/// that polled the task; `None` when nothing is left.
pub(super) fn text(places: &[FrameAddress], unwinder: &Unwinder) -> Option<Arc<str>> {
    let mut lines = Vec::new();
    for place in places {
        describe(place.0, unwinder, &mut lines);
    }
    // Where only line tables were kept, inlined functions have no path in their names; their file identifies
    // them.
    let executor =
        file!().strip_suffix("stall_profiler/on/symbols.rs").map(|root| format!("{root}shard/executor"));
    let is_below = |line: &String| {
        begins(line, &BELOW) || executor.as_ref().is_some_and(|folder| line.contains(folder.as_str()))
    };
    if let Some(end) = lines.iter().position(is_below) {
        lines.truncate(end);
        while lines.last().is_some_and(|line| begins(line, &BETWEEN)) {
            lines.pop();
        }
    }
    (!lines.is_empty()).then(|| lines.join("\n").into())
}

fn begins(line: &str, names: &[&str]) -> bool {
    names.iter().any(|name| line.starts_with(name))
}

/// Adds the lines of one address: those of functions that were inlined there are first.
fn describe(address: u64, unwinder: &Unwinder, lines: &mut Vec<String>) {
    let before = lines.len();
    // It expects return addresses, and subtracts one itself.
    let asked = std::ptr::without_provenance_mut(address as usize + 1);
    backtrace::resolve(asked, |symbol| {
        let Some(name) = symbol.name() else { return };
        let mut line = format!("{name:#}");
        cut(&mut line);
        if let (Some(file), Some(number)) = (symbol.filename(), symbol.lineno()) {
            let _ = write!(line, " ({}:{number})", file.display());
        }
        cut(&mut line);
        lines.push(line);
    });
    if lines.len() == before {
        lines.push(format!("{address:#x} ({})", unwinder.module(address).unwrap_or("unknown")));
    }
}

fn cut(line: &mut String) {
    if line.len() > LINE_BYTES_MAX {
        let end = (0..=LINE_BYTES_MAX).rev().find(|&at| line.is_char_boundary(at)).unwrap_or(0);
        line.truncate(end);
        line.push('~');
    }
}
