//! Interior mutability for values that only the shard's own thread touches.

#[cfg(debug_assertions)]
use std::cell::Cell;
use std::cell::UnsafeCell;

/// A value that one thread changes through a shared reference, in short closures that never nest.
///
/// A `RefCell` without the counter: the flag exists in debug builds only. Every caller in this crate keeps
/// the rule that makes it sound: a closure passed to [`LocalCell::with`] calls nothing that could re-enter
/// the cell. No waker, no future and no destructor of the program runs inside one.
pub(crate) struct LocalCell<T> {
    value: UnsafeCell<T>,
    #[cfg(debug_assertions)]
    entered: Cell<bool>,
}

impl<T> LocalCell<T> {
    pub(crate) const fn new(value: T) -> LocalCell<T> {
        LocalCell {
            value: UnsafeCell::new(value),
            #[cfg(debug_assertions)]
            entered: Cell::new(false),
        }
    }

    /// Passes the value to `f`, which must not access this cell again.
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        #[cfg(debug_assertions)]
        assert!(!self.entered.replace(true), "a LocalCell was entered twice");
        #[cfg(debug_assertions)]
        let _leave = Leave(&self.entered);
        // SAFETY: `UnsafeCell` makes this type `!Sync`, so only one thread is here; the rule above (checked in
        // debug builds) makes this the only reference while `f` runs.
        f(unsafe { &mut *self.value.get() })
    }
}

/// Marks the cell as left, even when a panic leaves it: the code that salvages a dead shard must be able to
/// enter again.
#[cfg(debug_assertions)]
struct Leave<'c>(&'c Cell<bool>);

#[cfg(debug_assertions)]
impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
