//! A shard's own buffers: lists that only its thread accesses, last in first out, so that a buffer is used
//! again while it is still in the processor's cache.

use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::header::{CLASSES, Header};
use super::returns::{Chain, WaitingShards};
use super::{ArenaCore, BUFFER_BYTES_MIN};

thread_local! {
    /// The caches of this thread, newest first. A plain pointer has no destructor, so it can be used until the
    /// thread's very end, and costs one access. A thread that ends without `remove` leaks its cache.
    static NEWEST: Cell<*const Cache> = const { Cell::new(ptr::null()) };
}

/// The caches of a shard that does not have its thread for itself, while it is not its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aside(*const Cache);

impl Aside {
    /// No cache, as on a thread that is not a shard's.
    pub(crate) const NOTHING: Aside = Aside(ptr::null());

    /// Exchanges the thread's caches for these and returns the thread's. Each `Aside` that holds caches must be put back once, on
    /// its original thread: forgetting it leaks the caches. A shard's own `Aside` may be put onto another thread for its next turn,
    /// by the thread that holds that shard's lock.
    #[inline]
    pub(crate) fn swap(self) -> Aside {
        Aside(NEWEST.replace(self.0))
    }

    /// Runs `act` with the caches in `place` on this thread, and puts them back. The caller has `place` to itself.
    #[inline]
    pub(crate) fn with<T>(place: &Cell<Aside>, act: impl FnOnce() -> T) -> T {
        let outside = place.replace(Aside::NOTHING).swap();
        let result = act();
        place.set(outside.swap());
        result
    }
}

/// The cache of one shard. It has cells instead of `&mut`, because a drop inside a callback may use it again.
pub(super) struct Cache {
    shared: Arc<ArenaCore>,
    /// The same as in `shared`, one pointer nearer.
    waiting: Arc<WaitingShards>,
    shard: u16,
    lists: [List; CLASSES],
    older: *const Cache,
}

struct List {
    top: Cell<*mut Header>,
    count_max: u32,
}

/// The number of buffers of each class in a cache. Only its thread writes them, without read-modify-write,
/// and others read them for the statistics.
#[derive(Default)]
pub(super) struct CachedCounts {
    buffers: [AtomicU32; CLASSES],
    /// Whether a cache uses them. A second cache for the same shard would break the first one's counts.
    taken: AtomicBool,
}

impl CachedCounts {
    #[inline]
    fn get(&self, class: usize) -> u32 {
        self.buffers[class].load(Ordering::Relaxed)
    }

