//! A separate program: virtual machines run it alone (`vm/tests/polled`).
//!
//! Shows: an NVMe namespace is a file like any other, but for its fixed size; commands whose completions
//! interrupt share a shard with everything else; a namespace in use is left alone; a refusal of the device is
//! reported in the device's words. How: needs an empty namespace, which is overwritten, in
//! `FOREBAY_TEST_NVME` (`/dev/ng0n1`), and one that is mounted in `FOREBAY_TEST_NVME_MOUNTED`, with its
//! directory in `FOREBAY_TEST_DIR`: `vm/tests/polled` has both. With `FOREBAY_TEST_POLLING=on` or `hybrid`
//! completions are polled for. Elsewhere the tests do nothing but the first.

use std::ops::{Deref, Range};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use forebay::{
    Block, Class, Durability, Engine, ErrorKind, File, Lock, Open, OpenNvme, ShardStats, Step, Walk, shard,
};

mod common;
use common::{bytes_of, config, dir, write_file};

const PAGE: u64 = 4096;

fn namespace() -> Option<PathBuf> {
    let path = std::env::var_os("FOREBAY_TEST_NVME").map(PathBuf::from);
    if path.is_none() {
        println!("skipped: FOREBAY_TEST_NVME names no namespace");
    }
    path
}

/// An engine that has ended when this is dropped, after the files declared below it, and with it its claim to the namespace. An
/// engine that is only dropped ends by itself a moment later: the next test's open then found the namespace in use, once in many
/// runs.
struct TestEngine(Engine);

impl Deref for TestEngine {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.0
    }
}

impl Drop for TestEngine {
    fn drop(&mut self) {
        // A test may have closed it.
        let _ = self.0.clone().close().wait();
    }
}

fn start() -> TestEngine {
    TestEngine(Engine::start(config().shards(1)).expect("an engine"))
}

fn is_polled() -> bool {
    matches!(std::env::var("FOREBAY_TEST_POLLING").as_deref(), Ok("on" | "hybrid"))
}

fn counts(engine: &Engine) -> ShardStats {
    engine.stats().wait().expect("statistics").shards.remove(0)
}

/// Opens the namespace, and writes known bytes to its first `bytes`.
fn filled(engine: &Engine, path: &PathBuf, bytes: u64) -> File {
    let file = engine.open_nvme(path, OpenNvme::write()).wait().expect("the namespace");
    for at in (0..bytes).step_by(1 << 20) {
        file.write(at, bytes_of(at..bytes.min(at + (1 << 20)))).wait().expect("a write");
    }
    file.sync(Durability::Data).wait().expect("a flush");
    file
}

#[test]
fn what_is_no_namespace_is_refused() {
    let dir = dir();
    let path = dir.path().join("a");
    write_file(&path, PAGE);
    let engine = start();
    for path in [path, "/dev/null".into(), dir.path().join("missing")] {
        let error = engine.open_nvme(&path, OpenNvme::read()).wait().expect_err("no namespace");
        assert_eq!(error.operation(), "open_nvme");
        assert_eq!(error.path(), Some(path.as_path()), "{error}");
    }
}

#[test]
fn reads_of_every_length_and_place() {
    let Some(path) = namespace() else { return };
    let engine = start();
    let file = filled(&engine, &path, 4 << 20);
    for at in [0, 1, 511, 512, 513, 4095, 4096, 100_000, (2 << 20) - 1] {
        for len in [1, 511, 512, 513, 4096, 5000, 70_000, 1 << 20, (2 << 20) + 1] {
            let block = file.read(at..at + len).wait().unwrap();
            assert!(block[..] == bytes_of(at..at + len)[..], "{len} at {at}");
        }
    }
    let last = counts(&engine);
    assert_eq!(last.polled > 0, is_polled(), "{last:?}");
    assert_eq!((last.polls > 0, last.stray_completions), (is_polled(), 0), "{last:?}");
}

