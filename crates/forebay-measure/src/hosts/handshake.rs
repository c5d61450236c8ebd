//! The handshake: both sides prove that they have the secret, without sending it.
//!
//! ```text
//! controller -> agent   hello: protocol, program, role, nonce
//! agent -> controller   hello: protocol, program, role, nonce
//! controller -> agent   HMAC(secret, "controller" | both hellos)
//! agent -> controller   HMAC(secret, "agent" | both hellos)
//! ```
//!
//! Each nonce is new, so a recorded handshake is worthless later. The labels differ, so a proof cannot
//! be sent back to its maker. The controller proves first: a client that only connects to an agent
//! learns nothing on which it could test guesses. Keys for the messages that follow are derived from the
//! same two hellos.

use std::net::TcpStream;
use std::time::Instant;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::frame::{self, Times};
use super::link::Link;
use super::secret::{KEY_BYTES, Key, nonce};

/// The version of the protocol, raised when a message changes its meaning.
pub(super) const PROTOCOL: u32 = 1;

/// The size of the longest message in a handshake.
const LIMIT: usize = 4096;

/// The most characters shown of an unproven peer's text.
const TEXT_MAX: usize = 300;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    Controller,
    Agent,
}

impl Role {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Controller => b"forebay 1 controller",
            Self::Agent => b"forebay 1 agent",
        }
    }
}

/// The first message of each side. It is parsed leniently: another version may send more fields.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    forebay_protocol: u32,
    program: String,
    role: Role,
    nonce: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Proof {
    Tag(String),
    /// The reason why there is no proof. The peer has proven nothing yet, so it is shown and
    /// never acted on.
    Refused(String),
}

/// Runs the controller's side. Either of the two may have opened the connection.
///
/// # Errors
/// Fails with a sentence: other versions, another secret, no Forebay at all, or the connection.
pub(super) fn as_controller(stream: TcpStream, secret: &Key, times: Times) -> anyhow::Result<Link> {
    prepare(&stream, times)?;
    let own = hello(Role::Controller)?;
    frame::write(&stream, &own)?;
    let other = next(&stream, times)?;
    check(&other, Role::Agent)?;
    let transcript = transcript(&own, &other);
    send(&stream, &Proof::Tag(BASE64.encode(secret.tag(&[Role::Controller.label(), &transcript]))))?;
    if !proven(&next(&stream, times)?, secret, Role::Agent, &transcript)? {
        anyhow::bail!("the agent has another secret");
    }
    Link::new(stream, secret, &transcript, Role::Controller, times)
}

/// Runs the agent's side.
///
/// # Errors
/// As for [`as_controller`]. The other side is notified, too.
pub(super) fn as_agent(stream: TcpStream, secret: &Key, times: Times) -> anyhow::Result<Link> {
    prepare(&stream, times)?;
    // One deadline for both messages: a peer that proves nothing is gone by then, however slowly it sends.
    let deadline = Instant::now() + times.handshake;
    let next = || frame::read_by(&stream, LIMIT, deadline);
    let other = next()?;
    let own = hello(Role::Agent)?;
    if let Err(error) = check(&other, Role::Controller) {
        // The connection ends either way.
        let _ = send(&stream, &Proof::Refused(error.to_string()));
        return Err(error);
    }
    frame::write(&stream, &own)?;
    let transcript = transcript(&other, &own);
    if !proven(&next()?, secret, Role::Controller, &transcript)? {
        // The connection ends either way, also when this send fails.
        let _ =
            send(&stream, &Proof::Refused("the agent has another secret than this controller".to_owned()));
        anyhow::bail!("the controller has another secret");
    }
    send(&stream, &Proof::Tag(BASE64.encode(secret.tag(&[Role::Agent.label(), &transcript]))))?;
    Link::new(stream, secret, &transcript, Role::Agent, times)
}

fn prepare(stream: &TcpStream, times: Times) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(times.message))?;
    Ok(())
}

fn hello(role: Role) -> anyhow::Result<Vec<u8>> {
    let hello = Hello {
        forebay_protocol: PROTOCOL,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        role,
        nonce: BASE64.encode(nonce()?),
    };
    Ok(serde_json::to_vec(&hello)?)
}

fn send(stream: &TcpStream, proof: &Proof) -> anyhow::Result<()> {
    Ok(frame::write(stream, &serde_json::to_vec(proof)?)?)
}

fn next(stream: &TcpStream, times: Times) -> anyhow::Result<Vec<u8>> {
    Ok(frame::read(stream, LIMIT, times.handshake, times.handshake)?)
}

/// Checks that this program can work with the other side's hello.
fn check(bytes: &[u8], role: Role) -> anyhow::Result<()> {
    if let Ok(Proof::Refused(why)) = serde_json::from_slice(bytes) {
        anyhow::bail!("refused: {}", printable(&why));
    }
    let value: serde_json::Value = serde_json::from_slice(bytes).context("the peer is not forebay")?;
    let protocol = value.get("forebay_protocol").and_then(serde_json::Value::as_u64);
    let protocol = protocol.context("the peer is not forebay")?;
    let program = value.get("program").and_then(serde_json::Value::as_str).unwrap_or("unknown");
    let own = env!("CARGO_PKG_VERSION");
    // Figures of two versions do not belong to one measurement, even where their messages agree.
    anyhow::ensure!(
        protocol == u64::from(PROTOCOL) && program == own,
        "versions differ: forebay {} with protocol {protocol} there, {own} with protocol {PROTOCOL} here; install the same",
        printable(program)
    );
    let hello: Hello = serde_json::from_value(value).context("a hello that cannot be read")?;
    anyhow::ensure!(hello.role == role, "two of the same kind: both are the {:?}", hello.role);
    let nonce = BASE64.decode(&hello.nonce).unwrap_or_default();
    anyhow::ensure!(nonce.len() == KEY_BYTES, "a hello without a usable nonce");
    Ok(())
}

/// Returns whether the proof is right.
///
/// # Errors
/// Fails when the message is no proof.
fn proven(bytes: &[u8], secret: &Key, role: Role, transcript: &[u8]) -> anyhow::Result<bool> {
    match serde_json::from_slice(bytes).context("a proof that cannot be read")? {
        Proof::Tag(tag) => {
            Ok(secret.verify(&[role.label(), transcript], &BASE64.decode(tag).unwrap_or_default()))
        }
        Proof::Refused(why) => anyhow::bail!("refused: {}", printable(&why)),
    }
}

/// Returns a hash of both hellos, byte by byte.
fn transcript(controller: &[u8], agent: &[u8]) -> [u8; KEY_BYTES] {
    let mut hash = Sha256::new();
    for hello in [controller, agent] {
        hash.update((hello.len() as u64).to_be_bytes());
        hash.update(hello);
    }
    hash.finalize().into()
}

/// Returns the text of an unproven peer in a form fit for a terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(TEXT_MAX).collect()
}

#[cfg(test)]
mod tests;
