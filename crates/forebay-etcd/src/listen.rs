//! Listeners: TCP and sockets of the file system, with and without TLS, gRPC and HTTP on the same one.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::config::urls::Url;
use crate::start_error::StartError;

/// The time limit of a caller's handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that wait to be served.
const ACCEPTED_MAX: usize = 64;
/// Descriptors that clients leave for log, state and other members, as in etcd.
const KEPT_DESCRIPTORS: u64 = 150;
/// Connections for metrics and health alone, which have some of these.
const METRICS_CONNECTIONS_MAX: usize = 32;
/// Bytes of replies that gather on a connection before they are sent, and the length from which bytes are sent without a copy.
const GATHERED_BYTES_MAX: usize = 64 << 10;
const DIRECT_BYTES: usize = 16 << 10;
/// Flushes in vain that let other tasks run first, and of those behind them one in this many.
const VAIN_YIELDS_MAX: u32 = 4;
const VAIN_YIELD_EVERY: u32 = 16;
/// How long to wait when no connection can be accepted, such as for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    tls: Option<Arc<ServerConfig>>,
    /// With the port that was bound.
    pub(crate) url: Url,
    /// Common names of certificates that callers may have; all, if empty.
    pub(crate) callers: BTreeSet<String>,
}

/// A socket that is listened on. It becomes one of the runtime that accepts.
#[derive(Debug)]
enum Socket {
    Tcp(std::net::TcpListener),
    Unix(SocketFile, unix::UnixListener),
}

/// The same, of a runtime.
enum Acceptor {
    Tcp(TcpListener),
    /// The file is removed first: another server may create it again as soon as nothing listens.
    Unix {
        _file: SocketFile,
        listener: UnixListener,
    },
}

/// The name of a socket in the file system, as long as it is listened on.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The next server replaces it otherwise.
        let _ = fs::remove_file(&self.0);
    }
}

impl Socket {
    async fn bind(url: &Url) -> io::Result<Socket> {
        if let Some(path) = url.socket() {
            return Socket::bind_file(path).await;
        }
        let address = url.listen_address().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Socket::Tcp(TcpListener::bind(address).await?.into_std()?))
    }

    /// Replaces the socket of a server that has exited, as etcd does.
    async fn bind_file(path: &Path) -> io::Result<Socket> {
        if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            // A stopped server with a full backlog is not a reason to wait.
            match UnixStream::connect(path).await {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)?,
                _ => return Err(io::ErrorKind::AddrInUse.into()),
            }
        }
        let listener = unix::UnixListener::bind(path)?;
        let file = SocketFile(path.to_owned());
        listener.set_nonblocking(true)?;
        Ok(Socket::Unix(file, listener))
    }

    fn address(&self) -> Option<SocketAddr> {
        match self {
            Socket::Tcp(listener) => listener.local_addr().ok(),
            Socket::Unix(..) => None,
        }
    }

    fn on_this_runtime(self) -> io::Result<Acceptor> {
        Ok(match self {
            Socket::Tcp(listener) => Acceptor::Tcp(TcpListener::from_std(listener)?),
            Socket::Unix(file, listener) => {
                Acceptor::Unix { _file: file, listener: UnixListener::from_std(listener)? }
            }
        })
    }
}

impl Acceptor {
    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Acceptor::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Without it small replies wait for acknowledgements; a disconnected caller is noticed later.
                let _ = stream.set_nodelay(true);
                Ok(Box::new(stream))
            }
            Acceptor::Unix { listener, .. } => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

/// Both ways of a connection.
trait Duplex: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> Duplex for S {}

type Stream = Box<dyn Duplex>;

impl Listener {
    /// Binds the address of each URL.
    ///
    /// # Errors
    /// The address that cannot be bound.
    pub(crate) async fn bind(
        flag: &str,
        urls: &[Url],
        tls: Option<&Arc<ServerConfig>>,
    ) -> Result<Vec<Listener>, StartError> {
        let mut listeners = Vec::new();
        for url in urls {
            let socket = Socket::bind(url).await.map_err(|error| not_bound(flag, url, &error))?;
            let tls = tls.filter(|_| url.is_tls).cloned();
            let bound = socket.address().map_or(0, |bound| bound.port());
            let (url, callers) = (url.clone().with_port(bound), BTreeSet::new());
            listeners.push(Listener { socket, tls, url, callers });
        }
        Ok(listeners)
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.socket.address()
    }
}

