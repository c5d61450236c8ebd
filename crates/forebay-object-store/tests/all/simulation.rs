//! Shows: after a power cut an object is there whole or not at all, and one whose put had returned is there. How: simulated worlds in which
//! several tasks put, copy, rename and delete objects of versions that can be told apart, disks tear and lose writes, calls fail, futures
//! are dropped, and the power fails; a model knows which versions an object may have.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use forebay::{Durability, Engine, File, FileKind, Lock, Mode, Open};
use forebay_object_store::ForebayStore;
use forebay_sim::{self as sim, Fault, Loss, MetadataOrder, Profile, Rule, World};
use forebay_test::worlds::{self, Draw, Trouble};
use futures::TryStreamExt;
use futures::future::{join, join_all, join5};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions,
    PutPayload, UpdateVersion,
};

use crate::common::LOCKS;

const ROOT: &str = "/disk/store";
const LIVES: u64 = 3;
/// Each is of one task.
const TASKS: u64 = 4;
const NAMES: u64 = 4;

/// Returns the location of one of a task's objects: directories are shared by all tasks, and are created and removed.
fn location(task: u64, name: u64) -> Path {
    Path::from(match name {
        0 => format!("a-{task}"),
        1 => format!("d/b-{task}"),
        2 => format!("d/e/c-{task}"),
        _ => format!("d/e/f/g/d-{task}"),
    })
}

/// Returns the bytes of a version: its number in each word, and a length that follows from it.
fn content(version: u64) -> Vec<u8> {
    let len = match version % 7 {
        0 => 0,
        1 => 9,
        2 => 4096,
        3 => 70_003,
        _ => 8 + worlds::mix(version) % 20_000,
    };
    version.to_le_bytes().into_iter().cycle().take(len as usize).collect()
}

/// Returns the attributes of a version: of each third one its number.
fn attributes(version: Version) -> Attributes {
    let number = version.is_multiple_of(3).then(|| version.to_string());
    number.into_iter().map(|number| (Attribute::Metadata("version".into()), number)).collect()
}

fn options(version: Version, mode: PutMode) -> PutOptions {
    PutOptions { mode, attributes: attributes(version), ..PutOptions::default() }
}

/// The version of an object; 0 if it does not exist. All empty objects are the same version.
type Version = u64;

const EMPTY: Version = 7;

/// What an object may be.
#[derive(Clone, Debug, Default)]
struct Possible {
    /// Of calls that have returned; the last one certainly happened.
    known: Version,
    /// Of calls in flight, or that have failed: any of them may have happened, in any order.
    open: BTreeSet<Version>,
    /// Of calls whose futures were dropped: they may continue until the end of the life.
    loose: BTreeSet<Version>,
    /// After a power cut these may be there again: deletions are not durable, and what has failed may be.
    at_next_cut: BTreeSet<Version>,
}

impl Possible {
    fn allows(&self, version: Version, after_cut: bool) -> bool {
        version == self.known
            || self.open.contains(&version)
            || self.loose.contains(&version)
            || (after_cut && self.at_next_cut.contains(&version))
    }
}

#[derive(Debug, Default)]
struct Model {
    objects: BTreeMap<(u64, u64), Possible>,
    last_version: Version,
    returned: u64,
    seen_after_cuts: u64,
}

#[derive(Clone, Default)]
struct SharedModel(Arc<Mutex<Model>>);

