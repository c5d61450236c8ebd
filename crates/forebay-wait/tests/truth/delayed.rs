//! A device with a fixed latency for each request (dm-delay). The truth is the number of requests, and no load changes it where the
//! machine's clock counts instructions.
//!
//! `vm/tests/wait` makes the device and names a folder on it; elsewhere these tests pass.

use std::path::PathBuf;

use crate::place::Directory;
use crate::{BYTES, Run, run};

/// Environment variables with a folder on the device, and its milliseconds for each read, write and flush.
const FOLDER: &str = "FOREBAY_WAIT_DELAYED";
const DELAY: &str = "FOREBAY_WAIT_DELAY_MS";
/// The kernel ends a request at a tick of its clock; Debian's has 250 in a second.
const TICK_NS: u64 = 4_000_000;
const BLOCKS: u64 = 16;

/// Returns whether this is the virtual machine that has such a device, and nothing else to do.
pub fn expected() -> bool {
    std::env::var_os(FOLDER).is_some()
}

struct DelayedDevice {
    /// Removed before the folder that the device is mounted at.
    _directory: Directory,
    file: PathBuf,
    delay_ns: u64,
}

impl DelayedDevice {
    /// Returns `None` where no such device is named. One that is named and does not work is an error.
    fn new() -> Option<Self> {
        let Some(folder) = std::env::var_os(FOLDER) else {
            eprintln!(
                "SKIPPED: {FOLDER} names no folder on a device of a known delay, as vm/tests/wait makes one"
            );
            return None;
        };
        let delay_ms: u64 = std::env::var(DELAY).expect("its delay is named").parse().expect("milliseconds");
        let directory = Directory::within(&PathBuf::from(folder));
        let file = directory.file(BYTES);
        Some(Self { _directory: directory, file, delay_ns: delay_ms * 1_000_000 })
    }

    fn run(&self, what: &str) -> Run {
        run(what, &self.file, None)
    }

    /// Checks that the program's own clock shows the planted wait: this many requests, one after the other.
    #[track_caller]
    fn planted(&self, waited_ns: u64, requests: u64) {
        let (least, most) = (requests * self.delay_ns, requests * (self.delay_ns + TICK_NS) / 100 * 102);
        assert!(
            (least..=most).contains(&waited_ns),
            "{requests} requests take {least} to {most} ns, and the program saw {waited_ns}"
        );
    }
}

/// Checks that a figure is within 5 %, without an allowance for the start.
#[track_caller]
fn right(measured: u64, truth: u64, what: &str) {
    eprintln!("{what}: measured {measured} ns, in truth {truth} ns");
    assert!(measured.abs_diff(truth) <= truth / 20, "{what}: measured {measured} ns, in truth {truth} ns");
}

#[test]
fn delayed_direct_reads_one_at_a_time() {
    let Some(delayed) = DelayedDevice::new() else { return };
    let run = delayed.run("read");
    delayed.planted(run.truth.waited_ns, BLOCKS);
    right(run.report.full_wait_ns, run.truth.waited_ns, "full wait");
    right(run.report.some_wait_ns, run.truth.waited_ns, "some wait");
    right(run.report.wait_sum_ns, run.truth.waited_ns, "the sum over threads");
    right(run.report.iowait.full_ns, run.truth.waited_ns, "full iowait");
    let read = run.call(&delayed.file, "read");
    right(read.wait_ns, run.truth.waited_ns, "the file's wait");
    right(read.time_ns, run.truth.passed_ns, "the calls' time");
    assert_eq!((read.waits, run.file(&delayed.file).concurrency_max), (BLOCKS, 1));
    // The machine has one processor and cgroups of version 2: the kernel's own figure is the same.
    let pressure = run.report.pressure.expect("the command has a cgroup of its own");
    right(pressure.full_ns, run.truth.waited_ns, "io.pressure, full");
    // dm-delay delays a request before the device beneath gets it.
    let device = run.report.device.expect("tracepoints tell");
    assert!(device.full_wait_above_ns > run.report.full_wait_ns / 10 * 9, "{device:?}");
    assert!(run.advice().contains("reads of data.bin, one at a time"), "{}", run.advice());
}

#[test]
fn delayed_faults_on_a_map() {
    let Some(delayed) = DelayedDevice::new() else { return };
    let run = delayed.run("mmap");
    let pages = BYTES as u64 / 4096;
    delayed.planted(run.truth.waited_ns, pages);
    right(run.report.full_wait_ns, run.truth.waited_ns, "full wait");
    let faults = run.call(&delayed.file, "page fault");
    right(faults.wait_ns, run.truth.waited_ns, "the faults' wait");
    assert_eq!((faults.count, faults.waits), (pages, pages));
}

