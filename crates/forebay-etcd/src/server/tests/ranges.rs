//! Ranges that are longer than their share of memory.

use std::time::Duration;

use openraft::storage::{RaftSnapshotBuilder, RaftStateMachine};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Streaming};

use super::clients::metric_is;
use super::cluster::{Cluster, Member, within};
use super::http::get;
use crate::mvcc::{Store, View};
use crate::proto::etcdserverpb::kv_client::KvClient;
use crate::proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::proto::etcdserverpb::request_op::Request as Op;
use crate::proto::etcdserverpb::response_op::Response as OpResponse;
use crate::proto::etcdserverpb::{
    CompactionRequest, PutRequest, RangeRequest, RangeResponse, RangeStreamResponse, RequestOp, TxnRequest,
    TxnResponse,
};
use crate::proto::mvccpb::KeyValue;
use crate::proto::v3lockpb::LockRequest;
use crate::proto::v3lockpb::lock_client::LockClient;
use crate::services::RANGES_MAX;
use crate::{Config, Server};

const KEYS: usize = 100;
/// Together with the keys 5 MB.
const VALUE_BYTES: usize = 50_000;

/// Makes the keys, with a changed half. Returns the revision before the changes.
pub(super) async fn fill(member: &Member) -> i64 {
    let pair = |number: usize| {
        let value = char::from(b'a' + (number % 26) as u8).to_string().repeat(VALUE_BYTES);
        (format!("key{:03}", number % KEYS), value)
    };
    member.put_all((0..KEYS).map(pair)).await;
    member.put_all((KEYS..KEYS + KEYS / 2).map(pair)).await;
    KEYS as i64 + 1
}

fn all() -> RangeRequest {
    RangeRequest { key: b"key".to_vec(), range_end: b"kez".to_vec(), ..RangeRequest::default() }
}

/// A connection that has few bytes under way which its client has not asked for.
fn endpoint(member: &Member) -> Endpoint {
    let endpoint = Endpoint::from_shared(format!("http://{}:2379", member.address)).unwrap();
    endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535)
}

fn client(member: &Member) -> KvClient<tonic::transport::Channel> {
    let endpoint = endpoint(member);
    KvClient::new(endpoint.connect_lazy()).max_decoding_message_size(usize::MAX)
}

/// Eight ranges of 1,000 MiB used 7.4 GiB: each response was in memory as pairs, and as the bytes of its message. A long response
/// is now sent as it is read, and has the same bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_responses_are_those_of_short_ones() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    let before = fill(member).await;
    let mut keys = client(member);
    let view = View::of(member.node().store()).await.unwrap();
    let requests = [
        all(),
        RangeRequest { limit: 60, ..all() },
        // Around the length from which on they are long.
        RangeRequest { limit: 20, ..all() },
        RangeRequest { limit: 21, ..all() },
        RangeRequest { limit: KEYS as i64, ..all() },
        RangeRequest { revision: before, ..all() },
        RangeRequest { revision: before, limit: 70, serializable: true, ..all() },
        RangeRequest { keys_only: true, ..all() },
        RangeRequest { count_only: true, ..all() },
        RangeRequest { range_end: b"key0".to_vec(), ..all() },
        RangeRequest { min_mod_revision: before, ..all() },
    ];
    for request in requests {
        let expected = view.range(&request).await.unwrap();
        let mut response = within(keys.range(request.clone())).await.unwrap().into_inner();
        assert_eq!(response.header.take().unwrap().revision, view.revision(), "{request:?}");
        assert_eq!(response, expected, "{request:?}");
        if request.min_mod_revision == 0 {
            assert_eq!(streamed(&mut keys, &request, view.revision()).await, expected, "{request:?}");
        }
    }
    // In another order they are sorted as a whole.
    let sorted = RangeRequest { sort_order: SortOrder::Descend.into(), ..all() };
    let response = within(keys.range(sorted.clone())).await.unwrap().into_inner();
    assert_eq!(response.kvs, view.range(&sorted).await.unwrap().kvs);
    cluster.stop().await;
}

