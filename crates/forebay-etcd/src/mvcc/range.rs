//! Ranges: which pairs a request reads, in what order, and how many.

use std::cmp::Ordering;
use std::sync::{Mutex, PoisonError};

use super::Failure;
use super::codec::{self, At, Now, Put, Record, State};
use super::pairs::{Pairs, has_filters, is_in_key_order};
use super::reader::{Own, Part, Reader, Scan, ScanPair, Span};
use super::recent::Recent;
use crate::proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::proto::etcdserverpb::{RangeRequest, RangeResponse};
use crate::proto::mvccpb::KeyValue;
use crate::refusal::Refusal;

/// Number of values of older revisions fetched together.
pub(super) const FETCH: usize = 128;
/// Pairs that are kept before those beyond a limit are dropped, and their bytes.
const KEPT_LEAST: usize = if cfg!(test) { 4 } else { 1024 };
const KEPT_BYTES: u64 = if cfg!(test) { 1_000 } else { 1 << 20 };
/// Counted for a pair in memory, in addition to its key and value.
const PAIR_BYTES: u64 = 128;

/// Where a range reads.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) reader: Reader<'a>,
    /// The state of the reader.
    pub(super) state: State,
    /// The revision that is current for this read: that of the state, or the next one with the entry's own changes.
    pub(super) revision: i64,
    /// Changes above the state.
    pub(super) own: Option<&'a Own>,
    /// Values of the state that are in memory.
    pub(super) recent: Option<&'a Mutex<Recent>>,
}

impl<'a> Place<'a> {
    /// A place in a state.
    pub(super) fn of(reader: Reader<'a>, state: State) -> Place<'a> {
        Place { reader, state, revision: state.revision, own: None, recent: None }
    }
}

/// Checks a revision that a request names.
pub(super) fn check_revision(revision: i64, state: &State) -> Result<(), Refusal> {
    match revision {
        0 => Ok(()),
        _ if revision > state.revision => Err(Refusal::FutureRevision),
        _ if revision < state.compacted => Err(Refusal::Compacted),
        _ => Ok(()),
    }
}

/// The bytes that ranges return together, and how many these may be.
pub(super) type ReturnBudget<'a> = Option<(&'a mut u64, u64)>;

fn pair_bytes(pair: &KeyValue) -> u64 {
    PAIR_BYTES + (pair.key.len() + pair.value.len()) as u64
}

fn exceeds(returned: &ReturnBudget<'_>, bytes: u64) -> bool {
    returned.as_ref().is_some_and(|(sum, most)| sum.saturating_add(bytes) > *most)
}

/// Counts bytes that are returned, and refuses those beyond the limit.
fn count_bytes(returned: &mut ReturnBudget<'_>, bytes: u64) -> Result<(), Refusal> {
    if let Some((sum, _)) = returned {
        **sum = sum.saturating_add(bytes);
    }
    if exceeds(returned, 0) { Err(Refusal::RequestTooLarge) } else { Ok(()) }
}

/// The pairs of a range that may be among those that it returns.
struct BestPairs<'a> {
    request: &'a RangeRequest,
    pairs: Vec<KeyValue>,
    bytes: u64,
    /// One more than the limit, to detect further pairs.
    count_max: usize,
    /// When those beyond the limit are dropped.
    full_bytes: u64,
}

