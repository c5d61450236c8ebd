//! The files that stay open for later use: which of them nothing uses, in the order of their last uses, and when those are closed.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::fork::Origin;

/// The least descriptors that are released together when the process has used all of them, if this many belong to idle files.
const GIVEN_BACK_MIN: usize = 8;
/// The reciprocal of the part of the list's descriptors that is released.
const GIVEN_BACK_PART: usize = 8;

/// The open files of an engine's file caches. Past the limit, and when the process has no descriptor left, those that nothing uses
/// are closed, the least recently used one first.
pub(crate) struct IdleFiles {
    descriptors_max: usize,
    /// Twice the number of files opened so far. Uses are ordered by it, so that they need not advance a clock: those between two
    /// opens are of the same time, the odd number in between.
    time: AtomicU64,
    numbers: AtomicU64,
    /// Whether a limit is exceeded by files in use; they are closed as soon as they are idle.
    is_over: AtomicBool,
    lists: Mutex<Lists>,
    origin: Origin,
}

#[derive(Default)]
struct Lists {
    owners: BTreeMap<u64, Owner>,
    /// Descriptors of all files.
    descriptors: usize,
}

/// The open files of one cache.
struct Owner {
    files_max: usize,
    files: BTreeMap<Key, Entry>,
}

/// The time of a file's last use as far as the list knows it, and the file's number.
type Key = (u64, u64);

struct Entry {
    slot: Arc<dyn IdleFile>,
    descriptors: usize,
}

/// A [`Slot`] of any kind of file. All but `used_at` and `is_idle` are called with the list's lock held.
trait IdleFile: Send + Sync {
    fn used_at(&self) -> u64;
    fn is_idle(&self) -> bool;
    fn list_at(&self, time: u64);
    /// Removes the file unless it is in use. It is dropped without the lock.
    fn take(&self) -> Option<Box<dyn Send>>;
}

impl IdleFiles {
    /// Returns an empty list for files of this many descriptors.
    pub(crate) fn new(descriptors_max: usize) -> Arc<IdleFiles> {
        Arc::new(IdleFiles {
            descriptors_max,
            time: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            lists: Mutex::default(),
            origin: Origin::here(),
        })
    }

    pub(crate) fn descriptors_max(&self) -> usize {
        self.descriptors_max
    }

    /// Returns the number for a new owner, of which at most this many files stay open.
    pub(crate) fn add_owner(&self, files_max: usize) -> u64 {
        let number = self.next_number();
        if !self.origin.is_elsewhere() {
            self.lock().owners.insert(number, Owner { files_max, files: BTreeMap::new() });
        }
        number
    }

    /// Removes an owner that has no file.
    pub(crate) fn remove_owner(&self, owner: u64) {
        if !self.origin.is_elsewhere() {
            let removed = self.lock().owners.remove(&owner);
            debug_assert!(removed.is_none_or(|owner| owner.files.is_empty()), "its files are removed before");
        }
    }

    /// Changes how many files of an owner stay open.
    pub(crate) fn set_files_max(&self, owner: u64, files_max: usize) {
        self.close(|lists, time, closed| {
            if let Some(owner) = lists.owners.get_mut(&owner) {
                owner.files_max = files_max;
            }
            self.trim_lists(lists, time, closed);
        });
    }

    /// Returns how many files of an owner are open.
    pub(crate) fn open_files(&self, owner: u64) -> usize {
        if self.origin.is_elsewhere() {
            return 0;
        }
        self.lock().owners.get(&owner).map_or(0, |owner| owner.files.len())
    }

    /// Closes the least recently used idle files, because the process has no descriptor left. Returns whether it closed any; shards
    /// may still have to release them.
    pub(crate) fn give_way(&self) -> bool {
        self.close(|lists, time, closed| {
            let wanted = (lists.descriptors / GIVEN_BACK_PART).max(GIVEN_BACK_MIN);
            let least = lists.descriptors.saturating_sub(wanted);
            while lists.descriptors > least && lists.close_oldest(time, closed) {}
        })
    }

    /// Closes all files of an owner that nothing uses.
    pub(crate) fn close_idle(&self, owner: u64) {
        self.close(|lists, time, closed| while lists.close_oldest_of(owner, time, closed) {});
    }

    /// Closes idle files until no limit is exceeded.
    #[cold]
    fn trim(&self) {
        self.close(|lists, time, closed| self.trim_lists(lists, time, closed));
    }

