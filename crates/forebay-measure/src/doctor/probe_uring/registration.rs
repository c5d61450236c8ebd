//! The objects that may be registered with a ring: its own descriptor, files, buffers.

use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode};

use super::{ENTRIES, GROUP, newer_kernel, push};
use crate::doctor::pages::Pages;
use forebay_report::check::Check;

/// The size of the file table that the engine requests.
const FILE_TABLE: u32 = 1024;
/// The memory that the engine registers as its arena before the arena grows.
const ARENA_BYTES: usize = 8 << 20;

pub(super) fn registered_ring_fd() -> Check {
    let result = IoUring::new(ENTRIES).and_then(|mut ring| {
        let (mut submitter, mut queue, _) = ring.split();
        submitter.register_ring_fd()?;
        push(&mut queue, &opcode::Nop::new().build())?;
        queue.sync();
        submitter.submit_and_wait(1).map(drop)
    });
    match result {
        Ok(()) => Check::ok(GROUP, "registered_ring_fd", "a NOP went through a registered ring descriptor"),
        Err(error) => Check::degraded(
            GROUP,
            "registered_ring_fd",
            format!("refused: {error}; each call looks the descriptor up (about 50 ns)"),
            newer_kernel("5.18"),
        ),
    }
}

pub(super) fn file_table() -> Check {
    let accepted =
        |entries: u32| IoUring::new(ENTRIES).and_then(|ring| ring.submitter().register_files_sparse(entries));
    if let Err(error) = accepted(FILE_TABLE) {
        return Check::degraded(
            GROUP,
            "file_table",
            format!(
                "a sparse table of {FILE_TABLE} files is refused: {error}; files are looked up for each operation"
            ),
            "raise the limit on open files (ulimit -n) or run Linux 5.19 or later",
        );
    }
    let mut largest = FILE_TABLE;
    while largest < 1 << 20 && accepted(largest * 2).is_ok() {
        largest *= 2;
    }
    Check::ok(
        GROUP,
        "file_table",
        format!("a sparse table of {FILE_TABLE} files works; the largest accepted has {largest}"),
    )
}

pub(super) fn buffers(ring: &IoUring) -> Check {
    match register(ring, ARENA_BYTES) {
        Ok(_pages) => Check::ok(
            GROUP,
            "registered_buffers",
            format!("{} MiB were registered as one buffer", ARENA_BYTES >> 20),
        ),
        Err(error) => Check::degraded(
            GROUP,
            "registered_buffers",
            format!(
                "registering {} MiB fails: {error}; the kernel maps the memory for each operation (20 to 25 % fewer I/Os a second on a CPU-bound device)",
                ARENA_BYTES >> 20
            ),
            "raise the limit on locked memory (ulimit -l, LimitMEMLOCK= in systemd, --ulimit memlock= in containers)",
        ),
    }
}

/// Registers `bytes` of fresh memory; both must live until the ring is closed or the buffers are unregistered.
pub(crate) fn register(ring: &IoUring, bytes: usize) -> io::Result<Pages> {
    let pages = Pages::new(bytes)?;
    // SAFETY: the kernel pins the pages themselves; no operation ever names the buffer, so that unmapping it while it is
    // registered harms nothing.
    unsafe { ring.submitter().register_buffers(&[pages.iovec()])? };
    Ok(pages)
}

pub(super) fn clone_buffers() -> Check {
    let result = IoUring::new(ENTRIES).and_then(|keeper| {
        let pages = register(&keeper, 1 << 20)?;
        let other = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(ENTRIES)
            .or_else(|_| IoUring::new(ENTRIES))?;
        other.submitter().register_buffers_clone(keeper.as_raw_fd())?;
        drop(pages);
        Ok(())
    });
    match result {
        Ok(()) => {
            Check::ok(GROUP, "clone_buffers", "a second ring took over the registered buffers of the first")
        }
        Err(error) => Check::degraded(
            GROUP,
            "clone_buffers",
            format!(
                "refused: {error}; every ring registers the arena itself, and the memory counts once for each"
            ),
            newer_kernel("6.12"),
        ),
    }
}
