//! Shows: every way to read, write and sync one range gives exactly the bytes of the file, and reports when
//! it cannot. How: files with known bytes, all three modes, ranges on and off every boundary, and `std::fs`
//! as the second opinion.

use crate::common::{self, bytes_of, dir, engine, write_file};
use bytes::Bytes;
use forebay::{Durability, Engine, ErrorKind, File, Open};

/// Returns the three ways a file can be opened.
fn modes(open: Open) -> [Open; 3] {
    [open.direct(), open.buffered(), open.uncached()]
}

/// Opens the file at `path` in all three modes.
fn open_all(engine: &Engine, path: &std::path::Path, open: Open) -> Vec<File> {
    modes(open).into_iter().map(|open| engine.open(path, open).wait().unwrap()).collect()
}

#[test]
fn every_length_reads_right_on_and_off_its_edges() {
    let (engine, dir) = (engine(), dir());
    for len in [0u64, 1, 511, 512, 513, 4095, 4096, 4097, 70_001] {
        let path = dir.path().join(len.to_string());
        write_file(&path, len);
        for file in open_all(&engine, &path, Open::read()) {
            let edges =
                [0, 1, 511, 512, 513, 4095, 4096, 4097, len.saturating_sub(1), len, len + 1, len + 5000];
            for &start in &edges {
                for &end in edges.iter().filter(|&&end| end >= start) {
                    let expected = bytes_of(start.min(len)..end.min(len));
                    let context = || format!("{start}..{end} of {len}, {:?}", file.mode());
                    let block = file.read_up_to(start..end).wait().unwrap();
                    assert_eq!(&block[..], &expected[..], "{}", context());
                    match file.read(start..end).wait() {
                        Ok(block) => assert_eq!(
                            (block.len() as u64, &block[..]),
                            (end - start, &expected[..]),
                            "{}",
                            context()
                        ),
                        Err(error) => {
                            assert!(end > len, "{}: {error}", context());
                            let got = expected.len() as u64;
                            assert_eq!(error.kind(), ErrorKind::UnexpectedEof { got }, "{}", context());
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn ranges_that_no_file_has_are_refused_and_name_the_reason() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 10_000);
    for file in open_all(&engine, &path, Open::write()) {
        let backwards = std::ops::Range { start: 9, end: 3 };
        let error = file.read(backwards.clone()).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("ends (3) before it starts (9)"), "{error}");
        assert_eq!(file.read_up_to(backwards).wait().unwrap_err().kind(), ErrorKind::InvalidInput);

        let error = file.read(0..(1 << 30) + 4096).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge { limit: 1 << 30 });
        assert!(error.to_string().contains("scan"), "the remedy is missing: {error}");

        for range in [0..u64::MAX, (1 << 63) - 1..1 << 63, u64::MAX - 1..u64::MAX, 1 << 63..(1 << 63) + 4096]
        {
            let error = file.read_up_to(range.clone()).wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{range:?}: {error}");
        }
        // The last place that a file can have: the file is empty there, and that is not an error.
        let last = (1u64 << 63) - 8192;
        assert!(file.read_up_to(last..last + 4096).wait().unwrap().is_empty());
        assert_eq!(
            file.read(last..last + 4096).wait().unwrap_err().kind(),
            ErrorKind::UnexpectedEof { got: 0 }
        );

        let (result, block) = file.read_into(1 << 63, engine.block(4096).unwrap()).wait();
        assert_eq!((result.unwrap_err().kind(), block.len()), (ErrorKind::InvalidInput, 4096));
        assert_eq!(file.write(1 << 63, &[1u8; 4096]).wait().unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(file.write(u64::MAX, &[1u8; 4096]).wait().unwrap_err().kind(), ErrorKind::InvalidInput);
        let error = file.write((1 << 62) + 4096, &[1u8; 4096]).wait().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFBIG), "{error}");
        assert_eq!(error.range(), Some(((1 << 62) + 4096, 4096)));
    }
    assert_eq!(std::fs::read(&path).unwrap(), bytes_of(0..10_000));
}

#[test]
fn a_block_goes_in_and_comes_back_with_the_result_and_with_the_error() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 10_000);
    for file in open_all(&engine, &path, Open::read()) {
        let (result, block) = file.read_into(4096, engine.block(4096).unwrap()).wait();
        assert_eq!((result.unwrap(), &block[..]), (4096, &bytes_of(4096..8192)[..]));
        // The same memory again, over the end of the file: the file's bytes, then the memory's old bytes or
        // zeros.
        let (result, block) = file.read_into(8192, block).wait();
        assert_eq!(result.unwrap(), 10_000 - 8192);
        assert_eq!(&block[..10_000 - 8192], &bytes_of(8192..10_000)[..]);
        let (result, block) = file.read_into(12_288, block).wait();
        assert_eq!((result.unwrap(), block.len()), (0, 4096));
        let (result, block) = file.read_into(0, engine.block(0).unwrap()).wait();
        assert_eq!((result.unwrap(), block.len()), (0, 0));

        let mut odd = engine.block(100).unwrap();
        odd.fill(7);
        let (result, odd) = file.read_into(1, odd).wait();
        assert_eq!((result.unwrap(), &odd[..]), (100, &bytes_of(1..101)[..]));
    }
}

