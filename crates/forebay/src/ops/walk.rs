//! Calls that start walks. The walks themselves run in `reactor::walk`.

mod future;

use std::ops::Range;

use crate::handle::file::File;

pub use crate::reactor::walk::{Ranges, Step, Walk};
pub use future::{WalkMany, WalkOne};

impl File {
    /// Reads `root` and everything that the walk's steps request, right where the reads complete; see
    /// [`Walk`].
    ///
    /// # Errors
    /// The walk's own errors, and those of [`File::read`], with the number of the hop ([`Error::hop`](crate::Error::hop));
    /// [`TooManyHops`](crate::ErrorKind::TooManyHops); [`TaskPanicked`](crate::ErrorKind::TaskPanicked) when
    /// a step panicked.
    #[inline]
    pub fn walk<W: Walk>(&self, root: Range<u64>, walk: W) -> WalkOne<'_, W> {
        WalkOne::new(self.core(), root, walk)
    }

    /// Runs many walks of one type, each with its root, in one message. The future yields all results in
    /// order. It borrows nothing.
    pub fn walk_many<W: Walk>(&self, walks: impl IntoIterator<Item = (Range<u64>, W)>) -> WalkMany<W> {
        WalkMany::new(self.core(), walks.into_iter().collect())
    }
}

/// Hops of a walk at most, by default.
const HOPS_MAX: u32 = 64;
/// Walks of one batch under way at once, by default.
const DEPTH: u32 = 128;
