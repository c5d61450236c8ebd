//! Human-readable results: a summary for the terminal, one HTML page, and the conclusions on both.

pub mod advice;
mod charts;
pub mod columns;
pub mod embed;
pub mod facts;
pub(crate) mod gates;
mod headline;
pub mod histogram;
pub mod html;
pub mod knee;
pub mod modes;
pub mod noise;
mod place;
pub mod questions;
mod sections;
pub mod summary;
mod svg;
pub mod view;
pub mod waits;

pub use embed::PAGE_BYTES_MAX;

/// Mark by which the program recognizes its own pages.
pub const PAGE_MARK: &str = "<meta name=\"generator\" content=\"forebay\">";