#[test]
fn every_kind_of_data_is_written_as_it_is() {
    let (engine, dir) = (engine(), dir());
    for (number, open) in modes(Open::create_new()).into_iter().enumerate() {
        let path = dir.path().join(number.to_string());
        let file = engine.open(&path, open).wait().unwrap();
        let piece = |n: u64| bytes_of(n * 4096..(n + 1) * 4096);
        let mut owned = engine.block(4096).unwrap();
        owned.copy_from_slice(&piece(0));
        file.write(0, owned).wait().unwrap();
        let shared = engine.block_from(&piece(1)).unwrap().freeze();
        file.write(4096, shared.clone()).wait().unwrap();
        assert_eq!(&shared[..], &piece(1)[..], "the program's own handle of the block still has it");
        file.write(8192, &piece(2)[..]).wait().unwrap();
        let borrowed = piece(3);
        file.write(12_288, &borrowed).wait().unwrap();
        file.write(16_384, piece(4)).wait().unwrap();
        file.write(20_480, Bytes::from(piece(5))).wait().unwrap();
        let array: [u8; 4096] = piece(6).try_into().unwrap();
        file.write(24_576, &array).wait().unwrap();
        file.write(0, &[]).wait().unwrap();
        file.write(4096, Vec::new()).durable(Durability::Data).wait().unwrap();
        file.write(4096, engine.block(0).unwrap()).wait().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes_of(0..7 * 4096), "{open:?}");
    }
}

#[test]
fn part_of_a_block_is_written_though_its_memory_is_not_aligned() {
    // Regression: a later part of a block was written to the device from memory at odd addresses, which the kernel refused with a
    // bare EINVAL, or accepted at a multiple of 512 although such memory was seen to be corrupted.
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("source");
    write_file(&path, 20_000);
    for (number, open) in modes(Open::create_new()).into_iter().enumerate() {
        let source = engine.open(&path, Open::read()).wait().unwrap();
        let whole = source.read(0..20_000).wait().unwrap();
        let target = engine.open(dir.path().join(number.to_string()), open).wait().unwrap();
        for (at, start) in [0usize, 1, 511, 512, 4095, 4096, 4097].into_iter().enumerate() {
            let part = whole.slice(start..start + 4096).unwrap();
            target
                .write(at as u64 * 4096, part)
                .wait()
                .unwrap_or_else(|error| panic!("from {start}: {error}"));
            let back = target.read(at as u64 * 4096..(at as u64 + 1) * 4096).wait().unwrap();
            assert_eq!(&back[..], &bytes_of(start as u64..start as u64 + 4096)[..], "from {start}, {open:?}");
        }
    }
}

#[test]
fn misaligned_direct_writes_name_the_alignment_and_change_nothing() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 8192);
    let file = engine.open(&path, Open::write()).wait().unwrap();
    let needed = file.alignment().offset;
    for (offset, len) in [(1u64, 4096usize), (0, 100), (u64::from(needed) / 2, 4096), (4096, 4097)] {
        let data = vec![0xEEu8; len];
        let block = engine.block_from(&data).unwrap();
        let errors = [
            file.write(offset, &data[..]).wait().unwrap_err(),
            file.write(offset, block).durable(Durability::All).wait().unwrap_err(),
            file.write(offset, engine.block_from(&data).unwrap().freeze()).wait().unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Misaligned { needed });
            assert_eq!(error.range(), Some((offset, len as u64)));
            let text = error.to_string();
            for part in ["write", path.to_str().unwrap(), &needed.to_string(), "append", "buffered"] {
                assert!(text.contains(part), "{text:?} lacks {part:?}");
            }
        }
    }
    assert_eq!(std::fs::read(&path).unwrap(), bytes_of(0..8192));
    let file = engine.open(&path, Open::write().buffered()).wait().unwrap();
    file.write(3, b"odd").wait().unwrap();
    assert_eq!(
        &std::fs::read(&path).unwrap()[..8],
        [&bytes_of(0..3)[..], b"odd", &bytes_of(6..8)[..]].concat()
    );
}

