//! Messages as JSON, in the format of grpc-gateway in etcd. The texts of refusals are those of Go's package protojson.

use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{alphabet, prelude::BASE64_STANDARD};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value};
use serde_json::value::RawValue;

/// How deep messages may be in one another. prost reads no more.
const DEPTH_MAX: usize = 100;
/// The longest whole number that is looked at, of a `uint64`.
const DIGITS_MAX: usize = 20;

/// Returns the first value of a text and its end; `None` for a text of spaces.
///
/// # Errors
/// The text does not start with a value or an incomplete value.
pub(super) fn first(text: &[u8]) -> Result<Option<(&RawValue, usize)>, serde_json::Error> {
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<&RawValue>();
    let value = values.next().transpose()?;
    Ok(value.map(|value| (value, values.byte_offset())))
}

/// Finds the end of a value in a text that arrives in parts, and scans each byte once.
#[derive(Debug, Default)]
pub(super) struct Scan {
    seen: usize,
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
}

impl Scan {
    /// Returns whether the text starts with a whole object, or with something else than an object. The text is that of the last
    /// call, with more appended.
    pub(super) fn has_value(&mut self, text: &[u8]) -> bool {
        while let Some(byte) = text.get(self.seen) {
            self.seen += 1;
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_in_string => self.is_escaped = true,
                b'"' if self.depth > 0 => self.is_in_string = !self.is_in_string,
                _ if self.is_in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth > 1 => self.depth -= 1,
                b'}' | b']' => return true,
                b' ' | b'\t' | b'\n' | b'\r' => {}
                _ if self.depth == 0 => return true,
                _ => {}
            }
        }
        false
    }
}

/// Reads a message. Names of no field are passed over, with their values.
///
/// # Errors
/// The place and the kind of the fault.
pub(super) fn read(text: &RawValue, of: MessageDescriptor) -> Result<DynamicMessage, String> {
    Reader { whole: text.get(), at: 0 }.message(of, DEPTH_MAX)
}

/// Reads a text, which is JSON, from its start to its end, and each byte once: the end of a message is found as its fields are read.
struct Reader<'a> {
    /// The text of the outermost message, in which faults have their places.
    whole: &'a str,
    /// The place of the next byte.
    at: usize,
}

