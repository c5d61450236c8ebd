//! etcd's services, on a [`Node`].

mod ahead;
mod auth;
mod call_counts;
mod cleaner;
mod cluster;
mod compaction;
mod election;
mod follow;
mod guard;
mod heal;
mod health;
mod integrity;
mod kv;
mod lease;
mod lock;
mod long_range;
mod maintenance;
mod queue;
mod rights;
mod scrub;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::sync::watch::Sender;
use tonic::Status;
use tonic::service::Routes;

use crate::answer::Answer;
use crate::hub::Hub;
use crate::lessor::Lessor;
use crate::mvcc;
use crate::node::{LeaderLeases, Node};
use crate::observer::{EntryChanges, InitialState, Observer};
use crate::operation::Operation;
use crate::proto::etcdserverpb::auth_server::AuthServer;
use crate::proto::etcdserverpb::cluster_server::ClusterServer;
use crate::proto::etcdserverpb::kv_server::KvServer;
use crate::proto::etcdserverpb::lease_server::LeaseServer;
use crate::proto::etcdserverpb::maintenance_server::MaintenanceServer;
use crate::proto::etcdserverpb::watch_server::WatchServer;
use crate::proto::etcdserverpb::{AlarmType, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse};
use crate::proto::health::health_server::HealthServer;
use crate::proto::peer::command::Change;
use crate::proto::peer::outcome::Result as Outcome;
use crate::proto::peer::{self, Alarm, Author, Done, KeepAliveReply, KeepAliveRequest};
use crate::proto::v3electionpb::election_server::ElectionServer;
use crate::proto::v3lockpb::lock_server::LockServer;
use crate::refusal::Refusal;
use crate::services::guard::Guard;
use crate::services::queue::Queue;

/// Space for the headers of a message in addition to its longest request.
const OVERHEAD_BYTES: usize = 512 << 10;
/// Between two tries to revoke leases that are over.
const REVOKE_AGAIN: Duration = Duration::from_millis(500);

#[cfg(test)]
pub(crate) use ahead::STREAM_MAX;
pub(crate) use call_counts::{CallCounts, Way};
pub(crate) use cleaner::run as clean;
pub(crate) use compaction::run as compact;
pub(crate) use guard::{is_call, not_found};
pub(crate) use heal::run as heal_state;
pub(crate) use integrity::{CheckIntervals, check_at_start, run as check_members};
pub(crate) use long_range::LongResponse;
#[cfg(test)]
pub(crate) use long_range::RANGES_MAX;
pub(crate) use rights::{Authentication, Users};
#[cfg(test)]
pub(crate) use rights::{RULES, Rule};
pub(crate) use scrub::run as scrub_state;

/// The signal that the server is being shut down: streams end then.
pub(crate) type StopSignal = tokio::sync::watch::Receiver<bool>;

/// Returns when the server is being shut down.
async fn stopped(stopping: &mut StopSignal) {
    // A dropped sender means that the server has ended, which is the same.
    let _ = stopping.wait_for(|is_stopping| *is_stopping).await;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) request_bytes_max: usize,
    /// The shortest time of a lease in seconds: longer than an election.
    pub(crate) lease_s_min: i64,
    /// The grace period added to all leases when this member becomes the leader.
    pub(crate) lease_more: Duration,
    /// How often a watch without events is sent the revision that it is at.
    pub(crate) progress_interval: Duration,
    /// The idle timeout of a snapshot, which pins files of the store, and of a long range, whose client does not read.
    pub(crate) snapshot_patience: Duration,
    /// Those of the state.
    pub(crate) state: mvcc::Limits,
}

impl Limits {
    /// Returns the bytes of the longest message.
    pub(crate) fn message_bytes_max(&self) -> usize {
        self.request_bytes_max + OVERHEAD_BYTES
    }
}

/// Shared by the services.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) node: Node,
    pub(crate) hub: Arc<Hub>,
    pub(crate) lessor: Arc<Lessor>,
    pub(crate) limits: Limits,
    pub(crate) stopping: StopSignal,
    pub(crate) calls: Arc<CallCounts>,
    authentication: Arc<Authentication>,
    users: Arc<Users>,
    followers: Arc<Followers>,
    streams: Arc<AtomicU32>,
    /// Places of requests that streams read ahead.
    ahead: Arc<Semaphore>,
    /// Permits of long ranges.
    ranges: Arc<Semaphore>,
}

impl Context {
    pub(crate) fn new(
        node: Node,
        followers: Arc<Followers>,
        limits: Limits,
        authentication: Authentication,
        stopping: StopSignal,
    ) -> Context {
        let (hub, lessor, users) = (followers.hub.clone(), followers.lessor.clone(), followers.users.clone());
        users.set_ttl(&authentication);
        let authentication = Arc::new(authentication);
        let (streams, ahead) = (Arc::default(), Arc::new(Semaphore::new(ahead::ALL_MAX)));
        let ranges = Arc::new(Semaphore::new(long_range::RANGES_MAX));
        Context {
            node,
            hub,
            lessor,
            limits,
            stopping,
            calls: Arc::default(),
            authentication,
            users,
            followers,
            streams,
            ahead,
            ranges,
        }
    }

