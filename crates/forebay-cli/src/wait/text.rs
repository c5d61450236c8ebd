//! The report as text.

use std::fmt::Write as _;

use forebay_wait::{Call, File, Method, Report};

use forebay_report::units::{bytes, printable};

/// Returns the text for a terminal: the verdict, the shares, the files, the notes.
pub(super) fn render(report: &Report, files: usize) -> String {
    let mut out = String::new();
    // Writing into a String cannot fail.
    let _ = write(&mut out, report, files);
    out
}

fn write(out: &mut String, report: &Report, files: usize) -> std::fmt::Result {
    writeln!(out, "\nforebay wait: {}", title(report))?;
    for sentence in &report.advice {
        writeln!(out, "- {}", printable(sentence))?;
    }
    writeln!(out)?;
    for (name, value) in figures(report) {
        writeln!(out, "{name:<22} {value}")?;
    }
    let (shown, hidden) = waited_for(report, files);
    let without: Vec<&Call> = report.without_file.iter().filter(|call| call.wait_ns > 0).collect();
    if !shown.is_empty() || !without.is_empty() {
        writeln!(
            out,
            "\n{:<16} {:>9} {:>6} {:>9} {:>10} {:>9} {:>9} {:>6} {:>6}",
            "call", "wait", "share", "count", "bytes", "mean", "longest", "seq.", "cache"
        )?;
    }
    for file in &shown {
        writeln!(out, "{}", printable(&file.path))?;
        for call in &file.calls {
            line(out, call)?;
        }
        writeln!(out, "  {}", device_work(file))?;
    }
    if !without.is_empty() {
        writeln!(out, "without an open file")?;
        for call in without {
            line(out, call)?;
        }
    }
    if let Some(sentence) = hidden {
        writeln!(out, "{sentence}")?;
    }
    for note in &report.notes {
        writeln!(out, "note: {}", printable(note))?;
    }
    Ok(())
}

/// Returns the files to show, and a remark on the others. A file without waits is of no interest here.
pub(super) fn waited_for(report: &Report, files: usize) -> (Vec<&File>, Option<String>) {
    let waited: Vec<&File> = report.files.iter().filter(|file| file.wait_ns > 0).collect();
    let shown: Vec<&File> = waited.iter().copied().take(files).collect();
    let (more, idle) = (waited.len() - shown.len(), report.files.len() - waited.len());
    let sentence = match (more, idle) {
        (0, 0) => return (shown, None),
        (0, idle) => format!("{idle} more files were used without waiting for them; they are in the JSON"),
        (more, idle) => {
            format!("{more} more files with shorter waits and {idle} without are in the JSON (or --limit)")
        }
    };
    (shown, Some(sentence))
}

/// Describes the measured program.
pub(super) fn title(report: &Report) -> String {
    let command = report.command.join(" ");
    let ended = match (report.exit_code, report.signal) {
        (Some(0), _) => String::new(),
        (Some(code), _) => format!(", which ended with code {code}"),
        (None, Some(signal)) => format!(", which signal {signal} ended"),
        (None, None) => format!(" (process {})", report.pid),
    };
    format!("{}{ended}", printable(&command))
}

/// Returns the figures of the whole, by name.
pub(super) fn figures(report: &Report) -> Vec<(&'static str, String)> {
    let pair = |ns, share: f64| format!("{} ({:.1} %)", time(ns), share * 100.0);
    let mut figures = vec![
        ("time", time(report.wall_ns)),
        ("full wait", pair(report.full_wait_ns, report.full_wait_share)),
        ("  may be, besides", pair(report.maybe_full_wait_ns, report.maybe_full_wait_share)),
        ("some wait", pair(report.some_wait_ns, report.some_wait_share)),
        ("  may be, besides", pair(report.maybe_some_wait_ns, report.maybe_some_wait_share)),
    ];
    // Without operations in flight during a sleep the figure is omitted.
    if report.maybe_some_wait_ns == 0 {
        figures.retain(|(name, _)| !name.ends_with("besides"));
    }
    if report.method == Method::Tracepoints {
        figures.push(("  of all threads", time(report.wait_sum_ns)));
        figures.push(("full iowait", pair(report.iowait.full_ns, report.iowait.full_share)));
        figures.push(("some iowait", pair(report.iowait.some_ns, report.iowait.some_share)));
    }
    if let Some(pressure) = report.pressure {
        figures.push(("io.pressure full", pair(pressure.full_ns, pressure.full_share)));
        figures.push(("io.pressure some", pair(pressure.some_ns, pressure.some_share)));
    }
    if let Some(device) = report.device {
        figures.push((
            "full wait, device",
            format!(
                "{} at a block device, {} above it",
                time(device.full_wait_at_device_ns),
                time(device.full_wait_above_ns)
            ),
        ));
    }
    if report.method == Method::Tracepoints {
        figures.push(("followed", format!("{} processes, {} threads", report.processes, report.threads)));
    }
    figures
}

fn line(out: &mut String, call: &Call) -> std::fmt::Result {
    let [wait, share, count, moved, mean, longest, sequential, cache] = cells(call);
    writeln!(
        out,
        "  {:<14} {wait:>9} {share:>6} {count:>9} {moved:>10} {mean:>9} {longest:>9} {sequential:>6} \
         {cache:>6}",
        call.call
    )
}

/// Returns the cells of a row of the table after the call's name.
pub(super) fn cells(call: &Call) -> [String; 8] {
    let percent =
        |share: Option<f64>| share.map_or_else(String::new, |share| format!("{:.0} %", share * 100.0));
    [
        time(call.wait_ns),
        percent(Some(call.wait_share)),
        call.count.to_string(),
        if call.bytes == 0 { String::new() } else { bytes(call.bytes) },
        time(call.time_ns.checked_div(call.count).unwrap_or(0)),
        time(call.longest_ns),
        percent(call.sequential_share),
        percent(call.cache_hit_share),
    ]
}

/// Describes the work of the device for a file.
pub(super) fn device_work(file: &File) -> String {
    let concurrency = if file.calls.iter().any(|call| call.call == "aio") {
        "at once: not known of libaio".to_owned()
    } else {
        format!("{:.1} at once in the mean, {} at most", file.concurrency_mean, file.concurrency_max.max(1))
    };
    if file.device_requests == 0 {
        return format!("{concurrency}; no request at a device");
    }
    format!(
        "{concurrency}; device: {} requests, {} read, {} written, {} each, {} queued each",
        file.device_requests,
        bytes(file.device_read_bytes),
        bytes(file.device_written_bytes),
        time(file.device_ns / file.device_requests),
        time(file.queue_ns / file.device_requests)
    )
}

/// Formats a time with a suitable unit.
pub(super) fn time(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", value / 1e6),
        _ => format!("{:.3} s", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_that_fits() {
        assert_eq!(time(950), "950 ns");
        assert_eq!(time(1_500), "1.5 us");
        assert_eq!(time(2_500_000), "2.50 ms");
        assert_eq!(time(61_000_000_000), "61.000 s");
    }
}
