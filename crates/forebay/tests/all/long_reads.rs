//! Shows: reads of any length end with I/O memory of any size, and do not wait for memory that is never released. How: I/O memory
//! of a megabyte with reads of half to five times of it, from threads, tasks of Tokio and tasks on shards (in worlds:
//! `forebay-sim`); and a few lengths around 512 MiB and 1 GiB as they are.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use forebay::{BlockMut, Class, Config, DriverChoice, Engine, ErrorKind, File, Open};

use crate::common::{bytes_of, config, dir};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The I/O memory of these engines.
const ARENA: u64 = MIB;
/// A longer call hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const GIB: u64 = 1 << 30;

/// Returns the settings of an engine with [`ARENA`] of I/O memory, for the driver of this run and for the other one.
fn configs() -> Vec<Config> {
    let small =
        |config: Config| config.shards(2).arena_bytes_max(ARENA as usize).overflow_bytes_max(256 << 10);
    let threads = Config::new().driver(DriverChoice::Threads).wait_calls(false);
    vec![small(config()), small(threads)]
}

/// Returns a part of the common contents of all these files. Made once: test builds are slow at that.
fn part(range: Range<u64>) -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    &BYTES.get_or_init(|| bytes_of(0..12 * MIB))[range.start as usize..range.end as usize]
}

fn place(len: u64) -> (tempfile::TempDir, PathBuf) {
    let dir = dir();
    let path = dir.path().join("file");
    std::fs::write(&path, part(0..len)).unwrap();
    (dir, path)
}

fn modes() -> [Open; 3] {
    [Open::read(), Open::read().buffered(), Open::read().adaptive()]
}

/// Runs `work` on separate threads; panics if one does not end.
fn all_end(what: &str, work: impl IntoIterator<Item = Box<dyn FnOnce() + Send>>) {
    let (sender, ended) = mpsc::channel();
    let mut threads = 0;
    for (number, work) in work.into_iter().enumerate() {
        threads += 1;
        let sender = sender.clone();
        std::thread::spawn(move || {
            work();
            sender.send(number).expect("the test is there");
        });
    }
    drop(sender);
    for _ in 0..threads {
        match ended.recv_timeout(PATIENCE) {
            Ok(_) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: a thread waits for ever"),
            Err(mpsc::RecvTimeoutError::Disconnected) => panic!("{what}: a thread failed"),
        }
    }
}

fn check(file: &File, range: Range<u64>, result: forebay::Result<forebay::Block>) {
    let what = format!("{range:?} of {:?}", file.mode());
    let block = result.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(block[..] == *part(range), "{what}: {} bytes, which differ", block.len());
}

/// Regression: eight threads that read 33 MiB each with 40 MiB of I/O memory (the default in a container of 160 MiB) waited for
/// ever, although no thread held a block: a read that lacked memory counted the reads queued behind it as holders of memory. At
/// this length, because they were in the queue of the device.
#[test]
fn threads_that_read_most_of_io_memory_end() {
    let (_dir, path) = place(8 * MIB);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(48 * MIB).unwrap();
    let engine = Engine::start(config().arena_bytes_max(40 << 20)).unwrap();
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let reads = (0..8).map(|_| {
        let file = file.clone();
        let work = move || {
            for start in [0, 4096, 8192] {
                let block = file.read(start..start + 33 * MIB).wait().unwrap();
                assert!(block.len() as u64 == 33 * MIB && block[..7 << 20] == *part(start..start + 7 * MIB));
            }
        };
        Box::new(work) as Box<dyn FnOnce() + Send>
    });
    all_end("reads of 33/40 of I/O memory", reads);
}

/// The lengths of reads, around the limits that I/O memory has.
fn lengths() -> Vec<u64> {
    [20, 33, 52, 160].map(|part| ARENA * part / 40 - 7).to_vec()
}

