//! Two-phase reads and writes among the processes of one or several hosts: MPI-IO's collective buffering, without MPI.
//!
//! **Nouns.** A *rank* is one process of a run, by its number. [`Ranks`] is a rank's connection to all of them. A [`View`] is the
//! part of a file that a rank has, as strides or a list. An *aggregator* is a rank, one a host or more, that reads and writes the
//! file for all. A *window* is an aligned stretch of the file of limited length; an aggregator has a contiguous part of the
//! windows. The *coordinator* is an additional part of rank 0: it compares the calls, plans, and decides how a call ended.
//!
//! **A call.** Every rank sends its *entry* (what it does, which file, how much, from where to where) to the coordinator, which returns the
//! *plan*. Then ranks send aggregators their pieces window by window, flattened into series of equal pieces (`windows`), and for a write the
//! bytes. An aggregator receives a window from all ranks, and writes it in requests of the device's size while the next one arrives
//! (`aggregator`); for a read it reads the window and returns each rank's bytes. When all are over the coordinator sets the file's
//! end, has the aggregators sync, and sends *done*.
//!
//! **Who owns what.** A call runs on its own thread, which owns the connections (`links`) meanwhile: an aggregator has one or
//! two more threads, rank 0 one for the coordinator. Only an aggregator's tasks write its windows, so no page has two writers among
//! the ranks. The coordinator locks the file while the windows have holes (`file_lock`), against other programs, and after a
//! failure until all aggregators have reported; the other aggregators check that the lock is visible to them.
//!
//! **Numbers.** A process has a connection to rank 0 and one to each aggregator, without TCP to those of its host. On these, 256 KiB or
//! more of a window are memory that the sender seals and the receiver maps (`wire`), without a name, so that nothing is left of killed
//! processes. They are copied twice, into the memory and out of it; on a socket four times. An aggregator holds at most four windows of
//! `memory_bytes_max / 4`. Strides of equal pieces are 32 bytes of a message, however many.
//!
//! **Failures.** Each task on the file and each message has a deadline; messages of pieces count it from the last sign of life
//! (`wire`'s `Life`), because a rank may wait long for others that are working: aggregators send signs of life to rank 0, which
//! passes them on. A rank that fails closes its connections of pieces, so that all ranks waiting for it fail as well, and reports
//! to the coordinator, which collects the others' reports for a moment and sends all ranks the fault nearest to the cause. A killed
//! rank's connections are closed by the kernel, and a frozen rank misses a deadline. After a failure the connections are unusable,
//! nothing was acknowledged, and the call can be repeated by ranks that meet again. The order of messages (`windows`' `Turns`) is
//! the same on all ranks, so that no ranks wait in a circle.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use forebay::internal::{ErrorExt, FileInternals, Origin, is_in_world};
use forebay::{Durability, Error, ErrorKind, File, Result, Waitable};

use crate::coalesce::WriteStats;
use crate::options::Options;
use crate::rendezvous::{MeetingPlace, Rank};
use crate::view::View;

mod aggregator;
mod call;
mod coordinator;
mod file_lock;
mod links;
mod part;
mod windows;
mod wire;

use call::{Call, Way};
use links::Links;
use wire::Fault;

