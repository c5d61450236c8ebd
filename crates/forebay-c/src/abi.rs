//! The functions of the interface. `include/forebay.h` says of each how it is called.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use forebay::{ClassSpec, DriverChoice};

use crate::boundary::{self, run};
use crate::callbacks::{Notifier, refuse_here};
use crate::code::{self, Code, Fault};
use crate::instance::{Engine, File};
use crate::memory::{self, CallerMemory, Destination, Return};
use crate::op::{Op, pending};
use crate::request::{Kind, Piece, check_batch, read_batch, write_batch};
use crate::types::{
    Class, CloseReport, Config, FB_ADAPTIVE, FB_BUFFERED, FB_CREATE, FB_CREATE_NEW, FB_DIRECT,
    FB_DRIVER_AUTO, FB_DRIVER_THREADS, FB_DRIVER_URING, FB_OP_READ, FB_OP_SYNC, FB_OP_WRITE, FB_READ_ONLY,
    FB_READ_WRITE, FB_UNCACHED, Notice, Open, Outcome, Request, Stats,
};

// -- what every call shares

/// Returns the version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn fb_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns the name of a code.
#[unsafe(no_mangle)]
pub extern "C" fn fb_code_name(code: c_int) -> *const c_char {
    code::name(code).as_ptr()
}

/// Returns the sentence of the thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn fb_error_text() -> *const c_char {
    code::last(|_, text| text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the `errno` of the thread's last failure, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn fb_error_os() -> c_int {
    code::last(|os_error, _| os_error).unwrap_or(0)
}

fn refuse_reserved(reserved: u32, name: &str) -> Result<(), Fault> {
    if reserved == 0 {
        return Ok(());
    }
    Err(Fault::new(Code::Unsupported, format!("the reserved field of {name} is not 0")))
}

// -- engines

fn settings(config: &Config) -> Result<forebay::Config, Fault> {
    refuse_reserved(config.reserved, "config")?;
    let driver = match config.driver {
        FB_DRIVER_AUTO => DriverChoice::Auto,
        FB_DRIVER_URING => DriverChoice::Uring,
        FB_DRIVER_THREADS => DriverChoice::Threads,
        number => return Err(Fault::invalid(format!("there is no driver {number}"))),
    };
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut settings = forebay::Config::new().driver(driver);
    if config.shards != 0 {
        settings = settings.shards(config.shards as usize);
    }
    if config.queue_depth != 0 {
        settings = settings.queue_depth(config.queue_depth);
    }
    if config.arena_bytes_max != 0 {
        settings = settings.arena_bytes_max(bytes(config.arena_bytes_max));
    }
    if config.overflow_bytes_max != 0 {
        settings = settings.overflow_bytes_max(bytes(config.overflow_bytes_max));
    }
    if config.shutdown_ms != 0 {
        settings = settings.shutdown_deadline(Duration::from_millis(config.shutdown_ms));
    }
    Ok(settings)
}

/// Starts an engine.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_engine_start(config: *const Config, engine: *mut *mut Engine) -> c_int {
    run(|| {
        let place = boundary::place(engine, "engine")?;
        // SAFETY: the caller's promise: a struct or null.
        let config = unsafe { boundary::read_optional(config, "config")? };
        let config = match &config {
            Some(config) => settings(config)?,
            None => forebay::Config::new(),
        };
        let started = Box::new(Engine::start(config)?);
        // SAFETY: the caller's place for a handle.
        unsafe { place.write(Box::into_raw(started)) };
        Ok(())
    })
}

/// Ends an engine.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_engine_close(engine: *mut Engine, report: *mut CloseReport) -> c_int {
    run(|| {
        refuse_here("fb_engine_close")?;
        // SAFETY: the caller's promise: a handle, and a struct or null.
        unsafe {
            boundary::handle(engine.cast_const(), "engine")?.instance.check()?;
            boundary::check_optional(report.cast_const(), "report")?;
        }
        // SAFETY: a handle is one of `fb_engine_start`, and is given up by this call, the only one.
        let engine = unsafe { Box::from_raw(engine) };
        let closed = engine.close()?;
        // SAFETY: the caller's promise: a struct or null.
        unsafe { boundary::fill_optional(report, &closed, "report") }
    })
}

