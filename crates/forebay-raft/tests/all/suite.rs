//! Shows: log and state machine keep openraft's contract. How: openraft's own suite, on io_uring, on the pool of threads, where the system
//! refuses io_uring, and in simulated worlds.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Types, WorldTypes, dir};
use forebay::{Config, DriverChoice, Engine, WorkerRings};
use forebay_kv::{Batch, Keyspace, Options};
use forebay_raft::{Apply, LogOptions, RaftLog, RaftStore};
use forebay_sim::World;
use forebay_test::worlds::{self, Draw};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{RaftTypeConfig, StorageError};

/// Keeps nothing.
struct Echo;

impl<C: RaftTypeConfig<R = String>> Apply<C> for Echo {
    async fn apply(&self, entry: C::Entry, _: &[Keyspace], _: &mut Batch) -> io::Result<String> {
        Ok(entry.to_string())
    }
}

/// Creates logs and stores in sibling directories.
struct Builder {
    engine: Engine,
    dir: PathBuf,
    count: AtomicU64,
}

impl<C: RaftTypeConfig<R = String>> StoreBuilder<C, RaftLog<C>, RaftStore<C, Echo>> for Builder {
    async fn build(&self) -> Result<((), RaftLog<C>, RaftStore<C, Echo>), StorageError<C>> {
        let dir = self.dir.join(self.count.fetch_add(1, Ordering::Relaxed).to_string());
        let options = LogOptions::new().segment_bytes(64 << 10);
        let log = RaftLog::open(&self.engine, dir.join("log"), options).await;
        let options = Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).memtable_bytes(64 << 10);
        let options = options.log_segment_bytes(64 << 10);
        let store = RaftStore::open(&self.engine, dir.join("state"), options, Echo).await;
        Ok(((), log.unwrap(), store.unwrap()))
    }
}

fn on(config: Config) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (engine, dir) = (Engine::start(config).unwrap(), dir());
        let builder = Builder { engine, dir: dir.path().to_owned(), count: AtomicU64::new(0) };
        Suite::<Types, _, _, _, _>::test_all(builder).await.unwrap();
    });
}

#[test]
fn on_io_uring() {
    on(Config::new().shards(2).driver(DriverChoice::Uring));
}

#[test]
fn on_the_pool_of_threads() {
    on(Config::new().shards(2).driver(DriverChoice::Threads).worker_rings(WorkerRings::Off));
}

/// The default settings where io_uring is refused, as container runtimes do.
#[cfg(target_os = "linux")]
#[test]
fn where_io_uring_is_refused() {
    use forebay_test::children::{Restriction, Scene};

    let scene = Scene::new("suite::where_io_uring_is_refused");
    scene.without(vec![Restriction::no_io_uring_and(&[])]).play(|| {
        let uring = Engine::start(Config::new().driver(DriverChoice::Uring));
        assert!(uring.is_err(), "the filter refuses io_uring");
        on(Config::new().shards(2));
    });
}

#[test]
fn in_simulated_worlds() {
    worlds::explore(3, |world: &mut World| {
        world.add_disk(worlds::disk(&mut Draw::new(world.seed())));
        let run = world.run(async |engine| {
            let builder = Builder { engine, dir: "/disk".into(), count: AtomicU64::new(0) };
            Suite::<WorldTypes, _, _, _, _>::test_all(builder).await.map_err(|error| error.to_string())
        });
        run.map_err(|failure| failure.to_string())?
    });
}
