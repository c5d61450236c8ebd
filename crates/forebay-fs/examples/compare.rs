//! The same work by `tokio::fs`, by this crate and by threads, in turn: `scripts/bench fs [--dir DIR] [--rounds N] [--rows TEXT]`,
//! of which TEXT is a part of the names of rows. Prints microseconds a call, and of the rounds' ratios the median with the least
//! and the greatest. Cold rows drop the file from the page cache before.

use std::future::Future;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_test::draw::mix;

const FILE_BYTES: u64 = 1 << 30;
const PASS_BYTES: u64 = 256 << 20;
const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// Tasks, or threads, of a row that has reads in flight.
const DEPTH: u64 = 32;
/// The ranges of tokio#8367's program, of one to seven pages, each in a slot of the file.
const RANGES: u64 = 20_000;
const RANGE_TASKS: u64 = 128;
const SLOT: u64 = FILE_BYTES / RANGES / PAGE as u64 * PAGE as u64;
const CLIENTS: u64 = 8;
const MANY_FILES: u64 = 100_000;

#[derive(Clone, Copy)]
enum Row {
    /// One page, again and again, by one task.
    Lone,
    /// Places anywhere in the file, by tasks with a file each.
    Random {
        bytes: usize,
        is_cold: bool,
    },
    /// One task, from the front.
    Pass {
        bytes: usize,
        is_cold: bool,
    },
    /// The program of tokio#8367: tasks with a file each.
    Ranges {
        is_cold: bool,
    },
    /// The same by one adaptive file and its positioned reads, on systems that have them.
    RangesAt {
        is_cold: bool,
    },
    /// A server of static files on a loopback connection for each client.
    Server {
        bytes: usize,
    },
    WholeFiles,
    Metadata,
    SmallWrites,
}

const ROWS: [Row; 21] = [
    Row::Lone,
    Row::Random { bytes: PAGE, is_cold: false },
    Row::Random { bytes: 16 * PAGE, is_cold: false },
    Row::Random { bytes: MIB, is_cold: false },
    Row::Random { bytes: PAGE, is_cold: true },
    Row::Random { bytes: 16 * PAGE, is_cold: true },
    Row::Random { bytes: MIB, is_cold: true },
    Row::Pass { bytes: PAGE, is_cold: false },
    Row::Pass { bytes: 16 * PAGE, is_cold: false },
    Row::Pass { bytes: MIB, is_cold: false },
    Row::Pass { bytes: 16 * PAGE, is_cold: true },
    Row::Pass { bytes: MIB, is_cold: true },
    Row::Ranges { is_cold: false },
    Row::Ranges { is_cold: true },
    Row::RangesAt { is_cold: false },
    Row::RangesAt { is_cold: true },
    Row::Server { bytes: PAGE },
    Row::Server { bytes: MIB },
    Row::WholeFiles,
    Row::Metadata,
    Row::SmallWrites,
];

impl Row {
    fn name(self) -> String {
        let cache = |is_cold| if is_cold { "cold" } else { "warm" };
        match self {
            Row::Lone => "a lone warm read of 4 KiB".into(),
            Row::Random { bytes, is_cold } => {
                format!("{} reads of {} KiB, {DEPTH} at once", cache(is_cold), bytes / 1024)
            }
            Row::Pass { bytes, is_cold } => {
                format!("a {} pass by pieces of {} KiB", cache(is_cold), bytes / 1024)
            }
            Row::Ranges { is_cold } => format!("{RANGES} ranges, {}", cache(is_cold)),
            Row::RangesAt { is_cold } => format!("{RANGES} positioned ranges, {}", cache(is_cold)),
            Row::Server { bytes } => format!("a server of files of {} KiB", bytes / 1024),
            Row::WholeFiles => "a whole file of 4 KiB".into(),
            Row::Metadata => format!("metadata of {MANY_FILES} files"),
            Row::SmallWrites => "a write of 100 bytes and its flush".into(),
        }
    }

