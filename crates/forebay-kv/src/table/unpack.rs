//! Unpacking of leaves and values, into separate I/O memory.
//!
//! It is done where the program polls or waits, never in a step of a walk: unpacking a leaf costs microseconds, and a step holds up
//! its shard. The cache keeps leaves unpacked. Unpacking a leaf costs as much as ten searches of a cached leaf, so a cache of
//! packed leaves would slow the gets that are fastest.

use std::sync::Arc;

use forebay::Block;

use super::file::NO_CODEC;
use super::lookup::Progress;
use super::{Hit, Table};
use crate::error::{Error, Result};
use crate::node::packed::{is_packed, unpack, unpacked_len};
use crate::node::{BlobAt, Child, LEAF};

/// A packed part of a table that a walk read and checked. The lookup continues with it where it is unpacked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedAt {
    pub(super) part: Part,
    pub(super) now_s: u64,
    /// Whether the unpacked part is offered to the cache.
    pub(super) fill: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Leaf(Child),
    Blob(BlobAt),
}

impl Table {
    /// Returns a checked leaf in the form in which it is searched and cached: the block itself if it is plain.
    pub(super) fn unpacked_leaf(&self, child: Child, leaf: Block) -> Result<Block> {
        if !is_packed(&leaf) {
            return Ok(leaf);
        }
        let wrong = |wrong| self.corrupt(child.offset(), wrong);
        let packing = self.footer.packing.as_ref().ok_or_else(|| wrong(NO_CODEC))?;
        let len = unpacked_len(&leaf, packing.leaf_bytes_max as usize).map_err(wrong)?;
        self.filled(len, |bytes| unpack(&leaf, packing.codec, bytes).map_err(wrong))
    }

    /// Continues a lookup of `key` from a packed part. A value in a blob that is not in memory is left to the caller.
    pub(crate) fn go_on(self: &Arc<Self>, at: PackedAt, part: Block, key: &[u8]) -> Result<Option<Hit>> {
        let progress = match at.part {
            Part::Leaf(child) => {
                let leaf = self.unpacked_leaf(child, part)?;
                if at.fill {
                    self.offer(child.offset(), &leaf);
                }
                match self.visit(&leaf, child, LEAF, key, at.now_s)? {
                    Progress::Needs(next) => self.advance(key, at.now_s, next)?,
                    done => done,
                }
            }
            Part::Blob(blob) => {
                let value = self.unpacked_blob(blob, part)?;
                if at.fill {
                    self.offer(blob.offset, &value);
                }
                Progress::Done(Some(self.value(value)))
            }
        };
        match progress.blob() {
            Ok(found) => Ok(found),
            Err(Some(blob)) => Ok(Some(Hit::Blob(self.blob(blob, at.fill)?))),
            Err(None) => {
                let text = "a leaf leads to another node";
                Err(Error::corrupt(self.path(), 0, text))
            }
        }
    }
}
