//! [`Pairs`]: the pairs of a range one after the other, in the order of their keys.

use std::vec::IntoIter;

use super::Failure;
use super::codec::Now;
use super::range::{self, FETCH, Place};
use super::reader::{Own, Part, Reader, Scan, ScanPair, Span, Versions};
use crate::proto::etcdserverpb::RangeRequest;
use crate::proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::proto::mvccpb::KeyValue;
use crate::refusal::Refusal;

/// Old values that a reader with little memory fetches together: at first, and the bytes of them above which it fetches fewer.
const FETCH_FIRST: usize = 8;
const FETCH_BYTES_MAX: usize = 1 << 20;

/// The pairs that a request reads, without its order. They are read as they are asked for.
pub(crate) struct Pairs<'a> {
    source: Source<'a>,
    filter: Filter,
    /// How many may follow.
    left: usize,
    /// Those that were read.
    count: i64,
    is_count_only: bool,
    /// Whether pairs have no values.
    is_keys_only: bool,
}

enum Source<'a> {
    One(Option<KeyValue>),
    Current(Box<Scan<'a>>),
    Older(Box<Older<'a>>),
}

impl<'a> Pairs<'a> {
    /// Starts with the first of at most `pairs_max` pairs; 0 only counts.
    pub(super) async fn new(
        place: &Place<'a>,
        request: &RangeRequest,
        pairs_max: usize,
    ) -> Result<Pairs<'a>, Failure> {
        if request.revision > place.revision {
            return Err(Refusal::FutureRevision.into());
        }
        let revision = if request.revision > 0 { request.revision } else { place.revision };
        if revision < place.state.compacted {
            return Err(Refusal::Compacted.into());
        }
        let own = place.own.filter(|_| revision == place.revision);
        let is_current = revision >= place.state.revision;
        let span = Span::new(&request.key, &request.range_end);
        let source = if span.is_one() {
            Source::One(one(place, own, span.key, (!is_current).then_some(revision)).await?)
        } else if is_current {
            Source::Current(Box::new(Scan::new(place.reader, span, own)))
        } else {
            let reader = place.reader;
            Source::Older(Box::new(Older {
                reader,
                versions: reader.versions_at(span, revision),
                places: range::places(&place.state),
                fetched: Vec::new().into_iter(),
                at_once: FETCH,
                bytes_max: usize::MAX,
            }))
        };
        Ok(Pairs {
            source,
            filter: Filter::of(request),
            left: pairs_max,
            count: 0,
            is_count_only: request.count_only,
            is_keys_only: request.keys_only && request.sort_target() != SortTarget::Value,
        })
    }

    /// Starts with the first pair that a request in the order of the keys returns, with few of them in memory.
    pub(super) async fn in_key_order(
        place: &Place<'a>,
        request: &RangeRequest,
    ) -> Result<Pairs<'a>, Failure> {
        let pairs_max = match request.limit {
            _ if request.count_only => 0,
            1.. => usize::try_from(request.limit).unwrap_or(usize::MAX),
            _ => usize::MAX,
        };
        let mut pairs = Pairs::new(place, request, pairs_max).await?;
        if let Source::Older(older) = &mut pairs.source {
            (older.at_once, older.bytes_max) = (FETCH_FIRST, FETCH_BYTES_MAX);
        }
        Ok(pairs)
    }

    pub(crate) async fn next(&mut self) -> Result<Option<KeyValue>, Failure> {
        while self.left > 0 {
            let found = match &mut self.source {
                Source::One(pair) => pair.take(),
                Source::Current(scan) => scan.next().await?.map(ScanPair::key_value).transpose()?,
                Source::Older(older) => older.next(self.left).await?,
            };
            let Some(mut pair) = found else { return Ok(None) };
            self.count += 1;
            if self.filter.passes(&pair) {
                self.left -= 1;
                if self.is_keys_only {
                    pair.value.clear();
                }
                return Ok(Some(pair));
            }
        }
        Ok(None)
    }

    /// Counts the pairs after the last pair. Returns whether some of them would be returned without a limit, and their total
    /// number, including pairs that the filters exclude.
    pub(crate) async fn count_rest(&mut self) -> Result<(bool, i64), Failure> {
        if self.filter.is_any() && !self.is_count_only {
            self.left = usize::MAX;
            let mut is_more = false;
            while self.next().await?.is_some() {
                is_more = true;
            }
            return Ok((is_more, self.count));
        }
        let before = self.count;
        match &mut self.source {
            Source::One(pair) => self.count += i64::from(pair.take().is_some()),
            Source::Current(scan) => {
                scan.skip_values();
                while scan.next().await?.is_some() {
                    self.count += 1;
                }
            }
            Source::Older(older) => {
                self.count += older.fetched.len() as i64;
                while older.versions.next().await?.is_some() {
                    self.count += 1;
                }
            }
        }
        Ok((self.count > before && !self.is_count_only, self.count))
    }
}