fn not_bound(flag: &str, url: &Url, error: &io::Error) -> StartError {
    StartError::new(match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "--{flag}={url} cannot be listened on: {} is in use; end what uses it, or give another",
                if url.socket().is_some() { "the file" } else { "the port" }
            )
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("--{flag}={url} cannot be listened on: this machine does not have the address")
        }
        _ => format!("--{flag}={url} cannot be listened on: {error}"),
    })
}

/// The signals of a server's end: at first nothing is accepted any more, and at last all connections are closed.
#[derive(Clone, Debug)]
pub(crate) struct ShutdownSignals {
    pub(crate) stopping: watch::Receiver<bool>,
    pub(crate) closing: watch::Receiver<bool>,
}

/// Places of connections. Beyond them a caller waits until another one has disconnected.
pub(crate) type Places = Arc<Semaphore>;

/// Returns the places of clients: as many as the process may have files, less those that it needs itself.
pub(crate) fn client_places() -> Places {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let places = files - KEPT_DESCRIPTORS.min(files / 2);
    Arc::new(Semaphore::new(usize::try_from(places).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS)))
}

/// Returns those of callers that ask for metrics and health alone.
pub(crate) fn metrics_places() -> Places {
    Arc::new(Semaphore::new(METRICS_CONNECTIONS_MAX))
}

/// Accepts on all listeners until it ends, on a runtime, and returns the connections: as many together as there are places, if any are
/// given. When the tasks have ended, the ports are free.
pub(crate) fn accept(
    listeners: Vec<Listener>,
    places: Option<&Places>,
    signals: &ShutdownSignals,
    runtime: &Handle,
    tasks: &mut JoinSet<()>,
) -> mpsc::Receiver<io::Result<Connection>> {
    let (accepted, connections) = mpsc::channel(ACCEPTED_MAX);
    for listener in listeners {
        let accepting = accept_on(listener, places.cloned(), accepted.clone(), signals.clone());
        tasks.spawn_on(accepting, runtime);
    }
    connections
}

async fn accept_on(
    listener: Listener,
    places: Option<Places>,
    accepted: mpsc::Sender<io::Result<Connection>>,
    signals: ShutdownSignals,
) {
    let ShutdownSignals { mut stopping, closing } = signals;
    let Listener { socket, tls, url, callers } = listener;
    let listener = match socket.on_this_runtime() {
        Ok(listener) => listener,
        Err(error) => return tracing::error!("{url} cannot be listened on: {error}"),
    };
    loop {
        let next = async {
            let place = match &places {
                // No semaphore is closed.
                Some(places) => places.clone().acquire_owned().await.ok(),
                None => None,
            };
            (listener.accept().await, place)
        };
        let (stream, place) = tokio::select! {
            next = next => next,
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!("no connection can be accepted on {url}: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(tls) = tls.clone() else {
            let sent = accepted.send(Ok(Connection::new(stream, Caller::default(), &closing, place)));
            tokio::select! {
                sent = sent => if sent.is_err() { return },
                _ = stopping.wait_for(|stopping| *stopping) => return,
            }
            continue;
        };
        // A slow handshake blocks no other connection.
        let (accepted, closing) = (accepted.clone(), closing.clone());
        let (url, callers) = (url.clone(), callers.clone());
        tokio::spawn(async move {
            let handshake = TlsAcceptor::from(tls).accept(stream);
            match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
                Ok(Ok(stream)) => {
                    let common_name: Option<Arc<str>> = common_name(&stream).map(Arc::from);
                    if !callers.is_empty()
                        && !common_name.as_ref().is_some_and(|name| callers.contains(&**name))
                    {
                        let name = common_name.as_deref().unwrap_or_default();
                        tracing::warn!(
                            "a caller on {url} with the common name {name:?} is not among those that may call"
                        );
                        return;
                    }
                    // The server may have stopped meanwhile.
                    let caller = Caller { common_name };
                    let connection = Connection::new(Box::new(stream), caller, &closing, place);
                    let _ = accepted.send(Ok(connection)).await;
                }
                Ok(Err(error)) if crate::tls::is_gone(&error) => {}
                Ok(Err(error)) => tracing::warn!("a handshake on {url} failed: {error}"),
                Err(_) => tracing::warn!("a handshake on {url} took too long"),
            }
        });
    }
}

