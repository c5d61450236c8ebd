//! Output of a table to its file: nodes are built in place in the buffers that are written to the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::{Append, BlockMut, Durability, Engine, File};

use super::blob_at;
use crate::cache::Cache;
use crate::error::{Error, ErrorKind, Result};
use crate::node::{BlobAt, NODE_UNITS_MAX, UNIT};
use crate::table::TableSpec;

/// Minimum bytes of a buffer: a node must fit.
const BUFFER_BYTES_MIN: usize = (NODE_UNITS_MAX as usize * UNIT).next_power_of_two();

/// Buffers that are filled in place and written one after the other.
pub(super) struct Out {
    engine: Engine,
    append: Append,
    /// The buffer being filled; it is zero behind the filled part.
    buffer: BlockMut,
    filled: usize,
    buffer_bytes: usize,
    cache: Option<Arc<Cache>>,
    written_bytes: Arc<AtomicU64>,
}

impl Out {
    pub(super) fn new(engine: &Engine, file: &File, spec: &TableSpec) -> Out {
        let buffer_bytes = spec.buffer_bytes.max(BUFFER_BYTES_MIN).next_multiple_of(UNIT);
        let append = file.append().request_bytes(buffer_bytes).depth(spec.depth).class(spec.class).start();
        Out {
            engine: engine.clone(),
            append,
            buffer: BlockMut::default(),
            filled: 0,
            buffer_bytes,
            cache: spec.cache.clone(),
            written_bytes: spec.written_bytes.clone(),
        }
    }

    /// Returns the file offset of the next byte.
    pub(super) fn position(&self) -> u64 {
        self.append.position() + self.filled as u64
    }

    /// Returns that offset in units.
    pub(super) fn unit(&self) -> Result<u32> {
        debug_assert!(self.position().is_multiple_of(UNIT as u64), "nodes begin at whole units");
        u32::try_from(self.position() / UNIT as u64)
            .map_err(|_| Error::new(ErrorKind::TooLarge { limit: usize::MAX }, "a table has 16 TiB at most"))
    }

    /// Returns `len` zero bytes, whole units, to build a node in.
    pub(super) async fn node(&mut self, len: usize) -> Result<&mut [u8]> {
        if self.buffer.len() - self.filled < len {
            self.turn().await?;
        }
        let begin = self.filled;
        self.filled += len;
        self.buffer
            .get_mut(begin..begin + len)
            .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "a node that is longer than a buffer"))
    }

    /// Writes a blob at the current position and returns its place.
    pub(super) async fn blob(&mut self, bytes: &[u8]) -> Result<BlobAt> {
        let at = blob_at(self.position(), bytes);
        self.bytes(bytes).await?;
        Ok(at)
    }

    /// Writes bytes at the current position.
    pub(super) async fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.filled == self.buffer.len() {
                self.turn().await?;
            }
            let (part, behind) = rest.split_at(rest.len().min(self.buffer.len() - self.filled));
            self.buffer[self.filled..self.filled + part.len()].copy_from_slice(part);
            self.filled += part.len();
            rest = behind;
            forebay::shard::yield_if_needed().await;
        }
        Ok(())
    }

    /// Pads with zeros up to the next unit.
    pub(super) fn pad(&mut self) {
        self.filled = self.filled.next_multiple_of(UNIT);
        debug_assert!(self.filled <= self.buffer.len(), "a buffer has whole units");
    }

    /// Writes the rest and makes the file durable; returns its length.
    pub(super) async fn finish(mut self, durability: Durability) -> Result<u64> {
        self.flush().await?;
        self.append.sync(durability).await?;
        Ok(self.append.close().await?)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.append.held_bytes() + self.buffer.capacity() as u64
    }

    async fn turn(&mut self) -> Result<()> {
        self.flush().await?;
        self.buffer = loop {
            match self.engine.block(self.buffer_bytes).map_err(Error::from) {
                Err(error) if self.cache.as_ref().is_some_and(|cache| cache.gives_way(&error)) => {}
                block => break block?,
            }
        };
        Ok(())
    }

    async fn flush(&mut self) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.truncate(std::mem::take(&mut self.filled));
        if !buffer.is_empty() {
            let bytes = buffer.len() as u64;
            self.append.write_block(buffer.freeze()).await?;
            self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }
}