/// As [`threads_that_read_most_of_io_memory_end`], for all lengths and ways to read.
#[test]
fn reads_of_up_to_four_times_io_memory_end_from_threads_tasks_and_shards() {
    let (_dir, path) = place(5 * MIB);
    for config in configs() {
        let engine = Engine::start(config).unwrap();
        for open in modes() {
            let file = engine.open(&path, open).wait().unwrap();
            let on_threads = (0..4).map(|thread| {
                let file = file.clone();
                let work = move || {
                    for (number, len) in lengths().into_iter().enumerate() {
                        let start = number as u64 * 1000 * thread;
                        check(&file, start..start + len, file.read(start..start + len).wait());
                    }
                };
                Box::new(work) as Box<dyn FnOnce() + Send>
            });
            let (tasks, shared) = (file.clone(), engine.clone());
            let in_tasks = Box::new(move || {
                let mut builder = tokio::runtime::Builder::new_multi_thread();
                let runtime = builder.worker_threads(2).enable_all().build().unwrap();
                runtime.block_on(async {
                    let mut set = tokio::task::JoinSet::new();
                    for number in 0..4 {
                        set.spawn(read_in_every_way(tasks.clone(), number));
                    }
                    set.join_all().await;
                });
            });
            let on_shards = file.clone();
            let on_shards = Box::new(move || {
                let task = |number: usize| {
                    let file = on_shards.clone();
                    shared.spawn_on_shard(number % 2, Class::DEFAULT, move || {
                        read_in_every_way(file, number as u64)
                    })
                };
                for task in (0..2).map(task).collect::<Vec<_>>() {
                    task.wait().unwrap();
                }
            });
            all_end("reads of all lengths", on_threads.chain([in_tasks as Box<_>, on_shards as Box<_>]));
        }
        let memory = engine.memory();
        assert_eq!((memory.held_bytes, memory.result_bytes), (0, 0), "{memory:?}");
    }
}

/// Regression: two requests of a batch into the program's memory that found no I/O memory for their copies withdrew each other's
/// turn to be read with ordinary memory, for ever, which occupied the thread.
#[test]
fn copies_of_a_batch_that_find_no_memory_take_turns() {
    let (_dir, path) = place(5 * MIB);
    for config in configs() {
        let engine =
            Engine::start(config.arena_bytes(2 << 20).arena_bytes_max(2 << 20).overflow_bytes_max(0))
                .unwrap();
        let file = engine.open(&path, Open::read()).wait().unwrap();
        let held: Vec<_> = (0..8).map(|_| engine.block(256 << 10).unwrap()).collect();
        let work = move || {
            let ranges = [1..9, MIB + 1..MIB + 9, 2 * MIB + 1..2 * MIB + 9];
            let memory = BlockMut::aligned(24).unwrap();
            let (result, memory) = file.read_many(ranges.clone()).into_memory(memory).wait();
            result.unwrap();
            assert!(ranges.into_iter().zip(memory.chunks(8)).all(|(range, bytes)| bytes == part(range)));
        };
        all_end("copies of a batch", [Box::new(work) as Box<_>]);
        drop(held);
    }
}

async fn read_in_every_way(file: File, number: u64) {
    for len in lengths() {
        let range = number * 512..number * 512 + len;
        check(&file, range.clone(), file.read(range.clone()).await);
        let mut results = file.read_many([range.clone(), 5..6]).await.unwrap();
        // A short one may find that operations of others have all memory of the arena.
        if let Err(error) = results.pop().unwrap() {
            assert!(matches!(error.kind(), ErrorKind::ArenaExhausted { .. }), "{error}");
        }
        check(&file, range.clone(), results.pop().unwrap());
        drop(results);
        for into_vector in [false, true] {
            let memory = BlockMut::aligned(len as usize + 8).unwrap();
            if !into_vector {
                let (result, memory) = file.read_many([range.clone(), 1..9]).into_memory(memory).await;
                result.unwrap();
                assert!(
                    memory[..len as usize] == *part(range.clone()) && memory[len as usize..] == *part(1..9)
                );
            } else {
                let (read, bytes) = file.read_into(range.start, vec![0; len as usize]).await;
                assert_eq!(read.unwrap() as u64, len);
                assert!(bytes == part(range.clone()));
            }
        }
    }
}

/// Regression: a lone read of 130 MiB with 160 MiB of I/O memory failed with "live blocks hold 0 bytes", since buffers are powers of two.
#[test]
fn a_lone_read_needs_no_power_of_two() {
    let (_dir, path) = place(5 * MIB);
    for config in configs() {
        let engine = Engine::start(config.arena_bytes_max(5 << 18)).unwrap();
        for open in modes() {
            let file = engine.open(&path, open).wait().unwrap();
            for len in [ARENA * 13 / 16, ARENA + 1, ARENA * 5 / 4, 4 * ARENA + 5] {
                check(&file, 9..9 + len, file.read(9..9 + len).wait());
                check(&file, 9..9 + len, file.read_up_to(9..9 + len).wait());
            }
        }
    }
}

