//! A segment that arrives in pieces gives the same scan.

use super::exhaustive::{SEGMENT, UNIT, damage};
use super::log::{Log, old_segment};
use crate::format::HEADER_BYTES;
use crate::recover::{Scanner, scan};

/// Returns the scan of `bytes` passed in pieces of these lengths, repeated; `said` is the stated length of
/// the file.
fn in_pieces(bytes: &[u8], said: usize, lengths: &[usize]) -> String {
    let mut scanner = Scanner::new("1".into(), 1, said as u64);
    let mut rest = bytes;
    for &length in lengths.iter().cycle() {
        let (piece, left) = rest.split_at(length.min(rest.len()));
        scanner.push(piece);
        rest = left;
        if rest.is_empty() {
            break;
        }
    }
    format!("{:?}", scanner.finish())
}

#[test]
fn pieces_of_any_length() {
    let mut log = Log::new(SEGMENT);
    (0..5).for_each(|group| _ = log.append(1 + group % 3, 100 + 4000 * (group as usize % 3)));
    log.mark();
    let whole = log.segments[&1].clone();
    let old = old_segment(SEGMENT);
    let mut segments = vec![whole.clone(), old.clone(), vec![0; SEGMENT], whole[..3 * UNIT + 77].to_vec()];
    for unit in 0..SEGMENT / UNIT {
        for way in 0..4 {
            let mut damaged = log.segments.clone();
            damage(&mut damaged, (1, unit), way, &old);
            segments.extend(damaged.remove(&1));
        }
    }
    // A header that claims almost the whole segment, all of it, and more.
    for claim in [SEGMENT - 4 * UNIT, SEGMENT, SEGMENT + UNIT, 1 << 30] {
        let mut claiming = whole.clone();
        claiming[UNIT + 12..UNIT + 16].copy_from_slice(&(claim as u32).to_le_bytes());
        segments.push(claiming);
    }
    for bytes in &segments {
        let expected = format!("{:?}", scan("1".into(), 1, bytes));
        for lengths in
            [&[UNIT][..], &[1, 4095, HEADER_BYTES], &[3 * UNIT], &[SEGMENT], &[7, 100, 5000, 20_000], &[16]]
        {
            assert_eq!(in_pieces(bytes, bytes.len(), lengths), expected, "{lengths:?}");
            // A file shorter than its stated length.
            assert_eq!(in_pieces(bytes, bytes.len() + 3 * UNIT, lengths), expected, "{lengths:?}");
        }
    }
}
