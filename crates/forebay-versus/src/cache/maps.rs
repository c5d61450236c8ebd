//! Caches in memory, with the pages that they do not have read by `pread`: foyer, moka, and quick_cache, the map inside of
//! forebay-cache.

use anyhow::Result;

use super::{Direct, Page, Peer, Reader, Work};
use crate::content::PAGE_BYTES;

/// A map of pages in memory.
pub(super) trait Map: Send + Sync {
    /// Returns the first byte of a page, if it is there.
    fn first_byte(&self, offset: u64) -> Option<u8>;

    /// Puts a page.
    fn put(&self, offset: u64, page: Page);
}

/// A map and its file.
pub(super) struct Pages<M> {
    map: M,
    direct: Direct,
}

impl<M: Map> Peer for Pages<M> {
    fn reader(&self) -> Result<Reader<'_>> {
        let mut read = self.direct.reader()?;
        Ok(Box::new(move |offset| {
            if let Some(byte) = self.map.first_byte(offset) {
                return Ok((byte, true));
            }
            let page = read(offset)?;
            let byte = page[0];
            self.map.put(offset, page);
            Ok((byte, false))
        }))
    }
}

/// Opens foyer's cache.
pub(super) fn foyer(work: &Work) -> Result<Pages<foyer_memory::Cache<u64, Page>>> {
    let weighter = |_: &u64, page: &Page| page.len();
    let builder = foyer_memory::CacheBuilder::new(work.cache_bytes as usize).with_shards(32);
    Ok(Pages { map: builder.with_weighter(weighter).build(), direct: Direct::open(&work.path)? })
}

impl Map for foyer_memory::Cache<u64, Page> {
    fn first_byte(&self, offset: u64) -> Option<u8> {
        self.get(&offset).map(|entry| entry.value()[0])
    }

    fn put(&self, offset: u64, page: Page) {
        drop(self.insert(offset, page));
    }
}

/// Opens moka's cache.
pub(super) fn moka(work: &Work) -> Result<Pages<moka::sync::Cache<u64, Page>>> {
    Ok(Pages {
        map: moka::sync::Cache::new(work.cache_bytes / PAGE_BYTES),
        direct: Direct::open(&work.path)?,
    })
}

impl Map for moka::sync::Cache<u64, Page> {
    fn first_byte(&self, offset: u64) -> Option<u8> {
        self.get(&offset).map(|page| page[0])
    }

    fn put(&self, offset: u64, page: Page) {
        self.insert(offset, page);
    }
}

/// Opens quick_cache's cache.
pub(super) fn quick(work: &Work) -> Result<Pages<quick_cache::sync::Cache<u64, Page>>> {
    let pages = (work.cache_bytes / PAGE_BYTES) as usize;
    Ok(Pages { map: quick_cache::sync::Cache::new(pages), direct: Direct::open(&work.path)? })
}

impl Map for quick_cache::sync::Cache<u64, Page> {
    fn first_byte(&self, offset: u64) -> Option<u8> {
        self.get(&offset).map(|page| page[0])
    }

    fn put(&self, offset: u64, page: Page) {
        self.insert(offset, page);
    }
}
