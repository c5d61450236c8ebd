//! The remote cell in every interleaving: an outcome reaches the waiting task, a cancel reaches the shard,
//! and the last of the two sides frees the cell.

use std::sync::Weak;

use loom::thread::spawn;

use super::fixture::{KEY, request};
use super::*;
use crate::base::sync::ArrayQueue;
use crate::base::sync::model::{Bell, Guarantee, breaking, check};
use crate::io::op::OpBuffer;
use crate::reactor::shard::remote_list::RemoteList;

fn outcome() -> OpOutcome {
    OpOutcome { result: Ok(7), buffer: OpBuffer::None }
}

/// Waits like a future that is polled again whenever it is woken.
fn wait_for(cell: &RemoteCell) -> OpOutcome {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    loop {
        match cell.poll(&waker) {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => bell.wait(),
        }
    }
}

fn push(list: &RemoteList, node: NonNull<RemoteNode>) {
    // SAFETY: cells return their node only when it is in no list; the list owns one count of the cell.
    assert!(unsafe { list.push(node) });
}

/// Removes the cells from the list and visits each with its key and whether its future was dropped.
fn handle_node(list: &RemoteList, mut visit: impl FnMut(Option<OpKey>, bool)) {
    list.take_all(|node| {
        // SAFETY: the list holds only cells, and returns each node once.
        let (cell, cancelled) = unsafe { RemoteCell::from_node(node) };
        visit(cell.key(), cancelled);
    });
}

fn freed(cell: &Weak<RemoteCell>) -> bool {
    cell.strong_count() == 0
}

fn an_operation_travels_there_and_back() {
    let messages = Arc::new(ArrayQueue::new(1));
    let cell = request();
    let sent = Arc::downgrade(&cell);
    let shard = {
        let messages = Arc::clone(&messages);
        spawn(move || {
            let cell: RemotePtr = loop {
                match messages.pop() {
                    Some(cell) => break cell,
                    None => loom::thread::yield_now(),
                }
            };
            // SAFETY: popped from the queue just now.
            assert!(unsafe { cell.take_request() }.is_some());
            cell.finish(outcome());
        })
    };
    // As the future does it: the first poll sets a waker before the shard sees the cell.
    assert!(cell.poll(Waker::noop()).is_pending());
    assert!(messages.push(cell.clone()).is_ok());
    assert_eq!(wait_for(&cell).result, Ok(7));
    shard.join().unwrap();
    drop(cell);
    assert!(freed(&sent));
}

#[test]
fn whoever_waits_hears_of_the_outcome() {
    check(an_operation_travels_there_and_back);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_release_the_outcome_is_read_before_it_is_written() {
    breaking(&[Guarantee::Release], an_operation_travels_there_and_back);
}

/// The future of a running operation is polled on another thread, and dropped immediately.
fn an_adopting_future_is_dropped() {
    let list = Arc::new(RemoteList::new());
    let cell = RemoteCell::adopt(KEY);
    let adopted = Arc::downgrade(&cell);
    let future = {
        let list = Arc::clone(&list);
        spawn(move || {
            push(&list, cell.queue());
            if let Some(node) = cell.cancel() {
                push(&list, node);
            }
        })
    };
    let mut heard = Vec::new();
    handle_node(&list, |key, cancelled| heard.push((key, cancelled)));
    handle_node(&list, |key, cancelled| heard.push((key, cancelled)));
    future.join().unwrap();
    handle_node(&list, |key, cancelled| heard.push((key, cancelled)));
    assert!(heard.iter().all(|(key, _)| *key == Some(KEY)));
    let cancels = heard.iter().filter(|(_, cancelled)| *cancelled).count();
    assert_eq!(cancels, 1, "the shard hears of the cancel, once: {heard:?}");
    assert!(freed(&adopted));
}

#[test]
fn a_cancel_behind_an_adoption_is_heard_once() {
    check(an_adopting_future_is_dropped);
}

/// A future is dropped while its request may still be in the inbox: the shard learns of it from the mark or from the
/// node, whichever it sees second.
fn a_request_is_cancelled_on_its_way() {
    let list = Arc::new(RemoteList::new());
    let messages = Arc::new(ArrayQueue::new(1));
    let cell = request();
    let sent = Arc::downgrade(&cell);
    let future = {
        let (list, messages) = (Arc::clone(&list), Arc::clone(&messages));
        spawn(move || {
            assert!(messages.push(cell.clone()).is_ok());
            if let Some(node) = cell.cancel() {
                push(&list, node);
            }
        })
    };
    let mut heard = 0;
    let mut turn = || {
        if let Some(cell) = messages.pop() {
            // SAFETY: popped from the queue just now.
            assert!(unsafe { cell.take_request() }.is_some());
            if cell.is_cancelled() { heard += 1 } else { cell.set_key(KEY) }
        }
        handle_node(&list, |key, cancelled| heard += usize::from(key.is_some() && cancelled));
    };
    turn();
    turn();
    future.join().unwrap();
    turn();
    assert_eq!(heard, 1, "an operation that nobody waits for is not begun, or is cancelled");
    assert!(freed(&sent));
}

#[test]
fn a_cancel_is_heard_wherever_the_request_is() {
    check(a_request_is_cancelled_on_its_way);
}

/// The operation ends on the shard while its future is being dropped.
fn an_outcome_meets_a_cancel() {
    let list = Arc::new(RemoteList::new());
    let cell = request();
    let sent = Arc::downgrade(&cell);
    let future = {
        let (list, cell) = (Arc::clone(&list), cell.clone());
        spawn(move || {
            if let Some(node) = cell.cancel() {
                push(&list, node);
            }
        })
    };
    cell.finish(outcome());
    drop(cell);
    handle_node(&list, |_, cancelled| assert!(cancelled));
    future.join().unwrap();
    handle_node(&list, |_, cancelled| assert!(cancelled));
    assert!(freed(&sent));
}

#[test]
fn an_outcome_that_meets_a_cancel_is_freed() {
    check(an_outcome_meets_a_cancel);
}