impl<'a> Reader<'a> {
    /// Returns the next byte that is not a space.
    fn peek(&mut self) -> Option<u8> {
        let bytes = self.whole.as_bytes();
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = bytes.get(self.at) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    /// Passes over a delimiter, if it is next. Returns whether it was.
    fn passes(&mut self, delimiter: u8) -> bool {
        let is_next = self.peek() == Some(delimiter);
        self.at += usize::from(is_next);
        is_next
    }

    /// Passes over a value, or a name, and returns its text.
    fn part(&mut self) -> &'a str {
        self.peek();
        let start = self.at;
        let (mut depth, mut is_in_string) = (0_usize, false);
        while let Some(byte) = self.whole.as_bytes().get(self.at) {
            match byte {
                // With the byte after it.
                b'\\' if is_in_string => self.at += 1,
                b'"' => is_in_string = !is_in_string,
                _ if is_in_string => {}
                b'{' | b'[' => depth += 1,
                b'}' | b']' | b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => break,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
        }
        self.whole.get(start..self.at).unwrap_or_default()
    }

    fn message(&mut self, of: MessageDescriptor, depth_left: usize) -> Result<DynamicMessage, String> {
        let depth_left = depth_left.checked_sub(1).ok_or("proto: exceeded max recursion depth")?;
        if !self.passes(b'{') {
            let found = self.part();
            return Err(self.unexpected(found));
        }
        let mut message = DynamicMessage::new(of.clone());
        let (mut seen, mut chosen) = (Vec::new(), Vec::new());
        while !self.passes(b'}') {
            self.passes(b',');
            let name = self.part();
            self.passes(b':');
            let plain = string(name).ok_or_else(|| self.unexpected(name))?;
            let field = of.get_field_by_json_name(&plain).or_else(|| of.get_field_by_name(&plain));
            let Some(field) = field else {
                self.part();
                continue;
            };
            if seen.contains(&field.number()) {
                return Err(self.fault(name, &format!("duplicate field {name}")));
            }
            seen.push(field.number());
            if self.peek() == Some(b'n') {
                // `null`: no other value starts so.
                self.part();
                continue;
            }
            if field.is_list() {
                message.set_field(&field, Value::List(self.list(&field, depth_left)?));
                continue;
            }
            if let Some(oneof) = field.containing_oneof() {
                if chosen.contains(&oneof) {
                    let text = format!("error parsing {name}, oneof {} is already set", oneof.full_name());
                    return Err(self.fault(name, &text));
                }
                chosen.push(oneof);
            }
            if let Some(value) = self.value(&field, depth_left)? {
                message.set_field(&field, value);
            }
        }
        Ok(message)
    }

    fn list(&mut self, field: &FieldDescriptor, depth_left: usize) -> Result<Vec<Value>, String> {
        if !self.passes(b'[') {
            let found = self.part();
            return Err(self.unexpected(found));
        }
        let mut values = Vec::new();
        while !self.passes(b']') {
            self.passes(b',');
            values.extend(self.value(field, depth_left)?);
        }
        Ok(values)
    }

    /// Returns `None` for the unknown name of an enum's value, which is ignored like an unknown field.
    fn value(&mut self, field: &FieldDescriptor, depth_left: usize) -> Result<Option<Value>, String> {
        let kind = field.kind();
        if let Kind::Message(of) = kind {
            return Ok(Some(Value::Message(self.message(of, depth_left)?)));
        }
        let text = self.part();
        let value = match &kind {
            Kind::Enum(of) => match string(text) {
                Some(name) => {
                    return Ok(of.get_value_by_name(&name).map(|value| Value::EnumNumber(value.number())));
                }
                None => number(text).map(Value::EnumNumber),
            },
            Kind::Bool => serde_json::from_str(text).ok().map(Value::Bool),
            Kind::Int32 => number_or_string(text).map(Value::I32),
            Kind::Int64 => number_or_string(text).map(Value::I64),
            Kind::Uint32 => number_or_string(text).map(Value::U32),
            Kind::Uint64 => number_or_string(text).map(Value::U64),
            Kind::String => string(text).map(Value::String),
            Kind::Bytes => string(text).and_then(|text| bytes(&text)).map(|bytes| Value::Bytes(bytes.into())),
            // etcd's API has no others.
            _ => None,
        };
        if value.is_some() {
            return Ok(value);
        }
        let kind = match kind {
            Kind::Enum(_) => "enum".to_owned(),
            kind => format!("{kind:?}"),
        };
        let text_of = token(text);
        Err(self.fault(text, &format!("invalid value for {kind} field {}: {text_of}", field.json_name())))
    }

    /// Returns line and column of a part of the text.
    fn place(&self, part: &str) -> String {
        let offset = part.as_ptr().addr().saturating_sub(self.whole.as_ptr().addr());
        let before = self.whole.get(..offset).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("(line {line}:{column})")
    }

    fn fault(&self, part: &str, text: &str) -> String {
        format!("proto: {}: {text}", self.place(part))
    }

    fn unexpected(&self, part: &str) -> String {
        format!("proto: syntax error {}: unexpected token {}", self.place(part), token(part))
    }
}

/// Returns the fault of a text that is not JSON. The wording differs from Go's, except for the end of the text.
pub(super) fn syntax(error: serde_json::Error) -> String {
    if error.is_eof() { "unexpected EOF".to_owned() } else { error.to_string() }
}

fn token(text: &str) -> &str {
    if text.starts_with(['{', '[']) { &text[..1] } else { text }
}

fn string(text: &str) -> Option<String> {
    serde_json::from_str(text).ok()
}

fn number_or_string<N: TryFrom<i128>>(text: &str) -> Option<N> {
    match string(text) {
        Some(text) => number(text.trim()).filter(|_| text.trim() == text),
        None => number(text),
    }
}

/// Parses a whole number, also one with a point or an exponent. A delimiter may end it, and any text may follow, as in protojson.
fn number<N: TryFrom<i128>>(text: &str) -> Option<N> {
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(text) => (true, text),
        None => (false, text),
    };
    let (whole, mut text) = digits(text);
    if whole.is_empty() || (whole.len() > 1 && whole.starts_with('0')) {
        return None;
    }
    let mut fraction = "";
    if let Some(rest) = text.strip_prefix('.') {
        (fraction, text) = digits(rest);
        if fraction.is_empty() {
            return None;
        }
    }
    let mut exponent = 0_i32;
    if let Some(rest) = text.strip_prefix(['e', 'E']) {
        let is_reciprocal = rest.starts_with('-');
        let (power, rest) = digits(rest.strip_prefix(['+', '-']).unwrap_or(rest));
        let power: i32 = power.parse().ok()?;
        (exponent, text) = (if is_reciprocal { -power } else { power }, rest);
    }
    if text.starts_with(|c: char| c.is_ascii_alphanumeric() || "-+._".contains(c)) {
        return None;
    }
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    if whole.is_empty() && fraction.is_empty() {
        return N::try_from(0).ok();
    }
    let decimal = match usize::try_from(exponent) {
        Ok(power) => {
            let zeros = power.checked_sub(fraction.len())?;
            if whole.len() + power > DIGITS_MAX {
                return None;
            }
            format!("{whole}{fraction}{}", "0".repeat(zeros))
        }
        Err(_) => {
            let left = whole.len().checked_sub(exponent.unsigned_abs() as usize)?;
            let (left, cut) = whole.split_at(left);
            if !fraction.is_empty() || cut.contains(|digit: char| digit != '0') {
                return None;
            }
            left.to_owned()
        }
    };
    let magnitude = decimal.parse::<i128>().ok()?;
    N::try_from(if is_negative { -magnitude } else { magnitude }).ok()
}

