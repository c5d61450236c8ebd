//! Watches of all keys from the first revision on, which continue at another member whenever one ends.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use etcd_client::{Client, EventType, KeyValue, WatchOptions};
use forebay_test::draw::Draw;
use tokio::time::timeout;

use super::PATIENCE;
use super::check::{Record, Tick};
use super::past::{Event, Pair};

/// How long a watcher waits for events before it may turn to another member.
const SILENCE: Duration = Duration::from_millis(400);

/// An event as it was shown first.
#[derive(Clone, Debug)]
pub(crate) struct ShownEvent {
    pub(crate) event: Event,
    pub(crate) tick: Tick,
    pub(crate) at: Instant,
}

/// When a watcher leaves a member that still serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    /// Never.
    Stays,
    /// When it hears nothing, with a chance.
    LeavesSilence,
    /// At any time, with a chance.
    Hops,
}

/// What all watchers have seen, which must be the same.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    shown: Mutex<Vec<ShownEvent>>,
    /// The last whole revision of each watcher.
    positions: Mutex<Vec<i64>>,
    problem: Mutex<Option<String>>,
    /// Connections that watchers have made.
    pub(crate) connections: std::sync::atomic::AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feed {
    /// Returns the events from a place on up to a revision.
    pub(crate) fn range(&self, from: usize, revision: i64) -> Vec<ShownEvent> {
        let shown = lock(&self.shown);
        shown[from..].iter().take_while(|shown| shown.event.revision <= revision).cloned().collect()
    }

    /// Returns the lowest revision reached by every watcher.
    pub(crate) fn reached(&self) -> i64 {
        lock(&self.positions).iter().copied().min().unwrap_or(0)
    }

    pub(crate) fn problem(&self) -> Option<String> {
        lock(&self.problem).clone()
    }

    fn set_problem(&self, text: String) {
        lock(&self.problem).get_or_insert(text);
    }

    /// Returns whether a watcher's next event is the one that it must be.
    fn take(&self, place: usize, event: Event, record: &Record) -> Result<(), String> {
        let mut shown = lock(&self.shown);
        match shown.get(place) {
            None => shown.push(ShownEvent { event, tick: record.tick(), at: Instant::now() }),
            Some(other) if other.event != event => {
                return Err(format!("watches differ: one has shown {:?}, another {event:?}", other.event));
            }
            Some(_) => {}
        }
        Ok(())
    }
}

/// Returns a pair as the checker has it. Values are decimal numbers.
pub(crate) fn pair(kv: &KeyValue) -> Pair {
    Pair {
        value: kv.value_str().ok().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX),
        created: kv.create_revision(),
        modified: kv.mod_revision(),
        version: kv.version(),
        lease: kv.lease(),
    }
}

pub(crate) fn key(kv: &KeyValue) -> String {
    String::from_utf8_lossy(kv.key()).into_owned()
}

pub(crate) struct Watcher {
    pub(crate) number: usize,
    pub(crate) urls: Vec<String>,
    pub(crate) habit: Habit,
    pub(crate) feed: Arc<Feed>,
    pub(crate) record: Arc<Record>,
    pub(crate) random: Draw,
    /// Wrong on purpose: a watcher that resumes after the next revision.
    pub(crate) skips: bool,
}

impl Watcher {
    /// Follows the keys until it is aborted, or has seen something wrong.
    pub(crate) async fn follow(mut self) {
        {
            let mut positions = lock(&self.feed.positions);
            let count = positions.len().max(self.number + 1);
            positions.resize(count, 1);
        }
        let (mut place, mut revision) = (0, 1);
        for at in self.number.. {
            let url = self.urls[at % self.urls.len()].clone();
            if let Err(problem) = self.follow_one(&url, &mut place, &mut revision).await {
                return self.feed.set_problem(format!("watcher {}: {problem}", self.number));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Follows the keys at one member. The watch ends by itself, or the watcher leaves.
    async fn follow_one(&mut self, url: &str, place: &mut usize, revision: &mut i64) -> Result<(), String> {
        let Ok(mut client) = Client::connect([url], None).await else { return Ok(()) };
        let skipped = i64::from(self.skips && *revision > 1);
        let options =
            WatchOptions::new().with_all_keys().with_prev_key().with_start_revision(*revision + 1 + skipped);
        let Ok(Ok(mut stream)) = timeout(PATIENCE, client.watch("", Some(options))).await else {
            return Ok(());
        };
        self.feed.connections.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        loop {
            let response = match timeout(SILENCE, stream.message()).await {
                Ok(Ok(Some(response))) => response,
                Ok(_) => return Ok(()),
                Err(_) if self.habit != Habit::Stays && self.random.below(3) == 0 => return Ok(()),
                Err(_) => continue,
            };
            if response.canceled() {
                return match response.compact_revision() {
                    0 => Ok(()),
                    // Compactions are below the revision of every watcher.
                    compacted => Err(format!("the watch from {revision} ended: compacted {compacted}")),
                };
            }
            let first = *revision;
            for event in response.events() {
                let kv = event.kv().ok_or("an event without a pair")?;
                let is_put = event.event_type() == EventType::Put;
                let event = Event {
                    revision: kv.mod_revision(),
                    key: key(kv),
                    now: is_put.then(|| pair(kv)),
                    before: event.prev_kv().map(pair),
                };
                if event.revision <= first {
                    return Err(format!("{event:?} comes after revision {first}, in a response of its own"));
                }
                *revision = event.revision;
                self.feed.take(*place, event, &self.record)?;
                *place += 1;
            }
            lock(&self.feed.positions)[self.number] = *revision;
            if self.habit == Habit::Hops && self.random.below(25) == 0 {
                return Ok(());
            }
        }
    }
}
