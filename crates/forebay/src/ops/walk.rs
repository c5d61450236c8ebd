//! Calls that start walks. The walks themselves run in `reactor::walk`.

mod future;
mod waiting;

use std::ops::Range;

use crate::handle::file::File;

pub use crate::reactor::walk::{Ranges, Step, Walk};
pub use future::{WalkMany, WalkOne};

impl File {
    /// Reads `root` and the ranges that the walk's steps request, each submitted where the read before it completes, and
    /// resolves to the walk's result; see [`Walk`].
    ///
    /// # Errors
    /// The walk's own errors, and those of [`File::read`], with the number of the hop ([`Error::hop`](crate::Error::hop));
    /// [`TooManyHops`](crate::ErrorKind::TooManyHops); [`TaskPanicked`](crate::ErrorKind::TaskPanicked) when
    /// a step panicked.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # use std::ops::Range;
    /// # use forebay::{Block, Error, Step, Walk};
    /// # /// Each page begins with the number of the next one, 0 at the end.
    /// # struct Pages(u32);
    /// # impl Walk for Pages {
    /// #     type Output = u32;
    /// #     type Error = Error;
    /// #     fn step(&mut self, block: &Block, _: Range<u64>) -> Step<u32, Error> {
    /// #         self.0 += 1;
    /// #         match block[0] {
    /// #             0 => Step::Done(self.0),
    /// #             next => Step::Read(u64::from(next) * 4096..u64::from(next) * 4096 + 8),
    /// #         }
    /// #     }
    /// # }
    /// // `Pages` counts the pages of a list; each begins with the number of the next one, 0 at the end.
    /// for (page, next) in [(0, 2), (2, 1), (1, 0)] {
    ///     file.write(page * 4096, vec![next; 4096]).wait()?;
    /// }
    /// let pages = file.walk(0..8, Pages(0)).hops_max(1000).wait()?;
    /// assert_eq!(pages, 3); // three reads, one wake-up
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn walk<W: Walk>(&self, root: Range<u64>, walk: W) -> WalkOne<'_, W> {
        WalkOne::new(self.core(), root, walk)
    }

    /// Returns many walks of one type, each with its root, in one message; they complete with all results in
    /// order. The future borrows nothing.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # use std::ops::Range;
    /// # use forebay::{Block, Error, Step, Walk};
    /// # /// Each page begins with the number of the next one, 0 at the end.
    /// # struct Pages(u32);
    /// # impl Walk for Pages {
    /// #     type Output = u32;
    /// #     type Error = Error;
    /// #     fn step(&mut self, block: &Block, _: Range<u64>) -> Step<u32, Error> {
    /// #         self.0 += 1;
    /// #         match block[0] {
    /// #             0 => Step::Done(self.0),
    /// #             next => Step::Read(u64::from(next) * 4096..u64::from(next) * 4096 + 8),
    /// #         }
    /// #     }
    /// # }
    /// for (page, next) in [(0, 2), (2, 1), (1, 0)] {
    ///     file.write(page * 4096, vec![next; 4096]).wait()?;
    /// }
    /// let roots = [0, 1, 2].map(|page| (page * 4096..page * 4096 + 8, Pages(0))); // as in `walk`
    /// let lengths: Result<Vec<u32>, _> = file.walk_many(roots).wait()?.into_iter().collect();
    /// assert_eq!(lengths?, [3, 1, 2]);
    /// # Ok(()) }
    /// ```
    pub fn walk_many<W: Walk>(&self, walks: impl IntoIterator<Item = (Range<u64>, W)>) -> WalkMany<W> {
        WalkMany::new(self.core(), walks.into_iter().collect())
    }
}

/// Hops of a walk at most, by default.
const HOPS_MAX: u32 = 64;
/// Walks of one batch in progress, by default.
const DEPTH: u32 = 128;
