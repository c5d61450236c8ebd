//! The system calls that concern files, and the rows they are counted in.

use libc::c_long;

/// The ways a call names its file, size and place: the `SHAPE_` constants of `bpf/state.h`.
mod shape {
    pub(super) const FD: u16 = 1;
    pub(super) const READ_WRITE: u16 = 2;
    pub(super) const AT: u16 = 3;
    pub(super) const VECTOR: u16 = 4;
    pub(super) const VECTOR_AT: u16 = 5;
    pub(super) const VECTOR_FLAGS: u16 = 6;
    pub(super) const SEND: u16 = 7;
    pub(super) const SPLICE: u16 = 8;
    pub(super) const OPEN: u16 = 9;
    pub(super) const PATH: u16 = 10;
    pub(super) const RING: u16 = 11;
    pub(super) const SUBMIT: u16 = 12;
    pub(super) const GETEVENTS: u16 = 13;
    pub(super) const EVENT: u16 = 14;
    pub(super) const SOCKET: u16 = 15;
}

/// The rows. `bpf/state.h` uses those below 8, `CLOSE` and `AIO` by number.
pub(crate) mod row {
    pub(crate) const NONE: u32 = 0;
    pub(crate) const FAULT: u32 = 1;
    pub(crate) const RING_READ: u32 = 2;
    pub(crate) const RING_WRITE: u32 = 3;
    pub(crate) const RING_SYNC: u32 = 4;
    pub(crate) const RING_OTHER: u32 = 5;
    pub(crate) const READ: u32 = 6;
    pub(crate) const WRITE: u32 = 7;
    pub(crate) const SYNC: u32 = 8;
    pub(crate) const OPEN: u32 = 9;
    pub(crate) const CLOSE: u32 = 10;
    pub(crate) const STAT: u32 = 11;
    pub(crate) const LIST: u32 = 12;
    pub(crate) const NAMES: u32 = 13;
    pub(crate) const RESIZE: u32 = 14;
    pub(crate) const COPY: u32 = 15;
    pub(crate) const ADVISE: u32 = 16;
    pub(crate) const AIO: u32 = 17;
    pub(crate) const EXEC: u32 = 18;
    pub(crate) const RING_ENTER: u32 = 19;
}

/// Returns the name of a row in a report.
pub(crate) fn name(number: u32, has_file: bool) -> &'static str {
    match number {
        row::FAULT if has_file => "page fault",
        row::FAULT => "elsewhere",
        row::RING_READ => "io_uring read",
        row::RING_WRITE => "io_uring write",
        row::RING_SYNC => "io_uring sync",
        row::RING_OTHER => "io_uring other",
        row::READ => "read",
        row::WRITE => "write",
        row::SYNC => "sync",
        row::OPEN => "open",
        row::CLOSE => "close",
        row::STAT => "stat",
        row::LIST => "list",
        row::NAMES => "names",
        row::RESIZE => "resize",
        row::COPY => "copy",
        row::ADVISE => "advise",
        row::AIO => "aio",
        row::EXEC => "exec",
        _ => "unknown",
    }
}

/// Call numbers that the programs have places for (`CALLS` in `bpf/state.h`).
pub(crate) const CALLS: usize = 512;
/// Operations of io_uring that the programs have places for (`RING_CALLS`).
pub(crate) const RING_CALLS: usize = 128;

/// Returns, for each call number, shape and row, or 0.
pub(crate) fn table() -> [u16; CALLS] {
    let mut table = [0; CALLS];
    for (numbers, shape, row) in LIST {
        set(&mut table, numbers, *shape, *row);
    }
    #[cfg(target_arch = "x86_64")]
    for (numbers, shape, row) in OLD {
        set(&mut table, numbers, *shape, *row);
    }
    table
}

fn set(table: &mut [u16; CALLS], numbers: &[c_long], shape: u16, row: u32) {
    for number in numbers {
        if let Some(entry) = usize::try_from(*number).ok().and_then(|number| table.get_mut(number)) {
            *entry = shape << 8 | row as u16;
        }
    }
}

/// `libc` has no constant for it.
const IO_PGETEVENTS: c_long = if cfg!(target_arch = "x86_64") { 333 } else { 292 };

/// Likewise; it has the same number everywhere.
const FUTEX_WAIT: c_long = 455;