/// Returns the parts of a RangeStream as one response.
async fn streamed(
    keys: &mut KvClient<tonic::transport::Channel>,
    request: &RangeRequest,
    revision: i64,
) -> RangeResponse {
    let parts = within(keys.range_stream(request.clone())).await.unwrap().into_inner();
    collected(parts, RangeResponse::default(), revision).await
}

/// Returns what a RangeStream has behind some pairs, with these.
async fn collected(
    mut parts: Streaming<RangeStreamResponse>,
    mut whole: RangeResponse,
    revision: i64,
) -> RangeResponse {
    let mut is_over = false;
    while let Some(part) = within(parts.message()).await.unwrap() {
        let part = part.range_response.unwrap();
        assert!(!is_over, "the last part has the header");
        is_over = part.header.is_some();
        assert!(part.header.is_none_or(|header| header.revision == revision));
        whole.kvs.extend(part.kvs);
        (whole.more, whole.count) = (part.more, part.count);
    }
    assert!(is_over);
    whole
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_stream_refuses_what_etcds_does() {
    let mut cluster = Cluster::start(1, &[]).await;
    let mut keys = client(&cluster.members[0]);
    let refused = [
        (RangeRequest { revision: 9, ..all() }, Code::OutOfRange),
        (RangeRequest { key: vec![], ..all() }, Code::InvalidArgument),
        (RangeRequest { min_create_revision: 1, ..all() }, Code::Unimplemented),
        (RangeRequest { sort_order: SortOrder::Descend.into(), ..all() }, Code::Unimplemented),
        (
            RangeRequest {
                sort_order: SortOrder::Ascend.into(),
                sort_target: SortTarget::Mod.into(),
                ..all()
            },
            Code::Unimplemented,
        ),
    ];
    for (request, code) in refused {
        let status = match within(keys.range_stream(request.clone())).await {
            Ok(parts) => within(parts.into_inner().message()).await.unwrap_err(),
            Err(status) => status,
        };
        assert_eq!(status.code(), code, "{request:?}");
    }
    cluster.stop().await;
}

/// As in etcd, where each part is a separate read at the revision of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_above_its_revision_ends_a_range_stream() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    let before = fill(member).await;
    // Unread parts fill the window of their connection, so that replies to other calls need another.
    let (mut keys, mut other) = (client(member), client(member));
    for (revision, is_cut) in [(before, false), (before + 1, true)] {
        let request = RangeRequest { revision: before, ..all() };
        let mut parts = within(keys.range_stream(request)).await.unwrap().into_inner();
        within(parts.message()).await.unwrap().unwrap();
        // Most of it has not been read yet: the client has received one part.
        within(other.compact(CompactionRequest { revision, physical: false })).await.unwrap();
        let ended = loop {
            match within(parts.message()).await {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(status) => break Some((status.code(), status.message().to_owned())),
            }
        };
        let compacted = "etcdserver: mvcc: required revision has been compacted".to_owned();
        assert_eq!(ended, is_cut.then_some((Code::OutOfRange, compacted)));
    }
    cluster.stop().await;
}

