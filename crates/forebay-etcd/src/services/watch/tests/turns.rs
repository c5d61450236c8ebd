//! Shows: no watch of a stream waits forever because of the others, and each has its events in order. How: the test polls a stream
//! for its responses one by one, on a member's real store, and rings the hub in between, so that nothing depends on time.

use tonic::codec::Codec;

use super::super::*;
use crate::mvcc;
use crate::server::tests::cluster::{Cluster, within};
use crate::services::{Authentication, Followers, Limits};

/// A stream on a member's store, with a hub of the events that the test has published.
struct Turns {
    cluster: Cluster,
    watches: StreamWatches,
    _stopping: tokio::sync::watch::Sender<bool>,
}

impl Turns {
    /// The stream's client has sent these requests, and sends no more.
    async fn new(requests: Vec<WatchRequest>) -> Turns {
        let cluster = Cluster::start(1, &[]).await;
        let (stopping, is_stopping) = tokio::sync::watch::channel(false);
        let limits = Limits {
            request_bytes_max: 1 << 20,
            lease_s_min: 1,
            lease_more: Duration::from_secs(1),
            progress_interval: Duration::from_secs(3600),
            snapshot_patience: Duration::from_secs(3600),
            state: mvcc::Limits::default(),
        };
        let node = cluster.members[0].node().clone();
        let authentication = Authentication::open(&cluster.members[0].config()).unwrap();
        let context = Context::new(node, Arc::<Followers>::default(), limits, authentication, is_stopping);
        let frames = requests.into_iter().map(|request| {
            let message = request.encode_to_vec();
            let head = [&[0][..], &(message.len() as u32).to_be_bytes()].concat();
            Ok::<_, std::convert::Infallible>([head, message].concat())
        });
        let frames = futures_util::stream::iter(frames).chain(futures_util::stream::pending());
        let body = axum::body::Body::from_stream(frames);
        let decoder = tonic_prost::ProstCodec::<WatchRequest, WatchRequest>::default().decoder();
        let requests = Streaming::new_request(decoder, body, None, None);
        Turns {
            cluster,
            watches: StreamWatches::new(context, Credentials::default(), requests),
            _stopping: stopping,
        }
    }

    async fn put(&self, key: &str, bytes: usize) {
        self.cluster.members[0].put(key, &"v".repeat(bytes)).await.unwrap();
    }

    /// Publishes what was put since the last time.
    async fn publish(&self) {
        let hub = &self.watches.context.hub;
        let view = self.view().await;
        let (events, _) = view.events(hub.revision() + 1, |_| true, usize::MAX).await.unwrap();
        for event in events {
            hub.publish(event.kv.as_ref().unwrap().mod_revision, vec![event]);
        }
    }

    async fn view(&self) -> View {
        View::of(self.watches.context.node.store()).await.unwrap()
    }

    /// Makes a watch, and returns its id.
    fn watch(&mut self, key: &str, start_revision: i64) -> i64 {
        let create = WatchCreateRequest { key: key.into(), start_revision, ..Default::default() };
        self.watches.create(create);
        let created = self.watches.responses.pop_back().unwrap();
        assert!(created.created && !created.canceled);
        created.watch_id
    }

    async fn next(&mut self) -> WatchResponse {
        within(self.watches.next()).await.ok().unwrap()
    }
}

/// Once, the store was read for a watch from an old revision only when the stream had no other work. With another watch whose
/// events arrive faster than they are sent, it had no event until its revisions were compacted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_is_behind_catches_up_beside_a_busy_one() {
    let mut turns = Turns::new(Vec::new()).await;
    turns.put("old", 1).await;
    turns.publish().await;
    let (behind, busy) = (turns.watch("old", 1), turns.watch("busy", 0));
    let mut events_of_busy = 0;
    loop {
        turns.put("busy", 1).await;
        turns.publish().await;
        let response = turns.next().await;
        if response.watch_id == behind {
            assert_eq!(&response.events[0].kv.as_ref().unwrap().key[..], b"old");
            break;
        }
        events_of_busy += response.events.len();
        assert!(events_of_busy < 10, "it waits for a busy watch");
    }
    // And the busy one does not wait for it.
    while events_of_busy == 0 {
        let response = turns.next().await;
        assert_eq!(response.watch_id, busy);
        events_of_busy += response.events.len();
    }
    turns.cluster.stop().await;
}

/// A client that makes very many watches sends their requests in a row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_do_not_wait_for_all_requests() {
    let refused = WatchCreateRequest { start_revision: -1, ..Default::default() };
    let refused = WatchRequest { request_union: Some(RequestUnion::CreateRequest(refused)) };
    let mut turns = Turns::new(vec![refused; 1000]).await;
    // Catching up needs several reads.
    for _ in 0..60 {
        turns.put("old", 60_000).await;
    }
    turns.publish().await;
    let (behind, attached) = (turns.watch("old", 1), turns.watch("key", 0));
    turns.put("key", 1).await;
    turns.publish().await;
    let mut left = vec![behind, attached];
    for number in 0.. {
        let response = turns.next().await;
        left.retain(|id| *id != response.watch_id);
        if left.is_empty() {
            break;
        }
        assert!(number < 200, "{left:?} wait for requests");
    }
    turns.cluster.stop().await;
}

