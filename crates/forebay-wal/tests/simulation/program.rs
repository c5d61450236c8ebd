//! A life of a world: opens its log, works on it from several tasks, and closes it or not.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use forebay::Engine;
use forebay::sim::{self, Fault, Rule};
use forebay_wal::{Error, ErrorKind};

use crate::damage;
use crate::groups;
use crate::log::{Log, Shape, is_failure};
use crate::model::{Model, Removal};
use crate::records;

/// The error when flushes lied and nothing at all is left: the log reports this, and its world ends.
pub(crate) const GONE: &str = "everything is gone";

/// The model, shared by all tasks of a life.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<Mutex<Model>>);

/// The parameters of a life.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) shape: Shape,
    /// In force while the log is in use.
    pub(crate) rules: Vec<Rule>,
    /// Whether they are in force during the open, too.
    pub(crate) from_the_start: bool,
    /// Whether flushes lie from some moment on, until the power fails.
    pub(crate) lies: bool,
    pub(crate) phases: u64,
}

/// The reason why a task or a life stopped.
pub(crate) enum Stop {
    /// The log failed, as it may when the disk does.
    Failed(Error),
    /// The log did something that it must not do.
    Wrong(String),
}

impl From<String> for Stop {
    fn from(text: String) -> Stop {
        Stop::Wrong(text)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        if is_failure(&error) { Stop::Failed(error) } else { Stop::Wrong(format!("unexpected: {error:?}")) }
    }
}

