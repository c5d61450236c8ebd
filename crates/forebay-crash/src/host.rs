//! The host: disks with a volatile cache, a machine whose power is cut, and checks of the data that must
//! survive.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::disk::{self, Counts, Cut, Disk, Lie};
use crate::machine::{AttachedDisk, Heard, Machine, Start};
use crate::nbd::{self, SharedDisk, lock};
use crate::random::{Random, mix};
use crate::subject::{self, ALL, BOTH, ENGINES, Model, NAMES, NONE, SERVERS, on_disk_of};

const KINDS: [&str; 2] = ["ext4", "xfs"];
/// mkfs.xfs refuses less than 300 MiB.
const DISK_BYTES: u64 = 320 << 20;
/// Maximum number of lines before a cut if one subject writes alone on a disk, or engines: these write slowly.
const LINES_ALONE: u64 = 150;
/// Of a disk for three servers, and the memory of their machine.
const SERVERS_DISK_BYTES: u64 = 1 << 30;
const SERVERS_MEMORY_MIB: u32 = 1536;
const MEMORY_MIB: u32 = 512;
/// Maximum number of lines before a cut if servers write.
const SERVERS_LINES: u64 = 16;
/// Timeout for a machine without output.
const SILENCE: Duration = Duration::from_secs(240);

/// Cuts the power of virtual machines
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Ends after this many cuts
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    cuts: u64,
    /// Ends after this many seconds, once the current cut has completed
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The kernel series
    #[arg(long, default_value = "6.12")]
    kernel: String,
    /// The first seed; each machine has its own
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Machines running at a time
    #[arg(long, default_value_t = 2)]
    machines: u64,
    /// Maximum number of acknowledged operations before a cut
    #[arg(long, default_value_t = 1500)]
    writing_lines: u64,
    /// Boots the kernel in each life, instead of continuing from the saved state of a booted machine
    #[arg(long)]
    boot: bool,
    /// One flush in N completes without being done, to check that the fault is noticed
    #[arg(long, value_name = "N")]
    lying_disk: Option<u64>,
    /// QEMU completes flushes without passing them on, to check that the fault is noticed
    #[arg(long)]
    lying_qemu: bool,
    /// Three servers of forebay-etcd write, on one of the disks
    #[arg(long)]
    servers: bool,
    /// Databases of RocksDB and WiredTiger write
    #[arg(long, conflicts_with = "servers")]
    engines: bool,
    /// A further program for the machine
    #[arg(long)]
    with: Vec<PathBuf>,
    /// The program vm/run
    #[arg(long)]
    vm: PathBuf,
    /// This program, for the machine; it starts sooner without debug information
    #[arg(long)]
    program: PathBuf,
    /// A directory for sockets and, after a failure, the disks and the console output
    #[arg(long)]
    work: PathBuf,
}

impl Options {
    /// Stands for the subjects of a disk if all of them write.
    fn all(&self) -> &'static str {
        if self.engines { BOTH } else { ALL }
    }

    fn start(&self, state: Option<PathBuf>, work: PathBuf) -> Start {
        Start {
            vm: self.vm.clone(),
            kernel: self.kernel.clone(),
            program: self.program.clone(),
            with: self.with.clone(),
            memory_mib: if self.servers { SERVERS_MEMORY_MIB } else { MEMORY_MIB },
            state,
            work,
        }
    }
}

/// Totals of one series of cuts.
#[derive(Debug, Default)]
struct Tally {
    cuts: u64,
    /// Cuts before the guest started to write.
    early: u64,
    acknowledged: u64,
    disks: Counts,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let state = if options.boot { None } else { Some(prepare(options)?) };
    let begun = Instant::now();
    let left = Mutex::new(options.cuts);
    let results: Vec<_> = std::thread::scope(|scope| {
        let series: Vec<_> = (0..options.machines)
            .map(|number| {
                let (left, state) = (&left, &state);
                scope.spawn(move || {
                    let seed = options.seed + number;
                    let ended = Series::new(options, seed, state.clone())
                        .and_then(|mut series| series.run(begun, left));
                    ended.map_err(|error| {
                        // Stop the other machines as well: one failure is enough to investigate.
                        *lock(left) = 0;
                        format!("seed {seed}: {error}")
                    })
                })
            })
            .collect();
        series.into_iter().map(|one| one.join().unwrap_or_else(|_| Err("a panic".into()))).collect()
    });
    let mut sum = Tally::default();
    let mut failures = Vec::new();
    for result in results {
        match result {
            Ok(tally) => sum.add(&tally),
            Err(failure) => failures.push(failure),
        }
    }
    println!("{sum} in {:.0} s", begun.elapsed().as_secs_f64());
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Boots a machine once for all lives and saves its state. Continuing from there needs a tenth of the time.
fn prepare(options: &Options) -> Result<PathBuf, String> {
    let state = options.work.join("state");
    let start = options.start(None, options.work.clone());
    Machine::prepare(&start, &state).map_err(|error| format!("preparing a machine: {error}"))?;
    Ok(state)
}

/// One machine with its disks, across all its lives.
struct Series<'a> {
    options: &'a Options,
    seed: u64,
    random: Random,
    start: Start,
    /// A disk for each of `KINDS`, with its socket.
    disks: Vec<(SharedDisk, PathBuf)>,
    models: BTreeMap<String, Box<dyn Model>>,
    /// Number of lines that the guest printed in its last complete recovery.
    recovery_lines: u64,
    tally: Tally,
}