/// One process of several that write and read files together, on one host or several.
///
/// Where each of many processes has small pieces that lie between the pieces of others (a part of an array, every n-th record), a
/// single process cannot write large requests. All of them call [`write`](Ranks::write) or [`read`](Ranks::read) with a [`View`].
/// One process a host, the aggregator, or [more](Options::aggregators), receives the pieces of all, and writes or reads large
/// aligned parts of the file, with several requests in flight.
///
/// ```no_run
/// use forebay::{Config, Durability, Engine, Open};
/// use forebay_collective::{Options, Rank, Ranks, View};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rank = Rank::of_launcher()?.ok_or("start this with srun or mpirun")?;
/// let mut ranks = Ranks::meet(&rank, "/shared/run", Options::new()).wait()?;
/// let engine = Engine::start(Config::new())?;
/// let file = engine.open("/shared/run/field", Open::create()).wait()?;
/// // A matrix of 8,000 rows of 8,000 numbers of 8 bytes: each rank has some columns.
/// let (number, columns) = (u64::from(rank.number()), 8_000 / u64::from(rank.size()));
/// let view = View::subarray(0, 8, &[8_000, 8_000], &[8_000, columns], &[0, number * columns])?;
/// let mine = vec![7u8; view.bytes() as usize];
/// ranks.write(&file, &view, mine, Durability::Data).wait()?;
/// # Ok(()) }
/// ```
///
/// **All ranks call alike**: the same calls in the same order, on the same file, each with its own engine, `File` and view, which
/// may be empty. If they differ the call fails on all of them, and the error describes the difference.
///
/// **Overlaps** of two ranks' pieces fail a write. Reads may overlap.
///
/// **Holes** between pieces keep their contents: pages that pieces cover in part are read first, so that the file must be open
/// for reading too. Meanwhile rank 0 holds the file's [lock](forebay::File::try_lock) and an OFD lock (fcntl(2)) on all of it,
/// waited for up to the deadline, against programs with locks of either kind. A lock that the program itself has on the same
/// `File` is released by that; a POSIX lock of this process counts as another program's. The end of a direct file in the middle
/// of a page counts as a hole. After a failure an aggregator may still write: where rank 0 does not learn of its end, the locks
/// stay until the `File` is closed. On several hosts a file system without these locks between them refuses such a write; on a
/// system without OFD locks only the first lock is taken. No other program may change the file's length during a write.
///
/// **Success** means that all ranks' pieces are in the file, synced with the strongest of the ranks' durabilities on each host.
///
/// **Failures end it for all.** When a rank is killed, freezes for longer than [`Options::deadline`], or has an error, the call
/// fails on all ranks, with the reason. Nothing of it counts as written, though parts may be in the file. Later calls fail as well:
/// the remaining or new ranks meet again and repeat it. Requests that a killed process had in flight may reach the file until the
/// kernel has ended it: repeat with the same bytes, or [wait](forebay::File::lock_within) for a lock that it had. A frozen process
/// may write for a moment when it resumes: end it first. A kill of rank 0 releases its lock while other aggregators may still
/// write, and leaves the padding of a direct file's last page.
///
/// **Dropping** the future of a call does not end it: it continues with the other ranks, and this rank's next call waits for its
/// end. **A forked child's** calls fail with [`ErrorKind::Forked`](forebay::ErrorKind::Forked): the connections are its parent's. While it
/// lives, a killed parent counts as a frozen one.
#[must_use = "the other ranks wait for this one"]
pub struct Ranks {
    rank: Rank,
    options: Options,
    /// The process whose connections these are.
    origin: Origin,
    core: Arc<Mutex<RanksState>>,
    line: Arc<Line>,
    stats: Arc<Mutex<WriteStats>>,
}

forebay::_debug_parts!(Ranks, |ranks| rank: ranks.rank, options: ranks.options);

/// The thread of the last call, for which the next one waits: a call whose future was dropped may still be under way.
type Line = Mutex<Option<JoinHandle<()>>>;

struct RanksState {
    links: Links,
    calls: u64,
    failed: Option<Fault>,
    origin: Origin,
}

impl Drop for RanksState {
    fn drop(&mut self) {
        // A forked child has the connections as well. Its drop leaves them to the parent, and the parent's ends them for both.
        if !self.origin.is_elsewhere() {
            self.links.end();
        }
    }
}

