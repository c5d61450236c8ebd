//! [`Spans`]: keys from one until another, of all roles of a user together.

use std::borrow::Cow;

/// Spans of keys in their order, which neither overlap nor meet: the first key of each, and the one at which it ends; `None`: never.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spans(Vec<(Vec<u8>, Option<Vec<u8>>)>);

/// Returns the bounds of a request's `key` and `range_end`. An end of one zero byte means no end, for watches and transactions as
/// for ranges.
pub(super) fn bounds<'a>(key: &'a [u8], range_end: &'a [u8]) -> (&'a [u8], Option<Cow<'a, [u8]>>) {
    let until = match range_end {
        [] => Some(Cow::Owned([key, &[0]].concat())),
        [0] => None,
        end => Some(Cow::Borrowed(end)),
    };
    (key, until)
}

impl Spans {
    pub(super) fn of(spans: impl Iterator<Item = (Vec<u8>, Option<Vec<u8>>)>) -> Spans {
        let mut all: Vec<_> = spans.collect();
        all.sort_unstable();
        let mut joined: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
        for (from, until) in all {
            let meets = joined.last().is_some_and(|(_, end)| end.as_ref().is_none_or(|end| *end >= from));
            match joined.last_mut().filter(|_| meets) {
                Some((_, end)) => *end = end.take().zip(until).map(|(end, until)| end.max(until)),
                None => joined.push((from, until)),
            }
        }
        Spans(joined)
    }

    /// Returns the end of the span that has a key, `Some(None)` if the span is unbounded; `None` if no span has the key.
    pub(super) fn end_of(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let after = self.0.partition_point(|(first, _)| &first[..] <= key);
        let (_, end) = self.0.get(after.checked_sub(1)?)?;
        let end = end.as_deref();
        end.is_none_or(|end| key < end).then_some(end)
    }

    /// Returns whether all keys between the bounds are here.
    pub(super) fn has(&self, from: &[u8], until: Option<&[u8]>) -> bool {
        // The first key as well: a range may be empty.
        match (self.end_of(from), until) {
            (None, _) | (Some(Some(_)), None) => false,
            (Some(None), _) => true,
            (Some(Some(end)), Some(until)) => until <= end,
        }
    }
}
