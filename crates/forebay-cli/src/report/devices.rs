//! The verdicts held against thirty simulated devices: each has properties that were planted, every verdict must find
//! those of its kind, and must claim none where there is none.
//!
//! The devices are those of the core's simulator, read through Forebay in virtual time, so that the same seed gives the
//! same numbers on every machine. A step of a simulated processor takes half a microsecond; reads take milliseconds here,
//! so that the devices are the limit.

use std::time::Duration;

use forebay::sim::{self, Profile, World};
use forebay::{Config, Engine, File, Open};

use super::histogram::tests::text;
use super::knee::{Level, saturation};
use crate::measure::reads::names;
use crate::result::{Experiment, Metrics, Row, Sample, metric};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 256;
const MS: Duration = Duration::from_millis(1);
/// What a read of most devices takes.
const READ: Duration = Duration::from_millis(2);

/// A device with what was planted in it.
struct Device {
    name: &'static str,
    profile: Profile,
    /// How many reads it serves at full speed: by its depth, its token bucket, its bandwidth. `None`: more than are asked.
    places: Option<f64>,
    /// The share of slower reads, and how many times as long they take.
    sorts: Option<(f64, f64)>,
}

fn device(name: &'static str, profile: Profile) -> Device {
    Device { name, profile: profile.latency(READ, READ, READ), places: None, sorts: None }
}

impl Device {
    /// For how many reads one after the other a closed loop lasts: where some reads take several times as long, so
    /// much longer that these even out.
    fn reads_each(&self) -> u32 {
        match (self.sorts, self.places) {
            (Some(_), Some(_)) => 300,
            (Some(_), None) => 60,
            (None, _) => 30,
        }
    }

    fn places(self, places: f64) -> Self {
        Self { places: Some(places), ..self }
    }

    fn sorts(self, share: f64, times: f64) -> Self {
        Self { sorts: Some((share, times)), ..self }
    }

    /// As many reads at a time; a limit where fewer than are asked for.
    fn depth(self, depth: u32) -> Self {
        let profile = self.profile.clone().parallelism(depth);
        Self { profile, ..self }.places(f64::from(depth))
    }

    /// Some reads take longer.
    fn tail(self, ppm: u32, times: u32) -> Self {
        let profile = self.profile.clone().tail(ppm, times);
        Self { profile, ..self }.sorts(f64::from(ppm) / 1e6, f64::from(times))
    }
}

/// A disk without any limit that 256 readers reach.
fn wide() -> Profile {
    Profile::ideal().parallelism(1024)
}

fn devices() -> Vec<Device> {
    // What a read of 2 ms waits for when so many are let through in a second.
    let bucket = |rate: u64| wide().iops(rate, 4);
    vec![
        device("no limit", wide()),
        device("no limit, jitter", wide().jitter(50)),
        device("no limit, much jitter", wide().jitter(200)),
        device("no limit, rare tail", wide().tail(1_000, 20)),
        device("no limit, two levels", wide()).tail(50_000, 20),
        device("no limit, two levels and jitter", wide().jitter(40)).tail(100_000, 10),
        device("one at a time", wide()).depth(1),
        device("two at a time", wide()).depth(2),
        device("4 at a time", wide()).depth(4),
        device("8 at a time", wide()).depth(8),
        device("16 at a time", wide()).depth(16),
        device("32 at a time", wide()).depth(32),
        device("64 at a time", wide()).depth(64),
        device("4 at a time, jitter", wide().jitter(50)).depth(4),
        device("16 at a time, jitter", wide().jitter(50)).depth(16),
        device("64 at a time, much jitter", wide().jitter(200)).depth(64),
        device("16 at a time, two levels", wide()).depth(16).tail(100_000, 5),
        device("32 at a time, two levels, jitter", wide().jitter(30)).depth(32).tail(80_000, 6),
        device("8 at a time, rare tail", wide().tail(1_000, 20)).depth(8),
        device("short queue", wide().queue_depth(12)).places(12.0),
        device("bucket of 2,000", bucket(2_000)).places(4.0),
        device("bucket of 8,000", bucket(8_000)).places(16.0),
        device("bucket of 8,000, two levels", bucket(8_000)).places(22.4).tail(100_000, 5),
        device("bucket beyond reach", bucket(1_000_000)),
        device("16 MB/s", wide().bandwidth(16_384_000)).places(8.0),
        device("bandwidth beyond reach", wide().bandwidth(4_000_000_000)),
        device("slow flush", Profile::nand().parallelism(1024)),
        device("no write cache", wide().write_cache(0)),
        device("a drive", Profile::nand()).places(32.0),
        device("a volume of a cloud", Profile::cloud().tail(0, 1).iops(4_000, 4).parallelism(1024))
            .places(10.0),
    ]
}

