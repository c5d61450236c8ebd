//! Watches: [`Hub`] hands each watch the events of its keys, in order and without a gap.
//!
//! A watch is attached or behind. The hub queues events for attached watches as entries are applied. A watch whose queue is full is
//! behind from then on, and costs the hub nothing: the stream that owns it reads the events from the store, and attaches it again
//! when it has reached the hub's revision. So a slow client holds its queues and no more, and nothing waits for it. The queues of a stream
//! have a limit together: it may have thousands of watches of the same keys.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message;
use tokio::sync::Notify;

use crate::proto::mvccpb::Event;
use crate::proto::mvccpb::event::EventType;

mod range_index;
#[cfg(test)]
mod tests;

use self::range_index::RangeIndex;

/// The most bytes of a watch's queue; then it is behind.
const QUEUE_BYTES_MAX: usize = 1 << 20;
/// The most bytes of all queues of a stream, with [`EVENT_BYTES`] for each event; then those with events are behind.
const STREAM_BYTES_MAX: usize = 16 << 20;
/// Counted for an event in a queue, in addition to its own bytes: the queues of several watches share these.
const EVENT_BYTES: usize = 128;

/// Keys from `start` on: one, a range, or all that follow.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Keys {
    start: Vec<u8>,
    end: End,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum End {
    Single,
    /// All keys with the first key as prefix.
    Prefix,
    Before(Vec<u8>),
    Open,
}

impl Keys {
    /// Returns the keys of a request's `key` and `range_end`; `None` if the range is empty.
    pub(crate) fn of(key: &[u8], range_end: &[u8]) -> Option<Keys> {
        // An empty key is the smallest one.
        let start = if key.is_empty() { vec![0] } else { key.to_vec() };
        let end = match range_end {
            [] => End::Single,
            [0] => End::Open,
            end if end <= &*start => return None,
            end if is_behind_prefix(&start, end) => End::Prefix,
            end => End::Before(end.to_vec()),
        };
        Some(Keys { start, end })
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        match &self.end {
            End::Single => key == self.start,
            End::Prefix => key.starts_with(&self.start),
            End::Before(end) => key >= &*self.start && key < &**end,
            End::Open => key >= &*self.start,
        }
    }
}

/// Returns whether `end` is the first of all keys after those that start with `prefix`.
fn is_behind_prefix(prefix: &[u8], end: &[u8]) -> bool {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX);
    last.is_some_and(|at| end.len() == at + 1 && end[..at] == prefix[..at] && end[at] == prefix[at] + 1)
}

/// Things by the keys that they want. Those of the same range share an entry.
#[derive(Debug)]
pub(crate) struct ByKeys<T> {
    single: HashMap<Vec<u8>, Vec<T>>,
    prefixes: HashMap<Vec<u8>, Vec<T>>,
    /// The lengths of prefixes, and how many have each.
    lengths: BTreeMap<usize, usize>,
    /// Those of ranges that are not prefixes.
    ranges: RangeIndex<T>,
}

impl<T> Default for ByKeys<T> {
    fn default() -> Self {
        ByKeys {
            single: HashMap::new(),
            prefixes: HashMap::new(),
            lengths: BTreeMap::new(),
            ranges: RangeIndex::default(),
        }
    }
}

impl<T> ByKeys<T> {
    /// Adds a value, and returns its place among those of the same keys.
    pub(crate) fn insert(&mut self, keys: &Keys, value: T) -> usize {
        let list = match keys.end {
            End::Single => self.single.entry(keys.start.clone()).or_default(),
            End::Prefix => {
                let list = self.prefixes.entry(keys.start.clone()).or_default();
                if list.is_empty() {
                    *self.lengths.entry(keys.start.len()).or_default() += 1;
                }
                list
            }
            _ => return self.ranges.insert(keys, value),
        };
        list.push(value);
        list.len() - 1
    }

    /// Removes the value at a place among those of these keys. The last value moves to that place, and is passed to `moved`.
    fn remove(&mut self, keys: &Keys, place: usize, moved: impl FnOnce(&T)) {
        let list = match keys.end {
            End::Single => self.single.get_mut(&keys.start),
            End::Prefix => self.prefixes.get_mut(&keys.start),
            _ => self.ranges.get_mut(keys),
        };
        let Some(list) = list else { return };
        list.swap_remove(place);
        if let Some(other) = list.get(place) {
            moved(other);
        }
        if list.is_empty() {
            match keys.end {
                End::Single => drop(self.single.remove(&keys.start)),
                End::Prefix => {
                    self.prefixes.remove(&keys.start);
                    self.lengths.entry(keys.start.len()).and_modify(|count| *count -= 1);
                    self.lengths.retain(|_, count| *count > 0);
                }
                _ => self.ranges.remove(keys),
            }
        }
    }

    /// Returns those that want a key.
    pub(crate) fn of<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = &'a T> {
        let prefixes = self.lengths.keys().map_while(move |len| key.get(..*len));
        let prefixes = prefixes.filter_map(move |prefix| self.prefixes.get(prefix));
        self.single.get(key).into_iter().chain(prefixes).chain(self.ranges.of(key)).flatten()
    }

    fn values(&self) -> impl Iterator<Item = &T> {
        self.single.values().chain(self.prefixes.values()).chain(self.ranges.values()).flatten()
    }
}

