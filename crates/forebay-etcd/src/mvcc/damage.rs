//! [`Damage`] of a state, and the record of it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use openraft::alias::StoredMembershipOf;
use tokio::sync::watch;

use crate::types::Types;

/// The fewest voters of a cluster in which a state is repaired: two others have the same one.
const VOTERS_MIN: usize = 3;

/// In which way a state is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// Bytes of its tables are not those that were written.
    Tables(String),
    /// All checksums are right, and sums or entries are others: this member wrote something else than the others.
    Sums(String),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Damage::Tables(text) | Damage::Sums(text)) = self;
        f.write_str(text)
    }
}

/// The damage of a member's state, as far as it was found.
#[derive(Debug, Default)]
pub(crate) struct DamageRecord {
    damage: watch::Sender<Option<Damage>>,
    /// Each call looks at it.
    is_of_tables: AtomicBool,
    are_entries_counted: AtomicBool,
}

impl DamageRecord {
    pub(crate) fn get(&self) -> Option<Damage> {
        self.damage.borrow().clone()
    }

    pub(crate) fn is_of_tables(&self) -> bool {
        self.is_of_tables.load(Ordering::Acquire)
    }

    /// Returns whether entries are counted and not applied, until the state is repaired.
    pub(crate) fn are_entries_counted(&self) -> bool {
        self.are_entries_counted.load(Ordering::Acquire)
    }

    /// Notes that they are from here on.
    pub(crate) fn count_entries(&self) {
        self.are_entries_counted.store(true, Ordering::Release);
    }

    /// Notes that they are applied from here on, to a state that was opened. None is applied meanwhile.
    pub(super) fn apply_entries(&self) {
        self.are_entries_counted.store(false, Ordering::Release);
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Damage>> {
        self.damage.subscribe()
    }

    /// Records damage, or `None` when it is repaired. Damage of tables keeps its first report, and stays while entries are only
    /// counted: they may have met it in the new state.
    pub(crate) fn set(&self, damage: Option<Damage>) {
        self.damage.send_if_modified(|before| {
            let is_known = matches!((&*before, &damage), (Some(Damage::Tables(_)), Some(_)));
            let is_met = damage.is_none() && self.are_entries_counted();
            if is_known || is_met || *before == damage {
                return false;
            }
            match &damage {
                Some(Damage::Tables(damage)) => {
                    tracing::error!(damage, "tables of this member's state are damaged");
                }
                Some(Damage::Sums(damage)) => tracing::error!(
                    damage,
                    "the state of this member is damaged: remove it from the cluster, and add it again with an empty directory"
                ),
                None => tracing::info!("the damage of the state is gone"),
            }
            self.is_of_tables.store(matches!(damage, Some(Damage::Tables(_))), Ordering::Release);
            *before = damage;
            true
        });
    }
}

/// Returns whether a state whose tables are damaged is copied again from other members.
pub(crate) fn is_repaired(membership: &StoredMembershipOf<Types>) -> bool {
    membership.membership().voter_ids().count() >= VOTERS_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry met damage of the new state before the former state's damage was cleared, and both were cleared: the member looked
    /// whole, and never applied anything again.
    #[test]
    fn damage_that_entries_have_met_stays_until_another_state_is_open() {
        let (record, found) = (DamageRecord::default(), || Some(Damage::Tables("a table".into())));
        record.count_entries();
        record.set(found());
        record.apply_entries();
        record.count_entries();
        record.set(found());
        record.set(None);
        assert!(record.is_of_tables() && record.are_entries_counted());
        record.apply_entries();
        record.set(None);
        assert_eq!((record.get(), record.is_of_tables()), (None, false));
    }
}