/// Splits a text after its leading digits.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Decodes base64 of either alphabet, with padding or without, as Go does: line breaks are ignored, but count where the length
/// decides about padding.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let alphabet = if text.contains(['-', '_']) { &alphabet::URL_SAFE } else { &alphabet::STANDARD };
    let padding = match text.len() % 4 {
        0 => DecodePaddingMode::RequireCanonical,
        _ => DecodePaddingMode::RequireNone,
    };
    let config = GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true);
    let engine = GeneralPurpose::new(alphabet, config.with_decode_padding_mode(padding));
    engine.decode(text.replace(['\r', '\n'], "")).ok()
}

/// Appends a message: fields by their names in proto files, and those that are not set left out.
pub(super) fn write(message: &DynamicMessage, out: &mut String) {
    out.push('{');
    for (at, (field, value)) in message.fields().enumerate() {
        if at > 0 {
            out.push(',');
        }
        write_text(field.name(), out);
        out.push(':');
        write_value(value, &field.kind(), out);
    }
    out.push('}');
}

fn write_value(value: &Value, kind: &Kind, out: &mut String) {
    match value {
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::I32(number) => out.push_str(&number.to_string()),
        Value::U32(number) => out.push_str(&number.to_string()),
        // As text: not every reader has as many digits.
        Value::I64(number) => write_text(&number.to_string(), out),
        Value::U64(number) => write_text(&number.to_string(), out),
        Value::String(text) => write_text(text, out),
        Value::Bytes(bytes) => {
            out.push('"');
            BASE64_STANDARD.encode_string(bytes, out);
            out.push('"');
        }
        Value::EnumNumber(number) => match kind.as_enum().and_then(|of| of.get_value(*number)) {
            Some(value) => write_text(value.name(), out),
            None => out.push_str(&number.to_string()),
        },
        Value::Message(message) => write(message, out),
        Value::List(values) => {
            out.push('[');
            for (at, value) in values.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_value(value, kind, out);
            }
            out.push(']');
        }
        // etcd's API has no others.
        Value::F32(_) | Value::F64(_) | Value::Map(_) => out.push_str("null"),
    }
}

