//! Rank 0's additional part: it compares the calls, makes the plan, and decides how a call ended.

use std::io;
use std::time::{Duration, Instant};

use forebay::{Durability, ErrorKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::call::{Call, Entry, Share, durability_of};
use super::file_lock::{lock, unlock};
use super::links::{LEAD_STALL, Members};
use super::windows::Plan;
use super::wire::{Evidence, Fault, Frame, Kind, SMALL};
use crate::coalesce::Tail;

/// The time in which further faults are heard after the first one. They decide which one is named, and nothing else.
const FAULTS_WITHIN: Duration = Duration::from_millis(500);

/// Leads a call to its end on all ranks.
pub(super) fn lead(members: &Members, deadline: Duration, call: &Call) {
    let busy = vec![false; members.wires.len()];
    let mut lead = Lead { members, deadline, call, locked: None, busy, is_overdue: false };
    if let Err(fault) = lead.conduct() {
        lead.is_overdue |= fault.is_overdue();
        let verdict = lead.nearest(fault);
        for wire in &members.wires {
            // A rank that has ended needs no verdict.
            let _ = wire.send(verdict.frame(Kind::End), FAULTS_WITHIN);
        }
        lead.release();
    }
}

/// A call as rank 0 leads it.
struct Lead<'c> {
    members: &'c Members,
    deadline: Duration,
    call: &'c Call,
    /// The plan for which the file is locked.
    locked: Option<Plan>,
    /// Whether each rank has the plan and has not said that its part is over.
    busy: Vec<bool>,
    /// Whether a task on the file may continue behind its deadline.
    is_overdue: bool,
}

