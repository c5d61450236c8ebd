//! Command lines of fio for the same work as a row, so that a reader can check a figure with another program.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::context::Target;
use forebay_report::result::{Experiment as Table, Row};

#[derive(Debug)]
pub(super) struct FioJob<'a> {
    pub(super) name: &'a str,
    pub(super) path: &'a Path,
    pub(super) size_bytes: f64,
    /// `read`, `write`, `randread`, `randwrite`.
    pub(super) rw: &'a str,
    pub(super) block_bytes: f64,
    /// Operations in flight of io_uring and libaio; threads of the engines that block.
    pub(super) depth: f64,
    /// `io_uring`, `libaio`, `psync`, `pvsync2`, `mmap`.
    pub(super) engine: &'a str,
    pub(super) is_direct: bool,
    pub(super) seconds: f64,
    /// Further options.
    pub(super) more: &'a str,
}

impl<'a> FioJob<'a> {
    /// Returns a job of direct reads in order for the time of a row, with io_uring, one in flight. The parameter `size` is the
    /// part of the file that is read.
    pub(super) fn of(table: &Table, row: &'a Row, path: &'a Path, size: &str) -> Option<Self> {
        Some(Self {
            name: &row.name,
            path,
            size_bytes: table.number(size)?,
            rw: "read",
            block_bytes: 4096.0,
            depth: 1.0,
            engine: "io_uring",
            is_direct: true,
            seconds: table.number("seconds")?,
            more: "",
        })
    }

    /// Returns the command line.
    pub(super) fn command(&self) -> String {
        let Self { name, rw, engine, depth, .. } = self;
        let mut line = format!(
            "fio --name={name} --filename={} --size={} --rw={rw} --bs={} --ioengine={engine} --direct={}",
            word(self.path),
            self.size_bytes,
            self.block_bytes,
            u8::from(self.is_direct),
        );
        // Writing to a String cannot fail.
        let _ = match *engine {
            "io_uring" | "libaio" => write!(line, " --iodepth={depth}"),
            _ if *depth > 1.0 => write!(line, " --numjobs={depth} --thread --group_reporting"),
            _ => Ok(()),
        };
        let _ = write!(line, " --runtime={}ms", (self.seconds * 1000.0).round());
        if rw.starts_with("rand") {
            line.push_str(" --norandommap");
        }
        if rw.ends_with("write") {
            // The file is written before, so that no write allocates.
            line.push_str(" --overwrite=1");
        }
        if !self.more.is_empty() {
            let _ = write!(line, " {}", self.more);
        }
        line
    }
}

/// Returns the file that fio uses: the existing one, or another file in the same directory.
pub(super) fn file(target: &Target) -> PathBuf {
    let path = std::path::absolute(target.path()).unwrap_or_else(|_| target.path().to_owned());
    if matches!(target, Target::Directory(_)) { path.join("forebay-fio.tmp") } else { path }
}

/// Returns a path as one word of a shell. fio parses a colon as the end of a name.
fn word(path: &Path) -> String {
    let text = path.display().to_string().replace(':', r"\:");
    let is_plain = text.chars().all(|letter| letter.is_alphanumeric() || "/._-+,@%".contains(letter));
    if is_plain { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(path: &str, engine: &str, rw: &str) -> String {
        let (size_bytes, block_bytes, depth, seconds) = (1048576.0, 4096.0, 8.0, 0.4);
        let path = Path::new(path);
        let more = "--fdatasync=1";
        FioJob { name: "x", path, size_bytes, rw, block_bytes, depth, engine, is_direct: true, seconds, more }
            .command()
    }

    #[test]
    fn a_job_does_the_same_work() {
        assert_eq!(
            job("/data/f", "io_uring", "randwrite"),
            "fio --name=x --filename=/data/f --size=1048576 --rw=randwrite --bs=4096 --ioengine=io_uring --direct=1 \
             --iodepth=8 --runtime=400ms --norandommap --overwrite=1 --fdatasync=1"
        );
        let threads = job("/data/f", "psync", "read");
        assert!(threads.contains("--numjobs=8 --thread"), "{threads}");
        assert!(!threads.contains("--overwrite") && !threads.contains("--norandommap"), "{threads}");
    }

    #[test]
    fn a_path_is_one_word_of_a_shell_and_one_file_of_fio() {
        assert!(job("/it's here/a:b", "psync", "read").contains(r"--filename='/it'\''s here/a\:b' "));
        let own = file(&Target::Directory("/data".into()));
        assert_eq!(own, Path::new("/data/forebay-fio.tmp"));
        assert_eq!(file(&Target::Existing("/dev/sda".into())), Path::new("/dev/sda"));
    }
}
