//! Reading one range.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::base::class::Class;
use crate::base::error::Result;
use crate::base::wait;
use crate::handle::file::File;
use crate::memory::block::Block;

mod into;
mod range;

pub use into::ReadInto;
pub(crate) use range::RangeRead;

/// A read of exactly one range, which begins when it is first polled; see [`File::read`].
#[must_use = "a read begins only when it is awaited or waited for"]
pub struct Read<'f> {
    inner: RangeRead<'f, true>,
}

/// A read of what one range has, which begins when it is first polled; see [`File::read_up_to`].
#[must_use = "a read begins only when it is awaited or waited for"]
pub struct ReadUpTo<'f> {
    inner: RangeRead<'f>,
}

/// What operations of one file have in common, which have an `inner` that sets a class and gives its file up.
macro_rules! operation {
    ($name:ident) => {
        impl $name<'_> {
            /// Sets the class. Default: that of the task that polls first, [`Class::DEFAULT`] outside of shards and
            /// [scopes](Class::scope). After the first poll it changes nothing.
            #[inline]
            pub fn class(mut self, class: Class) -> Self {
                self.inner.set_class(class);
                self
            }

            /// Returns the same operation with a count of the file of its own instead of a borrowed handle, for tasks
            /// that need `'static`. Costs one or two atomic increments.
            #[inline]
            pub fn owned(self) -> $name<'static> {
                $name { inner: self.inner.into_owned() }
            }
        }

        impl std::fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut debug = f.debug_struct(stringify!($name));
                self.inner.describe(&mut debug);
                debug.finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use operation;

operation!(Read);
operation!(ReadUpTo);

/// What both kinds of reads of a range have in common.
macro_rules! range_read {
    ($name:ident, $method:literal) => {
        impl<'f> $name<'f> {
            #[inline]
            pub(crate) fn new(file: &'f File, range: Range<u64>) -> $name<'f> {
                $name { inner: RangeRead::new(file, range) }
            }

            /// Blocks the calling thread until the bytes are there.
            ///
            /// # Errors
            #[doc = concat!("As [`File::", $method, "`]; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread.")]
            pub fn wait(self) -> Result<Block> {
                wait::block_on("read", self)
            }
        }

        impl Future for $name<'_> {
            type Output = Result<Block>;

            #[inline]
            fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Block>> {
                self.inner.poll(context)
            }
        }
    };
}

range_read!(Read, "read");
range_read!(ReadUpTo, "read_up_to");
