//! Commands to a descriptor of the program's own, on the ring of one shard.

use std::sync::Arc;

use crate::base::error::{Error, ErrorKind, Result};
use crate::handle::file::File;
use crate::io::command::Commands;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::shard::{Shard, with_current};

/// A shard that carries out commands; for `forebay-kernel` alone.
#[doc(hidden)]
#[derive(Clone)]
pub struct CommandShard {
    engine: Arc<EngineShared>,
    index: usize,
}

/// A [`CommandShard`] on the shard's own thread.
#[doc(hidden)]
pub struct CommandRing<'s>(&'s Shard);

impl File {
    /// Returns the shard for commands that belong to this file: the calling shard if it belongs to the file's engine, else the
    /// file's home shard.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]: its shards have no rings, or rings without `DEFER_TASKRUN`.
    #[doc(hidden)]
    pub fn command_shard(&self) -> Result<CommandShard> {
        let engine = self.core().engine();
        let mine = |shard: &Shard| Arc::ptr_eq(shard.engine(), engine).then(|| shard.index());
        let index = with_current(mine).flatten().unwrap_or_else(|| self.home_shard());
        if engine.inboxes.get(index).is_some_and(|inbox| inbox.takes_commands()) {
            return Ok(CommandShard { engine: engine.clone(), index });
        }
        let driver = engine.driver.get().copied().unwrap_or("");
        let note = match driver {
            "uring" => "the shards' rings are without DEFER_TASKRUN".to_owned(),
            driver => format!("the engine's driver is {driver}, which has no rings"),
        };
        Err(Error::new(ErrorKind::Unsupported, "command").with_note(note))
    }
}

impl File {
    /// Adds an entry to the health of the file's engine, as [`Engine::add_degradation`](crate::Engine::add_degradation) does, for
    /// callers without a handle of the engine.
    #[doc(hidden)]
    pub fn add_degradation(&self, what: &str, why: &str, remedy: &str) {
        self.core().engine().degrade_once(what, why, remedy);
    }
}

impl CommandShard {
    /// Returns the shard's number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Runs `run` if the calling thread is that shard's.
    #[inline]
    pub fn here<R>(&self, run: impl FnOnce(&CommandRing<'_>) -> R) -> Option<R> {
        with_current(|shard| {
            let is_it = Arc::ptr_eq(shard.engine(), &self.engine) && shard.index() == self.index;
            is_it.then(|| run(&CommandRing(shard)))
        })
        .flatten()
    }

    /// Makes the shard call `owner`, by one message that never waits for space.
    pub fn call(&self, owner: Arc<dyn Commands>) {
        let mut sent = SentCall(Some(owner));
        self.engine.inboxes[self.index].call(Box::new(move |_| {
            if let Some(owner) = sent.0.take() {
                owner.called();
            }
        }));
    }

    /// Returns whether this process was forked from the engine's.
    pub fn is_forked(&self) -> bool {
        self.engine.is_forked()
    }
}

crate::_debug_parts!(CommandShard, |command_shard| index: command_shard.index);

impl std::fmt::Debug for CommandRing<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("CommandRing").field(&self.0.index()).finish()
    }
}

impl CommandRing<'_> {
    /// Starts the command with this number at the end of the shard's turn.
    ///
    /// # Errors
    /// The engine ends, or the shard has too many operations. The owner is not called then.
    #[inline]
    pub fn begin(&self, owner: &Arc<dyn Commands>, number: u32) -> Result<()> {
        let begun = self.0.begin_command(owner, number);
        begun.map_err(|failure| failure.into_error("command", None))
    }
}

/// A call on its way; the shard's end drops it.
struct SentCall(Option<Arc<dyn Commands>>);

impl Drop for SentCall {
    fn drop(&mut self) {
        if let Some(owner) = self.0.take() {
            owner.refused();
        }
    }
}
