//! The codecs of compressed leaves and values.

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

use super::{UNIT, Wrong};
use crate::error::Result;
use crate::options::Compression;

/// The levels of [`Compression::Zstd`]. Higher levels would block a shard for milliseconds per leaf.
#[cfg(feature = "zstd")]
pub(crate) const ZSTD_LEVELS: std::ops::RangeInclusive<u8> = 1..=9;
/// The usual level.
#[cfg(feature = "zstd")]
const ZSTD_LEVEL: u8 = 3;
/// Maximum bytes compressed together: below 64 KiB, where LZ4's table has entries of 2 bytes.
pub(crate) const PIECE_BYTES_MAX: usize = 15 * UNIT;

/// A codec, with its number in the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    Lz4 = 1,
    Zstd = 2,
}

impl Codec {
    /// Returns the codec with a number of the format.
    pub(crate) fn of_number(number: u8) -> Option<Codec> {
        [Codec::Lz4, Codec::Zstd].into_iter().find(|codec| *codec as u8 == number)
    }

    /// Returns the codec of a compression.
    pub(crate) fn of(compression: Compression) -> Option<Codec> {
        match compression {
            Compression::None => None,
            Compression::Lz4 => Some(Codec::Lz4),
            #[cfg(feature = "zstd")]
            Compression::Zstd(_) => Some(Codec::Zstd),
        }
    }

    /// Returns the compression that uses this codec, at its usual level.
    pub(crate) fn compression(self) -> Compression {
        match self {
            Codec::Lz4 => Compression::Lz4,
            #[cfg(feature = "zstd")]
            Codec::Zstd => Compression::Zstd(ZSTD_LEVEL),
            // Such a table is not opened.
            #[cfg(not(feature = "zstd"))]
            Codec::Zstd => Compression::None,
        }
    }

    /// Returns the feature of this crate that a build needs to decode it, if this build lacks it.
    pub(crate) fn missing_feature(self) -> Option<&'static str> {
        (self == Codec::Zstd && (!cfg!(feature = "zstd") || forebay::_is_broken!(ZstdMissing)))
            .then_some("zstd")
    }

    /// Decodes `stored` into exactly `bytes`. Never writes elsewhere, for any `stored`.
    pub(crate) fn decode(self, stored: &[u8], bytes: &mut [u8]) -> Result<(), Wrong> {
        let len = match self {
            Codec::Lz4 => decompress_into(stored, bytes).ok(),
            Codec::Zstd => zstd_decode(stored, bytes),
        };
        if len == Some(bytes.len()) { Ok(()) } else { Err("compressed bytes that cannot be decoded") }
    }
}

#[cfg(feature = "zstd")]
fn zstd_decode(stored: &[u8], bytes: &mut [u8]) -> Option<usize> {
    use std::sync::{Mutex, PoisonError, TryLockError};
    use zstd::bulk::Decompressor;

    /// Idle contexts. A context has 100 KB of memory, and most calls should find one ready.
    static IDLE: Mutex<Vec<Decompressor<'static>>> = Mutex::new(Vec::new());
    const IDLE_MAX: usize = 8;

    // A thread that holds the lock only moves a context; others make one rather than wait.
    let idle = || match IDLE.try_lock() {
        Ok(idle) => Some(idle),
        Err(TryLockError::Poisoned(poisoned)) => Some(PoisonError::into_inner(poisoned)),
        Err(TryLockError::WouldBlock) => None,
    };
    let kept = idle().and_then(|mut idle| idle.pop());
    let mut context = match kept {
        Some(context) => context,
        None => Decompressor::new().ok()?,
    };
    let len = context.decompress_to_buffer(stored, bytes).ok();
    if let Some(mut idle) = idle()
        && idle.len() < IDLE_MAX
    {
        idle.push(context);
    }
    len
}

#[cfg(not(feature = "zstd"))]
fn zstd_decode(_: &[u8], _: &mut [u8]) -> Option<usize> {
    None
}

/// Compresses pieces of a table, with memory that is used again.
pub(crate) struct Encoder {
    how: How,
    /// [`FRONT_BYTES`], then the piece encoded last.
    out: Vec<u8>,
}

