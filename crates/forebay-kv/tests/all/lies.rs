//! Stores on disks that lie: flushes without effect, bits that change, writes that land elsewhere. A read
//! then returns the bytes written, or an error that names the file and the place. It never returns anything
//! else, and never fails silently.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use forebay::Engine;
use forebay_kv::{Error, ErrorKind};
use forebay_sim::{self as sim, Fault, Loss, MetadataOrder, Profile, Rule, World};

use crate::simulation::model::{At, KEYS, SPACES, WRITERS};
use crate::simulation::store::{DIR, Open, Shape, number};
use forebay_test::worlds::mix;

/// The misbehaviour of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    Flushes,
    Rot,
    Misdirected,
}

/// A writer's key.
type Key = (u8, At);

/// The possible values of a key: one, or several where the current one is unknown.
type May = BTreeSet<Option<u64>>;

/// The expected contents of a store.
#[derive(Clone, Debug, Default)]
struct StoreModel {
    /// Keys that were never written have no entry.
    keys: BTreeMap<Key, May>,
    /// Values of each key since the disk started to lie.
    since: BTreeMap<Key, May>,
    lies: bool,
    count: u64,
}

/// Counts of outcomes over the worlds; a kind that never occurs would mean that the test checks nothing.
#[derive(Clone, Copy, Debug, Default)]
struct OutcomeCounts {
    /// Gets and ranges that returned an error.
    errors: u64,
    /// Stores that failed to open.
    refused: u64,
    /// Stores that became read-only.
    read_only: u64,
    /// Values older than the acknowledged one.
    older: u64,
    right: u64,
}

impl StoreModel {
    fn may(&self, key: Key) -> May {
        self.keys.get(&key).cloned().unwrap_or_else(|| May::from([None]))
    }

    /// A write starts: the key has either its old or its new value.
    fn begin(&mut self, key: Key, value: Option<u64>) {
        let mut may = self.may(key);
        may.insert(value);
        if self.lies {
            self.since.entry(key).or_default().extend(may.iter().copied());
        }
        self.keys.insert(key, may);
    }

    fn acknowledge(&mut self, key: Key, value: Option<u64>) {
        self.keys.insert(key, May::from([value]));
    }

    fn value(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// The disk lies from now on.
    fn lie(&mut self) {
        (self.lies, self.since) = (true, self.keys.clone());
    }

    /// After a restart a key may have any value that it had since then.
    fn restart(&mut self) {
        for (key, since) in &self.since {
            self.keys.entry(*key).or_default().extend(since.iter().copied());
        }
    }

    /// Records the value read: from now on the key has this value.
    fn read(&mut self, key: Key, found: Option<u64>, seen: &mut OutcomeCounts) -> Result<(), String> {
        let may = self.may(key);
        if !may.contains(&found) {
            return Err(format!("{key:?} holds {found:?}, and may be {may:?}"));
        }
        if may.last() == Some(&found) {
            seen.right += 1
        } else {
            seen.older += 1
        }
        self.keys.insert(key, May::from([found]));
        Ok(())
    }
}

/// Checks that an error names a place.
fn check(error: &Error, is_open: bool, call: impl fmt::Display) -> Result<(), String> {
    let in_store = error.path().is_some_and(|path| path.starts_with(DIR));
    let is_told = match error.kind() {
        ErrorKind::Corruption => in_store && (is_open || error.offset().is_some()),
        ErrorKind::MissingTable | ErrorKind::Version { .. } | ErrorKind::Foreign => in_store && is_open,
        ErrorKind::ReadOnly => in_store,
        _ => false,
    };
    if is_told { Ok(()) } else { Err(format!("{call} answered {error:?}")) }
}

/// Steps of a life: every operation of a store.
async fn work(
    open: &Open,
    known: &mut StoreModel,
    seen: &mut OutcomeCounts,
    steps: u64,
) -> Result<(), String> {
    for _ in 0..steps {
        let key = (sim::random(u64::from(WRITERS)) as u8, any_place());
        match sim::random(24) {
            0..=13 => {
                let value = (sim::random(6) > 0).then(|| known.value());
                known.begin(key, value);
                match open.write(key.0, &[(key.1, value)]).await {
                    Ok(()) => known.acknowledge(key, value),
                    Err(error) => check(&error, false, "a write")?,
                }
            }
            14 => drop(told(open.store.flush().await, "a flush")?),
            15 => drop(told(open.store.settle().await, "rest")?),
            16 if sim::random(3) == 0 => drop(told(open.store.compact().await, "a compaction")?),
            17 => scan(open, known, seen, key.0, key.1.0).await?,
            _ => get(open, known, seen, key).await?,
        }
    }
    if let Some(error) = open.store.stats().failed {
        check(&error, true, "the store, which failed,")?;
        seen.read_only += 1;
    }
    Ok(())
}

fn told<T>(answer: Result<T, Error>, call: &str) -> Result<Option<T>, String> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) => check(&error, false, call).map(|()| None),
    }
}

