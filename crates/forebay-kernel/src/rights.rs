//! Rights that the calling thread lacks to load a program, for error texts: the kernel often refuses for
//! another reason before it checks the rights.

use std::io;

/// Bit numbers of capabilities(7).
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Returns the capabilities that loading a program needs and this thread does not have. Returns `None` if the
/// thread has them, or they are unknown.
pub(crate) fn missing() -> Option<&'static str> {
    lacking(effective().ok()?)
}

fn lacking(effective: u64) -> Option<&'static str> {
    let has = |capability: u32| effective & (1 << capability | 1 << CAP_SYS_ADMIN) != 0;
    match (has(CAP_BPF), has(CAP_PERFMON)) {
        (true, true) => None,
        (false, true) => Some("CAP_BPF"),
        (true, false) => Some("CAP_PERFMON"),
        (false, false) => Some("CAP_BPF and CAP_PERFMON"),
    }
}

/// Returns the sentence, followed by CAP_SYS_ADMIN if the thread lacks it and this is the kernel's EINVAL. Only with that
/// capability does it hand out the types of a module, which the module's programs name.
pub(crate) fn with_missing_admin(why: String) -> String {
    let lacks = effective().is_ok_and(|effective| effective & 1 << CAP_SYS_ADMIN == 0);
    if lacks && why.contains("os error 22)") {
        format!("{why}; this thread lacks CAP_SYS_ADMIN, without which the module's types cannot be found")
    } else {
        why
    }
}

/// Returns the sentence, preceded by the missing capabilities if any.
pub(crate) fn with_missing(why: String) -> String {
    match missing() {
        Some(capabilities) => {
            format!(
                "this thread lacks {capabilities}, without which no program can be loaded (root has them); {why}"
            )
        }
        None => why,
    }
}

/// Returns a text that explains why the kernel refused to register memory.
pub(crate) fn of_locked_memory(error: &io::Error, bytes: usize) -> String {
    if error.raw_os_error() != Some(libc::ENOMEM) {
        return format!("the ring does not take the shared memory ({error})");
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the structure.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    let allowed = match limit.rlim_cur {
        libc::RLIM_INFINITY => "unlimited".to_owned(),
        allowed if known => format!("{allowed} bytes for all rings of this user"),
        _ => "not known".to_owned(),
    };
    format!(
        "the ring needs {bytes} bytes of locked memory, and there are not as many left ({error}; RLIMIT_MEMLOCK, `ulimit -l`, \
         is {allowed}): raise it, or grant CAP_IPC_LOCK"
    )
}

/// The remedy where a process has too few descriptors.
pub(crate) const MORE_DESCRIPTORS: &str = "raise the limit on open files (`ulimit -n`)";

/// Returns a text that explains why the kernel refused the loop's ring, which needs this many bytes of locked memory. Only EINVAL
/// says that the kernel does not know such rings.
pub(crate) fn of_ring(error: &io::Error, bytes: usize) -> String {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => with_missing(of_locked_memory(error, bytes)),
        Some(libc::EINVAL) => {
            format!("this kernel has no ring that a BPF program could run ({error}): it takes 7.1 or later")
        }
        Some(libc::EMFILE | libc::ENFILE) => format!("there is no ring ({error}): {MORE_DESCRIPTORS}"),
        _ => format!("io_uring is refused ({error}): `forebay doctor` says by what"),
    }
}

/// Returns the thread's effective capabilities, a bit each.
fn effective() -> io::Result<u64> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let mut header = Header { version: 0x2008_0522, pid: 0 };
    // Effective, permitted, inheritable; the lower 32 bits, then the upper 32 bits.
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: the kernel reads the header, and fills two sets of three words, which is the size of the array.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::from(sets[0][0]) | u64::from(sets[1][0]) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capabilities_that_are_missing_are_named() {
        assert_eq!(lacking(0), Some("CAP_BPF and CAP_PERFMON"));
        assert_eq!(lacking(1 << CAP_BPF), Some("CAP_PERFMON"));
        assert_eq!(lacking(1 << CAP_PERFMON), Some("CAP_BPF"));
        assert_eq!(lacking(1 << CAP_BPF | 1 << CAP_PERFMON), None);
        assert_eq!(lacking(1 << CAP_SYS_ADMIN), None);
    }

    #[test]
    fn a_limit_is_named_only_where_locked_memory_is_short() {
        let short = of_locked_memory(&io::Error::from_raw_os_error(libc::ENOMEM), 123_456);
        assert!(short.contains("ulimit -l") && short.contains("123456 bytes"), "{short}");
        let other = of_locked_memory(&io::Error::from_raw_os_error(libc::EINVAL), 123_456);
        assert!(!other.contains("ulimit"), "{other}");
    }

    /// Regression: a kernel of 7.2 with `io_uring_disabled=2`, and a process without descriptors, were said to lack 7.1.
    #[test]
    fn a_kernel_is_too_old_only_where_it_does_not_know_the_ring() {
        let of = |errno: i32| of_ring(&io::Error::from_raw_os_error(errno), 4096);
        assert!(of(libc::EINVAL).contains("7.1 or later"));
        for (errno, words) in [
            (libc::EPERM, "io_uring is refused"),
            (libc::ENOSYS, "io_uring is refused"),
            (libc::EMFILE, "ulimit -n"),
            (libc::ENOMEM, "ulimit -l"),
        ] {
            assert!(of(errno).contains(words) && !of(errno).contains("7.1"), "{}", of(errno));
        }
    }
}
