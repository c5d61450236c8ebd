//! The compression of a table being written: how many records a leaf must have to fill its pages once compressed, and which leaves
//! and values are not worth compressing.

use crate::cache::{Pin, PinPurpose};
use crate::error::Result;
use crate::node::codec::{Codec, Encoder};
use crate::node::packed::{LEAF_BYTES_MAX, PACKED_HEADER_BYTES, image, pack};
use crate::node::{Builder, Identity, UNIT};
use crate::table::TableSpec;
use crate::table::footer::TableCompression;

/// Maximum bytes of a leaf before compression, as a multiple of the leaf size and in all. It bounds a get's time to unpack a leaf,
/// and the memory of a cached leaf.
const LEAF_MULTIPLE: usize = 4;
const LEAF_MAX: usize = 32 << 10;
/// The least ratio that is worth it: the cache keeps leaves in memory of powers of two, so a leaf of 5 KiB uses as much of it as a
/// leaf of 8.
const RATIO_MIN: f64 = 4.0 / 3.0;
/// The part of a packed leaf that is planned to be filled: the next leaf may compress less well.
const FILL: f64 = 0.96;
/// Logarithm of the longest pause between two attempts.
const PAUSE_MAX: u32 = 6;

/// The compression of a table being written.
pub(super) struct Packer {
    pub(super) encoder: Encoder,
    leaf_bytes: usize,
    /// Bytes of a leaf before compression for each byte after it, of recent leaves.
    ratio: f64,
    leaves: Attempts,
    pub(super) blobs: Attempts,
    /// How often the present leaf was compressed.
    tries: u32,
    /// The leaf that was compressed last, and the length of the result.
    leaf: Vec<u8>,
    encoded: usize,
    leaf_bytes_max: usize,
    saved_bytes: u64,
    _pin: Option<Pin>,
}

/// What becomes of a full leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It accepts records up to this length before compression.
    Fill(usize),
    /// Its first `count` records are written, packed as they were compressed last, or plain.
    Write { count: usize, is_packed: bool },
}

/// Whether compression is worth an attempt: after failures most are left out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempts {
    failures: u32,
    left_out: u32,
}

impl Attempts {
    pub(super) fn is_due(&mut self) -> bool {
        let is_due = self.left_out == 0;
        self.left_out = self.left_out.saturating_sub(1);
        is_due
    }

    pub(super) fn note(&mut self, has_gained: bool) {
        self.failures = if has_gained { 0 } else { (self.failures + 1).min(PAUSE_MAX) };
        self.left_out = (1 << self.failures) - 1;
    }
}

impl Packer {
    /// Returns `None` for a table without compression.
    pub(super) fn new(spec: &TableSpec) -> Result<Option<Packer>> {
        let Some(encoder) = Encoder::new(spec.compression)? else { return Ok(None) };
        let memory = Encoder::memory_bytes(spec.compression) + LEAF_BYTES_MAX as u64;
        Ok(Some(Packer {
            encoder,
            leaf_bytes: spec.leaf_bytes as usize,
            ratio: RATIO_MIN,
            leaves: Attempts::default(),
            blobs: Attempts::default(),
            tries: 0,
            leaf: Vec::new(),
            encoded: 0,
            leaf_bytes_max: 0,
            saved_bytes: 0,
            _pin: spec.cache.as_ref().map(|cache| cache.must_pin(PinPurpose::Tables, memory)),
        }))
    }

    /// Returns the planned length of a leaf before compression.
    pub(super) fn target(&self) -> usize {
        if self.ratio < RATIO_MIN {
            return self.leaf_bytes;
        }
        let fills = (self.leaf_bytes as f64 * self.ratio * FILL) as usize;
        let most = (LEAF_MULTIPLE * self.leaf_bytes).min(LEAF_MAX).max(self.leaf_bytes);
        let bytes = fills.clamp(self.leaf_bytes, most);
        // Unpacked it has memory of a power of two: a length just above one would waste nearly half.
        let power = 1 << bytes.ilog2();
        if power > self.leaf_bytes && bytes < power + power / 2 { power } else { bytes }
    }

