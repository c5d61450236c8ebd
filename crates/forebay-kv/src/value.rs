//! Values as returned to the program: shared where possible, and counted while they are kept.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use forebay::Block;
use forebay::internal::thread_number;
use forebay_cache::BlockCache;

use crate::is_broken;

/// The part of a share that is not lent.
const HEADROOM_PART: u64 = 4;

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
    /// Declared last: the count decreases after the memory is released.
    held: HeldShare,
}

#[derive(Clone)]
enum Repr {
    Block(Block),
    Bytes(Bytes),
}

/// Parts of a count that threads change.
const STRIPES: usize = 8;
/// The bytes by which such a part grows and shrinks.
const SPARE_BYTES: u64 = 8 << 10;

/// Count of the bytes that the program holds. Threads change parts of it that are mostly their own: where all change one number, each
/// get on several processors waits for the others' caches.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    stripes: [Arc<HeldStripe>; STRIPES],
    count: Arc<HeldCount>,
}

/// The counter of some of the threads, on a separate cache line.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct HeldStripe {
    /// Bytes that are counted and not held.
    spare: AtomicU64,
    count: Arc<HeldCount>,
}

/// The bytes that all stripes have counted, and the loan of the rest of the share (`engine/loan.rs`).
#[derive(Debug)]
pub(crate) struct HeldCount {
    bytes: AtomicU64,
    /// The most bytes for which nothing of the loan is taken back. A change of one of the two is followed by a check of the other.
    free: AtomicU64,
    /// The bytes that are held of the share and not counted here.
    others: AtomicU64,
    loan: Mutex<Loan>,
    /// The cache that has the loan.
    blocks: Weak<BlockCache>,
}

/// The part of a share that the cache has.
#[derive(Debug, Default)]
struct Loan {
    bytes: u64,
    share: u64,
    /// Some of it was taken back since the last check.
    is_wanted: bool,
}

/// A share of [`HeldBytes`], counted until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldShare {
    stripe: Option<Arc<HeldStripe>>,
    bytes: u64,
}

impl Default for HeldBytes {
    fn default() -> HeldBytes {
        HeldBytes::new(Weak::new())
    }
}

impl Deref for HeldBytes {
    type Target = HeldCount;

    fn deref(&self) -> &HeldCount {
        &self.count
    }
}

impl HeldBytes {
    fn new(blocks: Weak<BlockCache>) -> HeldBytes {
        let (bytes, free, others) = (AtomicU64::new(0), AtomicU64::new(u64::MAX), AtomicU64::new(0));
        let count = Arc::new(HeldCount { bytes, free, others, loan: Mutex::default(), blocks });
        let stripe = |_| Arc::new(HeldStripe { spare: AtomicU64::new(0), count: count.clone() });
        HeldBytes { stripes: std::array::from_fn(stripe), count }
    }

    /// Returns a count whose share may be lent to a cache.
    pub(crate) fn lending_to(blocks: &Arc<BlockCache>) -> Arc<HeldBytes> {
        Arc::new(HeldBytes::new(Arc::downgrade(blocks)))
    }

    /// Returns the bytes that all [`Value`]s keep from other use.
    pub(crate) fn get(&self) -> u64 {
        let spare: u64 = self.stripes.iter().map(|stripe| stripe.spare.load(Ordering::Relaxed)).sum();
        self.bytes.load(Ordering::Relaxed).saturating_sub(spare)
    }

    /// Returns the calling thread's part.
    fn stripe(&self) -> &Arc<HeldStripe> {
        &self.stripes[thread_number() % STRIPES]
    }
}

impl HeldStripe {
    fn add(&self, bytes: u64) {
        let less = |spare: u64| spare.checked_sub(bytes);
        if self.spare.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
            self.count.add(bytes + SPARE_BYTES);
            self.spare.fetch_add(SPARE_BYTES, Ordering::Relaxed);
        }
    }

    fn give_back(&self, bytes: u64) {
        let spare = self.spare.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if spare > 2 * SPARE_BYTES {
            let surplus = spare - SPARE_BYTES;
            let less = |spare: u64| spare.checked_sub(surplus);
            // Otherwise others have taken of it meanwhile.
            if self.spare.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
                let before = self.count.bytes.fetch_sub(surplus, Ordering::Relaxed);
                debug_assert!(before >= surplus, "what is held is counted until it goes");
            }
        }
    }
}

impl HeldCount {
    /// Returns the bytes of the share that are lent, and of other shares.
    pub(crate) fn lent_bytes(&self, blocks: &BlockCache) -> (u64, u64) {
        let loan = self.loan();
        (loan.bytes, blocks.lent_bytes().saturating_sub(loan.bytes))
    }

    /// Lends the rest of `share`, except for a part of it and for `others`, which are held and not counted here; nothing if some of
    /// it was taken back since the last call.
    pub(crate) fn lend(&self, share: u64, others: u64) {
        let Some(blocks) = self.blocks.upgrade() else { return };
        let mut loan = self.loan();
        loan.share = share;
        self.others.store(others, Ordering::Relaxed);
        if !std::mem::take(&mut loan.is_wanted) {
            let held = self.bytes.load(Ordering::Relaxed);
            let kept = held + others + loan.bytes + share / HEADROOM_PART;
            loan.bytes += blocks.lend(share.saturating_sub(kept));
        }
        self.settle(&mut loan);
    }

    /// Notes how much of the share is held and not counted here, and takes back as much.
    pub(crate) fn note_others(&self, others: u64) {
        if self.others.load(Ordering::Relaxed) != others {
            let mut loan = self.loan();
            self.others.store(others, Ordering::Relaxed);
            self.settle(&mut loan);
        }
    }

    fn add(&self, bytes: u64) {
        let held = self.bytes.fetch_add(bytes, Ordering::SeqCst) + bytes;
        if held > self.free.load(Ordering::SeqCst) {
            self.settle(&mut self.loan());
        }
    }

    /// Takes back the bytes that the share lacks, step by step.
    #[cold]
    fn settle(&self, loan: &mut Loan) {
        loop {
            let kept = self.others.load(Ordering::Relaxed) + loan.bytes;
            let free = if loan.bytes > 0 { loan.share.saturating_sub(kept) } else { u64::MAX };
            self.free.store(free, Ordering::SeqCst);
            if self.bytes.load(Ordering::SeqCst) <= free || is_broken!(LoanKept) {
                return;
            }
            loan.is_wanted = true;
            loan.bytes = match self.blocks.upgrade().map_or(0, |blocks| blocks.take_back()) {
                0 => 0,
                step => loan.bytes.saturating_sub(step),
            };
        }
    }

    fn loan(&self) -> MutexGuard<'_, Loan> {
        self.loan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldShare {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn new(all: Option<&Arc<HeldBytes>>, bytes: u64) -> HeldShare {
        HeldShare::of(all.map(|all| all.stripe()), bytes)
    }

    fn of(stripe: Option<&Arc<HeldStripe>>, bytes: u64) -> HeldShare {
        if let Some(stripe) = stripe {
            stripe.add(bytes);
        }
        HeldShare { stripe: stripe.cloned(), bytes }
    }
}

impl Drop for HeldShare {
    fn drop(&mut self) {
        if let Some(stripe) = &self.stripe {
            stripe.give_back(self.bytes);
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

    /// Returns the block that holds the value, if any; it is no longer counted.
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
        Value { bytes: self.bytes.clone(), held: HeldShare::of(self.held.stripe.as_ref(), self.held.bytes) }
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

// Shows the length only: a value may be large, and its contents do not belong in logs.
forebay::_debug_parts!(Value, |value| len: value.len());
