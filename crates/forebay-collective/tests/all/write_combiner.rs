//! Write combiners on real files: any pieces at any offsets, exact lengths, few requests, bounded memory, errors, and calls
//! from everywhere.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::common::{Numbers, assert_file, bytes_of, config, dir, engine, modes, write_file};
use forebay::{Class, Config, Durability, Engine, ErrorKind, File, Open};
use forebay_collective::{Options, WriteCombiner};
use forebay_test::allocations;

const KIB: usize = 1024;
const PAGE: u64 = 4096;

fn open(engine: &Engine, path: &Path, open: Open) -> File {
    engine.open(path, open).wait().unwrap()
}

#[test]
fn random_pieces_equal_a_model() {
    let (engine, dir) = (engine(), dir());
    for (round, mode) in modes().into_iter().cycle().take(9).enumerate() {
        let mut numbers = Numbers(0xC0_FFEE + round as u64);
        let path = dir.path().join(format!("random-{round}"));
        let mut model = bytes_of(0..numbers.below(300_000));
        std::fs::write(&path, &model).unwrap();
        let file = open(&engine, &path, mode);
        let combine = WriteCombiner::start(
            &file,
            Options::new().memory_bytes_max((64 * KIB) << numbers.below(4)).depth(1 + round),
        );
        for number in 0..300u64 {
            let offset = numbers.below(500_000);
            let longest = [10, 500, 9_000][numbers.below(3) as usize];
            let len = 1 + numbers.below(longest);
            let bytes = bytes_of(number * 70_001..number * 70_001 + len);
            combine.write(offset, &bytes).wait().unwrap();
            let end = (offset + len) as usize;
            model.resize(model.len().max(end), 0);
            model[offset as usize..end].copy_from_slice(&bytes);
            match numbers.below(20) {
                0 => combine.barrier().unwrap(),
                1 => {
                    combine.flush(Durability::Data).wait().unwrap();
                    assert_file(&path, &model, &format!("flushed, round {round}"));
                }
                2..=6 => {
                    let start = numbers.below(model.len() as u64);
                    let end = (start + numbers.below(50_000)).min(model.len() as u64);
                    let read = combine.read(start..end).wait().unwrap();
                    assert!(read[..] == model[start as usize..end as usize], "{start}..{end}, round {round}");
                }
                _ => {}
            }
        }
        let past = combine.read(model.len() as u64 - 5..model.len() as u64 + 1).wait().unwrap_err();
        assert_eq!(past.kind(), ErrorKind::UnexpectedEof { got: 5 });
        combine.flush(Durability::All).wait().unwrap();
        assert_file(&path, &model, &format!("at the end, round {round}, {mode:?}"));
    }
}

#[test]
fn whole_pages_in_any_order_become_few_requests_and_no_byte_more() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("pages");
    let file = open(&engine, &path, Open::create());
    let combine =
        WriteCombiner::start(&file, Options::new().memory_bytes_max(8 << 20).request_bytes_max(512 * KIB));
    let data = bytes_of(0..4 << 20);
    for page in Numbers(7).shuffled(1024) {
        let at = (page * PAGE) as usize;
        combine.write(page * PAGE, &data[at..at + PAGE as usize]).wait().unwrap();
    }
    combine.flush(Durability::Data).wait().unwrap();
    let stats = combine.stats();
    assert_eq!((stats.taken_bytes, stats.written_bytes), (4 << 20, 4 << 20));
    assert_eq!((stats.write_requests, stats.read_requests, stats.syncs), (8, 0, 1));
    assert_file(&path, &data, "pages");
}

/// Strided pieces that fill the range except for its ends: only these are read, each once.
#[test]
fn only_edges_are_read_and_each_once() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("edges");
    write_file(&path, 1 << 20);
    let mut expected = bytes_of(0..1 << 20);
    let file = open(&engine, &path, Open::write());
    let combine = WriteCombiner::start(&file, Options::new().memory_bytes_max(4 << 20));
    let (first, piece, count) = (10_001u64, 4_701u64, 150u64);
    for number in Numbers(3).shuffled(count) {
        let offset = first + number * piece;
        let bytes = vec![number as u8 | 1; piece as usize];
        combine.write(offset, &bytes).wait().unwrap();
        expected[offset as usize..(offset + piece) as usize].copy_from_slice(&bytes);
    }
    combine.flush(Durability::None).wait().unwrap();
    let stats = combine.stats();
    assert_eq!((stats.read_requests, stats.read_bytes), (2, 2 * PAGE), "{stats:?}");
    assert_file(&path, &expected, "edges");
    // A hole between two pieces of one page is the file's own, and neighbours that were not written are not
    // touched.
    combine.write(100, b"here").wait().unwrap();
    combine.write(3_000, b"and there").wait().unwrap();
    combine.flush(Durability::None).wait().unwrap();
    let again = combine.stats();
    assert_eq!(again.written_bytes - stats.written_bytes, PAGE);
    assert_eq!(again.read_requests - stats.read_requests, 1);
    expected[100..104].copy_from_slice(b"here");
    expected[3_000..3_009].copy_from_slice(b"and there");
    assert_file(&path, &expected, "holes");
}

