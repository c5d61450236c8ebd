//! Operations are futures: the combinators of futures and Tokio accept them.
//!
//! Regression: `file.read(range)` was only `IntoFuture`, so `join_all(ranges.map(|r| file.read(r)))`,
//! `try_join!`, `FuturesUnordered`, `select!` over `&mut read` and `tokio::spawn(file.read(r))` all failed to
//! compile, although the guide recommended `join_all`. This file does not compile on that code.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::common::{bytes_of, config, dir, write_file};
use forebay::{
    Block, Class, Durability, Engine, Error, ErrorKind, File, Flush, Nop, Open, Read, ReadInto, ReadMany,
    ReadUpTo, Step, Walk, WalkMany, WalkOne, Write,
};
use futures::future::{join_all, try_join_all};
use futures::stream::{FuturesUnordered, StreamExt};

const LEN: u64 = 1 << 20;

fn open(name: &str) -> (Engine, File, tempfile::TempDir) {
    let (engine, dir) = (Engine::start(config()).unwrap(), dir());
    let path = dir.path().join(name);
    write_file(&path, LEN);
    let file = engine.open(&path, Open::write()).wait().unwrap();
    (engine, file, dir)
}

fn ranges() -> impl Iterator<Item = std::ops::Range<u64>> {
    (0..64u64).map(|n| n * 7_001..n * 7_001 + 500)
}

/// A walk that ends at the root, with its first byte.
struct First;

impl Walk for First {
    type Output = u8;
    type Error = Error;

    fn step(&mut self, block: &Block, _: std::ops::Range<u64>) -> Step<u8, Error> {
        Step::Done(block[0])
    }
}

#[tokio::test]
async fn join_all_takes_reads() {
    let (_engine, file, _dir) = open("a");
    for (block, range) in join_all(ranges().map(|range| file.read(range))).await.into_iter().zip(ranges()) {
        assert_eq!(&block.unwrap()[..], &bytes_of(range)[..]);
    }
    let blocks =
        try_join_all(ranges().map(|range| file.read_up_to(range).class(Class::BACKGROUND))).await.unwrap();
    assert_eq!(blocks.len(), 64);
    let firsts = try_join_all(ranges().map(|range| file.walk(range, First).hops_max(1))).await.unwrap();
    assert_eq!(firsts, ranges().map(|range| bytes_of(range)[0]).collect::<Vec<_>>());
}

#[tokio::test]
async fn try_join_takes_different_operations() {
    let (engine, file, _dir) = open("a");
    let page = engine.block(4096).unwrap();
    let (block, (), (), length) = futures::try_join!(
        file.read(4096..5000),
        file.write(0, page).durable(Durability::Data).flush(Flush::Queued),
        file.sync(Durability::Data),
        file.len()
    )
    .unwrap();
    assert_eq!((&block[..], length), (&bytes_of(4096..5000)[..], LEN));
    let (block, length) = tokio::try_join!(file.read(0..10), file.len()).unwrap();
    assert_eq!((&block[..], length), (&[0; 10][..], LEN));
}

#[tokio::test]
async fn futures_unordered_takes_reads() {
    let (_engine, file, _dir) = open("a");
    let mut reads: FuturesUnordered<_> = ranges().map(|range| file.read(range)).collect();
    let mut bytes = 0;
    while let Some(block) = reads.next().await {
        bytes += block.unwrap().len();
    }
    assert_eq!(bytes, 64 * 500);
    let in_turn = futures::stream::iter(ranges()).map(|range| file.read(range)).buffer_unordered(8);
    assert_eq!(in_turn.filter(|block| std::future::ready(block.is_ok())).count().await, 64);
}

#[tokio::test]
async fn select_takes_a_read_by_reference_and_pinned() {
    let (_engine, file, _dir) = open("a");
    let mut read = file.read(0..500);
    let block = loop {
        tokio::select! {
            biased;
            block = &mut read => break block.unwrap(),
            () = tokio::task::yield_now() => {}
        }
    };
    assert_eq!(&block[..], &bytes_of(0..500)[..]);
    let mut pinned = std::pin::pin!(file.read(1..9));
    tokio::select! {
        block = &mut pinned => assert_eq!(block.unwrap().len(), 8),
        never = std::future::pending::<()>() => never,
    }
}