    fn calls(self) -> u64 {
        match self {
            Row::Lone | Row::SmallWrites => 5_000,
            Row::Random { bytes, .. } => {
                if bytes < MIB {
                    4_000
                } else {
                    256
                }
            }
            Row::Pass { bytes, .. } => PASS_BYTES / bytes as u64,
            Row::Ranges { .. } | Row::RangesAt { .. } => RANGES,
            Row::Server { bytes } => {
                if bytes < MIB {
                    8_000
                } else {
                    400
                }
            }
            Row::WholeFiles => 2_000,
            Row::Metadata => MANY_FILES,
        }
    }

    fn tasks(self) -> u64 {
        if let Row::Ranges { .. } | Row::RangesAt { .. } = self { RANGE_TASKS } else { DEPTH }
    }

    /// What the page cache has of the file before.
    fn is_cold(self) -> Option<bool> {
        match self {
            Row::Random { is_cold, .. }
            | Row::Pass { is_cold, .. }
            | Row::Ranges { is_cold }
            | Row::RangesAt { is_cold } => Some(is_cold),
            _ => None,
        }
    }
}

/// One measurement, with places that no other uses: the layers below the page cache may cache them.
#[derive(Clone, Copy)]
struct Job {
    row: Row,
    seed: u64,
}

impl Job {
    fn random(self, n: u64) -> u64 {
        mix((self.seed << 32) | n)
    }

    /// Returns the offset and the length of the n-th read of the large file.
    fn range(self, n: u64) -> (u64, usize) {
        if let Row::Random { bytes, .. } = self.row {
            return (self.random(n) % (FILE_BYTES / bytes as u64) * bytes as u64, bytes);
        }
        let page = PAGE as u64;
        ((n * 7_919 + self.seed) % RANGES * SLOT + self.seed % 7 * page, PAGE * (1 + n as usize % 7))
    }
}

/// The files.
struct Place {
    dir: PathBuf,
    large: PathBuf,
}

impl Place {
    fn new(dir: PathBuf) -> io::Result<Place> {
        let place = Place { large: dir.join("large"), dir };
        let mut large = std::fs::File::create(&place.large)?;
        for _ in 0..FILE_BYTES / MIB as u64 {
            large.write_all(&[7; MIB])?;
        }
        std::fs::create_dir(place.dir.join("many"))?;
        for n in 0..MANY_FILES {
            std::fs::File::create(place.one_of_many(n))?;
        }
        for bytes in [PAGE, MIB] {
            for n in 0..Place::served_files(bytes) {
                std::fs::write(place.served(bytes, n), vec![7; bytes])?;
            }
        }
        Ok(place)
    }

    fn one_of_many(&self, n: u64) -> PathBuf {
        self.dir.join(format!("many/{n}"))
    }

    fn served_files(bytes: usize) -> u64 {
        if bytes < MIB { 1_000 } else { 100 }
    }

    fn served(&self, bytes: usize, n: u64) -> PathBuf {
        self.dir.join(format!("served {bytes} {}", n % Place::served_files(bytes)))
    }
}

/// Drops a file from the page cache, or loads it.
fn cache(path: &Path, is_cold: bool) -> io::Result<()> {
    let mut file = std::fs::File::open(path)?;
    if is_cold {
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        return Ok(());
    }
    let mut piece = vec![0; MIB];
    while file.read(&mut piece)? > 0 {}
    Ok(())
}

/// Runs tasks to their ends.
async fn together<F>(tasks: u64, make: impl Fn(u64) -> F) -> io::Result<()>
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let tasks: Vec<_> = (0..tasks).map(|task| tokio::spawn(make(task))).collect();
    for task in tasks {
        task.await.map_err(io::Error::other)??;
    }
    Ok(())
}

