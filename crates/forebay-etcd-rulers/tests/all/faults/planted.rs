//! Synthetic histories, valid and invalid: the checker must distinguish them.

use super::check::{Call, Change, Checker, DatedEvent, Observation, Outcome, Tick};
use super::past::{Event, Pair};

fn pair(value: u64, created: i64, modified: i64, version: i64) -> Pair {
    Pair { value, created, modified, version, lease: 0 }
}

/// A put of `a`, as a watch shows it.
fn put(revision: i64, now: Pair, before: Option<Pair>, tick: Tick) -> DatedEvent {
    (Event { revision, key: "a".to_owned(), now: Some(now), before }, tick)
}

fn call(called: Tick, replied: Tick, changes: Vec<Change>, outcome: Outcome) -> Call {
    Call { called, replied, condition: None, changes, outcome }
}

fn putting(value: u64) -> Vec<Change> {
    vec![Change::Put { key: "a".to_owned(), value, lease: 0 }]
}

fn deleting() -> Vec<Change> {
    vec![Change::Delete("a".to_owned())]
}

fn made(revision: i64) -> Outcome {
    Outcome::Made(revision, Vec::new())
}

fn read(revision: i64, found: Option<Pair>) -> Outcome {
    Outcome::Read(revision, vec![Observation::One("a".to_owned(), found)])
}

const FIRST: Pair = Pair { value: 1, created: 2, modified: 2, version: 1, lease: 0 };
const SECOND: Pair = Pair { value: 2, created: 2, modified: 3, version: 2, lease: 0 };

/// Two puts of `a`, one after the other, at revisions 2 and 3.
fn two_puts() -> (Vec<DatedEvent>, Vec<Call>) {
    let shown = vec![put(2, FIRST, None, 12), put(3, SECOND, Some(FIRST), 22)];
    let calls = vec![call(10, 11, putting(1), made(2)), call(20, 21, putting(2), made(3))];
    (shown, calls)
}

fn check(shown: &[DatedEvent], calls: Vec<Call>) -> Result<(), String> {
    Checker::new().check(shown, calls)
}

fn with(more: Call) -> Result<(), String> {
    let (shown, mut calls) = two_puts();
    calls.push(more);
    check(&shown, calls)
}

#[track_caller]
fn is_wrong(checked: Result<(), String>, why: &str) {
    let found = checked.expect_err(why);
    assert!(found.contains(why), "{found}");
}

#[test]
fn what_is_right_passes() {
    let (shown, calls) = two_puts();
    check(&shown, calls).unwrap();
    // Reads of either, at the time of the second put.
    with(call(19, 25, Vec::new(), read(2, Some(FIRST)))).unwrap();
    with(call(19, 25, Vec::new(), read(3, Some(SECOND)))).unwrap();
    with(call(5, 25, Vec::new(), read(1, None))).unwrap();
    // A change without a reply, which was not made so far.
    with(call(5, 25, putting(9), Outcome::Unknown)).unwrap();
    // A delete of a key that was not there.
    with(call(5, 9, deleting(), read(1, None))).unwrap();
    // A swap that found another revision.
    let condition = Some(("a".to_owned(), 2));
    with(Call { condition, ..call(30, 31, putting(5), read(3, Some(SECOND))) }).unwrap();
}

#[test]
fn a_change_without_a_reply_may_come_a_round_later() {
    let mut checker = Checker::new();
    let (shown, mut calls) = two_puts();
    calls.push(call(15, 16, putting(9), Outcome::Unknown));
    checker.check(&shown, calls).unwrap();
    let late = pair(9, 2, 4, 3);
    checker.check(&[put(4, late, Some(SECOND), 40)], Vec::new()).unwrap();
    // And once.
    let again = put(5, pair(9, 2, 5, 4), Some(late), 50);
    is_wrong(checker.check(&[again], Vec::new()), "no call has made");
}

#[test]
fn an_acknowledged_put_that_is_lost_is_found() {
    let (mut shown, calls) = two_puts();
    shown.pop();
    is_wrong(check(&shown, calls), "is lost");
}

#[test]
fn revisions_that_are_missing_or_given_twice_are_found() {
    let (shown, calls) = two_puts();
    is_wrong(check(&[shown[0].clone(), put(4, pair(2, 2, 4, 2), Some(FIRST), 22)], calls.clone()), "missing");
    is_wrong(check(&[shown[0].clone(), shown[0].clone()], calls.clone()), "twice");
    is_wrong(check(&[shown[1].clone(), shown[0].clone()], calls), "missing");
    is_wrong(with(call(20, 21, putting(3), made(3))), "one revision for two");
}

#[test]
fn events_whose_numbers_do_not_follow_are_found() {
    let (shown, calls) = two_puts();
    let wrong = |now| check(&[shown[0].clone(), put(3, now, Some(FIRST), 22)], calls.clone());
    is_wrong(wrong(pair(2, 3, 3, 2)), "do not follow");
    is_wrong(wrong(pair(2, 2, 3, 1)), "do not follow");
    is_wrong(wrong(pair(2, 2, 2, 2)), "do not follow");
    let before = put(3, SECOND, None, 22);
    is_wrong(check(&[shown[0].clone(), before], calls.clone()), "the pair before");
}

