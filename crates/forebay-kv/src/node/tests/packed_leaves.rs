use super::super::codec::{Codec, Encoder, PIECE_BYTES_MAX};
use super::super::packed::{
    LEAF_BYTES_MAX, PACKED_HEADER_BYTES, image, is_packed, pack, pack_piece, unpack, unpack_blob,
    unpacked_len,
};
use super::*;
use crate::options::Compression;

/// Returns every compression that this build has.
fn compressions() -> Vec<Compression> {
    vec![
        Compression::Lz4,
        #[cfg(feature = "zstd")]
        Compression::Zstd(1),
        #[cfg(feature = "zstd")]
        Compression::Zstd(9),
    ]
}

fn encoder(compression: Compression) -> Encoder {
    Encoder::new(compression).unwrap().unwrap()
}

/// Returns bytes that compress a little, well, or not at all.
fn text(random: &mut Random, len: u64) -> Vec<u8> {
    let repeats = [1, 3, 200][random.below(3) as usize];
    let mut bytes = Vec::new();
    while bytes.len() < len as usize {
        let word = random.word().to_le_bytes();
        (0..repeats).for_each(|_| bytes.extend_from_slice(&word));
    }
    bytes.truncate(len as usize);
    bytes
}

/// Returns a builder with records of up to `len` bytes together, and the plain leaf of them.
fn long_leaf(random: &mut Random, len: usize) -> (Builder, Vec<u8>) {
    let mut builder = Builder::default();
    for number in 0u32.. {
        let key = [&b"a key "[..], &number.to_be_bytes()].concat();
        let len_of_value = random.below(300);
        let value = text(random, len_of_value);
        let content = Content::Inline { bytes: &value, expires_s: None };
        if builder.len_with(&key, content.len()) > len {
            break;
        }
        builder.push(&key, content);
    }
    let mut leaf = vec![0; builder.len()];
    builder.lay_out(builder.count(), &mut leaf);
    (builder, leaf)
}

/// Packs a leaf into as many units as it needs.
fn packed(encoder: &mut Encoder, leaf: &[u8]) -> Vec<u8> {
    let len = encoder.encode(image(leaf)).unwrap();
    let mut node = vec![0; (PACKED_HEADER_BYTES + len).next_multiple_of(UNIT)];
    let codec = encoder.codec();
    if node.len() > LEAF_BYTES_MAX {
        return Vec::new();
    }
    assert!(pack(&mut node, HERE, codec, leaf, encoder.encoded(len)));
    node
}

#[test]
fn a_packed_leaf_is_unpacked_to_the_same_bytes() {
    let mut random = Random(31);
    for compression in compressions() {
        let mut encoder = encoder(compression);
        for round in 0..200 {
            let (_, leaf) = long_leaf(&mut random, 400 + round * 160);
            let node = packed(&mut encoder, &leaf);
            check(&node, HERE).unwrap();
            assert!(is_packed(&node) && !is_packed(&leaf));
            assert_eq!(unpacked_len(&node, leaf.len()), Ok(leaf.len()));
            assert!(unpacked_len(&node, leaf.len() - 1).is_err());
            let mut unpacked = vec![0xEE; leaf.len()];
            unpack(&node, encoder.codec(), &mut unpacked).unwrap();
            assert_eq!(unpacked[14..], leaf[14..]);
            assert!(is(&unpacked, HERE));
            Node::of(&unpacked).unwrap().check_records().unwrap();
        }
    }
}

#[test]
fn a_packed_leaf_of_another_codec_length_or_padding_is_refused() {
    let mut random = Random(32);
    let mut encoder = encoder(Compression::Lz4);
    let (_, leaf) = long_leaf(&mut random, 6000);
    let node = packed(&mut encoder, &leaf);
    let mut room = vec![0; leaf.len()];
    assert!(unpack(&node, Codec::Lz4, &mut room).is_ok());
    assert!(unpack(&node, Codec::Zstd, &mut room).is_err());
    for len in [0, 13, 14, 18, leaf.len() - 1, leaf.len() + 1] {
        assert!(unpack(&node, Codec::Lz4, &mut vec![0; len]).is_err(), "{len}");
    }
    for at in [18, 19, node.len() - 1] {
        let mut wrong = node.clone();
        wrong[at] ^= 1;
        assert!(unpack(&wrong, Codec::Lz4, &mut room).is_err(), "byte {at}");
    }
    assert!(unpack(&[], Codec::Lz4, &mut room).is_err() && unpacked_len(&[], 9999).is_err());
}

