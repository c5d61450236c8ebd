//! Keys and values as text and as lines of JSON.

use std::fmt::Write as _;

use serde_json::Map;

use forebay_report::failure::Failure;

pub(super) use crate::output::hex;

/// Decodes a key from the command line.
pub(super) fn argument(text: &str, is_hex: bool) -> Result<Vec<u8>, Failure> {
    if is_hex {
        unhex(text).ok_or_else(|| {
            Failure::Usage(format!("{text:?} is not hexadecimal: two digits for each byte, nothing between"))
        })
    } else {
        Ok(text.as_bytes().to_vec())
    }
}

/// Decodes the output of [`hex`]; returns `None` for any other text.
pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some((digit(high)? * 16 + digit(low)?) as u8));
    rest.is_empty().then(|| bytes.collect()).flatten()
}

/// Formats key, tab and value as one line. A backslash becomes `\\`. `\t`, `\n`, `\r` and `\xNN` stand for
/// characters that would not show, and for bytes that are not UTF-8.
pub(super) fn line(key: &[u8], value: Option<&[u8]>) -> String {
    let mut line = String::with_capacity(key.len() + value.map_or(0, <[u8]>::len) + 2);
    escape(&mut line, key);
    if let Some(value) = value {
        line.push('\t');
        escape(&mut line, value);
    }
    line.push('\n');
    line
}

/// Formats an entry as one line of JSON, the input of `kv load`.
pub(super) fn json(key: &[u8], value: Option<&[u8]>) -> serde_json::Result<String> {
    let mut line = Map::new();
    for (name, bytes) in [("key", Some(key)), ("value", value)] {
        let Some(bytes) = bytes else { continue };
        match std::str::from_utf8(bytes) {
            Ok(text) => line.insert(name.to_owned(), text.into()),
            Err(_) => line.insert(format!("{name}_hex"), hex(bytes).into()),
        };
    }
    serde_json::to_string(&line).map(|text| text + "\n")
}

fn escape(line: &mut String, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        for each in chunk.valid().chars() {
            match each {
                '\\' => line.push_str("\\\\"),
                '\t' => line.push_str("\\t"),
                '\n' => line.push_str("\\n"),
                '\r' => line.push_str("\\r"),
                other if other.is_ascii_control() => {
                    let _ = write!(line, "\\x{:02x}", u32::from(other));
                }
                other => line.push(other),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(line, "\\x{byte:02x}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&all)), Some(all));
        assert_eq!(unhex("fF"), Some(vec![255]));
        for text in ["f", "0g", "é", "0 "] {
            assert_eq!(unhex(text), None, "{text}");
        }
    }

    #[test]
    fn lines_show_everything() {
        assert_eq!(line(b"a", Some("é".as_bytes())), "a\té\n");
        assert_eq!(line(b"a\tb\\", None), "a\\tb\\\\\n");
        assert_eq!(line(b"\x00", Some(b"\xff\n")), "\\x00\t\\xff\\n\n");
    }
}
