//! The Maintenance service.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};

use super::Context;
use super::long_range::{LEAST_BYTES_A_SECOND, Pace};
use super::rights::{Credentials, Rule};
use crate::answer::{Answer, forward};
use crate::mvcc::{Failure, View};
use crate::proto::etcdserverpb::alarm_request::AlarmAction;
use crate::proto::etcdserverpb::downgrade_request::DowngradeAction;
use crate::proto::etcdserverpb::maintenance_server::Maintenance;
use crate::proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse,
    DowngradeInfo, DowngradeRequest, DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest,
    HashResponse, MoveLeaderRequest, MoveLeaderResponse, ResponseHeader, SnapshotRequest, SnapshotResponse,
    StatusRequest, StatusResponse,
};
use crate::proto::peer::{self, command::Change, member_change};
use crate::refusal::Refusal;
use crate::snapshot::{self, Around, Sink};
use crate::version::{CLUSTER_VERSION, ETCD_VERSION, SNAPSHOT_CLUSTER_VERSION};

/// The most alarms that clients may raise. They are in memory, and in each response about them; a cluster has few members, and two types.
const ALARMS_MAX: usize = if cfg!(test) { 8 } else { 1024 };
/// Parts of a snapshot that wait for the client.
const PARTS_MAX: usize = 4;

#[derive(Clone)]
pub(crate) struct Upkeep {
    pub(super) context: Context,
}

impl Upkeep {
    fn revision(&self) -> i64 {
        self.context.hub.revision()
    }
}

/// The early end of a snapshot.
enum SnapshotEnd {
    /// The client has disconnected.
    Gone,
    /// The client does not read.
    Unread(Status),
    Failed(Failure),
}

impl From<Failure> for SnapshotEnd {
    fn from(failure: Failure) -> SnapshotEnd {
        SnapshotEnd::Failed(failure)
    }
}

/// The sink of the first pass, which finds the file's first pages, and its length.
struct NullSink;

impl Sink for NullSink {
    type Error = SnapshotEnd;

    async fn take(&mut self, _: Vec<u8>) -> Result<(), SnapshotEnd> {
        Ok(())
    }
}

/// The sink of the second pass, which sends the file.
struct ClientSink<'a> {
    parts: &'a mpsc::Sender<Result<SnapshotResponse, Status>>,
    header: ResponseHeader,
    left_bytes: u64,
    sum: Sha256,
    patience: Duration,
    pace: Pace,
}

impl ClientSink<'_> {
    async fn send(&mut self, blob: Vec<u8>) -> Result<(), SnapshotEnd> {
        let (header, remaining_bytes, version) =
            (Some(self.header), self.left_bytes, CLUSTER_VERSION.to_owned());
        let bytes = blob.len();
        let part = SnapshotResponse { header, remaining_bytes, blob, version };
        let (begun, left) =
            (tokio::time::Instant::now(), self.pace.left(self.patience, LEAST_BYTES_A_SECOND));
        let sent = tokio::time::timeout(left, self.parts.send(Ok(part))).await;
        self.pace.waited += begun.elapsed();
        self.pace.sent_bytes += bytes;
        match sent {
            Ok(sent) => sent.map_err(|_| SnapshotEnd::Gone),
            Err(_) => Err(SnapshotEnd::Unread(Status::deadline_exceeded(format!(
                "the snapshot ended because nothing of it was read for {} s, or less than {} KiB a second for longer: save it again, and \
                 read on",
                self.patience.as_secs_f64(),
                LEAST_BYTES_A_SECOND >> 10
            )))),
        }
    }
}

impl Sink for ClientSink<'_> {
    type Error = SnapshotEnd;

    async fn take(&mut self, part: Vec<u8>) -> Result<(), SnapshotEnd> {
        self.left_bytes = self.left_bytes.saturating_sub(part.len() as u64);
        self.sum.update(&part);
        self.send(part).await
    }
}

/// Sends a file, and the checksum that etcd's tools want behind it.
async fn send_snapshot(
    view: &View,
    around: &Around,
    header: ResponseHeader,
    parts: &mpsc::Sender<Result<SnapshotResponse, Status>>,
    patience: Duration,
) -> Result<(), SnapshotEnd> {
    let meta = snapshot::write(view, around, &mut NullSink).await?;
    let (left_bytes, sum, pace) = (meta.file_bytes(), Sha256::new(), Pace::default());
    let mut sent = ClientSink { parts, header, left_bytes, sum, patience, pace };
    sent.take(meta.first_pages()).await?;
    snapshot::write(view, around, &mut sent).await?;
    let sum = sent.sum.clone().finalize().to_vec();
    sent.send(sum).await
}

type Parts = BoxStream<'static, Result<SnapshotResponse, Status>>;

