//! Tables are read and written past the page cache.
#![cfg(target_os = "linux")]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::ptr;

use crate::common::{self, random};
use forebay_kv::{Batch, Store};
use rustix::mm::{MapFlags, ProtFlags};

/// Returns the bytes of a file in the page cache, and its size.
fn resident(path: &Path) -> io::Result<(u64, u64)> {
    let file = File::open(path)?;
    let (bytes, page) = (file.metadata()?.len() as usize, rustix::param::page_size());
    if bytes == 0 {
        return Ok((0, 0));
    }
    let mut pages = vec![0_u8; bytes.div_ceil(page)];
    let flags = (ProtFlags::READ, MapFlags::SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice; its bytes are never accessed.
    let address = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, flags.0, flags.1, file.as_fd(), 0) }?;
    // SAFETY: `address` is the mapping of `bytes` bytes made above, and `pages` has a byte for each page.
    let answer = unsafe { libc::mincore(address, bytes, pages.as_mut_ptr()) };
    let error = io::Error::last_os_error();
    // SAFETY: the mapping made above, without references to it.
    unsafe { rustix::mm::munmap(address, bytes) }?;
    let held = pages.iter().filter(|page| **page & 1 == 1).count() * page;
    if answer == 0 { Ok((held as u64, bytes as u64)) } else { Err(error) }
}

const PROBE_BYTES: usize = 64 << 10;

/// Pages of the page cache that the kernel keeps there: it may take back all others at any time.
struct LockedPages(*mut c_void);

/// Locks the probe's pages into memory.
fn locked(path: &Path) -> io::Result<LockedPages> {
    let file = File::open(path)?;
    let flags = (ProtFlags::READ, MapFlags::SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice; its bytes are never accessed.
    let address =
        unsafe { rustix::mm::mmap(ptr::null_mut(), PROBE_BYTES, flags.0, flags.1, file.as_fd(), 0) }?;
    let locked = LockedPages(address);
    // SAFETY: `address` is the mapping of this length made above.
    unsafe { rustix::mm::mlock(address, PROBE_BYTES) }?;
    Ok(locked)
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `locked`, without references to it.
        let gone = unsafe { rustix::mm::munmap(self.0, PROBE_BYTES) };
        debug_assert!(gone.is_ok(), "a mapping of this process goes");
    }
}

/// Returns the same for all tables of a store.
fn tables(dir: &Path) -> (u64, u64) {
    let mut sum = (0, 0);
    for entry in std::fs::read_dir(dir.join("tables")).expect("the tables") {
        let (held, bytes) = resident(&entry.expect("an entry").path()).expect("a table");
        sum = (sum.0 + held, sum.1 + bytes);
    }
    sum
}

#[test]
fn no_page_of_a_table_is_in_the_page_cache() {
    let dir = common::dir();
    let probe = dir.path().join("probe");
    std::fs::write(&probe, vec![1; PROBE_BYTES]).expect("a file");
    let locked = locked(&probe).expect("locked memory");
    let bytes = PROBE_BYTES as u64;
    assert_eq!(resident(&probe).expect("it can be asked"), (bytes, bytes), "what is cached shows");
    drop(locked);
    std::fs::remove_file(&probe).expect("removed");

    for engine in common::engines() {
        let dir = common::dir();
        let store = Store::open(&engine, dir.path(), common::options()).wait().expect("a store");
        let space = store.default_keyspace();
        let entries = (0..8_000_u64).map(|number| (format!("{number:08}"), [number as u8; 900]));
        space.bulk_load(entries).wait().expect("a load");
        for first in (0..2_000).step_by(20) {
            let mut batch = Batch::new();
            for index in first..first + 20 {
                batch.put(&space, format!("{:08}", random(index) % 8_000), [1; 1500]);
            }
            store.write(&batch).wait().expect("a batch");
        }
        store.flush().wait().expect("flushed");
        for number in 0..2_000 {
            let key = format!("{:08}", random(number) % 10_000);
            let _ = space.get(&key).wait().expect("an answer");
        }
        let mut range = space.iter();
        while range.next().wait().transpose().expect("an entry").is_some() {}
        // No table is removed while they are examined.
        store.settle().wait().expect("at rest");
        let (held, bytes) = tables(dir.path());
        assert!(held == 0 && bytes > 8_000 * 900, "{held} of {bytes} bytes, by {}", engine.driver());
        store.compact().wait().expect("compacted");
        store.settle().wait().expect("at rest");
        store.close().wait().expect("closed");
        drop((space, range, store));
        let store = Store::open(&engine, dir.path(), common::options()).wait().expect("a store");
        let _ = store.default_keyspace().get("00000001").wait().expect("an answer");
        let (held, bytes) = tables(dir.path());
        assert!(held == 0 && bytes > 8_000 * 900, "{held} of {bytes} bytes, by {}", engine.driver());
    }
}
