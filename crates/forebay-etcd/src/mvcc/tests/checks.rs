//! Refusals before a proposal.

use super::harness::{delete, operation, put, range, txn};
use crate::mvcc::check::TXN_DEPTH_MAX;
use crate::mvcc::{Limits, check_delete, check_put, check_range, check_txn, is_read_only, txn_cost_bytes};
use crate::proto::etcdserverpb::{Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp};
use crate::refusal::Refusal;

fn check(success: Vec<RequestOp>) -> Result<(), Refusal> {
    check_txn(&txn(vec![], success, vec![]), &Limits::default())
}

#[test]
fn requests_are_checked_by_themselves() {
    assert_eq!(check_range(&RangeRequest::default()), Err(Refusal::EmptyKey));
    assert_eq!(
        check_range(&RangeRequest { sort_order: 3, ..range("a", "") }),
        Err(Refusal::InvalidSortOption)
    );
    assert_eq!(
        check_range(&RangeRequest { sort_target: 5, ..range("a", "") }),
        Err(Refusal::InvalidSortOption)
    );
    assert_eq!(check_range(&RangeRequest { sort_target: 4, sort_order: 2, ..range("a", "") }), Ok(()));
    assert_eq!(check_put(&PutRequest::default()), Err(Refusal::EmptyKey));
    assert_eq!(check_put(&PutRequest { ignore_value: true, ..put("a", "v") }), Err(Refusal::ValueProvided));
    assert_eq!(
        check_put(&PutRequest { ignore_lease: true, lease: 1, ..put("a", "v") }),
        Err(Refusal::LeaseProvided)
    );
    assert_eq!(check_put(&PutRequest { ignore_value: true, lease: 1, ..put("a", "") }), Ok(()));
    assert_eq!(check_put(&put([7; 16_384], "")), Err(Refusal::RequestTooLarge));
    assert_eq!(check_delete(&DeleteRangeRequest::default()), Err(Refusal::EmptyKey));
    assert_eq!(check_delete(&delete("a", "")), Ok(()));
}

#[test]
fn transactions_are_bounded_at_each_level() {
    let reads = |count| vec![operation(range("a", "")); count];
    assert_eq!(check(reads(128)), Ok(()));
    assert_eq!(check(reads(129)), Err(Refusal::TooManyOperations));
    let failure = txn(vec![], vec![], reads(129));
    assert_eq!(check_txn(&failure, &Limits::default()), Err(Refusal::TooManyOperations));
    let compares = txn(vec![Compare { key: vec![1], ..Compare::default() }; 129], vec![], vec![]);
    assert_eq!(check_txn(&compares, &Limits::default()), Err(Refusal::TooManyOperations));
    // An inner one has as many as the outer one leaves.
    let inner = |count| operation(txn(vec![], reads(count), vec![]));
    assert_eq!(check([reads(27), vec![inner(100)]].concat()), Ok(()));
    assert_eq!(check([reads(27), vec![inner(101)]].concat()), Err(Refusal::TooManyOperations));
    // The outermost is counted.
    let nested = |depth| (1..depth).fold(reads(1), |inner, _| vec![operation(txn(vec![], inner, vec![]))]);
    assert_eq!(check(nested(TXN_DEPTH_MAX)), Ok(()));
    assert_eq!(check(nested(TXN_DEPTH_MAX + 1)), Err(Refusal::TooManyOperations));
    assert_eq!(check(vec![RequestOp { request: None }]), Err(Refusal::KeyNotFound));
    assert_eq!(
        check_txn(&txn(vec![Compare::default()], vec![], vec![]), &Limits::default()),
        Err(Refusal::EmptyKey)
    );
}

#[test]
fn a_transaction_puts_a_key_once_and_deletes_none_that_it_puts() {
    let duplicate = Err(Refusal::DuplicateKey);
    let a = || operation(put("a", ""));
    assert_eq!(check(vec![a(), a()]), duplicate);
    assert_eq!(check(vec![a(), operation(put("b", ""))]), Ok(()));
    for (key, end, expected) in [
        ("a", "", duplicate),
        ("a", "b", duplicate),
        ("0", "b", duplicate),
        ("0", "a", Ok(())),
        ("0", "a\0", duplicate),
        ("a\0", "b", Ok(())),
        // An empty interval, for etcd; carried out, it deletes all from the key on.
        ("0", "\0", Ok(())),
        ("b", "0", Ok(())),
    ] {
        assert_eq!(check(vec![a(), operation(delete(key, end))]), expected, "{key:?} {end:?}");
        assert_eq!(check(vec![operation(delete(key, end)), a()]), expected, "{key:?} {end:?}");
    }
    // Deletes may meet each other, in any order, and are joined.
    let spans = |spans: &[(&str, &str)]| {
        spans.iter().map(|(key, end)| operation(delete(key, end))).collect::<Vec<_>>()
    };
    let joined = [spans(&[("b", "d"), ("x", ""), ("a", "c"), ("d", ""), ("c", "d")])];
    for (key, expected) in [
        ("0", Ok(())),
        ("a", duplicate),
        ("c", duplicate),
        ("d", duplicate),
        ("d\0", Ok(())),
        ("x", duplicate),
        ("w", Ok(())),
    ] {
        assert_eq!(check([joined[0].clone(), vec![operation(put(key, ""))]].concat()), expected, "{key:?}");
    }
    // Only one of two branches is carried out.
    let either = || operation(txn(vec![], vec![a()], vec![a()]));
    assert_eq!(check(vec![either()]), Ok(()));
    assert_eq!(check(vec![either(), a()]), duplicate);
    assert_eq!(check(vec![either(), either()]), duplicate);
    let deleting = || operation(txn(vec![], vec![], vec![operation(delete("a", ""))]));
    assert_eq!(check(vec![deleting(), a()]), duplicate);
    assert_eq!(check(vec![deleting(), operation(txn(vec![], vec![a()], vec![]))]), duplicate);
    // Not looked at, in this order.
    assert_eq!(check(vec![operation(txn(vec![], vec![a()], vec![])), deleting()]), Ok(()));
}

#[test]
fn what_only_reads_is_known() {
    let read = || operation(range("a", ""));
    assert!(is_read_only(&txn(vec![], vec![], vec![])));
    assert!(is_read_only(&txn(vec![], vec![read()], vec![read()])));
    assert!(!is_read_only(&txn(vec![], vec![read()], vec![operation(put("a", ""))])));
    assert!(!is_read_only(&txn(vec![], vec![operation(txn(vec![], vec![read()], vec![]))], vec![])));
}

#[test]
fn puts_need_room() {
    let limits = Limits { space_bytes: 1000, ..Limits::default() };
    let larger = txn(vec![], vec![operation(put("a", "")); 2], vec![operation(put("a", [0; 100]))]);
    assert_eq!(txn_cost_bytes(&larger), 2 * 257);
    assert!(limits.has_room(485, 514) && !limits.has_room(486, 514));
    // Requests without cost always fit, and so do all requests without a limit.
    assert!(limits.has_room(5000, txn_cost_bytes(&txn(vec![], vec![operation(delete("a", ""))], vec![]))));
    assert!(Limits::default().has_room(u64::MAX, 1));
}
