//! Members of different versions: each test gives them formats that later versions will have.

use std::sync::atomic::Ordering;

use tonic::transport::Endpoint;
use tonic::{Code, Request};

use super::cluster::{Cluster, Member, until, within};
use crate::proto::peer::MembersRequest;
use crate::proto::peer::peer_client::PeerClient;
use crate::version::Formats;
use crate::{Config, Server, StartError};

const FIRST: Formats = Formats { least: 1, own: 1 };
const BOTH: Formats = Formats { least: 1, own: 2 };
const SECOND: Formats = Formats { least: 2, own: 2 };

async fn try_start(member: &mut Member, formats: Formats) -> Result<(), StartError> {
    member.server = Some(Server::start(Config { formats, ..member.config() }).await?);
    Ok(())
}

/// Starts all members of a new cluster, and waits for those that work together.
async fn start(formats: &[Formats], ready: usize) -> Cluster {
    let mut cluster = Cluster::new(formats.len(), &[]);
    for (member, formats) in cluster.members.iter_mut().zip(formats) {
        try_start(member, *formats).await.unwrap();
    }
    for member in &cluster.members[..ready] {
        within(member.server.as_ref().unwrap().ready()).await;
    }
    cluster
}

/// Builds that count differently, or did not know each other's entries, ran together, and their states diverged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_without_a_common_format_refuse_each_other() {
    let mut cluster = start(&[FIRST; 3], 3).await;
    cluster.members[2].stop().await;
    try_start(&mut cluster.members[2], SECOND).await.unwrap();
    let member = &cluster.members[0];
    member.put("key", "value").await.unwrap();
    until(async || member.node().counts().foreign.load(Ordering::Relaxed) > 0).await;
    assert!(cluster.members[2].local("key").await.is_none());
    let endpoint = Endpoint::from_shared(format!("http://{}:2380", member.address)).unwrap();
    let mut calls = PeerClient::new(endpoint.connect_lazy());
    for (formats, refused) in [
        (None, Some("an earlier build calls member")),
        (Some(SECOND), Some("formats 2 to 2 calls member")),
        (Some(BOTH), None),
    ] {
        let mut request = Request::new(MembersRequest { is_linearizable: false });
        if let Some(Formats { least, own }) = formats {
            request.metadata_mut().insert("forebay-format", own.into());
            request.metadata_mut().insert("forebay-format-least", least.into());
        }
        let replied = within(calls.members(request)).await;
        assert_eq!(replied.is_err(), refused.is_some());
        if let (Err(status), Some(text)) = (replied, refused) {
            assert_eq!(status.code(), Code::FailedPrecondition);
            assert!(status.message().contains(text), "{status}");
            assert!(status.message().contains("has formats 1 to 1 and a state of format 1"), "{status}");
        }
    }
    cluster.stop().await;
}

/// One member after the other gets a new version. The state has its format when the last one has it, and then an old version does not start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_format_is_raised_when_all_members_know_it() {
    let mut cluster = start(&[BOTH, BOTH, FIRST], 3).await;
    cluster.members[0].put("key", "value").await.unwrap();
    for member in &cluster.members {
        assert_eq!(member.node().format(), 1);
        assert_eq!(member.get("key").await.as_deref(), Some("value"));
    }
    cluster.members[2].stop().await;
    try_start(&mut cluster.members[2], BOTH).await.unwrap();
    for member in &cluster.members {
        member.has_format(2).await;
    }
    cluster.members[2].put("key", "other").await.unwrap();
    cluster.members[1].stop().await;
    let refused = try_start(&mut cluster.members[1], FIRST).await.unwrap_err().to_string();
    assert!(refused.contains("the state has format 2, and this version knows those up to 1"), "{refused}");
    assert_eq!(cluster.members[0].get("key").await.as_deref(), Some("other"));
    cluster.stop().await;
}

/// The others refused to report its former membership, which counted as no reply: an initial member that had lost its data started
/// anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_its_data_says_who_refuses_its_version() {
    let mut cluster = start(&[FIRST; 3], 3).await;
    cluster.members[2].stop().await;
    std::fs::remove_dir_all(&cluster.members[2].dir).unwrap();
    let refused = try_start(&mut cluster.members[2], SECOND).await.unwrap_err().to_string();
    assert!(refused.contains("refuses this one: versions that do not work together"), "{refused}");
    assert!(refused.contains("formats 2 to 2 calls member"), "{refused}");
    assert!(!cluster.members[2].dir.join("member/identity.json").exists());
    cluster.stop().await;
}