#[test]
fn changes_without_a_call_are_found() {
    let (mut shown, calls) = two_puts();
    shown.push(put(4, pair(7, 2, 4, 3), Some(SECOND), 30));
    is_wrong(check(&shown, calls.clone()), "no call has made");
    shown.pop();
    shown.push((Event { revision: 4, key: "a".to_owned(), now: None, before: Some(SECOND) }, 30));
    is_wrong(check(&shown, calls.clone()), "no call has made");
    let (shown, mut calls) = two_puts();
    calls[1].changes = putting(8);
    is_wrong(check(&shown, calls), "was made there");
}

#[test]
fn stale_reads_are_found() {
    is_wrong(with(call(30, 31, Vec::new(), read(2, Some(FIRST)))), "was known before");
    // The second client has seen the newer one already.
    let (shown, mut calls) = two_puts();
    calls[1].replied = 50;
    calls.push(call(23, 24, Vec::new(), read(3, Some(SECOND))));
    calls.push(call(25, 26, Vec::new(), read(2, Some(FIRST))));
    is_wrong(check(&shown, calls), "was known before");
    // A watch has shown the newer one already.
    let (shown, mut calls) = two_puts();
    calls[1].replied = 50;
    calls.push(call(23, 24, Vec::new(), read(2, Some(FIRST))));
    is_wrong(check(&shown, calls), "was known before");
}

#[test]
fn reads_that_are_not_of_their_revision_are_found() {
    is_wrong(with(call(30, 31, Vec::new(), read(3, Some(FIRST)))), "there was");
    is_wrong(with(call(30, 31, Vec::new(), read(3, None))), "there was");
    let all = vec![Observation::All("a".to_owned(), Vec::new())];
    is_wrong(with(call(30, 31, Vec::new(), Outcome::Read(3, all))), "there was");
    let before = vec![Observation::One("a".to_owned(), None)];
    let (shown, mut calls) = two_puts();
    calls[1].outcome = Outcome::Made(3, before);
    is_wrong(check(&shown, calls), "there was");
    is_wrong(with(call(30, 31, Vec::new(), read(9, Some(SECOND)))), "no watch has shown");
}

#[test]
fn conditions_that_were_not_so_are_found() {
    let swap = |modified, called, outcome| Call {
        condition: Some(("a".to_owned(), modified)),
        ..call(called, called + 1, putting(2), outcome)
    };
    let (shown, mut calls) = two_puts();
    calls[1] = swap(0, 20, made(3));
    is_wrong(check(&shown, calls.clone()), "the mod revision was 2");
    calls[1] = swap(2, 20, made(3));
    check(&shown, calls.clone()).unwrap();
    // Without a reply it is made under its condition as well.
    calls[1] = swap(0, 20, Outcome::Unknown);
    is_wrong(check(&shown, calls), "the mod revision was 2");
    is_wrong(with(swap(3, 30, read(3, Some(SECOND)))), "the mod revision was 3");
    is_wrong(with(call(30, 31, deleting(), read(3, Some(SECOND)))), "has left the key");
}

#[test]
fn revisions_against_the_order_in_time_are_found() {
    let (shown, mut calls) = two_puts();
    // The first was called when the second was there already.
    (calls[0].called, calls[0].replied) = (30, 31);
    is_wrong(check(&shown, calls), "called later");
    // A read of a change that is called later.
    is_wrong(with(call(12, 13, Vec::new(), read(3, Some(SECOND)))), "called later");
    let (mut shown, calls) = two_puts();
    shown[1].1 = 15;
    is_wrong(check(&shown, calls), "was known before");
    // One without a reply.
    let (mut shown, mut calls) = two_puts();
    (shown[1].1, calls[1].outcome) = (15, Outcome::Unknown);
    is_wrong(check(&shown, calls), "was known before");
}

#[test]
fn a_lease_ends_with_all_its_keys() {
    let leased = |key: &str, revision| Pair { lease: 5, ..pair(1, revision, revision, 1) }.clone_for(key);
    let change = |key: &str| Change::Put { key: key.to_owned(), value: 1, lease: 5 };
    let (a, b) = (leased("a", 2), leased("b", 2));
    let event = |revision, (key, pair): &(String, Pair), is_put: bool| Event {
        revision,
        key: key.clone(),
        now: is_put.then_some(*pair),
        before: (!is_put).then_some(*pair),
    };
    let begun = [(event(2, &a, true), 12), (event(2, &b, true), 12)];
    let calls = vec![call(10, 11, vec![change("a"), change("b")], made(2))];
    let end = |keys: &[&(String, Pair)]| {
        let ended = keys.iter().map(|key| (event(3, key, false), 20));
        begun.iter().cloned().chain(ended).collect::<Vec<_>>()
    };
    let check = |shown: &[DatedEvent], may_end| {
        let mut checker = Checker::new();
        if may_end {
            checker.may_end(5);
        }
        checker.check(shown, calls.clone())
    };
    check(&end(&[&a, &b]), true).unwrap();
    // A revocation that is too late changes nothing.
    let late =
        call(30, 31, vec![Change::Delete("a".to_owned()), Change::Delete("b".to_owned())], Outcome::Unknown);
    let mut checker = Checker::new();
    checker.may_end(5);
    checker.check(&end(&[&a, &b]), vec![calls[0].clone(), late]).unwrap();
    is_wrong(check(&end(&[&a, &b]), false), "no call has made");
    is_wrong(check(&end(&[&a]), true), "without all of its keys");
}

impl Pair {
    fn clone_for(self, key: &str) -> (String, Pair) {
        (key.to_owned(), self)
    }
}
