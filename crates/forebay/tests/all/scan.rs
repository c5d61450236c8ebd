//! Shows: a scan returns the bytes of its range in order, in blocks without gaps, with bounded memory,
//! wherever it runs. How: files of all awkward lengths, fixed and adaptive paces, files that change under the
//! scan, and early drops.

use std::future::Future;
use std::io::{Seek, SeekFrom};
use std::task::{Context, Waker};

use crate::common::{self, bytes_of, dir, engine, write_file};
use forebay::{Block, Class, Engine, ErrorKind, File, Open, Scan, ScanBuilder};

const MIB: u64 = 1 << 20;

/// Checks that the block has the file's bytes at `at`.
fn check(block: &Block, at: u64) {
    assert!(block[..] == bytes_of(at..at + block.len() as u64)[..], "wrong bytes in the block at {at}");
    assert!(!block.is_empty(), "an empty block at {at}");
}

/// Reads to the end; returns the end's offset, and the peak in flight.
async fn drain(mut scan: Scan, start: u64) -> (u64, u64) {
    let mut at = start;
    while let Some(block) = scan.next().await.transpose().unwrap() {
        check(&block, at);
        at += block.len() as u64;
    }
    assert!(scan.next().await.transpose().unwrap().is_none(), "the end stays the end");
    (at, scan.in_flight_bytes_peak())
}

/// Returns the paces that every case runs with; each with the most bytes it may have in flight.
fn paces(file: &File) -> Vec<(ScanBuilder, u64)> {
    vec![
        (file.scan(), 8 * MIB),
        (file.scan().request_bytes(4096).depth(1), 4096),
        (file.scan().request_bytes(4096).depth(7), 7 * 4096),
        (file.scan().request_bytes(5000).depth(3), 3 * 8192),
        (file.scan().request_bytes(64 << 10), 8 * (64 << 10)),
        (file.scan().depth(2), MIB),
        (file.scan().request_bytes(0).depth(0), 4096),
        (file.scan().request_bytes(1 << 20).depth(8), 8 * MIB),
    ]
}

#[test]
fn all_lengths_at_all_paces_in_all_modes() {
    let (engine, dir) = (engine(), dir());
    for len in [0u64, 1, 511, 4095, 4096, 4097, 128 << 10, (128 << 10) + 1, 3 * MIB, 3 * MIB - 1] {
        let path = dir.path().join(len.to_string());
        write_file(&path, len);
        for open in [Open::read(), Open::read().buffered(), Open::read().uncached()] {
            let file = engine.open(&path, open).wait().unwrap();
            for (builder, limit) in paces(&file) {
                let (end, peak) = futures::executor::block_on(drain(builder.clone().start(), 0));
                assert_eq!(end, len, "{builder:?}");
                assert!(peak <= limit, "{peak} bytes in flight: {builder:?}");
            }
        }
    }
}

#[test]
fn ranges_begin_and_end_anywhere() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    let len = 700_001;
    write_file(&path, len);
    for open in [Open::read(), Open::read().buffered()] {
        let file = engine.open(&path, open).wait().unwrap();
        for (start, end) in [
            (0, 1),
            (1, 2),
            (5, 5),
            (4095, 4097),
            (1, 700_001),
            (511, 300_000),
            (8192, 65_536),
            (699_999, u64::MAX),
            (700_001, u64::MAX),
            (900_000, 1_000_000),
            (u64::MAX, u64::MAX),
            (1 << 63, u64::MAX),
        ] {
            for (builder, limit) in paces(&file) {
                let scan = builder.range(start..end).start();
                let (at, peak) = futures::executor::block_on(drain(scan, start));
                assert_eq!(at, end.min(len).max(start), "{start}..{end}");
                assert!(peak <= limit);
            }
        }
        let backwards = std::ops::Range { start: 9, end: 3 };
        let mut scan = file.scan().range(backwards).start();
        assert_eq!(scan.next().wait().transpose().unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!(scan.next().wait().transpose().unwrap().is_none(), "over after an error");
    }
}

#[test]
fn the_default_ramps_up_and_stays_within_its_bounds() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 24 * MIB);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let mut scan = file.scan().start();
    let first = scan.next().wait().transpose().unwrap().unwrap();
    assert_eq!(first.len(), 128 << 10, "small at first, so that a short scan reads little in vain");
    check(&first, 0);
    let (end, peak) = futures::executor::block_on(drain(scan, 128 << 10));
    assert_eq!((end, peak), (24 * MIB, 4 * MIB), "eight requests of 512 KiB");
}

