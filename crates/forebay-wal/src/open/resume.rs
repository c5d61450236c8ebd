//! Determines where an opened log continues: at its end, or in a fresh segment.

use std::sync::Arc;

use forebay::{Durability, Open};

use super::Scene;
use super::bootstrap::{begin, random_id};
use super::home::sync_name;
use crate::batch::Batch;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{Epochs, HEADER_BYTES, Kind, Position, UNIT_MAX, records, segment_name};
use crate::lsn::Lsn;
use crate::queue::{Group, own_buffer};
use crate::recover::{Outcome, Recovery};
use crate::segment::{Index, Segment};
use crate::values::{Stamp, Values};
use crate::wal::Wal;
use crate::writer::{Chain, Next, Writer, note};

/// The name of a new log's first segment until its first group is durable.
pub(crate) const NEW_NAME: &str = "wal.new";

/// The data with which a log continues in a fresh segment.
pub(super) struct ReopenPlan {
    pub(super) outcome: Outcome,
    /// The records of the REOPEN group.
    copied: Batch<'static>,
    /// The values, which the REOPEN group repeats.
    values: Values,
}

impl ReopenPlan {
    /// Returns the length of the REOPEN group if groups are multiples of `unit`.
    pub(super) fn bytes(&self, unit: u32) -> u64 {
        let values = if self.outcome.values.stamp.is_some() { self.values.bytes() } else { 0 };
        ((HEADER_BYTES + self.copied.entries().framed_bytes + values) as u64)
            .next_multiple_of(u64::from(unit))
    }
}

impl Scene {
    /// Creates a new log: its first segment gets its name once its first group is durable.
    pub(super) async fn create(self) -> Result<(Wal, Recovery)> {
        // Left over from an earlier attempt.
        if self.dir.metadata(NEW_NAME).await.is_ok() {
            self.dir.remove_file(NEW_NAME).await?;
        }
        let segment = self.maker.make_at(NEW_NAME, 1, self.options.fill.for_groups_of(0), None).await?;
        let first_lsn = self.options.first_lsn;
        let chain = Chain {
            log_id: self.options.log_id.unwrap_or_else(|| random_id(&self.engine, self.dir.path())),
            epochs: Epochs::new(first_lsn.0),
            previous: 0,
            watermark: Position::default(),
            next_lsn: first_lsn.0,
            base_lsn: first_lsn.0,
            first_retained: first_lsn.0,
            start_generation: 1,
            values: Stamp::default(),
            marked: false,
        };
        let index = Index::new(chain.log_id, first_lsn.0);
        let mut writer = self.writer(segment, chain, index, 0, Next::new(2), Values::default())?;
        let mut group = Group::new();
        (group.reopen, group.first_lsn) = (true, first_lsn.0);
        let first = writer.write(&mut group).await?;
        // Open the file again by its name, so that errors show it.
        writer.segment.file.unlock().await?;
        // Before the segment has its name: an open that finds the segment skips this.
        sync_name(&self.engine, self.dir.path()).await?;
        self.dir.rename(NEW_NAME, segment_name(1)).await?;
        writer.segment = Arc::new(Segment { known: true, ..self.maker.open(1, false).await? });
        {
            let mut state = writer.shared.lock();
            state.index.add_segment(writer.segment.clone());
            note(&mut state, &first);
        }
        let last = Lsn(first_lsn.0.saturating_sub(1));
        let recovery = Recovery {
            created: true,
            first: first_lsn,
            last,
            epoch: 1,
            durable_lsn: last,
            ..Recovery::default()
        };
        Ok((begin(writer, self.options.own_thread).await?, recovery))
    }

    /// Continues an existing log.
    pub(super) async fn resume(self, outcome: Outcome) -> Result<(Wal, Recovery)> {
        if outcome.clean && self.has_place(outcome.end).await? {
            self.go_on_in_place(outcome).await
        } else {
            self.go_on_afresh(outcome).await
        }
    }

    /// Returns whether a group can be written at the log's end.
    async fn has_place(&self, end: Position) -> Result<bool> {
        let open = Open::read().shard(self.options.shard);
        let file = self.dir.open(segment_name(end.generation), open).await?;
        let unit = u64::from(self.unit(&file)?);
        Ok(end.offset.is_multiple_of(unit) && end.offset + unit <= file.len().await?)
    }

