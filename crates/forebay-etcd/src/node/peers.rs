//! Connections to the other members.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;
use tokio::runtime::Handle;
use tonic::codegen::http::Uri;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::histogram::DoublingHistogram;
use crate::proto::peer::peer_client::PeerClient;
use crate::tls::Connector;
use crate::version::Formats;

/// Metadata of every request between members: the cluster, who sends, and to whom. Builds before formats had numbers know another name
/// than [`FROM`], and refuse requests without it.
pub(crate) const CLUSTER: &str = "forebay-cluster";
pub(crate) const FROM: &str = "forebay-member";
pub(crate) const TO: &str = "forebay-to";
/// The sender's formats.
pub(crate) const FORMAT: &str = "forebay-format";
pub(crate) const FORMAT_LEAST: &str = "forebay-format-least";

/// Bytes that a stream, and a connection, may have on their way.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// A client of another member.
pub(crate) type Client = PeerClient<InterceptedService<Channel, Ids>>;

/// Puts the ids and the formats into each request.
#[derive(Clone, Debug)]
pub(crate) struct Ids {
    ids: Vec<(&'static str, MetadataValue<Ascii>)>,
}

impl Ids {
    fn new(formats: Formats, cluster: Option<u64>, from: Option<u64>, to: Option<u64>) -> Ids {
        let Formats { least, own } = formats;
        let formats = [(FORMAT, Some(own)), (FORMAT_LEAST, Some(least))];
        let ids = [(CLUSTER, cluster), (FROM, from), (TO, to)].into_iter().chain(formats);
        Ids { ids: ids.filter_map(|(name, id)| Some((name, MetadataValue::from(id?)))).collect() }
    }
}

impl Interceptor for Ids {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        for (name, id) in &self.ids {
            request.metadata_mut().insert(*name, id.clone());
        }
        Ok(request)
    }
}

/// The purpose of a connection: short messages never wait behind long messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Heartbeats, votes and entries.
    Raft,
    /// Snapshots and forwarded requests.
    Other,
}

/// The maker of connections.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// Common names that certificates of members may have; all, if empty.
    pub(crate) names: BTreeSet<String>,
    pub(crate) connect_timeout: Duration,
    pub(crate) keep_alive: Duration,
    /// This member's.
    pub(crate) formats: Formats,
    /// Connections have tasks, which run here.
    pub(crate) runtime: Handle,
}

impl Dialer {
    /// Returns a channel that connects when it is used, and again after failures.
    fn channel(&self, url: &str) -> Result<Channel, Status> {
        let _guard = self.runtime.enter();
        let bad = |error: &dyn std::error::Error| {
            Status::internal(format!("{url} cannot be reached: {}", causes(error)))
        };
        let tls = self.tls.as_ref().and_then(|tls| Some((tls, url.strip_prefix("https:")?)));
        let endpoint = match tls {
            // The connector is what adds TLS: to the transport the connection is a plain one, of requests for https.
            Some((_, rest)) => {
                let origin = url.parse::<Uri>().map_err(|error| bad(&error))?;
                Endpoint::from_shared(format!("http:{rest}")).map_err(|error| bad(&error))?.origin(origin)
            }
            None => Endpoint::from_shared(url.to_owned()).map_err(|error| bad(&error))?,
        };
        let endpoint = endpoint
            .connect_timeout(self.connect_timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(self.keep_alive)
            .keep_alive_timeout(self.keep_alive)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        Ok(match tls {
            Some((tls, _)) => {
                endpoint.connect_with_connector_lazy(Connector::new(tls.clone(), self.names.clone()))
            }
            None => endpoint.connect_lazy(),
        })
    }

    /// Returns a client for a member of which only a URL is known yet.
    pub(crate) fn stranger(&self, url: &str) -> Result<Client, Status> {
        Ok(client(self.channel(url)?, Ids::new(self.formats, None, None, None)))
    }
}

fn client(channel: Channel, ids: Ids) -> Client {
    // What entries and requests may have is checked where they are made.
    PeerClient::with_interceptor(channel, ids)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX)
}

/// The other members, by their ids.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    cluster: u64,
    own: u64,
    dialer: Dialer,
    table: Mutex<HashMap<u64, Entry>>,
    /// For tests: hides all other members, even if Raft reports them.
    #[cfg(test)]
    are_forgotten: std::sync::atomic::AtomicBool,
}

#[derive(Debug)]
struct Entry {
    urls: Vec<String>,
    /// The URL in use.
    at: usize,
    raft: Client,
    other: Client,
    reached: Reachability,
}

/// How Raft's messages to a member fare.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reachability {
    /// Whether the last one did not reach it.
    pub(crate) is_lost: bool,
    /// How many did not, and how many of these were the first after one that did.
    pub(crate) failures: u64,
    pub(crate) losses: u64,
    /// The times of heartbeats until their replies.
    pub(crate) round_trips: Arc<DoublingHistogram<100_000, 16>>,
    /// Bytes of appends, their replies, and snapshots.
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
}

