//! The path of bytes between a file and memory.

/// The I/O mode of a file: whether its bytes bypass the page cache.
///
/// Files opened in several modes see the same bytes, but not while direct and buffered writes to the same
/// range are in flight together: Linux then cannot drop the cached pages and fails the next sync with `EIO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Past the page cache (`O_DIRECT`): the device's speed, memory of a few MB, nothing cached.
    #[default]
    Direct,
    /// Through the page cache: right for bytes that are read again and again and fit in memory.
    Buffered,
    /// Through the page cache, which drops the pages after use (`RWF_DONTCACHE`, Linux 6.14; else advice after each read): any
    /// alignment, without evicting pages of others.
    Uncached,
    /// Reads cached bytes from the page cache, the rest as with `Direct`: right where it is unknown whether files are in memory. A
    /// range that is read again is kept there while memory is free; it evicts nothing. See
    /// [`Open::adaptive`](crate::Open::adaptive) for the rule.
    Adaptive,
}
