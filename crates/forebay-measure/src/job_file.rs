//! Job files of fio. Each option is read here, or has no effect on the work, or is refused by its name.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::pattern::{PAGE_BYTES, SplitMix};
use crate::system_counters::value;

/// Options by name.
type Options = BTreeMap<String, String>;

/// The options of a section: where each is and how it is read, and as it was written.
#[derive(Debug, Clone, Default)]
struct Settings {
    read: BTreeMap<String, (String, String)>,
    written: Options,
}

/// How a job's operations reach the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum IoEngine {
    /// `lseek`, `read` and `write`.
    Sync,
    /// `pread` and `pwrite`.
    Psync,
    /// `io_submit` and `io_getevents`.
    Libaio,
    /// A ring.
    IoUring,
    /// A memory map; only reads.
    Mmap,
}

const ENGINES: [(&str, IoEngine); 5] = [
    ("sync", IoEngine::Sync),
    ("psync", IoEngine::Psync),
    ("libaio", IoEngine::Libaio),
    ("io_uring", IoEngine::IoUring),
    ("mmap", IoEngine::Mmap),
];

/// Options that are read, in addition to those of [`WITHOUT_EFFECT`].
const READ: &str = "allow_file_create blockalign bs bsrange bssplit direct directory do_verify exit_what exitall fallocate fdatasync \
    filename filesize fixedbufs flow flow_id flow_sleep fsync invalidate io_size iodepth iodepth_batch_complete_min \
    iodepth_low ioengine loops new_group norandommap nrfiles number_ios numjobs offset offset_increment overwrite ramp_time \
    random_distribution rate rate_iops rate_process registerfiles runtime rw rwmixread rwmixwrite size startdelay stonewall sync \
    thinktime thinktime_blocks time_based verify verify_backlog wait_for zonemode zonerange zonesize zoneskip";
/// Options without an effect on the work: they are about reports, or describe what happens here anyway.
const WITHOUT_EFFECT: &str = "allrandrepeat bwavgtime clat_percentiles create_serialize description disable_bw_measurement \
    disable_clat disable_lat disable_slat group_reporting gtod_reduce io_submit_mode iodepth_batch iopsavgtime lat_percentiles log_avg_msec \
    log_offset log_prio name percentile_list per_job_logs random_generator randrepeat randseed rate_min refill_buffers \
    scramble_buffers slat_percentiles thread unified_rw_reporting unlink verify_async verify_backlog_batch verify_dump \
    verify_fatal verify_interval verify_state_save write_bw_log write_hist_log write_iops_log write_lat_log";
/// Why options with these prefixes are refused.
const REFUSED: [(&str, &str); 13] = [
    ("buffer_", "blocks that are written do not compress, and no two are alike"),
    ("cmdprio", "operations have no priorities here"),
    ("continue_on_error", "an error ends a job here"),
    ("cpus_allowed", "threads run where the kernel puts them"),
    ("dedupe_", "blocks that are written do not compress, and no two are alike"),
    ("exec_", "commands of a job file are not run"),
    ("fill_device", "a file has a size here"),
    ("latency_", "a depth is given here, and not searched by its latency"),
    ("max_open_zones", "zoned devices are not run here"),
    ("numa_", "threads and memory are where the kernel puts them"),
    ("prio", "operations have no priorities here"),
    ("read_beyond_wp", "zoned devices are not run here"),
    ("ss", "a job ends by its size or its time here, not in a steady state"),
];
/// Other names of options.
const ALIASES: [(&str, &str); 13] = [
    ("ba", "blockalign"),
    ("blocksize", "bs"),
    ("blocksize_range", "bsrange"),
    ("io_limit", "io_size"),
    ("iodepth_batch_complete", "iodepth_batch_complete_min"),
    ("iodepth_batch_submit", "iodepth_batch"),
    ("nr_files", "nrfiles"),
    ("ratemin", "rate_min"),
    ("readwrite", "rw"),
    ("start_delay", "startdelay"),
    ("threads", "thread"),
    ("timeout", "runtime"),
    ("wait_for_previous", "stonewall"),
];
/// Names of this machine's numbers, of which the values are in [`machine`].
const KEYWORDS: [&str; 3] = ["$mb_memory", "$ncpus", "$pagesize"];
/// How deep files may include each other, and the most bytes of one.
const INCLUDES_MAX: usize = 8;
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The lengths of blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Blocks {
    pub(crate) least: u64,
    pub(crate) most: u64,
    /// Lengths with their shares of 100; without any, multiples of the least are equally likely.
    shares: Vec<(u64, u64)>,
}

impl Blocks {
    fn one(text: &str) -> Option<Self> {
        size(text).map(|bytes| Self { least: bytes, most: bytes, shares: Vec::new() })
    }

    fn range(text: &str) -> Option<Self> {
        let (least, most) = text.split_once('-')?;
        let (least, most) = (size(least)?, size(most)?);
        let rest = most.checked_rem(least)?;
        (least <= most).then(|| Self { least, most: most - rest, shares: Vec::new() })
    }

    fn split(text: &str) -> Option<Self> {
        let shares = shares(text, size)?;
        let lengths = || shares.iter().map(|(bytes, _)| *bytes);
        Some(Self { least: lengths().min()?, most: lengths().max()?, shares })
    }

    /// Returns the length of the next block.
    #[inline]
    pub(crate) fn draw(&self, random: &mut SplitMix) -> u64 {
        if self.least == self.most {
            return self.least;
        }
        let Some((last, _)) = self.shares.last() else {
            // As fio has it, of which the least length is also that of all lower numbers.
            return ((1 + random.below(self.most)) / self.least * self.least).max(self.least);
        };
        let mut number = random.below(100);
        for (bytes, share) in &self.shares {
            if number < *share {
                return *bytes;
            }
            number -= share;
        }
        *last
    }
}

/// The order of offsets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// One block behind the other, with bytes between them; backwards with a negative step.
    Sequence { step: i64 },
    /// The first bytes of each period.
    Strided { bytes: u64, period: u64 },
    /// At random, all blocks once before any repeats, as with fio's random map.
    Once,
    /// At random, equally likely.
    Uniform,
    /// The nth block in some order is as likely as n to the power of minus this.
    Zipf(f64),
    /// This part of the blocks has the rest of the operations.
    Pareto(f64),
    /// Blocks about the middle of some order are likely, with a deviation in percent.
    Normal(f64),
    /// Percentages of operations, and of blocks for these.
    Zoned(Vec<(u64, u64)>),
}

/// Which jobs end with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Exit {
    /// Those of its group of reports.
    Group,
    /// Those up to the next stonewall.
    Stonewall,
    /// All, and later jobs never start.
    All,
}

