//! The server as Kubernetes' API server uses etcd: objects that are created, updated and deleted by transactions on their revision,
//! lists in pages of one revision, watches that continue where a list or an earlier watch ended, leases, and compactions that
//! several API servers agree on by one key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use crate::common::{Member, within};
use etcd_client::{
    Client, Compare, CompareOp, Error, Event, EventType, GetOptions, KeyValue, PutOptions, Txn, TxnOp,
    TxnOpResponse, WatchOptions, WatchStream,
};
use forebay_test::draw::Numbers;

const PREFIX: &str = "/registry/";
const PREFIX_END: &str = "/registry0";
const COMPACT_KEY: &str = "compact_rev_key";
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";

#[derive(Clone, Debug, PartialEq, Eq)]
struct Object {
    value: String,
    create_revision: i64,
    mod_revision: i64,
    version: i64,
}

impl From<&KeyValue> for Object {
    fn from(kv: &KeyValue) -> Object {
        Object {
            value: kv.value_str().unwrap().to_owned(),
            create_revision: kv.create_revision(),
            mod_revision: kv.mod_revision(),
            version: kv.version(),
        }
    }
}

type Objects = BTreeMap<String, Object>;

/// A change was made at this revision, or the object is another one by now.
type ChangeOutcome = Result<i64, Option<Object>>;

/// One API server.
#[derive(Clone)]
struct Api {
    client: Client,
}

fn is_compacted(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message() == COMPACTED)
}

impl Api {
    async fn connect(url: &str) -> Api {
        Api { client: Client::connect([url], None).await.unwrap() }
    }

    /// Changes an object if it was changed at this revision last; zero: if it does not exist.
    async fn change(&mut self, key: &str, at: i64, change: TxnOp) -> Result<ChangeOutcome, Error> {
        let txn = Txn::new()
            .when([Compare::mod_revision(key, CompareOp::Equal, at)])
            .and_then([change])
            .or_else([TxnOp::get(key, None)]);
        let response = within(self.client.txn(txn)).await?;
        if response.succeeded() {
            return Ok(Ok(response.header().unwrap().revision()));
        }
        let [TxnOpResponse::Get(get)] = &response.op_responses()[..] else { panic!("{response:?}") };
        Ok(Err(get.kvs().first().map(Object::from)))
    }

    async fn put(&mut self, key: &str, at: i64, value: &str) -> Result<ChangeOutcome, Error> {
        self.change(key, at, TxnOp::put(key, value, None)).await
    }

    async fn delete(&mut self, key: &str, at: i64) -> Result<ChangeOutcome, Error> {
        self.change(key, at, TxnOp::delete(key, None)).await
    }

    async fn get(&mut self, key: &str) -> Result<Option<Object>, Error> {
        Ok(within(self.client.get(key, None)).await?.kvs().first().map(Object::from))
    }

    /// One page of a list: at `revision`, or now if it is zero. Returns the key to continue from.
    async fn page(
        &mut self,
        from: &str,
        limit: i64,
        revision: i64,
        objects: &mut Objects,
    ) -> Result<(i64, Option<String>), Error> {
        let options = GetOptions::new().with_range(PREFIX_END).with_limit(limit).with_revision(revision);
        let response = within(self.client.get(from, Some(options))).await?;
        for kv in response.kvs() {
            objects.insert(kv.key_str().unwrap().to_owned(), kv.into());
        }
        assert!(response.kvs().len() as i64 <= limit && response.count() >= response.kvs().len() as i64);
        // A continued list says at which revision it is by the first page.
        let next = response.kvs().last().filter(|_| response.more());
        Ok((response.header().unwrap().revision(), next.map(|kv| format!("{}\0", kv.key_str().unwrap()))))
    }

