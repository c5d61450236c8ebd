//! One sector of the model: the versions of its bytes that a read may find.

use std::ops::Range;
use std::sync::Arc;

/// The grain at which a write that was dropped, failed or cut off may have happened in parts, in bytes.
pub(super) const SECTOR: usize = 512;
/// The most versions that are kept. Beyond them anything is accepted.
const VERSIONS_MAX: usize = 24;

/// The bytes of a sector; `None` for zeros, which most sectors of an empty file are.
type Version = Option<Arc<[u8]>>;

static ZEROS: [u8; SECTOR] = [0; SECTOR];

fn bytes_of(version: &Version) -> &[u8] {
    version.as_deref().unwrap_or(&ZEROS)
}

fn same(one: &Version, other: &Version) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) if Arc::ptr_eq(one, other) => true,
        _ => bytes_of(one) == bytes_of(other),
    }
}

/// The versions that a sector may have.
#[derive(Clone, Debug)]
pub(super) struct Sector {
    first: Version,
    others: Vec<Version>,
    /// Whether the sector may hold anything.
    any: bool,
    /// Whether each byte may be of another version, because a write through the page cache stopped somewhere.
    mixed: bool,
}

impl Sector {
    pub(super) const ZERO: Sector = Sector { first: None, others: Vec::new(), any: false, mixed: false };

    pub(super) fn is_settled(&self) -> bool {
        !self.any && self.others.is_empty()
    }

    pub(super) fn is_zero(&self) -> bool {
        self.is_settled() && self.first.is_none()
    }

    /// Returns the bytes, if they are certain.
    pub(super) fn settled(&self) -> Option<&[u8]> {
        self.is_settled().then(|| bytes_of(&self.first))
    }

    pub(super) fn forget(&mut self) {
        *self = Sector { any: true, ..Sector::ZERO };
    }

    pub(super) fn set_mixed(&mut self) {
        self.mixed |= !self.others.is_empty();
    }

    fn versions(&self) -> impl Iterator<Item = &Version> {
        std::iter::once(&self.first).chain(&self.others)
    }

    fn add(&mut self, version: Version) {
        if self.any || self.versions().any(|known| same(known, &version)) {
            return;
        }
        if self.others.len() + 1 < VERSIONS_MAX { self.others.push(version) } else { self.forget() }
    }

    /// Returns this sector, whose number is `index`, after `patch`.
    pub(super) fn after(&self, patch: &Patch, index: u64) -> Sector {
        let part = patch.within(index);
        if part.len() == SECTOR {
            return Sector { first: patch.version(index), ..Sector::ZERO };
        }
        if self.any || part.is_empty() {
            return self.clone();
        }
        let mut after = Sector { mixed: self.mixed, ..Sector::ZERO };
        for (at, version) in self.versions().enumerate() {
            let mut bytes = bytes_of(version).to_vec();
            patch.copy_to(index, &mut bytes[part.clone()]);
            let version: Version = Some(bytes.into());
            match at {
                0 => after.first = version,
                _ => after.add(version),
            }
        }
        after
    }

    /// Adds the versions that `other` may have.
    pub(super) fn or(&mut self, other: &Sector) {
        if other.any {
            self.forget();
        }
        self.mixed |= other.mixed;
        for version in other.versions() {
            self.add(version.clone());
        }
    }

    /// Returns whether a read could have found these bytes at `within`. `racing`: while a write to it may
    /// have been under way.
    pub(super) fn allows(&self, within: &Range<usize>, bytes: &[u8], racing: bool) -> bool {
        let part = |version: &Version| bytes_of(version)[within.clone()] == *bytes;
        if self.any || self.versions().any(part) {
            return true;
        }
        (racing || self.mixed)
            && within.clone().zip(bytes).all(|(at, byte)| self.versions().any(|v| bytes_of(v)[at] == *byte))
    }

    /// Records that these bytes were found while no write was under way.
    pub(super) fn settle(&mut self, within: &Range<usize>, bytes: &[u8]) {
        if within.len() == SECTOR {
            if !self.is_settled() {
                *self = Sector { first: Some(bytes.into()), ..Sector::ZERO };
            }
        } else if !self.mixed && !self.others.is_empty() {
            let matching = self.versions().filter(|version| bytes_of(version)[within.clone()] == *bytes);
            let mut matching: Vec<Version> = matching.cloned().collect();
            if !matching.is_empty() {
                self.first = matching.remove(0);
                self.others = matching;
            }
        }
    }

    /// Returns the first place where the bytes differ from the most expected version.
    pub(super) fn first_difference(&self, within: &Range<usize>, bytes: &[u8]) -> usize {
        let expected = &bytes_of(&self.first)[within.clone()];
        within.start + expected.iter().zip(bytes).position(|(one, other)| one != other).unwrap_or(0)
    }

    /// Returns the first bytes from `at` on of each version, for a message.
    pub(super) fn describe(&self, at: usize) -> String {
        let shown = self.versions().map(|version| {
            let bytes = &bytes_of(version)[at..(at + 8).min(SECTOR)];
            bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        });
        shown.collect::<Vec<_>>().join(" or ")
    }
}

/// Bytes and the place to put them.
#[derive(Clone, Debug)]
pub(super) struct Patch {
    pub(super) offset: u64,
    len: u64,
    /// `None`: zeros.
    bytes: Option<Arc<[u8]>>,
}

impl Patch {
    pub(super) fn bytes(offset: u64, bytes: Vec<u8>) -> Patch {
        Patch { offset, len: bytes.len() as u64, bytes: Some(bytes.into()) }
    }

    pub(super) fn zeros(range: Range<u64>) -> Patch {
        Patch { offset: range.start, len: range.end.saturating_sub(range.start), bytes: None }
    }

    pub(super) fn end(&self) -> u64 {
        self.offset + self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the numbers of the sectors that it touches.
    pub(super) fn sectors(&self) -> Range<u64> {
        match self.len {
            0 => 0..0,
            _ => self.offset / SECTOR as u64..self.end().div_ceil(SECTOR as u64),
        }
    }

    pub(super) fn touches(&self, index: u64) -> bool {
        self.sectors().contains(&index)
    }

    pub(super) fn covers(&self, index: u64) -> bool {
        self.within(index).len() == SECTOR
    }

    /// Returns the bytes of a sector that it replaces.
    fn within(&self, index: u64) -> Range<usize> {
        let start = index * SECTOR as u64;
        let from = self.offset.clamp(start, start + SECTOR as u64) - start;
        let to = self.end().clamp(start, start + SECTOR as u64) - start;
        from as usize..to as usize
    }

    fn copy_to(&self, index: u64, to: &mut [u8]) {
        let from = (index * SECTOR as u64).max(self.offset) - self.offset;
        match &self.bytes {
            Some(bytes) => to.copy_from_slice(&bytes[from as usize..from as usize + to.len()]),
            None => to.fill(0),
        }
    }

    /// Returns a whole sector of it.
    fn version(&self, index: u64) -> Version {
        let from = (index * SECTOR as u64 - self.offset) as usize;
        self.bytes.as_ref().map(|bytes| bytes[from..from + SECTOR].into())
    }
}
