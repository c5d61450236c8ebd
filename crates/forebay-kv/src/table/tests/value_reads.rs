//! Values outside of their leaves: the reads that cursors make of them, and the memory.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use forebay_sim::{Profile, World};

use super::*;

/// The time of a read in worlds that count the reads that wait for each other.
const READ: Duration = Duration::from_millis(1);

/// Returns entries with values of one length.
fn values(count: u64, len: u64) -> Model {
    let entry =
        |number: u64| (format!("key {number:012}").into_bytes(), Some((Random(number).bytes(len), None)));
    (0..count).map(entry).collect()
}

/// What a cursor has read.
#[derive(Clone, Copy, Debug)]
struct Cost {
    reads: u64,
    bytes: u64,
    /// The time, in reads one after the other.
    rounds: f64,
}

async fn reads(engine: &Engine) -> Result<(u64, u64)> {
    let flows = engine.stats().await?.flows;
    Ok(flows.iter().fold((0, 0), |sum, flow| (sum.0 + flow.reads, sum.1 + flow.read_bytes)))
}

/// Moves a cursor over `count` entries of a table, after the first `skip` in its direction, and asserts that they are the model's.
fn cost(how: CursorHow, model: &Model, skip: usize, count: usize) -> Cost {
    let short = Duration::from_micros(1);
    let mut world = World::new(1)
        .disk(Profile::ideal().latency(READ, short, short))
        .config(Config::new().shards(1).arena_bytes_max(64 << 20))
        .stalls_ppm(0);
    let program = async |engine: Engine| {
        let path = Path::new("/00000001.fkv");
        let meta = write(&engine, path, spec(1, 4096), model).await?;
        let table = open(&engine, path, &meta, &Cache::new(64 << 20, 64 << 20)).await?;
        let mut entries: Vec<_> = model.iter().collect();
        if how.direction == Direction::Backward {
            entries.reverse();
        }
        let (before, began) = (reads(&engine).await?, forebay_sim::now());
        let mut cursor = table.cursor(how);
        if skip > 0 {
            cursor.seek(entries[skip].0).await?;
        }
        for (key, value) in &entries[skip..skip + count] {
            assert!(cursor.next().await?);
            assert!(cursor.key() == &key[..] && cursor.entry() == Some(entry(value)), "{key:?}");
        }
        let rounds = (forebay_sim::now() - began).as_secs_f64() / READ.as_secs_f64();
        // Reads ahead are counted when they have ended.
        forebay_sim::sleep(3 * READ).await.unwrap();
        let after = reads(&engine).await?;
        Ok::<_, Error>(Cost { reads: after.0 - before.0, bytes: after.1 - before.1, rounds })
    };
    world.run(program).unwrap().unwrap()
}

/// Story: values of more than a quarter of a leaf were read one by one: 4,055 reads, each after the one before, of 4 MiB in values
/// of 1,040 bytes, where values of 1,020 needed 43 reads in 22 rounds.
#[test]
fn neighbouring_lengths_of_values_cost_about_as_many_reads() {
    const LENS: [u64; 6] = [1_000, 1_020, 1_040, 2_000, 8_000, 33_000];
    for (how, lens) in [
        (CursorHow::merge(), &LENS[..]),
        // A value longer than a read is read alone, and not ahead.
        (CursorHow::merge().within(96 << 10, 4096), &LENS[..5]),
        (CursorHow::range(Direction::Forward), &LENS[..]),
        (CursorHow::range(Direction::Backward), &LENS[..]),
    ] {
        let per_mib = |len: &u64| {
            let model = values((4_u64 << 20) / len, *len);
            let cost = cost(how, &model, 0, model.len());
            let mib = (model.len() as u64 * len) as f64 / f64::from(1 << 20);
            (*len, cost.reads as f64 / mib, cost.rounds / mib)
        };
        let costs: Vec<(u64, f64, f64)> = lens.iter().map(per_mib).collect();
        println!("{how:?}: {costs:?}");
        for pair in costs.windows(2) {
            // A leaf has four values of 1,000 bytes, and three of 1,020.
            let limit = if pair[0].0 == 1_000 { 1.4 } else { 1.3 };
            assert!(pair[1].1 <= limit * pair[0].1, "reads for each MiB: {pair:?} of {how:?}");
            assert!(pair[1].2 <= limit * pair[0].2, "rounds for each MiB: {pair:?} of {how:?}");
        }
    }
}

#[test]
fn a_short_range_reads_about_twice_its_values() {
    for len in [100, 1_000, 1_040, 2_000, 8_000, 20_000] {
        let model = values(300, len);
        for direction in [Direction::Forward, Direction::Backward] {
            for skip in [0, 50, 77] {
                let cost = cost(CursorHow::range(direction), &model, skip, 10);
                // A leaf, and the pages at the ends of the first reads.
                let most = 2 * 10 * len + (20 << 10);
                assert!(
                    cost.bytes <= most && cost.reads <= 12,
                    "{cost:?} for ten of {len}, {direction:?} from {skip}"
                );
            }
        }
    }
}