/// A reader that stands still would keep files and memory of its state for as long as its connection is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_that_is_not_read_ends() {
    let mut cluster = Cluster::new(1, &[]);
    let member = &mut cluster.members[0];
    let patience = Duration::from_millis(50);
    let config = Config { snapshot_patience: patience, ..member.config() };
    member.server = Some(Server::start(config).await.unwrap());
    let address = member.address.clone();
    fill(member).await;
    let mut keys = client(member);
    let mut parts = within(keys.range_stream(all())).await.unwrap().into_inner();
    metric_is(&address, "forebay_etcd_ranges_given_up_total", "1").await;
    // Its parts so far arrive, and then the reason.
    let status = loop {
        match within(parts.message()).await {
            Ok(part) => assert!(part.is_some(), "it ended as if it were whole"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(
        status.message().starts_with("the range ended because nothing of it was read for 0.05 s"),
        "{status}"
    );
    cluster.stop().await;
}

/// Returns as many long ranges as there may be, of which nothing is read, with their clients.
pub(super) async fn unread_streams(
    member: &Member,
) -> Vec<(KvClient<tonic::transport::Channel>, Streaming<RangeStreamResponse>)> {
    let mut unread = Vec::new();
    for number in 1..=RANGES_MAX {
        let mut keys = client(member);
        let parts = within(keys.range_stream(all())).await.unwrap().into_inner();
        unread.push((keys, parts));
        metric_is(&member.address, "forebay_etcd_long_ranges", &number.to_string()).await;
    }
    unread
}

/// Clients that stood still kept as many views, and as many parts, as they liked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_range_waits_while_too_many_are_under_way() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    fill(member).await;
    let mut unread = unread_streams(member).await;
    // Short ranges are served.
    let mut keys = client(member);
    let short = RangeRequest { limit: 3, ..all() };
    assert_eq!(within(keys.range(short)).await.unwrap().into_inner().kvs.len(), 3);
    let few = within(keys.range_stream(RangeRequest { limit: 1, ..all() })).await.unwrap().into_inner();
    let revision = View::of(member.node().store()).await.unwrap().revision();
    assert_eq!(collected(few, RangeResponse::default(), revision).await.kvs.len(), 1);
    let waiting = tokio::spawn(async move { keys.range(all()).await });
    metric_is(&member.address, "forebay_etcd_long_ranges_waiting", "1").await;
    let mut keys = client(member);
    let waiting_parts = within(keys.range_stream(all())).await.unwrap().into_inner();
    metric_is(&member.address, "forebay_etcd_long_ranges_waiting", "2").await;
    drop(unread.pop());
    assert_eq!(within(waiting).await.unwrap().unwrap().into_inner().kvs.len(), KEYS);
    assert_eq!(collected(waiting_parts, RangeResponse::default(), revision).await.kvs.len(), KEYS);
    metric_is(&member.address, "forebay_etcd_long_ranges_waiting", "0").await;
    drop(unread);
    metric_is(&member.address, "forebay_etcd_long_ranges", "0").await;
    cluster.stop().await;
}

/// The view of a stalled client kept the memory that others needed. The range continues at its revision without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_goes_on_at_its_revision_when_its_client_does() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    let before = fill(member).await;
    for request in [all(), RangeRequest { limit: 70, ..all() }, RangeRequest { revision: before, ..all() }] {
        let view = View::of(member.node().store()).await.unwrap();
        let (expected, revision) = (view.range(&request).await.unwrap(), view.revision());
        drop(view);
        let mut keys = client(member);
        let parts = within(keys.range_stream(request.clone())).await.unwrap().into_inner();
        metric_is(&member.address, "forebay_etcd_long_ranges_stalled", "1").await;
        let pairs = (0..KEYS).flat_map(|number| {
            [("", "other".repeat(100)), (", too", "new".to_owned())]
                .map(|(end, value)| (format!("key{number:03}{end}"), value))
        });
        member.put_all(pairs).await;
        assert_eq!(collected(parts, RangeResponse::default(), revision).await, expected, "{request:?}");
        fill(member).await;
    }
    cluster.stop().await;
}

/// Replaces the state by a snapshot of itself, as that of a member that was behind is by another's.
async fn install(store: &mut Store) {
    let built = store.build_snapshot().await.unwrap();
    store.install_snapshot(&built.meta, built.snapshot).await.unwrap();
}

/// A long range that was under way while its member caught up by a snapshot ended with "the store was closed".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_ranges_go_on_in_an_installed_snapshot() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    let before = fill(member).await;
    let (mut keys, mut store) = (client(member), member.node().store().clone());
    let requests = [
        all(),
        RangeRequest { limit: 60, ..all() },
        RangeRequest { limit: KEYS as i64, ..all() },
        RangeRequest { revision: before, ..all() },
    ];
    for request in requests {
        let view = View::of(member.node().store()).await.unwrap();
        let (expected, revision) = (view.range(&request).await.unwrap(), view.revision());
        drop(view);
        let mut parts = within(keys.range_stream(request.clone())).await.unwrap().into_inner();
        let first = within(parts.message()).await.unwrap().unwrap().range_response.unwrap();
        // Most of it has not been read yet.
        install(&mut store).await;
        assert_eq!(collected(parts, first, revision).await, expected, "{request:?}");
        let (mut keys, whole) = (keys.clone(), request.clone());
        let ranged = tokio::spawn(async move { keys.range(whole).await });
        for _ in 0..3 {
            install(&mut store).await;
        }
        let mut response = within(ranged).await.unwrap().unwrap().into_inner();
        assert_eq!(response.header.take().unwrap().revision, revision);
        assert_eq!(response, expected, "{request:?}");
    }
    cluster.stop().await;
}

