//! An in-memory disk with a volatile write cache. Flushed data survives a power cut; any part of the rest may
//! be lost.

use std::collections::HashMap;

use crate::random::{Random, mix};

/// The unit of reads and writes.
const SECTOR: usize = 512;
const PAGE: usize = 64 << 10;

type Sector = [u8; SECTOR];

/// Returns the number of bytes that the disk of such a file system never tears. XFS recovery compares the sequence number in the
/// first sector of a metadata block to decide whether to write the block again. It therefore considers a torn block of 4 KiB whole,
/// and the file system does not mount. ext4 journals whole blocks.
pub(crate) fn unit_bytes(kind: &str) -> usize {
    if kind == "xfs" { 4096 } else { SECTOR }
}

/// A fault of a disk that breaks its guarantees, used to check that the checks notice it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// No fault: the disk is honest.
    Honest,
    /// One flush in this many completes without being done; 1 means each flush. A write with FUA is not
    /// durable either.
    Flush(u64),
    /// The disk reports no cache, so that it receives no flush.
    NoCache,
}

/// The part of the writes since the last flush that survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Nothing,
    Everything,
    /// All writes up to some write, and any units of that write.
    Prefix,
    /// Each write with this probability, in percent.
    Writes(u64),
    /// Each unit of each write with this probability, in percent.
    Units(u64),
}

impl Cut {
    pub(crate) fn any(random: &mut Random) -> Cut {
        let percent = [10, 50, 90][random.below(3) as usize];
        match random.below(8) {
            0 => Cut::Nothing,
            1 => Cut::Everything,
            2 | 3 => Cut::Prefix,
            4 | 5 => Cut::Writes(percent),
            _ => Cut::Units(percent),
        }
    }
}

/// Operations of a disk and the effects of its cuts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) writes: u64,
    pub(crate) flushes: u64,
    pub(crate) durable_writes: u64,
    /// Unflushed sectors that a cut dropped.
    pub(crate) lost: u64,
    pub(crate) unflushed: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.durable_writes += other.durable_writes;
        self.lost += other.lost;
        self.unflushed += other.unflushed;
    }
}

pub(crate) struct Disk {
    bytes: u64,
    /// Sectors per unit. The part of one write within a unit survives as a whole or not at all.
    unit_sectors: u64,
    durable: HashMap<u64, Box<[u8]>>,
    /// Sectors written since the last flush, oldest version first: the number of the write and its bytes.
    cached: HashMap<u64, Vec<(u64, Sector)>>,
    writes: u64,
    flushes: u64,
    lie: Lie,
    frozen: bool,
    pub(crate) counts: Counts,
}

