//! `forebay kv`: reads, writes, loads and verifies a key-value store from the command line.
//!
//! Exit codes: 0 done, 1 no such key (`get`) or a damaged store, 2 the command could not be carried out.

mod entry;
mod input;
mod load;
mod show;

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand, ValueEnum};
use forebay::{Config, Engine};
use forebay_kv::{Compression, Error, ErrorKind, Keyspace, Options, Range, Store};

use crate::output::{Destination, JsonArgs, print, stderr_line};
use forebay_measure::cleanup::Cleanup;
use forebay_measure::progress::{Progress, Step, Unit};
use forebay_report::failure::Failure;

/// Exit code for a missing key, or a damaged store.
const NO: u8 = 1;
/// The limit of a value in bytes. No more of a file is read.
const VALUE_BYTES_MAX: u64 = 16 << 20;
/// Bytes of output that are collected before they are written.
const OUTPUT_BYTES: usize = 64 << 10;

/// The commands on stores.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Exit codes: 0 done; 1 the key does not exist (get), or the store is damaged; 2 the command failed. \
        Only --create creates a store."
)]
pub(crate) enum KvCommand {
    /// Print the value of a key; exit code 1 when there is none.
    Get {
        #[command(flatten)]
        part: PartArgs,
        #[command(flatten)]
        key: KeyArgs,
        /// Print the value as hexadecimal digits, with an end of line; otherwise only its bytes.
        #[arg(long)]
        hex: bool,
    },
    /// Set the value of a key; durable when the command ends.
    Put {
        #[command(flatten)]
        part: PartArgs,
        #[command(flatten)]
        key: KeyArgs,
        /// The value; or see --file.
        #[arg(required_unless_present = "file")]
        value: Option<String>,
        /// Use the bytes of this file as the value; `-` is standard input.
        #[arg(long, value_name = "FILE", conflicts_with = "value")]
        file: Option<PathBuf>,
        /// Let the value expire after so many seconds.
        #[arg(long, value_name = "SECONDS")]
        expires_in: Option<u64>,
        /// Create the store and the keyspace if they do not exist.
        #[arg(long)]
        create: bool,
    },
    /// Remove a key, if it is there; durable when the command ends.
    Delete {
        #[command(flatten)]
        part: PartArgs,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Print keys and values in the order of the keys; as JSON in lines, which `kv load` takes.
    Scan(ScanArgs),
    /// Load keys and values from a file of CSV, TSV or JSON lines.
    Load(load::LoadArgs),
    /// Show the figures of the store.
    Stats {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Read and check everything; changes nothing.
    Verify {
        /// The store's directory; it is only read.
        dir: PathBuf,
        #[command(flatten)]
        json: JsonArgs,
        /// Print no progress.
        #[arg(long)]
        quiet: bool,
    },
    /// Move everything to the last level, which frees the space of replaced and deleted entries.
    Compact {
        #[command(flatten)]
        store: StoreArgs,
        /// The part of the store [default: all of it]
        #[arg(long, value_name = "NAME")]
        keyspace: Option<String>,
    },
    /// Open a store whose logs lost a part, with the remaining records, so that other commands accept it again.
    Salvage(StoreArgs),
}

/// A store.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// The store's directory.
    dir: PathBuf,
    /// The most memory of the store, in MiB [default: 64; of get, scan and stats 256]
    #[arg(long, value_name = "MIB")]
    memory_mib: Option<u64>,
    /// How new tables are compressed [default: as the newest compressed one, or not]
    #[arg(long, value_enum)]
    compression: Option<CompressionName>,
}

/// A compression of tables.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum CompressionName {
    None,
    Lz4,
    #[cfg(feature = "zstd")]
    Zstd,
}

/// A part of a store.
#[derive(Debug, Args)]
pub(crate) struct PartArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The part of the store.
    #[arg(long, value_name = "NAME", default_value = "default")]
    keyspace: String,
}

/// A key.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// The key.
    key: String,
    /// Keys are given as hexadecimal digits.
    #[arg(long)]
    hex_key: bool,
}

/// Options of `kv scan`.
#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    #[command(flatten)]
    part: PartArgs,
    /// The first key.
    #[arg(long, value_name = "KEY")]
    from: Option<String>,
    /// The key before which the scan ends.
    #[arg(long, value_name = "KEY")]
    to: Option<String>,
    /// Only keys with this prefix.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    prefix: Option<String>,
    /// Keys are given as hexadecimal digits.
    #[arg(long)]
    hex_key: bool,
    /// End after so many entries.
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
    /// From the last key to the first.
    #[arg(long)]
    reverse: bool,
    /// Print no values.
    #[arg(long)]
    keys_only: bool,
    #[command(flatten)]
    json: JsonArgs,
}

