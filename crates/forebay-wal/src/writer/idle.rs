//! Waits for work.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay::shard;

use super::Writer;
use super::next::RETRY;
use crate::error::Result;
use crate::queue::{Shared, Work};

/// Waits for work, and for the end of a quiet period.
#[derive(Default)]
pub(super) struct Idle {
    tick: Option<shard::Sleep>,
    /// The deadline on the engine's clock after which appends that were called and not polled are passed, and
    /// its timer.
    patience: Option<(u64, shard::Sleep)>,
    ticks: u32,
    /// Timer until the task tries again to make the next segment, while there is no space for it.
    space: Option<shard::Sleep>,
}

/// The time without a group is counted in halves, so that a busy log arms a timer only from time to time and
/// not once per group.
const QUIET_TICKS: u32 = 3;

impl Idle {
    /// Returns the next group; `None` after a quiet period, if the last group had records.
    pub(super) async fn next(&mut self, writer: &Writer) -> Result<Option<Work>> {
        let (marked, half) = (writer.chain.marked, writer.mark_after / 2);
        let work = poll_fn(|context| self.poll(&writer.shared, marked, half, context)).await;
        self.ticks = 0;
        work
    }

    fn poll(
        &mut self,
        shared: &Shared,
        marked: bool,
        half: Duration,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Work>>> {
        loop {
            let mut until_ns = None;
            if let Poll::Ready(work) = shared.poll_work(context.waker(), &mut until_ns) {
                return Poll::Ready(Ok(Some(work)));
            }
            let Some(until_ns) = until_ns else {
                self.patience = None;
                break;
            };
            let known = self.patience.take().filter(|(known_ns, _)| *known_ns == until_ns);
            let (_, sleep) = self.patience.insert(known.unwrap_or_else(|| {
                let left = until_ns.saturating_sub(shared.engine.now_ns());
                (until_ns, shard::sleep(Duration::from_nanos(left)))
            }));
            match Pin::new(sleep).poll(context) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Ready(Ok(())) => {
                    self.patience = None;
                    shared.pass();
                }
            }
        }
        self.space = self.space.take().filter(|_| shared.is_short());
        if shared.is_short() {
            let space = self.space.get_or_insert_with(|| shard::sleep(RETRY));
            match Pin::new(space).poll(context) {
                Poll::Pending => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Ready(Ok(())) => {
                    self.space = None;
                    return Poll::Ready(Ok(Some(Work::Space)));
                }
            }
        }
        if marked {
            self.tick = None;
            return Poll::Pending;
        }
        loop {
            let tick = self.tick.get_or_insert_with(|| shard::sleep(half));
            match Pin::new(tick).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Ready(Ok(())) => {
                    self.tick = None;
                    self.ticks += 1;
                    if self.ticks >= QUIET_TICKS {
                        return Poll::Ready(Ok(None));
                    }
                }
            }
        }
    }
}
