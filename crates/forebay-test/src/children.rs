//! Processes that do not outlive the one that started them, and those that lack something.
//!
//! A process that a signal or a time limit ends runs no `Drop`: processes that it has started would continue without it.

#[cfg(target_os = "linux")]
use std::ffi::CString;
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};

#[cfg(target_os = "linux")]
use crate::system_calls::{Filter, IO_URING};

pub use libc::{SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGSTOP, SIGTERM};

/// Makes the kernel kill the process that `command` starts, once the thread that starts it has ended in any way.
///
/// The thread must live as long as the process is to: a test's own does, a blocking pool's does not.
#[cfg(target_os = "linux")]
pub fn end_with_parent(command: &mut Command) -> &mut Command {
    let parent = std::process::id();
    let begin = move || {
        // SAFETY: system calls with plain numbers.
        let is_set = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, SIGKILL) } == 0;
        if !is_set {
            return Err(io::Error::last_os_error());
        }
        // The parent may have ended before that call. Process numbers are positive.
        // SAFETY: a system call without arguments.
        if unsafe { libc::getppid() }.cast_unsigned() != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes system calls alone, and allocates nothing.
    unsafe { command.pre_exec(begin) }
}

/// Returns `command` unchanged: outside Linux only the `Drop` of its owner ends the process.
#[cfg(not(target_os = "linux"))]
pub fn end_with_parent(command: &mut Command) -> &mut Command {
    command
}

/// Runs `body` in a forked child and returns its exit code, 255 where it panics.
///
/// # Panics
/// If the child hangs: its alarm ends it.
pub fn in_fork(body: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child runs `body`, which uses the allocator (usable after fork with this C library) and none of the test
    // harness's locks, and leaves by `_exit`.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", io::Error::last_os_error()),
        0 => {
            // SAFETY: alarm(2) and _exit(2) have no pointer arguments.
            unsafe { libc::alarm(30) };
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(255);
            // SAFETY: as above.
            unsafe { libc::_exit(code.into()) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is writable; the child is ours.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "the child was ended by signal {}", libc::WTERMSIG(status));
            libc::WEXITSTATUS(status)
        }
    }
}

/// Sends a signal to a process that was not waited for yet.
///
/// # Errors
/// The process does not exist, or it is another user's.
pub fn signal(child: &Child, signal: i32) -> io::Result<()> {
    // SAFETY: a system call with plain numbers.
    let sent = unsafe { libc::kill(child.id().cast_signed(), signal) };
    if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The kind of a limit: one of libc's `RLIMIT_` constants.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub type Resource = libc::__rlimit_resource_t;
/// The kind of a limit: one of libc's `RLIMIT_` constants.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub type Resource = libc::c_int;

/// Returns the soft and the hard limit of this process.
///
/// # Panics
/// If the system does not have this limit.
pub fn limits(resource: Resource) -> (libc::rlim_t, libc::rlim_t) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit(2) fills the structure.
    assert_eq!(unsafe { libc::getrlimit(resource, &mut limit) }, 0);
    (limit.rlim_cur, limit.rlim_max)
}

/// Sets the soft limit of this process, at most to the hard one, which stays: so it can be raised again.
///
/// # Panics
/// If the system refuses the limit.
pub fn set_limit(resource: Resource, soft: libc::rlim_t) {
    let (_, hard) = limits(resource);
    let limit = libc::rlimit { rlim_cur: soft.min(hard), rlim_max: hard };
    // SAFETY: setrlimit(2) reads the structure.
    assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0, "{}", io::Error::last_os_error());
}

/// Something that a process lacks, from its first instruction on.
#[derive(Clone, Debug)]
pub enum Restriction {
    /// More than so much of a resource: both limits.
    Limit(Resource, libc::rlim_t),
    /// More time than this many seconds: then SIGALRM ends it.
    Time(libc::c_uint),
    /// A capability, by its number in capabilities(7). A user's process has no capabilities.
    #[cfg(target_os = "linux")]
    Capability(libc::c_ulong),
    /// System calls.
    #[cfg(target_os = "linux")]
    Calls(Filter),
    /// What its control group lacks, named by the group's file `cgroup.procs`.
    #[cfg(target_os = "linux")]
    Group(CString),
}

impl Restriction {
    /// Without io_uring and these system calls, as in containers: they fail with EPERM.
    #[cfg(target_os = "linux")]
    pub fn no_io_uring_and(calls: &[libc::c_long]) -> Restriction {
        Restriction::Calls(Filter::refusing(&[&IO_URING, calls].concat(), libc::EPERM))
    }

