//! The return stack in every interleaving: each buffer returns once, as its last owner left it, and a shard
//! that waits for memory is woken.

use std::task::Wake;

use loom::thread::spawn;

use super::*;
use crate::base::sync::model::{Bell, Guarantee, breaking, check};

/// A buffer's header without a buffer. The number stands for the bytes that its owner wrote.
struct BareHeader(NonNull<Header>);

// SAFETY: the owner of a header may be on any thread.
unsafe impl Send for BareHeader {}

impl BareHeader {
    fn new() -> BareHeader {
        BareHeader(NonNull::from(Box::leak(Box::new(Header::ordinary(0, ptr::null_mut())))))
    }

    /// Writes the number and pushes the header. Returns the number, if the stack accepted it.
    fn give(self, stack: &ReturnStack, number: u16) -> Option<u16> {
        // SAFETY: the header is ours alone; it is a chain of one.
        let pushed = unsafe {
            self.0.as_ref().set_home(number);
            stack.push(self.0, self.0)
        };
        if !pushed {
            free(self.0);
        }
        pushed.then_some(number)
    }
}

fn free(header: NonNull<Header>) -> u16 {
    // SAFETY: made by `BareHeader::new`, and the caller alone has it.
    unsafe { Box::from_raw(header.as_ptr()) }.home()
}

fn numbers(chain: Chain) -> Vec<u16> {
    chain.map(free).collect()
}

fn sorted(mut numbers: Vec<u16>) -> Vec<u16> {
    numbers.sort();
    numbers
}

fn buffers_return_while_others_are_taken() {
    let stack = Arc::new(ReturnStack::new(Arc::new(WaitingShards::new(1))));
    let giving = [1, 2].map(|number| {
        let stack = Arc::clone(&stack);
        let header = BareHeader::new();
        spawn(move || header.give(&stack, number))
    });
    let mut taken = numbers(stack.take_all());
    taken.extend(numbers(stack.take_all()));
    let given = giving.into_iter().filter_map(|thread| thread.join().unwrap()).collect();
    taken.extend(numbers(stack.take_all()));
    assert_eq!(sorted(taken), sorted(given), "each buffer comes back once, as it was left");
}

#[test]
fn each_buffer_comes_back_once() {
    check(buffers_return_while_others_are_taken);
}

#[test]
#[should_panic(expected = "each buffer comes back once, as it was left")]
fn without_release_a_buffer_comes_back_as_it_was_before() {
    breaking(&[Guarantee::Release, Guarantee::SeqCst], buffers_return_while_others_are_taken);
}

/// A shard closes its stack while one thread pushes to it and another one gathers from all stacks.
fn buffers_return_around_the_close() {
    let stack = Arc::new(ReturnStack::new(Arc::new(WaitingShards::new(1))));
    let giving = {
        let stack = Arc::clone(&stack);
        let header = BareHeader::new();
        spawn(move || header.give(&stack, 1).into_iter().collect::<Vec<_>>())
    };
    let gathering = {
        let stack = Arc::clone(&stack);
        spawn(move || numbers(stack.take_all()))
    };
    let mut taken = numbers(stack.close());
    taken.extend(gathering.join().unwrap());
    assert_eq!(taken, giving.join().unwrap(), "taken once, or never given");
    assert!(BareHeader::new().give(&stack, 2).is_none(), "it stays closed");
}

#[test]
fn a_closed_stack_takes_nothing_and_loses_nothing() {
    check(buffers_return_around_the_close);
}

/// Waits as `Arena::wait_for_memory` requires: set the bit, check once more, and sleep only if nothing is found.
fn a_shard_waits_for_two_buffers() {
    let bell = Arc::new(Bell::default());
    let waiting = Arc::new(WaitingShards::new(1));
    waiting.set_waker(0, {
        let bell = Arc::clone(&bell);
        Box::new(move || bell.wake_by_ref())
    });
    let stack = Arc::new(ReturnStack::new(Arc::clone(&waiting)));
    let giving = [1, 2].map(|number| {
        let stack = Arc::clone(&stack);
        let header = BareHeader::new();
        spawn(move || header.give(&stack, number))
    });
    let mut taken = 0;
    while taken < 2 {
        waiting.set(0, true);
        match numbers(stack.take_all()).len() {
            0 => bell.wait(),
            more => taken += more,
        }
    }
    waiting.set(0, false);
    giving.into_iter().for_each(|thread| assert!(thread.join().unwrap().is_some()));
}

#[test]
fn no_return_is_missed_by_a_shard_that_waits_for_memory() {
    check(a_shard_waits_for_two_buffers);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_one_order_of_bit_and_stack_a_return_is_missed() {
    breaking(&[Guarantee::SeqCst], a_shard_waits_for_two_buffers);
}
