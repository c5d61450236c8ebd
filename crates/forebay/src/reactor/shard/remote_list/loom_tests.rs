//! The foreign list in every interleaving: each node is removed once, whole and in order, or stays with its owner.

use std::sync::Arc;

use loom::thread::spawn;

use super::*;
use crate::base::sync::UnsafeCell;
use crate::base::sync::model::{Guarantee, breaking, check};

/// An object that is left for a shard. Only its current owner may touch its contents.
#[repr(C)]
struct Word {
    node: RemoteNode,
    said: UnsafeCell<u32>,
}

impl Word {
    fn boxed(said: u32) -> NonNull<RemoteNode> {
        let word = Word { node: RemoteNode::new(NodeKind::File), said: UnsafeCell::new(said) };
        NonNull::from(Box::leak(Box::new(word))).cast()
    }

    /// # Safety
    /// `node` was created by [`Word::boxed`] and is passed once.
    unsafe fn take(node: NonNull<RemoteNode>) -> u32 {
        // SAFETY: the caller owns the word, whose first field the node is.
        let word = unsafe { Box::from_raw(node.cast::<Word>().as_ptr()) };
        // SAFETY: as above; loom checks that the write is ordered before this read.
        unsafe { *word.said.get() }
    }
}

/// Leaves a word. Returns true if the list accepted it.
fn leave(list: &RemoteList, said: u32) -> bool {
    let node = Word::boxed(said);
    // SAFETY: a fresh, complete word; if the list rejects it, this function still owns it.
    unsafe {
        let pushed = list.push(node);
        if !pushed {
            Word::take(node);
        }
        pushed
    }
}

fn take(list: &RemoteList, heard: &mut Vec<u32>) {
    // SAFETY: the list holds only words, and returns each one once.
    list.take_all(|node| heard.push(unsafe { Word::take(node) }));
}

fn words_are_left_while_others_are_taken() {
    let list = Arc::new(RemoteList::new());
    let leaving = [&[1, 2][..], &[3]].map(|words| {
        let list = Arc::clone(&list);
        spawn(move || assert!(words.iter().all(|said| leave(&list, *said))))
    });
    let mut heard = Vec::new();
    take(&list, &mut heard);
    take(&list, &mut heard);
    leaving.into_iter().for_each(|thread| thread.join().unwrap());
    take(&list, &mut heard);
    let place = |said| heard.iter().position(|heard| *heard == said).unwrap();
    assert!(place(1) < place(2), "what one thread leaves is taken in its order: {heard:?}");
    heard.sort();
    assert_eq!(heard, [1, 2, 3], "each is taken once");
}

#[test]
fn each_word_is_taken_once_and_in_order() {
    check(words_are_left_while_others_are_taken);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_release_a_word_is_taken_before_it_is_written() {
    breaking(&[Guarantee::Release], words_are_left_while_others_are_taken);
}

fn a_word_is_left_around_the_close() {
    let list = Arc::new(RemoteList::new());
    let leaving = [1, 2].map(|said| {
        let list = Arc::clone(&list);
        spawn(move || leave(&list, said).then_some(said))
    });
    let mut heard = Vec::new();
    take(&list, &mut heard);
    // SAFETY: as in `take`.
    list.close(|node| heard.push(unsafe { Word::take(node) }));
    let mut left: Vec<u32> = leaving.into_iter().filter_map(|thread| thread.join().unwrap()).collect();
    take(&list, &mut heard);
    heard.sort();
    left.sort();
    assert_eq!(heard, left, "taken by the close, or never out of its owner's hands");
}

#[test]
fn a_closed_list_takes_nothing_and_loses_nothing() {
    check(a_word_is_left_around_the_close);
}
