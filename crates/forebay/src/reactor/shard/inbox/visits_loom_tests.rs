//! A shard without a thread in every interleaving: its inbox, its lock, and the shard that visits when asked. Every post is seen, a
//! dropped future and its completion free the cell once, and the end finds no visitor inside.
//!
//! The steps are those of `reactor/visited.rs` in their order, with the real lock, inbox and cell. Each model has twins with a
//! mistake planted, which must fail.

use std::sync::Arc;
use std::task::{Poll, Waker};

use loom::thread::spawn;

use super::*;
use crate::base::sync::UnsafeCell;
use crate::base::sync::model::{Guarantee, breaking, check};
use crate::base::try_lock::TryLock;
use crate::io::op::OpKey;
use crate::reactor::shard::remote::RemoteCell;
use crate::reactor::shard::remote::fixture::{KEY, request};

/// One where a visited shard has four, for fewer steps.
const LOOKS_MAX: u32 = 1;

/// A step that a twin leaves out.
#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// A visitor leaves without a look at messages that arrived while it was inside.
    NoSettling,
    /// A thread that finds the lock held leaves no mark.
    NoMark,
    /// The holder releases a marked lock and does not look again.
    NoSecondLook,
    /// The end removes the shard although a visitor is inside.
    EndsAnyway,
}

/// The state that the lock protects.
#[derive(Default)]
struct Seat {
    messages: u32,
    /// Cancelled operations that were heard of.
    cancels: u32,
    /// An operation in flight: its key, and its cell while a future waits for it.
    slot: Option<(OpKey, Option<RemotePtr>)>,
    completions: u32,
}

struct Ring {
    inbox: Arc<Inbox>,
    /// The inbox of shard 0.
    bell: Arc<Inbox>,
    lock: TryLock,
    seat: UnsafeCell<Option<Seat>>,
    is_inside: AtomicBool,
    is_abandoned: AtomicBool,
    mistake: Mistake,
}

// SAFETY: the seat is accessed under the lock, which these models check.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    fn new(mistake: Mistake, seat: Seat) -> Arc<Ring> {
        let (inbox, bell) = (Arc::new(Inbox::new(1, 1)), Arc::new(Inbox::new(0, 1)));
        let asked = bell.clone();
        inbox.set_wake_handle(WakeHandle::Call(Arc::new(move || asked.ask_visit(1))));
        let lock = TryLock::held();
        inbox.about_to_sleep();
        lock.unlock_anyway();
        let (seat, is_inside) = (UnsafeCell::new(Some(seat)), AtomicBool::new(false));
        let is_abandoned = AtomicBool::new(false);
        Arc::new(Ring { inbox, bell, lock, seat, is_inside, is_abandoned, mistake })
    }

    /// `VisitedShard::visit`.
    fn visit(&self) {
        let entered = match self.mistake {
            Mistake::NoMark => self.lock.try_lock(),
            _ => self.lock.try_lock_or_mark(),
        };
        if entered {
            self.stay();
        }
    }

    /// `VisitedShard::stay`.
    fn stay(&self) {
        let mut asks_shard = self.inside();
        asks_shard |= match self.mistake {
            Mistake::NoSecondLook => {
                self.lock.unlock_anyway();
                false
            }
            _ => self.lock.leave(|| asks_shard |= self.look_again()),
        };
        if asks_shard {
            self.bell.ask_visit(1);
            if self.is_abandoned.load(Ordering::Acquire) && self.lock.try_lock() {
                self.end();
                self.lock.unlock_anyway();
            }
        }
    }

    fn look_again(&self) -> bool {
        if self.is_abandoned.load(Ordering::Acquire) {
            self.end();
            return false;
        }
        self.inside()
    }

    /// Ends the shard, with the lock held.
    fn end(&self) {
        // SAFETY: under the lock.
        if unsafe { (*self.seat.get()).take() }.is_some() {
            self.inbox.close(false);
        }
    }

    /// The last part of `VisitedShard::take`, once the deadline has passed.
    fn abandon(&self) {
        let mut is_mine = self.lock.try_lock();
        if !is_mine {
            self.is_abandoned.store(true, Ordering::Release);
            is_mine = match self.mistake {
                Mistake::NoMark => self.lock.try_lock(),
                _ => self.lock.try_lock_or_mark(),
            };
        }
        if is_mine {
            self.end();
        }
    }

    /// `VisitedShard::inside`. Returns whether shard 0 is to continue.
    fn inside(&self) -> bool {
        self.is_inside.store(true, Ordering::Relaxed);
        let asks_shard = self.look();
        self.is_inside.store(false, Ordering::Relaxed);
        asks_shard
    }

    fn look(&self) -> bool {
        // SAFETY: under the lock.
        let Some(seat) = (unsafe { (*self.seat.get()).as_mut() }) else { return false };
        self.inbox.awake();
        self.work(seat);
        if self.mistake == Mistake::NoSettling {
            self.inbox.about_to_sleep();
            return false;
        }
        let mut looks = 0;
        while !self.inbox.settles() {
            if looks == LOOKS_MAX {
                return true;
            }
            looks += 1;
            self.inbox.awake();
            self.work(seat);
        }
        false
    }

    /// `Shard::visit`: messages, notices, completions.
    fn work(&self, seat: &mut Seat) {
        if let Some(message) = self.inbox.pop() {
            seat.messages += 1;
            if let Message::Op(cell) = message {
                cell.finish(OpOutcome { result: Ok(7), buffer: OpBuffer::None });
            }
        }
        self.inbox.remote_list.take_all(|node| {
            // SAFETY: the list holds only cells, and returns each node once.
            let (cell, cancelled) = unsafe { RemoteCell::from_node(node) };
            seat.cancels += u32::from(cancelled);
            // As `Shard::drop_op`: a key whose slot was used up finds nothing.
            if let Some((key, waiting)) = &mut seat.slot
                && cell.key() == Some(*key)
            {
                *waiting = None;
            }
        });
        if let Some((_, waiting)) = seat.slot.take() {
            seat.completions += 1;
            if let Some(cell) = waiting {
                cell.finish(OpOutcome { result: Ok(7), buffer: OpBuffer::None });
            }
        }
    }

    /// One turn of shard 0. Returns whether it was asked to visit.
    fn shard_0(&self) -> bool {
        let asked = self.bell.take_visits() != 0;
        if asked {
            self.visit();
        }
        asked
    }

    /// Returns the state once all threads are through.
    fn seat(&self) -> &Seat {
        // SAFETY: the only thread left.
        unsafe { (*self.seat.get()).as_ref() }.unwrap()
    }
}

