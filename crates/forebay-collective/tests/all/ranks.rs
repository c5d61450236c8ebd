//! Ranks that write and read a file together: any views, one host or several, and the ways in which calls can differ. Each rank is
//! a thread with its own engine; `rank_kills` has processes.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use forebay::{Durability, Engine, ErrorKind, File, Lock, Open, Result};
use forebay_collective::{Options, Rank, Ranks, View};
use forebay_test::draw::Random;
use forebay_test::ports::free_port;

use crate::common::{assert_file, bytes_of, dir, engine};

/// Windows of 1 MiB.
fn options() -> Options {
    Options::new().memory_bytes_max(4 << 20)
}

/// Runs `size` ranks, which are on this many hosts in turn.
fn on_ranks<T: Send>(
    dir: &Path,
    (size, hosts): (u32, u32),
    options: Options,
    work: impl Fn(&Engine, &mut Ranks, u64) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let start = |number: u32| {
            let work = &work;
            scope.spawn(move || {
                let engine = engine();
                let rank = Rank::new(number, size).host(&format!("host-{}", number % hosts));
                let mut ranks = Ranks::meet(&rank, dir, options).wait().unwrap();
                work(&engine, &mut ranks, number.into())
            })
        };
        let threads: Vec<_> = (0..size).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn open(engine: &Engine, path: &Path, open: Open) -> File {
    engine.open(path, open).wait().unwrap()
}

fn bytes_of_all(ranges: &[Range<u64>]) -> Vec<u8> {
    ranges.iter().map(|range| bytes_of(range.clone())).collect::<Vec<_>>().concat()
}

#[test]
fn strided_records_of_all_ranks_become_large_writes() {
    const RECORD: u64 = 47_008;
    const RECORDS: u64 = 120;
    const LENGTH: u64 = RECORDS * RECORD;
    let dir = dir();
    let path = dir.path().join("strided");
    for mode in [Open::create(), Open::create().buffered()] {
        for (size, hosts, of_host) in [(1, 1, 1), (3, 1, 0), (3, 1, 9), (4, 2, 1), (5, 2, 2), (5, 5, 1)] {
            let what = format!("{size} ranks on {hosts} hosts with {of_host} aggregators each, {mode:?}");
            std::fs::write(&path, b"").unwrap();
            let options = options().aggregators(of_host);
            let requests = on_ranks(dir.path(), (size, hosts), options, |engine, ranks, number| {
                let file = open(engine, &path, mode);
                let size = u64::from(size);
                let count = (RECORDS - number).div_ceil(size);
                let view = View::vector(number * RECORD, RECORD, size * RECORD, count).unwrap();
                let records = (0..count).map(|record| (number + record * size) * RECORD);
                let ranges: Vec<_> = records.map(|start| start..start + RECORD).collect();
                ranks.write(&file, &view, bytes_of_all(&ranges), Durability::Data).wait().unwrap();
                // All read the same range, and then a different range each.
                for range in [0..LENGTH, number * 100..number * 300 + 50] {
                    let found = ranks.read(&file, &View::range(range.clone()).unwrap()).wait().unwrap();
                    assert!(found == bytes_of(range.clone()), "{what}: {range:?} of rank {number}");
                }
                let stats = ranks.stats();
                assert_eq!(stats.taken_bytes, view.bytes(), "{what}");
                assert_eq!(stats.read_requests, 0, "{what}: nothing was there to be read");
                assert!(
                    number < u64::from(hosts) * of_host.max(1) as u64 || stats.write_requests == 0,
                    "{what}: rank {number} is no aggregator"
                );
                stats.write_requests
            });
            assert_file(&path, &bytes_of(0..LENGTH), &what);
            assert!(requests.iter().sum::<u64>() <= LENGTH.div_ceil(512 << 10), "{what}: {requests:?}");
            assert_eq!(
                std::fs::read_dir(dir.path()).unwrap().count(),
                1,
                "{what}: the invitation is removed"
            );
        }
    }
}

/// Ranks did not meet in a directory whose name is not UTF-8: rank 0 wrote its invitation into one of another name, which does not exist.
#[test]
fn ranks_meet_in_a_directory_of_any_name() {
    let dir = dir();
    let meeting = dir.path().join(OsStr::from_bytes(b"r\xe9sultats"));
    std::fs::create_dir(&meeting).unwrap();
    let numbers = on_ranks(&meeting, (2, 1), options(), |_, ranks, _| ranks.rank().number());
    assert_eq!(numbers, [0, 1]);
    assert_eq!(std::fs::read_dir(&meeting).unwrap().count(), 0, "the invitation is removed");
}

/// Views drawn from seeds: pieces of any lengths with holes between them, over a file that ends in their middle.
#[test]
fn any_views_equal_writes_one_by_one() {
    let dir = dir();
    let path = dir.path().join("drawn");
    for (seed, size, hosts) in [(1, 2, 1), (2, 4, 1), (3, 4, 3), (4, 6, 2)] {
        let what = format!("seed {seed}: {size} ranks on {hosts} hosts");
        let mut random = Random(seed);
        let length = 2_500_000 + random.below(1_000_000);
        let mut model = random.bytes(length);
        std::fs::write(&path, &model).unwrap();
        let mut parts: Vec<(Vec<Range<u64>>, Vec<u8>)> = vec![Default::default(); size as usize];
        let mut at = random.below(9_000);
        while at < 6_000_000 {
            let longest = [3, 700, 5_000, 40_000, 1_500_000][random.below(5) as usize];
            let end = at + 1 + random.below(longest);
            // A number beyond the ranks leaves the range to no rank.
            let owner = random.below(u64::from(size) + 2) as usize;
            if let Some((ranges, given)) = parts.get_mut(owner) {
                let bytes = random.bytes(end - at);
                model.resize(model.len().max(end as usize), 0);
                model[at as usize..end as usize].copy_from_slice(&bytes);
                ranges.push(at..end);
                given.extend(bytes);
            }
            at = end;
        }
        let (parts, model) = (&parts, &model);
        on_ranks(dir.path(), (size, hosts), options().aggregators(seed as usize), |engine, ranks, number| {
            let file = open(engine, &path, Open::write());
            let (ranges, given) = &parts[number as usize];
            let view = View::pieces(ranges.iter().cloned()).unwrap();
            ranks.write(&file, &view, given.clone(), Durability::None).wait().unwrap();
            let mut random = Random(seed * 1_000 + number);
            let (mut wanted, mut at) = (Vec::new(), 0);
            while at < model.len() as u64 {
                let end = (at + random.below(60_000)).min(model.len() as u64);
                wanted.push(at..end);
                at = end + random.below(300_000);
            }
            let expected: Vec<u8> = wanted
                .iter()
                .flat_map(|range| model[range.start as usize..range.end as usize].to_vec())
                .collect();
            let found = ranks.read(&file, &View::pieces(wanted).unwrap()).wait().unwrap();
            assert!(found == expected, "{what}: rank {number} reads other bytes");
        });
        assert_file(&path, model, &what);
    }
}

/// Regression test by design: one message for each window between two pieces would last hours here.
#[test]
fn a_sparse_view_costs_its_pieces_alone() {
    const FAR: u64 = 1 << 40;
    let dir = dir();
    let path = dir.path().join("sparse");
    on_ranks(dir.path(), (2, 2), options(), |engine, ranks, number| {
        let file = open(engine, &path, Open::create());
        let start = number * 5_000;
        let view = View::pieces([start..start + 5_000, FAR + start..FAR + start + 5_000]).unwrap();
        ranks.write(&file, &view, vec![7 + number as u8; 10_000], Durability::None).wait().unwrap();
    });
    let file = std::fs::File::open(&path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), FAR + 10_000);
    for start in [0, FAR] {
        let mut found = vec![0; 10_000];
        file.read_exact_at(&mut found, start).unwrap();
        assert!(found == [vec![7; 5_000], vec![8; 5_000]].concat(), "from {start}");
    }
}

