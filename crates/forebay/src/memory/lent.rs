//! Memory that the program lends to an operation.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::memory::arena::Buffer;
use crate::memory::block::BlockMut;

/// Memory of the program that an operation may use: [`File::read_into`](crate::File::read_into),
/// [`File::write_from`](crate::File::write_from), [`ReadMany::into_memory`](crate::ReadMany::into_memory).
///
/// The operation owns it until its end and returns it with the result. After a dropped operation it is dropped when the kernel is
/// done with it, on a thread that the engine has for such drops (but see [`DROPS_ANYWHERE`](IoMemory::DROPS_ANYWHERE)). A drop
/// may block there without holding up anything else, for example on the lock of a Python interpreter whose holder waits for the
/// engine. If that thread cannot be started, the memory is leaked and counted
/// ([`MemoryStats::leaked_lends`](crate::MemoryStats::leaked_lends)).
///
/// `Default` stands for memory that was lost: with its shard, or with an engine that ended before the device did.
///
/// Implemented for `Vec<u8>`, `Box<[u8]>`, `BytesMut` (their length, not their capacity) and [`BlockMut`]. For memory that a
/// program maps, pins, or shares with another language, implement it for the type that owns it:
///
/// ```
/// use forebay::{Config, Engine, IoMemory, Open};
///
/// /// A part of an array that lives elsewhere.
/// #[derive(Default)]
/// struct Rows {
///     array: Option<std::sync::Arc<std::cell::UnsafeCell<Box<[u64]>>>>,
/// }
///
/// // SAFETY: only the thread that works with `Rows` touches the array.
/// unsafe impl Send for Rows {}
///
/// // SAFETY: the array does not move and is not freed while `Rows` exists; no one reads it before the read has ended.
/// unsafe impl IoMemory for Rows {
///     fn memory(&mut self) -> (*mut u8, usize) {
///         match &self.array {
///             // SAFETY: as above.
///             Some(array) => unsafe {
///                 let array = &mut *array.get();
///                 (array.as_mut_ptr().cast(), array.len() * 8)
///             },
///             None => (std::ptr::null_mut(), 0),
///         }
///     }
/// }
///
/// # fn main() -> forebay::Result<()> {
/// # let engine = Engine::start(Config::new())?;
/// let file = engine.open("Cargo.toml", Open::read()).wait()?;
/// let array = std::sync::Arc::new(std::cell::UnsafeCell::new(vec![0u64; 16].into_boxed_slice()));
/// let (bytes, _rows) = file.read_into(0, Rows { array: Some(array.clone()) }).wait();
/// assert_eq!(bytes?, 128);
/// # Ok(()) }
/// ```
///
/// # Safety
/// The bytes that [`memory`](IoMemory::memory) names are initialised, valid for reads and writes, and stay where they are until the value is
/// dropped or returned, also when the value itself does not move but its contents would (a growing vector). Nothing else
/// accesses them in the meantime.
pub unsafe trait IoMemory: Default + Send + 'static {
    /// Whether a drop on any thread is harmless: it neither blocks nor takes a lock. False has dropped operations give the
    /// memory to a thread of the engine's own. Default: false.
    const DROPS_ANYWHERE: bool = false;

    /// Returns start and length in bytes. Of several calls the last one counts, which is made when the value has its final place
    /// for the operation; the start may be anything where the length is 0.
    fn memory(&mut self) -> (*mut u8, usize);

    /// Moves the I/O memory out, for operations that use it directly, and leaves the default.
    #[doc(hidden)]
    fn take_block(&mut self) -> Option<BlockMut> {
        None
    }

    /// Undoes `take_block`.
    #[doc(hidden)]
    fn put_block(&mut self, block: BlockMut) {
        drop(block);
    }
}

// SAFETY: the bytes up to its length are initialised, and lie on the heap, whose address a move of the vector does not change.
unsafe impl IoMemory for Vec<u8> {
    const DROPS_ANYWHERE: bool = true;

    fn memory(&mut self) -> (*mut u8, usize) {
        (self.as_mut_ptr(), self.len())
    }
}

// SAFETY: as for `Vec`.
unsafe impl IoMemory for Box<[u8]> {
    const DROPS_ANYWHERE: bool = true;

    fn memory(&mut self) -> (*mut u8, usize) {
        (self.as_mut_ptr(), self.len())
    }
}

// SAFETY: the bytes up to its length are initialised and its own; a handle that shares the allocation has other bytes of it.
unsafe impl IoMemory for BytesMut {
    const DROPS_ANYWHERE: bool = true;