#[tokio::test]
async fn owned_operations_are_spawned_and_outlive_the_handle() {
    let (engine, file, _dir) = open("a");
    let read = tokio::spawn(file.read(0..500).owned());
    let up_to = tokio::spawn(file.read_up_to(LEN - 10..LEN + 10).owned());
    let into = tokio::spawn(file.read_into(4096, engine.block(4096).unwrap()).owned());
    let write = tokio::spawn(file.write(8192, vec![7; 4096]).durable(Durability::Data).owned());
    let sync = tokio::spawn(file.sync(Durability::All).owned());
    let walk = tokio::spawn(file.walk(5..6, First).owned());
    let many = tokio::spawn(file.read_many([0..10, 20..30]));
    let walks = tokio::spawn(file.walk_many([(5..6, First), (6..7, First)]));
    let length = tokio::spawn(file.len());
    drop(file);
    assert_eq!(&read.await.unwrap().unwrap()[..], &bytes_of(0..500)[..]);
    assert_eq!(up_to.await.unwrap().unwrap().len(), 10);
    let (result, block) = into.await.unwrap();
    assert_eq!((result.unwrap(), &block[..]), (4096, &bytes_of(4096..8192)[..]));
    write.await.unwrap().unwrap();
    sync.await.unwrap().unwrap();
    assert_eq!(walk.await.unwrap().unwrap(), bytes_of(5..6)[0]);
    assert_eq!(many.await.unwrap().unwrap().len(), 2);
    assert_eq!(walks.await.unwrap().unwrap().len(), 2);
    assert_eq!(length.await.unwrap().unwrap(), LEN);
    assert_eq!(engine.close().await.unwrap().leaked_operations, 0);
}

/// Polls once, on a thread outside of shards.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn an_operation_that_has_begun_becomes_an_owned_one() {
    let (engine, file, _dir) = open("a");
    let mut read = file.read(0..500);
    let mut into = file.read_into(4096, engine.block(4096).unwrap());
    let mut write = file.write(8192, vec![7; 4096]);
    let mut walk = file.walk(5..6, First);
    let _ = (poll_once(&mut read).is_ready(), poll_once(&mut into).is_ready());
    let _ = poll_once(&mut write).is_ready();
    // A walk may have completed by the end of its first poll.
    let early = poll_once(&mut walk);
    let (read, into, write, walk) = (read.owned(), into.owned(), write.owned(), walk.owned());
    drop(file);
    let all = std::thread::spawn(move || {
        let first = match early {
            Poll::Ready(first) => first,
            Poll::Pending => walk.wait(),
        };
        (read.wait(), into.wait(), write.wait(), first)
    });
    let (block, (result, _), written, first) = all.join().unwrap();
    assert_eq!(&block.unwrap()[..], &bytes_of(0..500)[..]);
    assert_eq!((result.unwrap(), first.unwrap()), (4096, bytes_of(5..6)[0]));
    written.unwrap();
    assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
}

#[test]
fn the_task_that_polls_first_gives_the_class() {
    let (engine, file, _dir) = open("a");
    let reports = engine.class("reports", 100).unwrap();
    // Made outside of the scope, polled inside.
    engine.block_on(reports.scope(file.read(0..4096))).unwrap().unwrap();
    engine.block_on(reports.scope(file.read_many([0..4096, 1 << 19..(1 << 19) + 4096]))).unwrap().unwrap();
    engine.block_on(reports.scope(file.walk(0..4096, First))).unwrap().unwrap();
    engine.block_on(reports.scope(file.walk_many([(0..4096, First)]))).unwrap().unwrap();
    // A call that names a class keeps it.
    engine.block_on(reports.scope(file.read(0..4096).class(Class::BACKGROUND))).unwrap().unwrap();
    let stats = engine.stats().wait().unwrap();
    let reads = |class: &str| {
        stats.flows.iter().filter(|flow| flow.class == class).map(|flow| flow.reads).sum::<u64>()
    };
    assert_eq!((reads("reports"), reads("background"), reads("default")), (5, 1, 0));
}

#[test]
fn options_change_nothing_after_the_end() {
    let (engine, file, _dir) = open("a");
    let mut read = file.read(0..500);
    let block = engine.block_on(&mut read).unwrap().unwrap();
    assert_eq!(block.len(), 500);
    let again = engine.block_on(read.class(Class::BACKGROUND)).unwrap();
    assert!(again.is_err(), "polled after its end");
    let mut write = file.write(0, vec![1; 4096]);
    engine.block_on(&mut write).unwrap().unwrap();
    let again = engine.block_on(write.durable(Durability::All).flush(Flush::Blocking)).unwrap();
    assert!(again.is_err(), "polled after its end");
    let mut many = file.read_many([0..10, 20..30]);
    assert_eq!(engine.block_on(&mut many).unwrap().unwrap().len(), 2);
    assert_eq!(engine.block_on(many.depth(1).gap_bytes_max(9)).unwrap().unwrap().len(), 0);
}

