//! [`Server`]: a member with its listeners.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::HeaderMap;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;

use crate::config::Config;
use crate::http;
use crate::listen::{Connection, Listener, ShutdownSignals, accept, client_places, metrics_places};
use crate::mvcc::{self, Machine};
use crate::node::{EndReason, LeaderLeases, Node, PeerService, RaftRuntime};
use crate::services::{self, Authentication, CheckIntervals, Context, Followers, Leases, Limits};
use crate::start_error::StartError;
use crate::tls;
use crate::version::{ETCD_VERSION, OWN_VERSION};

/// Bytes that a client may send on a stream, and on all streams of a connection, before they are read. h2 closes a connection whose
/// unread small frames exceed a budget: half of the connection's window, to which a frame of fewer than 256 bytes is charged with
/// the difference. A gRPC message has at least 5, so the window of one stream is always full first: 131,072 / 5 * 251 is less than
/// half of the connection's. Keep-alives (16 bytes) reach it with five streams, each with all of its requests ahead and a full
/// window.
const STREAM_WINDOW_BYTES: u32 = 128 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// The time limit for requests of clients at the server's end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// That of a timer which nothing waits for: see [`keep_timer`]. Deadlines of requests are later.
const TIMER_PERIOD: Duration = Duration::from_secs(1);

/// The addresses that a server listens on, with the bound ports.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// For clients: gRPC and HTTP.
    pub client: Vec<SocketAddr>,
    /// For other members.
    pub peer: Vec<SocketAddr>,
    /// For metrics and health alone.
    pub metrics: Vec<SocketAddr>,
}

/// A running server: a member of a cluster with its listeners. End it with [`Server::shutdown`]. A dropped server ends like a
/// killed process: its ports, threads and files are free soon after.
pub struct Server {
    node: Node,
    addresses: Addresses,
    /// Listeners for clients end with this.
    stopping: watch::Sender<bool>,
    clients: Vec<JoinHandle<()>>,
    /// The listener for members runs until Raft has ended.
    peers_stopping: watch::Sender<bool>,
    peers: JoinHandle<()>,
    /// All connections end with this.
    closing: watch::Sender<bool>,
    /// They hold the ports.
    accepting: JoinSet<()>,
    /// What other members' requests about leases reach.
    _leases: Arc<dyn LeaderLeases>,
    /// Last: its tasks end with it.
    _raft_runtime: RaftRuntime,
}

fn addresses(listeners: &[Listener]) -> Vec<SocketAddr> {
    listeners.iter().filter_map(Listener::address).collect()
}

