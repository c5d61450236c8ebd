//! Appends: any sizes and places, exact lengths, errors, and calls that are dropped half-way.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::common::{self, Numbers, assert_file, bytes_of, config, dir, engine, modes, write_file};
use forebay::{Append, Class, Durability, Engine, ErrorKind, File, Open};

const KIB: usize = 1024;

fn open(engine: &Engine, path: &Path, open: Open) -> File {
    engine.open(path, open).wait().unwrap()
}

#[test]
fn one_write_of_any_size_gives_that_length() {
    let (engine, dir) = (engine(), dir());
    for mode in modes() {
        let sizes =
            [0, 1, 511, 512, 513, 4095, 4096, 4097, 8191, 8192, 8193, 65_535, 65_536, 65_537, 300_001];
        for size in sizes {
            let path = dir.path().join("sized");
            let file = open(&engine, &path, mode.truncate());
            let mut append = file.append().request_bytes(64 * KIB).start();
            let data = bytes_of(0..size as u64);
            append.write(&data).wait().unwrap();
            assert_eq!(append.position(), size as u64);
            assert_eq!(append.close().wait().unwrap(), size as u64);
            assert_file(&path, &data, &format!("{size} bytes, {mode:?}"));
        }
    }
}

#[test]
fn random_sizes_and_syncs_equal_a_model() {
    let (engine, dir) = (engine(), dir());
    for (round, mode) in modes().into_iter().cycle().take(9).enumerate() {
        let mut numbers = Numbers(0x51_7CC1 + round as u64);
        let path = dir.path().join(format!("random-{round}"));
        let file = open(&engine, &path, mode);
        let depth = 1 + numbers.below(5) as usize;
        let mut append = file.append().request_bytes(4096 << numbers.below(4)).depth(depth).start();
        let mut model = Vec::new();
        for _ in 0..60 {
            let data = bytes_of(model.len() as u64..(model.len() + numbers.size()) as u64);
            match numbers.below(4) {
                0 => {
                    let block = engine.block_from(&data).unwrap().freeze();
                    append.write_block(block).wait().unwrap();
                }
                _ => append.write(&data).wait().unwrap(),
            }
            model.extend_from_slice(&data);
            if numbers.below(6) == 0 {
                append.sync(Durability::Data).wait().unwrap();
                assert_file(&path, &model, &format!("synced, round {round}"));
            }
        }
        assert_eq!(append.close().wait().unwrap(), model.len() as u64);
        assert_file(&path, &model, &format!("closed, round {round}, {mode:?}"));
    }
}

#[test]
fn begins_anywhere_and_keeps_what_stands_before() {
    let (engine, dir) = (engine(), dir());
    for mode in modes() {
        for (before, at) in
            [(10_000, 10_000), (10_000, 5_001), (100, 9_000), (4096, 4096), (0, 777), (600, 0)]
        {
            let path = dir.path().join("placed");
            write_file(&path, before);
            let mut expected = bytes_of(0..before);
            let data = vec![0xA5u8; 9_001];
            expected.resize(expected.len().max(at + data.len()), 0);
            expected[at..at + data.len()].copy_from_slice(&data);
            let mut append = open(&engine, &path, mode).append().at(at as u64).request_bytes(4096).start();
            assert_eq!(append.position(), at as u64);
            append.write(&data).wait().unwrap();
            assert_eq!(append.close().wait().unwrap(), (at + data.len()) as u64);
            assert_file(&path, &expected, &format!("at {at} of {before}, {mode:?}"));
        }
    }
}

#[test]
fn a_longer_file_is_neither_cut_nor_padded_over() {
    let (engine, dir) = (engine(), dir());
    for mode in modes() {
        // The old end lies in other units than the new one, in the same unit, and between new end and padding.
        for (before, size) in
            [(100_000, 300), (100_000, 70_001), (301, 300), (8192, 8191), (4097, 4096), (511, 510)]
        {
            let path = dir.path().join("longer");
            write_file(&path, before);
            let mut expected = bytes_of(0..before);
            expected[..size].fill(0xC3);
            let mut append = open(&engine, &path, mode).append().request_bytes(16 * KIB).start();
            append.write(&vec![0xC3u8; size / 2]).wait().unwrap();
            append.sync(Durability::None).wait().unwrap();
            append.write(&vec![0xC3u8; size - size / 2]).wait().unwrap();
            assert_eq!(append.close().wait().unwrap(), size as u64);
            assert_file(&path, &expected, &format!("{size} into {before}, {mode:?}"));
        }
    }
}

