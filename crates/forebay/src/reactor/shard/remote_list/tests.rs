use std::sync::Arc;

use super::*;

/// An object that is left for a shard.
#[repr(C)]
struct Word {
    node: RemoteNode,
    said: String,
}

fn leave(list: &RemoteList, said: &str) -> bool {
    let word = Box::new(Word { node: RemoteNode::new(NodeKind::File), said: said.to_owned() });
    let node = NonNull::from(Box::leak(word)).cast();
    // SAFETY: a fresh, complete word; if the list rejects it, this function still owns it.
    unsafe {
        let pushed = list.push(node);
        if !pushed {
            take(node);
        }
        pushed
    }
}

/// # Safety
/// `node` belongs to a word that the list returned or rejected.
unsafe fn take(node: NonNull<RemoteNode>) -> String {
    // SAFETY: the caller owns the word, whose first field the node is.
    unsafe { Box::from_raw(node.cast::<Word>().as_ptr()) }.said
}

fn heard(list: &RemoteList) -> Vec<String> {
    let mut heard = Vec::new();
    // SAFETY: the list holds only words, and returns each one once.
    list.take_all(|node| heard.push(unsafe { take(node) }));
    heard
}

#[test]
fn what_was_left_first_is_taken_first() {
    let list = RemoteList::new();
    assert!(list.is_empty() && heard(&list).is_empty());
    assert!(["one", "two", "three"].iter().all(|said| leave(&list, said)));
    assert!(!list.is_empty());
    assert_eq!(heard(&list), ["one", "two", "three"]);
    assert!(list.is_empty());
}

#[test]
fn a_closed_list_gives_out_what_it_has_and_takes_nothing() {
    let list = RemoteList::new();
    assert!(leave(&list, "early"));
    let mut last = Vec::new();
    // SAFETY: as in `heard`.
    list.close(|node| last.push(unsafe { take(node) }));
    assert_eq!(last, ["early"]);
    assert!(!leave(&list, "late"));
    list.close(|_| unreachable!("closed before"));
}

#[test]
fn a_word_may_be_left_while_others_are_taken() {
    let list = RemoteList::new();
    assert!(leave(&list, "first"));
    let mut order = Vec::new();
    list.take_all(|node| {
        // SAFETY: as in `heard`.
        order.push(unsafe { take(node) });
        if order.len() == 1 {
            assert!(leave(&list, "second"));
        }
    });
    order.extend(heard(&list));
    assert_eq!(order, ["first", "second"]);
}

#[test]
fn each_of_many_threads_words_comes_out_once_and_in_its_order() {
    const EACH: usize = if cfg!(miri) { 20 } else { 5_000 };
    let list = Arc::new(RemoteList::new());
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        for name in ["a", "b", "c"] {
            let list = Arc::clone(&list);
            scope.spawn(move || {
                for number in 0..EACH {
                    assert!(leave(&list, &format!("{name}{number}")));
                }
            });
        }
        while all.len() < 3 * EACH {
            all.extend(heard(&list));
            std::thread::yield_now();
        }
    });
    for name in ["a", "b", "c"] {
        let numbers = all.iter().filter_map(|said| said.strip_prefix(name));
        assert!(numbers.eq((0..EACH).map(|number| number.to_string()).collect::<Vec<_>>()));
    }
}