/// Makes or changes a class.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_engine_class(
    engine: *mut Engine,
    class_spec: *const Class,
    class_id: *mut u32,
) -> c_int {
    run(|| {
        // SAFETY: the caller's promise: a handle, a struct, and a text that ends.
        let (engine, class, name) = unsafe {
            let class = boundary::read(class_spec, "class_spec")?;
            (
                boundary::handle(engine.cast_const(), "engine")?,
                class,
                boundary::word(class.name, "the class's name")?,
            )
        };
        engine.instance.check()?;
        refuse_reserved(class.reserved, "class_spec")?;
        let mut spec = ClassSpec::new(name)
            .read_bytes_per_second_max(class.read_bytes_per_second_max)
            .write_bytes_per_second_max(class.write_bytes_per_second_max)
            .reads_per_second_max(class.reads_per_second_max)
            .writes_per_second_max(class.writes_per_second_max);
        if class.shares != 0 {
            spec = spec.shares(class.shares);
        }
        let place = boundary::place(class_id, "class_id")?;
        let number = engine.instance.set_class(spec)?;
        // SAFETY: the caller's place for a number.
        unsafe { place.write(number) };
        Ok(())
    })
}

/// Reads the figures of an engine.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_engine_stats(engine: *mut Engine, stats: *mut Stats) -> c_int {
    run(|| {
        // SAFETY: the caller's promise: a handle.
        let engine = unsafe { boundary::handle(engine.cast_const(), "engine")? };
        let found = figures(engine, "fb_engine_stats")?;
        let mut sums = Stats {
            size: size_of::<Stats>(),
            reads: 0,
            writes: 0,
            syncs: 0,
            failures: 0,
            read_bytes: 0,
            write_bytes: 0,
            page_cache_reads: found.page_cache_reads,
            in_flight: found.shards.iter().map(|shard| u64::from(shard.in_flight)).sum(),
            arena_bytes: found.memory.arena_bytes,
            held_bytes: found.memory.held_bytes,
        };
        for flow in &found.flows {
            sums.reads += flow.reads;
            sums.writes += flow.writes;
            sums.syncs += flow.syncs;
            sums.failures += flow.failures;
            sums.read_bytes += flow.read_bytes;
            sums.write_bytes += flow.write_bytes;
        }
        // SAFETY: the caller's promise: a struct.
        unsafe { boundary::fill(stats, &sums, "stats") }
    })
}

fn figures(engine: &Engine, call: &str) -> Result<forebay::Stats, Fault> {
    refuse_here(call)?;
    engine.instance.check()?;
    engine.instance.engine.stats().wait().map_err(Fault::from)
}

/// Copies all figures as OpenMetrics text.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_engine_metrics(
    engine: *mut Engine,
    text: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> c_int {
    run(|| {
        // SAFETY: the caller's promise: a handle.
        let engine = unsafe { boundary::handle(engine.cast_const(), "engine")? };
        let page = figures(engine, "fb_engine_metrics")?.to_open_metrics();
        // SAFETY: the caller's promise: `len` bytes or null, and a place or null.
        unsafe { boundary::copy_text(&page, text, len, needed) };
        Ok(())
    })
}

/// Copies the engine's health as text.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_engine_health(
    engine: *mut Engine,
    text: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> c_int {
    run(|| {
        // SAFETY: the caller's promise: a handle.
        let engine = unsafe { boundary::handle(engine.cast_const(), "engine")? };
        engine.instance.check()?;
        let health = engine.instance.engine.health().to_string();
        // SAFETY: the caller's promise: `len` bytes or null, and a place or null.
        unsafe { boundary::copy_text(&health, text, len, needed) };
        Ok(())
    })
}

// -- files

fn options(open: &Open) -> Result<forebay::Open, Fault> {
    let access = match open.access {
        FB_READ_ONLY => forebay::Open::read(),
        FB_READ_WRITE => forebay::Open::write(),
        FB_CREATE => forebay::Open::create(),
        FB_CREATE_NEW => forebay::Open::create_new(),
        number => return Err(Fault::invalid(format!("there is no access {number}"))),
    };
    let mut options = match open.mode {
        FB_DIRECT => access.direct(),
        FB_BUFFERED => access.buffered(),
        FB_UNCACHED => access.uncached(),
        FB_ADAPTIVE => access.adaptive(),
        number => return Err(Fault::invalid(format!("there is no mode {number}"))),
    };
    if open.permissions != 0 {
        options = options.permissions(open.permissions);
    }
    if open.truncate != 0 {
        options = options.truncate();
    }
    Ok(options)
}

