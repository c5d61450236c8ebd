//! Small durable values next to the records: the table of them, its bytes, and a change of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// Maximum number of values of a log.
pub(crate) const VALUES_MAX: usize = 64;
/// Maximum length of a value, in bytes.
pub(crate) const VALUE_BYTES_MAX: usize = 1024;
/// Maximum length of a value's key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 32;
/// Bytes before the entries of a table: their number. A table without entries is as long.
pub(crate) const COUNT_BYTES: usize = 2;
/// Bytes before an entry's key: the lengths of key and value.
const ENTRY_BYTES: usize = 3;
/// Maximum length of a table, in bytes.
pub(crate) const TABLE_BYTES_MAX: usize =
    COUNT_BYTES + VALUES_MAX * (ENTRY_BYTES + KEY_BYTES_MAX + VALUE_BYTES_MAX);

/// The identity of a table of values: the log's epoch when it was set, and the number of changes until then.
/// Later tables are greater. No two different tables of a log have the same stamp, because an epoch that was
/// cut off is never used again. The default belongs to a log that never had a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp {
    pub(crate) epoch: u64,
    pub(crate) count: u64,
}

impl Stamp {
    /// Returns whether the log ever had a value.
    pub(crate) fn is_some(self) -> bool {
        self.count > 0
    }

    /// Returns the stamp of the next table, set in this epoch.
    #[must_use]
    pub(crate) fn next(self, epoch: u64) -> Stamp {
        Stamp { epoch, count: self.count.saturating_add(1) }
    }
}

/// A change of one value; without new bytes it removes the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueChange {
    key: Arc<str>,
    value: Option<Arc<[u8]>>,
}

impl ValueChange {
    /// Returns the change.
    ///
    /// # Errors
    /// `InvalidInput` for a key that is empty or too long; `TooLarge` for a value that is too long.
    pub(crate) fn new(key: &str, value: Option<&[u8]>) -> Result<ValueChange> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            let text = format!(
                "the key of a value has {} bytes; it may have 1 to {KEY_BYTES_MAX}: take another one",
                key.len()
            );
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        if let Some(long) = value.filter(|value| value.len() > VALUE_BYTES_MAX) {
            let text = format!(
                "the value {key:?} has {} bytes; the most is {VALUE_BYTES_MAX}: append longer ones as records",
                long.len()
            );
            return Err(Error::new(ErrorKind::TooLarge { limit: VALUE_BYTES_MAX }, text));
        }
        Ok(ValueChange { key: key.into(), value: value.map(Arc::from) })
    }
}

/// All values of a log at one point of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Values {
    entries: BTreeMap<Arc<str>, Arc<[u8]>>,
    /// Length of the table on disk, in bytes.
    bytes: usize,
}

impl Default for Values {
    fn default() -> Values {
        Values { entries: BTreeMap::new(), bytes: COUNT_BYTES }
    }
}

impl Values {
    /// Returns the length of the table on disk, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn get(&self, key: &str) -> Option<&[u8]> {
        self.entries.get(key).map(|value| &**value)
    }

    /// Returns all values with their keys, in the order of the keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries.iter().map(|(key, value)| (&**key, &**value))
    }

    /// Returns the table after these changes, of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// `TooLarge` if it would be longer, `InvalidInput` if it would have too many values.
    pub(crate) fn after(&self, changes: &[ValueChange], bytes_max: usize) -> Result<Values> {
        let mut entries = self.entries.clone();
        for ValueChange { key, value } in changes {
            match value {
                Some(value) => drop(entries.insert(key.clone(), value.clone())),
                None => drop(entries.remove(key)),
            }
        }
        if entries.len() > VALUES_MAX {
            let text =
                format!("a log has at most {VALUES_MAX} values, and this would be one more: unset one first");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let lengths = entries.iter().map(|(key, value)| ENTRY_BYTES + key.len() + value.len());
        let bytes = COUNT_BYTES + lengths.sum::<usize>();
        if bytes > bytes_max {
            let text = format!(
                "the log's values would take {bytes} bytes together, and the most is {bytes_max}, a quarter of a \
                 segment: unset one first, or open the log with longer segments"
            );
            return Err(Error::new(ErrorKind::TooLarge { limit: bytes_max }, text));
        }
        Ok(Values { entries, bytes })
    }

    /// Appends the table's bytes.
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        let start = to.len();
        to.extend_from_slice(&(self.entries.len() as u16).to_le_bytes());
        for (key, value) in &self.entries {
            to.push(key.len() as u8);
            to.extend_from_slice(&(value.len() as u16).to_le_bytes());
            to.extend_from_slice(key.as_bytes());
            to.extend_from_slice(value);
        }
        debug_assert_eq!(to.len() - start, self.bytes, "a table takes as many bytes as were counted for it");
        debug_assert!(is_table(&to[start..]), "a table is read back as it was written");
    }

    /// Reads a table; `None` for malformed bytes.
    pub(crate) fn read(bytes: &[u8]) -> Option<Values> {
        let mut all = Entries::of(bytes)?;
        let count = all.count;
        let entries: BTreeMap<_, _> =
            all.by_ref().map(|(key, value)| (Arc::from(key), Arc::from(value))).collect();
        (all.rest.is_empty() && entries.len() == count && count <= VALUES_MAX)
            .then_some(Values { entries, bytes: bytes.len() })
    }
}