impl Shared {
    pub(crate) fn new(model: Model) -> Shared {
        Shared(Arc::new(Mutex::new(model)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Runs a life.
pub(crate) async fn live(engine: Engine, shared: Shared, plan: Plan) -> Result<(), String> {
    if plan.from_the_start {
        plan.rules.iter().cloned().for_each(sim::inject);
    }
    let mut log = open(&engine, &shared, &plan).await?;
    if !plan.from_the_start {
        plan.rules.iter().cloned().for_each(sim::inject);
    }
    let lies_in = sim::random(plan.phases.max(1));
    for phase in 0..plan.phases {
        let lies = plan.lies && phase == lies_in;
        match work(&log, &shared, &plan, lies).await {
            Ok(()) => {}
            Err(Stop::Wrong(text)) => return Err(text),
            Err(Stop::Failed(first)) => {
                sim::clear_faults();
                poisoned(&log, &shared, &first).await?;
                let _ = log.close().await;
                drop(log);
                log = open(&engine, &shared, &plan).await?;
            }
        }
        let lying = shared.lock().is_lying();
        if sim::random(4) == 0 && !lying {
            match log.close().await {
                Ok(()) => closed(&log, &shared).await?,
                Err(error) if is_failure(&error) => sim::clear_faults(),
                Err(error) => return Err(format!("closing: {error:?}")),
            }
            drop(log);
            log = open(&engine, &shared, &plan).await?;
        } else if sim::random(10) == 0 && !lying {
            drop(log);
            log = open(&engine, &shared, &plan).await?;
        }
    }
    Ok(())
}

/// Opens the log, with retries until that succeeds, and judges its contents.
pub(crate) async fn open(engine: &Engine, shared: &Shared, plan: &Plan) -> Result<Log, String> {
    let (mut failures, mut locked, mut salvage) = (0, 0, false);
    loop {
        let damaged = shared.lock().hit.is_some();
        let before = if damaged { damage::files(engine).await.ok() } else { None };
        let error = match Log::open(engine, plan.shape, salvage).await {
            Ok((log, recovery)) => {
                let content = match log.content().await {
                    Ok(content) => content?,
                    Err(error) => {
                        sim::clear_faults();
                        failures += 1;
                        if is_failure(&error) && failures < 3 {
                            log.content().await.map_err(|error| format!("reading again: {error:?}"))??
                        } else {
                            return Err(format!("reading what was opened: {error:?}"));
                        }
                    }
                };
                shared.lock().opened(&content, &recovery)?;
                return Ok(log);
            }
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::Corruption(lost) if !salvage => {
                shared.lock().refused(lost)?;
                if let Some(before) = before
                    && damage::files(engine).await.ok().is_some_and(|after| after != before)
                {
                    return Err("an open that was refused changed the log".to_string());
                }
                salvage = true;
            }
            ErrorKind::Corruption(lost) if shared.lock().is_lying() => {
                let left = damage::files(engine).await.map(|files| groups::live(&files).len());
                return Err(match left {
                    Ok(0) => GONE.to_string(),
                    left => format!("salvage is refused with {lost:?}, and {left:?} groups are left"),
                });
            }
            // A log whose last handle was dropped closes in the background.
            ErrorKind::Locked if locked < 1_000 => {
                locked += 1;
                let _ = sim::sleep(Duration::from_millis(1)).await;
            }
            _ if is_failure(&error) && failures < 2 => {
                failures += 1;
                sim::clear_faults();
            }
            _ => return Err(format!("opening: {error:?}")),
        }
    }
}

/// Checks that a poisoned log rejects every call, with the reason each time.
async fn poisoned(log: &Log, shared: &Shared, first: &Error) -> Result<(), String> {
    let lsn = shared.lock().base.first;
    let record = records::numbered(shared.lock().life(), 0xff_fff0, 1);
    let answers = [
        ("append", log.append(record).await.err()),
        ("append_batch", log.append_batch(&[record, record + 1]).await.err()),
        ("append_unsynced", log.append_unsynced(record).await.err()),
        ("sync", log.sync().await.err()),
        ("truncate_before", log.truncate_before(lsn).await.err()),
        ("truncate_after", log.truncate_after(lsn.saturating_sub(1)).await.err()),
        ("reset_to", log.reset_to(lsn).await.err()),
        ("append", log.append(record).await.err()),
    ];
    for (call, answer) in answers {
        let text = answer.as_ref().map(Error::to_string).unwrap_or_default();
        if answer.is_none_or(|error| *error.kind() != ErrorKind::Poisoned)
            || !text.contains(&first.to_string())
        {
            return Err(format!("{call} answered {text:?} after the log had failed with {first:?}"));
        }
    }
    Ok(())
}

/// Checks that a closed log rejects every call.
async fn closed(log: &Log, shared: &Shared) -> Result<(), String> {
    let record = records::numbered(shared.lock().life(), 0xff_fff1, 1);
    let lsn = shared.lock().base.first;
    for error in [log.append(record).await.err(), log.truncate_before(lsn).await.err()] {
        if error.as_ref().is_none_or(|error| *error.kind() != ErrorKind::Closed) {
            return Err(format!("a closed log answered {error:?}"));
        }
    }
    Ok(())
}

/// Runs some tasks on the log at the same time. Once they have ended, reads all of it and perhaps removes its
/// end.
async fn work(log: &Log, shared: &Shared, plan: &Plan, lies: bool) -> Result<(), Stop> {
    let mut tasks = Vec::new();
    for _ in 0..1 + sim::random(4) {
        let (log, shared, steps) = (log.clone(), shared.clone(), 1 + sim::random(12));
        tasks.push(sim::spawn(async move { appends(&log, &shared, steps).await }));
    }
    if sim::random(2) == 0 {
        let (log, shared) = (log.clone(), shared.clone());
        tasks.push(sim::spawn(async move { reads(&log, &shared).await }));
    }
    if sim::random(3) == 0 {
        let (log, shared) = (log.clone(), shared.clone());
        tasks.push(sim::spawn(async move { removes_before(&log, &shared).await }));
    }
    if lies {
        let shared = shared.clone();
        tasks.push(sim::spawn(async move {
            let _ = sim::sleep(Duration::from_micros(sim::random(5_000))).await;
            shared.lock().flushes_lie();
            sim::inject(Rule::new(Fault::LyingFlush));
            Ok(())
        }));
    }
    let mut stop = None;
    for task in tasks {
        match task.await {
            Ok(Ok(())) => {}
            Ok(Err(Stop::Failed(error))) if stop.is_some() => drop(error),
            Ok(Err(why)) => stop = Some(why),
            Err(error) => stop = Some(Stop::Wrong(format!("a task: {error}"))),
        }
    }
    if let Some(stop) = stop {
        return Err(stop);
    }
    sync(log, shared).await?;
    settle(log, shared).await?;
    if plan.phases > 1 && sim::random(3) == 0 {
        remove(log, shared).await?;
        // Usually the next operation is an append; sometimes the log is checked first.
        if sim::random(3) == 0 {
            settle(log, shared).await?;
        }
    }
    Ok(())
}

async fn settle(log: &Log, shared: &Shared) -> Result<(), Stop> {
    let mut tries = 0;
    let content = loop {
        match log.content().await {
            Ok(content) => break content?,
            // A failed read proves nothing about the log.
            Err(error) if is_failure(&error) && tries < 20 => tries += 1,
            Err(error) => return Err(Stop::Wrong(format!("reading: {error:?}"))),
        }
    };
    if log.durable() + 1 != log.next() {
        let (durable, next) = (log.durable(), log.next());
        return Err(Stop::Wrong(format!("nothing is under way, durable is {durable} and the next {next}")));
    }
    Ok(shared.lock().settle(&content)?)
}

async fn sync(log: &Log, shared: &Shared) -> Result<(), Stop> {
    let queued = shared.lock().queued();
    log.sync().await?;
    shared.lock().synced(&queued);
    Ok(())
}

async fn remove(log: &Log, shared: &Shared) -> Result<(), Stop> {
    let (first, next) = (log.first(), log.next());
    let removal = match sim::random(3) {
        0 => Removal::Reset(next + sim::random(50)),
        _ => Removal::After(first - 1 + sim::random(next - first + 1)),
    };
    shared.lock().begin(removal);
    match removal {
        Removal::After(lsn) => log.truncate_after(lsn).await?,
        Removal::Reset(next) => log.reset_to(next).await?,
    }
    shared.lock().did();
    Ok(())
}

async fn removes_before(log: &Log, shared: &Shared) -> Result<(), Stop> {
    for _ in 0..1 + sim::random(3) {
        let _ = sim::sleep(Duration::from_micros(sim::random(3_000))).await;
        let (first, durable) = (log.first(), log.durable());
        let lsn = first + sim::random((durable + 2).saturating_sub(first).max(1));
        let before = shared.lock().remove_before(lsn);
        log.truncate_before(lsn).await?;
        shared.lock().did_remove_before(before);
    }
    Ok(())
}

async fn reads(log: &Log, shared: &Shared) -> Result<(), Stop> {
    for _ in 0..1 + sim::random(4) {
        let _ = sim::sleep(Duration::from_micros(sim::random(2_000))).await;
        let (first, durable) = (log.first(), log.durable());
        let from = first + sim::random((durable + 1).saturating_sub(first).max(1));
        let read = match log.read(from, 1 + sim::random(40) as usize).await {
            Ok(read) => read?,
            Err(error) if matches!(error.kind(), ErrorKind::OutOfRange { .. }) => continue,
            // The appends show whether the log itself failed.
            Err(error) if is_failure(&error) => continue,
            Err(error) => return Err(Stop::Wrong(format!("reading: {error:?}"))),
        };
        shared.lock().saw(&read, from)?;
    }
    Ok(())
}

/// Appends by every call that there is.
async fn appends(log: &Log, shared: &Shared, steps: u64) -> Result<(), Stop> {
    let me = shared.lock().appender();
    let mut count = 0;
    let mut next = || {
        count += 1;
        records::numbered(shared.lock().life(), me, count)
    };
    for _ in 0..steps {
        match sim::random(14) {
            0..=5 => append(log, shared, next()).await?,
            6 => {
                let batch: Vec<u64> = (0..2 + sim::random(4)).map(|_| next()).collect();
                let sent = shared.lock().send_batch(&batch);
                let lsns = log.append_batch(&batch).await?;
                if lsns.end - lsns.start != batch.len() as u64 {
                    return Err(Stop::Wrong(format!("a batch of {} got {lsns:?}", batch.len())));
                }
                let mut model = shared.lock();
                sent.into_iter().zip(lsns).for_each(|(sent, lsn)| model.acknowledge(sent, lsn));
            }
            7 => {
                for _ in 0..1 + sim::random(5) {
                    unsynced(log, shared, next()).await?;
                }
                sync(log, shared).await?;
            }
            8 => unsynced(log, shared, next()).await?,
            9 | 10 => {
                let record = next();
                let sent = shared.lock().send(record);
                let polls = sim::random(4) as usize;
                if let Some(lsn) = sim::dropped_after(polls, log.append(record)).await {
                    shared.lock().acknowledge(sent, lsn?);
                }
            }
            11 => {
                // Their order is not guaranteed, so each is an appender of its own.
                let several: Vec<u64> = (0..2 + sim::random(6))
                    .map(|_| {
                        let appender = shared.lock().appender();
                        shared.lock().record(appender, 1)
                    })
                    .collect();
                let all = several.into_iter().map(|record| append(log, shared, record));
                futures::future::try_join_all(all).await?;
            }
            12 => append(log, shared, records::EMPTY).await?,
            _ => {
                let _ = sim::sleep(Duration::from_micros(sim::random(4_000))).await;
            }
        }
    }
    Ok(())
}

async fn append(log: &Log, shared: &Shared, record: u64) -> Result<(), Stop> {
    let sent = shared.lock().send(record);
    let lsn = log.append(record).await?;
    if lsn > log.durable() && !shared.lock().is_lying() {
        return Err(Stop::Wrong(format!("{lsn} was acknowledged and {} is durable", log.durable())));
    }
    shared.lock().acknowledge(sent, lsn);
    Ok(())
}

async fn unsynced(log: &Log, shared: &Shared, record: u64) -> Result<(), Stop> {
    let sent = shared.lock().send(record);
    let lsn = log.append_unsynced(record).await?;
    shared.lock().placed(sent, lsn);
    Ok(())
}
