//! Codes of outcomes, and the sentence of a thread's last failure.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_int};

use forebay::ErrorKind;

/// The outcome of a call or an operation: 0, or a negative code. A code is never reused with another meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// It succeeded.
    Ok = 0,
    /// The operating system refused for a reason without its own code; the system's number names it.
    Io = -1,
    /// The file, or a directory above it, does not exist.
    NotFound = -2,
    /// The process may not do this.
    PermissionDenied = -3,
    /// The file to create exists already.
    AlreadyExists = -4,
    /// The device, the file system or the quota is full.
    NoSpace = -5,
    /// The file system is mounted read-only.
    ReadOnlyFilesystem = -6,
    /// The path names a directory.
    IsADirectory = -7,
    /// A part of the path is not a directory.
    NotADirectory = -8,
    /// The directory has entries.
    DirectoryNotEmpty = -9,
    /// The file ends inside of a range that was requested exactly.
    UnexpectedEof = -10,
    /// Offset or length of a direct write is not a multiple of the device's block.
    Misaligned = -11,
    /// The engine's own memory is used up.
    MemoryExhausted = -12,
    /// More bytes than one operation may move.
    TooLarge = -13,
    /// The engine was closed.
    EngineClosed = -14,
    /// The file was closed.
    FileClosed = -15,
    /// A thread of the engine died.
    ShardLost = -16,
    /// The handle was inherited through fork; the parent alone may use it.
    Forked = -17,
    /// An argument cannot be valid.
    InvalidInput = -18,
    /// The operation was cancelled; a write may have been applied in whole, in part or not at all.
    Cancelled = -19,
    /// The file system, the kernel or this version of the library cannot do this.
    Unsupported = -20,
    /// Another holder has the lock.
    Locked = -21,
    /// A failure without a code in this version of the library.
    Other = -22,
    /// The operation has not ended yet.
    Pending = -23,
    /// The call waits or destroys, which the callback thread may not do.
    InCallback = -24,
    /// The engine ended before the device gave the memory back: it must not be freed or used again.
    MemoryLost = -25,
    /// The library caught a panic in its own code.
    Panicked = -26,
}

/// Each code, with its name.
static NAMES: [(Code, &CStr); 27] = [
    (Code::Ok, c"ok"),
    (Code::Io, c"io"),
    (Code::NotFound, c"not_found"),
    (Code::PermissionDenied, c"permission_denied"),
    (Code::AlreadyExists, c"already_exists"),
    (Code::NoSpace, c"no_space"),
    (Code::ReadOnlyFilesystem, c"read_only_filesystem"),
    (Code::IsADirectory, c"is_a_directory"),
    (Code::NotADirectory, c"not_a_directory"),
    (Code::DirectoryNotEmpty, c"directory_not_empty"),
    (Code::UnexpectedEof, c"unexpected_eof"),
    (Code::Misaligned, c"misaligned"),
    (Code::MemoryExhausted, c"memory_exhausted"),
    (Code::TooLarge, c"too_large"),
    (Code::EngineClosed, c"engine_closed"),
    (Code::FileClosed, c"file_closed"),
    (Code::ShardLost, c"shard_lost"),
    (Code::Forked, c"forked"),
    (Code::InvalidInput, c"invalid_input"),
    (Code::Cancelled, c"cancelled"),
    (Code::Unsupported, c"unsupported"),
    (Code::Locked, c"locked"),
    (Code::Other, c"other"),
    (Code::Pending, c"pending"),
    (Code::InCallback, c"in_callback"),
    (Code::MemoryLost, c"memory_lost"),
    (Code::Panicked, c"panicked"),
];

/// Returns the name of a code, and "unknown" for any other number.
pub(crate) fn name(code: c_int) -> &'static CStr {
    NAMES.iter().find(|(known, _)| *known as c_int == code).map_or(c"unknown", |(_, name)| *name)
}

/// A failure on its way to the caller.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) code: Code,
    /// The system's number; 0 where it is not the system's failure.
    pub(crate) os_error: c_int,
    pub(crate) text: String,
}

impl Fault {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Fault {
        Fault { code, os_error: 0, text: text.into() }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Fault {
        Fault::new(Code::InvalidInput, text)
    }

    pub(crate) fn panicked() -> Fault {
        Fault::new(Code::Panicked, "the library has panicked; the message is on the error output")
    }

    /// Makes the failure the thread's last one, and returns its code.
    pub(crate) fn keep(self) -> c_int {
        let code = self.code as c_int;
        let text = c_text(&self.text);
        // A thread that ends has no last failure any more.
        let _ = LAST.try_with(|last| last.replace((self.os_error, text)));
        code
    }
}

impl From<forebay::Error> for Fault {
    fn from(error: forebay::Error) -> Fault {
        let code = match error.kind() {
            ErrorKind::Io => Code::Io,
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::PermissionDenied => Code::PermissionDenied,
            ErrorKind::AlreadyExists => Code::AlreadyExists,
            ErrorKind::NoSpace => Code::NoSpace,
            ErrorKind::ReadOnlyFilesystem => Code::ReadOnlyFilesystem,
            ErrorKind::IsADirectory => Code::IsADirectory,
            ErrorKind::NotADirectory => Code::NotADirectory,
            ErrorKind::DirectoryNotEmpty => Code::DirectoryNotEmpty,
            ErrorKind::UnexpectedEof { .. } => Code::UnexpectedEof,
            ErrorKind::Misaligned { .. } => Code::Misaligned,
            ErrorKind::ArenaExhausted { .. } => Code::MemoryExhausted,
            ErrorKind::TooLarge { .. } => Code::TooLarge,
            ErrorKind::EngineClosed => Code::EngineClosed,
            ErrorKind::FileClosed => Code::FileClosed,
            ErrorKind::ShardLost => Code::ShardLost,
            ErrorKind::Forked => Code::Forked,
            ErrorKind::InvalidInput => Code::InvalidInput,
            ErrorKind::Cancelled => Code::Cancelled,
            ErrorKind::Unsupported => Code::Unsupported,
            ErrorKind::Locked => Code::Locked,
            _ => Code::Other,
        };
        Fault { code, os_error: error.raw_os_error().unwrap_or(0), text: error.to_string() }
    }
}

/// Returns a text as C has it. A NUL inside, which a path cannot have, becomes a space.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

thread_local! {
    /// The system's number and the sentence of the thread's last failure.
    static LAST: RefCell<(c_int, CString)> = RefCell::new((0, CString::default()));
}

/// Reads the thread's last failure.
pub(crate) fn last<T>(read: impl FnOnce(c_int, &CStr) -> T) -> Option<T> {
    LAST.try_with(|last| {
        let last = last.borrow();
        read(last.0, &last.1)
    })
    .ok()
}