#[test]
fn past_the_end_the_length_is_exact_and_holes_are_zero() {
    let (engine, dir) = (engine(), dir());
    for mode in modes() {
        for (before, offset, len) in [
            (0, 0, 1),
            (0, 5_000, 10),
            (100, 200, 4_096),
            (4_096, 4_096, 1),
            (700, 650, 20),
            (9_000, 100_001, 3),
        ] {
            let path = dir.path().join("long");
            write_file(&path, before);
            let file = open(&engine, &path, mode);
            let combine = WriteCombiner::start(&file, Options::new().memory_bytes_max(64 * KIB));
            combine.write(offset, &vec![0xA5; len]).wait().unwrap();
            combine.flush(Durability::Data).wait().unwrap();
            let mut expected = bytes_of(0..before);
            let end = offset as usize + len;
            expected.resize(expected.len().max(end), 0);
            expected[offset as usize..end].fill(0xA5);
            let what = format!("{len} bytes at {offset} of {before}, {mode:?}");
            assert_file(&path, &expected, &what);
            let read = combine.read(0..expected.len() as u64).wait().unwrap();
            assert!(read[..] == expected[..], "{what}");
        }
    }
}

/// Sixteen times as many bytes as memory, in any order: the memory stays within its limit.
#[test]
fn memory_is_bounded_and_comes_back() {
    let dir = dir();
    let engine = Engine::start(config().arena_bytes(8 << 20).arena_bytes_max(16 << 20)).unwrap();
    let memory = 1 << 20;
    let path = dir.path().join("bounded");
    let file = open(&engine, &path, Open::create());
    let combine = WriteCombiner::start(&file, Options::new().memory_bytes_max(memory));
    let (mut most, data) = (0, bytes_of(0..16 << 20));
    for page in Numbers(11).shuffled(4096) {
        let at = (page * PAGE) as usize;
        combine.write(page * PAGE, &data[at..at + PAGE as usize]).wait().unwrap();
        most = most.max(combine.held_bytes());
        let held = engine.memory().held_bytes;
        assert!(held <= memory as u64, "{held} bytes of the arena are held");
    }
    assert!(most <= memory as u64 * 3 / 4, "{most}");
    combine.flush(Durability::Data).wait().unwrap();
    assert_eq!(combine.held_bytes(), 0);
    let stats = combine.stats();
    assert_eq!((stats.written_bytes, stats.read_requests), (16 << 20, 0), "{stats:?}");
    assert!(stats.written_bytes > PAGE * stats.write_requests, "{stats:?}");
    assert_file(&path, &data, "bounded");
}

/// Other users hold the arena: the write combiner must make do with its memory, and without any the call fails with
/// that error and can be made again.
#[test]
fn goes_on_with_the_memory_there_is() {
    let dir = dir();
    let small = config().shards(1).arena_bytes(1 << 20).arena_bytes_max(1 << 20).overflow_bytes_max(64 * KIB);
    let engine = Engine::start(small).unwrap();
    let path = dir.path().join("scarce");
    let file = open(&engine, &path, Open::create());
    let combine = WriteCombiner::start(&file, Options::new().memory_bytes_max(1 << 20));
    let mut held: Vec<_> = std::iter::from_fn(|| engine.block(4 * KIB).ok()).collect();
    let error = combine.write(0, b"too early").wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ArenaExhausted { .. }), "{error}");
    held.truncate(held.len() / 3);
    let data = bytes_of(0..2 << 20);
    for (number, piece) in data.chunks(5_000).enumerate() {
        combine.write(number as u64 * 5_000, piece).wait().unwrap();
    }
    combine.flush(Durability::Data).wait().unwrap();
    drop(held);
    assert_file(&path, &data, "scarce");
}

