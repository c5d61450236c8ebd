//! A writer that makes segments in memory as the runtime makes them on disk.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::error::Result;
use crate::format::{
    Epochs, Flags, HEADER_BYTES, Header, Kind, Position, VERSION, group_bytes, seal, segment_name,
};
use crate::recover::{Group, Outcome, recover, scan};
use crate::values::{Stamp, TABLE_BYTES_MAX, ValueChange, Values};

pub(crate) const LOG_ID: u128 = 0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978;

pub(crate) type Records = BTreeMap<u64, Vec<u8>>;

/// A log being written, with one flush per group.
#[derive(Clone)]
pub(crate) struct Log {
    pub(crate) segments: BTreeMap<u64, Vec<u8>>,
    pub(crate) segment_bytes: usize,
    /// Every group that was written and not recycled, in order, and the log's contents once it was durable.
    pub(crate) written: Vec<(Header, Records)>,
    pub(crate) records: Records,
    pub(crate) end: Position,
    pub(crate) next: u64,
    crc: u32,
    epochs: Epochs,
    pub(crate) first: u64,
    start: u64,
    base: u64,
    /// Part of every record, so that a dead record cannot pass for a live one.
    pub(crate) life: u64,
    recycled: bool,
    pub(crate) log_id: u128,
    pub(crate) values: Values,
    stamp: Stamp,
    /// The next group sets the values.
    sets: bool,
    /// The values once each group was durable.
    pub(crate) values_at: BTreeMap<Position, Values>,
}

impl Log {
    /// Returns a new log whose REOPEN group is written.
    pub(crate) fn new(segment_bytes: usize) -> Log {
        Log::from(segment_bytes, 1)
    }

    /// Returns a new log whose first record will be `first`.
    pub(crate) fn from(segment_bytes: usize, first: u64) -> Log {
        let mut log = Log {
            segments: BTreeMap::new(),
            segment_bytes,
            written: Vec::new(),
            records: Records::new(),
            end: Position { generation: 0, offset: u64::MAX },
            next: first,
            crc: 0,
            epochs: Epochs::default(),
            first,
            start: 1,
            base: first,
            life: 0,
            recycled: false,
            log_id: LOG_ID,
            values: Values::default(),
            stamp: Stamp::default(),
            sets: false,
            values_at: BTreeMap::new(),
        };
        log.reopen(Position::default(), 1, Epochs::new(first), &[]);
        log
    }

    pub(crate) fn record(&self, lsn: u64, bytes: usize) -> Vec<u8> {
        let mut record = format!("record {lsn} of life {} ", self.life).into_bytes();
        record.resize(bytes.max(record.len()), lsn as u8 | 1);
        record
    }

    /// Appends one group of `count` records of `bytes` bytes each.
    pub(crate) fn append(&mut self, count: u64, bytes: usize) -> Position {
        let records: Vec<_> = (0..count).map(|at| self.record(self.next + at, bytes)).collect();
        self.group(Kind::Records, &records, 0, Position::default(), Position::default())
    }

    /// Writes one group that sets a value, with `count` records. The value differs from all others.
    pub(crate) fn set(&mut self, key: &str, count: u64) -> Position {
        let value = format!("{key} {} in life {}", self.stamp.count + 1, self.life);
        let change = ValueChange::new(key, Some(value.as_bytes())).expect("it fits");
        self.values = self.values.after(&[change], TABLE_BYTES_MAX).expect("they fit");
        self.sets = true;
        self.append(count, 100)
    }

    pub(crate) fn mark(&mut self) -> Position {
        self.group(Kind::Mark, &[], 0, Position::default(), Position::default())
    }

    pub(crate) fn truncate_after(&mut self, last: u64) -> Position {
        self.life += 1;
        self.epochs = self.epochs.raised(last + 1);
        self.group(Kind::Truncate, &[], last, Position::default(), Position::default())
    }

    pub(crate) fn reset_to(&mut self, next: u64) -> Position {
        self.life += 1;
        self.epochs = self.epochs.raised(next);
        self.first = next;
        self.start = self.end.generation;
        self.group(Kind::Reset, &[], next, Position::default(), Position::default())
    }

