//! Waiters for a record number, and for room.

use std::collections::BTreeMap;
use std::task::Waker;

use super::line::fits;
use crate::queue::Limits;

/// Wakers of those that wait until the numbers of records have passed theirs. A waiter costs an entry of the map; one
/// that is not polled any more costs no other waiter anything.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// By the number that each waits for, and a unique number.
    waiters: BTreeMap<(u64, u64), Waker>,
    next_id: u64,
}

impl Watch {
    /// Keeps a waker until `lsn` is passed. `id` is the waiter's number, once it has one.
    pub(super) fn wait(&mut self, lsn: u64, id: &mut Option<u64>, waker: &Waker) {
        let id = *id.get_or_insert_with(|| {
            self.next_id += 1;
            self.next_id
        });
        match self.waiters.get_mut(&(lsn, id)) {
            Some(known) => known.clone_from(waker),
            None => drop(self.waiters.insert((lsn, id), waker.clone())),
        }
    }

    /// Forgets a waiter.
    pub(super) fn leave(&mut self, lsn: u64, id: u64) {
        self.waiters.remove(&(lsn, id));
    }

    /// Returns whether one of them waits for a number before `next`. Without waiters it costs one comparison.
    #[inline]
    pub(super) fn is_reached(&self, next: u64) -> bool {
        self.waiters.first_key_value().is_some_and(|(&(lsn, _), _)| lsn < next)
    }

    /// Takes the wakers of those that wait for a number before `next`.
    pub(super) fn reached(&mut self, next: u64) -> impl Iterator<Item = Waker> + use<> {
        let reached = self.is_reached(next).then(|| {
            let rest = self.waiters.split_off(&(next, 0));
            std::mem::replace(&mut self.waiters, rest).into_values()
        });
        reached.into_iter().flatten()
    }

    /// Takes all wakers, because the log ends or has failed.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.waiters).into_values()
    }
}

/// Wakers of those that wait for room, each with the bytes of its framed record. They have no place in the
/// [line](super::line::Line): a waiter that is woken tries again, and may find that others were faster.
#[derive(Debug, Default)]
pub(crate) struct RoomWatch {
    /// By a unique number.
    waiters: BTreeMap<u64, (usize, Waker)>,
    next_id: u64,
}

impl RoomWatch {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Keeps a waker until the record fits. `id` is the waiter's number, once it has one.
    pub(super) fn wait(&mut self, framed: usize, id: &mut Option<u64>, waker: &Waker) {
        let id = *id.get_or_insert_with(|| {
            self.next_id += 1;
            self.next_id
        });
        match self.waiters.get_mut(&id) {
            Some((_, known)) => known.clone_from(waker),
            None => drop(self.waiters.insert(id, (framed, waker.clone()))),
        }
    }

    /// Forgets a waiter.
    pub(super) fn leave(&mut self, id: u64) {
        self.waiters.remove(&id);
    }

    /// Takes the wakers of those whose records fit together beside `pending` bytes, the first that came first. If none are pending it
    /// takes all: no write would wake the others if these do not append. Ten thousand that wait would otherwise all look at each write.
    /// A record that does not fit alone holds no other back: in a busy log bytes may always be pending.
    pub(super) fn fitting(&mut self, limits: &Limits, pending: usize) -> Vec<Waker> {
        if pending == 0 {
            return self.clear().collect();
        }
        let (mut ids, mut together) = (Vec::new(), pending);
        for (id, (framed, _)) in &self.waiters {
            if fits(limits, together, *framed) {
                together = together.saturating_add(*framed);
                ids.push(*id);
            } else if fits(limits, pending, *framed) {
                // Its turn comes with the next write.
                break;
            }
        }
        ids.iter().filter_map(|id| self.waiters.remove(id)).map(|(_, waker)| waker).collect()
    }

    /// Takes all wakers.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.waiters).into_values().map(|(_, waker)| waker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_whose_number_was_passed_are_woken() {
        let mut watch = Watch::default();
        let mut ids = [None; 4];
        for (id, lsn) in ids.iter_mut().zip([7, 3, 7, 9]) {
            watch.wait(lsn, id, Waker::noop());
        }
        // Another poll adds no second entry.
        watch.wait(9, &mut ids[3], Waker::noop());
        assert_eq!(watch.reached(3).count(), 0);
        assert_eq!(watch.reached(4).count(), 1);
        watch.leave(7, ids[0].expect("it waits"));
        assert_eq!(watch.reached(9).count(), 1);
        assert_eq!(watch.reached(9).count(), 0);
        assert_eq!(watch.clear().count(), 1);
        assert_eq!(watch.reached(u64::MAX).count(), 0);
    }
}
