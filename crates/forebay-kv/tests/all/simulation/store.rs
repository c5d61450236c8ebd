//! The store as seen by the simulated programs: the only place with its calls, and with the format of keys
//! and values.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay::Engine;
use forebay_kv::{
    Batch, Compression, Error, ErrorKind, Ingest, Keyspace, Options, Result, Snapshot, Store, Value,
};
use forebay_sim as sim;
use forebay_test::worlds::mix;

use crate::simulation::model::{At, KEYS, SPACES, State};

/// The compression that this build has besides LZ4.
#[cfg(feature = "zstd")]
const STRONGEST: Compression = Compression::Zstd(3);
#[cfg(not(feature = "zstd"))]
const STRONGEST: Compression = Compression::Lz4;

/// Directory of the store.
pub(crate) const DIR: &str = "/disk/kv";

/// Parameters for opening a world's stores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) memtable_bytes: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) leaf_bytes: u32,
    pub(crate) compression: Compression,
    pub(crate) separation_bytes: u32,
    pub(crate) shard: usize,
    /// Entries up to which ranges are deleted by a batch.
    pub(crate) delete_batch_max: u64,
    /// Tables of a full level 0.
    pub(crate) level0_full: usize,
}

impl Shape {
    pub(crate) fn of(seed: u64) -> Shape {
        let draw = |salt: u64, n: u64| mix(seed ^ (salt << 32)) % n;
        Shape {
            memtable_bytes: [16 << 10, 16 << 10, 24 << 10, 64 << 10][draw(1, 4) as usize],
            segment_bytes: [64 << 10, 64 << 10, 128 << 10][draw(2, 3) as usize],
            leaf_bytes: [4096, 4096, 8192][draw(3, 3) as usize],
            compression: [Compression::None, Compression::Lz4, STRONGEST][draw(5, 3) as usize],
            separation_bytes: [u32::MAX, 5000, 1][draw(6, 3) as usize],
            shard: draw(4, 2) as usize,
            delete_batch_max: [0, 2, 256][draw(5, 3) as usize],
            level0_full: [1, 2, 3, 20][draw(7, 4) as usize],
        }
    }

    /// Returns the shape of a store's next life: it may write tables in another way.
    pub(crate) fn in_life(self, life: u64) -> Shape {
        let compression = [self.compression, Compression::Lz4, Compression::None]
            [mix(life ^ self.memtable_bytes ^ u64::from(self.leaf_bytes)) as usize % 3];
        let separation_bytes = [self.separation_bytes, 1][mix(life ^ 6 ^ self.memtable_bytes) as usize % 2];
        if life == 0 { self } else { Shape { compression, separation_bytes, ..self } }
    }

    fn options(self) -> Options {
        Options::new()
            .compression(self.compression)
            .separation_bytes(self.separation_bytes)
            .memory_bytes_max(Options::MEMORY_BYTES_MIN)
            .memtable_bytes(self.memtable_bytes)
            .log_segment_bytes(self.segment_bytes)
            .leaf_bytes(self.leaf_bytes)
            .shard(self.shard)
            .delete_batch_max(self.delete_batch_max)
            .level0_full(self.level0_full)
            .store_id(0x0f0e_0b0a_0401)
            .clock(|| 1_000_000)
    }
}

/// Returns a key; some are long, many share a prefix.
pub(crate) fn key(writer: u8, at: At) -> Vec<u8> {
    let mut key = format!("writer {writer} key {}", at.1).into_bytes();
    if at.1 % 4 == 3 {
        key.extend([b'.'; 300]);
    }
    key
}

/// Returns the bytes of a value: its number, followed by bytes derived from it. Those of two values in three
/// compress.
pub(crate) fn bytes(value: u64) -> Vec<u8> {
    let len = match mix(value) % 16 {
        0 => 8,
        1 => 3000 + mix(value) as usize % 6000,
        // The values of these writers are long enough to stay in their files.
        2.. if value >> 56 >= 2 => 1100 + mix(value) as usize % 3000,
        _ => 8 + mix(value) as usize % 1200,
    };
    let repeats = [1, 4, 40][mix(value ^ 1) as usize % 3];
    let words = (0..).flat_map(|index: u64| mix(value ^ (index / repeats) << 40).to_le_bytes());
    value.to_le_bytes().into_iter().chain(words).take(len).collect()
}

/// Returns the number of a value read; fails if the bytes are not a value.
pub(crate) fn number(found: &[u8]) -> Result<u64, String> {
    let word = found.first_chunk().ok_or_else(|| format!("a value of {} bytes was read", found.len()))?;
    let value = u64::from_le_bytes(*word);
    if bytes(value) == found {
        Ok(value)
    } else {
        Err(format!("{} bytes were read that are no value that was ever written", found.len()))
    }
}

/// An open store with its keyspaces.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    engine: Engine,
    shape: Shape,
    pub(crate) store: Store,
    spaces: Vec<Keyspace>,
}

impl Open {
    pub(crate) async fn open(engine: &Engine, shape: Shape) -> Result<Open> {
        Open::of(engine, shape, Store::open(engine, DIR, shape.options()).await?).await
    }

    async fn of(engine: &Engine, shape: Shape, store: Store) -> Result<Open> {
        let mut spaces = vec![store.default_keyspace()];
        for number in 1..SPACES {
            spaces.push(match store.keyspace(&format!("space {number}")).await {
                Ok(space) => space,
                Err(error) => {
                    let _ = store.close().await;
                    return Err(error);
                }
            });
        }
        Ok(Open { engine: engine.clone(), shape, store, spaces })
    }

