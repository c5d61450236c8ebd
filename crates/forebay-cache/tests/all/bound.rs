//! The cache's memory is bounded, and spent on the pages that are used.

use crate::common::{self, cache, engine, mix, scratch};
use forebay::{Config, Engine};
use forebay_cache::{BlockCache, Cache, CacheOptions};
use forebay_test::children::Scene;
use quick_cache::{OptionsBuilder, sync};

const PAGE: u64 = 4096;

/// Draws page numbers as programs do: a few are wanted often (exponent 0.99).
struct Zipf {
    sums: Vec<f64>,
}

impl Zipf {
    fn new(pages: u64) -> Zipf {
        let mut sum = 0.0;
        let weights = (1..=pages).map(|rank| 1.0 / (rank as f64).powf(0.99));
        Zipf {
            sums: weights
                .map(|weight| {
                    sum += weight;
                    sum
                })
                .collect(),
        }
    }

    fn page(&self, number: u64) -> u64 {
        let last = self.sums.last().copied().expect("pages");
        let at = (mix(number) >> 11) as f64 / (1u64 << 53) as f64 * last;
        // Wanted pages lie anywhere in the file.
        mix(self.sums.partition_point(|sum| *sum < at) as u64) % self.sums.len() as u64
    }
}

#[test]
fn its_bytes_stay_within_the_limit() {
    for (bytes_max, page_bytes) in [(1 << 20, 4096), (8 << 20, 4096), (8 << 20, 16 << 10)] {
        let options = CacheOptions::new().bytes_max(bytes_max).page_bytes(page_bytes);
        let cache = Cache::new(&engine(), options).expect("a cache");
        let data = scratch(&cache, 16 << 20);
        for number in 0..8000 {
            let at = mix(number) % (16 << 20);
            data.file.read_up_to(at..at + mix(number + 9) % 20_000).wait().expect("a read");
            let stats = cache.stats().pages;
            assert!(stats.bytes <= bytes_max + bytes_max / 100, "{stats:?}");
        }
        let stats = cache.stats().pages;
        assert!(stats.bytes > bytes_max * 9 / 10 && stats.evictions > 0, "it is full: {stats:?}");
        assert!(stats.bytes >= stats.blocks * (page_bytes + 100), "entries count as well: {stats:?}");
        let held = cache.engine().memory().held_bytes;
        assert!(held <= bytes_max + bytes_max / 100, "{held} bytes of I/O memory");
    }
}

/// The resident memory of a process that fills a cache: pages, entries and all else.
#[test]
fn the_memory_of_a_full_cache_is_within_its_bound() {
    /// Memory of the process other than pages and entries: the engine's, and buffers of reads.
    const BESIDE: u64 = 8 << 20;
    const BOUND: u64 = 64 << 20;
    // A separate process: the other tests allocate too.
    let scene = Scene::new("bound::the_memory_of_a_full_cache_is_within_its_bound");
    scene.play(|| fill(BOUND, BESIDE));
}

/// Fills a cache with this bound. All else may use `beside` bytes.
fn fill(bound: u64, beside: u64) {
    let engine = Engine::start(Config::new().shards(1).arena_bytes_max(256 << 20)).expect("an engine");
    let cache = Cache::new(&engine, CacheOptions::new().bytes_max(bound)).expect("a cache");
    let dir = common::dir();
    let path = dir.path().join("data");
    std::fs::File::create(&path).and_then(|file| file.set_len(256 << 20)).expect("a sparse file");
    let file = cache.open(&path, forebay::Open::read()).wait().expect("opens");
    file.read(0..PAGE).wait().expect("a read");
    let before = resident_bytes();
    for number in 1..(256 << 20) / PAGE {
        file.read(number * PAGE..(number + 1) * PAGE).wait().expect("a read");
    }
    let (after, stats) = (resident_bytes(), cache.stats().pages);
    assert!(stats.bytes > bound * 9 / 10, "{stats:?}");
    let grown = after - before;
    assert!(grown <= bound + bound / 100 + beside, "{grown} bytes for a bound of {bound}: {stats:?}");
    assert!(grown >= bound * 8 / 10, "the pages are in memory: {grown}");
}

/// Returns the memory of this process, in swap space too.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("a status");
    let of = |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
    };
    of("VmRSS:") + of("VmSwap:")
}

