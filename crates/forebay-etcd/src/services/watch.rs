//! The Watch service. A stream's responses are made when the connection polls for them, without a queue in between. Its requests
//! are read as they arrive.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use prost::Message;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tonic::{Request, Response, Status, Streaming};

use super::ahead::Ahead;
use super::rights::Credentials;
use super::{Context, StopSignal, healing, stopped};
use crate::accounts::Need;
use crate::answer::{Answer, forward};
use crate::hub::{Bell, ByKeys, EventFilter, Group, Keys, Watch};
use crate::mvcc::View;
use crate::proto::etcdserverpb::watch_create_request::FilterType;
use crate::proto::etcdserverpb::watch_request::RequestUnion;
use crate::proto::etcdserverpb::watch_server::Watch as WatchService;
use crate::proto::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use crate::proto::mvccpb::Event;
use crate::refusal::Refusal;

/// Bytes of events read from the store together for watches that are behind.
const READ_BYTES_MAX: usize = 1 << 20;
/// Events that watches get of such a read together, after which it ends with their revision: each of many watches of the same keys has a
/// copy of an event.
const COPIES_MAX: usize = if cfg!(test) { 1_000 } else { 1 << 16 };
/// A shorter interval would cause noticeable load.
const PROGRESS_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// One of this many reads is for the watch that has the least to read: it does not wait for another one's long history. The
/// others are for the one that has the most, and with it for all.
const READS_OF_MOST: u32 = 4;
/// After this many requests in a row, events have priority once.
const REQUESTS_MAX: u32 = 64;
/// The watch id of responses to no watch.
const NO_WATCH: i64 = -1;

#[derive(Clone)]
pub(crate) struct Watches {
    pub(super) context: Context,
}

type Responses = BoxStream<'static, Result<WatchResponse, Status>>;

impl Watches {
    fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Answer<'_, Response<Responses>> {
        Box::pin(async move {
            let (by, requests) = Credentials::split(request);
            let watches = StreamWatches::new(self.context.clone(), by, requests);
            let responses = futures_util::stream::unfold(Some(watches), |watches| async move {
                let mut watches = watches?;
                match watches.next().await {
                    Ok(response) => Some((Ok(response), Some(watches))),
                    Err(StreamEnd(status)) => status.map(|status| (Err(status), None)),
                }
            });
            Ok(Response::new(responses.boxed()))
        })
    }
}

impl WatchService for Watches {
    type WatchStream = Responses;

    forward! {
        watch(Streaming<WatchRequest>) -> Responses;
    }
}

/// The end of a stream: without a status if the client has ended it.
struct StreamEnd(Option<Status>);

struct StreamWatches {
    context: Context,
    by: Credentials,
    requests: Ahead<WatchRequest>,
    stopping: StopSignal,
    /// Responses to send next.
    responses: VecDeque<WatchResponse>,
    /// The end of the stream, after these responses.
    ended: Option<StreamEnd>,
    bell: Arc<Bell>,
    /// Watches that have events.
    rung: VecDeque<i64>,
    watches: BTreeMap<i64, Own>,
    /// Watches that read from the store. A watch that falls behind rings.
    behind: BTreeSet<i64>,
    next_id: i64,
    /// The client asked for the revision that all its watches are at, and some are behind.
    owes_progress: bool,
    /// Watches that are behind have waited for others since the last read of the store.
    owes_read: bool,
    /// Since events were looked for.
    requests_in_row: u32,
    /// Of the store, for watches that are behind.
    reads: u32,
    ticks: Interval,
}

struct Own {
    watch: Arc<Watch>,
    prev_kv: bool,
    fragment: bool,
    /// Progress is reported if nothing was sent since the tick before.
    progress: Option<bool>,
}

