//! Records are queued immediately or not at all.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use crate::common::{dir, engine, expected, open, options, record, records_wait};
use forebay::{BlockMut, Class, Config, Engine};
use forebay_sim::{Profile, World};
use forebay_wal::{ErrorKind, Lsn, Options, Wal};
use futures::future::join;

#[test]
fn a_record_has_its_number_before_it_is_durable() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = open(&engine, &dir);
    for number in 1..=50 {
        let appended = wal.try_append(&record(number)).unwrap().expect("room");
        assert_eq!((appended.lsn(), wal.next_lsn()), (Lsn(number), Lsn(number + 1)));
        match number % 3 {
            0 => drop(appended),
            _ => assert_eq!(appended.wait().unwrap(), Lsn(number)),
        }
    }
    wal.sync().wait().unwrap();
    assert_eq!(records_wait(&wal, 1).unwrap(), expected(1..=50));
    wal.close().wait().unwrap();
    assert_eq!(wal.try_append(b"late").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(wal.room(1).wait().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn without_room_nothing_is_queued_and_room_tells_when_there_is_some() {
    let (engine, dir) = (engine(), dir());
    let options = options().pending_bytes_max(1000);
    let (wal, _) = Wal::open(&engine, dir.path(), options).wait().unwrap();
    let (mut refused, mut number) = (0, 0);
    // A thread that was away after each of them was never ahead of the log.
    while number < 300 || refused == 0 {
        let next = wal.next_lsn();
        match wal.try_append(&[7; 400]).unwrap() {
            Some(appended) => {
                number += 1;
                assert_eq!(appended.lsn(), Lsn(number));
            }
            None => {
                assert_eq!(wal.next_lsn(), next);
                refused += 1;
                wal.room(400).wait().unwrap();
            }
        }
    }
    // Longer than a group, and longer than the limit of pending bytes: it is accepted if nothing else is
    // pending.
    wal.sync().wait().unwrap();
    let long = wal.try_append(&[1; 40_000]).unwrap().expect("nothing waits");
    assert_eq!(long.wait().unwrap(), Lsn(number + 1));
    let kind = wal.try_append(&[0; 70_000]).unwrap_err().kind();
    assert!(matches!(kind, ErrorKind::TooLarge { .. }));
}

#[test]
fn many_threads_that_try_all_come_to_their_turn() {
    let (engine, dir) = (engine(), dir());
    let options = options().segment_bytes(1 << 20).pending_bytes_max(500);
    let (wal, _) = Wal::open(&engine, dir.path(), options).wait().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let wal = &wal;
            scope.spawn(move || {
                for _ in 0..50 {
                    // Half of them through the call that waits in the line.
                    if thread % 2 == 0 {
                        wal.append(&[1; 200]).wait().unwrap();
                        continue;
                    }
                    let appended = loop {
                        match wal.try_append(&[2; 200]).unwrap() {
                            Some(appended) => break appended,
                            None => wal.room(200).wait().unwrap(),
                        }
                    };
                    assert!(appended.wait().unwrap() <= wal.durable_lsn());
                }
            });
        }
    });
    assert_eq!(wal.durable_lsn(), Lsn(400));
}

/// Appends a record as soon as it is accepted, and returns its number once it is durable.
async fn append_in_room(wal: &Wal, number: u64) -> u64 {
    let record = record(number);
    loop {
        match wal.try_append(&record).unwrap() {
            Some(appended) => return appended.await.unwrap().0,
            None => wal.room(record.len()).await.unwrap(),
        }
    }
}

/// Story: each wait for room looked through all others whenever it was polled, and all are polled after each group: the time of a
/// program with ten thousand of them grew with the square of their number.
#[test]
fn thousands_of_tasks_wait_for_room_together() {
    const TASKS: u64 = 2_000;
    let (engine, dir) = (engine(), dir());
    let options = options().segment_bytes(1 << 20).pending_bytes_max(4_000);
    let (wal, _) = Wal::open(&engine, dir.path(), options).wait().unwrap();
    let all = (1..=TASKS).map(|number| append_in_room(&wal, number));
    let mut lsns = futures::executor::block_on(futures::future::join_all(all));
    lsns.sort_unstable();
    assert!(lsns.into_iter().eq(1..=TASKS), "each has another number");
    // Those that are dropped leave the others their wake-up.
    drop(wal.try_append(&[1; 3_900]).unwrap().expect("nothing is pending"));
    let mut waits: Vec<_> = (0..100).map(|_| wal.room(3_900)).collect();
    let left = futures::executor::block_on(async {
        for wait in &mut waits {
            let _ = futures::poll!(wait);
        }
        waits.split_off(50)
    });
    drop(waits);
    for wait in left {
        wait.wait().unwrap();
    }
    wal.close().wait().unwrap();
}

