//! Certificates and keys: of the listeners, and of calls to other members.

mod common_name;
mod connector;
mod files;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};

pub(crate) use self::common_name::common_name;
pub(crate) use self::connector::Connector;
use self::files::{Callers, FileValue, KeyFiles};
use crate::config::{TlsFiles, TlsVersions};
use crate::start_error::StartError;

/// HTTP/2 and HTTP/1.1, as handshakes name them.
const HTTP_2: &[u8] = b"h2";
const HTTP_1: &[u8] = b"http/1.1";
/// Places of the system's trusted CAs, as in Go.
const SYSTEM_CAS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// The start of a part of a PEM file.
const PEM_BEGIN: &[u8] = b"-----BEGIN ";

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Returns the provider with these suites of TLS 1.2, or with all if empty. Those of 1.3 are always included, as in Go.
fn provider_of(suites: &[String]) -> Arc<rustls::crypto::CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    if !suites.is_empty() {
        let is_named = |suite: &SupportedCipherSuite| suites.contains(&format!("{:?}", suite.suite()));
        provider.cipher_suites.retain(|suite| suite.tls13().is_some() || is_named(suite));
    }
    Arc::new(provider)
}

fn not_usable(path: &Path, error: impl std::fmt::Display) -> StartError {
    StartError::new(format!("{} cannot be used: {error}", path.display()))
}

fn failed(error: rustls::Error) -> StartError {
    StartError::new(format!("TLS cannot be set up: {error}"))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, StartError> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(|error| not_usable(path, error))?;
    if found.is_empty() { Err(not_usable(path, "it has no certificate")) } else { Ok(found) }
}

fn roots(path: &Path) -> Result<Arc<RootCertStore>, StartError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| not_usable(path, error))?;
    }
    Ok(Arc::new(roots))
}

/// Returns the CAs that the system trusts; empty without such a file.
fn system_roots() -> Result<Arc<RootCertStore>, StartError> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let file = named.into_iter().chain(SYSTEM_CAS.map(PathBuf::from)).find(|path| path.is_file());
    let mut roots = RootCertStore::empty();
    if let Some(path) = file {
        // Some of a system's may be of kinds that are not known here.
        roots.add_parsable_certificates(certificates(&path)?);
    }
    Ok(Arc::new(roots))
}

/// Returns the settings of listeners with these files, versions and suites; `None` without a certificate.
///
/// # Errors
/// The file that cannot be used.
pub(crate) fn server(
    files: &TlsFiles,
    versions: TlsVersions,
    suites: &[String],
) -> Result<Option<Arc<ServerConfig>>, StartError> {
    let (Some(cert), Some(key)) = (&files.cert, &files.key) else { return Ok(None) };
    let mut allowed: Vec<&'static SupportedProtocolVersion> = Vec::new();
    if versions.is_1_2_allowed {
        allowed.push(&rustls::version::TLS12);
    }
    if versions.is_1_3_allowed {
        allowed.push(&rustls::version::TLS13);
    }
    let builder = ServerConfig::builder_with_provider(provider_of(suites));
    let builder = builder.with_protocol_versions(&allowed).map_err(failed)?;
    // As in etcd, callers must have a certificate whenever a CA is set to check it.
    let builder = match &files.trusted_ca {
        Some(ca) => builder.with_client_cert_verifier(callers(ca, files.crl.as_deref())?),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(key_files(cert, key)?));
    if files.crl.is_some() {
        // A resumed session would not be checked again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    config.alpn_protocols = vec![HTTP_2.to_vec(), HTTP_1.to_vec()];
    Ok(Some(Arc::new(config)))
}

/// Returns a verifier of callers' certificates.
fn callers(ca: &Path, crl: Option<&Path>) -> Result<Arc<dyn ClientCertVerifier>, StartError> {
    let (roots, ca) = (roots(ca)?, ca.to_owned());
    let Some(crl) = crl else {
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
        return verifier.build().map_err(|error| not_usable(&ca, error));
    };
    let load = move |paths: &[PathBuf]| {
        let mut verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider());
        for path in paths {
            verifier = verifier.with_crls(revoked(path)?);
        }
        let verifier = verifier.allow_unknown_revocation_status();
        verifier.build().map_err(|error| {
            let is_of_list = matches!(error, VerifierBuilderError::InvalidCrl(_));
            not_usable(paths.first().filter(|_| is_of_list).unwrap_or(&ca), error)
        })
    };
    Ok(Arc::new(Callers::new(FileValue::open(&[crl], load)?)))
}

/// Returns the lists of revoked certificates of a file: several as PEM, or one as DER, the only format of etcd.
fn revoked(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, StartError> {
    let bytes = fs::read(path).map_err(|error| not_usable(path, error))?;
    let is_pem = bytes.windows(PEM_BEGIN.len()).any(|window| window == PEM_BEGIN);
    if !is_pem && !bytes.is_empty() {
        return Ok(vec![CertificateRevocationListDer::from(bytes)]);
    }
    let lists = CertificateRevocationListDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let lists = lists.map_err(|error| not_usable(path, error))?;
    // An empty file may be one that is being written: it must not make revoked certificates good.
    if lists.is_empty() {
        return Err(not_usable(path, "it has no list of revoked certificates"));
    }
    Ok(lists)
}

/// Returns the settings of calls to other members; `None` if they do not use TLS. As in etcd, the system's CAs check their
/// certificates by default.
///
/// # Errors
/// The file that cannot be used.
pub(crate) fn client(files: &TlsFiles, suites: &[String]) -> Result<Option<Arc<ClientConfig>>, StartError> {
    let roots = match &files.trusted_ca {
        Some(ca) => roots(ca)?,
        None if files.cert.is_some() => system_roots()?,
        None => return Ok(None),
    };
    let builder = ClientConfig::builder_with_provider(provider_of(suites));
    let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
    let builder = builder.with_root_certificates(roots);
    let cert = files.client_cert.as_ref().or(files.cert.as_ref());
    let key = files.client_key.as_ref().or(files.key.as_ref());
    let mut config = match (cert, key) {
        (Some(cert), Some(key)) => builder.with_client_cert_resolver(Arc::new(key_files(cert, key)?)),
        _ => builder.with_no_client_auth(),
    };
    // A resumed session has the former certificate.
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![HTTP_2.to_vec()];
    Ok(Some(Arc::new(config)))
}

fn key_files(cert: &Path, key: &Path) -> Result<KeyFiles, StartError> {
    FileValue::open(&[cert, key], |paths| match paths {
        [cert, key] => load(cert, key),
        _ => Err(StartError::new("a certificate and its key are two files")),
    })
}

fn load(cert: &Path, key: &Path) -> Result<Arc<CertifiedKey>, StartError> {
    let chain = certificates(cert)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| not_usable(key, error))?;
    let certified =
        CertifiedKey::from_der(chain, private, &provider()).map_err(|error| not_usable(key, error))?;
    Ok(Arc::new(certified))
}

/// Returns whether a handshake failed only because the caller has disconnected.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}
