//! The disk itself, and stores whose calls block. Values here do not compress, so compression is off.

use std::ops::Bound;

use super::drive::{self, ENTRY_BYTES, Key, LOAD_ENTRIES, Peer, See, VALUE_BYTES, Values, key};
use super::{IN_FLIGHT, THREADS};
use crate::peers::worker_ring;
use crate::prelude::*;

const MISSING: &str = "a key is missing";

const RAW_WRITE_BYTES: u64 = 1 << 20;
const RAW_WRITERS: usize = 4;
const RAW_FILE: &str = "raw";

/// Measures the disk itself, with a file as large as the data: random reads, of which each thread, or each task of Tokio
/// through its worker's ring, has one in flight; of a load, the writes.
pub(super) fn raw(work: &Work) -> Result<Outcome> {
    if work.workload == "load" {
        return drive::load(work, || load_raw(work));
    }
    let path = work.path.join(RAW_FILE);
    let file_bytes = path.metadata()?.len();
    if work.workload == "tokio" {
        return worker_ring::random(&Work { path, file_bytes, depth: IN_FLIGHT, ..work.clone() }, true);
    }
    let file = &open_direct(&path)?;
    let count = if work.workload == "one" { 1 } else { THREADS };
    let buffers = pieces(count, PAGE_BYTES as usize, PageKind::Huge)?;
    let lanes = buffers.into_iter().enumerate().map(|(i, buffer)| {
        let mut rng = work.rng(i);
        move || {
            let offset = page_offset(&mut rng, file_bytes);
            file.read_exact_at(buffer, offset)?;
            files::check_start(buffer, offset)
        }
    });
    threads(work, lanes)
}

/// Writes the file: the limit of a load.
fn load_raw(work: &Work) -> Result<()> {
    let path = work.path.join(RAW_FILE);
    let mut options = File::options();
    options.write(true).create_new(true).custom_flags(libc::O_DIRECT);
    let file = options.open(&path).with_context(|| format!("making {} for direct I/O", path.display()))?;
    let writes = (work.keys * ENTRY_BYTES).div_ceil(RAW_WRITE_BYTES);
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, writes * RAW_WRITE_BYTES)?;
    let next = AtomicU64::new(0);
    let write = |buffer: &mut [u8]| -> Result<()> {
        files::fill(buffer, 0);
        loop {
            let offset = next.fetch_add(1, Ordering::Relaxed) * RAW_WRITE_BYTES;
            if offset >= writes * RAW_WRITE_BYTES {
                return Ok(());
            }
            // Each page starts with its content for this offset, so that a read can be checked.
            for at in (0..RAW_WRITE_BYTES).step_by(PAGE_BYTES as usize) {
                files::fill(&mut buffer[at as usize..at as usize + 8], offset + at);
            }
            file.write_all_at(buffer, offset)?;
        }
    };
    let write = &write;
    let buffers = pieces(RAW_WRITERS, RAW_WRITE_BYTES as usize, PageKind::Huge)?;
    on_threads(buffers.into_iter().map(|buffer| move || write(buffer)))?;
    Ok(file.sync_data()?)
}

/// redb: a B+-tree in one file, copied on write, read and written through the page cache in addition to its own cache.
pub(super) struct Redb(redb::Database);

const TABLE: redb::TableDefinition<'_, Key, &[u8]> = redb::TableDefinition::new("bench");

impl Redb {
    /// Opens the database. Half of the memory is its cache, the rest is left to the page cache.
    pub(super) fn open(work: &Work) -> Result<Self> {
        let cache_bytes = usize::try_from(work.memory_bytes / 2)?;
        Ok(Self(redb::Database::builder().set_cache_size(cache_bytes).create(work.path.join("redb"))?))
    }
}