/// Returns a response of Range of which nothing is read.
async fn unread_response(member: &Member) -> Streaming<RangeResponse> {
    let channel = within(endpoint(member).connect()).await.unwrap();
    let mut calls = tonic::client::Grpc::new(channel).max_decoding_message_size(usize::MAX);
    calls.ready().await.unwrap();
    let path = PathAndQuery::from_static("/etcdserverpb.KV/Range");
    let codec = tonic_prost::ProstCodec::<RangeRequest, RangeResponse>::default();
    within(calls.server_streaming(Request::new(all()), path, codec)).await.unwrap().into_inner()
}

/// Eight concurrent ranges of 1,000 MiB have to fit into 512 MiB: the memory of a response does not depend on its length.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_response_has_few_bytes_in_memory() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    fill(member).await;
    // Entries are short in tests.
    let long = "l".repeat(VALUE_BYTES + 10_000);
    member.put("key000", &long).await.unwrap();
    let mut unread = Vec::new();
    for _ in 0..RANGES_MAX {
        unread.push(unread_response(member).await);
    }
    metric_is(&member.address, "forebay_etcd_long_ranges_stalled", &RANGES_MAX.to_string()).await;
    let held_bytes = async || {
        let body = get(&member.address, 2379, "/metrics").await.1;
        let mut lines = body.lines();
        let value = lines.find_map(|line| line.strip_prefix("forebay_etcd_long_range_bytes "));
        value.unwrap().parse::<usize>().unwrap()
    };
    let most = |longest: usize| RANGES_MAX * (longest + (400 << 10) + 4 * (128 << 10));
    let held = held_bytes().await;
    assert!((1..most(long.len())).contains(&held), "{held} bytes");
    let mut bytes = 0;
    for response in &mut unread {
        let whole = within(response.message()).await.unwrap().unwrap();
        bytes += whole.kvs.iter().map(|pair| pair.value.len()).sum::<usize>();
        assert!(held_bytes().await < most(long.len()));
        assert!(within(response.message()).await.unwrap().is_none());
    }
    assert_eq!(bytes, RANGES_MAX * ((KEYS - 1) * VALUE_BYTES + long.len()));
    metric_is(&member.address, "forebay_etcd_long_range_bytes", "0").await;
    cluster.stop().await;
}

/// Returns a transaction of these ranges, behind a put if it writes.
fn txn(ranges: &[RangeRequest], is_write: bool) -> TxnRequest {
    let put = PutRequest { key: b"other".to_vec(), ..PutRequest::default() };
    let put = is_write.then_some(Op::RequestPut(put));
    let ranges = ranges.iter().cloned().map(Op::RequestRange);
    let success = put.into_iter().chain(ranges).map(|request| RequestOp { request: Some(request) });
    TxnRequest { success: success.collect(), ..TxnRequest::default() }
}

/// Returns the pairs of each range of a transaction.
fn pairs_of(response: TxnResponse) -> Vec<Vec<KeyValue>> {
    let ranges = response.responses.into_iter().filter_map(|operation| match operation.response {
        Some(OpResponse::ResponseRange(range)) => Some(range.kvs),
        _ => None,
    });
    ranges.collect()
}

