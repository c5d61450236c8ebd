//! Faults of a simulated disk, and rules that say when they occur.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// One way in which a disk, or what lies between it and the program, misbehaves.
///
/// The first three decide what a power cut leaves of writes that were not flushed; [`Loss`](crate::Loss)
/// says what it leaves of all others. A write counts for them when it is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// If the power is cut before a flush of the write, each of its sectors survives or not, independently.
    TornWrite,
    /// If the power is cut before a flush of the write, nothing of it survives.
    LostWrite,
    /// If the power is cut before a flush of the write, it may survive though earlier writes are lost.
    Reorder,
    /// A sync answers success, and nothing became durable by it.
    LyingFlush,
    /// A read fails with `EIO`; the next one may work.
    ReadError,
    /// A write fails with `EIO`. Nothing, a part or all of it may be on the disk. The writes of a buffered
    /// file reach the disk with its sync, so there the sync fails, and the bytes that were not synced are
    /// never written.
    WriteError,
    /// A sync of a file or directory fails with `EIO`; [`Rule::dirty`] says what becomes of the bytes that it
    /// was for. The syncs in [`Engine::rename`](forebay::Engine::rename) and `hard_link` count as well.
    FlushError,
    /// One sector of the range that is read (one that also is in the rule's zone) cannot be read any more:
    /// `EIO` for every read that touches it until it is written again.
    LatentSectorError,
    /// One stored bit changes: of what is written, or, when the operation is a read, of what had been stored
    /// there before. The operation succeeds.
    BitRot,
    /// A write answers success and lands elsewhere: over bytes of the same file or of another file of the
    /// disk, never outside of files. The range that was meant keeps its old content.
    MisdirectedWrite,
    /// A write, an allocation, or making a file or directory fails with `ENOSPC`.
    NoSpace,
    /// A read moves fewer bytes than asked: at least one byte, of direct files a multiple of what offset and
    /// memory are aligned to. It does not strike reads of at most that length.
    ShortRead,
    /// A write moves fewer bytes than asked, as with [`Fault::ShortRead`].
    ShortWrite,
    /// A read, write or sync of a file never ends, and a cancel does not help.
    Stuck,
    /// A read, write or sync takes a thousand times as long.
    Slow,
    /// A cancelled operation ends as if it had not been cancelled. Without this one that still waits for the
    /// disk ends with `ECANCELED`, and one that runs either way, drawn from the seed.
    CancelRace,
    /// Opening a file or a directory fails with `EMFILE`. As on a real machine the engine then closes files that are kept open for later
    /// use, and makes the call once more at least: a rule that strikes the call and that once more shows its program an error.
    TooManyFiles,
}

impl Fault {
    /// All of them, in the order of [`Fault::code`].
    pub(crate) const ALL: [Fault; 17] = [
        Fault::TornWrite,
        Fault::LostWrite,
        Fault::Reorder,
        Fault::LyingFlush,
        Fault::ReadError,
        Fault::WriteError,
        Fault::FlushError,
        Fault::LatentSectorError,
        Fault::BitRot,
        Fault::MisdirectedWrite,
        Fault::NoSpace,
        Fault::ShortRead,
        Fault::ShortWrite,
        Fault::Stuck,
        Fault::Slow,
        Fault::CancelRace,
        Fault::TooManyFiles,
    ];

    /// Its number in histories and counts; never changes.
    pub(crate) fn code(self) -> usize {
        self as usize
    }
}

/// The fate of bytes whose sync failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dirty {
    /// They count as written though some are not, as Linux marks pages clean after an error: each write to
    /// the file that the sync was for is on the disk or never will be, drawn from the seed. Reads show all of
    /// them until the machine restarts, and a later sync succeeds without them. Writes to other files wait
    /// for their own sync.
    #[default]
    Lost,
    /// All is as before the sync: a later one that succeeds makes them durable.
    Kept,
}

/// A [`Fault`] and the operations that it strikes: all that it can strike, unless the rule limits them.
///
/// ```
/// use forebay_sim::{Fault, Rule};
/// // The seventh sync on this disk fails.
/// let seventh = Rule::new(Fault::FlushError).nth(7);
/// // One read in a thousand of the log fails, three times at most.
/// let flaky = Rule::new(Fault::ReadError).on("/log").chance_ppm(1_000).times(3);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "give it to Profile::fault or sim::inject"]
pub struct Rule {
    pub(crate) fault: Fault,
    pub(crate) path: Option<PathBuf>,
    pub(crate) zone: Option<Range<u64>>,
    pub(crate) chance_ppm: u32,
    pub(crate) nth: Option<u64>,
    pub(crate) times: Option<u64>,
    pub(crate) dirty: Dirty,
}

impl Rule {
    /// Returns a rule that strikes at every operation that `fault` can strike.
    pub fn new(fault: Fault) -> Rule {
        Rule {
            fault,
            path: None,
            zone: None,
            chance_ppm: 1_000_000,
            nth: None,
            times: None,
            dirty: Dirty::Lost,
        }
    }

    /// Limits it to this file, or to files below this directory. What counts is the path by which the file
    /// was opened.
    pub fn on(mut self, path: impl AsRef<Path>) -> Rule {
        self.path = Some(path.as_ref().to_path_buf());
        self
    }

    /// Limits it to operations that touch these bytes of the file. Syncs concern all bytes.
    pub fn within(mut self, zone: Range<u64>) -> Rule {
        self.zone = Some(zone);
        self
    }

    /// Sets the chance, in a million, that it strikes a matching operation. Default: a million, which is always.
    pub fn chance_ppm(mut self, ppm: u32) -> Rule {
        self.chance_ppm = ppm;
        self
    }

    /// Limits it to the `n`-th operation that matches, counted from 1, since the rule is in force.
    pub fn nth(mut self, n: u64) -> Rule {
        self.nth = Some(n);
        self
    }

    /// Limits it to `n` times.
    pub fn times(mut self, n: u64) -> Rule {
        self.times = Some(n);
        self
    }

    /// Sets the fate of the bytes, for [`Fault::FlushError`]. Default: [`Dirty::Lost`].
    pub fn dirty(mut self, dirty: Dirty) -> Rule {
        self.dirty = dirty;
        self
    }

    /// Returns the fault.
    pub fn fault(&self) -> Fault {
        self.fault
    }
}
