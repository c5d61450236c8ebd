//! 64 shards and 24 devices in one simulated world: shares and caps hold over shards, no operation starves, and what leases cost.
//! `docs/performance.md` has the figures, which are the same on every machine.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use forebay::internal::lease_writes;
use forebay::{Class, ClassSpec, Config, Engine, File, Open, shard};
use forebay_sim::{self as sim, Profile, World};

const SHARDS: usize = 64;
const DISKS: usize = 24;
/// The shards on which each class uses a disk, and its tasks on each of them, with one read in flight.
const SHARDS_A_CLASS: usize = 3;
const TASKS: usize = 8;
const READ_BYTES: u64 = 16 << 10;
const FILE_BYTES: u64 = 8 << 20;
const BYTES_PER_SECOND: u64 = 100 << 20;
const CAP_BYTES_PER_SECOND: u64 = 8 << 20;
/// The search for the budget starts with the contention; the measurement starts after this.
const WARM_UP: Duration = Duration::from_millis(60);
const LENGTH: Duration = Duration::from_millis(200);

/// The reads that the tasks of one class got on one disk.
#[derive(Clone, Default)]
struct ClassReads {
    bytes: u64,
    longest: Duration,
    /// The fewest reads of a task.
    fewest: u64,
}

/// Reads until `until`. Returns the reads after the warm-up, and the longest.
async fn reads(file: File, from: Duration, until: Duration) -> (u64, Duration) {
    let (mut count, mut longest) = (0, Duration::ZERO);
    while sim::now() < until {
        let at = sim::random(FILE_BYTES / READ_BYTES) * READ_BYTES;
        let began = sim::now();
        file.read(at..at + READ_BYTES).await.unwrap();
        let now = sim::now();
        if now >= from && now < until {
            count += 1;
            longest = longest.max(now - began);
        }
    }
    (count, longest)
}

/// Runs one class's tasks for a disk on one shard.
async fn on_a_shard(file: File, from: Duration, until: Duration) -> ClassReads {
    let tasks: Vec<_> = (0..TASKS).map(|_| shard::spawn(reads(file.clone(), from, until)).unwrap()).collect();
    let mut seen = ClassReads { fewest: u64::MAX, ..ClassReads::default() };
    for task in tasks {
        let (count, longest) = task.await.unwrap();
        seen.bytes += count * READ_BYTES;
        seen.longest = seen.longest.max(longest);
        seen.fewest = seen.fewest.min(count);
    }
    seen
}

async fn operations(engine: &Engine) -> (u64, u64) {
    let stats = engine.stats().await.unwrap();
    let reads = stats.flows.iter().map(|flow| flow.reads).sum();
    (reads, stats.shards.iter().map(|shard| shard.turns).sum())
}

/// Returns what each disk's classes got, in the order gold, silver, capped.
async fn compete(engine: &Engine, classes: [Class; 3]) -> Vec<[ClassReads; 3]> {
    let (from, until) = (sim::now() + WARM_UP, sim::now() + WARM_UP + LENGTH);
    let mut running = Vec::new();
    for disk in 0..DISKS {
        let file = engine.open(format!("/disk{disk}/file"), Open::create()).await.unwrap();
        file.allocate(0..FILE_BYTES).await.unwrap();
        for (number, class) in classes.into_iter().enumerate() {
            for part in 0..SHARDS_A_CLASS {
                // Every shard uses several disks, and every disk nine shards.
                let on = (disk * 8 + number * SHARDS_A_CLASS + part) % SHARDS;
                let file = file.clone();
                let task = engine.spawn_on_shard(on, class, move || on_a_shard(file, from, until));
                running.push((disk, number, task));
            }
        }
    }
    let mut seen: Vec<[ClassReads; 3]> =
        vec![std::array::from_fn(|_| ClassReads { fewest: u64::MAX, ..ClassReads::default() }); DISKS];
    for (disk, number, task) in running {
        let (part, whole) = (task.await.unwrap(), &mut seen[disk][number]);
        whole.bytes += part.bytes;
        whole.longest = whole.longest.max(part.longest);
        whole.fewest = whole.fewest.min(part.fewest);
    }
    seen
}