    fn trim_lists(&self, lists: &mut Lists, time: u64, closed: &mut Vec<Box<dyn Send>>) {
        let mut is_over = false;
        let excess = |owner: &Owner| owner.files.len() > owner.files_max;
        let full: Vec<u64> =
            lists.owners.iter().filter(|(_, owner)| excess(owner)).map(|(number, _)| *number).collect();
        for owner in full {
            while lists.owners.get(&owner).is_some_and(excess) {
                if !lists.close_oldest_of(owner, time, closed) {
                    is_over = true;
                    break;
                }
            }
        }
        while lists.descriptors > self.descriptors_max {
            if !lists.close_oldest(time, closed) {
                is_over = true;
                break;
            }
        }
        self.is_over.store(is_over, Ordering::Relaxed);
    }

    /// Lets `choose` remove files and drops them without the lock. Returns whether it removed any.
    fn close(&self, choose: impl FnOnce(&mut Lists, u64, &mut Vec<Box<dyn Send>>)) -> bool {
        // A fork may have copied the lock while it was held, and the files are the parent's.
        if self.origin.is_elsewhere() {
            return false;
        }
        let mut closed = Vec::new();
        choose(&mut self.lock(), self.now(), &mut closed);
        !closed.is_empty()
    }

    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        self.time.load(Ordering::Relaxed) + 1
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lists {
    /// Closes the idle file that was used longest ago. Returns false without one.
    fn close_oldest(&mut self, time: u64, closed: &mut Vec<Box<dyn Send>>) -> bool {
        let oldest =
            self.owners.iter_mut().filter_map(|(number, owner)| Some((owner.oldest(time)?, *number)));
        match oldest.min() {
            Some((key, owner)) => {
                self.close_at(owner, key, time, closed);
                true
            }
            None => false,
        }
    }

    fn close_oldest_of(&mut self, owner: u64, time: u64, closed: &mut Vec<Box<dyn Send>>) -> bool {
        let Some(key) = self.owners.get_mut(&owner).and_then(|owner| owner.oldest(time)) else {
            return false;
        };
        self.close_at(owner, key, time, closed);
        true
    }

    fn close_at(&mut self, owner: u64, key: Key, time: u64, closed: &mut Vec<Box<dyn Send>>) {
        let Some(owner) = self.owners.get_mut(&owner) else { return };
        let Some(entry) = owner.files.remove(&key) else { return };
        match entry.slot.take() {
            Some(file) => {
                self.descriptors -= entry.descriptors;
                closed.push(file);
            }
            // A use has started meanwhile.
            None => owner.put(time, key.1, entry),
        }
    }
}

impl Owner {
    /// Returns the place of the idle file that was used longest ago. Each use since a file got its place moves it once.
    fn oldest(&mut self, time: u64) -> Option<Key> {
        let mut in_use = Vec::new();
        let oldest = loop {
            let Some((&key, entry)) = self.files.first_key_value() else { break None };
            let used_at = entry.slot.used_at();
            if used_at <= key.0 && entry.slot.is_idle() {
                break Some(key);
            }
            let Some(entry) = self.files.remove(&key) else { break None };
            if used_at > key.0 {
                self.put(used_at, key.1, entry);
            } else {
                in_use.push((key.1, entry));
            }
        };
        in_use.into_iter().for_each(|(number, entry)| self.put(time, number, entry));
        oldest
    }

    fn put(&mut self, time: u64, number: u64, entry: Entry) {
        entry.slot.list_at(time);
        self.files.insert((time, number), entry);
    }
}

/// Set in a slot's state while the file is open.
const OPEN: usize = 1 << (usize::BITS - 1);

/// The place of a file that is open at times. A file that is open is in the list, until it is closed or the slot is removed.
pub(crate) struct Slot<F: Send + Sync + 'static> {
    list: Arc<IdleFiles>,
    owner: u64,
    number: u64,
    /// Number of uses, of those as well that wait until the file is open; and `OPEN`.
    state: AtomicUsize,
    /// The list's time at the last use.
    used_at: AtomicU64,
    /// The time under which the list has it.
    listed_at: AtomicU64,
    is_removed: AtomicBool,
    /// There while `OPEN` is set. Changed with the list's lock held, while it is not set.
    file: UnsafeCell<MaybeUninit<F>>,
}

// SAFETY: `file` is written by the holder of the list's lock while `OPEN` is not set and no use reads it; it is read by uses that
// have seen `OPEN`, and removed only in a step that finds `OPEN` and no use. So threads share it as they share an `&F`, and pass it
// on as an `F`.
unsafe impl<F: Send + Sync + 'static> Sync for Slot<F> {}

