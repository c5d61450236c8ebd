//! The count of a buffer's blocks in every interleaving: exactly one owner is the last, and all reads of the other owners happen
//! before.

use loom::cell::UnsafeCell;
use loom::thread::spawn;

use super::*;
use crate::base::sync::model::{Guarantee, breaking, check};

/// A buffer with three blocks, as its bytes and its header.
struct Buffer {
    header: Header,
    bytes: UnsafeCell<u32>,
}

// SAFETY: readers hold a count, and the writer is the last owner; loom checks exactly that.
unsafe impl Send for Buffer {}
// SAFETY: as above, loom watches every access to the bytes.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Reads, and drops its block. The last owner writes to the buffer.
    fn read_and_drop(&self) -> bool {
        // SAFETY: a counted reference keeps every thread from writing.
        self.bytes.with(|bytes| assert_eq!(unsafe { *bytes }, 7));
        let last = self.header.refs_drop();
        if last {
            // SAFETY: this is the last owner.
            self.bytes.with_mut(|bytes| unsafe { *bytes = 8 });
        }
        last
    }
}

fn three_blocks_are_dropped() {
    let buffer = Arc::new(Buffer { header: Header::ordinary(0, ptr::null_mut()), bytes: UnsafeCell::new(7) });
    buffer.header.refs_start();
    let others = [(), ()].map(|()| {
        buffer.header.refs_add();
        let buffer = Arc::clone(&buffer);
        spawn(move || buffer.read_and_drop())
    });
    let mine = buffer.read_and_drop();
    let others = others.map(|thread| thread.join().unwrap());
    assert_eq!([mine, others[0], others[1]].iter().filter(|last| **last).count(), 1);
}

#[test]
fn one_owner_is_the_last_and_has_the_buffer_alone() {
    check(three_blocks_are_dropped);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_release_the_last_owner_writes_what_others_read() {
    breaking(&[Guarantee::Release], three_blocks_are_dropped);
}
