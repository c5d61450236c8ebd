//! The simulated world of an engine, as the engine sees it.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::base::error::Result;
use crate::base::here;
use crate::base::pending::{Sender, Turns};
use crate::driver::meta::{MetaReply, MetaRequest};
use crate::reactor::engine_shared::{DescriptorRoom, EngineShared};
use crate::reactor::shard::EndReport;

/// A call about files that a world's machine carries out.
pub struct MachineCall {
    /// The engine that the call belongs to, by its address.
    pub engine: usize,
    /// The name of the call.
    pub operation: &'static str,
    /// Whether a `Pending` is its owner.
    pub has_caller: bool,
    /// Receives the reply. Dropped, it sends an error.
    pub answer: Box<dyn FnOnce(Result<MetaReply>) + Send>,
}

impl MachineCall {
    /// Returns the call `request` of an engine, which is sent to `world`, and again while it lacks a descriptor that `room` may
    /// have.
    pub(crate) fn new<T: Send + 'static>(
        engine: usize,
        world: &Arc<dyn World>,
        request: &MetaRequest,
        room: DescriptorRoom,
        finish: impl FnOnce(Result<MetaReply>) -> Result<T> + Send + 'static,
        sender: Sender<T>,
    ) -> MachineCall {
        let operation = request.operation();
        let again = request.opens().then(|| (world.clone(), request.clone()));
        let answer = Answer { engine, again, room, finish, sender };
        MachineCall { engine, operation, has_caller: true, answer: Box::new(move |reply| answer.take(reply)) }
    }
}

crate::_debug_parts!(MachineCall, |machine_call| operation: machine_call.operation);

/// The receiver of a call's reply. All objects that the call names are dropped before its sender, which notifies its waiter.
struct Answer<T, F> {
    engine: usize,
    /// Where the call is made again, if it may be.
    again: Option<(Arc<dyn World>, MetaRequest)>,
    room: DescriptorRoom,
    finish: F,
    sender: Sender<T>,
}

impl<T: Send + 'static, F: FnOnce(Result<MetaReply>) -> Result<T> + Send + 'static> Answer<T, F> {
    fn take(self, reply: Result<MetaReply>) {
        let Answer { engine, again, mut room, finish, sender } = self;
        let reply = match (reply, again) {
            (Err(error), Some((world, request))) if error.is_out_of_descriptors() => {
                if room.may_have_more() {
                    let call = MachineCall::new(engine, &world, &request, room, finish, sender);
                    // It has started, so it is carried out.
                    world.ask(request, MachineCall { has_caller: false, ..call });
                    return;
                }
                Err(DescriptorRoom::explain(error))
            }
            (reply, _) => reply,
        };
        let result = finish(reply);
        sender.send(result);
    }
}

/// A world that engines run in. It is used on its own thread only, while it runs.
pub trait World: Turns + fmt::Debug {
    /// Returns whether this is the world's thread, and it runs.
    fn is_here(&self) -> bool;

    /// Has the world's machine carry out a call about files, and returns its number. Elsewhere the call is dropped.
    fn ask(&self, request: MetaRequest, call: MachineCall) -> Option<u64>;

    /// Drops the calls of an engine that wait for their turn and have a caller, which ends them with an error.
    fn refuse(&self, engine: usize);

    /// Lets time pass until no call of an engine is left, or for `limit`. Returns the names of those that are left; they never happen.
    fn end_calls(&self, engine: usize, limit: Duration) -> Vec<&'static str>;

    /// Returns whether an open file of the machine has lost its name; `None` when the machine does not know the file.
    fn is_removed(&self, file: u32) -> Option<bool>;

    /// Makes the shards of a new engine, which the world steps from now on.
    fn adopt(&self, engine: &Arc<EngineShared>, ends: Vec<Sender<EndReport>>);

    /// Returns the place of the visited shard that the task which is polled now may enter, if any, and whether it expects
    /// operations to complete immediately.
    fn ring(&self, engine: &Arc<EngineShared>) -> Option<(usize, bool)>;

    /// Returns whether the task that is polled may continue. If not, it has been woken.
    fn proceeds(&self, waker: &Waker) -> bool;

    /// Lets time pass for a shard that waits for a visitor.
    fn pause(&self, pause: Duration);
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<dyn World>>> = const { RefCell::new(None) };
}

/// Returns the world that runs on this thread.
pub(crate) fn current() -> Option<Arc<dyn World>> {
    // Outside of worlds nothing is touched that a thread may have lost already when its last destructors run.
    if here::world() == 0 {
        return None;
    }
    CURRENT.with_borrow(Option::clone)
}

/// Sets the world that runs on this thread; `None` clears it.
pub fn set_current(world: Option<Arc<dyn World>>) {
    CURRENT.set(world);
}
