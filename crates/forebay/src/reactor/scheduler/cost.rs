//! The cost of an operation for its device.

/// The fixed cost of an operation, in addition to its bytes.
const OP_BYTES: u64 = 8 << 10;
/// The largest request to a contended device. Quiet devices do not count requests up to this size. A device moves this many bytes
/// in 10 to 500 us, about the time of its smallest request; smaller pieces would only add work.
pub(crate) const PIECE_BYTES: u32 = 64 << 10;
/// The cost of a whole piece.
pub(crate) const PIECE_COST: u64 = cost(PIECE_BYTES);

/// Returns the cost of an operation that moves `bytes` bytes.
#[inline]
pub(crate) const fn cost(bytes: u32) -> u64 {
    OP_BYTES + bytes as u64
}
