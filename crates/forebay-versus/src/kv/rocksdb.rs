//! RocksDB: an LSM tree with a log. Reads, flushes and compactions are direct, as among its users who
//! measure; values here do not compress, so compression is off. Loads go through table files of its own,
//! which it then takes over.

use ::rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, IngestExternalFileOptions, Options, SstFileWriter,
    WriteBatch, WriteOptions,
};

use super::Work;
use super::data::{self, Key, VALUE_BYTES, Values};
use super::drive::Peer;
use crate::prelude::*;

/// Entries of one table file of a load: about 64 MiB.
const TABLE_ENTRIES: u64 = 64 << 10;

/// An open database.
pub(super) struct Rocks {
    database: DB,
    options: Options,
    dir: std::path::PathBuf,
}

impl Rocks {
    /// Opens the database. Three quarters of the memory are its cache, with indexes and filters in it;
    /// memtables take an eighth.
    pub(super) fn open(work: &Work) -> Result<Self> {
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
        options.increase_parallelism(i32::try_from(cores())?.max(2));
        let database = DB::open(&options, work.dir.join("rocksdb"))?;
        Ok(Self { database, options, dir: work.dir.clone() })
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
                writer.put(data::key(number), value)?;
            }
            writer.finish()?;
            tables.push(path);
        }
        let mut how = IngestExternalFileOptions::default();
        how.set_move_files(true);
        Ok(self.database.ingest_external_file_opts(&how, tables)?)
    }

    fn get(&self, key: &Key, see: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        see(&self.database.get_pinned(key)?.context("a key is missing")?)
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
