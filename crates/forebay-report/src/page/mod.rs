//! Human-readable results: a summary for the terminal, one HTML page, and the conclusions on both; and the charts of sweeps.

pub mod advice;
mod beside;
mod charts;
pub mod facts;
pub(crate) mod gates;
mod headline;
pub mod histogram;
pub mod html;
pub mod knee;
pub mod noise;
pub mod questions;
pub mod summary;
mod svg;
pub mod sweep;

/// Mark by which the program recognizes its own pages.
pub const PAGE_MARK: &str = "<meta name=\"generator\" content=\"forebay\">";
/// Maximum size of a page.
pub const PAGE_BYTES_MAX: usize = 1_000_000;
