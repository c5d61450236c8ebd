//! Shows: a client may send thousands of small requests on a stream before it reads a reply. None is lost, and its connection stays.
//! How: clients whose windows are small, so that replies stay with the server until they are read.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use super::cluster::{Cluster, Member, until, within};
use crate::mvcc::tests::Real;
use crate::proto::etcdserverpb::kv_client::KvClient;
use crate::proto::etcdserverpb::lease_client::LeaseClient;
use crate::proto::etcdserverpb::watch_client::WatchClient;
use crate::proto::etcdserverpb::watch_request::RequestUnion;
use crate::proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, PutRequest, RangeRequest, WatchCreateRequest, WatchRequest,
    WatchResponse,
};
use crate::proto::peer::command::Change;
use crate::services::STREAM_MAX;

fn channel(member: &Member) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}:2379", member.address)).unwrap();
    endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535).connect_lazy()
}

/// Requests, and the number that the connection has consumed.
fn counted<T: Clone + Send + 'static>(
    requests: impl Iterator<Item = T> + Send + 'static,
) -> (impl Stream<Item = T> + Send + 'static, Arc<AtomicUsize>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let note = move |_: &T| {
        count.fetch_add(1, Ordering::Relaxed);
    };
    (stream::iter(requests).inspect(note), sent)
}

async fn are_sent(sent: &AtomicUsize, least: usize) {
    until(async || sent.load(Ordering::Relaxed) >= least).await;
}

/// Once, each keep-alive waited for a separate read round, and the requests behind it stayed unread. At about 2,000 of them, the
/// connection was closed with all its streams. Of 20,000 leases 17,343 ended while their client kept them alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keep_alives_share_rounds_and_are_read_before_their_replies_are() {
    let mut cluster = Cluster::start(3, &[]).await;
    let leader = cluster.leader().await;
    let leases = 200;
    let grants = (1..=leases).map(|id| LeaseGrantRequest { id, ttl: 600 }).map(Change::LeaseGrant);
    let grants = grants.map(|grant| cluster.members[leader].propose(grant));
    futures_util::future::try_join_all(grants).await.unwrap();
    // More than a stream reads ahead and its window holds (8,192 of 16 bytes), so that the rest waits with the client.
    let count = STREAM_MAX + 10_000;
    let of = move |at: usize| at as i64 % leases + 1;
    let counts = cluster.members[leader].node().counts();
    let rounds_before = counts.read_rounds.load(Ordering::Relaxed);
    let follower = &cluster.members[(leader + 1) % 3];
    let (requests, sent) = counted((0..count).map(move |at| LeaseKeepAliveRequest { id: of(at) }));
    let mut client = LeaseClient::new(channel(follower));
    let mut replies = within(client.lease_keep_alive(requests)).await.unwrap().into_inner();
    are_sent(&sent, STREAM_MAX).await;
    for at in 0..count {
        let reply = within(replies.message()).await.unwrap().unwrap();
        assert_eq!((reply.id, reply.ttl), (of(at), 600), "reply {at}");
    }
    assert!(within(replies.message()).await.unwrap().is_none(), "the client has ended its requests");
    let rounds = counts.read_rounds.load(Ordering::Relaxed) - rounds_before;
    // How many are there together depends on the machine. Once, each had its own round.
    assert!(rounds < count as u64 / 2, "{rounds} rounds for {count} keep-alives");
    drop((client, replies));
    cluster.stop().await;
}

