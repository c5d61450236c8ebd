//! Memory of the system's allocator behind the same headers as the arena's buffers, not registered with any ring: for when
//! the arena has no buffer (*overflow*: counted and limited), for reads that are long for it (`line.rs`), and for bytes that a program
//! keeps (results, copies, its own vectors, cached blocks). Each is as long as its bytes, or as whole pages of them.

use std::alloc::{self, Layout};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::header::Header;
use super::region::{HUGE_BYTES, advise_huge};
use super::{ArenaCore, BUFFER_BYTES_MIN, Buffer};

/// A buffer's record. The header is first, so that a pointer to it is a pointer to the record. It lies in front of data that need
/// no separate page, in one allocation with them, otherwise by itself.
#[repr(C)]
struct Record {
    header: Header,
    /// The allocation and its layout: of the data, or of both.
    allocated: NonNull<u8>,
    layout: Layout,
    is_apart: bool,
    account: Account,
}

/// The alignment that an allocator gives without a search; a multiple costs half of a short allocation more.
const PLAIN_ALIGN: usize = 16;

/// The figure that counts a buffer's bytes until it is freed.
pub(super) enum Account {
    /// `overflow_bytes`, which is limited.
    Overflow(Arc<ArenaCore>),
    /// `result_bytes`.
    Result(Arc<ArenaCore>),
    /// `long_bytes`, which is limited: reads that are long for the arena, and the blocks that they return.
    Long(Arc<ArenaCore>),
    /// `exact_bytes`, which share the regions' limit.
    Exact(Arc<ArenaCore>),
    /// The program's memory, which is not counted.
    Own,
}

/// From this length on, buffers start at huge pages and request them: a device's reads into new memory wait for its pages.
const HUGE_FROM_BYTES: usize = 4 << 20;

/// Returns a buffer of overflow memory, if it fits into the allowance.
///
/// The allowance includes the free memory of the arena's regions: an arena that has grown in small regions may lack a buffer of
/// this length although no buffer is held, and then the error would be wrong.
pub(super) fn allocate_overflow(shared: &Arc<ArenaCore>, len: usize) -> Option<Buffer> {
    let bytes = shared.whole_pages(len)?;
    let counts = shared.counts();
    let unheld = counts.bytes_mapped.saturating_sub(counts.bytes_held);
    let most = shared.overflow_bytes_max.saturating_add(unheld);
    // SeqCst against a lost wake-up, as in `ReturnStack::push`: a waiting shard checks this after setting its
    // bit.
    shared
        .overflow_bytes
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
            used.checked_add(bytes).filter(|total| *total <= most)
        })
        .ok()?;
    let layout = Layout::from_size_align(bytes, BUFFER_BYTES_MIN << shared.class_min).ok();
    // SAFETY: at least one page, so the size is not zero.
    let buffer =
        layout.and_then(|layout| unsafe { allocate(layout, Account::Overflow(Arc::clone(shared)), false) });
    match buffer {
        Some(_) => shared.overflow_allocations.fetch_add(1, Ordering::Relaxed),
        None => shared.overflow_bytes.fetch_sub(bytes, Ordering::SeqCst) as u64,
    };
    buffer
}

/// Returns a buffer of whole pages for a long read, unless blocks of such reads hold as much as they may already; `None` also where the
/// system has no memory.
pub(super) fn allocate_long(shared: &Arc<ArenaCore>, len: usize) -> Option<Buffer> {
    let bytes = shared.whole_pages(len)?;
    let held = shared.long_bytes.load(Ordering::Relaxed).saturating_sub(shared.line.bytes_kept());
    if held > 0 && held >= shared.long_bytes_max {
        return None;
    }
    allocate_exact(bytes, BUFFER_BYTES_MIN << shared.class_min, Account::Long(Arc::clone(shared)), false)
}

/// Returns a buffer of exactly `len` bytes, if the regions leave this many of the arena's limit.
pub(super) fn allocate_within_limit(shared: &Arc<ArenaCore>, len: usize) -> Option<Buffer> {
    let most = shared.bytes_max.saturating_sub(shared.bytes_mapped.load(Ordering::Relaxed));
    let fits = |used: usize| used.checked_add(len).filter(|total| *total <= most);
    shared.exact_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
    let buffer = allocate_exact(len, 1, Account::Exact(Arc::clone(shared)), false);
    // It was counted by both.
    shared.exact_bytes.fetch_sub(len, Ordering::Relaxed);
    buffer
}

/// Returns a buffer of exactly `bytes` (at least one), at a multiple of `align`; `None` where the system has no memory. Counts `Result`,
/// `Long` and `Exact` memory.
pub(super) fn allocate_exact(bytes: usize, align: usize, account: Account, zeroed: bool) -> Option<Buffer> {
    let is_huge = bytes >= HUGE_FROM_BYTES && align >= BUFFER_BYTES_MIN;
    let layout =
        Layout::from_size_align(bytes.max(1), if is_huge { HUGE_BYTES.max(align) } else { align }).ok()?;
    if let Some(count) = account.figure() {
        count.fetch_add(layout.size(), Ordering::Relaxed);
    }
    // SAFETY: the size is not zero. A refused buffer's count is undone below.
    unsafe { allocate(layout, account, zeroed) }
}

