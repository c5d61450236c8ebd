//! The log's task: makes queued groups durable, one after the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use forebay::{Block, BlockMut, Class, Durability, File, Pending};

use crate::end_file::EndFile;
use crate::error::{Error, Result};
use crate::format::{
    EndRecord, Epochs, Flags, HEADER_BYTES, Header, Kind, Position, VERSION, group_bytes, records, seal,
};
use crate::options::Fill;
use crate::queue::{COPY_BYTES_MAX, Group, Queue, QueueState, Work, emptied};
use crate::segment::{DurableGroup, Maker, Segment};
use crate::stats::GroupWay;
use crate::values::{Stamp, Values};

mod idle;
mod next;
pub(crate) mod thread;
mod way;

use idle::Idle;
pub(crate) use next::Next;
use next::Patience;
pub(crate) use way::WayChooser;

/// The end of a log as the base of its next group, whose header refers to the groups before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    pub(crate) log_id: u128,
    pub(crate) epochs: Epochs,
    /// The last group's checksum.
    pub(crate) previous: u32,
    /// Everything below is durable.
    pub(crate) watermark: Position,
    pub(crate) next_lsn: u64,
    /// The next LSN at the segment's start.
    pub(crate) base_lsn: u64,
    pub(crate) first_retained: u64,
    pub(crate) start_generation: u64,
    /// The table of values.
    pub(crate) values: Stamp,
    /// The last group has no records, so it states that all others are durable.
    pub(crate) marked: bool,
}

/// The first segments of a log are written through with zeros in any case: a log that is truncated uses them again and again.
const REUSED: u64 = 2;

/// State of the log's task.
pub(crate) struct Writer {
    pub(crate) shared: Arc<Queue>,
    pub(crate) maker: Maker,
    /// Held while the log is open.
    pub(crate) lock: Option<File>,
    /// The record of the log's end, outside of its segments.
    pub(crate) end: EndFile,
    pub(crate) chain: Chain,
    pub(crate) segment: Arc<Segment>,
    /// Offset of the next group.
    pub(crate) offset: u64,
    /// Mean bytes of the last groups with records; each counts 15/16 of the one after it.
    pub(crate) group_bytes: u64,
    /// Segments newly made and used since the log was opened.
    pub(crate) made: u64,
    pub(crate) next: Next,
    /// The release of the previous segment's lock.
    pub(crate) unlocking: Option<Pending<()>>,
    pub(crate) durability: Durability,
    pub(crate) way: WayChooser,
    pub(crate) class: Class,
    pub(crate) fill: Fill,
    pub(crate) mark_after: Duration,
    /// The values at the log's end.
    pub(crate) values: Arc<Values>,
    /// Memory for the bytes of values.
    pub(crate) table: Vec<u8>,
    /// Memory for groups without records.
    pub(crate) small: BlockMut,
    /// Memory for the copy of a short group's records.
    pub(crate) spare: BlockMut,
    pub(crate) wakers: Vec<Waker>,
}

pub(crate) struct GroupWrite {
    group: DurableGroup,
    framed: usize,
    /// The group's memory, if it has its own.
    block: Block,
    /// The records, if they stay in memory.
    kept: Option<Block>,
    flush_ns: u64,
    way: GroupWay,
    queued_ns: Option<u64>,
}

/// Ends the log with its task, however the task ends.
pub(crate) struct EndGuard(pub(crate) Arc<Queue>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.end(false);
    }
}

impl Writer {
    /// Runs on its shard until the log is closed or fails.
    pub(crate) async fn run(mut self) {
        let _guard = EndGuard(self.shared.clone());
        if let Err(error) = self.serve().await {
            self.shared.fail(&error);
        }
        self.finish().await;
    }

    /// Ends the log in order.
    async fn finish(mut self) {
        // Once the lock is released another log may use the files, so our writes must not be in flight to them.
        self.shared.pace.stop();
        self.next.end(&self.shared.pace).await;
        // Released explicitly, as closing the files would release the locks later: a ring holds its files
        // until the kernel has torn it down, which may be after its process has ended.
        if let Some(unlocking) = self.unlocking.take() {
            let _ = unlocking.await;
        }
        let _ = self.segment.file.unlock().await;
        if let Some(lock) = &self.lock {
            let _ = lock.unlock().await;
        }
        let shared = self.shared.clone();
        // The task's handles are dropped before the end is published.
        drop(self);
        shared.end(true);
    }

    async fn serve(&mut self) -> Result<()> {
        let mut idle = Idle::default();
        self.prepare_ahead();
        loop {
            let work = idle.next(self).await?;
            if self.step(work).await? {
                return Ok(());
            }
        }
    }

