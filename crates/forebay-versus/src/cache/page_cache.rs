//! `pread`: through the page cache, and past it without any cache.

use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use super::{Peer, Reader, Work};
use crate::prelude::*;

/// The file.
pub(super) struct Pages {
    file: std::fs::File,
}

impl Pages {
    pub(super) fn open(work: &Work, direct: bool) -> Result<Self> {
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let file = std::fs::File::options().read(true).custom_flags(flags).open(&work.path);
        let file = file.with_context(|| format!("opening {}", work.path.display()))?;
        // Read-ahead would bring pages that are not asked for.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
        Ok(Self { file })
    }
}

impl Peer for Pages {
    fn reader(&self) -> Result<Reader<'_>> {
        let mut memory = pieces(1, PAGE_BYTES as usize, PageKind::Small)?;
        Ok(Box::new(move |offset| {
            self.file.read_exact_at(&mut memory[0], offset).context("reading a page")?;
            Ok((memory[0][0], false))
        }))
    }
}
