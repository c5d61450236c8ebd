//! Shows: memory that a program lends to reads and writes is theirs until the kernel is done with it, and its drop blocks nothing.
//! How: real files and devices, long reads, dropped operations whose memory takes a lock when it is dropped, and an engine that
//! ends; a fork is in `tests/fork.rs`. What any driver must do is in the conformance suite (`forebay_conformance::suite`, group
//! `lent`).

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;

use crate::common::{bytes_of, config, dir, engine, write_file};
use forebay::{BlockMut, Durability, Engine, ErrorKind, IoMemory, Open};

#[test]
fn long_reads_and_writes_are_made_in_parts() {
    const LEN: u64 = (20 << 20) + 5 * 4096;
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    let bytes = bytes_of(0..LEN);
    for (open, skip) in [(Open::create(), 0), (Open::create(), 16), (Open::create().buffered(), 3)] {
        let file = engine.open(&path, open.truncate()).wait().unwrap();
        let mut memory = BlockMut::aligned(LEN as usize + skip).unwrap();
        memory[skip..].copy_from_slice(&bytes);
        let part = Part { memory, skip };
        let (written, mut part) = file.write_from(0, part).durable(Durability::Data).wait();
        written.unwrap();
        part.memory.fill(0);
        let (read, part) = file.read_into(0, part).wait();
        assert_eq!(read.unwrap() as u64, LEN);
        assert!(part.memory[skip..] == bytes[..], "{open:?}, {skip} behind a page");
        // At an odd place: the ends are copied through I/O memory, and the file ends before the memory.
        let (read, vec) = file.read_into(12_345, vec![0; LEN as usize]).wait();
        assert_eq!(read.unwrap() as u64, LEN - 12_345);
        assert!(vec[..(LEN - 12_345) as usize] == bytes[12_345..]);
    }
    let longest = engine.stats().wait().unwrap().flows.iter().map(|flow| flow.reads).sum::<u64>();
    assert!(longest >= 3 * 3, "no request is longer than 8 MiB");
}

/// A part of a block.
#[derive(Default)]
struct Part {
    memory: BlockMut,
    skip: usize,
}

// SAFETY: the block is its own and does not move.
unsafe impl IoMemory for Part {
    fn memory(&mut self) -> (*mut u8, usize) {
        let part = &mut self.memory[self.skip..];
        (part.as_mut_ptr(), part.len())
    }
}

/// Memory whose drop takes a lock, as that of an object of another language does, and reports its thread.
#[derive(Default)]
struct LockedMemory(Option<(Vec<u8>, Lock, mpsc::Sender<ThreadId>)>);

type Lock = Arc<Mutex<()>>;

// SAFETY: the vector is its own.
unsafe impl IoMemory for LockedMemory {
    fn memory(&mut self) -> (*mut u8, usize) {
        self.0.as_mut().map_or((std::ptr::null_mut(), 0), |(bytes, ..)| bytes.memory())
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        if let Some((_, lock, dropped)) = &self.0 {
            let _held = lock.lock().unwrap();
            let _ = dropped.send(std::thread::current().id());
        }
    }
}

/// Starts reads and drops them until the kernel has the memory of one; returns how many owners are to be dropped.
fn lend_and_drop(file: &forebay::File, lock: &Lock, dropped: &mpsc::Sender<ThreadId>) -> usize {
    let mut lent = 0;
    for round in 0..32 {
        let owner = LockedMemory(Some((vec![0; 1 << 20], lock.clone(), dropped.clone())));
        let mut read = file.read_into(round * 4096, owner);
        match Pin::new(&mut read).poll(&mut Context::from_waker(Waker::noop())) {
            // This thread has the lock: its own drop would wait for itself.
            Poll::Ready((_, mut owner)) => drop(owner.0.take()),
            Poll::Pending => lent += 1,
        }
    }
    lent
}

/// The drop of memory that a dropped read had waits for a lock, and the thread that holds it waits for the engine: neither a
/// shard, nor a ring's worker, nor the pool that opens files is the thread that drops.
#[test]
fn the_drop_of_lent_memory_may_wait_for_a_thread_that_waits_for_the_engine() {
    let dir = dir();
    let path = dir.path().join("a");
    write_file(&path, 4 << 20);
    let engine = Engine::start(config().shards(1)).unwrap();
    let lock = Arc::new(Mutex::new(()));
    let (sender, drops) = mpsc::channel();
    // Through the page cache too: there the kernel itself has the lent memory.
    for open in [Open::read(), Open::read().buffered(), Open::read().uncached()] {
        let file = engine.open(&path, open).wait().unwrap();
        let held = lock.lock().unwrap();
        let lent = lend_and_drop(&file, &lock, &sender);
        // All of these need the shard, or the pool.
        for _ in 0..8 {
            let block = file.read(0..65_536).wait().unwrap();
            assert!(block[..] == bytes_of(0..65_536)[..]);
            drop(engine.open(&path, Open::read()).wait().unwrap());
        }
        drop(held);
        for _ in 0..lent {
            assert_ne!(drops.recv().unwrap(), std::thread::current().id());
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let file = runtime.block_on(engine.open(&path, Open::read().buffered()).into_future()).unwrap();
    let held = lock.lock().unwrap();
    // The ring of this very thread has them.
    let lent = runtime.block_on(async { lend_and_drop(&file, &lock, &sender) });
    runtime.block_on(async {
        for _ in 0..8 {
            assert!(file.read(0..65_536).await.unwrap()[..] == bytes_of(0..65_536)[..]);
        }
    });
    drop(held);
    for _ in 0..lent {
        // It is looked after while the thread runs, or by shard 0.
        assert_ne!(drops.recv().unwrap(), std::thread::current().id());
    }
    assert_eq!(engine.memory().leaked_lends, 0);
}

#[test]
fn memory_comes_back_from_an_engine_that_ends() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let reads: Vec<_> = (0..8).map(|n| file.read_into(n * 4096, vec![0; 100_000])).collect();
    let mut reads: Vec<_> = reads.into_iter().map(|read| Box::pin(read.owned())).collect();
    let mut context = Context::from_waker(Waker::noop());
    let ready: Vec<_> = reads.iter_mut().map(|read| read.as_mut().poll(&mut context)).collect();
    engine.close().wait().unwrap();
    for ((read, ready), n) in reads.into_iter().zip(ready).zip(0u64..) {
        let (result, vec) = match ready {
            Poll::Ready(done) => done,
            Poll::Pending => futures::executor::block_on(read),
        };
        assert_eq!(vec.len(), 100_000, "the device was done with it before the engine's end");
        match result {
            Ok(bytes) => assert!(bytes == 100_000 && vec == bytes_of(n * 4096..n * 4096 + 100_000)),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::EngineClosed | ErrorKind::Cancelled), "{error}");
            }
        }
    }
    let (result, vec) = file.read_into(0, vec![7; 10]).wait();
    assert_eq!((result.unwrap_err().kind(), vec), (ErrorKind::EngineClosed, vec![7; 10]));
    let (result, vec) = file.read_many([0..3, 5..5]).into_memory(vec![7; 10]).wait();
    assert_eq!((result.unwrap_err().kind(), vec), (ErrorKind::EngineClosed, vec![7; 10]));
}
