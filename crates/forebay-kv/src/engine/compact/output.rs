//! Tables written one after the other, each as long as tables may be.

use std::sync::Arc;

use crate::engine::shared::StoreCore;
use crate::error::Result;
use crate::table::{Entry, TableMeta, TableSpec, TableWriter};

/// Entries after which the memory of the writer is checked.
const LOOK: u64 = 64;

/// Tables being written. Dropping it without [`keep`](Output::keep) removes them.
pub(crate) struct Output {
    shared: Arc<StoreCore>,
    spec: TableSpec,
    /// The limits for a table's bytes and for the memory of its keys, after which the next table starts.
    bytes_max: u64,
    memory_max: u64,
    writer: Option<TableWriter>,
    metas: Vec<TableMeta>,
    /// The bytes of the table that is being finished.
    unfinished_bytes: u64,
    /// The number of the table being written, set before its file exists.
    making: Option<u32>,
}

impl Output {
    /// Returns an output for tables of a keyspace and a level, written with about `memory` bytes of memory.
    pub(crate) fn new(shared: &Arc<StoreCore>, keyspace: u32, level: usize, memory: u64) -> Output {
        let depth = 2;
        let buffer = (memory * 2 / 3 / (depth + 1)).clamp(64 << 10, 128 << 10) as usize;
        // The largest power of two that is not longer.
        let buffer_bytes = 1 << buffer.ilog2();
        let spec = shared.table_spec(keyspace, level, shared.options.background);
        let spec = TableSpec { buffer_bytes, depth: depth as usize, ..spec };
        Output {
            shared: shared.clone(),
            spec,
            bytes_max: shared.budget.table_bytes_max(),
            memory_max: (depth + 1) * buffer_bytes as u64 + memory / 3,
            writer: None,
            metas: Vec::new(),
            unfinished_bytes: 0,
            making: None,
        }
    }

    /// Sets the shard that the tables are written on.
    pub(crate) fn set_shard(&mut self, shard: usize) {
        self.spec.shard = Some(shard);
    }

    /// Makes the cache insert written blocks while it has free memory: they replace the data that gets have read until now.
    pub(crate) fn fill_cache(&mut self) {
        self.spec.fill = true;
    }

    /// Returns whether written blocks are inserted into the cache.
    pub(crate) fn fills_cache(&self) -> bool {
        self.spec.fill
    }

    /// Lets values stay in the files of other tables.
    pub(crate) fn allow_links(&mut self) {
        self.spec.links = true;
    }

    /// Sets the length of tables for a part of a job that rewrites one table of this many bytes and a little more: split at the
    /// usual length, it would leave a short second table each time, and each table has a fixed overhead. A table that has become
    /// longer than usual is divided in two: a full disk needs space for a second copy of it.
    pub(crate) fn rewrites(&mut self, bytes: u64) {
        self.bytes_max = if bytes > self.bytes_max { bytes / 8 * 5 } else { self.bytes_max / 2 * 3 };
    }

    /// Adds an entry. Its key has to be above all keys added before.
    pub(crate) async fn add(&mut self, key: &[u8], entry: Entry<'_>) -> Result<()> {
        if let Some(writer) = &self.writer
            && (writer.bytes() >= self.bytes_max
                || (writer.entries().is_multiple_of(LOOK) && writer.memory_bytes() > self.memory_max))
        {
            self.end().await?;
        }
        match &mut self.writer {
            Some(writer) => writer.add(key, entry).await,
            None => {
                let spec = TableSpec { id: self.shared.next_table(), ..self.spec.clone() };
                self.making = Some(spec.id);
                // A separate task: closing waits for it, and must not wait for a program that no longer polls. No file is made once
                // the store is closed, because another process may have it open by then.
                let (shard, class) = (spec.shard.unwrap_or(self.shared.background_shard()), spec.class);
                let making = self.shared.spawn_task(shard, class, move |shared| async move {
                    shared.check_open()?;
                    let mut table = NewTable { shared: shared.clone(), id: spec.id, writer: None };
                    table.writer = Some(TableWriter::create_in(&shared.engine, &shared.tables, spec).await?);
                    Ok(table)
                });
                let table: Result<NewTable> = making.await?;
                if let Some(writer) = table?.writer.take() {
                    self.writer.insert(writer).add(key, entry).await?;
                }
                Ok(())
            }
        }
    }

    async fn end(&mut self) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            self.unfinished_bytes = writer.bytes();
            let meta = writer.finish().await?;
            self.unfinished_bytes = 0;
            debug_assert!(
                self.metas.last().is_none_or(|last| last.largest < meta.smallest && last.id < meta.id),
                "tables of one output are sorted and do not overlap"
            );
            self.metas.push(meta);
            self.making = None;
        }
        Ok(())
    }

    /// Makes all tables durable.
    pub(crate) async fn finish(&mut self) -> Result<&[TableMeta]> {
        self.end().await?;
        self.shared.sync_tables(self.metas.len()).await?;
        Ok(&self.metas)
    }

    /// Returns the tables that are finished.
    pub(crate) fn written(&self) -> &[TableMeta] {
        &self.metas
    }

    /// Hands the tables over to the caller, which is responsible for their files from now on.
    pub(crate) fn keep(&mut self) -> Vec<TableMeta> {
        std::mem::take(&mut self.metas)
    }

    /// Returns the bytes of its tables, also of the one that is not finished.
    pub(crate) fn bytes(&self) -> u64 {
        let finished: u64 = self.metas.iter().map(|meta| meta.bytes).sum();
        finished + self.writer.as_ref().map_or(self.unfinished_bytes, TableWriter::bytes)
    }

    /// Removes all tables and waits for the removal.
    pub(crate) async fn abandon(mut self) {
        drop(self.writer.take());
        for id in self.ids() {
            self.shared.remove_table(id).await;
        }
    }

    fn ids(&mut self) -> Vec<u32> {
        let metas = self.metas.drain(..).map(|meta| meta.id);
        metas.chain(self.making.take()).collect()
    }
}

/// A table's new file. It is removed unless its writer is moved out.
struct NewTable {
    shared: Arc<StoreCore>,
    id: u32,
    writer: Option<TableWriter>,
}

impl Drop for NewTable {
    fn drop(&mut self) {
        if self.writer.take().is_some() {
            self.shared.cache.removals().push(self.shared.table_path(self.id));
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        for id in self.ids() {
            self.shared.cache.removals().push(self.shared.table_path(id));
        }
    }
}