fn any_place() -> At {
    (sim::random(u64::from(SPACES)) as u8, sim::random(u64::from(KEYS)) as u8)
}

async fn get(open: &Open, known: &mut StoreModel, seen: &mut OutcomeCounts, key: Key) -> Result<(), String> {
    match open.get(key.0, key.1).await {
        Ok(found) => {
            let found = found.as_deref().map(number).transpose()?;
            known.read(key, found, seen)
        }
        Err(error) => {
            seen.errors += 1;
            check(&error, false, format_args!("a get of {key:?}"))
        }
    }
}

/// Reads all keys of a writer in one keyspace.
async fn scan(
    open: &Open,
    known: &mut StoreModel,
    seen: &mut OutcomeCounts,
    writer: u8,
    space: u8,
) -> Result<(), String> {
    let found = match open.scan(writer, space, sim::random(2) == 0).await {
        Ok(found) => found?,
        Err(error) => {
            seen.errors += 1;
            return check(&error, false, format_args!("a range of writer {writer}"));
        }
    };
    for place in 0..KEYS {
        let at = (space, place);
        known.read((writer, at), found.get(&at).copied(), seen)?;
    }
    Ok(())
}

async fn all(open: &Open, known: &mut StoreModel, seen: &mut OutcomeCounts) -> Result<(), String> {
    for writer in 0..WRITERS {
        for space in 0..SPACES {
            for place in 0..KEYS {
                get(open, known, seen, (writer, (space, place))).await?;
            }
            scan(open, known, seen, writer, space).await?;
        }
    }
    Ok(())
}

fn rule(lie: Lie) -> Rule {
    match lie {
        Lie::Flushes => Rule::new(Fault::LyingFlush),
        Lie::Rot => Rule::new(Fault::BitRot).chance_ppm([3_000, 30_000, 200_000][sim::random(3) as usize]),
        Lie::Misdirected => {
            Rule::new(Fault::MisdirectedWrite).chance_ppm([10_000, 50_000, 200_000][sim::random(3) as usize])
        }
    }
}

/// The first life: a time with an honest disk, at whose end everything is in tables, and a time with a lying
/// one.
async fn begin(engine: Engine, lie: Lie, shape: Shape) -> Result<(StoreModel, OutcomeCounts), String> {
    let (mut known, mut seen) = (StoreModel::default(), OutcomeCounts::default());
    let open = Open::open(&engine, shape).await.map_err(|error| format!("opening: {error:?}"))?;
    let steps = 50 + sim::random(250);
    work(&open, &mut known, &mut seen, steps).await?;
    open.store.flush().await.map_err(|error| format!("flushing: {error:?}"))?;
    if sim::random(2) == 0 {
        open.store.settle().await.map_err(|error| format!("resting: {error:?}"))?;
    }
    if seen.errors + seen.older + seen.read_only > 0 {
        return Err(format!("with an honest disk {seen:?}"));
    }
    known.lie();
    sim::inject(rule(lie));
    let steps = sim::random(200);
    work(&open, &mut known, &mut seen, steps).await?;
    if sim::random(2) == 0 {
        told(open.store.close().await, "closing")?;
    }
    Ok((known, seen))
}