#[test]
fn nothing_written_changes_nothing() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("untouched");
    write_file(&path, 1_000);
    for at in [0, 500, 5_000] {
        let mut append = open(&engine, &path, Open::write()).append().at(at).start();
        append.write(&[]).wait().unwrap();
        append.sync(Durability::All).wait().unwrap();
        assert_eq!(append.close().wait().unwrap(), at);
        assert_file(&path, &bytes_of(0..1_000), "untouched");
    }
}

#[test]
fn padding_is_only_taken_off_where_the_file_still_ends_with_it() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("shared");
    let file = open(&engine, &path, Open::create());
    file.truncate(1 << 20).wait().unwrap();
    let mut appends = [0u64, 256 << 10, 512 << 10].map(|at| file.append().at(at).request_bytes(4096).start());
    for (number, append) in appends.iter_mut().enumerate() {
        append.write(&vec![number as u8 + 1; 10_001]).wait().unwrap();
    }
    for append in appends {
        append.close().wait().unwrap();
    }
    let mut expected = vec![0u8; 1 << 20];
    for (number, at) in [0usize, 256 << 10, 512 << 10].into_iter().enumerate() {
        expected[at..at + 10_001].fill(number as u8 + 1);
    }
    assert_file(&path, &expected, "three appends side by side");
}

#[test]
fn what_others_wrote_behind_since_the_first_sync_stays() {
    let (engine, dir) = (engine(), dir());
    for mode in modes() {
        let path = dir.path().join("behind");
        let file = open(&engine, &path, mode.truncate());
        let mut append = file.append().start();
        append.write(&[1; 100]).wait().unwrap();
        append.sync(Durability::None).wait().unwrap();
        let mut other = file.append().at(100_000).start();
        other.write(&[2; 100]).wait().unwrap();
        other.close().wait().unwrap();
        append.write(&[3; 50]).wait().unwrap();
        assert_eq!(append.close().wait().unwrap(), 150);
        let mut expected = vec![0u8; 100_100];
        expected[..100].fill(1);
        expected[100..150].fill(3);
        expected[100_000..].fill(2);
        assert_file(&path, &expected, &format!("{mode:?}"));
    }
}

#[test]
fn blocks_of_any_alignment() {
    let (engine, dir) = (engine(), dir());
    for mode in modes() {
        let path = dir.path().join("blocks");
        let mut append =
            open(&engine, &path, mode.truncate()).append().request_bytes(16 * KIB).depth(2).start();
        let data = bytes_of(0..50_000);
        let block = engine.block_from(&data).unwrap().freeze();
        let mut model = Vec::new();
        // Aligned; aligned with a rest; at an unaligned position; with unaligned memory; after copies; empty.
        for range in [0..8192, 8192..20_000, 0..8192, 3..4099, 0..4096, 4096..4096, 0..50_000, 1..50_000] {
            append.write_block(block.slice(range.clone()).unwrap()).wait().unwrap();
            model.extend_from_slice(&data[range]);
            if model.len() % 3 == 0 {
                append.write(b"between").wait().unwrap();
                model.extend_from_slice(b"between");
            }
        }
        assert_eq!(append.close().wait().unwrap(), model.len() as u64);
        assert_file(&path, &model, &format!("{mode:?}"));
    }
}

#[test]
fn holds_no_more_than_depth_and_one_buffers() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("pressed");
    let mut append = open(&engine, &path, Open::create()).append().request_bytes(32 * KIB).depth(3).start();
    let data = bytes_of(0..3_000_000);
    for part in data.chunks(7_001) {
        append.write(part).wait().unwrap();
        assert!(append.held_bytes() <= 4 * 32 * KIB as u64, "{} held", append.held_bytes());
        assert!(append.in_flight_bytes() <= 3 * 32 * KIB as u64);
    }
    append.sync(Durability::Data).wait().unwrap();
    assert_eq!((append.in_flight_bytes(), append.held_bytes()), (0, 0));
    append.close().wait().unwrap();
    assert_file(&path, &data, "pressed");
}

async fn exercise(engine: &Engine, file: File) -> u64 {
    let mut append: Append = file.append().request_bytes(16 * KIB).class(Class::BACKGROUND).start();
    let data = bytes_of(0..200_003);
    for part in data[..150_000].chunks(9_999) {
        append.write(part).await.unwrap();
    }
    append.sync(Durability::Data).await.unwrap();
    assert_eq!(file.len().await.unwrap(), 150_000);
    let block = engine.block_from(&data[150_000..]).unwrap().freeze();
    append.write_block(block).await.unwrap();
    append.close().await.unwrap()
}

