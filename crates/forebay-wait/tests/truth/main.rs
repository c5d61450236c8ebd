//! Compares measurements with programs that record how long they waited.
//!
//! These tests load BPF programs, make cgroups and mount FUSE. Where that is refused they print the missing
//! requirement, and pass.

#![cfg(target_os = "linux")]
#![allow(unreachable_pub, missing_docs, reason = "a test's own modules")]

mod asleep;
mod delayed;
mod place;
mod workload;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_wait::{Call, File, Method, PauseOutcome, Report};
use place::{Directory, Late, Throttle};
use workload::{DOOR, ON, TRUTH, Truth, WHAT};

const RATE: u64 = 1 << 20;
const BYTES: usize = 1 << 20;

/// Prints why a test cannot be made here, and ends it.
macro_rules! need {
    ($what:expr) => {
        match $what {
            Ok(value) => value,
            Err(missing) => {
                eprintln!("SKIPPED: {missing}");
                return;
            }
        }
    };
}

fn may_measure() -> Result<(), String> {
    forebay_wait::probe().map_err(|error| error.to_string())
}

/// A workload in its own process, with the report and the workload's own record.
struct Run {
    report: Report,
    truth: Truth,
}

fn run(what: &str, on: &Path, throttle: Option<&Throttle>) -> Run {
    let notes = Directory::new();
    let told = notes.path().join("truth");
    let (status, report) = start(what, on, throttle, &told);
    assert_eq!(status, Some(0), "{report:#?}");
    assert_eq!(report.method, Method::Tracepoints);
    assert_eq!((report.lost.calls, report.lost.operations), (0, 0));
    Run { truth: workload::truth(&told), report }
}

fn start(what: &str, on: &Path, throttle: Option<&Throttle>, told: &Path) -> (Option<i32>, Report) {
    let mut command: Vec<OsString> = vec!["env".into()];
    let mut set = |name: &str, value: &Path| {
        let mut word = OsString::from(format!("{name}="));
        word.push(value);
        command.push(word);
    };
    set(WHAT, Path::new(what));
    set(ON, on);
    set(TRUTH, told);
    if let Some(throttle) = throttle {
        set(DOOR, &throttle.door());
    }
    command.push(std::env::current_exe().expect("it runs").into());
    command.extend(["--exact", "workload", "--ignored"].map(OsString::from));
    let report = forebay_wait::run(&command, |_| ()).expect("it can be measured");
    (report.exit_code, report)
}

impl Run {
    fn file(&self, path: &Path) -> &File {
        let wanted = path.to_str().expect("a readable path");
        self.report
            .files
            .iter()
            .find(|file| wanted.ends_with(file.path.trim_start_matches("...")))
            .unwrap_or_else(|| panic!("{wanted} is not in {:#?}", self.report))
    }

    fn call(&self, path: &Path, name: &str) -> &Call {
        let file = self.file(path);
        file.calls.iter().find(|call| call.call == name).unwrap_or_else(|| panic!("no {name} in {file:#?}"))
    }

    /// Returns the waits for anything but this file: the program's own pages, say, when they are not in
    /// memory. Their length depends on the machine's other load, and the truth does not have them.
    fn elsewhere(&self, path: &Path) -> u64 {
        self.report.wait_sum_ns.saturating_sub(self.file(path).wait_ns)
    }

    /// Checks that a figure of the whole program is its wait for this file, or that plus its other waits.
    #[track_caller]
    fn whole(&self, measured: u64, path: &Path, what: &str) {
        within(measured, self.truth.waited_ns, self.truth.waited_ns + self.elsewhere(path), what);
    }

    /// Checks a time from entry to return: it is at least the wait; in between calls others may have had the
    /// processor.
    #[track_caller]
    fn in_calls(&self, measured: u64) {
        within(measured, self.truth.waited_ns, self.truth.passed_ns, "the calls' time");
    }

