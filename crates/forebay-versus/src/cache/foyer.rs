//! foyer's cache in memory, with the pages that it does not have read by `pread`.

use anyhow::Result;
use foyer_memory::{Cache, CacheBuilder};

use super::{CacheJob, Direct, Page, Peer, Reader};

/// The cache and its file.
pub(crate) struct Pages {
    cache: Cache<u64, Page>,
    direct: Direct,
}

impl Pages {
    pub(crate) fn open(job: &CacheJob) -> Result<Self> {
        let weighter = |_: &u64, page: &Page| page.len();
        let cache =
            CacheBuilder::new(job.cache_bytes as usize).with_shards(32).with_weighter(weighter).build();
        Ok(Self { cache, direct: Direct::open(&job.path)? })
    }
}

impl Peer for Pages {
    fn reader(&self) -> Result<Reader<'_>> {
        let mut read = self.direct.reader()?;
        Ok(Box::new(move |offset| {
            if let Some(entry) = self.cache.get(&offset) {
                return Ok((entry.value()[0], true));
            }
            let page = read(offset)?;
            let byte = page[0];
            drop(self.cache.insert(offset, page));
            Ok((byte, false))
        }))
    }
}
