//! The types of the Raft cluster.

use std::fmt;

use prost::Message;
use serde::{Deserialize, Serialize};

use crate::proto::peer::{self, Outcome};

openraft::declare_raft_types!(
    /// Entries are commands, responses are outcomes, nodes are members.
    pub(crate) Types: D = Command, R = Outcome, Node = Peer
);

/// An encoded [`peer::Command`]. It stays encoded in the log, so that a member may be older than another.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Command(#[serde(with = "serde_bytes")] pub(crate) Vec<u8>);

impl Command {
    #[cfg(test)]
    pub(crate) fn new(change: peer::command::Change) -> Command {
        Command::by(None, change)
    }

    /// Returns a command that this author asks for; `None` while authentication is off.
    pub(crate) fn by(author: Option<peer::Author>, change: peer::command::Change) -> Command {
        Command(peer::Command { change: Some(change), author }.encode_to_vec())
    }

    /// Returns the change with its author; `None` if the bytes are malformed, or of a later version.
    pub(crate) fn decode(&self) -> Option<(peer::command::Change, Option<peer::Author>)> {
        let peer::Command { change, author } = peer::Command::decode(&*self.0).ok()?;
        Some((change?, author))
    }
}

/// Returns the format that the state must have before a change is proposed: members of earlier formats do not know its kind, or a
/// field of it.
pub(crate) fn format_of(change: &peer::command::Change) -> u64 {
    use peer::command::Change;
    match change {
        Change::Put(_)
        | Change::DeleteRange(_)
        | Change::Txn(_)
        | Change::Compact(_)
        | Change::LeaseGrant(_)
        | Change::LeaseRevoke(_)
        | Change::Attributes(_)
        | Change::Alarm(_)
        | Change::Clean(_)
        | Change::Format(_) => 0,
        // Commands have authors from it on, too.
        Change::Checkpoint(_) | Change::Auth(_) => 1,
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Command({} bytes)", self.0.len())
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a command of {} bytes", self.0.len())
    }
}

/// A member as recorded in Raft's membership. Its name and client URLs are in the member's own [`Attributes`](peer::Attributes), in
/// the state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Peer {
    /// Where other members reach it, such as `http://10.0.0.1:2380`.
    pub(crate) urls: Vec<String>,
    /// A learner that becomes a voter as soon as it has caught up: how a voter is added.
    pub(crate) is_voter_soon: bool,
}
