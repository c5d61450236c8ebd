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

    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Damage>> {
        self.damage.subscribe()
    }

    /// Notes damage; `None` once there is none. Damage of tables stays the one that was found first.
    pub(crate) fn set(&self, damage: Option<Damage>) {
        self.damage.send_if_modified(|before| {
            let is_known = matches!((&*before, &damage), (Some(Damage::Tables(_)), Some(_)));
            if is_known || *before == damage {
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
            let is_of_tables = matches!(damage, Some(Damage::Tables(_)));
            if !is_of_tables {
                self.are_entries_counted.store(false, Ordering::Release);
            }
            self.is_of_tables.store(is_of_tables, Ordering::Release);
            *before = damage;
            true
        });
    }
}

/// Returns whether a state whose tables are damaged is taken again from other members.
pub(crate) fn is_repaired(membership: &StoredMembershipOf<Types>) -> bool {
    membership.membership().voter_ids().count() >= VOTERS_MIN
}
