//! Scenes in a separate process, and the kernel scheduler's settings of their threads.

use forebay_test::children::{Restriction, Scene, is_child, print_skipped};

/// A longer child hangs: the kernel ends it with SIGALRM.
const DEADLINE_S: libc::c_uint = 120;
/// Number in capabilities(7) of the one that lifts the limits of priorities.
const CAP_SYS_NICE: libc::c_ulong = 23;

/// Rights of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    /// The rights of this process.
    Same,
    /// Without the capability, and with this `RLIMIT_RTPRIO`.
    Limit(libc::rlim_t),
}

/// Runs the test `name` in a child, where this call runs `body`: no other threads have these names.
pub(crate) fn scene(name: &str, rights: Rights, body: impl FnOnce()) {
    let name = format!("priority::{name}");
    if is_child(&name) {
        return body();
    }
    let mut restrictions = vec![Restriction::Time(DEADLINE_S)];
    if let Rights::Limit(limit) = rights {
        let limit = Restriction::Limit(libc::RLIMIT_RTPRIO, limit);
        restrictions.extend([limit, Restriction::Capability(CAP_SYS_NICE)]);
    }
    match Scene::new(&name).without(restrictions).run() {
        // Raising it needs CAP_SYS_RESOURCE.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            println!("skipped: this process may not raise RLIMIT_RTPRIO");
        }
        output => print_skipped(&output.unwrap()),
    }
}

/// `struct sched_attr`; sched_getattr(2).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SchedAttr {
    size: u32,
    pub(crate) policy: i32,
    flags: u64,
    pub(crate) nice: i32,
    pub(crate) priority: u32,
    pub(crate) slice_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

impl SchedAttr {
    /// Returns the settings of the thread with that number; 0: the calling one.
    pub(crate) fn of(tid: i32) -> SchedAttr {
        let mut found = SchedAttr::default();
        let size = size_of::<SchedAttr>();
        // SAFETY: the structure is valid for writes of the size that is passed.
        let result = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &mut found, size, 0) };
        assert_eq!(result, 0, "thread {tid}: {}", std::io::Error::last_os_error());
        found
    }

    /// Requests `wanted` for the calling thread, and returns the thread's settings after that.
    fn after(wanted: SchedAttr) -> SchedAttr {
        let wanted = SchedAttr { size: size_of::<SchedAttr>() as u32, ..wanted };
        // SAFETY: the structure is valid for reads of the size in its `size` field.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &wanted, 0) };
        SchedAttr::of(0)
    }

    pub(crate) fn is_real_time(&self) -> bool {
        (self.policy, self.priority) == (libc::SCHED_FIFO, 1)
    }

    pub(crate) fn is_prompt(&self) -> bool {
        (self.policy, self.slice_ns) == (libc::SCHED_OTHER, 100_000)
    }
}

/// Returns whether this process may have real-time threads, and whether the kernel supports slices. Tried on a separate thread.
pub(crate) fn kernel_grants() -> (bool, bool) {
    let tried = std::thread::spawn(|| {
        let slice = SchedAttr { slice_ns: 100_000, nice: SchedAttr::of(0).nice, ..SchedAttr::default() };
        let has_slices = SchedAttr::after(slice).is_prompt();
        let real_time = SchedAttr { policy: libc::SCHED_FIFO, priority: 1, ..SchedAttr::default() };
        (SchedAttr::after(real_time).is_real_time(), has_slices)
    });
    tried.join().unwrap()
}

/// Returns this process's threads whose names start with `prefix`.
pub(crate) fn threads_named(prefix: &str) -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap());
    let named = tasks.filter(|task| {
        // A thread may end between the list and the read of its name.
        let name = std::fs::read_to_string(task.path().join("comm"));
        name.is_ok_and(|name| name.starts_with(prefix))
    });
    named.map(|task| task.file_name().to_str().unwrap().parse().unwrap()).collect()
}
