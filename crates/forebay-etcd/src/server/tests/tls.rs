//! TLS: who is let in, and files that are replaced while members run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DistinguishedName,
    DnType, IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::{TcpListener, TcpStream};
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint, Uri};

use super::cluster::{Cluster, made, settled, until, within};
use super::http::ask;
use crate::proto::authpb::{Permission, UserAddOptions};
use crate::proto::etcdserverpb::auth_client::AuthClient;
use crate::proto::etcdserverpb::kv_client::KvClient;
use crate::proto::etcdserverpb::*;
use crate::proto::peer::MembersRequest;
use crate::proto::peer::peer_client::PeerClient;
use crate::refusal::Refusal;

/// Files of a CA and its certificates.
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
        self.sign_as(name, address, None);
    }

    fn sign_as(&self, name: &str, address: &str, serial: Option<u64>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![address.to_owned()]).unwrap();
        params.serial_number = serial.map(SerialNumber::from);
        let cert = params.signed_by(&key, &self.ca).unwrap();
        std::fs::write(self.file(name), cert.pem()).unwrap();
        std::fs::write(self.file(&format!("{name}-key")), key.serialize_pem()).unwrap();
    }

    /// Signs a certificate of a user.
    fn sign_for(&self, name: &str, common_name: &str) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["client.test".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let cert = params.signed_by(&key, &self.ca).unwrap();
        std::fs::write(self.file(name), cert.pem()).unwrap();
        std::fs::write(self.file(&format!("{name}-key")), key.serialize_pem()).unwrap();
    }

    /// Connects for gRPC.
    async fn channel(&self, address: &str, with: &str) -> Channel {
        let stream = self.connect(address, Some(with)).await.unwrap();
        let endpoint = Endpoint::from_static("http://member.test");
        endpoint.connect_with_connector(Dial(Some(TokioIo::new(stream)))).await.unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.pem"))
    }

    /// Writes the list of revoked certificates, by their serial numbers: as DER, the only format of etcd, or as PEM.
    fn revoke(&self, number: u64, serials: &[u64], is_der: bool) {
        let (from, until) = (date_time_ymd(2020, 1, 1), date_time_ymd(2100, 1, 1));
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: from,
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: from,
            next_update: until,
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.ca).unwrap();
        let bytes = if is_der { list.der().to_vec() } else { list.pem().unwrap().into_bytes() };
        std::fs::write(self.file("crl"), bytes).unwrap();
    }

    /// Returns arguments with the files of a certificate, and of the CA for callers' certificates.
    fn arguments(&self, prefix: &str, name: &str) -> [String; 3] {
        let file = |name: &str| self.file(name).display().to_string();
        [
            format!("--{prefix}cert-file={}", file(name)),
            format!("--{prefix}key-file={}", file(&format!("{name}-key"))),
            format!("--{prefix}trusted-ca-file={}", file("ca")),
        ]
    }

    /// Asks for a page as a client, with a certificate or without. With TLS 1.3 a refusal arrives with the first bytes that are
    /// read.
    async fn is_served(&self, address: &str, with: Option<&str>) -> bool {
        match self.connect(address, with).await {
            // Without a leader for a moment, as on a busy machine, it is another status.
            Ok(stream) => ask(stream, "/health").await.is_ok(),
            Err(_) => false,
        }
    }

    /// Connects to the port for clients with TLS, with a certificate or without.
    async fn connect(
        &self,
        address: &str,
        with: Option<&str>,
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        self.connect_to(address, 2379, with).await
    }

    async fn connect_to(
        &self,
        address: &str,
        port: u16,
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
        let stream = TcpStream::connect((address, port)).await?;
        let name = ServerName::try_from(address.to_owned()).unwrap();
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }
}

/// A connection that is there already.
struct Dial(Option<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>>);

impl Service<Uri> for Dial {
    type Response = TokioIo<tokio_rustls::client::TlsStream<TcpStream>>;
    type Error = std::io::Error;
    type Future = std::future::Ready<std::io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        std::future::ready(self.0.take().ok_or_else(|| std::io::ErrorKind::NotConnected.into()))
    }
}