#[test]
fn from_tokio_and_other_executors() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("awaited");
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let current = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for mode in modes() {
        let again = |_| open(&engine, &path, mode.truncate());
        let (file, engine_there) = (again(0), engine.clone());
        let task = threads.spawn(async move { exercise(&engine_there, file).await });
        assert_eq!(threads.block_on(task).unwrap(), 200_003);
        assert_file(&path, &bytes_of(0..200_003), "tokio's threads");
        assert_eq!(current.block_on(exercise(&engine, again(1))), 200_003);
        assert_file(&path, &bytes_of(0..200_003), "tokio's current thread");
        assert_eq!(smol::block_on(exercise(&engine, again(2))), 200_003);
        assert_file(&path, &bytes_of(0..200_003), "smol");
    }
}

#[test]
fn from_a_shard_and_across() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("shard");
    for mode in modes() {
        let (file, there) = (open(&engine, &path, mode.truncate()), engine.clone());
        let length = engine.spawn_on_shard(0, Class::LOG, || async move { exercise(&there, file).await });
        assert_eq!(smol::block_on(length).unwrap(), 200_003);
        assert_file(&path, &bytes_of(0..200_003), "shard");
        // Started on the shard with writes in flight there, ended here.
        let file = open(&engine, &path, mode.truncate());
        let begun = engine.spawn_on_shard(0, Class::DEFAULT, || async move {
            let mut append = file.append().request_bytes(4 * KIB).depth(8).start();
            append.write(&bytes_of(0..50_001)).await.unwrap();
            append
        });
        let mut append = smol::block_on(begun).unwrap();
        append.write(&bytes_of(50_001..90_001)).wait().unwrap();
        assert_eq!(append.close().wait().unwrap(), 90_001);
        assert_file(&path, &bytes_of(0..90_001), "begun on a shard");
    }
}

#[test]
fn waiting_on_a_shard_is_an_error() {
    let (engine, dir) = (engine(), dir());
    let file = open(&engine, &dir.path().join("wait"), Open::create());
    let kind = engine.spawn_on_shard(0, Class::DEFAULT, || async move {
        let mut append = file.append().start();
        let kinds =
            [append.write(b"a").wait().unwrap_err().kind(), append.close().wait().unwrap_err().kind()];
        assert_eq!(file.len().await.unwrap(), 0);
        kinds
    });
    assert_eq!(smol::block_on(kind).unwrap(), [ErrorKind::WaitOnShard; 2]);
}

#[test]
fn dropped_with_writes_in_flight_leaves_file_and_engine_in_order() {
    let (engine, dir) = (engine(), dir());
    for mode in modes() {
        let path = dir.path().join("dropped");
        let file = open(&engine, &path, mode.truncate());
        for _ in 0..20 {
            let mut append = file.append().request_bytes(8 * KIB).depth(16).start();
            append.write(&bytes_of(0..100_000)).wait().unwrap();
            drop(append);
        }
        // All handles are dropped: the operations in flight have ended when the close returns.
        file.close().wait().unwrap();
        let found = std::fs::read(&path).unwrap();
        let is_data = |(index, byte): (usize, &u8)| *byte == common::byte_at(index as u64) || *byte == 0;
        assert!(found.iter().enumerate().all(is_data), "{mode:?}");
        let mut append = open(&engine, &path, mode.truncate()).append().start();
        append.write(b"after").wait().unwrap();
        assert_eq!(append.close().wait().unwrap(), 5);
    }
    // Queries every shard, so the turns that ended the writes have passed.
    assert_eq!(engine.stats().wait().unwrap().memory.held_bytes, 0);
    assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
}

/// Polls a future some times, then drops it. Returns its output, if it completed.
fn poll_some<F: Future>(future: F, times: u64) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..times {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(output);
        }
        std::thread::yield_now();
    }
    None
}