impl Peer for Redb {
    fn load(&self, keys: u64, values: &Values) -> Result<()> {
        let mut value = [0; VALUE_BYTES];
        for first in (0..keys).step_by(LOAD_ENTRIES as usize) {
            let end = (first + LOAD_ENTRIES).min(keys);
            let mut transaction = self.0.begin_write()?;
            if end < keys {
                transaction.set_durability(redb::Durability::None)?;
            }
            {
                let mut table = transaction.open_table(TABLE)?;
                for number in first..end {
                    values.write(number, &mut value);
                    table.insert(&key(number), &value[..])?;
                }
            }
            transaction.commit()?;
        }
        Ok(())
    }

    fn get(&self, key: &Key, see: impl FnOnce(&[u8]) -> Result<()>) -> Result<()> {
        let table = redb::ReadableDatabase::begin_read(&self.0)?.open_table(TABLE)?;
        let value = table.get(key)?.context(MISSING)?;
        see(value.value())
    }

    fn scan(&self, from: &Key, count: usize, see: See<'_>) -> Result<()> {
        let table = redb::ReadableDatabase::begin_read(&self.0)?.open_table(TABLE)?;
        for entry in table.range::<Key>(*from..)?.take(count) {
            let (key, value) = entry?;
            see(&key.value(), value.value())?;
        }
        Ok(())
    }

    fn put(&self, entries: &[(Key, Vec<u8>)]) -> Result<()> {
        let transaction = self.0.begin_write()?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in entries {
                table.insert(key, &value[..])?;
            }
        }
        Ok(transaction.commit()?)
    }
}

/// fjall: an LSM tree with a journal, read and written through the page cache in addition to its own cache.
pub(super) struct Fjall {
    database: fjall::Database,
    keyspace: fjall::Keyspace,
}

impl Fjall {
    /// Opens the database. Half of the memory is its cache, the rest is for memtables and the page cache.
    pub(super) fn open(work: &Work) -> Result<Self> {
        let database =
            fjall::Database::builder(work.path.join("fjall")).cache_size(work.memory_bytes / 2).open()?;
        let memtable_bytes = (work.memory_bytes / 8).min(64 << 20);
        let keyspace = database.keyspace("bench", || {
            fjall::KeyspaceCreateOptions::default()
                .data_block_compression_policy(fjall::config::CompressionPolicy::disabled())
                .max_memtable_size(memtable_bytes)
        })?;
        Ok(Self { database, keyspace })
    }
}

impl Peer for Fjall {
    fn load(&self, keys: u64, values: &Values) -> Result<()> {
        let mut value = [0; VALUE_BYTES];
        let mut ingestion = self.keyspace.start_ingestion()?;
        for number in 0..keys {
            values.write(number, &mut value);
            ingestion.write(&key(number)[..], &value[..])?;
        }
        Ok(ingestion.finish()?)
    }

    fn get(&self, key: &Key, see: impl FnOnce(&[u8]) -> Result<()>) -> Result<()> {
        see(&self.keyspace.get(key)?.context(MISSING)?)
    }

    fn scan(&self, from: &Key, count: usize, see: See<'_>) -> Result<()> {
        for entry in self.keyspace.range(&from[..]..).take(count) {
            let (key, value) = entry.into_inner()?;
            see(&key, &value)?;
        }
        Ok(())
    }

    /// fjall does not say when its threads have nothing left to do: its tables do not change any more.
    fn settle(&self) -> Result<()> {
        until_still(|| Ok(self.keyspace.disk_space() + self.keyspace.table_count() as u64))
    }

    fn put(&self, entries: &[(Key, Vec<u8>)]) -> Result<()> {
        let mut batch = self.database.batch().durability(Some(fjall::PersistMode::SyncData));
        for (key, value) in entries {
            batch.insert(&self.keyspace, &key[..], &value[..]);
        }
        Ok(batch.commit()?)
    }
}

/// Threads that may read from LMDB concurrently; Tokio's blocking threads are up to 512.
const LMDB_READERS: u32 = 1024;
/// The map of LMDB is that much larger than the entries.
const LMDB_MAP_TIMES: u64 = 4;