    fn memory(&mut self) -> (*mut u8, usize) {
        (self.as_mut_ptr(), self.len())
    }
}

// SAFETY: the buffer is its own, and the bytes up to its length are initialised.
unsafe impl IoMemory for BlockMut {
    const DROPS_ANYWHERE: bool = true;

    fn memory(&mut self) -> (*mut u8, usize) {
        (self.as_ptr(), self.len())
    }

    fn take_block(&mut self) -> Option<BlockMut> {
        Some(std::mem::take(self))
    }

    fn put_block(&mut self, block: BlockMut) {
        *self = block;
    }
}

/// A buffer of the engine's own, into whose first `len` bytes a range is read.
#[derive(Default)]
pub(crate) struct Room {
    buffer: Option<Buffer>,
    len: usize,
}

impl Room {
    pub(crate) fn new(buffer: Buffer, len: usize) -> Room {
        debug_assert!(len <= buffer.capacity(), "a range fits into its buffer");
        Room { buffer: Some(buffer), len }
    }

    /// Returns the buffer; `None` where it was lost.
    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        self.buffer
    }
}

// SAFETY: the buffer is its own and stays where it is. Its bytes are written by devices and copies alone until it becomes a block of
// those that were.
unsafe impl IoMemory for Room {
    const DROPS_ANYWHERE: bool = true;

    fn memory(&mut self) -> (*mut u8, usize) {
        self.buffer.as_ref().map_or((std::ptr::null_mut(), 0), |buffer| (buffer.as_ptr(), self.len))
    }
}

/// Bytes that an operation writes from their place.
pub(crate) trait IoSource: Send + 'static {
    fn bytes(&self) -> &[u8];
}

impl IoSource for Bytes {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl IoSource for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Drops owners of memory where that blocks nothing.
pub(crate) trait Releaser: Send + Sync {
    fn release(&self, owner: Box<dyn Send>);
}

/// The owner of lent memory, shared by an operation and the slots that the kernel's requests have.
pub(crate) struct Lender<B: Send + 'static> {
    owner: ManuallyDrop<B>,
    releaser: Option<Arc<dyn Releaser>>,
}

// SAFETY: no method reads the owner through a shared reference; it is moved out by the holder of the last count.
unsafe impl<B: Send + 'static> Sync for Lender<B> {}

trait Keeps: Send + Sync {}

impl<B: Send + 'static> Keeps for Lender<B> {}

impl<B: IoMemory> Lender<B> {
    /// Returns the owner in its place, and its memory. `releaser` drops it, if it is of a type that needs one.
    pub(crate) fn new(
        owner: B,
        releaser: &Arc<impl Releaser + 'static>,
    ) -> (Arc<Lender<B>>, LentMemory, usize) {
        let releaser = (!B::DROPS_ANYWHERE).then(|| Arc::clone(releaser) as Arc<dyn Releaser>);
        let mut lender = Arc::new(Lender { owner: ManuallyDrop::new(owner), releaser });
        let (start, len) = match Arc::get_mut(&mut lender) {
            Some(lender) => lender.owner.memory(),
            // Cannot happen: it was just made.
            None => (std::ptr::null_mut(), 0),
        };
        let (start, len) = match NonNull::new(start) {
            Some(start) => (start, len),
            None => (NonNull::dangling(), 0),
        };
        let lent = LentMemory { start, keeps: Some(lender.clone()) };
        (lender, lent, len)
    }
}

impl<B: Send + 'static> Lender<B> {
    /// Returns the owner, if no operation has its memory any more.
    pub(crate) fn into_owner(this: Arc<Lender<B>>) -> Option<B> {
        let lender = ManuallyDrop::new(Arc::into_inner(this)?);
        // SAFETY: both fields are moved out once, as the lender itself is never dropped.
        unsafe {
            drop(std::ptr::read(&raw const lender.releaser));
            Some(ManuallyDrop::into_inner(std::ptr::read(&raw const lender.owner)))
        }
    }
}

impl<B: Send + 'static> Drop for Lender<B> {
    fn drop(&mut self) {
        // SAFETY: the only place that moves it out of a lender, which is dropped.
        let owner = unsafe { ManuallyDrop::take(&mut self.owner) };
        match self.releaser.take() {
            Some(releaser) => releaser.release(Box::new(owner)),
            None => drop(owner),
        }
    }
}

/// Lent memory from some place on, as a slot owns it: it keeps the owner.
#[derive(Clone)]
pub(crate) struct LentMemory {
    start: NonNull<u8>,
    keeps: Option<Arc<dyn Keeps>>,
}

