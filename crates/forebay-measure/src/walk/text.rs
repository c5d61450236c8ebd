//! The method behind the numbers of a table, in words.

use super::super::timers;
use super::super::units::show_bytes;
use super::cells::{Plan, Setting};
use super::index_file::IndexFile;

/// Returns one paragraph for the page.
pub(super) fn method(index_file: &IndexFile, setting: Setting, plan: &Plan, seconds: f64) -> String {
    let (tree, in_flight) = (index_file.tree, plan.in_flight);
    let beside = if setting.timers { format!(" {}", timers::method()) } else { String::new() };
    let around = if index_file.unit_bytes > tree.node_bytes {
        format!(
            " The device reads no less than {} directly, so every direct row reads that much around a node.",
            show_bytes(index_file.unit_bytes)
        )
    } else {
        String::new()
    };
    if plan.as_published {
        return format!(
            "As the published benchmarks count: each lookup makes a file of {} nodes of {} each, descends it from \
             node to node, and removes it, and all of that is in its time. Files are written and read directly, in \
             `tokio-fs` through the page cache, and not synced. Each sample is a fresh process with {in_flight} \
             lookup(s) in flight from {} thread(s), measured for {seconds:.2} s after 0.1 s of warming up; every \
             result is compared with one computed without the file, and the program checks that no file is left. \
             Rows take turns within a repeat, and a figure is the median of the repeats.{beside}",
            setting.depth,
            show_bytes(tree.node_bytes),
            setting.threads,
        );
    }
    format!(
        "Each sample is a fresh process with {in_flight} lookup(s) in flight from {} thread(s), measured for \
         {seconds:.2} s after 0.1 s of warming up. The index has nodes of {} with {} records and {} levels of {} \
         nodes each, so that no level is small enough for a cache: every hop is a read at random within {}, one \
         after the other in a lookup, of which each has {} hops. Every node is checked to be the right one, and \
         every result against one computed without the file. All rows of a repeat look up the same keys, and each \
         repeat has its own.{around} Latency counts from the end of the last lookup, when the next one begins, to \
         the end of the next. CPU is user and system time of all threads of the process, the checking included, \
         divided by the lookups; context switches are voluntary and involuntary ones of all threads; wakes are how \
         often a lookup's task was polled again. Rows take turns within a repeat, and a figure is the median of the \
         repeats.{beside}",
        setting.threads,
        show_bytes(tree.node_bytes),
        tree.fan_out,
        tree.levels,
        tree.nodes,
        show_bytes(tree.file_bytes()),
        setting.depth,
    )
}

/// Returns caveats to read before trusting the numbers.
pub(super) fn notes(plan: &Plan, repeats: usize) -> Vec<String> {
    let wanted = plan.repeats;
    let mut notes = vec![
        "the file has just been written and rows of a repeat read the same nodes: a device, or the host of a virtual \
         machine, that caches serves them from its memory, to all rows alike"
            .to_owned(),
        "`tokio-fs` reads through the page cache, which is emptied of the file before each sample; all \
         other rows go past it"
            .to_owned(),
    ];
    if plan.as_published {
        notes = vec![
            "`tokio-fs` reads its fresh data from the page cache; all other rows write and read past it"
                .to_owned(),
        ];
    }
    if repeats < wanted {
        notes.push(format!("{repeats} of {wanted} repeats were run: the time given was over"));
    }
    notes
}
