//! Rank 0's part beside its own: it compares the calls, makes the plan, and is the one that says how a call ended.

use std::time::{Duration, Instant};

use forebay::{Durability, ErrorKind, Lock};

use super::call::{Call, Entry, Share, durability_of};
use super::links::Members;
use super::windows::Plan;
use super::wire::{Evidence, Fault, Frame, Kind, SMALL, Wire};
use crate::coalesce::Tail;

/// The time in which further faults are heard after the first one. They decide which one is named, and nothing else.
const FAULTS_WITHIN: Duration = Duration::from_millis(500);

/// The deadlines for which rank 0 waits for a rank, which waits for others and for its own tasks meanwhile: the fault of that step is
/// to come first.
const PATIENCE: u32 = 3;

/// Leads a call to its end on all ranks.
pub(super) fn lead(members: &Members, deadline: Duration, call: &Call) {
    if let Err(fault) = conduct(members, deadline, call) {
        let verdict = nearest(members, fault);
        for wire in &members.wires {
            // A rank that is gone needs no verdict.
            let _ = wire.send(verdict.frame(Kind::End), FAULTS_WITHIN);
        }
    }
}

fn conduct(members: &Members, deadline: Duration, call: &Call) -> Result<(), Fault> {
    let entries = entries(members, deadline)?;
    let Some(first) = entries.first() else { return Ok(()) };
    for (rank, entry) in entries.iter().enumerate() {
        if let Some(difference) = entry.difference(rank, first, members.hosts[rank] == members.hosts[0]) {
            return Err(Fault::cause(ErrorKind::InvalidInput, difference));
        }
    }
    let length = call.perform("look at the file", deadline, |file| async move { file.len().await })?;
    let plan = plan(members, call, &entries, length)?;
    if plan.is_locked {
        // The lock's own limit passes first.
        let within = deadline.saturating_mul(2);
        call.perform("lock", within, move |file| async move {
            file.lock_within(Lock::Exclusive, deadline).await
        })?;
    }
    let done = carry_out(members, deadline, call, &entries, &plan);
    if plan.is_locked {
        let unlocked = call.perform("unlock", deadline, |file| async move { file.unlock().await });
        done.and(unlocked)?;
    } else {
        done?;
    }
    members.wires.iter().try_for_each(|wire| wire.send(Frame::new(Kind::Done), deadline))
}

/// Receives the call of each rank.
fn entries(members: &Members, deadline: Duration) -> Result<Vec<Entry>, Fault> {
    let until = Instant::now() + deadline;
    let mut entries = Vec::with_capacity(members.wires.len());
    for (rank, wire) in members.wires.iter().enumerate() {
        // Those that called in time are read even where the ones before have used up the time.
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let body = heard(rank, wire, Kind::Entry, left).map_err(|fault| match fault.evidence {
            Evidence::Silent => {
                Fault { text: format!("rank {rank} did not call within {deadline:?}"), ..fault }
            }
            _ => fault,
        })?;
        entries.push(Entry::of_body(&body).ok_or_else(|| wire.stranger("a call that is none".to_owned()))?);
    }
    Ok(entries)
}

/// Makes the plan of the call.
fn plan(members: &Members, call: &Call, entries: &[Entry], length: u64) -> Result<Plan, Fault> {
    let with_bytes = || entries.iter().filter(|entry| entry.bytes > 0);
    let start = with_bytes().map(|entry| entry.start).min().unwrap_or(0);
    let end = with_bytes().map(|entry| entry.end).max().unwrap_or(0);
    let is_write = call.bytes().is_some();
    if !is_write && end > length {
        let reader = entries.iter().position(|entry| entry.end == end).unwrap_or_default();
        let text = format!("rank {reader} reads up to offset {end} of a file of {length} bytes");
        return Err(Fault::cause(ErrorKind::UnexpectedEof { got: length }, text));
    }
    let window = call.window();
    let page = call.shape(window).page;
    // Without overlaps, which aggregators refuse, these are the bytes that the pages have.
    let bytes: u128 = entries.iter().map(|entry| u128::from(entry.bytes)).sum();
    let is_whole = bytes == u128::from(end - start)
        && start.is_multiple_of(page)
        && (end.is_multiple_of(page) || end >= length);
    let aggregators = members.aggregators.len() as u64;
    Ok(Plan { length, start, end, window, aggregators, is_locked: is_write && bytes > 0 && !is_whole })
}

