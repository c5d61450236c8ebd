//! Tests of the group format.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::recover::tests::log::{LOG_ID, Log, old_segment, read, recover_segments, values};
use crate::values::{Stamp, TABLE_BYTES_MAX, ValueChange, Values};

/// Reproducible pseudorandom numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

const PLACE: Position = Position { generation: 7, offset: 8192 };

fn header(records: &[&[u8]]) -> Header {
    let payload: usize = records.iter().map(|record| RECORD_HEADER_BYTES + record.len()).sum();
    Header {
        version: VERSION,
        values: Stamp { epoch: 8, count: 3 },
        values_len: 0,
        crc: 0,
        total_len: 0,
        log_id: LOG_ID,
        generation: PLACE.generation,
        offset: PLACE.offset,
        epochs: Epochs { number: 9, firsts: [31, 30, 20, 10] },
        first_lsn: 40,
        record_count: records.len() as u32,
        payload_len: payload as u32,
        previous: 0xdead_beef,
        kind: Kind::Records,
        flags: Flags::default(),
        watermark: PLACE,
        first_retained: 12,
        base_lsn: 33,
        argument: 0,
        cut: Position::default(),
        resume: Position::default(),
        start_generation: 3,
    }
}

fn sealed(header: &Header, records: &[&[u8]]) -> Vec<u8> {
    let mut group = vec![0; group_bytes(header.payload_len as usize, GRAIN) as usize];
    let mut at = HEADER_BYTES;
    for record in records {
        group[at..at + 4].copy_from_slice(&(record.len() as u32).to_le_bytes());
        group[at + 4..at + 4 + record.len()].copy_from_slice(record);
        at += 4 + record.len();
    }
    seal(header, &mut group);
    group
}

fn judge(group: &[u8]) -> Content {
    parse(group, PLACE.generation, PLACE.offset)
}

/// A sealed group is read back, with records of many lengths.
#[test]
fn there_and_back() {
    let long = vec![0x5a; 10_000];
    let records: [&[u8]; 4] = [b"one", b"", &long, b"four"];
    let header = header(&records);
    let group = sealed(&header, &records);
    let Content::Valid(found) = judge(&group) else { panic!("{:?}", judge(&group)) };
    assert_eq!(found, Header { crc: found.crc, total_len: group.len() as u32, ..header });
    assert_eq!(found.end(), Position { offset: PLACE.offset + 12288, ..PLACE });
    assert_eq!(found.next_lsn(), 44);
    let payload = &group[HEADER_BYTES..HEADER_BYTES + found.payload_len as usize];
    assert!(super::records(payload).eq(records));
}

/// The checksum is the one named in the document: an independent, slow computation agrees.
#[test]
fn the_checksum_is_crc32c() {
    assert_eq!(slow_crc(b"123456789".iter().copied()), 0xe306_9283);
    let group = sealed(&header(&[b"record"]), &[b"record"]);
    let crc = slow_crc(group[..8].iter().chain(&group[12..]).copied());
    assert_eq!(group[8..12], crc.to_le_bytes());
}

