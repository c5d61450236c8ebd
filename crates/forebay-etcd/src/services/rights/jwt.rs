//! [`Jwt`]: tokens that are signed, and that no member keeps.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
    RsaKeyPair,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};

use crate::config::JwtOptions;
use crate::refusal::Refusal;
use crate::start_error::StartError;

/// Signs and verifies tokens.
pub(in crate::services) struct Jwt {
    algorithm: Algorithm,
    /// `None` if this member issues no tokens.
    signs: Option<EncodingKey>,
    verifies: DecodingKey,
    validation: Validation,
    ttl: Duration,
}

/// The contents of a token, under etcd's names.
#[derive(Serialize, Deserialize)]
struct Claims {
    username: String,
    /// A number of JSON. etcd reads it so.
    revision: f64,
    exp: u64,
}

fn refused(text: &str) -> StartError {
    StartError::new(format!("--auth-token cannot be used: {text}"))
}

fn not_usable(path: &Path, error: impl fmt::Display) -> StartError {
    StartError::new(format!("{} cannot be used for --auth-token: {error}", path.display()))
}

impl Jwt {
    /// Reads the keys.
    ///
    /// # Errors
    /// A method that is not supported, a key that is missing or cannot be used, or two keys that do not match.
    pub(super) fn open(options: &JwtOptions) -> Result<Jwt, StartError> {
        let JwtOptions { sign_method, public_key, private_key, ttl } = options;
        let algorithm: Algorithm = sign_method.parse().map_err(|_| {
            refused(&format!(
                "sign-method={sign_method} is not supported; give RS, PS or HS with 256, 384 or 512, ES256, ES384 or EdDSA"
            ))
        })?;
        let read = |path: &Path| match fs::read(path) {
            Ok(key) => Ok((path.to_path_buf(), key)),
            Err(error) => Err(not_usable(path, error)),
        };
        let private = private_key.as_deref().map(read).transpose()?;
        let public = public_key.as_deref().map(read).transpose()?;
        let family = Family::of(algorithm);
        let signs = private.as_ref().map(|(path, key)| family.signs(path, key)).transpose()?;
        let verifies = match (&public, &private) {
            (Some((path, key)), _) if family != Family::Hmac => family.verifies(path, key)?,
            (_, Some((path, key))) => family.verifies_own(algorithm, path, key)?,
            _ => return Err(refused("give the files of keys as pub-key and priv-key")),
        };
        let mut validation = Validation::new(algorithm);
        (validation.leeway, validation.validate_aud) = (0, false);
        let jwt = Jwt { algorithm, signs, verifies, validation, ttl: *ttl };
        if jwt.signs.is_some() {
            let token = jwt.sign_until("", 0, u64::MAX >> 12);
            let token = token.map_err(|_| refused("priv-key is not a key for its sign-method"))?;
            if jwt.verified(&token).is_none() {
                return Err(refused("pub-key and priv-key are not a pair"));
            }
        }
        Ok(jwt)
    }

    /// Returns a token of a user whose password was right as of this revision of users and roles.
    pub(in crate::services) fn sign(&self, user: &str, revision: u64) -> Result<String, Refusal> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.sign_until(user, revision, now.saturating_add(self.ttl).as_secs())
    }

    fn sign_until(&self, user: &str, revision: u64, exp: u64) -> Result<String, Refusal> {
        let key = self.signs.as_ref().ok_or(Refusal::VerifyOnly)?;
        let claims = Claims { username: user.to_owned(), revision: revision as f64, exp };
        encode(&Header::new(self.algorithm), &claims, key).map_err(|error| {
            // Of the key, not of the user.
            tracing::error!("a token cannot be signed: {error}");
            Refusal::VerifyOnly
        })
    }

    /// Returns user and revision of a token that is good.
    pub(super) fn verified(&self, token: &str) -> Option<(String, u64)> {
        let claims = decode::<Claims>(token, &self.verifies, &self.validation).ok()?.claims;
        Some((claims.username, claims.revision as u64))
    }
}

/// A kind of keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Hmac,
    Rsa,
    Ec,
    Ed,
}

impl Family {
    fn of(algorithm: Algorithm) -> Family {
        match algorithm {
            Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => Family::Hmac,
            Algorithm::ES256 | Algorithm::ES384 => Family::Ec,
            Algorithm::EdDSA => Family::Ed,
            _ => Family::Rsa,
        }
    }

    fn signs(self, path: &Path, key: &[u8]) -> Result<EncodingKey, StartError> {
        let signs = match self {
            Family::Hmac if key.is_empty() => return Err(not_usable(path, "it is empty")),
            Family::Hmac => Ok(EncodingKey::from_secret(key)),
            Family::Rsa => EncodingKey::from_rsa_pem(key),
            Family::Ec => EncodingKey::from_ec_pem(key),
            Family::Ed => EncodingKey::from_ed_pem(key),
        };
        signs.map_err(|error| {
            not_usable(path, format!("{error}; give a key as PEM, of PKCS#8 if it is no RSA key"))
        })
    }