/// Asks a server for files, one after the other.
fn ask(address: SocketAddr, job: Job, client: u64) -> io::Result<()> {
    let mut socket = std::net::TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    let mut body = Vec::new();
    let calls = job.row.calls() / CLIENTS;
    for n in 0..calls {
        socket.write_all(&job.random(client * calls + n).to_le_bytes())?;
        let mut len = [0; 8];
        socket.read_exact(&mut len)?;
        body.resize(u64::from_le_bytes(len) as usize, 0);
        socket.read_exact(&mut body)?;
    }
    Ok(())
}

macro_rules! work {
    ($name:ident, $fs:ident $(:: $module:ident)?) => {
        mod $name {
            use std::io::SeekFrom;

            use $fs$(::$module)? as fs;
            use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

            use super::*;

            pub(super) async fn run(job: Job, place: Arc<Place>) -> io::Result<Duration> {
                let (row, calls) = (job.row, job.row.calls());
                match row {
                    Row::Lone => {
                        let mut file = fs::File::open(&place.large).await?;
                        let mut page = vec![0; PAGE];
                        file.read_exact(&mut page).await?;
                        let begin = Instant::now();
                        for _ in 0..calls {
                            file.seek(SeekFrom::Start(0)).await?;
                            file.read_exact(&mut page).await?;
                        }
                        Ok(begin.elapsed())
                    }
                    Row::Random { .. } | Row::Ranges { .. } | Row::RangesAt { .. } => {
                        let begin = Instant::now();
                        let reads = |task| read_ranges(job, place.clone(), task);
                        together(row.tasks(), reads).await?;
                        Ok(begin.elapsed())
                    }
                    Row::Pass { bytes, .. } => {
                        let begin = Instant::now();
                        let mut file = fs::File::open(&place.large).await?;
                        let mut piece = vec![0; bytes];
                        for _ in 0..calls {
                            file.read_exact(&mut piece).await?;
                        }
                        Ok(begin.elapsed())
                    }
                    Row::Server { bytes } => {
                        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
                        let address = listener.local_addr()?;
                        let begin = Instant::now();
                        let clients: Vec<_> = (0..CLIENTS)
                            .map(|client| std::thread::spawn(move || ask(address, job, client)))
                            .collect();
                        let mut connections = Vec::new();
                        for _ in 0..CLIENTS {
                            let (socket, _) = listener.accept().await?;
                            connections.push(tokio::spawn(serve(socket, place.clone(), bytes)));
                        }
                        for connection in connections {
                            connection.await.map_err(io::Error::other)??;
                        }
                        let time = begin.elapsed();
                        clients.into_iter().try_for_each(joined)?;
                        Ok(time)
                    }
                    Row::WholeFiles => {
                        let begin = Instant::now();
                        for n in 0..calls {
                            fs::read(place.served(PAGE, n)).await?;
                        }
                        Ok(begin.elapsed())
                    }
                    Row::Metadata => {
                        let begin = Instant::now();
                        let looks = |task| {
                            let place = place.clone();
                            async move {
                                for n in (task..calls).step_by(DEPTH as usize) {
                                    fs::metadata(place.one_of_many(n)).await?;
                                }
                                io::Result::Ok(())
                            }
                        };
                        together(DEPTH, looks).await?;
                        Ok(begin.elapsed())
                    }
                    Row::SmallWrites => {
                        let mut file = fs::File::create(place.dir.join("written")).await?;
                        let begin = Instant::now();
                        for _ in 0..calls {
                            file.write_all(&[7; 100]).await?;
                            file.flush().await?;
                        }
                        Ok(begin.elapsed())
                    }
                }
            }

            async fn read_ranges(job: Job, place: Arc<Place>, task: u64) -> io::Result<()> {
                let mut file = fs::File::open(&place.large).await?;
                let mut bytes = Vec::new();
                for n in (task..job.row.calls()).step_by(job.row.tasks() as usize) {
                    let (offset, len) = job.range(n);
                    bytes.resize(len, 0);
                    file.seek(SeekFrom::Start(offset)).await?;
                    file.read_exact(&mut bytes).await?;
                }
                Ok(())
            }

            async fn serve(
                mut socket: tokio::net::TcpStream,
                place: Arc<Place>,
                bytes: usize,
            ) -> io::Result<()> {
                socket.set_nodelay(true)?;
                let mut number = [0; 8];
                while socket.read_exact(&mut number).await.is_ok() {
                    let file = fs::File::open(place.served(bytes, u64::from_le_bytes(number))).await?;
                    socket.write_u64_le(file.metadata().await?.len()).await?;
                    let mut file = tokio::io::BufReader::with_capacity(64 << 10, file);
                    tokio::io::copy_buf(&mut file, &mut socket).await?;
                }
                Ok(())
            }
        }
    };
}