    async fn go_on_in_place(self, outcome: Outcome) -> Result<(Wal, Recovery)> {
        let end = outcome.end;
        let values = self.values(&outcome).await?;
        let last = outcome.groups.last().map(|group| group.header);
        let recycled = last.is_some_and(|header| header.flags.recycled());
        let segment = Arc::new(self.maker.open(end.generation, recycled).await?);
        // The segment's data may still be in the drive's cache, and its name in the file system's.
        segment.file.sync(Durability::All).await?;
        self.dir.sync().await?;
        let mut index =
            self.index(&outcome, outcome.groups.len(), end, outcome.next_lsn, end.generation).await?;
        index.add_segment(segment.clone());
        let mut next = self.prepared(end.generation).await?;
        self.reuse(&mut next, |generation| generation < outcome.start_generation).await;
        let chain = Chain {
            log_id: outcome.log_id,
            epochs: outcome.epochs,
            previous: outcome.last_crc,
            watermark: end,
            next_lsn: outcome.next_lsn,
            base_lsn: last.map_or(outcome.next_lsn, |header| header.base_lsn),
            first_retained: outcome.first,
            start_generation: outcome.start_generation,
            values: outcome.values.stamp,
            marked: true,
        };
        let mut writer = self.writer(segment, chain, index, end.offset, next, values)?;
        // The flush of the last group may have failed, and the sync above succeeds without it. So a mark
        // repeats the log's state.
        let mut group = Group::new();
        (group.kind, group.first_lsn) = (Kind::Mark, chain.next_lsn);
        add(&mut writer, group).await?;
        Ok((begin(writer, self.options.own_thread).await?, outcome.recovery))
    }

    /// Continues in a fresh segment, which starts with a copy of the records that are not proven durable.
    async fn go_on_afresh(mut self, outcome: Outcome) -> Result<(Wal, Recovery)> {
        let plan = self.reopen_plan(outcome).await?;
        let bytes = self.maker.bytes;
        self.maker.bytes = bytes.max(plan.bytes(UNIT_MAX));
        let fill = self.options.fill.for_groups_of(0);
        let made = self.maker.make(plan.outcome.max_generation + 1, None, fill, None).await;
        self.maker.bytes = bytes;
        let mut no_space = None;
        let (ReopenPlan { outcome, copied, values }, segment) = match made {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                let spare = self.spare(plan, &error).await?;
                no_space = Some(error);
                spare
            }
            made => (plan, made?),
        };
        let generation = segment.generation;
        let (kept, cut, first_lsn) = (outcome.kept, outcome.proven_end, outcome.proven_next);
        if let Some(last) = kept.checked_sub(1).and_then(|last| outcome.groups.get(last)) {
            // The remaining groups must be as durable as the proven groups: a salvage leaves an unproven tail in place.
            let last = self.maker.open(last.header.generation, true).await?;
            last.file.sync(Durability::All).await?;
            last.file.unlock().await?;
        }

