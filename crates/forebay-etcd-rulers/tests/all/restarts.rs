//! Members that are killed while clients write: acknowledged changes stay, revisions never decrease, and watches continue.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use crate::common::{Member, within};
use etcd_client::{Client, ConnectOptions, Error, EventType, GetOptions, WatchOptions};
use tokio::task::JoinHandle;

/// Acknowledged puts: the revision and value of each key.
type AcknowledgedPuts = BTreeMap<String, (i64, String)>;

/// A client switches to another member without a reply by then.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

async fn connect(url: &str) -> Client {
    let options = ConnectOptions::new().with_timeout(REPLY_TIMEOUT);
    Client::connect([url], Some(options)).await.unwrap()
}

/// Makes a call that may be made twice until it has a reply: on a busy machine a call may take longer than a client waits.
async fn replied<T>(mut call: impl AsyncFnMut() -> Result<T, Error>) -> T {
    let replied = async {
        loop {
            if let Ok(reply) = call().await {
                break reply;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(replied).await
}

/// Clients that put until they are stopped, each its own keys, through all members in turn.
struct Writers {
    is_over: Arc<AtomicBool>,
    /// The latest revision that was acknowledged.
    revision: Arc<AtomicI64>,
    tasks: Vec<JoinHandle<AcknowledgedPuts>>,
}

impl Writers {
    fn start(count: usize, urls: &[String]) -> Writers {
        let (is_over, revision) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
        let tasks = (0..count).map(|writer| {
            let (is_over, revision, urls) = (is_over.clone(), revision.clone(), urls.to_vec());
            tokio::spawn(async move { put(writer, &urls, &is_over, &revision).await })
        });
        Writers { tasks: tasks.collect(), is_over, revision }
    }

    /// Waits until this many more revisions are acknowledged.
    async fn more(&self, revisions: i64) {
        let enough = self.revision.load(Ordering::Relaxed) + revisions;
        let wait = async {
            while self.revision.load(Ordering::Relaxed) < enough {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within(wait).await;
    }

    async fn stop(self) -> AcknowledgedPuts {
        self.is_over.store(true, Ordering::Relaxed);
        let mut all = AcknowledgedPuts::new();
        for task in self.tasks {
            all.extend(within(task).await.unwrap());
        }
        all
    }
}

async fn put(writer: usize, urls: &[String], is_over: &AtomicBool, latest: &AtomicI64) -> AcknowledgedPuts {
    let mut clients = Vec::new();
    for url in urls {
        clients.push(connect(url).await);
    }
    let mut acknowledged = AcknowledgedPuts::new();
    // Keys with a put that failed: it may have been made, or be made later, even after a newer one.
    let mut in_doubt = HashSet::new();
    let (mut at, mut revision) = (writer, 0);
    for number in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        // Each second put is of a key that was put before.
        let key = format!("w{writer}/{:05}", if number % 2 == 0 { number } else { number / 4 * 2 });
        let value = number.to_string();
        let client_count = clients.len();
        match within(clients[at % client_count].put(&*key, &*value, None)).await {
            Ok(response) => {
                let now = response.header().unwrap().revision();
                assert!(now > revision, "the revision went back from {revision} to {now}");
                revision = now;
                latest.fetch_max(now, Ordering::Relaxed);
                if !in_doubt.contains(&key) {
                    acknowledged.insert(key, (now, value));
                }
            }
            Err(_) => {
                acknowledged.remove(&key);
                in_doubt.insert(key);
                at += 1;
            }
        }
    }
    acknowledged
}

/// All of it is there, at the revisions that were acknowledged, wherever it is read.
async fn check(acknowledged: &AcknowledgedPuts, urls: &[String]) {
    assert!(acknowledged.len() > 50, "{} acknowledged", acknowledged.len());
    let newest = acknowledged.values().map(|(revision, _)| *revision).max().unwrap();
    for url in urls {
        let mut client = connect(url).await;
        let options = || Some(GetOptions::new().with_prefix());
        let response = replied(async || client.get("w", options()).await).await;
        assert!(response.header().unwrap().revision() >= newest);
        let found: BTreeMap<&str, _> = response.kvs().iter().map(|kv| (kv.key_str().unwrap(), kv)).collect();
        for (key, (revision, value)) in acknowledged {
            let kv =
                found.get(&**key).unwrap_or_else(|| panic!("{key} of revision {revision} is lost at {url}"));
            assert_eq!((kv.mod_revision(), kv.value_str().unwrap()), (*revision, &**value), "{key} at {url}");
        }
    }
}

/// Follows all keys from the first revision to the key `end`, through one member after the other, and returns
/// the last event of each key.
async fn follow(urls: Vec<String>) -> BTreeMap<String, (i64, String)> {
    let mut last = BTreeMap::new();
    let mut revision = 1;
    for url in urls.iter().cycle() {
        // No timeout: a stream may be quiet.
        let Ok(mut client) = Client::connect([url], None).await else { continue };
        let options = WatchOptions::new().with_all_keys().with_start_revision(revision + 1);
        let Ok(mut stream) = within(client.watch("", Some(options))).await else { continue };
        while let Ok(Some(response)) = within(stream.message()).await {
            assert!(!response.canceled(), "{response:?}");
            for event in response.events() {
                let kv = event.kv().unwrap();
                assert_eq!(event.event_type(), EventType::Put);
                // Each put has a different revision, and no revision is skipped.
                assert_eq!(kv.mod_revision(), revision + 1);
                revision = kv.mod_revision();
                if kv.key() == b"end" {
                    return last;
                }
                last.insert(kv.key_str().unwrap().to_owned(), (revision, kv.value_str().unwrap().to_owned()));
            }
        }
    }
    unreachable!("the members come round again")
}

async fn end(url: &str) {
    let mut client = connect(url).await;
    replied(async || client.put("end", "", None).await).await;
}

/// The last event of each acknowledged key is its put.
async fn check_watch(watch: JoinHandle<BTreeMap<String, (i64, String)>>, acknowledged: &AcknowledgedPuts) {
    let seen = within(watch).await.unwrap();
    for (key, put) in acknowledged {
        assert_eq!(seen.get(key), Some(put), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_killed_loses_nothing_that_was_acknowledged() {
    let mut member = Member::own(&[]);
    let urls = vec![member.client_url()];
    let writers = Writers::start(6, &urls);
    let watch = tokio::spawn(follow(urls.clone()));
    for _ in 0..4 {
        writers.more(80).await;
        member.kill();
        member.restart();
    }
    writers.more(20).await;
    let acknowledged = writers.stop().await;
    check(&acknowledged, &urls).await;
    // And from the disk alone.
    member.kill();
    member.restart();
    check(&acknowledged, &urls).await;
    end(&urls[0]).await;
    check_watch(watch, &acknowledged).await;
    println!("{} keys acknowledged", acknowledged.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_loses_nothing_when_its_members_are_killed_one_after_the_other() {
    let mut members = Member::cluster(3, &["--snapshot-count=200", "--snapshot-catchup-entries=2000"]);
    let urls: Vec<String> = members.iter().map(Member::client_url).collect();
    let writers = Writers::start(4, &urls);
    let watch = tokio::spawn(follow(urls.clone()));
    for round in 0..3 {
        writers.more(50).await;
        // The leader, so that another member takes over.
        let mut client = connect(&urls[round]).await;
        let leader = replied(async || client.status().await).await.leader();
        let mut at = round;
        for (other, url) in urls.iter().enumerate() {
            let mut client = connect(url).await;
            if replied(async || client.status().await).await.header().unwrap().member_id() == leader {
                at = other;
            }
        }
        members[at].kill();
        // The others continue without it.
        writers.more(50).await;
        members[at].restart();
    }
    writers.more(20).await;
    let acknowledged = writers.stop().await;
    check(&acknowledged, &urls).await;
    // All together: the former keys are read from their disks.
    members.iter_mut().for_each(Member::kill);
    members.iter_mut().for_each(Member::start);
    members.iter_mut().for_each(Member::wait_until_healthy);
    check(&acknowledged, &urls).await;
    end(&urls[0]).await;
    check_watch(watch, &acknowledged).await;
    println!("{} keys acknowledged", acknowledged.len());
}