    /// Returns whether nearly all requests at the devices were for the program's own files. Those of the kernel's threads count as
    /// well, and a machine with other writers always has them; the virtual machine has no others.
    fn alone(&self) -> bool {
        let device = self.report.device.expect("tracepoints tell");
        let own: u64 = self.report.files.iter().map(|file| file.device_ns).sum();
        let alone = device.busy_ns <= own + self.report.wall_ns / 20;
        assert!(alone || !delayed::expected(), "something else was at the devices: {device:?}");
        if !alone {
            eprintln!("NOT CHECKED: requests of others were at the devices for {} ns", device.busy_ns - own);
        }
        alone
    }

    fn advice(&self) -> String {
        self.report.advice.join("\n")
    }
}

/// Checks that a figure is within 5 %, plus the error of the truth itself.
#[track_caller]
fn same(measured: u64, truth: u64, what: &str) {
    within(measured, truth, truth, what);
}

/// Checks a figure that has two truths, which are one where the machine has nothing else to do.
#[track_caller]
fn within(measured: u64, least: u64, most: u64, what: &str) {
    // The kernel adds up how long a thread ran at the ticks of its clock, at 100 to 1,000 ticks a second.
    const TICK_NS: u64 = 10_000_000;
    let told = || format!("{what}: measured {measured} ns, in truth {least} to {most} ns");
    eprintln!("{}", told());
    assert!(measured + least / 20 + TICK_NS >= least, "{}", told());
    assert!(measured <= most + most / 20 + TICK_NS, "{}", told());
}

fn throttled() -> Result<(Directory, PathBuf, Throttle), String> {
    may_measure()?;
    let directory = Directory::new();
    let throttle = Throttle::new(directory.path(), RATE)?;
    let file = directory.file(BYTES);
    Ok((directory, file, throttle))
}

#[test]
#[ignore = "a workload that the other tests start in a process of its own"]
fn workload() {
    workload::run();
}

#[test]
fn a_direct_read_waits_as_long_as_the_throttle_says() {
    let (_directory, file, throttle) = need!(throttled());
    let run = run("read", &file, Some(&throttle));
    // 1 MiB at 1 MiB a second; the kernel lets the first slice of 0.1 s pass early.
    assert!(run.truth.passed_ns > 850_000_000, "{:?}", run.truth);
    run.whole(run.report.full_wait_ns, &file, "full wait");
    run.whole(run.report.some_wait_ns, &file, "some wait");
    let read = run.call(&file, "read");
    same(read.wait_ns, run.truth.waited_ns, "the file's wait");
    run.in_calls(read.time_ns);
    assert_eq!((read.count, read.bytes), (17, BYTES as u64));
    assert_eq!(read.sizes.len(), 1);
    assert_eq!(read.sizes[0].up_to_bytes, 64 << 10);
    assert_eq!(read.direct_share, Some(1.0));
    assert!(read.sequential_share.is_some_and(|share| share >= 0.9), "{read:?}");
    assert_eq!(run.file(&file).concurrency_max, 1);
    if run.alone() {
        let device = run.report.device.expect("tracepoints tell");
        assert!(
            device.full_wait_above_ns > run.report.full_wait_ns / 2,
            "throttling is above the device: {device:?}"
        );
    }
    assert!(run.advice().contains("reads of data.bin, one at a time"), "{}", run.advice());
}

/// Compares with the kernel's own figure of the same wait, if available. On one processor: PSI weighs the waits on each by the time
/// that it was used, so a single thread that moves between two of them shows as half of its wait. A program bound to one processor
/// only after its start had waited for another processor before, for long on a busy machine: so it starts there.
#[test]
fn iowait_is_what_io_pressure_says() {
    let (_directory, file, throttle) = need!(throttled());
    workload::stay_here();
    let run = run("read", &file, Some(&throttle));
    let pressure = need!(run.report.pressure.ok_or_else(|| run.report.notes.join("; ")));
    same(run.report.iowait.full_ns, pressure.full_ns, "full iowait against io.pressure");
    same(run.report.iowait.some_ns, pressure.some_ns, "some iowait against io.pressure");
}