        let chain = Chain {
            log_id: outcome.log_id,
            epochs: outcome.reopen_epochs,
            previous: outcome.proven_crc,
            watermark: outcome.watermark,
            next_lsn: first_lsn,
            base_lsn: first_lsn,
            first_retained: outcome.first,
            // If no group remains before it, the log starts here.
            start_generation: if kept > 0 { outcome.start_generation } else { generation },
            values: outcome.values.stamp,
            marked: false,
        };
        let mut index = self.index(&outcome, kept, cut, first_lsn, u64::MAX).await?;
        index.add_segment(segment.clone());
        let mut writer = self.writer(segment, chain, index, 0, Next::new(generation + 1), values)?;
        let mut group = Group::new();
        (group.reopen, group.cut, group.first_lsn) = (true, cut, first_lsn);
        if !outcome.values.is_kept {
            // They vanish with this group, so it is copied in turn until it is proven.
            group.values = Some(writer.values.clone());
        }
        let entries = copied.entries();
        if !entries.is_empty() {
            group.buffer = own_buffer(&self.engine, &entries, writer.shared.limits.unit)?;
            group.count = entries.count as u32;
        }
        add(&mut writer, group).await?;
        for gap in &outcome.gaps {
            let mut group = Group::new();
            (group.kind, group.first_lsn) = (Kind::Gap, writer.chain.next_lsn);
            (group.cut, group.resume) = (gap.cut, gap.resume);
            add(&mut writer, group).await?;
        }
        debug_assert!(cut.generation < generation, "a log goes on in a segment behind all that it keeps");
        let start = chain.start_generation;
        drop(writer.shared.lock().index.retire(outcome.first, start));
        let dead = |old| old < start || (old > cut.generation && old < generation);
        self.reuse(&mut writer.next, dead).await;
        if let Some(error) = no_space {
            writer.shared.note_space::<()>(&Err(error));
        }
        Ok((begin(writer, self.options.own_thread).await?, outcome.recovery))
    }

    /// Returns the contents of the REOPEN group for this outcome.
    pub(super) async fn reopen_plan(&self, outcome: Outcome) -> Result<ReopenPlan> {
        let copied = self.records_from(&outcome, outcome.kept).await?;
        let values = self.values(&outcome).await?;
        Ok(ReopenPlan { outcome, copied, values })
    }

    pub(super) async fn values(&self, outcome: &Outcome) -> Result<Values> {
        let Some(group) = &outcome.values.table else { return Ok(Values::default()) };
        let name = segment_name(group.header.generation);
        let file = self.dir.open(name, Open::read().shard(self.options.shard)).await?;
        let table = file.read(group.values()).await?;
        let values = Values::read(&table).ok_or_else(|| {
            let text = format!("the group at byte {} changed while the log was opened", group.header.offset);
            Error::at(ErrorKind::Io, file.path(), text)
        })?;
        self.check_values(&values)?;
        Ok(values)
    }

    /// Returns the index of the first `kept` groups, the last of which ends at `end`. The segment `without`
    /// is left out.
    pub(super) async fn index(
        &self,
        outcome: &Outcome,
        kept: usize,
        end: Position,
        next_lsn: u64,
        without: u64,
    ) -> Result<Index> {
        let mut index = Index::of(outcome, kept, end, next_lsn);
        let live = outcome.start_generation..=end.generation;
        for &generation in &self.found.generations {
            if kept > 0 && live.contains(&generation) && generation != without {
                index.add_segment(self.maker.open_to_read(generation).await?);
            }
        }
        Ok(index)
    }

    /// Returns the records of the groups from `kept` on.
    async fn records_from(&self, outcome: &Outcome, kept: usize) -> Result<Batch<'static>> {
        let mut all = Batch::new();
        for group in outcome.groups.get(kept..).unwrap_or(&[]) {
            let name = segment_name(group.header.generation);
            let file = self.dir.open(name, Open::read().shard(self.options.shard)).await?;
            let payload = file.read(group.payload()).await?;
            all.extend(records(&payload));
        }
        Ok(all)
    }

    /// Returns the segment after the log's end, if it was prepared. Further segments are removed, the newest first, because numbers
    /// have no gaps.
    ///
    /// One segment only: [`Next`] makes one ahead. If it made more, all but the first would be removed here.
    async fn prepared(&self, end: u64) -> Result<Next> {
        let behind = self.found.generations.iter().copied().filter(|&generation| generation > end);
        let (mut found, mut removed) = (false, false);
        for generation in behind.rev() {
            let name = segment_name(generation);
            let bytes = self.dir.metadata(&name).await?.len();
            found = generation == end + 1 && bytes == self.maker.bytes;
            if !found {
                self.dir.remove_file(&name).await?;
                removed = true;
            }
        }
        if removed {
            self.dir.sync().await?;
        }
        Ok(if found { Next::found(end + 1) } else { Next::new(end + 1) })
    }

    /// Makes the segments that the log does not need available for reuse.
    async fn reuse(&self, next: &mut Next, is_dead: impl Fn(u64) -> bool) {
        let mut retired = Vec::new();
        for &generation in self.found.generations.iter().filter(|&&generation| is_dead(generation)) {
            match self.maker.open_to_read(generation).await {
                Ok(segment) => retired.push(segment),
                Err(_) => next.remove(&self.maker, generation),
            }
        }
        next.retire(retired);
    }
}

/// Writes a group before the log's task starts.
async fn add(writer: &mut Writer, mut group: Group) -> Result<()> {
    let written = writer.write(&mut group).await?;
    let shared = Arc::clone(&writer.shared);
    note(&mut shared.lock(), &written);
    Ok(())
}