#[test]
fn calls_given_up_half_way_lose_nothing() {
    let (engine, dir) = (engine(), dir());
    for (round, mode) in modes().into_iter().cycle().take(12).enumerate() {
        let mut numbers = Numbers(0xDEC_0DED + round as u64);
        let path = dir.path().join(format!("given-up-{round}"));
        let before = numbers.below(40_000);
        write_file(&path, before);
        let file = open(&engine, &path, mode);
        let at = numbers.below(before + 100);
        let mut model = bytes_of(0..before);
        model.resize(model.len().max(at as usize), 0);
        let mut append = file.append().at(at).request_bytes(4 * KIB).depth(2).start();
        let mut end = at as usize;
        let mut given_up = 0;
        for _ in 0..150 {
            let data: Vec<u8> = (0..numbers.size() / 4).map(|index| (index + round) as u8 ^ 0x5A).collect();
            let times = numbers.below(30);
            let answer = match numbers.below(4) {
                0 => poll_some(append.sync(Durability::Data), times),
                1 => {
                    let block = engine.block_from(&data).unwrap().freeze();
                    poll_some(append.write_block(block), times)
                }
                _ => poll_some(append.write(&data), times),
            };
            if let Some(result) = &answer {
                result.as_ref().unwrap();
            }
            given_up += u32::from(answer.is_none());
            let taken = append.position() as usize - end;
            model.resize(model.len().max(end + taken), 0);
            model[end..end + taken].copy_from_slice(&data[..taken]);
            end += taken;
        }
        assert!(given_up > 0, "round {round} never gave a call up");
        assert_eq!(append.close().wait().unwrap(), end as u64);
        // With nothing accepted the gap before an append beyond the end is not made.
        if end == at as usize {
            model.truncate(before as usize);
        }
        assert_file(&path, &model, &format!("round {round}, {mode:?}"));
    }
}

/// Polls a future until it was woken that often, then drops it. Returns its output, if it completed.
fn poll_until_woken<F: Future>(future: F, wakes: u32) -> Option<F::Output> {
    struct Woken(std::sync::mpsc::SyncSender<()>);
    impl std::task::Wake for Woken {
        fn wake(self: std::sync::Arc<Self>) {
            // Full: a wake-up is there already, and one is enough.
            let _ = self.0.try_send(());
        }
    }
    let (sender, woken) = std::sync::mpsc::sync_channel(1);
    let waker = Waker::from(std::sync::Arc::new(Woken(sender)));
    let mut future = pin!(future);
    for wake in 0..=wakes {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        if wake < wakes {
            woken.recv().unwrap();
        }
    }
    None
}

#[test]
fn a_sync_given_up_at_any_of_its_steps_harms_nothing() {
    let (engine, dir) = (engine(), dir());
    for mode in modes() {
        // Into an empty file, and into one with bytes behind in the same unit and far behind.
        for before in [0, 6_000, 50_000] {
            for (more, wakes) in
                [0, 10, 1_000, 40_000].into_iter().flat_map(|more| (0..10).map(move |w| (more, w)))
            {
                let path = dir.path().join("stepped");
                write_file(&path, before);
                let mut expected = bytes_of(0..before);
                let mut append = open(&engine, &path, mode).append().request_bytes(4 * KIB).depth(3).start();
                append.write(&vec![1; 5_000]).wait().unwrap();
                if let Some(synced) = poll_until_woken(append.sync(Durability::Data), wakes) {
                    synced.unwrap();
                }
                append.write(&vec![2; more]).wait().unwrap();
                assert_eq!(append.close().wait().unwrap(), (5_000 + more) as u64);
                expected.resize(expected.len().max(5_000 + more), 0);
                expected[..5_000].fill(1);
                expected[5_000..5_000 + more].fill(2);
                assert_file(
                    &path,
                    &expected,
                    &format!("{before} before, {more} more, {wakes} wakes, {mode:?}"),
                );
            }
        }
    }
}

/// Returns a file in memory that refuses to grow past 20 KiB: it acts like a full file system, without the
/// need to fill one.
fn full_after_20_kib() -> (std::fs::File, std::path::PathBuf) {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let file = std::fs::File::from(memfd_create("forebay-test-append", flags).unwrap());
    file.set_len(20 << 10).unwrap();
    fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)).into();
    (file, path)
}

