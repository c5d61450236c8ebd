//! Long values outside of their leaves: a walk finds them, and they are read once memory is free for them.

use std::ops::Range;
use std::sync::Arc;

use forebay::{Block, Class, File, FilePlace, FileUse, Step, Walk};

use super::file::TableFile;
use crate::admission::{Admission, Permit, PermitHolder, Ticket};
use crate::error::{Error, Result};
use crate::node::BlobAt;
use crate::value::{HeldShare, Value};

/// Length in bytes above which a value is not read by the walk that finds it, and not cached as it is written.
pub(super) const WALKED_BYTES_MAX: u32 = 64 << 10;

/// The place of a value that must still be read.
#[derive(Clone)]
pub(crate) struct Blob {
    pub(super) file: Arc<TableFile>,
    pub(super) blob: BlobAt,
    /// Whether a value that is not too long is offered to the cache.
    pub(super) fill: bool,
}

impl Blob {
    /// Returns the bytes of I/O memory that the read needs.
    pub(crate) fn memory_bytes(&self) -> u64 {
        memory_bytes(self.blob)
    }

    /// Returns the value's file, which is opened if it is not open.
    ///
    /// # Errors
    /// `MissingTable` if it is not there any more; the system's.
    pub(crate) async fn opened(&self) -> Result<FileUse> {
        self.file.opened(&FilePlace::NONE).await
    }

    /// Reads the value from its open file. The permit and the value's memory, which counts as held by the program, travel to the
    /// shard with the read. Returns `None` if the value was evicted before this future was polled again. On a second attempt
    /// (`is_again`) it is kept.
    ///
    /// # Errors
    /// `Corruption`, with file and offset; the system's.
    pub(crate) async fn read(
        &self,
        opened: &File,
        class: Class,
        permit: Permit,
        held: HeldShare,
        is_again: bool,
    ) -> Result<Option<Value>> {
        let (file, blob) = (&self.file, self.blob);
        let read = BlobRead { permit: Some(permit), held: Some(held), is_again };
        let walk = opened.walk(blob.range(), read).class(class);
        let left = Admission::new(walk).wait().await.map_err(|error| file.walk_error(error))?;
        let Some(block) = left.and_then(Ticket::take) else { return Ok(None) };
        file.check_blob(blob, &block)?;
        let block = file.unpacked_blob(blob, block)?;
        if self.fill && blob.value_len <= file.cache.value_bytes_max() {
            file.offer(blob.offset, &block);
        }
        Ok(Some(Value::of_block(block, file.cache.held())))
    }
}

/// The read of a value: a walk of one hop, because its permit and memory belong to the shard where the read completes, not to the
/// thread that polls the program. The checksum of a value of many megabytes is not computed there.
struct BlobRead {
    permit: Option<Permit>,
    held: Option<HeldShare>,
    is_again: bool,
}

impl Walk for BlobRead {
    type Output = Option<Ticket>;
    type Error = Error;

    fn step(&mut self, block: &Block, _: Range<u64>) -> Step<Option<Ticket>, Error> {
        let (held, is_again) = (self.held.take(), self.is_again);
        Step::Done(self.permit.take().map(|permit| permit.leave(block.clone(), held, is_again)))
    }
}

impl PermitHolder for BlobRead {
    fn permit(&mut self) -> &mut Option<Permit> {
        &mut self.permit
    }
}

/// Returns the bytes of I/O memory that a value is read into, and unpacked into if it is packed.
pub(super) fn memory_bytes(blob: BlobAt) -> u64 {
    let memory = |len: u32| u64::from(len).next_power_of_two().max(4096);
    memory(blob.len) + if blob.is_packed() { memory(blob.value_len) } else { 0 }
}

impl PartialEq for Blob {
    fn eq(&self, other: &Blob) -> bool {
        Arc::ptr_eq(&self.file, &other.file) && self.blob == other.blob
    }
}

impl Eq for Blob {}

forebay::_debug_parts!(Blob, |blob| file: blob.file.id(), blob: blob.blob);
