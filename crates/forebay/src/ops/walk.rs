//! Calls that start walks. The walks themselves run in `reactor::walk`.

mod future;

use std::ops::Range;

use crate::handle::file::File;

pub use crate::reactor::walk::{Ranges, Step, Walk};
pub use future::{WalkMany, WalkOne};

impl File {
    /// Reads `root` and whatever the walk's steps ask for, right where the reads complete; see [`Walk`].
    ///
    /// # Errors
    /// What the walk fails with, and what [`File::read`] does, with the number of the hop ([`Error::hop`](crate::Error::hop));
    /// [`TooManyHops`](crate::ErrorKind::TooManyHops); [`TaskPanicked`](crate::ErrorKind::TaskPanicked) when a step panicked.
    #[inline]
    pub fn walk<W: Walk>(&self, root: Range<u64>, walk: W) -> WalkOne<'_, W> {
        WalkOne::new(self.core(), root, walk)
    }

    /// Many walks of one type, each with its root, in one message; answers all results in order. Borrows nothing.
    pub fn walk_many<W: Walk>(&self, walks: impl IntoIterator<Item = (Range<u64>, W)>) -> WalkMany<W> {
        WalkMany::new(self.core(), walks.into_iter().collect())
    }
}

/// Hops of a walk, unless said otherwise.
const HOPS_MAX: u32 = 64;
/// Walks of one batch under way at once, unless said otherwise.
const DEPTH: u32 = 128;
