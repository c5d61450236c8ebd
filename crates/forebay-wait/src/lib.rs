//! Measures how long a program is stalled on I/O, and for which files.
//!
//! A BPF object follows a tree of threads through the scheduler's tracepoints, the system calls, the faults
//! on files, io_uring and the block layer. It adds up in the kernel; nothing is sent for each event. [`run`]
//! starts a command under it, [`watch`] measures a process that runs already; both return a [`Report`].
//! `docs/wait.md` lists the waits that are counted and those that are not. The package contains the object
//! already built (`scripts/build-bpf`), so that a build needs no clang. A build needs libelf and zlib with
//! their headers, `make` and a C compiler for the loader, libbpf.
//!
//! Loading needs root, or CAP_BPF and CAP_PERFMON, and a kernel of 5.18 or later with BTF. Where that is refused, [`run`] falls
//! back to the pressure figures of a dedicated cgroup (`io.pressure`), which show how long, but not for which files.
#![cfg(target_os = "linux")]
// A library neither panics on bad input or failed I/O, nor prints, nor ends the program. Tests may.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::exit
    )
)]

mod advice;
mod calls;
mod error;
mod launch;
mod layout;
mod object;
mod pressure;
mod refusal;
mod report;
mod session;

pub use error::Error;
pub use report::{Call, DeviceRates, DeviceTime, File, LostEvents, Method, Pressure, Report, SizeClass};
pub use session::{PauseOutcome, run, watch};

/// Checks whether the BPF programs load here; if not, the error has the reason and a remedy. Costs as much as
/// a real start: some tens of milliseconds.
///
/// # Errors
/// [`Error::Unavailable`] with the reason.
pub fn probe() -> Result<(), Error> {
    object::Tracer::load(false).map(|_| ())
}