/// Appends a string with its quotes.
pub(super) fn write_text(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_read_in_each_form() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("-0.0e7", Some(0)),
            ("1.0", Some(1)),
            ("1.50e1", Some(15)),
            ("0.001e3", Some(1)),
            ("1200e-2", Some(12)),
            ("1e+2", Some(100)),
            ("7,", Some(7)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("100000000000000000000e-20", Some(1)),
            ("9223372036854775808", None),
            ("10000000000000000000", None),
            ("1e19", None),
            ("1e20", None),
            ("1e99999999999", None),
            ("1.5", None),
            ("1e-1", None),
            ("12e-3", None),
            ("01", None),
            ("+1", None),
            ("1.", None),
            ("1e", None),
            (".5", None),
            ("0x1", None),
            ("1a", None),
            ("-", None),
            ("", None),
        ] {
            assert_eq!(number::<i64>(text), expected, "{text}");
        }
        assert_eq!(number::<u64>("18446744073709551615"), Some(u64::MAX));
        assert_eq!(number::<u64>("18446744073709551616"), None);
        assert_eq!(number::<u64>("-1"), None);
    }

    #[test]
    fn base64_is_read_in_each_form() {
        for text in ["+/8=", "-_8=", "+/8", "-_8", "+/9="] {
            assert_eq!(bytes(text), Some(vec![0xfb, 0xff]), "{text}");
        }
        for text in ["+_8=", "+/8==", "+", "+/ 8", "=", "+/8=+/8="] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    /// Reads a request of this path, and writes it.
    fn again(path: &str, text: &str) -> Result<String, String> {
        let of = super::super::routes::calls()[path].method.input();
        let (text, end) = first(text.as_bytes()).unwrap().unwrap();
        assert_eq!(text.get().len(), end);
        let mut written = String::new();
        write(&read(text, of)?, &mut written);
        Ok(written)
    }

    /// Story: a text was read once for each level of its messages, to find where they end: 4 MiB in 100 levels cost a second.
    #[test]
    fn the_ends_of_messages_are_found_as_they_are_read() {
        let text = concat!(
            r#"{ "success" :"#,
            "\n",
            r#"[ {"request_put":{"key":"YQ==" , "none":{"a":[{}, "]}\"{"]}, "lease":null}} , {}],"#,
            r#""compare":[ ], "none":[1,{"b":"\\"}],"#,
            r#""failure":[{"requestRange":{"limit":"7","\u006bey":"Yg=="}}] }"#,
        );
        let expected = concat!(
            r#"{"success":[{"request_put":{"key":"YQ=="}},{}],"#,
            r#""failure":[{"request_range":{"key":"Yg==","limit":"7"}}]}"#,
        );
        assert_eq!(again("kv/txn", text).as_deref(), Ok(expected));
        // A transaction in an operation is two levels.
        let nested = |times: usize, inner: &str| {
            let (open, close) = (r#"{"success":[{"request_txn":"#.repeat(times), "}]}".repeat(times));
            format!("{open}{inner}{close}")
        };
        let deepest = nested(49, r#"{"success":[{}]}"#);
        assert_eq!(again("kv/txn", &deepest).as_deref(), Ok(&*deepest));
        let too_deep = nested(50, "{}");
        assert_eq!(again("kv/txn", &too_deep).unwrap_err(), "proto: exceeded max recursion depth");
        let place = format!("proto: syntax error (line 1:{}): unexpected token ", 27 * 49 + 1);
        assert_eq!(again("kv/txn", &nested(49, "[ {}]")).unwrap_err(), format!("{place}["));
        assert_eq!(again("kv/txn", &nested(49, "7 ")).unwrap_err(), format!("{place}7"));
    }

    #[test]
    fn values_stand_behind_one_another() {
        let text = b" {\"a\":[1]}{} 5";
        let (value, end) = first(text).unwrap().unwrap();
        assert_eq!((value.get(), end), ("{\"a\":[1]}", 10));
        let (value, more) = first(&text[end..]).unwrap().unwrap();
        assert_eq!((value.get(), more), ("{}", 2));
        assert!(first(b" \n").unwrap().is_none());
        assert!(first(b"{\"a\":").unwrap_err().is_eof());
        assert!(!first(b"{a").unwrap_err().is_eof());
    }
}
