//! Streams through a file, its length, and its allocated space.

use std::ops::Range;

use forebay::{Append, Durability, Error, ErrorKind, Pending, Result};

use super::flight::{Flight, Outcome, poll_some};
use super::sector::Patch;
use super::session::{CheckResult, Session};
use super::step::{Step, pattern_bytes};

impl Session {
    /// Waits until no write is under way that would change the bytes a stream or a copy finds.
    async fn quiet(&mut self, handle: u8) -> CheckResult {
        if let Some(open) = self.handle(handle) {
            let owners = self.nodes[open.node].owners();
            self.close_owners(&owners).await?;
        }
        Ok(())
    }

    pub(super) async fn scan(
        &mut self,
        handle: u8,
        range: &Range<u64>,
        buffer: u32,
        depth: u8,
    ) -> CheckResult<bool> {
        if let Some(open) = self.handle(handle) {
            let racing = self.nodes[open.node].racing_owners(open.cached);
            self.close_owners(&racing).await?;
        }
        let Some(open) = self.handle(handle) else { return Ok(false) };
        let node = open.node;
        let scan =
            open.file.scan().range(range.clone()).request_bytes(buffer as usize).depth(usize::from(depth));
        let mut scan = scan.start();
        let mut bytes = Vec::new();
        loop {
            match scan.next().await.transpose() {
                Ok(Some(block)) => {
                    bytes.extend_from_slice(&block);
                    self.keep(block);
                }
                Ok(None) => break,
                Err(error) => {
                    self.fault_or("a block", &error)?;
                    return self.check_bytes(node, range.start, &bytes).map(|()| true);
                }
            }
        }
        self.check_found(node, range, &bytes)?;
        Ok(true)
    }

    pub(super) async fn append(
        &mut self,
        handle: u8,
        offset: u64,
        sizes: &[u32],
        pattern: u16,
        durability: Durability,
    ) -> CheckResult<bool> {
        self.quiet(handle).await?;
        let Some(open) = self.handle(handle).filter(|open| open.writable) else { return Ok(false) };
        let (node, grain) = (open.node, u64::from(open.file.alignment().offset.max(1)));
        let total = sizes.iter().map(|size| *size as usize).sum();
        let bytes = pattern_bytes(pattern, offset, total);
        let append = open.file.append().at(offset).request_bytes(8192).depth(2).start();
        let result = written(append, &bytes, sizes, durability).await;
        let patch = Patch::bytes(offset, bytes);
        let padded = patch.end().next_multiple_of(grain);
        let end = patch.end();
        let empty = patch.is_empty();
        match result {
            Ok(position) => {
                let model = &mut self.nodes[node];
                if !empty {
                    model.may_put(&patch, true);
                    model.put(&patch);
                    model.grow(end);
                    model.may_lie_after_a_cut(padded);
                }
                if durability != Durability::None {
                    model.sync();
                }
                if position != end {
                    return Err(self.mismatch(format!("position {end}"), format!("position {position}")));
                }
            }
            Err(error) => {
                // Its other writes are still under way.
                self.close(handle).await?;
                if !empty {
                    self.nodes[node].may_put(&patch, true);
                    self.nodes[node].may_grow(padded);
                }
                self.fault_or("an append", &error)?;
                self.doubt();
            }
        }
        Ok(true)
    }

    pub(super) async fn truncate(&mut self, handle: u8, len: u64) -> CheckResult<bool> {
        let Some(open) = self.handle(handle) else { return Ok(false) };
        let (node, writable) = (open.node, open.writable);
        let result = open.file.truncate(len).await;
        match self.judge(result, !writable, "success")? {
            Some(()) => self.nodes[node].truncate(len),
            None if writable => self.nodes[node].may_truncate(len),
            None => {}
        }
        Ok(true)
    }

    pub(super) async fn allocate(&mut self, handle: u8, range: Range<u64>) -> CheckResult<bool> {
        let Some(open) = self.handle(handle) else { return Ok(false) };
        // fallocate(2): a length of 0 is EINVAL.
        let (node, refused) = (open.node, !open.writable || range.is_empty());
        let result = open.file.allocate(range.clone()).await;
        if is_unsupported(&result) {
            return Ok(false);
        }
        match self.judge(result, refused, "success")? {
            Some(()) => self.nodes[node].grow(range.end),
            None if !refused => self.nodes[node].may_grow(range.end),
            None => {}
        }
        Ok(true)
    }

