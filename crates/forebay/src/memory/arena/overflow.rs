//! Ordinary aligned memory for when the arena is empty and the program holds all of it: counted, limited,
//! unregistered.

use std::alloc::{self, Layout};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::header::Header;
use super::{BUFFER_BYTES_MIN, Buffer, Shared};

/// An overflow buffer's record. The header is first, so that a pointer to it is a pointer to the record.
#[repr(C)]
struct Record {
    header: Header,
    data: NonNull<u8>,
    layout: Layout,
    shared: Arc<Shared>,
}

/// Returns a buffer of ordinary memory, if the allowance has room for it.
pub(super) fn allocate(shared: &Arc<Shared>, class: usize) -> Option<Buffer> {
    let bytes = BUFFER_BYTES_MIN << class;
    let layout = Layout::from_size_align(bytes, BUFFER_BYTES_MIN << shared.class_min).ok()?;
    // SeqCst against a lost wake-up, as in `ReturnStack::push`: a waiting shard checks this after setting its
    // bit.
    shared
        .overflow_bytes
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
            used.checked_add(bytes).filter(|total| *total <= shared.overflow_bytes_max)
        })
        .ok()?;
    // SAFETY: a class is at least one page, so the size is not zero.
    let Some(data) = NonNull::new(unsafe { alloc::alloc(layout) }) else {
        shared.overflow_bytes.fetch_sub(bytes, Ordering::SeqCst);
        return None;
    };
    shared.overflow_allocations.fetch_add(1, Ordering::Relaxed);
    let record = Box::new(Record {
        header: Header::overflow(class, data.as_ptr()),
        data,
        layout,
        shared: Arc::clone(shared),
    });
    let record = NonNull::from(Box::leak(record));
    // SAFETY: a new buffer that no other code has; its pointer may be used for the whole record.
    Some(unsafe { Buffer::from_header(record.cast()) })
}

/// # Safety
/// `header` is of a live overflow buffer.
pub(super) unsafe fn shared<'a>(header: NonNull<Header>) -> &'a Arc<Shared> {
    // SAFETY: the header is the first field of a record, which the live buffer keeps.
    unsafe { &header.cast::<Record>().as_ref().shared }
}

/// # Safety
/// The caller owns the buffer alone and does not use it afterwards.
#[cold]
pub(super) unsafe fn free(header: NonNull<Header>) {
    // SAFETY: leaked by `allocate`, and the caller is its last owner.
    let record = unsafe { Box::from_raw(header.cast::<Record>().as_ptr()) };
    // SAFETY: allocated with this layout.
    unsafe { alloc::dealloc(record.data.as_ptr(), record.layout) };
    let used = record.shared.overflow_bytes.fetch_sub(record.layout.size(), Ordering::SeqCst);
    debug_assert!(used >= record.layout.size(), "each overflow buffer is counted until it is freed");
    record.shared.waiting.wake();
}