#[test]
fn what_was_made_before_the_close_answers_closed() {
    let (engine, file, _dir) = open("a");
    // The read checks at its poll whether the file is open, not when it was made; also for no bytes.
    let (empty, some) = (file.read(7..7).owned(), file.read(0..10).owned());
    let into = file.read_into(0, forebay::BlockMut::default()).owned();
    file.close().wait().unwrap();
    assert_eq!(empty.wait().unwrap_err().kind(), ErrorKind::FileClosed);
    assert_eq!(some.wait().unwrap_err().kind(), ErrorKind::FileClosed);
    assert_eq!(into.wait().0.unwrap_err().kind(), ErrorKind::FileClosed);
    drop(engine);
}

/// Regression: reads had 136 bytes and writes 152. A future is moved from where it is made to where it is
/// polled, and on x86-64 a move of more than 128 bytes is a call of memcpy(3): it cost a write 58
/// instructions of 2,100.
#[test]
fn futures_are_small_unpin_and_may_be_sent() {
    fn checked<F: Future + Unpin + Send>(bytes_max: usize) {
        let name = std::any::type_name::<F>();
        assert!(size_of::<F>() <= bytes_max, "{name} has {} bytes, more than {bytes_max}", size_of::<F>());
        println!("{name}: {} bytes", size_of::<F>());
    }
    checked::<Nop<'_>>(104);
    checked::<Read<'_>>(128);
    checked::<ReadUpTo<'_>>(128);
    checked::<ReadInto<'_>>(128);
    checked::<ReadInto<'_, Vec<u8>>>(128);
    checked::<ReadInto<'_, Box<[u8]>>>(128);
    checked::<Write<'_>>(120);
    checked::<forebay::Sync<'_>>(120);
    checked::<ReadMany>(104);
    checked::<WalkOne<'_, First>>(80);
    checked::<WalkMany<First>>(48);
    checked::<forebay::Pending<u64>>(48);
}

/// Regression: combined calls had twins for plain threads (`next_wait`, `write_wait` ...), which generic code
/// could not name.
#[test]
fn combined_calls_are_awaited_and_waited_for() {
    let (engine, file, dir) = open("a");
    let new = engine.open(dir.path().join("b"), Open::create()).wait().unwrap();
    let mut append = new.append().start();
    append.write(b"some bytes").wait().unwrap();
    append.write_block(engine.block_from(b", more").unwrap().freeze()).wait().unwrap();
    append.sync(Durability::Data).wait().unwrap();
    assert_eq!(append.close().wait().unwrap(), 16);
    // On a shard all are refused, each with the error in its own type of output, and the call has not started.
    let (inner, outer) = (file.clone(), engine.clone());
    let refused = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let page = outer.block(4096).unwrap();
        [
            inner.append().start().write(b"x").wait().unwrap_err().kind(),
            inner.scan().start().next().wait().unwrap().unwrap_err().kind(),
            inner.read_many([0..1, 5..6]).stream().next().wait().unwrap().1.unwrap_err().kind(),
            inner.read_into(0, page).wait().0.unwrap_err().kind(),
        ]
    });
    assert_eq!(refused.wait().unwrap(), [ErrorKind::WaitOnShard; 4]);
}

/// Regression: `Scan::next` gave `Result<Option<Block>>` and its `Stream` `Option<Result<Block>>`: importing
/// `StreamExt` changed the meaning of `next` where the inherent one was out of reach.
#[cfg(feature = "stream")]
#[tokio::test]
async fn next_is_what_the_stream_gives() {
    fn same<S: futures::Stream>(_: &S, _: &Option<S::Item>) {}
    let (_engine, file, _dir) = open("a");
    let mut scan = file.scan().start();
    let (first, second) = (scan.next().await, StreamExt::next(&mut scan).await);
    same(&scan, &first);
    same(&scan, &second);
    assert_eq!(first.unwrap().unwrap()[0], 0);
    let mut many = file.read_many(ranges()).stream();
    let (first, second) = (many.next().await, StreamExt::next(&mut many).await);
    same(&many, &first);
    same(&many, &second);
    assert_eq!(many.count().await, 62);
}