impl Ranks {
    /// Meets the other ranks. All name the same directory, which may be the file's: rank 0 publishes its address there, for this
    /// user alone, and removes it when all have connected. A connection proves with a secret from there that it belongs to the run;
    /// its bytes are not encrypted.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](forebay::ErrorKind::InvalidInput) when ranks name different sizes; the error of the directory or
    /// a connection, or the ranks that did not connect within 180 s.
    pub fn meet(
        rank: &Rank,
        directory: impl AsRef<Path>,
        options: Options,
    ) -> Waitable<impl Future<Output = Result<Ranks>>> {
        let place = MeetingPlace::Directory(directory.as_ref().to_owned());
        Waitable::new("ranks", Ranks::meet_in(rank.clone(), Some(place), options))
    }

    /// Meets the other ranks without a directory. All name the same addresses, of which rank 0 listens on the first possible, and
    /// the same random secret of at least 32 bytes, of which 64 count. A rank sends half of it to a program that listens at an
    /// address listed before rank 0's: do not list addresses that other programs can bind. With a non-loopback address the ranks
    /// are [across hosts](Rank::across_hosts).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](forebay::ErrorKind::InvalidInput) without an address, and when the secret is too short; those of
    /// [`meet`](Ranks::meet).
    pub fn meet_at(
        rank: &Rank,
        addresses: &[SocketAddr],
        secret: &[u8],
        options: Options,
    ) -> Waitable<impl Future<Output = Result<Ranks>>> {
        let is_local = addresses.iter().all(|address| address.ip().is_loopback());
        let rank = if is_local { rank.clone() } else { rank.clone().across_hosts() };
        Waitable::new("ranks", Ranks::meet_in(rank, MeetingPlace::at(addresses, secret), options))
    }

    async fn meet_in(rank: Rank, place: Option<MeetingPlace>, options: Options) -> Result<Ranks> {
        let Some(place) = place else {
            let note = "there is no address, or the secret has less than 32 bytes";
            return Err(<Error as ErrorExt>::new(ErrorKind::InvalidInput, "ranks").with_note(note));
        };
        let line = Arc::<Line>::default();
        on_thread(&line.clone(), move || {
            let links = Links::meet(&rank, &place, &options).map_err(|fault| {
                let error = <Error as ErrorExt>::new(fault.kind, "ranks").with_note(fault.text);
                match &place {
                    MeetingPlace::Directory(directory) => error.with_path(directory),
                    MeetingPlace::Addresses(_) => error,
                }
            })?;
            let origin = Origin::here();
            let core = Arc::new(Mutex::new(RanksState { links, calls: 0, failed: None, origin }));
            Ok(Ranks { rank, options, origin, core, line, stats: Arc::default() })
        })
        .await
    }

    /// Writes this rank's bytes at the places that its view names, together with all other ranks.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](forebay::ErrorKind::InvalidInput) when the view has more or fewer bytes, ranks' calls or files
    /// differ, or pieces overlap; [`ErrorKind::Elapsed`](forebay::ErrorKind::Elapsed) when a rank did nothing within the deadline;
    /// [`ErrorKind::Cancelled`](forebay::ErrorKind::Cancelled) when a rank has ended;
    /// [`ErrorKind::Locked`](forebay::ErrorKind::Locked) and [`ErrorKind::Unsupported`](forebay::ErrorKind::Unsupported) for locks;
    /// the file's. All of them end the ranks.
    pub fn write(
        &mut self,
        file: &File,
        view: &View,
        bytes: impl Into<Bytes>,
        durability: Durability,
    ) -> Waitable<impl Future<Output = Result<()>>> {
        let made = self.make(file, view, Way::Write(bytes.into(), durability));
        Waitable::new("ranks", async move { made.await.map(drop) })
    }