/// A connection, which ends when its server does: a caller must not continue on a closed server.
///
/// A flush first lets the other tasks run that are ready. Their replies on this connection are sent by the same system call: with
/// many calls on a connection the runtime would otherwise flush after each of their tasks. If no other reply was added, as with one
/// call at a time, few flushes do so: the yield wakes another thread of the runtime.
pub(crate) struct Connection {
    stream: Stream,
    caller: Caller,
    closed: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Replies that are not sent yet; those before `sent` are.
    gathered: Vec<u8>,
    sent: usize,
    /// Whether other tasks have had their turn since the last flush, and how much had gathered before.
    has_yielded: bool,
    gathered_before: usize,
    /// Flushes since such a turn in which replies gathered.
    flushes_in_vain: u32,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    fn new(
        stream: Stream,
        caller: Caller,
        closing: &watch::Receiver<bool>,
        place: Option<OwnedSemaphorePermit>,
    ) -> Connection {
        let mut closing = closing.clone();
        let closed = async move {
            // A dropped sender means that the server has ended, which is the same.
            let _ = closing.wait_for(|closing| *closing).await;
        };
        Connection {
            stream,
            caller,
            closed: Box::pin(closed),
            gathered: Vec::new(),
            sent: 0,
            has_yielded: false,
            gathered_before: 0,
            flushes_in_vain: 0,
            _place: place,
        }
    }

    /// Returns whether other tasks have their turn before this flush.
    fn yields(&mut self) -> bool {
        if self.has_yielded || self.gathered.is_empty() {
            return false;
        }
        self.flushes_in_vain = self.flushes_in_vain.wrapping_add(1);
        self.flushes_in_vain <= VAIN_YIELDS_MAX || self.flushes_in_vain.is_multiple_of(VAIN_YIELD_EVERY)
    }