#[test]
fn buffered_reads_wait_and_are_no_cache_hits() {
    let (_directory, file, throttle) = need!(throttled());
    let run = run("buffered", &file, Some(&throttle));
    run.whole(run.report.full_wait_ns, &file, "full wait");
    let read = run.call(&file, "read");
    same(read.wait_ns, run.truth.waited_ns, "the file's wait");
    assert_eq!(read.direct_share, Some(0.0));
    assert_eq!(read.bytes, BYTES as u64);
    assert!(run.file(&file).device_read_bytes <= 2 * BYTES as u64);
}

/// Regression: the waits of sendfile and splice were in the row `elsewhere`, without a file.
fn a_copy_is_a_wait_for_its_source(what: &str) {
    let (_directory, file, throttle) = need!(throttled());
    let run = run(what, &file, Some(&throttle));
    run.whole(run.report.full_wait_ns, &file, "full wait");
    let copy = run.call(&file, "copy");
    same(copy.wait_ns, run.truth.waited_ns, "the file's wait");
    assert_eq!((copy.bytes, copy.errors, copy.direct_share), (BYTES as u64, 0, Some(0.0)));
}

#[test]
fn sendfile_is_a_wait_for_its_source() {
    a_copy_is_a_wait_for_its_source("sendfile");
}

#[test]
fn splice_into_a_pipe_is_a_wait_for_its_source() {
    a_copy_is_a_wait_for_its_source("splice");
}

#[test]
fn copy_file_range_is_a_wait_for_its_source() {
    a_copy_is_a_wait_for_its_source("copy");
}

/// The sleep is in a call on a file, and for the pipe.
#[test]
fn a_splice_into_a_full_pipe_does_not_wait_for_its_file() {
    need!(may_measure());
    let directory = Directory::new();
    let file = directory.file(BYTES);
    let run = run("full-pipe", &file, None);
    let copy = run.call(&file, "copy");
    assert_eq!(copy.bytes, BYTES as u64);
    // The sleep counted as a wait would reach this limit.
    assert!(u128::from(copy.wait_ns) < workload::SLEEP.as_nanos() / 2, "{copy:?}");
}

#[test]
fn what_is_in_memory_is_a_cache_hit_without_a_wait() {
    need!(may_measure());
    let directory = Directory::new();
    let file = directory.file(BYTES);
    drop(std::fs::read(&file).expect("it is there"));
    let run = run("cached", &file, None);
    let read = run.call(&file, "read");
    assert_eq!(read.wait_ns, 0, "{read:?}");
    assert_eq!(read.cache_hit_share, Some(1.0));
    assert_eq!(read.bytes, BYTES as u64);
}

#[test]
fn faults_on_a_map_wait() {
    let (_directory, file, throttle) = need!(throttled());
    let run = run("mmap", &file, Some(&throttle));
    run.whole(run.report.full_wait_ns, &file, "full wait");
    let faults = run.call(&file, "page fault");
    same(faults.wait_ns, run.truth.waited_ns, "the faults' wait");
    assert_eq!(faults.count, BYTES as u64 / 4096);
    assert!(run.advice().contains("page faults on data.bin"), "{}", run.advice());
}

#[test]
fn writes_and_syncs_are_told_apart() {
    let (_directory, file, throttle) = need!(throttled());
    let run = run("write", &file, Some(&throttle));
    run.whole(run.report.full_wait_ns, &file, "full wait");
    let (write, sync) = (run.call(&file, "write"), run.call(&file, "sync"));
    assert_eq!((write.count, write.bytes, sync.count), (16, BYTES as u64, 16));
    assert_eq!((write.durable_share, sync.durable_share), (Some(0.0), None));
    run.in_calls(write.time_ns + sync.time_ns);
    same(write.wait_ns + sync.wait_ns, run.truth.waited_ns, "the calls' wait");
    // A thread of the kernel releases throttled requests, and not all can be attributed to this file.
    assert!(run.file(&file).device_written_bytes <= BYTES as u64);
}

