//! A life of a world: opens its log, works on it from several tasks, and closes it or not.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use forebay::Engine;
use forebay_sim::{self as sim, Fault, Rule};
use forebay_wal::{Error, ErrorKind, Lsn};

use crate::simulation::damage;
use crate::simulation::groups;
use crate::simulation::log::{Log, Shape, is_failure};
use crate::simulation::model::{Model, Removal};
use crate::simulation::records;

/// The error when flushes lied and nothing at all is left: the log reports this, and its world ends.
pub(crate) const GONE: &str = "everything is gone";

/// The model, shared by all tasks of a life.
#[derive(Clone, Debug)]
pub(crate) struct SharedModel(Arc<Mutex<Model>>);

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

impl SharedModel {
    pub(crate) fn new(model: Model) -> SharedModel {
        SharedModel(Arc::new(Mutex::new(model)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

pub(crate) async fn live(engine: Engine, shared: SharedModel, plan: Plan) -> Result<(), String> {
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
pub(crate) async fn open(engine: &Engine, shared: &SharedModel, plan: &Plan) -> Result<Log, String> {
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
                shared.lock().opened(&content, values(&log)?, &recovery)?;
                return Ok(log);
            }
            Err(error) => error,
        };
        match (error.kind(), error.loss()) {
            (_, Some(lost)) if !salvage => {
                shared.lock().refused(lost)?;
                if let Some(before) = before
                    && damage::files(engine).await.ok().is_some_and(|after| after != before)
                {
                    return Err("an open that was refused changed the log".to_string());
                }
                salvage = true;
            }
            (ErrorKind::ValuesLost, _) if !salvage => {
                shared.lock().refused_values()?;
                salvage = true;
            }
            (_, Some(lost)) if shared.lock().is_lying() => {
                let left = damage::files(engine).await.map(|files| groups::live(&files).len());
                return Err(match left {
                    Ok(0) => GONE.to_string(),
                    left => format!("salvage is refused with {lost:?}, and {left:?} groups are left"),
                });
            }
            // A log whose last handle was dropped closes in the background.
            (ErrorKind::Locked, _) if locked < 1_000 => {
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

/// Returns the log's durable values.
fn values(log: &Log) -> Result<[Option<u64>; 3], String> {
    let [vote, applied, long] = records::KEYS;
    Ok([log.value(vote)?, log.value(applied)?, log.value(long)?])
}

/// Checks that a poisoned log rejects every call, with the reason each time.
async fn poisoned(log: &Log, shared: &SharedModel, first: &Error) -> Result<(), String> {
    let lsn = shared.lock().base.first;
    let record = records::numbered(shared.lock().life(), 0xff_fff0, 1);
    let answers = [
        ("append", log.append(record).await.err()),
        ("append_batch", log.append_batch(&[record, record + 1]).await.err()),
        ("append_unsynced", log.append_unsynced(record).await.err()),
        ("sync", log.sync().await.err()),
        ("truncate_before", log.truncate_before(lsn).await.err()),
        ("truncate_from", log.truncate_from(lsn).await.err()),
        ("set", log.set("vote", record).await.err()),
        ("queue_batch", log.queue_batch(&[record], "vote", record).await.err()),
        ("wait_queued", log.0.wait_queued(Lsn(u64::MAX)).await.err()),
        ("wait_durable", log.0.wait_durable(Lsn(u64::MAX)).await.err()),
        ("reset_to", log.reset_to(lsn).await.err()),
        ("append", log.append(record).await.err()),
    ];
    for (call, answer) in answers {
        let text = answer.as_ref().map(Error::to_string).unwrap_or_default();
        if answer.is_none_or(|error| error.kind() != ErrorKind::Poisoned)
            || !text.contains(&first.to_string())
        {
            return Err(format!("{call} answered {text:?} after the log had failed with {first:?}"));
        }
    }
    Ok(())
}

/// Checks that a closed log rejects every call.
async fn closed(log: &Log, shared: &SharedModel) -> Result<(), String> {
    let record = records::numbered(shared.lock().life(), 0xff_fff1, 1);
    let lsn = shared.lock().base.first;
    let errors = [
        log.append(record).await.err(),
        log.truncate_before(lsn).await.err(),
        log.set("vote", record).await.err(),
        log.0.wait_queued(log.0.next_lsn()).await.err(),
        log.0.wait_durable(log.0.next_lsn()).await.err(),
    ];
    for error in errors {
        if error.as_ref().is_none_or(|error| error.kind() != ErrorKind::Closed) {
            return Err(format!("a closed log answered {error:?}"));
        }
    }
    Ok(())
}

/// Runs some tasks on the log at the same time. Once they have ended, reads all of it and perhaps removes its
/// end.
async fn work(log: &Log, shared: &SharedModel, plan: &Plan, lies: bool) -> Result<(), Stop> {
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

async fn settle(log: &Log, shared: &SharedModel) -> Result<(), Stop> {
    let mut tries = 0;
    let content = loop {
        match log.content().await {
            Ok(content) => break content?,
            // A failed read proves nothing about the log.
            Err(error) if is_failure(&error) && tries < 20 => tries += 1,
            Err(error) => return Err(Stop::Wrong(format!("reading: {error:?}"))),
        }
    };
    if log.durable_next() != log.next() {
        let (durable, next) = (log.durable_next(), log.next());
        return Err(Stop::Wrong(format!(
            "nothing is under way, durable is all before {durable} and the next {next}"
        )));
    }
    let values = values(log)?;
    let mut model = shared.lock();
    let is_lying = model.is_lying();
    model.values.settle(values, is_lying)?;
    Ok(model.settle(&content)?)
}

async fn sync(log: &Log, shared: &SharedModel) -> Result<(), Stop> {
    let queued = shared.lock().queued();
    log.sync().await?;
    shared.lock().synced(&queued);
    Ok(())
}

async fn remove(log: &Log, shared: &SharedModel) -> Result<(), Stop> {
    let (first, next) = (log.first(), log.next());
    let removal = match sim::random(3) {
        0 => Removal::Reset(next + sim::random(50)),
        _ => Removal::From(first + sim::random(next - first + 1)),
    };
    shared.lock().begin(removal);
    match removal {
        Removal::From(lsn) => log.truncate_from(lsn).await?,
        Removal::Reset(next) => log.reset_to(next).await?,
    }
    shared.lock().did();
    Ok(())
}

async fn removes_before(log: &Log, shared: &SharedModel) -> Result<(), Stop> {
    for _ in 0..1 + sim::random(3) {
        let _ = sim::sleep(Duration::from_micros(sim::random(3_000))).await;
        let (first, durable) = (log.first(), log.durable_next());
        let lsn = first + sim::random((durable + 1).saturating_sub(first).max(1));
        let before = shared.lock().remove_before(lsn);
        log.truncate_before(lsn).await?;
        shared.lock().did_remove_before(before);
    }
    Ok(())
}

async fn reads(log: &Log, shared: &SharedModel) -> Result<(), Stop> {
    for _ in 0..1 + sim::random(4) {
        let _ = sim::sleep(Duration::from_micros(sim::random(2_000))).await;
        let (first, durable, next) = (log.first(), log.durable_next(), log.next());
        let from = first + sim::random(durable.saturating_sub(first).max(1));
        let read = if sim::random(2) == 0 {
            log.read(from, 1 + sim::random(40) as usize).await
        } else {
            // Also what is only queued.
            let bytes = [0, 500, 30_000, 1 << 20][sim::random(4) as usize];
            let read = log.read_range(from..next + sim::random(2), bytes).await;
            if let Ok(Ok(read)) = &read
                && (read.first().is_none_or(|read| read.0 != from)
                    && from < next
                    && shared.lock().has_no_gap(from))
            {
                return Err(Stop::Wrong(format!("a read from {from} on begins with {:x?}", read.first())));
            }
            read
        };
        let read = match read {
            Ok(read) => read?,
            Err(error) if matches!(error.kind(), ErrorKind::OutOfRange { .. }) => continue,
            // The appends show whether the log itself failed.
            Err(error) if is_failure(&error) => continue,
            Err(error) if error.kind() == ErrorKind::Corruption && !shared.lock().has_no_gap(from) => {
                continue;
            }
            Err(error) => return Err(Stop::Wrong(format!("reading: {error:?}"))),
        };
        shared.lock().saw(&read, from)?;
        let values = values(log)?;
        let model = shared.lock();
        values.into_iter().enumerate().try_for_each(|(key, value)| model.values.saw(key, value))?;
    }
    Ok(())
}

/// Appends by every call of the API.
async fn appends(log: &Log, shared: &SharedModel, steps: u64) -> Result<(), Stop> {
    let me = shared.lock().appender();
    let mut count = 0;
    let mut next = || {
        count += 1;
        records::numbered(shared.lock().life(), me, count)
    };
    for _ in 0..steps {
        match sim::random(19) {
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
                // Their order is not guaranteed, so each is a separate appender.
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
            13 | 14 => {
                let key = sim::random(3) as usize;
                let value = next();
                let setting = log.set(records::KEYS[key], value);
                let queued = shared.lock().values.queued(key, value, None);
                // Dropping it withdraws nothing.
                if sim::random(3) == 0 {
                    drop(setting);
                } else {
                    setting.await?;
                    acknowledge_value(shared, queued);
                }
            }
            15 | 16 => {
                let batch: Vec<u64> = (0..sim::random(4)).map(|_| next()).collect();
                let (key, value) = (sim::random(3) as usize, next());
                let sent = shared.lock().send_batch(&batch);
                let appended = log.queue_batch(&batch, records::KEYS[key], value).await?;
                let first = appended.lsn().0;
                let queued = {
                    let mut model = shared.lock();
                    sent.iter().zip(first..).for_each(|(sent, lsn)| model.placed(*sent, lsn));
                    model.values.queued(key, value, batch.first().copied())
                };
                is_readable(log, first..first + batch.len() as u64, &batch).await?;
                appended.await?;
                let mut model = shared.lock();
                sent.into_iter().zip(first..).for_each(|(sent, lsn)| model.acknowledge(sent, lsn));
                drop(model);
                acknowledge_value(shared, queued);
            }
            17 => {
                let record = next();
                let sent = shared.lock().send(record);
                let lsn = log.append_unsynced(record).await?;
                shared.lock().placed(sent, lsn);
                is_readable(log, lsn..lsn + 1, &[record]).await?;
                log.0.wait_durable(Lsn(lsn)).await.or_else(is_removed)?;
                if lsn >= log.durable_next() {
                    return Err(Stop::Wrong(format!("the wait for {lsn} ended before it was durable")));
                }
                shared.lock().acknowledge(sent, lsn);
            }
            _ => {
                let _ = sim::sleep(Duration::from_micros(sim::random(4_000))).await;
            }
        }
    }
    Ok(())
}

/// Accepts the error of a call on a record that was removed from the front meanwhile.
fn is_removed(error: Error) -> Result<(), Stop> {
    if matches!(error.kind(), ErrorKind::OutOfRange { .. }) { Ok(()) } else { Err(error.into()) }
}

fn acknowledge_value(shared: &SharedModel, queued: (usize, u64)) {
    let mut model = shared.lock();
    if !model.is_lying() {
        model.values.acknowledge(queued);
    }
}

/// Checks that records which were queued can be read immediately, durable or not.
async fn is_readable(log: &Log, lsns: std::ops::Range<u64>, batch: &[u64]) -> Result<(), Stop> {
    if lsns.is_empty() {
        return Ok(());
    }
    log.0.wait_queued(Lsn(lsns.start)).await.or_else(is_removed)?;
    match log.read_range(lsns.clone(), usize::MAX).await {
        Ok(read) => {
            let read = read?;
            let expected: Vec<(u64, u64)> = lsns.zip(batch.iter().copied()).collect();
            if read == expected {
                Ok(())
            } else {
                Err(Stop::Wrong(format!("queued were {expected:x?}, and read {read:x?}")))
            }
        }
        Err(error) => is_removed(error),
    }
}

async fn append(log: &Log, shared: &SharedModel, record: u64) -> Result<(), Stop> {
    let sent = shared.lock().send(record);
    let lsn = log.append(record).await?;
    if lsn >= log.durable_next() && !shared.lock().is_lying() {
        let durable = log.durable_next();
        return Err(Stop::Wrong(format!("{lsn} was acknowledged, and durable is all before {durable}")));
    }
    shared.lock().acknowledge(sent, lsn);
    Ok(())
}

async fn unsynced(log: &Log, shared: &SharedModel, record: u64) -> Result<(), Stop> {
    let sent = shared.lock().send(record);
    let lsn = log.append_unsynced(record).await?;
    shared.lock().placed(sent, lsn);
    Ok(())
}
