//! `forebay kv`: reads, writes, loads and verifies a key-value store from the command line.
//!
//! Exit codes: 0 done, 1 no such key (`get`) or a damaged store, 2 the command could not be carried out.

mod args;
mod bytes;
mod input;
mod json;
mod load;
mod text;

use std::fs;
use std::io::{self, Read, Write};
use std::ops::Bound;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay::{Config, Engine};
use forebay_kv::{Error, ErrorKind, Keyspace, Options, Range, Store};

pub(crate) use args::KvCommand;
use args::{CompactArgs, GetArgs, PutArgs, ScanArgs, StoreArgs, VerifyArgs};

use crate::output::{print, stderr_line};
use forebay_measure::progress::{Progress, Step, Unit};
use forebay_report::failure::Failure;

/// Exit code for a missing key, or a damaged store.
const NO: u8 = 1;
/// Bytes of output that are collected before they are written.
const OUTPUT_BYTES: usize = 64 << 10;

/// Runs a command. Every failure has the exit code 2, because code 1 is a result.
pub(crate) fn run(command: &KvCommand) -> anyhow::Result<ExitCode> {
    execute(command).map_err(|error| {
        if error.is::<Failure>() { error } else { Failure::Store(format!("{error:#}")).into() }
    })
}

fn execute(command: &KvCommand) -> anyhow::Result<ExitCode> {
    match command {
        KvCommand::Get(args) => get(args),
        KvCommand::Put(args) => put(args),
        KvCommand::Delete(args) => {
            let key = bytes::argument(&args.key, args.hex_key)?;
            let opened = Opened::new(&args.store, false)?;
            let keyspace = opened.keyspace(&args.store.keyspace, false)?;
            keyspace.delete(key).wait()?;
            opened.close()
        }
        KvCommand::Scan(args) => scan(args),
        KvCommand::Load(args) => load::run(args),
        KvCommand::Stats(args) => {
            let opened = Opened::at(&args.dir, Options::new().create(false))?;
            let stats = opened.store.stats();
            opened.close()?;
            print(&if args.json { json::stats(&args.dir, &stats)? } else { text::stats(&args.dir, &stats) })?;
            Ok(ExitCode::SUCCESS)
        }
        KvCommand::Verify(args) => verify(args),
        KvCommand::Compact(args) => compact(args),
        KvCommand::Salvage(args) => {
            let opened = Opened::at(&args.dir, options(args.memory_mib).create(false).salvage(true))?;
            let recovered = text::recovered(opened.store.recovery());
            opened.close()?;
            print(&recovered)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// An open store that a command works on.
struct Opened {
    store: Store,
}

impl Opened {
    fn new(args: &StoreArgs, create: bool) -> anyhow::Result<Opened> {
        Opened::at(&args.dir, options(args.memory_mib).create(create))
    }

    fn at(dir: &Path, options: Options) -> anyhow::Result<Opened> {
        let store = Store::open(&engine()?, dir, options).wait().map_err(|error| failure(&error))?;
        Ok(Opened { store })
    }

    /// Returns a keyspace. A missing one is created only with `create`.
    fn keyspace(&self, name: &str, create: bool) -> anyhow::Result<Keyspace> {
        let known = self.store.keyspaces();
        if !create && !known.iter().any(|each| each == name) {
            let text = format!("the store has no keyspace {name:?}; it has {}", known.join(", "));
            return Err(Failure::Store(text).into());
        }
        Ok(self.store.keyspace(name).wait()?)
    }

    fn close(self) -> anyhow::Result<ExitCode> {
        self.store.close().wait()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Closes the store also after a failure: a process that ends with the store open may hold its lock a
/// moment longer.
impl Drop for Opened {
    fn drop(&mut self) {
        // The failure that ended the command is the more useful one; a second close returns at once.
        let _ = self.store.close().wait();
    }
}

fn options(memory_mib: u64) -> Options {
    Options::new().memory(memory_mib.saturating_mul(1 << 20))
}

fn engine() -> anyhow::Result<Engine> {
    Ok(Engine::start(Config::default().shards(1)).map_err(|error| Failure::Store(error.to_string()))?)
}

/// Returns the message for a store that does not open, with the remedy.
fn failure(error: &Error) -> Failure {
    Failure::Store(match error.kind() {
        ErrorKind::NotFound => format!("{error} (put and load create one with --create)"),
        ErrorKind::Corruption | ErrorKind::MissingTable => {
            format!(
                "{error} (`forebay kv verify` lists all damage; `forebay kv salvage` opens the store with the rest \
                 of a log)"
            )
        }
        _ => error.to_string(),
    })
}

fn get(args: &GetArgs) -> anyhow::Result<ExitCode> {
    let key = bytes::argument(&args.key, args.hex_key)?;
    let opened = Opened::new(&args.store, false)?;
    let found = opened.keyspace(&args.store.keyspace, false)?.get(&key).wait()?;
    opened.close()?;
    let Some(value) = found else {
        stderr_line("forebay: the key does not exist");
        return Ok(ExitCode::from(NO));
    };
    if args.hex {
        print(&format!("{}\n", bytes::hex(&value)))?;
    } else {
        written(io::stdout().lock().write_all(&value))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn put(args: &PutArgs) -> anyhow::Result<ExitCode> {
    let key = bytes::argument(&args.key, args.hex_key)?;
    let value = match (&args.file, &args.value) {
        (Some(file), _) if file.as_os_str() == "-" => {
            let mut value = Vec::new();
            io::stdin().lock().read_to_end(&mut value)?;
            value
        }
        (Some(file), _) => fs::read(file).map_err(|error| Failure::missing(file, &error))?,
        (None, value) => value.clone().unwrap_or_default().into_bytes(),
    };
    let opened = Opened::new(&args.store, args.create)?;
    let keyspace = opened.keyspace(&args.store.keyspace, args.create)?;
    match args.expires_in {
        Some(seconds) => {
            let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            keyspace.put_until(key, value, now_s.saturating_add(seconds)).wait()?;
        }
        None => drop(keyspace.put(key, value).wait()?),
    }
    opened.close()
}

fn scan(args: &ScanArgs) -> anyhow::Result<ExitCode> {
    let key =
        |text: &Option<String>| text.as_ref().map(|text| bytes::argument(text, args.hex_key)).transpose();
    let (from, to, prefix) = (key(&args.from)?, key(&args.to)?, key(&args.prefix)?);
    let opened = Opened::new(&args.store, false)?;
    let keyspace = opened.keyspace(&args.store.keyspace, false)?;
    let range = match prefix {
        Some(prefix) => keyspace.prefix(prefix),
        None => {
            let low = from.map_or(Bound::Unbounded, Bound::Included);
            keyspace.range((low, to.map_or(Bound::Unbounded, Bound::Excluded)))
        }
    };
    written(print_entries(args, if args.reverse { range.rev() } else { range })?)?;
    opened.close()
}

/// Prints entries until the reader closes the pipe.
fn print_entries(args: &ScanArgs, mut range: Range) -> anyhow::Result<io::Result<()>> {
    let mut out = io::BufWriter::with_capacity(OUTPUT_BYTES, io::stdout().lock());
    let mut left = args.limit.unwrap_or(u64::MAX);
    while left > 0
        && let Some((key, value)) = range.next().wait().transpose()?
    {
        let value = (!args.keys_only).then_some(&value[..]);
        let line = if args.json { json::entry(&key, value)? } else { bytes::line(&key, value) };
        if let Err(error) = out.write_all(line.as_bytes()) {
            return Ok(Err(error));
        }
        left -= 1;
    }
    Ok(out.flush())
}

/// Accepts a closed pipe: a reader that went away (`| head`) is no error.
fn written(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn verify(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let progress = Progress::detect(args.quiet);
    let step: Arc<Mutex<Option<Step>>> = Arc::default();
    let shown = step.clone();
    let verifying = forebay_kv::verify_with(&engine()?, &args.dir, move |done, total| {
        let mut step = shown.lock().unwrap_or_else(PoisonError::into_inner);
        step.get_or_insert_with(|| progress.step("verify", total, Unit::Bytes)).set(done);
    });
    let verified = verifying.wait();
    drop(step.lock().unwrap_or_else(PoisonError::into_inner).take());
    let verified = verified.map_err(|error| failure(&error))?;
    print(&if args.json { json::verified(&args.dir, &verified)? } else { text::verified(&verified) })?;
    Ok(if verified.is_whole() { ExitCode::SUCCESS } else { ExitCode::from(NO) })
}

fn compact(args: &CompactArgs) -> anyhow::Result<ExitCode> {
    let opened = Opened::at(&args.dir, options(args.memory_mib).create(false))?;
    let before = text::table_bytes(&opened.store.stats());
    match &args.keyspace {
        Some(name) => drop(opened.keyspace(name, false)?.compact::<&[u8]>(..).wait()?),
        None => drop(opened.store.compact().wait()?),
    }
    let after = text::table_bytes(&opened.store.stats());
    opened.close()?;
    print(&format!("tables: {before} bytes before, {after} bytes now\n"))?;
    Ok(ExitCode::SUCCESS)
}
