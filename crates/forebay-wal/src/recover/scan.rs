//! One segment's bytes: every whole group in it, and what else stands there.

use std::ops::Range;
use std::path::PathBuf;

use crate::format::{GRAIN, Header, Parsed, Position, UNIT_MAX, claimed_bytes, parse};

/// What one segment holds. Costs about 250 bytes of memory for each group.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    /// Its number, from the file's name.
    pub(crate) generation: u64,
    /// Its file.
    pub(crate) file: PathBuf,
    /// Bytes of the file.
    pub(crate) bytes: u64,
    /// The whole groups that were written to where they stand, in order, of any log.
    pub(crate) groups: Vec<Header>,
    /// The beginnings of groups that are not whole.
    pub(super) torn: Vec<Torn>,
    /// What is neither zeros nor a group, in whole grains, or a group that was written to another place
    /// (`stale`).
    pub(super) other: Vec<Other>,
    /// A whole group of another version of the format: where, and which.
    pub(super) version: Option<(u64, u16)>,
    /// The highest segment number in the groups that were written to other places, and the log of that one.
    pub(crate) ahead: (u64, u128),
}

/// The beginning of a group that is not whole.
#[derive(Clone, Debug)]
pub(super) struct Torn {
    pub(super) offset: u64,
    /// It names this segment as its own.
    pub(super) ours: bool,
    pub(super) why: &'static str,
}

/// Bytes that are not zeros and no group of this place.
#[derive(Clone, Debug)]
pub(super) struct Other {
    pub(super) range: Range<u64>,
    pub(super) stale: bool,
}

/// Compared with whole grains at once.
static ZEROS: [u8; GRAIN as usize] = [0; GRAIN as usize];

/// Looks at every place of a segment where a group can begin, also behind damage. One pass over the bytes.
#[cfg(test)]
pub(crate) fn scan(file: PathBuf, generation: u64, bytes: &[u8]) -> Scan {
    let mut scanner = Scanner::new(file, generation, bytes.len() as u64);
    scanner.look(bytes);
    scanner.scan
}

/// A scan of a segment whose bytes come in pieces.
///
/// Holds them until the group is whole that they are of: besides the piece at hand memory for the longest
/// group, and never more than the segment; a damaged header may claim a long group that is none.
pub(crate) struct Scanner {
    scan: Scan,
    /// What was looked at.
    offset: u64,
    /// The bytes from there on that are known.
    held: Vec<u8>,
    /// How many have to be known to go on.
    wanted: usize,
}

impl Scanner {
    /// Of a segment of so many bytes.
    pub(crate) fn new(file: PathBuf, generation: u64, bytes: u64) -> Scanner {
        let (groups, torn, other) = (Vec::new(), Vec::new(), Vec::new());
        let scan = Scan { generation, file, bytes, groups, torn, other, version: None, ahead: (0, 0) };
        Scanner { scan, offset: 0, held: Vec::new(), wanted: 0 }
    }

    /// Takes the next bytes; none are left out.
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

    /// What was found. A file that turned out shorter than it said ends there.
    pub(crate) fn finish(mut self) -> Scan {
        let held = std::mem::take(&mut self.held);
        if self.offset < self.scan.bytes {
            self.scan.bytes = self.scan.bytes.min(self.offset + held.len() as u64);
            self.look(&held);
        }
        self.scan
    }

    /// Goes through `bytes`, which follow what was looked at, as far as they are enough to say what stands
    /// there; answers how far.
    fn look(&mut self, bytes: &[u8]) -> usize {
        let from = self.offset;
        while self.offset < self.scan.bytes {
            let here = bytes.get((self.offset - from) as usize..).unwrap_or_default();
            self.wanted = wanted(here, self.scan.bytes - self.offset);
            if here.len() < self.wanted {
                break;
            }
            self.offset += self.scan.step(here, self.offset);
        }
        (self.offset - from).min(bytes.len() as u64) as usize
    }
}

