//! Walks in the kernel for the one thread that owns them.

use std::os::fd::AsFd;
use std::sync::Arc;

use crate::choice;
use crate::error::{Error, Result};
use crate::inside::Inside;
use crate::layout;
use crate::module;
use crate::options::{EngineKind, Options};
use crate::process::{FORKED, Own};
use crate::program::{Program, Scratch};
use crate::session::Session;

/// Walks that the kernel runs for this thread, without a hand-over to another thread. The thread starts walks, and
/// [`run`](Self::run) enters the kernel until some have ended.
///
/// On [`EngineKind::BpfLoop`] the thread's other io_uring rings are limited as well, until this is dropped: like this ring they
/// have one worker thread of each kind, for operations that may not wait.
///
/// In a forked child no walk starts, each fallible call returns an error, and a drop does not affect the parent's walks.
///
/// For programs that have a thread for their lookups. A [`KernelWalk`](crate::KernelWalk) is for all others,
/// and falls back where nothing better is possible.
pub struct LocalWalk<P: Program> {
    program: Arc<P>,
    session: Own<Inside>,
    hops_max: u32,
    /// A [`run_on`](Self::run_on) did not end: its walks must not read once its files may be closed.
    is_cut_short: bool,
}

/// An ended walk of a [`LocalWalk`].
#[derive(Debug)]
#[non_exhaustive]
pub struct FinishedWalk<T> {
    /// The number that [`LocalWalk::begin`] returned for it.
    pub number: u32,
    /// The walk's result.
    pub result: Result<T>,
}

impl<P: Program> LocalWalk<P> {
    /// Opens walks on `file` with the best engine inside the kernel, up to `depth` of them concurrently: 1 to 64, rounded up to a
    /// power of two. The file stays open for as long as this does; the module pins it, so that it cannot be written to.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the missing requirement.
    pub fn open(file: &impl AsFd, program: P, depth: u32) -> Result<LocalWalk<P>> {
        LocalWalk::open_with(file, program, Options::new().depth(depth))
    }

    /// Opens walks as `open` does, with `options`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the missing requirement, also when the program's pages cannot be right, or when the reactor is
    /// requested: that is not inside the kernel.
    pub fn open_with(file: &impl AsFd, program: P, options: Options) -> Result<LocalWalk<P>> {
        choice::check_numbers(&program)?;
        let hops_max = options.hops_max.clamp(1, layout::HOPS_MAX as u32);
        let mut refused = Vec::new();
        for kind in Inside::wanted(&options) {
            match Inside::open(*kind, &program, file, &options) {
                Ok(session) => {
                    let (program, session) = (Arc::new(program), Own::new(session));
                    return Ok(LocalWalk { program, session, hops_max, is_cut_short: false });
                }
                Err(why) => refused.push(format!("{kind} is not possible: {why}")),
            }
        }
        Err(Error::Unavailable(if refused.is_empty() {
            "the reactor is not inside the kernel".to_owned()
        } else {
            refused.join("; ")
        }))
    }

    /// Returns the engine that runs the walks.
    pub fn engine(&self) -> EngineKind {
        self.session.kind()
    }

    /// Directs new walks to this file. It stays open until the next call of this or of [`let_go`](Self::let_go). Costs a system
    /// call. Not possible with the module, which keeps to the file that it has pinned.
    ///
    /// # Errors
    /// [`Error::Unavailable`] while walks are in flight, on [`EngineKind::Module`], in a forked child, and when the
    /// kernel refuses.
    pub fn turn_to(&mut self, file: &impl AsFd) -> Result<()> {
        self.check_process()?;
        if self.session.turn_to(Some(file)) { Ok(()) } else { Err(self.not_turned()) }
    }

