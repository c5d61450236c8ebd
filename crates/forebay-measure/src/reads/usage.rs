//! The resources that this process has used so far: processor time in and outside of the kernel, and
//! context switches.

use std::io;
use std::mem::MaybeUninit;

/// A reading of all threads, those that have ended included; two of them are subtracted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) user_ns: u64,
    pub(super) system_ns: u64,
    pub(super) voluntary_switches: u64,
    pub(super) involuntary_switches: u64,
}

impl Usage {
    /// Reads the counters of the process.
    ///
    /// # Errors
    /// Fails when getrusage failed, which no kernel is known to do.
    pub(super) fn now() -> io::Result<Self> {
        let mut raw = MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: the kernel writes one rusage to a place that is large enough for it.
        if unsafe { libc::getrusage(libc::RUSAGE_SELF, raw.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so it has written the whole struct.
        let raw = unsafe { raw.assume_init() };
        let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
        Ok(Self {
            user_ns: ns(raw.ru_utime),
            system_ns: ns(raw.ru_stime),
            voluntary_switches: raw.ru_nvcsw as u64,
            involuntary_switches: raw.ru_nivcsw as u64,
        })
    }

    pub(super) const fn since(&self, earlier: &Self) -> Self {
        Self {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(earlier.involuntary_switches),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computing_is_user_time_and_sleeping_is_a_voluntary_switch() {
        let before = Usage::now().expect("getrusage works");
        let (mut words, mut folded) = (crate::pattern::SplitMix::new(1), 0);
        let begun = std::time::Instant::now();
        while begun.elapsed().as_millis() < 30 {
            folded ^= words.next_u64();
        }
        assert_ne!(folded, 0);
        super::super::arrivals::sleep_until(std::time::Instant::now() + std::time::Duration::from_millis(1));
        let used = Usage::now().expect("getrusage works").since(&before);
        assert!(used.user_ns + used.system_ns > 0 && used.voluntary_switches > 0, "{used:?}");
    }
}