/// A direct write is a request, and fdatasync one more: a flush.
#[test]
fn delayed_writes_and_their_flushes() {
    let Some(delayed) = DelayedDevice::new() else { return };
    let run = delayed.run("write");
    delayed.planted(run.truth.waited_ns, 2 * BLOCKS);
    right(run.report.full_wait_ns, run.truth.waited_ns, "full wait");
    right(run.call(&delayed.file, "write").wait_ns, run.truth.waited_ns / 2, "the writes' wait");
    right(run.call(&delayed.file, "sync").wait_ns, run.truth.waited_ns / 2, "the flushes' wait");
}

/// The same wait in one call, because of how the file was opened.
#[test]
fn delayed_writes_that_are_durable() {
    let Some(delayed) = DelayedDevice::new() else { return };
    let run = delayed.run("dsync");
    delayed.planted(run.truth.waited_ns, 2 * BLOCKS);
    right(run.report.full_wait_ns, run.truth.waited_ns, "full wait");
    let write = run.call(&delayed.file, "write");
    right(write.wait_ns, run.truth.waited_ns, "the writes' wait");
    assert_eq!((write.count, write.durable_share), (BLOCKS, Some(1.0)));
}

/// The wait of the journal's thread is the sync's wait: the block, then the journal's blocks, then the record
/// that ends the commit, with a flush before it. The kernel calls the first of them iowait.
#[test]
fn delayed_syncs_that_commit_the_journal() {
    let Some(delayed) = DelayedDevice::new() else { return };
    let run = delayed.run("fsync");
    let (write, sync) = (run.call(&delayed.file, "write"), run.call(&delayed.file, "sync"));
    assert_eq!((write.count, sync.count), (64, 64));
    assert!(run.truth.waited_ns >= 64 * 3 * delayed.delay_ns, "{:?}", run.truth);
    right(run.report.full_wait_ns, run.truth.waited_ns, "full wait");
    right(sync.wait_ns, run.truth.waited_ns, "the syncs' wait");
    assert!(run.report.iowait.full_ns < run.report.full_wait_ns / 2, "{:?}", run.report.iowait);
    assert!(run.advice().contains("not iowait"), "{}", run.advice());
}

/// Eight threads are stalled at the same time: that is one time of full wait, and eight of the sum.
#[test]
fn delayed_reads_of_eight_threads() {
    let Some(delayed) = DelayedDevice::new() else { return };
    let run = delayed.run("together");
    delayed.planted(run.truth.waited_ns, 8 * BLOCKS);
    right(run.report.full_wait_ns, run.truth.waited_ns / 8, "full wait");
    right(run.report.wait_sum_ns, run.truth.waited_ns, "the sum over threads");
    let file = run.file(&delayed.file);
    right(file.wait_ns, run.truth.waited_ns, "the file's wait");
    assert_eq!(file.concurrency_max, 8);
    assert!((7.6..=8.4).contains(&file.concurrency_mean), "{}", file.concurrency_mean);
}

/// The program's thread waits for the shard, which is idle; the shard for its ring, which is the wait.
#[test]
fn delayed_reads_by_a_ring_one_at_a_time() {
    let Some(delayed) = DelayedDevice::new() else { return };
    let run = delayed.run("forebay");
    delayed.planted(run.truth.passed_ns, BLOCKS);
    right(run.report.full_wait_ns, run.truth.passed_ns, "full wait");
    let file = run.file(&delayed.file);
    // Its files are registered, and so identified only by a place in the ring's table.
    right(file.wait_ns, run.truth.passed_ns, "the file's wait");
    assert_eq!(file.concurrency_max, 1);
}

/// The ring's only thread sleeps in epoll.
#[test]
fn delayed_reads_by_a_ring_behind_epoll() {
    let Some(delayed) = DelayedDevice::new() else { return };
    let run = delayed.run("ring-epoll");
    delayed.planted(run.truth.waited_ns, BLOCKS);
    right(run.report.full_wait_ns, run.truth.waited_ns, "full wait");
    right(run.report.wait_sum_ns, run.truth.waited_ns, "the sum over threads");
    right(run.call(&delayed.file, "io_uring read").wait_ns, run.truth.waited_ns, "the file's wait");
    // The rest is certain: only microseconds pass between a completion and its settling.
    let maybe_ns = run.report.maybe_full_wait_ns;
    assert!(maybe_ns < run.truth.waited_ns / 1000, "{maybe_ns} ns may be a wait");
}

#[test]
fn delayed_reads_by_a_ring_eight_at_a_time() {
    let Some(delayed) = DelayedDevice::new() else { return };
    let run = delayed.run("deep");
    delayed.planted(run.truth.passed_ns, BLOCKS);
    right(run.report.full_wait_ns, run.truth.passed_ns, "full wait");
    let file = run.file(&delayed.file);
    assert_eq!((file.bytes, file.concurrency_max), (8 * BYTES as u64, 8));
}