#[test]
fn a_damaged_value_is_named_and_those_read_with_it_are_returned() {
    let (engine, dir) = scene();
    let path = dir.path().join("00000001.fkv");
    futures::executor::block_on(async {
        let (model, damaged) = (values(600, 1_040), 450);
        let meta = write(&engine, &path, spec(1, 4096), &model).await.unwrap();
        let right = std::fs::read(&path).unwrap();
        let Some((value, _)) = model.values().nth(damaged).unwrap() else { panic!("a tombstone") };
        let offset = right.windows(value.len()).position(|part| part == &value[..]).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[!right[offset + 700]], offset as u64 + 700).unwrap();
        let hows =
            [CursorHow::merge(), CursorHow::range(Direction::Forward), CursorHow::range(Direction::Backward)];
        for how in hows {
            let cache = Cache::new(1 << 20, 0);
            let table = open(&engine, &path, &meta, &cache).await.unwrap();
            let mut entries: Vec<_> = model.iter().enumerate().collect();
            if how.direction == Direction::Backward {
                entries.reverse();
            }
            let mut cursor = table.cursor(how);
            for (_, (key, value)) in entries.iter().take_while(|(index, _)| *index != damaged) {
                assert!(cursor.next().await.unwrap());
                assert!(cursor.key() == &key[..] && cursor.entry() == Some(entry(value)), "{key:?}");
            }
            for _ in 0..2 {
                let error = cursor.next().await.unwrap_err();
                assert_eq!((error.kind(), error.path()), (ErrorKind::Corruption, Some(&*path)), "{error}");
                assert_eq!(error.offset(), Some(offset as u64), "{error}");
            }
            drop((cursor, table));
            assert_eq!(cache.held().get(), 0);
        }
    });
}

/// Cursors that stop anywhere give all memory back, and meanwhile they have as much as they may.
#[test]
fn cursors_keep_to_their_memory() {
    let (engine, dir) = scene();
    let path = dir.path().join("00000001.fkv");
    futures::executor::block_on(async {
        let mut model = Model::new();
        for number in 0..1_200u64 {
            let len = [10, 1_040, 1_040, 2_000, 7_000, 20_000][(number / 90) as usize % 6];
            let value = (number % 7 > 0).then(|| (Random(number).bytes(len), None));
            model.insert(format!("key {number:06}").into_bytes(), value);
        }
        let meta = write(&engine, &path, spec(1, 4096), &model).await.unwrap();
        let cache = Cache::new(8 << 20, 8 << 20);
        let table = open(&engine, &path, &meta, &cache).await.unwrap();
        let given = || engine.stats().wait().unwrap().memory.held_bytes;
        let range = CursorHow::range(Direction::Forward);
        for (how, of_values) in [
            (CursorHow::merge(), 0),
            (CursorHow::merge().within(96 << 10, 4096), 0),
            (CursorHow::merge().within(8 << 10, 4096), 0),
            (range, 512 << 10),
            (CursorHow { direction: Direction::Backward, ..range }, 512 << 10),
            (range.within(24 << 10, 4096), 512 << 10),
        ] {
            let mut entries: Vec<_> = model.iter().collect();
            if how.direction == Direction::Backward {
                entries.reverse();
            }
            for stop in [3, 200, 777, 1_200] {
                let (before, mut cursor) = (given(), table.cursor(how));
                for (index, (key, value)) in entries[..stop].iter().enumerate() {
                    assert!(cursor.next().await.unwrap());
                    assert!(cursor.key() == &key[..] && cursor.entry() == Some(entry(value)), "{key:?}");
                    if index % 10 == 3 {
                        // The value at the cursor may be one that did not fit into any read ahead.
                        let (now, most) = (given(), how.memory_bytes() + of_values + (96 << 10));
                        assert!(
                            now <= before + most,
                            "{now} bytes, {before} before, {most} allowed: {how:?}"
                        );
                        assert!(
                            cache.held().get() <= of_values,
                            "{} bytes held: {how:?}",
                            cache.held().get()
                        );
                    }
                }
                drop(cursor);
                assert_eq!(cache.held().get(), 0, "{how:?} until {stop}");
            }
        }
    });
}

/// A future of `next` that is dropped at any point loses no value that is being read.
#[test]
fn a_dropped_next_loses_no_value() {
    for seed in 0..4 {
        let mut world = World::new(seed);
        let program = async |engine: Engine| {
            let model = values(400, 2_000);
            let path = Path::new("/00000001.fkv");
            let meta = write(&engine, path, spec(1, 4096), &model).await?;
            let table = open(&engine, path, &meta, &Cache::new(0, 0)).await?;
            for how in [
                CursorHow { read_bytes_max: 8 << 10, ..CursorHow::merge() },
                CursorHow { read_bytes_max: 8 << 10, ..CursorHow::range(Direction::Forward) },
            ] {
                let (mut cursor, mut dropped) = (table.cursor(how), 0);
                for (turn, (key, value)) in model.iter().enumerate() {
                    while forebay_sim::dropped_after(1 + (turn + dropped) % 3, cursor.next()).await.is_none()
                    {
                        dropped += 1;
                    }
                    assert!(cursor.key() == &key[..] && cursor.entry() == Some(entry(value)), "{key:?}");
                }
                assert!(dropped > 5, "only {dropped} were dropped");
            }
            Ok::<_, Error>(())
        };
        world.run(program).unwrap().unwrap();
    }
}
