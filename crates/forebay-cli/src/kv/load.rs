//! `kv load`: loads a file into a store.

use std::path::Path;
use std::process::ExitCode;

use forebay_kv::{Batch, Keyspace};

use super::Opened;
use super::args::LoadArgs;
use super::input::{Entry, Fault, Format, Input};

use crate::output::print;
use forebay_measure::progress::{Progress, Step, Unit};
use forebay_report::failure::Failure;

/// Entries of a full batch, which is then written.
const BATCH_ENTRIES: usize = 1024;
/// Bytes of keys and values of a full batch, which is then written.
const BATCH_BYTES: usize = 256 << 10;
/// Entries between two updates of the progress bar.
const STEP: u64 = 256;

pub(super) fn run(args: &LoadArgs) -> anyhow::Result<ExitCode> {
    let format = args.format.or_else(|| Format::of(&args.file)).ok_or_else(|| {
        let file = args.file.display();
        Failure::Usage(format!(
            "the name of {file} does not end in a known format: add --format csv, tsv or jsonl"
        ))
    })?;
    if args.header && format == Format::Jsonl {
        return Err(Failure::Usage("JSON lines have no header: leave out --header".to_owned()).into());
    }
    let (input, length) = Input::open(&args.file, format, args.header)?;
    let opened = Opened::new(&args.store, args.create)?;
    let keyspace = opened.keyspace(&args.store.keyspace, args.create)?;
    let progress = Progress::detect(args.quiet);
    let mut loading = Loading {
        file: &args.file,
        input,
        step: length.map(|length| progress.step("load", length, Unit::Bytes)),
        taken: 0,
    };
    let loaded = if args.sorted { loading.sorted(&keyspace) } else { loading.in_batches(&keyspace) };
    if let Some(step) = loading.step.take().filter(|_| loaded.is_ok()) {
        step.finish(&format!("{} entries", loading.taken));
    }
    drop(keyspace);
    // An error in the file is more useful than a later one from closing.
    let closed = opened.close();
    let count = loaded?;
    closed?;
    print(&format!("{count} entries loaded\n"))?;
    Ok(ExitCode::SUCCESS)
}

struct Loading<'a> {
    file: &'a Path,
    input: Input,
    step: Option<Step>,
    /// Entries read so far.
    taken: u64,
}

impl Loading<'_> {
    fn next(&mut self) -> Result<Option<Entry>, Fault> {
        if self.taken.is_multiple_of(STEP)
            && let Some(step) = &self.step
        {
            step.set(self.input.position());
        }
        let entry = self.input.next()?;
        self.taken += u64::from(entry.is_some());
        Ok(entry)
    }

    /// Loads all entries or none, and returns their number.
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
        let store = keyspace.store();
        loop {
            let so_far = |loaded: u64| format!("{loaded} entries before it are in the store");
            let entry = self.next().map_err(|fault| self.wrong(fault, &so_far(loaded)))?;
            let Some(Entry { line, key, value }) = entry else { break };
            let length = key.len() + value.len();
            // A long value is alone in its batch, so that its line is known if the value is too long.
            let is_full = batch.len() >= BATCH_ENTRIES || bytes + length > BATCH_BYTES;
            if is_full && !batch.is_empty() {
                store.write(&batch).wait()?;
                loaded += batch.len() as u64;
                batch.clear();
                bytes = 0;
            }
            let before = batch.len();
            batch.put(keyspace, &key, &value);
            bytes += length;
            let is_refused = batch.len() == before;
            if is_refused || bytes > BATCH_BYTES {
                let written = store.write(&batch).wait();
                let at_line = |text: String| self.wrong(Fault { line, text }, &so_far(loaded));
                written.map_err(|error| at_line(error.to_string()))?;
                loaded += batch.len() as u64;
                batch.clear();
                bytes = 0;
            }
        }
        store.write(&batch).wait()?;
        Ok(loaded + batch.len() as u64)
    }

    fn wrong(&self, fault: Fault, left: &str) -> Failure {
        let Fault { line, text } = fault;
        Failure::Store(format!("{}, line {line}: {text}; {left}", self.file.display()))
    }
}