impl SharedModel {
    fn lock(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a change of an object to another version. Returns its number.
    fn begin(&self, object: (u64, u64), version: Version) {
        self.lock().objects.entry(object).or_default().open.insert(version);
    }

    /// A change has returned, and no other change of this object is in flight: so its version is the only possible version, unless
    /// a failed change continues.
    fn returned(&self, object: (u64, u64), version: Version, is_durable: bool) {
        let mut model = self.lock();
        model.returned += 1;
        let possible = model.objects.entry(object).or_default();
        if is_durable {
            possible.at_next_cut.clear();
        } else {
            let earlier: Vec<_> = possible.open.iter().copied().chain([possible.known]).collect();
            possible.at_next_cut.extend(earlier);
        }
        possible.known = version;
        possible.open.clear();
    }

    fn new_version(&self) -> Version {
        let mut model = self.lock();
        model.last_version += 1;
        if model.last_version.is_multiple_of(EMPTY) { EMPTY } else { model.last_version }
    }
}

/// Returns the version that bytes are of; of all that are empty the same one.
fn version_of(bytes: &[u8]) -> Result<Version, String> {
    let Some((first, _)) = bytes.split_first_chunk() else { return Ok(EMPTY) };
    let version = u64::from_le_bytes(*first);
    let is_whole = version < 1 << 32 && content(version) == bytes;
    is_whole.then_some(version).ok_or_else(|| format!("{} bytes are of no version: torn", bytes.len()))
}

/// Returns the version of an object.
async fn read(store: &ForebayStore, object: (u64, u64)) -> Result<Option<Version>, String> {
    let location = location(object.0, object.1);
    let got = match store.get(&location).await {
        Ok(got) => got,
        Err(Error::NotFound { .. }) => return Ok(Some(0)),
        Err(_) => return Ok(None),
    };
    let found = got.attributes.clone();
    let Ok(bytes) = got.bytes().await else { return Ok(None) };
    let version = version_of(&bytes).map_err(|text| format!("{location}: {text}"))?;
    if found != attributes(version) {
        return Err(format!("{location}: version {version} has the attributes {found:?}"));
    }
    Ok(Some(version))
}

async fn judge(store: &ForebayStore, shared: &SharedModel, after_cut: bool) -> Result<(), String> {
    for task in 0..TASKS {
        for name in 0..NAMES {
            let object = (task, name);
            let Some(found) = read(store, object).await? else {
                return Err(format!("{} cannot be read", location(task, name)));
            };
            let mut model = shared.lock();
            let possible = model.objects.entry(object).or_default();
            if !possible.allows(found, after_cut) {
                return Err(format!(
                    "{} has version {found}, and may have {possible:?}, after a cut: {after_cut}",
                    location(task, name)
                ));
            }
            // It has been decided, and is on the disk after a cut. Without a cut, failed changes and deleted versions may reappear
            // with the next cut.
            let mut at_next_cut = BTreeSet::new();
            if !after_cut {
                at_next_cut.append(&mut possible.at_next_cut);
                if !possible.open.is_empty() || !possible.loose.is_empty() {
                    at_next_cut.insert(possible.known);
                    at_next_cut.append(&mut possible.open);
                    at_next_cut.append(&mut possible.loose);
                }
            }
            *possible = Possible { known: found, at_next_cut, ..Possible::default() };
            model.seen_after_cuts += u64::from(after_cut && found != 0);
        }
    }
    Ok(())
}

#[derive(Clone)]
struct Plan {
    rules: Vec<Rule>,
    after_cut: bool,
    is_durable: bool,
    cleans: bool,
    /// No call fails, so nothing staged may stay.
    is_orderly: bool,
    steps: u64,
}

async fn task(
    store: ForebayStore,
    shared: SharedModel,
    number: u64,
    plan: Plan,
    mut draw: Draw,
) -> Result<(), String> {
    for _ in 0..plan.steps {
        let name = draw.below(NAMES);
        let (object, at) = ((number, name), location(number, name));
        let version = shared.new_version();
        let bytes = content(version);
        // A put of several chunks, now and then.
        let cut = (draw.below(3) as usize * bytes.len() / 3).min(bytes.len());
        let chunks = [bytes[..cut].to_vec(), bytes[cut..].to_vec()].map(Bytes::from);
        match draw.below(11) {
            0..4 => {
                let payload = PutPayload::from_iter(chunks);
                let put = store.put_opts(&at, payload, options(version, PutMode::Overwrite));
                if draw.below(6) == 0 {
                    shared.lock().objects.entry(object).or_default().loose.insert(version);
                    // Dropped: it continues, or never started.
                    drop(sim::frozen_after(draw.below(6) as usize, put).await);
                } else {
                    shared.begin(object, version);
                    if put.await.is_ok() {
                        shared.returned(object, version, plan.is_durable);
                    }
                }
            }
            4 => {
                shared.begin(object, version);
                match store
                    .put_opts(&at, PutPayload::from_iter(chunks), options(version, PutMode::Create))
                    .await
                {
                    Ok(_) => shared.returned(object, version, plan.is_durable),
                    // Certainly not.
                    Err(Error::AlreadyExists { .. }) => {
                        shared.lock().objects.entry(object).or_default().open.remove(&version);
                    }
                    Err(_) => {}
                }
            }
            5 | 6 => {
                let attributes = attributes(version);
                let how = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
                let Ok(mut upload) = store.put_multipart_opts(&at, how).await else { continue };
                let parts = chunks.map(|chunk| upload.put_part(chunk.into()));
                let is_written = join_all(parts).await.into_iter().all(|part| part.is_ok());
                if draw.below(4) == 0 {
                    let _ = upload.abort().await;
                } else if is_written {
                    shared.begin(object, version);
                    if upload.complete().await.is_ok() {
                        shared.returned(object, version, plan.is_durable);
                    }
                }
            }
            7 => {
                // From one name to another: both objects are this task's.
                let other = (name + 1 + draw.below(NAMES - 1)) % NAMES;
                let found = {
                    let model = shared.lock();
                    let possible = model.objects.get(&object).cloned().unwrap_or_default();
                    (possible.open.is_empty() && possible.loose.is_empty()).then_some(possible.known)
                };
                let Some(found) = found.filter(|found| *found != 0) else { continue };
                let target = (number, other);
                // rename(2) of one of two names of a file changes nothing.
                if shared.lock().objects.get(&target).is_some_and(|possible| possible.allows(found, false)) {
                    continue;
                }
                shared.begin(target, found);
                let is_move = draw.below(2) == 0;
                if is_move {
                    shared.begin(object, 0);
                    if store.rename(&at, &location(number, other)).await.is_ok() {
                        shared.returned(target, found, plan.is_durable);
                        // The same call removes the old name, for good.
                        shared.returned(object, 0, plan.is_durable);
                    }
                } else if store.copy(&at, &location(number, other)).await.is_ok() {
                    shared.returned(target, found, plan.is_durable);
                }
            }
            8 => {
                shared.begin(object, 0);
                if store.delete(&at).await.is_ok() {
                    shared.returned(object, 0, false);
                }
            }
            9 => {
                let Ok(head) = store.head(&at).await else { continue };
                let update = PutMode::Update(UpdateVersion { e_tag: head.e_tag, version: None });
                shared.begin(object, version);
                let payload = PutPayload::from_iter(chunks);
                match store.put_opts(&at, payload, options(version, update)).await {
                    Ok(_) => shared.returned(object, version, plan.is_durable),
                    // Certainly not; a dropped put intervened.
                    Err(Error::Precondition { .. }) if version != EMPTY => {
                        shared.lock().objects.entry(object).or_default().open.remove(&version);
                    }
                    Err(_) => {}
                }
            }
            _ => {
                let Some(found) = read(&store, object).await? else { continue };
                let model = shared.lock();
                let possible = model.objects.get(&object).cloned().unwrap_or_default();
                if !possible.allows(found, false) {
                    return Err(format!("{at} has version {found} and may have {possible:?}"));
                }
            }
        }
    }
    Ok(())
}

/// Returns the number of staged files.
async fn staged(engine: &Engine, root: PathBuf) -> Result<usize, String> {
    let (mut dirs, mut staged) = (vec![root], 0);
    while let Some(dir) = dirs.pop() {
        for entry in engine.read_dir(&dir).await.map_err(|error| error.to_string())? {
            match entry.kind() {
                FileKind::Dir => dirs.push(dir.join(entry.name())),
                _ => {
                    let name = entry.name().to_string_lossy();
                    staged += usize::from(name.contains('#') && !name.starts_with(LOCKS));
                }
            }
        }
    }
    Ok(staged)
}

async fn live(engine: Engine, shared: SharedModel, plan: Plan, seed: u64) -> Result<(), String> {
    let text = |error: forebay::Error| error.to_string();
    engine.create_dir_all(ROOT).await.map_err(text)?;
    engine.sync_dir("/disk").await.map_err(text)?;
    let durability = if plan.is_durable { Durability::Data } else { Durability::None };
    let settings = ForebayStore::builder(&engine, ROOT).read_mode(Mode::Direct).open_files_max(3);
    let settings = settings.put_durability(durability).automatic_cleanup(plan.cleans);
    let store = settings.open().await.map_err(text)?;
    judge(&store, &shared, plan.after_cut).await?;
    plan.rules.iter().cloned().for_each(sim::inject);
    let tasks = (0..TASKS).map(|number| {
        task(store.clone(), shared.clone(), number, plan.clone(), Draw::new(seed ^ (number + 1) << 40))
    });
    join_all(tasks).await.into_iter().collect::<Result<Vec<()>, String>>()?;
    sim::clear_faults();
    // All dropped calls have ended.
    let _ = sim::sleep(Duration::from_secs(5)).await;
    judge(&store, &shared, false).await?;
    let listed: Vec<_> =
        store.list(None).try_collect().await.map_err(|error: Error| format!("a list: {error}"))?;
    let there = shared.lock().objects.values().filter(|possible| possible.known != 0).count();
    if listed.len() != there {
        return Err(format!("{} objects are listed, and {there} are there", listed.len()));
    }
    // After a crash they may stay forever.
    let staged = if plan.after_cut { 0 } else { staged(&engine, PathBuf::from(ROOT)).await? };
    if staged > 0 && plan.is_orderly {
        return Err(format!("{staged} staged files are left"));
    }
    Ok(())
}

fn attempt(world: &mut World, trouble: Trouble, seen: &Rc<Mutex<u64>>) -> Result<(), String> {
    let mut draw = Draw::new(world.seed());
    world.add_disk(worlds::disk(&mut draw));
    let shared = SharedModel::default();
    let mut after_cut = false;
    let cleans = draw.below(2) == 0;
    for life in 0..LIVES {
        let wrong = |text: String| format!("life {life} of a world of {trouble:?}: {text}");
        let last = life + 1 == LIVES;
        let rules = trouble.faults(&mut draw, 5_000, 80);
        let rules = if last { Vec::new() } else { rules };
        let is_orderly = trouble == Trouble::Crashes && life == 0;
        let plan =
            Plan { rules, after_cut, is_durable: true, cleans, is_orderly, steps: if last { 3 } else { 15 } };
        if !last {
            worlds::order_cut(world, &mut draw, 0..40_000, 250);
        }
        let seed = world.seed() ^ life << 50;
        let live = async |engine| live(engine, shared.clone(), plan, seed).await;
        worlds::live(world, !last, live).map_err(wrong)?;
        after_cut = !last;
    }
    *seen.lock().unwrap_or_else(PoisonError::into_inner) += shared.lock().seen_after_cuts;
    Ok(())
}

fn explore(trouble: Trouble, seeds: u64) {
    let seen = Rc::default();
    worlds::explore(seeds, |world| attempt(world, trouble, &seen));
    let seen = *seen.lock().unwrap();
    assert!(worlds::is_single() || seen > seeds, "{seen} objects were found after {seeds} power cuts");
}

#[test]
fn an_object_is_there_whole_or_not_at_all_after_a_power_cut() {
    explore(Trouble::Crashes, 40);
}

#[test]
fn the_same_on_disks_that_fail() {
    explore(Trouble::Errors, 40);
}

#[test]
fn worlds_repeat_themselves() {
    worlds::repeats_itself(|world| attempt(world, Trouble::Errors, &Rc::default()));
}

/// Puts an object, deletes it with its directories, and puts it once more; then the power fails.
fn put_again(world: &mut World) -> Result<(), String> {
    world.add_disk(Profile::nand().at("/disk").metadata_order(MetadataOrder::Posix).lost(Loss::Subset));
    let run = world.run(async |engine: Engine| {
        engine.create_dir_all(ROOT).await.map_err(|error| error.to_string())?;
        engine.sync_dir("/disk").await.map_err(|error| error.to_string())?;
        let settings = ForebayStore::builder(&engine, ROOT).automatic_cleanup(true);
        let store = settings.open().await.map_err(|error| error.to_string())?;
        let at = Path::from("d/e/object");
        let both = async {
            store.put(&at, "first".into()).await?;
            store.delete(&at).await?;
            store.put(&at, "second".into()).await
        };
        both.await.map(drop).map_err(|error: Error| error.to_string())
    });
    run.map_err(|failure| failure.to_string())??;
    world.power_cut();
    world.reboot();
    let run = world.run(async |engine: Engine| {
        let store = ForebayStore::builder(&engine, ROOT).open().await.map_err(|error| error.to_string())?;
        let got = store.get(&Path::from("d/e/object")).await.map_err(|error| error.to_string())?;
        let bytes = got.bytes().await.map_err(|error| error.to_string())?;
        (bytes == "second").then_some(()).ok_or_else(|| format!("{bytes:?} came back"))
    });
    run.map_err(|failure| failure.to_string())?
}

/// Moves an object into new directories, one of which cannot be made durable; then the power fails. The directory of the old name was
/// synced before those of the new name, and the object had no name afterwards.
fn moved_to_new_directories(world: &mut World) -> Result<(), String> {
    world.add_disk(Profile::nand().at("/disk").metadata_order(MetadataOrder::Posix).lost(Loss::Subset));
    let names = || ["d/object", "n/e/object"].map(Path::from);
    let run = world.run(async move |engine: Engine| {
        engine.create_dir_all(ROOT).await.map_err(|error| error.to_string())?;
        engine.sync_dir("/disk").await.map_err(|error| error.to_string())?;
        let store = ForebayStore::builder(&engine, ROOT).open().await.map_err(|error| error.to_string())?;
        let [from, to] = names();
        store.put(&from, "data".into()).await.map_err(|error| error.to_string())?;
        sim::inject(Rule::new(Fault::FlushError).on(format!("{ROOT}/n")).times(1));
        let moved = store.rename(&from, &to).await;
        moved.is_err().then_some(()).ok_or_else(|| "a sync failed, and no call did".to_string())
    });
    run.map_err(|failure| failure.to_string())??;
    world.power_cut();
    world.reboot();
    let run = world.run(async move |engine: Engine| {
        let store = ForebayStore::builder(&engine, ROOT).open().await.map_err(|error| error.to_string())?;
        for at in names() {
            match store.get(&at).await {
                Err(Error::NotFound { .. }) => {}
                got => {
                    let bytes = got.map_err(|error| error.to_string())?.bytes().await;
                    let bytes = bytes.map_err(|error| error.to_string())?;
                    return (bytes == "data").then_some(()).ok_or_else(|| format!("{at} has {bytes:?}"));
                }
            }
        }
        Err("the object has no name".to_string())
    });
    run.map_err(|failure| failure.to_string())?
}

#[test]
fn a_moved_object_keeps_a_name_when_power_fails() {
    worlds::explore(20, moved_to_new_directories);
}

/// Puts objects into one directory at the same time; then the power fails.
fn put_together(world: &mut World) -> Result<(), String> {
    world.add_disk(Profile::nand().at("/disk").metadata_order(MetadataOrder::Posix).lost(Loss::Subset));
    let names = || (0..12).map(|name| Path::from(format!("d/{name}")));
    let run = world.run(async move |engine: Engine| {
        engine.create_dir_all(ROOT).await.map_err(|error| error.to_string())?;
        engine.sync_dir("/disk").await.map_err(|error| error.to_string())?;
        let store = ForebayStore::builder(&engine, ROOT).open().await.map_err(|error| error.to_string())?;
        let puts = names().map(|at| {
            let store = store.clone();
            async move { store.put(&at, "data".into()).await.map(drop).map_err(|error| error.to_string()) }
        });
        join_all(puts).await.into_iter().collect::<Result<(), String>>()
    });
    run.map_err(|failure| failure.to_string())??;
    world.power_cut();
    world.reboot();
    let run = world.run(async move |engine: Engine| {
        let store = ForebayStore::builder(&engine, ROOT).open().await.map_err(|error| error.to_string())?;
        for at in names() {
            store.head(&at).await.map_err(|error| error.to_string())?;
        }
        Ok::<(), String>(())
    });
    run.map_err(|failure| failure.to_string())?
}

#[test]
fn objects_that_share_a_sync_are_durable() {
    worlds::explore(20, put_together);
}

/// Adds one to the number in an object; fails where another task has the object of this tag replaced meanwhile.
async fn increment(store: &ForebayStore, at: &Path) -> object_store::Result<()> {
    let got = store.get(at).await?;
    let update = PutMode::Update(UpdateVersion { e_tag: got.meta.e_tag.clone(), version: None });
    let number: u64 = String::from_utf8_lossy(&got.bytes().await?).parse().expect("a number");
    store.put_opts(at, (number + 1).to_string().into(), update.into()).await.map(drop)
}

/// Tasks that add one, again and again.
fn increments(world: &mut World) -> Result<(), String> {
    const EACH: u64 = 5;
    world.add_disk(Profile::nand().at("/disk"));
    let run = world.run(async |engine: Engine| {
        let text = |error: Error| error.to_string();
        engine.create_dir_all(ROOT).await.map_err(|error| error.to_string())?;
        let store = ForebayStore::builder(&engine, ROOT).open().await.map_err(|error| error.to_string())?;
        let at = Path::from("d/number");
        store.put(&at, "0".into()).await.map_err(text)?;
        let tasks = (0..TASKS).map(|_| async {
            for _ in 0..EACH {
                loop {
                    match increment(&store, &at).await {
                        Err(Error::Precondition { .. }) => {}
                        ended => break ended?,
                    }
                }
            }
            Ok::<(), Error>(())
        });
        join_all(tasks).await.into_iter().collect::<Result<Vec<()>, Error>>().map_err(text)?;
        let number = store.get(&at).await.map_err(text)?.bytes().await.map_err(text)?;
        let expected = (TASKS * EACH).to_string();
        (number == expected.as_bytes()).then_some(()).ok_or_else(|| format!("{number:?} of {expected}"))
    });
    run.map_err(|failure| failure.to_string())?
}

#[test]
fn no_update_of_many_tasks_is_lost() {
    worlds::explore(20, increments);
}

/// Holds all locks, as a process that is stopped with them.
async fn stopped(engine: &Engine) -> Vec<File> {
    let mut held = Vec::new();
    for number in 0..64 {
        let path = format!("{ROOT}/{LOCKS}{number}");
        let file = engine.open(path, Open::create().buffered()).await.unwrap();
        // Of a file that was just dropped it is free once a shard has closed it.
        file.lock_within(Lock::Exclusive, Duration::from_secs(10)).await.unwrap();
        held.push(file);
    }
    held
}

/// A copy onto an earlier copy of its object left its staged file where the object was replaced meanwhile: it compared the new object
/// with the copy, and rename(2) with two names of one file does nothing.
#[test]
fn a_copy_leaves_nothing_while_its_object_is_replaced() {
    worlds::explore(20, |world| {
        world.add_disk(Profile::nand().at("/disk"));
        let ran = world.run(async |engine: Engine| {
            engine.create_dir_all(ROOT).await.map_err(|error| error.to_string())?;
            let settings = ForebayStore::builder(&engine, ROOT).put_durability(Durability::None);
            let store = settings.open().await.map_err(|error| error.to_string())?;
            let [at, other] = ["a", "b"].map(Path::from);
            store.put(&at, "first".into()).await.map_err(|error| error.to_string())?;
            for round in 0..20 {
                store.copy(&at, &other).await.map_err(|error| error.to_string())?;
                let (copied, put) = join(store.copy(&at, &other), store.put(&at, "next".into())).await;
                copied.and(put.map(drop)).map_err(|error| error.to_string())?;
                let left = staged(&engine, PathBuf::from(ROOT)).await?;
                if left > 0 {
                    return Err(format!("round {round}: {left} staged files are left"));
                }
            }
            Ok::<(), String>(())
        });
        ran.map_err(|failure| failure.to_string())?
    });
}

/// Another process holds all locks and is stopped. Changes end with a sentence; reads continue.
#[test]
fn behind_a_stopped_process_changes_end_and_reads_go_on() {
    let ran = World::new(1).disk(Profile::nand().at("/disk")).run(async |engine| {
        engine.create_dir_all(ROOT).await.unwrap();
        let store = ForebayStore::builder(&engine, ROOT).open().await.unwrap();
        let [at, other] = ["a", "b"].map(Path::from);
        store.put(&at, "data".into()).await.unwrap();
        let held = stopped(&engine).await;
        let changes = [
            store.put(&at, "new".into()).await.map(drop),
            store.copy(&at, &other).await,
            store.rename(&at, &other).await,
            store.delete(&at).await,
        ];
        for error in changes.map(Result::unwrap_err) {
            assert!(error.to_string().contains("has held the lock /disk/store/.forebay#0"), "{error}");
            assert!(error.to_string().contains("for 10 seconds"), "{error}");
        }
        assert_eq!(store.get(&at).await.unwrap().bytes().await.unwrap(), "data");
        assert_eq!(store.list(None).try_collect::<Vec<_>>().await.unwrap().len(), 1);
        assert_eq!(staged(&engine, PathBuf::from(ROOT)).await.unwrap(), 0);
        drop(held);
        store.put(&at, "new".into()).await.unwrap();
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// The time in the process's own line counted: of many changes that each waited a while, the last changes blamed another process.
#[test]
fn a_change_waits_as_long_as_its_line_moves() {
    let ran = World::new(1).disk(Profile::nand().at("/disk")).run(async |engine| {
        engine.create_dir_all(ROOT).await.unwrap();
        let store = ForebayStore::builder(&engine, ROOT).open().await.unwrap();
        let [at, first, second] = ["d/1", "d/0", "d/2"].map(Path::from);
        for source in [&first, &second] {
            store.put(source, "data".into()).await.unwrap();
        }
        // Each rename has the lock of d/1, number 18, while it waits for that of its source.
        let hold = async |number: u64, seconds: u64| {
            let path = format!("{ROOT}/{LOCKS}{number}");
            let file = engine.open(path, Open::create().buffered()).await.unwrap();
            file.lock_within(Lock::Exclusive, Duration::from_secs(10)).await.unwrap();
            sim::sleep(Duration::from_secs(seconds)).await.unwrap();
        };
        let rename = async |begin: u64, source: &Path| {
            sim::sleep(Duration::from_secs(begin)).await.unwrap();
            store.rename(source, &at).await
        };
        let put = async {
            sim::sleep(Duration::from_secs(3)).await.unwrap();
            store.put(&at, "new".into()).await.map(drop)
        };
        let (_, _, one, two, put) =
            join5(hold(45, 9), hold(54, 17), rename(1, &first), rename(2, &second), put).await;
        one.and(two).and(put).unwrap();
        assert_eq!(store.get(&at).await.unwrap().bytes().await.unwrap(), "new");
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// An upload whose end did not get the lock of its name lost all that had been uploaded.
#[test]
fn an_upload_that_waited_in_vain_for_a_lock_is_completed_later() {
    let ran = World::new(1).disk(Profile::nand().at("/disk")).run(async |engine| {
        engine.create_dir_all(ROOT).await.unwrap();
        let store = ForebayStore::builder(&engine, ROOT).open().await.unwrap();
        let at = Path::from("d/a");
        let begin = async || {
            let mut upload = store.put_multipart(&at).await.unwrap();
            upload.put_part("one".into()).await.unwrap();
            upload
        };
        let settled = async || {
            sim::sleep(Duration::from_secs(20)).await.unwrap();
            staged(&engine, PathBuf::from(ROOT)).await.unwrap()
        };
        let mut upload = begin().await;
        let held = stopped(&engine).await;
        for _ in 0..2 {
            let error = upload.complete().await.unwrap_err().to_string();
            assert!(error.contains("for 10 seconds") && error.contains("complete it again"), "{error}");
        }
        // A part that arrived during the end was refused, and yet missing forever.
        assert!(sim::dropped_after(1, upload.complete()).await.is_none());
        upload.put_part("refused".into()).await.unwrap_err();
        assert_eq!(settled().await, 1);
        upload.put_part("two".into()).await.unwrap();
        drop(held);
        let put = upload.complete().await.unwrap();
        assert_eq!(store.head(&at).await.unwrap().e_tag, put.e_tag);
        assert_eq!(store.get(&at).await.unwrap().bytes().await.unwrap(), "onetwo");
        assert!(upload.complete().await.is_err() && upload.abort().await.is_err(), "it has ended");

        // Aborted or dropped, after its end has failed or in the middle of it.
        let mut uploads = [begin().await, begin().await, begin().await];
        let held = stopped(&engine).await;
        for upload in &mut uploads[..2] {
            assert!(upload.complete().await.is_err());
        }
        uploads[0].abort().await.unwrap();
        assert!(sim::dropped_after(1, uploads[2].complete()).await.is_none());
        drop(uploads);
        assert_eq!(settled().await, 0);
        drop(held);
        assert_eq!(store.get(&at).await.unwrap().bytes().await.unwrap(), "onetwo");
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Each put synced its directory by itself, and kept a thread of the pool for that.
#[test]
fn puts_in_one_directory_share_its_syncs() {
    let disk = Profile::nand().at("/disk").call_latency(Duration::from_millis(20));
    let ran = World::new(1).disk(disk).run(async |engine| {
        engine.create_dir_all(ROOT).await.unwrap();
        let store = ForebayStore::builder(&engine, ROOT).open().await.unwrap();
        // Names with a lock each.
        let calls = async |names: Range<u64>| {
            let before = sim::node(0).counts().calls;
            let puts = names.map(|name| {
                let (store, at) = (store.clone(), Path::from(format!("d/{name}")));
                async move { store.put(&at, "data".into()).await }
            });
            let put: Result<Vec<_>, Error> = join_all(puts).await.into_iter().collect();
            put.unwrap();
            sim::node(0).counts().calls - before
        };
        calls(0..1).await; // makes the directory
        let (one, twelve) = (calls(1..2).await, calls(2..14).await);
        assert!(twelve <= 12 * one - 6, "{twelve} calls of twelve puts, {one} of one");
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Returns how many of four copies into one directory fail, of which the first one's sync does.
fn failed_by_one_sync() -> usize {
    let disk = Profile::nand().at("/disk").call_latency(Duration::from_millis(20));
    let ran = World::new(1).disk(disk).run(async |engine| {
        engine.create_dir_all(ROOT).await.unwrap();
        let store = ForebayStore::builder(&engine, ROOT).open().await.unwrap();
        let from = Path::from("d/from");
        store.put(&from, "data".into()).await.unwrap();
        sim::inject(Rule::new(Fault::FlushError).on(format!("{ROOT}/d")).times(1));
        // Names with a lock each.
        let copies = (0..4).map(|name| {
            let (store, from, to) = (store.clone(), from.clone(), Path::from(format!("d/{name}")));
            async move { store.copy_if_not_exists(&from, &to).await }
        });
        let failed = join_all(copies).await.into_iter().filter(Result::is_err).count();
        // Those after them have another sync before theirs.
        store.copy_if_not_exists(&from, &Path::from("d/later")).await.unwrap();
        failed
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"))
}

/// A copy that waited for a sync which failed returned success after the next one, though the kernel reports once that names are lost.
#[test]
fn a_sync_that_fails_fails_those_that_wait_for_its_end() {
    assert!(failed_by_one_sync() > 1);
}

/// It wrote a byte to its lock, and so failed where space was needed most.
#[test]
fn staged_files_are_removed_on_a_full_disk() {
    let ran = World::new(1).disk(Profile::nand().at("/disk")).run(async |engine| {
        engine.create_dir_all(ROOT).await.unwrap();
        let store = ForebayStore::builder(&engine, ROOT).open().await.unwrap();
        drop(engine.open(format!("{ROOT}/a#1"), Open::create_new().buffered()).await.unwrap());
        let hour = Duration::from_secs(3600);
        assert_eq!(store.remove_abandoned(hour).await.unwrap(), 0, "it is young");
        sim::sleep(2 * hour).await.unwrap();
        sim::inject(Rule::new(Fault::NoSpace));
        assert_eq!(store.remove_abandoned(hour).await.unwrap(), 1);
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Returns whether an open of a read that was dropped ran after `close_files` had returned.
fn open_after_close(seed: u64) -> bool {
    let disk = Profile::nand().at("/disk").call_latency(Duration::from_millis(20));
    let ran = World::new(seed).disk(disk).run(async |engine| {
        engine.create_dir_all(ROOT).await.unwrap();
        let store = ForebayStore::builder(&engine, ROOT).open().await.unwrap();
        let location = Path::from("a");
        store.put(&location, content(3).into()).await.unwrap();
        for polls in 1..6 {
            let _ =
                sim::dropped_after(polls, store.get_ranges(&location, std::slice::from_ref(&(0..100)))).await;
            store.close_files().await.unwrap();
            sim::inject(Rule::new(Fault::TooManyFiles));
            sim::sleep(Duration::from_secs(1)).await.unwrap();
            sim::clear_faults();
            assert_eq!(store.open_files(), 0, "after {polls} polls");
        }
        sim::node(0).counts().fired(Fault::TooManyFiles) > 0
    });
    ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
}

#[test]
fn opens_of_dropped_reads_end_before_the_files_are_closed() {
    (0..10).for_each(|seed| assert!(!open_after_close(seed), "seed {seed}"));
}

#[test]
fn a_directory_that_was_removed_and_made_again_is_durable_again() {
    worlds::explore(30, put_again);
}

/// Test of the oracle: a store with a deliberate fault is caught in the worlds that CI runs, and the correct store passes the same
/// worlds.
#[cfg(feature = "_mutants")]
mod broken {
    use forebay_object_store::mutants::{self, Mutant};

    use super::*;

    fn is_caught(mutant: Mutant) {
        let attempt = |world: &mut World| attempt(world, Trouble::Crashes, &Rc::default());
        worlds::is_caught(mutant, 80, |run| mutants::with(mutant, run), attempt);
    }

    #[test]
    fn bytes_that_are_not_durable_are_caught() {
        is_caught(Mutant::BytesNotSynced);
    }

    #[test]
    fn an_open_after_the_close_of_the_files_is_caught() {
        use forebay::mutants::{self, Mutant};
        assert!((0..10).any(|seed| mutants::with(Mutant::OpensOutliveClose, || open_after_close(seed))));
    }

    #[test]
    fn a_name_that_is_not_durable_is_caught() {
        is_caught(Mutant::NameNotSynced);
    }

    #[test]
    fn directories_that_are_not_durable_are_caught() {
        is_caught(Mutant::DirectoriesNotSynced);
    }

    #[test]
    fn a_directory_that_was_made_again_is_caught() {
        let mutant = Mutant::RemovedDirectoryKnown;
        worlds::is_caught(mutant, 30, |run| mutants::with(mutant, run), put_again);
    }

    #[test]
    fn a_sync_that_begins_too_early_is_caught() {
        let mutant = Mutant::BegunSyncShared;
        worlds::is_caught(mutant, 20, |run| mutants::with(mutant, run), put_together);
    }

    #[test]
    fn a_failed_sync_that_is_forgotten_is_caught() {
        assert_eq!(mutants::with(Mutant::FailedSyncForgotten, failed_by_one_sync), 1);
    }

    #[test]
    fn attributes_that_are_not_durable_are_caught() {
        is_caught(Mutant::AttributesNotSynced);
    }

    #[test]
    fn an_update_that_looks_without_the_lock_is_caught() {
        let mutant = Mutant::TagNotChecked;
        worlds::is_caught(mutant, 20, |run| mutants::with(mutant, run), increments);
    }

    #[test]
    fn a_put_in_place_is_caught() {
        is_caught(Mutant::PutInPlace);
    }
}
