//! Ranges that are longer than their share of memory.

use std::time::Duration;

use tonic::Code;
use tonic::transport::Endpoint;

use super::clients::metric_is;
use super::cluster::{Cluster, Member, within};
use crate::mvcc::View;
use crate::proto::etcdserverpb::kv_client::KvClient;
use crate::proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::proto::etcdserverpb::{CompactionRequest, RangeRequest, RangeResponse};
use crate::{Config, Server};

const KEYS: usize = 100;
/// Together with the keys 5 MB.
const VALUE_BYTES: usize = 50_000;

/// Makes the keys, with a changed half. Returns the revision before the changes.
async fn fill(member: &Member) -> i64 {
    for number in 0..KEYS + KEYS / 2 {
        let value = char::from(b'a' + (number % 26) as u8).to_string().repeat(VALUE_BYTES);
        member.put(&format!("key{:03}", number % KEYS), &value).await.unwrap();
    }
    KEYS as i64 + 1
}

fn all() -> RangeRequest {
    RangeRequest { key: b"key".to_vec(), range_end: b"kez".to_vec(), ..RangeRequest::default() }
}

/// A client that has few bytes under way which it has not asked for.
fn client(member: &Member) -> KvClient<tonic::transport::Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}:2379", member.address)).unwrap();
    let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    KvClient::new(endpoint.connect_lazy()).max_decoding_message_size(usize::MAX)
}

/// Eight ranges of 1,000 MiB took 7.4 GiB: each response was in memory as pairs, and as the bytes of its message. A long one is sent as it
/// is read now, and has the same bytes.
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
    let mut parts = within(keys.range_stream(request.clone())).await.unwrap().into_inner();
    let (mut whole, mut is_over) = (RangeResponse::default(), false);
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

/// As in etcd, where each part is a read of its own at the revision of the first.
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
        // Most of it has not been read yet: the client has taken one part.
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