/// The filter of the events that a watch wants.
#[derive(Clone, Debug)]
pub(crate) struct EventFilter {
    pub(crate) keys: Keys,
    pub(crate) puts: bool,
    pub(crate) deletes: bool,
}

impl EventFilter {
    pub(crate) fn is_met_by(&self, event: &Event) -> bool {
        let by_kind = if event.r#type() == EventType::Delete { self.deletes } else { self.puts };
        by_kind && event.kv.as_ref().is_some_and(|kv| self.keys.contains(&kv.key))
    }
}

/// The events of one revision that a watch wants.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) revision: i64,
    pub(crate) events: Vec<Arc<Event>>,
}

/// Wakes the owner of a stream's watches.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Mutex<Vec<i64>>,
    notify: Notify,
    /// Bytes in the queues of its watches. Changes under the hub's lock.
    queued_bytes: AtomicUsize,
}

impl Bell {
    fn ring(&self, watch: i64) {
        lock(&self.rung).push(watch);
        self.notify.notify_one();
    }

    /// Returns once a watch has events or is behind, with the ids of such watches. Cancelling it loses nothing.
    pub(crate) async fn rung(&self) -> Vec<i64> {
        loop {
            let rung = std::mem::take(&mut *lock(&self.rung));
            if !rung.is_empty() {
                return rung;
            }
            self.notify.notified().await;
        }
    }
}

#[derive(Debug)]
pub(crate) struct Watch {
    id: i64,
    wanted: EventFilter,
    bell: Arc<Bell>,
    /// Its place among the hub's watches of the same keys; [`REMOVED`] without one. Changes under the hub's lock.
    place: AtomicUsize,
    state: Mutex<State>,
}

const REMOVED: usize = usize::MAX;

#[derive(Debug)]
struct State {
    /// Events of earlier revisions are queued or delivered, or were not wanted.
    next: i64,
    is_attached: bool,
    queue: VecDeque<Group>,
    queued_bytes: usize,
    /// Its part of the bell's bytes.
    stream_bytes: usize,
}

impl Watch {
    pub(crate) fn wanted(&self) -> &EventFilter {
        &self.wanted
    }

    /// Returns the first revision that a watch which is behind needs from the store.
    pub(crate) fn behind_from(&self) -> Option<i64> {
        let state = lock(&self.state);
        (!state.is_attached).then_some(state.next)
    }

    /// Queues events of a revision, or falls behind.
    fn push(&self, revision: i64, event: &Arc<Event>, bytes: usize, counts: &Counts) {
        let mut state = lock(&self.state);
        if !state.is_attached || revision < state.next {
            return;
        }
        let stream_bytes = bytes + EVENT_BYTES;
        let is_full = state.queued_bytes + bytes > QUEUE_BYTES_MAX
            || self.bell.queued_bytes.load(Ordering::Relaxed) + stream_bytes > STREAM_BYTES_MAX;
        if state.queued_bytes > 0 && is_full {
            // The events of a revision stay together: those already queued are read again.
            if state.queue.back().is_some_and(|group| group.revision == revision)
                && let Some(group) = state.queue.pop_back()
            {
                counts.pending.fetch_sub(group.events.len() as u64, Ordering::Relaxed);
            }
            (state.is_attached, state.next) = (false, revision);
            counts.behind.fetch_add(1, Ordering::Relaxed);
            drop(state);
            self.bell.ring(self.id);
            return;
        }
        state.queued_bytes += bytes;
        state.stream_bytes += stream_bytes;
        self.bell.queued_bytes.fetch_add(stream_bytes, Ordering::Relaxed);
        counts.pending.fetch_add(1, Ordering::Relaxed);
        let is_first = state.queue.is_empty();
        match state.queue.back_mut() {
            Some(group) if group.revision == revision => group.events.push(event.clone()),
            _ => state.queue.push_back(Group { revision, events: vec![event.clone()] }),
        }
        drop(state);
        if is_first {
            self.bell.ring(self.id);
        }
    }
}

/// Numbers of this member's watches.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) watches: AtomicU64,
    /// Streams of clients, with any number of watches each.
    pub(crate) streams: AtomicU64,
    /// Watches that read from the store.
    pub(crate) behind: AtomicU64,
    /// Events that are queued for watches.
    pub(crate) pending: AtomicU64,
    /// Events that were sent to clients since the start.
    pub(crate) sent: AtomicU64,
}

