//! Opens a log: its directory, its lock, recovery, and the segment in which it continues.

use std::future::{Future, poll_fn};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use forebay::{Dir, Durability, Engine, File, FileKind, Lock, Open, Waitable};

use crate::end_file::{self, END_NAME, END_NEW_NAME, EndFile, FoundEnd};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{GRAIN, UNIT_MAX, segment_generation, segment_name};
use crate::options::Options;
use crate::recover::{NeededSegments, Outcome, Recovery, Scan, recover};
use crate::segment::{
    LOCK_PATIENCE, Maker, RESERVE_NAME, RESERVE_NEW_NAME, lock_segment, locked_in_time, scan_file,
};
use crate::wal::Wal;

mod bootstrap;
mod holders;
mod home;
mod read_only;
mod resume;
mod salvage;
mod spare;

pub use holders::Holders;
pub use home::{make_dirs, parent_of, sync_name};
use resume::NEW_NAME;

/// The file whose lock marks a log as open.
pub(crate) const LOCK_NAME: &str = "wal.lock";
/// Prefix of the names of copies of damaged segments, before the segment's name.
const SALVAGED: &str = "salvaged-";
/// The directory that file systems put into their root.
const LOST_AND_FOUND: &str = "lost+found";

/// Returns whether a file next to the segments belongs to the log, or to the file system.
pub(crate) fn is_known(name: &str) -> bool {
    let known = [LOCK_NAME, NEW_NAME, END_NAME, END_NEW_NAME, RESERVE_NAME, RESERVE_NEW_NAME, LOST_AND_FOUND];
    known.contains(&name) || name.starts_with(SALVAGED)
}

impl Wal {
    /// Opens the log in a directory, and returns it with a report of recovery. Creates a log in a directory
    /// that is empty or does not exist, unless [`Options::create`] forbids it.
    ///
    /// Reads and checks every segment that holds live records, in pieces of 256 KiB. It needs memory for these, for the longest
    /// group (a damaged one may claim to be as long as its segment), and some 250 bytes for each group. A log that was not closed
    /// continues in a fresh segment, so that damage is never followed by new groups. By default, and with
    /// [`Fill::Zeros`](crate::Fill::Zeros), a first segment is filled with zeros, which takes as long as writing
    /// [`Options::segment_bytes`]. The work starts with the call; dropping the future closes the log again.
    ///
    /// The log stays in the directory that `dir` leads to now. It keeps working there when the directory is
    /// moved, and touches nothing that is put in its place. When the directory or the segment is removed, the
    /// next append fails.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) if acknowledged records are damaged or missing, unless
    /// [`Options::salvage`] is set; [`ErrorKind::Locked`](crate::ErrorKind::Locked) while another handle or process has it open,
    /// [`ErrorKind::Version`](crate::ErrorKind::Version), [`ErrorKind::Foreign`](crate::ErrorKind::Foreign) for segments of several
    /// logs, and for a directory that holds something else and no log, [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput)
    /// for options out of range, [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) if the disk is full and the log's reserve is
    /// missing or too short, and system errors. After an error the log is unchanged.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Options, Wal};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// let options = Options::new().segment_bytes(4 << 20);
    /// let (wal, recovery) = Wal::open(&engine, dir.path(), options).await?;
    /// for lost in &recovery.lost {
    ///     eprintln!("records {} to {} are gone", lost.first, lost.last); // with Options::salvage only
    /// }
    /// println!("{} records, of which {} were not proven durable", recovery.last, recovery.tail_records);
    /// wal.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn open(
        engine: &Engine,
        dir: impl AsRef<Path>,
        options: Options,
    ) -> Waitable<impl Future<Output = Result<(Wal, Recovery)>> + Send + 'static> {
        begin(engine, Where::Path(dir.as_ref().to_path_buf()), options)
    }

    /// Opens the log in an open directory, as [`open`](Wal::open) does. The log names its files relative to
    /// this directory, even if the directory is moved. For the store.
    ///
    /// # Errors
    /// Those of [`open`](Wal::open).
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Options, Wal};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// let directory = engine.open_dir(dir.path()).wait()?;
    /// let (wal, _) = Wal::open_in(&engine, &directory, Options::new().segment_bytes(1 << 20)).wait()?;
    /// wal.append(b"a record").wait()?;
    /// # wal.close().wait()?;
    /// # Ok(()) }
    /// ```
    #[doc(hidden)]
    pub fn open_in(
        engine: &Engine,
        dir: &Dir,
        options: Options,
    ) -> Waitable<impl Future<Output = Result<(Wal, Recovery)>> + Send + 'static> {
        begin(engine, Where::Dir(dir.clone()), options)
    }
}

