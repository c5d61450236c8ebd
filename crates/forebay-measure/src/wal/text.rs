//! The method behind the numbers of a table, in words.

use super::super::timers;
use super::super::units::show_bytes;
use super::cells::{Plan, Setting};
use super::job::{Load, Workload};
use super::load::{SORTED, TASKS_PER_WORKER};

/// Returns one paragraph for the page.
pub(super) fn method(plan: &Plan, setting: Setting, seconds: f64) -> String {
    let what = match plan.batch {
        1 => format!("records of {} bytes", plan.record_bytes),
        batch => format!("batches of {batch} records of {} bytes", plan.record_bytes),
    };
    let workload = match setting.workload {
        Workload::Open { rate } => format!(
            "{rate} appends a second are due at fixed times. A thread of its own, which stands for the network, begins each one \
             where the row allows that, and a task of the runtime awaits it. All times count from when the append was \
             due, however late it was begun (`late`)"
        ),
        Workload::Closed { appenders } => format!(
            "{appenders} task{} of the runtime append one {what} after the other, each when the last one is durable. \
             Times count from the call",
            if appenders == 1 { "" } else { "s" }
        ),
    };
    let load = match setting.load {
        Load::None => "The runtime has nothing else to do.".to_owned(),
        Load::Cpu => format!(
            "The runtime is busy: {} tasks sort {SORTED} numbers in each poll and yield. `work kept` is how many vectors \
             they sorted, divided by how many in the same repeat without any appends.",
            setting.workers() * TASKS_PER_WORKER
        ),
        Load::Timers => timers::method(),
    };
    if plan.as_published {
        return format!(
            "As the published benchmarks count: each append makes a file, writes {what} into it, syncs it \
             (fdatasync) and removes it, and all of that is in its time. `durable` is when the sync was over, with \
             the file's making; `seen` is when the task that awaits it was woken, with its removal. Each sample is a \
             fresh process with a Tokio runtime of {} workers, measured for {seconds:.2} s after 0.1 s of warming \
             up. {workload}. {load} Neither the file's name nor its removal is made durable. After each sample the \
             program checks that as many files were made as appends completed, and that none is left. Rows take \
             turns within a repeat; a figure is the median of the repeats.",
            setting.workers(),
        );
    }
    format!(
        "Each sample is a fresh process with a Tokio runtime of {} workers and a fresh file or log, measured for \
         {seconds:.2} s after 0.1 s of warming up: {what}, each durable (fdatasync) before it completes. {workload}. \
         {load} `durable` is when the write and its flush were over, stamped where that ran: on the log's shard, or \
         on the thread that made the blocking call. `seen` is when the task that awaits it was woken, which the \
         runtime's queue decides. Files and segments of the log have {} and are written through before. After each \
         sample the completed records are looked up. Rows take turns within a repeat; a figure is the median of the \
         repeats.",
        setting.workers(),
        show_bytes(plan.file_bytes),
    )
}
