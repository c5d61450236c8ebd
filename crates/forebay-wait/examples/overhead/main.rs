//! The overhead of being measured: the same work without it, with it, and without it again, in turn.
//! `scripts/bench wait` builds it optimised and runs it.
//!
//! `overhead [--dir DIR] [--rounds COUNT] [--seconds SECONDS] [--work getppid|pread|direct] [--account]`: files are made in DIR
//! (default: the working directory) and removed. The fourth run of each round is like the first, and its row shows which
//! differences are noise. The last rows are the kernel's own account of the programs; `--account` prints only those.

#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "a program")]

mod account;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_wait::PauseOutcome;

const BLOCK: usize = 4096;
const FILE_BYTES: u64 = 256 << 20;
const CALLS: u32 = 300_000;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let done = match arguments.first().and_then(|word| word.to_str()) {
        Some("work") => work(&arguments[1..]),
        _ => compare(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overhead: {error}");
            ExitCode::FAILURE
        }
    }
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A piece of work and its figure.
struct Work {
    name: &'static str,
    what: &'static str,
    threads: u32,
    /// The figure is nanoseconds for a call; otherwise calls a second.
    is_time: bool,
}

const WORKS: [Work; 4] = [
    Work { name: "getppid", what: "a call that is not about files", threads: 1, is_time: true },
    Work { name: "pread", what: "pread of 4 KiB from the page cache", threads: 1, is_time: true },
    Work { name: "direct", what: "direct reads of 4 KiB at random", threads: 1, is_time: false },
    Work { name: "direct", what: "direct reads of 4 KiB at random", threads: 8, is_time: false },
];

/// Ways to run a piece of work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Without,
    With,
    /// During a measurement of another process.
    Beside,
    /// Like the first, to show which differences are noise.
    Again,
}

impl Way {
    const ALL: [Self; 4] = [Self::Without, Self::With, Self::Beside, Self::Again];

    fn name(self) -> &'static str {
        match self {
            Self::Without => "without",
            Self::With => "measured",
            Self::Beside => "another process measured",
            Self::Again => "without, again",
        }
    }
}

fn compare(arguments: &[OsString]) -> Outcome<()> {
    let option = |name: &str| {
        let place = arguments.iter().position(|word| word == name)?;
        arguments.get(place + 1).and_then(|word| word.to_str())
    };
    let rounds: usize = option("--rounds").map_or(Ok(9), str::parse)?;
    let seconds: f64 = option("--seconds").map_or(Ok(1.0), str::parse)?;
    let directory = PathBuf::from(option("--dir").unwrap_or("."));
    forebay_wait::probe()?;
    let scratch = Scratch::new(&directory)?;
    let only_account = arguments.iter().any(|word| word == "--account");
    if !only_account {
        println!("medians of {rounds} rounds, each way in turn; smallest and largest in brackets");
    }
    let chosen = option("--work");
    let is_chosen = |work: &&Work| !only_account && chosen.is_none_or(|name| name == work.name);
    for work in WORKS.iter().filter(is_chosen) {
        let unit = if work.is_time { "ns a call" } else { "calls a second" };
        let title = format!("{}, {} thread(s), {unit}", work.what, work.threads);
        println!("\n{title}");
        let mut figures: [Vec<f64>; 4] = Default::default();
        for round in 0..rounds {
            for position in 0..Way::ALL.len() {
                // The order rotates, so that no way is always the first.
                let index = (position + round) % Way::ALL.len();
                figures[index].push(one(work, Way::ALL[index], seconds, &scratch)?);
            }
        }
        let base = median(&figures[0]);
        for (way, figures) in Way::ALL.iter().zip(&figures) {
            let change = (median(figures) / base - 1.0) * 100.0;
            let apart = median(figures) - base;
            let (low, high) = figures
                .iter()
                .fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(*value), high.max(*value)));
            let told =
                if *way == Way::Without { String::new() } else { format!("{change:+7.1} % {apart:+9.0}") };
            println!("  {:<26} {:>9.0} [{low:.0} to {high:.0}] {told}", way.name(), median(figures));
            let figure = format!("{:.0}", median(figures));
            forebay_test::record("wait", &title, &figure, way.name(), &format!("{low:.0} to {high:.0}"))?;
        }
    }
    if account::exists() && chosen.is_none() {
        for _ in 0..rounds.min(3) {
            account::print(seconds.max(1.0) * 3.0, &scratch)?;
        }
    }
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Returns the figure of one run in a new process.
fn one(work: &Work, way: Way, seconds: f64, scratch: &Scratch) -> Outcome<f64> {
    let told = scratch.told();
    let words = [
        std::env::current_exe()?.into_os_string(),
        "work".into(),
        work.name.into(),
        work.threads.to_string().into(),
        seconds.to_string().into(),
        scratch.file().into(),
        told.clone().into(),
    ];
    if way == Way::With {
        let report = forebay_wait::run(&words, |_| ())?;
        if report.exit_code != Some(0) {
            return Err("the work failed".into());
        }
    } else {
        let beside = (way == Way::Beside).then(IdleWatch::start).transpose()?;
        if !Command::new(&words[0]).args(&words[1..]).status()?.success() {
            return Err("the work failed".into());
        }
        beside.map_or(Ok(()), IdleWatch::end)?;
    }
    Ok(fs::read_to_string(&told)?.trim().parse()?)
}

