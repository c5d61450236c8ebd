//! DataFusion over parquet files, which it reads by Forebay's object store or by `LocalFileSystem`.
//!
//! `make` writes the tables of TPC-H, `make-hits` one like that of ClickBench, `query` runs one query over them, and `compare`
//! times queries with both stores in turn. `scripts/bench datafusion` makes tables and compares.

mod clickbench;
mod compare;
mod hits;
mod tables;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Parser, Subcommand};
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use forebay::{Config, Engine};
use forebay_object_store::ForebayStore;
use object_store::ObjectStore;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Parser)]
#[command(about = "DataFusion over parquet files, read by Forebay's object store")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Writes the tables of TPC-H as parquet files into a new directory
    Make {
        /// Directory to make
        dir: PathBuf,
        /// Scale factor: 0.35 GB of files each
        #[arg(long, default_value_t = 6.0)]
        scale: f64,
    },
    /// Writes a table like that of ClickBench as parquet files into a new directory
    MakeHits {
        /// Directory to make
        dir: PathBuf,
        /// Rows: a million are some 0.2 GB
        #[arg(long, default_value_t = 10_000_000)]
        rows: u64,
    },
    /// Runs one query over the tables in a directory that `make` wrote, and prints its result
    Query { dir: PathBuf, sql: String },
    /// Times queries over the tables in a directory that `make` wrote, cold and warm, with both stores in turn
    Compare(compare::Options),
}

#[tokio::main]
async fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Make { dir, scale } => tables::make(&dir, scale),
        Command::MakeHits { dir, rows } => hits::make(&dir, rows),
        Command::Query { dir, sql } => {
            let engine = Engine::start(Config::new())?;
            let store: Arc<dyn ObjectStore> = Arc::new(ForebayStore::builder(&engine, "/").open().await?);
            Ok(session(store, &dir).await?.sql(&sql).await?.show().await?)
        }
        Command::Compare(options) => compare::run(&options).await,
    }
}

/// Returns a session with DataFusion's defaults whose files are read by `store`. Each table is a directory below `dir`.
async fn session(store: Arc<dyn ObjectStore>, dir: &Path) -> Result<SessionContext> {
    let session = SessionContext::new();
    session.register_object_store(ObjectStoreUrl::local_filesystem().as_ref(), store);
    for table in table_names(dir)? {
        let files = dir.canonicalize()?.join(&table);
        let files = files.to_str().ok_or("the directory's name is not UTF-8")?;
        // The slash makes it a directory.
        session.register_parquet(table.as_str(), format!("{files}/"), ParquetReadOptions::default()).await?;
    }
    Ok(session)
}

/// Returns the names of the directories in `dir`.
fn table_names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in dir.read_dir().map_err(|error| format!("{}: {error}", dir.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name().into_string().map_err(|name| format!("{name:?} is not UTF-8"))?);
        }
    }
    names.sort_unstable();
    Ok(names)
}