impl<F: Send + Sync + 'static> Slot<F> {
    /// Returns a slot without a file.
    pub(crate) fn new(list: &Arc<IdleFiles>, owner: u64) -> Arc<Slot<F>> {
        Arc::new(Slot {
            list: list.clone(),
            owner,
            number: list.next_number(),
            state: AtomicUsize::new(0),
            used_at: AtomicU64::new(0),
            listed_at: AtomicU64::new(0),
            is_removed: AtomicBool::new(false),
            file: UnsafeCell::new(MaybeUninit::uninit()),
        })
    }

    /// Starts a use. Returns whether the file is open; if not, the use keeps it open after its open.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        let is_open = self.state.fetch_add(1, Ordering::Acquire) & OPEN != 0;
        let now = self.list.now();
        if self.used_at.load(Ordering::Relaxed) != now {
            self.used_at.store(now, Ordering::Relaxed);
        }
        is_open
    }

    /// Ends a use.
    #[inline]
    pub(crate) fn leave(&self) {
        let before = self.state.fetch_sub(1, Ordering::Release);
        debug_assert!(before & !OPEN > 0, "each use ends once");
        if before == OPEN | 1 && self.list.is_over.load(Ordering::Relaxed) {
            self.list.trim();
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) & OPEN != 0
    }

    /// Returns the file.
    ///
    /// # Safety
    /// The caller has a use that lasts as long as the result, and has seen that the file is open.
    #[inline]
    pub(crate) unsafe fn file(&self) -> &F {
        // SAFETY: there while `OPEN` is set, and a use keeps it set.
        unsafe { (*self.file.get()).assume_init_ref() }
    }

    /// Stores the file, which has this many descriptors, and closes others where that exceeds a limit. Called for a slot that is
    /// not open, by one caller at a time. The file of a slot that was removed is dropped.
    pub(crate) fn open(self: &Arc<Self>, file: F, descriptors: usize) {
        let list = &self.list;
        let mut file = Some(file);
        list.close(|lists, _, closed| {
            let Some(owner) = lists.owners.get_mut(&self.owner) else { return };
            let Some(file) = file.take_if(|_| !self.is_removed.load(Ordering::Relaxed)) else { return };
            let time = list.time.fetch_add(2, Ordering::Relaxed) + 2;
            self.used_at.store(time, Ordering::Relaxed);
            debug_assert!(!self.is_open(), "a file is opened once");
            // SAFETY: `OPEN` is not set, so no use reads it, and the lock is held.
            unsafe { (*self.file.get()).write(file) };
            self.state.fetch_or(OPEN, Ordering::Release);
            owner.put(time, self.number, Entry { slot: self.clone(), descriptors });
            lists.descriptors += descriptors;
            list.trim_lists(lists, time, closed);
        });
    }

    /// Removes the slot from the list. The file is closed now, or with the end of its last use.
    pub(crate) fn remove(&self) {
        self.list.close(|lists, _, closed| {
            self.is_removed.store(true, Ordering::Relaxed);
            let Some(owner) = lists.owners.get_mut(&self.owner) else { return };
            let key = (self.listed_at.load(Ordering::Relaxed), self.number);
            if let Some(entry) = owner.files.remove(&key) {
                lists.descriptors -= entry.descriptors;
                closed.extend(self.take());
            }
        });
    }
}

impl<F: Send + Sync + 'static> IdleFile for Slot<F> {
    fn used_at(&self) -> u64 {
        self.used_at.load(Ordering::Relaxed)
    }

    fn is_idle(&self) -> bool {
        self.state.load(Ordering::Relaxed) == OPEN
    }

    fn list_at(&self, time: u64) {
        self.listed_at.store(time, Ordering::Relaxed);
    }

    fn take(&self) -> Option<Box<dyn Send>> {
        // Acquire: after all that ended uses did with it.
        self.state.compare_exchange(OPEN, 0, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: it was there and not in use, and the lock keeps others from opening it before it is moved out.
        Some(Box::new(unsafe { (*self.file.get()).assume_init_read() }))
    }
}

