//! Shows: operations that tasks start in worker-local rings (visited shards) end, and with the right bytes, whichever thread visits
//! when. How: simulated worlds with rings. The seed decides on which worker a task is polled, which visits stop in the middle with
//! the lock held, and when the runtime is not driven. Tasks outside of shards, tasks on shards, and futures that are polled,
//! dropped and started inside of wakers work on the same files; the engine is closed or the power cut in the middle. A lost wake-up
//! is the world's deadlock.

use std::collections::BTreeSet;
use std::future::{Future, IntoFuture};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use forebay::{
    Block, Class, ClassSpec, Config, Durability, Engine, ErrorKind, File, Open, Step, Walk, WorkerRings,
};
use forebay_sim::{self as sim, Fault, Loss, MetadataOrder, Profile, Rule, World};
use futures::channel::oneshot;

const PAGE: u64 = 4096;
/// The smallest part of a page that a write leaves whole.
const SECTOR: usize = 512;
/// Pages that one task writes; all tasks read all pages.
const OWN: u64 = 4;
const TASKS: u64 = 8;
const ROUNDS: u64 = 16;
const SEEDS: u64 = 150;

/// Visits to rings, to show that these worlds have some.
static RING_TURNS: AtomicU64 = AtomicU64::new(0);

type CheckResult = Result<(), String>;
type BoxedTask = Pin<Box<dyn Future<Output = CheckResult> + Send>>;

fn text(error: &forebay::Error) -> String {
    format!("{:?}: {error}", error.kind())
}

/// A task's pages, and the versions that each may have.
struct Session {
    engine: Engine,
    files: [File; 2],
    classes: [Class; 3],
    owner: u64,
    versions: Vec<BTreeSet<u64>>,
    next: u64,
    /// Versions of dropped writes: they may reach the device at any later time.
    dropped: BTreeSet<u64>,
    /// Operations that were started and are not polled.
    kept: Mutex<Vec<BoxedTask>>,
    /// Errors of the device are allowed.
    faulty: bool,
}

impl Session {
    fn new(engine: &Engine, files: &[File; 2], classes: [Class; 3], owner: u64, faulty: bool) -> Session {
        let versions = vec![BTreeSet::from([0]); OWN as usize];
        let (engine, files) = (engine.clone(), files.clone());
        Session {
            engine,
            files,
            classes,
            owner,
            versions,
            next: 1,
            dropped: BTreeSet::new(),
            kept: Mutex::default(),
            faulty,
        }
    }

