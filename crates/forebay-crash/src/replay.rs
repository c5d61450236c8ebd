//! Checks every state that a disk had at a flush. dm-log-writes records the writes that reach the device, in
//! order. Each prefix of that record up to a flush or a durable write is mounted and checked.
//!
//! A guest does all of it in one life. /dev/vda is written, /dev/vdb has the record, /dev/vdc the prefixes. A prefix is checked
//! through a snapshot, as opening the data writes to it.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay::{Config, Engine};

use crate::guest::{Place, call, make, mount};
use crate::subject::{self, ALL, Model, NAMES, recover};

const SECTOR: u64 = 512;
const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// Replays the writes of a disk prefix by prefix; runs in the virtual machine
#[derive(Debug, clap::Args)]
pub(crate) struct Replay {
    /// ext4 or xfs
    kind: String,
    /// Number of acknowledged operations to record
    #[arg(long, default_value_t = 60)]
    operations: u64,
    /// Ends after this many seconds, even if prefixes are left
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Breaks flushes: each prefix lacks this many of its last writes, to check that the fault is noticed
    #[arg(long, default_value_t = 0)]
    lacking: usize,
}

impl Replay {
    pub(crate) fn run(&self) -> Result<(), String> {
        let begun = Instant::now();
        ["ext4", "xfs", "dm_log_writes", "dm_snapshot"]
            .iter()
            .try_for_each(|module| call(Command::new("modprobe").arg(module)))?;
        call(Command::new("modprobe").args(["brd", "rd_nr=1", "rd_size=65536"]))?;
        let engine = Engine::start(Config::new().shards(2)).map_err(|error| error.to_string())?;
        let said = self.record(&engine)?;
        println!("{}: {} lines recorded in {:.0} s", self.kind, said.len(), begun.elapsed().as_secs_f64());
        let record = Record::open(Path::new("/dev/vdb"))?;
        let target =
            File::options().write(true).open("/dev/vdc").map_err(|error| format!("/dev/vdc: {error}"))?;
        let (mut models, mut heard) = (models()?, 0);
        let (mut looked, mut writes) = (0, 0);
        let mut waiting = Vec::new();
        // Writes that made the file system precede any promise, so their states do not count.
        let mut counts = false;
        for entry in record {
            let entry = entry.map_err(|error| format!("the record: {error}"))?;
            if entry.flags & MARK != 0 {
                // The target's own mark, written when the device is removed.
                if entry.text == "dm-log-writes-end" {
                    break;
                }
                // The mark holds the number of lines printed by then.
                let lines = entry.text.parse::<usize>().map_err(|error| format!("a mark: {error}"))?;
                counts = true;
                for line in said.get(heard..lines).unwrap_or_default() {
                    hear(&mut models, line)?;
                }
                heard = heard.max(lines);
                continue;
            }
            writes += 1;
            waiting.push(entry);
            if waiting.last().is_none_or(|entry| entry.flags & (FLUSH | FUA) == 0) {
                continue;
            }
            let lacking = if counts { self.lacking } else { 0 };
            let applied = waiting.len().saturating_sub(lacking);
            for entry in waiting.drain(..).take(applied) {
                target
                    .write_all_at(&entry.data, entry.sector * SECTOR)
                    .map_err(|error| format!("/dev/vdc: {error}"))?;
            }
            if !counts {
                continue;
            }
            if begun.elapsed() > Duration::from_secs(self.seconds) {
                println!("{}: the time is over", self.kind);
                break;
            }
            let at = format!("{}: after {writes} writes and {heard} lines", self.kind);
            target.sync_data().map_err(|error| format!("/dev/vdc: {error}"))?;
            look(&engine, &self.kind, &models).map_err(|error| format!("{at}: {error}"))?;
            looked += 1;
        }
        println!(
            "{}: {looked} states at flushes are whole, of {writes} writes, in {:.0} s",
            self.kind,
            begun.elapsed().as_secs_f64()
        );
        if looked > 0 { Ok(()) } else { Err("there was no state to look at".into()) }
    }

