//! The handover in every interleaving: a value is read whole, under the number of its request, or not at all.

use std::sync::Arc;

use loom::thread::spawn;

use super::*;
use crate::base::sync::model::{Guarantee, breaking, check};

fn two_requests_and_a_handler_that_may_be_late() {
    let place = Arc::new(Handover::new(0));
    assert!(place.ask(1));
    let handler = {
        let place = Arc::clone(&place);
        // The signals of both requests; either may be before or after any step of the watcher.
        spawn(move || {
            let first = place.write(1, |value| *value = 1);
            let second = place.write(2, |value| *value = 2);
            (first, second)
        })
    };
    let mut read = Vec::new();
    let mut look = || read.extend(place.read(|number, value| (number, *value)));
    look();
    let asked = place.ask(2);
    look();
    let (first, second) = handler.join().unwrap();
    look();
    assert!(asked || !second, "nothing is written that was not asked for");
    let written: Vec<u64> =
        [(first, 1), (second, 2)].iter().filter(|known| known.0).map(|known| known.1).collect();
    let numbers: Vec<u64> = read.iter().map(|known| known.0).collect();
    assert_eq!(numbers, written, "what was written is read, once");
    assert!(read.iter().all(|(number, value)| number == value), "{read:?}");
}

#[test]
fn a_value_is_read_whole_and_under_its_number() {
    check(two_requests_and_a_handler_that_may_be_late);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_release_a_value_is_read_before_it_is_written() {
    breaking(&[Guarantee::Release], two_requests_and_a_handler_that_may_be_late);
}
