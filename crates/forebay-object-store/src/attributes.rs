//! The attributes of an object: all that a store returns without reading its bytes.

use std::time::{Duration, SystemTime};

use forebay::{File, Metadata};

use crate::failure::{Failure, Result};

/// The nanoseconds beyond the last microsecond in the time of an object with attributes of the program's; other objects put by this
/// store have 0. So only reads of such objects make a call for them, and of one in a thousand files that others wrote. A multiple
/// of 100, which all file systems keep that keep microseconds. Tags have microseconds only.
pub(crate) const MARK_NS: u64 = 100;
/// The longest time before or after 1970 of an object: chrono, whose type object_store returns, panics beyond about 262,000 years, and
/// tmpfs and Btrfs keep any number of seconds.
const TIME_MAX: Duration = Duration::from_secs(8_000_000_000_000);
/// The prefix of the names of extended attributes.
const PREFIX: &str = "user.object-store.";

/// The attributes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) size_bytes: u64,
    /// At most [`TIME_MAX`] from 1970.
    pub(crate) modified: SystemTime,
    pub(crate) e_tag: String,
    /// Whether the file may have attributes of the program's.
    pub(crate) is_marked: bool,
}

/// Attributes of the program's, such as a content type: names and values.
pub(crate) type ProgramAttributes = Vec<(String, String)>;

impl Attributes {
    pub(crate) fn of(metadata: &Metadata) -> Attributes {
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let size_bytes = metadata.len();
        let since_epoch = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        // The same text as LocalFileSystem's, so that each may check the other's tags.
        let e_tag = format!("\"{:x}-{:x}-{size_bytes:x}\"", metadata.inode(), since_epoch.as_micros());
        let is_marked = u64::from(since_epoch.subsec_nanos()) % 1000 == MARK_NS;
        let modified = modified.clamp(SystemTime::UNIX_EPOCH - TIME_MAX, SystemTime::UNIX_EPOCH + TIME_MAX);
        Attributes { size_bytes, modified, e_tag, is_marked }
    }
}

/// Returns the time of a file's last change in microseconds since 1970, as in its tag; of one that lies too far ahead half of the largest
/// number, which can be counted on from.
pub(crate) fn micros(metadata: &Metadata) -> u64 {
    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let since_epoch = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since_epoch.as_micros()).map_or(u64::MAX / 2, |micros| micros.min(u64::MAX / 2))
}

/// Gives the file of the object `location` attributes of the program's.
///
/// # Errors
/// They do not fit, or the file system does not support them: the error names the first of these.
pub(crate) async fn set(file: &File, location: &str, attributes: &ProgramAttributes) -> Result<()> {
    for (name, value) in attributes {
        let set = file.set_attribute(format!("{PREFIX}{name}"), value.clone().into_bytes()).await;
        set.map_err(|error| {
            Failure::text(format!(
                "the attribute `{name}` of `{location}` is refused by the file system, which keeps it as an extended attribute of at \
                 most some KiB if it has these: {error}"
            ))
        })?;
    }
    Ok(())
}

/// Returns the attributes of the program's that a file has.
pub(crate) async fn get(file: &File) -> Result<ProgramAttributes> {
    let found = file.attributes().await?.into_iter();
    let own = found.filter_map(|(name, value)| {
        let name = name.strip_prefix(PREFIX)?.to_owned();
        Some((name, String::from_utf8(value).ok()?))
    });
    Ok(own.collect())
}
