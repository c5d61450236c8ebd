//! Reads that several tasks share, and futures that are dropped or never polled again.

use std::sync::{Arc, Barrier};

use crate::common::{bytes, cache, device_reads, hold_shard, poll_once, scratch};

#[test]
fn tasks_that_miss_the_same_page_make_one_read() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    let mut reads: Vec<_> = (0..100).map(|at| data.file.read(at * 7..at * 7 + 50)).collect();
    let held = hold_shard(&cache, &data.file);
    for read in &mut reads {
        assert!(poll_once(read).is_pending());
    }
    drop(held);
    for (at, read) in (0..).zip(reads) {
        assert_eq!(read.wait().expect("a read"), bytes(at * 7..at * 7 + 50));
    }
    assert_eq!((device_reads(&cache), cache.stats().joined), (1, 99));
}

/// Story: each reader that waited for a page looked through all others whenever it was polled, and when it was dropped: the time of a
/// server whose ten thousand clients wanted the same new page grew with the square of their number.
#[test]
fn thousands_of_tasks_wait_for_one_page_together() {
    const TASKS: u64 = 20_000;
    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    let mut reads: Vec<_> = (0..TASKS).map(|at| data.file.read(at % 4096..at % 4096 + 1)).collect();
    let held = hold_shard(&cache, &data.file);
    for _ in 0..3 {
        for read in &mut reads {
            assert!(poll_once(read).is_pending());
        }
    }
    drop(reads.split_off(TASKS as usize / 2));
    drop(held);
    for (at, read) in (0..).zip(reads) {
        assert_eq!(read.wait().expect("a read"), bytes(at % 4096..at % 4096 + 1));
    }
    assert_eq!((device_reads(&cache), cache.stats().joined), (1, TASKS - 1));
}

#[test]
fn threads_that_miss_the_same_pages_make_one_read_each() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 4 << 20);
    let start = Arc::new(Barrier::new(4));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (file, start) = (data.file.clone(), start.clone());
            scope.spawn(move || {
                start.wait();
                for page in 0..1024 {
                    let range = page * 4096..page * 4096 + 10;
                    assert_eq!(file.read(range.clone()).wait().expect("a read"), bytes(range));
                }
            });
        }
    });
    assert_eq!(cache.stats().reads, 1024);
    assert_eq!(device_reads(&cache), 1024);
}

/// The reader that started the read is polled once and kept. Others complete without it.
#[test]
fn a_leader_that_is_never_polled_again_holds_up_no_other() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    let mut leader = data.file.read(0..10);
    let mut batch = data.file.read_many([5 * 4096..5 * 4096 + 10, 6 * 4096..6 * 4096 + 10]);
    assert!(poll_once(&mut leader).is_pending());
    assert!(poll_once(&mut batch).is_pending());
    assert_eq!(data.file.read(10..20).wait().expect("a read"), bytes(10..20));
    let over = 4 * 4096..7 * 4096;
    assert_eq!(data.file.read(over.clone()).wait().expect("a read"), bytes(over));
    assert_eq!(cache.stats().reads, 3, "pages 0, 5 to 6, and 4");
    assert!(data.file.get(0..10).is_some() && data.file.get(5 * 4096..7 * 4096).is_some());
    assert!(poll_once(&mut leader).is_ready(), "and it finds its bytes when it is polled after all");
}

/// As above, where the leader started its read on a shard, whose task then waits for the second reader.
#[test]
fn a_leader_kept_by_a_task_of_a_shard_holds_up_no_other() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    let (file, shard) = (data.file.clone(), data.file.file().home_shard());
    let (tell, told) = std::sync::mpsc::channel();
    let (go, gone) = tokio::sync::oneshot::channel::<()>();
    let keeper = move || async move {
        let mut leader = file.read(0..10);
        assert!(futures::poll!(&mut leader).is_pending());
        tell.send(()).expect("a listener");
        gone.await.expect("a word");
        leader.await
    };
    let task = cache.engine().spawn_on_shard(shard, forebay::Class::DEFAULT, keeper);
    told.recv().expect("the read has begun");
    assert_eq!(data.file.read(10..20).wait().expect("a read"), bytes(10..20));
    go.send(()).expect("a task");
    assert_eq!(task.wait().expect("a task").expect("a read"), bytes(0..10));
    assert_eq!(cache.stats().reads, 1);
}

#[test]
fn a_waiter_takes_over_from_a_leader_that_was_dropped() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    let mut leader = data.file.read(0..10);
    let mut waiter = data.file.read(10..20);
    let held = hold_shard(&cache, &data.file);
    assert!(poll_once(&mut leader).is_pending() && poll_once(&mut waiter).is_pending());
    drop(held);
    drop(leader);
    assert_eq!(waiter.wait().expect("a read"), bytes(10..20));
    assert_eq!(device_reads(&cache), 1);
}

#[test]
fn a_read_that_all_gave_up_leaves_nothing_behind() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    for _ in 0..100 {
        let mut alone = data.file.read(0..100_000);
        assert!(poll_once(&mut alone).is_pending());
    }
    assert_eq!(data.file.read(0..100_000).wait().expect("a read"), bytes(0..100_000));
    let (pages, held) = (cache.stats().pages.blocks, cache.engine().memory().held_bytes);
    assert_eq!(pages, 25);
    drop(data);
    cache.clear();
    assert!(cache.engine().memory().held_bytes < held);
}

/// Wakers that own a waiter of the flight: dropping one under a lock of the flight would lock it twice.
#[test]
fn a_waker_that_owns_a_waiter_is_dropped_safely() {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Mutex;
    use std::task::{Context, Wake, Waker};

    struct Owner(#[allow(dead_code, reason = "it is dropped")] Mutex<Option<Box<dyn Send>>>);
    impl Wake for Owner {
        fn wake(self: Arc<Self>) {}
    }

    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    let mut other = data.file.read_many([0..20, 5000..5001]);
    assert!(poll_once(&mut other).is_pending());
    let mut read = data.file.read(0..10);
    let waker = Waker::from(Arc::new(Owner(Mutex::new(Some(Box::new(other))))));
    let _ = Pin::new(&mut read).poll(&mut Context::from_waker(&waker));
    drop(waker);
    let _ = poll_once(&mut read);
    assert_eq!(read.wait().expect("a read"), bytes(0..10));
}
