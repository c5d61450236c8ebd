//! The command line.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};

use crate::report::Document;
use crate::{cache, kv, nop, random, ranges, scan, wal};

/// Forebay beside its peers: the same reads through every Rust I/O runtime, in one interleaved run.
#[derive(Debug, Parser)]
#[command(name = "forebay-versus", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The experiments.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Random 4 KiB reads in one thread at several depths, on the disk and on zram.
    Random(random::Options),
    /// One sequential pass over a large file.
    Scan(scan::Options),
    /// 20,000 ranges of one file, read as one batch from Tokio, cold and warm.
    Ranges(ranges::Options),
    /// Operations that do nothing: what the path itself costs.
    Nop(nop::Options),
    /// Durable appends to a log, beside a bare group commit and other logs.
    Wal(wal::Options),
    /// Gets, loads and durable puts of a key-value store, beside the disk and other stores.
    Kv(kv::Options),
    /// Cached reads of pages, beside other caches and the page cache.
    Cache(cache::Options),
    /// One sample in this process (what the experiments start for every sample).
    #[command(hide = true)]
    Sample {
        /// The job, as JSON.
        job: String,
        /// Count system calls with this tracepoint.
        #[arg(long)]
        syscall_event: Option<u64>,
    },
}

/// Options of every experiment.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Only these rows (the ratios that need another row are then left out).
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Folder for the test file or folder, which is removed at the end.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Also write the result to this file as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// End with exit code 1 when a gate is missed or a row fails.
    #[arg(long)]
    pub(crate) check: bool,
}

impl Common {
    /// Returns the chosen rows of `all`, in their order.
    ///
    /// # Errors
    /// When the command line names a row that does not exist.
    pub(crate) fn choose(&self, all: &[&'static str]) -> Result<Vec<&'static str>> {
        if let Some(unknown) = self.rows.iter().find(|row| !all.contains(&row.as_str())) {
            bail!("there is no row {unknown}; the rows are {}", all.join(", "));
        }
        Ok(all
            .iter()
            .copied()
            .filter(|row| self.rows.is_empty() || self.rows.iter().any(|name| name == row))
            .collect())
    }

    /// Returns the folder for the test file: the given one or the current one.
    ///
    /// # Errors
    /// When the current folder is gone.
    pub(crate) fn dir(&self) -> Result<PathBuf> {
        Ok(match &self.dir {
            Some(dir) => dir.clone(),
            None => std::env::current_dir()?,
        })
    }

    /// Writes the JSON file if the command line names one; called after every cell, so that an interrupted
    /// run keeps its results so far.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write_json(&self, document: &Document) -> Result<()> {
        self.json.as_ref().map_or(Ok(()), |path| document.write(path))
    }
}
