//! Interleavings of two senders and a close, step by step.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use super::{Inbox, Message};

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn message() -> Message {
    Message::Call(Box::new(|_| ()))
}

/// Regression: a sender put its message into an inbox that was just closed, and removed it again to reject it. Another sender had
/// found the inbox full of that message and waited for room. No shard reported room any more, so it waited for ever.
#[test]
fn who_waits_for_room_in_a_closed_inbox_is_told() {
    let inbox = Inbox::new(0, 1);
    inbox.close(false);
    // The first sender has not yet checked whether the inbox is closed.
    assert!(inbox.push(message()).is_ok());
    let count = Arc::new(Count::default());
    assert!(inbox.send(message(), Some(&Waker::from(count.clone()))).is_err());
    assert_eq!(count.0.load(Ordering::SeqCst), 0);
    // Now it does.
    assert!(inbox.sent().is_ok());
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    // A message that the other sends then is rejected as well, and no sender waits.
    assert!(inbox.send(message(), None).is_ok());
    assert!(inbox.pop().is_none());
}

#[test]
fn a_close_tells_those_who_wait_for_room() {
    let inbox = Inbox::new(0, 1);
    let count = Arc::new(Count::default());
    assert!(inbox.send(message(), None).is_ok());
    assert!(inbox.send(message(), Some(&Waker::from(count.clone()))).is_err());
    inbox.close(false);
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
}

/// Regression: all senders that waited were woken whenever a turn had received messages. With ten thousand tasks that waited for
/// one place, a read cost twice the processor time.
#[test]
fn as_many_senders_are_woken_as_there_is_room_for_and_all_when_it_is_empty() {
    let inbox = Inbox::new(0, 2);
    let counts: Vec<_> = (0..4).map(|_| Arc::new(Count::default())).collect();
    let woken = || -> Vec<usize> { counts.iter().map(|count| count.0.load(Ordering::SeqCst)).collect() };
    for _ in 0..2 {
        assert!(inbox.send(message(), None).is_ok());
    }
    for count in &counts {
        assert!(inbox.send(message(), Some(&Waker::from(count.clone()))).is_err());
    }
    assert!(inbox.pop().is_some());
    inbox.notify_room(1);
    assert_eq!(woken(), [1, 0, 0, 0]);
    // Without a received message, no sender is woken.
    inbox.notify_room(0);
    assert_eq!(woken(), [1, 0, 0, 0]);
    // The first one does not return. It blocks no other once the inbox is empty.
    assert!(inbox.pop().is_some());
    inbox.notify_room(1);
    assert_eq!(woken(), [1, 1, 1, 1]);
}