impl Lead<'_> {
    fn conduct(&mut self) -> Result<(), Fault> {
        let (members, call, deadline) = (self.members, self.call, self.deadline);
        let entries = self.entries()?;
        let Some(first) = entries.first() else { return Ok(()) };
        for (rank, entry) in entries.iter().enumerate() {
            if let Some(difference) = entry.difference(rank, first, members.hosts[rank] == members.hosts[0]) {
                return Err(Fault::cause(ErrorKind::InvalidInput, difference));
            }
        }
        let length = call.perform("look at the file", deadline, |file| async move { file.len().await })?;
        let mut plan = plan(members, call, &entries, length)?;
        if plan.is_locked {
            // The lock's own limit passes first.
            let within = deadline.saturating_mul(2);
            // The length once more: who had the lock before may have extended the file.
            plan.length = call.perform("lock", within, move |file| async move {
                lock(&file, deadline).await?;
                let length = file.len().await;
                if length.is_err() {
                    unlock(&file).await?;
                }
                length
            })?;
            self.locked = Some(plan);
        }
        self.carry_out(&entries, &plan)?;
        if self.locked.take().is_some() {
            call.perform("unlock", deadline, |file| async move { unlock(&file).await })?;
        }
        // Also behind one that cannot be reached: the call is complete.
        let sent = members.wires.iter().map(|wire| wire.send(Frame::new(Kind::Done), deadline));
        sent.fold(Ok(()), Result::and)
    }

    /// Receives the call of each rank.
    fn entries(&mut self) -> Result<Vec<Entry>, Fault> {
        let until = Instant::now() + self.deadline;
        let mut entries = Vec::with_capacity(self.members.wires.len());
        for (rank, wire) in self.members.wires.iter().enumerate() {
            // Calls that arrived in time are read even if earlier ranks have used up the time.
            let body =
                self.expect(rank, Kind::Entry, time_left(until)).map_err(|fault| match fault.evidence {
                    Evidence::Silent => Fault {
                        text: format!("rank {rank} did not call within {:?}", self.deadline),
                        ..fault
                    },
                    _ => fault,
                })?;
            entries
                .push(Entry::of_body(&body).ok_or_else(|| wire.stranger("a call that is none".to_owned()))?);
        }
        Ok(entries)
    }

    /// Has the plan carried out, and the file synced.
    fn carry_out(&mut self, entries: &[Entry], plan: &Plan) -> Result<(), Fault> {
        let (members, call) = (self.members, self.call);
        for (rank, wire) in members.wires.iter().enumerate() {
            self.busy[rank] = true;
            wire.send(plan.frame(), self.deadline)?;
        }
        let tail = self.shares(plan)?;
        if call.bytes().is_none() {
            return Ok(());
        }
        let core = call.core(plan.window);
        call.perform("end of the file", self.deadline, move |_| async move {
            let mut tail = tail;
            tail.settle(&core, Durability::None).await
        })?;
        let strongest = entries.iter().map(|entry| entry.durability).max().unwrap_or_default();
        if durability_of(strongest) == Durability::None {
            return Ok(());
        }
        // Each host has its own caches, and rank 0's also has the end of the file.
        for rank in &members.aggregators {
            let mut frame = Frame::new(Kind::Sync);
            frame.put(strongest);
            members.wires[*rank].send(frame, self.deadline)?;
        }
        for rank in &members.aggregators {
            self.expect(*rank, Kind::Synced, self.patience())?;
        }
        Ok(())
    }

    /// Receives reports of all ranks until their parts are over, and passes signs of life on: others may wait for those ranks.
    /// Returns the file's end.
    fn shares(&mut self, plan: &Plan) -> Result<Tail, Fault> {
        let members = self.members;
        let mut tail = Tail { end: plan.length, padded: None };
        let (mut life, mut passed_on) = (Instant::now(), Instant::now());
        while let Some(missing) = self.busy.iter().position(|busy| *busy) {
            let Some(rank) = self.speaker(life + self.patience())? else {
                let seconds = self.patience().as_secs_f64();
                let text =
                    format!("no aggregator went on within {seconds} s, and rank {missing} is not done");
                return Err(Fault { evidence: Evidence::Silent, kind: ErrorKind::Elapsed, text });
            };
            let wire = &members.wires[rank];
            match self.hear_of(rank, self.patience())? {
                (Kind::Over, body) => {
                    let share = Share::of_body(&body)
                        .ok_or_else(|| wire.stranger("a share that is none".to_owned()))?;
                    tail.end = tail.end.max(share.end);
                    tail.padded = tail.padded.max(Some(share.padded).filter(|padded| *padded > 0));
                }
                (Kind::Alive, _) => {}
                (kind, _) => return Err(wire.stranger(format!("{kind:?} too early or too late"))),
            }
            life = Instant::now();
            if passed_on.elapsed() > self.deadline / 4 {
                passed_on = life;
                members
                    .wires
                    .iter()
                    .try_for_each(|wire| wire.send(Frame::new(Kind::Alive), self.deadline))?;
            }
        }
        Ok(tail)
    }

    fn patience(&self) -> Duration {
        self.deadline.saturating_mul(LEAD_STALL)
    }

    /// Waits until a rank whose part is not over sends a message or ends, and returns it.
    fn speaker(&self, until: Instant) -> io::Result<Option<usize>> {
        let ranks: Vec<usize> = (0..self.busy.len()).filter(|rank| self.busy[*rank]).collect();
        let wire =
            |rank: &usize| PollFd::from_borrowed_fd(self.members.wires[*rank].descriptor(), PollFlags::IN);
        let mut wires: Vec<PollFd<'_>> = ranks.iter().map(wire).collect();
        loop {
            let limit = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
            match poll(&mut wires, limit.as_ref()) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(wires.iter().position(|wire| !wire.revents().is_empty()).map(|index| ranks[index]))
    }

    /// Receives a message of a rank, and notes whether its part is over.
    fn hear(&mut self, rank: usize, within: Duration) -> Result<(Kind, Vec<u8>), Fault> {
        let heard = self.members.wires[rank].receive(SMALL, within);
        let is_over = match &heard {
            Ok((kind, _)) => matches!(kind, Kind::Over | Kind::Failed),
            Err(fault) => fault.evidence == Evidence::Gone,
        };
        if is_over {
            self.busy[rank] = false;
        }
        if let Ok((Kind::Failed, body)) = &heard {
            self.is_overdue |= Fault::of_body(body).is_overdue();
        }
        heard
    }

    /// Receives a message of a rank that has not failed.
    fn hear_of(&mut self, rank: usize, within: Duration) -> Result<(Kind, Vec<u8>), Fault> {
        match self.hear(rank, within)? {
            (Kind::Failed, body) => Err(of_rank(rank, &body)),
            heard => Ok(heard),
        }
    }

    /// Receives this message of a rank; signs of life may precede it.
    fn expect(&mut self, rank: usize, kind: Kind, within: Duration) -> Result<Vec<u8>, Fault> {
        loop {
            match self.hear_of(rank, within)? {
                (found, body) if found == kind => return Ok(body),
                (Kind::Alive, _) => {}
                (found, _) => {
                    let wire = &self.members.wires[rank];
                    return Err(wire.stranger(format!("{found:?} where {kind:?} is due")));
                }
            }
        }
    }

    /// Returns the fault nearest to the cause, of `fault` and those that ranks report now.
    fn nearest(&mut self, mut fault: Fault) -> Fault {
        let until = Instant::now() + FAULTS_WITHIN;
        for rank in 0..self.members.wires.len() {
            loop {
                match self.hear(rank, time_left(until)) {
                    Ok((Kind::Failed, body)) => fault = fault.nearer(of_rank(rank, &body)),
                    Ok(_) if Instant::now() < until => continue,
                    Err(other) if other.evidence == Evidence::Gone => fault = fault.nearer(other),
                    _ => {}
                }
                break;
            }
        }
        fault
    }

    /// Gives the lock back after a failure, once no rank writes: else another program would write between the read and the write of a
    /// page. Where that is not known the lock ends with the file.
    fn release(&mut self) {
        let Some(plan) = self.locked.take() else { return };
        let until = Instant::now() + self.deadline;
        for rank in &self.members.aggregators {
            while self.busy[*rank] && self.hear(*rank, time_left(until)).is_ok() {}
        }
        if self.is_overdue || self.members.aggregators.iter().any(|rank| self.busy[*rank]) {
            return;
        }
        // Padding that the call has left would be bytes of the file for one that repeats it.
        let end = plan.length.max(plan.end);
        let padded = end.next_multiple_of(self.call.shape(plan.window).grain);
        let (core, tail) = (self.call.core(plan.window), Tail { end, padded: Some(padded) });
        // The call has a reason already.
        let _ = self.call.perform("unlock", self.deadline, move |file| async move {
            let mut tail = tail;
            let settled = tail.settle(&core, Durability::None).await;
            unlock(&file).await.and(settled)
        });
    }
}

/// Returns the time until then, and at least that of a look.
fn time_left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
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
    let shape = call.shape(window);
    let page = shape.page;
    // Without overlaps, which aggregators refuse, these are the bytes that the pages have.
    let bytes: u128 = entries.iter().map(|entry| u128::from(entry.bytes)).sum();
    let is_whole = bytes == u128::from(end - start)
        && start.is_multiple_of(page)
        // Padding would lie over bytes that another group appends meanwhile.
        && (end.is_multiple_of(page) || (shape.grain == 1 && end >= length));
    let aggregators = members.aggregators.len() as u64;
    Ok(Plan { length, start, end, window, aggregators, is_locked: is_write && bytes > 0 && !is_whole })
}

/// Returns the fault that a rank has reported.
fn of_rank(rank: usize, body: &[u8]) -> Fault {
    let fault = Fault::of_body(body);
    Fault { text: format!("rank {rank}: {}", fault.text), ..fault }
}