/// Starts an open: the work is under way when this returns.
fn begin(
    engine: &Engine,
    dir: Where,
    options: Options,
) -> Waitable<impl Future<Output = Result<(Wal, Recovery)>> + Send + 'static + use<>> {
    let mut task = check(engine, &options).map_err(Some).map(|()| {
        let (handle, shard, class) = (engine.clone(), options.shard, options.class);
        engine.spawn_on_shard(shard, class, move || open(handle, dir, options))
    });
    Waitable::new(
        "open the log",
        poll_fn(move |context| match &mut task {
            Ok(task) => Pin::new(task).poll(context).map(|opened| -> Result<(Wal, Recovery)> { opened? }),
            Err(error) => Poll::Ready(Err(error.take().unwrap_or_else(again))),
        }),
    )
}

fn again() -> Error {
    Error::new(ErrorKind::InvalidInput, "polled again after it had completed")
}

/// Minimum length of a segment, in bytes.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Maximum length of a segment, in bytes: a group with a segment's worth of records is one write.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

fn check(engine: &Engine, options: &Options) -> Result<()> {
    let bytes = options.segment_bytes;
    let fault = if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes)
        || !bytes.is_multiple_of(u64::from(GRAIN))
    {
        "segment_bytes must be a multiple of 4,096 from 64 KiB to 1 GiB"
    } else if options.durability == Durability::None {
        "durability must not be None: an acknowledged record has to be durable"
    } else if options.group_bytes_max < GRAIN as usize {
        "group_bytes_max must be at least 4,096"
    } else if options.pending_bytes_max == 0 || options.record_bytes_max == 0 {
        "pending_bytes_max and record_bytes_max must be at least 1"
    } else if options.first_lsn.0 == u64::MAX {
        "first_lsn must be below 18446744073709551615: no record can have that number"
    } else if options.read_only && options.salvage {
        "salvage writes, and read_only forbids that: choose one of the two"
    } else if options.shard >= engine.shard_count() {
        "the engine has no such shard: they are counted from 0"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::InvalidInput, fault))
}

/// The location of a log. All calls of an open log name files relative to the directory handle, so that the
/// log keeps working if its directory is moved.
pub(crate) enum Where {
    Path(PathBuf),
    Dir(Dir),
}

impl Where {
    async fn open(self, engine: &Engine, create: bool) -> Result<Dir> {
        let path = match self {
            Where::Path(path) => path,
            Where::Dir(dir) => return Ok(dir),
        };
        let metadata = match engine.metadata(&path).await {
            Err(error) if create && error.kind() == forebay::ErrorKind::NotFound => {
                make_dirs(engine, &path).await?;
                engine.metadata(&path).await?
            }
            other => other?,
        };
        if !metadata.is_dir() {
            let text = "this is not a directory: give one for the log";
            return Err(Error::at(ErrorKind::InvalidInput, &path, text));
        }
        Ok(engine.open_dir(&path).await?)
    }
}

