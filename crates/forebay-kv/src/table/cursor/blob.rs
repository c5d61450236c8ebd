//! Long values of cursors, which are read only once they are wanted.

use super::{Current, Cursor};
use crate::error::Result;
use crate::table::blob::memory_bytes;
use crate::value::HeldShare;

impl Cursor {
    /// Reads the value at the cursor, if it was not read yet.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub(crate) async fn load(&mut self) -> Result<()> {
        let Current::Blob(blob, expires_s) = self.current else { return Ok(()) };
        // For a range this counts as held by the program, which holds the value next. Compaction has a share
        // for it.
        let held = if self.how.cache { memory_bytes(blob) } else { 0 };
        let _held = HeldShare::new(Some(self.table.cache.held()), held);
        let read = self.table.read(blob.range(), self.how.class).await;
        let block = self.note(read.and_then(|block| self.table.check_blob(blob, &block).map(|()| block)))?;
        self.current = Current::Value { range: 0..block.len(), block, expires_s };
        Ok(())
    }

    pub(super) fn note<T>(&mut self, answer: Result<T>) -> Result<T> {
        if let Err(error) = &answer {
            self.failed = Some(error.clone());
            self.current = Current::None;
        }
        answer
    }
}