/// A job: operations on files, by clones that work at the same time, each on its own thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileJob {
    pub(crate) name: String,
    pub(crate) engine: IoEngine,
    /// Operations of 100 that read; the others write.
    pub(crate) reads_percent: u64,
    /// Of reads, and of writes.
    pub(crate) blocks: [Blocks; 2],
    /// Offsets at random are multiples of this; by default of the least block.
    pub(crate) align: Option<u64>,
    pub(crate) order: Order,
    pub(crate) is_direct: bool,
    /// Flags with which files are opened, in addition to that of direct I/O.
    pub(crate) open_flags: i32,
    pub(crate) offset: u64,
    /// Added to the offset of each further clone.
    pub(crate) offset_increment: u64,
    /// Bytes of the file from the offset on that are used; by default all of an existing file.
    pub(crate) size_bytes: Option<u64>,
    /// Bytes that each clone moves; by default the size.
    pub(crate) io_bytes: Option<u64>,
    /// Operations of each clone.
    pub(crate) operations_max: Option<u64>,
    pub(crate) loops: u64,
    pub(crate) depth: u64,
    /// When the depth was reached, nothing starts before so few are in flight.
    pub(crate) low_depth: u64,
    pub(crate) clones: u64,
    /// After so many writes they are made durable; 0 is never.
    pub(crate) sync_every: u64,
    /// By `fdatasync`, not `fsync`.
    pub(crate) syncs_data: bool,
    /// After so many writes, or all, they are read and compared; 0 is never.
    pub(crate) verify_every: u64,
    pub(crate) delay_seconds: f64,
    /// Seconds of work before it is measured.
    pub(crate) ramp_seconds: f64,
    pub(crate) seconds: Option<f64>,
    /// It works for its seconds, however often it is done.
    pub(crate) is_timed: bool,
    /// A pause after so many operations.
    pub(crate) think_seconds: f64,
    pub(crate) think_every: u64,
    /// Bytes a second that each clone reads, and writes; 0 is without a limit.
    pub(crate) rates: [u64; 2],
    /// The same of operations.
    pub(crate) iops: [u64; 2],
    /// Operations of a rate are due at random times.
    pub(crate) is_poisson: bool,
    /// Clones of a flow do operations in proportion to their weights; 0 is without one.
    pub(crate) flow_weight: u64,
    pub(crate) flow: u64,
    pub(crate) flow_sleep_seconds: f64,
    pub(crate) exits: Option<Exit>,
    pub(crate) report_group: u64,
    pub(crate) directory: Option<String>,
    /// The file of all clones; by default each has a different file.
    pub(crate) filename: Option<String>,
    /// Files that do not exist are made.
    pub(crate) creates: bool,
    /// The file is written before it is measured.
    pub(crate) overwrites: bool,
    /// Whether a new file is allocated immediately.
    pub(crate) allocates: bool,
    pub(crate) fixed_buffers: bool,
    pub(crate) fixed_file: bool,
    /// The options as they were written.
    pub(crate) options: Options,
}

impl FileJob {
    /// Returns whether it reads and whether it writes.
    pub(crate) fn reads_and_writes(&self) -> [bool; 2] {
        [self.reads_percent > 0, self.reads_percent < 100]
    }

    /// Returns the lengths of those blocks that it has.
    fn used(&self) -> impl Iterator<Item = &Blocks> {
        self.blocks
            .iter()
            .zip(self.reads_and_writes())
            .filter_map(|(blocks, is_used)| is_used.then_some(blocks))
    }

    pub(crate) fn block_bytes_min(&self) -> u64 {
        self.used().map(|blocks| blocks.least).min().unwrap_or(0)
    }

    pub(crate) fn block_bytes_max(&self) -> u64 {
        self.used().map(|blocks| blocks.most).max().unwrap_or(0)
    }

    fn is_queue(&self) -> bool {
        matches!(self.engine, IoEngine::Libaio | IoEngine::IoUring)
    }

    /// Returns the bytes of the operations that all clones have in flight.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let depth = if self.is_queue() { self.depth } else { 1 };
        self.block_bytes_max() * depth * self.clones
    }

    pub(crate) fn has_lengths(&self) -> bool {
        self.block_bytes_min() != self.block_bytes_max()
    }

    pub(crate) fn is_random(&self) -> bool {
        !matches!(self.order, Order::Sequence { .. } | Order::Strided { .. })
    }

    /// Returns whether it ends with the last whole block of its files, and not, as fio has it, with the first block by which it has
    /// moved its bytes.
    pub(crate) fn has_end(&self) -> bool {
        let is_mixed = self.reads_and_writes() == [true, true];
        let has_pass = self.order == Order::Once || self.order == Order::Sequence { step: 0 } && !is_mixed;
        has_pass && !self.is_timed && self.io_bytes.is_none()
    }

    /// Returns the offset of a clone.
    pub(crate) fn offset_of(&self, clone: u64) -> u64 {
        self.offset.saturating_add(self.offset_increment.saturating_mul(clone))
    }

    /// Returns whether all lengths and offsets are multiples of `grain`.
    pub(crate) fn is_aligned(&self, grain: u64) -> bool {
        let lengths = |blocks: &Blocks| {
            let shares = blocks.shares.iter().map(|(bytes, _)| *bytes);
            shares.chain([blocks.least]).all(|bytes| bytes.is_multiple_of(grain))
        };
        let steps = match self.order {
            Order::Sequence { step } => [step.unsigned_abs(), 0],
            Order::Strided { bytes, period } => [bytes, period],
            _ => [self.align.unwrap_or(0), 0],
        };
        let offsets = [self.offset, self.offset_increment].into_iter().chain(steps);
        self.used().all(lengths) && offsets.into_iter().all(|bytes| bytes.is_multiple_of(grain))
    }
}

/// Returns the name by which an option is read.
fn own_name(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, own)| *own)
}

/// Returns whether an option has no effect on the work.
pub(crate) fn is_without_effect(name: &str) -> bool {
    WITHOUT_EFFECT.split(' ').any(|known| known == own_name(name))
}

