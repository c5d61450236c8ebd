//! An operation that does nothing, to measure the cost of the path itself.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::base::class::Class;
use crate::base::error::Result;
use crate::base::wait;
use crate::handle::engine::Engine;
use crate::io::op::{OpBuffer, OpKind, OpRequest};
use crate::ops::submit::{OpFuture, Target};

impl Engine {
    /// Returns an operation without I/O (`IORING_OP_NOP`) that passes through the driver: the steadiest measure of Forebay's
    /// overhead.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> forebay::Result<()> {
    /// let engine = Engine::start(Config::new())?;
    /// engine.nop().wait()?;
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn nop(&self) -> Nop<'_> {
        let request = OpRequest::new(OpKind::Nop, Class::OF_TASK, 0, 0, OpBuffer::None);
        Nop { op: OpFuture::new(Target::Engine(self.shared()), request) }
    }
}

/// The future of [`Engine::nop`].
#[must_use = "futures do nothing unless awaited"]
pub struct Nop<'e> {
    op: OpFuture<'e>,
}

impl Nop<'_> {
    /// Blocks the calling thread until the operation has completed.
    ///
    /// # Errors
    /// [`ErrorKind::EngineClosed`](crate::ErrorKind::EngineClosed) once the engine is closed, and
    /// [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread.
    pub fn wait(self) -> Result<()> {
        wait::block_on("nop", self)
    }
}

impl Future for Nop<'_> {
    type Output = Result<()>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let polled = self.op.poll_result(context);
        polled.map(|result| result.map(drop).map_err(|failure| failure.into_error("nop", None)))
    }
}

crate::_debug_parts!(Nop<'_>);
