//! The method of `measure saturate`, in words.

use super::super::io_limit::IoLimit;
use super::super::reads::Shape;
use super::super::units::show_bytes;
use forebay_report::result::Experiment;

/// Returns an experiment of the loop, without its distinguishing parameters, and without rows.
pub(super) fn experiment(shape: &Shape<'_>, kind: &str, repeats: usize) -> Experiment {
    let test_file = shape.test_file;
    let mut experiment = Experiment::new(super::KIND.name, method(shape, kind))
        .parameter("loop", kind)
        .parameter("block_bytes", shape.block_bytes)
        .parameter("file_bytes", test_file.bytes)
        .parameter("workers", shape.workers)
        .parameter("seconds", shape.seconds)
        .parameter("repeats", repeats)
        .parameter("file_system", test_file.filesystem.as_str())
        .parameter("own_file", test_file.pattern.is_some())
        .parameter("seed", shape.context.seed);
    experiment.notes = notes(shape, repeats);
    IoLimit::note(test_file.io_limit.as_ref(), experiment)
}

fn method(shape: &Shape<'_>, kind: &str) -> String {
    let block = show_bytes(shape.block_bytes);
    let cells = "Each sample is a fresh process; the order of all samples of a repeat is shuffled anew, and a figure is \
                 the median of the repeats.";
    if kind == "closed" {
        return format!(
            "Closed loop: each reader reads {block} at random offsets, directly, and begins its next read as the \
             last one ends, for {:.2} s after a warm-up of 0.1 s. {cells} Latency is the caller's wait for its read. \
             CPU is user and system time of all threads of the process.",
            shape.seconds
        );
    }
    format!(
        "Open loop: reads of {block} at random offsets are due at random times (exponentially distributed gaps, as \
         of many independent callers), at a share of the most that the row reached in the closed loop, for {:.2} s \
         after a warm-up of 0.1 s. {cells} The times are fixed beforehand, and latency counts from when a read was \
         due, however late it was begun: a device that falls behind cannot hide it (no coordinated omission). `late` \
         is from when a read was due until it was begun; it is part of the latency. A read that has not completed \
         one second after the end counts with the time that it had waited.",
        shape.seconds
    )
}

fn notes(shape: &Shape<'_>, repeats: usize) -> Vec<String> {
    let mut notes = vec![
        "a drive, a RAID controller or a virtual machine's host may hold the file in memory of its own; then this is the \
         limit of the path to it and not of the medium"
            .to_owned(),
    ];
    if shape.test_file.pattern.is_none() {
        notes.push(
            "the file existed before and was only read: holes, which no device reads, are not known"
                .to_owned(),
        );
    }
    if repeats < 3 {
        notes.push(format!("only {repeats} repeat(s): take small differences for chance"));
    }
    notes
}
