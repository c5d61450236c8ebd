//! Distinguishes a forked child from its parent, without a system call where `MADV_WIPEONFORK` works.

use std::fmt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The process in which an object was made. A child's inherited objects count as made elsewhere.
///
/// A page marked `MADV_WIPEONFORK` (madvise(2), Linux 4.14) holds the number of this process among those that descend from each
/// other by forking. In a child it reads as zero until the child makes its first object, which then gets the next number. Where the
/// advice is refused, as by gVisor, or does not exist, the number is the process's id, at the price of a getpid(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(u64);

impl Origin {
    /// Returns the origin for an object that this process makes now.
    pub fn here() -> Origin {
        // Inherited by children, unlike the page, so that no descendant uses a number twice.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let Some(mark) = mark() else { return Origin(std::process::id().into()) };
        let known = mark.load(Ordering::Relaxed);
        if known != 0 {
            return Origin(known);
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Origin(
            mark.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|other| other, |_| number),
        )
    }

    /// Returns whether the object was made before this process was forked.
    #[inline]
    pub fn is_elsewhere(self) -> bool {
        match mark() {
            Some(mark) => mark.load(Ordering::Relaxed) != self.0,
            None => self != Origin::here(),
        }
    }
}

/// A per-process value for a `static`. A forked child gets a new one, because the parent's may contain locks that other threads
/// held at the fork. It is made at its first use and never freed, because threads that outlive `main` still use it.
pub struct PerProcess<T> {
    current: AtomicPtr<ProcessValue<T>>,
}

struct ProcessValue<T> {
    origin: Origin,
    value: T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// Returns a place without a value.
    #[allow(clippy::new_without_default, reason = "it is a static")]
    pub const fn new() -> PerProcess<T> {
        PerProcess { current: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns this process's value. If several threads make it at the same time, one value is kept.
    pub fn get(&self, make: impl Fn() -> T) -> &'static T {
        loop {
            let known = self.current.load(Ordering::Acquire);
            // SAFETY: null, or out of `Box::into_raw` below, and never freed once it is here.
            if let Some(known) = unsafe { known.as_ref() }
                && !known.origin.is_elsewhere()
            {
                return &known.value;
            }
            let new = Box::into_raw(Box::new(ProcessValue { origin: Origin::here(), value: make() }));
            if self.current.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: out of `Box::into_raw` above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

/// Returns the page's first word. The page is mapped on first use and never unmapped.
#[inline]
fn mark() -> Option<&'static AtomicU64> {
    static PAGE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    *PAGE.get_or_init(map_page)
}

#[cfg(all(target_os = "linux", not(miri)))]
fn map_page() -> Option<&'static AtomicU64> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    let len = rustix::param::page_size();
    // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps nothing.
    let page = unsafe {
        mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }
    .ok()?;
    // SAFETY: the mapping is ours, `len` bytes long, and no other code has its address. It is page-aligned,
    // zero, never unmapped, and used as an atomic only; the kernel's wiping happens in a child, before any
    // code runs there.
    unsafe {
        if madvise(page, len, Advice::LinuxWipeOnFork).is_err() {
            let _ = rustix::mm::munmap(page, len);
            return None;
        }
        Some(&*page.cast::<AtomicU64>())
    }
}

// The interpreter has neither this advice nor fork.
#[cfg(any(not(target_os = "linux"), miri))]
fn map_page() -> Option<&'static AtomicU64> {
    None
}
