//! Structs and numbers of the interface, as `forebay.h` has them.

use std::ffi::{c_char, c_int, c_void};

use crate::instance::File;
use crate::op::Op;

/// Driver: io_uring, and threads where the kernel refuses it.
pub const FB_DRIVER_AUTO: u32 = 0;
/// Driver: io_uring, or an error.
pub const FB_DRIVER_URING: u32 = 1;
/// Driver: threads that call pread and pwrite.
pub const FB_DRIVER_THREADS: u32 = 2;

/// Access: an existing file, to read.
pub const FB_READ_ONLY: u32 = 0;
/// Access: an existing file, to read and write.
pub const FB_READ_WRITE: u32 = 1;
/// Access: to read and write; created where it does not exist.
pub const FB_CREATE: u32 = 2;
/// Access: a new file, to read and write; an error where it exists.
pub const FB_CREATE_NEW: u32 = 3;

/// Mode: past the page cache.
pub const FB_DIRECT: u32 = 0;
/// Mode: through the page cache.
pub const FB_BUFFERED: u32 = 1;
/// Mode: through the page cache, which drops the pages after use.
pub const FB_UNCACHED: u32 = 2;
/// Mode: reads use the page cache for the bytes that it holds, and bypass it otherwise.
pub const FB_ADAPTIVE: u32 = 3;

/// Durability: the kernel or the device's cache has the bytes.
pub const FB_DURABLE_NONE: u32 = 0;
/// Durability: the bytes survive a power cut.
pub const FB_DURABLE_DATA: u32 = 1;
/// Durability: all metadata too.
pub const FB_DURABLE_ALL: u32 = 2;

/// Class: the default for everything that names no class.
pub const FB_CLASS_DEFAULT: u32 = 0;
/// Class: logs, and other work that clients wait for.
pub const FB_CLASS_LOG: u32 = 1;
/// Class: compaction, back-ups, scans.
pub const FB_CLASS_BACKGROUND: u32 = 2;

/// Operation: a read.
pub const FB_OP_READ: u32 = 0;
/// Operation: a write.
pub const FB_OP_WRITE: u32 = 1;
/// Operation: a sync.
pub const FB_OP_SYNC: u32 = 2;

/// Settings of an engine; 0 in a field for its default.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Config {
    /// The size of the caller's struct.
    pub size: usize,
    /// Storage threads, 1 to 64.
    pub shards: u32,
    /// Requests of one storage thread in flight, 1 to 4,096.
    pub queue_depth: u32,
    /// `FB_DRIVER_...`.
    pub driver: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The most I/O memory, in bytes.
    pub arena_bytes_max: u64,
    /// The most ordinary memory in addition, in bytes.
    pub overflow_bytes_max: u64,
    /// How long a close waits for the device, in milliseconds.
    pub shutdown_ms: u64,
}

/// Options for opening a file.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Open {
    /// The size of the caller's struct.
    pub size: usize,
    /// `FB_READ_ONLY` and so on.
    pub access: u32,
    /// `FB_DIRECT` and so on.
    pub mode: u32,
    /// Permissions of a file that is created; 0 for 0666, less the umask.
    pub permissions: u32,
    /// Nonzero to truncate an existing file.
    pub truncate: u32,
}

/// The shares and limits of a class; 0 in a field for its default.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Class {
    /// The size of the caller's struct.
    pub size: usize,
    /// The name by which statistics call it, as UTF-8.
    pub name: *const c_char,
    /// The weight relative to other classes, 1 to 10,000.
    pub shares: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The most bytes read in a second from one device.
    pub read_bytes_per_second_max: u64,
    /// The most bytes written in a second to one device.
    pub write_bytes_per_second_max: u64,
    /// The most reads in a second from one device.
    pub reads_per_second_max: u64,
    /// The most writes and syncs in a second to one device.
    pub writes_per_second_max: u64,
}

/// One operation, for `fb_run` and `fb_submit`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Request {
    /// The size of the caller's struct.
    pub size: usize,
    /// The file.
    pub file: *mut File,
    /// The memory to read into or to write from.
    pub data: *mut c_void,
    /// Its length in bytes.
    pub len: usize,
    /// The place in the file, in bytes.
    pub offset: u64,
    /// `FB_OP_...`.
    pub op: u32,
    /// The number of a class; 0 for the default one.
    pub class_id: u32,
    /// `FB_DURABLE_...`, for a write and a sync.
    pub durability: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// The outcome of an operation, or of one request of a batch.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Outcome {
    /// The size of the caller's struct.
    pub size: usize,
    /// A code.
    pub code: c_int,
    /// The `errno`, or 0.
    pub os_error: c_int,
    /// Bytes moved.
    pub bytes: u64,
    /// The error message, valid as long as the operation; null if the code is 0.
    pub text: *const c_char,
}

/// A function that is called when an operation has ended.
pub type Callback = Option<unsafe extern "C" fn(user: *mut c_void, op: *mut Op, outcome: *const Outcome)>;

/// The notification at the end of an operation.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Notice {
    /// The size of the caller's struct.
    pub size: usize,
    /// Called on the callback thread, or null.
    pub callback: Callback,
    /// The callback's first argument.
    pub user: *mut c_void,
    /// An eventfd to which 1 is written, after the callback; 0: no eventfd.
    pub eventfd: c_int,
    /// Must be 0.
    pub reserved: u32,
}

/// The outcome of a close.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CloseReport {
    /// The size of the caller's struct.
    pub size: usize,
    /// Operations that the device did not return in time.
    pub leaked_operations: u64,
    /// Threads of the engine that had died.
    pub lost_shards: u64,
    /// Operations that ended with `FB_MEMORY_LOST`.
    pub lost_memory: u64,
}

/// Sums over all classes and devices since the engine was started.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Stats {
    /// The size of the caller's struct.
    pub size: usize,
    /// Reads that have ended.
    pub reads: u64,
    /// Writes that have ended.
    pub writes: u64,
    /// Syncs that have ended.
    pub syncs: u64,
    /// Operations that failed.
    pub failures: u64,
    /// Bytes read from devices, and from the page cache by way of requests.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Reads that the page cache served on the calling thread.
    pub page_cache_reads: u64,
    /// Operations in flight now.
    pub in_flight: u64,
    /// I/O memory that the engine has mapped.
    pub arena_bytes: u64,
    /// I/O memory in use.
    pub held_bytes: u64,
}
