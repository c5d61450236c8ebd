//! Sessions of whichever engine runs walks inside the kernel.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::module::ModuleSession;
use crate::options::{EngineKind, Options};
use crate::program::{Program, Scratch};
use crate::session::Session;
use crate::slot::Ended;

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
    /// # Errors
    /// Why this engine is not possible here, as a sentence without its full stop.
    pub(crate) fn open<P: Program>(
        kind: EngineKind,
        program: &P,
        file: &impl AsFd,
        options: &Options,
    ) -> Result<Inside, String> {
        match kind {
            EngineKind::Module => ModuleSession::open(program, file, options.depth, options.polled)
                .map(|session| Inside::Module(Box::new(session))),
            EngineKind::BpfLoop => Session::open(program, file, options.depth).map(Inside::Loop),
            EngineKind::Reactor => Err("the reactor is not inside the kernel".to_owned()),
        }
    }

    /// The engines inside the kernel that are to be tried, the one that takes fewer instructions first. Both take fewer than the
    /// reactor: measured in `docs/kernel-walks.md`, and checked by `scripts/checks/kernel-walks --instructions`.
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

    /// A copy of the descriptor that ends a [`run`](Self::run) of a session that watches it, when 1 is written to it.
    ///
    /// # Errors
    /// Too many descriptors.
    pub(crate) fn poker(&self) -> io::Result<OwnedFd> {
        each!(self, session => session.poker())
    }

    /// From the next run on the descriptor is watched.
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

    /// Calls into the kernel, and runs of the loop's program there.
    pub(crate) fn counts(&self) -> (u64, u64) {
        match self {
            Inside::Loop(session) => (session.enters, session.steps()),
            Inside::Module(session) => (session.enters, 0),
        }
    }

    /// From now on walks are on this file, or on none. `false`: some are under way, the kernel refuses, or the engine keeps
    /// to one file.
    pub(crate) fn turn_to(&mut self, file: Option<&impl AsFd>) -> bool {
        match self {
            Inside::Loop(session) => session.turn_to(file),
            Inside::Module(_) => false,
        }
    }

    /// Puts a walk into a free slot, to be begun by the next [`run`](Self::run). `None`: there is none.
    pub(crate) fn begin(&mut self, root: u64, scratch: &Scratch, hops_max: u32) -> Option<u32> {
        each!(self, session => session.begin(root, scratch, hops_max))
    }

    /// Runs walks until `stop_after` of them are over, or the descriptor was written to.
    ///
    /// # Errors
    /// Why the session is of no use any more.
    pub(crate) fn run(&mut self, stop_after: u32) -> Result<(), String> {
        each!(self, session => session.run(stop_after))
    }

    /// Whether the descriptor was written to; it is emptied, and watched again from the next run on.
    pub(crate) fn take_poke(&mut self) -> bool {
        each!(self, session => session.take_poke())
    }

    /// Gives each walk that is over to `each`, with the page that its step saw last.
    pub(crate) fn drain(&mut self, each: impl FnMut(Ended, &[u8])) {
        each!(self, session => session.drain(each));
    }
}
