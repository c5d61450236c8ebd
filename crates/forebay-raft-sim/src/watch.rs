//! A watch channel that wakes its receivers in the order in which they started to wait.
//!
//! Tokio's spreads them over eight lists by a thread's random numbers, which no seed decides.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use event_listener::Event;
use openraft_rt::watch::{RecvError, SendError};
use openraft_rt::{OptionalSend, OptionalSync, Watch};

/// openraft's watch channel in a simulated world.
#[derive(Debug)]
pub struct SimWatch;

/// The state of a watch channel, which its two halves share.
struct Channel<T> {
    /// The number of changes so far, and the value.
    state: RwLock<(u64, T)>,
    changed: Event,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

impl<T> Channel<T> {
    fn read(&self) -> WatchRef<'_, T> {
        WatchRef(self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the value, and wakes the receivers if `change` returns true.
    fn change(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut state.1);
        state.0 += u64::from(changed);
        drop(state);
        if changed {
            self.changed.notify(usize::MAX);
        }
        changed
    }
}

/// A reference to the value of a watch channel, which cannot change meanwhile.
#[derive(Debug)]
pub struct WatchRef<'a, T>(RwLockReadGuard<'a, (u64, T)>);

impl<T> Deref for WatchRef<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.1
    }
}

/// The sending half of a watch channel.
pub struct WatchSender<T>(Arc<Channel<T>>);

/// The receiving half of a watch channel.
pub struct WatchReceiver<T> {
    shared: Arc<Channel<T>>,
    /// The number of changes that it has seen.
    seen: u64,
}

impl<T> WatchReceiver<T> {
    fn new(shared: &Arc<Channel<T>>, seen: u64) -> WatchReceiver<T> {
        shared.receivers.fetch_add(1, Ordering::SeqCst);
        WatchReceiver { shared: shared.clone(), seen }
    }
}

impl<T> Clone for WatchSender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::SeqCst);
        WatchSender(self.0.clone())
    }
}

impl<T> Drop for WatchSender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.changed.notify(usize::MAX);
        }
    }
}

impl<T> Clone for WatchReceiver<T> {
    fn clone(&self) -> Self {
        WatchReceiver::new(&self.shared, self.seen)
    }
}

impl<T> Drop for WatchReceiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.fetch_sub(1, Ordering::SeqCst);
    }
}

forebay::_debug_parts!([T] WatchSender<T>);

forebay::_debug_parts!([T] WatchReceiver<T>, |watch_receiver| seen: watch_receiver.seen);

impl Watch for SimWatch {
    type Sender<T: OptionalSend + OptionalSync> = WatchSender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = WatchReceiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = WatchRef<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (WatchSender<T>, WatchReceiver<T>) {
        let shared = Arc::new(Channel {
            state: RwLock::new((0, init)),
            changed: Event::new(),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(0),
        });
        let receiver = WatchReceiver::new(&shared, 0);
        (WatchSender(shared), receiver)
    }
}

impl<T: OptionalSend + OptionalSync> openraft_rt::watch::WatchSender<SimWatch, T> for WatchSender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.receivers.load(Ordering::SeqCst) == 0 {
            return Err(SendError(value));
        }
        self.0.change(|current| {
            *current = value;
            true
        });
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        self.0.change(modify)
    }

    fn borrow_watched(&self) -> WatchRef<'_, T> {
        self.0.read()
    }

    fn subscribe(&self) -> WatchReceiver<T> {
        let seen = self.0.read().0.0;
        WatchReceiver::new(&self.0, seen)
    }
}

impl<T: OptionalSend + OptionalSync> openraft_rt::watch::WatchReceiver<SimWatch, T> for WatchReceiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        loop {
            // First of all, so that no change after the look is missed.
            let change = self.shared.changed.listen();
            let changes = self.shared.read().0.0;
            if changes != self.seen {
                self.seen = changes;
                return Ok(());
            }
            if self.shared.senders.load(Ordering::SeqCst) == 0 {
                return Err(RecvError(()));
            }
            change.await;
        }
    }

    fn borrow_watched(&self) -> WatchRef<'_, T> {
        self.shared.read()
    }

    fn borrow_and_update(&mut self) -> WatchRef<'_, T> {
        let current = self.shared.read();
        self.seen = current.0.0;
        current
    }
}
