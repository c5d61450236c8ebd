//! Shows: a range is loaded with its second miss and not with its first, in every kind of read, while room is left; bytes are those
//! of the file, also with concurrent writes. How: the files of a made-up machine, and real files with as much room as the test
//! gives. Which pages the page cache keeps is the kernel's choice, so loads are counted by the room that they use.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use super::*;
use crate::{Config, Engine, File, Open};

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

/// Writes the files of a machine of 3,200 MiB with this many free. All of the rest is available, as the kernel says.
fn write(root: &Path, free_mib: u64, refaults: u64) {
    fs::create_dir_all(root.join("proc/self")).unwrap();
    let memory = format!(
        "MemTotal: {} kB\nMemFree: {} kB\nMemAvailable: {} kB\n",
        3200 << 10,
        free_mib << 10,
        3200 << 10
    );
    fs::write(root.join("proc/meminfo"), memory).unwrap();
    fs::write(root.join("proc/vmstat"), format!("workingset_refault_file {refaults}\n")).unwrap();
}

fn loads(free_mib: u64) -> (tempfile::TempDir, Loads) {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), free_mib, 0);
    let loads = Loads::new(root.path());
    (root, loads)
}

/// Looks as a thread of the pool does.
fn look(loads: &Loads, now_ns: u64) -> i64 {
    assert!(loads.begins_look(now_ns));
    assert!(!loads.begins_look(now_ns), "one look at a time");
    loads.look(now_ns);
    loads.room_bytes.load(Ordering::Relaxed)
}

#[test]
fn the_second_miss_of_a_range_loads_it_and_the_first_does_not() {
    let (_root, loads) = loads(1000);
    look(&loads, 1);
    let range = 4096..70_000;
    assert!(!loads.admits(3, &range, &PaidWindow::default(), 0));
    loads.note_miss(3, &range);
    assert!(
        loads.admits(3, &range, &PaidWindow::default(), 0)
            && loads.admits(3, &(8000..9000), &PaidWindow::default(), 0)
    );
    assert!(!loads.admits(4, &range, &PaidWindow::default(), 0), "another file");
    assert!(!loads.admits(3, &(0..5000), &PaidWindow::default(), 0), "its first page has not missed");
    let long = 0..TRY_BYTES_MAX + 1;
    loads.note_miss(3, &long);
    assert!(!loads.admits(3, &long, &PaidWindow::default(), 0), "none that tries would find it");
    assert!(!loads.admits(3, &(7..7), &PaidWindow::default(), 0));
}

/// The story: a file larger than the free memory must not be loaded again and again.
#[test]
fn loads_end_where_the_free_memory_does() {
    let (root, loads) = loads(160);
    let parts = || (0..1000).map(|part| part * MIB..(part + 1) * MIB);
    parts().for_each(|part| loads.note_miss(1, &part));
    assert_eq!(
        parts().filter(|part| loads.admits(1, part, &PaidWindow::default(), 0)).count(),
        0,
        "nothing before the first look"
    );
    // 160 less the reserve of 100, in halves.
    assert_eq!(look(&loads, SECOND), 30 * MIB as i64);
    assert_eq!(parts().filter(|part| loads.admits(1, part, &PaidWindow::default(), 0)).count(), 30);
    assert!(!loads.begins_look(SECOND + LOOK_NS - 1));
    write(root.path(), 130, 0);
    look(&loads, SECOND + LOOK_NS);
    assert_eq!(parts().filter(|part| loads.admits(1, part, &PaidWindow::default(), 0)).count(), 15);
    // Others fill the machine with pages that the kernel calls available.
    write(root.path(), 99, 0);
    assert_eq!(look(&loads, 2 * SECOND), 0);
    fs::remove_file(root.path().join("proc/meminfo")).unwrap();
    assert_eq!(look(&loads, 3 * SECOND), 0, "a system that does not say");
}

