//! The inbox in every interleaving: a shard that sleeps misses nothing, and no thread waits for room or for a
//! result for ever. The shard sleeps in the driver of threads, so its bell is checked along with the flag.

use std::sync::Arc;
use std::task::{Poll, Waker};

use loom::thread::{JoinHandle, spawn};

use super::*;
use crate::base::class::Class;
use crate::base::sync::model::{Bell, Guarantee, breaking, check, check_large};
use crate::driver::Wait;
use crate::driver::threads::ThreadsDriver;
use crate::io::op::{OpKind, OpRequest};
use crate::reactor::shard::remote::RemoteCell;
use crate::reactor::shard::remote_list::{NodeKind, RemoteNode};

/// A model of `Shard::turn`'s use of an inbox, in the same order.
struct ModelShard {
    inbox: Arc<Inbox>,
    driver: ThreadsDriver,
}

impl ModelShard {
    fn new(depth: usize) -> ModelShard {
        let driver = ThreadsDriver::new(1).unwrap();
        let inbox = Arc::new(Inbox::new(0, depth));
        inbox.set_wake_handle(driver.wake_handle());
        ModelShard { inbox, driver }
    }

    /// Runs turns until the given numbers of messages and nodes were received, or the shard is to end.
    fn run_until(&mut self, messages: usize, nodes: usize) {
        let (mut messages_taken, mut nodes_taken) = (0, 0);
        while !self.inbox.is_ending() {
            let before = messages_taken;
            while self.inbox.pop().is_some() {
                messages_taken += 1;
            }
            self.inbox.notify_room(messages_taken - before);
            self.inbox.remote_list.take_all(|_| nodes_taken += 1);
            if (messages_taken, nodes_taken) == (messages, nodes) {
                break;
            }
            let wait = choose_wait(&self.inbox);
            self.driver.complete(wait, |_, _| {}).unwrap();
            self.inbox.awake();
        }
    }

    /// Starts a thread that runs `body` on the inbox.
    fn other(&self, body: impl FnOnce(&Inbox) + Send + 'static) -> JoinHandle<()> {
        let inbox = Arc::clone(&self.inbox);
        spawn(move || body(&inbox))
    }
}

fn choose_wait(inbox: &Inbox) -> Wait {
    if !inbox.is_quiet() {
        return Wait::Poll;
    }
    inbox.about_to_sleep();
    if !inbox.is_quiet() {
        return Wait::Poll;
    }
    Wait::For { completions: 1, patience: None, limit: None, in_flight: 0 }
}

fn message() -> Message {
    Message::Call(Box::new(|_| {}))
}

fn nop() -> OpRequest {
    OpRequest::new(OpKind::Nop, Class::DEFAULT, 0, 0, OpBuffer::None)
}

/// Sends like a future that is polled again whenever it is woken.
fn send_until_taken(inbox: &Inbox, mut message: Message) {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    while let Err(back) = inbox.send(message, Some(&waker)) {
        message = back;
        bell.wait();
    }
}

fn senders_wake_a_sleeping_shard<const SENDERS: usize>() {
    let mut shard = ModelShard::new(2);
    let senders = [(); SENDERS].map(|()| shard.other(|inbox| assert!(inbox.send(message(), None).is_ok())));
    shard.run_until(SENDERS, 0);
    senders.into_iter().for_each(|sender| sender.join().unwrap());
}

#[test]
fn no_message_is_missed_by_a_shard_that_goes_to_sleep() {
    check(senders_wake_a_sleeping_shard::<1>);
}