/// The write itself waits. The measurement did not show whether it had to, and so the report advised both: to
/// let several share a sync, and a faster device.
#[test]
fn writes_that_return_when_they_are_durable_are_told_so() {
    let (_directory, file, throttle) = need!(throttled());
    let run = run("dsync", &file, Some(&throttle));
    run.whole(run.report.full_wait_ns, &file, "full wait");
    let write = run.call(&file, "write");
    same(write.wait_ns, run.truth.waited_ns, "the writes' wait");
    assert_eq!((write.count, write.durable_share, write.direct_share), (16, Some(1.0), Some(0.0)));
    assert!(
        run.advice().contains("64 KiB writes to data.bin that return only when they are durable"),
        "{}",
        run.advice()
    );
}

#[test]
fn a_write_can_be_durable_by_a_flag_of_the_call() {
    need!(may_measure());
    let directory = Directory::new();
    let file = directory.file(BYTES);
    let run = run("flags", &file, None);
    let write = run.call(&file, "write");
    assert_eq!((write.count, write.durable_share), (4, Some(0.25)));
}

#[test]
fn writes_by_a_ring_are_told_apart_as_well() {
    need!(may_measure());
    let directory = Directory::new();
    let file = directory.file(BYTES);
    let run = run("ring", &file, None);
    let write = run.call(&file, "io_uring write");
    assert_eq!((write.count, write.durable_share.map(|share| (share * 3.0).round())), (3, Some(2.0)));
    assert_eq!(run.call(&file, "io_uring read").durable_share, None);
}

/// Nothing limits the device here: the truth is the length of this machine's syncs.
#[test]
fn syncs_of_what_is_in_the_page_cache_wait_in_the_sync() {
    need!(may_measure());
    let directory = Directory::new();
    let file = directory.file(BYTES);
    let run = run("fsync", &file, None);
    run.whole(run.report.full_wait_ns, &file, "full wait");
    let (write, sync) = (run.call(&file, "write"), run.call(&file, "sync"));
    assert_eq!((write.count, write.bytes, sync.count), (64, 64 * 4096, 64));
    same(write.wait_ns + sync.wait_ns, run.truth.waited_ns, "the calls' wait");
    assert!(sync.wait_ns >= write.wait_ns, "{write:?} {sync:?}");
}

#[test]
fn threads_that_wait_together_are_full_wait_once_and_summed() {
    let (_directory, file, throttle) = need!(throttled());
    let run = run("threads", &file, Some(&throttle));
    same(run.file(&file).wait_ns, run.truth.waited_ns, "the file's wait");
    run.whole(run.report.wait_sum_ns, &file, "the sum over threads");
    assert!(run.report.full_wait_ns <= run.report.wall_ns);
    assert!(run.report.wait_sum_ns > 3 * run.report.full_wait_ns, "{:#?}", run.report);
    assert_eq!(run.file(&file).concurrency_max, 8);
    assert!(run.report.threads >= 9);
}

/// Full wait is a claim about all threads: one that computes refutes it.
#[test]
fn a_thread_that_computes_makes_it_some_wait_only() {
    let (_directory, file, throttle) = need!(throttled());
    let run = run("computing", &file, Some(&throttle));
    run.whole(run.report.some_wait_ns, &file, "some wait");
    within(run.report.full_wait_ns, 0, run.elsewhere(&file), "full wait, before the other thread began");
}

#[test]
fn sleeping_is_not_waiting_for_io() {
    need!(may_measure());
    let run = run("sleeping", Path::new("/"), None);
    // A single sleep counted as a wait would reach this limit; the time for the program's own pages depends
    // on the machine.
    assert!(run.truth.passed_ns >= workload::SLEEP.as_nanos() as u64);
    assert!(u128::from(run.report.wait_sum_ns) < workload::SLEEP.as_nanos(), "{:#?}", run.report);
}