/// Story: the response of a transaction was in memory, as pairs and as a message, until its client had it, and any number of them together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_transaction_is_sent_as_a_long_range_is() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    let before = fill(member).await;
    let mut keys = client(member);
    let view = View::of(member.node().store()).await.unwrap();
    let requests = [
        vec![all()],
        vec![RangeRequest { limit: 3, ..all() }],
        vec![
            RangeRequest { limit: 15, ..all() },
            RangeRequest { revision: before, limit: 15, ..all() },
            RangeRequest { count_only: true, ..all() },
        ],
    ];
    for ranges in &requests {
        let mut expected = Vec::new();
        for range in ranges {
            expected.push(view.range(range).await.unwrap().kvs);
        }
        for is_write in [false, true] {
            let response = within(keys.txn(txn(ranges, is_write))).await.unwrap().into_inner();
            assert!(response.succeeded && response.header.is_some());
            assert_eq!(pairs_of(response), expected, "{ranges:?}");
        }
    }
    drop(view);
    metric_is(&member.address, "forebay_etcd_long_ranges", "0").await;
    // It waits for those that are not read, as they do.
    let mut unread = unread_streams(member).await;
    let short = txn(&[RangeRequest { limit: 3, ..all() }], false);
    assert_eq!(pairs_of(within(keys.txn(short)).await.unwrap().into_inner())[0].len(), 3);
    let mut waiting = Vec::new();
    for (number, is_write) in [(1, false), (2, true)] {
        let (mut keys, request) = (client(member), txn(&[all()], is_write));
        waiting.push(tokio::spawn(async move { keys.txn(request).await }));
        metric_is(&member.address, "forebay_etcd_long_ranges_waiting", &number.to_string()).await;
    }
    drop(unread.pop());
    for waiting in waiting {
        let response = within(waiting).await.unwrap().unwrap().into_inner();
        assert_eq!(pairs_of(response)[0].len(), KEYS);
    }
    drop(unread);
    metric_is(&member.address, "forebay_etcd_long_ranges", "0").await;
    cluster.stop().await;
}

/// Story: 32 clients read long ranges slowly. Each lock waited for one of them, as it reads the first key of its queue: after a minute it
/// failed, with the advice to give a limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_do_not_wait_for_long_ranges() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    fill(member).await;
    let unread = unread_streams(member).await;
    let mut locks = LockClient::new(endpoint(member).connect_lazy());
    let request = LockRequest { name: b"name".to_vec(), lease: 0 };
    let locked = within(locks.lock(request)).await.unwrap().into_inner();
    assert!(locked.key.starts_with(b"name/"), "{:?}", locked.key);
    // Nor do those of etcd's own clients, whose transactions are like this one.
    let first = RangeRequest {
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        limit: 1,
        ..all()
    };
    let response = within(client(member).txn(txn(&[first], true))).await.unwrap().into_inner();
    assert_eq!(pairs_of(response)[0].len(), 1);
    metric_is(&member.address, "forebay_etcd_long_ranges", &RANGES_MAX.to_string()).await;
    drop(unread);
    cluster.stop().await;
}

/// Story: dozens of clients asked for all keys in descending order, and read nothing. Each response was in memory as a whole for as long as
/// its client liked, since only ranges in the order of the keys counted as long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_range_in_another_order_is_sent_as_others_are() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    fill(member).await;
    let mut keys = client(member);
    let descending = RangeRequest { sort_order: SortOrder::Descend.into(), ..all() };
    let latest = |limit| RangeRequest { sort_target: SortTarget::Mod.into(), limit, ..descending.clone() };
    let view = View::of(member.node().store()).await.unwrap();
    for request in [descending.clone(), latest(0), latest(30), latest(3)] {
        let expected = view.range(&request).await.unwrap();
        let mut response = within(keys.range(request.clone())).await.unwrap().into_inner();
        assert_eq!(response.header.take().unwrap().revision, view.revision(), "{request:?}");
        assert_eq!(response, expected, "{request:?}");
    }
    drop(view);
    metric_is(&member.address, "forebay_etcd_long_ranges", "0").await;
    let mut unread = unread_streams(member).await;
    // The first few of many long pairs are short.
    assert_eq!(within(keys.range(latest(3))).await.unwrap().into_inner().kvs.len(), 3);
    let waiting = tokio::spawn(async move { keys.range(descending).await });
    metric_is(&member.address, "forebay_etcd_long_ranges_waiting", "1").await;
    drop(unread.pop());
    assert_eq!(within(waiting).await.unwrap().unwrap().into_inner().kvs.len(), KEYS);
    drop(unread);
    metric_is(&member.address, "forebay_etcd_long_ranges", "0").await;
    cluster.stop().await;
}
