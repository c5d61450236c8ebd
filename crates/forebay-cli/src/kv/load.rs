//! `kv load`: loads a file into a store.

use std::path::{Path, PathBuf};

use clap::Args;
use forebay_kv::{Batch, Keyspace};

use super::PartArgs;
use super::input::{self, Entry, Fault, Format, Input};
use crate::output::print;
use forebay_measure::progress::{Progress, Step, Unit};
use forebay_report::failure::Failure;

/// Entries of a full batch, which is then written.
const BATCH_ENTRIES: usize = 1024;
/// Bytes of keys and values of a full batch, which is then written.
const BATCH_BYTES: usize = 256 << 10;
/// Entries between two updates of the progress bar.
const STEP: u64 = 256;

/// Options of `kv load`.
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    part: PartArgs,
    /// The file; `-` is standard input.
    file: PathBuf,
    /// The format of the file [default: by the end of its name: .csv, .tsv, .jsonl or .ndjson]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The first line of CSV or TSV names the columns: `key` and `value` are taken, wherever they stand.
    #[arg(long)]
    header: bool,
    /// The keys are in ascending order: write them straight into tables, all or none.
    #[arg(long)]
    sorted: bool,
    /// Create the store and the keyspace if they do not exist.
    #[arg(long)]
    create: bool,
    /// Print no progress.
    #[arg(long)]
    quiet: bool,
}

pub(super) fn run(args: &LoadArgs) -> anyhow::Result<()> {
    let format = args.format.or_else(|| Format::of(&args.file)).ok_or_else(|| {
        let file = args.file.display();
        Failure::Usage(format!(
            "the name of {file} does not end in a known format: add --format csv, tsv or jsonl"
        ))
    })?;
    if args.header && format == Format::Jsonl {
        return Err(Failure::Usage("JSON lines have no header: leave out --header".to_owned()).into());
    }
    let (file, length) = input::open(&args.file)?;
    let input = Input::new(file, format, args.header);
    let count = args.part.open(args.create, |keyspace| {
        let step = length.map(|length| Progress::detect(args.quiet).step("load", length, Unit::Bytes));
        let mut loader = FileLoader { file: &args.file, input, step, taken: 0 };
        let count = if args.sorted { loader.sorted(keyspace) } else { loader.in_batches(keyspace) }?;
        if let Some(step) = loader.step {
            step.finish(&format!("{} entries", loader.taken));
        }
        Ok(count)
    })?;
    Ok(print(&format!("{count} entries loaded\n"))?)
}

struct FileLoader<'a> {
    file: &'a Path,
    input: Input,
    step: Option<Step>,
    /// Entries read so far.
    taken: u64,
}

impl FileLoader<'_> {
    fn next(&mut self) -> Result<Option<Entry>, Fault> {
        if self.taken.is_multiple_of(STEP)
            && let Some(step) = &self.step
        {
            step.set(self.input.position);
        }
        let entry = self.input.next()?;
        self.taken += u64::from(entry.is_some());
        Ok(entry)
    }

    /// Loads all entries or nothing, and returns their number.
    fn sorted(&mut self, keyspace: &Keyspace) -> anyhow::Result<u64> {
        let mut load = keyspace.loader();
        loop {
            let entry = self.next().map_err(|fault| self.wrong(fault, "nothing was loaded"))?;
            let Some(Entry { line, key, value }) = entry else { break };
            if let Err(error) = load.add(&key, &value).wait() {
                // Removes the entries written.
                let _ = load.finish().wait();
                return Err(self.wrong(Fault { line, text: error.to_string() }, "nothing was loaded").into());
            }
        }
        let count = load.entries();
        load.finish().wait()?;
        Ok(count)
    }

    fn in_batches(&mut self, keyspace: &Keyspace) -> anyhow::Result<u64> {
        let (mut batch, mut bytes, mut loaded) = (Batch::new(), 0, 0);
        let write = |batch: &mut Batch, bytes: &mut usize, loaded: &mut u64| -> forebay_kv::Result<()> {
            keyspace.store().write(batch).wait()?;
            *loaded += batch.len() as u64;
            *bytes = 0;
            batch.clear();
            Ok(())
        };
        loop {
            let so_far = |loaded: u64| format!("{loaded} entries before it are in the store");
            let entry = self.next().map_err(|fault| self.wrong(fault, &so_far(loaded)))?;
            let Some(Entry { line, key, value }) = entry else { break };
            let length = key.len() + value.len();
            // A long value is alone in its batch, so that its line is known if the value is too long.
            let is_full = batch.len() >= BATCH_ENTRIES || bytes + length > BATCH_BYTES;
            if is_full && !batch.is_empty() {
                write(&mut batch, &mut bytes, &mut loaded)?;
            }
            let before = batch.len();
            batch.put(keyspace, &key, &value);
            bytes += length;
            let is_refused = batch.len() == before;
            if is_refused || bytes > BATCH_BYTES {
                let written = write(&mut batch, &mut bytes, &mut loaded);
                let at_line = |text: String| self.wrong(Fault { line, text }, &so_far(loaded));
                written.map_err(|error| at_line(error.to_string()))?;
            }
        }
        write(&mut batch, &mut bytes, &mut loaded)?;
        Ok(loaded)
    }

    fn wrong(&self, fault: Fault, left: &str) -> Failure {
        let Fault { line, text } = fault;
        Failure::Data(format!("{}, line {line}: {text}; {left}", self.file.display()))
    }
}
