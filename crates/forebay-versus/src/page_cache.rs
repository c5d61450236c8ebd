//! The page cache of the test file: eviction, filling, inspection.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Evicts the file from the page cache and checks that it is out. With `drop_caches` (root) the kernel's
/// caches of metadata go too.
///
/// # Errors
/// When more than 1 % of the file stays cached.
pub(crate) fn evict(path: &Path, drop_caches: bool) -> Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    // SAFETY: advice on an open file; it reads and writes no memory of this process.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    if drop_caches {
        std::fs::write("/proc/sys/vm/drop_caches", "3").context("dropping the kernel's caches")?;
    }
    let share = resident_share(&file)?;
    ensure!(
        share < 0.01,
        "{:.0} % of {} stay in the page cache, so nothing read from it is cold",
        share * 100.0,
        path.display()
    );
    Ok(())
}

/// Reads the whole file, so that it is in the page cache, and checks that it is.
///
/// # Errors
/// When memory does not suffice to hold 99 % of the file.
pub(crate) fn load(path: &Path) -> Result<()> {
    let mut file = File::open(path)?;
    if resident_share(&file)? < 0.99 {
        let mut buffer = vec![0; 1 << 20];
        while file.read(&mut buffer)? > 0 {}
    }
    let share = resident_share(&file)?;
    ensure!(
        share > 0.99,
        "only {:.0} % of {} fit into the page cache, so it is not warm",
        share * 100.0,
        path.display()
    );
    Ok(())
}

/// Reads one page in `every` of a file that is not cached, without read-ahead, and checks that no others came.
///
/// # Errors
/// When another share of the file is cached afterwards.
pub(crate) fn load_every(path: &Path, every: u64) -> Result<()> {
    use std::os::unix::fs::FileExt as _;
    let file = File::open(path)?;
    // SAFETY: advice on an open file; it reads and writes no memory of this process.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    let mut page = [0; 4096];
    // In runs of 16 pages, so that ranges of a few KiB lie in one or the other part.
    const RUN: u64 = 16;
    for number in (0..file.metadata()?.len() / 4096).filter(|number| number / RUN % every == 0) {
        file.read_exact_at(&mut page, number * 4096)?;
    }
    let share = resident_share(&file)?;
    ensure!((share - 1.0 / every as f64).abs() < 0.02, "{share:.2} of {} are cached", path.display());
    Ok(())
}

/// Returns the share of a file's pages that are in the page cache.
///
/// # Errors
/// When it cannot be opened or mapped.
pub(crate) fn share(path: &Path) -> Result<f64> {
    resident_share(&File::open(path)?)
}

/// Returns the share of a file's pages that are in the page cache.
fn resident_share(file: &File) -> Result<f64> {
    // SAFETY: the map is used only to query residency and never dereferenced, so a change of the file cannot
    // matter.
    let map = unsafe { memmap2::Mmap::map(file)? };
    let mut pages = vec![0_u8; map.len().div_ceil(4096)];
    // SAFETY: `map` is a mapping of `map.len()` bytes, and `pages` has a byte for each of its pages.
    let rc = unsafe { libc::mincore(map.as_ptr() as *mut libc::c_void, map.len(), pages.as_mut_ptr()) };
    ensure!(rc == 0, "asking what is cached: {}", std::io::Error::last_os_error());
    Ok(pages.iter().filter(|page| **page & 1 == 1).count() as f64 / pages.len() as f64)
}