    /// Sends what has gathered.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.gathered.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        self.sent = 0;
        self.gathered.clear();
        // Thousands of idle connections should not keep the memory of one burst.
        self.gathered.shrink_to(DIRECT_BYTES);
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// Returns the common name of a caller's certificate.
fn common_name(stream: &TlsStream<Stream>) -> Option<String> {
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    certificate.and_then(|certificate| crate::tls::common_name(certificate))
}

/// The caller of a connection, in the extensions of each request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    /// That of its certificate, which was checked.
    pub(crate) common_name: Option<Arc<str>>,
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        if connection.closed.as_mut().poll(context).is_ready() {
            // It stays so: a finished future is not polled again.
            connection.closed = Box::pin(std::future::ready(()));
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut connection.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        if connection.yields() {
            connection.has_yielded = true;
            connection.gathered_before = connection.gathered.len();
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if connection.has_yielded && connection.gathered.len() != connection.gathered_before {
            connection.flushes_in_vain = 0;
        }
        ready!(connection.poll_send(context))?;
        connection.has_yielded = false;
        Pin::new(&mut connection.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        ready!(connection.poll_send(context))?;
        Pin::new(&mut connection.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let connection = self.get_mut();
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes >= DIRECT_BYTES || connection.gathered.len() >= GATHERED_BYTES_MAX {
            ready!(connection.poll_send(context))?;
        }
        if bytes >= DIRECT_BYTES {
            return Pin::new(&mut connection.stream).poll_write_vectored(context, parts);
        }
        parts.iter().for_each(|part| connection.gathered.extend_from_slice(part));
        Poll::Ready(Ok(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    /// Story: idle clients had all descriptors that the process may have. Then the state could not make a file for the next table, an entry
    /// was not applied, and the member ended. etcd lets clients wait.
    #[tokio::test]
    async fn clients_wait_for_the_places_of_others() {
        let url = Url::parse("http://127.0.0.1:0").unwrap();
        let listeners = Listener::bind("listen-client-urls", &[url], None).await.unwrap();
        let address = listeners[0].address().unwrap();
        let (_stopping, stopping) = watch::channel(false);
        let (_closing, closing) = watch::channel(false);
        let (signals, mut tasks) = (ShutdownSignals { stopping, closing }, JoinSet::new());
        let places = Arc::new(Semaphore::new(2));
        let mut accepted = accept(listeners, Some(&places), &signals, &Handle::current(), &mut tasks);
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        let first = accepted.recv().await.unwrap().unwrap();
        let second = accepted.recv().await.unwrap().unwrap();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(accepted.try_recv().is_err(), "there are two places");
        drop(first);
        let third = accepted.recv().await.unwrap().unwrap();
        drop((second, third, clients));
    }

    #[test]
    fn clients_do_not_have_all_descriptors() {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let places = client_places().available_permits() as u64;
        assert!(
            places > 0 && places < files && files - places >= KEPT_DESCRIPTORS.min(files / 2),
            "{places}"
        );
    }

    /// A thousand watches on a few connections had a system call for each event of each: the runtime ran a connection after each
    /// of its streams' tasks.
    #[tokio::test]
    async fn replies_of_tasks_that_are_ready_are_sent_together_and_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (_closing, closed) = watch::channel(false);
        let accepted = listener.accept().await.unwrap().0;
        let mut connection = Connection::new(Box::new(accepted), Caller::default(), &closed, None);
        let mut expected = Vec::new();
        for (turn, length) in
            [10, 3, DIRECT_BYTES - 1, DIRECT_BYTES, 1, 5 * DIRECT_BYTES, 7].into_iter().enumerate()
        {
            let bytes = vec![turn as u8; length];
            connection.write_all(&bytes).await.unwrap();
            expected.extend(bytes);
            if turn == 0 {
                let mut flush = std::pin::pin!(connection.flush());
                let is_first =
                    poll_fn(|context| Poll::Ready(flush.as_mut().poll(context).is_pending())).await;
                assert!(is_first, "others have their turn first");
                assert_eq!(client.try_read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            }
        }
        let read = tokio::spawn(async move {
            let mut found = Vec::new();
            client.read_to_end(&mut found).await.unwrap();
            found
        });
        connection.flush().await.unwrap();
        connection.shutdown().await.unwrap();
        drop(connection);
        assert_eq!(read.await.unwrap(), expected);
    }

    /// Sends a reply, and others if its flush yields to other tasks. Returns whether it yielded.
    async fn yields(connection: &mut Connection, others: &[u8]) -> bool {
        connection.write_all(b"reply").await.unwrap();
        let mut flush = |context: &mut Context<'_>| Pin::new(&mut *connection).poll_flush(context);
        let is_pending = poll_fn(|context| Poll::Ready(flush(context).is_pending())).await;
        connection.write_all(if is_pending { others } else { b"" }).await.unwrap();
        connection.flush().await.unwrap();
        is_pending
    }

    /// Each flush of a lone call had another thread of the runtime wake, and find nothing to do.
    #[tokio::test]
    async fn flushes_do_not_wait_for_replies_that_never_come() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (_closing, closed) = watch::channel(false);
        let accepted = listener.accept().await.unwrap().0;
        let mut connection = Connection::new(Box::new(accepted), Caller::default(), &closed, None);
        let mut yielded = 0;
        for _ in 0..160 {
            yielded += u32::from(yields(&mut connection, b"").await);
        }
        assert!(yielded <= VAIN_YIELDS_MAX + 160 / VAIN_YIELD_EVERY, "{yielded} of 160");
        for _ in 0..VAIN_YIELD_EVERY {
            yields(&mut connection, b"another").await;
        }
        // Other replies arrive now, and each flush waits for them.
        for _ in 0..20 {
            assert!(yields(&mut connection, b"another").await);
        }
    }
}