#[test]
fn it_ends_where_the_namespace_ends() {
    let Some(path) = namespace() else { return };
    let engine = start();
    let file = engine.open_nvme(&path, OpenNvme::write()).wait().unwrap();
    let len = file.len().wait().unwrap();
    assert_eq!(Some(len), file.device().size_bytes());
    assert_eq!(file.metadata().wait().unwrap().len(), len);
    let block = u64::from(file.alignment().offset);
    file.write(len - block, bytes_of(0..block)).wait().unwrap();
    assert_eq!(file.read(len - block..len).wait().unwrap()[..], bytes_of(0..block)[..]);
    assert_eq!(file.read_up_to(len - block..len + 4 * block).wait().unwrap().len() as u64, block);
    assert_eq!(file.read_up_to(len..len + block).wait().unwrap().len(), 0);
    let error = file.read(len - 1..len + 1).wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::UnexpectedEof { got: 1, .. }), "{error:?}");
    let error = file.write(len - block, bytes_of(0..2 * block)).wait().unwrap_err();
    assert!(error.to_string().contains("past the end of the namespace"), "{error}");
    assert_eq!(
        file.read(len - block..len).wait().unwrap()[..],
        bytes_of(0..block)[..],
        "nothing was written"
    );
    let error = file.write(1, bytes_of(0..block)).wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Misaligned { .. }), "{error}");
}

#[test]
fn a_part_is_a_file_of_its_own() {
    let Some(path) = namespace() else { return };
    let engine = start();
    let whole = filled(&engine, &path, 4 << 20);
    let block = u64::from(whole.alignment().offset);
    let (start, end) = (3 * block, 3 * block + 100_000);
    let part = |part: Range<u64>| OpenNvme::write().part(part).even_in_use();
    let file = engine.open_nvme(&path, part(start..end)).wait().unwrap();
    assert_eq!((file.len().wait().unwrap(), file.metadata().wait().unwrap().len()), (100_000, 100_000));
    for range in [0..1, 511..5000, 0..100_000, 99_999..100_000] {
        let expected = bytes_of(start + range.start..start + range.end);
        assert!(file.read(range.clone()).wait().unwrap()[..] == expected[..], "{range:?}");
    }
    // The end lies inside a block, of which no more is shown, and which is not written.
    assert_eq!(file.read_up_to(90_000..200_000).wait().unwrap().len(), 10_000);
    assert_eq!(file.read_up_to(100_000..200_000).wait().unwrap().len(), 0);
    let error = file.read(99_990..100_010).wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::UnexpectedEof { got: 10 }), "{error:?}");
    let last = 100_000 / block * block;
    let error = file.write(last, vec![9; block as usize]).wait().unwrap_err();
    assert!(error.to_string().contains("past the end of the namespace, or of what is open of it"), "{error}");
    // A write changes its own range and nothing else.
    file.write(block, vec![9; 2 * block as usize]).durable(Durability::Data).wait().unwrap();
    file.punch_hole(5 * block..6 * block).wait().unwrap();
    let mut expected = bytes_of(0..start + 8 * block);
    expected[(start + block) as usize..(start + 3 * block) as usize].fill(9);
    expected[(start + 5 * block) as usize..(start + 6 * block) as usize].fill(0);
    assert!(whole.read(0..start + 8 * block).wait().unwrap()[..] == expected[..]);
    assert!(file.punch_hole(last..last + block).wait().is_err());
    let bytes = whole.len().wait().unwrap();
    let empty = engine.open_nvme(&path, part(bytes..bytes)).wait().unwrap();
    assert_eq!(empty.read_up_to(0..10).wait().unwrap().len(), 0);
    for no in [1..block, 0..bytes + 1, Range { start: 2 * block, end: block }] {
        let error = engine.open_nvme(&path, part(no.clone())).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{no:?}");
        assert!(error.to_string().contains("are not part of a namespace of"), "{error}");
    }
    let file = engine.open_nvme(&path, part(0..block).shard(0)).wait().unwrap();
    assert_eq!(file.len().wait().unwrap(), block);
    for shard in [1, usize::MAX] {
        let error = engine.open_nvme(&path, part(0..block).shard(shard)).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "shard({shard})");
        assert!(
            error.to_string().contains(&format!("there is no shard {shard}: this engine has 1")),
            "{error}"
        );
    }
}