    pub(super) async fn punch_hole(&mut self, handle: u8, range: Range<u64>) -> CheckResult<bool> {
        let Some(open) = self.handle(handle) else { return Ok(false) };
        let (node, refused) = (open.node, !open.writable || range.is_empty());
        let result = open.file.punch_hole(range.clone()).await;
        if is_unsupported(&result) {
            return Ok(false);
        }
        match self.judge(result, refused, "success")? {
            None if refused => {}
            done => {
                // While it runs a part of it may have been done, and a power cut may find that.
                self.nodes[node].may_put(&Patch::zeros(range.clone()), true);
                if done.is_some() {
                    self.nodes[node].put(&Patch::zeros(range));
                }
            }
        }
        Ok(true)
    }

    pub(super) async fn copy_range(
        &mut self,
        from: u8,
        range: Range<u64>,
        to: u8,
        offset: u64,
    ) -> CheckResult<bool> {
        self.quiet(from).await?;
        self.quiet(to).await?;
        let (Some(source), Some(target)) = (self.handle(from), self.handle(to)) else { return Ok(false) };
        if !target.writable {
            return Ok(false);
        }
        let (source_node, target_node) = (source.node, target.node);
        let len = range.end - range.start;
        let overlaps = source_node == target_node && range.start.abs_diff(offset) < len;
        let result = source.file.copy_range(range.clone(), &target.file, offset).await;
        let copied = match result {
            Ok(copied) if !overlaps => copied,
            Ok(copied) => return Err(self.mismatch("a refusal", format!("{copied} bytes copied"))),
            Err(error) if overlaps && error.kind() == ErrorKind::InvalidInput => return Ok(true),
            Err(error) => {
                self.fault_or("a copy", &error)?;
                self.nodes[target_node].forget(offset..offset + len);
                self.nodes[target_node].may_grow(offset + len);
                return Ok(true);
            }
        };
        if copied > len {
            return Err(self.mismatch(format!("at most {len} bytes"), format!("{copied} bytes")));
        }
        self.nodes[source_node].check_end(&range, copied).map_err(|wrong| self.wrong(wrong))?;
        match self.nodes[source_node].settled(range.start..range.start + copied) {
            Some(bytes) => {
                let patch = Patch::bytes(offset, bytes);
                self.nodes[target_node].may_put(&patch, true);
                self.nodes[target_node].put(&patch);
            }
            None => self.nodes[target_node].forget(offset..offset + copied),
        }
        if copied > 0 {
            self.nodes[target_node].grow(offset + copied);
        }
        Ok(true)
    }

    /// Starts a call, drops it after a few polls, and closes its handles: its effects have happened by then.
    pub(super) async fn abandon(&mut self, call: &Step, polls: u8) -> CheckResult<bool> {
        let (handle, to) = match call {
            Step::Truncate { handle, .. }
            | Step::Allocate { handle, .. }
            | Step::PunchHole { handle, .. } => (*handle, *handle),
            Step::CopyRange { from, to, .. } => (*from, *to),
            _ => return Ok(false),
        };
        let (Some(source), Some(target)) = (self.handle(handle), self.handle(to)) else { return Ok(false) };
        let file = &source.file;
        let done = |begun: Pending<()>| -> Flight { Box::pin(async move { Outcome::Done(begun.await) }) };
        let mut flight = match call {
            Step::Truncate { len, .. } => done(file.truncate(*len)),
            Step::Allocate { range, .. } => done(file.allocate(range.clone())),
            Step::PunchHole { range, .. } => done(file.punch_hole(range.clone())),
            Step::CopyRange { range, offset, .. } => {
                let begun = file.copy_range(range.clone(), &target.file, *offset);
                Box::pin(async move { Outcome::Done(begun.await.map(drop)) })
            }
            _ => return Ok(false),
        };
        let ended = poll_some(&mut flight, polls).await;
        self.report.dropped += u64::from(ended.is_none());
        drop(flight);
        self.may_have_done(call);
        self.close(handle).await?;
        self.close(to).await?;
        Ok(true)
    }
}

fn is_unsupported(result: &Result<()>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::Unsupported)
}

async fn written(
    mut append: Append,
    bytes: &[u8],
    sizes: &[u32],
    durability: Durability,
) -> Result<u64, Error> {
    let mut left = bytes;
    for size in sizes {
        let (now, later) = left.split_at((*size as usize).min(left.len()));
        append.write(now).await?;
        left = later;
    }
    if durability != Durability::None {
        append.sync(durability).await?;
    }
    append.close().await
}