/// Runs a call that fails, on three ranks of two hosts, then another one. Each rank's error has these words.
fn fails(words: &str, kind: ErrorKind, call: impl Fn(&mut Ranks, &File, &File, u64) -> Result<()> + Sync) {
    let dir = dir();
    let [path, other] = ["one", "other"].map(|name| dir.path().join(name));
    let options = options().deadline(Duration::from_secs(20));
    on_ranks(dir.path(), (3, 2), options, |engine, ranks, number| {
        let (file, other) = (open(engine, &path, Open::create()), open(engine, &other, Open::create()));
        let start = number * 1_000;
        let view = View::range(start..start + 1_000).unwrap();
        ranks.write(&file, &view, bytes_of(start..start + 1_000), Durability::None).wait().unwrap();
        let error = call(ranks, &file, &other, number).expect_err(words);
        assert_eq!(error.kind(), kind, "rank {number}: {error}");
        assert!(error.to_string().contains(words), "rank {number}: {error}");
        let error = ranks.read(&file, &view).wait().expect_err("ended");
        assert!(error.to_string().contains("had failed before"), "rank {number}: {error}");
    });
    // They meet again, and the file is theirs.
    on_ranks(dir.path(), (3, 1), options, |engine, ranks, number| {
        let file = open(engine, &path, Open::write());
        let found = ranks.read(&file, &View::range(0..3_000).unwrap()).wait().unwrap();
        assert!(found == bytes_of(0..3_000), "rank {number}");
    });
}