/// Story: etcd passes over a request for the progress of a stream that has no watch. Here it had a response of no watch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_without_a_watch_has_no_progress() {
    let refused = WatchCreateRequest { start_revision: -1, ..Default::default() };
    let requests = [RequestUnion::ProgressRequest(Default::default()), RequestUnion::CreateRequest(refused)];
    let requests = requests.map(|request| WatchRequest { request_union: Some(request) });
    let mut turns = Turns::new(requests.to_vec()).await;
    assert!(turns.next().await.created, "the response to the second request");
    turns.cluster.stop().await;
}

/// Once, the timer for progress was looked at last, and never while another watch of the stream had events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_is_reported_beside_a_busy_watch() {
    let mut turns = Turns::new(Vec::new()).await;
    let busy = turns.watch("busy", 0);
    let create = WatchCreateRequest { key: "idle".into(), progress_notify: true, ..Default::default() };
    turns.watches.create(create);
    let idle = turns.next().await.watch_id;
    // The first tick is due immediately.
    turns.watches.ticks = tokio::time::interval(Duration::from_secs(3600));
    // That is seen once the runtime has looked at its timers, which a busy machine may delay.
    let progress = async {
        loop {
            turns.put("busy", 1).await;
            turns.publish().await;
            let response = turns.next().await;
            if response.watch_id == idle {
                assert!(response.events.is_empty());
                break;
            }
            assert_eq!(response.watch_id, busy);
        }
    };
    within(progress).await;
    turns.cluster.stop().await;
}

/// Once, a watch that fell behind while the store was opened for others was included in the read. Its queued events followed later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_falls_behind_during_a_read_keeps_its_order() {
    let mut turns = Turns::new(Vec::new()).await;
    turns.put("old", 1).await;
    turns.publish().await;
    let (behind, full) = (turns.watch("old", 1), turns.watch("full", 0));
    let ids = turns.watches.deliver_behind();
    assert_eq!(ids, [behind]);
    let (mut puts, mut last) = (0, 0);
    while turns.watches.watches[&full].watch.behind_from().is_none() {
        turns.put("full", 60_000).await;
        turns.publish().await;
        puts += 1;
    }
    let view = turns.view().await;
    assert!(turns.watches.read_behind(&ids, &view).await.is_ok());
    let mut events = 0;
    while events < puts {
        let response = turns.next().await;
        for event in response.events.iter().filter(|_| response.watch_id == full) {
            let revision = event.kv.as_ref().unwrap().mod_revision;
            assert!(revision > last, "{revision} comes after {last}");
            (events, last) = (events + 1, revision);
        }
    }
    turns.cluster.stop().await;
}

/// Once, a watch that had fallen a little behind had nothing until the one with the oldest revision had read all of its history.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_with_little_to_read_does_not_wait_for_one_with_much() {
    let mut turns = Turns::new(Vec::new()).await;
    let puts = 100;
    for _ in 0..puts {
        turns.put("far", 60_000).await;
    }
    turns.put("near", 1).await;
    turns.publish().await;
    let revision = turns.watches.context.hub.revision();
    let (far, near) = (turns.watch("far", 1), turns.watch("near", revision));
    let (mut events_of_far, mut has_near) = (0, false);
    while events_of_far < puts {
        let response = turns.next().await;
        if response.watch_id == near {
            assert!(events_of_far < puts / 2, "it came after {events_of_far} of {puts} events");
            has_near = true;
        } else {
            assert_eq!(response.watch_id, far);
            events_of_far += response.events.len();
        }
    }
    assert!(has_near);
    turns.cluster.stop().await;
}

/// Once, the history of other keys was read in one pass of any length. Meanwhile the stream read no request and sent no event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_of_unwanted_events_has_an_end() {
    let mut turns = Turns::new(Vec::new()).await;
    turns.put("rare", 1).await;
    for _ in 0..20 {
        turns.put("other", 1000).await;
    }
    turns.put("rare", 1).await;
    let view = turns.view().await;
    let (mut next, mut reads, mut found) = (1, 0, 0);
    while next <= view.revision() {
        let (events, after) = view.events(next, |key| key == b"rare", 1000).await.unwrap();
        assert!(after > next && after - next <= 10, "revisions {next} to {after} at once");
        (next, reads, found) = (after, reads + 1, found + events.len());
    }
    assert!((3..=10).contains(&reads) && found == 2, "{reads} reads, {found} events");
    turns.cluster.stop().await;
}

/// Story: watches of the same keys on one stream, all from an old revision, each had a copy of a megabyte of history, all of them in memory
/// together: of 1,000 watches several gigabytes, and the server was ended for lack of memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_the_same_history_do_not_have_all_of_it_in_memory() {
    let mut turns = Turns::new(Vec::new()).await;
    let (puts, watches) = (100, 50);
    for _ in 0..puts {
        turns.put("key", 1).await;
    }
    turns.publish().await;
    for _ in 0..watches {
        turns.watch("key", 1);
    }
    let mut seen: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    while seen.values().map(Vec::len).sum::<usize>() < puts * watches {
        let response = turns.next().await;
        let revisions = response.events.iter().map(|event| event.kv.as_ref().unwrap().mod_revision);
        seen.entry(response.watch_id).or_default().extend(revisions);
        let waiting: usize = turns.watches.responses.iter().map(|response| response.events.len()).sum();
        assert!(waiting < COPIES_MAX + watches, "{waiting} events at once");
    }
    let all: Vec<i64> = seen[&0].clone();
    assert!(all.len() == puts && all.is_sorted_by(|a, b| a < b), "{all:?}");
    assert!(seen.len() == watches && seen.values().all(|revisions| *revisions == all));
    turns.cluster.stop().await;
}