/// Story: a device with a read-ahead of 8 MiB. Each of the small reads of a pass was charged for all of it, 10 GiB of room were
/// used up in a twentieth of the time between two looks, and the pass bypassed the page cache for the rest of it.
#[test]
fn reads_that_follow_a_load_take_no_more_room() {
    let (root, loads) = loads(1000);
    let (window, ahead) = (PaidWindow::default(), 8 * MIB);
    let room = look(&loads, SECOND);
    let pages = |first: u64, last: u64| (first..last).map(|page| page * 4096..(page + 1) * 4096);
    loads.note_miss(1, &(0..4 * MIB));
    loads.note_miss(1, &(4 * MIB..8 * MIB));
    loads.note_miss(1, &(64 * MIB..68 * MIB));
    assert!(pages(0, 2048).all(|page| loads.admits(1, &page, &window, ahead)));
    let paid = (4096 + ahead) as i64;
    assert_eq!(room - loads.room_bytes.load(Ordering::Relaxed), paid);
    assert!(!loads.admits(1, &(2048 * 4096..2049 * 4096), &window, ahead), "it has not missed");
    // Elsewhere it is charged again, and so is a return to an earlier place.
    assert!(pages(16_384, 17_000).all(|page| loads.admits(1, &page, &window, ahead)));
    assert!(loads.admits(1, &(0..4096), &window, ahead));
    assert_eq!(room - loads.room_bytes.load(Ordering::Relaxed), 3 * paid);
    write(root.path(), 99, 0);
    look(&loads, SECOND + LOOK_NS);
    assert!(!loads.admits(1, &(4096..8192), &window, ahead), "no room, whatever was paid");
}

#[test]
fn a_page_counts_whole_whatever_is_read_of_it() {
    let (_root, loads) = loads(1000);
    let room = look(&loads, SECOND);
    loads.note_miss(1, &(0..10_000));
    assert!(loads.admits(1, &(4000..4100), &PaidWindow::default(), 0));
    assert_eq!(loads.room_bytes.load(Ordering::Relaxed), room - 8192);
}

#[test]
fn rising_refaults_close_it_for_a_while() {
    let (root, loads) = loads(1000);
    let open = 450 * MIB as i64;
    write(root.path(), 1000, 1_000_000);
    assert_eq!(look(&loads, SECOND), open, "the first count says nothing");
    write(root.path(), 1000, 1_000_064);
    assert_eq!(look(&loads, SECOND + LOOK_NS), open, "a few");
    write(root.path(), 1000, 1_000_200);
    let rise_ns = SECOND + 2 * LOOK_NS;
    assert_eq!(look(&loads, rise_ns), 0);
    assert_eq!(look(&loads, rise_ns + 4 * SECOND), 0);
    assert_eq!(look(&loads, rise_ns + 5 * SECOND), open);
    // A rise during a time without looks does not count now.
    write(root.path(), 1000, 9_000_000);
    assert_eq!(look(&loads, 100 * SECOND), open);
}

/// Story: on a machine with 20 GiB free a reclaimer of idle pages reclaimed some. A read of them closed the loads for five seconds,
/// again and again, so a file that fits was read past the page cache for ever.
#[test]
fn refaults_close_it_where_memory_was_short() {
    let (root, loads) = loads(1000);
    let write = |refaults: u64, steals: u64| {
        let counts =
            format!("workingset_refault_file {refaults}\npgsteal_kswapd {steals}\npgsteal_direct 5\n");
        fs::write(root.path().join("proc/vmstat"), counts).unwrap();
    };
    let open = 450 * MIB as i64;
    write(1000, 700);
    assert_eq!(look(&loads, SECOND), open);
    write(9000, 700);
    assert_eq!(look(&loads, SECOND + LOOK_NS), open, "the kernel takes nothing back");
    write(9000, 701);
    assert_eq!(look(&loads, SECOND + 2 * LOOK_NS), open, "nothing is read again");
    write(9500, 701);
    assert_eq!(look(&loads, SECOND + 3 * LOOK_NS), 0, "it was taken back shortly before");
    look(&loads, 62 * SECOND);
    write(99_000, 701);
    assert_eq!(look(&loads, 62 * SECOND + LOOK_NS), open, "more than a minute ago");
}

