//! From an object's location to its file, by the rules of object_store's `LocalFileSystem`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};

/// Returns the path of a file or directory below `root`. A location never has a segment `.` or `..`, and no control characters:
/// object_store's `Path` refuses or encodes them.
pub(crate) fn below(root: &Path, location: &str) -> PathBuf {
    if location.is_empty() { root.to_path_buf() } else { root.join(location) }
}

/// Returns the path of an object.
///
/// # Errors
/// The location is that of the root, or the name of a staged file.
pub(crate) fn object(root: &Path, location: &str) -> Result<PathBuf> {
    if !may_be_object(location) {
        return Err(Failure::text(format!(
            "the location `{location}` cannot be that of an object: a name that ends in # and digits belongs to a file that is \
             being written, and the root is a directory; choose another name"
        )));
    }
    Ok(below(root, location))
}

/// Returns whether an object may have this location: its last segment is a name, and not the name of a staged file.
pub(crate) fn may_be_object(location: &str) -> bool {
    let name = location.rsplit('/').next().unwrap_or_default();
    match name.split_once('#') {
        _ if name.is_empty() => false,
        Some((_, suffix)) => suffix.is_empty() || !suffix.bytes().all(|byte| byte.is_ascii_digit()),
        None => true,
    }
}

/// Returns the name under which a file is written before it gets the name `path`; `number` makes it a free one. It has only the part of
/// the object's name before a `#`, because it would be an object's name otherwise, and only as much of it as fits.
pub(crate) fn staged(path: &Path, number: u64) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let suffix = format!("#{number}");
    let stem = name.split('#').next().unwrap_or_default();
    let most = stem.len().min(NAME_BYTES_MAX - suffix.len());
    let fits = (0..=most).rev().find(|end| stem.is_char_boundary(*end)).unwrap_or(0);
    path.with_file_name(format!("{}{suffix}", &stem[..fits]))
}

/// Returns the name of the file of a lock. It has the form of a staged name, so neither this store nor `LocalFileSystem` lists it
/// as an object; the zero makes it the staged name of no object.
pub(crate) fn lock(number: u64) -> String {
    format!("{LOCKS}{number}")
}

/// The longest name of a file on Linux.
const NAME_BYTES_MAX: usize = 255;

/// The prefix of the names of lock files.
const LOCKS: &str = ".forebay#0";

/// Returns whether a name is that of a staged file.
pub(crate) fn is_staged(name: &str) -> bool {
    !may_be_object(name) && !name.starts_with(LOCKS)
}

/// Returns the location of a name in the directory at `parent`.
///
/// # Errors
/// The name is not UTF-8, so that no location can have it.
pub(crate) fn child(parent: &str, name: &OsStr) -> Result<String> {
    let Some(text) = name.to_str() else {
        return Err(Failure::text(format!(
            "the name {name:?} in `{parent}/` is not UTF-8, so it is not an object's; rename the file, or move it out of the store"
        )));
    };
    Ok(if parent.is_empty() { text.to_string() } else { format!("{parent}/{text}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_names_are_no_objects() {
        for (location, expected) in [
            ("a", true),
            ("", false),
            ("a#", true),
            ("a#1", false),
            ("a#123", false),
            ("a#1x", true),
            ("a#1#2", true),
            ("a#x#2", true),
            ("#7", false),
            ("a#1/b", true),
            ("a#1/b#2", false),
            ("a/😁#3", false),
            ("a/b#😁4", true),
        ] {
            assert_eq!(may_be_object(location), expected, "{location}");
        }
        assert_eq!(staged(Path::new("/r/a/b"), 12), Path::new("/r/a/b#12"));
        assert!(!may_be_object(&lock(7)) && !is_staged(&lock(7)) && is_staged("a#7") && !is_staged("a#x"));
    }

    /// The staged file of `a#b` had the name of an object, `a#b#1`, and that of a name of 254 bytes had none.
    #[test]
    fn every_object_has_a_staged_name() {
        for name in ["a#b", "#b", "a#", ".forebay#x", "x".repeat(255).as_str(), "ü".repeat(127).as_str()] {
            for number in [0, 1, u64::MAX] {
                let staged = staged(&Path::new("d").join(name), number).display().to_string();
                assert!(is_staged(&staged) && staged.starts_with("d/"), "{staged}");
                assert!(staged.len() <= "d/".len() + NAME_BYTES_MAX, "{staged}");
            }
        }
    }

    #[test]
    fn locations_are_names_below_the_root() {
        let root = Path::new("/r");
        assert_eq!(below(root, ""), root);
        assert_eq!(below(root, "a/b%2E c"), Path::new("/r/a/b%2E c"));
        assert_eq!(child("", OsStr::new("a")).unwrap(), "a");
        assert_eq!(child("a/b", OsStr::new("c")).unwrap(), "a/b/c");
    }
}