impl Server {
    /// Starts a server: binds the listeners, opens log and state, and starts, joins or continues in the cluster. Returns before a
    /// leader is elected.
    ///
    /// # Errors
    /// The obstacle, as a sentence: a port in use, the data directory of another member, a file that cannot be read.
    pub async fn start(config: Config) -> Result<Server, StartError> {
        let suites = &config.cipher_suites;
        let client_tls = tls::server(&config.client_tls, config.tls_versions, suites)?;
        let peer_tls = tls::server(&config.peer_tls, config.tls_versions, suites)?;
        let dialing_tls = tls::client(&config.peer_tls, suites)?;
        let (client_tls, peer_tls) = (client_tls.as_ref(), peer_tls.as_ref());
        let mut clients =
            Listener::bind("listen-client-urls", &config.listen_client_urls, client_tls).await?;
        let http_urls = &config.listen_client_http_urls;
        let mut http = Listener::bind("listen-client-http-urls", http_urls, client_tls).await?;
        let metrics = Listener::bind("listen-metrics-urls", &config.listen_metrics_urls, client_tls).await?;
        let mut peers = Listener::bind("listen-peer-urls", &config.listen_peer_urls, peer_tls).await?;
        for listener in &mut peers {
            listener.callers = config.peer_names.clone();
        }
        let addresses =
            Addresses { client: addresses(&clients), peer: addresses(&peers), metrics: addresses(&metrics) };
        let (limits, authentication) = (limits(&config), Authentication::open(&config)?);
        let followers = Arc::new(Followers::default());
        let machine = || {
            let machine = Machine::new(followers.clone(), limits.state).with_format_max(config.formats.own);
            machine.with_counts(followers.counts.clone())
        };
        let raft_runtime = RaftRuntime::start()?;
        let node = Node::start(&config, machine, dialing_tls, &raft_runtime).await?;
        tracing::info!(
            version = OWN_VERSION,
            etcd_version = ETCD_VERSION,
            member = format!("{:x}", node.id()),
            cluster = format!("{:x}", node.cluster_id()),
            name = config.name,
            client_addresses = ?addresses.client,
            peer_addresses = ?addresses.peer,
            "started"
        );
        // Raft's messages stay on Raft's own runtime.
        let here = Handle::current();
        let there = node.runtime();
        let mut accepting = JoinSet::new();
        let (closing, is_closing) = watch::channel(false);
        let (peers_stopping, is_stopping) = watch::channel(false);
        let signals = ShutdownSignals { stopping: is_stopping.clone(), closing: is_closing.clone() };
        let routes = Routes::from(http::peer_router()).add_service(PeerService::server(node.clone()));
        let connections = accept(peers, None, &signals, there, &mut accepting);
        let peers = there.spawn(serve(peer_builder(&config), connections, routes, is_stopping));
        if config.is_initial_check_on
            && let Err(error) = services::check_at_start(&node).await
        {
            node.shutdown().await;
            return Err(error);
        }
        let (stopping, is_stopping) = watch::channel(false);
        let signals = ShutdownSignals { stopping: is_stopping.clone(), closing: is_closing };
        let (followed, users) = (followers.clone(), followers.users.clone());
        let context = Context::new(node.clone(), followers, limits, authentication, is_stopping.clone());
        let leases: Arc<dyn LeaderLeases> = Arc::new(Leases(context.clone()));
        node.set_leader_leases(&leases);
        let grpc = std::mem::take(services::router(&context).axum_router_mut());
        let calls = context.calls.clone();
        let mut tasks = vec![
            tokio::spawn(services::compact(context.clone(), config.auto_compaction)),
            tokio::spawn(services::clean(context.clone())),
            tokio::spawn(services::check_members(context.clone(), check_intervals(&config))),
            tokio::spawn(services::scrub_state(context.clone(), config.scrub_interval)),
            tokio::spawn(services::heal_state(context.clone())),
            tokio::spawn(services::end_leases(context)),
            tokio::spawn(keep_timer(is_stopping.clone())),
        ];
        let settings = http::PageSettings {
            quota_bytes: config.quota_bytes,
            features: [
                ("CompactHashCheck", config.is_checkpoint_check_on),
                ("InitialCorruptCheck", config.is_initial_check_on),
            ],
        };
        let pages = http::router(node.clone(), followed, calls, settings);
        let has_pages = http.is_empty();
        let places = client_places();
        let mut served = vec![(metrics, metrics_places(), pages.clone().fallback(not_found))];
        let gateway = config.is_gateway_on.then(|| http::gateway(grpc.clone(), limits.message_bytes_max()));
        let pages = pages.merge(gateway.unwrap_or_default());
        for is_tls in [false, true] {
            let access = http::Access::new(&config, &users, is_tls);
            let (pages, nothing) =
                (access.guard(pages.clone()), access.guard(Router::new().fallback(not_found)));
            let grpc = if has_pages { grpc.clone().merge(pages.clone()) } else { grpc.clone() };
            let mut of = |listeners: &mut Vec<Listener>, routes: Router| {
                let (these, others) = listeners.drain(..).partition(|one| one.url.is_tls == is_tls);
                *listeners = others;
                served.push((these, places.clone(), routes.fallback_service(nothing.clone())));
            };
            of(&mut clients, grpc);
            of(&mut http, pages);
        }
        for (listeners, places, routes) in served {
            if !listeners.is_empty() {
                let connections = accept(listeners, Some(&places), &signals, &here, &mut accepting);
                let (builder, routes) = (client_builder(&config), Routes::from(routes));
                tasks.push(tokio::spawn(serve(builder, connections, routes, is_stopping.clone())));
            }
        }
        Ok(Server {
            node,
            addresses,
            stopping,
            clients: tasks,
            peers_stopping,
            peers,
            closing,
            accepting,
            _leases: leases,
            _raft_runtime: raft_runtime,
        })
    }

    /// Returns the addresses that the server listens on.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Returns the id of the member.
    pub fn member_id(&self) -> u64 {
        self.node.id()
    }

