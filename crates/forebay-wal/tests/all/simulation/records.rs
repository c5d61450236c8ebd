//! Records that identify themselves: a number determines the bytes, and the bytes give the number.

use forebay_test::worlds::mix;

/// Maximum length of a record.
pub(crate) const BYTES_MAX: usize = 20 << 10;

/// The number of every record without bytes.
pub(crate) const EMPTY: u64 = 0;

/// Returns a record's number: the life of the world, the appender of that life, and its count of appends.
pub(crate) fn numbered(life: u64, appender: u64, count: u64) -> u64 {
    (life + 1) << 48 | appender << 24 | count
}

/// Returns the appender, unique across all lives, and its count.
pub(crate) fn appender(record: u64) -> (u64, u64) {
    (record >> 24, record & 0xff_ffff)
}

/// Returns the length of a record. Most are short; some fill a page or several, one in a hundred a whole
/// group and more.
fn len(record: u64) -> usize {
    let (class, size) = (mix(record) % 100, mix(record ^ 7));
    let len = match class {
        0 => 12_000 + size % (BYTES_MAX as u64 - 12_000 + 1),
        1..=7 => 3_000 + size % 6_000,
        8..=20 => 8 + size % 4,
        _ => 8 + size % 300,
    };
    len as usize
}

pub(crate) fn bytes(record: u64) -> Vec<u8> {
    if record == EMPTY {
        return Vec::new();
    }
    let len = len(record);
    let mut bytes = record.to_le_bytes().to_vec();
    bytes.extend(mix(!record).to_le_bytes().repeat(len.div_ceil(8)));
    bytes.truncate(len);
    bytes
}

/// Returns the number of a record with these bytes, if they are intact.
pub(crate) fn number(found: &[u8]) -> Option<u64> {
    if found.is_empty() {
        return Some(EMPTY);
    }
    let record = u64::from_le_bytes(found.get(..8)?.try_into().ok()?);
    (found == bytes(record)).then_some(record)
}

pub(crate) const KEYS: [&str; 3] = ["vote", "applied", "a key of 32 bytes, the longest ."];

/// Returns the bytes of a value; a few are as long as values may be.
pub(crate) fn value(number: u64) -> Vec<u8> {
    let len = if mix(number).is_multiple_of(10) { 1024 } else { 8 + mix(number) as usize % 40 };
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(len, number as u8);
    bytes
}

/// Returns the number of a value with these bytes, if they are intact.
pub(crate) fn value_number(found: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(found.get(..8)?.try_into().ok()?);
    (found == value(number)).then_some(number)
}