/// A measurement of a process that does nothing.
struct IdleWatch {
    idle: Child,
    stop: Arc<AtomicBool>,
    watcher: std::thread::JoinHandle<Result<forebay_wait::Report, forebay_wait::Error>>,
}

impl IdleWatch {
    fn start() -> Outcome<Self> {
        let idle = Command::new("sleep").arg("3600").stdout(Stdio::null()).spawn()?;
        let (number, stop) = (idle.id(), Arc::new(AtomicBool::new(false)));
        let (began, asked) = (Arc::new(AtomicBool::new(false)), Arc::clone(&stop));
        let begun = Arc::clone(&began);
        let watcher = std::thread::spawn(move || {
            forebay_wait::watch(number, Duration::from_secs(3600), |time| {
                begun.store(true, Ordering::Release);
                std::thread::sleep(time);
                if asked.load(Ordering::Acquire) { PauseOutcome::Asked } else { PauseOutcome::Going }
            })
        });
        while !began.load(Ordering::Acquire) && !watcher.is_finished() {
            std::thread::yield_now();
        }
        Ok(Self { idle, stop, watcher })
    }

    fn end(mut self) -> Outcome<()> {
        self.stop.store(true, Ordering::Release);
        let ended = self.watcher.join();
        self.idle.kill()?;
        self.idle.wait()?;
        ended.map_err(|_| "the watching failed")??;
        Ok(())
    }
}

/// A directory with the file to read, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(beside: &Path) -> Outcome<Self> {
        let path = beside.join(format!(".forebay-overhead-{}", std::process::id()));
        fs::create_dir(&path)?;
        let scratch = Self(path);
        let file = OpenOptions::new().write(true).create_new(true).open(scratch.file())?;
        let mut state = 88_172_645_463_325_252_u64 ^ u64::from(std::process::id());
        let mut piece = vec![0; 1 << 20];
        for place in (0..FILE_BYTES).step_by(piece.len()) {
            for word in piece.chunks_exact_mut(8) {
                word.copy_from_slice(&next(&mut state).to_le_bytes());
            }
            file.write_all_at(&piece, place)?;
        }
        file.sync_all()?;
        Ok(scratch)
    }

    fn file(&self) -> PathBuf {
        self.0.join("data")
    }

    /// Returns the path where the work writes its figure.
    fn told(&self) -> PathBuf {
        self.0.join("figure")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // An earlier failure has been reported.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// In the child: does the work and writes its figure.
fn work(words: &[OsString]) -> Outcome<()> {
    let [name, threads, seconds, file, told] = words else { return Err("five words".into()) };
    let text = |word: &OsString| word.to_str().map(str::to_owned).ok_or("a readable word");
    let (threads, seconds): (u64, f64) = (text(threads)?.parse()?, text(seconds)?.parse()?);
    let figure = match text(name)?.as_str() {
        "getppid" => each(|| {
            // SAFETY: the call has no arguments and cannot fail.
            unsafe { libc::getppid() };
            Ok(())
        })?,
        "pread" => {
            let (file, mut buffer) = (File::open(file)?, vec![0; BLOCK]);
            each(|| file.read_exact_at(&mut buffer, 0))?
        }
        _ => direct(Path::new(file), threads, seconds)?,
    };
    fs::write(told, figure.to_string())?;
    Ok(())
}

/// Returns the smallest of nine means: other load on the machine only adds.
fn each(mut call: impl FnMut() -> std::io::Result<()>) -> std::io::Result<f64> {
    let mut best = f64::MAX;
    for _ in 0..9 {
        let begun = Instant::now();
        for _ in 0..CALLS / 9 {
            call()?;
        }
        best = best.min(begun.elapsed().as_nanos() as f64 / f64::from(CALLS / 9));
    }
    Ok(best)
}

/// Returns the calls a second of this many threads.
fn direct(path: &Path, threads: u64, seconds: f64) -> Outcome<f64> {
    let begun = Instant::now();
    let end = begun + Duration::from_secs_f64(seconds);
    let reader = |number: u64| -> std::io::Result<u64> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
        let mut memory = vec![0; 2 * BLOCK];
        let start = memory.as_ptr().align_offset(BLOCK);
        // Other places in each run: a host that caches must not have seen them.
        let mut state =
            begun.elapsed().as_nanos() as u64 ^ number << 32 ^ u64::from(std::process::id()) << 16 | 1;
        let mut count = 0;
        while Instant::now() < end {
            let place = next(&mut state) % (FILE_BYTES / BLOCK as u64) * BLOCK as u64;
            file.read_exact_at(&mut memory[start..start + BLOCK], place)?;
            count += 1;
        }
        Ok(count)
    };
    let counts = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|number| scope.spawn(move || reader(number))).collect();
        all.into_iter().map(|thread| thread.join().unwrap_or(Ok(0))).collect::<Result<Vec<_>, _>>()
    })?;
    Ok(counts.iter().sum::<u64>() as f64 / begun.elapsed().as_secs_f64())
}
