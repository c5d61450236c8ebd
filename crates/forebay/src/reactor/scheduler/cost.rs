//! What an operation costs its device.

/// What it costs to have an operation, beside its bytes.
const OP_BYTES: u64 = 8 << 10;
/// The largest request that goes to a contended device; quiet devices do not count requests up to this size. Devices move
/// so much in 10 to 500 us, about what their least request takes: smaller pieces would only be more work.
pub(crate) const PIECE_BYTES: u32 = 64 << 10;
/// What a whole piece costs.
pub(crate) const PIECE_COST: u64 = cost(PIECE_BYTES);

/// The cost of an operation that moves so many bytes.
#[inline]
pub(crate) const fn cost(bytes: u32) -> u64 {
    OP_BYTES + bytes as u64
}