impl<'a> BestPairs<'a> {
    fn new(request: &'a RangeRequest) -> BestPairs<'a> {
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
        let count_max = limit.map_or(usize::MAX, |limit| limit.saturating_add(1));
        BestPairs { request, pairs: Vec::new(), bytes: 0, count_max, full_bytes: KEPT_BYTES }
    }

    /// Adds a pair. However many and however long pairs are read for the first few in another order, few of them are in memory.
    fn push(&mut self, pair: KeyValue) {
        self.bytes += pair_bytes(&pair);
        self.pairs.push(pair);
        let count_full = self.count_max.saturating_mul(2).max(KEPT_LEAST);
        if self.pairs.len() >= count_full || self.bytes >= self.full_bytes {
            self.drop_rest();
        }
    }

    /// Drops the pairs beyond the limit.
    fn drop_rest(&mut self) {
        if !self.is_within_limit() {
            sort(&mut self.pairs, self.request);
            self.pairs.truncate(self.count_max);
            self.bytes = self.pairs.iter().map(pair_bytes).sum();
        }
        self.full_bytes = KEPT_BYTES.max(2 * self.bytes);
    }

    fn is_within_limit(&self) -> bool {
        self.pairs.len() <= self.count_max
    }
}

/// Carries a range out; with a limit of bytes, it adds those that are returned. An entry counts what it reads, as members of other builds
/// do, and any other range what is in memory. The response has no header.
pub(super) async fn range(
    place: &Place<'_>,
    request: &RangeRequest,
    mut returned: ReturnBudget<'_>,
) -> Result<RangeResponse, Failure> {
    let mut found = Pairs::new(place, request, pairs_max(request)).await?;
    let (mut kept, is_entry) = (BestPairs::new(request), place.reader.is_for_entry());
    while let Some(pair) = found.next().await? {
        if is_entry {
            count_bytes(&mut returned, pair_bytes(&pair))?;
        }
        kept.push(pair);
        if !is_entry && kept.is_within_limit() && exceeds(&returned, kept.bytes) {
            count_bytes(&mut returned, kept.bytes)?;
        }
    }
    let (_, count) = found.count_rest().await?;
    kept.drop_rest();
    if !is_entry {
        count_bytes(&mut returned, kept.bytes)?;
    }
    let mut pairs = kept.pairs;
    sort(&mut pairs, request);
    let is_limited = request.limit > 0 && pairs.len() as u64 > request.limit as u64;
    if is_limited {
        pairs.truncate(request.limit as usize);
    }
    if request.keys_only {
        pairs.iter_mut().for_each(|pair| pair.value.clear());
    }
    Ok(RangeResponse { header: None, kvs: pairs, more: is_limited, count })
}

/// Returns how many pairs have to be read for a request; the others are only counted.
fn pairs_max(request: &RangeRequest) -> usize {
    // As etcd does: another target without an order sorts only as many as the limit lets through in the order of keys.
    let is_in_key_order = is_in_key_order(request) || request.sort_order() == SortOrder::None;
    match request.limit {
        _ if request.count_only => 0,
        // One more, to detect further pairs.
        1.. if is_in_key_order && !has_filters(request) => {
            usize::try_from(request.limit).unwrap_or(usize::MAX).saturating_add(1)
        }
        _ => usize::MAX,
    }
}

/// Returns the current pair of a key.
pub(super) async fn current_one(
    place: &Place<'_>,
    own: Option<&Own>,
    key: &[u8],
) -> Result<Option<KeyValue>, Failure> {
    if let Some(own) = own.and_then(|own| own.pair(key)) {
        return Ok(own.cloned());
    }
    let recent = |recent: &Mutex<Recent>| recent.lock().unwrap_or_else(PoisonError::into_inner).get(key);
    if let Some(current) = place.recent.and_then(recent) {
        return Ok(current.map(|(_, pair)| pair));
    }
    let found = place.reader.now(key).await?;
    found.map(|found| Ok(Now::decode(&found)?.key_value(key.to_vec()))).transpose()
}

/// Where the value of a put is that has been replaced since.
pub(super) const OF_REPLACED: &[Part] = &[Part::Events, Part::Versions];
/// Where that of a short event is.
pub(super) const OF_SHORT: &[Part] = &[Part::Now, Part::Versions];

/// Returns where the value of any put is, in the order of looking: in that of the keys first.
pub(super) fn places(state: &State) -> &'static [Part] {
    if state.ages.is_some() { &[Part::Now, Part::Versions, Part::Events] } else { &[Part::Events] }
}