    /// Writes for a while through dm-log-writes and returns the printed lines in order.
    fn record(&self, engine: &Engine) -> Result<Vec<String>, String> {
        let sectors = sectors("/dev/vda")?;
        let table = format!("0 {sectors} log-writes /dev/vda /dev/vdb");
        create("recorded", &table)?;
        let device = "/dev/mapper/recorded";
        let dir =
            mount(&Place { device, kind: self.kind.clone(), life: 0, writes: ALL.into(), is_new: true })?;
        let said = Mutex::new(Vec::new());
        let acked = AtomicU64::new(0);
        let over = AtomicBool::new(false);
        let say = |line: &str| {
            let mut said = said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if over.load(Ordering::Relaxed) {
                return false;
            }
            said.push(line.to_string());
            // Hold the lock, so that marks are in the order of the lines. A mark that fails loses only itself.
            let _mark = call(Command::new("dmsetup").args([
                "message",
                "recorded",
                "0",
                "mark",
                &said.len().to_string(),
            ]));
            if line.contains(" ack ") && acked.fetch_add(1, Ordering::Relaxed) + 1 >= self.operations {
                over.store(true, Ordering::Relaxed);
            }
            true
        };
        let mut writers = Vec::new();
        for name in NAMES {
            let dir = dir.join(name);
            make(engine, &dir)?;
            // Only writes after the opening count: before it no promise was given.
            let quiet = |_: &str| true;
            let writer = recover(name, engine, &dir, 0, &quiet);
            writers.push((name, writer.map_err(|error| format!("{name}: {error}"))?));
        }
        call(Command::new("sync").arg("-f").arg(&dir))?;
        say("guest writing");
        std::thread::scope(|scope| {
            let threads: Vec<_> = writers
                .into_iter()
                .map(|(name, writer)| {
                    let say = &say;
                    scope.spawn(move || writer.write(0, &|line: &str| say(&format!("{name} {line}"))))
                })
                .collect();
            subject::ended(threads)
        })?;
        unmount(&dir)?;
        call(Command::new("dmsetup").args(["remove", "--retry", "recorded"]))?;
        Ok(said.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

type Models = BTreeMap<&'static str, Box<dyn Model>>;

fn models() -> Result<Models, String> {
    NAMES.iter().map(|name| Ok((*name, subject::model(name).ok_or("a subject without a model")?))).collect()
}

fn hear(models: &mut Models, line: &str) -> Result<(), String> {
    let words: Vec<&str> = line.split(' ').collect();
    if words[0] == "guest" {
        models.values_mut().for_each(|model| model.began(0));
        return Ok(());
    }
    let model = models.get_mut(words[0]).ok_or_else(|| format!("nobody says: {line}"))?;
    model.hear(&words[1..]).map_err(|error| format!("{line}: {error}"))
}

/// Mounts the contents of /dev/vdc, with changes kept in memory, and compares all data with the models.
fn look(engine: &Engine, kind: &str, models: &Models) -> Result<(), String> {
    let table = format!("0 {} snapshot /dev/vdc /dev/ram0 N 8", sectors("/dev/vdc")?);
    create("state", &table)?;
    let looked = look_at(engine, kind, models);
    let dir = PathBuf::from("/mnt").join(kind);
    // If mounting failed, report that error and not the one of unmounting.
    let unmounted = if looked.is_ok() { unmount(&dir) } else { unmount(&dir).or(Ok(())) };
    unmounted?;
    call(Command::new("dmsetup").args(["remove", "--retry", "state"]))?;
    looked
}

fn look_at(engine: &Engine, kind: &str, models: &Models) -> Result<(), String> {
    let place =
        Place { device: "/dev/mapper/state", kind: kind.into(), life: 0, writes: ALL.into(), is_new: false };
    let dir = mount(&place)?;
    for (name, model) in models {
        let model = Mutex::new((model.copy(), Ok(())));
        let say = |line: &str| {
            let (model, result) = &mut *model.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if result.is_ok() {
                *result = model.hear(&line.split(' ').collect::<Vec<_>>());
            }
            true
        };
        let recovered =
            recover(name, engine, &dir.join(name), 1, &say).map_err(|error| format!("{name}: {error}"))?;
        drop(recovered);
        model
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .1
            .map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

/// Unmounts the directory. Logs and stores close in the background, and their files with them, so it retries.
fn unmount(dir: &Path) -> Result<(), String> {
    let limit = Instant::now() + Duration::from_secs(20);
    loop {
        match call(Command::new("umount").arg(dir)) {
            Err(error) if Instant::now() > limit || error.contains("Invalid argument") => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
            Ok(()) => return Ok(()),
        }
    }
}

/// Creates a device of the device mapper, and its node in /dev: nothing else makes it there.
fn create(name: &str, table: &str) -> Result<(), String> {
    call(Command::new("dmsetup").args(["create", name, "--table", table]))?;
    call(Command::new("dmsetup").args(["mknodes", name]))
}

fn sectors(device: &str) -> Result<u64, String> {
    let name = device.trim_start_matches("/dev/");
    let text = std::fs::read_to_string(format!("/sys/block/{name}/size"))
        .map_err(|error| format!("{device}: {error}"))?;
    text.trim().parse().map_err(|error| format!("{device}: {error}"))
}

/// The record of dm-log-writes, entry by entry. All numbers are little endian; a sector describes the data
/// after it.
struct Record {
    file: File,
    sector: u64,
    left: u64,
}

struct Entry {
    sector: u64,
    flags: u64,
    data: Vec<u8>,
    /// The text of a mark.
    text: String,
}

impl Record {
    fn open(path: &Path) -> Result<Record, String> {
        let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let words = words(&file, 0).map_err(|error| format!("{}: {error}", path.display()))?;
        let sector_bytes = words[3] & 0xffff_ffff;
        if words[0] != MAGIC || words[1] != 1 || sector_bytes != SECTOR {
            return Err(format!(
                "{} holds no record of dm-log-writes that is known here: {words:x?}",
                path.display()
            ));
        }
        Ok(Record { file, sector: 1, left: words[2] })
    }

    fn entry(&mut self) -> std::io::Result<Entry> {
        let [sector, sectors, flags, len] = words(&self.file, self.sector)?;
        let mut entry = Entry { sector, flags, data: Vec::new(), text: String::new() };
        if flags & MARK != 0 {
            let mut text = vec![0; len.min(SECTOR - 32) as usize];
            self.file.read_exact_at(&mut text, self.sector * SECTOR + 32)?;
            entry.text = String::from_utf8_lossy(&text).trim_end_matches('\0').into();
        } else if flags & DISCARD == 0 {
            entry.data = vec![0; (sectors * SECTOR) as usize];
            self.file.read_exact_at(&mut entry.data, (self.sector + 1) * SECTOR)?;
            self.sector += sectors;
        }
        self.sector += 1;
        Ok(entry)
    }
}

impl Iterator for Record {
    type Item = std::io::Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        Some(self.entry())
    }
}

fn words(file: &File, sector: u64) -> std::io::Result<[u64; 4]> {
    let mut bytes = [0; 32];
    file.read_exact_at(&mut bytes, sector * SECTOR)?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at * 8..at * 8 + 8]);
        u64::from_le_bytes(word)
    };
    Ok([word(0), word(1), word(2), word(3)])
}
