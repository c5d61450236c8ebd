//! The bytes of one segment: every whole group in it, and all other content.

use std::ops::Range;
use std::path::PathBuf;

use crate::format::{Content, GRAIN, Header, Position, UNIT_MAX, claimed_bytes, parse};

/// The contents of one segment. Costs about 250 bytes of memory for each group.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    /// The segment's number, from the file's name.
    pub(crate) generation: u64,
    /// The segment's path.
    pub(crate) file: PathBuf,
    /// Length of the file, in bytes.
    pub(crate) bytes: u64,
    /// The whole groups that were written to this very place, in order, of any log.
    pub(crate) groups: Vec<Header>,
    /// The starts of incomplete or damaged groups.
    pub(super) torn: Vec<TornGroup>,
    /// Ranges, in whole grains, that are neither zeros nor a group; or groups that were written to another
    /// place (`stale`).
    pub(super) other: Vec<Other>,
    /// The offset and version of a whole group of another version of the format.
    pub(super) version: Option<(u64, u16)>,
    /// The highest segment number in the groups that were written to other places, and the log of that group.
    pub(crate) ahead: (u64, u128),
}

/// The start of an incomplete or damaged group.
#[derive(Clone, Debug)]
pub(super) struct TornGroup {
    pub(super) offset: u64,
    /// Its header names this segment and offset as its own.
    pub(super) ours: bool,
    pub(super) why: &'static str,
}

/// Bytes that are neither zeros nor a group of this place.
#[derive(Clone, Debug)]
pub(super) struct Other {
    pub(super) range: Range<u64>,
    pub(super) stale: bool,
}

/// A grain of zeros, to compare a whole grain in one step.
static ZEROS: [u8; GRAIN as usize] = [0; GRAIN as usize];

/// Scans every place of a segment where a group can start, also after damage. One pass over the bytes.
#[cfg(test)]
pub(crate) fn scan(file: PathBuf, generation: u64, bytes: &[u8]) -> Scan {
    let mut scanner = Scanner::new(file, generation, bytes.len() as u64);
    scanner.look(bytes);
    scanner.scan
}

/// A scan of a segment whose bytes arrive in pieces.
///
/// Holds the bytes until their group is whole. In addition to the current piece it needs memory for the longest group, and never
/// more than the segment; a damaged header may claim a long group.
pub(crate) struct Scanner {
    scan: Scan,
    /// Number of bytes already scanned.
    offset: u64,
    /// The available bytes from there on.
    held: Vec<u8>,
    /// Number of bytes that must be available to continue.
    wanted: usize,
}

impl Scanner {
    /// Returns a scanner for a segment of `bytes` bytes.
    pub(crate) fn new(file: PathBuf, generation: u64, bytes: u64) -> Scanner {
        let (groups, torn, other) = (Vec::new(), Vec::new(), Vec::new());
        let scan = Scan { generation, file, bytes, groups, torn, other, version: None, ahead: (0, 0) };
        Scanner { scan, offset: 0, held: Vec::new(), wanted: 0 }
    }

    /// Scans the next bytes; the caller passes all bytes in order.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        if !self.held.is_empty() {
            self.held.extend_from_slice(piece);
            if self.held.len() < self.wanted {
                return;
            }
            let mut held = std::mem::take(&mut self.held);
            let done = self.look(&held);
            held.drain(..done);
            self.held = held;
        } else {
            let done = self.look(piece);
            self.held.extend_from_slice(&piece[done..]);
        }
    }

    /// Returns the scan. A file shorter than its stated length ends where its bytes end.
    pub(crate) fn finish(mut self) -> Scan {
        let held = std::mem::take(&mut self.held);
        if self.offset < self.scan.bytes {
            self.scan.bytes = self.scan.bytes.min(self.offset + held.len() as u64);
            self.look(&held);
        }
        self.scan
    }

    /// Scans `bytes`, which follow the bytes already scanned, as far as they suffice to judge each place;
    /// returns the number of bytes scanned.
    fn look(&mut self, bytes: &[u8]) -> usize {
        let from = self.offset;
        while self.offset < self.scan.bytes {
            let here = bytes.get((self.offset - from) as usize..).unwrap_or_default();
            self.wanted = wanted(here, self.scan.bytes - self.offset);
            if here.len() < self.wanted {
                break;
            }
            debug_assert!(self.offset.is_multiple_of(u64::from(GRAIN)), "a scan goes by whole grains");
            self.offset += self.scan.step(here, self.offset);
        }
        (self.offset - from).min(bytes.len() as u64) as usize
    }
}