    /// Releases the file, so that this no longer keeps it open: walks fail with `EBADF` until the next
    /// [`turn_to`](Self::turn_to). Costs a system call.
    ///
    /// # Errors
    /// Those of [`turn_to`](Self::turn_to).
    pub fn let_go(&mut self) -> Result<()> {
        self.check_process()?;
        if self.session.turn_to(None::<&std::fs::File>) { Ok(()) } else { Err(self.not_turned()) }
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

    /// Queues a walk for the next [`run`](Self::run), and returns its number. The number is below the depth,
    /// and is free again when the walk has ended. Returns `None` if as many walks as the depth allows are in
    /// flight, and in a forked child.
    pub fn begin(&mut self, args: &P::Args) -> Option<u32> {
        if self.session.is_elsewhere() {
            return None;
        }
        let mut scratch = Scratch::new();
        let root = self.program.begin(args, &mut scratch);
        self.session.begin(root, &scratch, self.hops_max)
    }

    /// Runs a walk for each of `starts`, each on its file, until all of them have ended: up to the depth concurrently, and more in
    /// turns. The files need not be the session's, and are not kept open. Passes each ended walk to `each` like
    /// [`run_for_pages`](Self::run_for_pages), in any order, with its index among `starts` as its number.
    ///
    /// Costs one system call for as many walks as the depth, and about one for each half of the depth beyond.
    /// Each read looks its file up, which costs less than [`turn_to`](Self::turn_to) does for a short walk.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: the engine is broken or is the module, which keeps to one file, walks on the
    /// session's file are in flight, or this is a forked child.
    pub fn run_on<'f, F: AsFd + 'f>(
        &mut self,
        starts: impl IntoIterator<Item = (&'f F, P::Args)>,
        mut each: impl FnMut(FinishedWalk<Scratch>, &[u8]),
    ) -> Result<()> {
        self.check_whole()?;
        if self.engine() != EngineKind::BpfLoop || self.under_way() > 0 {
            return Err(self.not_turned());
        }
        // Until all have ended: `each` may panic.
        self.is_cut_short = true;
        let mut starts = starts.into_iter().enumerate();
        // The walk in each slot.
        let mut indexes = [0; layout::SLOTS_MAX];
        let mut is_last = false;
        loop {
            while !is_last && self.session.has_room() {
                let Some((index, (file, args))) = starts.next() else {
                    is_last = true;
                    break;
                };
                let mut scratch = Scratch::new();
                let root = self.program.begin(&args, &mut scratch);
                let slot = self.session.begin_on(file.as_fd(), root, &scratch, self.hops_max);
                let slot = slot.ok_or_else(|| Error::Unavailable("no slot is free".to_owned()))?;
                indexes[slot as usize % layout::SLOTS_MAX] = index;
            }
            let under_way = self.under_way();
            if under_way == 0 {
                self.is_cut_short = false;
                return Ok(());
            }
            let stop_after = if is_last { under_way } else { under_way.div_ceil(2) };
            self.advance(stop_after, |finished, page| {
                let number = indexes[finished.number as usize % layout::SLOTS_MAX] as u32;
                each(FinishedWalk { number, result: finished.result }, page);
            })?;
        }
    }

    /// Returns the number of walks in flight.
    pub fn under_way(&self) -> u32 {
        self.session.under_way()
    }

    /// Runs walks until at least `stop_after` have ended, or all have ended; passes each ended walk to `each`. A signal does not
    /// end it.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: the engine is broken, and the walks in flight are lost; or this is a forked child.
    pub fn run(&mut self, stop_after: u32, mut each: impl FnMut(FinishedWalk<P::Output>)) -> Result<()> {
        let program = Arc::clone(&self.program);
        self.run_for_pages(stop_after, |ended, page| {
            let result = ended.result.map(|scratch| program.end(&scratch, page));
            each(FinishedWalk { number: ended.number, result });
        })
    }

    /// Runs walks like [`run`](Self::run), for callers that compute their result from a walk's scratch and from the last page that
    /// its step read. Both are passed in place.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn run_for_pages(
        &mut self,
        stop_after: u32,
        each: impl FnMut(FinishedWalk<Scratch>, &[u8]),
    ) -> Result<()> {
        self.check_whole()?;
        self.advance(stop_after, each)
    }

    fn check_process(&self) -> Result<()> {
        if self.session.is_elsewhere() { Err(Error::Unavailable(FORKED.to_owned())) } else { Ok(()) }
    }

    fn check_whole(&self) -> Result<()> {
        self.check_process()?;
        let why = || Error::Unavailable("walks on other files were cut short".to_owned());
        if self.is_cut_short { Err(why()) } else { Ok(()) }
    }

    fn advance(&mut self, stop_after: u32, mut each: impl FnMut(FinishedWalk<Scratch>, &[u8])) -> Result<()> {
        if self.session.under_way() == 0 {
            return Ok(());
        }
        self.session.run(stop_after).map_err(Error::Unavailable)?;
        self.session.drain(|ended, page| {
            each(FinishedWalk { number: ended.slot, result: ended.outcome }, page);
        });
        Ok(())
    }

    /// Returns the number of calls into the kernel so far, and of runs of the loop's program there. The module does not count its
    /// runs, and a forked child counts nothing.
    pub fn counts(&self) -> (u64, u64) {
        if self.session.is_elsewhere() {
            return (0, 0);
        }
        self.session.counts()
    }
}

forebay::_debug_parts!(
    [P: Program] LocalWalk<P>, |local_walk|
    program: local_walk.program.name(),
    under_way: local_walk.under_way()
);

/// Checks whether an engine is possible here, by trying it, which lasts some milliseconds. The module accepts only some files,
/// which this does not check.
///
/// # Errors
/// The missing requirement, as a sentence without its full stop.
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
