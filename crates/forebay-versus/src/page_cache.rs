//! The page cache of the test file: eviction, filling, inspection.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use forebay_measure::residency;

/// Evicts the file from the page cache and checks that it is out. With `drop_caches` (root) the kernel's
/// caches of metadata go too.
pub(crate) fn evict(path: &Path, drop_caches: bool) -> Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    residency::evict(&file)?;
    if drop_caches {
        std::fs::write("/proc/sys/vm/drop_caches", "3").context("dropping the kernel's caches")?;
    }
    let (share, path) = (share_of(&file)?, path.display());
    let percent = share * 100.0;
    ensure!(share < 0.01, "{percent:.0} % of {path} stay in the page cache, so nothing read from it is cold");
    Ok(())
}

/// Reads the whole file, so that it is in the page cache, and checks that it is.
pub(crate) fn load(path: &Path) -> Result<()> {
    let mut file = File::open(path)?;
    if share_of(&file)? < 0.99 {
        let mut buffer = vec![0; 1 << 20];
        while file.read(&mut buffer)? > 0 {}
    }
    let (share, path) = (share_of(&file)?, path.display());
    let percent = share * 100.0;
    ensure!(share > 0.99, "only {percent:.0} % of {path} fit into the page cache, so it is not warm");
    Ok(())
}

/// Reads one run of 16 pages in `every` of a file that is not cached, without read-ahead, and checks that no others came.
pub(crate) fn load_every(path: &Path, every: u64) -> Result<()> {
    let file = File::open(path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
    let mut page = [0; 4096];
    // In runs, so that ranges of a few KiB lie in one or the other part.
    const RUN: u64 = 16;
    for number in (0..file.metadata()?.len() / 4096).filter(|number| (number / RUN).is_multiple_of(every)) {
        file.read_exact_at(&mut page, number * 4096)?;
    }
    let share = share_of(&file)?;
    ensure!((share - 1.0 / every as f64).abs() < 0.02, "{share:.2} of {} are cached", path.display());
    Ok(())
}

/// Returns the share of a file's pages that are in the page cache.
pub(crate) fn share(path: &Path) -> Result<f64> {
    share_of(&File::open(path)?)
}

fn share_of(file: &File) -> Result<f64> {
    let length = file.metadata()?.len();
    Ok(residency::resident_bytes(file, length)? as f64 / length as f64)
}