    /// Accepts errors of a faulty device; any other error is a failure.
    fn allowed<T>(&self, result: forebay::Result<T>) -> Result<Option<T>, String> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if self.faulty && error.kind() == ErrorKind::Io => Ok(None),
            Err(error) => Err(text(&error)),
        }
    }

    fn kept(&mut self) -> &mut Vec<BoxedTask> {
        self.kept.get_mut().expect("no panic")
    }

    fn class(&self) -> Class {
        self.classes[sim::random(3) as usize]
    }

    fn file(&self) -> File {
        // The second file is only read.
        self.files[sim::random(2) as usize].clone()
    }

    async fn read(&mut self) -> CheckResult {
        let page = sim::random(OWN) as usize;
        let at = (self.owner * OWN + page as u64) * PAGE;
        let read = self.files[0].read(at..at + PAGE).class(self.class()).await;
        let Some(block) = self.allowed(read)? else { return Ok(()) };
        for sector in block.chunks(SECTOR) {
            let version = version_in(sector, at / PAGE)?;
            if !self.versions[page].contains(&version) {
                return Err(format!("page {} has version {version} of {:?}", at / PAGE, self.versions[page]));
            }
        }
        Ok(())
    }

    async fn write(&mut self, polls: Option<usize>) -> CheckResult {
        let page = sim::random(OWN) as usize;
        let number = self.owner * OWN + page as u64;
        let version = self.next;
        self.next += 1;
        let durability = if sim::random(3) == 0 { Durability::Data } else { Durability::None };
        self.versions[page].insert(version);
        let write = self.files[0]
            .write(number * PAGE, bytes_of(number, version))
            .durable(durability)
            .class(self.class());
        let written = match polls {
            None => self.allowed(write.await)?,
            Some(polls) => match sim::dropped_after(polls, write).await {
                Some(result) => self.allowed(result)?,
                None => None,
            },
        };
        if written.is_some() {
            let dropped = &self.dropped;
            self.versions[page].retain(|known| *known == version || dropped.contains(known));
        } else {
            self.dropped.insert(version);
        }
        Ok(())
    }

    async fn read_many(&mut self, polls: usize) -> CheckResult {
        let count = 1 + sim::random(6);
        let pages: Vec<u64> = (0..count).map(|_| sim::random(TASKS * OWN)).collect();
        let ranges = pages.iter().map(|page| page * PAGE..(page + 1) * PAGE);
        let file = self.file();
        let batch = file.read_many(ranges).class(self.class());
        let read = match sim::dropped_after(polls, batch).await {
            Some(read) => self.allowed(read)?,
            None => None,
        };
        for (page, block) in pages.iter().zip(read.iter().flatten()) {
            let Some(block) = self.allowed(block.clone())? else { continue };
            block.chunks(SECTOR).try_for_each(|sector| version_in(sector, *page).map(drop))?;
        }
        Ok(())
    }

    /// Walks over some pages. Each step starts a read, and drops it.
    async fn walk(&mut self, polls: usize) -> CheckResult {
        let (file, page) = (self.file(), sim::random(TASKS * OWN));
        let hops = Hops { file: file.clone(), left: 1 + sim::random(5) };
        let walk = file.walk(page * PAGE..(page + 1) * PAGE, hops).class(self.class());
        match sim::dropped_after(polls, walk).await {
            None | Some(Ok(())) => Ok(()),
            Some(Err(Wrong::Core(error))) => self.allowed::<()>(Err(error)).map(drop),
            Some(Err(Wrong::Bytes(why))) => Err(why),
        }
    }

    /// Starts a read and keeps it.
    async fn keep(&mut self) -> CheckResult {
        if self.kept().len() == 3 {
            let kept = self.kept().remove(0);
            return if sim::random(2) == 0 { kept.await } else { Ok(()) };
        }
        let (file, page) = (self.file(), sim::random(TASKS * OWN));
        let (class, faulty) = (self.class(), self.faulty);
        let read = async move {
            match file.read(page * PAGE..(page + 1) * PAGE).class(class).await {
                Ok(block) => version_in(&block[..SECTOR], page).map(drop),
                Err(error) if faulty && error.kind() == ErrorKind::Io => Ok(()),
                Err(error) => Err(text(&error)),
            }
        };
        let boxed: BoxedTask = Box::pin(read);
        if let Err(kept) = sim::frozen_after(1, boxed).await {
            self.kept().push(kept);
        }
        Ok(())
    }

    /// Makes a fresh file, and closes it.
    async fn short_lived(&mut self) -> CheckResult {
        let path = format!("/disk/{}", self.owner);
        let opened = self.engine.open(&path, Open::create()).await;
        let Some(file) = self.allowed(opened)? else { return Ok(()) };
        let reading = file.clone();
        let read: BoxedTask =
            Box::pin(async move { reading.read_up_to(0..PAGE).await.map(drop).map_err(|e| text(&e)) });
        let kept = sim::frozen_after(sim::random(2) as usize, read).await;
        let written = file.write(0, vec![1; PAGE as usize]).await;
        self.allowed(written)?;
        // A future that is not polled any more keeps no close waiting.
        let closed = file.close().await;
        self.allowed(closed)?;
        drop(kept);
        Ok(())
    }

    async fn run(mut self) -> CheckResult {
        for _ in 0..ROUNDS {
            match sim::random(16) {
                0..=2 => self.read().await?,
                3 | 4 => self.write(None).await?,
                5 => self.write(Some(sim::random(3) as usize)).await?,
                6 => self.read_many(usize::MAX).await?,
                7 => self.read_many(sim::random(3) as usize).await?,
                8 => {
                    let synced = self.files[0].sync(Durability::Data).await;
                    self.allowed(synced)?;
                }
                9 | 10 => self.keep().await?,
                11 => self.short_lived().await?,
                12 => {
                    self.engine.nop().await.map_err(|error| text(&error))?;
                    self.engine.stats().await.map_err(|error| text(&error))?;
                }
                13 => self.walk(usize::MAX).await?,
                14 => self.walk(sim::random(3) as usize).await?,
                // A waker's task has no place in the world's line, and no sleep there.
                _ => {
                    sim::sleep(Duration::from_micros(sim::random(300))).await.map_err(|error| text(&error))?
                }
            }
        }
        Ok(())
    }
}