/// Notes that it was woken.
#[derive(Default)]
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Story: a task waited for room for a record longer than the limit of pending bytes, which fits only while nothing is pending. In a
/// log that others kept busy all later waits for room, however short, waited with it: it was the first, and none was woken before it.
#[test]
fn a_long_record_that_waits_for_room_holds_no_short_one_back() {
    let ran = World::new(1).disk(Profile::nand()).stalls_ppm(0).run(async |engine| {
        // Each record has a group of its length.
        let options = Options::new().segment_bytes(8 << 20).pending_bytes_max(12_000).group_bytes_max(4_096);
        let (wal, _) = Wal::open(&engine, "/log", options.log_id(7)).await.unwrap();
        let (noted, appended, woken_at) = (Arc::new(WakeFlag::default()), Cell::new(0), Cell::new(None));
        // Two records at any time, so that bytes are pending after each write.
        let appends = async || {
            for _ in 0..100 {
                wal.append(&[7u8; 4_000]).await.unwrap();
                appended.set(appended.get() + 1);
                if woken_at.get().is_none() && noted.0.load(Ordering::Relaxed) {
                    woken_at.set(Some(appended.get()));
                }
            }
        };
        let mut busy = pin!(join(appends(), appends()));
        assert!(futures::poll!(busy.as_mut()).is_pending());
        let waker = Waker::from(noted.clone());
        let mut context = Context::from_waker(&waker);
        let (mut long, mut short) = (wal.room(40_000), wal.room(5_000));
        assert!(futures::poll!(&mut long).is_pending(), "8,000 bytes are pending");
        assert!(Pin::new(&mut short).poll(&mut context).is_pending(), "8,000 bytes are pending");
        busy.await;
        // The first write leaves room for the short record, and only the last leaves nothing pending.
        let is_early = woken_at.get().is_some_and(|appended| appended < 100);
        assert!(is_early, "woken after {:?} appends", woken_at.get());
        short.await.unwrap();
        long.await.unwrap();
        wal.close().await.unwrap();
    });
    ran.unwrap();
}

fn all_blocks(engine: &Engine) -> Vec<BlockMut> {
    let blocks = |bytes| std::iter::from_fn(move || engine.block(bytes).ok());
    [1 << 20, 64 << 10, 4096].into_iter().flat_map(blocks).collect()
}

/// Story: a program held all I/O memory, and a record was not queued, as the write of one before it was to give some back. `room` said at
/// once that there was room: the loop of a task on the log's shard tried again and again, and that write never came.
#[test]
fn a_wait_for_room_waits_for_memory() {
    let config = Config::new().shards(1).arena_bytes(8 << 20).arena_bytes_max(8 << 20).overflow_bytes_max(0);
    let (engine, dir) = (Engine::start(config).expect("an engine"), dir());
    let (owned, path) = (engine.clone(), dir.path().to_path_buf());
    // The thread of this shard writes the log's groups, whenever the task waits.
    let ran = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let options = Options::new().segment_bytes(1 << 20).own_thread(false).recent_bytes(0);
        let (wal, _) = Wal::open(&owned, &path, options).await.unwrap();
        let first = wal.append(&[1; 20_000]).queued().await.unwrap();
        let taken = all_blocks(&owned);
        assert!(wal.try_append(&[2; 20_000]).unwrap().is_none(), "no memory is left");
        let mut room = wal.room(20_000);
        assert!(futures::poll!(&mut room).is_pending(), "nothing was written since");
        room.await.unwrap();
        drop(taken);
        let second = wal.try_append(&[2; 20_000]).unwrap().expect("nothing is pending");
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (Lsn(1), Lsn(2)));
        wal.close().await.unwrap();
    });
    ran.wait().unwrap();
}