    /// Does a piece of work; `None` is the end of a quiet period. Returns whether it was the last one.
    async fn step(&mut self, work: Option<Work>) -> Result<bool> {
        match work {
            Some(Work::Group(group)) => self.write_queued(group).await?,
            Some(Work::Roll) => self.roll().await?,
            Some(Work::Space) => self.look_for_space().await?,
            Some(Work::End) => {
                self.mark().await?;
                self.record_end().await?;
                return Ok(true);
            }
            None => {
                self.shared.pace.run_ahead();
                self.mark().await?;
            }
        }
        Ok(false)
    }

    async fn write_queued(&mut self, mut group: Group) -> Result<()> {
        let mut written = self.write(&mut group).await?;
        if group.record_end || matches!(group.kind, Kind::Truncate | Kind::Reset) {
            // Before any waiter is notified: if the group is lost later, the log must not return to its
            // previous state.
            self.record_end().await?;
        }
        let mut retired = Vec::new();
        let (retain, start) = (group.retain, self.chain.start_generation);
        let (framed, block, kept) = (written.framed, std::mem::take(&mut written.block), written.kept.take());
        let gone = self.shared.complete(group, block, framed, kept, &mut self.wakers, |state| {
            note(state, &written);
            if let Some(first) = retain {
                retired = state.index.retire(first, start);
            }
        });
        if let Some(gone) = gone {
            self.spare = emptied(gone);
        }
        self.next.settle(&self.maker);
        self.next.retire(retired);
        // A group after this one frees segments: without space it is due soon, and a mark after a quiet period where some are removed.
        self.chain.marked &= !(self.next.has_surplus() || (self.shared.is_short() && self.next.is_leaving()));
        if forebay::_is_broken!(SegmentGoneEarly) {
            self.next.settle(&self.maker);
        }
        self.set_pace(written.group.end.offset - written.group.start.offset);
        self.prepare_ahead();
        Ok(())
    }

    /// Writes a group without records, which states that all groups before it are durable. Costs a write and
    /// a flush, and is omitted if it would need a segment that is not there yet.
    async fn mark(&mut self) -> Result<()> {
        if self.chain.marked || !(self.has_room() || self.next.is_made(&self.shared.pace).await) {
            self.chain.marked = true;
            return Ok(());
        }
        let mut group = Group::new();
        group.kind = Kind::Mark;
        group.first_lsn = self.chain.next_lsn;
        let written = self.write(&mut group).await?;
        note(&mut self.shared.lock(), &written);
        self.next.settle(&self.maker);
        self.prepare_ahead();
        Ok(())
    }

    /// Returns the bytes left in the segment for the next group of the queue. One that is too long for a whole segment was
    /// refused, so the first group always fits.
    pub(crate) fn room(&self) -> u64 {
        if self.offset == 0 { u64::MAX } else { self.segment.bytes.saturating_sub(self.offset) }
    }

    /// Returns whether a group without records fits into the segment.
    pub(crate) fn has_room(&self) -> bool {
        self.offset + u64::from(self.shared.limits.unit) <= self.segment.bytes
    }

    /// Tries again to make the next segment. If a further group frees a segment for that, writes such a group
    /// first.
    async fn look_for_space(&mut self) -> Result<()> {
        if self.next.is_leaving() {
            self.chain.marked = false;
            return self.mark().await;
        }
        self.prepare_ahead();
        Ok(())
    }

