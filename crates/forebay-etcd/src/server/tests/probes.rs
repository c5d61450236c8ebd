//! gRPC's health service, which Kubernetes' probes and clients that share their calls out ask.

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Streaming};

use super::cluster::{Cluster, Member, within};
use crate::mvcc::Damage;
use crate::proto::health::health_check_response::ServingStatus;
use crate::proto::health::health_client::HealthClient;
use crate::proto::health::{HealthCheckRequest, HealthCheckResponse, HealthListRequest};

fn client(member: &Member) -> HealthClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}:2379", member.address)).unwrap();
    HealthClient::new(endpoint.connect_lazy())
}

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

async fn next(statuses: &mut Streaming<HealthCheckResponse>) -> ServingStatus {
    within(statuses.message()).await.unwrap().unwrap().status()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_serves_by_the_empty_name_as_in_etcd() {
    let mut cluster = Cluster::start(1, &[]).await;
    let mut client = client(&cluster.members[0]);
    let checked = within(client.check(of(""))).await.unwrap().into_inner();
    assert_eq!(checked.status(), ServingStatus::Serving);
    let unknown = within(client.check(of("etcdserverpb.KV"))).await.unwrap_err();
    assert_eq!((unknown.code(), unknown.message()), (Code::NotFound, "unknown service"));
    let all = within(client.list(HealthListRequest {})).await.unwrap().into_inner().statuses;
    let all: Vec<_> = all.into_iter().map(|(name, status)| (name, status.status())).collect();
    assert_eq!(all, [(String::new(), ServingStatus::Serving)]);
    let mut serving = within(client.watch(of(""))).await.unwrap().into_inner();
    assert_eq!(next(&mut serving).await, ServingStatus::Serving);
    let mut unknown = within(client.watch(of("etcdserverpb.KV"))).await.unwrap().into_inner();
    assert_eq!(next(&mut unknown).await, ServingStatus::ServiceUnknown);
    cluster.stop().await;
    for statuses in [&mut serving, &mut unknown] {
        let ended = within(statuses.message()).await.unwrap_err();
        assert_eq!(ended.code(), Code::Unavailable, "{ended}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_state_is_healed_does_not_serve() {
    let mut cluster = Cluster::start(3, &[]).await;
    // Without the others, it cannot copy the state of another member.
    for at in 1..3 {
        cluster.members[at].stop().await;
    }
    let member = &cluster.members[0];
    let mut leadership = member.node().leadership();
    within(leadership.wait_for(|now| now.leader.is_none())).await.unwrap();
    let mut client = client(member);
    let mut statuses = within(client.watch(of(""))).await.unwrap().into_inner();
    assert_eq!(next(&mut statuses).await, ServingStatus::Serving);
    member.node().set_damage(Some(Damage::Tables("a table".to_owned())));
    assert_eq!(next(&mut statuses).await, ServingStatus::NotServing);
    let checked = within(client.check(of(""))).await.unwrap().into_inner();
    assert_eq!(checked.status(), ServingStatus::NotServing);
    member.node().set_damage(None);
    assert_eq!(next(&mut statuses).await, ServingStatus::Serving);
    cluster.stop().await;
}
