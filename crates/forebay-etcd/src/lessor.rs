//! [`Lessor`]: when leases end.
//!
//! Grants and revocations are entries of the log. The time that a lease has left is known by the leader alone, and not
//! replicated: a new leader gives each lease its whole time again, as etcd does. So a lease ends late after an election, and
//! never early.
//!
//! The times belong to one term: a member that lost the lead and has it again is a new leader, and its knowledge of the leases is
//! of no use, since another one may have kept them alive meanwhile.
//!
//! A lease whose end was proposed is over for the rest of the term: the proposal may be in the log, to be committed later in this
//! term, even if this member did not lead for a while. Committed entries of former terms are applied before a new leader's first read.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::histogram::DoublingHistogram;

/// Expired leases proposed together: their entries share a commit. Later changes of clients queue behind them.
const REVOKED_AT_ONCE_MAX: usize = 512;

/// The leases of this member.
#[derive(Debug, Default)]
pub(crate) struct Lessor {
    inner: Mutex<Inner>,
    changed: Notify,
    pub(crate) counts: Counts,
}

/// Counts of leases since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) granted: AtomicU64,
    /// The seconds that they were granted for.
    pub(crate) times_s: DoublingHistogram<1, 24>,
    pub(crate) revoked: AtomicU64,
    /// Those that this member kept alive as the leader.
    pub(crate) renewed: AtomicU64,
    /// Those that it revoked as the leader, as their time was over.
    pub(crate) expired: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    /// The term in which this member leads.
    term: Option<u64>,
    /// The last term in which it led.
    last_term: Option<u64>,
    /// Leases whose end may have been proposed in the last term.
    revoking: HashSet<i64>,
    leases: HashMap<i64, Lease>,
    /// Of the leader: when leases end.
    ends: BTreeSet<(Instant, i64)>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    granted_s: i64,
    ends: Option<Instant>,
}

impl Inner {
    /// Gives a lease its whole time, from now on; `None` if it is being revoked.
    fn extend(&mut self, id: i64, more: Duration) -> Option<i64> {
        let lease = self.leases.get_mut(&id)?;
        if let Some(ends) = lease.ends.take() {
            self.ends.remove(&(ends, id));
        }
        if self.term.is_some() {
            // Longer than any process runs.
            let whole = Duration::from_secs(lease.granted_s.clamp(0, 1 << 32) as u64) + more;
            let is_over = self.revoking.contains(&id);
            let ends = Instant::now() + if is_over { Duration::ZERO } else { whole };
            lease.ends = Some(ends);
            self.ends.insert((ends, id));
        }
        Some(lease.granted_s)
    }
}

impl Lessor {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adopts the leases of a state: ids and granted seconds.
    pub(crate) fn reset(&self, leases: impl IntoIterator<Item = (i64, i64)>) {
        let mut inner = self.lock();
        inner.ends.clear();
        inner.leases =
            leases.into_iter().map(|(id, granted_s)| (id, Lease { granted_s, ends: None })).collect();
        let ids: Vec<i64> = inner.leases.keys().copied().collect();
        for id in ids {
            inner.extend(id, Duration::ZERO);
        }
        drop(inner);
        self.changed.notify_one();
    }

    pub(crate) fn granted(&self, id: i64, granted_s: i64) {
        self.counts.granted.fetch_add(1, Ordering::Relaxed);
        self.counts.times_s.observe(u64::try_from(granted_s).unwrap_or_default());
        let mut inner = self.lock();
        inner.revoking.remove(&id);
        inner.leases.insert(id, Lease { granted_s, ends: None });
        inner.extend(id, Duration::ZERO);
        drop(inner);
        self.changed.notify_one();
    }

    pub(crate) fn revoked(&self, id: i64) {
        self.counts.revoked.fetch_add(1, Ordering::Relaxed);
        let mut inner = self.lock();
        inner.revoking.remove(&id);
        if let Some(Lease { ends: Some(ends), .. }) = inner.leases.remove(&id) {
            inner.ends.remove(&(ends, id));
        }
    }

