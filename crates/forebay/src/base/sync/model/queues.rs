//! Models of crossbeam's queues.

use std::collections::VecDeque;
use std::sync::Mutex;

use loom::sync::atomic::{AtomicUsize, Ordering, fence};

use super::{Looks, atomic::fence_of};

/// An index of a queue, with loom's orderings unchanged.
struct Index(AtomicUsize, Looks);

impl Index {
    fn new(value: usize) -> Index {
        Index(AtomicUsize::new(value), Looks::new())
    }

    fn load(&self, order: Ordering) -> usize {
        self.1.look();
        self.0.load(order)
    }

    fn advance(&self, from: usize) -> Result<usize, usize> {
        self.0.compare_exchange(from, from + 1, Ordering::AcqRel, Ordering::Relaxed)
    }
}

/// A bounded ring: place `n` may be written in lap `n / capacity` when its stamp is `2n`, and read at `2n +
/// 1`.
pub(crate) struct ArrayQueue<T> {
    head: Index,
    tail: Index,
    // The values themselves are behind ordinary locks that are never contended: loom switches at its own
    // types only.
    places: Box<[(Index, Mutex<Option<T>>)]>,
}

impl<T> ArrayQueue<T> {
    pub(crate) fn new(capacity: usize) -> ArrayQueue<T> {
        let place = |number| (Index::new(2 * number), Mutex::new(None));
        ArrayQueue { head: Index::new(0), tail: Index::new(0), places: (0..capacity).map(place).collect() }
    }

    pub(crate) fn push(&self, value: T) -> Result<(), T> {
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            let (stamp, place) = &self.places[tail % self.places.len()];
            let seen = stamp.load(Ordering::Acquire);
            if seen == 2 * tail {
                match self.tail.advance(tail) {
                    Ok(_) => {
                        *place.lock().unwrap() = Some(value);
                        stamp.0.store(2 * tail + 1, Ordering::Release);
                        return Ok(());
                    }
                    Err(now) => tail = now,
                }
            } else {
                // A place of the lap before: full, unless another thread is popping it.
                fence(Ordering::SeqCst);
                if self.head.load(Ordering::Relaxed) + self.places.len() == tail {
                    return Err(value);
                }
                loom::thread::yield_now();
                tail = self.tail.load(Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let (stamp, place) = &self.places[head % self.places.len()];
            if stamp.load(Ordering::Acquire) == 2 * head + 1 {
                match self.head.advance(head) {
                    Ok(_) => {
                        fence_of(Ordering::SeqCst);
                        let value = place.lock().unwrap().take();
                        stamp.0.store(2 * (head + self.places.len()), Ordering::Release);
                        return value;
                    }
                    Err(now) => head = now,
                }
            } else {
                // Empty, unless another thread is just filling the place.
                fence(Ordering::SeqCst);
                if self.tail.load(Ordering::Relaxed) == head {
                    return None;
                }
                loom::thread::yield_now();
                head = self.head.load(Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let head = self.head.load(Ordering::Acquire);
        self.tail.load(Ordering::Acquire) == head
    }

    pub(crate) fn len(&self) -> usize {
        let tail = self.tail.load(Ordering::SeqCst);
        tail.saturating_sub(self.head.load(Ordering::SeqCst))
    }
}

/// The unbounded queue.
pub(crate) struct SegQueue<T> {
    pushed: AtomicUsize,
    values: Mutex<VecDeque<T>>,
}

impl<T> SegQueue<T> {
    pub(crate) fn new() -> SegQueue<T> {
        SegQueue { pushed: AtomicUsize::new(0), values: Mutex::default() }
    }

    pub(crate) fn push(&self, value: T) {
        self.values.lock().unwrap().push_back(value);
        self.pushed.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let value = self.values.lock().unwrap().pop_front()?;
        self.pushed.fetch_sub(1, Ordering::AcqRel);
        Some(value)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.pushed.load(Ordering::Acquire)
    }
}
