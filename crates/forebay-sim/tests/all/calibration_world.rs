//! Shows: the engine finds out a device's rates while it uses it, starting with a calibration's values: the cost of a write
//! relative to a read, and the number that must be in flight. How: simulated disks, whose time is exact.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay::device::Device;
use forebay::{Calibration, Class, Config, DeviceStats, Engine, ErrorKind, File, Open, shard};
use forebay_sim::{self as sim, Profile, World};

const FILE_BYTES: u64 = 64 << 20;
const REQUEST_BYTES: u64 = 16 << 10;

/// A disk that serves four requests at a time, and a write in four times the time of a read.
fn dear_writes() -> Profile {
    Profile::ideal()
        .latency(Duration::from_micros(100), Duration::from_micros(400), Duration::from_micros(100))
        .parallelism(4)
        .write_cache(0)
}

fn world(profile: Profile, config: Config) -> World {
    World::new(11).disk(profile).stalls_ppm(0).config(config.shards(1).arena_bytes_max(256 << 20))
}

async fn planted(engine: &Engine) -> File {
    let file = engine.open("/a", Open::create()).await.unwrap();
    file.allocate(0..FILE_BYTES).await.unwrap();
    file
}

/// Runs 32 tasks of the class that read, or write, until the time has ended. Returns the bytes of the
/// operations that completed from `counted` on.
async fn load(file: File, writes: bool, counted: Duration, until: Duration) -> u64 {
    let moved = Rc::new(Cell::new(0));
    let mut tasks = Vec::new();
    for number in 0..32 {
        let (file, moved) = (file.clone(), moved.clone());
        let body = async move {
            while sim::now() < until {
                let at = sim::random(FILE_BYTES / REQUEST_BYTES) * REQUEST_BYTES;
                if writes {
                    file.write(at, vec![number; REQUEST_BYTES as usize]).await.unwrap()
                } else {
                    drop(file.read(at..at + REQUEST_BYTES).await.unwrap());
                }
                if sim::now() >= counted && sim::now() < until {
                    moved.set(moved.get() + REQUEST_BYTES);
                }
            }
        };
        tasks.push(shard::spawn(body).unwrap());
    }
    for task in tasks {
        task.await.unwrap();
    }
    moved.get()
}

async fn device(engine: &Engine) -> DeviceStats {
    engine.stats().await.unwrap().devices[0].clone()
}

/// Runs `first` in both classes, and then, for a second, reads in one and writes in the other. Returns the
/// bytes that each moved in the last 800 ms, and the observed cost of a write every 10 ms.
fn mixed(profile: Profile, first: &'static [bool]) -> (u64, u64, Vec<f64>) {
    world(profile, Config::new())
        .run(async move |engine| {
            let file = planted(&engine).await;
            let mut from = sim::now();
            let mut tasks = Vec::new();
            let classes = [engine.class("reads", 100).unwrap(), engine.class("writes", 100).unwrap()];
            let mut start = |from: Duration, to: Duration, class: Class, writes: bool| {
                let file = file.clone();
                tasks.push(engine.spawn_on_shard(0, class, move || async move {
                    shard::sleep(from.saturating_sub(sim::now())).await.unwrap();
                    load(file, writes, to - Duration::from_millis(800).min(to - from), to).await
                }));
            };
            for &writes in first {
                let to = from + Duration::from_millis(300);
                classes.iter().for_each(|&class| start(from, to, class, writes));
                from = to;
            }
            let to = from + Duration::from_secs(1);
            start(from, to, classes[0], false);
            start(from, to, classes[1], true);
            let mut seen = Vec::new();
            while sim::now() < to {
                sim::sleep(Duration::from_millis(10)).await.unwrap();
                seen.push(device(&engine).await.write_cost);
            }
            let mut moved = Vec::new();
            for task in tasks {
                moved.push(task.await.unwrap());
            }
            let writes = moved.pop().unwrap();
            (moved.pop().unwrap(), writes, seen)
        })
        .unwrap()
}

/// Returns how often a series changes direction.
fn turns(seen: &[f64]) -> usize {
    let steps: Vec<f64> = seen.windows(2).map(|pair| pair[1] - pair[0]).filter(|step| *step != 0.0).collect();
    steps.windows(2).filter(|pair| pair[0] * pair[1] < 0.0).count()
}

#[test]
fn equal_shares_are_equal_times_of_a_device_whose_writes_are_dear() {
    // Operations observed alone before: both, only one of them, or neither, which leaves writes as dear as
    // reads.
    let ways = [(&[false, true][..], 4.0), (&[false], 4.0), (&[true], 4.0), (&[], 1.0)];
    for (first, ratio) in ways {
        let (reads, writes, seen) = mixed(dear_writes(), first);
        let last = *seen.last().unwrap();
        println!("{first:?}: {reads} and {writes} bytes, a write costs {last}, {} turns", turns(&seen));
        assert!((last / ratio - 1.0).abs() < 0.13, "{first:?}: a write costs {last} of {ratio}");
        assert!((reads as f64 / writes as f64 / ratio - 1.0).abs() < 0.2, "{first:?}: {reads} and {writes}");
        assert!(turns(&seen) <= 1, "{first:?}: {seen:?}");
    }
}

