//! The processors on which a thread may run: sched_setaffinity(2). A thread inherits those of the one that starts it.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;

#[cfg(not(target_os = "linux"))]
use elsewhere::{CpuSet, sched_getaffinity, sched_setaffinity};
#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

thread_local! {
    /// The processors that this thread had before it was pinned.
    static BEFORE: Cell<Option<Affinity>> = const { Cell::new(None) };
}

/// The processors on which a thread may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Affinity(CpuSet);

impl Affinity {
    /// Returns the calling thread's.
    pub(crate) fn of_thread() -> io::Result<Affinity> {
        Ok(Affinity(sched_getaffinity(None)?))
    }

    /// Returns these processors, without numbers that the kernel's interface does not have.
    pub(crate) fn of(processors: impl IntoIterator<Item = usize>) -> Affinity {
        let mut set = CpuSet::new();
        processors.into_iter().filter(|number| *number < CpuSet::MAX_CPU).for_each(|number| set.set(number));
        Affinity(set)
    }

    pub(crate) fn processors(&self) -> BTreeSet<usize> {
        (0..CpuSet::MAX_CPU).filter(|number| self.0.is_set(*number)).collect()
    }

    /// Keeps the calling thread on these processors, but not the threads that the engine starts from it: [`unpinned`].
    pub(crate) fn pin(self) -> io::Result<()> {
        let before = Affinity::of_thread()?;
        self.set()?;
        BEFORE.set(BEFORE.get().or(Some(before)));
        Ok(())
    }

    /// Runs `call` on one of these processors; where the system refuses them, on any of the thread's own.
    pub(crate) fn run<T>(self, call: impl FnOnce() -> T) -> T {
        let _moved = Affinity::of_thread().ok().filter(|own| !own.is_within(self)).and_then(|own| {
            self.set().ok()?;
            Some(Excursion { own })
        });
        call()
    }

    fn is_within(self, others: Affinity) -> bool {
        (0..CpuSet::MAX_CPU).all(|number| !self.0.is_set(number) || others.0.is_set(number))
    }

    fn set(self) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.0)?)
    }
}

/// A thread's time on other processors, until this is dropped.
struct Excursion {
    own: Affinity,
}

impl Drop for Excursion {
    fn drop(&mut self) {
        // Refused only where the process has lost these processors meanwhile, and then the kernel has chosen others.
        let _ = self.own.set();
    }
}

/// Makes the body of a thread that the calling one starts: it runs wherever the calling thread might before it was pinned.
pub(crate) fn unpinned<T>(body: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let before = BEFORE.get();
    move || {
        // Where it is refused the thread shares the processor of its starter, which is slower and nothing else.
        before.into_iter().for_each(|before| drop(before.set()));
        body()
    }
}

/// Systems on which no thread is pinned.
#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use std::io;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct CpuSet;

    impl CpuSet {
        pub(super) const MAX_CPU: usize = 0;

        pub(super) fn new() -> CpuSet {
            CpuSet
        }

        pub(super) fn set(&mut self, _number: usize) {}

        pub(super) fn is_set(&self, _number: usize) -> bool {
            false
        }
    }

    pub(super) fn sched_getaffinity(_thread: Option<()>) -> io::Result<CpuSet> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn sched_setaffinity(_thread: Option<()>, _set: &CpuSet) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    /// Returns the processors of the calling thread, of one that it starts, and of one that is not to be pinned.
    fn seen() -> [Affinity; 3] {
        let own = || Affinity::of_thread().unwrap();
        let inherited = std::thread::spawn(own).join().unwrap();
        [own(), inherited, std::thread::spawn(unpinned(own)).join().unwrap()]
    }

    #[test]
    fn a_pinned_thread_stays_and_pools_that_it_starts_do_not() {
        let scene = || {
            let all = Affinity::of_thread().unwrap();
            assert_eq!(seen(), [all; 3]);
            let one = Affinity::of(all.processors().into_iter().take(1));
            one.pin().unwrap();
            assert_eq!(seen(), [one, one, all]);
            one.pin().unwrap();
            assert_eq!(seen(), [one, one, all], "twice is once");
            assert!(Affinity::of([]).pin().is_err());
            assert_eq!(seen(), [one, one, all]);
        };
        std::thread::spawn(scene).join().unwrap();
    }

    #[test]
    fn a_call_on_other_processors_leaves_the_thread_its_own() {
        let scene = || {
            let all = Affinity::of_thread().unwrap();
            let one = Affinity::of(all.processors().into_iter().take(1));
            assert_eq!(one.run(|| Affinity::of_thread().unwrap()), one);
            assert_eq!(Affinity::of_thread().unwrap(), all);
            assert_eq!(
                Affinity::of([]).run(|| Affinity::of_thread().unwrap()),
                all,
                "refused, and made all the same"
            );
            one.pin().unwrap();
            assert_eq!(all.run(|| Affinity::of_thread().unwrap()), one, "it is there already");
        };
        std::thread::spawn(scene).join().unwrap();
    }

    #[test]
    fn numbers_beyond_the_interface_are_left_out() {
        assert_eq!(Affinity::of([3, 1, usize::MAX, CpuSet::MAX_CPU]).processors(), BTreeSet::from([1, 3]));
    }
}