    /// Records the log's present end outside of the segments. All its groups are durable.
    pub(crate) async fn record_end(&mut self) -> Result<()> {
        let chain = &self.chain;
        let record = EndRecord {
            log_id: chain.log_id,
            position: chain.watermark,
            epochs: chain.epochs,
            next_lsn: chain.next_lsn,
            first_retained: chain.first_retained,
            start_generation: chain.start_generation,
            previous: chain.previous,
            values: chain.values,
        };
        let mut patience = Patience::default();
        while let Err(error) = self.end.write(record).await {
            if !patience.outlasts(&self.maker, &error).await? {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns memory for a group.
    async fn block(&self, bytes: usize) -> Result<BlockMut> {
        let mut patience = Patience::default();
        loop {
            let error = match self.shared.engine.block(bytes) {
                Ok(block) => return Ok(block),
                Err(error) => Error::from(error),
            };
            if !patience.outlasts(&self.maker, &error).await? {
                return Err(error);
            }
        }
    }

    /// Makes a group durable and advances past it.
    pub(crate) async fn write(&mut self, group: &mut Group) -> Result<GroupWrite> {
        let framed = group.framed_bytes();
        let unit = self.shared.limits.unit;
        if self.offset + u64::from(group_bytes(group.content_bytes(), unit)) > self.segment.bytes {
            self.roll().await?;
        }
        let values_len = self.table_of(group);
        let total = group_bytes(framed + values_len, unit);
        let header = self.header(group, framed, values_len, total);
        debug_assert!(
            self.offset.is_multiple_of(u64::from(self.shared.limits.unit))
                && self.offset + u64::from(total) <= self.segment.bytes,
            "a group lies within its segment, in whole units"
        );
        debug_assert_eq!(header.first_lsn, self.chain.next_lsn, "LSNs are dense");
        debug_assert!(
            Header { total_len: total, ..header }.consistent(),
            "recovery would refuse the group: {header:?}"
        );
        let small = group.buffer.capacity() == 0;
        let mut buffer = std::mem::take(if small { &mut self.small } else { &mut group.buffer });
        if buffer.capacity() < total as usize {
            let mut larger = self.block(total as usize).await?;
            larger[..buffer.len()].copy_from_slice(&buffer);
            larger.truncate(buffer.len());
            buffer = larger;
        }
        if values_len > 0 {
            buffer.resize(HEADER_BYTES + framed)?;
            buffer.extend_from_slice(&self.table)?;
        }
        buffer.resize(total as usize)?;
        debug_assert_eq!(
            records(&buffer[HEADER_BYTES..HEADER_BYTES + framed]).count(),
            group.count as usize,
            "a group has as many records as its header says"
        );
        let crc = seal(&header, &mut buffer);
        let block = buffer.freeze();
        if group.count > 0 {
            self.shared.publish(&block, framed);
        }
        let began_ns = self.shared.engine.now_ns();
        let write = self.segment.file.write(self.offset, block.clone()).class(self.class);
        let flush = self.way.next(total);
        match write.durable(self.durability).flush(flush).await {
            Err(error) if !forebay::_is_broken!(PoisonIgnored) => return Err(error.into()),
            _ => {}
        }
        self.maker.written_bytes.fetch_add(u64::from(total), Ordering::Relaxed);
        self.maker.check_named(&self.segment).await?;
        let flush_ns = self.shared.engine.now_ns().saturating_sub(began_ns);
        self.way.note(flush, total, flush_ns);
        let queued_ns = group.began_ns.map(|came_ns| began_ns.saturating_sub(came_ns));
        let kept = self.kept(group, &block, framed);
        let block = if small {
            self.small = emptied(block);
            Block::new()
        } else {
            block
        };
        let header = Header { total_len: total, ..header };
        debug_assert!(self.chain.watermark <= header.position(), "what is durable ends before the group");
        self.offset += u64::from(total);
        if group.count > 0 {
            self.group_bytes = (15 * self.group_bytes + u64::from(total)) / 16;
        }
        let left = self.segment.bytes.saturating_sub(self.offset);
        self.shared.left.store(left, Ordering::Release);
        self.chain = Chain {
            epochs: header.epochs,
            previous: crc,
            watermark: header.end(),
            next_lsn: header.next_lsn(),
            first_retained: header.first_retained,
            start_generation: header.start_generation,
            values: header.values,
            marked: !header.holds(),
            ..self.chain
        };
        let (group, way) = (DurableGroup::of(&header), self.way.figures());
        Ok(GroupWrite { group, framed, block, kept, flush_ns, way, queued_ns })
    }

    /// Puts the bytes of this group's values into `table`, and returns their length. A group has them if it changes them, and if it
    /// is the first of its segment: then older segments may be removed.
    fn table_of(&mut self, group: &Group) -> usize {
        self.table.clear();
        if let Some(values) = &group.values {
            self.values = values.clone();
        }
        let repeats =
            self.offset == 0 && self.chain.values.is_some() && !forebay::_is_broken!(ValuesNotCarried);
        if group.values.is_some() || repeats {
            self.values.write(&mut self.table);
        }
        self.table.len()
    }

    /// Returns the records of a durable group that stay in memory: the group's own memory, or a smaller copy.
    fn kept(&mut self, group: &Group, block: &Block, framed: usize) -> Option<Block> {
        let keeps = self.shared.limits.recent_bytes;
        if group.count == 0 || keeps == 0 {
            return None;
        }
        let records = block.slice(HEADER_BYTES..HEADER_BYTES + framed)?;
        if framed > COPY_BYTES_MAX || framed.next_power_of_two() * 2 > records.pinned_bytes() {
            return (records.pinned_bytes() <= keeps).then_some(records);
        }
        if framed > keeps {
            return None;
        }
        let mut copy = std::mem::take(&mut self.spare);
        if copy.capacity() < framed {
            copy = self.shared.engine.block(framed).ok()?;
        }
        copy.truncate(0);
        copy.extend_from_slice(&records).ok()?;
        Some(copy.freeze())
    }

    fn header(&self, group: &Group, framed: usize, values_len: usize, total: u32) -> Header {
        let chain = &self.chain;
        let generation = self.segment.generation;
        let first_retained = group.retain.unwrap_or(chain.first_retained);
        let start_generation = match (group.kind, group.retain) {
            (Kind::Reset, _) => generation,
            (_, Some(first)) => self.shared.lock().index.start_generation(first, generation),
            _ => chain.start_generation,
        };
        let epochs = match group.kind {
            Kind::Truncate => chain.epochs.raised(group.argument.saturating_add(1)),
            Kind::Reset => chain.epochs.raised(group.argument),
            _ => chain.epochs,
        };
        let reopen = if group.reopen { Flags::REOPEN } else { Flags::default() };
        let recycled = if self.segment.recycled { Flags::RECYCLED } else { Flags::default() };
        let sets = if group.values.is_some() { Flags::SETS } else { Flags::default() };
        let flags = reopen.with(recycled).with(sets);
        Header {
            version: VERSION,
            values: if flags.sets() { chain.values.next(epochs.number) } else { chain.values },
            values_len: values_len as u32,
            crc: 0,
            total_len: total,
            log_id: chain.log_id,
            generation,
            offset: self.offset,
            epochs,
            first_lsn: group.first_lsn,
            record_count: group.count,
            payload_len: framed as u32,
            previous: chain.previous,
            kind: group.kind,
            flags,
            watermark: chain.watermark,
            first_retained,
            base_lsn: chain.base_lsn,
            argument: group.argument,
            cut: group.cut,
            resume: group.resume,
            start_generation,
        }
    }

    /// Continues in the next segment, which normally is ready.
    async fn roll(&mut self) -> Result<()> {
        if !self.next.is_over() {
            self.shared.lock().stats.segment_waits += 1;
        }
        let (segment, recycled) = self.next.take(&self.maker, &self.shared, self.fill()).await?;
        let old = std::mem::replace(&mut self.segment, segment);
        debug_assert_eq!(self.segment.generation, old.generation + 1, "segments are numbered without gaps");
        // The writer has no writes in flight to it; readers continue. The lock release of the segment before has had the time of a
        // whole segment.
        if let Some(before) = self.unlocking.replace(old.file.unlock()) {
            let _ = before.await;
        }
        self.offset = 0;
        self.chain.base_lsn = self.chain.next_lsn;
        let mut state = self.shared.lock();
        state.index.add_segment(self.segment.clone());
        if recycled {
            state.stats.segments_recycled += 1;
        } else {
            self.made += 1;
            state.stats.segments_made += 1;
        }
        Ok(())
    }

    /// Starts making the next segment once a quarter of this one is used, and again after a lack of space.
    fn prepare_ahead(&mut self) {
        let (is_short, fill) = (self.shared.is_short(), self.fill());
        let left = self.segment.bytes.saturating_sub(self.offset);
        if is_short || self.offset >= self.segment.bytes / 4 {
            self.next.begin(&self.maker, &self.shared, fill, left);
        }
        if is_short {
            self.next.try_again(&self.maker, &self.shared, fill, left);
        }
    }

    /// Lets zeros follow a group of this many bytes. Behind a group without records they run ahead: no quiet period follows it.
    fn set_pace(&self, bytes: u64) {
        if self.chain.marked {
            self.shared.pace.run_ahead();
        } else {
            self.shared.pace.earn(self.next.zeros_for(bytes, &self.maker));
        }
    }

    /// Returns the preparation of the next segment.
    fn fill(&self) -> Fill {
        self.fill.for_groups_of(if self.made < REUSED { 0 } else { self.group_bytes })
    }
}

/// Adds a durable group to the index and the statistics.
pub(crate) fn note(state: &mut QueueState, written: &GroupWrite) {
    let GroupWrite { group, framed, .. } = written;
    state.index.add(*group);
    let stats = &mut state.stats;
    stats.groups += 1;
    stats.control_groups += u64::from(group.count == 0);
    stats.records += u64::from(group.count);
    stats.record_bytes += (framed - group.count as usize * crate::format::RECORD_HEADER_BYTES) as u64;
    stats.write_bytes += group.end.offset - group.start.offset;
    stats.flush_ns.record(written.flush_ns);
    stats.way = written.way;
    written.queued_ns.into_iter().for_each(|ns| stats.queued_ns.record(ns));
}