fn fill(
    combine: &WriteCombiner,
    thread: u64,
    threads: u64,
    pieces: u64,
) -> impl Future<Output = ()> + Send + 'static {
    let combine = combine.clone();
    async move {
        for number in 0..pieces {
            let offset = (number * threads + thread) * 1_001;
            combine.write(offset, &bytes_of(offset..offset + 1_001)).await.unwrap();
            let read = combine.read(offset..offset + 1_001).await.unwrap();
            assert!(read[..] == bytes_of(offset..offset + 1_001)[..]);
        }
        combine.flush(Durability::None).await.unwrap();
    }
}

#[test]
fn threads_tokio_and_shards_share_one() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("shared");
    let file = open(&engine, &path, Open::create());
    let combine = WriteCombiner::start(&file, Options::new().memory_bytes_max(64 * KIB));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (engine, fill) = (&engine, fill(&combine, thread, 6, 200));
            scope.spawn(move || engine.block_on(fill).unwrap());
        }
        let on_shards = [2, 3].map(|thread| {
            let fill = fill(&combine, thread, 6, 200);
            engine.spawn_on_shard(thread as usize % engine.shard_count(), Class::BACKGROUND, move || fill)
        });
        let on_tokio = [4, 5].map(|thread| runtime.spawn(fill(&combine, thread, 6, 200)));
        runtime.block_on(async {
            for task in on_tokio {
                task.await.unwrap();
            }
            for task in on_shards {
                task.await.unwrap();
            }
        });
    });
    assert_file(&path, &bytes_of(0..6 * 200 * 1_001), "shared");
}

#[test]
fn the_first_error_ends_it_and_is_told_once_as_it_was() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("read-only");
    write_file(&path, 10_000);
    let file = open(&engine, &path, Open::read());
    let combine = WriteCombiner::start(&file, Options::new());
    combine.write(0, b"nobody may").wait().unwrap();
    let first = combine.flush(Durability::Data).wait().unwrap_err();
    assert_eq!((first.raw_os_error(), first.operation()), (Some(libc::EBADF), "write"), "{first}");
    assert!(!first.to_string().contains("before"), "{first}");
    for later in [
        combine.write(0, b"x").wait().unwrap_err(),
        combine.clone().flush(Durability::None).wait().unwrap_err(),
        combine.barrier().unwrap_err(),
        combine.read(0..1).wait().unwrap_err(),
    ] {
        assert_eq!(later.raw_os_error(), Some(libc::EBADF));
        assert!(later.to_string().contains("this write combiner had failed before"), "{later}");
    }
    assert_eq!(combine.held_bytes(), 0);
    assert_file(&path, &bytes_of(0..10_000), "nothing was written");
}

#[test]
fn arguments_that_cannot_be_are_refused() {
    let (engine, dir) = (engine(), dir());
    let file = open(&engine, &dir.path().join("refused"), Open::create());
    let combine = WriteCombiner::start(&file, Options::new());
    for offset in [u64::MAX, i64::MAX as u64 - 100] {
        assert_eq!(combine.write(offset, b"x").wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    let backwards = std::ops::Range { start: 5, end: 4 };
    assert_eq!(combine.read(backwards).wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(matches!(combine.read(0..2 << 30).wait().unwrap_err().kind(), ErrorKind::TooLarge { .. }));
    // None of these ended the write combiner, and a call with nothing to do returns immediately.
    combine.write(77, b"").wait().unwrap();
    combine.barrier().unwrap();
    combine.flush(Durability::Data).wait().unwrap();
    assert_eq!(file.len().wait().unwrap(), 0);
    let (inner, other) = (combine.clone(), engine.clone());
    let waits = other.spawn_on_shard(0, Class::DEFAULT, move || async move { inner.write(0, b"x").wait() });
    assert_eq!(waits.wait().unwrap().unwrap_err().kind(), ErrorKind::WaitOnShard);
}

#[test]
fn dropped_it_lets_go_of_the_file_and_closed_it_tells_everybody() {
    let (engine, dir) = (engine(), dir());
    let file = open(&engine, &dir.path().join("dropped"), Open::create());
    let combine = WriteCombiner::start(&file, Options::new().memory_bytes_max(64 * KIB));
    combine.write(0, &[1; 10_000]).wait().unwrap();
    drop(combine.clone());
    combine.flush(Durability::None).wait().unwrap();
    combine.write(0, &[2; 10_000]).wait().unwrap();
    drop(combine);
    // The task's own handle is one of those that this waits for.
    file.close().wait().unwrap();
    let file = open(&engine, &dir.path().join("dropped"), Open::create());
    assert_eq!(&file.read(0..2).wait().unwrap()[..], [1, 1], "what was not flushed was given up");
    let combine = WriteCombiner::start(&file, Options::new());
    combine.write(0, b"never").wait().unwrap();
    engine.close().wait().unwrap();
    let error = combine.flush(Durability::Data).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EngineClosed, "{error}");
}

/// A write that waits for memory is dropped: the others proceed.
#[test]
fn a_write_given_up_while_it_waits_holds_nobody_up() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("given-up");
    let file = open(&engine, &path, Open::create());
    let combine = WriteCombiner::start(&file, Options::new().memory_bytes_max(64 * KIB));
    let data = bytes_of(0..1 << 20);
    for round in 0..20 {
        let write = pin!(combine.write(0, &data));
        let polled = write.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending | Poll::Ready(Ok(()))), "round {round}");
    }
    combine.write(0, &data).wait().unwrap();
    combine.flush(Durability::Data).wait().unwrap();
    assert_file(&path, &data, "given up");
}

