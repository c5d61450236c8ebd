//! Sessions of the engine, module or loop, that runs walks inside the kernel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::module::ModuleSession;
use crate::options::{EngineKind, Options};
use crate::program::{Program, Scratch};
use crate::session::Session;
use crate::slot::WalkEnd;

/// Walks inside the kernel, for one thread.
#[derive(Debug)]
pub(crate) enum Inside {
    Loop(Session),
    Module(Box<ModuleSession>),
}

macro_rules! each {
    ($self:ident, $session:ident => $answer:expr) => {
        match $self {
            Inside::Loop($session) => $answer,
            Inside::Module($session) => $answer,
        }
    };
}

impl Inside {
    /// Opens a session of the given engine.
    ///
    /// # Errors
    /// Why this engine is not possible here, as a sentence without its full stop.
    pub(crate) fn open<P: Program>(
        kind: EngineKind,
        program: &P,
        file: &impl AsFd,
        options: &Options,
    ) -> Result<Inside, String> {
        match kind {
            EngineKind::Module => {
                ModuleSession::open(program, file, options).map(|session| Inside::Module(Box::new(session)))
            }
            EngineKind::BpfLoop => Session::open(program, file, options.depth).map(Inside::Loop),
            EngineKind::Reactor => Err("the reactor is not inside the kernel".to_owned()),
        }
    }

    /// Returns the engines inside the kernel to try, the engine that needs fewer instructions first. Both need fewer than the
    /// reactor, for every source of walks (tasks on the shard, on another shard, in Tokio, plain threads), so nothing is measured
    /// at run time: `docs/kernel-walks.md` has the figures, and `scripts/checks/kernel-walks --instructions` checks them.
    pub(crate) fn wanted(options: &Options) -> &'static [EngineKind] {
        match options.only {
            None => &[EngineKind::Module, EngineKind::BpfLoop],
            Some(EngineKind::Module) => &[EngineKind::Module],
            Some(EngineKind::BpfLoop) => &[EngineKind::BpfLoop],
            Some(EngineKind::Reactor) => &[],
        }
    }

    pub(crate) fn kind(&self) -> EngineKind {
        match self {
            Inside::Loop(_) => EngineKind::BpfLoop,
            Inside::Module(_) => EngineKind::Module,
        }
    }

    /// Returns a copy of the wake-up descriptor. Writing 1 to it ends a [`run`](Self::run) of a session that
    /// watches it.
    ///
    /// # Errors
    /// Too many descriptors.
    pub(crate) fn poker(&self) -> io::Result<OwnedFd> {
        each!(self, session => session.poker())
    }

    /// Has the descriptor watched from the next run on.
    pub(crate) fn watch(&mut self) {
        each!(self, session => session.watch());
    }

    pub(crate) fn has_room(&self) -> bool {
        each!(self, session => session.has_room())
    }

    pub(crate) fn under_way(&self) -> u32 {
        each!(self, session => session.under_way())
    }

    pub(crate) fn slots(&self) -> usize {
        each!(self, session => session.slots())
    }

    /// Returns the number of calls into the kernel, and of runs of the loop's program there.
    pub(crate) fn counts(&self) -> (u64, u64) {
        match self {
            Inside::Loop(session) => (session.enters, session.steps()),
            Inside::Module(session) => (session.enters, 0),
        }
    }

    /// Directs new walks to this file, or to no file. Returns `false` if walks are in flight, the kernel refuses, or the engine
    /// keeps to one file.
    pub(crate) fn turn_to(&mut self, file: Option<&impl AsFd>) -> bool {
        match self {
            Inside::Loop(session) => session.turn_to(file),
            Inside::Module(_) => false,
        }
    }

    /// Puts a walk into a free slot, to be started by the next [`run`](Self::run). Returns `None` if no slot is free.
    pub(crate) fn begin(&mut self, root: u64, scratch: &Scratch, hops_max: u32) -> Option<u32> {
        match self {
            Inside::Loop(session) => session.begin(None, root, scratch, hops_max),
            Inside::Module(session) => session.begin(root, scratch, hops_max),
        }
    }

    /// Puts a walk on another file into a free slot. That file must stay open until the walk has ended, or
    /// until a run has failed. Returns `None` if no slot is free, or the engine keeps to one file.
    pub(crate) fn begin_on(
        &mut self,
        file: BorrowedFd<'_>,
        root: u64,
        scratch: &Scratch,
        hops_max: u32,
    ) -> Option<u32> {
        match self {
            Inside::Loop(session) => session.begin(Some(file), root, scratch, hops_max),
            Inside::Module(_) => None,
        }
    }

    /// Runs walks until `stop_after` of them have ended, or the descriptor was written to.
    ///
    /// # Errors
    /// The reason why the session is no longer usable.
    pub(crate) fn run(&mut self, stop_after: u32) -> Result<(), String> {
        each!(self, session => session.run(stop_after))
    }

    /// Returns whether the descriptor was written to. If so, empties it, and has it watched again from the
    /// next run on.
    pub(crate) fn take_poke(&mut self) -> bool {
        each!(self, session => session.take_poke())
    }

    /// Passes each ended walk to `each`, with the last page that its step read.
    pub(crate) fn drain(&mut self, each: impl FnMut(WalkEnd, &[u8])) {
        each!(self, session => session.drain(each));
    }
}