/// Parses a job file, whose includes are next to it in `folder`, into its groups. The jobs of a group run at the same time, one
/// group after the other. `variable` returns the value of a variable of the environment.
///
/// # Errors
/// What is wrong, or is not run here, in a sentence that follows the file's name.
pub(crate) fn parse(
    text: &str,
    folder: &Path,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Vec<FileJob>>, String> {
    let (mut global, mut sections) = (Settings::default(), Vec::<(String, Settings)>::new());
    let mut section: Option<String> = None;
    for (place, line) in lines(text, folder, "", 0)? {
        if let Some(name) = line.strip_prefix('[') {
            let name =
                name.strip_suffix(']').ok_or_else(|| format!("{place}: the section {line} has no end"))?;
            if name != "global" {
                sections.push((name.to_owned(), global.clone()));
            }
            section = Some(name.to_owned());
            continue;
        }
        let (name, value) =
            line.split_once('=').map_or((line.as_str(), ""), |(name, value)| (name.trim(), value.trim()));
        let settings = match (section.as_deref(), sections.last_mut()) {
            (Some("global"), _) => &mut global,
            (Some(_), Some((_, settings))) => settings,
            _ => {
                return Err(format!(
                    "{place}: {name:?} is before any section such as [job]: is it a job file of fio?"
                ));
            }
        };
        let value = expand(value, variable).map_err(|why| format!("{place}, {name}={value}: {why}"))?;
        settings.written.insert(name.to_owned(), value.clone());
        let name = own_name(name);
        // The opposite of `direct`; the later of the two counts.
        let opposite = if value == "0" { "1" } else { "0" };
        let (name, value) = if name == "buffered" { ("direct", opposite.to_owned()) } else { (name, value) };
        settings.read.insert(name.to_owned(), (place, value));
    }
    let groups = grouped(&sections)?;
    if groups.is_empty() {
        return Err("has no section such as [job]: is it a job file of fio?".to_owned());
    }
    Ok(groups)
}

/// Reads the text of a job file.
///
/// # Errors
/// It cannot be read.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the lines of a file and of those that it includes, each with its place, without comments and empty lines.
fn lines(text: &str, folder: &Path, file: &str, depth: usize) -> Result<Vec<(String, String)>, String> {
    let mut all = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split([';', '#']).next().unwrap_or_default().trim();
        let place = format!("{file}line {number}");
        let Some(name) = line.strip_prefix("include ").map(str::trim) else {
            all.extend((!line.is_empty()).then(|| (place, line.to_owned())));
            continue;
        };
        if depth == INCLUDES_MAX {
            return Err(format!("{place}, include {name}: files include each other too deeply"));
        }
        let path = folder.join(name);
        let found = read(&path).map_err(|error| format!("{place}, include {name}: {error}"))?;
        all.extend(lines(&found, path.parent().unwrap_or(folder), &format!("{name} "), depth + 1)?);
    }
    Ok(all)
}

/// Replaces `${NAME}`, and calculates with the keywords of this machine.
fn expand(value: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let (mut text, mut rest) = (String::new(), value);
    while let Some((before, behind)) = rest.split_once("${") {
        let (name, after) = behind.split_once('}').ok_or("the name of a variable has no end")?;
        let own = variable(name).ok_or_else(|| format!("the variable {name} is not set"))?;
        text += before;
        text += &own;
        rest = after;
    }
    text += rest;
    if !KEYWORDS.iter().any(|keyword| text.contains(keyword)) {
        return Ok(text);
    }
    for keyword in KEYWORDS {
        let number = machine(keyword).ok_or_else(|| format!("{keyword} is not known here"))?;
        text = text.replace(keyword, &number.to_string());
    }
    let number = calculate(&text).ok_or("is not a sum or a product of whole numbers")?;
    Ok(number.to_string())
}