#[test]
fn a_hot_set_survives_a_scan_of_ten_times_the_cache() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 100 << 20);
    let hot = |round: u64| {
        (0..400)
            .filter(|page| {
                let at = mix(*page) % 1000 * PAGE;
                let before = cache.stats().pages.hits;
                data.file.read(at..at + 100).wait().expect("a read");
                round > 0 && cache.stats().pages.hits > before
            })
            .count()
    };
    let warm: usize = (0..4).map(&hot).sum();
    assert!(warm > 0);
    for page in 1000..1000 + 10 * 2048 {
        data.file.read(page * PAGE..page * PAGE + 100).wait().expect("a read");
    }
    let survived = hot(1);
    assert!(survived >= 380, "{survived} of 400 reads of the hot set were hits");
}

/// Pages, shared reads and weights in bytes change nothing of what quick_cache keeps.
#[test]
fn it_hits_as_often_as_the_cache_inside_of_it() {
    const PAGES: u64 = 16_384;
    const ROOM: u64 = 2048;
    let data = {
        let cache = cache(ROOM * (PAGE + 160));
        (scratch(&cache, PAGES * PAGE), cache)
    };
    let zipf = Zipf::new(PAGES);
    let mixed = |number: u64| match number % 4 {
        // One access in four belongs to a cyclic scan.
        0 => number / 4 % PAGES,
        _ => zipf.page(number),
    };
    let traces: [(&str, &dyn Fn(u64) -> u64); 2] = [("zipf", &|number| zipf.page(number)), ("mixed", &mixed)];
    for (name, trace) in traces {
        let (data, cache) = &data;
        data.file.invalidate(0..u64::MAX);
        let before = cache.stats().pages;
        let mut options = OptionsBuilder::new();
        options.shards(8).estimated_items_capacity(ROOM as usize).weight_capacity(ROOM);
        let inner = sync::Cache::<u64, ()>::with_options(
            options.build().expect("options"),
            quick_cache::UnitWeighter,
            quick_cache::DefaultHashBuilder::default(),
            sync::DefaultLifecycle::default(),
        );
        let (mut hits, count) = (0u64, 60_000);
        for number in 0..count {
            let page = trace(number);
            data.file.read(page * PAGE + 5..page * PAGE + 50).wait().expect("a read");
            match inner.get(&page) {
                Some(()) => hits += 1,
                None => inner.insert(page, ()),
            }
        }
        let ours = (cache.stats().pages.hits - before.hits) as f64 / count as f64;
        let inner = hits as f64 / count as f64;
        println!("{name}: {ours:.4}, quick_cache {inner:.4}");
        assert!((ours - inner).abs() < 0.01, "{name}: {ours:.4}, quick_cache {inner:.4}");
    }
}

/// Programs that hold blocks, and caches that hold all the rest of the engine's memory: the cache gives way.
#[test]
fn pages_give_way_when_io_memory_runs_out() {
    let engine = Engine::start(Config::new().shards(1).arena_bytes_max(64 << 20)).expect("an engine");
    let most = engine.memory_unreserved();
    let cache = Cache::new(&engine, CacheOptions::new().bytes_max(most)).expect("a cache");
    Cache::new(&engine, CacheOptions::new().bytes_max(1 << 20)).expect_err("all is promised");
    let data = scratch(&cache, 80 << 20);
    for page in 0..(80 << 20) / PAGE {
        data.file.read(page * PAGE..page * PAGE + 1).wait().expect("pages give way");
    }
    let mut held = Vec::new();
    // 64 MiB in addition to the arena, for blocks that do not fit.
    for number in 0..80 {
        held.push(data.file.read(number << 20..(number + 1) << 20).wait().expect("pages give way"));
        data.file.write(number << 20, vec![7; 1 << 20]).wait().expect("pages give way");
    }
    let bytes = cache.stats().pages.bytes;
    assert!(bytes < most - (8 << 20), "{bytes} of {most} bytes");
}

/// Story: a batch kept I/O memory with all its results, and of more than there is the ranges that were left failed, where
/// `File::read_many` copies into ordinary memory.
#[test]
fn a_batch_of_more_than_the_io_memory_has_all_its_results() {
    const BYTES: u64 = 48 << 20;
    let config = Config::new().shards(1).arena_bytes_max(32 << 20).overflow_bytes_max(0);
    let engine = Engine::start(config).expect("an engine");
    let cache = Cache::new(&engine, CacheOptions::new().bytes_max(8 << 20)).expect("a cache");
    let data = scratch(&cache, BYTES);
    let whole = std::fs::read(&data.path).expect("the file");
    // Ranges within a page, over several pages and past the cache.
    for len in [PAGE, 64 << 10, 1 << 20] {
        let ranges = || (0..BYTES / len).map(|number| number * len..(number + 1) * len - 7);
        let results = data.file.read_many(ranges()).wait().expect("a batch");
        for (range, result) in ranges().zip(&results) {
            let block = result.as_ref().expect("ordinary memory has it");
            assert!(block[..] == whole[range.start as usize..range.end as usize], "{range:?}");
        }
        let bytes = engine.memory().result_bytes;
        assert!(bytes >= 32 << 20, "{bytes} bytes of ordinary memory");
    }
}

