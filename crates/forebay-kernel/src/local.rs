//! Walks in the kernel for the one thread that holds them.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::inside::Inside;
use crate::layout;
use crate::module;
use crate::options::{EngineKind, Options};
use crate::program::{Program, Scratch};
use crate::session::Session;

/// Walks that the kernel runs for this thread, without a hand-over to another one: the thread begins some, and
/// [`run`](Self::run) takes it into the kernel until some are over.
///
/// On [`EngineKind::BpfLoop`] this thread's other rings of io_uring's have one worker thread of each kind for what they may not
/// wait for, as this one has, until it is dropped.
///
/// For programs that have a thread for their lookups. A [`KernelWalk`](crate::KernelWalk) is for all others, and falls back
/// where nothing better is possible.
pub struct LocalWalk<P: Program> {
    program: Arc<P>,
    session: Inside,
    hops_max: u32,
}

/// A walk of a [`LocalWalk`] that is over.
#[derive(Debug)]
#[non_exhaustive]
pub struct Finished<T> {
    /// The number that [`LocalWalk::begin`] gave it.
    pub number: u32,
    /// Its result.
    pub result: Result<T>,
}

impl<P: Program> LocalWalk<P> {
    /// Walks on `file` by the best engine inside the kernel, up to `depth` of them at once: 1 to 64, rounded up to a power of
    /// two. The file stays open for as long as this does; the module pins it, so that it cannot be written to.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with what is missing.
    pub fn open(file: &impl AsFd, program: P, depth: u32) -> Result<LocalWalk<P>> {
        LocalWalk::open_with(file, program, Options { depth, ..Options::default() })
    }

    /// The same with choices.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with what is missing, also when the reactor is asked for: that is not inside the kernel.
    pub fn open_with(file: &impl AsFd, program: P, options: Options) -> Result<LocalWalk<P>> {
        let hops_max = options.hops_max.clamp(1, layout::HOPS_MAX as u32);
        let mut refused = Vec::new();
        for kind in Inside::wanted(&options) {
            match Inside::open(*kind, &program, file, &options) {
                Ok(session) => return Ok(LocalWalk { program: Arc::new(program), session, hops_max }),
                Err(why) => refused.push(format!("{kind} is not possible: {why}")),
            }
        }
        Err(Error::Unavailable(match refused.is_empty() {
            true => "the reactor is not inside the kernel".to_owned(),
            false => refused.join("; "),
        }))
    }

    /// Where walks run.
    pub fn engine(&self) -> EngineKind {
        self.session.kind()
    }

    /// Walks that are begun from now on are on this file, which stays open until the next call of this or of
    /// [`let_go`](Self::let_go). Costs a system call. Not with the module, which keeps to the file that it has pinned.
    ///
    /// # Errors
    /// [`Error::Unavailable`] while walks are under way, on [`EngineKind::Module`], and when the kernel refuses.
    pub fn turn_to(&mut self, file: &impl AsFd) -> Result<()> {
        match self.session.turn_to(Some(file)) {
            true => Ok(()),
            false => Err(self.not_turned()),
        }
    }

    /// Gives the file up, so that this keeps it open no longer: walks fail with `EBADF` until the next
    /// [`turn_to`](Self::turn_to). Costs a system call.
    ///
    /// # Errors
    /// As [`turn_to`](Self::turn_to).
    pub fn let_go(&mut self) -> Result<()> {
        match self.session.turn_to(None::<&std::fs::File>) {
            true => Ok(()),
            false => Err(self.not_turned()),
        }
    }

    fn not_turned(&self) -> Error {
        Error::Unavailable(match self.session.under_way() {
            0 if self.engine() == EngineKind::Module => {
                "the module keeps to the file that it has pinned".to_owned()
            }
            0 => "the ring does not take the file".to_owned(),
            walks => format!("{walks} walks are under way on another file"),
        })
    }

    /// Puts a walk in line for the next [`run`](Self::run), and answers its number, which is below the depth and is free
    /// again when the walk is over. `None`: as many as there can be are under way.
    pub fn begin(&mut self, args: &P::Args) -> Option<u32> {
        let mut scratch = Scratch::new();
        let root = self.program.begin(args, &mut scratch);
        self.session.begin(root, &scratch, self.hops_max)
    }

    /// Walks under way.
    pub fn under_way(&self) -> u32 {
        self.session.under_way()
    }

    /// Runs walks until at least `stop_after` are over, or all that there are; each of these goes to `each`. A signal does not
    /// end it.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: the engine is broken, and what is under way is lost.
    pub fn run(&mut self, stop_after: u32, mut each: impl FnMut(Finished<P::Output>)) -> Result<()> {
        let program = Arc::clone(&self.program);
        self.run_for_pages(stop_after, |ended, page| {
            let result = ended.result.map(|scratch| program.end(&scratch, page));
            each(Finished { number: ended.number, result });
        })
    }

    /// As [`run`](Self::run), for who makes something of its own of a walk's scratch and of the page that its last step saw,
    /// where it lies.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_for_pages(
        &mut self,
        stop_after: u32,
        mut each: impl FnMut(Finished<Scratch>, &[u8]),
    ) -> Result<()> {
        if self.session.under_way() == 0 {
            return Ok(());
        }
        self.session.run(stop_after).map_err(Error::Unavailable)?;
        self.session.drain(|ended, page| {
            each(Finished { number: ended.slot, result: ended.outcome }, page);
        });
        Ok(())
    }

    /// Calls into the kernel so far, and runs of the loop's program in there, which the module does not count.
    pub fn counts(&self) -> (u64, u64) {
        self.session.counts()
    }
}

impl<P: Program> fmt::Debug for LocalWalk<P> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LocalWalk")
            .field("program", &self.program.name())
            .field("under_way", &self.under_way())
            .finish_non_exhaustive()
    }
}

/// Whether an engine is possible here: tries it, which takes some milliseconds. The module takes some files and not others,
/// which this does not tell.
///
/// # Errors
/// What is missing, as a sentence without its full stop.
pub fn probe(kind: EngineKind) -> std::result::Result<(), String> {
    const PROGRAM: crate::TreeLookup = crate::TreeLookup { node_bytes: 4096 };
    match kind {
        EngineKind::Reactor => Ok(()),
        EngineKind::Module => module::probe(&PROGRAM),
        EngineKind::BpfLoop => {
            let nothing = std::fs::File::open("/dev/zero")
                .map_err(|error| format!("/dev/zero cannot be opened ({error})"))?;
            Session::open(&PROGRAM, &nothing, 1).map(|_| ())
        }
    }
}