fn machine(keyword: &str) -> Option<u64> {
    match keyword {
        "$ncpus" => std::thread::available_parallelism().ok().map(|count| count.get() as u64),
        "$pagesize" => Some(rustix::param::page_size() as u64),
        _ => Some(value(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")? >> 20),
    }
}

/// Calculates with whole numbers; products precede sums.
fn calculate(text: &str) -> Option<u64> {
    let Some(at) = text.rfind(['+', '-']).or_else(|| text.rfind(['*', '/'])) else {
        return text.trim().parse().ok();
    };
    let (left, right) = (calculate(&text[..at])?, calculate(&text[at + 1..])?);
    match text.as_bytes()[at] {
        b'+' => left.checked_add(right),
        b'-' => left.checked_sub(right),
        b'*' => left.checked_mul(right),
        _ => left.checked_div(right),
    }
}

/// Makes the jobs of sections, in groups.
fn grouped(sections: &[(String, Settings)]) -> Result<Vec<Vec<FileJob>>, String> {
    let mut groups: Vec<Vec<FileJob>> = Vec::new();
    // The job for which those of the last group wait.
    let (mut awaited, mut report_group) = (None, 0);
    for (name, Settings { read, written }) in sections {
        let own = Section { name, options: read };
        let is_serial = own.text("stonewall").is_some_and(|value| value != "0");
        let waits = own.text("wait_for").filter(|_| !is_serial);
        let begins = match (waits, groups.last().map(Vec::as_slice)) {
            (Some(first), Some([only])) if only.name == first => true,
            (Some(_), _) if waits == awaited => false,
            (Some(_), _) => {
                return Err(own.wrong("wait_for", "only one job that is alone before it is waited for here"));
            }
            (None, last) => is_serial || last.is_none(),
        };
        if waits.is_none() && awaited.is_some() && !begins {
            return Err(own.wrong("wait_for", "is needed here by all jobs behind one that has it"));
        }
        if begins {
            awaited = waits;
        }
        report_group += u64::from(is_serial || own.flag("new_group")?);
        let job = FileJob { options: written.clone(), report_group, ..own.job()? };
        match groups.last_mut().filter(|_| !begins) {
            Some(group) => group.push(job),
            None => groups.push(vec![job]),
        }
    }
    let ends_all = |group: &Vec<FileJob>| group.iter().any(|job| job.exits == Some(Exit::All));
    let last = groups.iter().position(ends_all).unwrap_or(groups.len());
    groups.truncate(last + 1);
    Ok(groups)
}

/// A section with the options that hold for it.
#[derive(Debug)]
struct Section<'a> {
    name: &'a str,
    options: &'a BTreeMap<String, (String, String)>,
}

impl<'a> Section<'a> {
    fn text(&self, option: &str) -> Option<&'a str> {
        self.options.get(option).map(|(_, value)| value.as_str())
    }

    /// Returns a sentence on an option.
    fn wrong(&self, option: &str, why: &str) -> String {
        let place = self.options.get(option).map_or_else(String::new, |(place, _)| format!("{place}, "));
        let value = self.text(option).filter(|value| !value.is_empty());
        let value = value.map_or_else(String::new, |value| format!("={value}"));
        format!("{place}[{}] {option}{value}: {why}", self.name)
    }

    fn read<T>(
        &self,
        option: &str,
        why: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let value = self.text(option);
        value.map(|value| read(value).ok_or_else(|| self.wrong(option, why))).transpose()
    }

    /// Reads values of reads and of writes, behind a comma; that of trims is left out.
    fn pair<T: Clone>(
        &self,
        option: &str,
        why: &str,
        or: &T,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<[T; 2]>, String> {
        self.read(option, why, |text| {
            let mut parts =
                text.split(',').map(|part| if part.is_empty() { Some(or.clone()) } else { read(part) });
            let first = parts.next()??;
            let second = parts.next().unwrap_or_else(|| Some(first.clone()))?;
            Some([first, second])
        })
    }

    fn bytes(&self, option: &str) -> Result<Option<u64>, String> {
        self.read(option, "is not a number of bytes such as 4k", size)
    }

    fn count(&self, option: &str, or: u64) -> Result<u64, String> {
        Ok(self.read(option, "is not a whole number", |text| text.parse().ok())?.unwrap_or(or))
    }

    fn flag(&self, option: &str) -> Result<bool, String> {
        let flag = |text: &str| ["0", "1", ""].contains(&text).then_some(text != "0");
        Ok(self.read(option, "is neither 0 nor 1", flag)?.unwrap_or(false))
    }

    fn time(&self, option: &str, read: impl Fn(&str) -> Option<f64>) -> Result<f64, String> {
        Ok(self.read(option, "is not a time such as 10 or 5m", read)?.unwrap_or(0.0))
    }

    /// Returns the place of an option's value among the values that it may have.
    fn choice(&self, option: &str, values: &[&str]) -> Result<usize, String> {
        let place = |text: &str| values.iter().position(|value| *value == text);
        let named: Vec<&str> = values.iter().copied().filter(|value| !value.is_empty()).collect();
        let why = format!("its values here are {}", named.join(", "));
        Ok(self.read(option, &why, place)?.unwrap_or(0))
    }

    fn job(&self) -> Result<FileJob, String> {
        let text = |option: &str| self.text(option);
        let refused = |option: &str, why: &str| Err(self.wrong(option, why));
        let engine = text("ioengine").unwrap_or("psync");
        let Some((_, engine)) = ENGINES.iter().find(|(name, _)| *name == engine) else {
            return refused("ioengine", "the engines sync, psync, libaio, io_uring and mmap are run here");
        };
        for option in self.options.keys().map(String::as_str) {
            if !READ.split(' ').any(|known| known == option) && !is_without_effect(option) {
                let why = REFUSED.iter().find(|(start, _)| option.starts_with(start));
                return refused(option, why.map_or("this option is not run here", |(_, why)| *why));
            }
        }
        let rw = text("rw").unwrap_or("read");
        let (rw, step) = rw.split_once(':').unwrap_or((rw, "0"));
        let (is_random, kind) = rw.strip_prefix("rand").map_or((false, rw), |kind| (true, kind));
        let Some(step) = signed_size(step).filter(|step| *step == 0 || !is_random) else {
            return refused("rw", "a step is a number of bytes such as -8k, and of sequential jobs");
        };
        let mix = || {
            let written = self.count("rwmixwrite", 50)?;
            Ok::<_, String>(self.count("rwmixread", 100_u64.saturating_sub(written))?.min(100))
        };
        let reads_percent = match kind {
            "read" => 100,
            "write" => 0,
            "rw" | "readwrite" => mix()?,
            _ => return refused("rw", "reads, writes and their mixes are run here, without trims"),
        };
        let usual = Blocks { least: 4096, most: 4096, shares: Vec::new() };
        let split = self.pair("bssplit", "is not a list such as 4k/60:64k/40", &usual, Blocks::split)?;
        let range = self.pair("bsrange", "is not a range such as 4k-64k", &usual, Blocks::range)?;
        let one = self.pair("bs", "is not a number of bytes such as 4k", &usual, Blocks::one)?;
        let verifies = text("verify").is_some_and(|how| !["0", "none"].contains(&how));
        let backlog = self.read("verify_backlog", "is not a whole number", |text| text.parse().ok())?;
        let backlog = backlog.filter(|backlog: &u64| *backlog > 0).unwrap_or(u64::MAX);
        let depth = self.count("iodepth", 1)?;
        let low = Some(self.count("iodepth_low", 0)?).filter(|low| *low > 0).unwrap_or(depth);
        let several = self.count("iodepth_batch_complete_min", 1)?.max(1);
        let exits = [Exit::Group, Exit::Stonewall, Exit::All]
            [self.choice("exit_what", &["group", "stonewall", "all"])?];
        let number = |text: &str| text.parse().ok();
        let mut job = FileJob {
            name: self.name.to_owned(),
            engine: *engine,
            reads_percent,
            blocks: split.or(range).or(one).unwrap_or_else(|| [usual.clone(), usual]),
            align: self.bytes("blockalign")?.filter(|align| *align > 0),
            order: Order::Uniform,
            is_direct: self.flag("direct")?,
            open_flags: [0, 0, libc::O_SYNC, libc::O_SYNC, libc::O_SYNC, libc::O_DSYNC]
                [self.choice("sync", &["0", "none", "", "1", "sync", "dsync"])?],
            offset: self.bytes("offset")?.unwrap_or(0),
            offset_increment: self.bytes("offset_increment")?.unwrap_or(0),
            size_bytes: self.bytes("size")?.or(self.bytes("filesize")?),
            io_bytes: self.bytes("io_size")?.filter(|bytes| *bytes > 0),
            operations_max: self.bytes("number_ios")?.filter(|operations| *operations > 0),
            loops: self.count("loops", 1)?,
            depth,
            low_depth: low.min(depth.saturating_sub(several)).min(depth.saturating_sub(1)),
            clones: self.count("numjobs", 1)?,
            sync_every: self.count("fsync", 0)?.max(self.count("fdatasync", 0)?),
            syncs_data: text("fdatasync").is_some_and(|every| every != "0"),
            verify_every: if verifies && self.count("do_verify", 1)? > 0 { backlog } else { 0 },
            delay_seconds: self.time("startdelay", seconds)?,
            ramp_seconds: self.time("ramp_time", seconds)?,
            seconds: Some(self.time("runtime", seconds)?).filter(|seconds| *seconds > 0.0),
            is_timed: self.flag("time_based")?,
            think_seconds: self.time("thinktime", microseconds)?,
            think_every: self.count("thinktime_blocks", 1)?.max(1),
            rates: self.pair("rate", "is not a number of bytes such as 10m", &0, size)?.unwrap_or([0, 0]),
            iops: self.pair("rate_iops", "is not a whole number", &0, number)?.unwrap_or([0, 0]),
            is_poisson: self.choice("rate_process", &["linear", "poisson"])? == 1,
            flow_weight: self.count("flow", 0)?,
            flow: self.count("flow_id", 0)?,
            flow_sleep_seconds: self.time("flow_sleep", microseconds)?,
            exits: self.flag("exitall")?.then_some(exits),
            report_group: 0,
            directory: text("directory").map(str::to_owned),
            filename: text("filename").map(str::to_owned),
            creates: self.count("allow_file_create", 1)? > 0,
            overwrites: self.flag("overwrite")?,
            allocates: text("fallocate").is_none_or(|how| !["none", "0"].contains(&how)),
            fixed_buffers: self.flag("fixedbufs")?,
            fixed_file: self.flag("registerfiles")?,
            options: Options::new(),
        };
        let has_map = !self.flag("norandommap")? && !job.has_lengths();
        let has_map = has_map && job.align.is_none_or(|align| align == job.block_bytes_min());
        job.order = self.order(is_random, step, has_map)?;
        self.check(&job)?;
        Ok(job)
    }

    fn order(&self, is_random: bool, step: i64, has_map: bool) -> Result<Order, String> {
        let zone = self.bytes("zonesize")?.filter(|bytes| *bytes > 0);
        let is_strided = self.choice("zonemode", &["none", "strided"])? == 1;
        if is_strided || zone.is_some() {
            let Some(bytes) = zone.filter(|_| is_strided && !is_random && step == 0) else {
                return Err(
                    self.wrong("zonesize", "is run here with zonemode=strided and of sequential jobs")
                );
            };
            let range = self.bytes("zonerange")?.unwrap_or(bytes).max(bytes);
            let period = range.saturating_add(self.bytes("zoneskip")?.unwrap_or(0));
            return Ok(Order::Strided { bytes, period });
        }
        if !is_random {
            return Ok(Order::Sequence { step });
        }
        let why =
            "random, zipf, pareto, normal and zoned are run here, the last with shares such as 60/10:40/90";
        let order = self.read("random_distribution", why, |text| {
            let (name, rest) = text.split_once(':').unwrap_or((text, ""));
            let number = |or: &str, below: f64| {
                let word = if rest.is_empty() { or } else { rest };
                let number: f64 = word.parse().ok()?;
                (number > 0.0 && number < below).then_some(number)
            };
            match name {
                "random" => Some(if has_map { Order::Once } else { Order::Uniform }),
                "zipf" => number("1.1", 100.0).filter(|theta| (theta - 1.0).abs() > 1e-6).map(Order::Zipf),
                "pareto" => number("0.2", 1.0).map(Order::Pareto),
                "normal" => number("", 100.0).map(Order::Normal),
                "zoned" => {
                    let zones = shares(rest, |share| share.parse::<u8>().ok().map(u64::from))?;
                    (zones.iter().map(|(operations, _)| operations).sum::<u64>() == 100)
                        .then_some(Order::Zoned(zones))
                }
                _ => None,
            }
        })?;
        Ok(order.unwrap_or(if has_map { Order::Once } else { Order::Uniform }))
    }

    /// Refuses work that cannot be done, or is done in another way here.
    fn check(&self, job: &FileJob) -> Result<(), String> {
        let is_queue = job.is_queue();
        let [reads, writes] = job.reads_and_writes();
        let is = |option: &str, value: &str| self.text(option).is_some_and(|own| own == value);
        let several = |option: &str| self.text(option).is_some_and(|own| own.contains(':'));
        let syncs = if job.syncs_data { "fdatasync" } else { "fsync" };
        let blocks = ["bssplit", "bsrange"].into_iter().find(|option| self.options.contains_key(*option));
        let blocks = blocks.unwrap_or("bs");
        let differ = |limits: [u64; 2]| reads && writes && limits[0] != limits[1];
        for (is_wrong, option, why) in [
            (
                job.block_bytes_min() == 0 || job.block_bytes_max() > 1 << 30,
                blocks,
                "blocks have 1 byte to 1g",
            ),
            (job.depth == 0 || job.depth > 4096, "iodepth", "1 to 4096 operations are in flight"),
            (job.clones == 0 || job.clones > 1024, "numjobs", "1 to 1024 threads are run here"),
            (job.size_bytes.is_some_and(|size| size < job.block_bytes_max()), "size", "is less than a block"),
            (
                job.is_direct && !job.is_aligned(512),
                blocks,
                "direct I/O needs lengths and offsets that are multiples of 512 bytes",
            ),
            (job.is_direct && job.engine == IoEngine::Mmap, "direct", "a memory map is in the page cache"),
            (writes && job.engine == IoEngine::Mmap, "rw", "with ioengine=mmap only reads are run here"),
            (
                is_queue && job.sync_every > 0,
                syncs,
                "with ioengine=libaio and io_uring syncs are not run here",
            ),
            (
                self.count("fsync", 0)? > 0 && job.syncs_data,
                "fsync",
                "one of fsync and fdatasync is run here",
            ),
            (job.is_timed && job.seconds.is_none(), "time_based", "needs a runtime"),
            (job.fixed_file && !job.fixed_buffers, "registerfiles", "is run here with fixedbufs"),
            (is("invalidate", "0"), "invalidate", "files are always brought out of the page cache before"),
            (job.loops == 0, "loops", "a job is done once or more"),
            (reads && job.verify_every > 0, "verify", "only writes are read again and compared here"),
            (
                job.verify_every > 0 && !job.is_aligned(PAGE_BYTES as u64),
                "verify",
                "lengths and offsets of multiples of 4096 bytes are compared here",
            ),
            (differ(job.rates), "rate", "reads and writes of a mix have one rate here"),
            (differ(job.iops), "rate_iops", "reads and writes of a mix have one rate here"),
            (job.rates != [0, 0] && job.iops != [0, 0], "rate_iops", "one of rate and rate_iops is run here"),
            (
                is("io_submit_mode", "offload") && !is_queue,
                "io_submit_mode",
                "a thread that submits for others is run here with ioengine=libaio and io_uring",
            ),
            (self.count("nrfiles", 1)? != 1, "nrfiles", "a job is run here with one file"),
            (several("filename"), "filename", "a job is run here with one file"),
            (several("directory"), "directory", "a job is run here in one directory"),
        ] {
            if is_wrong {
                return Err(self.wrong(option, why));
            }
        }
        Ok(())
    }
}

/// Reads pairs with shares of 100; those without one share the rest.
fn shares(text: &str, read: impl Fn(&str) -> Option<u64>) -> Option<Vec<(u64, u64)>> {
    let pair = |pair: &str| {
        let (first, share) = pair.split_once('/').unwrap_or((pair, ""));
        let share = if share.is_empty() { None } else { Some(share.parse::<u8>().ok()?) };
        Some((read(first)?, share.map(u64::from)))
    };
    let pairs = text.split(':').map(pair).collect::<Option<Vec<_>>>()?;
    let rest = 100_u64.checked_sub(pairs.iter().filter_map(|(_, share)| *share).sum())?;
    let without = pairs.iter().filter(|(_, share)| share.is_none()).count() as u64;
    Some(pairs.into_iter().map(|(first, share)| (first, share.unwrap_or(rest / without.max(1)))).collect())
}

/// Reads a number of bytes with fio's units, of which `k` is 1,024 and `ki` 1,000.
fn size(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.strip_suffix('b').unwrap_or(unit);
    let (letter, base) = unit.strip_suffix('i').map_or((unit, 1024_u64), |letter| (letter, 1000));
    let power = ["", "k", "m", "g", "t", "p"].iter().position(|known| *known == letter)?;
    number.parse::<u64>().ok()?.checked_mul(base.checked_pow(power as u32)?)
}

fn signed_size(text: &str) -> Option<i64> {
    let (sign, bytes) = text.strip_prefix('-').map_or((1, text), |bytes| (-1, bytes));
    Some(sign * i64::try_from(size(bytes)?).ok()?)
}

/// Reads a time; a number alone has microseconds.
fn microseconds(text: &str) -> Option<f64> {
    let is_number = text.bytes().all(|letter| letter.is_ascii_digit());
    seconds(text).map(|time| if is_number { time * 1e-6 } else { time })
}

/// Reads a time; a number alone has seconds.
fn seconds(text: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 7] =
        [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0), ("", 1.0)];
    let (number, factor) =
        UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(*unit)?, *factor)))?;
    Some(number.parse::<u32>().ok().map(f64::from)? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> Option<String> {
        let value = match name {
            "FIO_RW" => "randwrite",
            "FIO_BS" | "EIGHT" => "8k",
            "FIO_IODEPTH" => "4",
            "UNSET" => return None,
            _ => "x",
        };
        Some(value.to_owned())
    }

    fn parse(text: &str) -> Result<Vec<Vec<FileJob>>, String> {
        super::parse(text, Path::new("."), &variable)
    }

    fn one(text: &str) -> FileJob {
        let groups = parse(text).unwrap_or_else(|why| panic!("{why}: {text}"));
        let [job] = &groups[..] else { panic!("{groups:?}") };
        let [job] = &job[..] else { panic!("{groups:?}") };
        job.clone()
    }

    #[test]
    fn a_job_has_the_options_of_the_global_sections_before_it() {
        let text = "; a comment\n[global]\nbs=8k\nsize = 1m # of each\n[a]\nrw=randread\n[b]\nbs=4ki\n[global]\nsize=2G\n\
            [c]\nstonewall\nbuffered=0\nnumjobs=4\t; threads\n[d]\nrw=randrw\nrwmixwrite=30\n";
        let groups = parse(text).expect("valid");
        let jobs: Vec<Vec<(&str, u64, Option<u64>)>> = groups
            .iter()
            .map(|group| {
                group.iter().map(|job| (job.name.as_str(), job.block_bytes_max(), job.size_bytes)).collect()
            })
            .collect();
        let (mib, gib) = (Some(1 << 20), Some(2 << 30));
        assert_eq!(
            jobs,
            [vec![("a", 8192, mib), ("b", 4000, mib)], vec![("c", 8192, gib), ("d", 8192, gib)]]
        );
        let [c, d] = &groups[1][..] else { panic!("{groups:?}") };
        assert_eq!((c.is_direct, c.clones, c.reads_percent, c.engine), (true, 4, 100, IoEngine::Psync));
        assert_eq!((d.is_random(), d.reads_percent, d.is_direct), (true, 70, false));
    }

    /// etcd's check of a disk.
    #[test]
    fn the_check_of_etcd_is_run() {
        let job =
            one("[mytest]\nrw=write\nioengine=sync\nfdatasync=1\ndirectory=test-data\nsize=22m\nbs=2300\n");
        assert_eq!((job.engine, job.sync_every, job.syncs_data), (IoEngine::Sync, 1, true));
        assert_eq!((job.block_bytes_max(), job.size_bytes), (2300, Some(22 << 20)));
        assert_eq!(job.directory.as_deref(), Some("test-data"));
    }

    #[test]
    fn units_are_those_of_fio() {
        for (text, bytes) in
            [("512", 512), ("4k", 4096), ("4KB", 4096), ("4kib", 4000), ("1G", 1 << 30), ("2Mi", 2_000_000)]
        {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        assert_eq!([size("many"), size("1e3"), size("-1"), size("50%"), size("99999999p")], [None; 5]);
        for (text, time) in [("10", 10.0), ("5m", 300.0), ("10s", 10.0), ("200ms", 0.2), ("1h", 3600.0)] {
            assert_eq!(seconds(text), Some(time), "{text}");
        }
        assert_eq!([seconds("soon"), seconds("-1")], [None; 2]);
    }

    #[test]
    fn what_is_not_run_is_refused_by_its_name() {
        for (text, words) in [
            ("", "no section"),
            ("hello=1\n", "before any section"),
            ("[a\n", "has no end"),
            ("[a]\nioengine=rbd\n", "[a] ioengine=rbd: the engines sync, psync, libaio, io_uring and mmap"),
            ("[a]\nexec_prerun=rm -rf /\n", "[a] exec_prerun=rm -rf /: commands of a job file are not run"),
            ("[global]\nexec_postrun=true\n[a]\n", "commands of a job file are not run"),
            ("[a]\nlatency_target=5\n", "line 2, [a] latency_target=5: a depth is given here"),
            ("# x\n[a]\n\nexitwhen=5\n", "line 4, [a] exitwhen=5: this option is not run here"),
            ("[a]\nverify=crc32c\n", "verify=crc32c"),
            ("[a]\ninclude no-such-file\n", "line 2, include no-such-file: "),
            ("[a]\nrw=randtrim\n", "without trims"),
            ("[a]\nrw=randread:8k\n", "of sequential jobs"),
            ("[a]\nbs=4k,8x\n", "is not a number of bytes"),
            ("[a]\nbsrange=8k-4k\n", "is not a range"),
            ("[a]\nsize=${UNSET}\n", "line 2, size=${UNSET}: the variable UNSET is not set"),
            ("[a]\nsize=50%\n", "size=50%: is not a number of bytes"),
            ("[a]\ndirect=2\n", "neither 0 nor 1"),
            ("[a]\ndirect=1\nbs=100\n", "multiples of 512"),
            ("[a]\nsize=1k\n", "less than a block"),
            ("[a]\nioengine=mmap\nrw=write\n", "only reads"),
            ("[a]\nioengine=libaio\nrw=write\nfsync=1\n", "[a] fsync=1: with ioengine=libaio"),
            ("[a]\nfilename=/a:/b\n", "with one file"),
            ("[a]\ntime_based\n", "needs a runtime"),
            ("[a]\niodepth=0\n", "1 to 4096"),
            ("[a]\nrw=write\nverify=md5\nbs=2300\n", "multiples of 4096 bytes"),
            ("[a]\nrw=randread\nrandom_distribution=zipf:1.0\n", "random, zipf, pareto"),
            ("[a]\nrw=randread\nrandom_distribution=zoned:50/5:30/15\n", "random, zipf, pareto"),
            ("[a]\nrw=randread\nbssplit=4k/70:8k/70\n", "is not a list"),
            ("[a]\nrw=rw\nrate=1k,2k\n", "one rate"),
            ("[a]\nrate=1k\nrate_iops=5\n", "one of rate and rate_iops"),
            ("[a]\nio_submit_mode=offload\n", "ioengine=libaio and io_uring"),
            ("[a]\nzonemode=zbd\n", "its values here are none, strided"),
            ("[a]\nrw=randread\nzonesize=1m\n", "of sequential jobs"),
            ("[a]\n[b]\n[c]\nwait_for=a\n", "alone before it"),
            ("[a]\n[b]\nwait_for=a\n[c]\n", "by all jobs behind"),
            ("[a]\nsize=2*$pagesize+x\n", "whole numbers"),
            ("[a]\niodepth=many\n", "not a whole number"),
        ] {
            let why = parse(text).expect_err(text);
            assert!(why.contains(words), "{text}: {why}");
        }
    }

    #[test]
    fn values_are_of_reads_and_writes_of_variables_and_of_the_machine() {
        let job = one("[a]\nbs=${EIGHT},16k\nrw=randrw\nrate=4m\nblockalign=4k\nsize=2*$pagesize*64\n");
        assert_eq!((job.block_bytes_min(), job.block_bytes_max(), job.rates), (8192, 16384, [4 << 20; 2]));
    }

    #[test]
    fn calculations_have_the_usual_order() {
        for (text, number) in [("7", 7), ("2+3*4", 14), ("2*3+4", 10), ("20-4-6/2", 13)] {
            assert_eq!(calculate(text), Some(number), "{text}");
        }
        assert_eq!([calculate("1-2"), calculate("1/0"), calculate("1+"), calculate("k")], [None; 4]);
    }

    #[test]
    fn lengths_have_their_shares() {
        let mut random = SplitMix::new(7);
        let blocks = Blocks::split("4k/10:64k/50:32k/").expect("valid");
        let mut count = |bytes: u64| (0..10_000).filter(|_| blocks.draw(&mut random) == bytes).count();
        let counts = [count(4096), count(65536), count(32768)];
        assert!(
            counts.iter().zip([1000, 5000, 4000]).all(|(count, wanted)| count.abs_diff(wanted) < 300),
            "{counts:?}"
        );
        let range = Blocks::range("4k-17k").expect("valid");
        assert!((0..1000).all(|_| [4096, 8192, 12288, 16384].contains(&range.draw(&mut random))));
    }

    #[test]
    fn jobs_wait_for_others_and_end_them() {
        let names = |text: &str| -> Vec<Vec<String>> {
            let groups = parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
            groups.into_iter().map(|group| group.into_iter().map(|job| job.name).collect()).collect()
        };
        let waits = names("[a]\n[b]\nwait_for=a\n[c]\nwait_for=a\n[d]\nstonewall\nwait_for=c\n[e]\n");
        assert_eq!(waits, [vec!["a"], vec!["b", "c"], vec!["d", "e"]]);
        let ends = names("[a]\nexitall\nexit_what=all\n[b]\n[never]\nstonewall\n");
        assert_eq!(ends, [vec!["a", "b"]]);
    }

    /// Debian's package fio-examples (3.33), those with another engine than the five: its first, which is refused.
    const OTHER_ENGINES: &str = "cpp_null=cpp_null cpuio=cpuio dev-dax=dev-dax dfs=dfs e4defrag=e4defrag e4defrag2=e4defrag exec=exec \
        falloc=falloc filecreate-ioengine=filecreate filedelete-ioengine=filedelete filestat-ioengine=filestat ftruncate=ftruncate \
        gfapi=gfapi gpudirect-rdmaio-client=rdma gpudirect-rdmaio-server=rdma http-s3-crypto=http http-s3-storage-class=http \
        http-s3=http http-swift=http http-webdav=http ime=ime_psync libcufile-cufile=libcufile libcufile-posix=libcufile \
        libhdfs=libhdfs libiscsi=libiscsi libpmem=libpmem librpma_apm-client=librpma_apm_client \
        librpma_apm-server=librpma_apm_server librpma_gpspm-client=librpma_gpspm_client \
        librpma_gpspm-server=librpma_gpspm_server libzbc-rand-write=libzbc libzbc-seq-read=libzbc mtd=mtd nbd=nbd netio=net \
        netio_multicast=net nfs=nfs null=null pmemblk=pmemblk rados=rados rbd=rbd rdmaio-client=rdma rdmaio-server=rdma \
        sg_verify-fail=sg sg_verify=sg sg_write_same_ndob=sg uring-cmd-ng=io_uring_cmd uring-cmd-zoned=io_uring_cmd zipf=null";
    /// The others: the options that each has, and the one that is refused.
    const EXAMPLES: [(&str, &str, &str); 37] = [
        ("1mbs_clients", "rw=read rate=1250 ratemin=1024 directory=d startdelay=4", ""),
        ("aio-read", "ioengine=libaio buffered=0 rw=randread bs=128k directory=d iodepth=4", ""),
        ("backwards-read", "bs=4k rw=read:-8k filename=f", ""),
        (
            "basic-verify",
            "rw=randwrite bs=4k direct=1 ioengine=libaio iodepth=16 verify=crc32c filename=f",
            "",
        ),
        ("butterfly", "filename=f bs=4k direct=1 rw=read:-8k flow=2", ""),
        ("cmdprio-bssplit", "rw=randrw bssplit=64k/40:1024k/60,1024k/100 cmdprio=0 log_prio=1", "cmdprio"),
        ("cmdprio-percentage", "bs=128k prioclass=3 cmdprio_percentage=20 cmdprio_class=1", "cmdprio_class"),
        (
            "cross-stripe-verify",
            "bs=16k direct=1 rw=write:112k verify=crc32c verify_backlog=1 offset_increment=124g io_size=120g offset=120k \
             group_reporting verify_dump=1 loops=2 numjobs=30",
            "",
        ),
        (
            "dedupe-global",
            "dedupe_mode=working_set buffer_compress_percentage=50 rw=write",
            "buffer_compress_percentage",
        ),
        (
            "disk-zone-profile",
            "rw=read zonemode=strided zonesize=256m zoneskip=2g write_bw_log log_offset=1",
            "",
        ),
        (
            "enospc-pressure",
            "continue_on_error=write ignore_error=,ENOSPC exitall rw=randwrite",
            "continue_on_error",
        ),
        (
            "exitwhat",
            "exitall=1 new_group=1 rw=randrw thinktime=2000 number_ios=1000 exit_what=all rate=300,300,300",
            "",
        ),
        (
            "fio-rand-RW",
            "name=n rw=randrw rwmixread=60 rwmixwrite=40 direct=0 numjobs=4 time_based runtime=900",
            "",
        ),
        ("fio-rand-read", "name=n rw=randread bs=4K direct=0 numjobs=1 time_based runtime=900", ""),
        ("fio-rand-write", "name=n rw=randwrite bs=4K direct=0 numjobs=4 time_based runtime=900", ""),
        (
            "fio-seq-RW",
            "name=n rw=rw rwmixread=60 rwmixwrite=40 bs=256K numjobs=4 time_based runtime=900",
            "",
        ),
        ("fio-seq-read", "name=n rw=read bs=256K direct=1 numjobs=1 time_based runtime=900", ""),
        ("fio-seq-write", "name=n rw=write bs=256K direct=0 numjobs=1 time_based runtime=900", ""),
        (
            "fixed-rate-submission",
            "rw=read ioengine=libaio direct=1 io_submit_mode=offload rate_iops=1000",
            "",
        ),
        ("flow", "norandommap thread time_based runtime=30 ioengine=libaio bs=8k flow_sleep=1000 flow=8", ""),
        ("fsx", "ioengine=libaio rw=randrw norandommap direct=1 loops=500000", ""),
        (
            "iometer-file-access-server",
            "description=d bssplit=512/10:1k/5:2k/5:4k/60:8k/2:16k/4:32k/4:64k/10 rw=randrw rwmixread=80 direct=1",
            "",
        ),
        (
            "jesd219",
            "direct=1 rw=randrw norandommap randrepeat=0 rwmixread=40 rwmixwrite=60 blockalign=4k \
             random_distribution=zoned:50/5:30/15:20/80 bssplit=512/4:1024/1:1536/1:2048/1:2560/1:3072/1:3584/1:4k/67:8k/10:16k/7:32k/3:64k/3",
            "",
        ),
        (
            "latency-profile",
            "random_generator=lfsr latency_target=500000 latency_percentile=99.9",
            "latency_percentile",
        ),
        ("numa", "rw=randread numa_cpu_nodes=0 numa_mem_policy=bind:0", "numa_cpu_nodes"),
        (
            "poisson-rate-submission",
            "ioengine=libaio io_submit_mode=offload rate_iops=50 rate_process=poisson",
            "",
        ),
        ("rand-zones", "direct=1 rw=randread norandommap random_distribution=zoned:50/5:30/15:20/", ""),
        ("ssd-steadystate", "description=d rw=randwrite group_reporting numjobs=4 write_bw_log=w", ""),
        ("ssd-test", "rw=randwrite direct=1 runtime=60 directory=d filename=f stonewall", ""),
        ("steadystate", "threads=1 time_based runtime=5m ss=iops:10% ss_dur=30s", "ss"),
        (
            "surface-scan",
            "rw=write verify=meta verify_pattern=0xaa verify_interval=512 fill_device=1",
            "fill_device",
        ),
        ("tiobench-example", "direct=1 bsrange=4k-4k timeout=60 numjobs=4 rw=write stonewall", ""),
        ("waitfor", "threads=1 group_reporting filesize=128m new_group rw=randwrite runtime=10", ""),
        (
            "xnvme-compare",
            "rw=${FIO_RW} iodepth=${FIO_IODEPTH} bs=${FIO_BS} ramp_time=3 allow_file_create=0",
            "",
        ),
        ("xnvme-zoned", "zonemode=zbd rw=write verify=crc32c allow_file_create=0", "zonemode"),
        ("zbd-rand-write", "rw=randwrite zonemode=zbd zonesize=256M max_open_zones=32", "max_open_zones"),
        (
            "zbd-seq-read",
            "rw=read zonemode=zbd zonesize=256M read_beyond_wp=0 offset=140660178944",
            "read_beyond_wp",
        ),
    ];

    /// Returns the option by which a job file is refused; an empty text if it is run.
    fn refused_by(name: &str, text: &str) -> String {
        let Err(why) = parse(text) else { return String::new() };
        let option = why.split("] ").nth(1).and_then(|rest| rest.split(['=', ':']).next());
        option.unwrap_or_else(|| panic!("{name}: {why}")).to_owned()
    }

    #[test]
    fn each_of_fios_examples_is_run_or_refused_by_an_option() {
        for example in OTHER_ENGINES.split_whitespace() {
            let (name, engine) = example.split_once('=').expect("a name and an engine");
            assert_eq!(refused_by(name, &format!("[a]\nioengine={engine}\n")), "ioengine");
        }
        for (name, options, refused) in EXAMPLES {
            let text = format!("[a]\n{}\n", options.replace(' ', "\n"));
            assert_eq!(refused_by(name, &text), refused, "{name}");
        }
    }

    /// The files themselves, where they are installed, or are in the folder that FIO_EXAMPLES names.
    #[test]
    fn the_installed_examples_are_those_of_the_table() {
        let folder =
            std::env::var("FIO_EXAMPLES").unwrap_or_else(|_| "/usr/share/doc/fio/examples".to_owned());
        let Ok(entries) = fs::read_dir(&folder) else {
            eprintln!("{folder} is not here: install fio-examples to try its files");
            return;
        };
        let others = OTHER_ENGINES.split_whitespace().filter_map(|example| example.split_once('='));
        let table: BTreeMap<&str, &str> = others
            .map(|(name, _)| (name, "ioengine"))
            .chain(EXAMPLES.map(|(name, _, refused)| (name, refused)))
            .collect();
        for entry in entries {
            let path = entry.expect("readable").path();
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            if path.extension().is_some_and(|end| end == "fio") {
                let refused = refused_by(&name, &read(&path).expect("readable"));
                assert_eq!(table.get(name.as_str()).copied(), Some(refused.as_str()), "{name}");
            }
        }
    }
}