#[test]
fn a_failed_write_ends_the_append_for_good() {
    let engine = engine();
    for mode in [Open::write(), Open::write().buffered()] {
        let (_kept, path) = full_after_20_kib();
        let mut append = open(&engine, &path, mode).append().request_bytes(8 * KIB).depth(2).start();
        let data = bytes_of(0..100_000);
        let mut parts = data.chunks(4096);
        let error = parts.find_map(|part| append.write(part).wait().err()).unwrap();
        assert_eq!((error.operation(), error.raw_os_error()), ("append", Some(libc::EPERM)));
        let (offset, len) = error.range().unwrap();
        assert!(offset >= 16 << 10 && len == 8 << 10, "{error}");
        let position = append.position();
        assert!(position < 100_000, "the error came only after everything was taken");
        for again in [
            append.write(b"more").wait().unwrap_err(),
            append.write_block(engine.block_from(b"more").unwrap().freeze()).wait().unwrap_err(),
            append.sync(Durability::Data).wait().unwrap_err(),
        ] {
            assert_eq!((again.kind(), again.raw_os_error()), (error.kind(), error.raw_os_error()));
            assert_eq!((again.path(), again.range()), (error.path(), error.range()));
            assert!(again.to_string().contains("an earlier write"), "{again}");
        }
        assert_eq!(append.position(), position);
        assert_eq!(append.close().wait().unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert_eq!(std::fs::read(&path).unwrap()[..16 << 10], data[..16 << 10]);
    }
}

#[test]
fn a_file_that_cannot_be_written_is_told_at_close_at_the_latest() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("read-only");
    write_file(&path, 1_000);
    let mut append = open(&engine, &path, Open::read()).append().start();
    append.write(b"fits into the buffer").wait().unwrap();
    let error = append.close().wait().unwrap_err();
    assert_eq!((error.operation(), error.raw_os_error()), ("append", Some(libc::EBADF)));
    assert_file(&path, &bytes_of(0..1_000), "read-only");
}

#[test]
fn a_closed_file_ends_the_append() {
    let (engine, dir) = (engine(), dir());
    let file = open(&engine, &dir.path().join("closed"), Open::create());
    let mut append = file.append().start();
    append.write(b"late").wait().unwrap();
    file.close().wait().unwrap();
    assert_eq!(append.sync(Durability::Data).wait().unwrap_err().kind(), ErrorKind::FileClosed);
    assert_eq!(append.write(b"later").wait().unwrap_err().kind(), ErrorKind::FileClosed);
}

#[test]
fn a_place_that_no_file_has_is_refused() {
    let (engine, dir) = (engine(), dir());
    let file = open(&engine, &dir.path().join("far"), Open::create());
    for at in [i64::MAX as u64, u64::MAX, i64::MAX as u64 - 100] {
        let mut append = file.append().at(at).start();
        assert_eq!(append.write(&[0; 200]).wait().unwrap_err().kind(), ErrorKind::InvalidInput, "{at}");
    }
    assert_eq!(file.len().wait().unwrap(), 0);
}

#[test]
fn lack_of_memory_is_waited_for_or_told_and_ends_nothing() {
    let dir = dir();
    let config = config().shards(1).arena_bytes(4 << 20).arena_bytes_max(4 << 20).overflow_bytes_max(0);
    let engine = Engine::start(config).unwrap();
    let path = dir.path().join("memory");
    let mut append = open(&engine, &path, Open::create()).append().request_bytes(256 * KIB).depth(64).start();
    append.write(b"begin").wait().unwrap();
    append.sync(Durability::None).wait().unwrap();
    let mut held = Vec::new();
    let exhausted = loop {
        match engine.block(64 * KIB) {
            Ok(block) => held.push(block),
            Err(error) => break error,
        }
    };
    assert!(matches!(exhausted.kind(), ErrorKind::ArenaExhausted { .. }));
    let error = append.write(b"no room").wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ArenaExhausted { .. }), "{error}");
    assert_eq!(append.position(), 5);
    drop(held);
    // More than all memory, at a depth that would need more than all: the append waits for the memory that
    // its writes use.
    let data = bytes_of(5..20_000_005);
    append.write(&data).wait().unwrap();
    append.close().wait().unwrap();
    let expected = [&b"begin"[..], &data].concat();
    assert_file(&path, &expected, "memory");
}

#[cfg(feature = "tokio")]
#[test]
fn as_an_async_write() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (engine, dir) = (engine(), dir());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for mode in modes() {
        let path = dir.path().join("async-write");
        let mut append =
            open(&engine, &path, mode.truncate()).append().request_bytes(8 * KIB).depth(2).start();
        let data = bytes_of(0..123_457);
        runtime.block_on(async {
            append.write_all(&data[..60_001]).await.unwrap();
            append.flush().await.unwrap();
            assert_file(&path, &data[..60_001], "flushed");
            let copied = tokio::io::copy(&mut (&data[60_001..]).take(u64::MAX), &mut append).await.unwrap();
            assert_eq!(copied, 123_457 - 60_001);
            append.shutdown().await.unwrap();
            assert_file(&path, &data, "shut down");
        });
        assert_eq!(append.close().wait().unwrap(), 123_457);
    }
    let (_kept, path) = full_after_20_kib();
    let mut append = open(&engine, &path, Open::write()).append().at(20 << 10).start();
    let error = runtime.block_on(async {
        append.write_all(b"lost").await.unwrap();
        append.flush().await.unwrap_err()
    });
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
}
