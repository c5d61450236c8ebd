//! Job files of fio. Each option is read here, or has no effect on the work, or is refused by its name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Options by name.
type Options = BTreeMap<String, String>;

/// The options of a section: as they are read, and as they were written.
#[derive(Debug, Clone, Default)]
struct Settings {
    read: Options,
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

/// Options that are read, beside those of [`WITHOUT_EFFECT`].
const READ: &str = "bs bsrange direct directory fallocate fdatasync filename filesize fixedbufs fsync invalidate io_size iodepth \
    ioengine loops norandommap nrfiles number_ios numjobs offset overwrite registerfiles runtime rw rwmixread rwmixwrite size stonewall time_based";
/// Options without an effect on the work: they are about reports, or describe what happens here anyway.
pub(crate) const WITHOUT_EFFECT: &str = "allrandrepeat clat_percentiles create_serialize description disable_bw_measurement \
    disable_clat disable_lat disable_slat group_reporting gtod_reduce lat_percentiles log_avg_msec name new_group \
    percentile_list randrepeat randseed refill_buffers scramble_buffers slat_percentiles thread unified_rw_reporting unlink \
    write_bw_log write_iops_log write_lat_log";
/// Other names of options.
const ALIASES: [(&str, &str); 6] = [
    ("blocksize", "bs"),
    ("io_limit", "io_size"),
    ("nr_files", "nrfiles"),
    ("readwrite", "rw"),
    ("timeout", "runtime"),
    ("wait_for_previous", "stonewall"),
];

/// A job: operations on files, by clones that work at the same time, each on a thread of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileJob {
    pub(crate) name: String,
    pub(crate) engine: IoEngine,
    /// Operations of 100 that read; the others write.
    pub(crate) reads_percent: u64,
    pub(crate) is_random: bool,
    /// At random, a block may come again before all were there.
    pub(crate) repeats_blocks: bool,
    pub(crate) is_direct: bool,
    pub(crate) block_bytes: u64,
    pub(crate) offset: u64,
    /// Bytes of the file from the offset on that are used; by default all of an existing file.
    pub(crate) size_bytes: Option<u64>,
    /// Bytes that each clone moves; by default the size.
    pub(crate) io_bytes: Option<u64>,
    /// Operations of each clone.
    pub(crate) operations_max: Option<u64>,
    pub(crate) depth: u64,
    pub(crate) clones: u64,
    /// After so many writes they are made durable; 0 is never.
    pub(crate) sync_every: u64,
    /// By `fdatasync`, not `fsync`.
    pub(crate) syncs_data: bool,
    pub(crate) seconds: Option<f64>,
    /// It works for its seconds, however often it is done.
    pub(crate) is_timed: bool,
    pub(crate) directory: Option<String>,
    /// The file of all clones; by default each has one of its own.
    pub(crate) filename: Option<String>,
    /// The file is written before it is measured.
    pub(crate) overwrites: bool,
    /// A file that is made has its space at once.
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
}

/// Parses a job file into its groups. The jobs of a group run at the same time, one group after the other.
///
/// # Errors
/// What is wrong, or is not run here, in a sentence that follows the file's name.
pub(crate) fn parse(text: &str) -> Result<Vec<Vec<FileJob>>, String> {
    let (mut global, mut sections) = (Settings::default(), Vec::<(String, Settings)>::new());
    let mut section = None;
    for line in text.lines() {
        let line = line.split([';', '#']).next().unwrap_or_default().trim();
        if let Some(name) = line.strip_prefix('[') {
            let name = name.strip_suffix(']').ok_or_else(|| format!("the section {line} has no end"))?;
            if name != "global" {
                sections.push((name.to_owned(), global.clone()));
            }
            section = Some(name);
            continue;
        }
        let (name, value) =
            line.split_once('=').map_or((line, ""), |(name, value)| (name.trim(), value.trim()));
        let settings = match (section, sections.last_mut()) {
            _ if name.is_empty() => continue,
            (Some("global"), _) => &mut global,
            (Some(_), Some((_, settings))) => settings,
            _ => {
                return Err(format!(
                    "{name:?} is before any section such as [job]: is it a job file of fio?"
                ));
            }
        };
        if value.contains("${") {
            return Err(format!("{name}={value}: variables are not read; write the value"));
        }
        settings.written.insert(name.to_owned(), value.to_owned());
        let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, own)| *own);
        // The opposite of `direct`; the later of the two counts.
        let (name, value) = match (name, value) {
            ("buffered", "0") => ("direct", "1"),
            ("buffered", _) => ("direct", "0"),
            other => other,
        };
        settings.read.insert(name.to_owned(), value.to_owned());
    }
    let mut groups: Vec<Vec<FileJob>> = Vec::new();
    for (name, Settings { read, written }) in sections {
        let job = FileJob { options: written, ..Section { name: &name, options: &read }.job()? };
        let is_serial = read.get("stonewall").is_some_and(|value| value != "0");
        match groups.last_mut().filter(|_| !is_serial) {
            Some(group) => group.push(job),
            None => groups.push(vec![job]),
        }
    }
    if groups.is_empty() {
        return Err("has no section such as [job]: is it a job file of fio?".to_owned());
    }
    Ok(groups)
}

