//! Clocks that jump while a member runs: libfaketime between the program and its clocks, with an offset in a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time for which the library uses its last offset. It has whole seconds.
pub(crate) const CACHE: Duration = Duration::from_secs(1);

const YEAR_S: i64 = 365 * 24 * 3600;

/// Where Debian's package libfaketime has it, for a program with threads.
const LIBRARIES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
];

/// Which clocks of a member can jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// None: the library is not there.
    Real,
    /// The time of day.
    Day,
    /// The clock for durations as well, which never runs backwards.
    Both,
}

#[derive(Debug)]
pub(crate) struct Clocks {
    library: Option<PathBuf>,
    /// Of each member, in seconds.
    offsets: [i64; 3],
}

impl Clocks {
    pub(crate) fn new() -> Clocks {
        let library = LIBRARIES.iter().map(PathBuf::from).find(|library| library.exists());
        let library = library.filter(|library| is_fooled(library));
        if library.is_none() {
            println!("no libfaketime here (Debian's package faketime): jumps of clocks are left out");
        }
        Clocks { library, offsets: [0; 3] }
    }

    /// One member has its real clocks, so that the library's own doings are not all that is seen.
    pub(crate) fn of(&self, node: usize) -> Clock {
        match (&self.library, node) {
            (Some(_), 1) => Clock::Day,
            (Some(_), 2) => Clock::Both,
            _ => Clock::Real,
        }
    }

    /// Sets a member's clocks right, and has its next process read them from the file.
    pub(crate) fn start(&mut self, node: usize, file: &Path, command: &mut Command) {
        let Some(library) = self.library.as_ref().filter(|_| self.of(node) != Clock::Real) else { return };
        self.offsets[node] = 0;
        write(file, 0);
        command
            .env("LD_PRELOAD", library)
            .env("FAKETIME_TIMESTAMP_FILE", file)
            .env("FAKETIME_CACHE_DURATION", CACHE.as_secs().to_string())
            .env("FAKETIME_DONT_FAKE_MONOTONIC", if self.of(node) == Clock::Day { "1" } else { "0" });
    }

    /// Lets a member's clocks jump; `draw` decides how far.
    pub(crate) fn jump(&mut self, node: usize, file: &Path, mut draw: impl FnMut(u64) -> u64) {
        let offset = match self.of(node) {
            Clock::Real => return,
            Clock::Day => {
                [-10 * YEAR_S, 10 * YEAR_S, 3 * YEAR_S, -3 * YEAR_S][draw(4) as usize] + draw(1000) as i64
            }
            Clock::Both => self.offsets[node] + [20, 3600, 24 * 3600, 3 * YEAR_S][draw(4) as usize],
        };
        self.offsets[node] = offset;
        write(file, offset);
    }
}

/// In one step: the library may read at any time.
fn write(file: &Path, offset_s: i64) {
    let new = file.with_extension("new");
    fs::write(&new, format!("{offset_s:+}\n")).expect("room");
    fs::rename(new, file).expect("a file");
}

/// Returns whether a program with the library has another time of day.
fn is_fooled(library: &Path) -> bool {
    let mut date = Command::new("date");
    date.arg("+%Y").env("LD_PRELOAD", library).env("FAKETIME", format!("{:+}", -10 * YEAR_S));
    let printed = date.output().map(|done| String::from_utf8_lossy(&done.stdout).trim().to_owned());
    printed.is_ok_and(|year| year.parse::<u64>().is_ok_and(|year| year + 5 < this_year()))
}

fn this_year() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    1970 + since / YEAR_S as u64
}

/// Returns how many lines of a member's log have the time of a clock that had jumped by years.
pub(crate) fn lines_of_other_years(log: &str) -> usize {
    let year = |line: &str| line.get(..5)?.strip_suffix('-')?.parse::<u64>().ok();
    log.lines().filter_map(year).filter(|year| year.abs_diff(this_year()) > 1).count()
}
