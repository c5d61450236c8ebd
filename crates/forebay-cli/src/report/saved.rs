//! A result that was saved as JSON before.

use std::fs;
use std::path::Path;

use crate::exit::Failure;
use crate::result::{Report, SCHEMA};

/// No result is larger; what is, is another file.
const BYTES_MAX: u64 = 256 << 20;

/// Reads the result in `path`.
///
/// # Errors
/// [`Failure::Path`] when the file cannot be read; [`Failure::Unsuitable`] when it holds no result, or one of another
/// version of the schema.
pub(crate) fn read(path: &Path) -> Result<Report, Failure> {
    let name = path.display();
    let metadata = fs::metadata(path).map_err(|error| Failure::missing(path, &error))?;
    if !metadata.is_file() {
        return Err(Failure::Path(format!(
            "{name} is no regular file: name a JSON file that this program wrote"
        )));
    }
    if metadata.len() > BYTES_MAX {
        return Err(Failure::Unsuitable(format!("{name} is larger than any result of this program")));
    }
    let text = fs::read_to_string(path).map_err(|error| Failure::missing(path, &error))?;
    let value: serde_json::Value = serde_json::from_str(&text)
        .map_err(|error| Failure::Unsuitable(format!("{name} is not JSON: {error}")))?;
    match value.get("schema").and_then(serde_json::Value::as_u64) {
        Some(version) if version == u64::from(SCHEMA) => {}
        Some(version) => {
            return Err(Failure::Unsuitable(format!(
                "{name} has version {version} of the schema, and this program reads version {SCHEMA}: use the program that \
                 wrote it ({})",
                value.get("forebay").and_then(serde_json::Value::as_str).unwrap_or("it does not say which")
            )));
        }
        None => {
            return Err(Failure::Unsuitable(format!(
                "{name} is no result of this program: it has no field `schema`"
            )));
        }
    }
    serde_json::from_value(value)
        .map_err(|error| Failure::Unsuitable(format!("{name} is no result that can be shown: {error}")))
}