/// A section with the options that hold for it.
#[derive(Debug)]
struct Section<'a> {
    name: &'a str,
    options: &'a Options,
}

impl Section<'_> {
    /// Returns a sentence on an option.
    fn wrong(&self, option: &str, why: &str) -> String {
        let value = self.options.get(option).filter(|value| !value.is_empty());
        let value = value.map_or_else(String::new, |value| format!("={value}"));
        format!("[{}] {option}{value}: {why}", self.name)
    }

    fn read<T>(
        &self,
        option: &str,
        why: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let value = self.options.get(option);
        value.map(|value| read(value).ok_or_else(|| self.wrong(option, why))).transpose()
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

    fn job(&self) -> Result<FileJob, String> {
        let text = |option: &str| self.options.get(option).map(String::as_str);
        let refused = |option: &str, why: &str| Err(self.wrong(option, why));
        let engine = text("ioengine").unwrap_or("psync");
        let Some((_, engine)) = ENGINES.iter().find(|(name, _)| *name == engine) else {
            return refused("ioengine", "the engines sync, psync, libaio, io_uring and mmap are run here");
        };
        for option in self.options.keys().map(String::as_str) {
            if option.starts_with("exec_") {
                return refused(option, "commands of a job file are not run");
            }
            if !READ.split(' ').chain(WITHOUT_EFFECT.split(' ')).any(|known| known == option) {
                return refused(option, "this option is not run here");
            }
        }
        let rw = text("rw").unwrap_or("read");
        let (is_random, kind) = rw.strip_prefix("rand").map_or((false, rw), |kind| (true, kind));
        let mix = || {
            let written = self.count("rwmixwrite", 50)?;
            Ok::<_, String>(self.count("rwmixread", 100_u64.saturating_sub(written))?.min(100))
        };
        let reads_percent = match kind {
            "read" => 100,
            "write" => 0,
            "rw" | "readwrite" => mix()?,
            _ => return refused("rw", "reads, writes and their mixes are run here, without steps and trims"),
        };
        let block =
            self.bytes("bs")?.or(self.read("bsrange", "one length of a block is run here", |range| {
                let (least, most) = range.split_once('-')?;
                size(least).filter(|least| size(most) == Some(*least))
            })?);
        let job = FileJob {
            name: self.name.to_owned(),
            engine: *engine,
            reads_percent,
            is_random,
            repeats_blocks: self.flag("norandommap")?,
            is_direct: self.flag("direct")?,
            block_bytes: block.unwrap_or(4096),
            offset: self.bytes("offset")?.unwrap_or(0),
            size_bytes: self.bytes("size")?.or(self.bytes("filesize")?),
            io_bytes: self.bytes("io_size")?,
            operations_max: self.bytes("number_ios")?,
            depth: self.count("iodepth", 1)?,
            clones: self.count("numjobs", 1)?,
            sync_every: self.count("fsync", 0)?.max(self.count("fdatasync", 0)?),
            syncs_data: text("fdatasync").is_some_and(|every| every != "0"),
            seconds: self
                .read("runtime", "is not a time such as 10 or 5m", seconds)?
                .filter(|seconds| *seconds > 0.0),
            is_timed: self.flag("time_based")?,
            directory: text("directory").map(str::to_owned),
            filename: text("filename").map(str::to_owned),
            overwrites: self.flag("overwrite")?,
            allocates: text("fallocate").is_none_or(|how| !["none", "0"].contains(&how)),
            fixed_buffers: self.flag("fixedbufs")?,
            fixed_file: self.flag("registerfiles")?,
            options: Options::new(),
        };
        self.check(&job)?;
        Ok(job)
    }

    /// Refuses work that cannot be done, or is done in another way here.
    fn check(&self, job: &FileJob) -> Result<(), String> {
        let is_queue = matches!(job.engine, IoEngine::Libaio | IoEngine::IoUring);
        let [_, writes] = job.reads_and_writes();
        let is = |option: &str, value: &str| self.options.get(option).is_some_and(|own| own == value);
        let several = |option: &str| self.options.get(option).is_some_and(|own| own.contains(':'));
        let syncs = if job.syncs_data { "fdatasync" } else { "fsync" };
        for (is_wrong, option, why) in [
            (job.block_bytes == 0 || job.block_bytes > 1 << 30, "bs", "blocks have 1 byte to 1g"),
            (job.depth == 0 || job.depth > 4096, "iodepth", "1 to 4096 operations are in flight"),
            (job.clones == 0 || job.clones > 1024, "numjobs", "1 to 1024 threads are run here"),
            (job.size_bytes.is_some_and(|size| size < job.block_bytes), "size", "is less than a block"),
            (
                job.is_direct && !job.block_bytes.is_multiple_of(512),
                "bs",
                "direct I/O needs multiples of 512 bytes",
            ),
            (
                job.is_direct && !job.offset.is_multiple_of(512),
                "offset",
                "direct I/O needs multiples of 512 bytes",
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
            (self.count("loops", 1)? != 1, "loops", "a job is done once; time_based repeats it"),
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
    use std::path::Path;

    use super::*;

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
                group.iter().map(|job| (job.name.as_str(), job.block_bytes, job.size_bytes)).collect()
            })
            .collect();
        let (mib, gib) = (Some(1 << 20), Some(2 << 30));
        assert_eq!(
            jobs,
            [vec![("a", 8192, mib), ("b", 4000, mib)], vec![("c", 8192, gib), ("d", 8192, gib)]]
        );
        let [c, d] = &groups[1][..] else { panic!("{groups:?}") };
        assert_eq!((c.is_direct, c.clones, c.reads_percent, c.engine), (true, 4, 100, IoEngine::Psync));
        assert_eq!((d.is_random, d.reads_percent, d.is_direct), (true, 70, false));
    }

    /// etcd's check of a disk.
    #[test]
    fn the_check_of_etcd_is_run() {
        let job =
            one("[mytest]\nrw=write\nioengine=sync\nfdatasync=1\ndirectory=test-data\nsize=22m\nbs=2300\n");
        assert_eq!((job.engine, job.sync_every, job.syncs_data), (IoEngine::Sync, 1, true));
        assert_eq!((job.block_bytes, job.size_bytes), (2300, Some(22 << 20)));
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
            ("[a]\nrate=10m\n", "[a] rate=10m: this option is not run here"),
            ("[a]\nverify=crc32c\n", "verify=crc32c"),
            ("[a]\ninclude x\n", "include x: this option"),
            ("[a]\nrw=randtrim\n", "without steps and trims"),
            ("[a]\nrw=read:8k\n", "without steps and trims"),
            ("[a]\nbs=4k,8k\n", "is not a number of bytes"),
            ("[a]\nbsrange=4k-8k\n", "one length of a block"),
            ("[a]\nsize=${SIZE}\n", "variables are not read"),
            ("[a]\nsize=50%\n", "size=50%: is not a number of bytes"),
            ("[a]\ndirect=2\n", "neither 0 nor 1"),
            ("[a]\ndirect=1\nbs=100\n", "multiples of 512"),
            ("[a]\nsize=1k\n", "less than a block"),
            ("[a]\nioengine=mmap\nrw=write\n", "only reads"),
            ("[a]\nioengine=libaio\nrw=write\nfsync=1\n", "[a] fsync=1: with ioengine=libaio"),
            ("[a]\nfilename=/a:/b\n", "with one file"),
            ("[a]\ntime_based\n", "needs a runtime"),
            ("[a]\niodepth=0\n", "1 to 4096"),
            ("[a]\niodepth=many\n", "not a whole number"),
        ] {
            let why = parse(text).expect_err(text);
            assert!(why.contains(words), "{text}: {why}");
        }
    }

    /// Debian's package fio-examples (3.33): each file is run, or refused by an option that it has.
    #[test]
    fn each_of_fios_examples_is_run_or_refused_by_an_option_that_it_has() {
        let folder = Path::new("/usr/share/doc/fio/examples");
        let Ok(entries) = std::fs::read_dir(folder) else {
            eprintln!("{} is not here: install fio-examples to try its files", folder.display());
            return;
        };
        let mut run = Vec::new();
        for entry in entries {
            let path = entry.expect("readable").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if !name.ends_with(".fio") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("readable");
            match parse(&text) {
                Ok(groups) => {
                    assert!(
                        !text.contains("exec_prerun") && groups.iter().all(|group| !group.is_empty()),
                        "{name}"
                    );
                    run.push(name);
                }
                Err(why) => {
                    let option = why.split("] ").nth(1).unwrap_or(&why);
                    let option = option.split(['=', ':']).next().unwrap_or_default();
                    let names = ALIASES.iter().filter(|(_, own)| *own == option).map(|(alias, _)| *alias);
                    let named = names.chain([option, "buffered"]).any(|name| text.contains(name));
                    assert!(named && why.contains(": "), "{name}: {why}");
                }
            }
        }
        for name in [
            "fio-seq-read",
            "fio-rand-read",
            "fio-seq-write",
            "fio-rand-RW",
            "aio-read",
            "ssd-test",
            "tiobench-example",
        ] {
            assert!(run.contains(&format!("{name}.fio")), "{name}: {run:?}");
        }
    }
}
