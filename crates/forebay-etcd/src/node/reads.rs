//! Reads of this member's state, which note the damage that they meet.

use tonic::Status;

use super::Node;
use crate::mvcc::{Failure, View};
use crate::proto::etcdserverpb::AlarmMember;

impl Node {
    /// Returns the state with all entries that are applied here, and notes the damage that this meets.
    pub(crate) async fn view(&self) -> Result<View, Status> {
        View::of(self.store()).await.map_err(|failure| self.unread(failure))
    }

    /// Returns the status of a read that has failed, and notes the damage that it has met.
    pub(crate) fn unread(&self, failure: Failure) -> Status {
        if let Some(damage) = failure.damage() {
            self.set_damage(Some(damage));
        }
        failure.into()
    }

    /// Returns the status of a read of a view that has failed, and notes the damage that it has met, unless a snapshot of another member
    /// has replaced the state.
    pub(crate) async fn unread_in(&self, view: &View, failure: Failure) -> Status {
        if view.is_replaced(self.store(), &failure).await {
            return failure.into();
        }
        self.unread(failure)
    }

    /// Returns the alarms that are raised in a view.
    pub(crate) async fn alarms(&self, view: &View) -> Result<Vec<AlarmMember>, Status> {
        match view.alarms().await {
            Ok(alarms) => Ok(alarms),
            Err(failure) => Err(self.unread_in(view, failure).await),
        }
    }
}