    /// Makes a checkpoint with this number and opens it.
    pub(crate) async fn checkpoint(&self, number: u64) -> Result<Open> {
        let dir = format!("/disk/copy {number}");
        self.store.checkpoint(&dir).await?;
        let copy = Store::open(&self.engine, &dir, self.shape.options().create(false)).await?;
        Open::of(&self.engine, self.shape, copy).await
    }

    pub(crate) fn space(&self, at: At) -> &Keyspace {
        &self.spaces[usize::from(at.0)]
    }

    pub(crate) async fn get(&self, writer: u8, at: At) -> Result<Option<Value>> {
        self.space(at).get(&key(writer, at)).await
    }

    pub(crate) async fn get_in(&self, snapshot: &Snapshot, writer: u8, at: At) -> Result<Option<Value>> {
        snapshot.get(self.space(at), &key(writer, at)).await
    }

    /// Writes changes: a single one as a put or delete, several as a batch.
    pub(crate) async fn write(&self, writer: u8, changes: &[(At, Option<u64>)]) -> Result<()> {
        match changes {
            [(at, Some(value))] => self.space(*at).put(key(writer, *at), bytes(*value)).await,
            [(at, None)] => self.space(*at).delete(key(writer, *at)).await,
            many => {
                let mut batch = Batch::new();
                for (at, value) in many {
                    match value {
                        Some(value) => batch.put(self.space(*at), key(writer, *at), bytes(*value)),
                        None => batch.delete(self.space(*at), key(writer, *at)),
                    };
                }
                self.store.write(&batch).await
            }
        }
    }

    /// Deletes the keys of a writer from one number to another in one keyspace.
    pub(crate) async fn delete_range(&self, writer: u8, first: At, last: u8) -> Result<()> {
        self.space(first).delete_range(key(writer, first)..=key(writer, (first.0, last))).await
    }

    /// Loads values into one keyspace.
    pub(crate) async fn load(&self, writer: u8, entries: &[(At, u64)]) -> Result<()> {
        let Some((at, _)) = entries.first() else { return Ok(()) };
        let mut sorted: Vec<_> =
            entries.iter().map(|(at, value)| (key(writer, *at), bytes(*value))).collect();
        sorted.sort_unstable();
        self.space(*at).bulk_load(sorted).await.map(drop)
    }

    /// Writes a sorted file for each keyspace with changes; returns their paths, by the index of the keyspace.
    pub(crate) async fn sorted_files(
        &self,
        writer: u8,
        changes: &[(At, Option<u64>)],
        number: u64,
    ) -> Result<Vec<(u8, String)>> {
        let mut files = Vec::new();
        for space in 0..SPACES {
            let of_space = changes.iter().filter(|(at, _)| at.0 == space);
            let entries: BTreeMap<_, _> = of_space.map(|(at, value)| (key(writer, *at), *value)).collect();
            if entries.is_empty() {
                continue;
            }
            let path = format!("/disk/sorted {number} {space}");
            let mut file = self.store.sorted_file(&path).await?;
            for (key, value) in entries {
                match value {
                    Some(value) => file.put(key, bytes(value)).await?,
                    None => file.delete(key).await?,
                }
            }
            file.finish().await?;
            files.push((space, path));
        }
        Ok(files)
    }

    /// Ingests sorted files.
    pub(crate) fn ingest(&self, files: &[(u8, String)]) -> Ingest<'_> {
        self.store.ingest(files.iter().map(|(space, path)| (self.space((*space, 0)), path)))
    }

    /// Reads all entries of a writer in one keyspace, by a range.
    pub(crate) async fn scan(&self, writer: u8, space: u8, is_back: bool) -> Result<Result<State, String>> {
        let mut range = self.space((space, 0)).prefix(format!("writer {writer} "));
        if is_back {
            range = range.rev();
        }
        let (mut state, mut last) = (State::new(), None);
        while let Some((found, value)) = range.next().await.transpose()? {
            let Some(at) = (0..KEYS).map(|number| (space, number)).find(|at| key(writer, *at) == found)
            else {
                return Ok(Err(format!("a key that was never written: {found:?}")));
            };
            if last.as_ref().is_some_and(|last| (*last < found) == is_back || *last == found) {
                return Ok(Err(format!("{found:?} comes after {last:?}")));
            }
            match number(&value) {
                Ok(value) => drop(state.insert(at, value)),
                Err(text) => return Ok(Err(text)),
            }
            last = Some(found);
        }
        Ok(Ok(state))
    }

    /// Reads all entries of a writer at one moment. A batch that no task was notified of may become durable
    /// between two reads, also in a store that failed. Once such a batch was visible in one keyspace and not
    /// yet in the other.
    pub(crate) async fn content(&self, writer: u8) -> Result<Result<State, String>> {
        let mut state = State::new();
        let snapshot = self.store.snapshot();
        for space in 0..SPACES {
            let keys: Vec<Vec<u8>> = (0..KEYS).map(|number| key(writer, (space, number))).collect();
            let found = snapshot.multi_get(self.space((space, 0)), &keys).await?;
            for (at, value) in (0..KEYS).zip(found) {
                match value.as_deref().map(number).transpose() {
                    Ok(Some(value)) => drop(state.insert((space, at), value)),
                    Ok(None) => {}
                    Err(text) => return Ok(Err(text)),
                }
            }
        }
        Ok(Ok(state))
    }
}

/// Returns whether `error` is one that a call may return when the system under the store failed.
pub(crate) fn is_failure(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::ReadOnly | ErrorKind::NoSpace)
}

/// Returns whether this is the error of a full store: nothing was changed, and the store stays usable.
pub(crate) fn is_full(error: &Error) -> bool {
    error.kind() == ErrorKind::NoSpace
}

/// Sleeps for a short time.
pub(crate) async fn rest(micros: u64) {
    let _ = sim::sleep(Duration::from_micros(sim::random(micros))).await;
}