/// Runs a command. Every failure has the exit code 2, because code 1 is a result.
pub(crate) fn run(command: &KvCommand) -> anyhow::Result<ExitCode> {
    execute(command).map(ExitCode::from).map_err(Failure::data)
}

fn execute(command: &KvCommand) -> anyhow::Result<u8> {
    match command {
        KvCommand::Get { part, key, hex } => return get(part, &key.bytes()?, *hex),
        KvCommand::Put { part, key, value, file, expires_in, create } => {
            let (key, mut value) = (key.bytes()?, value.clone().unwrap_or_default().into_bytes());
            if let Some(file) = file {
                input::open(file)?.0.take(VALUE_BYTES_MAX + 1).read_to_end(&mut value)?;
                if value.len() as u64 > VALUE_BYTES_MAX {
                    let why = "is longer than 16 MiB, the most that a value has: put it in parts";
                    return Err(Failure::Data(format!("{} {why}", file.display())).into());
                }
            }
            part.open(*create, |keyspace| {
                let Some(seconds) = expires_in else { return Ok(keyspace.put(key, value).wait()?) };
                let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
                Ok(keyspace.put_until(key, value, now_s.saturating_add(*seconds)).wait()?)
            })?;
        }
        KvCommand::Delete { part, key } => {
            let key = key.bytes()?;
            part.open(false, |keyspace| Ok(keyspace.delete(key).wait()?))?;
        }
        KvCommand::Scan(args) => scan(args)?,
        KvCommand::Load(args) => load::run(args)?,
        KvCommand::Stats { store, json } => {
            let (json, dir) = (json.destination()?, &store.dir);
            let stats = open(dir, store.to_read(), |store| Ok(store.stats()))?;
            if json.write(|| show::stats_json(dir, &stats), &Cleanup::default())? {
                print(&show::stats(dir, &stats))?;
            }
        }
        KvCommand::Verify { dir, json, quiet } => return verify(dir, json, *quiet),
        KvCommand::Compact { store, keyspace } => {
            let (before, after) = open(&store.dir, store.options(false), |store| {
                let before = show::table_bytes(&store.stats());
                match keyspace {
                    Some(name) => drop(part_of(store, name, false)?.compact::<&[u8]>(..).wait()?),
                    None => drop(store.compact().wait()?),
                }
                Ok((before, show::table_bytes(&store.stats())))
            })?;
            print(&format!("tables: {before} bytes before, {after} bytes now\n"))?;
        }
        KvCommand::Salvage(args) => {
            let recovered = |store: &Store| Ok(show::recovered(store.recovery()));
            print(&open(&args.dir, args.options(false).salvage(true), recovered)?)?;
        }
    }
    Ok(0)
}

impl StoreArgs {
    /// Returns the options of commands that only read: by default with a usual store's memory, because they load its
    /// log into memory.
    fn to_read(&self) -> Options {
        let options = Options::new().read_only(true);
        match self.memory_mib {
            None => options,
            Some(mib) => options.memory_bytes_max(mib.saturating_mul(1 << 20)),
        }
    }

    fn options(&self, create: bool) -> Options {
        let mib = self.memory_mib.unwrap_or(64);
        let options = Options::new().memory_bytes_max(mib.saturating_mul(1 << 20)).create(create);
        match self.compression {
            None => options,
            Some(CompressionName::None) => options.compression(Compression::None),
            Some(CompressionName::Lz4) => options.compression(Compression::Lz4),
            #[cfg(feature = "zstd")]
            Some(CompressionName::Zstd) => options.compression(Compression::Zstd(3)),
        }
    }
}

impl PartArgs {
    /// Does `work` on the keyspace; see [`open`]. A missing one is created only with `create`.
    fn open<T>(&self, create: bool, work: impl FnOnce(&Keyspace) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let name = &self.keyspace;
        open(&self.store.dir, self.store.options(create), |store| work(&part_of(store, name, create)?))
    }

    /// Does `work` on the keyspace, which is only read; see [`open`].
    fn read<T>(&self, work: impl FnOnce(&Keyspace) -> anyhow::Result<T>) -> anyhow::Result<T> {
        open(&self.store.dir, self.store.to_read(), |store| work(&part_of(store, &self.keyspace, false)?))
    }
}

impl KeyArgs {
    fn bytes(&self) -> Result<Vec<u8>, Failure> {
        entry::argument(&self.key, self.hex_key)
    }
}

/// Opens a store, does `work` and closes the store, also after a failure: a process that ends with the store
/// open may hold its lock a moment longer.
fn open<T>(
    dir: &Path,
    options: Options,
    work: impl FnOnce(&Store) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let store = Store::open(&engine()?, dir, options).wait().map_err(|error| failure(&error))?;
    let done = work(&store);
    let closed = store.close().wait();
    // The failure of the work is the more useful one.
    let done = done?;
    closed?;
    Ok(done)
}