work!(by_tokio, tokio::fs);
work!(by_this_crate, forebay_fs);

/// The ranges by one file and its positioned reads, which tokio has not.
async fn read_positioned(job: Job, place: Arc<Place>) -> io::Result<Duration> {
    let begin = Instant::now();
    let file = forebay_fs::OpenOptions::new().read(true).adaptive(true).open(&place.large).await?;
    let file = Arc::new(file);
    let reads = |task| {
        let file = file.clone();
        async move {
            let mut bytes = Vec::new();
            for n in (task..RANGES).step_by(RANGE_TASKS as usize) {
                let (offset, len) = job.range(n);
                bytes.resize(len, 0);
                file.read_exact_at(&mut bytes, offset).await?;
            }
            io::Result::Ok(())
        }
    };
    together(RANGE_TASKS, reads).await?;
    Ok(begin.elapsed())
}

fn joined(thread: std::thread::JoinHandle<io::Result<()>>) -> io::Result<()> {
    thread.join().map_err(|_| io::Error::other("a thread panicked"))?
}

/// The cold reads by threads in pread(2), those of ranges with `O_DIRECT`; `None` for other rows.
fn by_threads(job: Job, place: &Arc<Place>) -> io::Result<Option<Duration>> {
    let flags = match job.row {
        Row::Random { is_cold: true, .. } => 0,
        Row::Ranges { is_cold: true } | Row::RangesAt { is_cold: true } => libc::O_DIRECT,
        _ => return Ok(None),
    };
    cache(&place.large, true)?;
    let begin = Instant::now();
    let read = move |thread: u64, place: Arc<Place>| {
        let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(&place.large)?;
        let mut memory = vec![0_u8; MIB + PAGE];
        let skip = memory.as_ptr().align_offset(PAGE);
        for n in (thread..job.row.calls()).step_by(DEPTH as usize) {
            let (offset, len) = job.range(n);
            file.read_exact_at(&mut memory[skip..skip + len], offset)?;
        }
        io::Result::Ok(())
    };
    let threads: Vec<_> = (0..DEPTH)
        .map(|thread| {
            let place = place.clone();
            std::thread::spawn(move || read(thread, place))
        })
        .collect();
    threads.into_iter().try_for_each(joined)?;
    Ok(Some(begin.elapsed()))
}

/// Runs work as a task on a fresh runtime; without workers on the calling thread.
fn on_runtime(
    workers: usize,
    work: impl Future<Output = io::Result<Duration>> + Send + 'static,
) -> io::Result<Duration> {
    let mut builder = match workers {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if workers > 0 {
        builder.worker_threads(workers);
    }
    let runtime = builder.enable_all().build()?;
    runtime.block_on(async { tokio::spawn(work).await.map_err(io::Error::other)? })
}

/// Times of one round, in seconds.
struct Round {
    tokio: f64,
    ours: f64,
    threads: Option<f64>,
}

fn measure(row: Row, workers: usize, is_ours: bool, seeds: &mut u64, place: &Arc<Place>) -> io::Result<f64> {
    *seeds += 1;
    let job = Job { row, seed: *seeds };
    if let Some(is_cold) = row.is_cold() {
        cache(&place.large, is_cold)?;
    }
    let place = place.clone();
    let time = match (is_ours, row) {
        (false, _) => on_runtime(workers, by_tokio::run(job, place)),
        (true, Row::RangesAt { .. }) => on_runtime(workers, read_positioned(job, place)),
        (true, _) => on_runtime(workers, by_this_crate::run(job, place)),
    };
    Ok(time?.as_secs_f64())
}

/// Returns the least, the median and the greatest of some values.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    [values[0], values[values.len() / 2], values[values.len() - 1]]
}

