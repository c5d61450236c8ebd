//! Memory that a device may still write is never freed and never used for anything else.
//!
//! Regression: closing a ring does not wait. A loop that dropped its ring with 64 reads in flight saw all 64
//! land in memory after `drop` had returned, in memory that it had meanwhile reused. The first test shows it
//! on a bare ring; the others play the same scenes with Forebay.

use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use crate::common::{self, config, dir};
use crate::stuck_file::StuckFile;
use forebay::{Class, Config, Engine, Open, shard};

/// The bytes that the device writes, and those that the program writes: one byte out of place shows.
const DEVICE: u8 = 0x11;
const PROGRAM: u8 = 0xEE;

const READ_BYTES: u64 = 256 << 10;
const FILE_BYTES: u64 = 32 << 20;

fn file_of_device_bytes(dir: &tempfile::TempDir) -> std::path::PathBuf {
    let path = dir.path().join("device");
    std::fs::write(&path, vec![DEVICE; FILE_BYTES as usize]).unwrap();
    // On the device, so that direct reads read from it.
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    path
}

/// Informational: whether reads land after the drop depends on the kernel and the device, but that they may
/// is why everything else here exists.
#[test]
fn closing_a_bare_ring_does_not_wait() {
    use io_uring::{IoUring, opcode, types};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    const READS: usize = 64;
    let dir = dir();
    let path = file_of_device_bytes(&dir);
    let file = std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(&path);
    let (Ok(file), Ok(mut ring)) = (file, IoUring::new(128)) else {
        println!("no O_DIRECT or no io_uring here: nothing to see");
        return;
    };
    let layout = std::alloc::Layout::from_size_align(READS * READ_BYTES as usize, 1 << 21).unwrap();
    // SAFETY: the size is not zero; the memory is leaked on purpose, because the device may write it at any time.
    let memory = unsafe { std::alloc::alloc(layout) };
    // SAFETY: all of it is ours.
    unsafe { memory.write_bytes(PROGRAM, layout.size()) };
    let last_byte = |read: usize| {
        // SAFETY: inside the memory; volatile, because the device writes it behind the compiler's back.
        unsafe { memory.add((read + 1) * READ_BYTES as usize - 1).read_volatile() }
    };
    for read in 0..READS {
        let entry = opcode::Read::new(
            types::Fd(file.as_raw_fd()),
            // SAFETY: inside the memory.
            unsafe { memory.add(read * READ_BYTES as usize) },
            READ_BYTES as u32,
        )
        .offset(read as u64 * READ_BYTES)
        .build();
        // SAFETY: the memory is never freed, the file lives until the end.
        unsafe { ring.submission().push(&entry).unwrap() };
    }
    ring.submit().unwrap();
    drop(ring);
    let late: Vec<usize> = (0..READS).filter(|&read| last_byte(read) != DEVICE).collect();
    let deadline = Instant::now() + Duration::from_secs(2);
    while late.iter().any(|&read| last_byte(read) != DEVICE) && Instant::now() < deadline {
        std::thread::yield_now();
    }
    let landed = late.iter().filter(|&&read| last_byte(read) == DEVICE).count();
    println!(
        "{} of {READS} reads were in flight when drop returned, {landed} of them landed later",
        late.len()
    );
}

/// Returns settings with arena memory, and with ordinary memory (an arena of nothing), which after a use
/// after free any allocation could receive.
fn memories() -> [Config; 2] {
    [
        config().arena_bytes(8 << 20).arena_bytes_max(8 << 20),
        config().arena_bytes(0).arena_bytes_max(0).overflow_bytes_max(16 << 20),
    ]
}

/// Reads are dropped while the device has them, and other buffers are allocated immediately, on the same shard, whose last freed
/// buffer is handed out first.
///
/// Seen to fail in the first two rounds, on both drivers, when `Shard::drop_op` released the buffer of an
/// operation in flight.
#[test]
fn memory_of_dropped_reads_is_not_used_while_the_device_writes() {
    let dir = dir();
    let path = file_of_device_bytes(&dir);
    for config in memories() {
        let engine = Engine::start(config.shards(1)).unwrap();
        let file = engine.open(&path, Open::read()).wait().unwrap();
        let inner = engine.clone();
        let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            // A read that has ended when it is dropped shows nothing.
            let (mut in_flight_at_drop, mut round) = (0, 0u64);
            while round < 60 || in_flight_at_drop <= 60 {
                let mut reads: Vec<_> = (0..8)
                    .map(|n| {
                        let start = (round * 8 + n) * READ_BYTES % FILE_BYTES;
                        file.read(start..start + READ_BYTES).into_future()
                    })
                    .collect();
                let mut context = Context::from_waker(Waker::noop());
                for read in &mut reads {
                    assert!(Pin::new(read).poll(&mut context).is_pending());
                }
                // The turn ends, and the reads are in flight at the device.
                shard::yield_now().await;
                in_flight_at_drop += reads
                    .iter_mut()
                    .filter_map(|read| Pin::new(read).poll(&mut context).is_pending().then_some(()))
                    .count();
                drop(reads);
                let mut blocks = Vec::new();
                for _ in 0..4 {
                    let mut block = inner.block(READ_BYTES as usize).unwrap();
                    block.fill(PROGRAM);
                    blocks.push(block);
                }
                // Until the dropped reads have ended for certain.
                for _ in 0..4 {
                    file.read(0..READ_BYTES).await.unwrap();
                }
                for block in &blocks {
                    assert!(
                        block.iter().all(|&byte| byte == PROGRAM),
                        "round {round}: the device wrote into a block"
                    );
                }
                round += 1;
            }
        });
        task.wait().unwrap();
        assert_eq!(engine.stats().wait().unwrap().shards[0].stray_completions, 0);
        assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
    }
}