#[test]
fn calls_that_differ_fail_on_all_ranks() {
    let view = |range: Range<u64>| View::range(range).unwrap();
    fails(
        "rank 2 reads in call 2, rank 0 writes in call 2",
        ErrorKind::InvalidInput,
        |ranks, file, _, number| {
            if number == 2 {
                return ranks.read(file, &view(0..5)).wait().map(drop);
            }
            ranks.write(file, &view(0..0), &b""[..], Durability::None).wait()
        },
    );
    fails("rank 1 has another file than rank 0", ErrorKind::InvalidInput, |ranks, file, other, number| {
        let file = if number == 1 { other } else { file };
        ranks.write(file, &view(0..0), &b""[..], Durability::None).wait()
    });
    fails("99 bytes are given for a view of 100", ErrorKind::InvalidInput, |ranks, file, _, number| {
        let bytes = vec![1u8; if number == 1 { 99 } else { 100 }];
        ranks.write(file, &view(5_000 + number * 100..5_100 + number * 100), bytes, Durability::None).wait()
    });
    fails("overlap at offset 5199", ErrorKind::InvalidInput, |ranks, file, _, number| {
        let start = 5_000 + number * 100 - number / 2;
        ranks.write(file, &view(start..start + 100), vec![1u8; 100], Durability::None).wait()
    });
    fails("overlap at offset ", ErrorKind::InvalidInput, |ranks, file, _, _| {
        ranks.write(file, &view(0..2_000_000), vec![1u8; 2_000_000], Durability::None).wait()
    });
    let eof = ErrorKind::UnexpectedEof { got: 3_000 };
    fails("rank 1 reads up to offset 3001 of a file of 3000 bytes", eof, |ranks, file, _, number| {
        ranks.read(file, &view(0..if number == 1 { 3_001 } else { 10 })).wait().map(drop)
    });
}

/// A rank with a closed engine had its error alone. The others waited for its call until the deadline, which was the only reason
/// that they got.
#[test]
fn a_closed_engine_ends_the_call_on_all_ranks() {
    let dir = dir();
    let path = dir.path().join("closed");
    on_ranks(dir.path(), (3, 2), options(), |engine, ranks, number| {
        let file = open(engine, &path, Open::create());
        if number == 1 {
            engine.clone().close().wait().unwrap();
        }
        let view = View::range(number * 100..number * 100 + 100).unwrap();
        let error = ranks.write(&file, &view, vec![1u8; 100], Durability::None).wait().expect_err("closed");
        assert_eq!(error.kind(), ErrorKind::EngineClosed, "rank {number}: {error}");
        assert!(error.to_string().contains("the engine ended"), "rank {number}: {error}");
    });
}