/// The common name of a certificate is its user's, but for a gateway's, and but for a caller with a token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_of_users() {
    let mut cluster = Cluster::new(1, &["--bcrypt-cost=4"]);
    let certificates = Certificates::new(&cluster.dir.path().join("certificates"));
    let member = &mut cluster.members[0];
    certificates.sign(&member.name, &member.address);
    for argument in member.arguments.iter_mut().filter(|argument| argument.contains("client-urls")) {
        *argument = argument.replace("http://", "https://");
    }
    member.arguments.extend(certificates.arguments("", &member.name));
    member.arguments.push("--client-cert-auth".to_owned());
    member.start().await;
    within(member.server.as_ref().unwrap().ready()).await;
    for name in ["root", "user", "stranger"] {
        certificates.sign_for(name, name);
    }
    let address = cluster.members[0].address.clone();
    let root = certificates.channel(&address, "root").await;
    let (mut auth, mut keys) = (AuthClient::new(root.clone()), KvClient::new(root));
    for name in ["root", "user"] {
        let options = Some(UserAddOptions { no_password: name == "root" });
        let add =
            AuthUserAddRequest { name: name.into(), password: "p".into(), options, ..Default::default() };
        made(settled(async || auth.user_add(add.clone()).await).await, Refusal::UserExists);
    }
    let role = AuthRoleAddRequest { name: "r".into() };
    made(settled(async || auth.role_add(role.clone()).await).await, Refusal::RoleExists);
    let perm = Some(Permission { perm_type: 2, key: "key".into(), range_end: Vec::new() });
    let grant = AuthRoleGrantPermissionRequest { name: "r".into(), perm };
    settled(async || auth.role_grant_permission(grant.clone()).await).await.unwrap();
    for (user, role) in [("root", "root"), ("user", "r")] {
        let grant = AuthUserGrantRoleRequest { user: user.into(), role: role.into() };
        settled(async || auth.user_grant_role(grant.clone()).await).await.unwrap();
    }
    let by_gateway = async |path: &str| {
        let stream = certificates.connect(&address, Some("root")).await.unwrap();
        ask(stream, path).await.unwrap()
    };
    // Another method is asked for.
    assert_eq!(by_gateway("/v3/kv/range").await.0, 501);
    settled(async || auth.auth_enable(AuthEnableRequest {}).await).await.unwrap();
    let put = |key: &str| PutRequest { key: key.into(), ..Default::default() };
    settled(async || keys.put(put("other")).await).await.unwrap();
    settled(async || auth.user_list(AuthUserListRequest {}).await).await.unwrap();
    let mut user = KvClient::new(certificates.channel(&address, "user").await);
    settled(async || user.put(put("key")).await).await.unwrap();
    let denied = "etcdserver: permission denied";
    let refused = settled(async || user.put(put("other")).await).await.unwrap_err();
    assert_eq!(refused.message(), denied);
    let mut stranger = KvClient::new(certificates.channel(&address, "stranger").await);
    let refused = settled(async || stranger.put(put("key")).await).await.unwrap_err();
    assert_eq!(refused.message(), denied);
    let with = |name: &'static str, value: &str| {
        let mut request = tonic::Request::new(put("other"));
        request.metadata_mut().insert(name, value.parse().unwrap());
        request
    };
    let refused = settled(async || keys.put(with("grpcgateway-accept", "application/json")).await).await;
    assert_eq!(refused.unwrap_err().message(), "etcdserver: user name is empty");
    for path in ["/v3/kv/range", "/v3beta/nothing"] {
        let (status, text) = by_gateway(path).await;
        assert!(status == 400 && text.starts_with("CommonName of client"), "{path}: {status} {text}");
    }
    assert_eq!(by_gateway("/version").await.0, 200);
    let authenticate = AuthenticateRequest { name: "user".into(), password: "p".into() };
    let token = settled(async || auth.authenticate(authenticate.clone()).await).await;
    let token = token.unwrap().into_inner().token;
    let refused = settled(async || keys.put(with("token", &token)).await).await.unwrap_err();
    assert_eq!(refused.message(), denied);
    cluster.stop().await;
}

