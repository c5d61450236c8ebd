//! Names: the files in a store's directory, and the keyspace that every store has.

use std::path::{Path, PathBuf};

pub(crate) const MANIFEST: &str = "manifest";
pub(crate) const LOG: &str = "log";
pub(crate) const TABLES: &str = "tables";
/// The file that marks an unfinished checkpoint.
pub(crate) const UNFINISHED: &str = "UNFINISHED";
/// The keyspace that every store has.
pub(crate) const DEFAULT: &str = "default";
/// Segment size of the manifest's log; segments are written through once.
pub(crate) const MANIFEST_BYTES: u64 = 256 << 10;

/// Returns the directory of the tables.
pub(crate) fn tables_dir(dir: &Path) -> PathBuf {
    dir.join(TABLES)
}

/// Returns the path of a table's file.
pub(crate) fn table_path(dir: &Path, id: u32) -> PathBuf {
    tables_dir(dir).join(table_name(id))
}

/// Returns the name of a table's file.
pub(crate) fn table_name(id: u32) -> String {
    format!("{id:08}.fkv")
}

/// Returns the number of the table whose file has this name.
pub(crate) fn table_id(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".fkv")?;
    let is_number = digits.len() >= 8 && digits.bytes().all(|byte| byte.is_ascii_digit());
    // Reject other spellings of the same number.
    digits.parse().ok().filter(|id| is_number && format!("{id:08}") == digits)
}
