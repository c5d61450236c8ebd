//! Packed leaves and packed blobs: the compressed form of a leaf or of a long value.
//!
//! A packed leaf has the header of a node with a count of 0, which no plain leaf has. Unpacking it gives the
//! bytes of a plain leaf up to its last record. A packed blob is a row of pieces, each compressed by itself,
//! so that neither a codec nor a writer holds more than one piece.

use super::codec::{Codec, Encoder, FRONT_BYTES, PIECE_BYTES_MAX};
use super::read::{u16_at, u32_at};
use super::{HEADER_BYTES, Identity, NODE_UNITS_MAX, SLOT_BYTES, UNIT, Wrong, seal};

/// Offset of the count, at the start of a leaf's compressed bytes.
const COUNT_AT: usize = 14;
const END_AT: usize = 16;
const CODEC_AT: usize = HEADER_BYTES;
const LEN_AT: usize = HEADER_BYTES + 2;
/// Bytes of a packed leaf before its compressed bytes.
pub(crate) const PACKED_HEADER_BYTES: usize = HEADER_BYTES + 4;
/// Maximum bytes of a leaf that is packed.
pub(crate) const LEAF_BYTES_MAX: usize = NODE_UNITS_MAX as usize * UNIT;
/// The bit of a piece's length that says that the piece is stored as it is.
const PLAIN_PIECE: u32 = 1 << 31;

/// Returns whether a leaf, which was checked, is packed.
#[inline]
pub(crate) fn is_packed(leaf: &[u8]) -> bool {
    u16_at(leaf, COUNT_AT) == 0
}

/// Writes a packed leaf into `node`, zeros of whole units. `leaf` is the plain leaf, `image` its bytes from
/// the count on, encoded. Returns `false` and writes nothing if it does not fit.
pub(crate) fn pack(node: &mut [u8], identity: Identity, codec: Codec, leaf: &[u8], image: &[u8]) -> bool {
    let end = PACKED_HEADER_BYTES + image.len();
    if end > node.len() || leaf.len() > LEAF_BYTES_MAX || node.len() > LEAF_BYTES_MAX {
        return false;
    }
    node[END_AT..END_AT + 2].copy_from_slice(&(end as u16).to_le_bytes());
    node[CODEC_AT] = codec as u8;
    node[LEN_AT..LEN_AT + 2].copy_from_slice(&(leaf.len() as u16).to_le_bytes());
    node[PACKED_HEADER_BYTES..end].copy_from_slice(image);
    seal(node, identity);
    debug_assert!(is_read_back(node, codec, leaf), "a packed leaf is read back as it was written");
    true
}

/// Returns whether a packed leaf unpacks to this leaf.
fn is_read_back(node: &[u8], codec: Codec, leaf: &[u8]) -> bool {
    let mut unpacked = vec![0; unpacked_len(node, LEAF_BYTES_MAX).unwrap_or(0)];
    unpack(node, codec, &mut unpacked).is_ok() && image(&unpacked) == image(leaf)
}

/// Returns the part of a plain leaf that is compressed.
pub(crate) fn image(leaf: &[u8]) -> &[u8] {
    leaf.get(COUNT_AT..).unwrap_or_default()
}

/// Returns the length of a packed leaf when it is unpacked, which is at most `bytes_max`.
pub(crate) fn unpacked_len(node: &[u8], bytes_max: usize) -> Result<usize, Wrong> {
    let len = usize::from(u16_at(node, LEN_AT));
    if (HEADER_BYTES + SLOT_BYTES..=bytes_max).contains(&len) {
        Ok(len)
    } else {
        Err("a compressed leaf's length is invalid")
    }
}

/// Unpacks a leaf that was checked into `leaf`, which has its [`unpacked_len`]. The result has the identity of the packed leaf, but
/// no checksum.
pub(crate) fn unpack(node: &[u8], codec: Codec, leaf: &mut [u8]) -> Result<(), Wrong> {
    const WRONG: Wrong = "a compressed leaf's header is invalid";
    let end = usize::from(u16_at(node, END_AT));
    let image = node.get(PACKED_HEADER_BYTES..end).ok_or(WRONG)?;
    let is_padded = node[end..].iter().all(|&byte| byte == 0);
    if !is_padded || node.get(CODEC_AT..LEN_AT) != Some(&[codec as u8, 0]) {
        return Err(WRONG);
    }
    let (head, rest) = leaf.split_at_mut_checked(COUNT_AT).ok_or(WRONG)?;
    head.copy_from_slice(node.get(..COUNT_AT).ok_or(WRONG)?);
    codec.decode(image, rest)?;
    // A plain leaf's header has its length as well, and a count.
    if usize::from(u16_at(leaf, END_AT)) == leaf.len() && !is_packed(leaf) { Ok(()) } else { Err(WRONG) }
}

/// Returns a piece of up to [`PIECE_BYTES_MAX`] bytes as it is stored in a packed blob.
pub(crate) fn pack_piece<'e>(encoder: &'e mut Encoder, piece: &[u8]) -> &'e [u8] {
    let (len, plain) = match encoder.encode(piece).filter(|len| *len < piece.len()) {
        Some(len) => (len, 0),
        None => {
            encoder.take_plain(piece);
            (piece.len(), PLAIN_PIECE)
        }
    };
    // A piece has less than 64 KiB.
    encoder.encoded_behind((len as u32 | plain).to_le_bytes(), len)
}

/// Unpacks a blob, whose checksum was right, into exactly `value`.
pub(crate) fn unpack_blob(mut stored: &[u8], codec: Codec, value: &mut [u8]) -> Result<(), Wrong> {
    const WRONG: Wrong = "a compressed value's pieces are invalid";
    for piece in value.chunks_mut(PIECE_BYTES_MAX) {
        let (_, behind) = stored.split_at_checked(FRONT_BYTES).ok_or(WRONG)?;
        let word = u32_at(stored, 0);
        let (bytes, rest) = behind.split_at_checked((word & !PLAIN_PIECE) as usize).ok_or(WRONG)?;
        match word & PLAIN_PIECE {
            0 => codec.decode(bytes, piece)?,
            _ if bytes.len() == piece.len() => piece.copy_from_slice(bytes),
            _ => return Err(WRONG),
        }
        stored = rest;
    }
    if stored.is_empty() { Ok(()) } else { Err(WRONG) }
}