    /// Lists all objects, in pages of one revision; from the start if its history is lost meanwhile. Returns how often that
    /// happened.
    async fn list(&mut self, limit: i64) -> Result<(Objects, i64, u64), Error> {
        let mut restarts = 0;
        'whole: loop {
            let mut objects = Objects::new();
            let (revision, mut next) = self.page(PREFIX, limit, 0, &mut objects).await?;
            while let Some(from) = next {
                match self.page(&from, limit, revision, &mut objects).await {
                    Ok((_, more)) => next = more,
                    Err(error) if is_compacted(&error) => {
                        restarts += 1;
                        continue 'whole;
                    }
                    Err(error) => return Err(error),
                }
            }
            return Ok((objects, revision, restarts));
        }
    }

    /// A watch of all objects after a revision.
    async fn watch(&mut self, after: i64) -> Result<WatchStream, Error> {
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(after + 1)
            .with_prev_key()
            .with_progress_notify();
        within(self.client.watch(PREFIX, Some(options))).await
    }

    /// Compacts to a revision if no other API server has done so since `times`, and returns the times and
    /// revision of now.
    async fn compact(&mut self, times: i64, to: i64) -> Result<(bool, i64, i64), Error> {
        let txn = Txn::new()
            .when([Compare::version(COMPACT_KEY, CompareOp::Equal, times)])
            .and_then([TxnOp::put(COMPACT_KEY, to.to_string(), None)])
            .or_else([TxnOp::get(COMPACT_KEY, None)]);
        let response = within(self.client.txn(txn)).await?;
        let revision = response.header().unwrap().revision();
        if !response.succeeded() {
            let [TxnOpResponse::Get(get)] = &response.op_responses()[..] else { panic!("{response:?}") };
            return Ok((false, get.kvs()[0].version(), revision));
        }
        if to > 0 {
            match within(self.client.compact(to, None)).await {
                // The next one may have its turn, and compact further, between the two calls here.
                Err(error) if is_compacted(&error) => {}
                compacted => {
                    compacted?;
                }
            }
        }
        Ok((true, times + 1, revision))
    }
}

/// A list, and the events of a watch after it.
#[derive(Clone)]
struct Replica {
    objects: Objects,
    /// That of the list, and of the last event.
    revision: i64,
    /// The same, for others to see.
    reached: Arc<AtomicI64>,
    events: BTreeSet<i64>,
}

impl Replica {
    fn new(objects: Objects, revision: i64) -> Replica {
        Replica { objects, revision, reached: Arc::new(AtomicI64::new(revision)), events: BTreeSet::new() }
    }

    /// Applies an event. Each change here is of one object, so that each event has a different revision.
    fn apply(&mut self, event: &Event) {
        let kv = event.kv().unwrap();
        let key = kv.key_str().unwrap();
        assert!(
            kv.mod_revision() > self.revision,
            "{key}: an event of {} after {}",
            kv.mod_revision(),
            self.revision
        );
        self.revision = kv.mod_revision();
        self.reached.store(self.revision, Ordering::Relaxed);
        self.events.insert(self.revision);
        let before = self.objects.remove(key);
        // A lost event would show here.
        assert_eq!(event.prev_kv().map(Object::from), before, "{key} at {}", self.revision);
        if event.event_type() == EventType::Put {
            let after = Object::from(kv);
            let (version, create_revision) =
                before.map_or((1, self.revision), |before| (before.version + 1, before.create_revision));
            assert_eq!((after.version, after.create_revision), (version, create_revision), "{key}");
            self.objects.insert(key.to_owned(), after);
        }
    }

    /// Applies events until one of the key `end`. The watch is given up and made again, from the last revision
    /// seen, after `again` events or when it fails.
    async fn follow(mut self, url: &str, end: &str, again: usize) -> (Replica, u64) {
        let mut watches = 0;
        loop {
            let Ok(mut api) = Client::connect([url], None).await.map(|client| Api { client }) else {
                continue;
            };
            watches += 1;
            let Ok(mut stream) = api.watch(self.revision).await else { continue };
            let mut events = 0;
            while let Ok(Some(response)) = within(stream.message()).await {
                assert!(!response.canceled(), "{response:?}");
                for event in response.events() {
                    self.apply(event);
                    if event.kv().unwrap().key() == end.as_bytes() {
                        return (self, watches);
                    }
                }
                assert!(response.header().unwrap().revision() >= self.revision || response.created());
                events += response.events().len();
                if events >= again {
                    break;
                }
            }
        }
    }
}