/// Returns the pair of one key, now or at an older revision.
async fn one(
    place: &Place<'_>,
    own: Option<&Own>,
    key: &[u8],
    older: Option<i64>,
) -> Result<Option<KeyValue>, Failure> {
    let Some(revision) = older else { return range::current_one(place, own, key).await };
    let reader = place.reader;
    if let Some(found) = reader.now(key).await? {
        let now = Now::decode(&found)?;
        if now.at.main <= revision {
            return Ok(Some(now.key_value(key.to_vec())));
        }
    }
    match reader.version_at(key, revision).await? {
        Some(at) => Ok(range::puts_at(reader, &[(key.to_vec(), at)], range::OF_REPLACED).await?.pop()),
        None => Ok(None),
    }
}

/// The pairs of an older revision, fetched in groups.
struct Older<'a> {
    reader: Reader<'a>,
    versions: Versions<'a>,
    places: &'static [Part],
    fetched: IntoIter<KeyValue>,
    at_once: usize,
    /// Approximate bytes fetched together; more halve the number.
    bytes_max: usize,
}

impl Older<'_> {
    /// Returns the next pair, of at most this many.
    async fn next(&mut self, left: usize) -> Result<Option<KeyValue>, Failure> {
        if self.fetched.as_slice().is_empty() {
            let mut some = Vec::new();
            while some.len() < self.at_once.min(left)
                && let Some(version) = self.versions.next().await?
            {
                some.push(version);
            }
            if some.is_empty() {
                return Ok(None);
            }
            // The values may need the memory.
            self.versions.let_go();
            let fetched = range::puts_at(self.reader, &some, self.places).await?;
            let bytes: usize = fetched.iter().map(|pair| pair.value.len()).sum();
            if bytes > self.bytes_max {
                self.at_once = (self.at_once / 2).max(1);
            } else if bytes < self.bytes_max / 2 {
                self.at_once = (self.at_once * 2).min(FETCH);
            }
            self.fetched = fetched.into_iter();
        }
        Ok(self.fetched.next())
    }
}

/// The least and the greatest revisions of pairs; 0: any.
struct Filter {
    changed: [i64; 2],
    created: [i64; 2],
}

impl Filter {
    fn of(request: &RangeRequest) -> Filter {
        Filter {
            changed: [request.min_mod_revision, request.max_mod_revision],
            created: [request.min_create_revision, request.max_create_revision],
        }
    }

    fn is_any(&self) -> bool {
        self.changed != [0; 2] || self.created != [0; 2]
    }

    fn passes(&self, pair: &KeyValue) -> bool {
        let is_within = |revision: i64, [min, max]: [i64; 2]| {
            (min == 0 || revision >= min) && (max == 0 || revision <= max)
        };
        is_within(pair.mod_revision, self.changed) && is_within(pair.create_revision, self.created)
    }
}

/// Returns whether a request filters pairs by their revisions.
pub(crate) fn has_filters(request: &RangeRequest) -> bool {
    Filter::of(request).is_any()
}

/// Returns whether pairs are returned in the order of the keys.
pub(crate) fn is_in_key_order(request: &RangeRequest) -> bool {
    request.sort_target() == SortTarget::Key && request.sort_order() != SortOrder::Descend
}