/// What ends a walk early.
enum Wrong {
    Bytes(String),
    Core(forebay::Error),
}

impl From<forebay::Error> for Wrong {
    fn from(error: forebay::Error) -> Wrong {
        Wrong::Core(error)
    }
}

struct Hops {
    file: File,
    left: u64,
}

impl Walk for Hops {
    type Output = ();
    type Error = Wrong;

    fn step(&mut self, block: &Block, at: Range<u64>) -> Step<(), Wrong> {
        if let Err(why) = version_in(&block[..SECTOR], at.start / PAGE) {
            return Step::Fail(Wrong::Bytes(why));
        }
        let read = pin!(self.file.read(at.clone()).into_future());
        let _ = read.poll(&mut Context::from_waker(Waker::noop()));
        self.left -= 1;
        let next = (at.start + 3 * PAGE) % (TASKS * OWN * PAGE);
        if self.left == 0 { Step::Done(()) } else { Step::Read(next..next + PAGE) }
    }
}

fn bytes_of(page: u64, version: u64) -> Vec<u8> {
    [page.to_le_bytes(), version.to_le_bytes()].concat().repeat(PAGE as usize / 16)
}

fn version_in(sector: &[u8], page: u64) -> Result<u64, String> {
    let word = |at: usize| u64::from_le_bytes(sector[at..at + 8].try_into().expect("eight bytes"));
    let (found, version) = (word(0), word(8));
    if sector.chunks(16).any(|chunk| chunk != &sector[..16]) || found != page {
        return Err(format!("page {page} has bytes of page {found}, version {version}"));
    }
    Ok(version)
}

/// A future that its own waker polls, wherever it is woken. Each wake-up first drops another future.
struct Chain {
    state: Mutex<Links>,
    woken: AtomicBool,
}

struct Links {
    future: Option<BoxedTask>,
    victims: Vec<BoxedTask>,
    over: Option<oneshot::Sender<CheckResult>>,
}

impl Wake for Chain {
    fn wake(self: Arc<Self>) {
        self.run();
    }
}

impl Chain {
    fn start(future: BoxedTask, mut victims: Vec<BoxedTask>) -> oneshot::Receiver<CheckResult> {
        let mut context = Context::from_waker(Waker::noop());
        victims.retain_mut(|victim| victim.as_mut().poll(&mut context).is_pending());
        let (over, ended) = oneshot::channel();
        let state = Mutex::new(Links { future: Some(future), victims, over: Some(over) });
        Arc::new(Chain { state, woken: AtomicBool::new(false) }).run();
        ended
    }

    fn run(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        // Where it is polled already, further up on the stack, it is polled once more there.
        let Ok(mut links) = self.state.try_lock() else { return };
        let waker = Waker::from(self.clone());
        while self.woken.swap(false, Ordering::SeqCst) {
            drop(links.victims.pop());
            let Some(future) = &mut links.future else { return };
            if let std::task::Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                links.future = None;
                if let Some(over) = links.over.take() {
                    let _ = over.send(result);
                }
            }
        }
    }
}

/// The ways of a run to end.
#[derive(Clone, Copy, PartialEq)]
enum End {
    AllDone,
    Close,
    /// A close that waits for no visitor.
    ImpatientClose,
    PowerCut,
}