fn call() -> Message {
    Message::Call(Box::new(|_| {}))
}

/// A message arrives while a visitor is inside, leaves, or has left, and shard 0 looks where it is asked.
fn a_post_meets_a_leaving_visitor(mistake: Mistake) {
    let ring = Ring::new(mistake, Seat::default());
    let visitor = spawn({
        let ring = ring.clone();
        move || ring.visit()
    });
    let sender = spawn({
        let ring = ring.clone();
        move || assert!(ring.inbox.send(call(), None).is_ok())
    });
    ring.shard_0();
    visitor.join().unwrap();
    sender.join().unwrap();
    // Shard 0 continues for as long as it is asked; its wake-up is the subject of another model.
    while ring.shard_0() {}
    assert_eq!(ring.seat().messages, 1, "the message was seen");
}

#[test]
fn a_message_is_seen_although_its_visitor_leaves() {
    check(|| a_post_meets_a_leaving_visitor(Mistake::None));
}

#[test]
#[should_panic(expected = "the message was seen")]
fn a_visitor_that_does_not_settle_misses_a_message() {
    check(|| a_post_meets_a_leaving_visitor(Mistake::NoSettling));
}

#[test]
#[should_panic(expected = "the message was seen")]
fn a_held_lock_without_a_mark_loses_the_visit_of_shard_0() {
    check(|| a_post_meets_a_leaving_visitor(Mistake::NoMark));
}

#[test]
#[should_panic(expected = "the message was seen")]
fn a_marked_lock_without_a_second_look_loses_it_as_well() {
    check(|| a_post_meets_a_leaving_visitor(Mistake::NoSecondLook));
}

#[test]
#[should_panic(expected = "the message was seen")]
fn without_its_fences_a_leaving_visitor_misses_a_message() {
    breaking(&[Guarantee::Fences], || a_post_meets_a_leaving_visitor(Mistake::None));
}

