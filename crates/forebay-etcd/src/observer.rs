//! [`Observer`]: who follows the state as entries are applied, such as the hub of watches and the lessor.

use std::sync::Arc;

use crate::accounts::{Auth, Token};
use crate::proto::mvccpb::Event;

/// Follows the state. Calls are made one at a time, in the order of the entries, on the task that applies them: return soon.
pub(crate) trait Observer: Send + Sync + 'static {
    /// The state was opened, or replaced by a snapshot.
    fn opened(&self, opened: InitialState);

    /// An entry has been applied, and can be read. Entries without a change that [`EntryChanges`] names are not passed on, but
    /// those that removed what was compacted are.
    fn applied(&self, applied: EntryChanges);
}

/// Follows nothing.
pub(crate) struct Nobody;

impl Observer for Nobody {
    fn opened(&self, _: InitialState) {}

    fn applied(&self, _: EntryChanges) {}
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct InitialState {
    pub(crate) revision: i64,
    /// -1 before the first compaction.
    pub(crate) compacted: i64,
    /// All leases: ids and granted times in seconds.
    pub(crate) leases: Vec<(i64, i64)>,
    /// Users and roles.
    pub(crate) auth: Arc<Auth>,
    /// The space of keys, values and leases; see [`crate::mvcc`].
    pub(crate) used_bytes: u64,
    /// Whether compacted entries wait to be removed, or values to be in one place, which the next entries do.
    pub(crate) is_unfinished: bool,
    /// The revision up to which they have been removed.
    pub(crate) cleaned: i64,
    /// Whether this member's limit of space is reached. The next request that needs space raises the alarm `NOSPACE`.
    pub(crate) is_full: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EntryChanges {
    /// The state's revision after it.
    pub(crate) revision: i64,
    /// All events of one revision, in the order of their sub revisions. With the previous value, if any.
    pub(crate) events: Vec<Event>,
    /// A lease that was granted: its id, and the granted time in seconds.
    pub(crate) granted: Option<(i64, i64)>,
    /// A lease that was revoked.
    pub(crate) revoked: Option<i64>,
    /// The revision up to which history was compacted by this entry.
    pub(crate) compacted: Option<i64>,
    /// Users and roles, if they have changed.
    pub(crate) auth: Option<Arc<Auth>>,
    /// A token that was given out.
    pub(crate) token: Option<Token>,
    /// See [`InitialState::used_bytes`].
    pub(crate) used_bytes: u64,
    /// See [`InitialState::is_unfinished`].
    pub(crate) is_unfinished: bool,
    /// See [`InitialState::cleaned`].
    pub(crate) cleaned: i64,
    /// See [`InitialState::is_full`].
    pub(crate) is_full: bool,
}

impl EntryChanges {
    /// Returns whether anything but the numbers has changed.
    pub(crate) fn is_change(&self) -> bool {
        !self.events.is_empty()
            || self.granted.is_some()
            || self.revoked.is_some()
            || self.compacted.is_some()
            || self.auth.is_some()
            || self.token.is_some()
    }
}
