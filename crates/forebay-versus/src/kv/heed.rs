//! LMDB through heed: a B+-tree in a memory map. Its cache is the page cache; read-ahead is off, as suits
//! random gets.

use ::heed::types::Bytes;
use ::heed::{Database, Env, EnvFlags, EnvOpenOptions, PutFlags};
use anyhow::{Context as _, Result};

use super::Work;
use super::data::{self, ENTRY_BYTES, Key, VALUE_BYTES, Values};
use super::drive::{LOAD_ENTRIES, Peer};

/// Threads that may read at once; Tokio's blocking threads are up to 512.
const READERS: u32 = 1024;
/// The map is that much larger than the entries.
const MAP_TIMES: u64 = 4;

/// An open environment.
pub(super) struct Lmdb {
    env: Env,
    database: Database<Bytes, Bytes>,
}

impl Lmdb {
    /// Opens the environment. The map takes address space only; the kernel decides which pages are resident.
    pub(super) fn open(work: &Work) -> Result<Self> {
        let map_bytes = (work.keys.max(1 << 20) * ENTRY_BYTES * MAP_TIMES).next_multiple_of(1 << 20);
        let mut options = EnvOpenOptions::new();
        options.map_size(usize::try_from(map_bytes)?).max_readers(READERS);
        let mut flags = EnvFlags::NO_READ_AHEAD;
        // A load that fails is worthless anyway, so it is made durable once, at its end.
        flags.set(EnvFlags::NO_SYNC, work.workload == "load");
        // SAFETY: one changes only the kernel's read-ahead, the other only when it writes.
        unsafe { options.flags(flags) };
        // SAFETY: the folder is this run's own, and no other process has its files open or mapped.
        let env = unsafe { options.open(&work.dir)? };
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
                let key = data::key(number);
                self.database.put_with_flags(&mut transaction, PutFlags::APPEND, &key, &value)?;
            }
            transaction.commit()?;
        }
        Ok(self.env.force_sync()?)
    }

    fn get(&self, key: &Key, see: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let transaction = self.env.read_txn()?;
        see(self.database.get(&transaction, key)?.context("a key is missing")?)
    }

    fn put(&self, entries: &[(Key, Vec<u8>)]) -> Result<()> {
        let mut transaction = self.env.write_txn()?;
        for (key, value) in entries {
            self.database.put(&mut transaction, key, value)?;
        }
        Ok(transaction.commit()?)
    }
}
