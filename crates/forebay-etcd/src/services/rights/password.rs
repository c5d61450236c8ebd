//! [`Passwords`]: bcrypt, off the runtime's threads.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tonic::Status;

use crate::refusal::Refusal;

/// Longer passwords are refused, as in etcd: bcrypt ignores the bytes after these.
const PASSWORD_BYTES_MAX: usize = 72;
/// Longer guesses never match, and are not kept until their turn.
const GUESS_BYTES_MAX: usize = 4096;

/// Makes and compares hashes.
#[derive(Debug)]
pub(in crate::services) struct Passwords {
    cost: u32,
    /// A part of the processors: guesses of passwords must not occupy them all.
    at_once: Arc<Semaphore>,
}

fn failed(error: impl std::fmt::Display) -> Status {
    Status::internal(format!("a password cannot be hashed: {error}"))
}

impl Passwords {
    pub(super) fn new(cost: u32) -> Passwords {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Passwords { cost, at_once: Arc::new(Semaphore::new(processors.div_ceil(2))) }
    }

    /// Runs one of the two on a thread that may block. Its turn lasts as long as the work, even if the caller no longer waits.
    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
        let turn = self.at_once.clone().acquire_owned().await.map_err(failed)?;
        let work = move || {
            let done = work();
            drop(turn);
            done
        };
        tokio::task::spawn_blocking(work).await.map_err(failed)
    }

    pub(in crate::services) async fn hash(&self, password: String) -> Result<Vec<u8>, Status> {
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(Refusal::PasswordTooLong.into());
        }
        let cost = self.cost;
        let hash = self.run(move || bcrypt::hash(password, cost)).await?;
        hash.map(String::into_bytes).map_err(failed)
    }

    /// Returns whether a hash is of this password. Malformed hashes match no password.
    pub(in crate::services) async fn is_of(&self, hash: Vec<u8>, password: String) -> Result<bool, Status> {
        if password.len() > GUESS_BYTES_MAX {
            return Ok(false);
        }
        let is_of = move || {
            let hash = String::from_utf8(hash).unwrap_or_default();
            bcrypt::verify(password, &hash).unwrap_or(false)
        };
        self.run(is_of).await
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_hash_is_of_its_password() {
        let passwords = Passwords::new(4);
        let hash = passwords.hash("word".into()).await.unwrap();
        assert!(hash.starts_with(b"$2b$04$") && hash.len() == 60);
        assert!(passwords.is_of(hash.clone(), "word".into()).await.unwrap());
        assert!(!passwords.is_of(hash, "other".into()).await.unwrap());
        assert!(!passwords.is_of(Vec::new(), String::new()).await.unwrap());
        let long = "x".repeat(PASSWORD_BYTES_MAX);
        assert!(passwords.hash(long.clone()).await.is_ok());
        let refused = passwords.hash(long + "x").await.unwrap_err();
        assert_eq!(refused.message(), "bcrypt: password length exceeds 72 bytes");
    }

    /// Story: callers that gave up freed their turns, while their work continued: hundreds of threads compared passwords.
    #[tokio::test]
    async fn work_keeps_its_turn_when_its_caller_has_gone() {
        let passwords = Passwords::new(4);
        let turns = passwords.at_once.available_permits();
        let (begun, is_begun) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let work = move || {
            begun.send(()).unwrap();
            ends.recv().unwrap();
        };
        let mut run = Box::pin(passwords.run(work));
        assert!(run.as_mut().now_or_never().is_none());
        is_begun.recv().unwrap();
        drop(run);
        assert_eq!(passwords.at_once.available_permits(), turns - 1);
        end.send(()).unwrap();
        while passwords.at_once.available_permits() < turns {
            tokio::task::yield_now().await;
        }
        assert!(!passwords.is_of(Vec::new(), "x".repeat(GUESS_BYTES_MAX + 1)).await.unwrap());
    }

    /// Two that etcd 3.7.3 has written.
    #[tokio::test]
    async fn hashes_of_etcd_are_read() {
        for (hash, password) in [
            ("$2a$10$1rjumDFM3S/M6umBmBshDOTYLSep3oOiMQVY6c4m1EDViWykx2hFu", "p"),
            ("$2a$10$NfPtihly8OCp2ktueYxU.ePw02/5pQIXZpTIb5BKMPZQGWSABDFVu", ""),
        ] {
            let passwords = Passwords::new(4);
            assert!(passwords.is_of(hash.into(), password.into()).await.unwrap(), "{password:?}");
            assert!(!passwords.is_of(hash.into(), "q".into()).await.unwrap(), "{password:?}");
        }
    }
}
