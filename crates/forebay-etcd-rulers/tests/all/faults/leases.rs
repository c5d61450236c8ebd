//! Leases: those that are kept alive do not end early, those that were left end with their keys.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::PATIENCE;
use super::check::{Call, Change, Outcome};
use super::client::{Client, Effect};
use super::watcher::ShownEvent;

/// Seconds of leases that are kept alive, and of those that are left. The server's shortest is 1 s.
const KEPT_S: i64 = 2;
const LEFT_S: i64 = 1;
const KEEP_INTERVAL: Duration = Duration::from_millis(250);

/// A lease as its client knows it.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    granted: Instant,
    /// It must not end before: the last reply's time, counted from the call.
    until: Option<Instant>,
    /// Its client has given it up for good: it must end.
    is_left: bool,
    /// Its client has called for its end.
    is_revoked: bool,
    has_keys: bool,
}

/// All leases of all rounds.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    all: Mutex<Vec<Lease>>,
    problem: Mutex<Option<String>>,
    /// Until when a member's clock for durations may have jumped.
    jumped: Mutex<Option<Instant>>,
    counts: Mutex<Counts>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) granted: u64,
    pub(crate) kept_alive: u64,
    pub(crate) ended: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Leases {
    /// Says that a member's clock for durations jumps now, or within the time that is given.
    pub(crate) fn jumps(&self, within: Duration) {
        *lock(&self.jumped) = Some(Instant::now() + within);
    }

    pub(crate) fn counts(&self) -> Counts {
        *lock(&self.counts)
    }

    fn change(&self, id: i64, change: impl FnOnce(&mut Lease)) {
        if let Some(lease) = lock(&self.all).iter_mut().find(|lease| lease.id == id) {
            change(lease);
        }
    }

    /// Returns whether a clock has made this lease's time another one than the client's.
    fn is_out_of_time(&self, lease: &Lease) -> bool {
        lock(&self.jumped).is_some_and(|jumped| jumped >= lease.granted)
    }

    pub(crate) fn ids(&self) -> Vec<i64> {
        lock(&self.all).iter().map(|lease| lease.id).collect()
    }

    /// Returns how many leases have been left and still have keys. `shown` are all events.
    pub(crate) fn left(&self, shown: &[ShownEvent]) -> usize {
        let all = lock(&self.all);
        let lives = |lease: &&Lease| lease.is_left && lease.has_keys && end_of(lease.id, shown).is_none();
        all.iter().filter(lives).count()
    }

    /// Checks the ends in these events, and what clients have noticed. Leases that have ended are forgotten.
    pub(crate) fn check(&self, shown: &[ShownEvent]) -> Result<(), String> {
        if let Some(problem) = lock(&self.problem).take() {
            return Err(problem);
        }
        let mut all = lock(&self.all);
        let mut early = None;
        all.retain(|lease| {
            let Some(end) = end_of(lease.id, shown) else { return true };
            lock(&self.counts).ended += 1;
            let is_early = lease.until.is_some_and(|until| end.at < until);
            if is_early && !lease.is_revoked && !self.is_out_of_time(lease) {
                let by = lease.until.map(|until| until - end.at);
                early = Some(format!("{lease:?} has ended early, by {by:?}: {:?}", end.event));
            }
            false
        });
        early.map_or(Ok(()), Err)
    }
}

fn end_of(id: i64, shown: &[ShownEvent]) -> Option<&ShownEvent> {
    shown.iter().find(|shown| {
        shown.event.now.is_none() && shown.event.before.is_some_and(|before| before.lease == id)
    })
}

/// A client with a lease.
pub(crate) struct Holder {
    pub(crate) client: Client,
    pub(crate) leases: Arc<Leases>,
}