#[test]
fn every_flipped_bit_is_seen() {
    let records: [&[u8]; 2] = [b"a record", &[7; 3000]];
    let mut group = sealed(&header(&records), &records);
    for bit in 0..group.len() * 8 {
        group[bit / 8] ^= 1 << (bit % 8);
        let found = judge(&group);
        if bit / 8 >= HEADER_BYTES + 3016 {
            // Padding, which carries no information.
            assert!(matches!(found, Content::Valid(_)), "bit {bit}: {found:?}");
            group[bit / 8] ^= 1 << (bit % 8);
            continue;
        }
        assert!(matches!(found, Content::Torn { .. } | Content::Nothing), "bit {bit}: {found:?}");
        assert_eq!(matches!(found, Content::Nothing), bit < 48, "bit {bit}");
        group[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(matches!(judge(&group), Content::Valid(_)));
}

#[test]
fn another_place_is_another_group() {
    let group = sealed(&header(&[]), &[]);
    assert!(matches!(parse(&group, PLACE.generation, 0), Content::Stale(_)));
    assert!(matches!(parse(&group, PLACE.generation + 1, PLACE.offset), Content::Stale(_)));
}

/// Zeros past a file's end count as present; records do not.
#[test]
fn a_group_cut_short() {
    let records: [&[u8]; 1] = [&[9; 200]];
    let group = sealed(&header(&records), &records);
    for bytes in 0..group.len() {
        let valid = bytes >= HEADER_BYTES + 204;
        let found = judge(&group[..bytes]);
        assert_eq!(matches!(found, Content::Valid(_)), valid, "{bytes} bytes");
        assert_eq!(matches!(found, Content::Nothing), bytes < MAGIC.len(), "{bytes} bytes");
    }
    let zeros: [&[u8]; 1] = [&[0; 200]];
    let group = sealed(&header(&zeros), &zeros);
    assert!(matches!(judge(&group[..group.len() - 3900]), Content::Torn { .. }));
}

/// A whole group of another version is reported as that version, and not as a flipped bit.
#[test]
fn another_version() {
    let mut group = sealed(&header(&[]), &[]);
    group[6] = 3;
    assert!(matches!(judge(&group), Content::Torn { .. }));
    let crc = checksum(&group, 0);
    group[8..12].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(judge(&group), Content::Version(3));
}

/// A field that has no meaning yet, such as the number of one of several logs, makes a group one of a later program: it is refused,
/// and not mistaken for damage.
#[test]
fn fields_of_a_later_program() {
    for byte in [212, 215, 216, 255] {
        let mut group = sealed(&header(&[b"record"]), &[b"record"]);
        group[byte] = 1;
        assert!(matches!(judge(&group), Content::Torn { .. }));
        let crc = checksum(&group, 0);
        group[8..12].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(judge(&group), Content::Version(2), "byte {byte}");
    }
    assert!(unknown_version(2).contains("several"), "{}", unknown_version(2));
    assert!(unknown_version(3).contains("version 3"), "{}", unknown_version(3));
}

/// A group with records and values is read back, and each of its bits counts.
#[test]
fn values_there_and_back() {
    let change = ValueChange::new("vote", Some(b"term 7")).expect("it fits");
    let table = Values::default().after(&[change], TABLE_BYTES_MAX).expect("it fits");
    let mut bytes = Vec::new();
    table.write(&mut bytes);
    let header = Header { values_len: bytes.len() as u32, flags: Flags::SETS, ..header(&[b"record"]) };
    let mut group = sealed(&header, &[b"record"]);
    group[header.values_range()].copy_from_slice(&bytes);
    seal(&header, &mut group);
    let Content::Valid(found) = judge(&group) else { panic!("{:?}", judge(&group)) };
    assert_eq!(Values::read(&group[found.values_range()]), Some(table));
    for bit in 0..found.values_range().end * 8 {
        group[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(judge(&group), Content::Torn { .. } | Content::Nothing), "bit {bit}");
        group[bit / 8] ^= 1 << (bit % 8);
    }
    // A file that ends within the values.
    let cut = found.values_range().end - 1;
    assert!(matches!(judge(&group[..cut]), Content::Torn { .. }));
    // Bytes that do not form a table, with a right checksum.
    group[found.values_range().start] = 2;
    seal(&header, &mut group);
    assert!(matches!(judge(&group), Content::Torn { .. }));
}

/// A record of the log's end is read back; each of its bits counts, and an older one has no values.
#[test]
fn records_of_the_end() {
    let record = EndRecord {
        log_id: LOG_ID,
        position: PLACE,
        epochs: Epochs { number: 9, firsts: [31, 30, 20, 10] },
        next_lsn: 0,
        first_retained: 0,
        start_generation: 3,
        previous: 0xdead_beef,
        values: Stamp { epoch: 8, count: 3 },
    };
    let slot = record.slot(5);
    assert_eq!(EndRecord::parse(&slot), Slot::Whole(5, record));
    for bit in 0..slot.len() * 8 {
        let mut slot = slot;
        slot[bit / 8] ^= 1 << (bit % 8);
        // The bytes behind the fields have no meaning.
        let expected = if bit / 8 < 148 { Slot::Damaged } else { Slot::Whole(5, record) };
        assert_eq!(EndRecord::parse(&slot), expected, "bit {bit}");
    }
    let resealed = |change: &dyn Fn(&mut [u8; SLOT_BYTES])| {
        let mut slot = slot;
        change(&mut slot);
        let crc = slow_crc(slot[..8].iter().chain(&slot[12..128]).copied());
        slot[8..12].copy_from_slice(&crc.to_le_bytes());
        EndRecord::parse(&slot)
    };
    assert_eq!(resealed(&|slot| slot[6] = 3), Slot::Version(3));
    assert_eq!(resealed(&|slot| slot[124] = 1), Slot::Version(2));
    let first = |slot: &mut [u8; SLOT_BYTES]| {
        slot[6] = 1;
        slot[128..].fill(0);
    };
    assert_eq!(resealed(&first), Slot::Whole(5, EndRecord { values: Stamp::default(), ..record }));
}

/// Returns the CRC-32C by an independent, slow computation.
fn slow_crc(bytes: impl Iterator<Item = u8>) -> u32 {
    let mut bytes = bytes;
    !bytes.by_ref().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

#[test]
fn fields_that_contradict_each_other() {
    let cases: [&dyn Fn(&mut Header); 15] = [
        &|header| header.kind = Kind::Unknown(9),
        &|header| header.kind = Kind::Mark,
        &|header| header.flags = Flags(8),
        &|header| header.flags = Flags::SETS,
        &|header| header.values_len = 1,
        &|header| header.values_len = u32::MAX,
        &|header| (header.values_len, header.values) = (2, Stamp::default()),
        &|header| header.flags = Flags::REOPEN,
        &|header| header.record_count = 2,
        &|header| header.payload_len += 1,
        &|header| header.payload_len = u32::MAX,
        &|header| header.watermark.offset += 1,
        &|header| header.start_generation = 8,
        &|header| header.first_retained = 42,
        &|header| header.first_lsn = u64::MAX,
    ];
    for (at, change) in cases.iter().enumerate() {
        let good = header(&[b"record"]);
        let mut bad = good;
        change(&mut bad);
        let mut group = sealed(&good, &[b"record"]);
        seal(&bad, &mut group);
        assert!(matches!(judge(&group), Content::Torn { .. }), "case {at}");
    }
}

/// Any bytes are judged, also after a valid start and with a matching checksum.
#[test]
fn any_bytes_are_judged() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..20_000 {
        let mut bytes: Vec<u8> = (0..random.next() % 600).map(|_| random.next() as u8).collect();
        assert!(records(&bytes).all(|record| record.len() <= bytes.len()));
        let keep = (random.next() % 17) as usize;
        let good = sealed(&header(&[b"x"]), &[b"x"]);
        let keep = keep.min(bytes.len());
        bytes[..keep].copy_from_slice(&good[..keep]);
        assert!(!matches!(judge(&bytes), Content::Valid(_)));
        if bytes.len() >= HEADER_BYTES {
            bytes.resize(4096, 0);
            bytes[..8].copy_from_slice(&good[..8]);
            bytes[12..16].copy_from_slice(&4096u32.to_le_bytes());
            let crc = checksum(&bytes, 0);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            judge(&bytes);
        }
    }
    assert_eq!(seal(&header(&[]), &mut [0; 100]), 0);
}

#[test]
fn lengths() {
    assert_eq!(group_bytes(0, 512), 4096);
    assert_eq!(group_bytes(4096 - HEADER_BYTES, 4096), 4096);
    assert_eq!(group_bytes(4096 - HEADER_BYTES + 1, 4096), 8192);
    assert_eq!(group_bytes(1, 16384), 16384);
    assert_eq!(group_bytes(usize::MAX, UNIT_MAX), (1 << 31) - UNIT_MAX);
}

#[test]
fn names() {
    assert_eq!(segment_name(0x2a), "000000000000002a.wal");
    assert_eq!(segment_generation("000000000000002a.wal"), Some(0x2a));
    for other in ["2a.wal", "000000000000002A.wal", "+00000000000002a.wal", "wal.lock", "", ".wal"] {
        assert_eq!(segment_generation(other), None, "{other}");
    }
}

#[test]
fn epochs() {
    let epochs = Epochs::new(1).raised(50).raised(20).raised(30);
    assert_eq!((epochs.number, epochs.firsts), (4, [30, 20, 50, 1]));
    assert_eq!(epochs.lowest_since(4), Some(u64::MAX));
    assert_eq!(epochs.lowest_since(3), Some(30));
    assert_eq!(epochs.lowest_since(2), Some(20));
    assert_eq!(epochs.lowest_since(0), Some(1));
    assert_eq!(epochs.raised(60).lowest_since(0), None);
    assert_eq!(epochs.lowest_since(5), None);
    assert_eq!(epochs.raised_to(7, 40).firsts, [40, 40, 40, 30]);
    assert_eq!(epochs.raised_to(u64::MAX, 40).firsts, [40; 4]);
}

/// The log of the fixtures: three lives from record 0 on, values, a truncation, a recycled segment, marks.
fn fixture() -> Log {
    let mut log = Log::from(24 << 10, 0);
    log.append(2, 60);
    log.set("vote", 1);
    log.append(1, 5000);
    log.truncate_after(2);
    log.append(1, 0);
    log.open(false).expect("an intact log");
    log.set("applied", 0);
    log.open(false).expect("an intact log");
    log.begin_recycled(old_segment(12 << 10));
    log.append(2, 100);
    log.mark();
    log
}

/// Returns the segments of a folder of fixtures.
fn fixtures(version: u16) -> BTreeMap<u64, Vec<u8>> {
    let folder = fixtures_dir().join(format!("v{version}"));
    let files = std::fs::read_dir(folder).expect("the fixtures").map(|entry| entry.expect("a file"));
    let generation = |name: &std::ffi::OsStr| name.to_str().and_then(segment_generation);
    let read = |file: &std::fs::DirEntry| std::fs::read(file.path()).expect("a file");
    files.filter_map(|file| Some((generation(&file.file_name())?, read(&file)))).collect()
}

fn fixtures_dir() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Segments written by a program of this version are read, and this program writes the same bytes.
#[test]
fn the_fixtures() {
    let log = fixture();
    let segments = fixtures(VERSION);
    let outcome = recover_segments(&segments, false).expect("an intact log");
    assert!(outcome.clean);
    assert_eq!((outcome.log_id, outcome.first, outcome.next_lsn), (LOG_ID, 0, 6));
    let lengths: Vec<_> =
        read(&segments, &outcome).into_iter().map(|(lsn, record)| (lsn, record.len())).collect();
    assert_eq!(lengths, [(0, 60), (1, 60), (2, 100), (3, 19), (4, 100), (5, 100)]);
    let table = values(&segments, &outcome);
    let text = |key| table.get(key).map(String::from_utf8_lossy);
    assert_eq!(text("vote").as_deref(), Some("vote 1 in life 1"));
    assert_eq!(text("applied").as_deref(), Some("applied 2 in life 3"));
    assert!(segments == log.segments, "the bytes of this version have changed: that takes a new version");
}

/// Segments written by a program of version 1 are read, and the log continues behind them.
#[test]
fn the_fixtures_of_version_1() {
    let segments = fixtures(1);
    let outcome = recover_segments(&segments, false).expect("an intact log");
    assert!(outcome.clean);
    assert_eq!((outcome.log_id, outcome.first, outcome.next_lsn), (LOG_ID, 1, 6));
    let lengths: Vec<_> =
        read(&segments, &outcome).into_iter().map(|(lsn, record)| (lsn, record.len())).collect();
    assert_eq!(lengths, [(1, 60), (2, 60), (3, 19), (4, 100), (5, 100)]);
    assert_eq!((outcome.values.stamp, outcome.values.table.is_some()), (Stamp::default(), false));
    for (unclean, sets) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut log = Log::new(24 << 10);
        log.segments.clone_from(&segments);
        if unclean {
            // The mark at the end: the group before it is not proven then.
            let segment = log.segments.get_mut(&3).expect("the last segment");
            segment[outcome.end.offset as usize - 4096..][..200].fill(0);
        }
        assert_eq!(log.open(false).expect("an intact log").clean, !unclean);
        if sets {
            log.set("vote", 1);
        } else {
            log.append(1, 60);
        }
        log.mark();
        let again = log.recover(false).expect("an intact log");
        assert!(again.clean && read(&log.segments, &again) == log.records && log.records.len() == 6);
        assert_eq!(values(&log.segments, &again), log.values);
    }
}

/// A segment of a later version is an error that names the version, with any other content of the log.
#[test]
fn the_fixture_of_another_version() {
    let mut segments = fixtures(1);
    let other = include_bytes!("../../tests/fixtures/version-513/0000000000000001.wal");
    segments.insert(1, other.to_vec());
    let error = recover_segments(&segments, true).map(drop).expect_err("another version");
    assert_eq!(error.kind(), crate::ErrorKind::Version { found: 513 });
}

/// Writes the fixtures of this version; only for a new one.
#[test]
#[ignore = "writes files into the source tree"]
fn write_the_fixtures() {
    let folder = fixtures_dir().join(format!("v{VERSION}"));
    std::fs::create_dir_all(&folder).expect("a folder");
    for (&generation, bytes) in &fixture().segments {
        std::fs::write(folder.join(segment_name(generation)), bytes).expect("a file");
    }
}
