//! The start of an operation that is first polled outside of its engine's shards: in the ring of the polling worker, if it has one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use crate::driver::Route;
use crate::io::op::{Durability, Flush, OpFailure, OpKind, OpOutcome, OpRequest, OpResult};
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::open_file::FileCore;
use crate::reactor::read_many::{self, Batch};
use crate::reactor::shard::remote::{RemoteCell, RemotePtr};
use crate::reactor::shard::{self, Shard};
use crate::reactor::visited::{VisitedShard, choice, watch};
use crate::reactor::walk;

/// The start of an operation.
pub(crate) enum OpStart {
    /// It has completed; its memory lies in the request.
    Done(OpResult),
    /// The cell gets its outcome, from the shard with this number.
    Waits {
        shard: u32,
        cell: RemotePtr,
    },
    Failed(OpFailure),
    /// The task has used up what its runtime lets it do in one turn, and is woken for the next one.
    Later,
}

/// Starts an operation in the ring of this worker. `None` without a ring, if the operation has to be sent elsewhere, or if another
/// thread is in the ring.
pub(crate) fn begin_op(
    engine: &Arc<EngineShared>,
    core: Option<&Arc<FileCore>>,
    request: &mut OpRequest,
    context: &mut Context<'_>,
) -> Option<OpStart> {
    if !suits(core, request) {
        return None;
    }
    choice::with_ring(engine, |ring| {
        if !choice::proceeds(engine, context) {
            return Some(OpStart::Later);
        }
        request.class = request.class.or_of_task();
        begin_in(engine, ring, core, request, context)
    })?
}

/// A ring with polled completions and an NVMe namespace belong to a shard, and so does a write that makes its thread wait.
fn suits(core: Option<&Arc<FileCore>>, request: &OpRequest) -> bool {
    let waits = request.kind == OpKind::Write
        && request.durability != Durability::None
        && request.flush != Flush::Queued;
    !waits && core.is_none_or(|core| core.route() == Route::Ordinary)
}

#[inline]
fn begin_in(
    engine: &Arc<EngineShared>,
    ring: &Arc<VisitedShard>,
    core: Option<&Arc<FileCore>>,
    request: &mut OpRequest,
    context: &mut Context<'_>,
) -> Option<OpStart> {
    // Where operations complete while they are submitted, those that are submitted immediately need no cell.
    let is_inline = ring.is_inline.load(Ordering::Relaxed);
    let waits = is_inline && ring.gathering.begin();
    // Its waker is registered by the poll that follows: earlier completions wake no task.
    let cell = (!is_inline || waits).then(RemoteCell::waiting);
    let mut is_inside = false;
    let entered = ring.enter(|shard| {
        is_inside = true;
        shard.begin_visiting(core, request, cell.as_ref(), waits)
    });
    let Some((start, submitted)) = entered else {
        // A panic inside: the operation may have started, and is not repeated elsewhere.
        return is_inside.then_some(OpStart::Failed(OpFailure::ShardLost));
    };
    let key = match start {
        shard::VisitStart::Full => return None,
        shard::VisitStart::Failed(failure) => return Some(OpStart::Failed(failure)),
        shard::VisitStart::Done(result) => {
            ring.note_inline(true);
            return Some(OpStart::Done(result));
        }
        shard::VisitStart::Waits(key) => key,
    };
    let cell = match cell {
        Some(cell) => {
            if submitted {
                ring.note_inline(cell.is_done());
            }
            cell
        }
        None => {
            if submitted {
                ring.note_inline(false);
            }
            let cell = RemoteCell::adopt(key);
            let _ = cell.poll(context.waker());
            ring.adopt(&cell);
            cell
        }
    };
    watch::begin(engine);
    Some(OpStart::Waits { shard: ring.uid(), cell })
}

/// Starts a batch in the ring of this worker; `None` as for an operation. The batch has its waker already.
pub(crate) fn begin_batch(
    engine: &Arc<EngineShared>,
    batch: &Arc<Batch>,
    context: &mut Context<'_>,
) -> Option<Poll<()>> {
    // One polled file is enough: the rings of workers have no ring for those.
    if batch.files().iter().any(|core| core.route() != Route::Ordinary) {
        return None;
    }
    let begin = |shard: &Shard| {
        batch.set_shard(shard.index());
        read_many::begin(shard, batch.clone());
        shard.visit();
    };
    // The ring's end has ended the batch.
    begin_many(engine, batch.first_file(), context, begin, || {})
}

/// Starts walks in the ring of this worker; `None` as for an operation. The batch has its waker already.
pub(crate) fn begin_walks(
    engine: &Arc<EngineShared>,
    batch: &Arc<walk::Batch>,
    context: &mut Context<'_>,
) -> Option<Poll<()>> {
    let begin = |shard: &Shard| {
        batch.set_shard(shard.index());
        shard.begin_walks_visiting(batch);
    };
    // The ring's end has found the walks that had a slot.
    let lost = || {
        if !batch.is_done() {
            batch.refuse(OpFailure::ShardLost);
        }
    };
    begin_many(engine, &batch.file, context, begin, lost)
}

/// Runs `begin` in the ring of this worker, and `lost` if it panics: its started operations are not repeated elsewhere.
fn begin_many(
    engine: &Arc<EngineShared>,
    core: &FileCore,
    context: &mut Context<'_>,
    begin: impl FnOnce(&Shard),
    lost: impl FnOnce(),
) -> Option<Poll<()>> {
    if core.route() != Route::Ordinary {
        return None;
    }
    choice::with_ring(engine, |ring| {
        if !choice::proceeds(engine, context) {
            return Some(Poll::Pending);
        }
        let mut is_inside = false;
        let entered = ring.enter(|shard| {
            is_inside = true;
            begin(shard);
        });
        match (entered, is_inside) {
            (None, false) => return None,
            (None, true) => lost(),
            (Some(()), _) => watch::begin(engine),
        }
        Some(Poll::Ready(()))
    })?
}

impl VisitedShard {
    #[inline]
    pub(super) fn note_inline(&self, is_inline: bool) {
        if self.is_inline.load(Ordering::Relaxed) != is_inline {
            self.is_inline.store(is_inline, Ordering::Relaxed);
        }
    }

    /// Has the cell get the outcome of the slot that it names.
    fn adopt(&self, cell: &RemotePtr) {
        let node = cell.queue();
        // SAFETY: a fresh cell's node is in no list; the list owns one count of the cell.
        if unsafe { self.inbox.remote_list.push(node) } {
            self.visit();
        } else {
            // SAFETY: the node was not pushed, so this is its one taker.
            let (cell, _) = unsafe { RemoteCell::from_node(node) };
            let failure = self.inbox.failure().unwrap_or(OpFailure::EngineClosed);
            cell.finish(OpOutcome::failed(failure));
        }
    }
}
