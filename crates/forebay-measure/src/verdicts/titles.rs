//! Titles of `measure scan` and `measure random`.

use forebay_report::result::Experiment;
use forebay_report::units::bytes;

/// Returns the title of a scan in headings.
pub(crate) fn scan_title(experiment: &Experiment) -> String {
    match experiment.number("depth") {
        Some(depth) => format!("{}, {depth} x 512 KiB in flight", of_file(experiment)),
        None => of_file(experiment),
    }
}

/// Returns the heading of the scans of all depths.
pub(crate) fn scan_heading(experiment: &Experiment) -> String {
    match experiment.number("depth") {
        Some(_) => format!("{} with more and more in flight", of_file(experiment)),
        None => of_file(experiment),
    }
}

fn of_file(experiment: &Experiment) -> String {
    match experiment.number("file_bytes") {
        Some(file) => format!("Sequential read of {}", bytes(file as u64)),
        None => "Sequential read".to_owned(),
    }
}

/// Returns the title of random reads in headings.
pub(crate) fn random_title(experiment: &Experiment) -> String {
    let depth = experiment.number("depth").map_or_else(String::new, |depth| format!(", {depth} in flight"));
    format!("{}{depth}", random_heading(experiment))
}

/// Returns the heading of the random reads of all depths.
pub(crate) fn random_heading(experiment: &Experiment) -> String {
    let block = experiment
        .number("block_bytes")
        .map_or_else(String::new, |block| format!(" of {}", bytes(block as u64)));
    format!("Random reads{block} over {}", span(experiment))
}

/// Describes the part of the file that random reads went to.
pub(crate) fn span(experiment: &Experiment) -> String {
    let (Some(span), Some(file)) = (experiment.number("span_bytes"), experiment.number("file_bytes")) else {
        return "the file".to_owned();
    };
    if span >= file * 0.999 {
        format!("the whole file ({})", bytes(file as u64))
    } else {
        format!("{} of the file's {}", bytes(span as u64), bytes(file as u64))
    }
}