impl Disk {
    /// Returns an empty disk. A cut tears no write within a unit of `unit_bytes`, a multiple of the sector
    /// size.
    pub(crate) fn new(bytes: u64, unit_bytes: usize, lie: Lie) -> Disk {
        Disk {
            bytes,
            unit_sectors: (unit_bytes / SECTOR).max(1) as u64,
            durable: HashMap::new(),
            cached: HashMap::new(),
            writes: 0,
            flushes: 0,
            lie,
            frozen: false,
            counts: Counts::default(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn says_it_has_a_cache(&self) -> bool {
        self.lie != Lie::NoCache
    }

    /// Stops the disk as a power failure does: it reads, writes and replies to nothing until [`Disk::cut`].
    pub(crate) fn freeze(&mut self) {
        self.frozen = true;
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Returns whether the range consists of whole sectors of this disk.
    pub(crate) fn holds(&self, offset: u64, len: usize) -> bool {
        let sector = SECTOR as u64;
        offset.is_multiple_of(sector)
            && (len as u64).is_multiple_of(sector)
            && offset.checked_add(len as u64).is_some_and(|end| end <= self.bytes)
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        for (index, place) in into.chunks_exact_mut(SECTOR).enumerate() {
            let sector = offset / SECTOR as u64 + index as u64;
            match self.cached.get(&sector).and_then(|versions| versions.last()) {
                Some((_, bytes)) => place.copy_from_slice(bytes),
                None => place.copy_from_slice(self.on_medium(sector)),
            }
        }
    }

    /// Writes to the cache, or to the medium if `durable` (a write with FUA).
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8], durable: bool) {
        self.writes += 1;
        self.counts.writes += 1;
        let durable = durable && self.lie == Lie::Honest;
        self.counts.durable_writes += u64::from(durable);
        for (index, bytes) in bytes.as_chunks::<SECTOR>().0.iter().enumerate() {
            let sector = offset / SECTOR as u64 + index as u64;
            if durable {
                // An older cached version must not overwrite it later.
                self.cached.remove(&sector);
                self.put(sector, bytes);
            } else {
                self.cached.entry(sector).or_default().push((self.writes, *bytes));
            }
        }
    }

    /// Makes the cached writes durable, or only reports so.
    pub(crate) fn flush(&mut self) {
        self.flushes += 1;
        self.counts.flushes += 1;
        if let Lie::Flush(nth) = self.lie
            && self.flushes.is_multiple_of(nth.max(1))
        {
            return;
        }
        for (sector, versions) in std::mem::take(&mut self.cached) {
            if let Some((_, bytes)) = versions.last() {
                self.put(sector, bytes);
            }
        }
    }

    /// Restores the power. `cut` determines which cached writes survive.
    pub(crate) fn cut(&mut self, cut: Cut, random: &mut Random) {
        let mut cached: Vec<_> = std::mem::take(&mut self.cached).into_iter().collect();
        // Sort: the map's order differs between processes, and only the seed may decide.
        cached.sort_unstable_by_key(|(sector, _)| *sector);
        let mut writes: Vec<u64> =
            cached.iter().flat_map(|(_, versions)| versions.iter().map(|version| version.0)).collect();
        writes.sort_unstable();
        writes.dedup();
        let last = if writes.is_empty() { 0 } else { writes[random.below(writes.len() as u64) as usize] };
        let luck = random.next();
        for (sector, versions) in cached {
            let mut kept = None;
            let unit = sector / self.unit_sectors;
            for (write, bytes) in &versions {
                self.counts.unflushed += 1;
                let of_unit = |percent| Random::new(mix(&[luck, *write, unit])).chance(percent);
                let survives = match cut {
                    Cut::Nothing => false,
                    Cut::Everything => true,
                    Cut::Prefix => *write < last || (*write == last && of_unit(50)),
                    Cut::Writes(percent) => Random::new(luck ^ write).chance(percent),
                    Cut::Units(percent) => of_unit(percent),
                };
                if survives {
                    kept = Some(bytes);
                } else {
                    self.counts.lost += 1;
                }
            }
            if let Some(bytes) = kept {
                self.put(sector, bytes);
            }
        }
        self.frozen = false;
    }

    /// Returns the durable contents page by page; pages never written are left out.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.durable.iter().map(|(page, bytes)| (page * PAGE as u64, &bytes[..]))
    }

    fn on_medium(&self, sector: u64) -> &[u8] {
        const ZEROS: Sector = [0; SECTOR];
        let at = sector * SECTOR as u64;
        let within = (at % PAGE as u64) as usize;
        self.durable.get(&(at / PAGE as u64)).map_or(&ZEROS, |page| &page[within..within + SECTOR])
    }

    fn put(&mut self, sector: u64, bytes: &Sector) {
        let at = sector * SECTOR as u64;
        let within = (at % PAGE as u64) as usize;
        let page = self.durable.entry(at / PAGE as u64).or_insert_with(|| vec![0; PAGE].into());
        page[within..within + SECTOR].copy_from_slice(bytes);
    }
}

forebay::_debug_parts!(Disk, |disk| bytes: disk.bytes, counts: disk.counts);

#[cfg(test)]
mod tests {
    use super::*;

    fn read(disk: &Disk, sector: u64) -> u8 {
        let mut bytes = [0; SECTOR];
        disk.read(sector * SECTOR as u64, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "one write's bytes");
        bytes[0]
    }

    fn write(disk: &mut Disk, sector: u64, count: usize, value: u8) {
        disk.write(sector * SECTOR as u64, &vec![value; count * SECTOR], false);
    }