/// All watches of this member.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    inner: Mutex<Inner>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Inner {
    /// The events of all revisions up to this one are queued.
    revision: i64,
    watches: ByKeys<Arc<Watch>>,
    count: usize,
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the revision whose events are queued, with those of all before.
    pub(crate) fn revision(&self) -> i64 {
        self.lock().revision
    }

    /// Adds a watch of the events from a revision on; zero: from now on. Returns it with the revision that the hub is at.
    pub(crate) fn add(&self, id: i64, wanted: EventFilter, from: i64, bell: &Arc<Bell>) -> (Arc<Watch>, i64) {
        let mut inner = self.lock();
        let revision = inner.revision;
        let next = if from == 0 { revision + 1 } else { from };
        let is_attached = next > revision;
        let state = State { next, is_attached, queue: VecDeque::new(), queued_bytes: 0, stream_bytes: 0 };
        let (bell, place) = (bell.clone(), AtomicUsize::new(REMOVED));
        let watch = Arc::new(Watch { id, wanted, bell, place, state: Mutex::new(state) });
        let place = inner.watches.insert(&watch.wanted.keys, watch.clone());
        watch.place.store(place, Ordering::Relaxed);
        inner.count += 1;
        self.counts.watches.fetch_add(1, Ordering::Relaxed);
        self.counts.behind.fetch_add(u64::from(!is_attached), Ordering::Relaxed);
        (watch, revision)
    }

    pub(crate) fn remove(&self, watch: &Watch) {
        let mut inner = self.lock();
        let place = watch.place.swap(REMOVED, Ordering::Relaxed);
        if place == REMOVED {
            return;
        }
        // A client may have tens of thousands of the same keys, and end all of them.
        inner.watches.remove(&watch.wanted.keys, place, |moved| moved.place.store(place, Ordering::Relaxed));
        inner.count -= 1;
        let mut state = lock(&watch.state);
        watch.bell.queued_bytes.fetch_sub(std::mem::take(&mut state.stream_bytes), Ordering::Relaxed);
        let queued: usize = state.queue.iter().map(|group| group.events.len()).sum();
        self.counts.watches.fetch_sub(1, Ordering::Relaxed);
        self.counts.behind.fetch_sub(u64::from(!state.is_attached), Ordering::Relaxed);
        self.counts.pending.fetch_sub(queued as u64, Ordering::Relaxed);
    }

    /// Drains the queued events: whole revisions, as no revision is being queued meanwhile.
    pub(crate) fn take(&self, watch: &Watch) -> VecDeque<Group> {
        let _inner = self.lock();
        let mut state = lock(&watch.state);
        state.queued_bytes = 0;
        watch.bell.queued_bytes.fetch_sub(std::mem::take(&mut state.stream_bytes), Ordering::Relaxed);
        let taken = std::mem::take(&mut state.queue);
        let events: usize = taken.iter().map(|group| group.events.len()).sum();
        self.counts.pending.fetch_sub(events as u64, Ordering::Relaxed);
        taken
    }

    /// Records that a watch that is behind has all events before a revision. Attaches it if the hub is at that revision, and
    /// returns whether it did.
    pub(crate) fn caught_up(&self, watch: &Watch, next: i64) -> bool {
        let inner = self.lock();
        let mut state = lock(&watch.state);
        state.next = state.next.max(next);
        let was_attached = state.is_attached;
        state.is_attached = state.next > inner.revision;
        match (was_attached, state.is_attached) {
            (false, true) => drop(self.counts.behind.fetch_sub(1, Ordering::Relaxed)),
            (true, false) => drop(self.counts.behind.fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
        state.is_attached
    }

    /// Returns the revision up to which these watches have received everything: no watch is behind, and no queue has events.
    pub(crate) fn progress<'a>(&self, watches: impl Iterator<Item = &'a Arc<Watch>>) -> Option<i64> {
        let inner = self.lock();
        for watch in watches {
            let state = lock(&watch.state);
            if !state.is_attached || !state.queue.is_empty() {
                return None;
            }
        }
        Some(inner.revision)
    }

    /// Queues the events of a revision, which can be read by now.
    pub(crate) fn publish(&self, revision: i64, events: Vec<Event>) {
        let mut inner = self.lock();
        inner.revision = inner.revision.max(revision);
        if inner.count == 0 {
            return;
        }
        for event in events {
            let Some(kv) = &event.kv else { continue };
            let (key, bytes, event) = (kv.key.clone(), event.encoded_len(), Arc::new(event));
            for watch in inner.watches.of(&key).filter(|watch| watch.wanted.is_met_by(&event)) {
                watch.push(revision, &event, bytes, &self.counts);
            }
        }
    }

    /// Has all watches look at the store, as watches that are behind do: the state cannot be read for now, and their streams end.
    pub(crate) fn detach_all(&self) {
        let inner = self.lock();
        self.detach(&inner, i64::MAX, inner.revision + 1);
    }

    /// Notes that the state was replaced by a later one: the events in between are in the store alone.
    pub(crate) fn skip_to(&self, revision: i64) {
        let mut inner = self.lock();
        let before = inner.revision;
        if revision <= before {
            return;
        }
        inner.revision = revision;
        self.detach(&inner, revision, before + 1);
    }

    /// Has attached watches that want events of up to this revision read from the store, from a revision on.
    fn detach(&self, inner: &Inner, until: i64, from: i64) {
        for watch in inner.watches.values() {
            let mut state = lock(&watch.state);
            if state.is_attached && state.next <= until {
                (state.is_attached, state.next) = (false, state.next.max(from));
                self.counts.behind.fetch_add(1, Ordering::Relaxed);
                drop(state);
                watch.bell.ring(watch.id);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