/// A task drops its future and visits for its next operation, while the runtime's poller handles the completion.
fn a_drop_meets_a_completion(mistake: Mistake) {
    let cell = request();
    cell.set_key(KEY);
    let watched = Arc::downgrade(&cell);
    let ring = Ring::new(mistake, Seat { slot: Some((KEY, Some(cell.clone()))), ..Seat::default() });
    let task = spawn({
        let ring = ring.clone();
        move || {
            let sent = cell.cancel();
            let notified = sent.is_some();
            if let Some(node) = sent {
                // SAFETY: `cancel` returns a node that is in no list; the list owns one count of the cell.
                assert!(unsafe { ring.inbox.remote_list.push(node) });
                ring.visit();
            }
            notified
        }
    });
    ring.visit();
    let notified = task.join().unwrap();
    while ring.shard_0() {}
    let seat = ring.seat();
    assert_eq!(seat.completions, 1, "the operation ended once");
    assert_eq!(seat.cancels, u32::from(notified), "a cancel was heard");
    assert_eq!(watched.strong_count(), 0, "the cell is free");
}

#[test]
fn a_dropped_future_and_its_completion_free_the_cell() {
    check(|| a_drop_meets_a_completion(Mistake::None));
}

#[test]
#[should_panic(expected = "a cancel was heard")]
fn a_cancel_is_lost_where_no_mark_is_left() {
    check(|| a_drop_meets_a_completion(Mistake::NoMark));
}

#[test]
#[should_panic(expected = "a cancel was heard")]
fn a_cancel_is_lost_without_the_second_look() {
    check(|| a_drop_meets_a_completion(Mistake::NoSecondLook));
}

#[test]
#[should_panic]
fn without_release_the_completion_is_torn() {
    breaking(&[Guarantee::Release], || a_drop_meets_a_completion(Mistake::None));
}

/// The last visitor sends an operation and visits, while the engine's end removes the shard.
fn a_visitor_meets_the_end(mistake: Mistake) {
    let ring = Ring::new(mistake, Seat::default());
    let cell = request();
    let visitor = spawn({
        let (ring, sent) = (ring.clone(), cell.clone());
        move || {
            assert!(ring.inbox.send(Message::Op(sent), None).is_ok());
            ring.visit();
        }
    });
    // As `VisitedShard::take`: the lock is never released again.
    while !ring.lock.try_lock() && mistake != Mistake::EndsAnyway {
        loom::thread::yield_now();
    }
    assert!(!ring.is_inside.load(Ordering::Relaxed), "nobody is inside");
    ring.inbox.end();
    // SAFETY: under the lock.
    let taken = unsafe { (*ring.seat.get()).take() };
    ring.inbox.close(false);
    visitor.join().unwrap();
    let messages = taken.map(|seat| seat.messages).unwrap();
    match cell.poll(Waker::noop()) {
        Poll::Ready(outcome) if messages == 1 => assert_eq!(outcome.result, Ok(7)),
        Poll::Ready(outcome) => assert_eq!(outcome.result, Err(OpFailure::EngineClosed)),
        Poll::Pending => panic!("the operation never ends"),
    }
    // A later visitor finds the lock held, and nothing to do.
    ring.visit();
}

#[test]
fn the_end_finds_no_visitor_inside_and_ends_what_was_sent() {
    check(|| a_visitor_meets_the_end(Mistake::None));
}

#[test]
#[should_panic(expected = "nobody is inside")]
fn an_end_that_does_not_wait_meets_the_visitor_inside() {
    check(|| a_visitor_meets_the_end(Mistake::EndsAnyway));
}

#[test]
#[should_panic(expected = "the operation never ends")]
fn without_its_fences_an_operation_outlives_the_ring() {
    breaking(&[Guarantee::Fences, Guarantee::SeqCst], || a_visitor_meets_the_end(Mistake::None));
}

/// The end does not wait for the visitor that is inside, which then ends the shard when it leaves.
fn a_visitor_outlives_the_end(mistake: Mistake) {
    let ring = Ring::new(mistake, Seat::default());
    let cell = request();
    let visitor = spawn({
        let (ring, sent) = (ring.clone(), cell.clone());
        move || {
            ring.visit();
            // Too late for that visit.
            assert!(ring.inbox.send(Message::Op(sent), None).is_ok());
        }
    });
    ring.abandon();
    visitor.join().unwrap();
    assert!(cell.is_done(), "the operation never ends");
}

#[test]
fn a_visitor_that_outlives_the_end_ends_the_shard() {
    check(|| a_visitor_outlives_the_end(Mistake::None));
}

#[test]
#[should_panic(expected = "the operation never ends")]
fn a_visitor_that_outlives_the_end_needs_the_mark() {
    check(|| a_visitor_outlives_the_end(Mistake::NoMark));
}
