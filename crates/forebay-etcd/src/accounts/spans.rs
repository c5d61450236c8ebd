//! [`Spans`]: keys from one until another, of all roles of a user together.

use std::borrow::Cow;

/// Spans of keys in their order, which neither overlap nor meet: the first key of each, and the one at which it ends; `None`: never.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spans(Vec<(Vec<u8>, Option<Vec<u8>>)>);

/// Returns the bounds of a request's `key` and `range_end`. An end of one zero byte is none, for watches and transactions as for ranges.
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

    /// Returns whether all keys between the bounds are here.
    pub(super) fn has(&self, from: &[u8], until: Option<&[u8]>) -> bool {
        let after = self.0.partition_point(|(first, _)| &first[..] <= from);
        let Some((_, end)) = after.checked_sub(1).and_then(|at| self.0.get(at)) else { return false };
        match (end, until) {
            (None, _) => true,
            (Some(_), None) => false,
            // The first key as well: a range may be empty.
            (Some(end), Some(until)) => from < &end[..] && until <= &end[..],
        }
    }
}
