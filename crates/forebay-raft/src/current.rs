//! The file `current`: which directories are the state and the snapshot. Replaced as a whole, so a change of both is atomic.

use std::path::Path;

use forebay::{Durability, Engine, Open};
use openraft::RaftTypeConfig;
use openraft::type_config::alias::SnapshotMetaOf;
use serde::{Deserialize, Serialize};

use crate::codec::{decode, encode};
use crate::error::{Error, ErrorKind, Result};

const NAME: &str = "current";
const NEW: &str = "current.new";
/// The first bytes of the file, with the version of its format.
const MAGIC: &[u8; 8] = b"fbraft\x00\x01";
const CRC_BYTES: usize = 4;

/// The directories in use, by their numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Current<C: RaftTypeConfig> {
    pub(crate) state: u64,
    pub(crate) snapshot: Option<(u64, SnapshotMetaOf<C>)>,
}

fn checksum(bytes: &[u8]) -> [u8; CRC_BYTES] {
    (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

impl<C: RaftTypeConfig> Current<C> {
    /// Reads the file; `None` if it does not exist.
    pub(crate) async fn read(engine: &Engine, dir: &Path) -> Result<Option<Current<C>>> {
        Current::read_named(engine, &dir.join(NAME)).await
    }

    async fn read_named(engine: &Engine, path: &Path) -> Result<Option<Current<C>>> {
        let file = match engine.open(path, Open::read().buffered()).await {
            Err(error) if error.kind() == forebay::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let length = file.len().await?;
        let bytes = file.read(0..length).await?;
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            let text = "this is not a file of forebay-raft, or of another version: choose another directory";
            return Err(Error::at(ErrorKind::Foreign, path, text));
        };
        match rest.split_first_chunk::<CRC_BYTES>() {
            Some((crc, body)) if checksum(body) == *crc => {
                decode("the names of state and snapshot", body).map(Some)
            }
            _ => {
                let text =
                    "its checksum is wrong: restore the directory, or remove it and let the node catch up";
                Err(Error::at(ErrorKind::Corruption, path, text))
            }
        }
    }

    /// Replaces the file, by one that was read back; durable when it returns.
    pub(crate) async fn write(&self, engine: &Engine, dir: &Path) -> Result<()> {
        let body = encode("the names of state and snapshot", self)?;
        let bytes = [&MAGIC[..], &checksum(&body), &body].concat();
        let new = dir.join(NEW);
        let file = engine.open(&new, Open::create().truncate().buffered()).await?;
        file.write(0, bytes).await?;
        file.sync(Durability::All).await?;
        file.close().await?;
        if Current::read_named(engine, &new).await?.as_ref() != Some(self) {
            let text = "it would not be read back as it was written: please report this";
            return Err(Error::at(ErrorKind::Corruption, &new, text));
        }
        // Makes the name durable as well.
        Ok(engine.rename(&new, dir.join(NAME)).await?)
    }
}