/// Regression: a range of more than half of I/O memory failed in a batch with "live blocks hold 0 bytes", and one of more than 1 GiB
/// always: lengths of today's tables of embeddings.
#[test]
fn a_batch_takes_ranges_of_any_length() {
    let (_dir, path) = place(12 * MIB);
    for config in configs() {
        let engine = Engine::start(config).unwrap();
        for open in modes() {
            let file = engine.open(&path, open).wait().unwrap();
            for len in [513 * KIB, MIB + 1, 9 * MIB + 77] {
                let ranges = [1536..1536 + len, 8192..12_288, 0..len, 0..10, 4097..4097 + len, 77..77];
                for (range, result) in ranges.iter().zip(file.read_many(ranges.clone()).wait().unwrap()) {
                    check(&file, range.clone(), result);
                }
                let mut stream = file.read_many(ranges.clone()).stream();
                let mut results = 0;
                while let Some((number, result)) = stream.next().wait() {
                    check(&file, ranges[number].clone(), result);
                    results += 1;
                }
                assert_eq!(results, ranges.len());
                let expected = ranges.clone().map(part).concat();
                for skip in [0, 5] {
                    let bytes = vec![0; expected.len() + skip];
                    let (result, bytes) = file.read_many(ranges.clone()).into_memory(bytes).wait();
                    result.unwrap();
                    assert!(bytes[..expected.len()] == expected[..], "{len} bytes into memory");
                }
            }
            // Past the end of the file a long range fails alone.
            let ends = file.read_many([0..13 * MIB, 3..4, 14 * MIB..20 * MIB]).wait().unwrap();
            let kinds: Vec<_> =
                ends.iter().map(|result| result.as_ref().err().map(|error| error.kind())).collect();
            let short = |got| Some(ErrorKind::UnexpectedEof { got });
            assert_eq!(kinds, [short(12 * MIB), None, short(0)]);
        }
        assert_eq!(engine.memory().result_bytes, 0);
    }
}

/// A sparse file of `len` bytes with known bytes at some places.
fn sparse(len: u64) -> (tempfile::TempDir, PathBuf, Vec<u64>) {
    use std::os::unix::fs::FileExt as _;
    let dir = dir();
    let path = dir.path().join("sparse");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(len).unwrap();
    let places: Vec<u64> = (0..len).step_by(97 << 20).chain([len - 8]).collect();
    for &place in &places {
        file.write_all_at(&(place ^ 0x55).to_le_bytes(), place).unwrap();
    }
    (dir, path, places)
}

fn check_sparse(bytes: &[u8], start: u64, places: &[u64]) {
    for &place in places.iter().filter(|place| **place >= start) {
        let at = (place - start) as usize;
        if let Some(found) = bytes.get(at..at + 8) {
            assert_eq!(found, (place ^ 0x55).to_le_bytes(), "at {place}");
        }
    }
}

/// As [`a_batch_takes_ranges_of_any_length`], with the lengths at which it failed.
fn long_range(len: u64, open: Open) {
    let (_dir, path, places) = sparse(len + 5000);
    let engine = Engine::start(config()).unwrap();
    let file = engine.open(&path, open).wait().unwrap();
    let blocks = file.read_many(std::iter::once(1536..1536 + len)).wait().unwrap();
    let block = blocks.into_iter().next().unwrap().unwrap();
    assert_eq!(block.len() as u64, len);
    check_sparse(&block, 1536, &places);
    drop(block);
    let bytes = Vec::with_capacity(len as usize);
    let (result, bytes) = file
        .read_many(std::iter::once(1536..1536 + len))
        .into_memory({
            let mut bytes: Vec<u8> = bytes;
            bytes.resize(len as usize, 1);
            bytes
        })
        .wait();
    result.unwrap();
    check_sparse(&bytes, 1536, &places);
}

#[test]
fn a_range_of_513_mib() {
    long_range(513 * MIB, Open::read());
}

#[test]
#[ignore = "10 s, and 1 GiB of memory: the same with other numbers is in a_batch_takes_ranges_of_any_length"]
fn a_range_of_one_byte_more_than_1_gib() {
    long_range(GIB + 1, Open::read());
    long_range(GIB + 1, Open::read().adaptive());
}

#[test]
#[ignore = "20 s, and 5 GiB of memory"]
fn a_range_of_5_gib() {
    long_range(5 * GIB, Open::read());
}

/// A read returns one block, whose limit is documented and in the error.
#[test]
fn a_read_of_one_block_names_its_limit() {
    let (_dir, path, _) = sparse(GIB + 5000);
    let engine = Engine::start(config()).unwrap();
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let error = file.read(0..GIB + 1).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge { limit: GIB });
    let text = error.to_string();
    assert!(
        text.contains("1073741824") && text.contains("read_many") && text.contains("read_into"),
        "{text}"
    );
}
