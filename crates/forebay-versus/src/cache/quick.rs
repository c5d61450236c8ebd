//! quick_cache, the map inside of forebay-cache, with the pages that it does not have read by `pread`.

use anyhow::Result;
use quick_cache::sync::Cache;

use super::{CacheJob, Direct, Page, Peer, Reader};
use crate::content::PAGE_BYTES;

/// The cache and its file.
pub(crate) struct Pages {
    cache: Cache<u64, Page>,
    direct: Direct,
}

impl Pages {
    pub(crate) fn open(job: &CacheJob) -> Result<Self> {
        let cache = Cache::new((job.cache_bytes / PAGE_BYTES) as usize);
        Ok(Self { cache, direct: Direct::open(&job.path)? })
    }
}

impl Peer for Pages {
    fn reader(&self) -> Result<Reader<'_>> {
        let mut read = self.direct.reader()?;
        Ok(Box::new(move |offset| {
            if let Some(page) = self.cache.get(&offset) {
                return Ok((page[0], true));
            }
            let page = read(offset)?;
            let byte = page[0];
            self.cache.insert(offset, page);
            Ok((byte, false))
        }))
    }
}
