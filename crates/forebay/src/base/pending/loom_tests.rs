//! The channel behind `Pending` in every interleaving: the result, or the loss of the sender, ends the wait.

use loom::thread::spawn;

use super::*;
use crate::base::sync::model::{Bell, check};

/// Waits for the result as a task does: polls again at each wake-up.
fn wait_for(mut pending: Pending<u32>) -> Result<u32> {
    loop {
        // A new waker each time, so that the waker registered last has to be the one that is woken.
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(Arc::clone(&bell));
        match Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => bell.wait(),
        }
    }
}

#[test]
fn whoever_waits_hears_the_answer() {
    check(|| {
        let (sender, pending) = channel("test");
        let answering = spawn(move || sender.send(Ok(7)));
        assert_eq!(wait_for(pending).unwrap(), 7);
        answering.join().unwrap();
    });
}

#[test]
fn whoever_waits_hears_that_there_is_no_answer() {
    check(|| {
        let (sender, pending) = channel("test");
        let dropping = spawn(move || drop(sender));
        assert_eq!(wait_for(pending).unwrap_err().kind(), ErrorKind::EngineClosed);
        dropping.join().unwrap();
    });
}

#[test]
fn a_value_that_nobody_hears_is_dropped() {
    check(|| {
        let value = Arc::new(());
        let kept = Arc::clone(&value);
        let (sender, pending) = channel("test");
        let answering = spawn(move || sender.send(Ok(value)));
        drop(pending);
        answering.join().unwrap();
        assert_eq!(Arc::strong_count(&kept), 1);
    });
}
