//! Values as the program gets them: not copied, and counted while they are kept.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use forebay::Block;

/// A value that the store gave out: its bytes where they lie, in the page that was read, in the cache or in a
/// memtable. Nothing is copied, but for what a walk inside the kernel found.
///
/// A `Value` keeps the memory that it lies in, which may be a page of several kilobytes, and that counts as
/// held by the program ([`ErrorKind::MemoryBudget`](crate::ErrorKind::MemoryBudget)) until the value is
/// dropped; each clone counts again. Who keeps values for long takes [`Value::to_vec`](slice::to_vec).
pub struct Value {
    bytes: Repr,
    /// Declared last: the count goes down after the memory is given back.
    held: Held,
}

#[derive(Clone)]
enum Repr {
    Block(Block),
    Bytes(Bytes),
}

/// Bytes that the program holds.
#[derive(Debug, Default)]
pub(crate) struct HeldBytes(AtomicU64);

/// A part of [`HeldBytes`], until it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    all: Option<Arc<HeldBytes>>,
    bytes: u64,
}

impl HeldBytes {
    /// The bytes that all [`Value`]s keep from other use.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Held {
    pub(crate) fn new(all: Option<&Arc<HeldBytes>>, bytes: u64) -> Held {
        if let Some(all) = all {
            all.0.fetch_add(bytes, Ordering::Relaxed);
        }
        Held { all: all.cloned(), bytes }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(all) = &self.all {
            all.0.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl Value {
    /// Bytes of I/O memory.
    pub(crate) fn of_block(block: Block, held: &Arc<HeldBytes>) -> Value {
        let held = Held::new(Some(held), block.pinned_bytes() as u64);
        Value { bytes: Repr::Block(block), held }
    }

    /// Bytes of ordinary memory, of which `keeps` are kept from other use.
    pub(crate) fn of_bytes(bytes: Bytes, keeps: u64, held: &Arc<HeldBytes>) -> Value {
        Value { bytes: Repr::Bytes(bytes), held: Held::new(Some(held), keeps) }
    }

    /// The block that it lies in, if it lies in one; no longer counted.
    pub(crate) fn into_block(self) -> Result<Block, Value> {
        match self.bytes {
            Repr::Block(block) => Ok(block),
            Repr::Bytes(_) => Err(self),
        }
    }

    /// Bytes of memory that this value keeps from other use.
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
        Value { bytes: self.bytes.clone(), held: Held::new(self.held.all.as_ref(), self.held.bytes) }
    }
}

/// Shares the memory without copying, and goes on counting it; costs one small allocation.
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

/// Shows the length only: a value may be large, and its contents are nobody's log lines.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value").field("len", &self.len()).finish_non_exhaustive()
    }
}