    fn next_stream(&self) -> u32 {
        self.streams.fetch_add(1, Ordering::Relaxed)
    }

    /// Has a change applied, and returns its result with the state's revision after it.
    async fn change(&self, change: Change) -> Result<(Option<Outcome>, i64), Status> {
        self.change_by(None, change).await
    }

    /// Has a change applied that this author asks for; `None` while authentication is off.
    async fn change_by(
        &self,
        author: Option<Author>,
        change: Change,
    ) -> Result<(Option<Outcome>, i64), Status> {
        let (outcome, _) = self.node.propose_by(author, change).await?;
        result_of(outcome)
    }

    /// Has a change applied, in several steps if it is more than an entry of the log may change, and returns the revision after the last. If
    /// that fails in between, the rest is as it was. The last step is refused as `gone` where another caller has made it.
    async fn change_in_steps(
        &self,
        author: Option<Author>,
        change: Change,
        gone: Refusal,
    ) -> Result<i64, Status> {
        let mut before = None;
        loop {
            match (self.change_by(author.clone(), change.clone()).await, before) {
                (Ok((Some(Outcome::Done(Done { is_partial: true })), revision)), _) => {
                    before = Some(revision);
                }
                (Ok((_, revision)), _) => return Ok(revision),
                (Err(error), Some(revision)) if error.message() == gone.text() => return Ok(revision),
                (Err(error), _) => return Err(error),
            }
        }
    }

    /// Has a change applied that follows from what this member knows as the leader of this term, by itself: see
    /// [`Node::propose_leading`].
    async fn change_leading(&self, term: u64, change: Change) -> Result<(Option<Outcome>, i64), Status> {
        result_of(self.node.propose_leading(term, self.own_author(), change).await?)
    }

    /// Accesses the leases' times in the term in which this member leads, if it does. No other term starts meanwhile.
    fn leading<T>(&self, look: impl FnOnce(Option<u64>) -> T) -> T {
        let leadership = self.node.leadership();
        // Borrowed until the end, so that an older term never follows a newer term.
        let now = leadership.borrow();
        let term = now.is_own.then_some(now.term);
        self.lessor.set_leader(term, self.limits.lease_more);
        look(term)
    }

    /// Looks at the leases' times in a term.
    ///
    /// # Errors
    /// [`Refusal::NotLeader`] if this member does not lead in it any more, or has not noticed it yet.
    fn leading_in<T>(&self, term: u64, look: impl FnOnce(&Lessor) -> T) -> Result<T, Status> {
        self.leading(|now| {
            let is_in_term = now == Some(term);
            is_in_term.then(|| look(&self.lessor)).ok_or_else(|| Refusal::NotLeader.into())
        })
    }

    /// Waits until what was compacted at this revision, or before, is removed here.
    async fn cleaned(&self, revision: i64) -> Result<(), Status> {
        let (mut cleaning, mut stopping) = (self.followers.cleaning.subscribe(), self.stopping.clone());
        tokio::select! {
            () = stopped(&mut stopping) => Err(Refusal::Stopped.into()),
            cleaned = cleaning.wait_for(|cleaning| cleaning.until >= revision) => {
                cleaned.map(drop).map_err(|_| Refusal::Stopped.into())
            }
        }
    }

    /// Counts a read that started at `begun`.
    fn note_read(&self, operation: Operation, begun: Instant, is_success: bool, done: mvcc::Operations) {
        let time = begun.elapsed();
        self.node.counts().requests.observe(operation, is_success, time);
        self.followers.counts.note_time(time);
        self.followers.counts.note(done);
    }

    /// Refuses a request that is too long: a message is decoded before its length can be judged.
    fn check_bytes(&self, message: &impl prost::Message) -> Result<(), Status> {
        if message.encoded_len() > self.limits.request_bytes_max {
            return Err(Refusal::RequestTooLarge.into());
        }
        Ok(())
    }

    /// Refuses a change that exceeds the space limit, and raises the alarm that has all members refuse such changes.
    async fn check_room(&self, cost_bytes: u64) -> Result<(), Status> {
        if self.limits.state.has_room(self.followers.used_bytes.load(Ordering::Relaxed), cost_bytes) {
            return Ok(());
        }
        let alarm = Alarm { is_raised: true, member: self.node.id(), r#type: AlarmType::Nospace as i32 };
        self.change(Change::Alarm(alarm)).await?;
        Err(Refusal::NoSpace.into())
    }
}

fn result_of(outcome: peer::Outcome) -> Result<(Option<Outcome>, i64), Status> {
    match outcome.result {
        Some(Outcome::Refusal(refusal)) => Err(refusal.into()),
        result => Ok((result, outcome.revision)),
    }
}

/// The refusal of calls while the state is copied from the other members.
fn healing() -> Status {
    Status::unavailable("etcdserver: the state of this member is damaged, and is taken again from the others")
}

/// A response of another kind than the request asked for: members are of different versions.
fn foreign() -> Status {
    Status::internal("a member of another version gave a response of another kind: update all members")
}

/// Those that follow the state.
#[derive(Debug, Default)]
pub(crate) struct Followers {
    pub(crate) hub: Arc<Hub>,
    pub(crate) lessor: Arc<Lessor>,
    pub(crate) users: Arc<Users>,
    pub(crate) counts: Arc<mvcc::Counts>,
    /// The space of the state.
    used_bytes: AtomicU64,
    cleaning: Sender<CleaningProgress>,
}

/// How far the physical part of compactions is, and the walk over older values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CleaningProgress {
    is_unfinished: bool,
    /// The revision up to which compactions are finished.
    until: i64,
}

