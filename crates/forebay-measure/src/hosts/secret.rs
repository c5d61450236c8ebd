//! The secret that controller and agent share, and the values computed with it. It is never sent, printed
//! or written, except that ranks share the secret of one run through a file that only its owner can read.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use forebay_report::failure::Failure;

/// The variable that holds the secret when no file is named.
pub(crate) const VARIABLE: &str = "FOREBAY_SECRET";

/// The fewest characters of a secret. Fewer can be guessed by anyone who overhears one handshake.
const BYTES_MIN: usize = 16;
const BYTES_MAX: u64 = 4096;

/// Bytes of a key, of a nonce and of a tag.
pub(super) const KEY_BYTES: usize = 32;

/// A key. It does not derive `Debug`: nothing may print it.
#[derive(Clone)]
pub(crate) struct Key([u8; KEY_BYTES]);

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key(..)")
    }
}

impl Key {
    /// Loads the shared secret: from `file` where one is named, else from [`VARIABLE`].
    ///
    /// # Errors
    /// [`Failure::Usage`] when there is none or it is too short, [`Failure::Path`] when the file cannot
    /// be read or others may read it.
    pub(super) fn load(file: Option<&Path>) -> Result<Self, Failure> {
        let text = match file {
            Some(path) => read_private(path)?,
            None => std::env::var_os(VARIABLE)
                .ok_or_else(|| {
                    Failure::Usage(format!(
                        "agents and their controller need a shared secret: name a file with --secret-file, or set {VARIABLE}"
                    ))
                })?
                .into_encoded_bytes(),
        };
        let secret = text.trim_ascii();
        if secret.len() < BYTES_MIN {
            return Err(Failure::Usage(format!(
                "the secret has {} bytes; at least {BYTES_MIN} are needed (32 random ones: `head -c 32 /dev/urandom | base64`)",
                secret.len()
            )));
        }
        Ok(Self(Sha256::digest(secret).into()))
    }

    /// Returns a secret for one run.
    ///
    /// # Errors
    /// Fails when the system returns no random bytes.
    pub(super) fn random() -> anyhow::Result<Self> {
        Ok(Self(nonce()?))
    }

    /// Returns the key as text for a file that only its owner can read.
    pub(super) fn to_text(&self) -> String {
        BASE64.encode(self.0)
    }

    /// Parses the text of [`to_text`](Self::to_text).
    pub(super) fn from_text(text: &str) -> Option<Self> {
        Some(Self(BASE64.decode(text).ok()?.try_into().ok()?))
    }

    /// Derives a key for one purpose.
    pub(super) fn derive(&self, parts: &[&[u8]]) -> Self {
        Self(self.tag(parts))
    }

    /// Returns the HMAC-SHA256 of the parts, one after the other.
    pub(super) fn tag(&self, parts: &[&[u8]]) -> [u8; KEY_BYTES] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Returns whether `tag` is that of the parts; a wrong tag takes as long as the right one.
    pub(super) fn verify(&self, parts: &[&[u8]], tag: &[u8]) -> bool {
        self.mac(parts).verify_slice(tag).is_ok()
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC pads a short key with zeros to the block of its hash. Padding it here needs no length check.
        let mut block = [0; 64];
        block[..KEY_BYTES].copy_from_slice(&self.0);
        let mut mac = <Hmac<Sha256> as hmac::digest::KeyInit>::new((&block).into());
        for part in parts {
            mac.update(part);
        }
        mac
    }
}

/// Returns 32 unpredictable bytes.
///
/// # Errors
/// Fails when the system returns none.
pub(super) fn nonce() -> anyhow::Result<[u8; KEY_BYTES]> {
    let mut bytes = [0; KEY_BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| anyhow::anyhow!("the kernel returned no random bytes: {error}"))?;
    Ok(bytes)
}

/// Reads a file that only its owner may read.
fn read_private(path: &Path) -> Result<Vec<u8>, Failure> {
    let missing = |error: std::io::Error| Failure::missing(path, &error);
    let flags = (rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path).map_err(missing)?;
    let metadata = file.metadata().map_err(missing)?;
    if metadata.is_file() && metadata.mode() & 0o077 != 0 {
        return Err(Failure::Path(format!(
            "{} may be used by others than its owner: a secret needs `chmod 600 {}`",
            path.display(),
            path.display()
        )));
    }
    let mut text = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut text).map_err(missing)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;
    use std::os::unix::fs::{FileExt, PermissionsExt};

    #[test]
    fn tags_are_hmac_sha256() {
        // Test case 2 of RFC 4231 has the key "Jefe", which is padded with zeros.
        let mut key = [0; KEY_BYTES];
        key[..4].copy_from_slice(b"Jefe");
        let tag = Key(key).tag(&[b"what do ya want ", b"for nothing?"]);
        assert_eq!(tag[..8], [0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e]);
        assert!(Key(key).verify(&[b"what do ya want for nothing?"], &tag));
        assert!(!Key(key).verify(&[b"what do ya want for nothing!"], &tag));
        assert!(!Key(key).verify(&[b"what do ya want for nothing?"], &tag[..31]));
    }

    #[test]
    fn a_secret_file_is_private_and_long_enough() {
        let temp = Cleanup::default().temp_file(&std::env::temp_dir(), "secret").expect("writable");
        temp.file().write_all_at(b"too short\n", 0).expect("space");
        let error = Key::load(Some(temp.path())).expect_err("9 bytes");
        assert!(error.to_string().contains("9 bytes"), "{error}");
        temp.file().write_all_at(b"a secret of some length\n", 0).expect("space");
        let key = Key::load(Some(temp.path())).expect("long enough");
        assert!(!format!("{key:?}").contains("secret"));
        assert_eq!(Key::from_text(&key.to_text()).map(|again| again.0), Some(key.0));
        std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o640)).expect("ours");
        let error = Key::load(Some(temp.path())).expect_err("the group may read it");
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
}
