//! Reads of entries.

use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};

use forebay_wal::{ErrorKind, Lsn};
use futures_util::stream::{self, Stream};
use openraft::errors::LeaderChanged;
use openraft::storage::{LeaderBoundedStreamError, LeaderBoundedStreamResult, RaftLogReader};
use openraft::type_config::alias::{LeaderIdOf, VoteOf};
use openraft::vote::RaftVote;
use openraft::{OptionalSend, RaftTypeConfig};

use crate::codec::decode;
use crate::error::Result;
use crate::log::{Inner, RaftLog};

/// Returns the indexes of a range.
fn indexes(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

/// Returns the first entry that is there, if others were wanted. The log says so as soon as a purge is queued, and
/// [`Wal::first_lsn`](forebay_wal::Wal::first_lsn) when it is durable.
fn first_kept(error: &forebay_wal::Error) -> Option<u64> {
    match error.kind() {
        ErrorKind::OutOfRange { first, .. } => Some(first.0),
        _ => None,
    }
}

impl<C: RaftTypeConfig> Inner<C> {
    /// Returns the entries from `start` on and before `end` that are there: at most `bytes_max` bytes of them, but the
    /// first one in any case.
    pub(crate) async fn read(&self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<C::Entry>> {
        self.flushes.check()?;
        let mut first = start;
        let records = loop {
            // Purged entries are missing; a purge may run in between.
            first = first.max(self.wal.first_lsn().0);
            let records = match self.wal.read(Lsn(first)..Lsn(end), bytes_max).await {
                Ok(records) => records,
                Err(error) => match first_kept(&error).filter(|kept| *kept > first) {
                    Some(kept) => {
                        first = kept;
                        continue;
                    }
                    None => return Err(self.fail(error)),
                },
            };
            // A read that fails on its way returns the records before that. Where all are wanted, its error is.
            let after = records.last().map_or(first, |record| record.lsn().0 + 1);
            if bytes_max < usize::MAX || after >= end.min(self.wal.next_lsn().0) {
                break records;
            }
            match self.wal.read(Lsn(after)..Lsn(after + 1), 0).await {
                Err(error) if first_kept(&error).is_some() => {}
                done => drop(done.map_err(|error| self.fail(error))?),
            }
        };
        records.iter().map(|record| decode(&format!("entry {}", record.lsn()), record)).collect()
    }
}

/// The position of a stream of entries; `None` at its end.
struct Position<C: RaftTypeConfig> {
    log: RaftLog<C>,
    next: Option<u64>,
    end: u64,
}

impl<C: RaftTypeConfig> Position<C> {
    /// Reads the next entries, and moves on.
    async fn read(&mut self) -> Result<Vec<C::Entry>> {
        let Some(next) = self.next.filter(|next| *next < self.end) else { return Ok(Vec::new()) };
        self.next = None;
        let entries = self.log.inner.read(next, self.end, self.log.inner.read_bytes_max).await?;
        self.next = entries.last().map(|entry| crate::log::log_id::<C>(entry).index + 1);
        Ok(entries)
    }
}

impl<C: RaftTypeConfig> RaftLogReader<C> for RaftLog<C> {
    async fn leader_bounded_stream<RB>(
        &mut self,
        leader: LeaderIdOf<C>,
        range: RB,
    ) -> impl Stream<Item = LeaderBoundedStreamResult<C>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (start, end) = indexes(&range);
        let position = Position { log: self.clone(), next: Some(start), end };
        let parts = stream::unfold((position, leader, true), |(mut position, leader, goes_on)| async move {
            if !goes_on {
                return None;
            }
            // The vote before and after: entries of another leader are never sent in this leader's name.
            let is_of_leader = |vote: &VoteOf<C>| vote.leader_id() == &leader && vote.is_committed();
            let before = position.log.inner.vote();
            let read = if before.as_ref().is_some_and(is_of_leader) {
                position.read().await.map_err(|error| LeaderBoundedStreamError::IoError(error.into()))
            } else {
                Err(LeaderChanged::new(leader.clone(), before.clone()).into())
            };
            let after = position.log.inner.vote();
            let read = match read {
                Ok(_) if after != before => Err(LeaderChanged::new(leader.clone(), after).into()),
                read => read,
            };
            let (part, goes_on): (Vec<LeaderBoundedStreamResult<C>>, bool) = match read {
                Ok(entries) => {
                    let goes_on = !entries.is_empty();
                    (entries.into_iter().map(Ok).collect(), goes_on)
                }
                Err(error) => (vec![Err(error)], false),
            };
            Some((stream::iter(part), (position, leader, goes_on)))
        });
        Box::pin(futures_util::StreamExt::flatten(parts))
    }

    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = std::io::Result<C::Entry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (start, end) = indexes(&range);
        let position = Position { log: self.clone(), next: Some(start), end };
        let parts = stream::unfold(position, |mut position: Position<C>| async move {
            let part: Vec<std::io::Result<C::Entry>> = match position.read().await {
                Ok(entries) if entries.is_empty() => return None,
                Ok(entries) => entries.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error.into())],
            };
            Some((stream::iter(part), position))
        });
        Box::pin(futures_util::StreamExt::flatten(parts))
    }

    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> std::io::Result<Vec<C::Entry>> {
        let (start, end) = indexes(&range);
        Ok(self.inner.read(start, end, usize::MAX).await?)
    }

    async fn read_vote(&mut self) -> std::io::Result<Option<VoteOf<C>>> {
        self.inner.flushes.check()?;
        Ok(self.inner.vote())
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> std::io::Result<Vec<C::Entry>> {
        let entries = self.inner.read(start, end, self.inner.read_bytes_max).await?;
        // Replication sends them behind the entry before `start`. A purge may be faster than a stream that is about to end: without
        // entries openraft sends a heartbeat, and later entries would leave a gap in the follower's log.
        let is_gapless = entries.first().is_none_or(|entry| crate::log::log_id::<C>(entry).index == start);
        Ok(if is_gapless { entries } else { Vec::new() })
    }
}
