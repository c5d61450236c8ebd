//! No visited shards: they need the feature `tokio`, Linux and io_uring. See `visited.rs`.

use std::sync::Arc;
use std::task::{Context, Poll};

use crate::io::config::Config;
use crate::io::host::Host;
use crate::io::op::{OpFailure, OpRequest, OpResult};
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::open_file::FileCore;
use crate::reactor::read_many::Batch;
use crate::reactor::shard::inbox::Inbox;
use crate::reactor::shard::remote::RemotePtr;
use crate::reactor::walk;

#[expect(dead_code, reason = "no operation begins in a ring")]
pub(crate) enum OpStart {
    Done(OpResult),
    Waits { shard: u32, cell: RemotePtr },
    Failed(OpFailure),
    Later,
}

#[inline(always)]
pub(crate) fn begin_op(
    _: &Arc<EngineShared>,
    _: Option<&Arc<FileCore>>,
    _: &mut OpRequest,
    _: &mut Context<'_>,
) -> Option<OpStart> {
    None
}

#[inline(always)]
pub(crate) fn begin_batch(_: &Arc<EngineShared>, _: &Arc<Batch>, _: &mut Context<'_>) -> Option<Poll<()>> {
    None
}

#[inline(always)]
pub(crate) fn begin_walks(
    _: &Arc<EngineShared>,
    _: &Arc<walk::Batch>,
    _: &mut Context<'_>,
) -> Option<Poll<()>> {
    None
}

/// No shards.
pub(crate) struct VisitedShards;

impl VisitedShards {
    pub(crate) fn of(_: &Config, _: Host, _: usize, _: bool) -> VisitedShards {
        VisitedShards
    }

    #[inline(always)]
    pub(crate) fn places(&self) -> usize {
        0
    }

    pub(crate) fn inboxes(&self) -> impl Iterator<Item = &Arc<Inbox>> {
        std::iter::empty()
    }

    pub(crate) fn inbox(&self, _: usize) -> Option<&Arc<Inbox>> {
        None
    }

    pub(crate) fn interface(&self) -> Option<&'static str> {
        None
    }

    pub(crate) fn release_memory(&self, _: &EngineShared) {}

    pub(crate) fn shard_ended(&self, _: &Arc<EngineShared>) -> usize {
        0
    }
}
