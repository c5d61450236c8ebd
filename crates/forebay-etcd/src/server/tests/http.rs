//! HTTP beside gRPC, and TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::cluster::{Cluster, within};
use crate::proto::peer::MembersRequest;
use crate::proto::peer::peer_client::PeerClient;

/// Asks for a page by HTTP/1, and returns status and body.
async fn ask(stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> std::io::Result<(u16, String)> {
    let mut stream = stream;
    let request = format!("GET {path} HTTP/1.1\r\nHost: member\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut reply = Vec::new();
    within(stream.read_to_end(&mut reply)).await?;
    let reply = String::from_utf8_lossy(&reply).into_owned();
    let (head, body) = reply.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or(std::io::ErrorKind::InvalidData)?, body.to_owned()))
}

pub(super) async fn get(address: &str, port: u16, path: &str) -> (u16, String) {
    ask(TcpStream::connect((address, port)).await.unwrap(), path).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_and_version_are_as_in_etcd() {
    let mut cluster = Cluster::start(1, &[]).await;
    let address = cluster.members[0].address.clone();
    for (path, expected) in [
        ("/health", "{\"health\":\"true\",\"reason\":\"\"}"),
        ("/health?serializable=true", "{\"health\":\"true\",\"reason\":\"\"}"),
        ("/version", "{\"etcdserver\":\"3.5.21\",\"etcdcluster\":\"3.5.0\"}"),
        ("/livez", "ok\n"),
        ("/readyz", "ok\n"),
        ("/readyz/linearizable_read?verbose", "[+]linearizable_read ok\nok\n"),
        ("/livez?verbose", "[+]serializable_read ok\nok\n"),
    ] {
        assert_eq!(get(&address, 2379, path).await, (200, expected.to_owned()), "{path}");
    }
    assert_eq!(get(&address, 2379, "/readyz/nothing").await.0, 404);
    // Members are asked by the same means.
    assert_eq!(get(&address, 2380, "/version").await.0, 200);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_a_majority_is_not_healthy_and_still_alive() {
    let mut cluster = Cluster::start(2, &[]).await;
    // The one that ends hands its lead over. The other led for ever once, without a majority, if no reply to its first
    // appends had come: a leader that had never been acknowledged passed for one that was.
    let (ends, stays) = match cluster.leader().await {
        0 => (0, 1),
        _ => (1, 0),
    };
    cluster.members[ends].stop().await;
    let mut leadership = cluster.members[stays].node().leadership();
    within(leadership.wait_for(|now| now.leader.is_none())).await.unwrap();
    let address = cluster.members[stays].address.clone();
    let expected = "{\"health\":\"false\",\"reason\":\"RAFT NO LEADER\"}".to_owned();
    assert_eq!(get(&address, 2379, "/health").await, (503, expected));
    assert_eq!(get(&address, 2379, "/health?serializable=true").await.0, 200);
    assert_eq!(get(&address, 2379, "/livez").await.0, 200);
    let (status, body) = get(&address, 2379, "/readyz").await;
    assert!(status == 503 && body.contains("[-]linearizable_read failed"), "{body}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_text_that_prometheus_reads() {
    let mut cluster = Cluster::new(1, &[]);
    let metrics_url = format!("http://{}:2381", cluster.members[0].address);
    cluster.members[0].arguments.push(format!("--listen-metrics-urls={metrics_url}"));
    cluster.members[0].start().await;
    within(cluster.members[0].server.as_ref().unwrap().ready()).await;
    cluster.members[0].put("key", "value").await.unwrap();
    let (status, body) = get(&cluster.members[0].address, 2381, "/metrics").await;
    assert_eq!(status, 200);
    let value = |name: &str| -> f64 {
        let line = body.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {body}")).rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(value("etcd_server_has_leader"), 1.0);
    assert_eq!(value("etcd_server_is_leader"), 1.0);
    assert_eq!(value("etcd_server_proposals_pending"), 0.0);
    assert!(value("etcd_server_proposals_applied_total") >= 2.0);
    assert_eq!(value("etcd_debugging_mvcc_current_revision"), 2.0);
    assert!(value("etcd_disk_wal_fsync_duration_seconds_count") >= 2.0);
    assert!(value("etcd_mvcc_db_total_size_in_bytes") > 0.0);
    // Each metric is described before its first value.
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split([' ', '{']).next().unwrap();
        let name = name.strip_suffix("_count").or(name.strip_suffix("_sum")).unwrap_or(name);
        assert!(body.contains(&format!("# TYPE {name} ")), "{line}");
    }
    cluster.stop().await;
}

/// Files of a CA and what it has signed.
struct Certificates {
    dir: PathBuf,
    ca: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    fn new(dir: &Path) -> Certificates {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join("ca.pem"), ca.pem()).unwrap();
        Certificates { dir: dir.to_owned(), ca }
    }

    fn sign(&self, name: &str, address: &str) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![address.to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.ca).unwrap();
        std::fs::write(self.file(name), cert.pem()).unwrap();
        std::fs::write(self.file(&format!("{name}-key")), key.serialize_pem()).unwrap();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.pem"))
    }

    /// Connects with TLS, with a certificate or without.
    async fn connect(
        &self,
        address: &str,
        with: Option<&str>,
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.file("ca")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match with {
            Some(name) => {
                let cert = CertificateDer::from_pem_file(self.file(name)).unwrap();
                let key = PrivateKeyDer::from_pem_file(self.file(&format!("{name}-key"))).unwrap();
                config.with_client_auth_cert(vec![cert], key).unwrap()
            }
            None => config.with_no_client_auth(),
        };
        let stream = TcpStream::connect((address, 2379)).await?;
        let name = ServerName::try_from(address.to_owned()).unwrap();
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_and_clients_speak_tls_with_certificates() {
    let mut cluster = Cluster::new(3, &[]);
    let certificates = Certificates::new(&cluster.dir.path().join("certificates"));
    for member in &mut cluster.members {
        certificates.sign(&member.name, &member.address);
        let file = |name: &str| certificates.file(name).display().to_string();
        let (cert, key, ca) = (file(&member.name), file(&format!("{}-key", member.name)), file("ca"));
        for argument in &mut member.arguments {
            *argument = argument.replace("http://", "https://");
        }
        for prefix in ["", "peer-"] {
            member.arguments.extend([
                format!("--{prefix}cert-file={cert}"),
                format!("--{prefix}key-file={key}"),
                format!("--{prefix}trusted-ca-file={ca}"),
                format!("--{prefix}client-cert-auth"),
            ]);
        }
        member.start().await;
    }
    for member in &cluster.members {
        within(member.server.as_ref().unwrap().ready()).await;
    }
    cluster.members[0].put("key", "value").await.unwrap();
    for member in &cluster.members {
        assert_eq!(member.get("key").await.as_deref(), Some("value"));
    }
    let address = cluster.members[0].address.clone();
    certificates.sign("client", "client.test");
    let stream = certificates.connect(&address, Some("client")).await.unwrap();
    assert_eq!(ask(stream, "/health").await.unwrap().0, 200);
    // With TLS 1.3 the refusal comes with the first bytes that are read.
    let without = match certificates.connect(&address, None).await {
        Ok(stream) => ask(stream, "/health").await.map(|_| ()),
        Err(error) => Err(error),
    };
    assert!(without.is_err(), "a client without a certificate was served");
    // And a member of nobody's.
    let plain = tonic::transport::Endpoint::from_shared(format!("http://{address}:2380")).unwrap();
    assert!(PeerClient::new(plain.connect_lazy()).members(MembersRequest::default()).await.is_err());
    // A renewed certificate is served without a restart.
    let before = certificates.connect(&address, Some("client")).await.unwrap();
    let of = |stream: &tokio_rustls::client::TlsStream<TcpStream>| {
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    certificates.sign(&cluster.members[0].name, &address);
    within(async {
        loop {
            match certificates.connect(&address, Some("client")).await {
                Ok(stream) if of(&stream) != of(&before) => break,
                _ => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_are_no_certificates_are_named() {
    let mut cluster = Cluster::new(1, &[]);
    let certificates = Certificates::new(&cluster.dir.path().join("certificates"));
    let member = &mut cluster.members[0];
    certificates.sign("good", &member.address);
    std::fs::write(certificates.file("bad"), "no certificate").unwrap();
    let with = |cert: &str, key: &str| {
        let file = |name: &str| certificates.file(name).display().to_string();
        [format!("--cert-file={}", file(cert)), format!("--key-file={}", file(key))]
    };
    let plain = member.arguments.clone();
    for (cert, key, named) in
        [("bad", "good-key", "bad.pem"), ("missing", "good-key", "missing.pem"), ("good", "bad", "bad.pem")]
    {
        member.arguments = plain.clone();
        member.arguments.extend(with(cert, key));
        let sentence = member.try_start().await.unwrap_err().to_string();
        assert!(sentence.contains(named) && sentence.contains("cannot be used"), "{sentence}");
    }
}
