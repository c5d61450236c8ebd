//! What is made of many operations of one file.

use std::ops::Range;

use super::File;
use crate::ops::append::AppendBuilder;
use crate::ops::collective::CollectiveBuilder;
use crate::ops::combine::CombineBuilder;
use crate::ops::read_many::ReadMany;
use crate::ops::scan::ScanBuilder;

impl File {
    /// Many ranges in one message: sorted, merged where that pays, all in flight at once.
    pub fn read_many(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> ReadMany {
        ReadMany::new(self, ranges.into_iter().collect())
    }

    /// Reads the file, or a range of it, from front to back with read-ahead.
    pub fn scan(&self) -> ScanBuilder {
        ScanBuilder::new(self.clone())
    }

    /// Writes from front to back, with any sizes, behind the caller's back.
    pub fn append(&self) -> AppendBuilder {
        AppendBuilder::new(self.clone())
    }

    /// Writes small pieces at any offsets, gathered in memory and merged into large writes.
    pub fn combine(&self) -> CombineBuilder {
        CombineBuilder::new(self.clone())
    }

    /// Writes the pieces that several participants hold of this file together, in large writes.
    pub fn collective(&self, participants: usize) -> CollectiveBuilder {
        CollectiveBuilder::new(self.clone(), participants)
    }
}