/// LMDB through heed: a B+-tree in a memory map. Its cache is the page cache; read-ahead is off, as suits
/// random gets.
pub(super) struct Lmdb {
    env: heed::Env,
    database: heed::Database<heed::types::Bytes, heed::types::Bytes>,
}

impl Lmdb {
    /// Opens the environment. The map uses address space only; the kernel decides which pages are resident.
    pub(super) fn open(work: &Work) -> Result<Self> {
        let map_bytes = (work.keys.max(1 << 20) * ENTRY_BYTES * LMDB_MAP_TIMES).next_multiple_of(1 << 20);
        let mut options = heed::EnvOpenOptions::new();
        options.map_size(usize::try_from(map_bytes)?).max_readers(LMDB_READERS);
        let mut flags = heed::EnvFlags::NO_READ_AHEAD;
        // A load that fails is worthless anyway, so it is made durable once, at its end.
        flags.set(heed::EnvFlags::NO_SYNC, work.workload == "load");
        // SAFETY: one changes only the kernel's read-ahead, the other only when it writes.
        unsafe { options.flags(flags) };
        // SAFETY: the folder is this run's own, and no other process has its files open or mapped.
        let env = unsafe { options.open(&work.path)? };
        let mut transaction = env.write_txn()?;
        let database = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Self { env, database })
    }
}

impl Peer for Lmdb {
    fn load(&self, keys: u64, values: &Values) -> Result<()> {
        let mut value = [0; VALUE_BYTES];
        for first in (0..keys).step_by(LOAD_ENTRIES as usize) {
            let mut transaction = self.env.write_txn()?;
            for number in first..(first + LOAD_ENTRIES).min(keys) {
                values.write(number, &mut value);
                let key = key(number);
                self.database.put_with_flags(&mut transaction, heed::PutFlags::APPEND, &key, &value)?;
            }
            transaction.commit()?;
        }
        Ok(self.env.force_sync()?)
    }

    fn get(&self, key: &Key, see: impl FnOnce(&[u8]) -> Result<()>) -> Result<()> {
        let transaction = self.env.read_txn()?;
        see(self.database.get(&transaction, key)?.context(MISSING)?)
    }

    fn scan(&self, from: &Key, count: usize, see: See<'_>) -> Result<()> {
        let transaction = self.env.read_txn()?;
        for entry in
            self.database.range(&transaction, &(Bound::Included(&from[..]), Bound::Unbounded))?.take(count)
        {
            let (key, value) = entry?;
            see(key, value)?;
        }
        Ok(())
    }

    fn put(&self, entries: &[(Key, Vec<u8>)]) -> Result<()> {
        let mut transaction = self.env.write_txn()?;
        for (key, value) in entries {
            self.database.put(&mut transaction, key, value)?;
        }
        Ok(transaction.commit()?)
    }
}

/// Returns when a reading has not changed for a second.
fn until_still(read: impl Fn() -> Result<u64>) -> Result<()> {
    let (mut last, mut since) = (read()?, Instant::now());
    while since.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(20));
        let now = read()?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(())
}

#[cfg(not(feature = "rocksdb"))]
pub(super) fn rocksdb(_: &Work) -> Result<Outcome> {
    bail!("built without the feature rocksdb")
}

#[cfg(feature = "rocksdb")]
pub(super) use rocks::rocksdb;

#[cfg(feature = "rocksdb")]
mod rocks {
    use rocksdb::{
        BlockBasedOptions, Cache, DB, DBCompressionType, IngestExternalFileOptions, Options, SstFileWriter,
        WriteBatch, WriteOptions,
    };

    use super::*;

    /// Entries of one table file of a load: about 64 MiB.
    const TABLE_ENTRIES: u64 = 64 << 10;

    /// Measures RocksDB: an LSM tree with a log. Reads, flushes and compactions are direct, as its users configure it for
    /// benchmarks. Loads write its table files, which it then ingests.
    pub(in super::super) fn rocksdb(work: &Work) -> Result<Outcome> {
        drive::sample(work, Rocks::open)
    }