impl<F: Send + Sync + 'static> Drop for Slot<F> {
    fn drop(&mut self) {
        if *self.state.get_mut() & OPEN != 0 {
            // SAFETY: it is there, and nothing refers to it any more.
            unsafe { self.file.get_mut().assume_init_drop() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is counted while it is open.
    struct TestFile(u64, Arc<AtomicUsize>);

    impl Drop for TestFile {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Ordering::SeqCst);
        }
    }

    struct Scene {
        list: Arc<IdleFiles>,
        owner: u64,
        open: Arc<AtomicUsize>,
    }

    impl Scene {
        fn new(descriptors_max: usize, files_max: usize) -> Scene {
            let list = IdleFiles::new(descriptors_max);
            let owner = list.add_owner(files_max);
            Scene { list, owner, open: Arc::default() }
        }

        fn slots(&self, count: u64) -> Vec<Arc<Slot<TestFile>>> {
            (0..count).map(|_| Slot::new(&self.list, self.owner)).collect()
        }

        fn open(&self, slot: &Arc<Slot<TestFile>>, number: u64) {
            self.open.fetch_add(1, Ordering::SeqCst);
            slot.open(TestFile(number, self.open.clone()), 1);
        }

        fn open_all(&self, slots: &[Arc<Slot<TestFile>>]) {
            slots.iter().zip(0..).for_each(|(slot, number)| self.open(slot, number));
        }
    }

    fn which(slots: &[Arc<Slot<TestFile>>]) -> Vec<usize> {
        (0..slots.len()).filter(|number| slots[*number].is_open()).collect()
    }

    #[test]
    fn past_a_limit_the_least_recently_used_is_closed() {
        for scene in [Scene::new(3, 100), Scene::new(100, 3)] {
            let slots = scene.slots(5);
            scene.open_all(&slots[..3]);
            assert!(slots[0].enter());
            slots[0].leave();
            scene.open(&slots[3], 3);
            assert_eq!(which(&slots), [0, 2, 3], "the second was used longest ago");
            scene.open(&slots[4], 4);
            assert_eq!((which(&slots), scene.open.load(Ordering::SeqCst)), (vec![0, 3, 4], 3));
            slots.iter().for_each(|slot| slot.remove());
            assert_eq!((scene.open.load(Ordering::SeqCst), scene.list.open_files(scene.owner)), (0, 0));
            scene.list.remove_owner(scene.owner);
        }
    }

    #[test]
    fn what_is_in_use_stays_open_and_is_closed_when_its_use_ends() {
        let scene = Scene::new(2, 100);
        let slots = scene.slots(4);
        for (slot, number) in slots.iter().zip(0..) {
            assert!(!slot.enter());
            scene.open(slot, number);
            // SAFETY: in use, and open.
            assert_eq!(unsafe { slot.file() }.0, number);
        }
        assert_eq!(which(&slots), [0, 1, 2, 3]);
        assert!(!scene.list.give_way(), "all are in use");
        slots[2].leave();
        slots[0].leave();
        assert_eq!(which(&slots), [1, 3]);
        slots[1].leave();
        slots[3].leave();
        assert_eq!(which(&slots), [1, 3]);
        assert!(scene.list.give_way());
        assert_eq!((which(&slots), scene.open.load(Ordering::SeqCst)), (vec![], 0));
    }

    #[test]
    fn all_owners_give_way_and_each_has_its_limit() {
        let scene = Scene::new(64, 100);
        let other =
            Scene { list: scene.list.clone(), owner: scene.list.add_owner(4), open: scene.open.clone() };
        let (own, others) = (scene.slots(40), other.slots(8));
        other.open_all(&others);
        scene.open_all(&own);
        assert_eq!(which(&others), [4, 5, 6, 7]);
        assert!(scene.list.give_way());
        assert_eq!((which(&others), own.iter().position(|slot| slot.is_open())), (vec![], Some(4)));
        scene.list.close_idle(scene.owner);
        assert_eq!(scene.open.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_slot_that_was_removed_in_use_closes_its_file_with_the_last_use() {
        let scene = Scene::new(8, 8);
        let slot = scene.slots(1).remove(0);
        scene.open(&slot, 0);
        assert!(slot.enter());
        slot.remove();
        assert_eq!(scene.open.load(Ordering::SeqCst), 1);
        slot.leave();
        drop(slot);
        assert_eq!(scene.open.load(Ordering::SeqCst), 0);
        let late = scene.slots(1).remove(0);
        late.remove();
        scene.open(&late, 1);
        assert_eq!((late.is_open(), scene.open.load(Ordering::SeqCst)), (false, 0), "nobody would close it");
    }

    /// Threads that use, open and close the same files: each use sees the file of its slot, and each file is closed once.
    #[test]
    fn uses_and_closes_of_many_threads_do_not_meet() {
        let scene = Scene::new(4, 100);
        let slots = scene.slots(16);
        let opening: Vec<Mutex<()>> = slots.iter().map(|_| Mutex::new(())).collect();
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                let (scene, slots, opening) = (&scene, &slots, &opening);
                scope.spawn(move || {
                    for turn in 0..2000 {
                        let at = (thread * 7 + turn * 5) % slots.len();
                        let slot = &slots[at];
                        if !slot.enter() {
                            let _one = opening[at].lock().unwrap();
                            if !slot.is_open() {
                                scene.open(slot, at as u64);
                            }
                        }
                        // SAFETY: in use, and open.
                        assert_eq!(unsafe { slot.file() }.0, at as u64);
                        slot.leave();
                        if turn % 64 == 0 {
                            scene.list.give_way();
                        }
                    }
                });
            }
        });
        slots.iter().for_each(|slot| slot.remove());
        assert_eq!(scene.open.load(Ordering::SeqCst), 0);
    }
}