#[test]
fn what_a_namespace_cannot_do_is_refused_in_words() {
    let Some(path) = namespace() else { return };
    let engine = start();
    let file = filled(&engine, &path, 1 << 20);
    for error in [
        file.truncate(0).wait().unwrap_err(),
        file.allocate(0..PAGE).wait().unwrap_err(),
        file.advise(0..PAGE, forebay::Advice::WillNeed).wait().unwrap_err(),
        file.copy_range(0..PAGE, &file, PAGE).wait().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("an NVMe namespace has"), "{error}");
    }
    file.try_lock(Lock::Exclusive).wait().unwrap();
    file.unlock().wait().unwrap();
    file.punch_hole(PAGE..3 * PAGE).wait().unwrap();
    assert!(
        file.read(PAGE..3 * PAGE).wait().unwrap().iter().all(|&byte| byte == 0),
        "given back, it reads as zeros"
    );
    assert_eq!(file.read(0..PAGE).wait().unwrap()[..], bytes_of(0..PAGE)[..]);
    assert!(file.punch_hole(1..PAGE).wait().is_err());
    drop(file);
    let read_only = engine.open_nvme(&path, OpenNvme::read().even_in_use()).wait().unwrap();
    // The kernel does not check an administrator's commands: the engine must.
    assert!(read_only.write(0, vec![1; PAGE as usize]).wait().is_err());
    assert!(read_only.punch_hole(0..PAGE).wait().is_err());
    assert_eq!(read_only.read(0..PAGE).wait().unwrap()[..], bytes_of(0..PAGE)[..]);
}

#[test]
fn a_namespace_in_use_is_left_alone() {
    let Some(mounted) = std::env::var_os("FOREBAY_TEST_NVME_MOUNTED").map(PathBuf::from) else { return };
    let engine = start();
    for open in [OpenNvme::read(), OpenNvme::write()] {
        let error = engine.open_nvme(&mounted, open).wait().unwrap_err();
        assert!(error.to_string().contains("is in use (mounted at "), "{error}");
    }
    let file = engine.open_nvme(&mounted, OpenNvme::read().even_in_use()).wait().unwrap();
    // The superblock of ext4 starts at 1,024, its magic number 56 bytes later.
    assert_eq!(file.read(1080..1082).wait().unwrap()[..], [0x53, 0xEF]);
    let Some(path) = namespace() else { return };
    let held = engine.open_nvme(&path, OpenNvme::write()).wait().unwrap();
    let error = engine.open_nvme(&path, OpenNvme::write()).wait().unwrap_err();
    assert!(error.to_string().contains("is in use"), "{error}");
    held.close().wait().unwrap();
    engine.open_nvme(&path, OpenNvme::write()).wait().unwrap();
}

#[test]
fn many_ranges_scans_and_appends() {
    let Some(path) = namespace() else { return };
    let engine = start();
    let file = filled(&engine, &path, 8 << 20);
    let ranges: Vec<_> = (0..500u64).map(|n| n * 16_000..n * 16_000 + 1 + n * 7).collect();
    let blocks = file.read_many(ranges.clone()).wait().unwrap();
    for (range, block) in ranges.into_iter().zip(blocks) {
        assert!(block.unwrap()[..] == bytes_of(range.clone())[..], "{range:?}");
    }
    let mut scan = file.scan().range(0..8 << 20).start();
    let mut at = 0;
    while let Some(block) = scan.next().wait().transpose().unwrap() {
        assert!(block[..] == bytes_of(at..at + block.len() as u64)[..], "the scan at {at}");
        at += block.len() as u64;
    }
    assert_eq!(at, 8 << 20);
}

/// A walk that follows the page number at the start of each page, this many times.
struct Chain(u32);

impl Walk for Chain {
    type Output = u64;
    type Error = forebay::Error;

    fn step(&mut self, block: &Block, _: Range<u64>) -> Step<u64, forebay::Error> {
        let next = u64::from_le_bytes(std::array::from_fn(|at| block[at]));
        self.0 -= 1;
        if self.0 == 0 { Step::Done(next) } else { Step::Read(next * PAGE..next * PAGE + 512) }
    }
}

#[test]
fn walks_go_from_block_to_block() {
    let Some(path) = namespace() else { return };
    let engine = start();
    let file = engine.open_nvme(&path, OpenNvme::write()).wait().unwrap();
    for page in 0..100u64 {
        let mut bytes = vec![0; PAGE as usize];
        bytes[..8].copy_from_slice(&((page * 37 + 11) % 100).to_le_bytes());
        file.write(page * PAGE, bytes).wait().unwrap();
    }
    let expected = (0..20).fold(5u64, |page, _| (page * 37 + 11) % 100);
    assert_eq!(file.walk(5 * PAGE..5 * PAGE + 512, Chain(20)).wait().unwrap(), expected);
}

