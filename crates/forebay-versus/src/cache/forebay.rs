//! forebay-cache.

use anyhow::Result;
use forebay::{Config, Engine, Open};
use forebay_cache::{Cache, CacheOptions, CachedFile};

use super::{Peer, Reader, Work};
use crate::content::PAGE_BYTES;

/// A file with its cache.
pub(super) struct Pages {
    cache: Cache,
    file: CachedFile,
    /// Whether a page is looked for without a future first.
    gets: bool,
}

impl Pages {
    pub(super) fn open(work: &Work, gets: bool) -> Result<Self> {
        let engine =
            Engine::start(Config::default().shards(1).arena_bytes_max(2 * work.cache_bytes as usize))?;
        let cache = Cache::new(&engine, CacheOptions::default().bytes_max(work.cache_bytes))?;
        let file = cache.open(&work.path, Open::read()).wait()?;
        Ok(Self { cache, file, gets })
    }
}

impl Peer for Pages {
    fn reader(&self) -> Result<Reader<'_>> {
        let get = |offset: u64| self.file.get(offset..offset + PAGE_BYTES);
        Ok(Box::new(move |offset| {
            if self.gets
                && let Some(page) = get(offset)
            {
                return Ok((page[0], false));
            }
            Ok((self.file.read(offset..offset + PAGE_BYTES).wait()?[0], false))
        }))
    }

    fn hits(&self) -> Option<u64> {
        Some(self.cache.stats().pages.hits)
    }
}