/// Once, 6,000 watches that a client requested in a row were never created.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_many_watches_on_a_stream_have_their_events() {
    let mut cluster = Cluster::start(1, &[]).await;
    let (watches, keys) = (7_000, 100);
    let key = move |at: usize| format!("key{}", at % keys).into_bytes();
    let put_all = async |value: &str| {
        let put = |at| PutRequest { key: key(at), value: value.into(), ..Default::default() };
        let puts = (0..keys).map(|at| cluster.members[0].node().propose(Change::Put(put(at))));
        within(futures_util::future::try_join_all(puts)).await.unwrap();
    };
    put_all("before").await;
    // Every second one is behind.
    let create = move |at: usize| WatchCreateRequest {
        key: key(at),
        start_revision: i64::from(at.is_multiple_of(2)),
        ..Default::default()
    };
    let request = move |at| WatchRequest { request_union: Some(RequestUnion::CreateRequest(create(at))) };
    let (requests, sent) = counted((0..watches).map(request));
    let mut client = WatchClient::new(channel(&cluster.members[0]));
    let requests = requests.chain(stream::pending());
    let mut replies = within(client.watch(requests)).await.unwrap().into_inner();
    are_sent(&sent, watches).await;
    let note = |seen: &mut BTreeMap<i64, Vec<String>>, reply: WatchResponse| {
        let values = reply.events.into_iter().map(|event| event.kv.unwrap().value);
        let values = values.map(|value| String::from_utf8(value.to_vec()).unwrap());
        seen.entry(reply.watch_id).or_default().extend(values);
    };
    let (mut created, mut seen) = (0, BTreeMap::new());
    while created < watches || seen.values().map(Vec::len).sum::<usize>() < watches / 2 {
        let reply = within(replies.message()).await.unwrap().unwrap();
        assert!(!reply.canceled, "{reply:?}");
        created += usize::from(reply.created);
        note(&mut seen, reply);
    }
    put_all("after").await;
    while seen.values().map(Vec::len).sum::<usize>() < watches / 2 + watches {
        let reply = within(replies.message()).await.unwrap().unwrap();
        note(&mut seen, reply);
    }
    for (id, values) in seen {
        let expected: &[&str] = if id % 2 == 0 { &["before", "after"] } else { &["after"] };
        assert_eq!(values, expected, "watch {id}");
    }
    drop((client, replies));
    cluster.stop().await;
}

/// Story: a client asked for a watch of a key that is longer than a message may be. Its stream ended as if the client had ended it, and
/// nothing said why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_with_a_request_that_is_too_long_ends_with_etcds_refusal() {
    let mut cluster = Cluster::start(1, &["--max-request-bytes=2000"]).await;
    let limit = 2000 + (512 << 10);
    let create = |key_bytes: usize| {
        let create = WatchCreateRequest { key: vec![b'k'; key_bytes], ..Default::default() };
        WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
    };
    let (short, long) = (create(10), create(limit));
    let bytes = prost::Message::encoded_len(&long);
    let requests = stream::iter([short, long]).chain(stream::pending());
    let mut client = WatchClient::new(channel(&cluster.members[0]));
    let mut replies = within(client.watch(requests)).await.unwrap().into_inner();
    assert!(within(replies.message()).await.unwrap().unwrap().created);
    let ended = within(replies.message()).await.unwrap_err();
    let text = format!("grpc: received message larger than max ({bytes} vs. {limit})");
    assert_eq!((ended.code(), ended.message()), (Code::ResourceExhausted, &text[..]));
    drop((client, replies));
    cluster.stop().await;
}

const LEASES: i64 = 20_000;
const WATCHES: i64 = 10_000;
const TTL: Duration = Duration::from_secs(20);
const HELD: Duration = Duration::from_secs(60);

