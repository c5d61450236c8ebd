//! The completion queue in every interleaving: results and wake-ups end a current wait, or the next one.

use std::sync::Arc;

use loom::thread::spawn;

use super::*;
use crate::base::sync::model::check;

const FOR_EVER: Option<Duration> = None;

fn wait_for(completions: u32) -> Wait {
    Wait::For { completions, patience: None, limit: FOR_EVER, in_flight: 0 }
}

#[test]
fn a_wait_for_two_ends_when_the_second_result_is_there() {
    check(|| {
        let queue = Arc::new(CompletionQueue::new(2, None));
        let workers = [1, 2].map(|index| {
            let queue = Arc::clone(&queue);
            spawn(move || queue.push(OpKey { index, generation: 0 }, 0))
        });
        let mut taken = Vec::new();
        queue.take(wait_for(2), &mut taken);
        assert_eq!(taken.len(), 2);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn results_are_taken_one_by_one_or_together_but_once() {
    check(|| {
        let queue = Arc::new(CompletionQueue::new(2, None));
        let workers = [1, 2].map(|index| {
            let queue = Arc::clone(&queue);
            spawn(move || queue.push(OpKey { index, generation: 0 }, 0))
        });
        let mut all = Vec::new();
        while all.len() < 2 {
            let mut taken = Vec::new();
            queue.take(wait_for(1), &mut taken);
            all.extend(taken.drain(..).map(|(key, _)| key.index));
        }
        all.sort();
        assert_eq!(all, [1, 2]);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

/// Follows the inbox's protocol: the news is there before the wake, and the waiter checks for news before
/// each wait.
#[test]
fn a_wake_ends_the_wait_that_there_is_or_the_next_one() {
    check(|| {
        let queue = Arc::new(CompletionQueue::new(2, None));
        let news = Arc::new(AtomicUsize::new(0));
        let wakers = [(), ()].map(|()| {
            let (queue, news) = (Arc::clone(&queue), Arc::clone(&news));
            spawn(move || {
                news.fetch_add(1, Ordering::Relaxed);
                queue.wake();
            })
        });
        while news.load(Ordering::Relaxed) < 2 {
            queue.take(wait_for(1), &mut Vec::new());
        }
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
    });
}

#[test]
fn a_look_that_heeds_a_wake_sees_what_it_was_for() {
    check(|| {
        let queue = Arc::new(CompletionQueue::new(2, None));
        let news = Arc::new(AtomicUsize::new(0));
        let waker = {
            let (queue, news) = (Arc::clone(&queue), Arc::clone(&news));
            spawn(move || {
                news.store(1, Ordering::Relaxed);
                queue.wake();
            })
        };
        // The shard first checks without waiting, and sleeps only if it has seen nothing.
        queue.take(Wait::Poll, &mut Vec::new());
        while news.load(Ordering::Relaxed) == 0 {
            queue.take(wait_for(1), &mut Vec::new());
        }
        waker.join().unwrap();
    });
}