async fn program(engine: Engine, faulty: bool, end: End) -> CheckResult {
    let mut files = Vec::new();
    for name in ["/disk/a", "/disk/b"] {
        let file = engine.open(name, Open::create()).await.map_err(|error| text(&error))?;
        for page in 0..TASKS * OWN {
            file.write(page * PAGE, bytes_of(page, 0)).await.map_err(|error| text(&error))?;
        }
        files.push(file);
    }
    let files: [File; 2] = files.try_into().map_err(|_| "two files")?;
    if faulty {
        sim::inject(Rule::new(Fault::ReadError).chance_ppm(20_000));
        sim::inject(Rule::new(Fault::ShortRead).chance_ppm(50_000));
        sim::inject(Rule::new(Fault::CancelRace).chance_ppm(300_000));
        sim::inject(Rule::new(Fault::Slow).chance_ppm(20_000));
    }
    let capped = ClassSpec::new("capped").reads_per_second_max(2_000);
    let capped = engine.set_class(capped).map_err(|error| text(&error))?;
    let classes = [Class::DEFAULT, capped, Class::BACKGROUND];
    let (mut tasks, mut chains) = (Vec::new(), Vec::new());
    for owner in 0..TASKS {
        let session = Session::new(&engine, &files, classes, owner, faulty);
        match owner % 4 {
            0 => tasks.push(sim::spawn(session.run())),
            1 => tasks.push(sim::spawn_local(session.run())),
            2 => {
                let task = engine
                    .spawn_on_shard(owner as usize % engine.shard_count(), classes[0], || session.run());
                tasks.push(sim::spawn_local(async { task.await.map_err(|error| text(&error))? }));
            }
            _ => {
                let victim = |page: u64| -> BoxedTask {
                    let file = files[1].clone();
                    Box::pin(async move {
                        file.read(page * PAGE..(page + 1) * PAGE).await.map(drop).map_err(|e| text(&e))
                    })
                };
                chains.push(Chain::start(Box::pin(session.run()), (0..6).map(victim).collect()));
            }
        }
    }
    let closes = matches!(end, End::Close | End::ImpatientClose);
    if closes {
        sim::sleep(Duration::from_micros(sim::random(3_000))).await.map_err(|error| text(&error))?;
        let report = engine.clone().close().await.map_err(|error| text(&error))?;
        let leaks = report.leaked_operations > 0 && end != End::ImpatientClose;
        if leaks || report.lost_shards > 0 {
            return Err(format!("{report:?}"));
        }
        let error = files[0].read(0..PAGE).await.map(drop).map_err(|error| error.kind());
        if error != Err(ErrorKind::EngineClosed) {
            return Err(format!("a read after the end: {error:?}"));
        }
    }
    // All end, with an error of the engine's end at worst.
    let ended = |result: CheckResult| match result {
        Err(why)
            if closes
                && ["EngineClosed", "TaskCancelled", "ShardLost"]
                    .iter()
                    .any(|kind| why.starts_with(kind)) =>
        {
            Ok(())
        }
        result => result,
    };
    for task in tasks {
        ended(task.await.unwrap_or_else(|error| Err(text(&error))))?;
    }
    for chain in chains {
        ended(chain.await.map_err(|_| "a chain was dropped".to_string())?)?;
    }
    if !closes {
        nothing_is_left(&engine).await?;
        for file in files {
            file.close().await.map_err(|error| text(&error))?;
        }
    }
    Ok(())
}

/// Checks that no slot is in use once everything has ended: also those of dropped futures.
async fn nothing_is_left(engine: &Engine) -> CheckResult {
    for last in [false, false, true] {
        // A slow read of a cloud's disk may take 18 s: 0.6 ms, 30 times as long now and then, and 1,000 times by the fault.
        sim::sleep(Duration::from_secs(30)).await.map_err(|error| text(&error))?;
        let stats = engine.stats().await.map_err(|error| text(&error))?;
        let all = || stats.shards.iter().chain(&stats.worker_rings);
        if all().any(|shard| shard.stray_completions > 0) {
            return Err("a completion named no slot".to_string());
        }
        RING_TURNS.fetch_add(stats.worker_rings.iter().map(|ring| ring.turns).sum(), Ordering::Relaxed);
        let used: u32 = all().map(|shard| shard.slots_used + shard.in_flight).sum();
        if used == 0 {
            return Ok(());
        }
        if last {
            return Err(format!("{used} slots are in use, and nothing waits"));
        }
    }
    Ok(())
}

/// A random draw that only the seed determines, for the parameters of a world.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn disk(draw: &mut Draw) -> Profile {
    let profile = [Profile::optane(), Profile::ideal(), Profile::nand(), Profile::cloud()]
        [draw.below(4) as usize]
        .clone();
    let lost = [Loss::Subset, Loss::Prefix, Loss::Nothing][draw.below(3) as usize];
    let order = [MetadataOrder::Journal, MetadataOrder::Posix][draw.below(2) as usize];
    profile.at("/disk").lost(lost).metadata_order(order)
}