    /// Reads the bytes at the places that this rank's view names, one piece after the other, together with all other ranks.
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedEof`](forebay::ErrorKind::UnexpectedEof) when a rank's view extends beyond the end of the file; those
    /// of [`write`](Ranks::write).
    pub fn read(&mut self, file: &File, view: &View) -> Waitable<impl Future<Output = Result<Vec<u8>>>> {
        Waitable::new("ranks", self.make(file, view, Way::Read))
    }

    /// Makes a call on a new thread.
    fn make(&self, file: &File, view: &View, way: Way) -> impl Future<Output = Result<Vec<u8>>> + use<> {
        let (core, line, stats, options) =
            (self.core.clone(), self.line.clone(), self.stats.clone(), self.options);
        let (file, view, class, origin) = (file.clone(), view.clone(), options.class_here(), self.origin);
        async move {
            // A forked child has the parent's connections, and must not use them.
            if origin.is_elsewhere() {
                let error = FileInternals::of(&file).error("ranks", ErrorKind::Forked);
                return Err(
                    error.with_note("the connections are the parent's: ranks meet again in the child")
                );
            }
            // A closed engine ends the call on all ranks.
            if FileInternals::of(&file).is_forked() {
                FileInternals::of(&file).check("ranks")?;
            }
            if is_in_world() {
                let note = "ranks are processes: a simulated world has none";
                return Err(FileInternals::of(&file).error("ranks", ErrorKind::Unsupported).with_note(note));
            }
            on_thread(&line, move || {
                let mut state = lock(&core);
                let error = |fault: &Fault, before: &str| {
                    let note = format!("{before}{}", fault.text);
                    FileInternals::of(&file).error("ranks", fault.kind).with_note(note)
                };
                if let Some(fault) = &state.failed {
                    return Err(error(fault, "these ranks had failed before: "));
                }
                state.calls += 1;
                let call = Call { number: state.calls, file: file.clone(), view, way, class, options };
                match part::make(&state.links, &call) {
                    Ok((bytes, requests)) => {
                        let mut stats = lock(&stats);
                        stats.taken_bytes += call.bytes().map_or(0, |bytes| bytes.len() as u64);
                        stats.add_requests(&requests);
                        Ok(bytes)
                    }
                    Err(fault) => {
                        let error = error(&fault, "");
                        state.failed = Some(fault);
                        Err(error)
                    }
                }
            })
            .await
        }
    }

    /// Returns this process's place.
    pub fn rank(&self) -> &Rank {
        &self.rank
    }

    /// Returns the bytes that this rank gave, and, on an aggregator, the requests of writes sent to the device for all ranks. Zeros in a
    /// forked child.
    pub fn stats(&self) -> WriteStats {
        // A thread of the parent may have held the lock at the fork.
        if self.origin.is_elsewhere() { WriteStats::default() } else { *lock(&self.stats) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of a thread's work, on its way to a future.
struct Handover<T> {
    result: Option<Result<T>>,
    waker: Option<Waker>,
}

/// The side that gives the result, also when the thread panics.
struct Giver<T>(Arc<Mutex<Handover<T>>>);

impl<T> Giver<T> {
    fn give(&self, result: Result<T>) {
        let waker = {
            let mut handover = lock(&self.0);
            handover.result.get_or_insert(result);
            handover.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Giver<T> {
    fn drop(&mut self) {
        self.give(Err(<Error as ErrorExt>::new(ErrorKind::TaskPanicked, "ranks")));
    }
}

/// Does work that waits for other processes on a thread, when the one before has ended.
async fn on_thread<T: Send + 'static>(
    line: &Line,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let origin = Origin::here();
    let handover = Arc::new(Mutex::new(Handover { result: None, waker: None }));
    let giver = Giver(handover.clone());
    {
        let mut last = lock(line);
        let before = last.take();
        let started = thread::Builder::new().name("forebay-ranks".to_owned()).spawn(move || {
            if let Some(before) = before {
                // Its panic is the other call's error.
                let _ = before.join();
            }
            giver.give(work());
        });
        *last = Some(started.map_err(|error| <Error as ErrorExt>::io("ranks", error))?);
    }
    poll_fn(|context| {
        // A forked child has no such thread, and the lock may stay held there.
        if origin.is_elsewhere() {
            return Poll::Ready(Err(<Error as ErrorExt>::new(ErrorKind::Forked, "ranks")));
        }
        let mut handover = lock(&handover);
        match handover.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                handover.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    })
    .await
}
