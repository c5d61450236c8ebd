//! Packed leaves and packed values as a fuzz target: a file with valid checksums may have any bytes, and never makes a reader
//! panic, or read or write outside of its memory.
//!
//! Under `cargo test` random bytes are tried for 5 seconds, or for `FOREBAY_FUZZ_SECONDS`. With `cargo bolero test` the
//! same target runs under libFuzzer, AFL or honggfuzz.

use std::cell::Cell;
use std::time::Duration;

use super::super::codec::{Codec, Encoder, PIECE_BYTES_MAX};
use super::super::packed::{
    LEAF_BYTES_MAX, PACKED_HEADER_BYTES, image, is_packed, pack, pack_piece, unpack, unpack_blob,
    unpacked_len,
};
use super::*;
use crate::options::Compression;

const INPUT_BYTES_MAX: usize = 2048;
/// What lies behind the memory that a decoder is given, and must stay as it is.
const FENCE: [u8; 64] = [0xA5; 64];
/// Bytes of the value whose stored form is changed: two pieces.
const VALUE_BYTES: usize = PIECE_BYTES_MAX + 5_000;

/// The valid stored forms that inputs change, for each codec of this build.
struct Valid {
    codec: Codec,
    leaf: Vec<u8>,
    blob: Vec<u8>,
}

fn valid(compression: Compression) -> Valid {
    let mut encoder = Encoder::new(compression).expect("a codec").expect("a codec");
    let mut builder = Builder::default();
    for number in 0u32..200 {
        let key = [&b"a key "[..], &number.to_be_bytes()].concat();
        let value = [number as u8; 40];
        builder.push(&key, Content::Inline { bytes: &value, expires_s: (number % 7 == 0).then_some(9) });
    }
    let mut plain = vec![0; builder.len()];
    builder.lay_out(builder.count(), &mut plain);
    let len = encoder.encode(image(&plain)).expect("it fits");
    let mut leaf = vec![0; (PACKED_HEADER_BYTES + len).next_multiple_of(UNIT)];
    assert!(pack(&mut leaf, HERE, encoder.codec(), &plain, encoder.encoded(len)));
    let value: Vec<u8> = (0..VALUE_BYTES).map(|at| (at / 9) as u8).collect();
    let pieces = value.chunks(PIECE_BYTES_MAX);
    let blob = pieces.flat_map(|piece| pack_piece(&mut encoder, piece).to_vec()).collect();
    Valid { codec: encoder.codec(), leaf, blob }
}

/// Changes bytes where the input says: each change is a place of two bytes and a byte; or replaces all behind a place.
fn changed(valid: &[u8], is_replaced: bool, input: &[u8]) -> Vec<u8> {
    let mut bytes = valid.to_vec();
    if is_replaced && let [place, rest @ ..] = input {
        bytes.truncate((usize::from(*place) % 32).min(bytes.len()));
        bytes.extend_from_slice(rest);
        return bytes;
    }
    for change in input.chunks_exact(3) {
        let place = usize::from(u16::from_be_bytes([change[0], change[1]]));
        // Half of the changes strike the headers.
        let place = if place & 1 == 0 { place / 2 % 48 } else { place / 2 };
        let len = bytes.len();
        bytes[place % len] = change[2];
    }
    bytes
}

/// Decodes into `len` bytes with a fence behind them. Returns them if they were accepted.
fn fenced(len: usize, decode: impl Fn(&mut [u8]) -> Result<(), &'static str>) -> Option<Vec<u8>> {
    let mut memory = vec![0xEE; len];
    memory.extend_from_slice(&FENCE);
    let decoded = decode(&mut memory[..len]);
    assert!(memory.split_off(len) == FENCE, "a decoder wrote behind its memory");
    let mut again = vec![0x11; len];
    assert_eq!(decode(&mut again), decoded, "the same bytes have another outcome");
    decoded.ok().map(|()| {
        assert!(again == memory, "a decoder has left bytes as they were");
        memory
    })
}

/// Reads a leaf in all ways that a store does.
fn read(leaf: &[u8]) {
    let Ok(node) = Node::of(leaf) else { return };
    let mut key = Vec::new();
    for index in 0..=node.count() {
        let _ = (node.suffix(index), node.key(index, &mut key));
        if let Ok(read::Entry { payload: Payload::Inline(range), .. }) = node.entry(index) {
            assert!(leaf.get(range).is_some(), "a value outside of its leaf");
        }
    }
    let _ = (node.search(b"a key 1"), node.search(b""), node.check_records());
}

/// Tries one input. Returns whether it was accepted.
fn tried(all: &[Valid], input: &[u8]) -> bool {
    let [kind, input @ ..] = input else { return false };
    let valid = &all[usize::from(kind >> 2) % all.len()];
    let is_replaced = kind & 1 == 1;
    if kind & 2 == 0 {
        let mut leaf = changed(&valid.leaf, is_replaced, input);
        leaf.resize(leaf.len().clamp(HEADER_BYTES, LEAF_BYTES_MAX).next_multiple_of(UNIT), 0);
        // Its units unchanged, with a valid checksum, so that a reader would continue with them.
        seal(&mut leaf, HERE);
        if !is_packed(&leaf) {
            read(&leaf);
            return false;
        }
        let Ok(len) = unpacked_len(&leaf, LEAF_BYTES_MAX) else { return false };
        let unpacked = fenced(len, |bytes| unpack(&leaf, valid.codec, bytes));
        unpacked.inspect(|leaf| read(leaf)).is_some()
    } else {
        let stored = changed(&valid.blob, is_replaced, input);
        let lens = [VALUE_BYTES, PIECE_BYTES_MAX, usize::from(*kind) * 7];
        let unpacked = lens.map(|len| fenced(len, |bytes| unpack_blob(&stored, valid.codec, bytes)));
        unpacked.iter().any(Option::is_some)
    }
}

#[test]
fn any_packed_bytes_are_refused_or_decoded_within_their_memory() {
    let all = [
        valid(Compression::Lz4),
        #[cfg(feature = "zstd")]
        valid(Compression::Zstd(3)),
    ];
    for kind in 0..8 {
        assert!(tried(&all, &[kind & !1]), "unchanged bytes are accepted");
    }
    let seconds = std::env::var("FOREBAY_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let (accepted, refused) = (Cell::new(0u64), Cell::new(0u64));
    let count = std::panic::AssertUnwindSafe((&accepted, &refused, &all));
    bolero::check!().with_test_time(Duration::from_secs(seconds)).with_max_len(INPUT_BYTES_MAX).for_each(
        move |input: &[u8]| {
            let (accepted, refused, all) = *count;
            let counter = if tried(all, input) { accepted } else { refused };
            counter.set(counter.get() + 1);
        },
    );
    println!("{} accepted, {} refused", accepted.get(), refused.get());
}
