//! Bringing everything into the file: the padded last unit, the exact length, the sync.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::writer::Writer;
use crate::base::error::Result;
use crate::base::pending::Pending;
use crate::io::op::{Durability, OpBuffer, OpRequest};
use crate::ops::read::RangeRead;
use crate::ops::submit::{OpFuture, Target};

/// Progress of settling the end of the file. It lives in the append and not in a call's future, so that a
/// dropped call leaves no state half updated.
pub(super) struct Settlement {
    /// The file's length before the first padded write; bytes that it had behind our last one stay.
    length: Option<u64>,
    length_asked: Option<Pending<u64>>,
    /// The read of the bytes behind our last one in its unit.
    behind: Option<RangeRead<'static>>,
    /// The offset to which our padding may have extended the file.
    padded_to: Option<u64>,
    cut: Cut,
}

/// Truncation of the padding.
enum Cut {
    No,
    /// Gets the file's length, to see whether the file still ends with the padding.
    Length(Pending<u64>),
    Truncate(Pending<()>),
}

impl Settlement {
    pub(super) fn new() -> Settlement {
        Settlement { length: None, length_asked: None, behind: None, padded_to: None, cut: Cut::No }
    }

    /// Drops the read for the old end, which is useless after more bytes were accepted.
    pub(super) fn forget_reads(&mut self) {
        self.behind = None;
    }
}

impl Writer {
    /// Completes when everything accepted so far is in the file, at its exact length.
    pub(super) fn poll_settled(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.check(0)?;
        if self.handed < self.position {
            ready!(self.poll_hand_over(context))?;
        }
        self.reap(context)?;
        if !self.flight.is_empty() {
            return Poll::Pending;
        }
        debug_assert_eq!(self.handed, self.position, "what is settled was handed over");
        self.poll_cut(context)
    }

    /// Sends the filled buffer, padded where it must be.
    fn poll_hand_over(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let padded_end = self.position.next_multiple_of(self.grain);
        if padded_end == self.position {
            return self.poll_hand_over_aligned(context);
        }
        let start = self.filling.start();
        ready!(self.poll_room(context, start))?;
        let length = ready!(self.poll_length(context))?;
        let behind = if length > self.position {
            Some(ready!(self.poll_behind(context, length.min(padded_end)))?)
        } else {
            None
        };
        // No step from here on waits, so that the bytes, the carry and the padding change together.
        let Some(mut block) = self.filling.take() else { return Poll::Ready(Ok(())) };
        let unit = self.position - self.position % self.grain;
        self.filling.restart(unit, &block[(unit - start) as usize..]);
        self.handed = self.position;
        if padded_end > length {
            self.settling.padded_to =
                Some(self.settling.padded_to.map_or(padded_end, |end| end.max(padded_end)));
        }
        if let Some(behind) = behind {
            block.extend_from_slice(&behind)?;
        }
        debug_assert!(start <= unit && unit < self.position, "the padded unit is the last that has bytes");
        let len = (padded_end - start) as usize;
        block.resize(len)?;
        Poll::Ready(self.begin(context, start, len, OpBuffer::Mut(block)))
    }

    /// Returns the length that the file had before our padding extended it.
    fn poll_length(&mut self, context: &mut Context<'_>) -> Poll<Result<u64>> {
        if let Some(length) = self.settling.length {
            return Poll::Ready(Ok(length));
        }
        let asked = self.settling.length_asked.get_or_insert_with(|| self.file.len());
        let length = ready!(Pin::new(asked).poll(context));
        self.settling.length_asked = None;
        let length = self.noted(length)?;
        self.settling.length = Some(length);
        Poll::Ready(Ok(length))
    }

    /// Returns the file's bytes between our last byte and `end`, within one unit.
    fn poll_behind(
        &mut self,
        context: &mut Context<'_>,
        end: u64,
    ) -> Poll<Result<crate::memory::block::Block>> {
        let read = self.settling.behind.get_or_insert_with(|| {
            RangeRead::owned(self.file.core().clone(), self.position..end, self.class)
        });
        let behind = ready!(read.poll(context));
        self.settling.behind = None;
        Poll::Ready(self.noted(behind))
    }

    /// Truncates our padding at the end of the file. Nothing may be in flight.
    fn poll_cut(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(padded_to) = self.settling.padded_to else { return Poll::Ready(Ok(())) };
        let length = self.position.max(self.settling.length.unwrap_or(0));
        if length >= padded_to {
            self.settling.padded_to = None;
            return Poll::Ready(Ok(()));
        }
        loop {
            match &mut self.settling.cut {
                Cut::No => self.settling.cut = Cut::Length(self.file.len()),
                Cut::Length(asked) => {
                    let found = ready!(Pin::new(asked).poll(context));
                    self.settling.cut = Cut::No;
                    if self.noted(found)? != padded_to {
                        // Another writer has extended or cut the file since: the end is not ours any more.
                        self.settling.padded_to = None;
                        return Poll::Ready(Ok(()));
                    }
                    self.settling.cut = Cut::Truncate(self.file.truncate(length));
                }
                Cut::Truncate(_) => return self.poll_no_cut(context),
            }
        }
    }

    /// Completes when no truncation is in flight that could hit a later write.
    pub(super) fn poll_no_cut(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.settling.cut {
            Cut::No => {}
            // Its reply would be too old.
            Cut::Length(_) => self.settling.cut = Cut::No,
            Cut::Truncate(truncate) => {
                let cut = ready!(Pin::new(truncate).poll(context));
                self.settling.cut = Cut::No;
                self.settling.padded_to = None;
                self.noted(cut)?;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Starts a sync of the bytes in the file; [`poll_sync_over`](Self::poll_sync_over) returns its result.
    pub(super) fn begin_sync(&mut self, durability: Durability) {
        if let Some(kind) = durability.sync_kind() {
            let request = OpRequest::new(kind, self.class, 0, 0, OpBuffer::None);
            self.syncing = Some(OpFuture::new(Target::Owned(self.file.core().clone()), request));
        }
    }

    /// Completes when no sync is under way. One whose call was dropped is waited for, because the kernel
    /// reports a file's write-back error only once.
    pub(super) fn poll_sync_over(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.check(0)?;
        let Some(sync) = &mut self.syncing else { return Poll::Ready(Ok(())) };
        let outcome = ready!(sync.poll_outcome(context));
        self.syncing = None;
        let synced = outcome.result.map(drop);
        let synced = synced.map_err(|failure| failure.into_error("sync", Some(self.file.core())));
        Poll::Ready(self.noted(synced))
    }
}