/// The limit changes once when blocks give way, and once more when as much was inserted: each change forgets evicted blocks.
#[test]
fn a_map_that_gave_way_stays_small_until_as_much_came_in() {
    let config = Config::new().shards(1).arena_bytes_max(32 << 20).overflow_bytes_max(0);
    let engine = Engine::start(config).expect("an engine");
    let block = engine.block(4096).expect("memory").freeze();
    let mut held = Vec::new();
    let error = loop {
        match engine.block(1 << 20) {
            Ok(block) => held.push(block),
            Err(error) => break error,
        }
    };
    let blocks = BlockCache::new(16 << 20);
    let mut offsets = (0..).map(|page| page * PAGE);
    let mut fill = |count: usize| {
        offsets.by_ref().take(count).for_each(|offset| blocks.insert(1, offset, &block));
        blocks.stats().bytes
    };
    let full = fill(6_000);
    assert!(blocks.give_way(&error));
    let small = full - full / 8 + PAGE;
    assert!(blocks.stats().bytes <= small);
    let given = (full / 8 / (PAGE + 160)) as usize;
    assert!(fill(given / 2) <= small, "it was raised too soon");
    assert!(fill(4 * given) > full - full / 32, "it is as large as before");
}

/// The map of blocks alone, as the store uses it.
#[test]
fn blocks_of_long_reads_are_left_out() {
    let engine = engine();
    let blocks = BlockCache::new(1 << 20);
    let long = engine.block(64 << 10).expect("memory").freeze();
    blocks.insert(1, 0, &long.slice(..4096).expect("a part"));
    assert_eq!(blocks.get(1, 0), None, "it would keep 64 KiB");
    blocks.insert(1, 0, &long);
    assert!(blocks.get(1, 0).is_some());
    blocks.set_bytes_max(4096);
    assert_eq!(blocks.stats().blocks, 0);
}

/// A block is inserted at its second offer, or at a lookup while it is one of the latest offers.
#[test]
fn offered_blocks_come_in_when_they_are_wanted_again() {
    let engine = engine();
    let block = engine.block(4096).expect("memory").freeze();
    let blocks = BlockCache::new(4 << 20);
    for offset in 0..5_000 {
        blocks.offer(1, offset * PAGE, &block);
    }
    let once = blocks.stats();
    assert!(once.insertions < 250 && once.refusals > 4_750, "{once:?}");
    assert!(once.blocks <= once.insertions + 64 && once.evictions == 0, "{once:?}");
    // The last one is at hand, and stays from then on; those before are not.
    assert_eq!(blocks.get(1, 1_000 * PAGE), None);
    assert_eq!(blocks.peek(1, 4_999 * PAGE), Some(block.clone()));
    assert_eq!(blocks.get(1, 4_999 * PAGE), Some(block.clone()));
    for offset in 5_000..5_500 {
        blocks.offer(1, offset * PAGE, &block);
    }
    assert_eq!(blocks.get(1, 4_999 * PAGE), Some(block.clone()));
    assert!(blocks.offer(1, 5_100 * PAGE, &block), "offered lately");
    // A read that offers nothing counts as an offer: the next one brings the block in.
    assert!(!blocks.note(4, 0));
    assert!(blocks.note(4, 0) && blocks.peek(4, 0).is_none());
    assert!(blocks.offer(4, 0, &block));
    // For any limit, the bytes of both together keep it.
    for bytes_max in [1 << 20, 64 << 10, 0, 4 << 20] {
        blocks.set_bytes_max(bytes_max);
        for offset in 0..2_000 {
            blocks.offer(2, offset % 1_000 * PAGE, &block);
            let stats = blocks.stats();
            assert!(stats.bytes <= bytes_max, "{stats:?}");
        }
    }
    assert!(blocks.stats().bytes > (4 << 20) * 9 / 10, "{:?}", blocks.stats());
    // A removed block is in neither of the two.
    blocks.offer(3, 0, &block);
    blocks.offer(3, PAGE, &block);
    assert!(blocks.remove(3, 0).is_some() && blocks.get(3, 0).is_none());
    blocks.remove_range(3, 0..2 * PAGE);
    assert_eq!(blocks.get(3, PAGE), None);
    blocks.offer(3, 2 * PAGE, &block);
    blocks.clear();
    assert_eq!((blocks.stats().blocks, blocks.stats().bytes), (0, 0));
}

