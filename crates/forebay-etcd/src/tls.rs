//! Certificates and keys: of the listeners, and of calls to other members.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::config::{TlsFiles, TlsVersions};
use crate::server::StartError;

/// How often it is looked whether files have changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn not_usable(path: &Path, error: impl std::fmt::Display) -> StartError {
    StartError::new(format!("{} cannot be used: {error}", path.display()))
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

/// Returns the settings of listeners with these files; `None` without a certificate.
///
/// # Errors
/// The file that cannot be used.
pub(crate) fn server(
    files: &TlsFiles,
    versions: TlsVersions,
) -> Result<Option<Arc<ServerConfig>>, StartError> {
    let (Some(cert), Some(key)) = (&files.cert, &files.key) else { return Ok(None) };
    let mut allowed: Vec<&'static SupportedProtocolVersion> = Vec::new();
    if versions.is_1_2_allowed {
        allowed.push(&rustls::version::TLS12);
    }
    if versions.is_1_3_allowed {
        allowed.push(&rustls::version::TLS13);
    }
    let failed = |error: rustls::Error| StartError::new(format!("TLS cannot be set up: {error}"));
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(&allowed).map_err(failed)?;
    // As in etcd, a CA alone has certificates checked, but requires none.
    let builder = match &files.trusted_ca {
        Some(path) => {
            let mut verifier = WebPkiClientVerifier::builder_with_provider(roots(path)?, provider());
            if let Some(path) = &files.crl {
                let lists = CertificateRevocationListDer::pem_file_iter(path);
                let lists = lists.and_then(Iterator::collect::<Result<Vec<_>, _>>);
                let lists = lists.map_err(|error| not_usable(path, error))?;
                verifier = verifier.with_crls(lists).allow_unknown_revocation_status();
            }
            if !files.is_client_cert_required {
                verifier = verifier.allow_unauthenticated();
            }
            builder.with_client_cert_verifier(verifier.build().map_err(|error| not_usable(path, error))?)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(Files::open(cert, key)?));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(Arc::new(config)))
}

/// Returns the settings of calls to other members; `None` if these have no TLS.
///
/// # Errors
/// The file that cannot be used.
pub(crate) fn client(files: &TlsFiles) -> Result<Option<ClientTlsConfig>, StartError> {
    let Some(ca) = &files.trusted_ca else { return Ok(None) };
    let read = |path: &PathBuf| fs::read(path).map_err(|error| not_usable(path, error));
    certificates(ca)?;
    let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?));
    let cert = files.client_cert.as_ref().or(files.cert.as_ref());
    let key = files.client_key.as_ref().or(files.key.as_ref());
    if let (Some(cert), Some(key)) = (cert, key) {
        load(cert, key)?;
        config = config.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    Ok(Some(config))
}

fn load(cert: &Path, key: &Path) -> Result<Arc<CertifiedKey>, StartError> {
    let chain = certificates(cert)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| not_usable(key, error))?;
    let certified =
        CertifiedKey::from_der(chain, private, &provider()).map_err(|error| not_usable(key, error))?;
    Ok(Arc::new(certified))
}

/// A certificate and its key, read again when the files have changed: certificates are renewed while a server runs.
#[derive(Debug)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
    loaded: Mutex<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    certified: Arc<CertifiedKey>,
    modified: [Option<SystemTime>; 2],
    looked: Instant,
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

impl Files {
    fn open(cert: &Path, key: &Path) -> Result<Files, StartError> {
        let modified = [modified(cert), modified(key)];
        let loaded = Loaded { certified: load(cert, key)?, modified, looked: Instant::now() };
        Ok(Files { cert: cert.to_owned(), key: key.to_owned(), loaded: Mutex::new(loaded) })
    }

    fn current(&self) -> Arc<CertifiedKey> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.looked.elapsed() < LOOK_EVERY {
            return loaded.certified.clone();
        }
        loaded.looked = Instant::now();
        let now = [modified(&self.cert), modified(&self.key)];
        if now != loaded.modified {
            match load(&self.cert, &self.key) {
                Ok(certified) => {
                    (loaded.certified, loaded.modified) = (certified, now);
                    tracing::info!("the certificate {} was read again", self.cert.display());
                }
                // One of the two files may be half written: the former ones serve until both are whole.
                Err(error) => tracing::warn!("the former certificate stays in use: {error}"),
            }
        }
        loaded.certified.clone()
    }
}

impl ResolvesServerCert for Files {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

/// Returns whether an error of a handshake is only that the caller has gone.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}
