//! Locks and elections that the server waits for, by `etcd-client`: its own cases, and the same calls to this server and to etcd, with
//! the same results, codes and texts.

use std::path::Path;

use crate::common::ctl::{ETCD, has_rulers};
use crate::common::{Member, within};
use etcd_client::{
    CampaignResponse, Client, Error, GetOptions, LeaderKey, LeaderResponse, LeaseGrantOptions, LockOptions,
    LockResponse, ProclaimOptions, PutOptions, ResignOptions, ResponseHeader,
};

async fn client(member: &Member) -> Client {
    Client::connect([member.client_url()], None).await.unwrap()
}

/// A client, and what it has seen.
struct Transcript {
    client: Client,
    lines: Vec<String>,
}

fn revision(header: Option<&ResponseHeader>) -> i64 {
    header.unwrap().revision()
}

/// The code and text of a refusal, or what a response says.
fn shown<T>(result: Result<T, Error>, show: impl Fn(&T) -> String) -> String {
    match result {
        Ok(response) => show(&response),
        Err(Error::GRpcStatus(status)) => format!("{:?}: {}", status.code(), status.message()),
        Err(error) => panic!("no refusal of the server: {error}"),
    }
}

fn lock_shown(response: &LockResponse) -> String {
    format!("locked {} at {}", String::from_utf8_lossy(response.key()), revision(response.header()))
}

fn key_shown(leader: &LeaderKey) -> String {
    let (name, key) = (leader.name_str().unwrap(), leader.key_str().unwrap());
    format!("{name} {key} {} {}", leader.rev(), leader.lease())
}

fn campaign_shown(response: &CampaignResponse) -> String {
    format!("leads {} at {}", key_shown(response.leader().unwrap()), revision(response.header()))
}

fn leader_shown(response: &LeaderResponse) -> String {
    let kv = response.kv().unwrap();
    format!(
        "{} is {} of {} {} {} with {} at {}",
        kv.key_str().unwrap(),
        kv.value_str().unwrap(),
        kv.create_revision(),
        kv.mod_revision(),
        kv.version(),
        kv.lease(),
        revision(response.header())
    )
}

fn of(lease: i64) -> Option<LockOptions> {
    Some(LockOptions::new().with_lease(lease))
}

impl Transcript {
    async fn new(member: &Member) -> Transcript {
        Transcript { client: client(member).await, lines: Vec::new() }
    }

    fn note<T>(&mut self, what: &str, result: Result<T, Error>, show: impl Fn(&T) -> String) {
        self.lines.push(format!("{what}: {}", shown(result, show)));
    }

    async fn grant(&mut self, ids: &[i64]) {
        for id in ids {
            self.client.lease_grant(600, Some(LeaseGrantOptions::new().with_id(*id))).await.unwrap();
        }
    }

    /// Waits until a queue has as many keys.
    async fn queue_has(&mut self, prefix: &str, keys: i64) {
        let count = || Some(GetOptions::new().with_prefix().with_count_only());
        within(async { while self.client.get(prefix, count()).await.unwrap().count() != keys {} }).await;
    }
}

