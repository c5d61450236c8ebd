//! A process of a test's own program that works until it is killed, again and again.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::children::end_with_parent;
use crate::draw::mix;

/// Variable with the directory of the process.
const DIR: &str = "FOREBAY_TEST_KILLS_DIR";
/// Variable with the number of the process.
const LIFE: &str = "FOREBAY_TEST_KILLS_LIFE";
/// The longest time that a killed process holds its locks: until the kernel has torn down its rings.
const LOCKED_MAX: Duration = Duration::from_secs(60);

/// A line that the process has written: its first word, and the numbers in it.
pub type Line = (String, Vec<u64>);

/// Processes that are killed one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Kills<'a> {
    /// The ignored test that is the process, by its full name. It works for ever, and reports each step with [`say`].
    pub worker: &'a str,
    /// The directory of all of them.
    pub dir: &'a Path,
    /// The number of kills in an optimised build; otherwise there are half as many.
    pub count: u64,
    /// The number of kills in a short run or on a slow machine.
    pub least: u64,
    /// The time after which only `least` kills are made.
    pub time: Duration,
    /// A process is killed before it has written this many lines.
    pub lines: u64,
}

impl Kills<'_> {
    /// Starts the processes and kills them. `check` gets the number of each life and its lines, after its end.
    ///
    /// # Panics
    /// If a process ended by itself, or cannot be started.
    pub fn run(&self, mut check: impl FnMut(u64, Vec<Line>)) {
        let begun = Instant::now();
        let count =
            if crate::one_in(2) > 1 { self.least } else { self.count / crate::one_in_daily(2) as u64 };
        let mut life = 0;
        while life < count && (life < self.least || begun.elapsed() < self.time) {
            let lines = self.live(life).expect("a process that is killed");
            check(life, lines);
            life += 1;
        }
        println!("{life} kills in {:?}", begun.elapsed());
    }

    /// Runs one process until it is killed. Returns its lines: the last lines before its death are in the pipe.
    fn live(&self, life: u64) -> io::Result<Vec<Line>> {
        let drawn = mix(life);
        let enough = match drawn >> 60 {
            0 => 0,
            1 => 1,
            _ => (drawn >> 33) % self.lines,
        };
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args([self.worker, "--exact", "--ignored", "--nocapture"])
            .envs([(DIR, self.dir.as_os_str()), (LIFE, life.to_string().as_ref())])
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = end_with_parent(&mut command).spawn()?;
        let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut lines = Vec::new();
        let mut is_killed = enough == 0;
        if is_killed {
            child.kill()?;
        }
        for line in BufReader::new(out).lines() {
            let line = line?;
            let mut words = line.split_whitespace();
            let word = words.next().unwrap_or_default().to_owned();
            lines.push((word, words.filter_map(|word| word.parse().ok()).collect()));
            if lines.len() as u64 >= enough && !is_killed {
                child.kill()?;
                is_killed = true;
            }
        }
        let status = child.wait()?;
        assert!(is_killed, "the process ended by itself in life {life}: {status}");
        Ok(lines)
    }
}

/// Returns the directory and the number of the process that is to be killed; `None` in any other process.
pub fn place() -> Option<(PathBuf, u64)> {
    let life = std::env::var(LIFE).ok()?.parse().ok()?;
    Some((std::env::var_os(DIR)?.into(), life))
}

/// Writes one line to standard output in one call: a kill never leaves a part of it.
///
/// # Panics
/// If the reader has closed the pipe.
pub fn say(line: &str) {
    let mut out = io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).expect("the test listens");
}

/// Calls `open` for something that a killed process may still have locked.
///
/// # Errors
/// Those of `open`. While `is_locked` is true of the error, the call is repeated, up to a limit.
pub async fn opened<T, E>(
    open: impl AsyncFn() -> Result<T, E>,
    is_locked: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let begun = Instant::now();
    loop {
        match open().await {
            Err(error) if is_locked(&error) && begun.elapsed() < LOCKED_MAX => std::thread::yield_now(),
            opened => return opened,
        }
    }
}