/// Opens a file.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_file_open(
    engine: *mut Engine,
    path: *const c_char,
    open_spec: *const Open,
    file: *mut *mut File,
) -> c_int {
    run(|| {
        refuse_here("fb_file_open")?;
        let place = boundary::place(file, "file")?;
        // SAFETY: the caller's promise: a handle, a text that ends, and a struct or null.
        let (engine, path, open) = unsafe {
            (
                boundary::handle(engine.cast_const(), "engine")?,
                boundary::path(path, "path")?,
                boundary::read_optional(open_spec, "open_spec")?,
            )
        };
        engine.instance.check()?;
        let options = match &open {
            Some(open) => options(open)?,
            None => forebay::Open::read(),
        };
        let opened = engine.instance.engine.open(path, options).wait()?;
        let opened = Box::new(File { file: opened, instance: engine.instance.clone() });
        // SAFETY: the caller's place for a handle.
        unsafe { place.write(Box::into_raw(opened)) };
        Ok(())
    })
}

/// Returns the file of a handle, for a call that waits.
///
/// # Safety
/// As [`boundary::handle`].
unsafe fn file_of<'a>(file: *mut File, call: &str) -> Result<&'a File, Fault> {
    refuse_here(call)?;
    // SAFETY: the caller's promise.
    let file = unsafe { boundary::handle(file.cast_const(), "file")? };
    file.instance.check()?;
    Ok(file)
}

/// Closes a file, once its operations have ended.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_file_close(file: *mut File) -> c_int {
    run(|| {
        // SAFETY: the caller's promise: a handle.
        unsafe { file_of(file, "fb_file_close")? };
        // SAFETY: a handle is one of `fb_file_open`, and is given up by this call, the only one.
        let File { file, instance } = *unsafe { Box::from_raw(file) };
        let closed = file.close().wait();
        drop(instance);
        closed.map_err(Fault::from)
    })
}

/// Returns the length of a file.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_file_len(file: *mut File, len: *mut u64) -> c_int {
    run(|| {
        let place = boundary::place(len, "len")?;
        // SAFETY: the caller's promise: a handle.
        let file = unsafe { file_of(file, "fb_file_len")? };
        let found = file.file.len().wait()?;
        // SAFETY: the caller's place for a number.
        unsafe { place.write(found) };
        Ok(())
    })
}

/// Sets the length of a file.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_file_set_len(file: *mut File, len: u64) -> c_int {
    run(|| {
        // SAFETY: the caller's promise: a handle.
        let file = unsafe { file_of(file, "fb_file_set_len")? };
        file.file.truncate(len).wait().map_err(Fault::from)
    })
}

/// Allocates space for a range.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_file_allocate(file: *mut File, offset: u64, len: u64) -> c_int {
    run(|| {
        // SAFETY: the caller's promise: a handle.
        let file = unsafe { file_of(file, "fb_file_allocate")? };
        let end = offset
            .checked_add(len)
            .ok_or_else(|| Fault::invalid("the range ends behind the largest offset of a file"))?;
        file.file.allocate(offset..end).wait().map_err(Fault::from)
    })
}

/// Returns the alignment of direct requests.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_file_alignment(file: *mut File, memory: *mut u32, offset: *mut u32) -> c_int {
    run(|| {
        // SAFETY: the caller's promise: a handle.
        let file = unsafe { boundary::handle(file.cast_const(), "file")? };
        file.instance.check()?;
        let alignment = file.file.alignment();
        for (place, value) in [(memory, alignment.memory), (offset, alignment.offset)] {
            if let Some(place) = NonNull::new(place) {
                // SAFETY: the caller's place for a number.
                unsafe { place.write(value) };
            }
        }
        Ok(())
    })
}

/// Returns the descriptor of a file.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_file_descriptor(file: *mut File, descriptor: *mut c_int) -> c_int {
    run(|| {
        let place = boundary::place(descriptor, "descriptor")?;
        // SAFETY: the caller's promise: a handle.
        let file = unsafe { boundary::handle(file.cast_const(), "file")? };
        file.instance.check()?;
        // SAFETY: the caller's place for a number.
        unsafe { place.write(file.file.as_fd().as_raw_fd()) };
        Ok(())
    })
}

