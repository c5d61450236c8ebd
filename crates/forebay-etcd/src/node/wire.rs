//! Raft's messages as MessagePack.

use openraft::raft::{
    StreamAppendError, TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::{LogIdOf, SnapshotMetaOf, VoteOf};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::proto::peer::Encoded;
use crate::types::Types;

pub(crate) type AppendReply = Result<Option<LogIdOf<Types>>, StreamAppendError<Types>>;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Vote {
    pub(crate) request: VoteRequest<Types>,
    /// It is only asked whether the vote would be given.
    pub(crate) is_pre_vote: bool,
}

pub(crate) type VoteReply = VoteResponse<Types>;
pub(crate) type Transfer = TransferLeaderRequest<Types>;
pub(crate) type TransferReply = TransferLeaderResponse<Types>;

/// The messages of a snapshot on its way.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Snapshot {
    /// Before the parts of one that a damaged member has asked for: the length, and the entry of a checkpoint that it has.
    Begin {
        meta: SnapshotMetaOf<Types>,
        bytes: u64,
        checkpoint: u64,
    },
    Part(forebay_raft::SnapshotPart),
    /// After all parts.
    Install(VoteOf<Types>, SnapshotMetaOf<Types>),
}

pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Encoded, Status> {
    // With names, so that a later version may add fields.
    let bytes = rmp_serde::to_vec_named(message);
    bytes.map(|bytes| Encoded { bytes }).map_err(|error| Status::internal(error.to_string()))
}

pub(crate) fn decode<T: DeserializeOwned>(message: &Encoded) -> Result<T, Status> {
    rmp_serde::from_slice(&message.bytes)
        .map_err(|error| Status::invalid_argument(format!("not a message of Raft: {error}")))
}