type Entry = (&'static [c_long], u16, u32);

const LIST: &[Entry] = &[
    (&[libc::SYS_read], shape::READ_WRITE, row::READ),
    (&[libc::SYS_pread64], shape::AT, row::READ),
    (&[libc::SYS_readv], shape::VECTOR, row::READ),
    (&[libc::SYS_preadv, libc::SYS_preadv2], shape::VECTOR_AT, row::READ),
    (&[libc::SYS_write], shape::READ_WRITE, row::WRITE),
    (&[libc::SYS_pwrite64], shape::AT, row::WRITE),
    (&[libc::SYS_writev], shape::VECTOR, row::WRITE),
    (&[libc::SYS_pwritev], shape::VECTOR_AT, row::WRITE),
    (&[libc::SYS_pwritev2], shape::VECTOR_FLAGS, row::WRITE),
    (
        &[libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_sync_file_range, libc::SYS_syncfs],
        shape::FD,
        row::SYNC,
    ),
    (&[libc::SYS_sync, libc::SYS_msync], shape::PATH, row::SYNC),
    (&[libc::SYS_openat, libc::SYS_openat2], shape::OPEN, row::OPEN),
    (&[libc::SYS_close], shape::FD, row::CLOSE),
    (&[libc::SYS_fstat], shape::FD, row::STAT),
    (
        &[libc::SYS_statx, libc::SYS_newfstatat, libc::SYS_faccessat, libc::SYS_readlinkat],
        shape::PATH,
        row::STAT,
    ),
    (&[libc::SYS_getdents64], shape::FD, row::LIST),
    (
        &[
            libc::SYS_unlinkat,
            libc::SYS_renameat,
            libc::SYS_renameat2,
            libc::SYS_mkdirat,
            libc::SYS_linkat,
            libc::SYS_symlinkat,
        ],
        shape::PATH,
        row::NAMES,
    ),
    (&[libc::SYS_ftruncate, libc::SYS_fallocate], shape::FD, row::RESIZE),
    (&[libc::SYS_truncate], shape::PATH, row::RESIZE),
    (&[libc::SYS_sendfile], shape::SEND, row::COPY),
    (&[libc::SYS_splice, libc::SYS_copy_file_range], shape::SPLICE, row::COPY),
    (&[libc::SYS_readahead, libc::SYS_fadvise64], shape::FD, row::ADVISE),
    (&[libc::SYS_io_submit], shape::SUBMIT, row::AIO),
    (&[libc::SYS_io_getevents, IO_PGETEVENTS], shape::GETEVENTS, row::AIO),
    (&[libc::SYS_execve, libc::SYS_execveat], shape::PATH, row::EXEC),
    (&[libc::SYS_io_uring_enter], shape::RING, row::RING_ENTER),
    // No row: the time of a sleep counts for the operation that ended it.
    (
        &[
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
            libc::SYS_ppoll,
            libc::SYS_pselect6,
            libc::SYS_futex,
            libc::SYS_futex_waitv,
            FUTEX_WAIT,
        ],
        shape::EVENT,
        row::NONE,
    ),
    (
        &[
            libc::SYS_recvfrom,
            libc::SYS_recvmsg,
            libc::SYS_recvmmsg,
            libc::SYS_sendto,
            libc::SYS_sendmsg,
            libc::SYS_sendmmsg,
            libc::SYS_accept,
            libc::SYS_accept4,
        ],
        shape::SOCKET,
        row::NONE,
    ),
];

/// Calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const OLD: &[Entry] = &[
    (&[libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_select], shape::EVENT, row::NONE),
    (&[libc::SYS_open, libc::SYS_creat], shape::OPEN, row::OPEN),
    (&[libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink], shape::PATH, row::STAT),
    (&[libc::SYS_getdents], shape::FD, row::LIST),
    (
        &[
            libc::SYS_unlink,
            libc::SYS_rename,
            libc::SYS_mkdir,
            libc::SYS_rmdir,
            libc::SYS_link,
            libc::SYS_symlink,
        ],
        shape::PATH,
        row::NAMES,
    ),
];

/// Returns, for each operation of io_uring, its row, or 0 for an operation that does not concern files.
pub(crate) fn ring_table() -> [u8; RING_CALLS] {
    // The numbers are those of `enum io_uring_op`, which is part of the kernel's interface.
    let mut table = [0; RING_CALLS];
    let rows: &[(&[usize], u32)] = &[
        (&[1, 4, 22, 49, 60], row::RING_READ),
        (&[2, 5, 23, 61], row::RING_WRITE),
        (&[3, 8], row::RING_SYNC),
        (&[17, 18, 19, 21, 24, 28, 35, 36, 37, 38, 39, 55], row::RING_OTHER),
    ];
    for (numbers, row) in rows {
        for number in *numbers {
            if let Some(entry) = table.get_mut(*number) {
                *entry = *row as u8;
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_in_the_tables_has_a_name_and_a_place() {
        let table = table();
        let listed: usize = LIST.iter().map(|(numbers, ..)| numbers.len()).sum();
        assert!(table.iter().filter(|entry| **entry != 0).count() >= listed);
        for entry in table.iter().filter(|entry| **entry & 0xff != 0 && **entry >> 8 != shape::RING) {
            assert_ne!(name(u32::from(entry & 0xff), true), "unknown");
        }
        assert_eq!(table[libc::SYS_pread64 as usize], shape::AT << 8 | row::READ as u16);
        assert_eq!(table[libc::SYS_sendfile as usize], shape::SEND << 8 | row::COPY as u16);
        assert_eq!(table[libc::SYS_splice as usize], shape::SPLICE << 8 | row::COPY as u16);
        assert_eq!(table[libc::SYS_futex as usize], shape::EVENT << 8);
        assert_eq!(table[libc::SYS_nanosleep as usize], 0);
    }
}