impl Peers {
    pub(crate) fn new(cluster: u64, own: u64, dialer: Dialer) -> Peers {
        let inner = Inner {
            cluster,
            own,
            dialer,
            table: Mutex::default(),
            #[cfg(test)]
            are_forgotten: std::sync::atomic::AtomicBool::new(false),
        };
        Peers { inner: Arc::new(inner) }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.inner.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, id: u64, urls: &[String], at: usize) -> Result<Entry, Status> {
        let inner = &self.inner;
        let url = urls.get(at).ok_or_else(|| Status::internal(format!("member {id:x} has no URL")))?;
        let formats = inner.dialer.formats;
        let ids = Ids::new(formats, Some(inner.cluster), Some(inner.own), Some(id));
        Ok(Entry {
            urls: urls.to_vec(),
            at,
            raft: client(inner.dialer.channel(url)?, ids.clone()),
            other: client(inner.dialer.channel(url)?, ids),
            reached: Reachability::default(),
        })
    }

    /// Notes where a member is reached; connections to other URLs of it are not used any more.
    pub(crate) fn set(&self, id: u64, urls: &[String]) {
        let mut table = self.table();
        if id == self.inner.own || table.get(&id).is_some_and(|entry| entry.urls == urls) {
            return;
        }
        match self.entry(id, urls, 0) {
            Ok(entry) => {
                table.insert(id, entry);
            }
            Err(status) => tracing::error!(member = format!("{id:x}"), "{}", status.message()),
        }
    }

    #[cfg(test)]
    pub(crate) fn forget(&self) {
        self.inner.are_forgotten.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    /// Forgets the members for which this does not hold.
    pub(crate) fn retain(&self, is_member: impl Fn(u64) -> bool) {
        self.table().retain(|id, _| is_member(*id));
    }

    pub(crate) fn client(&self, id: u64, purpose: Purpose) -> Result<Client, Status> {
        let table = self.table();
        let entry = table.get(&id);
        #[cfg(test)]
        let entry = entry.filter(|_| !self.inner.are_forgotten.load(std::sync::atomic::Ordering::SeqCst));
        let Some(entry) = entry else {
            return Err(Status::unavailable(format!("member {id:x} is not known here")));
        };
        Ok(match purpose {
            Purpose::Raft => entry.raft.clone(),
            Purpose::Other => entry.other.clone(),
        })
    }

    /// Records that a member was not reached: its next URL is used, if it has several.
    pub(crate) fn failed(&self, id: u64) {
        let mut table = self.table();
        let Some(entry) = table.get(&id).filter(|entry| entry.urls.len() > 1) else { return };
        let (urls, at, reached) =
            (entry.urls.clone(), (entry.at + 1) % entry.urls.len(), entry.reached.clone());
        if let Ok(entry) = self.entry(id, &urls, at) {
            table.insert(id, Entry { reached, ..entry });
        }
    }

    /// Returns how Raft's messages to the members fare.
    pub(crate) fn reached(&self) -> BTreeMap<u64, Reachability> {
        self.table().iter().map(|(id, entry)| (*id, entry.reached.clone())).collect()
    }

    /// Records the round-trip time of a heartbeat.
    pub(crate) fn note_round_trip(&self, id: u64, time: Duration) {
        if let Some(entry) = self.table().get(&id) {
            entry.reached.round_trips.observe_time(time);
        }
    }

    /// Notes the bytes of messages of Raft to a member, and from it. A member that is heard counts as reached: a follower sends
    /// nothing to its leader by itself, and the vote before may have failed.
    pub(crate) fn note_bytes(&self, id: u64, sent: usize, received: usize) {
        let mut table = self.table();
        let Some(Entry { reached, .. }) = table.get_mut(&id) else { return };
        reached.sent_bytes += sent as u64;
        reached.received_bytes += received as u64;
        reached.is_lost &= received == 0;
    }

    /// Notes that a message of Raft did or did not reach a member. Logs changes: Raft's own lines, one for each heartbeat, are left out.
    pub(crate) fn note(&self, id: u64, reached: Result<(), &Status>) {
        let mut table = self.table();
        let Some(entry) = table.get_mut(&id) else { return };
        let was_lost = std::mem::replace(&mut entry.reached.is_lost, reached.is_err());
        entry.reached.failures += u64::from(reached.is_err());
        match reached {
            Ok(()) if was_lost => tracing::info!(member = format!("{id:x}"), "the member is reached again"),
            Err(status) if !was_lost => {
                entry.reached.losses += 1;
                tracing::warn!(member = format!("{id:x}"), "the member is not reached: {}", causes(status));
            }
            _ => {}
        }
    }
}

/// Returns an error with all its causes, in one line.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let (mut text, mut at) = (error.to_string(), error.source());
    while let Some(cause) = at {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        at = cause.source();
    }
    text
}

/// Returns whether a request certainly never reached the other member, so that it may be sent again.
pub(crate) fn is_unsent(status: &Status) -> bool {
    let mut at: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(status);
    while let Some(cause) = at {
        if cause.is::<tonic::ConnectError>() {
            return true;
        }
        at = cause.source();
    }
    false
}