#[test]
fn processes_that_a_process_starts_are_followed() {
    let (_directory, file, throttle) = need!(throttled());
    let run = run("children", &file, Some(&throttle));
    run.whole(run.report.full_wait_ns, &file, "full wait");
    assert_eq!(run.call(&file, "read").bytes, 2 * BYTES as u64);
    assert!(run.report.processes >= 3, "{}", run.report.processes);
}

#[test]
fn tokio_fs_waits_in_its_threads_while_its_workers_are_idle() {
    let (_directory, file, throttle) = need!(throttled());
    let run = run("tokio", &file, Some(&throttle));
    let most = run.truth.passed_ns + run.elsewhere(&file);
    within(run.report.full_wait_ns, run.truth.waited_ns, most, "full wait");
    assert!(run.call(&file, "read").wait_ns > run.truth.waited_ns / 20 * 19);
}

#[test]
fn a_ring_that_waits_for_files_is_a_wait() {
    let (_directory, file, throttle) = need!(throttled());
    let run = run("forebay", &file, Some(&throttle));
    let elsewhere_ns = run.elsewhere(&file);
    let most = run.truth.passed_ns + elsewhere_ns;
    within(run.report.full_wait_ns, run.truth.waited_ns, most, "full wait");
    let file = run.file(&file);
    let reads: u64 = file.calls.iter().filter(|call| call.call.contains("read")).map(|call| call.bytes).sum();
    assert_eq!(reads, BYTES as u64, "{file:#?}");
    // The truth has all waits of the process, also those for its own pages.
    let waited_ns = run.truth.waited_ns;
    assert!(
        file.wait_ns + elsewhere_ns > waited_ns / 20 * 19,
        "{waited_ns}, {elsewhere_ns} elsewhere: {file:#?}"
    );
}

/// Regression: a program that waits for its ring through epoll, as each on the feature `tokio` does, was told that it stood still in
/// less than 1 % of its time and that faster storage would save no more than 104 us, where it had slept for 0.5 s of 1 s until its
/// reads completed: the sleep was in no call on a file. Here, too, the figure was nothing.
fn a_ring_is_waited_for(what: &str) {
    let (_directory, file, throttle) = need!(throttled());
    let run = run(what, &file, Some(&throttle));
    assert!(run.truth.waited_ns > 700_000_000, "{:?}", run.truth);
    run.whole(run.report.full_wait_ns, &file, "full wait");
    run.whole(run.report.some_wait_ns, &file, "some wait");
    run.whole(run.report.wait_sum_ns, &file, "the sum over threads");
    within(run.report.maybe_full_wait_ns, 0, 0, "what may be, besides");
    same(run.call(&file, "io_uring read").wait_ns, run.truth.waited_ns, "the file's wait");
    assert!(run.advice().contains("reads of data.bin, one at a time"), "{}", run.advice());
    assert!(!run.advice().contains("save no more"), "{}", run.advice());
}

#[test]
fn a_ring_is_waited_for_in_its_own_call() {
    a_ring_is_waited_for("ring-enter");
}

#[test]
fn a_ring_is_waited_for_in_epoll() {
    a_ring_is_waited_for("ring-epoll");
}

#[test]
fn a_ring_is_waited_for_in_poll() {
    a_ring_is_waited_for("ring-poll");
}

#[test]
fn a_ring_is_waited_for_in_select() {
    a_ring_is_waited_for("ring-select");
}

#[test]
fn a_ring_is_waited_for_in_a_read_of_its_eventfd() {
    a_ring_is_waited_for("ring-eventfd");
}

/// Both threads sleep until the read is there: that is one wait.
#[test]
fn a_thread_that_a_ring_s_thread_wakes_does_not_count_again() {
    a_ring_is_waited_for("ring-passed-on");
}

