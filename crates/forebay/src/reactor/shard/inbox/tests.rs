//! What happens between two senders and a close, step by step.

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

/// The story: a sender put its message into an inbox that was just closed, and took it out again to refuse it. Another
/// sender, which had found the inbox full of that message, waited for room; but no shard told of room any more, and it
/// waited for ever.
#[test]
fn who_waits_for_room_in_a_closed_inbox_is_told() {
    let inbox = Inbox::new(0, 1);
    inbox.close(false);
    // The first sender has not looked yet whether the inbox is closed.
    assert!(inbox.messages.push(message()).is_ok());
    let count = Arc::new(Count::default());
    assert!(inbox.send(message(), Some(&Waker::from(count.clone()))).is_err());
    assert_eq!(count.0.load(Ordering::SeqCst), 0);
    // Now it does.
    assert!(inbox.sent().is_ok());
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    // What the other sends then is refused as well, and nobody waits.
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