/// The changes of a writer.
#[derive(Default)]
struct WriterTally {
    acknowledged: BTreeSet<i64>,
    conflicts: u64,
    /// Failed: made or not.
    unknown: u64,
}

/// Creates, updates and deletes some objects that others change as well, until it has made this many changes or
/// is stopped.
async fn write(url: String, seed: u64, changes: usize, is_over: Arc<AtomicBool>) -> WriterTally {
    let mut numbers = Numbers(seed * 0x9E37_79B9 + 1);
    let mut api = Api::connect(&url).await;
    let mut written = WriterTally::default();
    let mut seen: BTreeMap<String, i64> = BTreeMap::new();
    while written.acknowledged.len() < changes && !is_over.load(Ordering::Relaxed) {
        let key = format!("{PREFIX}pods/{}", numbers.below(12));
        // The object that it has seen may be old.
        let at = seen.get(&key).copied().unwrap_or(0);
        let is_delete = at > 0 && numbers.below(4) == 0;
        let value = format!("{seed}-{}", numbers.below(1_000_000));
        let changed = if is_delete { api.delete(&key, at).await } else { api.put(&key, at, &value).await };
        match changed {
            Ok(Ok(revision)) => {
                assert!(written.acknowledged.insert(revision), "two changes at {revision}");
                seen.insert(key, if is_delete { 0 } else { revision });
            }
            Ok(Err(now)) => {
                let now = now.map_or(0, |object| object.mod_revision);
                assert_ne!(now, at, "refused, though nothing has changed {key}");
                written.conflicts += 1;
                seen.insert(key, now);
            }
            Err(_) => written.unknown += 1,
        }
    }
    written
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_is_created_once_and_changed_by_who_saw_it_last() {
    let member = Member::own(&[]);
    let url = member.client_url();
    let key = format!("{PREFIX}pods/one");
    let creates = (0..16).map(|at| {
        let (url, key) = (url.clone(), key.clone());
        tokio::spawn(async move {
            let mut api = Api::connect(&url).await;
            api.put(&key, 0, &at.to_string()).await.unwrap()
        })
    });
    let creates: Vec<_> = creates.collect();
    let mut results = Vec::new();
    for create in creates {
        results.push(create.await.unwrap());
    }
    let created: Vec<i64> = results.iter().filter_map(|result| result.clone().ok()).collect();
    assert_eq!(created.len(), 1, "{results:?}");
    let mut api = Api::connect(&url).await;
    let object = api.get(&key).await.unwrap().unwrap();
    assert_eq!((object.mod_revision, object.create_revision, object.version), (created[0], created[0], 1));
    for refused in results.into_iter().filter_map(Result::err) {
        assert_eq!(refused.as_ref(), Some(&object), "the refusal has the object that is there");
    }
    let updated = api.put(&key, object.mod_revision, "new").await.unwrap().unwrap();
    assert_eq!(updated, object.mod_revision + 1);
    let now = api.put(&key, object.mod_revision, "late").await.unwrap().unwrap_err().unwrap();
    assert_eq!((&*now.value, now.mod_revision, now.version), ("new", updated, 2));
    assert_eq!(api.delete(&key, object.mod_revision).await.unwrap(), Err(Some(now)));
    let deleted = api.delete(&key, updated).await.unwrap().unwrap();
    assert_eq!(deleted, updated + 1);
    assert_eq!(api.delete(&key, updated).await.unwrap(), Err(None));
    assert_eq!(api.put(&key, updated, "gone").await.unwrap(), Err(None));
    // A refusal changes nothing.
    assert_eq!(api.list(10).await.unwrap(), (Objects::new(), deleted, 0));
}

/// Amounts move between accounts, so that each revision has the same sum: a list with pages of several
/// revisions would not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_in_pages_are_of_one_revision_while_there_are_writes_and_compactions() {
    const ACCOUNTS: u64 = 40;
    const LISTS: usize = 6;
    let member = Member::own(&[]);
    let url = member.client_url();
    let mut api = Api::connect(&url).await;
    let account = |at: u64| format!("{PREFIX}accounts/{at:03}");
    for at in 0..ACCOUNTS {
        api.put(&account(at), 0, "100").await.unwrap().unwrap();
    }
    let sum =
        |objects: &Objects| objects.values().map(|object| object.value.parse::<i64>().unwrap()).sum::<i64>();

    // A compaction in the middle of a list, with certainty.
    let mut objects = Objects::new();
    let (revision, next) = api.page(PREFIX, 7, 0, &mut objects).await.unwrap();
    let next = next.unwrap();
    api.put(&account(39), revision, "100").await.unwrap().unwrap();
    api.page(&next, 7, revision, &mut objects).await.unwrap();
    within(api.client.compact(revision + 1, None)).await.unwrap();
    assert!(is_compacted(&api.page(&next, 7, revision, &mut objects).await.unwrap_err()));
    let (objects, _, _) = api.list(7).await.unwrap();
    assert_eq!((objects.len() as u64, sum(&objects)), (ACCOUNTS, 100 * ACCOUNTS as i64));

    // And many while two API servers compact and others write.
    let is_over = Arc::new(AtomicBool::new(false));
    let moved = Arc::new(AtomicU64::new(0));
    let movers = (1..=3).map(|seed| {
        let (url, is_over, moved) = (url.clone(), is_over.clone(), moved.clone());
        tokio::spawn(async move {
            let mut numbers = Numbers(seed * 77);
            let mut api = Api::connect(&url).await;
            while !is_over.load(Ordering::Relaxed) {
                let (from, to) = (numbers.below(ACCOUNTS), numbers.below(ACCOUNTS));
                if from == to {
                    continue;
                }
                let keys = [format!("{PREFIX}accounts/{from:03}"), format!("{PREFIX}accounts/{to:03}")];
                let from = api.get(&keys[0]).await.unwrap().unwrap();
                let to = api.get(&keys[1]).await.unwrap().unwrap();
                let amount =
                    |object: &Object, more: i64| (object.value.parse::<i64>().unwrap() + more).to_string();
                let txn = Txn::new()
                    .when([
                        Compare::mod_revision(&*keys[0], CompareOp::Equal, from.mod_revision),
                        Compare::mod_revision(&*keys[1], CompareOp::Equal, to.mod_revision),
                    ])
                    .and_then([
                        TxnOp::put(&*keys[0], amount(&from, -1), None),
                        TxnOp::put(&*keys[1], amount(&to, 1), None),
                    ]);
                if within(api.client.txn(txn)).await.unwrap().succeeded() {
                    moved.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    });
    let movers: Vec<_> = movers.collect();
    let compactors = (0..2).map(|_| {
        let (url, is_over) = (url.clone(), is_over.clone());
        tokio::spawn(async move {
            let mut api = Api::connect(&url).await;
            let (mut times, mut to, mut done) = (0, 0, 0);
            while !is_over.load(Ordering::Relaxed) {
                let (is_mine, now, revision) = api.compact(times, to).await.unwrap();
                done += u64::from(is_mine && to > 0);
                (times, to) = (now, revision);
            }
            (done, times)
        })
    });
    let compactors: Vec<_> = compactors.collect();
    let (mut restarts, mut lists) = (0, 0);
    while lists < LISTS || restarts == 0 || moved.load(Ordering::Relaxed) < 20 {
        let (objects, revision, again) = api.list(7).await.unwrap();
        assert_eq!((objects.len() as u64, sum(&objects)), (ACCOUNTS, 100 * ACCOUNTS as i64), "at {revision}");
        restarts += again;
        lists += 1;
    }
    is_over.store(true, Ordering::Relaxed);
    for mover in movers {
        mover.await.unwrap();
    }
    let (mut compactions, mut times) = (0, 0);
    for compactor in compactors {
        let (done, seen) = compactor.await.unwrap();
        compactions += done;
        times = times.max(seen);
    }
    // Each version of the key is one compaction, but for the first, which was to revision zero.
    let version = api.get(COMPACT_KEY).await.unwrap().unwrap().version;
    assert_eq!(compactions as i64, version - 1);
    assert!(times <= version);
    println!(
        "{lists} lists with {restarts} restarts, {compactions} compactions, {} moves",
        moved.load(Ordering::Relaxed)
    );
}

/// Writers in conflict, and watches over a list: without reconnects, with many, and with a watch that starts late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_with_the_events_of_a_watch_is_the_list_of_later() {
    let member = Member::own(&[]);
    let url = member.client_url();
    let is_over = Arc::new(AtomicBool::new(false));
    let before = write(url.clone(), 99, 30, is_over.clone()).await;
    let mut api = Api::connect(&url).await;
    let (objects, revision, _) = api.list(5).await.unwrap();
    assert_eq!(Some(&revision), before.acknowledged.last());
    let list = Replica::new(objects, revision);
    let end = format!("{PREFIX}zz-end");
    let follow = |again: usize| {
        let (list, url, end) = (list.clone(), url.clone(), end.clone());
        tokio::spawn(async move { list.follow(&url, &end, again).await })
    };
    let mut watches = vec![follow(usize::MAX), follow(1), follow(7)];
    let writers: Vec<_> =
        (1..=6).map(|seed| tokio::spawn(write(url.clone(), seed, 40, is_over.clone()))).collect();
    let (mut acknowledged, mut conflicts) = (BTreeSet::new(), 0);
    for writer in writers {
        let written = writer.await.unwrap();
        assert_eq!(written.unknown, 0);
        conflicts += written.conflicts;
        let before = acknowledged.len() + written.acknowledged.len();
        acknowledged.extend(written.acknowledged);
        assert_eq!(acknowledged.len(), before, "two changes had the same revision");
    }
    assert!(conflicts > 0);
    watches.push(follow(usize::MAX));
    acknowledged.insert(api.put(&end, 0, "").await.unwrap().unwrap());
    let (last, _, _) = api.list(100).await.unwrap();
    for watch in watches {
        let (replica, watches) = within(watch).await.unwrap();
        println!("{} events by {watches} watches, {conflicts} conflicts", replica.events.len());
        assert_eq!(replica.objects, last);
        assert_eq!(replica.events, acknowledged, "each change is one event");
    }
}

/// The same while the server is killed: an acknowledged change is an event, another change may be an event, and no event repeats.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_go_on_where_they_were_when_the_server_has_been_killed() {
    let mut member = Member::own(&[]);
    let url = member.client_url();
    let is_over = Arc::new(AtomicBool::new(false));
    let end = format!("{PREFIX}zz-end");
    let follow = |replica: &Replica, again: usize| {
        let (replica, url, end) = (replica.clone(), url.clone(), end.clone());
        tokio::spawn(async move { replica.follow(&url, &end, again).await })
    };
    let replicas = [Replica::new(Objects::new(), 1), Replica::new(Objects::new(), 1)];
    let watches = [follow(&replicas[0], usize::MAX), follow(&replicas[1], 10)];
    let writers: Vec<_> =
        (1..=4).map(|seed| tokio::spawn(write(url.clone(), seed, usize::MAX, is_over.clone()))).collect();
    let mut api = Api::connect(&url).await;
    let mut revision = 0;
    for _ in 0..3 {
        // Each kill follows writes, and each watch has shown some of this process.
        let (mut enough, mut first) = (i64::MAX, i64::MAX);
        let are_shown =
            |first: i64| replicas.iter().all(|replica| replica.reached.load(Ordering::Relaxed) > first);
        while revision < enough || !are_shown(first) {
            let Ok((_, now, _)) = api.list(100).await else { continue };
            assert!(now >= revision, "the revision went back from {revision} to {now}");
            revision = now;
            (first, enough) = (first.min(now), enough.min(now + 60));
        }
        member.kill();
        member.restart();
    }
    is_over.store(true, Ordering::Relaxed);
    let (mut acknowledged, mut unknown) = (BTreeSet::new(), 0);
    for writer in writers {
        let written = writer.await.unwrap();
        acknowledged.extend(written.acknowledged);
        unknown += written.unknown;
    }
    let put = loop {
        match api.put(&end, 0, "").await {
            Ok(put) => break put.unwrap(),
            Err(error) => println!("{error}"),
        }
    };
    acknowledged.insert(put);
    let (last, _, _) = api.list(100).await.unwrap();
    for watch in watches {
        let (replica, watches) = within(watch).await.unwrap();
        assert!(watches > 3);
        assert_eq!(replica.objects, last);
        let lost: Vec<_> = acknowledged.difference(&replica.events).collect();
        assert!(lost.is_empty(), "acknowledged, and not seen: {lost:?}");
        let more = replica.events.difference(&acknowledged).count() as u64;
        assert!(more <= unknown, "{more} events more than were acknowledged, but {unknown} changes failed");
        println!("{} events by {watches} watches, {more} of {unknown} failed changes", replica.events.len());
    }
}

/// Puts keys together, with a lease. Returns the revision.
async fn leased(api: &mut Api, keys: &[String], lease: i64) -> Result<i64, Error> {
    let put = |key: &String| TxnOp::put(&**key, "value", Some(PutOptions::new().with_lease(lease)));
    let puts: Vec<TxnOp> = keys.iter().map(put).collect();
    Ok(within(api.client.txn(Txn::new().and_then(puts))).await?.header().unwrap().revision())
}

/// Grants a lease of a second that has these keys, and returns it with the revision of the keys. On a busy machine it may end before it
/// has them: they are refused then, and another one gets them.
async fn short_lease(api: &mut Api, keys: &[String]) -> (i64, i64) {
    loop {
        let lease = api.client.lease_grant(1, None).await.unwrap().id();
        match leased(api, keys, lease).await {
            Ok(revision) => return (lease, revision),
            Err(Error::GRpcStatus(status)) => {
                assert_eq!(status.message(), "etcdserver: requested lease not found");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_end_with_their_leases_and_a_watch_sees_it() {
    // Leases are longer than an election, and a shorter election makes this a short test.
    let mut member = Member::own(&["--heartbeat-interval=20", "--election-timeout=200"]);
    let url = member.client_url();
    let mut api = Api::connect(&url).await;
    let key = |name: &str| format!("{PREFIX}masterleases/{name}");
    let long = api.client.lease_grant(1_000, None).await.unwrap().id();
    leased(&mut api, &[key("long")], long).await.unwrap();
    let (short, _) = short_lease(&mut api, &["a", "b"].map(key)).await;
    let (objects, revision, _) = api.list(100).await.unwrap();
    assert!(objects.len() <= 3);
    let mut stream = api.watch(1).await.unwrap();
    let (mut deleted, mut revisions) = (BTreeSet::new(), BTreeSet::new());
    while deleted.len() < 2 {
        for event in within(stream.message()).await.unwrap().unwrap().events() {
            if event.event_type() == EventType::Delete {
                assert_eq!(event.prev_kv().unwrap().lease(), short);
                assert!(deleted.insert(event.kv().unwrap().key_str().unwrap().to_owned()));
                revisions.insert(event.kv().unwrap().mod_revision());
            }
        }
    }
    assert_eq!(deleted, BTreeSet::from([key("a"), key("b")]));
    assert_eq!(revisions.len(), 1, "a lease ends at one revision");
    assert!(*revisions.first().unwrap() >= revision);
    assert_eq!(api.list(100).await.unwrap().0.into_keys().collect::<Vec<_>>(), [key("long")]);

    // A lease survives a crash, and ends.
    let (short, put) = short_lease(&mut api, &[key("c")]).await;
    member.kill();
    member.restart();
    let mut api = Api::connect(&url).await;
    let mut stream = api.watch(put).await.unwrap();
    let event = loop {
        let response = within(stream.message()).await.unwrap().unwrap();
        if let Some(event) = response.events().first() {
            break event.clone();
        }
    };
    assert_eq!((event.event_type(), event.kv().unwrap().key_str().unwrap()), (EventType::Delete, &*key("c")));
    assert_eq!(event.prev_kv().unwrap().lease(), short);
    assert_eq!(api.client.lease_time_to_live(short, None).await.unwrap().ttl(), -1);
    assert!(api.client.lease_time_to_live(long, None).await.unwrap().ttl() > 0);
}

/// A watch without events receives its revision, at the configured interval: so an API server knows that its cache is fresh, and
/// where to continue after a compaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_watch_is_sent_its_progress() {
    let member = Member::own(&["--watch-progress-notify-interval=50ms"]);
    let mut api = Api::connect(&member.client_url()).await;
    let mut stream = api.watch(1).await.unwrap();
    assert!(within(stream.message()).await.unwrap().unwrap().created());
    let mut last = 0;
    for round in 0..2 {
        let written =
            api.client.put("/elsewhere", round.to_string(), None).await.unwrap().header().unwrap().revision();
        while last < written {
            let response = within(stream.message()).await.unwrap().unwrap();
            assert!(response.events().is_empty() && !response.canceled());
            let revision = response.header().unwrap().revision();
            assert!(revision >= last, "progress went back from {last} to {revision}");
            last = revision;
        }
        within(api.client.compact(written, None)).await.unwrap();
    }
    // From there it continues, and from before it does not.
    let mut again = api.watch(last).await.unwrap();
    assert!(within(again.message()).await.unwrap().unwrap().created());
    let put = api.put(&format!("{PREFIX}new"), 0, "").await.unwrap().unwrap();
    for stream in [&mut stream, &mut again] {
        let event = loop {
            let response = within(stream.message()).await.unwrap().unwrap();
            if let Some(event) = response.events().first() {
                break event.clone();
            }
        };
        assert_eq!(event.kv().unwrap().mod_revision(), put);
    }
    let mut old = api.watch(1).await.unwrap();
    assert!(within(old.message()).await.unwrap().unwrap().created());
    let refused = within(old.message()).await.unwrap().unwrap();
    assert!(refused.canceled() && refused.compact_revision() == last, "{refused:?}");
}

/// Of the API servers that want to compact at the same time, one does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_servers_agree_on_compactions() {
    let member = Member::own(&[]);
    let url = member.client_url();
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Api::connect(&url).await);
    }
    let key = format!("{PREFIX}pods/one");
    let mut at = 0;
    let (mut times, mut to) = (0, 0);
    for round in 0..4 {
        let began: Vec<_> = servers
            .iter()
            .cloned()
            .map(|mut api| tokio::spawn(async move { api.compact(times, to).await.unwrap() }))
            .collect();
        let mut results = Vec::new();
        for compaction in began {
            results.push(compaction.await.unwrap());
        }
        assert_eq!(results.iter().filter(|(is_mine, ..)| *is_mine).count(), 1, "{results:?}");
        // The others have seen it.
        assert!(results.iter().all(|(_, seen, _)| *seen == times + 1), "{results:?}");
        if to > 0 {
            let options = GetOptions::new().with_revision(to - 1);
            let refused = servers[0].client.get(&*key, Some(options)).await.unwrap_err();
            assert!(is_compacted(&refused), "{refused}");
            let options = GetOptions::new().with_revision(to);
            assert_eq!(servers[1].client.get(&*key, Some(options)).await.unwrap().count(), 1);
        }
        at = servers[2].put(&key, at, &round.to_string()).await.unwrap().unwrap();
        (times, to) = (times + 1, at);
    }
    assert_eq!(servers[0].get(&key).await.unwrap().unwrap().version, 4);
}