#[test]
fn writes_that_cost_as_much_as_reads_are_left_so() {
    let even = dear_writes().latency(
        Duration::from_micros(100),
        Duration::from_micros(105),
        Duration::from_micros(100),
    );
    let (reads, writes, seen) = mixed(even, &[false, true]);
    assert!(seen.iter().all(|&cost| cost == 1.0), "{seen:?}");
    assert!((reads as f64 / writes as f64 - 1.0).abs() < 0.1, "{reads} and {writes}");
}

/// A disk that needs 16 pieces of 64 KiB in flight, which do not all end together.
fn deep() -> Profile {
    Profile::ideal()
        .latency(Duration::from_millis(1), Duration::from_millis(1), Duration::from_millis(1))
        .jitter(50)
        .parallelism(16)
        .write_cache(0)
}

fn calibration(device: &str, knee_depth: u32, write_cost: f64) -> Calibration {
    let mut calibration = Calibration::new(&Device::default());
    calibration.device = device.to_string();
    (calibration.knee_depth, calibration.write_cost) = (knee_depth, write_cost);
    calibration
}

/// Runs two classes that read pieces of 64 KiB for a while. Returns the budgets from the file's opening on,
/// and the bytes read.
fn budgets(config: Config, length: Duration) -> (Vec<u64>, u64) {
    const PIECE: u64 = 64 << 10;
    world(deep(), config.queue_depth(256))
        .run(async move |engine| {
            let file = planted(&engine).await;
            let mut seen = vec![device(&engine).await.budget_bytes];
            let until = sim::now() + length;
            let mut tasks = Vec::new();
            for class in [Class::DEFAULT, Class::BACKGROUND] {
                let file = file.clone();
                tasks.push(engine.spawn_on_shard(0, class, move || async move {
                    let read = Rc::new(Cell::new(0));
                    let mut readers = Vec::new();
                    for _ in 0..32 {
                        let (file, read) = (file.clone(), read.clone());
                        let body = async move {
                            while sim::now() < until {
                                let at = sim::random(FILE_BYTES / PIECE) * PIECE;
                                file.read(at..at + PIECE).await.unwrap();
                                read.set(read.get() + PIECE);
                            }
                        };
                        readers.push(shard::spawn(body).unwrap());
                    }
                    for reader in readers {
                        reader.await.unwrap();
                    }
                    read.get()
                }));
            }
            while sim::now() < until {
                sim::sleep(Duration::from_millis(1)).await.unwrap();
                seen.push(device(&engine).await.budget_bytes);
            }
            let mut bytes = 0;
            for task in tasks {
                bytes += task.await.unwrap();
            }
            (seen, bytes)
        })
        .unwrap()
}

#[test]
fn a_calibrated_budget_is_there_from_the_start() {
    let length = Duration::from_millis(20);
    let (found, slow) = budgets(Config::new(), length);
    let (known, fast) = budgets(Config::new().calibration(calibration("sim0", 16, 1.0)), length);
    println!("from scratch {slow} bytes {found:?}\ncalibrated {fast} bytes {known:?}");
    let piece_cost = (64 << 10) + (8 << 10);
    assert_eq!((found[0], known[0]), (2 * piece_cost, 16 * piece_cost));
    assert!(known.iter().all(|&budget| budget >= 12 * piece_cost), "{known:?}");
    assert!(found.iter().any(|&budget| budget < 8 * piece_cost), "found at once: {found:?}");
    assert!(fast * 100 > slow * 103, "{fast} bytes calibrated, {slow} from scratch");
    // And it ends at the device's knee, from any start.
    let long = Duration::from_secs(2);
    let wrong = Config::new().calibration(calibration("sim0", 48, 1.0));
    let (budgets, _) = budgets(wrong, long);
    let last = *budgets.last().unwrap();
    assert!((12 * piece_cost..28 * piece_cost).contains(&last), "{last}");
}

#[test]
fn a_calibrated_write_cost_is_in_force_from_the_start() {
    let config = Config::new().calibration(calibration("sim0", 4, 4.0));
    let cost = world(dear_writes(), config)
        .run(async |engine| {
            planted(&engine).await;
            let seen = device(&engine).await;
            assert!(seen.calibrated && engine.health().degraded.is_empty());
            seen.write_cost
        })
        .unwrap();
    assert_eq!(cost, 4.0);
}

#[test]
fn a_calibration_of_another_device_is_told_and_not_used() {
    let config = Config::new().calibration(calibration("nvme7n1", 300, 4.0));
    world(deep(), config)
        .run(async |engine| {
            planted(&engine).await;
            let seen = device(&engine).await;
            assert!(!seen.calibrated && seen.write_cost == 1.0, "{seen:?}");
            let told = engine.health().degraded[0].to_string();
            for words in ["calibration of sim0", "only of nvme7n1", "forebay calibrate"] {
                assert!(told.contains(words), "{told}");
            }
        })
        .unwrap();
}

#[test]
fn a_calibration_out_of_range_is_no_setting() {
    for (depth, cost) in [(0, 1.0), (911, 1.0), (4, 0.1), (4, f64::INFINITY)] {
        let error = Engine::start(Config::new().calibration(calibration("d", depth, cost)))
            .map(drop)
            .expect_err("out of range");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}