/// Returns whether these bytes are a table. Allocates nothing.
pub(crate) fn is_table(bytes: &[u8]) -> bool {
    let Some(mut all) = Entries::of(bytes) else { return false };
    // Sorted keys occur once.
    let (mut before, mut found) = ("", 0);
    for (key, _) in all.by_ref() {
        if key <= before {
            return false;
        }
        (before, found) = (key, found + 1);
    }
    found == all.count && all.rest.is_empty() && found <= VALUES_MAX
}

/// Iterator over the entries of a table's bytes. Stops early at malformed bytes.
struct Entries<'a> {
    count: usize,
    rest: &'a [u8],
}

impl<'a> Entries<'a> {
    fn of(bytes: &'a [u8]) -> Option<Entries<'a>> {
        let (count, rest) = bytes.split_first_chunk::<COUNT_BYTES>()?;
        Some(Entries { count: usize::from(u16::from_le_bytes(*count)), rest })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = (&'a str, &'a [u8]);

    fn next(&mut self) -> Option<(&'a str, &'a [u8])> {
        let (lengths, rest) = self.rest.split_first_chunk::<ENTRY_BYTES>()?;
        let value_len = usize::from(u16::from_le_bytes([lengths[1], lengths[2]]));
        let (key, rest) = rest.split_at_checked(usize::from(lengths[0]))?;
        let (value, rest) = rest.split_at_checked(value_len)?;
        let key = std::str::from_utf8(key).ok()?;
        let fits = key.len() <= KEY_BYTES_MAX && value.len() <= VALUE_BYTES_MAX;
        self.rest = if fits { rest } else { return None };
        Some((key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entries: &[(&str, &[u8])]) -> Values {
        let changes: Vec<_> =
            entries.iter().map(|(key, value)| ValueChange::new(key, Some(value)).expect("it fits")).collect();
        Values::default().after(&changes, TABLE_BYTES_MAX).expect("it fits")
    }

    fn bytes(values: &Values) -> Vec<u8> {
        let mut bytes = Vec::new();
        values.write(&mut bytes);
        bytes
    }

    #[test]
    fn there_and_back() {
        let full: Vec<String> = (0..VALUES_MAX).map(|at| format!("{at:032}")).collect();
        let full: Vec<(&str, &[u8])> = full.iter().map(|key| (&**key, &[7; VALUE_BYTES_MAX][..])).collect();
        for values in [table(&[]), table(&[("vote", b"3"), ("applied", b"")]), table(&full)] {
            let bytes = bytes(&values);
            assert_eq!(Values::read(&bytes).as_ref(), Some(&values));
            assert!(is_table(&bytes) && bytes.len() == values.bytes() && bytes.len() <= TABLE_BYTES_MAX);
        }
        assert_eq!(bytes(&table(&full)).len(), TABLE_BYTES_MAX);
    }

    #[test]
    fn other_bytes_are_no_table() {
        let good = bytes(&table(&[("a", b"1"), ("b", b"2")]));
        let mut more = good.clone();
        more.push(0);
        let mut count = good.clone();
        count[0] = 3;
        let mut twice = good.clone();
        twice[7] = b'a';
        let mut text = good.clone();
        text[5] = 0xff;
        for bad in [&good[..good.len() - 1], &more, &count, &twice[..], &text, &[], &[0]] {
            assert!(!is_table(bad), "{bad:?}");
        }
        assert!(is_table(&good));
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut any = good.clone();
                any[at] = value;
                assert!(!is_table(&any) || Values::read(&any).is_some(), "{any:?}");
            }
        }
    }

    #[test]
    fn limits_are_kept() {
        let kind = |result: Result<ValueChange>| result.map(drop).map_err(|error| error.kind());
        assert_eq!(kind(ValueChange::new("", None)), Err(ErrorKind::InvalidInput));
        assert_eq!(kind(ValueChange::new(&"k".repeat(33), None)), Err(ErrorKind::InvalidInput));
        let limit = ErrorKind::TooLarge { limit: VALUE_BYTES_MAX };
        assert_eq!(kind(ValueChange::new("k", Some(&[0; 1025]))), Err(limit));
        let set = |key: &str| ValueChange::new(key, Some(b"value")).expect("it fits");
        let full: Vec<_> = (0..VALUES_MAX).map(|at| set(&at.to_string())).collect();
        let full = Values::default().after(&full, TABLE_BYTES_MAX).expect("as many as there may be");
        let more = full.after(&[set("more")], TABLE_BYTES_MAX).expect_err("one more");
        assert_eq!(more.kind(), ErrorKind::InvalidInput);
        let unset = ValueChange::new("7", None).expect("a key");
        let changed = full.after(&[set("more"), unset], TABLE_BYTES_MAX).expect("one went");
        assert_eq!((changed.get("7"), changed.get("more")), (None, Some(&b"value"[..])));
        let small = full.after(&[set("0")], 100).expect_err("too long together");
        assert_eq!(small.kind(), ErrorKind::TooLarge { limit: 100 });
    }
}
