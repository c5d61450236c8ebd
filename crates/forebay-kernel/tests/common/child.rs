//! Children: programs that end with their test, and forks with the address space that they have.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_test::children::end_with_parent;

/// Locked while a child is born. Until it runs its program it has what this process has open, and a program that is open for writing
/// cannot be run.
static BIRTH: Mutex<()> = Mutex::new(());

/// Lets no child of this process be born until it is dropped.
pub(crate) fn no_births() -> MutexGuard<'static, ()> {
    BIRTH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a program that ends with the test that starts it. A change of its user removes that link.
pub(crate) fn spawn(command: &mut Command) -> Child {
    let _turn = no_births();
    end_with_parent(command).spawn().expect("another process")
}

/// Waits until no other test of this program has its turn, in any process. The turn ends when this is dropped.
pub(crate) fn turn() -> File {
    let program = File::open(std::env::current_exe().expect("this test has a file")).expect("it can be read");
    // SAFETY: the call touches no memory.
    let taken = unsafe { libc::flock(program.as_raw_fd(), libc::LOCK_EX) };
    assert_eq!(taken, 0, "{}", std::io::Error::last_os_error());
    program
}

/// Runs `body` in a forked child, and asserts that it returns `None` there, or fails with what it returns.
pub(crate) fn in_child(body: impl FnOnce() -> Option<String>) {
    // SAFETY: the child uses the allocator, which this C library lets it, and leaves by _exit.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: a plain number. A child that hangs is killed.
            unsafe { libc::alarm(60) };
            let status = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
                Ok(None) => 0,
                Ok(Some(why)) => {
                    eprintln!("in the child: {why}");
                    1
                }
                Err(_) => 255,
            };
            // SAFETY: a plain number.
            unsafe { libc::_exit(status) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the status is writable, and the child is this process's.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "signal {}", libc::WTERMSIG(status));
            assert_eq!(libc::WEXITSTATUS(status), 0);
        }
    }
}

/// Returns the mappings of this process, each from its first byte to the one behind its last.
pub(crate) fn mappings() -> Vec<(usize, usize)> {
    let text = std::fs::read_to_string("/proc/self/maps").expect("this process has mappings");
    let number = |text: &str| usize::from_str_radix(text, 16).expect("an address");
    let range = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        Some((number(from), number(to)))
    };
    text.lines().filter_map(range).collect()
}

/// Maps memory of the caller's own wherever these mappings of its parent are missing here. Returns where.
pub(crate) fn fill_holes(of_parent: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let here = mappings();
    let is_missing = |place: usize| !here.iter().any(|(from, to)| (*from..*to).contains(&place));
    let holes: Vec<_> = of_parent.iter().copied().filter(|(from, _)| is_missing(*from)).collect();
    for (from, to) in &holes {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let place = std::ptr::without_provenance_mut(*from);
        // SAFETY: nothing is mapped there, or the call fails.
        let mapped = unsafe { libc::mmap(place, to - from, libc::PROT_READ, flags, -1, 0) };
        assert_eq!(mapped, place, "{}", std::io::Error::last_os_error());
    }
    holes
}

/// Returns whether all of these are still mapped here.
pub(crate) fn are_mapped(ranges: &[(usize, usize)]) -> bool {
    let here = mappings();
    let is_mapped = |place: usize| here.iter().any(|(from, to)| (*from..*to).contains(&place));
    ranges.iter().all(|(from, to)| is_mapped(*from) && is_mapped(*to - 1))
}