    /// Notes the term in which this member leads, if it does. A new leader gives each lease its whole time, and `more` for the
    /// election. One that leads in the same term again does so too, but for the leases that it was revoking.
    pub(crate) fn set_leader(&self, term: Option<u64>, more: Duration) {
        let mut inner = self.lock();
        if inner.term == term {
            return;
        }
        inner.term = term;
        if term.is_some() && term != inner.last_term {
            inner.last_term = term;
            inner.revoking.clear();
        }
        let ids: Vec<i64> = inner.leases.keys().copied().collect();
        for id in ids {
            inner.extend(id, more);
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// Gives a lease its whole time again. Returns its seconds; `None` if the lease does not exist, or has expired: it is being
    /// revoked then.
    pub(crate) fn keep_alive(&self, id: i64) -> Option<i64> {
        let mut inner = self.lock();
        let lease = inner.leases.get(&id)?;
        if lease.ends.is_some_and(|ends| ends <= Instant::now()) {
            return None;
        }
        self.counts.renewed.fetch_add(1, Ordering::Relaxed);
        inner.extend(id, Duration::ZERO)
    }

    /// Returns the seconds that a lease has left, and those that it was granted.
    pub(crate) fn time_to_live(&self, id: i64) -> Option<(i64, i64)> {
        let inner = self.lock();
        let lease = inner.leases.get(&id)?;
        let left = lease.ends.map_or(Duration::ZERO, |ends| ends.saturating_duration_since(Instant::now()));
        Some((left.as_secs() as i64, lease.granted_s))
    }

    /// Returns the ids of all leases: at the leader in the order in which they end.
    pub(crate) fn ids(&self) -> Vec<i64> {
        let inner = self.lock();
        let mut all: Vec<_> = inner.leases.iter().map(|(id, lease)| (lease.ends, *id)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, id)| id).collect()
    }

    /// Waits for expired leases, and returns them with the term of their expiry. They stay until they are revoked, which only the
    /// leader of that term may do.
    pub(crate) async fn ended(&self) -> (u64, Vec<i64>) {
        loop {
            let now = Instant::now();
            let (term, ended, next) = {
                let mut inner = self.lock();
                let ended: Vec<i64> = inner
                    .ends
                    .iter()
                    .take_while(|(ends, _)| *ends <= now)
                    .take(REVOKED_AT_ONCE_MAX)
                    .map(|&(_, id)| id)
                    .collect();
                // `ends` is empty without a term.
                inner.revoking.extend(&ended);
                (inner.term, ended, inner.ends.first().map(|(ends, _)| *ends))
            };
            if let Some(term) = term.filter(|_| !ended.is_empty()) {
                return (term, ended);
            }
            let changed = self.changed.notified();
            match next {
                None => changed.await,
                Some(next) => drop(tokio::time::timeout_at(next, changed).await),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_lease_ends_after_its_time_at_the_leader() {
        let lessor = Lessor::default();
        lessor.granted(1, 5);
        assert_eq!(lessor.time_to_live(1), Some((0, 5)), "its time is the leader's");
        lessor.set_leader(Some(1), S);
        tokio::time::advance(3 * S).await;
        assert_eq!(lessor.time_to_live(1), Some((3, 5)));
        lessor.granted(2, 4);
        assert_eq!(lessor.ended().await, (1, vec![1]));
        assert_eq!(lessor.keep_alive(1), None, "it is being revoked");
        lessor.revoked(1);
        assert_eq!(lessor.ended().await, (1, vec![2]));
        lessor.granted(3, 1);
        assert_eq!(lessor.ids(), [2, 3], "in the order in which they end");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_kept_alive_goes_on() {
        let lessor = Lessor::default();
        lessor.set_leader(Some(1), S);
        lessor.granted(1, 5);
        for _ in 0..10 {
            tokio::time::advance(4 * S).await;
            assert_eq!(lessor.keep_alive(1), Some(5));
        }
        assert_eq!(lessor.keep_alive(2), None);
        assert!(futures_util::FutureExt::now_or_never(lessor.ended()).is_none());
    }

    /// A new leader does not know when a lease was kept alive last.
    #[tokio::test(start_paused = true)]
    async fn a_new_leader_gives_the_whole_time_again() {
        let lessor = Lessor::default();
        lessor.reset([(1, 5), (2, 50)]);
        tokio::time::advance(100 * S).await;
        lessor.set_leader(Some(1), S);
        assert_eq!(lessor.time_to_live(1), Some((6, 5)));
        let begun = Instant::now();
        assert_eq!(lessor.ended().await, (1, vec![1]));
        assert_eq!(begun.elapsed().as_secs(), 6);
        lessor.set_leader(None, S);
        assert!(futures_util::FutureExt::now_or_never(lessor.ended()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_hears_of_an_earlier_end() {
        let lessor = std::sync::Arc::new(Lessor::default());
        lessor.set_leader(Some(1), S);
        lessor.granted(1, 100);
        let waiting = tokio::spawn({
            let lessor = lessor.clone();
            async move { lessor.ended().await }
        });
        tokio::task::yield_now().await;
        lessor.granted(2, 1);
        assert_eq!(waiting.await.unwrap(), (1, vec![2]));
    }

    /// A leader that lost the lead and regained it before its next check kept the old expiry times, though another leader had kept
    /// the leases alive meanwhile: it revoked live leases.
    #[tokio::test(start_paused = true)]
    async fn a_leader_of_a_later_term_gives_the_whole_time_again() {
        let lessor = Lessor::default();
        lessor.granted(1, 5);
        lessor.set_leader(Some(3), S);
        tokio::time::advance(7 * S).await;
        assert_eq!(lessor.ended().await, (3, vec![1]));
        lessor.set_leader(Some(3), S);
        assert_eq!(lessor.ended().await, (3, vec![1]), "the same term changes nothing");
        lessor.set_leader(Some(5), S);
        assert_eq!(lessor.time_to_live(1), Some((6, 5)));
        assert_eq!(lessor.keep_alive(1), Some(5));
        assert_eq!(lessor.ended().await, (5, vec![1]));
    }

    /// A revocation was in the log and not committed when its leader gave the lead up for a while, as it heard nothing from the others. In the
    /// same term again, it gave the lease its whole time, and said so to its client. Then the revocation was committed.
    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_being_revoked_is_over_for_the_rest_of_the_term() {
        let lessor = Lessor::default();
        for (id, granted_s) in [(1, 5), (2, 6), (3, 5)] {
            lessor.granted(id, granted_s);
        }
        lessor.set_leader(Some(5), S);
        tokio::time::advance(6 * S).await;
        assert_eq!(lessor.ended().await, (5, vec![1, 3]));
        lessor.set_leader(None, S);
        tokio::time::advance(6 * S).await;
        lessor.set_leader(Some(5), S);
        assert_eq!((lessor.keep_alive(1), lessor.time_to_live(1)), (None, Some((0, 5))));
        assert_eq!((lessor.keep_alive(2), lessor.time_to_live(2)), (Some(6), Some((6, 6))));
        assert_eq!(lessor.ended().await, (5, vec![1, 3]), "it is proposed again");
        lessor.revoked(1);
        lessor.granted(1, 5);
        assert_eq!(lessor.keep_alive(1), Some(5), "another one of the same id");
        // Entries of former terms are applied before a new leader's first read.
        lessor.set_leader(None, S);
        lessor.set_leader(Some(7), S);
        assert_eq!((lessor.keep_alive(3), lessor.time_to_live(3)), (Some(5), Some((5, 5))));
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_time_is_no_overflow() {
        let lessor = Lessor::default();
        lessor.set_leader(Some(1), S);
        lessor.granted(1, crate::mvcc::TTL_MAX_S);
        assert!(lessor.time_to_live(1).unwrap().0 > 1 << 31);
    }
}