#[test]
fn shares_and_caps_hold_over_64_shards_and_24_devices() {
    let mut world = World::new(7)
        .stalls_ppm(0)
        .config(Config::new().shards(SHARDS).arena_bytes(64 << 20).arena_bytes_max(256 << 20));
    for disk in 0..DISKS {
        let profile = Profile::cloud().bandwidth(BYTES_PER_SECOND).iops(0, 0).tail(0, 1);
        world.add_disk(profile.at(format!("/disk{disk}")));
    }
    let costs = Rc::new(RefCell::new(None));
    let noted = costs.clone();
    let seen = world
        .run(async |engine| {
            let gold = engine.class("gold", 600).unwrap();
            let silver = engine.class("silver", 300).unwrap();
            let spec = ClassSpec::new("capped").shares(300).read_bytes_per_second_max(CAP_BYTES_PER_SECOND);
            let capped = engine.set_class(spec).unwrap();
            let seen = compete(&engine, [gold, silver, capped]).await;
            *noted.borrow_mut() = Some((lease_writes(&engine), operations(&engine).await));
            seen
        })
        .unwrap();
    let steps = world.steps();
    let due_of_cap = CAP_BYTES_PER_SECOND as f64 * LENGTH.as_secs_f64();
    let (mut worst_share, mut least_of_cap, mut most_of_cap) = (0f64, f64::MAX, 0f64);
    let mut longest = [Duration::ZERO; 3];
    let mut sums = [0; 3];
    for disk in &seen {
        let [gold, silver, capped] = disk;
        let part = gold.bytes as f64 / (gold.bytes + silver.bytes) as f64;
        worst_share = worst_share.max((part / (2.0 / 3.0) - 1.0).abs());
        least_of_cap = least_of_cap.min(capped.bytes as f64 / due_of_cap);
        most_of_cap = most_of_cap.max(capped.bytes as f64 / due_of_cap);
        for (class, seen) in disk.iter().enumerate() {
            longest[class] = longest[class].max(seen.longest);
            sums[class] += seen.bytes;
            assert!(seen.fewest > 0, "each task of class {class} got on");
        }
    }
    let Some(([taken, refused, given_back, wakes], (reads, turns))) = costs.take() else {
        panic!("no counts")
    };
    let per_read = |count: u64| count as f64 / reads as f64;
    println!(
        "{reads} reads, {steps} steps; MB/s of a disk {:?}; farthest from the share {worst_share:.3}; \
         of the cap {least_of_cap:.3} to {most_of_cap:.3}; \
         longest {longest:?}; a read: {:.2} leases, {:.2} refusals, {:.2} given back, {:.2} wake-ups, {:.2} turns",
        sums.map(|sum| (sum as f64 / DISKS as f64 / LENGTH.as_secs_f64() / 1e6 * 10.0).round() / 10.0),
        per_read(taken),
        per_read(refused),
        per_read(given_back),
        per_read(wakes),
        per_read(turns),
    );
    assert!(worst_share <= 0.05, "gold got {worst_share:.3} more or less than two thirds");
    assert!(most_of_cap <= 1.03 && least_of_cap >= 0.95, "{least_of_cap:.3} to {most_of_cap:.3} of the cap");
    // A class waits for its own reads before it, and for what the others may have meanwhile: gold has 24 reads in flight or waiting.
    for (longest, bound_ms) in longest.into_iter().zip([20, 30, 200]) {
        assert!(longest <= Duration::from_millis(bound_ms), "{longest:?} of {bound_ms} ms");
    }
    let all = sums.iter().sum::<u64>() as f64 / DISKS as f64 / LENGTH.as_secs_f64();
    assert!(all >= 0.9 * BYTES_PER_SECOND as f64, "{all} bytes a second: nothing lies idle");
    assert!(per_read(taken + given_back) <= 2.0, "leases stay with a shard that has more to do");
    // It was 38 while shards that were woken for nothing woke others.
    assert!(per_read(wakes) <= 10.0, "{} wake-ups a read", per_read(wakes));
}
