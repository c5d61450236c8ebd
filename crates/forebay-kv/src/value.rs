//! Values as returned to the program: shared where possible, and counted while they are kept.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use forebay::Block;

/// A value returned by the store. It shares the page that was read or a block of the cache, or has its own
/// memory. A value from a memtable and one found by a walk inside the kernel are copies.
///
/// A `Value` keeps the memory that it lies in, which may be a page of several kilobytes. That memory counts
/// as held by the program ([`ErrorKind::MemoryBudget`](crate::ErrorKind::MemoryBudget)) until the value is
/// dropped; each clone counts again. To keep a value for long, copy it with [`Value::to_vec`](slice::to_vec).
///
/// ```
/// # use forebay::{Config, Engine};
/// # use forebay_kv::{Options, Store};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let engine = Engine::start(Config::new())?;
/// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
/// # let users = store.keyspace("users").wait()?;
/// # users.put("anna", "1").wait()?;
/// # users.put("bert", "2").wait()?;
/// let value = users.get("anna").wait()?.ok_or("no such user")?;
/// assert_eq!(&value[..], b"1"); // bytes by Deref
/// let kept = value.to_vec(); // to keep it for long
/// # drop(value);
/// # store.close().wait()?;
/// # Ok(()) }
/// ```
pub struct Value {
    bytes: Repr,
    /// Declared last: the count goes down after the memory is released.
    held: HeldShare,
}

#[derive(Clone)]
enum Repr {
    Block(Block),
    Bytes(Bytes),
}

/// Count of the bytes that the program holds.
#[derive(Debug, Default)]
pub(crate) struct HeldBytes(AtomicU64);

/// A share of [`HeldBytes`], counted until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldShare {
    all: Option<Arc<HeldBytes>>,
    bytes: u64,
}

impl HeldBytes {
    /// Returns the bytes that all [`Value`]s keep from other use.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl HeldShare {
    pub(crate) fn new(all: Option<&Arc<HeldBytes>>, bytes: u64) -> HeldShare {
        if let Some(all) = all {
            all.0.fetch_add(bytes, Ordering::Relaxed);
        }
        HeldShare { all: all.cloned(), bytes }
    }
}

impl Drop for HeldShare {
    fn drop(&mut self) {
        if let Some(all) = &self.all {
            let before = all.0.fetch_sub(self.bytes, Ordering::Relaxed);
            debug_assert!(before >= self.bytes, "what is held is counted until it goes");
        }
    }
}

impl Value {
    /// Creates a value in I/O memory.
    pub(crate) fn of_block(block: Block, held: &Arc<HeldBytes>) -> Value {
        let held = HeldShare::new(Some(held), block.pinned_bytes() as u64);
        Value { bytes: Repr::Block(block), held }
    }

    /// Creates a value in ordinary memory, of which `keeps` bytes are kept from other use.
    pub(crate) fn of_bytes(bytes: Bytes, keeps: u64, held: &Arc<HeldBytes>) -> Value {
        Value { bytes: Repr::Bytes(bytes), held: HeldShare::new(Some(held), keeps) }
    }

    /// Returns the block in which the value lies, if any; it is no longer counted.
    pub(crate) fn into_block(self) -> Result<Block, Value> {
        match self.bytes {
            Repr::Block(block) => Ok(block),
            Repr::Bytes(_) => Err(self),
        }
    }

    /// Returns the bytes of memory that this value keeps from other use.
    pub fn held_bytes(&self) -> u64 {
        self.held.bytes
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Repr::Block(block) => block,
            Repr::Bytes(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Clone for Value {
    fn clone(&self) -> Value {
        Value { bytes: self.bytes.clone(), held: HeldShare::new(self.held.all.as_ref(), self.held.bytes) }
    }
}

/// Shares the memory without copying, and keeps counting it; costs one small allocation.
impl From<Value> for Bytes {
    fn from(value: Value) -> Bytes {
        Bytes::from_owner(value)
    }
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Vec<u8> {
        value.to_vec()
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        **self == **other
    }
}

impl Eq for Value {}

impl PartialEq<[u8]> for Value {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl PartialEq<&[u8]> for Value {
    fn eq(&self, other: &&[u8]) -> bool {
        **self == **other
    }
}

impl<const N: usize> PartialEq<[u8; N]> for Value {
    fn eq(&self, other: &[u8; N]) -> bool {
        **self == other[..]
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for Value {
    fn eq(&self, other: &&[u8; N]) -> bool {
        **self == other[..]
    }
}

/// Shows the length only: a value may be large, and its contents do not belong in logs.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value").field("len", &self.len()).finish_non_exhaustive()
    }
}
