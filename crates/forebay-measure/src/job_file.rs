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

/// The options of a section: where each is and how it is read, and as it was written. Each has the name that fio gives it.
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
    /// After this many writes they are made durable; 0 is never.
    pub(crate) sync_every: u64,
    /// By `fdatasync`, not `fsync`.
    pub(crate) syncs_data: bool,
    /// After this many writes, or all, they are read and compared; 0 is never.
    pub(crate) verify_every: u64,
    pub(crate) delay_seconds: f64,
    /// Seconds of work before it is measured.
    pub(crate) ramp_seconds: f64,
    pub(crate) seconds: Option<f64>,
    /// It works for its seconds, however often it is done.
    pub(crate) is_timed: bool,
    /// A pause after this many operations.
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
    /// The options as they were written, with the names that fio's result has.
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
    WITHOUT_EFFECT.split(' ').any(|known| known == name)
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
    // Whether the section is a global one.
    let mut section = None;
    for (place, line) in lines(text, folder, "", 0)? {
        if let Some(name) = line.strip_prefix('[') {
            let name =
                name.strip_suffix(']').ok_or_else(|| format!("{place}: the section {line} has no end"))?;
            // As fio has it, `[global defaults]` is one of these, too.
            let is_global = name.starts_with("global");
            if !is_global {
                sections.push((name.to_owned(), global.clone()));
            }
            section = Some(is_global);
            continue;
        }
        let (name, value) =
            line.split_once('=').map_or((line.as_str(), ""), |(name, value)| (name.trim(), value.trim()));
        let settings = match (section, sections.last_mut()) {
            (Some(true), _) => &mut global,
            (Some(false), Some((_, settings))) => settings,
            _ => {
                return Err(format!(
                    "{place}: {name:?} is before any section such as [job]: is it a job file of fio?"
                ));
            }
        };
        let value = expand(value, variable).map_err(|why| format!("{place}, {name}={value}: {why}"))?;
        let name = own_name(name);
        settings.written.insert(name.to_owned(), value.clone());
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
/// It cannot be read, or is too long.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than 1 MiB"));
    }
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
    let number = |text: &str| text.trim().parse::<u64>().ok();
    in_order(text, ['+', '-'], |sum| in_order(sum, ['*', '/'], number))
}

/// Calculates from left to right with the terms between these signs.
fn in_order(text: &str, signs: [char; 2], term: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let mut terms = text.split(signs);
    let first = term(terms.next()?)?;
    terms.zip(text.matches(signs)).try_fold(first, |left, (right, sign)| {
        let right = term(right)?;
        match sign {
            "+" => left.checked_add(right),
            "-" => left.checked_sub(right),
            "*" => left.checked_mul(right),
            _ => left.checked_div(right),
        }
    })
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
            return refused("rw", "give the step as bytes, such as -8k, and for sequential jobs only");
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
            (is("invalidate", "0"), "invalidate", "files always leave the page cache before a job here"),
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
    const UNITS: [(&str, f64); 9] = [
        ("usec", 1e-6),
        ("us", 1e-6),
        ("msec", 1e-3),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
        ("d", 86_400.0),
        ("", 1.0),
    ];
    let text = text.to_ascii_lowercase();
    let (number, factor) =
        UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(*unit)?, *factor)))?;
    Some(number.parse::<u32>().ok().map(f64::from)? * factor)
}

#[cfg(test)]
mod tests;