impl Followers {
    fn set_cleaning(&self, now: CleaningProgress) {
        self.cleaning.send_if_modified(|cleaning| std::mem::replace(cleaning, now) != now);
    }
}

impl Observer for Followers {
    fn opened(&self, opened: InitialState) {
        self.used_bytes.store(opened.used_bytes, Ordering::Relaxed);
        self.set_cleaning(CleaningProgress { is_unfinished: opened.is_unfinished, until: opened.cleaned });
        self.users.opened(opened.auth);
        self.lessor.reset(opened.leases);
        self.hub.skip_to(opened.revision);
    }

    fn applied(&self, applied: EntryChanges) {
        self.used_bytes.store(applied.used_bytes, Ordering::Relaxed);
        if let Some(auth) = applied.auth {
            self.users.changed(auth);
        }
        if let Some(token) = applied.token {
            self.users.given_out(token);
        }
        if let Some((id, granted_s)) = applied.granted {
            self.lessor.granted(id, granted_s);
        }
        if let Some(id) = applied.revoked {
            self.lessor.revoked(id);
        }
        self.hub.publish(applied.revision, applied.events);
        self.set_cleaning(CleaningProgress { is_unfinished: applied.is_unfinished, until: applied.cleaned });
    }
}

/// Requests of other members to this member as the leader.
pub(crate) struct Leases(pub(crate) Context);

impl LeaderLeases for Leases {
    fn keep_alive(&self, request: KeepAliveRequest) -> Answer<'_, KeepAliveReply> {
        Box::pin(lease::keep_alive_here(&self.0, request))
    }

    fn time_to_live(&self, request: LeaseTimeToLiveRequest) -> Answer<'_, LeaseTimeToLiveResponse> {
        Box::pin(lease::time_to_live_here(&self.0, request))
    }
}

/// Revokes leases whose time is over, while this member leads.
pub(crate) async fn end_leases(context: Context) {
    let mut leadership = context.node.leadership();
    let mut stopping = context.stopping.clone();
    loop {
        leadership.borrow_and_update();
        context.leading(|_| ());
        tokio::select! {
            () = stopped(&mut stopping) => return,
            changed = leadership.changed() => if changed.is_err() { return },
            // Given up when the leader changes: leases have new times then.
            () = revoke_ended(&context) => {}
        }
    }
}

/// Revokes the leases whose time is over next. Another leader may have kept them alive by then, so this is done by this leader, in
/// the term in which their time ended, or not at all.
async fn revoke_ended(context: &Context) {
    let (term, ended) = context.lessor.ended().await;
    let revokes = ended.into_iter().map(|id| lease::expire(context, term, id));
    let revoked = futures_util::future::join_all(revokes).await;
    let expired = revoked.iter().filter(|revoked| revoked.is_ok()).count() as u64;
    context.lessor.counts.expired.fetch_add(expired, Ordering::Relaxed);
    if let Some(error) = revoked.into_iter().find_map(|revoked| revoked.err()) {
        tracing::warn!(%error, "leases could not be revoked; they are tried again");
        tokio::time::sleep(REVOKE_AGAIN).await;
    }
}

/// Returns etcd's services.
pub(crate) fn router(context: &Context) -> Routes {
    let shared = Arc::new(context.clone());
    let bytes_max = context.limits.message_bytes_max();
    macro_rules! server {
        ($server:ident, $service:expr) => {
            Guard::new(
                $server::new($service)
                    .max_decoding_message_size(bytes_max)
                    .max_encoding_message_size(usize::MAX),
                shared.clone(),
            )
        };
    }
    let mut routes = Routes::builder();
    routes
        .add_service(server!(KvServer, kv::Keys { context: context.clone() }))
        .add_service(server!(WatchServer, watch::Watches { context: context.clone() }))
        .add_service(server!(LeaseServer, lease::LeaseCalls { context: context.clone() }))
        .add_service(server!(ClusterServer, cluster::Members { context: context.clone() }))
        .add_service(server!(MaintenanceServer, maintenance::Upkeep { context: context.clone() }))
        .add_service(server!(AuthServer, auth::Accounts { context: context.clone() }))
        .add_service(server!(LockServer, lock::Locks { queue: Queue::new(context) }))
        .add_service(server!(ElectionServer, election::Elections { queue: Queue::new(context) }))
        .add_service(server!(HealthServer, health::HealthChecks { context: context.clone() }));
    routes.routes()
}