impl Drop for StreamWatches {
    fn drop(&mut self) {
        self.watches.values().for_each(|own| self.context.hub.remove(&own.watch));
        self.context.hub.counts().streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl StreamWatches {
    fn new(context: Context, by: Credentials, requests: Streaming<WatchRequest>) -> StreamWatches {
        // Not all streams together: clients that were restarted together create them together.
        let interval = context.limits.progress_interval.max(PROGRESS_INTERVAL_MIN);
        let interval = interval + interval / 10 * (context.next_stream() % 16) / 16;
        let mut ticks = tokio::time::interval_at(Instant::now() + interval, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        context.hub.counts().streams.fetch_add(1, Ordering::Relaxed);
        StreamWatches {
            stopping: context.stopping.clone(),
            requests: Ahead::new(requests, context.ahead.clone()),
            context,
            by,
            responses: VecDeque::new(),
            bell: Arc::default(),
            rung: VecDeque::new(),
            ended: None,
            watches: BTreeMap::new(),
            behind: BTreeSet::new(),
            next_id: 0,
            owes_progress: false,
            owes_read: false,
            requests_in_row: 0,
            reads: 0,
            ticks,
        }
    }

    /// Returns the next response, or the end after the last one.
    async fn next(&mut self) -> Result<WatchResponse, StreamEnd> {
        loop {
            if let Some(response) = self.responses.pop_front() {
                return Ok(response);
            }
            if let Some(ended) = self.ended.take() {
                return Err(ended);
            }
            self.ended = self.turn().await.err();
        }
    }

    /// Does the next work, or waits for work.
    async fn turn(&mut self) -> Result<(), StreamEnd> {
        if let Some(id) = self.rung.pop_front() {
            self.deliver(id);
            self.pay_progress();
            return Ok(());
        }
        let is_behind = !self.behind.is_empty();
        // With a busy watch, or a slow client, every turn has other work.
        if is_behind && self.owes_read {
            return self.catch_up().await;
        }
        let mut is_tick = false;
        let are_events_first = self.requests_in_row >= REQUESTS_MAX;
        let event = async {
            tokio::select! {
                biased;
                () = stopped(&mut self.stopping) => Err(StreamEnd(Some(Refusal::Stopped.into()))),
                // It is due seldom, so what follows does not wait for it.
                _ = self.ticks.tick() => { is_tick = true; Ok(None) }
                ids = self.bell.rung(), if are_events_first => { self.rung = ids.into(); Ok(None) }
                // An end of the requests is the client's end as well, or has a reason.
                request = self.requests.next() => match request {
                    Some((request, _)) => Ok(Some(request)),
                    None => Err(StreamEnd(self.requests.refusal())),
                },
                ids = self.bell.rung() => { self.rung = ids.into(); Ok(None) }
            }
        };
        let request = if is_behind {
            // A cancelled wait loses neither a request nor an event.
            match event.now_or_never() {
                Some(event) => event?,
                None => return self.catch_up().await,
            }
        } else {
            event.await?
        };
        if let Some(request) = request {
            self.requested(request);
            self.requests_in_row = self.requests_in_row.wrapping_add(1);
            self.owes_read |= self.requests_in_row.is_multiple_of(REQUESTS_MAX);
        }
        if !self.rung.is_empty() {
            (self.owes_read, self.requests_in_row) = (true, 0);
        }
        if is_tick {
            self.report_progress();
        }
        self.pay_progress();
        Ok(())
    }

    fn send(&mut self, response: WatchResponse) {
        self.responses.push_back(response);
    }

    fn response(&self, id: i64, revision: i64) -> WatchResponse {
        let header = Some(self.context.node.header(revision));
        WatchResponse { header, watch_id: id, ..Default::default() }
    }

    fn revision(&self) -> i64 {
        self.context.hub.revision()
    }

    fn requested(&mut self, request: WatchRequest) {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request),
            Some(RequestUnion::CancelRequest(request)) => {
                if !self.remove(request.watch_id) {
                    return;
                }
                let response = self.response(request.watch_id, self.revision());
                self.send(WatchResponse { canceled: true, ..response });
            }
            // As in etcd, a stream without a watch has no progress.
            Some(RequestUnion::ProgressRequest(_)) => self.owes_progress |= !self.watches.is_empty(),
            None => {}
        }
    }

    /// Returns whether the watch existed.
    fn remove(&mut self, id: i64) -> bool {
        self.behind.remove(&id);
        let own = self.watches.remove(&id);
        own.inspect(|own| self.context.hub.remove(&own.watch)).is_some()
    }

    fn refuse(&mut self, reason: &str) {
        let response = self.response(NO_WATCH, self.revision());
        let cancel_reason = reason.to_owned();
        self.send(WatchResponse { created: true, canceled: true, cancel_reason, ..response });
    }

    fn create(&mut self, request: WatchCreateRequest) {
        if request.start_revision < 0 {
            return self.refuse(Refusal::Compacted.text());
        }
        // An empty key is the first one that there may be.
        let first: &[u8] = if request.key.is_empty() { &[0] } else { &request.key };
        let permitted = self.context.check(&self.by, |check| check(Need::Read(first, &request.range_end)));
        if let Err(refusal) = permitted {
            return self.refuse(&format!("rpc error: code = {:?} desc = {}", refusal.code(), refusal.text()));
        }
        let Some(keys) = Keys::of(&request.key, &request.range_end) else {
            return self.refuse("mvcc: watcher range is empty");
        };
        let id = match request.watch_id {
            0 => {
                while self.watches.contains_key(&self.next_id) {
                    self.next_id += 1;
                }
                self.next_id
            }
            id if self.watches.contains_key(&id) => {
                return self.refuse("mvcc: duplicate watch ID provided on the WatchStream");
            }
            id => id,
        };
        let filters = |filter| request.filters.contains(&(filter as i32));
        let wanted =
            EventFilter { keys, puts: !filters(FilterType::Noput), deletes: !filters(FilterType::Nodelete) };
        let (watch, revision) = self.context.hub.add(id, wanted, request.start_revision, &self.bell);
        if watch.behind_from().is_some() {
            self.behind.insert(id);
        }
        let progress = request.progress_notify.then_some(true);
        let own = Own { watch, prev_kv: request.prev_kv, fragment: request.fragment, progress };
        self.watches.insert(id, own);
        if request.watch_id == 0 {
            self.next_id += 1;
        }
        let response = self.response(id, revision);
        self.send(WatchResponse { created: true, ..response });
    }

    /// Sends the queued events of a watch.
    fn deliver(&mut self, id: i64) {
        let Some(own) = self.watches.get(&id) else { return };
        if own.watch.behind_from().is_some() {
            self.behind.insert(id);
        }
        let taken = self.context.hub.take(&own.watch);
        self.send_groups(id, taken, 0);
    }

    /// Sends events. Those from the store are sent with the revision `at` which it was read, as etcd does.
    fn send_groups(&mut self, id: i64, mut groups: VecDeque<Group>, at: i64) {
        while !groups.is_empty() {
            // Several revisions in a response, but not all of them at any length.
            let (mut revision, mut events, mut bytes) = (at, Vec::new(), 0);
            while let Some(group) = groups.front() {
                let more: usize = group.events.iter().map(|event| event.encoded_len()).sum();
                if bytes > 0 && bytes + more > READ_BYTES_MAX {
                    break;
                }
                bytes += more;
                revision = revision.max(group.revision);
                events.extend(groups.pop_front().into_iter().flat_map(|group| group.events));
            }
            let Some(own) = self.watches.get_mut(&id) else { return };
            if let Some(progress) = &mut own.progress {
                *progress = false;
            }
            let (prev_kv, fragment) = (own.prev_kv, own.fragment);
            let events = events.into_iter().map(|event| Event {
                r#type: event.r#type,
                kv: event.kv.clone(),
                prev_kv: event.prev_kv.as_ref().filter(|_| prev_kv).cloned(),
            });
            let response = WatchResponse { events: events.collect(), ..self.response(id, revision) };
            self.context.hub.counts().sent.fetch_add(response.events.len() as u64, Ordering::Relaxed);
            let bytes_max = self.context.limits.request_bytes_max;
            if fragment && response.encoded_len() >= bytes_max {
                self.responses.extend(fragments(response, bytes_max));
            } else {
                self.send(response);
            }
        }
    }

    /// Reads events for all watches that are behind, and attaches those that have reached the hub's revision.
    async fn catch_up(&mut self) -> Result<(), StreamEnd> {
        let ids = self.deliver_behind();
        if self.context.node.is_healing() {
            return Err(StreamEnd(Some(healing())));
        }
        match self.context.node.view().await {
            Ok(view) => self.read_behind(&ids, &view).await,
            Err(status) => Err(StreamEnd(Some(status))),
        }
    }

    /// Sends the events that watches behind had queued before: they precede those of the store. Returns their ids.
    fn deliver_behind(&mut self) -> Vec<i64> {
        let ids: Vec<i64> = self.behind.iter().copied().collect();
        for &id in &ids {
            self.deliver(id);
        }
        ids
    }

    /// Reads events only for these watches: a watch that has fallen behind meanwhile has earlier events in its queue.
    async fn read_behind(&mut self, ids: &[i64], view: &View) -> Result<(), StreamEnd> {
        self.owes_read = false;
        let behind = |own: &Own| own.watch.behind_from();
        for &id in ids {
            let from = self.watches.get(&id).and_then(behind);
            if from.is_some_and(|from| from < view.compacted()) {
                self.remove(id);
                let response = self.response(id, view.revision());
                let compact_revision = view.compacted();
                self.send(WatchResponse { canceled: true, compact_revision, ..response });
            }
        }
        let mut behind: Vec<(i64, i64, Arc<Watch>)> = ids
            .iter()
            .filter_map(|id| self.watches.get(id).map(|own| (*id, own)))
            .filter_map(|(id, own)| Some((id, behind(own)?, own.watch.clone())))
            .collect();
        self.reads = self.reads.wrapping_add(1);
        let all_from = behind.iter().map(|(_, from, _)| *from);
        let from = if self.reads.is_multiple_of(READS_OF_MOST) { all_from.max() } else { all_from.min() };
        let Some(from) = from else { return Ok(()) };
        behind.retain(|(_, its, _)| *its >= from);
        let mut by_keys = ByKeys::default();
        for (at, (_, _, watch)) in behind.iter().enumerate() {
            by_keys.insert(&watch.wanted().keys, at);
        }
        let wanted = |key: &[u8]| by_keys.of(key).next().is_some();
        let (events, mut next) = match view.events(from, wanted, READ_BYTES_MAX).await {
            Ok(found) => found,
            // They are still behind, and are read again.
            Err(failure) if view.is_replaced(self.context.node.store(), &failure).await => return Ok(()),
            Err(failure) if failure.damage().is_some() => {
                let first = behind.iter().filter(|(_, its, _)| *its == from).map(|(id, ..)| *id);
                let (ids, damage) = (first.collect(), self.context.node.unread(failure));
                self.cancel_damaged(ids, view.revision(), &damage);
                return Ok(());
            }
            Err(failure) => return Err(StreamEnd(Some(failure.into()))),
        };
        let mut groups: HashMap<usize, VecDeque<Group>> = HashMap::new();
        let (mut copies, mut last) = (0, 0);
        for event in events.into_iter().map(Arc::new) {
            let Some(kv) = &event.kv else { continue };
            let revision = kv.mod_revision;
            if copies >= COPIES_MAX && revision > last {
                next = revision;
                break;
            }
            last = revision;
            for &at in by_keys.of(&kv.key) {
                let Some((_, from, watch)) = behind.get(at) else { continue };
                if revision < *from || !watch.wanted().is_met_by(&event) {
                    continue;
                }
                copies += 1;
                let groups = groups.entry(at).or_default();
                match groups.back_mut() {
                    Some(group) if group.revision == revision => group.events.push(event.clone()),
                    _ => groups.push_back(Group { revision, events: vec![event.clone()] }),
                }
            }
        }
        for (at, (id, from, watch)) in behind.iter().enumerate() {
            if self.context.hub.caught_up(watch, next.max(*from)) {
                self.behind.remove(id);
            }
            self.send_groups(*id, groups.remove(&at).unwrap_or_default(), view.revision());
        }
        self.pay_progress();
        Ok(())
    }

    /// Cancels the watches that have read from the damaged history first. The others read it again, behind the damage or not.
    fn cancel_damaged(&mut self, ids: Vec<i64>, revision: i64, damage: &Status) {
        for id in ids {
            self.remove(id);
            let cancel_reason = format!("the history of this member is damaged: {}", damage.message());
            let response = self.response(id, revision);
            self.send(WatchResponse { canceled: true, cancel_reason, ..response });
        }
    }

    fn report_progress(&mut self) {
        let mut due = Vec::new();
        for (id, own) in &mut self.watches {
            if let Some(is_due) = &mut own.progress
                && std::mem::replace(is_due, true)
            {
                due.push(*id);
            }
        }
        for id in due {
            let Some(own) = self.watches.get(&id) else { continue };
            if let Some(revision) = self.context.hub.progress(std::iter::once(&own.watch)) {
                self.send(self.response(id, revision));
            }
        }
    }

    /// Sends the progress that the client asked for, once no watch is behind.
    fn pay_progress(&mut self) {
        if !self.owes_progress {
            return;
        }
        let watches = self.watches.values().map(|own| &own.watch);
        let Some(revision) = self.context.hub.progress(watches) else { return };
        self.owes_progress = false;
        self.send(self.response(NO_WATCH, revision));
    }
}

/// Splits a response, so that each has fewer bytes than `bytes_max`, or one event.
fn fragments(response: WatchResponse, bytes_max: usize) -> Vec<WatchResponse> {
    let empty = WatchResponse { events: Vec::new(), fragment: true, ..response.clone() };
    let base = empty.encoded_len() + 16;
    let mut parts: Vec<WatchResponse> = Vec::new();
    let mut bytes = 0;
    for event in response.events {
        let more = event.encoded_len() + 8;
        match parts.last_mut() {
            Some(part) if bytes + more < bytes_max => {
                part.events.push(event);
                bytes += more;
            }
            _ => {
                parts.push(WatchResponse { events: vec![event], ..empty.clone() });
                bytes = base + more;
            }
        }
    }
    if let Some(last) = parts.last_mut() {
        last.fragment = false;
    }
    parts
}

#[cfg(test)]
mod tests {
    mod turns;

    use super::*;
    use crate::proto::mvccpb::KeyValue;

    #[test]
    fn fragments_have_all_events_and_say_which_is_the_last() {
        let event = |bytes| {
            let kv = KeyValue { key: "key".into(), value: vec![7; bytes].into(), ..Default::default() };
            Event { kv: Some(kv), ..Default::default() }
        };
        let events: Vec<Event> = [10, 400, 400, 3_000, 10, 10].map(event).to_vec();
        let response = WatchResponse { watch_id: 7, events: events.clone(), ..Default::default() };
        let parts = fragments(response, 1_000);
        assert_eq!(parts.iter().map(|part| part.events.len()).collect::<Vec<_>>(), [3, 1, 2]);
        assert_eq!(parts.iter().map(|part| part.fragment).collect::<Vec<_>>(), [true, true, false]);
        assert!(
            parts
                .iter()
                .all(|part| part.watch_id == 7 && (part.encoded_len() < 1_000 || part.events.len() == 1))
        );
        assert_eq!(parts.into_iter().flat_map(|part| part.events).collect::<Vec<_>>(), events);
    }
}