/// Memory beyond the limit for a while: it is filled when the map is full, and blocks are evicted one by one when it is withdrawn.
#[test]
fn lent_memory_is_filled_and_taken_back_block_by_block() {
    const STEP: u64 = PAGE + 160;
    let engine = engine();
    let block = engine.block(4096).expect("memory").freeze();
    let blocks = BlockCache::new(4 << 20);
    assert!(!blocks.fill(1, 0, &block), "nobody has looked for room");
    blocks.look_for_room();
    let filled = (0..2_000).take_while(|offset| blocks.fill(1, offset * PAGE, &block)).count() as u64;
    assert!((800..986).contains(&filled), "{filled} came in until a part was full");
    assert!(blocks.stats().evictions <= 1 && !blocks.fill(1, 0, &block));

    blocks.lend(200 * STEP + 5);
    assert_eq!(blocks.lent_bytes(), 200 * STEP);
    // Without it the window fits 28.
    let lent: Vec<u64> = (0..1_000).filter(|offset| blocks.fill(2, offset * PAGE, &block)).collect();
    assert_eq!(lent.len(), 228);
    let full = blocks.stats();
    assert!(full.bytes <= full.bytes_max && full.bytes_max == (4 << 20) + 200 * STEP, "{full:?}");
    // They are found, and leave nothing for it.
    assert!(lent.iter().all(|offset| blocks.get(2, offset * PAGE).is_some()));
    assert_eq!((blocks.stats().blocks, blocks.stats().evictions), (full.blocks, full.evictions));
    // Others that are offered push the oldest out; one that was wanted is passed over.
    blocks.offer(3, 0, &block);
    assert_eq!(blocks.stats().blocks, full.blocks);

    let mut left = full.blocks;
    for step in 0..200 {
        assert_eq!(blocks.take_back(), STEP);
        let now = blocks.stats();
        assert!(left - now.blocks <= 1 && now.bytes <= now.bytes_max, "step {step}: {now:?}");
        left = now.blocks;
    }
    assert_eq!((blocks.take_back(), blocks.lent_bytes(), left), (0, 0, full.blocks - 200));
}

/// Blocks of another owner fit into the space of blocks that were given up, in a full map.
#[test]
fn the_room_of_blocks_that_are_given_up_goes_to_those_that_follow() {
    let engine = engine();
    let block = engine.block(4096).expect("memory").freeze();
    let blocks = BlockCache::new(4 << 20);
    blocks.look_for_room();
    let filled = (0..2_000).take_while(|offset| blocks.fill(1, offset * PAGE, &block)).count() as u64;
    let full = blocks.stats();
    assert!(!blocks.has_room(4096), "{full:?}");
    for offset in 0..filled {
        blocks.give_up(1, offset * PAGE);
        blocks.fill(2, offset * PAGE, &block);
    }
    let moved = (0..filled).filter(|offset| blocks.peek(2, offset * PAGE).is_some()).count() as u64;
    // A part that is full before the others loses a block.
    assert!(moved * 5 >= filled * 4, "{moved} of {filled}");
    assert!((0..filled).all(|offset| blocks.peek(1, offset * PAGE).is_none()));
    assert!(blocks.stats().bytes <= full.bytes_max, "{:?}", blocks.stats());
}

/// Story: blocks that were used again in lent memory moved to the map without being counted, and without the limit that rises with
/// insertions.
#[test]
fn blocks_that_lent_memory_gives_to_the_map_count_as_insertions() {
    let engine = engine();
    let block = engine.block(4096).expect("memory").freeze();
    let blocks = BlockCache::new(4 << 20);
    blocks.lend(400 * (PAGE + 160));
    let offered: Vec<u64> = (0..100).filter(|page| !blocks.offer(1, page * PAGE, &block)).collect();
    let wanted: Vec<u64> = offered.into_iter().step_by(4).collect();
    assert!(wanted.iter().all(|page| blocks.get(1, page * PAGE).is_some()));
    let before = blocks.stats();
    let others = (0..2_000).filter(|page| blocks.offer(2, page * PAGE, &block)).count() as u64;
    let after = blocks.stats();
    assert!(wanted.iter().all(|page| blocks.peek(1, page * PAGE).is_some()), "{after:?}");
    let counted = after.insertions - before.insertions - others;
    assert_eq!((counted, after.evictions), (wanted.len() as u64, 0), "{after:?}");
}