/// The life after the restart: the disk is honest again, but the damage stays.
async fn go_on(
    engine: Engine,
    lie: Lie,
    shape: Shape,
    mut known: StoreModel,
) -> Result<(StoreModel, OutcomeCounts), String> {
    let mut seen = OutcomeCounts::default();
    known.restart();
    let open = match Open::open(&engine, shape).await {
        Ok(open) => open,
        Err(error) => {
            check(&error, true, "opening after a restart")?;
            seen.refused = 1;
            if std::env::var_os("FOREBAY_KV_LIES_TELL").is_some() {
                println!("{lie:?}: {error}");
            }
            return Ok((known, seen));
        }
    };
    if lie == Lie::Rot && sim::random(2) == 0 {
        sim::inject(rule(lie));
    }
    all(&open, &mut known, &mut seen).await?;
    // Writes from now on are judged as before.
    known.lie();
    let steps = sim::random(150);
    work(&open, &mut known, &mut seen, steps).await?;
    all(&open, &mut known, &mut seen).await?;
    told(open.store.close().await, "closing")?;
    Ok((known, seen))
}

/// Runs one world.
fn attempt(world: &mut World, lie: Lie) -> Result<OutcomeCounts, String> {
    let draw = |salt: u64, n: u64| (mix(salt << 40 ^ mix(7)) ^ salt) % n;
    let seed = world.seed();
    let draw = |salt: u64, n: u64| draw(seed << 4 | salt, n) as usize;
    let lost = [Loss::Subset, Loss::Prefix, Loss::Nothing][draw(1, 3)];
    let order = [MetadataOrder::Journal, MetadataOrder::Posix][draw(2, 2)];
    let disk = if draw(3, 2) == 0 { Profile::nand() } else { Profile::ideal() };
    world.add_disk(disk.at("/disk").lost(lost).metadata_order(order).torn(draw(4, 2) == 0));
    let shape = Shape::of(seed);
    let told = |text: String| format!("a world of {lie:?}, {shape:?}: {text}");
    let lived = world.run(async |engine| begin(engine, lie, shape).await);
    let (mut known, mut all) = lived.map_err(|failure| told(failure.to_string()))?.map_err(told)?;
    for life in 0..2 {
        world.clear_faults();
        if lie == Lie::Flushes || draw(5 + life, 3) > 0 {
            world.power_cut();
        }
        world.reboot();
        let before = known.clone();
        let lived = world.run(async |engine| go_on(engine, lie, shape, before).await);
        let seen;
        (known, seen) = lived.map_err(|failure| told(failure.to_string()))?.map_err(told)?;
        all.add(seen);
    }
    Ok(all)
}

impl OutcomeCounts {
    fn add(&mut self, other: OutcomeCounts) {
        self.errors += other.errors;
        self.refused += other.refused;
        self.read_only += other.read_only;
        self.older += other.older;
        self.right += other.right;
    }
}

/// Runs many worlds and returns the outcomes counted in them.
fn explore(lie: Lie, seeds: u64) -> OutcomeCounts {
    let mut all = OutcomeCounts::default();
    let tried = sim::explore(0..seeds, |seed| attempt(&mut World::new(seed), lie).map(|seen| all.add(seen)));
    if let Err(failing) = tried {
        panic!("{failing}");
    }
    println!("{lie:?}: {all:?}");
    all
}

#[test]
fn flushes_that_lie_lose_what_came_since_and_nothing_before() {
    let seen = explore(Lie::Flushes, 60);
    assert!(seen.right > 0 && seen.older > 0 && seen.refused > 0, "{seen:?}");
}

#[test]
fn bits_that_rot_are_found_where_they_are() {
    let seen = explore(Lie::Rot, 60);
    assert!(seen.right > 0 && seen.errors > 0 && seen.refused > 0 && seen.read_only > 0, "{seen:?}");
}

#[test]
fn writes_that_land_elsewhere_are_found() {
    let seen = explore(Lie::Misdirected, 60);
    assert!(seen.right > 0 && seen.errors > 0 && seen.refused > 0 && seen.read_only > 0, "{seen:?}");
}