/// Regression: as with a ring, and the operations of libaio have no tracepoint; their waits had no file.
fn libaio_is_waited_for(what: &str) {
    let (_directory, file, throttle) = need!(throttled());
    let run = run(what, &file, Some(&throttle));
    assert!(run.truth.waited_ns > 700_000_000, "{:?}", run.truth);
    run.whole(run.report.full_wait_ns, &file, "full wait");
    let aio = run.call(&file, "aio");
    same(aio.wait_ns, run.truth.waited_ns, "the operations' wait");
    // Each block is one call that submits it, and one that collects its event.
    assert_eq!(aio.count, 2 * (BYTES / workload::BLOCK) as u64);
    assert!(run.advice().contains("operations of libaio on data.bin"), "{}", run.advice());
}

#[test]
fn libaio_is_waited_for_in_its_own_call() {
    libaio_is_waited_for("libaio");
}

#[test]
fn libaio_is_waited_for_in_epoll() {
    libaio_is_waited_for("libaio-epoll");
}

#[test]
fn events_of_libaio_have_the_files_of_their_operations() {
    need!(may_measure());
    let directory = Directory::new();
    let file = directory.file(BYTES);
    let run = run("libaio-files", &file, None);
    let blocks = (BYTES / workload::BLOCK) as u64;
    let (first, second) = (run.call(&file, "aio"), run.call(&file.with_file_name("other.bin"), "aio"));
    assert_eq!((first.count, second.count), (blocks, blocks));
    // A call that submits operations on both is one on neither.
    let submits = run.report.without_file.iter().find(|call| call.call == "aio").expect("they have a row");
    assert_eq!(submits.count, blocks);
    let waited_ns = first.wait_ns + second.wait_ns + submits.wait_ns;
    same(waited_ns, run.truth.waited_ns, "the operations' wait");
}

/// The cause of the sleep's end is not visible here: a call on a socket continues to sleep when a completion interrupts it. So it
/// may be a wait, as long as a read was in flight, and no bound leaves it out.
#[test]
fn a_sleep_beside_a_read_may_be_a_wait() {
    let (_directory, file, throttle) = need!(throttled());
    let run = run("ring-socket", &file, Some(&throttle));
    let reads = run.call(&file, "io_uring read");
    assert!(reads.time_ns > 700_000_000, "{reads:?}");
    // Awake it may wait for a processor, also while the read is in flight.
    within(run.report.maybe_full_wait_ns, run.truth.waited_ns, reads.time_ns, "what may be, besides");
    within(run.report.full_wait_ns, 0, run.elsewhere(&file), "full wait");
    assert!(run.advice().contains("may be for something else"), "{}", run.advice());
    assert!(!run.advice().contains("save no more"), "{}", run.advice());
}

/// Regression: an idle server was one that waits for I/O when it sleeps for its sockets in io_uring_enter, which the kernel calls
/// iowait, or in io_getevents.
#[test]
fn an_idle_program_without_reads_in_flight_does_not_wait() {
    need!(may_measure());
    let run = run("idle", Path::new("/"), None);
    assert!(run.truth.passed_ns >= workload::SLEEP.as_nanos() as u64);
    let report = &run.report;
    // A single sleep counted as a wait would reach this limit.
    let figures = report.wait_sum_ns + report.maybe_some_wait_ns;
    assert!(u128::from(figures) < workload::SLEEP.as_nanos() / 2, "{report:#?}");
}

#[test]
fn a_futex_beside_a_read_of_another_thread_counts_once() {
    let (_directory, file, throttle) = need!(throttled());
    let run = run("pool", &file, Some(&throttle));
    run.whole(run.report.full_wait_ns, &file, "full wait");
    run.whole(run.report.wait_sum_ns, &file, "the sum over threads");
    within(run.report.maybe_some_wait_ns, 0, 0, "what may be, besides");
}

/// The feature `tokio`: each worker of the runtime has a ring, and sleeps in epoll or in a futex.
#[test]
fn rings_of_a_runtimes_workers_are_waited_for() {
    let (_directory, file, throttle) = need!(throttled());
    let run = run("workers", &file, Some(&throttle));
    assert!(run.truth.passed_ns > 700_000_000, "{:?}", run.truth);
    let most = run.truth.passed_ns + run.elsewhere(&file);
    let measured = run.report.full_wait_ns + run.report.maybe_full_wait_ns;
    within(measured, run.truth.waited_ns, most, "full wait, with what may be");
    assert!(run.report.full_wait_ns > run.truth.waited_ns / 10 * 9, "{:#?}", run.report);
}