#[test]
fn growing_again_after_giving_depth_back_stays_within_the_bounds() {
    // Regression: after depth had been reduced, growing again doubled 7 requests to 14, past the eight that
    // are promised.
    use forebay::Advice;
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 64 * MIB);
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let file = engine.open(&path, Open::read().buffered()).wait().unwrap();
    // From the device at first, so that the scan ramps up. The kernel must not read ahead here.
    file.advise(0..64 * MIB, Advice::Random).wait().unwrap();
    file.advise(0..8 * MIB, Advice::DontNeed).wait().unwrap();
    let mut scan = file.scan().start();
    let (mut at, mut dropped) = (0, false);
    while let Some(block) = scan.next().wait().transpose().unwrap() {
        if !dropped {
            check(&block, at);
        }
        at += block.len() as u64;
        // Then 80 blocks that were cached waited for the consumer; now the device is the slower one again,
        // for a consumer that only counts.
        if at >= 48 * MIB && !dropped {
            dropped = true;
            file.advise(48 * MIB..64 * MIB, Advice::DontNeed).wait().unwrap();
        }
        assert!(scan.in_flight_bytes_peak() <= 4 * MIB, "{} bytes in flight", scan.in_flight_bytes_peak());
    }
    assert_eq!(at, 64 * MIB);
}

#[test]
fn a_file_that_grows_ends_where_it_ended_at_the_start() {
    use std::io::Write;
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 2 * MIB);
    for open in [Open::read(), Open::read().buffered()] {
        let file = engine.open(&path, open).wait().unwrap();
        let len = file.len().wait().unwrap();
        let mut scan = file.scan().request_bytes(64 << 10).depth(2).start();
        let first = scan.next().wait().transpose().unwrap().unwrap();
        check(&first, 0);
        let mut more = std::fs::File::options().append(true).open(&path).unwrap();
        more.write_all(&bytes_of(len..len + MIB)).unwrap();
        let (end, _) = futures::executor::block_on(drain(scan, first.len() as u64));
        assert_eq!(end, len);
    }
}

#[test]
fn a_file_that_shrinks_ends_early_and_without_an_error() {
    let (engine, dir) = (engine(), dir());
    for (number, open) in [Open::write(), Open::write().buffered()].into_iter().enumerate() {
        for (cut, depth) in [(0u64, 1), (MIB, 1), (MIB + 777, 2), (MIB + 4096, 8), (64 << 10, 4)] {
            let path = dir.path().join(format!("{number}-{cut}"));
            write_file(&path, 4 * MIB);
            let file = engine.open(&path, open).wait().unwrap();
            let mut scan = file.scan().request_bytes(64 << 10).depth(depth).start();
            let first = scan.next().wait().transpose().unwrap().unwrap();
            check(&first, 0);
            file.truncate(cut).wait().unwrap();
            // Reads in flight may still have old bytes; the returned bytes are a prefix, and right.
            let (end, _) = futures::executor::block_on(drain(scan, first.len() as u64));
            let in_flight = (1 + depth as u64) * (64 << 10);
            assert!(end >= cut.min(end) && end <= cut.max(in_flight), "ended at {end}, cut at {cut}");
            if cut > in_flight {
                assert_eq!(end, cut);
            }
        }
    }
}

#[test]
fn dropped_at_any_point_it_gives_everything_back() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 8 * MIB);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    for taken in [0usize, 1, 2, 5, 20] {
        let mut scan = file.scan().request_bytes(256 << 10).depth(8).start();
        for n in 0..taken {
            check(&scan.next().wait().transpose().unwrap().unwrap(), n as u64 * (256 << 10));
        }
        // Also while a call waits.
        let mut next = Box::pin(scan.next());
        let _ = next.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        drop(next);
        drop(scan);
    }
    // A next() that was dropped loses no block.
    let mut scan = file.scan().request_bytes(256 << 10).depth(4).start();
    let mut at = 0;
    for _ in 0..32 {
        let mut next = Box::pin(scan.next());
        let block = match next.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(block) => block.transpose().unwrap(),
            std::task::Poll::Pending => {
                drop(next);
                scan.next().wait().transpose().unwrap()
            }
        };
        let Some(block) = block else { break };
        check(&block, at);
        at += block.len() as u64;
    }
    assert_eq!(at, 8 * MIB);
    drop(scan);
    file.close().wait().unwrap();
    assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
}