/// What readers of a closed loop got.
struct Seen {
    readers: u32,
    per_second: f64,
    times: Vec<Duration>,
}

/// Everything that is looked at, in the world of one seed.
fn observe(device: &Device, seed: u64) -> Vec<Seen> {
    let mut world = World::new(seed)
        .disk(device.profile.clone())
        .stalls_ppm(0)
        .wanders_ppm(0)
        .config(Config::default().shards(1).arena_bytes_max(16 << 20));
    world
        .run(async |engine| {
            let file = written(&engine).await?;
            let mut seen = Vec::new();
            for doublings in 0..=8 {
                let readers = 1 << doublings;
                // Alone for long, because the sorts of latencies are looked at there.
                let lasts = READ * if readers == 1 { 1000 } else { device.reads_each() };
                seen.push(closed_loop(&file, readers, lasts).await?);
            }
            Ok::<_, forebay::Error>(seen)
        })
        .unwrap_or_else(|failure| panic!("{}: {failure}", device.name))
        .unwrap_or_else(|error| panic!("{}: {error}", device.name))
}

async fn written(engine: &Engine) -> forebay::Result<File> {
    let file = engine.open("/data", Open::create()).await?;
    for block in 0..BLOCKS {
        file.write(block * BLOCK, vec![7; BLOCK as usize]).await?;
    }
    // A bucket that the writing has emptied fills again.
    sim::sleep(MS * 5_000).await?;
    Ok(file)
}

async fn closed_loop(file: &File, readers: u32, lasts: Duration) -> forebay::Result<Seen> {
    let until = sim::now() + lasts;
    let tasks: Vec<_> = (0..readers).map(|_| sim::spawn_local(reader(file.clone(), until))).collect();
    let mut times = Vec::new();
    let mut in_time = 0;
    for task in tasks {
        let (own, count) = task.await??;
        times.extend(own);
        in_time += count;
    }
    Ok(Seen { readers, per_second: f64::from(in_time) / lasts.as_secs_f64(), times })
}

/// The times of a reader's reads, and how many of them ended in time.
async fn reader(file: File, until: Duration) -> forebay::Result<(Vec<Duration>, u32)> {
    let (mut times, mut in_time) = (Vec::new(), 0);
    let mut begun = sim::now();
    while begun < until {
        let offset = sim::random(BLOCKS) * BLOCK;
        file.read(offset..offset + BLOCK).await?;
        let ended = sim::now();
        times.push(ended - begun);
        in_time += u32::from(ended <= until);
        begun = ended;
    }
    Ok((times, in_time))
}

fn mean_us(times: &[Duration]) -> f64 {
    times.iter().sum::<Duration>().as_secs_f64() * 1e6 / times.len() as f64
}

/// As `measure saturate` writes it.
fn experiment(seen: &Seen) -> Experiment {
    let mut metrics = Metrics::default();
    metrics.set(metric::IOPS, seen.per_second).set(names::MEAN_US, mean_us(&seen.times));
    let mut row = Row::from_samples("forebay", vec![Sample { repeat: 0, metrics }]);
    row.histograms.insert("latency".to_owned(), text(seen.times.iter().map(|time| time.as_micros() as u64)));
    let mut experiment =
        Experiment::new("saturate", "").parameter("loop", "closed").parameter("readers", seen.readers);
    experiment.rows.push(row);
    experiment
}

/// The number that stands before `words` in the sentences.
fn number_before(sentences: &[String], words: &str) -> Option<f64> {
    let sentence = sentences.iter().find(|sentence| sentence.contains(words))?;
    let before = sentence.split(words).next()?;
    before.rsplit(' ').next()?.replace(',', "").parse().ok()
}