#[test]
fn old_numbers_hold_for_little() {
    let (_root, loads) = loads(1000);
    look(&loads, SECOND);
    assert!(loads.begins_look(10 * SECOND));
    assert_eq!(loads.room_bytes.load(Ordering::Relaxed), STALE_BYTES);
    loads.end_look(10 * SECOND, 0);
    assert!(!loads.begins_look(10 * SECOND), "a look that the pool refused is not repeated at once");
}

/// A file of 4 MiB that the page cache does not have, and an engine with `room` for loads.
struct Bench {
    engine: Engine,
    loads: Arc<Loads>,
    named: tempfile::NamedTempFile,
}

impl Bench {
    const BYTES: u64 = 4 * MIB;

    fn new(room: u64) -> Bench {
        let engine = Engine::start(Config::new().shards(1)).unwrap();
        // No look is ever due, so the test sets the room.
        let loads = Arc::new(Loads::new("/"));
        loads.end_look(NEVER - 1, room);
        engine.shared().lock_page_caches().loads = Some(loads.clone());
        let program = std::env::current_exe().unwrap();
        // Next to the build, as `/tmp` is often memory.
        let named = tempfile::NamedTempFile::new_in(program.parent().unwrap()).unwrap();
        fs::write(named.path(), bytes(0..Bench::BYTES)).unwrap();
        named.as_file().sync_all().unwrap();
        let bench = Bench { engine, loads, named };
        let begun = std::time::Instant::now();
        while bench.pages() > 0 {
            assert!(begun.elapsed().as_secs() < 60, "pages stay in the page cache");
            rustix::fs::fadvise(bench.named.as_file(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
            std::thread::yield_now();
        }
        bench
    }

    /// Opens the file. `None` where adaptive files are direct files, or have no direct I/O.
    fn open(&self) -> Option<File> {
        let file = self.engine.open(self.named.path(), Open::write().adaptive()).wait().unwrap();
        if !file.core().may_load() {
            println!("skipped: {:?}", self.engine.health().degraded);
            return None;
        }
        Some(file)
    }

    fn room(&self) -> u64 {
        u64::try_from(self.loads.room_bytes.load(Ordering::Relaxed)).unwrap()
    }

    /// Returns how many pages of the file are in the page cache.
    fn pages(&self) -> usize {
        let fd = self.named.as_file().as_fd();
        let is_cached =
            |page: &u64| super::super::view::is_cached(fd, page * PAGE_BYTES, page * PAGE_BYTES + 1);
        (0..Bench::BYTES / PAGE_BYTES).filter(is_cached).count()
    }
}

/// Returns the bytes of the test file: no two pages are equal.
fn bytes(range: Range<u64>) -> Vec<u8> {
    range.map(|at| ((at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (8 * (at % 8))) as u8).collect()
}

fn parts() -> impl Iterator<Item = Range<u64>> {
    (0..Bench::BYTES / 65_536).map(|part| part * 65_536..(part + 1) * 65_536)
}

/// Reads all of the file once, in one of the ways.
fn pass(file: &File, way: &str) {
    match way {
        "reads of a waiting thread" => {
            parts().for_each(|range| assert!(file.read(range.clone()).wait().unwrap()[..] == bytes(range)));
        }
        "reads of a task" => futures::executor::block_on(async {
            for range in parts() {
                assert!(file.read(range.clone()).await.unwrap()[..] == bytes(range));
            }
        }),
        "a batch" => {
            let results = file.read_many(parts()).wait().unwrap();
            parts().zip(results).for_each(|(range, block)| assert!(block.unwrap()[..] == bytes(range)));
        }
        "a scan" => {
            let mut scan = file.scan().start();
            let mut all = Vec::new();
            while let Some(block) = scan.next().wait() {
                all.extend_from_slice(&block.unwrap());
            }
            assert!(all == bytes(0..Bench::BYTES));
        }
        _ => parts().for_each(|range| {
            let (read, memory) = file.read_into(range.start, vec![0; 65_536]).wait();
            assert!(read.unwrap() == 65_536 && memory == bytes(range));
        }),
    }
}

const WAYS: [&str; 5] =
    ["reads of a waiting thread", "reads of a task", "a batch", "a scan", "reads into memory of the program"];

#[test]
fn the_second_pass_loads_all_of_a_file_that_finds_room() {
    for way in WAYS {
        let bench = Bench::new(100 * MIB);
        let Some(file) = bench.open() else { return };
        pass(&file, way);
        assert_eq!((bench.room(), bench.pages()), (100 * MIB, 0), "{way}: one pass loads nothing");
        // Opened again, it is the same file.
        let Some(again) = bench.open() else { return };
        pass(&again, way);
        // Some reads find their pages in the read-ahead, and are not charged.
        let room = bench.room();
        assert!(room < 100 * MIB, "{way}: {room}");
        pass(&again, way);
        assert!(bench.room() + Bench::BYTES / 4 > room, "{way}: {room}, then {}", bench.room());
    }
}

/// Story: buffered passes over a file larger than memory load it again and again, and evict all other pages for it.
#[test]
fn loads_take_no_more_than_the_room() {
    for way in WAYS {
        for room in [0, MIB] {
            let bench = Bench::new(room);
            let Some(file) = bench.open() else { return };
            (0..4).for_each(|_| pass(&file, way));
            assert!(bench.pages() as u64 * PAGE_BYTES <= room, "{way}: {} pages", bench.pages());
        }
    }
}

/// Such reads never try the page cache, so they would not find what they load.
#[test]
fn whole_blocks_of_the_programs_own_are_not_loaded() {
    let bench = Bench::new(100 * MIB);
    let Some(file) = bench.open() else { return };
    for _ in 0..3 {
        let block = bench.engine.block(65_536).unwrap();
        let (read, block) = file.read_into(0, block).wait();
        assert!(read.unwrap() == 65_536 && block[..] == bytes(0..65_536));
    }
    assert_eq!((bench.room(), bench.pages()), (100 * MIB, 0));
}

/// A read sees each write that had ended before its start, on each path. The stamps fit into one sector, which a device writes
/// atomically.
#[test]
fn loads_beside_direct_writes_bring_no_old_bytes() {
    const WRITES: u64 = 400;
    const PAGES: u64 = 4;
    let bench = Bench::new(1 << 40);
    let Some(file) = bench.open() else { return };
    let (ended, is_over): ([AtomicU64; PAGES as usize], _) = (Default::default(), AtomicBool::new(false));
    let page = |number: u64| number * PAGE_BYTES..(number + 1) * PAGE_BYTES;
    let write = |stamp: u64| -> crate::Result<()> {
        let mut content = vec![0; PAGE_BYTES as usize];
        content[..8].copy_from_slice(&stamp.to_le_bytes());
        file.write(page(stamp % PAGES).start, content).wait()?;
        ended[(stamp % PAGES) as usize].store(stamp, Ordering::SeqCst);
        Ok(())
    };
    (1..=PAGES).try_for_each(write).unwrap();
    std::thread::scope(|scope| {
        for first in 0..3 {
            let (file, ended, is_over) = (&file, &ended, &is_over);
            scope.spawn(move || {
                let mut number = first;
                while !is_over.load(Ordering::SeqCst) {
                    let before = ended[number as usize].load(Ordering::SeqCst);
                    let block = file.read(page(number)).wait().unwrap();
                    let found = block.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).unwrap();
                    assert!(found >= before, "page {number}: {found} after {before}");
                    number = (number + 1) % PAGES;
                }
            });
        }
        let written = (PAGES + 1..=WRITES).try_for_each(write);
        is_over.store(true, Ordering::SeqCst);
        written.unwrap();
    });
    for number in 0..PAGES {
        let block = file.read(page(number)).wait().unwrap();
        let last = ended[number as usize].load(Ordering::SeqCst);
        assert_eq!(block[..8], last.to_le_bytes(), "page {number}");
    }
}
