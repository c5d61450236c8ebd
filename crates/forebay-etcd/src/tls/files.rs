//! [`FileValue`]: a value read from files, and read again when these have changed. Certificates are renewed, and revoked, while a server runs.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::client::ResolvesClientCert;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::start_error::StartError;

/// How often it is looked whether files have changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

type Load<T> = Box<dyn Fn(&[PathBuf]) -> Result<T, StartError> + Send + Sync>;

/// A value that is read from files.
pub(super) struct FileValue<T> {
    paths: Vec<PathBuf>,
    load: Load<T>,
    loaded: Mutex<Contents<T>>,
}

/// The contents of the files at the last look.
struct Contents<T> {
    value: T,
    state: State,
    looked: Instant,
}

impl<T> fmt::Debug for FileValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileValue").field("paths", &self.paths).finish_non_exhaustive()
    }
}

/// When files were changed, and how long they are.
type State = Vec<Option<(SystemTime, u64)>>;

fn state(paths: &[PathBuf]) -> State {
    let of = |path: &PathBuf| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    paths.iter().map(of).collect()
}

fn names(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl<T: Clone> FileValue<T> {
    /// Reads the files.
    ///
    /// # Errors
    /// The file that cannot be used.
    pub(super) fn open(
        paths: &[&Path],
        load: impl Fn(&[PathBuf]) -> Result<T, StartError> + Send + Sync + 'static,
    ) -> Result<FileValue<T>, StartError> {
        let paths: Vec<PathBuf> = paths.iter().map(|path| path.to_path_buf()).collect();
        // Asked first: a change while they are read is seen by the next look.
        let state = state(&paths);
        let loaded = Contents { value: load(&paths)?, state, looked: Instant::now() };
        Ok(FileValue { paths, load: Box::new(load), loaded: Mutex::new(loaded) })
    }

    /// Returns the files' contents. A file may be partly written: the former contents count until all are whole.
    pub(super) fn current(&self) -> T {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.looked.elapsed() < LOOK_EVERY {
            return loaded.value.clone();
        }
        loaded.looked = Instant::now();
        let now = state(&self.paths);
        if now != loaded.state {
            match (self.load)(&self.paths) {
                Ok(value) => {
                    (loaded.value, loaded.state) = (value, now);
                    tracing::info!("{} were read again", names(&self.paths));
                }
                Err(error) => tracing::warn!("what was read before stays in use: {error}"),
            }
        }
        loaded.value.clone()
    }
}

pub(super) type KeyFiles = FileValue<Arc<CertifiedKey>>;

impl ResolvesServerCert for KeyFiles {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl ResolvesClientCert for KeyFiles {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// A verifier of callers' certificates whose revocation list is reloaded.
#[derive(Debug)]
pub(super) struct Callers {
    /// The CAs' names, which stay.
    first: Arc<dyn ClientCertVerifier>,
    verifier: FileValue<Arc<dyn ClientCertVerifier>>,
}

impl Callers {
    pub(super) fn new(verifier: FileValue<Arc<dyn ClientCertVerifier>>) -> Callers {
        Callers { first: verifier.current(), verifier }
    }
}

impl ClientCertVerifier for Callers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.first.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verifier.current().verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.first.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.first.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.first.supported_verify_schemes()
    }
}
