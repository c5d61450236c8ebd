//! Operations on bytes: one, or several concurrently.

use std::ops::Range;

use forebay::{Block, Durability, Engine, Error, ErrorKind, File, Result};

use super::flight::{self, Outcome};
use super::node::{Base, WriteResult};
use super::sector::Patch;
use super::session::{CheckResult, Session};
use super::step::{Op, Place};

/// An operation that can be carried out, with its target.
struct Ready<'s> {
    op: &'s Op,
    file: File,
    node: usize,
    owner: u64,
    cached: bool,
    /// The error that must be returned instead of success.
    refused: Option<RefusalReason>,
    /// The bytes that it writes, unless it is refused.
    patch: Option<Patch>,
    /// The same bytes as a block that the program keeps.
    shared: Option<Block>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusalReason {
    Misaligned,
    ReadOnly,
}

impl Session {
    /// Carries out the operations concurrently; a single operation at `place`. Returns false without anything to do.
    pub(super) async fn group(&mut self, engine: &Engine, ops: &[Op], place: Place) -> CheckResult<bool> {
        let ready = self.prepare(engine, ops).await?;
        if ready.is_empty() {
            return Ok(false);
        }
        let bases = self.bases(&ready);
        let token = self.new_owner();
        if ready.len() > 1 {
            // The reads among them may find these bytes at any moment.
            for one in &ready {
                if let Some(patch) = &one.patch {
                    self.nodes[one.node].may_happen(token, patch.clone(), one.cached);
                }
            }
        }
        let mut flights = Vec::with_capacity(ready.len());
        for one in &ready {
            let begun = flight::begin(engine, one.file.clone(), one.op, one.shared.clone());
            flights.push(begun.map_err(|error| self.unexpected("memory for an operation", &error))?);
        }
        let outcomes = match flights.len() {
            1 => {
                let only = flights.remove(0);
                let over = flight::finish(engine, only, place).await;
                vec![over.map_err(|error| self.unexpected("the task to end", &error))?]
            }
            _ => flight::join(flights).await,
        };
        self.evaluate(&ready, outcomes, &bases, token)?;
        Ok(true)
    }

    /// Starts an operation and drops its future.
    pub(super) async fn drop_early(
        &mut self,
        engine: &Engine,
        op: &Op,
        place: Place,
        polls: u8,
    ) -> CheckResult<bool> {
        let syncs = match op {
            Op::Sync { .. } => true,
            Op::Write { durability, .. } => *durability != Durability::None,
            _ => false,
        };
        if self.faults && syncs {
            // An unseen failure of a sync loses data that a later good sync does not bring back.
            return self.group(engine, std::slice::from_ref(op), place).await;
        }
        let ready = self.prepare(engine, std::slice::from_ref(op)).await?;
        let Some(one) = ready.first() else { return Ok(false) };
        let bases = self.bases(&ready);
        let begun = flight::begin(engine, one.file.clone(), one.op, one.shared.clone());
        let begun = begun.map_err(|error| self.unexpected("memory for an operation", &error))?;
        let over = flight::give_up(engine, begun, place, polls).await;
        match over.map_err(|error| self.unexpected("the task to end", &error))? {
            Some(outcome) => {
                let token = self.new_owner();
                self.evaluate(&ready, vec![outcome], &bases, token)?;
            }
            None => {
                self.report.dropped += 1;
                if let Some(patch) = one.patch.clone().filter(|_| polls > 0) {
                    self.nodes[one.node].may_happen(one.owner, patch, one.cached);
                }
            }
        }
        Ok(true)
    }