/// Keeps leases alive on one stream as etcd's own client does: each when a third of its time has passed since its last reply.
/// Receives leases as they are granted, and returns the number of replies in the time after the last grant.
async fn keep_alive(mut client: LeaseClient<Channel>, mut granted: mpsc::UnboundedReceiver<i64>) -> usize {
    let (requests, stream) = mpsc::unbounded_channel();
    // etcd sends the head of its response with the first reply.
    let first = granted.recv().await.unwrap();
    requests.send(LeaseKeepAliveRequest { id: first }).unwrap();
    let mut due = HashMap::from([(first, Instant::now() + TTL)]);
    let mut replies =
        client.lease_keep_alive(UnboundedReceiverStream::new(stream)).await.unwrap().into_inner();
    let mut ticks = tokio::time::interval(Duration::from_millis(500));
    let (mut count, mut until, mut are_all) = (0, None, false);
    while until.is_none_or(|until| Instant::now() < until) {
        tokio::select! {
            id = granted.recv(), if !are_all => match id {
                Some(id) => drop(due.insert(id, Instant::now() + TTL / 3)),
                None => (are_all, until) = (true, Some(Instant::now() + HELD)),
            },
            now = ticks.tick() => for (&id, due) in &mut due {
                if *due <= now {
                    requests.send(LeaseKeepAliveRequest { id }).unwrap();
                    *due = now + TTL;
                }
            },
            reply = replies.message() => {
                let reply = reply.expect("the connection stays").expect("the stream stays");
                assert_eq!(reply.ttl, TTL.as_secs() as i64, "lease {} has ended", reply.id);
                due.insert(reply.id, Instant::now() + TTL / 3);
                count += usize::from(are_all);
            }
        }
    }
    count
}

/// One client, with one connection, holds leases and watches. Returns the replies to its keep-alives in the time.
async fn hold(channel: Channel) -> usize {
    let (grants, granted) = mpsc::unbounded_channel();
    let kept = tokio::spawn(keep_alive(LeaseClient::new(channel.clone()), granted));
    let key = |id: i64| format!("service/{id}").into_bytes();
    let put = async |id, value: &str| {
        let put = PutRequest { key: key(id), value: value.into(), lease: id, ..Default::default() };
        KvClient::new(channel.clone()).put(put).await.unwrap();
    };
    let grant = async |id| {
        let request = LeaseGrantRequest { id, ttl: TTL.as_secs() as i64 };
        LeaseClient::new(channel.clone()).lease_grant(request).await.unwrap();
        grants.send(id).unwrap();
        put(id, "first").await;
    };
    stream::iter(1..=LEASES).for_each_concurrent(50, grant).await;
    drop(grants);
    let request = move |id| {
        let create = WatchCreateRequest { key: key(id), ..Default::default() };
        WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
    };
    let requests = stream::iter((1..=WATCHES).map(request)).chain(stream::pending());
    let mut events = WatchClient::new(channel.clone()).watch(requests).await.unwrap().into_inner();
    let mut created = 0;
    while created < WATCHES {
        created += i64::from(events.message().await.unwrap().unwrap().created);
    }
    let replies = kept.await.unwrap();
    let all = RangeRequest {
        key: b"service/".into(),
        range_end: b"service0".into(),
        count_only: true,
        ..Default::default()
    };
    assert_eq!(KvClient::new(channel.clone()).range(all).await.unwrap().into_inner().count, LEASES);
    let seen = async {
        let mut seen = 0;
        while seen < WATCHES as usize {
            let response = events.message().await.unwrap().unwrap();
            seen +=
                response.events.iter().filter(|event| event.kv.as_ref().unwrap().value == "again").count();
        }
    };
    let puts = stream::iter(1..=WATCHES).for_each_concurrent(50, |id| put(id, "again"));
    within(futures_util::future::join(seen, puts)).await;
    replies
}

/// `FOREBAY_ETCD=etcd cargo test --release -p forebay-etcd -- --ignored --nocapture one_client_holds`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "three minutes, and it needs etcd's own server, named by FOREBAY_ETCD"]
async fn one_client_holds_leases_and_watches_as_with_etcd() {
    let program = std::env::var("FOREBAY_ETCD").expect("FOREBAY_ETCD names etcd's server");
    let mut cluster = Cluster::start(1, &[]).await;
    let url = format!("http://{}:2379", cluster.members[0].address);
    let ours = hold(Endpoint::from_shared(url).unwrap().connect_lazy()).await;
    cluster.stop().await;
    let real = Real::start(&program).await;
    let theirs = hold(real.channel()).await;
    println!("replies to keep-alives in {HELD:?}: {ours}, from etcd {theirs}");
    // As many as the client asks for, but for those at the ends of the time.
    assert!(ours * 100 >= theirs * 95, "{ours} replies, {theirs} from etcd");
}