#[test]
fn handles_are_send_and_say_what_they_are() {
    fn shared<T: Send + Sync + Clone>(value: &T) -> T {
        value.clone()
    }
    let (engine, dir) = (Engine::start(Config::new()).unwrap(), dir());
    let file = open(&engine, &dir.path().join("named"), Open::create());
    let combine = WriteCombiner::start(&file, Options::new().class(Class::BACKGROUND));
    assert!(format!("{:?}", shared(&combine)).contains("named"));
    assert!(combine.file().path().ends_with("named"));
}

/// Regression: a task that found the inbox full lay in its handle until that was polled. A write combiner that was
/// started then held the handle, which held the task, which held the write combiner: dropped without having waited
/// it was never freed, and its file never closed.
#[test]
fn its_task_begins_though_the_inbox_was_full() {
    let engine = Engine::start(config().shards(1).inbox_depth(1)).unwrap();
    let dir = dir();
    let path = dir.path().join("file");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let writes = engine.open(dir.path().join("new"), Open::create()).wait().unwrap();
    // A task that holds the one shard between two meetings, and a read that fills the inbox.
    let meeting = Arc::new(Barrier::new(2));
    let meets = meeting.clone();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        meets.wait();
        meets.wait();
    });
    meeting.wait();
    let mut context = Context::from_waker(Waker::noop());
    let mut fills = Box::pin(file.read(0..4096));
    assert!(fills.as_mut().poll(&mut context).is_pending());
    let combine = WriteCombiner::start(&writes, Options::new().memory_bytes_max(64 << 10));
    let write = Box::pin(combine.write(0, &[7; 100])).as_mut().poll(&mut context);
    assert!(matches!(write, Poll::Ready(Ok(()))));
    drop((combine, writes));
    meeting.wait();
    task.wait().unwrap();
    drop(fills);
    let deadline = Instant::now() + Duration::from_secs(60);
    while engine.memory().held_bytes > 0 || engine.stats().wait().unwrap().shards[0].tasks > 0 {
        assert!(Instant::now() < deadline, "{:?}", engine.memory());
        std::thread::yield_now();
    }
}

/// Pages in the write combiner are overwritten without memory of the heap; a new one costs its part of a node of the
/// index.
#[test]
fn writes_allocate_nothing_on_pages_that_are_held() {
    let (engine, dir) = (engine(), dir());
    let file = open(&engine, &dir.path().join("counted"), Open::create());
    let combine = WriteCombiner::start(&file, Options::new().memory_bytes_max(8 << 20));
    let bytes = bytes_of(0..4096);
    let fill = async || {
        for page in 0..1_000u64 {
            combine.write(page * 7919 % 1_000 * 4096, &bytes).await.unwrap();
        }
    };
    let (_, first) = engine.block_on(allocations::during(fill())).unwrap();
    let (_, again) = engine.block_on(allocations::during(fill())).unwrap();
    assert_eq!(again, 0, "in 1,000 writes over pages that are held");
    assert!(first <= 400, "{first} allocations for 1,000 pages");
    combine.flush(Durability::None).wait().unwrap();
    assert_eq!(combine.stats().written_bytes, 1_000 * 4096);
}