    /// Returns the operations that have an open file and are compatible with each other and with those in flight. Access through
    /// the page cache and past it at the same time has no order that could be checked at this grain.
    async fn prepare<'s>(&mut self, engine: &Engine, ops: &'s [Op]) -> CheckResult<Vec<Ready<'s>>> {
        for op in ops {
            if let Some(open) = self.handle(op.handle()) {
                let racing = self.nodes[open.node].racing_owners(open.cached);
                self.close_owners(&racing).await?;
            }
        }
        let mut ready: Vec<Ready<'s>> = Vec::with_capacity(ops.len());
        for op in ops {
            let Some(open) = self.handle(op.handle()) else { continue };
            let (node, cached) = (open.node, open.cached);
            let other_way = |one: &Ready<'_>| one.node == node && one.cached != cached;
            if ready.iter().any(|one| other_way(one) && (one.op.is_write() || op.is_write())) {
                continue;
            }
            let refused = refusal(op, &open.file, open.writable);
            let mut one = Ready {
                op,
                file: open.file.clone(),
                node,
                owner: open.owner,
                cached,
                refused,
                patch: Session::patch_of(op).filter(|_| refused.is_none()),
                shared: None,
            };
            if let Op::Write { pattern, offset, len, .. } = op
                && pattern % 3 == 0
            {
                let bytes = super::step::pattern_bytes(*pattern, *offset, *len as usize);
                let block = engine.block_from(&bytes);
                let block = block.map_err(|error| self.unexpected("a block", &error))?.freeze();
                self.keep(block.clone());
                one.shared = Some(block);
            }
            ready.push(one);
        }
        Ok(ready)
    }

    /// Returns the state of each file before the group, in the places that the group writes.
    fn bases(&self, ready: &[Ready<'_>]) -> Vec<(usize, Base)> {
        let mut nodes: Vec<usize> = ready.iter().map(|one| one.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let base = |node: usize| {
            let writes = ready.iter().filter(|one| one.node == node).filter_map(|one| one.patch.as_ref());
            self.nodes[node].base(&writes.collect::<Vec<_>>())
        };
        nodes.into_iter().map(|node| (node, base(node))).collect()
    }

    fn evaluate(
        &mut self,
        ready: &[Ready<'_>],
        outcomes: Vec<Outcome>,
        bases: &[(usize, Base)],
        token: u64,
    ) -> CheckResult {
        let mut written: Vec<(usize, WriteResult)> = Vec::new();
        let mut synced: Vec<usize> = Vec::new();
        let mut sync_failed = false;
        for (one, outcome) in ready.iter().zip(outcomes) {
            match outcome {
                Outcome::Block(result) => self.check_read(one, result)?,
                Outcome::Into(result, block) => {
                    self.check_into(one, result, &block)?;
                    self.keep_own(block);
                }
                Outcome::Many(result) => self.check_many(one, result)?,
                Outcome::Done(result) => {
                    let (ok, durability) = self.check_done(one, result)?;
                    let syncs = durability != Durability::None && one.refused.is_none();
                    sync_failed |= syncs && !ok;
                    if syncs && ok {
                        synced.push(one.node);
                    }
                    if let Some(patch) = one.patch.clone() {
                        written
                            .push((one.node, WriteResult { patch, ok, durable: syncs, cached: one.cached }));
                    }
                }
            }
        }
        for (node, base) in bases {
            let writes: Vec<WriteResult> =
                written.iter().filter(|(on, _)| on == node).map(|(_, write)| write.clone()).collect();
            let synced = synced.contains(node) && !sync_failed;
            let model = &mut self.nodes[*node];
            model.over(token);
            match (writes.is_empty(), synced) {
                (true, false) => {}
                (true, true) => model.sync(),
                (false, synced) => model.finish(base, &writes, synced),
            }
        }
        if sync_failed {
            self.doubt();
        }
        Ok(())
    }

    /// Records that a sync failed. Devices have one cache for all files, so this concerns every file.
    pub(super) fn doubt(&mut self) {
        self.nodes.iter_mut().for_each(super::node::Node::doubt);
    }

    fn check_read(&mut self, one: &Ready<'_>, result: Result<Block>) -> CheckResult {
        match one.op {
            Op::Read { range, .. } => self.check_exact(one.node, range, result),
            Op::ReadUpTo { range, .. } => match result {
                Ok(block) => {
                    self.check_found(one.node, range, &block)?;
                    self.keep(block);
                    Ok(())
                }
                Err(error) => self.fault_or("bytes", &error),
            },
            _ => Ok(()),
        }
    }

    fn check_many(&mut self, one: &Ready<'_>, result: Result<Vec<Result<Block>>>) -> CheckResult {
        let Op::ReadMany { ranges, .. } = one.op else { return Ok(()) };
        let results = match result {
            Ok(results) => results,
            Err(error) => return self.fault_or("results", &error),
        };
        if results.len() != ranges.len() {
            return Err(self.mismatch(format!("{} results", ranges.len()), results.len().to_string()));
        }
        for (range, result) in ranges.iter().zip(results) {
            self.check_exact(one.node, range, result)?;
        }
        Ok(())
    }

    fn check_exact(&mut self, node: usize, range: &Range<u64>, result: Result<Block>) -> CheckResult {
        match result {
            Ok(block) => {
                if block.len() as u64 != range.end - range.start {
                    return Err(self.mismatch(format!("all of {range:?}"), format!("{} bytes", block.len())));
                }
                self.check_found(node, range, &block)?;
                self.keep(block);
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::UnexpectedEof { got } if got < range.end - range.start => {
                    self.nodes[node].check_end(range, got).map_err(|wrong| self.wrong(wrong))
                }
                _ => self.fault_or("bytes, or the end of the file", &error),
            },
        }
    }

    /// Checks a read of `range` that returned `bytes`, which must be all that the file has of it.
    pub(super) fn check_found(&mut self, node: usize, range: &Range<u64>, bytes: &[u8]) -> CheckResult {
        if bytes.len() as u64 > range.end - range.start {
            return Err(self.mismatch(format!("at most {range:?}"), format!("{} bytes", bytes.len())));
        }
        self.nodes[node].check_end(range, bytes.len() as u64).map_err(|wrong| self.wrong(wrong))?;
        self.check_bytes(node, range.start, bytes)
    }

    fn check_into(&mut self, one: &Ready<'_>, result: Result<usize>, block: &[u8]) -> CheckResult {
        let Op::ReadInto { offset, len, .. } = one.op else { return Ok(()) };
        if block.len() != *len as usize {
            return Err(self.mismatch(format!("the block of {len} bytes"), format!("{}", block.len())));
        }
        match (result, one.refused) {
            (Ok(got), None) if got <= block.len() => {
                let range = *offset..offset + u64::from(*len);
                self.check_found(one.node, &range, &block[..got])
            }
            (Ok(got), _) => Err(self.mismatch("an error, or what there is", format!("{got} bytes"))),
            (Err(error), _) => self.fault_or("bytes", &error),
        }
    }

    /// Checks the result of a write or sync. Returns whether it succeeded, and the sync that was part of it.
    fn check_done(&mut self, one: &Ready<'_>, result: Result<()>) -> CheckResult<(bool, Durability)> {
        let durability = match one.op {
            Op::Write { durability, .. } | Op::Sync { durability, .. } => *durability,
            _ => Durability::None,
        };
        let ok = match (result, one.refused) {
            (Ok(()), None) => true,
            (Ok(()), Some(refused)) => {
                return Err(self.mismatch(format!("{refused:?}"), "success".to_owned()));
            }
            (Err(error), Some(RefusalReason::Misaligned)) if is_misaligned(&error) => false,
            (Err(error), Some(RefusalReason::ReadOnly)) if error.kind().is_system() => false,
            (Err(error), _) => {
                self.fault_or("success", &error)?;
                false
            }
        };
        Ok((ok, durability))
    }

    pub(super) fn fault_or(&mut self, expected: &str, error: &Error) -> CheckResult {
        if self.is_fault(error) { Ok(()) } else { Err(self.unexpected(expected, error)) }
    }
}

fn is_misaligned(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Misaligned { .. })
}

/// Returns why an operation must fail with any content of the file.
fn refusal(op: &Op, file: &File, writable: bool) -> Option<RefusalReason> {
    let alignment = file.alignment();
    let off = |offset: u64, len: u32, grain: u32| {
        let grain = u64::from(grain.max(1));
        !offset.is_multiple_of(grain) || !u64::from(len).is_multiple_of(grain)
    };
    match op {
        Op::Write { offset, len, .. } if off(*offset, *len, alignment.offset) => {
            Some(RefusalReason::Misaligned)
        }
        Op::Write { len, .. } if *len > 0 && !writable => Some(RefusalReason::ReadOnly),
        _ => None,
    }
}
