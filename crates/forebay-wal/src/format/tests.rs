//! Tests of the group format.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::recover::tests::log::{LOG_ID, Log, old_segment, read, recover_segments};

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

fn judge(group: &[u8]) -> Parsed {
    parse(group, PLACE.generation, PLACE.offset)
}

/// A sealed group is read back, with records of many lengths.
#[test]
fn there_and_back() {
    let long = vec![0x5a; 10_000];
    let records: [&[u8]; 4] = [b"one", b"", &long, b"four"];
    let header = header(&records);
    let group = sealed(&header, &records);
    let Parsed::Valid(found) = judge(&group) else { panic!("{:?}", judge(&group)) };
    assert_eq!(found, Header { crc: found.crc, total_len: group.len() as u32, ..header });
    assert_eq!(found.end(), Position { offset: PLACE.offset + 12288, ..PLACE });
    assert_eq!(found.next_lsn(), 44);
    let payload = &group[HEADER_BYTES..HEADER_BYTES + found.payload_len as usize];
    assert!(super::records(payload).eq(records));
}

/// The checksum is the one named in the document: an independent, slow computation agrees.
#[test]
fn the_checksum_is_crc32c() {
    let slow = |bytes: &mut dyn Iterator<Item = u8>| {
        !bytes.fold(!0u32, |crc, byte| {
            (0..8)
                .fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
        })
    };
    assert_eq!(slow(&mut b"123456789".iter().copied()), 0xe306_9283);
    let group = sealed(&header(&[b"record"]), &[b"record"]);
    let crc = slow(&mut group[..8].iter().chain(&group[12..]).copied());
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
            assert!(matches!(found, Parsed::Valid(_)), "bit {bit}: {found:?}");
            group[bit / 8] ^= 1 << (bit % 8);
            continue;
        }
        assert!(matches!(found, Parsed::Torn { .. } | Parsed::Nothing), "bit {bit}: {found:?}");
        assert_eq!(matches!(found, Parsed::Nothing), bit < 48, "bit {bit}");
        group[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(matches!(judge(&group), Parsed::Valid(_)));
}

#[test]
fn another_place_is_another_group() {
    let group = sealed(&header(&[]), &[]);
    assert!(matches!(parse(&group, PLACE.generation, 0), Parsed::Stale(_)));
    assert!(matches!(parse(&group, PLACE.generation + 1, PLACE.offset), Parsed::Stale(_)));
}

/// Zeros past a file's end count as present; records do not.
#[test]
fn a_group_cut_short() {
    let records: [&[u8]; 1] = [&[9; 200]];
    let group = sealed(&header(&records), &records);
    for bytes in 0..group.len() {
        let valid = bytes >= HEADER_BYTES + 204;
        let found = judge(&group[..bytes]);
        assert_eq!(matches!(found, Parsed::Valid(_)), valid, "{bytes} bytes");
        assert_eq!(matches!(found, Parsed::Nothing), bytes < MAGIC.len(), "{bytes} bytes");
    }
    let zeros: [&[u8]; 1] = [&[0; 200]];
    let group = sealed(&header(&zeros), &zeros);
    assert!(matches!(judge(&group[..group.len() - 3900]), Parsed::Torn { .. }));
}

/// A whole group of another version is reported as that version, and not as a flipped bit.
#[test]
fn another_version() {
    let mut group = sealed(&header(&[]), &[]);
    group[6] = 2;
    assert!(matches!(judge(&group), Parsed::Torn { .. }));
    let crc = checksum(&group, 0);
    group[8..12].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(judge(&group), Parsed::Version(2));
}

#[test]
fn fields_that_contradict_each_other() {
    let cases: [&dyn Fn(&mut Header); 11] = [
        &|header| header.kind = Kind::Unknown(9),
        &|header| header.kind = Kind::Mark,
        &|header| header.flags = Flags(4),
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
        assert!(matches!(judge(&group), Parsed::Torn { .. }), "case {at}");
    }
}

/// Any bytes are judged, also after a valid beginning and with a matching checksum.
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
        assert!(!matches!(judge(&bytes), Parsed::Valid(_)));
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

/// The log of the fixtures: two lives, a truncation, a recycled segment, marks.
fn fixture() -> Log {
    let mut log = Log::new(24 << 10);
    log.append(2, 60);
    log.append(1, 5000);
    log.truncate_after(2);
    log.append(1, 0);
    log.open(false).expect("an intact log");
    log.begin_recycled(old_segment(12 << 10));
    log.append(2, 100);
    log.mark();
    log
}

fn fixtures() -> BTreeMap<u64, &'static [u8]> {
    BTreeMap::from([
        (1, include_bytes!("../../tests/fixtures/v1/0000000000000001.wal").as_slice()),
        (2, include_bytes!("../../tests/fixtures/v1/0000000000000002.wal").as_slice()),
        (3, include_bytes!("../../tests/fixtures/v1/0000000000000003.wal").as_slice()),
    ])
}

/// Segments written by a program of version 1 are read, and this program writes the same bytes.
#[test]
fn the_fixtures() {
    let log = fixture();
    let segments = fixtures().into_iter().map(|(generation, bytes)| (generation, bytes.to_vec())).collect();
    let outcome = recover_segments(&segments, false).expect("an intact log");
    assert!(outcome.clean);
    assert_eq!((outcome.log_id, outcome.first, outcome.next_lsn), (LOG_ID, 1, 6));
    let lengths: Vec<_> =
        read(&segments, &outcome).into_iter().map(|(lsn, record)| (lsn, record.len())).collect();
    assert_eq!(lengths, [(1, 60), (2, 60), (3, 19), (4, 100), (5, 100)]);
    assert!(segments == log.segments, "the bytes of version 1 have changed: that takes a new version");
}

/// A segment of a later version is an error that names the version, whatever else the log contains.
#[test]
fn the_fixture_of_another_version() {
    let mut segments: BTreeMap<_, _> =
        fixtures().into_iter().map(|(generation, bytes)| (generation, bytes.to_vec())).collect();
    let other = include_bytes!("../../tests/fixtures/version-513/0000000000000001.wal");
    segments.insert(1, other.to_vec());
    let error = recover_segments(&segments, true).map(drop).expect_err("another version");
    assert_eq!(*error.kind(), crate::ErrorKind::Version { found: 513 });
}

/// Writes the fixtures anew; only for a new version.
#[test]
#[ignore = "writes files into the source tree"]
fn write_the_fixtures() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for folder in ["v1", "version-513"] {
        std::fs::create_dir_all(fixtures.join(folder)).expect("a folder");
    }
    let log = fixture();
    for (&generation, bytes) in &log.segments {
        std::fs::write(fixtures.join("v1").join(segment_name(generation)), bytes).expect("a file");
    }
    let mut other = log.segments[&1][..4096].to_vec();
    other[6..8].copy_from_slice(&513u16.to_le_bytes());
    let crc = checksum(&other, 0);
    other[8..12].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(fixtures.join("version-513").join(segment_name(1)), other).expect("a file");
}
