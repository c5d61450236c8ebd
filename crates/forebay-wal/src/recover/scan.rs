//! One segment's bytes: every whole group in it, and what else stands there.

use std::ops::Range;
use std::path::PathBuf;

use crate::format::{GRAIN, Header, Parsed, Position, parse};

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
pub(crate) fn scan(file: PathBuf, generation: u64, bytes: &[u8]) -> Scan {
    let length = bytes.len() as u64;
    let (groups, torn, other) = (Vec::new(), Vec::new(), Vec::new());
    let mut scan = Scan { generation, file, bytes: length, groups, torn, other, version: None };
    let mut offset = 0;
    while offset < length {
        let here = &bytes[offset as usize..];
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
        offset += step;
    }
    scan
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

    /// The same for a segment without a live group: it was prepared, from zeros or from an older segment, and
    /// nothing of it is known to have been used.
    pub(super) fn begun(&self) -> Option<&'static str> {
        let first = Position { generation: self.generation, offset: 0 };
        let garbage = self.other.first().is_some_and(|other| other.range.start == 0 && !other.stale);
        self.tail(first, true).or(garbage.then_some("there are bytes that are no group"))
    }
}