// -- operations

/// Carries a request out on the calling thread.
///
/// # Safety
/// As `forebay.h` has it of `fb_run`.
unsafe fn run_request(request: &Request, bytes: *mut u64, call: &str) -> Result<(), Fault> {
    // SAFETY: the caller's promise: a handle.
    let file = unsafe { file_of(request.file, call)? };
    let piece = Piece::of(request, file)?;
    let back = Arc::new(Return::default());
    // SAFETY: the caller's promise: memory of that length, his again when the call returns.
    let memory = unsafe { CallerMemory::of_thread(piece.start, piece.len, back.clone()) };
    let moved = piece.run(memory, &back)?;
    if let Some(place) = NonNull::new(bytes) {
        // SAFETY: the caller's place for a number.
        unsafe { place.write(moved) };
    }
    Ok(())
}

fn request(
    file: *mut File,
    op: u32,
    (data, len): (*mut c_void, usize),
    offset: u64,
    durability: u32,
) -> Request {
    Request { size: size_of::<Request>(), file, data, len, offset, op, class_id: 0, durability, reserved: 0 }
}

/// Reads, on the calling thread.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_read(
    file: *mut File,
    data: *mut c_void,
    len: usize,
    offset: u64,
    bytes: *mut u64,
) -> c_int {
    run(|| {
        let read = request(file, FB_OP_READ, (data, len), offset, 0);
        // SAFETY: the caller's promise is that of `fb_run`.
        unsafe { run_request(&read, bytes, "fb_read") }
    })
}

/// Writes, on the calling thread.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_write(
    file: *mut File,
    data: *const c_void,
    len: usize,
    offset: u64,
    durability: u32,
) -> c_int {
    run(|| {
        let write = request(file, FB_OP_WRITE, (data.cast_mut(), len), offset, durability);
        // SAFETY: the caller's promise is that of `fb_run`; a write only reads the memory.
        unsafe { run_request(&write, std::ptr::null_mut(), "fb_write") }
    })
}

/// Makes completed writes durable, on the calling thread.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_sync(file: *mut File, durability: u32) -> c_int {
    run(|| {
        let sync = request(file, FB_OP_SYNC, (std::ptr::null_mut(), 0), 0, durability);
        // SAFETY: the caller's promise is that of `fb_run`; a sync has no memory.
        unsafe { run_request(&sync, std::ptr::null_mut(), "fb_sync") }
    })
}

/// Executes a request on the calling thread.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_run(request: *const Request, bytes: *mut u64) -> c_int {
    run(|| {
        // SAFETY: the caller's promise: a struct.
        let request = unsafe { boundary::read(request, "request")? };
        // SAFETY: the caller's promise, as the header has it.
        unsafe { run_request(&request, bytes, "fb_run") }
    })
}