    /// Decides about a leaf that cannot hold a record with which it would have `needs` bytes; without `needs`, about the last leaf.
    /// The first `fixed` records must stay together. Compresses up to twice for each leaf that is written.
    pub(super) fn judge(&mut self, leaf: &Builder, needs: Option<usize>, fixed: usize) -> Verdict {
        let (count, len) = (leaf.count(), leaf.len());
        let plain = Verdict::Write { count, is_packed: false };
        if self.tries == 0 && len <= self.leaf_bytes && !self.leaves.is_due() {
            return plain;
        }
        self.tries += 1;
        let packed = self.compress(leaf, count);
        self.note(len, packed);
        let has_gained = self.ratio >= RATIO_MIN;
        let is_shorter = packed.div_ceil(UNIT) < len.div_ceil(UNIT);
        if packed <= self.leaf_bytes {
            let target = self.target();
            let has_room = packed <= self.leaf_bytes / 8 * 7;
            if self.tries == 1 && has_room && needs.is_some_and(|needs| needs <= target) {
                return Verdict::Fill(target);
            }
            self.leaves.note(has_gained);
            return Verdict::Write { count, is_packed: is_shorter };
        }
        self.leaves.note(has_gained);
        if len <= self.leaf_bytes || count == 1 {
            return Verdict::Write { count, is_packed: is_shorter };
        }
        let fits = (len as f64 * self.leaf_bytes as f64 / packed as f64 * FILL) as usize;
        let first = leaf.count_within(fits);
        let first_len = leaf.len_of_first(first);
        if first >= fixed && first_len > self.leaf_bytes && self.compress(leaf, first) <= self.leaf_bytes {
            return Verdict::Write { count: first, is_packed: true };
        }
        match leaf.count_within(self.leaf_bytes) {
            first if first >= fixed => Verdict::Write { count: first, is_packed: false },
            // A longer leaf than others: its values lie before it already.
            _ => plain,
        }
    }

    /// Starts the next leaf.
    pub(super) fn begin(&mut self) {
        self.tries = 0;
    }

    /// Writes the leaf that was compressed last into a node.
    pub(super) fn pack(&mut self, node: &mut [u8], identity: Identity) -> bool {
        let image = self.encoder.encoded(self.encoded);
        self.leaf_bytes_max = self.leaf_bytes_max.max(self.leaf.len());
        self.saved_bytes += self.leaf.len().saturating_sub(node.len()) as u64;
        pack(node, identity, self.encoder.codec(), &self.leaf, image)
    }

    /// Returns the length of the packed leaf, in bytes.
    pub(super) fn packed_len(&self) -> usize {
        PACKED_HEADER_BYTES + self.encoded
    }

    /// Counts a blob's bytes that were saved.
    pub(super) fn add_saved(&mut self, bytes: usize) {
        self.saved_bytes += bytes as u64;
    }

    pub(super) fn packing(&self) -> TableCompression {
        TableCompression {
            codec: self.codec(),
            leaf_bytes_max: self.leaf_bytes_max as u32,
            saved_bytes: self.saved_bytes,
        }
    }

    fn codec(&self) -> Codec {
        self.encoder.codec()
    }

    /// Compresses the first `count` records; returns the length of the packed leaf.
    fn compress(&mut self, leaf: &Builder, count: usize) -> usize {
        self.leaf.clear();
        self.leaf.resize(leaf.len_of_first(count), 0);
        leaf.lay_out(count, &mut self.leaf);
        match self.encoder.encode(image(&self.leaf)) {
            Some(len) => {
                self.encoded = len;
                self.packed_len()
            }
            None => usize::MAX,
        }
    }

    /// Notes the ratio of a leaf.
    fn note(&mut self, len: usize, packed: usize) {
        let ratio = len as f64 / packed as f64;
        // A leaf that compresses less than planned counts immediately: a leaf that does not fit costs more than one that is not
        // full.
        self.ratio = if ratio < self.ratio { ratio } else { (self.ratio + ratio) / 2.0 };
    }
}