#[test]
fn commands_and_files_share_a_shard() {
    let Some(path) = namespace() else { return };
    let dir = dir();
    let other = dir.path().join("a");
    write_file(&other, 256 * PAGE);
    let engine = start();
    let disk = filled(&engine, &path, 1 << 20);
    let file = engine.open(&other, Open::read()).wait().unwrap();
    let log = engine.open(dir.path().join("log"), Open::create()).wait().unwrap();
    let (reader, from_outside) = (disk.clone(), disk.clone());
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let mut lanes = Vec::new();
        for lane in 0..8u64 {
            let (disk, file) = (reader.clone(), file.clone());
            lanes.push(
                shard::spawn(async move {
                    for round in 0..64u64 {
                        let page = (lane * 31 + round * 7) % 256;
                        let range = page * PAGE..(page + 1) * PAGE;
                        // Alone in one ring, alone in the other, and in both concurrently.
                        let wanted = bytes_of(range.clone());
                        if lane % 3 != 0 {
                            assert!(disk.read(range.clone()).await.unwrap()[..] == wanted[..], "{range:?}");
                        }
                        if lane % 3 != 1 {
                            assert!(file.read(range.clone()).await.unwrap()[..] == wanted[..], "{range:?}");
                        }
                    }
                })
                .unwrap(),
            );
        }
        for round in 0..5u64 {
            shard::sleep(Duration::from_millis(1)).await.unwrap();
            log.write(round * PAGE, vec![1; PAGE as usize]).durable(Durability::Data).await.unwrap();
        }
        for lane in lanes {
            lane.await.unwrap();
        }
    });
    // Each of these finds the shard asleep in either ring, or awake.
    for page in 0..200 {
        let range = page * PAGE..page * PAGE + 512;
        assert!(from_outside.read(range.clone()).wait().unwrap()[..] == bytes_of(range)[..]);
    }
    task.wait().unwrap();
    let last = counts(&engine);
    assert_eq!((last.in_flight, last.stray_completions), (0, 0), "{last:?}");
}

#[test]
fn an_idle_shard_sleeps_and_wakes() {
    let Some(path) = namespace() else { return };
    let engine = start();
    let file = filled(&engine, &path, 1 << 20);
    file.read(0..PAGE).wait().unwrap();
    let before = counts(&engine);
    let task = engine.spawn_on_shard(0, Class::DEFAULT, || shard::sleep(Duration::from_millis(200)));
    task.wait().unwrap().unwrap();
    let after = counts(&engine);
    assert!(after.turns - before.turns < 100, "{} turns without work", after.turns - before.turns);
    assert_eq!(after.polls, before.polls);
    assert_eq!(file.read(0..PAGE).wait().unwrap()[..], bytes_of(0..PAGE)[..]);
}

#[test]
fn dropped_commands_keep_their_memory_and_engines_close_around_them() {
    let Some(path) = namespace() else { return };
    for round in 0..20u64 {
        let engine = start();
        let file = filled(&engine, &path, 1 << 20);
        let reader = file.clone();
        let (began, begun) = mpsc::channel();
        let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let mut kept = Vec::new();
            for page in 0..48u64 {
                let mut read = Box::pin(reader.read(page * PAGE..(page + 1) * PAGE).into_future());
                assert!(futures::poll!(&mut read).is_pending());
                match page % 3 {
                    0 => kept.push((page, read)),
                    1 => drop(read),
                    _ => {
                        shard::yield_now().await;
                        drop(read);
                    }
                }
            }
            if round % 2 == 0 {
                for (page, read) in kept {
                    let range = page * PAGE..(page + 1) * PAGE;
                    assert!(read.await.unwrap()[..] == bytes_of(range)[..], "page {page}");
                }
                began.send(()).unwrap();
            } else {
                began.send(()).unwrap();
                for (_, read) in kept {
                    // The engine may have ended before.
                    let _ = read.await;
                }
            }
        });
        begun.recv().unwrap();
        drop(file);
        if round % 2 == 0 {
            task.wait().unwrap();
            assert_eq!(counts(&engine).stray_completions, 0);
        }
        let report = engine.clone().close().wait().unwrap();
        assert_eq!((report.leaked_operations, report.lost_shards), (0, 0), "{report:?}");
    }
}
