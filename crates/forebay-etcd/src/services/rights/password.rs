//! [`Passwords`]: bcrypt, off the runtime's threads.

use tokio::sync::Semaphore;
use tonic::Status;

use crate::refusal::Refusal;

/// Longer ones are refused, as etcd does: bcrypt does not look at the bytes behind these.
const PASSWORD_BYTES_MAX: usize = 72;

/// Makes and compares hashes.
#[derive(Debug)]
pub(in crate::services) struct Passwords {
    cost: u32,
    /// A part of the processors: guesses of passwords must not take them all.
    at_once: Semaphore,
}

fn failed(error: impl std::fmt::Display) -> Status {
    Status::internal(format!("a password cannot be hashed: {error}"))
}

impl Passwords {
    pub(super) fn new(cost: u32) -> Passwords {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Passwords { cost, at_once: Semaphore::new(processors.div_ceil(2)) }
    }

    /// Runs one of the two on a thread that may block.
    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
        let turn = self.at_once.acquire().await.map_err(failed)?;
        let done = tokio::task::spawn_blocking(work).await.map_err(failed);
        drop(turn);
        done
    }

    /// Returns the hash of a password.
    pub(in crate::services) async fn hash(&self, password: String) -> Result<Vec<u8>, Status> {
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(Refusal::PasswordTooLong.into());
        }
        let cost = self.cost;
        let hash = self.run(move || bcrypt::hash(password, cost)).await?;
        hash.map(String::into_bytes).map_err(failed)
    }

    /// Returns whether a hash is of this password. Bytes that are no hash are of none.
    pub(in crate::services) async fn is_of(&self, hash: Vec<u8>, password: String) -> Result<bool, Status> {
        let is_of = move || {
            let hash = String::from_utf8(hash).unwrap_or_default();
            bcrypt::verify(password, &hash).unwrap_or(false)
        };
        self.run(is_of).await
    }
}

#[cfg(test)]
mod tests {
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