impl Series<'_> {
    fn new(options: &Options, seed: u64, state: Option<PathBuf>) -> Result<Series<'_>, String> {
        let work = options.work.join(format!("seed-{seed}"));
        std::fs::create_dir_all(&work).map_err(|error| format!("{}: {error}", work.display()))?;
        let lie = if options.lying_qemu { Lie::NoCache } else { Lie::Honest };
        let lie = options.lying_disk.map_or(lie, Lie::Flush);
        let mut disks = Vec::new();
        let bytes = if options.servers { SERVERS_DISK_BYTES } else { DISK_BYTES };
        for kind in KINDS {
            let disk = Arc::new(Mutex::new(Disk::new(bytes, disk::unit_bytes(kind), lie)));
            let socket = work.join(kind);
            let _none = std::fs::remove_file(&socket);
            nbd::serve(&disk, &socket).map_err(|error| format!("{}: {error}", socket.display()))?;
            disks.push((disk, socket));
        }
        let mut models = BTreeMap::new();
        for kind in KINDS {
            for name in NAMES.into_iter().chain(ENGINES).chain([SERVERS]) {
                models.insert(
                    format!("{kind}/{name}"),
                    subject::model(name).ok_or("a subject without a model")?,
                );
            }
        }
        let start = options.start(state, work);
        Ok(Series {
            options,
            seed,
            random: Random::new(mix(&[seed])),
            start,
            disks,
            models,
            recovery_lines: 0,
            tally: Tally::default(),
        })
    }

    fn run(&mut self, begun: Instant, left: &Mutex<u64>) -> Result<Tally, String> {
        for life in 0.. {
            {
                let mut left = lock(left);
                if *left == 0 || begun.elapsed() > Duration::from_secs(self.options.seconds) {
                    break;
                }
                *left -= 1;
            }
            self.life(life).map_err(|error| {
                let kept = self.keep().unwrap_or_else(|error| format!("not kept: {error}"));
                format!("life {life}: {error}\n{kept}")
            })?;
        }
        // Check the state after the last cut as well.
        self.look().map_err(|error| format!("at the end: {error}"))?;
        let mut tally = std::mem::take(&mut self.tally);
        tally.acknowledged = self.models.values().map(|model| model.acknowledged()).sum();
        for (disk, _) in &self.disks {
            tally.disks.add(&lock(disk).counts);
        }
        Ok(tally)
    }

    /// Runs one life: boots, reads the guest's lines, cuts the power.
    fn life(&mut self, life: u64) -> Result<(), String> {
        // On each disk either all subjects write, with many operations in flight, or one writes alone. A
        // flush that a program forgot or a disk skipped shows only if no other flush happens before the cut.
        let all = self.options.all();
        let names = on_disk_of(all);
        let writes = KINDS.map(|kind| {
            if self.options.servers {
                return self.of_servers(kind);
            }
            let alone = self.random.chance(50);
            if alone { names[self.random.below(names.len() as u64) as usize] } else { all }
        });
        let machine = self.boot(life, &writes)?;
        // Three cuts in four fall into the writing, the others into mounting or recovery. The point is counted in lines, as a busy
        // machine may make no progress in a given time. Half of the cuts follow a moment later, so that they also fall between
        // lines.
        let early = life > 0 && self.random.chance(25);
        let most = match () {
            () if self.options.servers => SERVERS_LINES,
            () if self.options.engines => LINES_ALONE,
            () if writes.contains(&ALL) => u64::MAX,
            () => LINES_ALONE,
        };
        let among = if early { self.recovery_lines + 1 } else { self.options.writing_lines.min(most) };
        let (from, lines) = (if early { "guest up" } else { "guest writing" }, self.random.below(among));
        let spread = self.random.below(2) * if early { 300_000 } else { 30_000 };
        let moment = Duration::from_micros(self.random.below(spread));
        let (mut counted, mut recovery) = (None, 0);
        loop {
            if counted.is_some_and(|counted| counted >= lines) {
                break;
            }
            match machine.hear(Instant::now() + SILENCE) {
                Heard::Line(line) => {
                    counted = if line == from { Some(0) } else { counted.map(|counted| counted + 1) };
                    recovery += 1;
                    if line == "guest writing" {
                        self.recovery_lines = recovery;
                    }
                    self.hear(life, &line)?;
                }
                Heard::Nothing => return Err(format!("silence: {:?}", machine.kill())),
                Heard::End => return Err(format!("the machine ended: {}", machine.last_words())),
            }
        }
        let until = Instant::now() + moment;
        while let Heard::Line(line) = machine.hear(until) {
            self.hear(life, &line)?;
        }
        for (disk, _) in &self.disks {
            lock(disk).freeze();
        }
        for line in machine.kill().map_err(|error| format!("killing: {error}"))? {
            self.hear(life, &line)?;
        }
        self.tally.cuts += 1;
        self.tally.early += u64::from(early);
        let mut kept = Vec::new();
        for (disk, _) in &self.disks {
            let cut = Cut::any(&mut self.random);
            lock(disk).cut(cut, &mut self.random);
            kept.push(cut);
        }
        println!(
            "seed {} life {life}: {} lines after \"{from}\" of {writes:?}; the disks keep {kept:?}",
            self.seed,
            counted.unwrap_or(0)
        );
        Ok(())
    }

    /// The servers are on the disk of one file system, for all lives of a seed.
    fn of_servers(&self, kind: &str) -> &'static str {
        if KINDS[self.seed as usize % KINDS.len()] == kind { SERVERS } else { NONE }
    }

    /// Boots a machine with the given writers on its disks.
    fn boot(&self, life: u64, writes: &[&str; KINDS.len()]) -> Result<Machine, String> {
        let is_new = if life == 0 { "-new" } else { "" };
        let attached = |which: usize| AttachedDisk {
            socket: &self.disks[which].1,
            // A serial number is limited to 20 bytes.
            serial: format!("{}-{life}-{}{is_new}", KINDS[which], writes[which]),
        };
        let started = Machine::start(&self.start, [&attached(0), &attached(1)]);
        started.map_err(|error| format!("starting: {error}"))
    }

    fn hear(&mut self, life: u64, line: &str) -> Result<(), String> {
        if line == "guest writing" {
            self.models.values_mut().for_each(|model| model.began(life));
        }
        let words: Vec<&str> = line.split(' ').collect();
        match (words.first().copied(), words.get(1).copied()) {
            (Some("guest"), Some("error")) => Err(line.to_string()),
            (Some("guest"), _) => Ok(()),
            (Some(name), _) => match self.models.get_mut(name) {
                Some(model) => model.hear(&words[1..]).map_err(|error| format!("{name}: {error}")),
                None => Err(format!("the guest said: {line}")),
            },
            (None, _) => Ok(()),
        }
    }

    /// Boots once more, without a cut, until all data has been checked.
    fn look(&mut self) -> Result<(), String> {
        if self.tally.cuts == 0 {
            return Ok(());
        }
        let writes =
            KINDS.map(|kind| if self.options.servers { self.of_servers(kind) } else { self.options.all() });
        let machine = self.boot(self.tally.cuts, &writes)?;
        loop {
            match machine.hear(Instant::now() + SILENCE) {
                Heard::Line(line) if line == "guest writing" => break,
                Heard::Line(line) => self.hear(self.tally.cuts, &line)?,
                Heard::Nothing => return Err(format!("silence at the end: {:?}", machine.kill())),
                Heard::End => return Err(format!("the machine ended: {}", machine.last_words())),
            }
        }
        machine.kill().map(drop).map_err(|error| format!("killing: {error}"))
    }

    /// Saves the disks of a failure and returns a message with their paths.
    fn keep(&self) -> Result<String, String> {
        let mut kept = format!("again with: --seed {} --machines 1; kept:", self.seed);
        for ((disk, _), kind) in self.disks.iter().zip(KINDS) {
            let path = self.start.work.join(format!("{kind}.img"));
            write_image(&lock(disk), &path).map_err(|error| format!("{}: {error}", path.display()))?;
            kept += &format!(" {}", path.display());
        }
        Ok(kept)
    }
}

fn write_image(disk: &Disk, path: &Path) -> std::io::Result<()> {
    let file = File::create(path)?;
    file.set_len(disk.bytes())?;
    for (offset, bytes) in disk.pages() {
        file.write_all_at(bytes, offset)?;
    }
    Ok(())
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.cuts += other.cuts;
        self.early += other.early;
        self.acknowledged += other.acknowledged;
        self.disks.add(&other.disks);
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Counts { writes, flushes, durable_writes, lost, unflushed } = self.disks;
        write!(
            f,
            "{} cuts ({} of them before writing), {} acknowledged operations, {writes} device writes ({durable_writes} with \
             FUA), {flushes} flushes; {lost} of {unflushed} unflushed sectors were lost",
            self.cuts, self.early, self.acknowledged
        )
    }
}