    /// Returns the id of the cluster.
    pub fn cluster_id(&self) -> u64 {
        self.node.cluster_id()
    }

    /// Waits until the cluster has a leader, and knows this member's name and client addresses.
    pub async fn ready(&self) {
        self.node.published().await;
    }

    /// Waits until the member ends by itself: it was removed, or its storage has failed.
    pub async fn ended(&self) -> EndReason {
        let mut ended = self.node.ended();
        let ended = ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        // The node holds the sender, and the server the node.
        ended.unwrap_or_else(|| EndReason::Failed("its tasks are gone".to_owned()))
    }

    #[cfg(test)]
    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// Ends the server in order: accepts no more, hands the lead over, lets requests end for at most 3 seconds, and closes
    /// Raft, state and log.
    pub async fn shutdown(mut self) {
        self.stopping.send_replace(true);
        self.node.hand_over_lead(0).await;
        let deadline = tokio::time::Instant::now() + DRAIN_TIMEOUT;
        for mut task in self.clients.drain(..) {
            if tokio::time::timeout_at(deadline, &mut task).await.is_err() {
                task.abort();
            }
        }
        self.node.shutdown().await;
        self.peers_stopping.send_replace(true);
        // Streams of appends, and those of some clients, never end by themselves.
        self.peers.abort();
        self.closing.send_replace(true);
        while self.accepting.join_next().await.is_some() {}
        tracing::info!("ended");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Calls of clients that are under way in tasks of their own end instead of waiting for a leader.
        self.node.set_stopping();
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

async fn not_found(headers: HeaderMap) -> axum::http::Response<tonic::body::Body> {
    services::not_found(&headers)
}

fn limits(config: &Config) -> Limits {
    let state = mvcc::Limits {
        space_bytes: config.quota_bytes,
        txn_operations: config.max_txn_ops,
        ..mvcc::Limits::default()
    };
    // As etcd: half as long again as an election, in whole seconds.
    let lease_s_min = (config.election_timeout.as_millis() as i64 * 3 / 2 + 999) / 1000;
    Limits {
        request_bytes_max: config.max_request_bytes,
        lease_s_min,
        lease_more: config.election_timeout,
        progress_interval: config.watch_progress_interval,
        snapshot_patience: config.snapshot_patience,
        state,
    }
}

fn check_intervals(config: &Config) -> CheckIntervals {
    let is_on = config.is_checkpoint_check_on;
    let checkpoints = if is_on { config.checkpoint_interval } else { Duration::ZERO };
    CheckIntervals { checkpoints, current: config.check_interval }
}

fn client_builder(config: &Config) -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .max_concurrent_streams(config.max_concurrent_streams)
        .http2_keepalive_interval(config.keepalive_interval)
        .http2_keepalive_timeout(config.keepalive_timeout)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .accept_http1(true)
}

fn peer_builder(config: &Config) -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(config.election_timeout.max(Duration::from_secs(1))))
        .http2_keepalive_timeout(Some(config.election_timeout.max(Duration::from_secs(1))))
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(16 << 20)
        .accept_http1(true)
}

/// Keeps a timer that is the next one until `stopping`. For a timer that is, Tokio interrupts the thread that waits for I/O, and that of a lone
/// request's deadline was each time.
async fn keep_timer(mut stopping: watch::Receiver<bool>) {
    let mut timer = tokio::time::interval(TIMER_PERIOD);
    loop {
        tokio::select! {
            // A dropped sender means that the server has ended, which is the same.
            _ = stopping.wait_for(|stopping| *stopping) => return,
            _ = timer.tick() => {}
        }
    }
}

/// Serves connections until `stopping`, and then until the last request has ended.
async fn serve(
    mut builder: tonic::transport::Server,
    connections: mpsc::Receiver<io::Result<Connection>>,
    routes: Routes,
    mut stopping: watch::Receiver<bool>,
) {
    let stopped = async move {
        // A dropped sender means that the server has ended, which is the same.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    };
    let connections = ReceiverStream::new(connections);
    let served = builder.add_routes(routes).serve_with_incoming_shutdown(connections, stopped).await;
    if let Err(error) = served {
        tracing::error!("a listener has failed: {error}");
    }
}

#[cfg(test)]
pub(crate) mod tests;