/// Runs the world of one seed.
fn attempt(world: &mut World) -> CheckResult {
    let mut draw = Draw(world.seed());
    draw.below(1);
    let ends = [End::AllDone, End::AllDone, End::AllDone, End::Close, End::ImpatientClose, End::PowerCut];
    let end = ends[draw.below(6) as usize];
    let faulty = draw.below(3) == 0;
    let config = Config::new()
        .shards(1 + draw.below(3) as usize)
        .queue_depth([2, 8, 256][draw.below(3) as usize])
        .arena_bytes_max(1 << 20)
        .worker_rings(WorkerRings::Always)
        .shutdown_deadline(if end == End::ImpatientClose {
            Duration::from_millis(1)
        } else {
            Duration::from_secs(5)
        });
    world.add_disk(disk(&mut draw));
    let mut ready = std::mem::replace(world, World::new(0)).config(config).steps_max(3_000_000);
    if end == End::PowerCut {
        ready.power_cut_after(Duration::from_micros(200 + draw.below(5_000)));
    }
    let result = ready.run(async |engine| program(engine, faulty, end).await);
    let result = match result {
        Err(failure) if failure.is_power_cut() => {
            ready.reboot();
            ready.clear_faults();
            // The files of another life may have any bytes; the engine works as ever.
            let again = ready.run(async |engine| program(engine, false, End::AllDone).await);
            again.unwrap_or_else(|failure| Err(failure.to_string()))
        }
        Err(failure) => Err(failure.to_string()),
        Ok(result) => result,
    };
    *world = ready;
    result
}

#[test]
fn every_operation_in_a_ring_ends_with_its_own_bytes() {
    let tried = sim::explore(0..SEEDS, |seed| attempt(&mut World::new(seed)));
    if let Err(failing) = tried {
        // A run that repeats one seed must show that seed unchanged.
        let runs = if std::env::var_os("FOREBAY_SIM_SEED").is_some() { 0 } else { 200 };
        let shrunk = (runs > 0).then(|| sim::shrink(failing.seed(), runs, attempt)).flatten();
        panic!("{failing}\n{}", shrunk.map(|shrunk| shrunk.to_string()).unwrap_or_default());
    }
    let turns = RING_TURNS.load(Ordering::Relaxed);
    println!("{turns} visits");
    assert!(turns > 10 * SEEDS, "{turns} visits in {SEEDS} worlds");
}

/// Regression: the engine's end woke the waiter of an operation that it leaked, on the thread that was still its shard. A waker
/// that polls immediately waited in the operation's slot again, and was dropped with it.
#[test]
fn a_future_that_its_waker_polls_learns_that_its_operation_was_leaked() {
    let config = Config::new().shards(1).shutdown_deadline(Duration::from_millis(1));
    let run = World::new(1).config(config).run(async |engine| {
        let file = engine.open("/a", Open::create()).await.unwrap();
        file.write(0, bytes_of(0, 0)).await.unwrap();
        sim::inject(Rule::new(Fault::Stuck));
        let begun = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let read = async move { file.read(0..PAGE).await.map(drop).map_err(|error| text(&error)) };
            Some(Chain::start(Box::pin(read), Vec::new()))
        });
        let chain = begun.await.unwrap().unwrap();
        let report = engine.close().await.unwrap();
        assert_eq!(report.leaked_operations, 1);
        let why = chain.await.expect("a future that waits is kept").unwrap_err();
        assert!(why.starts_with("EngineClosed"), "{why}");
    });
    run.unwrap();
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..6 {
        let run = || {
            let mut world = World::new(seed);
            (attempt(&mut world), world.history_digest(), world.steps())
        };
        assert_eq!(run(), run());
    }
}

/// The check itself is tested: rings that are broken on purpose are caught by these seeds.
#[cfg(feature = "_mutants")]
mod broken {
    use std::panic::catch_unwind;

    use forebay::mutants::{self, Mutant};

    use super::*;

    fn is_caught(mutant: Mutant) {
        for seed in 0..SEEDS {
            let run = || attempt(&mut World::new(seed));
            match catch_unwind(|| mutants::with(mutant, run)) {
                Ok(Ok(())) => continue,
                Ok(Err(why)) => println!("{mutant:?}: seed {seed}: {why}"),
                Err(_) => println!("{mutant:?}: seed {seed}: panicked"),
            }
            return run().expect("the same world without the mutant");
        }
        panic!("{mutant:?} survived {SEEDS} seeds");
    }

    #[test]
    fn a_held_lock_without_a_mark_is_caught() {
        is_caught(Mutant::HeldLockUnmarked);
    }

    #[test]
    fn a_holder_that_does_not_look_again_is_caught() {
        is_caught(Mutant::SecondLookSkipped);
    }

    #[test]
    fn wakers_under_the_lock_are_caught() {
        is_caught(Mutant::WokenUnderLock);
    }

    #[test]
    fn rings_that_nobody_watches_are_caught() {
        is_caught(Mutant::RingsUnwatched);
    }
}