    struct Rocks {
        database: DB,
        options: Options,
        dir: std::path::PathBuf,
    }

    impl Rocks {
        /// Opens the database. Three quarters of the memory are its cache, with indexes and filters in it; memtables use an eighth.
        fn open(work: &Work) -> Result<Self> {
            let mut blocks = BlockBasedOptions::default();
            blocks.set_block_cache(&Cache::new_lru_cache(usize::try_from(work.memory_bytes / 4 * 3)?));
            blocks.set_block_size(4096);
            blocks.set_bloom_filter(10.0, false);
            blocks.set_cache_index_and_filter_blocks(true);
            blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
            let mut options = Options::default();
            options.create_if_missing(true);
            options.set_compression_type(DBCompressionType::None);
            options.set_block_based_table_factory(&blocks);
            options.set_use_direct_reads(true);
            options.set_use_direct_io_for_flush_and_compaction(true);
            options.set_write_buffer_size(usize::try_from((work.memory_bytes / 16).min(64 << 20))?);
            if work.row == "rocksdb-blobs" {
                options.set_enable_blob_files(true);
                options.set_min_blob_size(32 << 10);
                options.set_enable_blob_gc(true);
            }
            options.increase_parallelism(i32::try_from(cores())?.max(2));
            let database = DB::open(&options, work.path.join("rocksdb"))?;
            Ok(Self { database, options, dir: work.path.clone() })
        }
    }

    impl Peer for Rocks {
        fn load(&self, keys: u64, values: &Values) -> Result<()> {
            let mut value = [0; VALUE_BYTES];
            let mut tables = Vec::new();
            for first in (0..keys).step_by(TABLE_ENTRIES as usize) {
                let path = self.dir.join(format!("load-{first}.sst"));
                let mut writer = SstFileWriter::create(&self.options);
                writer.open(&path)?;
                for number in first..(first + TABLE_ENTRIES).min(keys) {
                    values.write(number, &mut value);
                    writer.put(key(number), value)?;
                }
                writer.finish()?;
                tables.push(path);
            }
            let mut how = IngestExternalFileOptions::default();
            how.set_move_files(true);
            Ok(self.database.ingest_external_file_opts(&how, tables)?)
        }

        fn get(&self, key: &Key, see: impl FnOnce(&[u8]) -> Result<()>) -> Result<()> {
            see(&self.database.get_pinned(key)?.context(MISSING)?)
        }

        fn scan(&self, from: &Key, count: usize, see: See<'_>) -> Result<()> {
            let mut entries = self.database.raw_iterator();
            entries.seek(from);
            for _ in 0..count {
                let Some((key, value)) = entries.item() else { break };
                see(key, value)?;
                entries.next();
            }
            Ok(entries.status()?)
        }

        fn settle(&self) -> Result<()> {
            const WORK: [&str; 4] = [
                "rocksdb.mem-table-flush-pending",
                "rocksdb.num-running-flushes",
                "rocksdb.compaction-pending",
                "rocksdb.num-running-compactions",
            ];
            until_still(|| {
                let work = WORK.iter().map(|name| self.database.property_int_value(*name));
                let work: u64 = work.map(|work| work.map(Option::unwrap_or_default)).sum::<Result<_, _>>()?;
                let tables = self.database.property_int_value("rocksdb.total-sst-files-size")?;
                Ok(if work > 0 {
                    Instant::now().elapsed().as_nanos() as u64
                } else {
                    tables.unwrap_or_default()
                })
            })
        }

        fn put(&self, entries: &[(Key, Vec<u8>)]) -> Result<()> {
            let mut batch = WriteBatch::default();
            for (key, value) in entries {
                batch.put(key, value);
            }
            let mut how = WriteOptions::default();
            how.set_sync(true);
            Ok(self.database.write_opt(batch, &how)?)
        }
    }
}