/// Two ranks' pieces overlapped in one window by the bytes of a hole in another. Their sum was that of the range, so rank 0 saw no
/// hole and locked nothing, and the page around it was read and written back.
#[test]
fn overlaps_do_not_hide_holes() {
    const END: u64 = 3 << 20;
    let dir = dir();
    let path = dir.path().join("hidden");
    std::fs::write(&path, vec![9; 1 << 20]).unwrap();
    on_ranks(dir.path(), (2, 1), options(), |engine, ranks, number| {
        let file = open(engine, &path, Open::write());
        let view = match number {
            0 => View::pieces([0..1_000, (2 << 20)..(2 << 20) + 1_000]),
            _ => View::range(2_000..END),
        };
        let view = view.unwrap();
        let bytes = vec![1u8; view.bytes() as usize];
        let error = ranks.write(&file, &view, bytes, Durability::None).wait().expect_err("overlap");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "rank {number}: {error}");
        assert!(error.to_string().contains("overlap"), "rank {number}: {error}");
    });
    assert_file(&path, &vec![9; 1 << 20], "the window with the hole is not written");
}

/// While another program has the lock, pages are not written in part: it may write the other part. Whole pages are written.
#[test]
fn holes_wait_for_the_lock() {
    let dir = dir();
    let path = dir.path().join("locked");
    std::fs::write(&path, vec![9; 1 << 20]).unwrap();
    let engine = engine();
    let holder = open(&engine, &path, Open::write());
    holder.try_lock(Lock::Exclusive).wait().unwrap();
    let options = options().deadline(Duration::from_secs(3));
    on_ranks(dir.path(), (2, 2), options, |engine, ranks, number| {
        let file = open(engine, &path, Open::write());
        let whole = View::range(number << 18..(number + 1) << 18).unwrap();
        ranks.write(&file, &whole, vec![1u8; 1 << 18], Durability::None).wait().unwrap();
        let part = View::range(number * 100..number * 100 + 50).unwrap();
        let error = ranks.write(&file, &part, vec![2u8; 50], Durability::None).wait().expect_err("locked");
        // The wait for a lock is counted: a slow machine's may be longer than the deadline of the step.
        assert!(matches!(error.kind(), ErrorKind::Locked | ErrorKind::Elapsed), "rank {number}: {error}");
    });
    holder.unlock().wait().unwrap();
    on_ranks(dir.path(), (2, 2), options, |engine, ranks, number| {
        let file = open(engine, &path, Open::write());
        let part = View::range(number * 100..number * 100 + 50).unwrap();
        ranks.write(&file, &part, vec![2u8; 50], Durability::All).wait().unwrap();
    });
    let mut expected = vec![9; 1 << 20];
    expected[..1 << 19].fill(1);
    [0, 100].into_iter().for_each(|start| expected[start..start + 50].fill(2));
    assert_file(&path, &expected, "parts of a page");
}

/// Takes or releases an OFD lock as another program does; returns whether that was possible.
fn record_lock(file: &std::fs::File, kind: libc::c_int) -> bool {
    // SAFETY: all fields are numbers. A length of 0 at offset 0 is the whole file.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    // SAFETY: the descriptor is open, and the kernel only reads the structure.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, std::ptr::from_ref(&range)) == 0 }
}

/// A program that locks with fcntl(2) was not excluded: it wrote between the read and the write of a page.
#[test]
fn holes_wait_for_locks_of_fcntl() {
    let dir = dir();
    let path = dir.path().join("records");
    std::fs::write(&path, vec![9; 1 << 20]).unwrap();
    let other = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    if !record_lock(&other, libc::F_WRLCK) {
        println!("skipped: no OFD locks here");
        return;
    }
    let part = |number: u64| View::range(number * 100..number * 100 + 50).unwrap();
    on_ranks(dir.path(), (2, 2), options().deadline(Duration::from_secs(1)), |engine, ranks, number| {
        let file = open(engine, &path, Open::write());
        let view = part(number);
        let error = ranks.write(&file, &view, vec![2u8; 50], Durability::None).wait().expect_err("locked");
        assert!(matches!(error.kind(), ErrorKind::Locked | ErrorKind::Elapsed), "rank {number}: {error}");
    });
    assert_file(&path, &[9; 1 << 20], "while another program has the lock");
    assert!(record_lock(&other, libc::F_UNLCK));
    on_ranks(dir.path(), (2, 2), options(), |engine, ranks, number| {
        let file = open(engine, &path, Open::write());
        ranks.write(&file, &part(number), vec![2u8; 50], Durability::None).wait().unwrap();
        assert!(record_lock(&other, libc::F_WRLCK), "released before rank {number} had its result");
    });
    let mut expected = vec![9; 1 << 20];
    [0, 100].into_iter().for_each(|start| expected[start..start + 50].fill(2));
    assert_file(&path, &expected, "parts of a page");
}

