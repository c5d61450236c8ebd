//! Calls that only the leader carries out: made here if this member leads, or else at the leader, until the deadline.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status};

use super::{Client, Leadership, Node, Purpose, is_unsent};
use crate::refusal::Refusal;

/// How a call is made at the leader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaderCall {
    pub(super) purpose: Purpose,
    /// Whether it may be made again where it is not known what became of it.
    pub(super) is_repeatable: bool,
    /// The time limit of one try, also while the leader is the same.
    pub(super) limit: Option<Duration>,
}

impl LeaderCall {
    /// Made again only if it was certainly not carried out.
    pub(super) const ONCE: LeaderCall =
        LeaderCall { purpose: Purpose::Other, is_repeatable: false, limit: None };
    /// Retried until it succeeds.
    pub(crate) const REPEATABLE: LeaderCall = LeaderCall { is_repeatable: true, ..LeaderCall::ONCE };
}

/// The refusal of a member that does not lead. It says that nothing was done.
pub(super) fn not_leader() -> Status {
    Refusal::NotLeader.into()
}

fn is_not_leader(status: &Status) -> bool {
    status.code() == Refusal::NotLeader.code() && status.message() == Refusal::NotLeader.text()
}

/// Returns the failure of a request that was sent to the leader: what became of it is not known if the connection was lost.
fn outcome_unknown(status: Status) -> Status {
    let is_transport = std::error::Error::source(&status).is_some();
    match status.code() {
        Code::Unavailable | Code::Cancelled | Code::Unknown | Code::Internal if is_transport => {
            Refusal::LeaderChanged.into()
        }
        _ => status,
    }
}

impl Node {
    /// Has a call made here if this member leads, or else at the leader. It may be made more than once: one that certainly was not carried
    /// out, and a repeatable one that was lost.
    ///
    /// # Errors
    /// [`Refusal::Timeout`] or [`Refusal::TimeoutLeaderFailure`] at the deadline; refusals; [`Refusal::LeaderChanged`] for a call that is not
    /// repeatable whose connection was lost.
    pub(crate) async fn call_leader<T, H, L>(
        &self,
        how: LeaderCall,
        deadline: Instant,
        here: impl Fn() -> H + Send,
        there: impl Fn(Client) -> L + Send,
    ) -> Result<T, Status>
    where
        H: Future<Output = Result<T, Status>> + Send,
        L: Future<Output = Result<T, Status>> + Send,
        T: Send,
    {
        loop {
            self.check_running()?;
            let then = self.wait_for_leader(deadline).await?;
            let called = match then.leader {
                Some(leader) if !then.is_own => match self.inner.peers.client(leader, how.purpose) {
                    Ok(client) => self.sent(leader, then, how, deadline, there(client)).await,
                    Err(_) => Ok(Err(not_leader())),
                },
                _ => timeout_at(deadline, here()).await,
            };
            match called {
                Ok(Err(status)) if is_not_leader(&status) => {}
                Ok(Err(status)) if how.is_repeatable && status.code() == Code::Unavailable => {}
                Ok(done) => return done,
                Err(_) => return Err(self.timeout_status(then)),
            }
            if Instant::now() >= deadline {
                return Err(self.timeout_status(then));
            }
            self.next_leader(then, deadline).await;
        }
    }

    /// Awaits a call of the leader. Says `not_leader` where it was not sent, or was given up for another try: a repeatable one is when
    /// another one leads, since a leader that was stopped does not reply.
    async fn sent<T>(
        &self,
        leader: u64,
        then: Leadership,
        how: LeaderCall,
        deadline: Instant,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<Result<T, Status>, tokio::time::error::Elapsed> {
        let limit = how.limit.map_or(deadline, |limit| deadline.min(Instant::now() + limit));
        let mut leadership = self.leadership();
        let replaced = leadership.wait_for(|now| now.leader != then.leader || now.term != then.term);
        let called = tokio::select! {
            biased;
            called = timeout_at(limit, call) => called,
            _ = replaced, if how.is_repeatable => return Ok(Err(not_leader())),
        };
        match called {
            Ok(Err(status)) if is_unsent(&status) => {
                self.inner.peers.failed(leader);
                Ok(Err(not_leader()))
            }
            Ok(done) => Ok(done.map_err(outcome_unknown)),
            Err(_) if limit < deadline => Ok(Err(not_leader())),
            Err(elapsed) => Err(elapsed),
        }
    }

    async fn wait_for_leader(&self, deadline: Instant) -> Result<Leadership, Status> {
        let mut leadership = self.leadership();
        match timeout_at(deadline, leadership.wait_for(|now| now.leader.is_some())).await {
            Ok(Ok(found)) => Ok(*found),
            Ok(Err(_)) => Err(Refusal::Stopped.into()),
            Err(_) => Err(Refusal::Timeout.into()),
        }
    }

    /// Waits until this is not the state of things any more, or for a heartbeat.
    async fn next_leader(&self, was: Leadership, deadline: Instant) {
        let mut leadership = self.leadership();
        let changed = leadership.wait_for(|now| *now != was);
        let heartbeat = Instant::now() + self.inner.settings.heartbeat_interval;
        // Either is a reason to look again.
        let _ = timeout_at(heartbeat.min(deadline), changed).await;
    }

    /// Returns the failure of a request that timed out, and started under the leadership `then`.
    fn timeout_status(&self, then: Leadership) -> Status {
        let now = *self.inner.leadership.borrow();
        if now.leader == then.leader && now.term == then.term {
            return Refusal::Timeout.into();
        }
        Refusal::TimeoutLeaderFailure.into()
    }
}