/// How many of the bytes at a place say what stands there; `left` are left of the segment.
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
    /// Looks at one place; `here` are the bytes from there on, all that [`wanted`] says. Answers how far
    /// the next place is.
    fn step(&mut self, here: &[u8], offset: u64) -> u64 {
        let generation = self.generation;
        let scan = self;
        let grain = &here[..here.len().min(GRAIN as usize)];
        let mut step = u64::from(GRAIN);
        match parse(here, generation, offset) {
            Parsed::Valid(header) => {
                step = u64::from(header.total_len);
                scan.groups.push(header);
            }
            Parsed::Stale(header) => {
                step = u64::from(header.total_len);
                scan.other.push(Other { range: offset..offset + step, stale: true });
                scan.ahead = scan.ahead.max((header.generation, header.log_id));
            }
            Parsed::Version(found) => {
                scan.version.get_or_insert((offset, found));
            }
            Parsed::Torn { why } => {
                scan.torn.push(Torn { offset, ours: names_place(grain, generation, offset), why });
            }
            Parsed::Nothing if *grain == ZEROS[..grain.len()] => {}
            // The magic number itself may be what is damaged.
            Parsed::Nothing if names_place(grain, generation, offset) => {
                let why = "a group stands there that does not begin as one";
                scan.torn.push(Torn { offset, ours: true, why });
            }
            Parsed::Nothing => match scan.other.last_mut() {
                Some(last) if !last.stale && last.range.end == offset => last.range.end += step,
                _ => scan.other.push(Other { range: offset..offset + step, stale: false }),
            },
        }
        step
    }
}

/// Whether these bytes say of themselves, as a group's header does, that they belong here.
fn names_place(grain: &[u8], generation: u64, offset: u64) -> bool {
    grain.get(32..40) == Some(&generation.to_le_bytes()) && grain.get(40..48) == Some(&offset.to_le_bytes())
}

impl Scan {
    /// What speaks for an unfinished or damaged group at `end`, behind the last good group of this segment,
    /// or at the beginning of this segment (`end` is offset 0 then). `recycled`: old bytes are to be
    /// expected.
    pub(super) fn tail(&self, end: Position, recycled: bool) -> Option<&'static str> {
        let begun = |torn: &&Torn| torn.offset == end.offset || (torn.offset > end.offset && torn.ours);
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
        other.then_some("there are bytes that are no group")
    }

    /// Whether there is nothing but zeros.
    pub(crate) fn is_blank(&self) -> bool {
        self.groups.is_empty() && self.torn.is_empty() && self.other.is_empty() && self.version.is_none()
    }

    /// Whether no group counts in it that was written since it got its number, but for a REOPEN group at its beginning.
    pub(crate) fn is_unused(&self) -> bool {
        let reopen = self.groups.iter().all(|group| group.flags.reopen()) && self.groups.len() <= 1;
        reopen && self.version.is_none() && self.ahead.0 < self.generation
    }

    /// The same for a segment without a live group: it was prepared, from zeros or from an older segment, and
    /// nothing of it is known to have been used.
    pub(super) fn begun(&self) -> Option<&'static str> {
        let first = Position { generation: self.generation, offset: 0 };
        let garbage = self.other.first().is_some_and(|other| other.range.start == 0 && !other.stale);
        self.tail(first, true).or(garbage.then_some("there are bytes that are no group"))
    }
}

/// Which segments recovery looks at: from the newest on, down to the oldest one that any group of those
/// names. A group that leads nowhere may name another one than those that count.
#[derive(Debug, Default)]
pub(crate) struct Needed {
    oldest: Option<u64>,
}

impl Needed {
    /// Whether the next older segment has to be looked at.
    pub(crate) fn includes(&self, generation: u64) -> bool {
        self.oldest.is_none_or(|oldest| generation >= oldest)
    }

    /// Takes note of what a segment that is included holds.
    pub(crate) fn add(&mut self, scan: &Scan) {
        let named = scan.groups.iter().map(|group| group.start_generation).min();
        self.oldest = self.oldest.into_iter().chain(named).min();
    }
}
