//! Long values outside of their leaves: found by a walk, and read when there is memory for them.

use std::fmt;
use std::sync::Arc;

use forebay::Class;

use super::Table;
use crate::error::Result;
use crate::node::BlobAt;
use crate::value::Value;

/// Longer values do not go into the cache, and are not read by the walk that finds them, in bytes.
pub(super) const WALKED_BYTES_MAX: u32 = 64 << 10;

/// The place of a value that is to be read.
#[derive(Clone)]
pub(crate) struct Far {
    pub(super) table: Arc<Table>,
    pub(super) blob: BlobAt,
}

impl Far {
    /// Bytes of the I/O memory that it will be read into.
    pub(crate) fn memory_bytes(&self) -> u64 {
        memory_bytes(self.blob)
    }

    /// Reads it.
    ///
    /// # Errors
    /// `Corruption`, with file and offset; the system's.
    pub(crate) async fn read(self, class: Class) -> Result<Value> {
        let (table, blob) = (&self.table, self.blob);
        let block = table.read(blob.range(), class).await?;
        table.check_blob(blob, &block)?;
        Ok(Value::of_block(block, table.cache.held()))
    }
}

/// Bytes of the I/O memory that a value is read into.
pub(super) fn memory_bytes(blob: BlobAt) -> u64 {
    u64::from(blob.len).next_power_of_two().max(4096)
}

impl PartialEq for Far {
    fn eq(&self, other: &Far) -> bool {
        Arc::ptr_eq(&self.table, &other.table) && self.blob == other.blob
    }
}

impl Eq for Far {}

impl fmt::Debug for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Far")
            .field("table", &self.table.meta.id)
            .field("blob", &self.blob)
            .finish_non_exhaustive()
    }
}
