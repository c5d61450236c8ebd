//! The same interface as `std::sync::atomic`; the module above lists the differences.

pub(crate) use std::sync::atomic::Ordering;

use super::{Guarantee, Looks, is_broken};
use loom::sync::atomic as real;

#[track_caller]
pub(crate) fn fence(order: Ordering) {
    if !is_broken(Guarantee::Fences) {
        real::fence(order);
    }
}

/// Issues the fence that loom's SeqCst lacks after a change.
pub(super) fn fence_of(order: Ordering) {
    if order == Ordering::SeqCst && !is_broken(Guarantee::SeqCst) {
        real::fence(Ordering::SeqCst);
    }
}

/// Returns the part of an ordering that loads have. The next two functions do it for stores and for read-modify-writes, without the
/// parts that a twin removes.
fn loads(order: Ordering) -> Ordering {
    match order {
        Ordering::SeqCst | Ordering::AcqRel => Ordering::Acquire,
        order => order,
    }
}

fn stores(order: Ordering) -> Ordering {
    match order {
        Ordering::SeqCst | Ordering::AcqRel | Ordering::Release if !is_broken(Guarantee::Release) => {
            Ordering::Release
        }
        _ => Ordering::Relaxed,
    }
}

fn changes(order: Ordering) -> Ordering {
    match (loads(order), stores(order)) {
        (Ordering::Acquire, Ordering::Release) => Ordering::AcqRel,
        (Ordering::Acquire, _) if order != Ordering::Release => Ordering::Acquire,
        (_, stores) => stores,
    }
}

macro_rules! atomics {
    ($($name:ident [$($generic:ident)?] $value:ty, flag: $flag:literal, { $($change:ident)* };)*) => {$(
        #[derive(Debug)]
        pub(crate) struct $name $(<$generic>)? (real::$name $(<$generic>)?, Looks);

        #[allow(dead_code, reason = "each type has all of them, as in std")]
        impl $(<$generic>)? $name $(<$generic>)? {
            pub(crate) fn new(value: $value) -> Self {
                Self(real::$name::new(value), Looks::new())
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.1.look();
                self.0.load(loads(order))
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                if $flag && order == Ordering::Relaxed {
                    self.0.swap(value, order);
                } else {
                    self.0.store(value, stores(order));
                }
                fence_of(order);
            }

            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                let before = self.0.swap(value, changes(order));
                fence_of(order);
                before
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let result = self.0.compare_exchange(current, new, changes(success), loads(failure));
                fence_of(success);
                result
            }

            /// Never fails spuriously: that would only be another iteration of the caller's loop.
            pub(crate) fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            $(pub(crate) fn $change(&self, operand: $value, order: Ordering) -> $value {
                let before = self.0.$change(operand, changes(order));
                fence_of(order);
                before
            })*
        }
    )*};
}

atomics! {
    AtomicBool [] bool, flag: true, { fetch_or fetch_and };
    AtomicU8 [] u8, flag: false, { fetch_or fetch_and fetch_add fetch_sub };
    AtomicU16 [] u16, flag: false, { fetch_or fetch_and fetch_add fetch_sub };
    AtomicU32 [] u32, flag: false, { fetch_or fetch_and fetch_add fetch_sub };
    AtomicU64 [] u64, flag: false, { fetch_or fetch_and fetch_add fetch_sub };
    AtomicUsize [] usize, flag: false, { fetch_or fetch_and fetch_add fetch_sub };
    AtomicPtr [T] *mut T, flag: false, {};
}