impl Upkeep {
    fn alarm(&self, request: Request<AlarmRequest>) -> Answer<'_, Response<AlarmResponse>> {
        Box::pin(async move {
            let (by, request) = Credentials::split(request);
            if request.action() != AlarmAction::Get {
                self.context.admit_by(Rule::Root, &by).await?;
            }
            let named = AlarmMember { member_id: request.member_id, alarm: request.alarm };
            let is_any = request.alarm() == AlarmType::None;
            // etcd's calls about alarms are entries of the log: they see each alarm before them.
            let node = &self.context.node;
            node.read_barrier().await?;
            let before = node.alarms(&node.view().await?).await?;
            // As in etcd, a list is of all members, and an alarm is raised or cleared by both of its names.
            let is_raised = request.action() == AlarmAction::Activate;
            let alarms = match request.action() {
                AlarmAction::Get => {
                    before.into_iter().filter(|one| is_any || one.alarm == request.alarm).collect()
                }
                AlarmAction::Activate if is_any => Vec::new(),
                AlarmAction::Activate if before.len() >= ALARMS_MAX && !before.contains(&named) => {
                    let text = format!("{ALARMS_MAX} alarms are raised already: clear those of no member");
                    return Err(Status::resource_exhausted(text));
                }
                AlarmAction::Deactivate if !before.contains(&named) => Vec::new(),
                AlarmAction::Activate | AlarmAction::Deactivate => {
                    let (member, r#type) = (named.member_id, named.alarm);
                    self.context.change(Change::Alarm(peer::Alarm { is_raised, member, r#type })).await?;
                    vec![named]
                }
            };
            let header = Some(self.context.node.header(self.revision()));
            Ok(Response::new(AlarmResponse { header, alarms }))
        })
    }

    fn status(&self, _: Request<StatusRequest>) -> Answer<'_, Response<StatusResponse>> {
        Box::pin(async move {
            let node = &self.context.node;
            let view = node.view().await?;
            let alarms = node.alarms(&view).await?;
            let mut errors = Vec::new();
            if node.leader().is_none() {
                errors.push(Refusal::NoLeader.text().to_owned());
            }
            let alarm = |one: &AlarmMember| {
                format!("memberID:{} alarm:{} ", one.member_id, one.alarm().as_str_name())
            };
            errors.extend(alarms.iter().map(alarm));
            errors.extend(node.damage().map(|damage| format!("damaged state: {damage}")));
            // The figure of the quota, of which nothing is free.
            let used_bytes = view.used_bytes() as i64;
            Ok(Response::new(StatusResponse {
                header: Some(node.header(view.revision())),
                version: ETCD_VERSION.to_owned(),
                db_size: used_bytes,
                leader: node.leader().unwrap_or(0),
                raft_index: node.last_index(),
                raft_term: node.term(),
                raft_applied_index: node.applied_index(),
                errors,
                db_size_in_use: used_bytes,
                is_learner: node.is_learner(),
                storage_version: CLUSTER_VERSION.to_owned(),
                db_size_quota: self.context.limits.state.space_bytes as i64,
                downgrade_info: Some(DowngradeInfo::default()),
            }))
        })
    }

    /// The store compacts its files by itself. etcd's response has no header, and clients rely on it.
    fn defragment(&self, _: Request<DefragmentRequest>) -> Answer<'_, Response<DefragmentResponse>> {
        Box::pin(async move { Ok(Response::new(DefragmentResponse { header: None })) })
    }

    async fn hashed(&self, view: &View, revision: i64) -> Result<(u32, i64, i64), Status> {
        match view.hash(revision).await {
            Ok(hashed) => Ok(hashed),
            Err(failure) => Err(self.context.node.unread_in(view, failure).await),
        }
    }

    fn hash(&self, _: Request<HashRequest>) -> Answer<'_, Response<HashResponse>> {
        Box::pin(async move {
            let (view, begun) = (self.context.node.view().await?, Instant::now());
            let (hash, _, _) = self.hashed(&view, 0).await?;
            self.context.followers.counts.hashes[0].observe_time(begun.elapsed());
            let header = Some(self.context.node.header(view.revision()));
            Ok(Response::new(HashResponse { header, hash }))
        })
    }