/// The reader of a FUSE file sleeps without the kernel calling it iowait; it is stalled all the same.
#[test]
fn a_late_file_system_is_a_wait_above_the_device() {
    need!(may_measure());
    let late = need!(Late::new(Duration::from_millis(40)));
    let run = run("read", &late.file(), None);
    // 16 reads with data and one at the end.
    assert!(run.truth.waited_ns >= 16 * 40_000_000, "{:?}", run.truth);
    run.whole(run.report.full_wait_ns, &late.file(), "full wait");
    same(run.call(&late.file(), "read").wait_ns, run.truth.waited_ns, "the file's wait");
    assert!(run.report.iowait.full_ns <= run.elsewhere(&late.file()), "{:#?}", run.report);
    assert!(run.advice().contains("not iowait"), "{}", run.advice());
    if run.alone() {
        assert!(run.advice().contains("no request was at a block device"), "{}", run.advice());
    }
}

/// Regression: sendfile from FUSE was in the row `elsewhere`.
#[test]
fn sendfile_from_a_late_file_system_is_a_wait_for_its_file() {
    need!(may_measure());
    let late = need!(Late::new(Duration::from_millis(40)));
    let run = run("sendfile", &late.file(), None);
    assert!(run.truth.waited_ns >= 40_000_000, "{:?}", run.truth);
    run.whole(run.report.full_wait_ns, &late.file(), "full wait");
    let copy = run.call(&late.file(), "copy");
    assert_eq!(copy.bytes, BYTES as u64);
    same(copy.wait_ns, run.truth.waited_ns, "the file's wait");
}

#[test]
fn a_running_process_can_be_watched() {
    let (_directory, file, throttle) = need!(throttled());
    let mut child = std::process::Command::new(std::env::current_exe().expect("it runs"))
        .args(["--exact", "workload", "--ignored"])
        .env(WHAT, "endless")
        .env(ON, &file)
        .env(DOOR, throttle.door())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    // It reads once it has entered the cgroup and opened the file.
    let descriptors = format!("/proc/{}/fd", child.id());
    let opened = || {
        std::fs::read_dir(&descriptors).is_ok_and(|mut all| {
            all.any(|entry| {
                entry.is_ok_and(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to == file))
            })
        })
    };
    while !opened() {
        std::thread::yield_now();
    }
    let pause = |time| {
        std::thread::sleep(time);
        PauseOutcome::Going
    };
    // The time that its threads ran and were runnable meanwhile; all of its other time was waiting.
    let before = workload::scheduled_of(child.id());
    let report = forebay_wait::watch(child.id(), Duration::from_millis(1500), pause);
    let scheduled = workload::scheduled_of(child.id()) - before;
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let report = report.expect("it can be measured");
    assert!(report.wall_ns >= 1_500_000_000);
    // The loading of the programs, before the measurement starts, is in its scheduled time.
    within(report.full_wait_ns, report.wall_ns.saturating_sub(scheduled), report.wall_ns, "full wait");
    assert!(report.files.iter().any(|file| file.path.ends_with("data.bin")), "{report:#?}");
}

#[test]
fn a_command_that_does_not_exist_is_told() {
    need!(may_measure());
    let error = forebay_wait::run(&["forebay-no-such-program".into()], |_| ()).expect_err("there is none");
    assert!(error.to_string().contains("there is no program forebay-no-such-program"), "{error}");
}

#[test]
fn a_process_that_does_not_exist_is_told() {
    let error = forebay_wait::watch(4_000_000_000, Duration::from_secs(1), |_| PauseOutcome::Going)
        .expect_err("there is none");
    assert!(error.to_string().contains("there is no process 4000000000"), "{error}");
}