/// Bytes before an encoded piece, for its header.
pub(crate) const FRONT_BYTES: usize = 4;

enum How {
    Lz4(Box<CompressTable>),
    #[cfg(feature = "zstd")]
    Zstd(zstd::bulk::Compressor<'static>),
}

impl Encoder {
    /// Returns `None` for [`Compression::None`].
    ///
    /// # Errors
    /// The codec's, if it lacks memory.
    pub(crate) fn new(compression: Compression) -> Result<Option<Encoder>> {
        let how = match compression {
            Compression::None => return Ok(None),
            Compression::Lz4 => How::Lz4(Box::new(CompressTable::small())),
            #[cfg(feature = "zstd")]
            Compression::Zstd(level) => {
                let made = zstd::bulk::Compressor::new(i32::from(level));
                let failed = |error: std::io::Error| {
                    let text = format!("cannot compress with zstd at level {level}: {error}");
                    crate::error::Error::new(crate::error::ErrorKind::InvalidInput, text)
                };
                How::Zstd(made.map_err(failed)?)
            }
        };
        Ok(Some(Encoder { how, out: Vec::new() }))
    }

    pub(crate) fn codec(&self) -> Codec {
        match self.how {
            How::Lz4(_) => Codec::Lz4,
            #[cfg(feature = "zstd")]
            How::Zstd(_) => Codec::Zstd,
        }
    }

    /// Returns the bytes of memory that an encoder holds at most.
    pub(crate) fn memory_bytes(compression: Compression) -> u64 {
        let (context, bound) = match compression {
            Compression::None => return 0,
            Compression::Lz4 => (8 << 10, get_maximum_output_size(PIECE_BYTES_MAX)),
            // Of pieces of less than 128 KiB: tables of up to 2^17 entries of 4 bytes, and buffers.
            #[cfg(feature = "zstd")]
            Compression::Zstd(_) => (896 << 10, zstd::zstd_safe::compress_bound(PIECE_BYTES_MAX)),
        };
        context + bound as u64
    }

    /// Compresses a piece of up to [`PIECE_BYTES_MAX`] bytes and returns the length of the result. Returns
    /// `None` if that fails, as it does when the codec has no memory.
    pub(crate) fn encode(&mut self, piece: &[u8]) -> Option<usize> {
        debug_assert!(piece.len() <= PIECE_BYTES_MAX, "pieces are short");
        let bound = match self.how {
            How::Lz4(_) => get_maximum_output_size(piece.len()),
            #[cfg(feature = "zstd")]
            How::Zstd(_) => zstd::zstd_safe::compress_bound(piece.len()),
        };
        if self.out.len() < FRONT_BYTES + bound {
            self.out.resize(FRONT_BYTES + bound, 0);
        }
        let out = self.out.get_mut(FRONT_BYTES..)?;
        match &mut self.how {
            How::Lz4(table) => compress_into_with_table(piece, out, table).ok(),
            #[cfg(feature = "zstd")]
            How::Zstd(compressor) => compressor.compress_to_buffer(piece, out).ok(),
        }
    }

    /// Returns the first `len` bytes of the piece encoded last.
    pub(crate) fn encoded(&self, len: usize) -> &[u8] {
        self.out.get(FRONT_BYTES..FRONT_BYTES + len).unwrap_or_default()
    }

    /// As [`encoded`](Self::encoded), with `front` before them.
    pub(crate) fn encoded_behind(&mut self, front: [u8; FRONT_BYTES], len: usize) -> &[u8] {
        match self.out.get_mut(..FRONT_BYTES + len) {
            Some(out) => {
                out[..FRONT_BYTES].copy_from_slice(&front);
                out
            }
            None => &[],
        }
    }

    /// Uses `piece` as the piece encoded last.
    pub(crate) fn take_plain(&mut self, piece: &[u8]) {
        self.out.truncate(FRONT_BYTES);
        self.out.resize(FRONT_BYTES, 0);
        self.out.extend_from_slice(piece);
    }
}
