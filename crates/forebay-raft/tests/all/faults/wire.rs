//! The frames between clients and nodes, and between nodes.

use std::collections::BTreeMap;
use std::io;

use forebay_raft::SnapshotPart;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::{SnapshotMetaOf, VoteOf};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

openraft::declare_raft_types!(
    pub(crate) Types: D = Command, R = Reply
);

/// A change of the state machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Command {
    Put { key: String, value: u64 },
    Swap { key: String, expected: Option<u64>, value: u64 },
}

impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done,
    /// A swap did not find the value that it expected.
    Other,
}

impl std::fmt::Display for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

/// How nodes serve reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reads {
    Linearizable,
    /// From the node's local state: wrong on purpose.
    Local,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Initialize(BTreeMap<u64, String>),
    Change(Command),
    Get(String, Reads),
    Status,
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<Types>),
    PreVote(VoteRequest<Types>),
    Part(Box<SnapshotPart>),
    Install(VoteOf<Types>, SnapshotMetaOf<Types>),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Response {
    Ok,
    Changed(Reply),
    Got(Option<u64>),
    /// The change was not proposed, or the read not made.
    NotHere(Option<u64>),
    Status(Box<Status>),
    Appended(AppendEntriesResponse<Types>),
    Voted(VoteResponse<Types>),
    Installed(SnapshotResponse<Types>),
    /// What became of the request is not known.
    Failed(String),
}

/// A node as it is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) term: u64,
    pub(crate) leader: Option<u64>,
    pub(crate) applied: Option<u64>,
    pub(crate) purged: Option<u64>,
    /// Snapshots received from other nodes since the start of the process.
    pub(crate) installed: u64,
    /// All keys and values.
    pub(crate) state: BTreeMap<String, u64>,
}

const FRAME_BYTES_MAX: usize = 64 << 20;

pub(crate) async fn send<T: Serialize>(stream: &mut TcpStream, message: &T) -> io::Result<()> {
    let body = rmp_serde::to_vec(message).map_err(io::Error::other)?;
    let mut frame = u32::try_from(body.len()).map_err(io::Error::other)?.to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    stream.write_all(&frame).await
}

pub(crate) async fn receive<T: DeserializeOwned>(stream: &mut TcpStream) -> io::Result<T> {
    let len = stream.read_u32_le().await? as usize;
    if len > FRAME_BYTES_MAX {
        return Err(io::Error::other(format!("a frame of {len} bytes")));
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).await?;
    rmp_serde::from_slice(&body).map_err(io::Error::other)
}

/// A connection to one node, opened on demand and closed after each failure: a reply never reaches another request.
pub(crate) struct Peer {
    address: String,
    stream: Option<TcpStream>,
}

impl Peer {
    pub(crate) fn new(address: String) -> Peer {
        Peer { address, stream: None }
    }

    pub(crate) async fn call(&mut self, request: &Request) -> io::Result<Response> {
        // Moved out, so that a dropped future leaves no half of a frame.
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        send(&mut stream, request).await?;
        let response = receive(&mut stream).await?;
        self.stream = Some(stream);
        Ok(response)
    }

    /// Connects; an error means that no request was sent.
    pub(crate) async fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Opens the connection before a request, if it is closed.
    pub(crate) async fn ready(&mut self) -> io::Result<()> {
        if self.stream.is_none() {
            self.stream = Some(self.connect().await?);
        }
        Ok(())
    }
}
