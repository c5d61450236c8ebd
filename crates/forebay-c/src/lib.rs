//! `libforebay`: Forebay for C, C++, and what can call C. `include/forebay.h` is the interface; this crate is its other side.
//!
//! Design:
//! - A handle (`fb_engine`, `fb_file`, `fb_op`) is a `Box` or an `Arc` that C holds as a pointer. Structs are plain, start with
//!   their size, and may grow at their ends: a field that the caller lacks is 0, and a field that the library lacks has to be 0.
//! - A blocking call is the core's `.wait()` on the calling thread. An operation that was submitted is a future in an `Op`, which
//!   is first polled by `fb_submit`. Without a notice the waiting thread polls it on; with one (callback, eventfd) the engine's
//!   one *callback thread* does, which also calls the callback. So each callback runs on that thread, and may not wait for what
//!   needs it.
//! - The caller's memory is lent as `CallerMemory`, whose drop reports it back. An operation has ended when it has a result **and**
//!   its memory is back: a cancelled operation ends when the kernel is done, not when it is given up. Memory that an engine can
//!   never give back is reported as lost, never as returned.
//! - Nothing unwinds into C: each function catches panics. An error is a code and a sentence, kept for the thread or by the
//!   operation.
//! - A forked child is refused before any lock is acquired.
//! - Unsafe code is in four modules: `boundary` (pointers of C), `memory` (memory of C), `callbacks` (calls into C), `abi` (the
//!   functions).

#![deny(unsafe_code)]
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

#[allow(unsafe_code, reason = "the functions that C calls")]
mod abi;
#[allow(unsafe_code, reason = "it reads and writes what pointers of C lead to")]
mod boundary;
#[allow(unsafe_code, reason = "it calls functions of C")]
mod callbacks;
mod code;
mod instance;
#[allow(unsafe_code, reason = "it lends memory of C to the engine")]
mod memory;
mod op;
mod request;
mod types;

pub use abi::{
    fb_code_name, fb_engine_class, fb_engine_close, fb_engine_health, fb_engine_metrics, fb_engine_start,
    fb_engine_stats, fb_error_os, fb_error_text, fb_file_alignment, fb_file_allocate, fb_file_close,
    fb_file_descriptor, fb_file_len, fb_file_open, fb_file_set_len, fb_op_cancel, fb_op_free, fb_op_part,
    fb_op_wait, fb_read, fb_run, fb_submit, fb_sync, fb_version, fb_write,
};
pub use code::Code;
pub use instance::{Engine, File};
pub use op::Op;
pub use types::{
    Callback, Class, CloseReport, Config, FB_ADAPTIVE, FB_BUFFERED, FB_CLASS_BACKGROUND, FB_CLASS_DEFAULT,
    FB_CLASS_LOG, FB_CREATE, FB_CREATE_NEW, FB_DIRECT, FB_DRIVER_AUTO, FB_DRIVER_THREADS, FB_DRIVER_URING,
    FB_DURABLE_ALL, FB_DURABLE_DATA, FB_DURABLE_NONE, FB_OP_READ, FB_OP_SYNC, FB_OP_WRITE, FB_READ_ONLY,
    FB_READ_WRITE, FB_UNCACHED, Notice, Open, Outcome, Request, Stats,
};