/// Has both servers do the same.
async fn compare<F>(act: impl Fn(Transcript) -> F) -> Vec<String>
where
    F: Future<Output = Vec<String>>,
{
    let own = Member::own(&[]);
    let lines = act(Transcript::new(&own).await).await;
    if has_rulers() {
        let etcd = Member::alone(Path::new(ETCD), &[]);
        assert_eq!(lines, act(Transcript::new(&etcd).await).await, "this server's, then etcd's");
    }
    lines
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_pass_from_one_to_the_next() {
    let lines = compare(|mut seen| async move {
        seen.grant(&[100, 200, 300, 400, -5]).await;
        let first = seen.client.lock("name", of(100)).await;
        let key = first.as_ref().unwrap().key().to_vec();
        seen.note("first", first, lock_shown);
        let again = seen.client.lock("name", of(100)).await;
        seen.note("with the same lease", again, lock_shown);
        let other = seen.client.lock("other", of(-5)).await;
        seen.note("another name", other, lock_shown);

        let mut waiting = Vec::new();
        for (at, lease) in [200, 300, 400].into_iter().enumerate() {
            let mut client = seen.client.clone();
            waiting.push(tokio::spawn(async move { client.lock("name", of(lease)).await }));
            seen.queue_has("name/", 2 + at as i64).await;
        }
        let [second, third, fourth] = <[_; 3]>::try_from(waiting).ok().unwrap();
        assert!(!second.is_finished());
        let unlocked = seen.client.unlock(key).await;
        seen.note("unlock", unlocked, |response| revision(response.header()).to_string());
        let second = within(second).await.unwrap();
        let key = second.as_ref().unwrap().key().to_vec();
        seen.note("second", second, lock_shown);
        // The client of the third disconnects: it is skipped.
        third.abort();
        seen.queue_has("name/", 2).await;
        assert!(!fourth.is_finished());
        let unlocked = seen.client.unlock(key).await;
        seen.note("unlock", unlocked, |response| revision(response.header()).to_string());
        let fourth = within(fourth).await.unwrap();
        seen.note("fourth", fourth, lock_shown);
        // The lock ends with its lease.
        let mut client = seen.client.clone();
        let fifth = tokio::spawn(async move { client.lock("name", of(100)).await });
        seen.queue_has("name/", 2).await;
        seen.client.lease_revoke(400).await.unwrap();
        let fifth = within(fifth).await.unwrap();
        seen.note("fifth", fifth, lock_shown);
        // Without a lease the server grants one.
        let granted = seen.client.lock("granted", None).await.unwrap();
        let kv = seen.client.get(granted.key(), None).await.unwrap().kvs()[0].clone();
        assert_eq!(kv.key_str().unwrap(), format!("granted/{:x}", kv.lease()));
        let left = seen.client.lease_time_to_live(kv.lease(), None).await.unwrap();
        seen.lines.push(format!("granted for {} s", left.granted_ttl()));
        seen.lines
    })
    .await;
    assert_eq!(lines[0], "first: locked name/64 at 2");
    assert!(lines.contains(&"another name: locked other/-5 at 3".to_owned()), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_of_locks_are_those_of_etcd() {
    compare(|mut seen| async move {
        seen.grant(&[100, 200]).await;
        let result = seen.client.lock("name", of(999)).await;
        seen.note("a lease that is none", result, lock_shown);
        let result = seen.client.lock("", of(100)).await;
        seen.note("no name", result, lock_shown);
        let show = |response: &etcd_client::UnlockResponse| revision(response.header()).to_string();
        let result = seen.client.unlock("").await;
        seen.note("no key", result, show);
        let result = seen.client.unlock("never locked").await;
        seen.note("a key that is none", result, show);
        seen.lines
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elections_pass_from_one_to_the_next() {
    let lines = compare(|mut seen| async move {
        seen.grant(&[100, 200, 300]).await;
        // A revision before the first leader, and a later revision. etcd's response starts with the first leader.
        let mut client = seen.client.clone();
        let early = tokio::spawn(async move { client.observe("name").await });
        let first = seen.client.campaign("name", "a", 100).await;
        let leader = first.as_ref().unwrap().leader().unwrap().clone();
        seen.note("first", first, campaign_shown);
        let found = seen.client.leader("name").await;
        seen.note("leader", found, leader_shown);
        let mut early = within(early).await.unwrap().unwrap();
        let message = within(early.message()).await.map(Option::unwrap);
        seen.note("observed", message, leader_shown);
        let mut late = within(seen.client.observe("name")).await.unwrap();
        let message = within(late.message()).await.map(Option::unwrap);
        seen.note("observed late", message, leader_shown);
        let with = |leader: &LeaderKey| Some(ProclaimOptions::new().with_leader(leader.clone()));
        let proclaimed = seen.client.proclaim("b", with(&leader)).await;
        seen.note("proclaim", proclaimed, |response| revision(response.header()).to_string());
        for (name, stream) in [("observed", &mut early), ("observed late", &mut late)] {
            let message = within(stream.message()).await.map(Option::unwrap);
            seen.note(name, message, leader_shown);
        }
        // Again with the same lease: another value.
        let again = seen.client.campaign("name", "c", 100).await;
        seen.note("again", again, campaign_shown);
        let message = within(early.message()).await.map(Option::unwrap);
        seen.note("observed", message, leader_shown);
        let again = seen.client.campaign("name", "c", 100).await;
        seen.note("again", again, campaign_shown);

        let mut waiting = Vec::new();
        for (at, lease) in [200, 300].into_iter().enumerate() {
            let mut client = seen.client.clone();
            waiting.push(tokio::spawn(
                async move { client.campaign("name", format!("of {lease}"), lease).await },
            ));
            seen.queue_has("name/", 2 + at as i64).await;
        }
        let [second, third] = <[_; 2]>::try_from(waiting).ok().unwrap();
        assert!(!second.is_finished());
        let resign = |leader: &LeaderKey| Some(ResignOptions::new().with_leader(leader.clone()));
        let resigned = seen.client.resign(resign(&leader)).await;
        seen.note("resign", resigned, |response| revision(response.header()).to_string());
        let second = within(second).await.unwrap();
        let next = second.as_ref().unwrap().leader().unwrap().clone();
        seen.note("second", second, campaign_shown);
        let message = within(early.message()).await.map(Option::unwrap);
        seen.note("observed", message, leader_shown);
        // Its client disconnects.
        third.abort();
        seen.queue_has("name/", 1).await;
        let stale = seen.client.proclaim("d", with(&leader)).await;
        seen.note("proclaim of before", stale, |response| revision(response.header()).to_string());
        let stale = seen.client.resign(resign(&leader)).await;
        seen.note("resign of before", stale, |response| revision(response.header()).to_string());
        // A leader's key is deleted with its lease.
        seen.client.lease_revoke(200).await.unwrap();
        let gone = seen.client.proclaim("e", with(&next)).await;
        seen.note("proclaim without a lease", gone, |response| revision(response.header()).to_string());
        let found = seen.client.leader("name").await;
        seen.note("leader", found, leader_shown);
        let last = seen.client.campaign("name", "f", 300).await;
        seen.note("last", last, campaign_shown);
        let message = within(early.message()).await.map(Option::unwrap);
        seen.note("observed", message, leader_shown);
        seen.lines
    })
    .await;
    assert_eq!(lines[0], "first: leads name name/64 2 100 at 2");
    assert!(lines.iter().any(|line| line.ends_with("election: not leader")), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_of_elections_are_those_of_etcd() {
    compare(|mut seen| async move {
        seen.grant(&[100]).await;
        let result = seen.client.campaign("name", "a", 999).await;
        seen.note("a lease that is none", result, campaign_shown);
        let result = seen.client.leader("name").await;
        seen.note("no leader", result, leader_shown);
        let result = seen.client.proclaim("a", None).await;
        seen.note("proclaim of nobody", result, |response| revision(response.header()).to_string());
        let result = seen.client.resign(None).await;
        seen.note("resign of nobody", result, |response| revision(response.header()).to_string());
        let nobody = LeaderKey::new();
        let result =
            seen.client.proclaim("a", Some(ProclaimOptions::new().with_leader(nobody.clone()))).await;
        seen.note("proclaim of an empty key", result, |response| revision(response.header()).to_string());
        let result = seen.client.resign(Some(ResignOptions::new().with_leader(nobody))).await;
        seen.note("resign of an empty key", result, |response| revision(response.header()).to_string());
        let result = seen.client.campaign("", "a", 100).await;
        seen.note("no name", result, campaign_shown);
        seen.lines
    })
    .await;
}

/// As in etcd since 3.5. The version compared with, 3.4, grants the lock although its key is deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_not_given_to_a_lease_that_has_ended() {
    let member = Member::own(&[]);
    let mut seen = Transcript::new(&member).await;
    seen.grant(&[100, 200]).await;
    seen.client.lock("name", of(100)).await.unwrap();
    let mut client = seen.client.clone();
    let waiting = tokio::spawn(async move { client.lock("name", of(200)).await });
    seen.queue_has("name/", 2).await;
    seen.client.lease_revoke(200).await.unwrap();
    seen.queue_has("name/", 1).await;
    seen.client.lease_revoke(100).await.unwrap();
    let refused = shown(within(waiting).await.unwrap(), lock_shown);
    assert_eq!(refused, "Unknown: mutex: session is expired");
}

/// As etcd-client's own cases have it.
#[tokio::test]
async fn a_lock_is_taken_and_released() {
    let member = Member::own(&[]);
    let mut client = client(&member).await;
    let response = client.lock("lock-test", None).await.unwrap();
    let key = response.key();
    assert!(String::from_utf8_lossy(key).starts_with("lock-test/"));
    client.unlock(key).await.unwrap();
    assert_eq!(client.get(key, None).await.unwrap().count(), 0);
}

/// Those who wait are at several members, and the lock passes on when the one that holds it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_outlives_the_member_at_which_it_was_taken() {
    let mut members = Member::cluster(3, &[]);
    let mut clients = Vec::new();
    for member in &members {
        clients.push(client(member).await);
    }
    for (lease, seconds) in [(100, 600), (200, 600)] {
        clients[0].lease_grant(seconds, Some(LeaseGrantOptions::new().with_id(lease))).await.unwrap();
    }
    clients[0].lock("name", of(100)).await.unwrap();
    let mut waiting = clients[1].clone();
    let waiting = tokio::spawn(async move { waiting.lock("name", of(200)).await });
    let count = || Some(GetOptions::new().with_prefix().with_count_only());
    within(async { while clients[2].get("name/", count()).await.unwrap().count() != 2 {} }).await;
    members[0].kill();
    // The lease continues without its member, until it is revoked.
    within(async { while clients[2].put("alive", "", Some(PutOptions::new())).await.is_err() {} }).await;
    assert!(!waiting.is_finished());
    within(async { while clients[2].lease_revoke(100).await.is_err() {} }).await;
    let locked = within(waiting).await.unwrap().unwrap();
    assert_eq!(locked.key(), b"name/c8");
}

#[tokio::test]
async fn an_election_is_won_observed_and_given_up() {
    let member = Member::own(&[]);
    let mut client = client(&member).await;
    let lease = client.lease_grant(10, None).await.unwrap().id();
    let won = client.campaign("myElection", "123", lease).await.unwrap();
    let leader = won.leader().unwrap().clone();
    assert_eq!((leader.name(), leader.lease()), (&b"myElection"[..], lease));
    let options = ProclaimOptions::new().with_leader(leader.clone());
    assert!(client.proclaim("123", Some(options)).await.unwrap().header().is_some());
    let mut observed = client.observe(leader.name()).await.unwrap();
    let message = within(observed.message()).await.unwrap().unwrap();
    assert_eq!(message.kv().unwrap().key(), leader.key());
    let found = client.leader("myElection").await.unwrap();
    assert_eq!((found.kv().unwrap().value(), found.kv().unwrap().key()), (&b"123"[..], leader.key()));
    let resigned = client.resign(Some(ResignOptions::new().with_leader(leader))).await.unwrap();
    assert!(resigned.header().is_some());
}