    /// Removes records before `first` with the next group. Keeps every segment from the one that holds
    /// `first` on.
    pub(crate) fn truncate_before(&mut self, first: u64) {
        let holder = self.written.iter().rev().find(|(header, _)| {
            header.kind == Kind::Records && header.first_lsn <= first && first < header.next_lsn()
        });
        self.start = holder.map_or(self.end.generation, |(header, _)| header.generation);
        self.first = first;
        self.records.retain(|&lsn, _| lsn >= first);
    }

    /// Starts a fresh segment with a REOPEN group that holds `copied`.
    pub(crate) fn reopen(&mut self, cut: Position, generation: u64, epochs: Epochs, copied: &[Vec<u8>]) {
        self.life += 1;
        self.epochs = epochs;
        self.begin(generation, None);
        self.group(Kind::Records, copied, 0, cut, Position::default());
    }

    /// Continues in a segment that held `old` before.
    pub(crate) fn begin_recycled(&mut self, old: Vec<u8>) {
        self.begin(self.end.generation + 1, Some(old));
    }

    fn begin(&mut self, generation: u64, old: Option<Vec<u8>>) {
        self.recycled = old.is_some();
        self.base = self.next;
        self.end = Position { generation, offset: 0 };
        let zeros = || vec![0; self.segment_bytes];
        self.segments.insert(generation, old.unwrap_or_else(zeros));
    }

    fn group(
        &mut self,
        kind: Kind,
        records: &[Vec<u8>],
        argument: u64,
        cut: Position,
        resume: Position,
    ) -> Position {
        let payload: Vec<u8> = records
            .iter()
            .flat_map(|record| [&(record.len() as u32).to_le_bytes()[..], record].concat())
            .collect();
        let table = |is_first: bool| {
            let mut table = Vec::new();
            if self.sets || (is_first && self.stamp.is_some()) {
                self.values.write(&mut table);
            }
            table
        };
        let mut table_bytes = table(self.end.offset == 0);
        let watermark = if self.written.is_empty() { Position::default() } else { self.durable() };
        let total = group_bytes(payload.len() + table_bytes.len(), 4096);
        if self.end.offset + u64::from(total) > self.segment_bytes as u64 {
            table_bytes = table(true);
            self.begin(self.end.generation + 1, None);
        }
        let total = group_bytes(payload.len() + table_bytes.len(), 4096);
        let reopens = kind == Kind::Records && self.end.offset == 0 && self.reopening(cut);
        let mut flags = if reopens { Flags::REOPEN } else { Flags::default() };
        if std::mem::take(&mut self.sets) {
            flags = flags.with(Flags::SETS);
            self.stamp = self.stamp.next(self.epochs.number);
        }
        let mut header = Header {
            version: VERSION,
            values: self.stamp,
            values_len: table_bytes.len() as u32,
            crc: 0,
            total_len: total,
            log_id: self.log_id,
            generation: self.end.generation,
            offset: self.end.offset,
            epochs: self.epochs,
            first_lsn: self.next,
            record_count: records.len() as u32,
            payload_len: payload.len() as u32,
            previous: self.crc,
            kind,
            flags: if self.recycled { flags.with(Flags::RECYCLED) } else { flags },
            watermark: if reopens { cut } else { watermark },
            first_retained: self.first,
            base_lsn: self.base,
            argument,
            cut,
            resume,
            start_generation: self.start,
        };
        let mut group = vec![0; total as usize];
        group[HEADER_BYTES..HEADER_BYTES + payload.len()].copy_from_slice(&payload);
        group[header.values_range()].copy_from_slice(&table_bytes);
        header.crc = seal(&header, &mut group);
        let at = self.end.offset as usize;
        if let Some(segment) = self.segments.get_mut(&self.end.generation) {
            segment.resize(segment.len().max(at + group.len()), 0);
            segment[at..at + group.len()].copy_from_slice(&group);
        }
        match kind {
            Kind::Truncate => self.records.retain(|&lsn, _| lsn <= argument),
            Kind::Reset => self.records.clear(),
            _ => self.records.extend((self.next..).zip(records.iter().cloned())),
        }
        self.crc = header.crc;
        self.next = header.next_lsn();
        self.end = header.end();
        self.written.push((header, self.records.clone()));
        self.values_at.insert(header.position(), self.values.clone());
        header.position()
    }

    /// Returns whether a fresh segment is current and nothing was written to it. Only `reopen`, or the change to another segment,
    /// leaves it so.
    fn reopening(&self, cut: Position) -> bool {
        self.written.is_empty() || cut != Position::default()
    }