#[test]
fn blocks_that_the_consumer_keeps_stay_right_until_memory_is_out() {
    let config =
        common::config().shards(1).arena_bytes(4 << 20).arena_bytes_max(4 << 20).overflow_bytes_max(2 << 20);
    let (engine, dir) = (Engine::start(config).unwrap(), dir());
    let path = dir.path().join("a");
    write_file(&path, 16 * MIB);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let mut kept = Vec::new();
    let mut scan = file.scan().request_bytes(256 << 10).depth(4).start();
    let error = loop {
        match scan.next().wait().transpose() {
            Ok(Some(block)) => kept.push(block),
            Ok(None) => panic!("16 MiB in 6 MiB of memory"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error.kind(), ErrorKind::ArenaExhausted { .. }), "{error}");
    assert!(scan.next().wait().transpose().unwrap().is_none(), "over after an error");
    assert!(kept.len() >= 12, "{} blocks of 256 KiB fit", kept.len());
    for (n, block) in kept.iter().enumerate() {
        check(block, n as u64 * (256 << 10));
    }
    drop((kept, scan));
    // With memory released, and one block at a time, the same engine reads all of it.
    let (end, _) = futures::executor::block_on(drain(file.scan().start(), 0));
    assert_eq!(end, 16 * MIB);
}

#[test]
fn two_scans_share_little_memory_without_waiting_for_each_other() {
    let config =
        common::config().shards(1).arena_bytes(4 << 20).arena_bytes_max(4 << 20).overflow_bytes_max(8 << 20);
    let (engine, dir) = (Engine::start(config).unwrap(), dir());
    let path = dir.path().join("a");
    write_file(&path, 16 * MIB);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let pair = || async {
        let one = drain(file.scan().start(), 0);
        let two = drain(file.scan().range(5 * MIB + 3..u64::MAX).start(), 5 * MIB + 3);
        let ((one, _), (two, _)) = futures::join!(one, two);
        assert_eq!((one, two), (16 * MIB, 16 * MIB));
    };
    futures::executor::block_on(pair());
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(pair());
}

#[test]
fn the_same_on_a_shard_and_from_tokio_tasks() {
    let (engine, dir) = (Engine::start(common::config().shards(2)).unwrap(), dir());
    let path = dir.path().join("a");
    write_file(&path, 6 * MIB + 5);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let tasks: Vec<_> = (0..2)
        .map(|shard| {
            let file = file.clone();
            engine.spawn_on_shard(shard, Class::BACKGROUND, move || async move {
                drain(file.scan().start(), 0).await.0
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.wait().unwrap(), 6 * MIB + 5);
    }
    let stats = engine.stats().wait().unwrap();
    assert!(
        stats.flows.iter().all(|flow| flow.class == "background" || flow.reads == 0),
        "{:?}",
        stats.flows
    );
    let multi = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    multi.block_on(async {
        let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(drain(file.scan().start(), 0))).collect();
        for task in tasks {
            assert_eq!(task.await.unwrap().0, 6 * MIB + 5);
        }
        // A scan that moves from the shard of its start to a Tokio task.
        let moved = file.clone();
        let begun = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let mut scan = moved.scan().request_bytes(64 << 10).depth(4).start();
            let first = scan.next().await.transpose().unwrap().unwrap();
            check(&first, 0);
            (scan, first.len() as u64)
        });
        let (scan, at) = begun.await.unwrap();
        assert_eq!(drain(scan, at).await.0, 6 * MIB + 5);
    });
}

#[cfg(feature = "tokio")]
#[test]
fn as_async_read_it_equals_std() {
    use tokio::io::{AsyncReadExt, copy};
    let (engine, dir) = (engine(), dir());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for len in [0u64, 1, 4096, 3 * MIB + 77] {
        let path = dir.path().join(len.to_string());
        write_file(&path, len);
        let file = engine.open(&path, Open::read()).wait().unwrap();
        let expected = std::fs::read(&path).unwrap();
        runtime.block_on(async {
            let mut bytes = Vec::new();
            file.scan().start().into_async_read().read_to_end(&mut bytes).await.unwrap();
            assert!(bytes == expected, "read_to_end of {len}");
            let mut reader = file.scan().request_bytes(4096).depth(3).start().into_async_read();
            let mut bytes = Vec::new();
            let mut piece = [0u8; 777];
            loop {
                let got = reader.read(&mut piece).await.unwrap();
                if got == 0 {
                    break;
                }
                bytes.extend_from_slice(&piece[..got]);
            }
            assert_eq!(reader.read(&mut piece).await.unwrap(), 0, "the end stays the end");
            assert!(bytes == expected, "pieces of {len}");
            let mut sink = Vec::new();
            copy(&mut file.scan().start().into_async_read(), &mut sink).await.unwrap();
            assert!(sink == expected, "copy of {len}");
        });
    }
    let path = dir.path().join("1");
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let mut reader = file.scan().start().into_async_read();
    file.close().wait().unwrap();
    let error = runtime.block_on(reader.read_u8()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}

#[cfg(feature = "stream")]
#[test]
fn as_a_stream_it_equals_std() {
    use futures::TryStreamExt;
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 3 * MIB + 77);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let blocks: Vec<Block> = futures::executor::block_on(file.scan().start().try_collect()).unwrap();
    let bytes: Vec<u8> = blocks.iter().flat_map(|block| block.iter().copied()).collect();
    assert!(bytes == std::fs::read(&path).unwrap());
}

