//! Shows: allocate, punch_hole, truncate, len, metadata, advise and copy_range do as they are named, in every
//! mode. How: files with known bytes on a real file system, checked again through `std::fs`.

use std::time::{Duration, Instant};

use crate::common::{bytes_of, dir, engine, write_file};
use forebay::{Advice, ErrorKind, FileKind, Open};

#[test]
fn space_is_given_and_taken_back() {
    let (engine, dir) = (engine(), dir());
    for (number, open) in [Open::create_new(), Open::create_new().buffered()].into_iter().enumerate() {
        let path = dir.path().join(number.to_string());
        let file = engine.open(&path, open).wait().unwrap();
        assert_eq!(file.len().wait().unwrap(), 0);
        file.allocate(0..1 << 20).wait().unwrap();
        let metadata = file.metadata().wait().unwrap();
        assert_eq!((metadata.len(), metadata.kind()), (1 << 20, FileKind::File));
        assert!(metadata.blocks_bytes() >= 1 << 20, "{metadata:?}");
        assert!(file.read(0..1 << 20).wait().unwrap().iter().all(|&byte| byte == 0));

        file.write(0, bytes_of(0..1 << 20)).wait().unwrap();
        file.punch_hole(64 << 10..128 << 10).wait().unwrap();
        let mut expected = bytes_of(0..1 << 20);
        expected[64 << 10..128 << 10].fill(0);
        assert_eq!(&file.read(0..1 << 20).wait().unwrap()[..], &expected[..]);
        // An odd hole is zero to the byte.
        file.punch_hole(200_001..200_777).wait().unwrap();
        expected[200_001..200_777].fill(0);
        assert_eq!(&file.read(0..1 << 20).wait().unwrap()[..], &expected[..]);
        assert_eq!(file.len().wait().unwrap(), 1 << 20);

        file.truncate(70_001).wait().unwrap();
        assert_eq!(file.len().wait().unwrap(), 70_001);
        assert_eq!(file.read(70_000..70_002).wait().unwrap_err().kind(), ErrorKind::UnexpectedEof { got: 1 });
        file.truncate(80_000).wait().unwrap();
        assert_eq!(&file.read(70_001..80_000).wait().unwrap()[..], &vec![0u8; 9_999][..]);
        file.truncate(0).wait().unwrap();
        assert!(file.read_up_to(0..100).wait().unwrap().is_empty());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }
}

#[test]
fn impossible_ranges_name_the_operation() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 8192);
    let file = engine.open(&path, Open::write()).wait().unwrap();
    let backwards = || std::ops::Range { start: 9, end: 3 };
    let errors = [
        ("allocate", file.allocate(backwards()).wait()),
        ("punch_hole", file.punch_hole(backwards()).wait()),
        ("advise", file.advise(backwards(), Advice::WillNeed).wait()),
        ("copy_range", file.copy_range(backwards(), &file, 0).wait().map(drop)),
    ];
    for (operation, result) in errors {
        // Regression: the first three called themselves "range".
        let error = result.unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::InvalidInput, operation), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    // Regression: a range behind all that a file can have "ends before it starts".
    for range in [1 << 63..u64::MAX, i64::MAX as u64..u64::MAX, u64::MAX..u64::MAX] {
        file.advise(range, Advice::WillNeed).wait().unwrap();
    }
    for result in
        [file.allocate(0..1 << 63).wait(), file.truncate(u64::MAX).wait(), file.truncate(1 << 62).wait()]
    {
        let error = result.unwrap_err();
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), bytes_of(0..8192));
    // Writing through a handle opened for reading only.
    let file = engine.open(&path, Open::read()).wait().unwrap();
    assert!(file.truncate(0).wait().is_err());
    assert!(file.allocate(0..4096).wait().is_err());
    assert_eq!(std::fs::read(&path).unwrap(), bytes_of(0..8192));
}

/// Returns the number of pages of the file that are in the page cache: mincore(2).
fn pages_cached(path: &std::path::Path) -> usize {
    let file = std::fs::File::open(path).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    // SAFETY: a fresh shared mapping of a file that this test alone uses.
    unsafe {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let start = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
        assert_ne!(start, libc::MAP_FAILED);
        let mut pages = vec![0u8; len.div_ceil(4096)];
        assert_eq!(libc::mincore(start, len, pages.as_mut_ptr()), 0);
        libc::munmap(start, len);
        pages.iter().filter(|&&page| page & 1 == 1).count()
    }
}

#[test]
fn advice_reaches_the_page_cache() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    for open in [Open::read(), Open::read().buffered()] {
        let file = engine.open(&path, open).wait().unwrap();
        for advice in [Advice::Normal, Advice::Sequential, Advice::Random, Advice::NoReuse] {
            file.advise(0..1 << 20, advice).wait().unwrap();
        }
        // Regression: an empty range was advice for all of the rest of the file, because the kernel reads length 0 like that. The
        // kernel may reclaim pages by itself, but not each time.
        until("all pages stay", || {
            std::fs::read(&path).unwrap();
            file.advise(4096..4096, Advice::DontNeed).wait().unwrap();
            pages_cached(&path) == 256
        });
        for range in [0..1 << 20, 0..u64::MAX] {
            // It keeps a page that it works on at that moment.
            until("no page stays", || {
                std::fs::read(&path).unwrap();
                file.advise(range.clone(), Advice::DontNeed).wait().unwrap();
                pages_cached(&path) == 0
            });
        }
    }
}

/// Looks until it is so; the limit is for what never is.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
    }
}

#[test]
fn ranges_are_copied_between_all_modes_and_at_odd_places() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("source");
    write_file(&path, 1 << 20);
    let sources = [Open::read(), Open::read().buffered()];
    let targets = [Open::create_new(), Open::create_new().buffered()];
    for (s, source) in sources.into_iter().enumerate() {
        for (t, target) in targets.into_iter().enumerate() {
            let name = dir.path().join(format!("{s}{t}"));
            let (from, to) =
                (engine.open(&path, source).wait().unwrap(), engine.open(&name, target).wait().unwrap());
            assert_eq!(from.copy_range(0..1 << 20, &to, 0).wait().unwrap(), 1 << 20);
            assert_eq!(std::fs::read(&name).unwrap(), bytes_of(0..1 << 20));
            assert_eq!(from.copy_range(1_001..77_778, &to, 333).wait().unwrap(), 76_777);
            let mut expected = bytes_of(0..1 << 20);
            expected[333..333 + 76_777].copy_from_slice(&bytes_of(1_001..77_778));
            assert!(std::fs::read(&name).unwrap() == expected, "odd places, {s}{t}");
            // Bytes that the source does not have are not copied; an empty range beyond the end copies
            // nothing.
            assert_eq!(from.copy_range((1 << 20) - 100..1 << 21, &to, 0).wait().unwrap(), 100);
            assert_eq!(from.copy_range(1 << 21..1 << 22, &to, 0).wait().unwrap(), 0);
            assert_eq!(from.copy_range(5..5, &to, 0).wait().unwrap(), 0);
            assert_eq!(to.len().wait().unwrap(), 1 << 20);
        }
    }
    let file = engine.open(&path, Open::write()).wait().unwrap();
    let error = file.copy_range(0..8192, &file, 4096).wait().unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::InvalidInput, "copy_range"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes_of(0..1 << 20));
}
