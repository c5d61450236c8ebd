//! Threads of the program on the processors of the engine's shards.

use crate::base::error::{Error, Result};
use crate::handle::engine::Engine;

impl Engine {
    /// Keeps the calling thread on the processors of [`Config::placement`](crate::Config::placement), all of them; does nothing
    /// where the shards are unpinned. For the workers of a Tokio runtime, whose rings (feature `tokio`) are then next to the device
    /// as well. Threads that such a worker starts inherit it; those of the engine do not.
    ///
    /// The closure below keeps the engine until the runtime is dropped: [`close`](Self::close) it.
    ///
    /// # Errors
    /// The system's, where the process may not use these processors any more.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::start(Config::new())?; // with a placement
    /// let pins = engine.clone();
    /// let pin = move || pins.pin_worker().unwrap_or_else(|error| eprintln!("{error}"));
    /// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().on_thread_start(pin).build()?;
    /// # drop(runtime);
    /// # engine.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn pin_worker(&self) -> Result<()> {
        self.shared.seats.pin_worker().map_err(|error| Error::io("pin_worker", error))
    }
}