impl Holder {
    /// Has a lease with two keys. Returns its id, unless what became of the calls is not known.
    async fn begin(&mut self, seconds: i64) -> Option<i64> {
        let id = i64::try_from(self.client.value()).ok()?;
        let granted = Instant::now();
        let lease = Lease { id, granted, until: None, is_left: true, is_revoked: false, has_keys: false };
        lock(&self.leases.all).push(lease);
        let member = self.client.member();
        match timeout(
            PATIENCE,
            member.lease_grant(seconds, Some(etcd_client::LeaseGrantOptions::new().with_id(id))),
        )
        .await
        {
            Ok(Ok(response)) => {
                let until = granted + Duration::from_secs(response.ttl().max(0) as u64);
                self.leases.change(id, |lease| lease.until = Some(until));
            }
            _ => {
                self.client.turn();
                return None;
            }
        }
        lock(&self.leases.counts).granted += 1;
        // They may be created even without a reply.
        self.leases.change(id, |lease| lease.has_keys = true);
        let keys = ["a", "b"].map(|name| format!("{}.lease.{id}.{name}", self.client.round));
        match self.client.put_leased(&keys, id).await {
            Effect::Yes => Some(id),
            // Without its keys its end is not seen.
            Effect::No => {
                self.leases.change(id, |lease| lease.has_keys = false);
                None
            }
            Effect::Unknown => {
                self.leases.change(id, |lease| lease.has_keys = false);
                None
            }
        }
    }

    /// Calls once for more time. Returns whether the lease is still there, as far as is known.
    async fn keep(&mut self, id: i64) -> bool {
        let sent = Instant::now();
        let member = self.client.member();
        let kept = async {
            let (mut keeper, mut replies) = member.lease_keep_alive(id).await.ok()?;
            keeper.keep_alive().await.ok()?;
            replies.message().await.ok()?
        };
        let Ok(Some(reply)) = timeout(PATIENCE, kept).await else {
            self.client.turn();
            return true;
        };
        if reply.ttl() > 0 {
            let until = sent + Duration::from_secs(reply.ttl() as u64);
            self.leases.change(id, |lease| lease.until = lease.until.max(Some(until)));
            lock(&self.leases.counts).kept_alive += 1;
            return true;
        }
        let lease = lock(&self.leases.all).iter().find(|lease| lease.id == id).cloned();
        if let Some(lease) = lease
            && lease.until.is_some_and(|until| Instant::now() < until)
            && !self.leases.is_out_of_time(&lease)
        {
            let text = format!("{} does not know {lease:?}, which cannot have ended", self.client.url());
            lock(&self.leases.problem).get_or_insert(text);
        }
        false
    }

    /// Keeps leases alive, one after the other, until `is_over`; then revokes the last one.
    pub(crate) async fn keep_until(mut self, is_over: impl Fn() -> bool) {
        while !is_over() {
            let Some(id) = self.begin(KEPT_S).await else {
                tokio::time::sleep(Duration::from_millis(30)).await;
                continue;
            };
            self.leases.change(id, |lease| lease.is_left = false);
            let mut lives = true;
            while lives && !is_over() {
                lives = self.keep(id).await;
                tokio::time::sleep(KEEP_INTERVAL).await;
            }
            self.leases.change(id, |lease| lease.is_left = true);
            if lives {
                self.revoke(id).await;
            }
        }
    }

    async fn revoke(&mut self, id: i64) {
        self.leases.change(id, |lease| lease.is_revoked = true);
        let keys = ["a", "b"].map(|name| format!("{}.lease.{id}.{name}", self.client.round));
        let changes: Vec<Change> = keys.into_iter().map(Change::Delete).collect();
        let called = self.client.record.tick();
        let member = self.client.member();
        let outcome = match timeout(PATIENCE, member.lease_revoke(id)).await {
            Ok(Ok(response)) => {
                Outcome::Made(response.header().map_or(0, etcd_client::ResponseHeader::revision), Vec::new())
            }
            _ => Outcome::Unknown,
        };
        let replied = self.client.record.tick();
        self.client.record.add(Call { called, replied, condition: None, changes, outcome });
    }

    /// Grants leases and abandons them, as a client that is killed does, until `is_over`.
    pub(crate) async fn leave_until(mut self, is_over: impl Fn() -> bool) {
        while !is_over() {
            if let Some(id) = self.begin(LEFT_S).await {
                self.keep(id).await;
                tokio::time::sleep(4 * KEEP_INTERVAL).await;
            }
            tokio::time::sleep(KEEP_INTERVAL).await;
        }
    }
}
