//! Waits and clock readings for libraries on top of the engine, as the engine itself uses them.

use std::future::Future;

use super::Engine;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::wait;

impl Engine {
    /// Runs `future` to its end on the calling thread, which sleeps whenever the future waits, and returns
    /// its output: a `.wait()` for futures that a library builds from Forebay's.
    ///
    /// Allocates one waker per thread, at its first wait. A sleep and its wake-up cost some microseconds.
    ///
    /// # Errors
    /// [`ErrorKind::WaitOnShard`] on a shard's thread and [`ErrorKind::WaitInWorld`] for a simulated world:
    /// the wait would be for work that only that shard or world can do. The future is then dropped without
    /// having been polled.
    ///
    /// ```
    /// use forebay::{Config, Engine, Open};
    /// # fn main() -> forebay::Result<()> {
    /// let engine = Engine::start(Config::default())?;
    /// let head = engine.block_on(async {
    ///     let file = engine.open("Cargo.toml", Open::read().buffered()).await?;
    ///     file.read(0..9).await
    /// })??;
    /// assert_eq!(&head[..], b"[package]");
    /// # Ok(()) }
    /// ```
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output> {
        // Outside its world's run, nothing would wake the future of a simulated engine.
        let simulated = self.shared.is_simulated().then_some(ErrorKind::WaitInWorld);
        match wait::refusal().or(simulated) {
            Some(kind) => Err(Error::new(kind, "block_on")),
            None => Ok(wait::block_on_any(future)),
        }
    }

    /// Returns the time on the engine's clock, in nanoseconds since some moment: only differences mean
    /// anything. In a simulated world it is that world's time, the same for the same seed.
    ///
    /// Costs about 5 ns where the processor's counter can be used, else as much as an `Instant`. Two threads
    /// may read a few nanoseconds apart, so subtract with [`u64::saturating_sub`].
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::default())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let begun = engine.now_ns();
    /// file.read(0..4096).wait()?;
    /// println!("{} ns", engine.now_ns().saturating_sub(begun));
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn now_ns(&self) -> u64 {
        let clock = self.shared.clock();
        clock.ns(clock.now())
    }
}