/// Returns the pairs of puts, which are looked for in these keyspaces, one after the other.
pub(super) async fn puts_at(
    reader: Reader<'_>,
    versions: &[(Vec<u8>, At)],
    places: &[Part],
) -> Result<Vec<KeyValue>, Failure> {
    let mut pairs = Vec::with_capacity(versions.len());
    for some in versions.chunks(FETCH) {
        let mut found: Vec<Option<KeyValue>> = vec![None; some.len()];
        for place in places {
            let missing = some.iter().enumerate().filter(|(number, _)| found[*number].is_none());
            let missing: Vec<_> = missing.collect();
            let keys: Vec<_> = missing.iter().map(|(_, (key, at))| entry_key(*place, key, *at)).collect();
            let mut missing = missing.into_iter();
            let take = |entry: Option<&[u8]>| {
                if let (Some((number, (key, at))), Some(entry)) = (missing.next(), entry) {
                    found[number] = put_in(*place, key, *at, entry)?;
                }
                Ok(())
            };
            reader.each_value(*place, &keys, take).await?;
        }
        for ((_, at), pair) in some.iter().zip(found) {
            let lost = || Failure::Damaged(format!("the event {}.{} is not there as a put", at.main, at.sub));
            pairs.push(pair.ok_or_else(lost)?);
        }
    }
    Ok(pairs)
}

/// Returns the key of an entry that may have a put's value.
fn entry_key(place: Part, key: &[u8], at: At) -> Vec<u8> {
    match place {
        Part::Now => key.to_vec(),
        Part::Versions => {
            let mut version = Vec::with_capacity(key.len() + 16);
            codec::version_key(key, at, &mut version);
            version
        }
        _ => at.key().to_vec(),
    }
}

/// Returns a put from that entry, if it has its value.
fn put_in(place: Part, key: &[u8], at: At, entry: &[u8]) -> Result<Option<KeyValue>, Failure> {
    let put = match place {
        Part::Now => {
            let now = Now::decode(entry)?;
            return Ok((now.at == at).then(|| now.key_value(key.to_vec())));
        }
        Part::Versions => codec::moved(entry)?,
        _ => match Record::decode(entry)?.put {
            Some(Put::Whole(put)) => Some(put),
            _ => None,
        },
    };
    Ok(put.map(|put| put.key_value(key.to_vec(), at.main)))
}

fn sort(pairs: &mut [KeyValue], request: &RangeRequest) {
    let compare: fn(&KeyValue, &KeyValue) -> Ordering = match request.sort_target() {
        SortTarget::Key => |a, b| a.key.cmp(&b.key),
        SortTarget::Version => |a, b| a.version.cmp(&b.version),
        SortTarget::Create => |a, b| a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => |a, b| a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => |a, b| a.value.cmp(&b.value),
    };
    match (request.sort_target(), request.sort_order()) {
        // They are read in this order.
        (SortTarget::Key, SortOrder::None | SortOrder::Ascend) => {}
        // Another target without an order means the ascending one.
        (_, SortOrder::None | SortOrder::Ascend) => pairs.sort_by(compare),
        (_, SortOrder::Descend) => pairs.sort_by(|a, b| compare(b, a)),
    }
}

/// Returns whether a condition holds for all current pairs of a span; or for `None` if the span is empty.
pub(super) async fn all_current(
    place: &Place<'_>,
    span: Span<'_>,
    mut holds: impl FnMut(Option<&KeyValue>) -> bool,
) -> Result<bool, Failure> {
    if span.is_one() {
        let found = current_one(place, place.own, span.key).await?;
        return Ok(holds(found.as_ref()));
    }
    let mut scan = Scan::new(place.reader, span, place.own);
    let mut is_any = false;
    while let Some(found) = scan.next().await? {
        is_any = true;
        let is_held = match found {
            ScanPair::Own(pair, _) => holds(Some(pair)),
            stored @ ScanPair::Stored(..) => holds(Some(&stored.key_value()?)),
        };
        if !is_held {
            return Ok(false);
        }
    }
    Ok(is_any || holds(None))
}