/// Takes the log's lock. A writer puts its process's id into the lock's file, for the error texts of other processes. A reader
/// takes the lock shared; it makes no file, as a copy of a log may lack it.
///
/// # Errors
/// [`ErrorKind::Locked`] if it [remains held](holders_of_taken).
async fn lock_log(engine: &Engine, dir: &Dir, options: &Options) -> Result<Option<File>> {
    let is_reader = options.read_only;
    let (open, lock) =
        if is_reader { (Open::read(), Lock::Shared) } else { (Open::create(), Lock::Exclusive) };
    let file = match dir.open(LOCK_NAME, open.buffered().shard(options.shard)).await {
        Err(error) if is_reader && error.kind() == forebay::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    if let Some(holders) = holders_of_taken(engine, &file, lock).await? {
        let path = dir.path().join(LOCK_NAME);
        return Err(Error::at(ErrorKind::Locked, &path, locked_text(&holders)));
    }
    if engine.driver() != "sim" && !is_reader {
        // If this fails, for instance on a full disk, errors name the process only where the system reports it.
        let _ = file.write(0, format!("{:<HOLDER_BYTES$}", std::process::id()).into_bytes()).await;
    }
    Ok(Some(file))
}

/// Takes a log's lock, and returns its holders if it remains held. If this same process has the log open, the call waits for up to
/// a second: the last drop of a log closes it in the background. If the process that has it open is dead, the call waits for up to
/// ten: the kernel keeps the locks of a killed process until it has torn down its rings.
pub(crate) async fn holders_of_taken(engine: &Engine, file: &File, lock: Lock) -> Result<Option<Holders>> {
    if locked_in_time(file, lock, Duration::ZERO).await? {
        return Ok(None);
    }
    let holders = holders_of(engine, file).await;
    let is_over = || !holders.processes.is_empty() && holders.processes.iter().all(|pid| is_dead(*pid));
    let patience = if holders.has_own() {
        LOCK_PATIENCE
    } else if is_over() {
        LOCK_PATIENCE * 10
    } else {
        Duration::ZERO
    };
    let is_ours = locked_in_time(file, lock, patience).await?;
    Ok((!is_ours).then_some(holders))
}

/// Returns the holders of a log's lock that the system reports, else the process that recorded itself last.
async fn holders_of(engine: &Engine, file: &File) -> Holders {
    if engine.driver() == "sim" {
        return Holders::recorded(Some(std::process::id()));
    }
    match file.metadata().await.map(|metadata| Holders::of(&metadata)) {
        Ok(found) if found.is_certain => found,
        _ => Holders::recorded(holder_of(file).await),
    }
}

/// Length of the process id in the lock's file, padded with spaces.
const HOLDER_BYTES: usize = 16;

/// Returns the id of the process that recorded itself in a lock's file.
async fn holder_of(file: &File) -> Option<u32> {
    let text = file.read_up_to(0..HOLDER_BYTES as u64).await.ok()?;
    std::str::from_utf8(&text).ok()?.trim().parse().ok()
}

/// Returns whether a process has ended. One of another pid namespace seems to have.
fn is_dead(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return std::path::Path::new("/proc/self/stat").exists();
    };
    // The state follows the name, which is in parentheses: Z and X are those of ended processes.
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['Z', 'X']))
}

fn locked_text(holders: &Holders) -> String {
    match holders.processes[..] {
        [] => "somebody else has this log open; close it there first".to_owned(),
        [own] if own == std::process::id() => {
            format!("{holders} has this log open; close or drop its other handles first")
        }
        _ if !holders.is_certain => format!(
            "somebody else has this log open, last opened by {holders}; close it there, or wait for what reads it"
        ),
        _ if holders.is_shared => {
            format!("this log is being read in {holders}; close it there, or wait for the end of that")
        }
        _ => format!("this log is open in {holders}; close it there first"),
    }
}

/// State of an open in progress.
struct Scene {
    engine: Engine,
    dir: Dir,
    options: Options,
    /// `None` for a reader of a log without the lock's file.
    lock: Option<File>,
    maker: Maker,
    found: FoundLog,
}

/// The contents of a log's directory.
struct FoundLog {
    /// The generations of all segments in the directory, ascending.
    generations: Vec<u64>,
    /// The record of the log's end outside of the segments.
    end: FoundEnd,
}

/// Runs on the log's shard.
async fn open(engine: Engine, dir: Where, mut options: Options) -> Result<(Wal, Recovery)> {
    options.create &= !options.read_only;
    let dir = dir.open(&engine, options.create).await?;
    let maker = Maker {
        engine: engine.clone(),
        dir: dir.clone(),
        shard: options.shard,
        class: options.class,
        bytes: options.segment_bytes,
        written_bytes: Arc::default(),
        no_zeros: Arc::default(),
    };
    // A directory without a log gets no lock either. Another opener may be making the log meanwhile: its first file is the lock.
    let is_locked = async || dir.metadata(LOCK_NAME).await.is_ok();
    if !is_locked().await
        && let Err(error) = look(&maker, &options).await
        && !is_locked().await
    {
        return Err(error);
    }
    let lock = lock_log(&engine, &dir, &options).await?;
    let opened = match look(&maker, &options).await {
        Ok((found, outcome)) => {
            let scene = Scene { engine, dir, options, lock: lock.clone(), maker, found };
            scene.open(outcome).await
        }
        Err(error) => Err(error),
    };
    if opened.is_err()
        && let Some(lock) = lock
    {
        let _ = lock.unlock().await;
    }
    opened
}

