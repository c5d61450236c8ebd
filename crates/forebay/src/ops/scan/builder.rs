//! The settings of a scan.

use std::collections::VecDeque;
use std::ops::{Bound, Range, RangeBounds};

use super::{ADAPTIVE_BUFFER, ADAPTIVE_DEPTH, Pace, RAMP_BUFFER, RAMP_DEPTH, Scan};
use crate::base::class::Class;
use crate::handle::file::File;
use crate::reactor::shard;

/// Settings of a scan, which reads a file from front to back; see [`File::scan`].
///
/// Without [`buffer`](ScanBuilder::buffer) and [`depth`](ScanBuilder::depth) the scan adapts. It begins with
/// two requests of 128 KiB and doubles the bytes in flight with every block taken, up to eight requests of
/// 512 KiB (4 MiB), which was the best of all cells measured. A consumer that is slower than the device makes
/// it reduce the depth.
///
/// A number outside of its setting's range counts as the nearest one in it.
#[derive(Clone, Debug)]
#[must_use = "a scan begins with start()"]
pub struct ScanBuilder {
    file: File,
    range: Range<u64>,
    buffer: Option<u32>,
    depth: Option<u32>,
    class: Option<Class>,
}

impl ScanBuilder {
    pub(crate) fn new(file: File) -> ScanBuilder {
        ScanBuilder { file, range: 0..u64::MAX, buffer: None, depth: None, class: None }
    }

    /// Sets the part of the file to read. Default: all of it. It may begin anywhere. The end is cut to the
    /// file's end, which is also the end of an open range (`4096..`). A scan gets the file's length once
    /// anyway, so an open end costs nothing.
    pub fn range(mut self, range: impl RangeBounds<u64>) -> ScanBuilder {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        self.range = start..end;
        self
    }

    /// Sets the bytes of one request, 4 KiB to 64 MiB, rounded up to whole pages; the scan then does not
    /// adapt.
    pub fn buffer(mut self, bytes: usize) -> ScanBuilder {
        let pages = bytes.clamp(4096, 64 << 20).next_multiple_of(4096);
        self.buffer = Some(pages as u32);
        self
    }

    /// Sets the requests in flight, 1 to 1,024; the scan then does not adapt.
    pub fn depth(mut self, requests: usize) -> ScanBuilder {
        self.depth = Some(requests.clamp(1, 1024) as u32);
        self
    }

    /// Sets the class. Default: that of the task that calls `start`, [`Class::DEFAULT`] outside of shards.
    pub fn class(mut self, class: Class) -> ScanBuilder {
        self.class = Some(class);
        self
    }

    /// Returns the scan; its first requests are sent when the first block is requested.
    pub fn start(self) -> Scan {
        let fixed = self.buffer.is_some() || self.depth.is_some();
        let pace = if fixed {
            Pace {
                buffer: self.buffer.unwrap_or(ADAPTIVE_BUFFER),
                depth: self.depth.unwrap_or(ADAPTIVE_DEPTH),
                adaptive: false,
            }
        } else {
            Pace { buffer: RAMP_BUFFER, depth: RAMP_DEPTH, adaptive: true }
        };
        Scan {
            core: self.file.core().clone(),
            class: self.class.unwrap_or_else(shard::class),
            next: self.range.start,
            end: self.range.end,
            length: None,
            asked_length: false,
            pace,
            slower: 0,
            in_flight: VecDeque::with_capacity(ADAPTIVE_DEPTH as usize),
            in_flight_bytes: 0,
            in_flight_bytes_peak: 0,
            retreat: None,
            alone: false,
            over: false,
            file: self.file,
        }
    }
}
