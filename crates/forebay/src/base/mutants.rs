//! A core that is broken on purpose, to show that the tests catch the faults that they exist for.
//!
//! The switch belongs to the calling thread. A simulated world runs on one thread and so is broken as a
//! whole; a real engine's shards are never touched.

/// Declares the switch for a crate's own enum of mutants: `with`, which runs a closure with one of them on this
/// thread, and `is_on` of the enum.
#[doc(hidden)]
#[macro_export]
macro_rules! _mutant_switch {
    ($mutant:ty) => {
        ::std::thread_local! {
            static ON: ::std::cell::Cell<Option<$mutant>> = const { ::std::cell::Cell::new(None) };
        }

        /// Runs `f` with this mutant in the simulated worlds of the calling thread.
        pub fn with<T>(mutant: $mutant, f: impl FnOnce() -> T) -> T {
            struct Reset(Option<$mutant>);
            impl Drop for Reset {
                fn drop(&mut self) {
                    ON.set(self.0);
                }
            }
            let _reset = Reset(ON.replace(Some(mutant)));
            f()
        }

        impl $mutant {
            /// Returns whether this mutant is on, on the calling thread.
            #[inline]
            pub fn is_on(self) -> bool {
                ON.try_with(::std::cell::Cell::get).ok().flatten() == Some(self)
            }
        }
    };
}

/// The kinds of mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mutant {
    /// Returns memory immediately when the future of an operation in flight is dropped.
    BufferFreedAtDrop,
    /// Like `BufferFreedAtDrop`, for reads of a walk that the walk's step abandoned.
    AbandonedReadFreed,
    /// As `BufferFreedAtDrop`, for memory that the program lent.
    LentGivenBackEarly,
    /// The ends of lent memory, read by way of I/O memory, are not copied to their place.
    BounceNotCopied,
    /// A stale key still finds its slot after the slot was reused.
    NoGenerationCheck,
    /// Treats a read that the device completed only in part as complete.
    ShortReadIsSuccess,
    /// A sync completes without having been requested. So does the sync of a durable write.
    IgnoredFlush,
    /// A dropped call about a name or a length keeps its turn, which is late, and no close waits for it.
    DroppedCallsStayQueued,
    /// The close of a file cache does not wait for opens under way.
    OpensOutliveClose,
    /// An inbox that is no longer full wakes one sender a turn and relies on it to send.
    OneSenderWoken,
    /// A thread that finds the lock of a visited shard held leaves no mark.
    HeldLockUnmarked,
    /// The holder of such a lock that was marked does not look again.
    SecondLookSkipped,
    /// Wakers run while a visited shard is locked.
    WokenUnderLock,
    /// Shard 0 does not serve visited shards that no thread visits.
    RingsUnwatched,
    /// A power cut of one node of a world loses the volatile data of all.
    CutReachesOthers,
    /// Sockets outlive the power of their node.
    SocketsOutliveCut,
    /// A cut link carries messages.
    CutLinkCarries,
    /// Timers of shards run by the world's time instead of their node's clock.
    DriftIgnored,
    /// A message arrives when it is sent.
    ArrivesAtOnce,
}

crate::_mutant_switch!(Mutant);
