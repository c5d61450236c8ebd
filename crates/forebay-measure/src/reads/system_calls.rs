//! System calls of this process, counted by the kernel's tracepoint `raw_syscalls:sys_enter`. Nothing
//! stops the process.
//!
//! The counter makes every system call of the machine a little slower while it exists. It therefore exists only in a separate
//! phase, after processor time was measured.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use anyhow::Context as _;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// The first version of `struct perf_event_attr`, which is enough for a plain counter.
#[repr(C)]
#[derive(Debug, Default)]
struct EventAttributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

const KIND_TRACEPOINT: u32 = 2;
const FLAG_INHERIT: u64 = 1 << 1;
const OPEN_CLOEXEC: libc::c_ulong = 8;
const ID_PATH: &str = "events/raw_syscalls/sys_enter/id";

/// A counter of the calls of all threads of the process, and of those that they start, from
/// its creation on.
#[derive(Debug)]
pub struct CallCounter(Vec<File>);

impl CallCounter {
    /// Starts to count.
    ///
    /// # Errors
    /// Fails when the kernel refuses: it needs `CAP_PERFMON`, and a user who may read tracefs.
    pub fn start() -> anyhow::Result<Self> {
        let event = event_number()?;
        let mut counters = Vec::new();
        for entry in std::fs::read_dir("/proc/self/task").context("listing the threads of this process")? {
            let Some(thread) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // A thread that has just ended makes no more calls.
            if let Some(counter) = open(event, thread)? {
                counters.push(counter);
            }
        }
        Ok(Self(counters))
    }

    /// Returns the number of system calls so far.
    ///
    /// # Errors
    /// Fails when the kernel does not return the number.
    pub fn count(&mut self) -> anyhow::Result<u64> {
        let mut sum = 0;
        for counter in &mut self.0 {
            let mut value = [0; 8];
            counter.read_exact(&mut value).context("reading a counter of system calls")?;
            sum += u64::from_ne_bytes(value);
        }
        Ok(sum)
    }
}

fn open(event: u64, thread: libc::pid_t) -> anyhow::Result<Option<File>> {
    let attributes = EventAttributes {
        kind: KIND_TRACEPOINT,
        size: size_of::<EventAttributes>() as u32,
        config: event,
        flags: FLAG_INHERIT,
        ..EventAttributes::default()
    };
    // SAFETY: the kernel reads `size` bytes of a struct that lives until the call returns.
    let counter = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, thread, -1, -1, OPEN_CLOEXEC)
    };
    if counter < 0 {
        let error = std::io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::ESRCH) => Ok(None),
            _ => Err(error).context("the kernel refuses a counter of system calls"),
        };
    }
    // SAFETY: the call succeeded, so this is a new descriptor that nothing else owns.
    Ok(Some(File::from(unsafe { OwnedFd::from_raw_fd(counter as libc::c_int) })))
}

/// Returns the number of the tracepoint, from a mounted tracefs, or from one that is mounted nowhere and
/// disappears with its descriptor.
fn event_number() -> anyhow::Result<u64> {
    for root in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
        if let Ok(text) = std::fs::read_to_string(format!("{root}/{ID_PATH}")) {
            return Ok(text.trim().parse()?);
        }
    }
    let context = "the tracepoints of the kernel cannot be read";
    let tracefs = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC).context(context)?;
    fsconfig_create(tracefs.as_fd()).context(context)?;
    let root = fsmount(tracefs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)
        .context(context)?;
    let id = openat(&root, ID_PATH, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).context(context)?;
    let mut text = String::new();
    File::from(id).read_to_string(&mut text).context(context)?;
    Ok(text.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_another_thread_are_counted_where_the_kernel_counts() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let caller = std::thread::spawn(move || {
            wait.recv().expect("the sender lives");
            (0..1000).filter(|_| std::fs::metadata("/").is_ok()).count()
        });
        // Without the right to count, the error must report that.
        let counter = CallCounter::start();
        go.send(()).expect("the receiver lives");
        assert_eq!(caller.join().expect("it does not panic"), 1000);
        match counter {
            Ok(mut counter) => assert!(counter.count().expect("its number") >= 1000),
            Err(error) => assert!(format!("{error:#}").contains("the kernel"), "{error:#}"),
        }
    }
}