/// The file's length was read before the lock was there: bytes that its holder had appended meanwhile became zeros, or were cut off.
#[test]
fn bytes_that_the_holder_of_the_lock_appends_are_kept() {
    let dir = dir();
    let path = dir.path().join("appended");
    std::fs::write(&path, b"").unwrap();
    let own = engine();
    let holder = open(&own, &path, Open::write());
    holder.try_lock(Lock::Exclusive).wait().unwrap();
    let calls = Barrier::new(3);
    thread::scope(|scope| {
        scope.spawn(|| {
            calls.wait();
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&[9; 100], 100).unwrap();
            holder.unlock().wait().unwrap();
        });
        on_ranks(dir.path(), (2, 1), options(), |engine, ranks, number| {
            let file = open(engine, &path, Open::write());
            let view = View::range(number * 50..number * 50 + 50).unwrap();
            calls.wait();
            ranks.write(&file, &view, vec![1u8; 50], Durability::None).wait().unwrap();
        });
    });
    assert_file(&path, &[[1u8; 100], [9; 100]].concat(), "behind the ranks' pieces");
}

/// The padding of a direct write stayed behind a call that failed, and the repeated call treated it as bytes of the file.
#[test]
fn a_failed_call_leaves_no_padding() {
    const TAIL: u64 = 3 << 20;
    let dir = dir();
    let path = dir.path().join("padded");
    on_ranks(dir.path(), (2, 2), options(), |engine, ranks, number| {
        let file = open(engine, &path, Open::create());
        // Rank 0 finds the overlap; rank 1 may have written the end by then.
        let (start, tail) = (number * 500, TAIL + number * 100);
        let view = View::pieces([start..start + 1_000, tail..tail + 100]).unwrap();
        let error =
            ranks.write(&file, &view, vec![1u8; 1_100], Durability::None).wait().expect_err("overlap");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "rank {number}: {error}");
    });
    let length = std::fs::metadata(&path).unwrap().len();
    assert!(length <= TAIL + 200, "{length} bytes");
}

