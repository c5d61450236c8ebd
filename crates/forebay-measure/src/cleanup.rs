//! Undo actions that run when the program ends, also by Ctrl-C: removal of temp files and cgroups, end of
//! child processes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The registry of undo actions. Clones share one registry.
#[derive(Clone, Default)]
pub struct Cleanup {
    shared: Arc<Registry>,
}

#[derive(Default)]
struct Registry {
    actions: Mutex<BTreeMap<u64, Action>>,
    next: AtomicU64,
}

/// The most attempts to remove a directory. Each attempt after the first meets only entries made since
/// the one before.
const REMOVALS_MAX: u32 = 1000;

type Action = Box<dyn FnOnce() + Send>;

impl std::fmt::Debug for Cleanup {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Cleanup").field("actions", &self.lock().len()).finish()
    }
}

impl Cleanup {
    /// Returns a registry whose actions also run, newest first, when SIGINT, SIGTERM or SIGHUP arrives. The
    /// process then exits with 128 + the signal's number.
    ///
    /// # Errors
    /// Fails when the handlers cannot be installed.
    pub fn install() -> io::Result<Self> {
        let cleanup = Self::default();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let registry = cleanup.clone();
        std::thread::Builder::new().name("forebay-signals".to_owned()).spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // The lock is held until the exit, so that the measuring thread creates nothing after this.
                let mut actions = registry.lock();
                while let Some((_, action)) = actions.pop_last() {
                    action();
                }
                #[allow(clippy::disallowed_methods, reason = "every undo action has just run")]
                std::process::exit(128 + signal);
            }
        })?;
        Ok(cleanup)
    }

    /// Runs `create` and registers `undo` for its result. Both happen under one lock, so a signal
    /// between them cannot leave anything behind. `undo` runs when the guard is dropped or a signal
    /// ends the program.
    ///
    /// `undo` must not call into this registry.
    ///
    /// # Errors
    /// Fails with the error of `create`; nothing is registered then.
    pub fn create<T>(
        &self,
        create: impl FnOnce() -> io::Result<T>,
        undo: impl FnOnce() + Send + 'static,
    ) -> io::Result<(T, Guard)> {
        let mut actions = self.lock();
        let created = create()?;
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        actions.insert(id, Box::new(undo));
        drop(actions);
        Ok((created, Guard { cleanup: self.clone(), id }))
    }

    /// Creates a new empty file for this program in `directory`. The file is removed when the guard is
    /// dropped or a signal ends the program. Its name starts with `.forebay-`, and only its owner may
    /// read and write it.
    ///
    /// # Errors
    /// Fails when the directory is missing, not writable or full.
    pub fn temp_file(&self, directory: &Path, label: &str) -> io::Result<TempFile> {
        self.temp(directory, label, Place::create_file, Place::remove)
    }

    /// Creates a new empty directory for this program in `parent`. The directory is removed with all its
    /// contents when the guard is dropped or a signal ends the program. Its name starts with `.forebay-`,
    /// and only its owner may use it.
    ///
    /// # Errors
    /// As for [`temp_file`](Self::temp_file).
    pub fn temp_directory(&self, parent: &Path, label: &str) -> io::Result<TempDirectory> {
        self.temp(parent, label, Place::create_directory, Place::remove_directory)
    }

    fn temp<T>(
        &self,
        parent: &Path,
        label: &str,
        create: fn(&Place) -> io::Result<T>,
        remove: fn(&Place),
    ) -> io::Result<Temp<T>> {
        loop {
            let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
            let name = format!(".forebay-{label}-{}-{number}.tmp", std::process::id());
            let (path, place) = (parent.join(&name), Arc::new(Place::in_directory(parent, &name)?));
            let doomed = place.clone();
            match self.create(|| create(&place), move || remove(&doomed)) {
                Ok((made, guard)) => return Ok(Temp { path, made, _guard: guard }),
                // Left over from a killed process that had the same number. It is not this
                // program's to touch.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Action>> {
        self.shared.actions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name in a directory that is held open. When that directory is moved, the name moves with it. A
/// directory put in its place is never touched.
#[derive(Debug)]
pub struct Place {
    directory: OwnedFd,
    name: String,
}

impl Place {
    /// Opens `directory` and returns the place of `name` in it.
    ///
    /// # Errors
    /// Fails when the directory is missing.
    pub fn in_directory(directory: &Path, name: &str) -> io::Result<Self> {
        let here = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(here, flags, Mode::empty())?;
        Ok(Self { directory, name: name.to_owned() })
    }

    fn create_file(&self) -> io::Result<File> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, &self.name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(File::from(file))
    }

    fn create_directory(&self) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&self.directory, &self.name, Mode::RWXU)?)
    }

    /// Removes the file of this name. Errors are ignored: the file may be removed already, and a destructor has no caller.
    fn remove(&self) {
        let _ = rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty());
    }

    /// Removes a directory with all its contents, also while threads of this process still create files in it. Files created during
    /// one attempt are found by the next. Once the directory itself is removed, nothing more can be created.
    fn remove_directory(&self) {
        let path = format!("/proc/self/fd/{}/{}", self.directory.as_raw_fd(), self.name);
        for _ in 0..REMOVALS_MAX {
            match std::fs::remove_dir_all(&path) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                // The directory may be removed already, and a destructor has no caller for other errors.
                _ => return,
            }
        }
    }
}

/// Number of leftovers that a sentence names.
const NAMED_MAX: usize = 4;

/// The remedy for leftovers: the processes of other hosts and containers are not seen here.
pub const LEFTOVERS_REMEDY: &str =
    "remove it with rm -r, unless a run on another host or in a container uses it";