fn speak_tls(arguments: &mut [String]) {
    for argument in arguments {
        *argument = argument.replace("http://", "https://");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_and_clients_speak_tls_with_certificates() {
    let mut cluster = Cluster::new(3, &[]);
    let certificates = Certificates::new(&cluster.dir.path().join("certificates"));
    for member in &mut cluster.members {
        certificates.sign(&member.name, &member.address);
        speak_tls(&mut member.arguments);
        for prefix in ["", "peer-"] {
            member.arguments.extend(certificates.arguments(prefix, &member.name));
            member.arguments.push(format!("--{prefix}client-cert-auth"));
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
    assert!(certificates.is_served(&address, Some("client")).await);
    assert!(!certificates.is_served(&address, None).await, "a client without a certificate was served");
    // And a member of nobody's.
    let plain = tonic::transport::Endpoint::from_shared(format!("http://{address}:2380")).unwrap();
    assert!(PeerClient::new(plain.connect_lazy()).members(MembersRequest::default()).await.is_err());
    // A renewed certificate is served without a restart.
    let before = certificates.connect(&address, Some("client")).await.unwrap();
    let of = |stream: &tokio_rustls::client::TlsStream<TcpStream>| {
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    certificates.sign(&cluster.members[0].name, &address);
    until(async || {
        let stream = certificates.connect(&address, Some("client")).await;
        stream.is_ok_and(|stream| of(&stream) != of(&before))
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

/// A CA for callers let callers in that had no certificate at all, unless `--client-cert-auth` was given as well. In etcd either
/// demands one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ca_alone_demands_certificates_of_callers() {
    let mut cluster = Cluster::new(1, &[]);
    let certificates = Certificates::new(&cluster.dir.path().join("certificates"));
    let member = &mut cluster.members[0];
    certificates.sign(&member.name, &member.address);
    certificates.sign("client", "client.test");
    speak_tls(&mut member.arguments);
    for prefix in ["", "peer-"] {
        member.arguments.extend(certificates.arguments(prefix, &member.name));
    }
    member.start().await;
    within(member.server.as_ref().unwrap().ready()).await;
    let address = member.address.clone();
    assert!(certificates.is_served(&address, Some("client")).await);
    assert!(!certificates.is_served(&address, None).await, "a client without a certificate was served");
    // The port for members has its version for all that are let in.
    for (with, is_let_in) in [(Some("client"), true), (None, false)] {
        let found = match certificates.connect_to(&address, 2380, with).await {
            Ok(stream) => ask(stream, "/version").await.is_ok(),
            Err(_) => false,
        };
        assert_eq!(found, is_let_in, "{with:?} as a member");
    }
    cluster.stop().await;
}

/// As in etcd, where the CAs of the system then check members. A single member calls no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_alone_needs_no_ca_of_members() {
    let mut cluster = Cluster::new(1, &[]);
    let certificates = Certificates::new(&cluster.dir.path().join("certificates"));
    let member = &mut cluster.members[0];
    certificates.sign(&member.name, &member.address);
    speak_tls(&mut member.arguments);
    for prefix in ["", "peer-"] {
        let [cert, key, _] = certificates.arguments(prefix, &member.name);
        member.arguments.extend([cert, key]);
    }
    let config = member.config();
    assert!(config.warnings().iter().any(|warning| warning.contains("the CAs of the system check")));
    member.start().await;
    within(member.server.as_ref().unwrap().ready()).await;
    member.put("key", "value").await.unwrap();
    cluster.stop().await;
}

/// Any certificate of the CA was good enough to call as a member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_called_by_certificates_of_their_names_alone() {
    let mut cluster = Cluster::new(1, &[]);
    let certificates = Certificates::new(&cluster.dir.path().join("certificates"));
    let member = &mut cluster.members[0];
    certificates.sign(&member.name, &member.address);
    speak_tls(&mut member.arguments);
    for prefix in ["", "peer-"] {
        member.arguments.extend(certificates.arguments(prefix, &member.name));
    }
    member.arguments.push("--peer-cert-allowed-cn=member,another".to_owned());
    let suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
    member.arguments.extend([format!("--cipher-suites={suite}"), "--tls-max-version=TLS1.2".to_owned()]);
    member.start().await;
    within(member.server.as_ref().unwrap().ready()).await;
    let address = member.address.clone();
    for (name, is_let_in) in
        [("member", true), ("another", true), ("*", false), ("other", false), ("", false)]
    {
        certificates.sign_for("caller", name);
        let found = match certificates.connect_to(&address, 2380, Some("caller")).await {
            Ok(stream) => ask(stream, "/version").await.is_ok(),
            Err(_) => false,
        };
        assert_eq!(found, is_let_in, "{name:?} as a member");
        // Clients have any names, and the suite that is allowed.
        let stream = certificates.connect(&address, Some("caller")).await.unwrap();
        let found = stream.get_ref().1.negotiated_cipher_suite().unwrap().suite();
        assert_eq!(format!("{found:?}"), suite);
    }
    cluster.stop().await;
}

/// A member was called with any name in its certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_call_those_of_their_names_alone() {
    // The name that these certificates have, and another.
    for (name, is_called) in [("rcgen self signed cert", true), ("another", false)] {
        let mut cluster = Cluster::new(2, &[]);
        let certificates = Certificates::new(&cluster.dir.path().join("certificates"));
        for member in &mut cluster.members {
            certificates.sign(&member.name, &member.address);
            speak_tls(&mut member.arguments);
            for prefix in ["", "peer-"] {
                member.arguments.extend(certificates.arguments(prefix, &member.name));
            }
        }
        // The second member accepts all.
        cluster.members[0].arguments.push(format!("--peer-cert-allowed-cn={name}"));
        for member in &mut cluster.members {
            member.start().await;
        }
        let first = cluster.members[0].node();
        if is_called {
            within(cluster.members[0].server.as_ref().unwrap().ready()).await;
        } else {
            let has_failed = || first.reached().values().any(|reached| reached.failures > 2);
            until(async || has_failed()).await;
            assert_eq!(first.leader(), None);
        }
        cluster.stop().await;
    }
}

/// The certificate for calls to other members was read at the start alone. When it had run out, a member could call nobody, though
/// its file had been renewed long before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_calls_others_with_its_renewed_certificate() {
    let mut cluster = Cluster::new(2, &[]);
    let certificates = Certificates::new(&cluster.dir.path().join("certificates"));
    let of_other = cluster.members[1].address.clone();
    certificates.sign("other", &of_other);
    let member = &mut cluster.members[0];
    certificates.sign(&member.name, &member.address);
    speak_tls(&mut member.arguments);
    for prefix in ["", "peer-"] {
        member.arguments.extend(certificates.arguments(prefix, &member.name));
    }
    // In the place of the other member: it looks at certificates, and hangs up.
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificates.file("ca")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(
            vec![CertificateDer::from_pem_file(certificates.file("other")).unwrap()],
            PrivateKeyDer::from_pem_file(certificates.file("other-key")).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((&*of_other, 2380)).await.unwrap();
    let caller = async || loop {
        let (stream, _) = within(listener.accept()).await.unwrap();
        if let Ok(stream) = within(acceptor.accept(stream)).await {
            break stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned();
        }
    };
    let in_file = |name: &str| CertificateDer::from_pem_file(certificates.file(name)).unwrap();
    member.start().await;
    let before = in_file(&member.name);
    assert_eq!(caller().await, before);
    certificates.sign(&member.name, &member.address);
    let after = in_file(&member.name);
    assert_ne!(before, after);
    until(async || caller().await == after).await;
    cluster.stop().await;
}

/// Revoked certificates were read at the start alone: one that was revoked later was good until a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_refused_when_the_list_of_revoked_ones_has_it() {
    let mut cluster = Cluster::new(1, &[]);
    let certificates = Certificates::new(&cluster.dir.path().join("certificates"));
    let member = &mut cluster.members[0];
    certificates.sign_as(&member.name, &member.address, Some(1));
    for (name, serial) in [("first", 2), ("second", 3), ("third", 4)] {
        certificates.sign_as(name, "client.test", Some(serial));
    }
    certificates.revoke(1, &[2], false);
    for argument in member.arguments.iter_mut().filter(|argument| argument.contains("client-urls")) {
        *argument = argument.replace("http://", "https://");
    }
    member.arguments.extend(certificates.arguments("", &member.name));
    member.arguments.push(format!("--client-crl-file={}", certificates.file("crl").display()));
    member.start().await;
    within(member.server.as_ref().unwrap().ready()).await;
    let address = member.address.clone();
    for (name, is_good) in [("first", false), ("second", true), ("third", true)] {
        assert_eq!(certificates.is_served(&address, Some(name)).await, is_good, "{name}");
    }
    certificates.revoke(2, &[2, 3], true);
    until(async || !certificates.is_served(&address, Some("second")).await).await;
    assert!(certificates.is_served(&address, Some("third")).await);
    cluster.stop().await;
}