#[test]
fn every_verdict_finds_what_was_planted_and_claims_nothing_else() {
    let devices = devices();
    assert_eq!(devices.len(), 30);
    let mut wrong = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        let seen = observe(device, 1 + index as u64);
        let experiments: Vec<Experiment> = seen.iter().map(experiment).collect();
        let sentences = super::saturate::of(&experiments.iter().collect::<Vec<_>>());
        let curve: Vec<Level> = seen
            .iter()
            .map(|seen| Level {
                readers: f64::from(seen.readers),
                per_second: seen.per_second,
                mean_us: mean_us(&seen.times),
            })
            .collect();
        let complaints = [limit(device, &sentences), knees(device, &curve), sorts(device, &sentences)];
        for complaint in complaints.into_iter().flatten() {
            wrong.push(format!("{}: {complaint}\n  {}", device.name, sentences.join("\n  ")));
        }
    }
    assert!(wrong.is_empty(), "{} of the verdicts are wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// The table itself must notice a verdict that claims too much, too little, or something else.
#[test]
fn what_is_claimed_wrongly_is_noticed() {
    let found = |device: &Device| {
        let experiments: Vec<Experiment> = observe(device, 1).iter().map(experiment).collect();
        super::saturate::of(&experiments.iter().collect::<Vec<_>>())
    };
    let planted = device("8 at a time, two levels", wide()).depth(8).tail(100_000, 5);
    let sentences = found(&planted);
    assert_eq!((limit(&planted, &sentences), sorts(&planted, &sentences)), (None, None), "{sentences:?}");
    let without = device("nothing", wide());
    assert!(limit(&without, &sentences).is_some_and(|why| why.contains("where none is")));
    assert!(sorts(&without, &sentences).is_some_and(|why| why.contains("where there is one")));
    let other = device("12 at a time", wide()).depth(12).tail(200_000, 20);
    assert!(limit(&other, &sentences).is_some_and(|why| why.contains("12 programs fit")));
    assert!(sorts(&other, &sentences).is_some_and(|why| why.contains("a share of 0.2")));
    let nothing = found(&without);
    assert!(limit(&planted, &nothing).is_some_and(|why| why.contains("was not found")));
    assert!(sorts(&planted, &nothing).is_some_and(|why| why.contains("were not found")));
    assert!(limit(&planted, &[]).is_some_and(|why| why.contains("neither")));
}

/// The limit and how many programs the device carries.
fn limit(device: &Device, sentences: &[String]) -> Option<String> {
    let told = |words: &str| sentences.iter().any(|sentence| sentence.contains(words));
    let claimed = told("each further one only adds latency");
    if claimed == told("no limit was found") {
        return Some("neither a limit nor none, or both".to_owned());
    }
    match (device.places, claimed) {
        (None, true) => Some("a limit where none is".to_owned()),
        (Some(_), false) => Some("its limit was not found".to_owned()),
        (None, false) => None,
        (Some(1.0), true) => (!told("carries one such program")).then(|| "it carries one program".to_owned()),
        (Some(places), true) => match number_before(sentences, " such programs") {
            Some(found) if (found / places - 1.0).abs() <= 0.15 || (found - places).abs() <= 1.0 => None,
            found => Some(format!("{places} programs fit, and it says {found:?}")),
        },
    }
}

/// All three definitions come within the next level of the limit.
fn knees(device: &Device, curve: &[Level]) -> Option<String> {
    let places = device.places?;
    let found = saturation(curve)?.knees.map(|knee| curve[knee].readers);
    let near = |readers: &f64| *readers >= places / 2.0 && *readers <= 2.0 * places;
    (!found.iter().all(near)).then(|| format!("knees at {found:?} of {places}"))
}

fn sorts(device: &Device, sentences: &[String]) -> Option<String> {
    let told = sentences.iter().any(|sentence| sentence.contains("of two sorts"));
    match (device.sorts, told) {
        (None, true) => Some("two sorts where there is one".to_owned()),
        (Some(_), false) => Some("its two sorts were not found".to_owned()),
        (Some((share, _)), true) => match number_before(sentences, " % of them take about") {
            Some(found) if (found / 100.0 / share - 1.0).abs() <= 0.4 => None,
            found => Some(format!("a share of {share}, and it says {found:?} %")),
        },
        (None, false) => None,
    }
}
