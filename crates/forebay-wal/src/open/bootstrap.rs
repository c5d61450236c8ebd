//! Turns the result of recovery into a running log.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::sync::Arc;

use forebay::{BlockMut, Engine};

use super::Scene;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{HEADER_BYTES, RECORD_HEADER_BYTES};
use crate::queue::{Limits, Queue};
use crate::segment::{Index, Segment};
use crate::values::{COUNT_BYTES, TABLE_BYTES_MAX, Values};
use crate::wal::Wal;
use crate::writer::{Chain, Next, WayChooser, Writer, thread};

impl Scene {
    /// Returns the log's task, not yet started.
    pub(super) fn writer(
        &self,
        segment: Arc<Segment>,
        chain: Chain,
        index: Index,
        offset: u64,
        next: Next,
        values: Values,
    ) -> Result<Writer> {
        let options = &self.options;
        let limits = self.limits(self.unit(&segment.file)?);
        let values = Arc::new(values);
        let (next_lsn, written_bytes) = (chain.next_lsn, self.maker.written_bytes.clone());
        let engine = self.engine.clone();
        let shared =
            Queue::new(engine, options.shard, limits, index, next_lsn, values.clone(), written_bytes);
        Ok(Writer {
            shared: Arc::new(shared),
            maker: self.maker.clone(),
            lock: self.lock.clone(),
            end: self.end_file(chain.log_id),
            chain,
            segment,
            offset,
            group_bytes: 0,
            made: 0,
            next,
            unlocking: None,
            durability: options.durability,
            way: WayChooser::new(options.flush, options.try_every),
            class: options.class,
            fill: options.fill,
            mark_after: options.mark_after,
            values,
            table: Vec::new(),
            small: BlockMut::default(),
            spare: BlockMut::default(),
            wakers: Vec::new(),
        })
    }
}

impl Scene {
    /// Returns the limits of a log that is written in units of this many bytes.
    pub(super) fn limits(&self, unit: u32) -> Limits {
        let options = &self.options;
        let segment_bytes =
            usize::try_from(self.maker.bytes).unwrap_or(usize::MAX) / unit as usize * unit as usize;
        let framed_bytes = segment_bytes - HEADER_BYTES;
        let group_bytes = options.group_bytes_max.min(segment_bytes) / unit as usize * unit as usize;
        Limits {
            record_bytes: options.record_bytes_max.min(framed_bytes - RECORD_HEADER_BYTES - COUNT_BYTES),
            framed_bytes,
            values_bytes: self.values_bytes(),
            recent_bytes: options.recent_bytes,
            group_bytes: group_bytes.max(unit as usize),
            pending_bytes: options.pending_bytes_max,
            unit,
        }
    }

    /// Returns the maximum length of the table of values, in bytes.
    fn values_bytes(&self) -> usize {
        TABLE_BYTES_MAX.min(usize::try_from(self.maker.bytes / 4).unwrap_or(usize::MAX))
    }

    /// Checks that the log's values fit into its segments, which may be shorter than before.
    pub(super) fn check_values(&self, values: &Values) -> Result<()> {
        if self.options.read_only || values.bytes() <= self.values_bytes() {
            return Ok(());
        }
        let bytes = values.bytes();
        let text = format!(
            "the log's values take {bytes} bytes, and may take a quarter of a segment: segment_bytes must be at least {}",
            (4 * bytes).next_multiple_of(crate::format::GRAIN as usize)
        );
        Err(Error::at(ErrorKind::InvalidInput, self.dir.path(), text))
    }
}

/// Starts the log's thread, or its task on the shard of this thread.
pub(super) async fn begin(mut writer: Writer, is_own_thread: bool) -> Result<Wal> {
    writer.record_end().await?;
    writer.chain.marked &= !writer.next.has_surplus();
    let shared = writer.shared.clone();
    shared.settle(writer.chain.next_lsn);
    let on_shard = if is_own_thread && shared.engine.makes_wait_calls() {
        thread::start(writer).err().map(|writer| *writer)
    } else {
        Some(writer)
    };
    if let Some(writer) = on_shard {
        drop(forebay::shard::spawn(writer.run())?);
    }
    Ok(Wal::new(shared))
}

/// Returns a number that no other log has. In a simulated world, whose runs must be equal, it is derived from
/// the directory's name.
pub(super) fn random_id(engine: &Engine, dir: &Path) -> u128 {
    if engine.driver() == "sim" {
        // FNV-1a, 128 bits.
        let bytes = dir.as_os_str().as_encoded_bytes();
        return bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash: u128, &byte| {
            (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        });
    }
    // The standard library's hashers have keys from the system's random numbers.
    let half = || u128::from(RandomState::new().build_hasher().finish());
    half() << 64 | half()
}