#[test]
fn every_flipped_bit_of_a_packed_leaf_is_noticed() {
    for compression in compressions() {
        let (_, leaf) = long_leaf(&mut Random(5), 7000);
        let mut node = packed(&mut encoder(compression), &leaf);
        for bit in 0..node.len() * 8 {
            node[bit / 8] ^= 1 << (bit % 8);
            assert!(check(&node, HERE).is_err(), "bit {bit}");
            node[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// Packed leaves with a right checksum and any other bytes: they are refused or give a node, and nothing
/// panics. `FOREBAY_KV_ROUNDS` chooses how many are tried.
#[test]
fn nonsense_in_a_packed_leaf_is_no_panic() {
    let rounds = std::env::var("FOREBAY_KV_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6_000);
    let mut random = Random(91);
    let (mut refused, mut accepted) = (0, 0);
    for compression in compressions() {
        let mut encoder = encoder(compression);
        let (_, leaf) = long_leaf(&mut random, 9000);
        let right = packed(&mut encoder, &leaf);
        let end = usize::from(read::u16_at(&right, 16));
        for _ in 0..rounds {
            let mut node = right.clone();
            for _ in 0..random.below(6) + 1 {
                let at = match random.below(4) {
                    0 => 14 + random.below(16),
                    1 => 22 + random.below(60),
                    _ => 14 + random.below(end as u64 - 14),
                };
                node[at as usize] = match random.below(3) {
                    0 => 0xFF,
                    1 => random.below(4) as u8,
                    _ => random.word() as u8,
                };
            }
            seal(&mut node, HERE);
            check(&node, HERE).unwrap();
            if !is_packed(&node) {
                let _ = Node::of(&node).map(|node| node.check_records());
                continue;
            }
            let Ok(len) = unpacked_len(&node, LEAF_BYTES_MAX) else { continue };
            let mut unpacked = vec![0; len];
            match unpack(&node, encoder.codec(), &mut unpacked) {
                Ok(()) => accepted += 1,
                Err(_) => {
                    refused += 1;
                    continue;
                }
            }
            let Ok(node) = Node::of(&unpacked) else { continue };
            let mut key = Vec::new();
            for index in (0..node.count()).take(64).chain([node.count()]) {
                let _ = (node.suffix(index), node.key(index, &mut key));
                if let Ok(read::Entry { payload: Payload::Inline(range), .. }) = node.entry(index) {
                    assert!(unpacked.get(range).is_some());
                }
            }
            let _ = (node.search(b"a key 1"), node.check_records());
        }
    }
    assert!(refused > rounds / 4 && accepted > 0, "{refused} refused, {accepted} accepted");
}

fn packed_blob(encoder: &mut Encoder, value: &[u8]) -> Vec<u8> {
    let mut stored = Vec::new();
    for piece in value.chunks(PIECE_BYTES_MAX) {
        stored.extend_from_slice(pack_piece(encoder, piece));
    }
    stored
}

#[test]
fn a_packed_blob_is_unpacked_to_the_same_bytes_and_nonsense_is_refused() {
    let mut random = Random(33);
    for compression in compressions() {
        let mut encoder = encoder(compression);
        let piece = PIECE_BYTES_MAX as u64;
        for len in [1, 2, 100, 4096, piece - 1, piece, piece + 1, 3 * piece, 3 * piece + 77] {
            for _ in 0..6 {
                let value = text(&mut random, len);
                let stored = packed_blob(&mut encoder, &value);
                let pieces = value.len().div_ceil(PIECE_BYTES_MAX);
                assert!(stored.len() <= value.len() + 4 * pieces, "a piece that does not gain stays plain");
                let mut found = vec![0xEE; value.len()];
                unpack_blob(&stored, encoder.codec(), &mut found).unwrap();
                assert!(found == value);
                for other in [len + 1, len - 1] {
                    let mut room = vec![0; other as usize];
                    assert!(unpack_blob(&stored, encoder.codec(), &mut room).is_err(), "{other} of {len}");
                }
                let longer = [&stored[..], &[0]].concat();
                assert!(unpack_blob(&longer, encoder.codec(), &mut found).is_err());
                assert!(unpack_blob(&stored[..stored.len() - 1], encoder.codec(), &mut found).is_err());
                for _ in 0..100 {
                    let mut wrong = stored.clone();
                    let at = match random.below(2) {
                        0 => random.below(8.min(stored.len() as u64)),
                        _ => random.below(stored.len() as u64),
                    };
                    wrong[at as usize] = random.word() as u8;
                    let _ = unpack_blob(&wrong, encoder.codec(), &mut found);
                }
            }
        }
    }
}

#[test]
fn the_first_records_of_a_node_are_a_node_and_the_others_another() {
    let mut random = Random(34);
    for _ in 0..200 {
        let (builder, _) = long_leaf(&mut random, 6000);
        let all = builder.count();
        let most = 100 + random.below(6200) as usize;
        let count = builder.count_within(most);
        assert!(count == 1 || builder.len_of_first(count) <= most);
        assert!(count == all || builder.len_of_first(count + 1) > most);
        let records: Vec<(Vec<u8>, Vec<u8>)> = {
            let mut leaf = vec![0; builder.len()];
            builder.lay_out(all, &mut leaf);
            let node = Node::of(&leaf).unwrap();
            let record = |index| {
                let mut key = Vec::new();
                node.key(index, &mut key).unwrap();
                let Payload::Inline(range) = node.entry(index).unwrap().payload else { panic!() };
                (key, leaf[range].to_vec())
            };
            (0..all).map(record).collect()
        };
        let again = |records: &[(Vec<u8>, Vec<u8>)]| {
            let mut builder = Builder::default();
            for (key, value) in records {
                builder.push(key, Content::Inline { bytes: value, expires_s: None });
            }
            builder
        };
        let mut builder = builder;
        let (first, rest) = records.split_at(count);
        let mut expected = vec![0; 2 * UNIT];
        assert!(again(first).finish(&mut expected, HERE));
        let mut found = vec![0; 2 * UNIT];
        assert!(builder.finish_first(count, &mut found, HERE));
        assert!(found == expected);
        let others = again(rest);
        assert_eq!((builder.count(), builder.len()), (rest.len(), others.len()));
        assert_eq!((builder.first_key(), builder.last_key()), (others.first_key(), others.last_key()));
        if !rest.is_empty() {
            let (mut one, mut other) = (vec![0; 2 * UNIT], vec![0; 2 * UNIT]);
            assert!(builder.finish(&mut one, HERE) && again(rest).finish(&mut other, HERE));
            assert!(one == other);
        }
    }
}