/// The engine ends with reads in flight whose futures were dropped, or are still held elsewhere: closing waits for them, and memory
/// that is handed out afterwards stays as it is.
#[test]
fn an_engine_that_ends_leaves_nothing_to_be_written_to() {
    let dir = dir();
    let path = file_of_device_bytes(&dir);
    for config in memories() {
        for round in 0..10 {
            let engine = Engine::start(config.clone().shards(1)).unwrap();
            let file = engine.open(&path, Open::read()).wait().unwrap();
            let mut mine = engine.block(READ_BYTES as usize).unwrap();
            mine.fill(PROGRAM);
            let mut reads: Vec<_> =
                (0..16).map(|n| file.read(n * READ_BYTES..(n + 1) * READ_BYTES).into_future()).collect();
            let mut context = Context::from_waker(Waker::noop());
            for read in &mut reads {
                let _ = Pin::new(read).poll(&mut context);
            }
            // The shard has received the reads when it has replied to this.
            engine.nop().wait().unwrap();
            if round % 2 == 0 {
                reads.clear();
            }
            assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
            let others: Vec<Vec<u8>> = (0..16).map(|_| vec![PROGRAM; READ_BYTES as usize]).collect();
            for read in &mut reads {
                let answer = Pin::new(read).poll(&mut context);
                assert!(answer.is_ready(), "every future has its answer when close has");
            }
            drop(reads);
            assert!(mine.iter().all(|&byte| byte == PROGRAM));
            assert!(others.iter().flatten().all(|&byte| byte == PROGRAM));
        }
    }
}

/// A device that does not complete: the deadline passes, the memory is leaked, and a later completion affects no other memory.
///
/// Seen to fail on both drivers (another thread's memory held device bytes) when `Shard::leak_in_flight`
/// dropped the buffers instead of forgetting them.
#[test]
fn what_a_device_writes_after_the_deadline_hits_nobody() {
    const READS: usize = 4;
    let dir = dir();
    let stuck = match StuckFile::mount(dir.path()) {
        Ok(stuck) => stuck,
        Err(why) => return println!("skipped: a file that hangs cannot be had here: {why}"),
    };
    for config in memories() {
        let config = config.shards(1).shutdown_deadline(Duration::from_millis(100));
        let engine = Engine::start(config).unwrap();
        let file = engine.open(stuck.path(), Open::read()).wait().unwrap();
        let mut reads: Vec<_> =
            (0..READS as u64).map(|n| file.read(n * 65536..(n + 1) * 65536).into_future()).collect();
        let mut context = Context::from_waker(Waker::noop());
        for read in &mut reads {
            assert!(Pin::new(read).poll(&mut context).is_pending());
        }
        let hanging = stuck.wait_for(READS);
        // One future is dropped before the end, the others are notified.
        drop(reads.pop());
        let report = engine.close().wait().unwrap();
        assert_eq!(report.leaked_operations, READS);
        for read in &mut reads {
            let std::task::Poll::Ready(Err(error)) = pin!(read).poll(&mut context) else {
                panic!("the future of a leaked read must be told");
            };
            assert_eq!(error.kind(), forebay::ErrorKind::EngineClosed);
        }
        drop(reads);
        drop(file);
        // Memory freed on the shard's thread is handed to threads that start after it has ended.
        let together = std::sync::Barrier::new(4);
        let others: Vec<Vec<Page>> = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    let pages = (0..16 * READS).map(|_| Page::of(PROGRAM)).collect();
                    together.wait();
                    pages
                })
            });
            threads.map(|thread| thread.join().unwrap()).into()
        });
        let second = Engine::start(common::config().shards(1)).unwrap();
        let blocks: Vec<_> = (0..64)
            .map(|_| {
                let mut block = second.block(65536).unwrap();
                block.fill(PROGRAM);
                block
            })
            .collect();
        for read in &hanging {
            stuck.answer(read, DEVICE);
        }
        let untouched = others.iter().flatten().all(|page| page.0.0.iter().all(|&byte| byte == PROGRAM));
        assert!(untouched, "the device wrote into freed memory");
        assert!(blocks.iter().all(|block| block.iter().all(|&byte| byte == PROGRAM)));
    }
}

/// Memory of the size and alignment of a read's buffer.
#[repr(align(4096))]
struct AlignedBytes([u8; 65536]);

struct Page(Box<AlignedBytes>);

impl Page {
    fn of(value: u8) -> Page {
        let mut page = Box::<AlignedBytes>::new_uninit();
        // SAFETY: every byte of the box's own memory is written, and any bytes make a valid array.
        unsafe {
            page.as_mut_ptr().cast::<u8>().write_bytes(value, 65536);
            Page(page.assume_init())
        }
    }
}