impl Account {
    /// Returns the figure of memory without a limit that a waiter could wait for.
    fn figure(&self) -> Option<&AtomicUsize> {
        match self {
            Account::Result(shared) => Some(&shared.result_bytes),
            Account::Long(shared) => Some(&shared.long_bytes),
            Account::Exact(shared) => Some(&shared.exact_bytes),
            Account::Overflow(_) | Account::Own => None,
        }
    }
}

/// # Safety
/// The layout's size is not zero. The bytes are counted already; on failure, `Result`, `Long` and `Exact` bytes are uncounted.
unsafe fn allocate(data: Layout, account: Account, zeroed: bool) -> Option<Buffer> {
    let is_apart = data.align() > align_of::<Record>();
    // SAFETY: the caller's promise.
    let allocation = unsafe { if is_apart { apart(data, zeroed) } else { beside(data, zeroed) } };
    let Some(Allocation { record, data: start, allocated, layout }) = allocation else {
        if let Some(count) = account.figure() {
            count.fetch_sub(data.size(), Ordering::Relaxed);
        }
        return None;
    };
    if data.align() >= HUGE_BYTES && !zeroed {
        advise_huge(start, data.size());
    }
    let header = Header::ordinary(data.size(), start.as_ptr());
    // SAFETY: memory for a record that no other code has.
    unsafe { record.write(Record { header, allocated, layout, is_apart, account }) };
    // SAFETY: a new buffer that no other code has; its pointer may be used for the whole record.
    Some(unsafe { Buffer::from_header(record.cast()) })
}

/// Memory for a record and its data.
struct Allocation {
    record: NonNull<Record>,
    data: NonNull<u8>,
    allocated: NonNull<u8>,
    layout: Layout,
}

/// Returns memory for a record with its data behind it.
///
/// # Safety
/// The layout's size is not zero, and its alignment at most a record's.
unsafe fn beside(data: Layout, zeroed: bool) -> Option<Allocation> {
    let (both, offset) = Layout::new::<Record>().extend(data).ok()?;
    let bytes = both.size().checked_add(both.align() - PLAIN_ALIGN)?;
    let layout = Layout::from_size_align(bytes, PLAIN_ALIGN).ok()?;
    // SAFETY: the size is not zero.
    let allocated = unsafe { system_memory(layout, zeroed) }?;
    // SAFETY: the allocation has space for `both` at the next multiple of its alignment, and `offset` lies within it.
    let (record, data) = unsafe {
        let record = allocated.add(allocated.align_offset(both.align()));
        (record.cast(), record.add(offset))
    };
    Some(Allocation { record, data, allocated, layout })
}

/// Returns memory for data, and for a record apart from them.
///
/// # Safety
/// The layout's size is not zero.
unsafe fn apart(layout: Layout, zeroed: bool) -> Option<Allocation> {
    // SAFETY: the caller's promise.
    let data = unsafe { system_memory(layout, zeroed) }?;
    let record = NonNull::from(Box::leak(Box::<Record>::new_uninit())).cast();
    Some(Allocation { record, data, allocated: data, layout })
}

/// # Safety
/// The layout's size is not zero.
unsafe fn system_memory(layout: Layout, zeroed: bool) -> Option<NonNull<u8>> {
    // SAFETY: the caller's promise.
    NonNull::new(unsafe { if zeroed { alloc::alloc_zeroed(layout) } else { alloc::alloc(layout) } })
}

/// Returns the arena that counts a buffer's bytes.
///
/// # Safety
/// `header` is of a live buffer of ordinary memory.
pub(super) unsafe fn shared<'a>(header: NonNull<Header>) -> Option<&'a Arc<ArenaCore>> {
    // SAFETY: the header is the first field of a record, which the live buffer keeps.
    match unsafe { &header.cast::<Record>().as_ref().account } {
        Account::Overflow(shared)
        | Account::Result(shared)
        | Account::Long(shared)
        | Account::Exact(shared) => Some(shared),
        Account::Own => None,
    }
}

/// # Safety
/// The caller owns the buffer alone and does not use it afterwards.
#[cold]
pub(super) unsafe fn free(header: NonNull<Header>) {
    // SAFETY: the caller's last use of the header.
    let bytes = unsafe { header.as_ref() }.capacity();
    let record = header.cast::<Record>();
    // SAFETY: written by `allocate`, and the caller is its last owner.
    let Record { header: _, allocated, layout, is_apart, account } = unsafe { record.read() };
    if is_apart {
        // SAFETY: leaked by `apart`, and moved out of above.
        drop(unsafe { Box::from_raw(record.cast::<MaybeUninit<Record>>().as_ptr()) });
    }
    // SAFETY: allocated with this layout. A record in front of its data is freed with them.
    unsafe { alloc::dealloc(allocated.as_ptr(), layout) };
    let (used, what) = match &account {
        Account::Overflow(shared) => {
            let used = shared.overflow_bytes.fetch_sub(bytes, Ordering::SeqCst);
            shared.waiting.wake();
            (used, "overflow")
        }
        Account::Result(shared) => (shared.result_bytes.fetch_sub(bytes, Ordering::Relaxed), "result"),
        Account::Long(shared) => (shared.long_bytes.fetch_sub(bytes, Ordering::Relaxed), "long"),
        // The arena may grow by as much.
        Account::Exact(shared) => {
            let used = shared.exact_bytes.fetch_sub(bytes, Ordering::SeqCst);
            shared.waiting.wake();
            (used, "exact")
        }
        Account::Own => (bytes, "own"),
    };
    debug_assert!(used >= bytes, "each {what} buffer is counted until it is freed");
}