    #[test]
    fn what_was_flushed_survives_and_the_rest_may_not() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut disk = Disk::new(1 << 20, SECTOR, Lie::Honest);
            write(&mut disk, 0, 8, 1);
            disk.flush();
            write(&mut disk, 4, 8, 2);
            write(&mut disk, 6, 8, 3);
            assert_eq!((read(&disk, 3), read(&disk, 5), read(&disk, 6)), (1, 2, 3), "reads see the cache");
            let cut = Cut::any(&mut random);
            disk.cut(cut, &mut random);
            assert!((0..4).all(|sector| read(&disk, sector) == 1), "{cut:?}");
            assert!((4..6).all(|sector| [1, 2].contains(&read(&disk, sector))), "{cut:?}");
            assert!((6..8).all(|sector| [1, 2, 3].contains(&read(&disk, sector))), "{cut:?}");
            assert!((12..14).all(|sector| [0, 3].contains(&read(&disk, sector))), "{cut:?}");
            match cut {
                Cut::Nothing => assert_eq!((read(&disk, 4), read(&disk, 12)), (1, 0)),
                Cut::Everything => assert_eq!((read(&disk, 4), read(&disk, 12)), (2, 3)),
                // If the first write was cut, nothing of the second one survives.
                Cut::Prefix => assert!(read(&disk, 12) == 0 || (read(&disk, 4), read(&disk, 5)) == (2, 2)),
                Cut::Writes(_) => assert_eq!(read(&disk, 12), read(&disk, 13)),
                Cut::Units(_) => {}
            }
        }
    }

    /// Regression: a directory block of 4 KiB had a first sector newer than its last after a cut, and XFS did not mount. Its
    /// recovery considers a block whole if its start is new enough.
    #[test]
    fn no_write_is_torn_within_a_unit() {
        let mut torn_between = false;
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let mut disk = Disk::new(1 << 20, 8 * SECTOR, Lie::Honest);
            write(&mut disk, 0, 16, 1);
            write(&mut disk, 2, 10, 2);
            let cut = Cut::any(&mut random);
            disk.cut(cut, &mut random);
            let values: Vec<u8> = (0..16).map(|sector| read(&disk, sector)).collect();
            for (sectors, version) in [(0..2, 1), (2..8, 2), (8..12, 2), (12..16, 1)] {
                let part = &values[sectors.clone()];
                assert!(part.iter().all(|value| *value == part[0]), "{cut:?}: {values:?}");
                assert!(part[0] <= version, "{cut:?}: {values:?}");
            }
            torn_between |= (values[2] == 2) != (values[8] == 2);
        }
        assert!(torn_between, "writes longer than a unit are torn");
    }

    #[test]
    fn a_durable_write_needs_no_flush_and_hides_what_was_below() {
        let mut disk = Disk::new(1 << 20, SECTOR, Lie::Honest);
        write(&mut disk, 0, 2, 1);
        disk.write(0, &[2; SECTOR], true);
        disk.cut(Cut::Everything, &mut Random::new(1));
        assert_eq!((read(&disk, 0), read(&disk, 1)), (2, 1));
        write(&mut disk, 0, 1, 3);
        disk.cut(Cut::Nothing, &mut Random::new(1));
        assert_eq!(read(&disk, 0), 2);
    }

    #[test]
    fn a_lying_disk_loses_what_it_said_was_durable() {
        let mut disk = Disk::new(1 << 20, SECTOR, Lie::Flush(2));
        write(&mut disk, 0, 1, 1);
        disk.flush();
        write(&mut disk, 0, 1, 2);
        disk.flush();
        disk.cut(Cut::Nothing, &mut Random::new(1));
        assert_eq!(read(&disk, 0), 1);
    }

    #[test]
    fn requests_beyond_the_end_or_within_a_sector_are_none_of_its_own() {
        let disk = Disk::new(1 << 20, SECTOR, Lie::Honest);
        assert!(disk.holds(0, 512) && disk.holds((1 << 20) - 512, 512));
        assert!(!disk.holds(256, 512) && !disk.holds(0, 100) && !disk.holds(1 << 20, 512));
        assert!(!disk.holds(u64::MAX - 511, 1024));
    }
}