    #[inline]
    fn set(&self, class: usize, count: u32) {
        self.buffers[class].store(count, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> usize {
        (0..CLASSES).map(|class| self.get(class) as usize * (BUFFER_BYTES_MIN << class)).sum()
    }
}

/// The limit for a list's length, however small its buffers.
const LIST_MAX: usize = 512;
/// The limit for a list's bytes. An eighth of the shard's share of the arena is another limit. A list may
/// always hold one buffer if that is at most half of the share. So a shard always finds its last buffer
/// again, and others do not starve.
const LIST_BYTES_MAX: usize = 8 << 20;

impl Cache {
    /// Makes a cache for `shard` the newest of this thread. Returns false when the shard has one, here or
    /// elsewhere.
    pub(super) fn install(shared: &Arc<ArenaCore>, shard: u16) -> bool {
        // Acquire and Release: the counts are as the previous cache left them.
        if shared.cached[usize::from(shard)].taken.swap(true, Ordering::AcqRel) {
            return false;
        }
        let share = shared.bytes_max / shared.shards();
        let lists = std::array::from_fn(|class| {
            let bytes = BUFFER_BYTES_MIN << class;
            let fits = (share / 8).min(LIST_BYTES_MAX) / bytes;
            let least = usize::from(bytes <= share / 2);
            List { top: Cell::new(ptr::null_mut()), count_max: fits.clamp(least, LIST_MAX) as u32 }
        });
        let cache = Cache {
            shared: Arc::clone(shared),
            waiting: Arc::clone(&shared.waiting),
            shard,
            lists,
            older: NEWEST.get(),
        };
        NEWEST.set(Box::into_raw(Box::new(cache)));
        true
    }

    /// Removes this arena's newest cache from this thread, with everything in it. Returns the shard that it belonged to.
    pub(super) fn remove(shared: &Arc<ArenaCore>) -> Option<u16> {
        let mut newer: *mut Cache = ptr::null_mut();
        let mut found = NEWEST.get().cast_mut();
        // SAFETY: the list holds live boxes of this thread; nothing here is called back while they are changed, and
        // no reference to a cache lives across a call of this function.
        unsafe {
            while !found.is_null() && !ptr::eq(Arc::as_ptr(&(*found).shared), Arc::as_ptr(shared)) {
                newer = found;
                found = (*found).older.cast_mut();
            }
            if found.is_null() {
                return None;
            }
            if newer.is_null() {
                NEWEST.set((*found).older);
            } else {
                (*newer).older = (*found).older;
            }
            let cache = Box::from_raw(found);
            for class in 0..CLASSES {
                shared.give_back_chain(cache.cut(class, 0));
            }
            cache.counts().taken.store(false, Ordering::Release);
            Some(cache.shard)
        }
    }

    pub(super) fn shard(&self) -> u16 {
        self.shard
    }

    #[inline]
    pub(super) fn pop(&self, class: usize) -> Option<NonNull<Header>> {
        let list = &self.lists[class];
        let header = NonNull::new(list.top.get())?;
        debug_assert!(self.counts().get(class) > 0, "a list is as long as its count");
        // SAFETY: the buffers in the list belong to the cache.
        unsafe {
            debug_assert_eq!(header.as_ref().class(), class, "a list has buffers of its class only");
            list.top.set(header.as_ref().next());
            header.as_ref().set_home(self.shard);
        }
        self.counts().set(class, self.counts().get(class) - 1);
        Some(header)
    }

    /// Returns how many more buffers of this class are worth fetching while the lock is held anyway.
    pub(super) fn refill_count(&self, class: usize) -> u32 {
        let wanted = match class {
            0..=2 => 8,
            3..=4 => 3,
            _ => 0,
        };
        wanted.min(self.lists[class].count_max / 2)
    }

    /// Adds a buffer regardless of the limits: the caller has checked [`Cache::has_room`] or [`Cache::refill_count`].
    #[inline]
    pub(super) fn push(&self, header: NonNull<Header>) {
        // SAFETY: the caller gives the buffer to the cache.
        let class = unsafe { header.as_ref().class() };
        // SAFETY: as above.
        let arena = unsafe { header.as_ref().arena() };
        debug_assert!(ptr::eq(arena, Arc::as_ptr(&self.shared)), "a cache has its own arena's buffers only");
        let list = &self.lists[class];
        // SAFETY: as above.
        unsafe { header.as_ref().set_next(list.top.get()) };
        list.top.set(header.as_ptr());
        self.counts().set(class, self.counts().get(class) + 1);
    }

    #[inline]
    pub(super) fn has_room(&self, class: usize) -> bool {
        self.counts().get(class) < self.lists[class].count_max
    }

    /// Removes all but the newest `keep` buffers of a class, and returns them.
    pub(super) fn cut(&self, class: usize, keep: u32) -> Chain {
        let list = &self.lists[class];
        let count = self.counts().get(class);
        if count <= keep {
            return Chain(ptr::null_mut());
        }
        let rest = match keep {
            0 => list.top.replace(ptr::null_mut()),
            _ => {
                let mut last = list.top.get();
                debug_assert!(!last.is_null(), "a list is as long as its count");
                // SAFETY: the list has more than `keep` buffers, and they belong to the cache.
                unsafe {
                    for _ in 1..keep {
                        last = (*last).next();
                    }
                    let rest = (*last).next();
                    (*last).set_next(ptr::null_mut());
                    rest
                }
            }
        };
        self.counts().set(class, keep);
        Chain(rest)
    }

    /// Makes the older half of a full list available to all threads. Returns false with too few buffers of this class.
    #[cold]
    fn spill(&self, class: usize) -> bool {
        let count = self.counts().get(class);
        if count < 2 {
            return false;
        }
        self.shared.give_back_chain(self.cut(class, count / 2));
        true
    }

    #[inline]
    fn counts(&self) -> &CachedCounts {
        &self.shared.cached[usize::from(self.shard)]
    }
}

/// Calls `body` with this thread's cache for the arena, if it has one.
#[inline]
pub(super) fn with<T>(shared: *const ArenaCore, body: impl FnOnce(Option<&Cache>) -> T) -> T {
    let cache = find(shared);
    // SAFETY: `find` returns null or a live box of this thread. Only `remove` frees it, which `body` does not
    // call.
    body(unsafe { cache.as_ref() })
}

/// Puts a buffer into this thread's cache. Returns false if the thread has no cache for the buffer's arena, or if other shards need
/// memory.
///
/// # Safety
/// The caller owns the buffer and gives it up when the result is true.
#[inline]
pub(super) unsafe fn put(header: NonNull<Header>) -> bool {
    // SAFETY: the caller's buffer keeps its header.
    with(unsafe { header.as_ref().arena() }, |cache| {
        let Some(cache) = cache else { return false };
        if cache.waiting.anyone() {
            return false;
        }
        // SAFETY: the caller's buffer.
        let class = unsafe { header.as_ref().class() };
        if !cache.has_room(class) && !cache.spill(class) {
            return false;
        }
        cache.push(header);
        true
    })
}

#[inline]
fn find(shared: *const ArenaCore) -> *const Cache {
    let mut cache = NEWEST.get();
    // SAFETY: the list holds live boxes of this thread.
    unsafe {
        while !cache.is_null() && !ptr::eq(Arc::as_ptr(&(*cache).shared), shared) {
            cache = (*cache).older;
        }
    }
    cache
}