    /// Of the public key.
    fn verifies(self, path: &Path, key: &[u8]) -> Result<DecodingKey, StartError> {
        let verifies = match self {
            Family::Hmac => Ok(DecodingKey::from_secret(key)),
            Family::Rsa => DecodingKey::from_rsa_pem(key),
            Family::Ec => DecodingKey::from_ec_pem(key),
            Family::Ed => DecodingKey::from_ed_pem(key),
        };
        verifies.map_err(|error| not_usable(path, error))
    }

    /// Of the private key alone: its public one.
    fn verifies_own(self, algorithm: Algorithm, path: &Path, key: &[u8]) -> Result<DecodingKey, StartError> {
        let failed = |error: &dyn fmt::Display| not_usable(path, error);
        if self == Family::Hmac {
            return Ok(DecodingKey::from_secret(key));
        }
        let private = PrivateKeyDer::from_pem_slice(key).map_err(|error| failed(&error))?;
        let der = private.secret_der();
        let rejected = |error: ring::error::KeyRejected| failed(&error);
        Ok(match self {
            Family::Rsa => {
                let pair = match &private {
                    PrivateKeyDer::Pkcs1(_) => RsaKeyPair::from_der(der),
                    _ => RsaKeyPair::from_pkcs8(der),
                };
                DecodingKey::from_rsa_der(pair.map_err(rejected)?.public_key().as_ref())
            }
            Family::Ec => {
                let curve = match algorithm {
                    Algorithm::ES384 => &ECDSA_P384_SHA384_FIXED_SIGNING,
                    _ => &ECDSA_P256_SHA256_FIXED_SIGNING,
                };
                let pair = EcdsaKeyPair::from_pkcs8(curve, der, &SystemRandom::new()).map_err(rejected)?;
                DecodingKey::from_ec_der(pair.public_key().as_ref())
            }
            Family::Ed | Family::Hmac => {
                let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(rejected)?;
                DecodingKey::from_ed_der(pair.public_key().as_ref())
            }
        })
    }
}

impl fmt::Debug for Jwt {
    /// Without keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwt")
            .field("algorithm", &self.algorithm)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn options(sign_method: &str, public: Option<PathBuf>, private: Option<PathBuf>) -> JwtOptions {
        let ttl = Duration::from_secs(60);
        JwtOptions { sign_method: sign_method.into(), public_key: public, private_key: private, ttl }
    }

    #[test]
    fn signed_tokens_are_verified_with_either_key() {
        let dir = tempfile::tempdir().unwrap();
        let (public, private) = (dir.path().join("public"), dir.path().join("private"));
        for (method, algorithm) in [
            ("ES256", &rcgen::PKCS_ECDSA_P256_SHA256),
            ("ES384", &rcgen::PKCS_ECDSA_P384_SHA384),
            ("EdDSA", &rcgen::PKCS_ED25519),
        ] {
            let pair = rcgen::KeyPair::generate_for(algorithm).unwrap();
            fs::write(&public, pair.public_key_pem()).unwrap();
            fs::write(&private, pair.serialize_pem()).unwrap();
            let both = Jwt::open(&options(method, Some(public.clone()), Some(private.clone()))).unwrap();
            let signs = Jwt::open(&options(method, None, Some(private.clone()))).unwrap();
            let verifies = Jwt::open(&options(method, Some(public.clone()), None)).unwrap();
            let token = both.sign("u", 7).unwrap();
            for jwt in [&both, &signs, &verifies] {
                assert_eq!(jwt.verified(&token), Some(("u".to_owned(), 7)), "{method}");
                assert_eq!(jwt.verified(&token[1..]), None, "{method}");
            }
            assert_eq!(verifies.sign("u", 7), Err(Refusal::VerifyOnly));
            let over = both.sign_until("u", 7, 1).unwrap();
            assert_eq!(both.verified(&over), None, "{method}");
            let other = rcgen::KeyPair::generate_for(algorithm).unwrap();
            fs::write(&public, other.public_key_pem()).unwrap();
            let refused =
                Jwt::open(&options(method, Some(public.clone()), Some(private.clone()))).unwrap_err();
            assert!(refused.to_string().contains("not a pair"), "{refused}");
        }
    }

    #[test]
    fn a_secret_signs_and_verifies_and_no_other_method_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let private = dir.path().join("private");
        fs::write(&private, "secret").unwrap();
        let of = |method: &str| Jwt::open(&options(method, None, Some(private.clone())));
        let token = of("HS256").unwrap().sign("u", 7).unwrap();
        assert_eq!(of("HS256").unwrap().verified(&token), Some(("u".to_owned(), 7)));
        assert_eq!(of("HS512").unwrap().verified(&token), None);
        for method in ["", "none", "ES512", "RS256"] {
            assert!(of(method).is_err(), "{method}");
        }
        assert!(Jwt::open(&options("HS256", None, None)).is_err());
    }
}
