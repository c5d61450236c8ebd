//! Reading one range.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::block::Block;
use crate::class::Class;
use crate::error::Result;
use crate::file::File;
use crate::wait;

mod into;
mod range;

pub use into::{ReadInto, ReadIntoFuture};
pub(crate) use range::{RangeRead, Widened, cut, from_page_cache};

/// A read of exactly one range; see [`File::read`].
#[must_use = "a read begins only when it is awaited or waited for"]
pub struct Read<'f> {
    file: &'f File,
    range: Range<u64>,
    class: Option<Class>,
}

/// A read of what one range has; see [`File::read_up_to`].
#[must_use = "a read begins only when it is awaited or waited for"]
pub struct ReadUpTo<'f> {
    file: &'f File,
    range: Range<u64>,
    class: Option<Class>,
}

/// What the builders have in common.
macro_rules! operation {
    ($name:ident) => {
        impl $name<'_> {
            /// Who asks; default: the class of the task that runs, [`Class::DEFAULT`] outside of shards.
            pub fn class(mut self, class: Class) -> Self {
                self.class = Some(class);
                self
            }
        }

        impl fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("file", &self.file).finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use operation;

operation!(Read);
operation!(ReadUpTo);

impl<'f> Read<'f> {
    #[inline]
    pub(crate) fn new(file: &'f File, range: Range<u64>) -> Read<'f> {
        Read { file, range, class: None }
    }

    /// Blocks the calling thread until the bytes are there.
    ///
    /// # Errors
    /// As [`File::read`]; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread.
    pub fn wait(self) -> Result<Block> {
        wait::block_on("read", self.into_future())
    }
}

impl<'f> ReadUpTo<'f> {
    pub(crate) fn new(file: &'f File, range: Range<u64>) -> ReadUpTo<'f> {
        ReadUpTo { file, range, class: None }
    }

    /// Blocks the calling thread until the bytes are there.
    ///
    /// # Errors
    /// As [`File::read_up_to`]; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread.
    pub fn wait(self) -> Result<Block> {
        wait::block_on("read", self.into_future())
    }
}

impl<'f> IntoFuture for Read<'f> {
    type Output = Result<Block>;
    type IntoFuture = ReadFuture<'f>;

    #[inline]
    fn into_future(self) -> ReadFuture<'f> {
        ReadFuture { inner: RangeRead::new(self.file, self.range, self.class, true) }
    }
}

impl<'f> IntoFuture for ReadUpTo<'f> {
    type Output = Result<Block>;
    type IntoFuture = ReadFuture<'f>;

    #[inline]
    fn into_future(self) -> ReadFuture<'f> {
        ReadFuture { inner: RangeRead::new(self.file, self.range, self.class, false) }
    }
}

/// The future of [`Read`] and [`ReadUpTo`].
#[must_use = "futures do nothing unless awaited"]
pub struct ReadFuture<'f> {
    inner: RangeRead<'f>,
}

impl Future for ReadFuture<'_> {
    type Output = Result<Block>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Block>> {
        self.inner.poll(context)
    }
}

impl fmt::Debug for ReadFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadFuture").field("range", &self.inner.range).finish_non_exhaustive()
    }
}