fn part_of(store: &Store, name: &str, create: bool) -> anyhow::Result<Keyspace> {
    let known = store.keyspaces();
    if !create && !known.iter().any(|each| each == name) {
        let text = format!("the store has no keyspace {name:?}; it has {}", known.join(", "));
        return Err(Failure::Data(text).into());
    }
    Ok(store.keyspace(name).wait()?)
}

fn engine() -> Result<Engine, Failure> {
    Engine::start(Config::new().shards(1)).map_err(|error| Failure::Data(error.to_string()))
}

/// Returns the message for a store that does not open, with the remedy.
fn failure(error: &Error) -> Failure {
    Failure::Data(match error.kind() {
        ErrorKind::NotFound => format!("{error} (put and load create one with --create)"),
        ErrorKind::Corruption | ErrorKind::MissingTable => {
            format!(
                "{error} (`forebay kv verify` lists all damage; `forebay kv salvage` opens the store with the rest \
                 of a log)"
            )
        }
        ErrorKind::MemoryBudget { .. } => {
            format!("{error} (--memory-mib sets the memory; `forebay kv compact` opens the store to write)")
        }
        _ => error.to_string(),
    })
}

fn get(part: &PartArgs, key: &[u8], hex: bool) -> anyhow::Result<u8> {
    let Some(value) = part.read(|keyspace| Ok(keyspace.get(key).wait()?))? else {
        stderr_line("forebay: the key does not exist");
        return Ok(NO);
    };
    let text = if hex { (entry::hex(&value) + "\n").into_bytes() } else { value.to_vec() };
    let mut out = io::stdout().lock();
    // A flush at the end of the process would lose its error.
    written(out.write_all(&text).and_then(|()| out.flush()))?;
    Ok(0)
}

fn scan(args: &ScanArgs) -> anyhow::Result<()> {
    let key =
        |text: &Option<String>| text.as_ref().map(|text| entry::argument(text, args.hex_key)).transpose();
    let (from, to, prefix) = (key(&args.from)?, key(&args.to)?, key(&args.prefix)?);
    let lines = args.json.lines(None)?;
    args.part.read(|keyspace| {
        let file = lines.as_ref().map(Destination::create).transpose()?;
        let range = match prefix {
            Some(prefix) => keyspace.prefix(prefix),
            None => {
                let low = from.map_or(Bound::Unbounded, Bound::Included);
                keyspace.range((low, to.map_or(Bound::Unbounded, Bound::Excluded)))
            }
        };
        Ok(written(print_entries(args, if args.reverse { range.rev() } else { range }, file)?)?)
    })
}

/// Prints entries until the reader closes the pipe; into `file` all are written.
fn print_entries(args: &ScanArgs, mut range: Range, file: Option<File>) -> anyhow::Result<io::Result<()>> {
    let mut out = io::BufWriter::with_capacity(OUTPUT_BYTES, io::stdout().lock());
    let mut file = file.map(|file| BufWriter::with_capacity(OUTPUT_BYTES, file));
    let (mut left, mut printed) = (args.limit.unwrap_or(usize::MAX), Ok(()));
    while left > 0
        && (printed.is_ok() || file.is_some())
        && let Some((key, value)) = range.next().wait().transpose()?
    {
        let value = (!args.keys_only).then_some(&value[..]);
        if let Some(file) = &mut file {
            file.write_all(entry::json(&key, value)?.as_bytes())?;
        }
        if printed.is_ok() {
            let json = args.json.is_stdout();
            let line = if json { entry::json(&key, value)? } else { entry::line(&key, value) };
            printed = out.write_all(line.as_bytes());
        }
        left -= 1;
    }
    if let Some(mut file) = file {
        file.flush()?;
        file.get_ref().sync_all()?;
    }
    Ok(printed.and_then(|()| out.flush()))
}

/// Accepts a closed pipe: a reader that closes it (`| head`) is not an error.
fn written(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn verify(dir: &Path, json: &JsonArgs, quiet: bool) -> anyhow::Result<u8> {
    let (json, progress) = (json.destination()?, Progress::detect(quiet));
    let step: Arc<Mutex<Option<Step>>> = Arc::default();
    let shown = step.clone();
    let verifying = forebay_kv::verify_with(&engine()?, dir, move |done, total| {
        let mut step = shown.lock().unwrap_or_else(PoisonError::into_inner);
        step.get_or_insert_with(|| progress.step("verify", total, Unit::Bytes)).set(done);
    });
    let verified = verifying.wait();
    drop(step.lock().unwrap_or_else(PoisonError::into_inner).take());
    let verified = verified.map_err(|error| failure(&error))?;
    if json.write(|| show::verified_json(dir, &verified), &Cleanup::default())? {
        print(&show::verified(&verified))?;
    }
    Ok(if verified.is_whole() { 0 } else { NO })
}