#[test]
fn ranks_that_count_differently_do_not_meet() {
    let dir = dir();
    let meet = |number, size| Ranks::meet(&Rank::new(number, size), dir.path(), options()).wait();
    thread::scope(|scope| {
        let other = scope.spawn(|| meet(1, 3).map(drop));
        let error = meet(0, 2).map(drop).expect_err("rank 1 waits for a rank 2");
        assert!(error.to_string().contains("rank 1 is one of 3 ranks, rank 0 one of 2"), "{error}");
        other.join().unwrap().expect_err("rank 0 has failed");
    });
    assert_eq!(meet(2, 2).map(drop).map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
}

/// Jobs in one directory met each other, though their names differ: letters that a file's name may not have became the same letter,
/// and a name ended after 64 letters.
#[test]
fn jobs_meet_apart_whatever_their_names() {
    let dir = dir();
    let path = dir.path();
    let long = "n".repeat(70);
    let jobs = ["lauf \u{e4}", "lauf \u{f6}", "step_1", "step-1", long.as_str(), &long[..69]];
    thread::scope(|scope| {
        for (index, job) in jobs.into_iter().enumerate() {
            for number in 0..2u64 {
                scope.spawn(move || {
                    let (engine, rank) = (engine(), Rank::new(number as u32, 2).job(job));
                    let mut ranks = Ranks::meet(&rank, path, options()).wait().unwrap();
                    let file = open(&engine, &path.join(index.to_string()), Open::create());
                    let range = number * 5_000..(number + 1) * 5_000;
                    let view = View::range(range.clone()).unwrap();
                    ranks.write(&file, &view, bytes_of(range), Durability::None).wait().unwrap();
                    let found = ranks.read(&file, &View::range(0..10_000).unwrap()).wait().unwrap();
                    assert!(found == bytes_of(0..10_000), "rank {number} of {job}");
                });
            }
        }
    });
}

/// Rank 0 uses the second address, because another program has the first one. Wrong proofs are in `rendezvous`' tests.
#[test]
fn ranks_meet_at_addresses_with_a_secret() {
    let dir = dir();
    let path = dir.path().join("listed");
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let list = [other.local_addr().unwrap(), SocketAddr::from(([127, 0, 0, 1], free_port()))];
    let start = |number: u64| {
        let (engine, rank) = (engine(), Rank::new(number as u32, 3));
        // The others would wait there for a proof.
        let list = if number == 0 { &list[..] } else { &list[1..] };
        let mut ranks = Ranks::meet_at(&rank, list, &[7; 33], options()).wait().unwrap();
        let file = open(&engine, &path, Open::create());
        let range = number * 5_000..(number + 1) * 5_000;
        let view = View::range(range.clone()).unwrap();
        ranks.write(&file, &view, bytes_of(range), Durability::None).wait().unwrap();
    };
    thread::scope(|scope| (0..3).for_each(|number| drop(scope.spawn(move || start(number)))));
    assert_file(&path, &bytes_of(0..15_000), "three ranks");
    let short = Ranks::meet_at(&Rank::new(0, 1), &list, &[7; 31], options()).wait();
    assert_eq!(short.map(drop).map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
    // Ranks other than rank 0 looked for it at no address, for three minutes.
    let nowhere = Ranks::meet_at(&Rank::new(1, 2), &[], &[7; 32], options()).wait();
    assert_eq!(nowhere.map(drop).map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
}

/// A rank with the run's token that does not keep to the protocol is named, and nothing waits for it.
#[test]
fn a_rank_of_another_protocol_is_refused() {
    let dir = dir();
    let all: [(&[u8], &str); 4] = [
        (b"\xc8\x01\x00\x00\x00\x09", "rank 1 sent a message of kind 200 with 1 bytes"),
        (b"\x00\xff\xff\xff\xff", "rank 1 sent a message of kind 0 with 4294967295 bytes"),
        (b"\x00\x02\x00\x00\x00hi", "rank 1 sent \"hi\""),
        (b"\x00", "rank 1 is gone"),
    ];
    for (garbage, reason) in all {
        thread::scope(|scope| {
            let path = dir.path();
            scope.spawn(move || {
                let (_, mut stream) = Rank::new(1, 2).follow(path).unwrap();
                stream.write_all(garbage).unwrap();
                // Until rank 0 closes, which may be before.
                let _ = stream.shutdown(Shutdown::Write);
                let _ = stream.read(&mut [0]);
            });
            let error = Ranks::meet(&Rank::new(0, 2), path, options()).wait().map(drop).expect_err(reason);
            assert!(error.to_string().contains(reason), "{error}");
        });
    }
}

/// A dropped future leaves its call to the others; this rank's next call runs after it.
#[test]
fn a_dropped_call_goes_on() {
    let dir = dir();
    let path = dir.path().join("dropped");
    on_ranks(dir.path(), (2, 1), options(), |engine, ranks, number| {
        let file = open(engine, &path, Open::create());
        let (start, len) = (number * 3_000_000, 3_000_000);
        let view = View::range(start..start + len).unwrap();
        let write = ranks.write(&file, &view, bytes_of(start..start + len), Durability::None);
        if number == 0 {
            // It may be complete, if rank 1 was quick.
            let _ = engine.block_on(async { futures::poll!(std::pin::pin!(write)).is_pending() }).unwrap();
        } else {
            write.wait().unwrap();
        }
        let found = ranks.read(&file, &View::range(0..6_000_000).unwrap()).wait().unwrap();
        assert!(found == bytes_of(0..6_000_000), "rank {number}");
    });
}
