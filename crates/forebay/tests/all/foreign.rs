//! Eight threads outside of shards that start, cancel, close, hand over and drop concurrently: in every order, no result is wrong,
//! nothing is lost, and all memory is released.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Waker};

use crate::common::{self, Numbers, bytes_of, config, dir, write_file};
use forebay::{Block, Class, Engine, Open, shard};

const THREADS: u64 = 8;
const ROUNDS: u64 = 150;
const FILE_BYTES: u64 = 4 << 20;

fn range(numbers: &mut Numbers) -> std::ops::Range<u64> {
    let start = numbers.below(FILE_BYTES - 70_000);
    start..start + numbers.below(69_999) + 1
}

fn poll_once<F: Future + Unpin>(future: &mut F) {
    let _ = Pin::new(future).poll(&mut Context::from_waker(Waker::noop()));
}

#[test]
fn eight_threads_in_disorder() {
    for (shards, inbox_depth) in [(1, 4096), (2, 2)] {
        let dir = dir();
        let path = dir.path().join("a");
        write_file(&path, FILE_BYTES);
        let engine = Engine::start(config().shards(shards).inbox_depth(inbox_depth)).unwrap();
        let file = engine.open(&path, Open::read()).wait().unwrap();
        let (give, take) = mpsc::channel::<(std::ops::Range<u64>, Block)>();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (engine, file, give, path) = (engine.clone(), file.clone(), give.clone(), &path);
                scope.spawn(move || {
                    let mut dice = Numbers(thread * 7919 + 1);
                    for _ in 0..ROUNDS {
                        match dice.below(8) {
                            0 | 1 => {
                                let range = range(&mut dice);
                                let block = file.read(range.clone()).wait().unwrap();
                                give.send((range, block)).unwrap();
                            }
                            2 => {
                                let mut read = file.read(range(&mut dice)).into_future();
                                poll_once(&mut read);
                            }
                            3 => {
                                let ranges = [range(&mut dice), range(&mut dice), range(&mut dice)];
                                let mut many = file.read_many(ranges).into_future();
                                poll_once(&mut many);
                            }
                            4 => {
                                let other = engine.open(path, Open::read()).wait().unwrap();
                                let mut read = other.read(range(&mut dice)).into_future();
                                poll_once(&mut read);
                                drop(read);
                                match dice.below(2) {
                                    0 => drop(other),
                                    _ => other.close().wait().unwrap(),
                                }
                            }
                            5 => {
                                let (file, range) = (file.clone(), range(&mut dice));
                                let handle = engine.spawn_on_shard(
                                    dice.below(4) as usize % engine.shard_count(),
                                    Class::DEFAULT,
                                    move || async move {
                                        let block = file.read(range.clone()).await.unwrap();
                                        shard::yield_now().await;
                                        (range, block)
                                    },
                                );
                                match dice.below(3) {
                                    0 => drop(handle),
                                    1 => handle.abort(),
                                    _ => give.send(handle.wait().unwrap()).unwrap(),
                                }
                            }
                            6 => {
                                let mut block = engine.block(dice.below(100_000) as usize).unwrap();
                                block.fill(thread as u8);
                                give.send((0..0, block.freeze().slice(..0).unwrap())).unwrap();
                            }
                            _ => {
                                let mut scan = file.scan().start();
                                let first = scan.next().wait().transpose().unwrap().unwrap();
                                assert_eq!(first[0], common::byte_at(0));
                            }
                        }
                    }
                });
            }
            drop(give);
            // Blocks end on a thread that did not make them.
            for (range, block) in take {
                assert_eq!(&block[..], &bytes_of(range)[..]);
            }
        });
        let stats = engine.stats().wait().unwrap();
        assert!(stats.shards.iter().all(|shard| shard.stray_completions == 0), "{:?}", stats.shards);
        common_end(&engine);
        drop(file);
        assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
    }
}

/// Waits until all memory is released: dropped operations end as soon as the shards have checked, and each
/// `stats` makes them check.
fn common_end(engine: &Engine) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let stats = engine.stats().wait().unwrap();
        let idle = stats.shards.iter().all(|shard| shard.slots_used == 0 && shard.tasks == 0);
        if idle && stats.memory.held_bytes == 0 && stats.memory.overflow_bytes == 0 {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "never came back: {stats:?}");
        std::thread::yield_now();
    }
}