/// Recovers the log of a directory and changes nothing. Without an outcome where a log is to be created.
///
/// # Errors
/// Those of recovery; [`ErrorKind::Foreign`] for a directory that holds something else and no log, [`ErrorKind::InvalidInput`] for
/// a directory without a log that is not to be created.
async fn look(maker: &Maker, options: &Options) -> Result<(FoundLog, Option<Outcome>)> {
    let dir = &maker.dir;
    let (mut generations, mut strangers) = (Vec::new(), Vec::new());
    for entry in dir.read_dir().await? {
        let name = entry.name().to_str();
        match name.and_then(segment_generation).filter(|_| entry.kind() == FileKind::File) {
            Some(generation) => generations.push(generation),
            None if name.is_some_and(is_known) => {}
            None => strangers.push(entry.name().to_os_string()),
        }
    }
    generations.sort_unstable();
    let end = end_file::find(dir, false).await?;
    let outcome = recover(read(maker, &generations, options.read_only).await?, &end, options.salvage)?;
    if outcome.is_none() {
        if !options.create {
            let text = "there is no log in this directory, and this open creates none";
            return Err(Error::at(ErrorKind::InvalidInput, dir.path(), text));
        }
        if let Some(stranger) = strangers.iter().min() {
            let text = format!("the directory is not empty and holds no log, but {stranger:?}");
            return Err(Error::at(ErrorKind::Foreign, dir.path(), text));
        }
    }
    Ok((FoundLog { generations, end }, outcome))
}

/// Reads the segments that the log may need, newest first.
async fn read(maker: &Maker, generations: &[u64], is_reader: bool) -> Result<Vec<Scan>> {
    let (mut scans, mut needed) = (Vec::new(), NeededSegments::default());
    for &generation in generations.iter().rev() {
        if !needed.includes(generation) {
            break;
        }
        let (path, name) = (maker.path(generation), segment_name(generation));
        let file = maker.dir.open(name, Open::read().shard(maker.shard)).await?;
        if is_reader {
            // A write that a dead process left to the kernel may still complete.
            lock_segment(&file, Lock::Shared).await?;
            file.unlock().await?;
        }
        let scan = scan_file(&file, path, generation).await?;
        needed.add(&scan);
        scans.push(scan);
    }
    Ok(scans)
}

impl Scene {
    /// Continues the log that was found, or creates one.
    async fn open(self, outcome: Option<Outcome>) -> Result<(Wal, Recovery)> {
        match outcome {
            Some(outcome) if self.options.read_only => self.read_only(outcome).await,
            Some(outcome) => {
                if self.options.salvage {
                    self.keep_copies(&outcome).await?;
                }
                self.resume(outcome).await
            }
            None => self.create().await,
        }
    }

    /// Returns the file `wal.end` of this log, to continue from its newest record.
    fn end_file(&self, log_id: u128) -> EndFile {
        let record = self.found.end.record.filter(|record| record.log_id == log_id);
        let none = FoundEnd::none(self.dir.path());
        let found = if record.is_some() { &self.found.end } else { &none };
        EndFile::new(&self.dir, found, self.options.shard, self.maker.written_bytes.clone())
    }

    /// Returns the write unit: offsets and lengths of writes to this file are multiples of it.
    fn unit(&self, file: &File) -> Result<u32> {
        let unit = file.alignment().offset.max(GRAIN);
        if unit.is_power_of_two() && unit <= UNIT_MAX {
            Ok(unit)
        } else {
            Err(Error::at(
                ErrorKind::InvalidInput,
                file.path(),
                format!("the device writes in units of {unit} bytes, and a log knows at most {UNIT_MAX}"),
            ))
        }
    }
}