/// Regression: a scan of a block device ended immediately, because stat(2) reports length 0 for a device. Needs root and losetup;
/// elsewhere it reports that and returns.
#[test]
fn a_block_device_is_scanned_to_its_end() {
    let (engine, dir) = (engine(), dir());
    let backing = dir.path().join("disk");
    write_file(&backing, 1 << 20);
    let attached = std::process::Command::new("losetup")
        .args(["--find", "--show", "--read-only"])
        .arg(&backing)
        .output();
    let Ok(attached) =
        attached.as_ref().map_err(drop).and_then(|out| if out.status.success() { Ok(out) } else { Err(()) })
    else {
        eprintln!("skipped: a loop device needs root and losetup");
        return;
    };
    let device = String::from_utf8_lossy(&attached.stdout).trim().to_string();
    let file = engine.open(&device, Open::read()).wait().unwrap();
    let mut found = Vec::new();
    let mut scan = file.scan().start();
    while let Some(block) = scan.next().wait().transpose().unwrap() {
        found.extend_from_slice(&block);
    }
    file.close().wait().unwrap();
    // Story: the length was found by a seek to the device's end, which moved the cursor of the program's own descriptor.
    let mut own = std::fs::File::open(&device).unwrap();
    own.seek(SeekFrom::Start(512)).unwrap();
    let given = engine.from_std(own.try_clone().unwrap(), Open::read().buffered()).wait().unwrap();
    assert_eq!((given.len().wait().unwrap(), own.stream_position().unwrap()), (1 << 20, 512));
    given.close().wait().unwrap();
    drop(own);
    assert!(std::process::Command::new("losetup").args(["--detach", &device]).status().unwrap().success());
    assert_eq!(found, bytes_of(0..1 << 20));
}

/// A scan of a file of procfs ended immediately, without an error: its length is 0, and its bytes were not looked for.
#[cfg(target_os = "linux")]
#[test]
fn files_without_a_length_are_read_to_their_end() {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    // A process whose environment is longer than one request, and does not change.
    let mut program = Command::new("cat");
    for number in 0..4 {
        program.env(format!("FOREBAY_TEST_{number}"), "x".repeat(100_000 + number));
    }
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // It answers once it runs.
    program.stdin.as_mut().unwrap().write_all(b"go").unwrap();
    program.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
    let long = format!("/proc/{}/environ", program.id());

    let engine = engine();
    for path in ["/proc/version", &long] {
        let expected = std::fs::read(path).unwrap();
        assert!(std::fs::metadata(path).unwrap().len() == 0 && !expected.is_empty());
        for open in [Open::read().buffered(), Open::read().uncached(), Open::read().adaptive()] {
            let file = engine.open(path, open).wait().unwrap();
            let read = |builder: ScanBuilder| {
                let (mut scan, mut bytes) = (builder.start(), Vec::new());
                while let Some(block) = scan.next().wait() {
                    bytes.extend_from_slice(&block.unwrap());
                }
                bytes
            };
            let len = expected.len() as u64;
            for start in [0, 5, len, len + 1] {
                let end = expected.get(start as usize..).unwrap_or_default();
                assert!(read(file.scan().range(start..)) == end, "{path} from {start}");
            }
            assert!(read(file.scan().range(3..10)) == expected[3..10], "{path}");
            assert!(read(file.scan().request_bytes(4096).depth(7)) == expected, "{path}");
        }
    }
    program.kill().unwrap();
    program.wait().unwrap();
}

/// A scan of an empty file looked for bytes wherever it started: near the largest number the end of its first request overflowed.
#[test]
fn an_empty_file_ends_before_any_start() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 0);
    for open in [Open::read(), Open::read().buffered()] {
        let file = engine.open(&path, open).wait().unwrap();
        for start in [1, 4096, 1 << 40, i64::MAX as u64, 1 << 63, u64::MAX - 4096, u64::MAX - 1] {
            let mut scan = file.scan().range(start..).start();
            assert!(scan.next().wait().transpose().unwrap().is_none(), "{start}: {open:?}");
        }
    }
}

#[test]
fn an_empty_file_costs_one_read() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 0);
    for open in [Open::read(), Open::read().buffered(), Open::read().adaptive()] {
        let file = engine.open(&path, open).wait().unwrap();
        let reads = || -> u64 { engine.stats().wait().unwrap().flows.iter().map(|flow| flow.reads).sum() };
        let before = reads();
        assert!(file.scan().start().next().wait().is_none());
        assert_eq!(reads() - before, 1, "{open:?}");
    }
}
