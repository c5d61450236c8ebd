//! [`Connector`]: connections to other members with TLS.

use std::collections::BTreeSet;
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

type BoxError = Box<dyn Error + Send + Sync>;

/// Connects to the host of a URL. The transport's own connector would read the certificate once; this connector has the settings
/// read it at each handshake.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    tcp: HttpConnector,
    tls: Arc<ClientConfig>,
    /// Common names that its certificate may have; all, if empty.
    names: Arc<BTreeSet<String>>,
}

impl Connector {
    pub(crate) fn new(tls: Arc<ClientConfig>, names: BTreeSet<String>) -> Connector {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        Connector { tcp, tls, names: Arc::new(names) }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let (connected, tls) = (self.tcp.call(url), TlsConnector::from(self.tls.clone()));
        let names = self.names.clone();
        Box::pin(async move {
            let name = ServerName::try_from(host)?;
            let stream = tls.connect(name, connected.await?.into_inner()).await?;
            if stream.get_ref().1.alpn_protocol() != Some(super::HTTP_2) {
                return Err("it does not speak HTTP/2".into());
            }
            let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let name = certificate.and_then(|certificate| super::common_name(certificate));
            if !names.is_empty() && !name.is_some_and(|name| names.contains(&name)) {
                return Err(
                    "its certificate has a common name that --peer-cert-allowed-cn does not have".into()
                );
            }
            Ok(TokioIo::new(stream))
        })
    }
}
