//! Bytes of entries, votes and log ids: MessagePack with the names of fields, by serde.
//!
//! The names make it self-describing: a program may add a field with a default and still read older entries, and
//! types that serde must look into to decode (untagged enums, flattened structs) work. A format without names is
//! shorter, but fails for such types when an acknowledged entry is read back.

use openraft::LogId;
use openraft::vote::RaftCommittedLeaderId;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// Returns the bytes of a value. `what` names it in errors. Where debug assertions are on, bytes that would not be read back are an
/// error; whether they say the same is not known of a program's types, which may have no order.
pub(crate) fn encode<T: Serialize + DeserializeOwned>(what: &str, value: &T) -> Result<Vec<u8>> {
    let bytes = rmp_serde::to_vec_named(value).map_err(|error| Error::encode(what, error))?;
    if cfg!(debug_assertions) {
        decode::<T>(what, &bytes)?;
    }
    Ok(bytes)
}

/// Returns the value of these bytes. `what` names it in errors.
pub(crate) fn decode<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T> {
    rmp_serde::from_slice(bytes).map_err(|error| Error::decode(what, error))
}

/// Returns the index after a log id; 0 for `None`.
pub(crate) fn next_index<L: RaftCommittedLeaderId>(id: Option<&LogId<L>>) -> u64 {
    id.map_or(0, |id| id.index.saturating_add(1))
}