// SAFETY: the memory is the lender's, which may be sent (`IoMemory: Send`), and is touched by the kernel or by the one
// operation that has it.
unsafe impl Send for LentMemory {}
// SAFETY: through a shared reference only the address is read.
unsafe impl Sync for LentMemory {}

impl LentMemory {
    /// Returns bytes that are only read.
    pub(crate) fn source(source: impl IoSource) -> LentMemory {
        let lender = Arc::new(Lender { owner: ManuallyDrop::new(source), releaser: None });
        let start = NonNull::from(lender.owner.bytes()).cast();
        LentMemory { start, keeps: Some(lender) }
    }

    /// Returns no memory.
    pub(crate) fn nothing() -> LentMemory {
        LentMemory { start: NonNull::dangling(), keeps: None }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the same memory from `bytes` further on.
    pub(crate) fn from(&self, bytes: usize) -> LentMemory {
        // A wrapping addition of a count up to the memory's length stays inside it, or one past its end.
        let start = NonNull::new(self.start.as_ptr().wrapping_add(bytes)).unwrap_or(self.start);
        LentMemory { start, keeps: self.keeps.clone() }
    }
}

impl fmt::Debug for LentMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.keeps.as_ref().map_or(0, Arc::strong_count);
        f.debug_struct("LentMemory").field("start", &self.start).field("counts", &counts).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct CountedMemory(Option<(Vec<u8>, Arc<AtomicUsize>)>);

    // SAFETY: the bytes are a vector's own.
    unsafe impl IoMemory for CountedMemory {
        fn memory(&mut self) -> (*mut u8, usize) {
            self.0.as_mut().map_or((std::ptr::null_mut(), 5), |(bytes, _)| bytes.memory())
        }
    }

    impl Drop for CountedMemory {
        fn drop(&mut self) {
            if let Some((_, drops)) = &self.0 {
                drops.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[derive(Default)]
    struct Later(Mutex<Vec<Box<dyn Send>>>);

    impl Releaser for Later {
        fn release(&self, owner: Box<dyn Send>) {
            self.0.lock().unwrap().push(owner);
        }
    }

    fn counted() -> (CountedMemory, Arc<AtomicUsize>) {
        let drops = Arc::new(AtomicUsize::new(0));
        (CountedMemory(Some((vec![1, 2, 3], drops.clone()))), drops)
    }

    #[test]
    fn the_owner_comes_back_when_no_slot_has_its_memory() {
        let (releaser, (owner, drops)) = (Arc::new(Later::default()), counted());
        let (lender, lent, len) = Lender::new(owner, &releaser);
        let part = lent.from(1);
        // SAFETY: the vector's second byte; the vector is not touched meanwhile.
        assert_eq!((len, unsafe { part.start().read() }), (3, 2));
        // SAFETY: as above.
        unsafe { part.start().write(9) };
        drop((lent, part));
        let owner = Lender::into_owner(lender).unwrap();
        assert_eq!(owner.0.as_ref().unwrap().0, [1, 9, 3]);
        drop(owner);
        assert_eq!((drops.load(Ordering::Relaxed), releaser.0.lock().unwrap().len()), (1, 0));
    }

    #[test]
    fn an_owner_that_a_slot_had_last_is_dropped_elsewhere_and_once() {
        let (releaser, (owner, drops)) = (Arc::new(Later::default()), counted());
        let (lender, lent, _) = Lender::new(owner, &releaser);
        assert!(Lender::into_owner(lender).is_none(), "a slot has it");
        drop(lent.from(2));
        assert_eq!(releaser.0.lock().unwrap().len(), 0);
        drop(lent);
        assert_eq!((drops.load(Ordering::Relaxed), releaser.0.lock().unwrap().len()), (0, 1));
        releaser.0.lock().unwrap().clear();
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn memory_of_the_standard_library_is_dropped_in_place() {
        let releaser = Arc::new(Later::default());
        let (lender, lent, len) = Lender::new(vec![7; 100], &releaser);
        drop(lender);
        // SAFETY: a byte of the vector, which `lent` keeps.
        assert_eq!((len, unsafe { lent.from(99).start().read() }), (100, 7));
        drop(lent);
        assert!(releaser.0.lock().unwrap().is_empty());
        let (_, _, len) = Lender::new(CountedMemory::default(), &releaser);
        assert_eq!(len, 0, "no memory has no length");
        let source = LentMemory::source(Bytes::from_static(b"abc"));
        // SAFETY: a byte of the source, which is kept.
        assert_eq!(unsafe { source.from(1).start().read() }, b'b');
    }
}