/// Has the plan carried out, and the file synced.
fn carry_out(
    members: &Members,
    deadline: Duration,
    call: &Call,
    entries: &[Entry],
    plan: &Plan,
) -> Result<(), Fault> {
    members.wires.iter().try_for_each(|wire| wire.send(plan.frame(), deadline))?;
    let patience = deadline.saturating_mul(PATIENCE);
    let (mut tail, mut alive) = (Tail { end: plan.length, padded: None }, Instant::now());
    for (rank, wire) in members.wires.iter().enumerate() {
        let share = loop {
            let (kind, body) = heard_any(rank, wire, patience)?;
            match kind {
                Kind::Over => break Share::of_body(&body),
                // All ranks wait for this one.
                Kind::Alive if alive.elapsed() > deadline / 4 => {
                    alive = Instant::now();
                    members.wires.iter().try_for_each(|wire| wire.send(Frame::new(Kind::Alive), deadline))?;
                }
                Kind::Alive => {}
                kind => return Err(wire.stranger(format!("{kind:?} too early or too late"))),
            }
        };
        let share = share.ok_or_else(|| wire.stranger("a share that is none".to_owned()))?;
        tail.end = tail.end.max(share.end);
        tail.padded = tail.padded.max(Some(share.padded).filter(|padded| *padded > 0));
    }
    if call.bytes().is_none() {
        return Ok(());
    }
    let core = call.core(plan.window);
    call.perform("end of the file", deadline, move |_| async move {
        let mut tail = tail;
        tail.settle(&core, Durability::None).await
    })?;
    let strongest = entries.iter().map(|entry| entry.durability).max().unwrap_or_default();
    if durability_of(strongest) == Durability::None {
        return Ok(());
    }
    // Each host has caches of its own, and rank 0's also has the end of the file.
    for rank in &members.aggregators {
        let mut frame = Frame::new(Kind::Sync);
        frame.put(strongest);
        members.wires[*rank].send(frame, deadline)?;
    }
    for rank in &members.aggregators {
        heard(*rank, &members.wires[*rank], Kind::Synced, patience)?;
    }
    Ok(())
}

/// Receives a message of a rank that has not failed.
fn heard_any(rank: usize, wire: &Wire, within: Duration) -> Result<(Kind, Vec<u8>), Fault> {
    match wire.receive(SMALL, within)? {
        (Kind::Failed, body) => Err(of_rank(rank, &body)),
        heard => Ok(heard),
    }
}

/// Receives this message of a rank; signs of life may come before it.
fn heard(rank: usize, wire: &Wire, kind: Kind, within: Duration) -> Result<Vec<u8>, Fault> {
    loop {
        match heard_any(rank, wire, within)? {
            (found, body) if found == kind => return Ok(body),
            (Kind::Alive, _) => {}
            (found, _) => return Err(wire.stranger(format!("{found:?} where {kind:?} is due"))),
        }
    }
}

/// Returns the fault that a rank has reported.
fn of_rank(rank: usize, body: &[u8]) -> Fault {
    let fault = Fault::of_body(body);
    Fault { text: format!("rank {rank}: {}", fault.text), ..fault }
}

/// Returns the fault that is nearest to the cause, of this one and those that ranks report now.
fn nearest(members: &Members, fault: Fault) -> Fault {
    let until = Instant::now() + FAULTS_WITHIN;
    let reported = |(rank, wire): (usize, &Wire)| loop {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match wire.receive(SMALL, left) {
            Ok((Kind::Failed, body)) => return Some(of_rank(rank, &body)),
            Ok(_) if Instant::now() < until => {}
            Ok(_) => return None,
            Err(fault) => return Some(fault).filter(|fault| fault.evidence == Evidence::Gone),
        }
    };
    members.wires.iter().enumerate().filter_map(reported).fold(fault, Fault::nearer)
}