#[test]
fn every_durability_writes_and_syncs() {
    let (engine, dir) = (engine(), dir());
    let mut synced = 0;
    for (number, open) in modes(Open::create_new()).into_iter().enumerate() {
        let path = dir.path().join(number.to_string());
        let file = engine.open(&path, open).wait().unwrap();
        for (at, durability) in [Durability::None, Durability::Data, Durability::All].into_iter().enumerate()
        {
            let range = at as u64 * 4096..(at as u64 + 1) * 4096;
            file.write(range.start, bytes_of(range)).durable(durability).wait().unwrap();
            file.sync(durability).wait().unwrap();
        }
        synced += 4;
        assert_eq!(std::fs::read(&path).unwrap(), bytes_of(0..3 * 4096));
    }
    let stats = engine.stats().wait().unwrap();
    assert_eq!(stats.flows.iter().map(|flow| flow.syncs).sum::<u64>(), synced);
    assert_eq!(stats.flows.iter().map(|flow| flow.writes).sum::<u64>(), 9);
    // A file that was opened for reading only can still be synced, but not written.
    let file = engine.open(dir.path().join("0"), Open::read()).wait().unwrap();
    file.sync(Durability::All).wait().unwrap();
    assert_eq!(file.write(0, &[0u8; 4096]).wait().unwrap_err().raw_os_error(), Some(libc::EBADF));
}

#[test]
fn a_file_opened_directly_and_through_the_cache_is_one_file() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 64 << 10);
    let direct = engine.open(&path, Open::write()).wait().unwrap();
    let others = [Open::write().buffered(), Open::write().uncached()];
    for (number, open) in others.into_iter().enumerate() {
        let cached = engine.open(&path, open).wait().unwrap();
        for round in 0..20u64 {
            let at = round * 4096 % (64 << 10);
            let one = vec![(round * 2 + number as u64) as u8; 4096];
            cached.write(at, &one).wait().unwrap();
            assert_eq!(
                &direct.read(at..at + 4096).wait().unwrap()[..],
                &one[..],
                "direct after cached, {round}"
            );
            let two = vec![!one[0]; 4096];
            direct.write(at, &two).wait().unwrap();
            assert_eq!(
                &cached.read(at..at + 4096).wait().unwrap()[..],
                &two[..],
                "cached after direct, {round}"
            );
        }
        // Growth and cuts too.
        cached.write(64 << 10, b"tail").wait().unwrap();
        assert_eq!(&direct.read_up_to((64 << 10)..(64 << 10) + 100).wait().unwrap()[..], b"tail");
        direct.truncate(64 << 10).wait().unwrap();
        assert!(cached.read_up_to((64 << 10)..(64 << 10) + 100).wait().unwrap().is_empty());
    }
}

#[test]
fn new_memory_is_zero_however_often_it_held_other_bytes() {
    let dir = dir();
    let engine =
        Engine::start(common::config().shards(1).arena_bytes(2 << 20).arena_bytes_max(2 << 20)).unwrap();
    let path = dir.path().join("secret");
    std::fs::write(&path, vec![0xA5u8; 1 << 20]).unwrap();
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let short = dir.path().join("short");
    std::fs::write(&short, [0x11u8; 10]).unwrap();
    let short = engine.open(&short, Open::read()).wait().unwrap();
    for size in [1usize, 4096, 5000, 65_536, 300_000] {
        // All of the arena contains the secret once, and is released.
        let held: Vec<_> = (0..4).map(|n| file.read(n << 18..(n + 1) << 18).wait().unwrap()).collect();
        assert!(held.iter().all(|block| block.iter().all(|&byte| byte == 0xA5)));
        drop(held);
        let mut block = engine.block(size).unwrap();
        assert!(block.iter().all(|&byte| byte == 0), "{size} bytes");
        let capacity = block.capacity();
        block.truncate(0);
        block.resize(capacity).unwrap();
        assert!(block.iter().all(|&byte| byte == 0), "grown to {capacity} bytes");
        drop(block);
        let copied = engine.block_from(&vec![1u8; size]).unwrap();
        assert_eq!(copied.len(), size);
        assert_eq!(&short.read_up_to(0..size as u64).wait().unwrap()[..], &[0x11u8; 10][..size.min(10)]);
        let (result, block) = short.read_into(0, engine.block(4096).unwrap()).wait();
        assert_eq!(result.unwrap(), 10);
        assert!(block[10..].iter().all(|&byte| byte == 0), "bytes behind the end of the file");
    }
}