    fn hash_kv(&self, request: Request<HashKvRequest>) -> Answer<'_, Response<HashKvResponse>> {
        Box::pin(async move {
            let (view, begun) = (self.context.node.view().await?, Instant::now());
            let (hash, compact_revision, hash_revision) =
                self.hashed(&view, request.get_ref().revision).await?;
            self.context.followers.counts.hashes[1].observe_time(begun.elapsed());
            let header = Some(self.context.node.header(view.revision()));
            Ok(Response::new(HashKvResponse { header, hash, compact_revision, hash_revision }))
        })
    }

    fn snapshot(&self, _: Request<SnapshotRequest>) -> Answer<'_, Response<Parts>> {
        Box::pin(async move {
            let node = &self.context.node;
            let view = node.view().await?;
            let around = Around {
                members: node.members(false).await?,
                cluster_version: SNAPSHOT_CLUSTER_VERSION.to_owned(),
                index: node.applied_index(),
                term: node.term(),
            };
            let (parts, stream) = mpsc::channel(PARTS_MAX);
            let header = node.header(view.revision());
            let patience = self.context.limits.snapshot_patience;
            let (context, failure) = (self.context.clone(), Arc::new(Mutex::new(None)));
            // After the queued parts, whose queue may be full.
            let last = failure.clone();
            let last = futures_util::stream::once(async move {
                last.lock().unwrap_or_else(PoisonError::into_inner).take()
            });
            let stream = ReceiverStream::new(stream).chain(last.filter_map(|last| async { last.map(Err) }));
            tokio::spawn(async move {
                let begun = Instant::now();
                let ended = send_snapshot(&view, &around, header, &parts, patience).await;
                let status = match ended {
                    Ok(()) | Err(SnapshotEnd::Gone) => None,
                    Err(SnapshotEnd::Unread(status)) => Some(status),
                    Err(SnapshotEnd::Failed(failure)) => Some(context.node.unread_in(&view, failure).await),
                };
                drop(view);
                let counts = context.node.counts();
                counts.saved_snapshot_times.observe_time(begun.elapsed());
                if let Some(status) = status {
                    let is_given_up = status.code() == Code::DeadlineExceeded;
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
                    counts.snapshots_given_up.fetch_add(is_given_up.into(), Ordering::Relaxed);
                }
            });
            Ok(Response::new(stream.boxed()))
        })
    }

    fn move_leader(&self, request: Request<MoveLeaderRequest>) -> Answer<'_, Response<MoveLeaderResponse>> {
        Box::pin(async move {
            if !self.context.node.is_leader() {
                return Err(Refusal::NotLeader.into());
            }
            self.context.node.change_members(member_change::Change::MoveLeader(request.into_inner())).await?;
            // Without a header, as etcd's.
            Ok(Response::new(MoveLeaderResponse { header: None }))
        })
    }

    /// All versions of this server have one format so far, so a downgrade has no target.
    fn downgrade(&self, request: Request<DowngradeRequest>) -> Answer<'_, Response<DowngradeResponse>> {
        Box::pin(async move {
            let request = request.into_inner();
            match request.action() {
                // As etcd, also without a downgrade.
                DowngradeAction::Cancel => {
                    let header = Some(self.context.node.header(self.revision()));
                    let version = CLUSTER_VERSION.trim_end_matches(".0").to_owned();
                    Ok(Response::new(DowngradeResponse { header, version }))
                }
                DowngradeAction::Validate | DowngradeAction::Enable if !is_version(&request.version) => {
                    Err(Refusal::WrongDowngradeFormat.into())
                }
                DowngradeAction::Validate | DowngradeAction::Enable => {
                    Err(Refusal::BadDowngradeTarget.into())
                }
            }
        })
    }
}

/// Returns whether a text is a version: two or three numbers.
fn is_version(text: &str) -> bool {
    let numbers: Vec<_> = text.split('.').map(str::parse::<u32>).collect();
    (2..=3).contains(&numbers.len()) && numbers.iter().all(Result::is_ok)
}

impl Maintenance for Upkeep {
    type SnapshotStream = Parts;

    forward! {
        alarm(AlarmRequest) -> AlarmResponse;
        status(StatusRequest) -> StatusResponse;
        defragment(DefragmentRequest) -> DefragmentResponse;
        hash(HashRequest) -> HashResponse;
        hash_kv(HashKvRequest) -> HashKvResponse;
        snapshot(SnapshotRequest) -> Parts;
        move_leader(MoveLeaderRequest) -> MoveLeaderResponse;
        downgrade(DowngradeRequest) -> DowngradeResponse;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: each part had a minute, so a client that read one a minute kept the files of a state for as long as it liked.
    #[tokio::test(start_paused = true)]
    async fn a_snapshot_of_which_little_is_read_ends() {
        let (parts, mut client) = mpsc::channel(PARTS_MAX);
        let (header, sum, patience) = (ResponseHeader::default(), Sha256::new(), Duration::from_secs(60));
        let pace = Pace::default();
        let mut sink = ClientSink { parts: &parts, header, left_bytes: 0, sum, patience, pace };
        let reads = async {
            while client.recv().await.is_some() {
                tokio::time::sleep(Duration::from_secs(50)).await;
            }
        };
        let sends = async {
            let mut count = 0;
            while count < 100 && sink.take(vec![0; 1024]).await.is_ok() {
                count += 1;
            }
            count
        };
        tokio::select! {
            () = reads => panic!("the sender is there"),
            count = sends => assert!(count < 2 * PARTS_MAX, "{count} parts in as many minutes"),
        }
    }
}