/// Returns a sentence on the temp files and directories in `directory` of processes that have exited, which SIGKILL leaves behind;
/// `None` if nothing was left.
pub fn leftovers(directory: &Path) -> Option<String> {
    let names =
        std::fs::read_dir(directory).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut left: Vec<String> = names.filter(|name| is_left(name)).collect();
    left.sort_unstable();
    let more = match left.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    left.truncate(NAMED_MAX);
    let names = left.join(", ");
    let directory = directory.display();
    (!left.is_empty()).then(|| format!("a run that was killed left {names}{more} in {directory}"))
}

/// Returns whether a name is that of a temp file or directory of a process that has exited.
fn is_left(name: &str) -> bool {
    let own = name.strip_prefix(".forebay-").and_then(|name| name.strip_suffix(".tmp"));
    own.and_then(|own| own.rsplit('-').nth(1)?.parse::<u32>().ok()).is_some_and(has_exited)
}

/// Returns whether no process has this number. /proc does not show it: it may hide the processes of other users (`hidepid`).
pub(crate) fn has_exited(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

/// Runs its action when dropped, unless a signal already ran it.
#[derive(Debug)]
#[must_use = "dropping the guard runs the undo action"]
pub struct Guard {
    cleanup: Cleanup,
    id: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let action = self.cleanup.lock().remove(&self.id);
        if let Some(action) = action {
            action();
        }
    }
}

/// A file or directory that this program created; it is removed, with all its contents, when this value is
/// dropped.
#[derive(Debug)]
pub struct Temp<T> {
    path: PathBuf,
    made: T,
    _guard: Guard,
}

/// A file that this program created.
pub type TempFile = Temp<File>;
/// A directory that this program created.
pub type TempDirectory = Temp<()>;

impl<T> Temp<T> {
    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl TempFile {
    /// Returns the handle that created the file: buffered, readable and writable.
    pub fn file(&self) -> &File {
        &self.made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temp_file_goes_away_with_its_value() {
        let cleanup = Cleanup::default();
        let temp = cleanup.temp_file(&std::env::temp_dir(), "test").expect("the temp directory is writable");
        let path = temp.path().to_owned();
        assert!(path.exists());
        drop(temp);
        assert!(!path.exists());
        assert!(cleanup.lock().is_empty());
    }

    #[test]
    fn a_temp_directory_is_removed_with_its_contents() {
        let cleanup = Cleanup::default();
        let temp =
            cleanup.temp_directory(&std::env::temp_dir(), "test").expect("the temp directory is writable");
        let path = temp.path().to_owned();
        std::fs::write(path.join("file"), "text").expect("it is our directory");
        drop(temp);
        assert!(!path.exists());
    }

    /// Regression: at Ctrl-C the directory is removed while the threads that fill it still run. A removal
    /// in one attempt left it behind, with a file created between the listing and the removal.
    #[test]
    fn a_directory_that_is_being_filled_goes_away_too() {
        let cleanup = Cleanup::default();
        for _ in 0..20 {
            let temp = cleanup
                .temp_directory(&std::env::temp_dir(), "fill")
                .expect("the temp directory is writable");
            let path = temp.path().to_owned();
            let filling = std::thread::spawn({
                let path = path.clone();
                move || (0_u32..).find(|number| std::fs::write(path.join(number.to_string()), "").is_err())
            });
            while std::fs::read_dir(&path).expect("it is ours").count() < 50 {}
            drop(temp);
            assert!(filling.join().expect("it ends with the directory").is_some());
            assert!(!path.exists());
        }
    }

    /// Regression: the measured directory was moved away, and a copy of it put in its place. At the end the
    /// program removed the copy's file, which it had not created, and left its own behind.
    #[test]
    fn nothing_is_removed_in_a_directory_that_took_the_place_of_the_first() {
        let above = Cleanup::default();
        let above =
            above.temp_directory(&std::env::temp_dir(), "moved").expect("the temp directory is writable");
        let (here, moved) = (above.path().join("data"), above.path().join("data.old"));
        std::fs::create_dir(&here).expect("a new directory");
        let cleanup = Cleanup::default();
        let file = cleanup.temp_file(&here, "test").expect("it is writable");
        let directory = cleanup.temp_directory(&here, "test").expect("it is writable");
        std::fs::rename(&here, &moved).expect("it is ours");
        std::fs::create_dir_all(directory.path()).expect("the same names again");
        std::fs::write(file.path(), "another's").expect("the same names again");
        std::fs::write(directory.path().join("file"), "another's").expect("the same names again");
        let (file_path, directory_path) = (file.path().to_owned(), directory.path().to_owned());
        drop((file, directory));
        assert!(file_path.exists() && directory_path.join("file").exists());
        assert_eq!(std::fs::read_dir(&moved).expect("it is ours").count(), 0);
    }

    /// Regression: under `hidepid` the live run of another user was called killed, and its files were to be removed.
    #[test]
    fn a_process_of_anybody_is_seen_until_it_exits() {
        assert!(!has_exited(std::process::id()) && !has_exited(1));
        // Above the largest number that the kernel gives.
        assert!(has_exited(4_194_305) && has_exited(u32::MAX));
    }

    #[test]
    fn a_creation_that_fails_registers_nothing() {
        let cleanup = Cleanup::default();
        let failed = cleanup.create(|| Err::<(), _>(io::Error::other("no")), || {});
        assert!(failed.is_err());
        assert!(cleanup.lock().is_empty());
    }

    #[test]
    fn a_temp_file_in_a_missing_directory_is_an_error() {
        let missing = std::env::temp_dir().join("forebay-no-such-directory");
        assert!(Cleanup::default().temp_file(&missing, "test").is_err());
    }
}