/// Prints a row, and records it for docs/results.
fn print(row: Row, runtime: &str, rounds: &[Round]) -> io::Result<()> {
    let name = row.name();
    let record = |figure: f64, unit: &str, spread: &str| {
        forebay_test::record("tokio-fs", &format!("{name}, {runtime}"), &format!("{figure:.2}"), unit, spread)
    };
    let us = |time: fn(&Round) -> f64, library: &str| {
        let [_, median, _] = spread(rounds.iter().map(time));
        let us = median * 1e6 / row.calls() as f64;
        record(us, &format!("us a call, {library}"), "")?;
        io::Result::Ok(us)
    };
    let shown = |ratios: Vec<f64>, to: &str| {
        let [least, median, greatest] = spread(ratios.into_iter());
        let ends = format!("{least:.2} to {greatest:.2}");
        record(median, &format!("ratio of times to {to}"), &ends)?;
        io::Result::Ok(format!("{median:.2} ({ends})"))
    };
    let (tokio, ours) = (us(|round| round.tokio, "tokio::fs")?, us(|round| round.ours, "forebay-fs")?);
    let to_tokio = shown(rounds.iter().map(|round| round.ours / round.tokio).collect(), "tokio::fs")?;
    let to_threads: Vec<f64> = rounds.iter().filter_map(|round| Some(round.ours / round.threads?)).collect();
    let to_threads = if to_threads.is_empty() { String::new() } else { shown(to_threads, "pread threads")? };
    println!("{name:<38} {tokio:>10.2} {ours:>10.2}   {to_tokio:<22} {to_threads}");
    Ok(())
}

fn main() -> io::Result<()> {
    let (mut folder, mut rounds, mut wanted) = (PathBuf::from("."), 5, String::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match option.as_str() {
            "--dir" => folder = value.into(),
            "--rounds" => rounds = value.parse::<u64>().map_err(io::Error::other)?.max(1),
            "--rows" => wanted = value,
            _ => return Err(io::Error::other(format!("no option {option}: --dir, --rounds, --rows"))),
        }
    }
    let dir = tempfile::tempdir_in(folder)?;
    let place = Arc::new(Place::new(dir.path().to_owned())?);
    let mut seeds = 0;
    // The engine starts.
    measure(Row::Ranges { is_cold: true }, 1, true, &mut seeds, &place)?;
    for (name, workers) in [("current-thread", 0), ("one worker", 1), ("two workers", 2)] {
        println!("\n{name:<38} {:>10} {:>10}   {:<22} to threads", "tokio us", "here us", "to tokio");
        for row in ROWS.into_iter().filter(|row| row.name().contains(&wanted)) {
            let mut done = Vec::new();
            for round in 0..rounds {
                // Each is first in turn.
                let ours_first = round % 2 == 1;
                let first = measure(row, workers, ours_first, &mut seeds, &place)?;
                let second = measure(row, workers, !ours_first, &mut seeds, &place)?;
                let (tokio, ours) = if ours_first { (second, first) } else { (first, second) };
                seeds += 1;
                let threads = by_threads(Job { row, seed: seeds }, &place)?;
                done.push(Round { tokio, ours, threads: threads.map(|time| time.as_secs_f64()) });
            }
            print(row, name, &done)?;
        }
    }
    Ok(())
}