#[test]
fn dropping_operations_at_any_point_leaves_file_and_engine_right() {
    use std::future::{Future, IntoFuture};
    use std::task::{Context, Waker};
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::write()).wait().unwrap();
    for round in 0..200u64 {
        let at = round % 200 * 4096;
        let mut read = Box::pin(file.read(at..at + 4096).into_future());
        let mut write = Box::pin(file.write(at, bytes_of(at..at + 4096)).into_future());
        let mut into = Box::pin(file.read_into(at, engine.block(4096).unwrap()).into_future());
        let mut context = Context::from_waker(Waker::noop());
        let _ = read.as_mut().poll(&mut context);
        let _ = write.as_mut().poll(&mut context);
        let _ = into.as_mut().poll(&mut context);
    }
    assert_eq!(&file.read(0..1 << 20).wait().unwrap()[..], &bytes_of(0..1 << 20)[..]);
    file.close().wait().unwrap();
    assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
    assert_eq!(std::fs::read(&path).unwrap(), bytes_of(0..1 << 20));
}

/// Regression: `assert_eq!(block, *b"abc")` and `let bytes: Vec<u8> = block.into()` did not compile, nor did
/// `write!` into a block.
#[test]
fn blocks_compare_with_bytes_become_vecs_and_are_written_to() {
    use std::io::Write as _;
    let engine = engine();
    let mut block = engine.block(4096).unwrap();
    block.truncate(0);
    write!(block, "{}-ab", 12).unwrap();
    assert_eq!(block, *b"12-ab");
    assert_eq!(b"12-ab", block);
    let room = block.capacity() - block.len();
    assert_eq!(block.write(&vec![7; room + 10]).unwrap(), room, "as much as fits");
    assert_eq!(block.write_all(b"x").unwrap_err().kind(), std::io::ErrorKind::WriteZero);
    block.truncate(5);
    let block = block.freeze();
    assert_eq!(block, b"12-ab"[..]);
    assert_eq!(block, &b"12-ab"[..]);
    assert_eq!(block, b"12-ab".to_vec());
    assert_eq!(b"12-ab".to_vec(), block);
    assert_ne!(*b"12-ac", block);
    assert_eq!(Vec::from(block.clone()), b"12-ab");
    let bytes: Vec<u8> = block.into();
    assert_eq!(bytes, b"12-ab");
}

/// Regression: an unaligned direct write was refused with a remedy that named only one of the two ways to
/// make it.
#[test]
fn an_unaligned_direct_write_names_what_does_it() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 10_000);
    let file = engine.open(&path, Open::write()).wait().unwrap();
    if file.alignment().offset > 1 {
        let error = file.write(5_001, b"five.").wait().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Misaligned { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("File::append") && text.contains("forebay_collective::WriteCombiner"),
            "{text}"
        );
    }
}

/// Regression: a scan accepted closed ranges only, although it has the file's end.
#[test]
fn scans_take_open_ends() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 100_000);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let bytes = |scan: forebay::ScanBuilder| {
        let mut scan = scan.start();
        let mut bytes = Vec::new();
        while let Some(block) = scan.next().wait() {
            bytes.extend_from_slice(&block.unwrap());
        }
        bytes
    };
    assert_eq!(bytes(file.scan().range(99_000..)), bytes_of(99_000..100_000));
    assert_eq!(bytes(file.scan().range(..1_000)), bytes_of(0..1_000));
    assert_eq!(bytes(file.scan().range(5..=9)), bytes_of(5..10));
    assert_eq!(bytes(file.scan().range(..)), bytes_of(0..100_000));
}