    /// Removes it from this process. It makes system calls only, and does not allocate.
    fn apply(&self) -> io::Result<()> {
        // SAFETY: system calls with plain numbers, and with a structure, a string and a byte that outlive them.
        let is_done = unsafe {
            match self {
                Restriction::Limit(resource, value) => {
                    let limit = libc::rlimit { rlim_cur: *value, rlim_max: *value };
                    libc::setrlimit(*resource, &limit) == 0
                }
                Restriction::Time(seconds) => {
                    libc::alarm(*seconds);
                    true
                }
                #[cfg(target_os = "linux")]
                Restriction::Capability(number) => {
                    // Not root: the call fails, and nothing is to be dropped.
                    libc::prctl(libc::PR_CAPBSET_DROP, *number, 0, 0, 0);
                    true
                }
                #[cfg(target_os = "linux")]
                Restriction::Calls(filter) => return filter.install(),
                #[cfg(target_os = "linux")]
                Restriction::Group(procs) => {
                    let file = libc::open(procs.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                    file >= 0 && libc::write(file, c"0".as_ptr().cast(), 1) == 1 && libc::close(file) == 0
                }
            }
        };
        if is_done { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Removes these from the process that `command` starts.
pub fn restrict(command: &mut Command, restrictions: Vec<Restriction>) -> &mut Command {
    let begin = move || restrictions.iter().try_for_each(Restriction::apply);
    // SAFETY: between fork and exec it makes system calls alone, and allocates nothing.
    unsafe { command.pre_exec(begin) }
}

/// The variable with the test that a child runs.
const SCENE: &str = "FOREBAY_TEST_SCENE";

/// Returns whether this process is the child that runs this test alone.
pub fn is_child(test: &str) -> bool {
    std::env::var_os(SCENE).is_some_and(|scene| scene == test)
}

/// A test whose body runs in a separate process: this program again. So limits and changes of the process affect no other test.
#[derive(Debug)]
pub struct Scene {
    test: String,
    command: Command,
}

impl Scene {
    /// Returns the scene of a test, by its full name.
    ///
    /// # Panics
    /// If this program's path is unknown.
    pub fn new(test: &str) -> Scene {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"])
            .env(SCENE, test)
            .stdin(Stdio::null());
        end_with_parent(&mut command);
        Scene { test: test.to_owned(), command }
    }

    /// Passes a variable to the child.
    pub fn give(mut self, name: &str, value: impl AsRef<OsStr>) -> Scene {
        self.command.env(name, value);
        self
    }

    /// Puts the child under these restrictions.
    pub fn without(mut self, restrictions: Vec<Restriction>) -> Scene {
        restrict(&mut self.command, restrictions);
        self
    }

    /// Runs `body` if this process is the child, else the child. Parts that it has skipped are printed.
    ///
    /// # Panics
    /// If the child failed, or cannot be started.
    pub fn play(self, body: impl FnOnce()) {
        if is_child(&self.test) {
            return body();
        }
        print_skipped(&self.run().expect("a child"));
    }

    /// Runs the child. Returns its standard output.
    ///
    /// # Errors
    /// It cannot be started: this process may lack the right to remove something, for instance.
    ///
    /// # Panics
    /// If it failed, or ran into [`Restriction::Time`].
    pub fn run(mut self) -> io::Result<String> {
        let (output, test) = (self.command.output()?, self.test);
        let [out, errors] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.signal() != Some(libc::SIGALRM), "{test} hangs:\n{out}\n{errors}");
        assert!(output.status.success(), "{test}: {}\n{out}\n{errors}", output.status);
        assert!(out.contains("1 passed"), "{test} did not run:\n{out}\n{errors}");
        Ok(out)
    }
}

/// Prints the lines of a child's output with `skipped: `.
pub fn print_skipped(output: &str) {
    output.lines().filter(|line| line.contains("skipped: ")).for_each(|line| println!("{line}"));
}

/// Runs `body` in children of this program that may have this many files open, one after the other. `test` is the full name of
/// the test that calls this.
///
/// # Panics
/// If a child fails.
pub fn with_descriptors(test: &str, limits: &[u64], body: impl FnOnce(u64)) {
    const LIMIT: &str = "FOREBAY_TEST_DESCRIPTORS";
    if is_child(test) {
        return body(crate::number_from(LIMIT).expect("the parent gave it"));
    }
    for limit in limits {
        let restrictions = vec![Restriction::Limit(libc::RLIMIT_NOFILE, *limit)];
        println!("with {limit} descriptors");
        Scene::new(test).give(LIMIT, limit.to_string()).without(restrictions).run().expect("a child");
    }
}

/// The variable that is set where [`run_tests`] has removed something.
const RESTRICTED: &str = "FOREBAY_TEST_RESTRICTED";

/// Runs the tests of this program whose names contain one of `names` in a child that lacks these. There [`restricted`] returns `what`.
///
/// # Panics
/// If a test failed, or no test has such a name.
pub fn run_tests(names: &[&str], what: &str, restrictions: Vec<Restriction>) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(names).args(["--include-ignored", "--test-threads=2"]).env_remove("FOREBAY_TEST_DRIVER");
    command.env(RESTRICTED, what);
    let output = end_with_parent(restrict(&mut command, restrictions)).output().expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("test result: ok") && !text.contains(" 0 passed"), "nothing ran:\n{text}");
}

/// Returns what this process lacks, if [`run_tests`] has started it.
pub fn restricted() -> Option<String> {
    std::env::var(RESTRICTED).ok()
}

/// Opens all descriptors that this process has left, until the result is dropped.
pub fn all_descriptors() -> Vec<std::fs::File> {
    std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect()
}
