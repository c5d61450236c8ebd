//! Snapshots for `etcdctl snapshot save`: files of etcd's own format and buckets, which etcd's tools read; and such files, read.

pub(crate) mod source;

use prost::Message;
use serde::Serialize;

use crate::bolt::{Meta, Writer};
use crate::mvcc::{Failure, View};
use crate::proto::etcdserverpb::Member;

/// How much is collected before it is handed on.
const PART_BYTES: usize = 64 << 10;

/// etcd's bucket of members has these, as JSON.
#[derive(Serialize)]
struct MemberRecord<'a> {
    id: u64,
    #[serde(rename = "peerURLs")]
    peer_urls: &'a [String],
    #[serde(rename = "isLearner", skip_serializing_if = "std::ops::Not::not")]
    is_learner: bool,
    name: &'a str,
    #[serde(rename = "clientURLs")]
    client_urls: &'a [String],
}

/// etcd's record of a lease.
#[derive(Message)]
pub(crate) struct LeaseRecord {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
    #[prost(int64, tag = "2")]
    pub(crate) granted_s: i64,
}

/// The contents of a file other than the keys.
#[derive(Debug)]
pub(crate) struct Around {
    pub(crate) members: Vec<Member>,
    pub(crate) cluster_version: String,
    pub(crate) index: u64,
    pub(crate) term: u64,
}

/// Returns the key of a revision in etcd's bucket.
fn revision_key(main: i64, sub: u64, is_delete: bool) -> Vec<u8> {
    let mut key = [&main.to_be_bytes()[..], b"_", &sub.to_be_bytes()].concat();
    if is_delete {
        key.push(b't');
    }
    key
}

/// Receives the parts of a file.
pub(crate) trait Sink: Send {
    /// The reason why it accepts no more.
    type Error: From<Failure> + Send;

    fn take(&mut self, part: Vec<u8>) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Writes a file except its first pages, which need the returned value. Parts are handed on as they are complete; the same
/// view gives the same bytes each time.
pub(crate) async fn write<S: Sink>(view: &View, around: &Around, sink: &mut S) -> Result<Meta, S::Error> {
    let (mut writer, mut out) = (Writer::new(), Vec::new());
    let mut alarms: Vec<Vec<u8>> = view.alarms().await?.iter().map(Message::encode_to_vec).collect();
    alarms.sort();
    for alarm in alarms {
        writer.add(&alarm, &[], &mut out);
    }
    writer.end_bucket("alarm", &mut out);
    let auth = view.auth().await?;
    if !auth.is_untouched() {
        writer.add(b"authEnabled", &[u8::from(auth.is_enabled())], &mut out);
        writer.add(b"authRevision", &auth.revision().to_be_bytes(), &mut out);
    }
    writer.end_bucket("auth", &mut out);
    for (name, role) in auth.roles() {
        writer.add(name.as_bytes(), &role.encode_to_vec(), &mut out);
    }
    writer.end_bucket("authRoles", &mut out);
    for (name, user) in auth.users() {
        writer.add(name.as_bytes(), &user.encode_to_vec(), &mut out);
    }
    writer.end_bucket("authUsers", &mut out);
    writer.add(b"clusterVersion", around.cluster_version.as_bytes(), &mut out);
    writer.end_bucket("cluster", &mut out);
    let mut records = view.records()?;
    while let Some(record) = records.next().await? {
        let key = revision_key(record.main, record.sub.into(), record.is_delete);
        writer.add(&key, &record.pair.encode_to_vec(), &mut out);
        if out.len() >= PART_BYTES {
            sink.take(std::mem::take(&mut out)).await?;
        }
    }
    writer.end_bucket("key", &mut out);
    for (id, granted_s) in view.leases().await? {
        writer.add(&id.to_be_bytes(), &LeaseRecord { id, granted_s }.encode_to_vec(), &mut out);
    }
    writer.end_bucket("lease", &mut out);
    let mut members: Vec<(String, &Member)> =
        around.members.iter().map(|member| (format!("{:x}", member.id), member)).collect();
    members.sort_by(|one, other| one.0.cmp(&other.0));
    for (id, member) in members {
        let record = MemberRecord {
            id: member.id,
            peer_urls: &member.peer_ur_ls,
            is_learner: member.is_learner,
            name: &member.name,
            client_urls: &member.client_ur_ls,
        };
        let json = serde_json::to_vec(&record).map_err(|error| Failure::Damaged(error.to_string()))?;
        writer.add(id.as_bytes(), &json, &mut out);
    }
    writer.end_bucket("members", &mut out);
    writer.end_bucket("members_removed", &mut out);
    writer.add(b"consistent_index", &around.index.to_be_bytes(), &mut out);
    if view.compacted() >= 0 {
        // If it is not finished here, etcd finishes it.
        if !view.is_cleaning() {
            writer.add(b"finishedCompactRev", &revision_key(view.compacted(), 0, false), &mut out);
        }
        writer.add(b"scheduledCompactRev", &revision_key(view.compacted(), 0, false), &mut out);
    }
    writer.add(b"term", &around.term.to_be_bytes(), &mut out);
    writer.end_bucket("meta", &mut out);
    let meta = writer.end(&mut out);
    sink.take(out).await?;
    Ok(meta)
}
