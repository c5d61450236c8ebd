//! The command line of `forebay kv`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::input::Format;

/// The commands on stores.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Exit codes: 0 done; 1 the key does not exist (get), or the store is damaged; 2 the command failed. \
        Only --create creates a store."
)]
pub(crate) enum KvCommand {
    /// Print the value of a key; exit code 1 when there is none.
    Get(GetArgs),
    /// Set the value of a key; durable when the command ends.
    Put(PutArgs),
    /// Remove a key, if it is there; durable when the command ends.
    Delete(DeleteArgs),
    /// Print keys and values in the order of the keys.
    Scan(ScanArgs),
    /// Load keys and values from a file of CSV, TSV or JSON lines.
    Load(LoadArgs),
    /// Show the figures of the store.
    Stats(StatsArgs),
    /// Read and check everything; changes nothing.
    Verify(VerifyArgs),
    /// Move everything to the last level, which frees the space of replaced and deleted entries.
    Compact(CompactArgs),
    /// Open a store whose logs lost a part, with the remaining records, so that other commands accept it again.
    Salvage(SalvageArgs),
}

/// What most commands take.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// The store's directory.
    pub(super) dir: PathBuf,
    /// The part of the store.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(super) keyspace: String,
    /// The most memory of the store, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    pub(super) memory_mib: u64,
}

/// Options of `kv get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(super) store: StoreArgs,
    /// The key.
    pub(super) key: String,
    /// The key is given as hexadecimal digits.
    #[arg(long)]
    pub(super) hex_key: bool,
    /// Print the value as hexadecimal digits, with an end of line; otherwise only its bytes.
    #[arg(long)]
    pub(super) hex: bool,
}

/// Options of `kv put`.
#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(super) store: StoreArgs,
    /// The key.
    pub(super) key: String,
    /// The value; or see --file.
    #[arg(required_unless_present = "file")]
    pub(super) value: Option<String>,
    /// The key is given as hexadecimal digits.
    #[arg(long)]
    pub(super) hex_key: bool,
    /// Use the bytes of this file as the value; `-` is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    pub(super) file: Option<PathBuf>,
    /// Let the value expire after so many seconds.
    #[arg(long, value_name = "SECONDS")]
    pub(super) expires_in: Option<u64>,
    /// Create the store and the keyspace if they do not exist.
    #[arg(long)]
    pub(super) create: bool,
}

/// Options of `kv delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    pub(super) store: StoreArgs,
    /// The key.
    pub(super) key: String,
    /// The key is given as hexadecimal digits.
    #[arg(long)]
    pub(super) hex_key: bool,
}

/// Options of `kv scan`.
#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    #[command(flatten)]
    pub(super) store: StoreArgs,
    /// The first key.
    #[arg(long, value_name = "KEY")]
    pub(super) from: Option<String>,
    /// The key before which the scan ends.
    #[arg(long, value_name = "KEY")]
    pub(super) to: Option<String>,
    /// Only keys with this prefix.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    pub(super) prefix: Option<String>,
    /// --from, --to and --prefix are given as hexadecimal digits.
    #[arg(long)]
    pub(super) hex_key: bool,
    /// End after so many entries.
    #[arg(long, value_name = "COUNT")]
    pub(super) limit: Option<u64>,
    /// From the last key to the first.
    #[arg(long)]
    pub(super) reverse: bool,
    /// Print no values.
    #[arg(long)]
    pub(super) keys_only: bool,
    /// Print JSON lines, which `kv load` takes; otherwise key, tab, value with escapes.
    #[arg(long)]
    pub(super) json: bool,
}

/// Options of `kv load`.
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(super) store: StoreArgs,
    /// The file; `-` is standard input.
    pub(super) file: PathBuf,
    /// The format of the file [default: by the end of its name: .csv, .tsv, .jsonl or .ndjson]
    #[arg(long, value_enum)]
    pub(super) format: Option<Format>,
    /// The first line of CSV or TSV names the columns: `key` and `value` are taken, wherever they stand.
    #[arg(long)]
    pub(super) header: bool,
    /// The keys are in ascending order: write them straight into tables, all or none.
    #[arg(long)]
    pub(super) sorted: bool,
    /// Create the store and the keyspace if they do not exist.
    #[arg(long)]
    pub(super) create: bool,
    /// Print no progress.
    #[arg(long)]
    pub(super) quiet: bool,
}

/// Options of `kv stats`.
#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// The store's directory.
    pub(super) dir: PathBuf,
    /// Print JSON instead of lines.
    #[arg(long)]
    pub(super) json: bool,
}

/// Options of `kv verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The store's directory; it is only read.
    pub(super) dir: PathBuf,
    /// Print JSON instead of lines.
    #[arg(long)]
    pub(super) json: bool,
    /// Print no progress.
    #[arg(long)]
    pub(super) quiet: bool,
}

/// Options of `kv salvage`.
#[derive(Debug, Args)]
pub(crate) struct SalvageArgs {
    /// The store's directory.
    pub(super) dir: PathBuf,
    /// The most memory of the store, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    pub(super) memory_mib: u64,
}

/// Options of `kv compact`.
#[derive(Debug, Args)]
pub(crate) struct CompactArgs {
    /// The store's directory.
    pub(super) dir: PathBuf,
    /// The part of the store [default: all of it]
    #[arg(long, value_name = "NAME")]
    pub(super) keyspace: Option<String>,
    /// The most memory of the store, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    pub(super) memory_mib: u64,
}
