//! [`Follow`]: a watch of the server itself.

use std::collections::VecDeque;
use std::sync::Arc;

use tonic::Status;

use super::{Context, healing, stopped};
use crate::hub::{Bell, EventFilter, Hub, Keys, Watch};
use crate::proto::mvccpb::Event;
use crate::refusal::Refusal;

/// Bytes of events read from the store together.
const READ_BYTES_MAX: usize = 64 << 10;

/// Follows the events of some keys from a revision on.
pub(super) struct Follow {
    context: Context,
    hub: Arc<Hub>,
    bell: Arc<Bell>,
    watch: Arc<Watch>,
    events: VecDeque<Arc<Event>>,
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.hub.remove(&self.watch);
    }
}

impl Follow {
    /// Starts with the events of `from`.
    pub(super) fn new(context: &Context, keys: Keys, from: i64) -> Follow {
        let (hub, bell) = (context.hub.clone(), Arc::default());
        let wanted = EventFilter { keys, puts: true, deletes: true };
        let (watch, _) = hub.add(0, wanted, from, &bell);
        Follow { context: context.clone(), hub, bell, watch, events: VecDeque::new() }
    }

    /// Returns the next event. Cancelling it loses nothing.
    ///
    /// # Errors
    /// It was compacted, the state cannot be read, or the server is being shut down.
    pub(super) async fn next(&mut self) -> Result<Arc<Event>, Status> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            // Read first: events queued before it fell behind precede those of the store.
            let behind = self.watch.behind_from();
            self.events.extend(self.hub.take(&self.watch).into_iter().flat_map(|group| group.events));
            if !self.events.is_empty() {
                continue;
            }
            let Some(from) = behind else {
                let mut stopping = self.context.stopping.clone();
                tokio::select! {
                    () = stopped(&mut stopping) => return Err(Refusal::Stopped.into()),
                    _ = self.bell.rung() => continue,
                }
            };
            if self.context.node.is_healing() {
                return Err(healing());
            }
            let view = self.context.node.view().await?;
            let keys = &self.watch.wanted().keys;
            let (events, next) = match view.events(from, |key| keys.contains(key), READ_BYTES_MAX).await {
                Ok(found) => found,
                // They are read again in the state that a snapshot of another member has brought.
                Err(failure) if view.is_replaced(self.context.node.store(), &failure).await => continue,
                Err(failure) => return Err(self.context.node.unread(failure)),
            };
            self.hub.caught_up(&self.watch, next.max(from));
            self.events.extend(events.into_iter().map(Arc::new));
        }
    }
}