    fn durable(&self) -> Position {
        self.written.last().map_or(Position::default(), |(header, _)| header.end())
    }

    /// Does the work of an open on these segments: recovery, then a REOPEN group if one is needed, and Gap
    /// groups.
    pub(crate) fn open(&mut self, salvage: bool) -> Result<Outcome> {
        let outcome = self.recover(salvage)?;
        self.records = read(&self.segments, &outcome);
        (self.epochs, self.first) = (outcome.epochs, outcome.first);
        (self.values, self.stamp) = (values(&self.segments, &outcome), outcome.values.stamp);
        self.written.retain(|(header, _)| outcome.groups.iter().any(|group| group.header == *header));
        if outcome.clean {
            (self.end, self.next, self.crc) = (outcome.end, outcome.next_lsn, outcome.last_crc);
            self.start = outcome.start_generation;
            let last = outcome.groups.last().map(|group| group.header);
            self.recycled = last.is_some_and(|header| header.flags.recycled());
            self.life += 1;
            return Ok(outcome);
        }
        let copied = self.copied(&outcome);
        (self.next, self.crc) = (outcome.proven_next, outcome.proven_crc);
        self.start = if outcome.kept == 0 { outcome.max_generation + 1 } else { outcome.start_generation };
        self.sets = !outcome.values.is_kept;
        self.reopen(outcome.proven_end, outcome.max_generation + 1, outcome.reopen_epochs, &copied);
        for gap in &outcome.gaps {
            self.group(Kind::Gap, &[], 0, gap.cut, gap.resume);
        }
        Ok(outcome)
    }

    /// Returns every record of the groups that are not kept.
    fn copied(&self, outcome: &Outcome) -> Vec<Vec<u8>> {
        let groups = outcome.groups[outcome.kept..].iter();
        groups
            .flat_map(|group| records_of(&self.segments, group).into_iter().map(|(_, record)| record))
            .collect()
    }

    pub(crate) fn recover(&self, salvage: bool) -> Result<Outcome> {
        recover_segments(&self.segments, salvage)
    }
}

/// Returns a segment full of whole groups of an older generation of the same log.
pub(crate) fn old_segment(bytes: usize) -> Vec<u8> {
    let mut old = Log::new(bytes);
    old.start = 0;
    old.begin(0, None);
    while old.end.offset < bytes as u64 {
        old.append(1, 100);
    }
    old.segments.remove(&0).expect("the old segment")
}

pub(crate) fn recover_segments(segments: &BTreeMap<u64, Vec<u8>>, salvage: bool) -> Result<Outcome> {
    let scans = segments
        .iter()
        .map(|(&generation, bytes)| scan(PathBuf::from(segment_name(generation)), generation, bytes));
    Ok(recover(scans.collect(), &no_end(), salvage)?.expect("there are segments"))
}

/// Returns the live records as a reader would find them.
pub(crate) fn read(segments: &BTreeMap<u64, Vec<u8>>, outcome: &Outcome) -> Records {
    let mut all = Records::new();
    for group in &outcome.groups {
        for (lsn, record) in records_of(segments, group) {
            if group.live.contains(&lsn) {
                assert_eq!(all.insert(lsn, record), None, "record {lsn} twice");
            }
        }
    }
    all
}

/// Returns the values as an open would find them.
pub(crate) fn values(segments: &BTreeMap<u64, Vec<u8>>, outcome: &Outcome) -> Values {
    let Some(group) = &outcome.values.table else { return Values::default() };
    let range = group.values();
    let table = &segments[&group.header.generation][range.start as usize..range.end as usize];
    Values::read(table).expect("a table")
}

fn records_of(segments: &BTreeMap<u64, Vec<u8>>, group: &Group) -> Vec<(u64, Vec<u8>)> {
    let range = group.payload();
    let payload = &segments[&group.header.generation][range.start as usize..range.end as usize];
    (group.header.first_lsn..).zip(crate::format::records(payload).map(<[u8]>::to_vec)).collect()
}

/// Returns the state without a record of the end outside of the segments.
pub(super) fn no_end() -> crate::end_file::FoundEnd {
    crate::end_file::FoundEnd::none(std::path::Path::new(""))
}