#[test]
fn no_message_of_two_is_missed_by_a_shard_that_goes_to_sleep() {
    check_large(senders_wake_a_sleeping_shard::<2>);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_its_fences_a_message_is_missed() {
    breaking(&[Guarantee::Fences], senders_wake_a_sleeping_shard::<1>);
}

/// A shard that waits in the line of long reads, and is called when another one has ended.
fn a_call_wakes_a_sleeping_shard(call: fn(&Inbox)) {
    let shard = ModelShard::new(1);
    let has_room = Arc::new(AtomicBool::new(false));
    let giver = {
        let has_room = Arc::clone(&has_room);
        shard.other(move |inbox| {
            has_room.store(true, Ordering::SeqCst);
            call(inbox);
        })
    };
    let mut driver = shard.driver;
    loop {
        shard.inbox.take_memory_call();
        if has_room.load(Ordering::SeqCst) {
            break;
        }
        let wait = choose_wait(&shard.inbox);
        driver.complete(wait, |_, _| {}).unwrap();
        shard.inbox.awake();
    }
    giver.join().unwrap();
}

/// Regression: the call was a kick, which says nothing to a shard that is about to sleep. It slept for ever: one of twenty runs of
/// `long_reads` on a busy machine.
#[test]
fn no_call_of_memory_is_missed_by_a_shard_that_goes_to_sleep() {
    check(|| a_call_wakes_a_sleeping_shard(Inbox::call_memory));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_kick_alone_is_missed_by_a_shard_that_goes_to_sleep() {
    check(|| a_call_wakes_a_sleeping_shard(Inbox::kick));
}

fn a_node_wakes_a_sleeping_shard() {
    let mut shard = ModelShard::new(1);
    let pusher = shard.other(|inbox| {
        let node = Box::leak(Box::new(RemoteNode::new(NodeKind::File)));
        // SAFETY: a fresh node that is never freed.
        assert!(unsafe { inbox.remote_list.push(node.into()) });
        inbox.kick();
    });
    shard.run_until(0, 1);
    pusher.join().unwrap();
}

#[test]
fn no_node_is_missed_by_a_shard_that_goes_to_sleep() {
    check(a_node_wakes_a_sleeping_shard);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_its_fences_a_node_is_missed() {
    breaking(&[Guarantee::Fences], a_node_wakes_a_sleeping_shard);
}

fn a_drop_wakes_a_sleeping_shard() {
    let shard = ModelShard::new(1);
    let dropper = shard.other(|inbox| {
        inbox.dropped.mark(1);
        inbox.kick();
    });
    let (inbox, mut driver) = (shard.inbox, shard.driver);
    loop {
        let mut is_seen = false;
        inbox.dropped.take(128, |_| is_seen = true);
        if is_seen {
            break;
        }
        driver.complete(choose_wait(&inbox), |_, _| {}).unwrap();
        inbox.awake();
    }
    dropper.join().unwrap();
}

#[test]
fn no_drop_is_missed_by_a_shard_that_goes_to_sleep() {
    check(a_drop_wakes_a_sleeping_shard);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_its_fences_a_drop_is_missed() {
    breaking(&[Guarantee::Fences], a_drop_wakes_a_sleeping_shard);
}

fn the_end_wakes_a_sleeping_shard() {
    let mut shard = ModelShard::new(1);
    let engine = shard.other(Inbox::end);
    shard.run_until(1, 1);
    engine.join().unwrap();
}

#[test]
fn the_end_is_not_missed_by_a_shard_that_goes_to_sleep() {
    check(the_end_wakes_a_sleeping_shard);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_its_fences_the_end_is_missed() {
    breaking(&[Guarantee::Fences, Guarantee::SeqCst], the_end_wakes_a_sleeping_shard);
}

/// In an inbox for one message, the second sender waits for the shard to receive the first message.
fn senders_wait_for_room() {
    let mut shard = ModelShard::new(1);
    let senders = [(), ()].map(|()| shard.other(|inbox| send_until_taken(inbox, message())));
    shard.run_until(2, 0);
    senders.into_iter().for_each(|sender| sender.join().unwrap());
}

#[test]
fn nobody_waits_for_room_that_there_is() {
    check_large(senders_wait_for_room);
}

/// The end of the room protocol alone: a full inbox, one sender, one check by the shard.
fn the_last_look_tells_of_room() {
    let shard = ModelShard::new(1);
    assert!(shard.inbox.send(message(), None).is_ok());
    let sender = shard.other(|inbox| send_until_taken(inbox, message()));
    assert!(shard.inbox.pop().is_some());
    shard.inbox.notify_room(1);
    sender.join().unwrap();
}

#[test]
fn room_is_told_to_whoever_came_too_early() {
    check(the_last_look_tells_of_room);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_one_order_of_count_and_queue_a_sender_waits_for_ever() {
    breaking(&[Guarantee::SeqCst], the_last_look_tells_of_room);
}

fn a_send_races_with_the_close() {
    let shard = ModelShard::new(1);
    let cell = RemoteCell::request(None, nop());
    let sent = cell.clone();
    let sender = shard.other(move |inbox| assert!(inbox.send(Message::Op(sent), None).is_ok()));
    shard.inbox.close(true);
    sender.join().unwrap();
    match cell.poll(Waker::noop()) {
        Poll::Ready(outcome) => assert_eq!(outcome.result, Err(OpFailure::ShardLost)),
        Poll::Pending => panic!("nobody answered"),
    }
}

#[test]
fn a_message_sent_around_the_close_is_answered() {
    check(a_send_races_with_the_close);
}

#[test]
#[should_panic(expected = "nobody answered")]
fn without_its_fences_a_message_stays_in_a_closed_inbox() {
    breaking(&[Guarantee::Fences, Guarantee::SeqCst], a_send_races_with_the_close);
}

/// One sender waits for room in an inbox that is then closed; another one's message is rejected after the
/// close.
fn waiting_senders_see_the_close() {
    let shard = ModelShard::new(1);
    let cells = [(), ()].map(|()| RemoteCell::request(None, nop()));
    let senders =
        cells.clone().map(|cell| shard.other(move |inbox| send_until_taken(inbox, Message::Op(cell))));
    shard.inbox.close(false);
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    assert!(cells.iter().all(|cell| cell.is_done()), "every message was answered");
}

#[test]
fn nobody_waits_for_room_in_a_closed_inbox() {
    check_large(waiting_senders_see_the_close);
}

/// Records its number when its call is received: the model has no shard to run the call on.
struct Mark(u32, Arc<std::sync::Mutex<Vec<u32>>>);

impl Drop for Mark {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(self.0);
    }
}

/// One thread sends `SENT` calls to an inbox for two, of which a turn receives one.
fn calls_of_one_thread<const SENT: u32>() {
    let shard = ModelShard::new(2);
    let (late, order) = (LateCalls::default(), Arc::new(std::sync::Mutex::new(Vec::new())));
    let turn = || {
        late.look(&shard.inbox);
        let taken = usize::from(shard.inbox.pop().is_some());
        late.take(&shard.inbox, taken, drop);
    };
    let marks = Arc::clone(&order);
    let sender = shard.other(move |inbox| {
        for number in 0..SENT {
            let mark = Mark(number, Arc::clone(&marks));
            inbox.call(Box::new(move |_| drop(mark)));
        }
    });
    turn();
    turn();
    sender.join().unwrap();
    for _ in 0..2 * SENT {
        turn();
    }
    assert_eq!(*order.lock().unwrap(), (0..SENT).collect::<Vec<_>>());
}

#[test]
fn calls_of_one_thread_are_taken_in_their_order() {
    check(calls_of_one_thread::<4>);
}

fn slots_are_dropped_elsewhere() {
    let shard = ModelShard::new(1);
    let drops = [1, 64].map(|index| shard.other(move |inbox| inbox.dropped.mark(index)));
    let mut seen = Vec::new();
    shard.inbox.dropped.take(128, |index| seen.push(index));
    drops.into_iter().for_each(|drop| drop.join().unwrap());
    shard.inbox.dropped.take(128, |index| seen.push(index));
    seen.sort();
    assert_eq!(seen, [1, 64], "each slot is named once");
}

/// Regression: the flag was once a plain store. When two threads set it, the shard that cleared it was ordered after the second
/// only. It could miss the first one's bit although it had cleared the flag, so that slot stayed in use until another one was
/// dropped.
#[test]
fn every_dropped_slot_is_named_once() {
    check(slots_are_dropped_elsewhere);
}

#[test]
#[should_panic(expected = "each slot is named once")]
fn without_release_a_dropped_slot_is_forgotten() {
    breaking(&[Guarantee::Release], slots_are_dropped_elsewhere);
}
