//! The attributes of an object: all that a store returns without reading it.

use std::time::{Duration, SystemTime};

use forebay::Metadata;

/// The attributes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) size_bytes: u64,
    pub(crate) modified: SystemTime,
    pub(crate) e_tag: String,
}

impl Attributes {
    pub(crate) fn of(metadata: &Metadata) -> Attributes {
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let size_bytes = metadata.len();
        let since_epoch = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        // The same text as LocalFileSystem's, so that one may check what the other has returned.
        let e_tag = format!("\"{:x}-{:x}-{size_bytes:x}\"", metadata.inode(), since_epoch.as_micros());
        Attributes { size_bytes, modified, e_tag }
    }
}
