//! The range of random offsets.

use super::job::RandomRow;
use super::plan::Sizes;
use super::units::{parse_bytes, show_bytes};
use forebay_report::failure::Failure;

/// The fewest blocks of a span. Fewer would measure single places of the device.
const BLOCKS_MIN: u64 = 16;

/// The range of the offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Span {
    TenthOfMemory,
    WholeFile,
}

impl Span {
    pub(super) const ALL: [Self; 2] = [Self::TenthOfMemory, Self::WholeFile];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::TenthOfMemory => "10% of memory",
            Self::WholeFile => "whole file",
        }
    }

    /// Returns the size of the span, in whole blocks.
    pub(super) const fn bytes(self, memory_bytes: u64, file_bytes: u64, block_bytes: u64) -> u64 {
        let bytes = match self {
            Self::TenthOfMemory => memory_bytes / 10,
            Self::WholeFile => file_bytes,
        };
        bytes / block_bytes * block_bytes
    }

    /// Returns the rows `named`, or the usual ones of this span when none is.
    pub(super) fn rows(self, named: &[String]) -> Vec<RandomRow> {
        RandomRow::ALL
            .into_iter()
            .filter(|row| match self {
                _ if !named.is_empty() => named.iter().any(|name| name == row.name()),
                // The comparisons of ways to read directly have the same result on every span.
                Self::TenthOfMemory => !matches!(
                    row,
                    RandomRow::DirectPolled
                        | RandomRow::DirectCommands
                        | RandomRow::DirectTokio
                        | RandomRow::DirectPread
                ),
                Self::WholeFile => true,
            })
            .collect()
    }
}

/// Checks that both spans have enough blocks.
///
/// # Errors
/// [`Failure::Unsuitable`], with the remedy.
pub(super) fn check_spans(sizes: &Sizes, block_bytes: u64) -> Result<(), Failure> {
    for span in Span::ALL {
        let bytes = span.bytes(sizes.memory_bytes, sizes.file_bytes, block_bytes);
        if bytes < BLOCKS_MIN * block_bytes {
            return Err(Failure::Unsuitable(format!(
                "a span of {} ({}) is too small for reads of {}: it must hold at least {BLOCKS_MIN} of them; \
                 give a larger --memory and --size, or a smaller --block",
                show_bytes(bytes),
                span.name(),
                show_bytes(block_bytes)
            )));
        }
    }
    Ok(())
}

/// Parses the bytes of a random read.
///
/// # Errors
/// Fails with a sentence that names the valid values.
pub(super) fn parse_block(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if bytes.is_multiple_of(4096) && bytes <= 64 << 20 {
        Ok(bytes)
    } else {
        Err(format!("{text:?} cannot be a block: direct reads need a multiple of 4KiB, at most 64MiB"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_whole_blocks_and_too_small_ones_are_refused() {
        assert_eq!(Span::TenthOfMemory.bytes(100_000, 1 << 30, 4096), 8192);
        assert_eq!(Span::WholeFile.bytes(100_000, 10_000, 4096), 8192);
        let sizes = Sizes { memory_bytes: 64 << 20, file_bytes: 256 << 20, limit_bytes: None };
        assert!(check_spans(&sizes, 4096).is_ok());
        let error = check_spans(&sizes, 1 << 20).expect_err("6 blocks");
        assert!(error.to_string().contains("--block"), "{error}");
        assert_eq!(error.code(), 4);
    }

    #[test]
    fn blocks_are_checked() {
        assert_eq!(parse_block("4KiB"), Ok(4096));
        assert!(parse_block("512").is_err());
        assert!(parse_block("1GiB").is_err());
    }
}