/// Starts one operation, or a batch.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_submit(
    requests: *const Request,
    count: usize,
    notice: *const Notice,
    op: *mut *mut Op,
) -> c_int {
    run(|| {
        if count == 0 {
            return Err(Fault::invalid("there is no request"));
        }
        // SAFETY: the caller's promise: `count` structs, and a struct or null.
        let (requests, notice) = unsafe {
            (boundary::read_all(requests, count, "requests")?, boundary::read_optional(notice, "notice")?)
        };
        let mut pieces = Vec::with_capacity(requests.len());
        for request in &requests {
            // SAFETY: the caller's promise: a handle.
            let file = unsafe { boundary::handle(request.file.cast_const(), "the request's file")? };
            pieces.push(Piece::of(request, file)?);
        }
        let (kind, instance) = check_batch(&pieces)?;
        let notifier = match notice {
            Some(notice) => {
                refuse_reserved(notice.reserved, "notice")?;
                if notice.eventfd < 0 {
                    let text = format!("the notice's eventfd is {}; set it to 0 for none", notice.eventfd);
                    return Err(Fault::invalid(text));
                }
                // SAFETY: the caller's promise about callback and descriptor.
                unsafe { Notifier::new(notice.callback, notice.user, notice.eventfd) }
            }
            None => None,
        };
        let place = NonNull::new(op);
        if place.is_none() && notifier.is_none() {
            return Err(Fault::invalid(
                "op is a null pointer, and there is no notice: the end could not be seen",
            ));
        }
        let (admitted, job) = match &pieces[..] {
            [piece] => {
                let admitted = instance.admit(notifier, kind != Kind::Sync)?;
                let memory = match kind {
                    Kind::Sync => CallerMemory::default(),
                    // SAFETY: the caller's promise: memory of that length, his again when the operation has ended.
                    _ => unsafe { CallerMemory::of_op(piece.start, piece.len, admitted.clone()) },
                };
                (admitted, piece.job(memory))
            }
            pieces if kind == Kind::Read => {
                // SAFETY: as above, for each request.
                let each = |piece: &Piece<'_>| unsafe { Destination::new(piece.start, piece.len) };
                let job = read_batch(&instance, pieces, pieces.iter().map(each).collect());
                (instance.admit(notifier, false)?, job)
            }
            pieces => {
                // SAFETY: the caller's promise: memory of that length, at most `isize::MAX`, which is copied before this call
                // returns.
                let each = |piece: &Piece<'_>| unsafe { memory::bytes(piece.start.cast_const(), piece.len) };
                let bytes: Vec<&[u8]> = pieces.iter().map(each).collect();
                let job = write_batch(&instance, pieces, &bytes)?;
                (instance.admit(notifier, false)?, job)
            }
        };
        // Before its start: a callback may use the handle.
        if let Some(place) = place {
            // SAFETY: the caller's place for a handle.
            unsafe { place.write(Arc::into_raw(admitted.clone()).cast_mut()) };
        }
        admitted.begin(job);
        Ok(())
    })
}

/// Returns the operation of a handle.
///
/// # Safety
/// The handle is null, or one of `fb_submit` that was not freed.
unsafe fn op_of(op: *mut Op) -> Result<Arc<Op>, Fault> {
    // SAFETY: the caller's promise.
    unsafe { boundary::handle(op.cast_const(), "op")? }.instance().check()?;
    // SAFETY: the handle is a count of an `Arc`, which stays; this adds one.
    unsafe {
        Arc::increment_strong_count(op.cast_const());
        Ok(Arc::from_raw(op.cast_const()))
    }
}

/// Waits for an operation.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_op_wait(op: *mut Op, timeout_ns: i64, outcome: *mut Outcome) -> c_int {
    run(|| {
        // SAFETY: the caller's promise: a handle.
        let op = unsafe { op_of(op)? };
        if timeout_ns != 0 {
            refuse_here("fb_op_wait")?;
        }
        // A negative time has no end.
        let patience = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
        if !op.wait(patience) {
            return Err(pending());
        }
        if let Some(found) = op.outcome() {
            // SAFETY: the caller's promise: a struct or null.
            unsafe { boundary::fill_optional(outcome, &found, "outcome")? };
        }
        op.fault()
    })
}

/// Returns the outcome of one request of a batch.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_op_part(op: *mut Op, index: usize, outcome: *mut Outcome) -> c_int {
    run(|| {
        // SAFETY: the caller's promise: a handle.
        let op = unsafe { op_of(op)? };
        let part = op.part(index)?;
        // SAFETY: the caller's promise: a struct.
        unsafe { boundary::fill(outcome, &part, "outcome") }
    })
}

/// Cancels an operation that has no result yet.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_op_cancel(op: *mut Op) -> c_int {
    run(|| {
        // SAFETY: the caller's promise: a handle.
        let op = unsafe { op_of(op)? };
        op.cancel(Fault::new(
            Code::Cancelled,
            "the operation was cancelled by fb_op_cancel; a write may have taken effect",
        ));
        Ok(())
    })
}

/// Frees the handle of an operation that has ended.
///
/// # Safety
/// See `forebay.h` for the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_op_free(op: *mut Op) -> c_int {
    run(|| {
        if op.is_null() {
            return Ok(());
        }
        refuse_here("fb_op_free")?;
        // SAFETY: the caller's promise: a handle.
        let other = unsafe { op_of(op)? };
        if other.outcome().is_none() {
            return Err(pending());
        }
        // SAFETY: the handle's own count, given up by this call, the only one.
        drop(unsafe { Arc::from_raw(op.cast_const()) });
        Ok(())
    })
}
