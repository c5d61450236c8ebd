//! Queues of waiting operations, linked through their slots of the op table. They need no further memory and so have no further
//! limit.

use crate::reactor::shard::optable::{NIL, OpTable, SlotState};

/// A linked list of slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    head: u32,
    tail: u32,
}

impl Queue {
    pub(super) const EMPTY: Queue = Queue { head: NIL, tail: NIL };

    pub(super) fn head(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    pub(super) fn push_back(&mut self, table: &mut OpTable, index: u32) {
        table.slot(index).set_link(NIL);
        debug_assert_eq!(self.head == NIL, self.tail == NIL, "a queue with a first operation has a last one");
        match self.tail {
            NIL => self.head = index,
            tail => table.slot(tail).set_link(index),
        }
        self.tail = index;
    }

    pub(super) fn push_front(&mut self, table: &mut OpTable, index: u32) {
        table.slot(index).set_link(self.head);
        if self.tail == NIL {
            self.tail = index;
        }
        self.head = index;
    }

    pub(super) fn pop_front(&mut self, table: &mut OpTable) -> Option<u32> {
        let index = self.head()?;
        debug_assert_eq!(table.slot(index).state, SlotState::Staged, "only staged operations wait");
        self.head = table.slot(index).link();
        if self.head == NIL {
            self.tail = NIL;
        }
        Some(index)
    }
}