/// Returns the number of bytes needed to judge a place; `left` bytes of the segment are left.
fn wanted(here: &[u8], left: u64) -> usize {
    let grain = left.min(u64::from(GRAIN));
    let bytes = match claimed_bytes(here) {
        // A claim beyond the segment is judged by its header.
        Some(claimed) if claimed <= left.saturating_add(u64::from(UNIT_MAX)) => claimed.min(left).max(grain),
        _ => grain,
    };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Scan {
    /// Judges one place; `here` are the bytes from there on, at least as many as [`wanted`] returns. Returns
    /// the distance to the next place.
    fn step(&mut self, here: &[u8], offset: u64) -> u64 {
        let generation = self.generation;
        let scan = self;
        let grain = &here[..here.len().min(GRAIN as usize)];
        let mut step = u64::from(GRAIN);
        match parse(here, generation, offset) {
            Content::Valid(header) => {
                step = u64::from(header.total_len);
                scan.groups.push(header);
            }
            Content::Stale(header) => {
                step = u64::from(header.total_len);
                scan.other.push(Other { range: offset..offset + step, stale: true });
                scan.ahead = scan.ahead.max((header.generation, header.log_id));
            }
            Content::Version(found) => {
                scan.version.get_or_insert((offset, found));
            }
            Content::Torn { why } => {
                scan.torn.push(TornGroup { offset, ours: names_place(grain, generation, offset), why });
            }
            Content::Nothing if *grain == ZEROS[..grain.len()] => {}
            // The magic number itself may be damaged.
            Content::Nothing if names_place(grain, generation, offset) => {
                let why = "a group stands there that does not begin as one";
                scan.torn.push(TornGroup { offset, ours: true, why });
            }
            Content::Nothing => match scan.other.last_mut() {
                Some(last) if !last.stale && last.range.end == offset => last.range.end += step,
                _ => scan.other.push(Other { range: offset..offset + step, stale: false }),
            },
        }
        step
    }
}

/// Returns whether these bytes, read as a group's header, state that they belong here.
fn names_place(grain: &[u8], generation: u64, offset: u64) -> bool {
    grain.get(32..40) == Some(&generation.to_le_bytes()) && grain.get(40..48) == Some(&offset.to_le_bytes())
}

impl Scan {
    /// Returns the evidence of an unfinished or damaged group at `end`, after the last good group of this segment, or at the start
    /// of this segment (`end` is offset 0 then). `recycled`: old bytes are expected.
    pub(super) fn tail(&self, end: Position, recycled: bool) -> Option<&'static str> {
        let begun = |torn: &&TornGroup| torn.offset == end.offset || (torn.offset > end.offset && torn.ours);
        if let Some(torn) = self.torn.iter().find(begun) {
            return Some(torn.why);
        }
        if recycled {
            return None;
        }
        if self.torn.iter().any(|torn| torn.offset >= end.offset) {
            return Some("a group stands there that is not whole");
        }
        let other = self.other.iter().any(|other| other.range.end > end.offset);
        other.then_some("there are bytes that are not a group")
    }

    /// Returns whether the segment is all zeros.
    pub(crate) fn is_blank(&self) -> bool {
        self.groups.is_empty() && self.torn.is_empty() && self.other.is_empty() && self.version.is_none()
    }

    /// Returns whether no group counts that was written since the segment got its number, except a REOPEN group at its start.
    pub(crate) fn is_unused(&self) -> bool {
        let reopen = self.groups.iter().all(|group| group.flags.reopen()) && self.groups.len() <= 1;
        reopen && self.version.is_none() && self.ahead.0 < self.generation
    }

    /// As `tail`, for a segment without a live group: it was prepared, from zeros or from an older segment, and nothing proves that
    /// it was used.
    pub(super) fn begun(&self) -> Option<&'static str> {
        let first = Position { generation: self.generation, offset: 0 };
        let garbage = self.other.first().is_some_and(|other| other.range.start == 0 && !other.stale);
        self.tail(first, true).or(garbage.then_some("there are bytes that are not a group"))
    }
}

/// The segments that recovery reads: from the newest on, down to the oldest one named by any of their groups.
/// An unreachable group may name another one than the groups that count.
#[derive(Debug, Default)]
pub(crate) struct NeededSegments {
    oldest: Option<u64>,
}

impl NeededSegments {
    /// Returns whether the next older segment must be read.
    pub(crate) fn includes(&self, generation: u64) -> bool {
        self.oldest.is_none_or(|oldest| generation >= oldest)
    }

    /// Notes the oldest segment named by the groups of an included segment.
    pub(crate) fn add(&mut self, scan: &Scan) {
        let named = scan.groups.iter().map(|group| group.start_generation).min();
        self.oldest = self.oldest.into_iter().chain(named).min();
    }
}
