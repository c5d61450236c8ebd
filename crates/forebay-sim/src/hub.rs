//! The inside of a world as its shards, files and tasks reach it: the nodes, the network, the time, and the owners of
//! the operations in flight.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Waker;
use std::time::Duration;

use forebay::internal::{
    EngineShared, IoRequest, MachineCall, MetaReply, MetaRequest, OpKey, OpKind, SimMachine, Transfer,
    VisitedShard, here, set_current_world,
};
use forebay::{Flush, Result};

use crate::history::{Fate, What};
use crate::machine::{Completion, IoId, SimIo};
use crate::net::Network;
use crate::node::{self, Cut, NodeState};
use crate::rings::{Ring, WORKERS};
use crate::shards::SimShard;
use crate::tasks::Tasks;

thread_local! {
    /// The world that runs on this thread; its number and time are in `here`.
    static HUB: RefCell<Option<Rc<Hub>>> = const { RefCell::new(None) };
}

/// The chance, in a million, that a task on a worker expects operations to complete immediately.
const INLINE_PPM: u32 = 100_000;
/// It has used up its turn this often, in a million, and is woken for another one.
const YIELDS_PPM: u32 = 30_000;

/// Returns the world that runs on this thread.
pub(crate) fn current() -> Option<Rc<Hub>> {
    HUB.with_borrow(Option::clone)
}

/// The node and the completions of one shard.
struct Port {
    node: Rc<NodeState>,
    done: VecDeque<(OpKey, i32)>,
}

/// The inside of a [`World`](super::World).
pub(crate) struct Hub {
    number: u64,
    /// All nodes in the order of their numbers; node 0 is always there.
    nodes: RefCell<Vec<Rc<NodeState>>>,
    /// The node that runs at the moment.
    here: RefCell<Rc<NodeState>>,
    pub(crate) net: RefCell<Network>,
    pub(crate) fate: RefCell<Fate>,
    pub(crate) shards: RefCell<Vec<Rc<SimShard>>>,
    pub(crate) rings: RefCell<Vec<Rc<Ring>>>,
    /// Whether the machine is busy with other things, so that what could run sometimes has to wait.
    pub(crate) is_busy: Cell<bool>,
    /// The worker of a runtime on which the program's code runs at the moment, if it is on one.
    worker: Cell<Option<u64>>,
    pub(crate) tasks: Tasks,
    /// Set when another thread has woken something of this world.
    pub(crate) foreign: Arc<AtomicBool>,
    now_ns: Cell<u64>,
    ports: RefCell<Vec<Port>>,
    owners: RefCell<BTreeMap<IoId, (usize, OpKey)>>,
    ids: RefCell<BTreeMap<(usize, u64), IoId>>,
    calls: RefCell<BTreeMap<IoId, (u32, MachineCall)>>,
    next_id: Cell<u64>,
    null: Arc<OwnedFd>,
    /// Things that the core did and must never do.
    violations: RefCell<Vec<String>>,
}

/// Marks a world as the one of this thread until it is dropped.
pub(crate) struct EnterGuard;

impl Drop for EnterGuard {
    fn drop(&mut self) {
        here::set_world(0, 0);
        set_current_world(None);
        HUB.take();
    }
}

impl Hub {
    pub(crate) fn new(fate: Fate) -> std::io::Result<Hub> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let foreign = Arc::<AtomicBool>::default();
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let first = Rc::new(NodeState::new(number, node::FIRST));
        Ok(Hub {
            number,
            nodes: RefCell::new(vec![first.clone()]),
            here: RefCell::new(first),
            net: RefCell::new(Network::new()),
            fate: RefCell::new(fate),
            shards: RefCell::default(),
            rings: RefCell::default(),
            is_busy: Cell::new(true),
            worker: Cell::new(None),
            tasks: Tasks::new(foreign.clone()),
            foreign,
            now_ns: Cell::new(0),
            ports: RefCell::default(),
            owners: RefCell::default(),
            ids: RefCell::default(),
            calls: RefCell::default(),
            next_id: Cell::new(0),
            null: Arc::new(std::fs::File::open("/dev/null")?.into()),
            violations: RefCell::default(),
        })
    }

    /// Makes this the world of the thread. Returns `None` when the thread has a world already.
    pub(crate) fn enter(self: &Rc<Hub>) -> Option<EnterGuard> {
        if here::world() != 0 {
            return None;
        }
        here::set_world(self.number, 0);
        HUB.set(Some(self.clone()));
        self.set_here(self.first());
        Some(EnterGuard)
    }

    /// Returns the node with this number; the first use of a number makes it.
    pub(crate) fn node(&self, number: u32) -> Rc<NodeState> {
        let mut nodes = self.nodes.borrow_mut();
        match nodes.binary_search_by_key(&number, |node| node.number) {
            Ok(at) => nodes[at].clone(),
            Err(at) => {
                let node = Rc::new(NodeState::new(self.number, number));
                nodes.insert(at, node.clone());
                node
            }
        }
    }

    /// Returns the node at a place in the list.
    pub(crate) fn node_at(&self, at: usize) -> Option<Rc<NodeState>> {
        self.nodes.borrow().get(at).cloned()
    }

    pub(crate) fn nodes(&self) -> Vec<Rc<NodeState>> {
        self.nodes.borrow().clone()
    }

    /// Returns node 0, where the program of a run starts.
    pub(crate) fn first(&self) -> Rc<NodeState> {
        self.nodes.borrow()[0].clone()
    }

    /// Returns the node that runs at the moment.
    pub(crate) fn here(&self) -> Rc<NodeState> {
        self.here.borrow().clone()
    }

    fn set_here(&self, node: Rc<NodeState>) {
        if here::world() == self.number {
            here::set_now_ns(node.clock.get().shows_ns(self.now_ns()));
            set_current_world(Some(node.link.clone()));
        }
        self.here.replace(node);
    }

    /// Runs code of a node: with its clock, and so that engines, tasks and sockets which it starts are of this node.
    pub(crate) fn on_node<T>(&self, node: &Rc<NodeState>, run: impl FnOnce() -> T) -> T {
        struct Back<'a>(&'a Hub, Rc<NodeState>);
        impl Drop for Back<'_> {
            fn drop(&mut self) {
                self.0.set_here(self.1.clone());
            }
        }
        let before = self.here();
        if Rc::ptr_eq(&before, node) {
            return run();
        }
        let _back = Back(self, before);
        self.set_here(node.clone());
        run()
    }

    /// Has everything that waits for a time look again, because a clock was changed.
    pub(crate) fn clock_changed(&self, node: &Rc<NodeState>) {
        self.set_now(self.now_ns());
        self.tasks.wake_all_sleepers();
        let shards = self.shards.borrow();
        shards.iter().filter(|shard| Rc::ptr_eq(shard.node(), node)).for_each(|shard| shard.wake());
    }

    pub(crate) fn null(&self) -> Arc<OwnedFd> {
        self.null.clone()
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    /// Moves the clock forward; an earlier time leaves it where it is.
    pub(crate) fn set_now(&self, now_ns: u64) {
        let now_ns = now_ns.max(self.now_ns.get());
        self.now_ns.set(now_ns);
        if here::world() == self.number {
            here::set_now_ns(self.here.borrow().clock.get().shows_ns(now_ns));
        }
    }

    /// Makes the rings of a new engine, as many as the seed decides.
    pub(crate) fn add_rings(self: &Rc<Hub>, engine: &Arc<EngineShared>) {
        let most = VisitedShard::count_max(engine) as u64;
        if most == 0 {
            return;
        }
        let count = 1 + self.fate.borrow_mut().source.below(most);
        let rings = (0..count).map_while(|_| Ring::new(self, engine));
        let rings: Vec<_> = rings.collect();
        self.rings.borrow_mut().extend(rings);
    }

    /// Chooses the worker on which a task outside of shards is polled. `None`: a thread outside of runtimes, and always without
    /// rings.
    pub(crate) fn choose_worker(&self) -> Option<u64> {
        if self.rings.borrow().is_empty() {
            return None;
        }
        self.fate.borrow_mut().source.below(1 + WORKERS).checked_sub(1)
    }

    /// Runs code of the program as on this worker.
    pub(crate) fn on_worker<T>(&self, worker: Option<u64>, run: impl FnOnce() -> T) -> T {
        let before = self.worker.replace(worker);
        let result = run();
        self.worker.set(before);
        result
    }

    /// Returns the place of the worker's ring of an engine, and whether it expects operations to complete immediately.
    pub(crate) fn ring_of_worker(&self, engine: &Arc<EngineShared>) -> Option<(usize, bool)> {
        let worker = self.worker.get()?;
        let rings = self.rings.borrow();
        let count = rings.iter().filter(|ring| Arc::ptr_eq(ring.engine(), engine)).count() as u64;
        let place = worker.checked_rem(count)?;
        Some((place as usize, self.fate.borrow_mut().source.ppm(INLINE_PPM)))
    }

    /// Returns whether a task on a worker may continue. If not, it has been woken.
    pub(crate) fn proceeds(&self, waker: &Waker) -> bool {
        let ppm = if self.is_busy.get() { YIELDS_PPM } else { 0 };
        let proceeds = !self.fate.borrow_mut().source.ppm(ppm);
        if !proceeds {
            waker.wake_by_ref();
        }
        proceeds
    }

    /// Lets time pass for a shard at its end, while interrupted visits continue.
    pub(crate) fn pause(&self, pause: Duration) {
        self.set_now(self.now_ns() + u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX));
        let rings = self.rings.borrow().clone();
        let due = rings.iter().filter(|ring| ring.is_due(self));
        due.for_each(|ring| self.on_node(ring.node(), || ring.go_on()));
    }

    pub(crate) fn note(&self, what: What, words: &[u64]) {
        self.fate.borrow_mut().history.note(what, words);
    }

    fn id(&self) -> IoId {
        self.next_id.set(self.next_id.get() + 1);
        IoId(self.next_id.get())
    }

    /// Has a node's machine carry out a call about files. A machine that is off never replies, so the call is dropped then.
    pub(crate) fn ask(&self, node: u32, request: MetaRequest, call: MachineCall) -> Option<u64> {
        let node = self.node(node);
        node.close_files();
        if !node.is_on() {
            return None;
        }
        let id = self.id();
        self.calls.borrow_mut().insert(id, (node.number, call));
        node.machine.borrow_mut().ask(id, request, self.now_ns(), &mut self.fate.borrow_mut());
        Some(id.0)
    }

    /// Withdraws a call whose caller is dropped, unless it has started.
    pub(crate) fn withdraw(&self, call: u64) {
        let id = IoId(call);
        let Some(number) = self.calls.borrow().get(&id).map(|(node, _)| *node) else { return };
        let request = self.node(number).machine.borrow_mut().withdraw(id, &mut self.fate.borrow_mut());
        if request.is_some() {
            // Dropped with nothing borrowed, and the request first.
            drop(request);
            let call = self.calls.borrow_mut().remove(&id);
            drop(call);
        }
    }

    /// Leaves a call its turn when its caller gives it up.
    pub(crate) fn detach(&self, call: u64) {
        #[cfg(feature = "_mutants")]
        if forebay::mutants::Mutant::DroppedCallsStayQueued.is_on()
            && let Some(number) = self.calls.borrow().get(&IoId(call)).map(|(node, _)| *node)
        {
            let late_ns = self.now_ns() + self.fate.borrow_mut().source.below(5_000_000);
            self.node(number).machine.borrow_mut().put_off(IoId(call), late_ns);
        }
        if let Some((_, call)) = self.calls.borrow_mut().get_mut(&IoId(call)) {
            call.has_caller = false;
        }
    }

    /// Withdraws the calls of an engine that have not started and are not detached.
    pub(crate) fn refuse(&self, engine: usize) {
        let calls = self.calls_of(engine, |call| call.has_caller);
        calls.into_iter().for_each(|(id, _)| self.withdraw(id.0));
    }

    /// Lets time pass until no call of an engine is left, or for `limit`.
    pub(crate) fn end_calls(&self, node: u32, engine: usize, limit: Duration) -> Vec<&'static str> {
        #[cfg(feature = "_mutants")]
        if forebay::mutants::Mutant::DroppedCallsStayQueued.is_on() {
            return Vec::new();
        }
        let limit_ns = self.after_ns(&self.node(node), limit);
        let all = || self.calls_of(engine, |_| true);
        while !all().is_empty() {
            self.deliver();
            let next = self.node(node).machine.borrow().next_event_ns();
            match next.filter(|&next| next <= limit_ns) {
                _ if all().is_empty() => break,
                Some(next) => self.set_now(next),
                None => {
                    self.set_now(limit_ns);
                    break;
                }
            }
        }
        let left = all();
        for (id, _) in &left {
            let request = self.node(node).machine.borrow_mut().forget(*id);
            drop(request);
            let call = self.calls.borrow_mut().remove(id);
            drop(call);
        }
        left.into_iter().map(|(_, operation)| operation).collect()
    }

    fn calls_of(&self, engine: usize, also: impl Fn(&MachineCall) -> bool) -> Vec<(IoId, &'static str)> {
        let calls = self.calls.borrow();
        let own = calls.iter().filter(|(_, (_, call))| call.engine == engine && also(call));
        own.map(|(id, (_, call))| (*id, call.operation)).collect()
    }

    /// Delivers everything that the disks have completed by now, and the messages that are due.
    pub(crate) fn deliver(&self) {
        let mut at = 0;
        while let Some(node) = self.node_at(at) {
            self.deliver_of(&node);
            at += 1;
        }
        loop {
            let arrived = self.net.borrow_mut().arrive(self.now_ns(), &mut self.fate.borrow_mut());
            // Woken with nothing borrowed.
            match arrived {
                None => return,
                Some(receiver) => receiver.into_iter().for_each(Waker::wake),
            }
        }
    }

    fn deliver_of(&self, node: &Rc<NodeState>) {
        node.close_files();
        loop {
            let done = node.machine.borrow_mut().pop_due(self.now_ns(), &mut self.fate.borrow_mut());
            match done {
                None => break,
                Some(Completion::Io { id, result }) => {
                    let owner = self.owners.borrow_mut().remove(&id);
                    if let Some((port, key)) = owner {
                        self.ids.borrow_mut().remove(&(port, key.to_user_data()));
                        self.push_done(port, key, result);
                    }
                }
                Some(Completion::Opened { id, result }) => {
                    self.answer(id, result.map(|opened| MetaReply::Opened(node.descriptor(opened, self))));
                }
                Some(Completion::Meta { id, result }) => self.answer(id, result),
            }
        }
        let found = node.machine.borrow_mut().violations();
        self.violations.borrow_mut().extend(found);
    }

    fn answer(&self, id: IoId, result: Result<MetaReply>) {
        // Called with nothing borrowed: it wakes the program's tasks, and may drop a file that has no waiter
        // left.
        let call = self.calls.borrow_mut().remove(&id);
        if let Some((_, call)) = call {
            (call.answer)(result);
        }
    }

    fn node_of(&self, port: usize) -> Option<Rc<NodeState>> {
        self.ports.borrow().get(port).map(|port| port.node.clone())
    }

    /// Returns the time of the world at which `wait` will have passed on a node's clock.
    pub(crate) fn after_ns(&self, node: &NodeState, wait: Duration) -> u64 {
        #[cfg(feature = "_mutants")]
        if forebay::mutants::Mutant::DriftIgnored.is_on() {
            return self.now_ns().saturating_add(node::ns(wait));
        }
        let clock = node.clock.get();
        clock.world_ns_at(clock.shows_ns(self.now_ns()).saturating_add(node::ns(wait)))
    }

    fn push_done(&self, port: usize, key: OpKey, result: i32) {
        if let Some(port) = self.ports.borrow_mut().get_mut(port) {
            port.done.push_back((key, result));
        }
    }

    /// Fails everything in flight of a node after a power cut, or of all, so that no task keeps memory for a device that
    /// is off, and closes its sockets.
    pub(crate) fn kill(&self, node: Option<u32>) {
        let is_meant = |number: u32| node.is_none_or(|node| node == number);
        let owners = std::mem::take(&mut *self.owners.borrow_mut());
        for (id, (port, key)) in owners {
            if self.ports.borrow().get(port).is_none_or(|port| is_meant(port.node.number)) {
                self.ids.borrow_mut().remove(&(port, key.to_user_data()));
                self.push_done(port, key, -libc::EIO);
            } else {
                self.owners.borrow_mut().insert(id, (port, key));
            }
        }
        // Dropped with nothing borrowed: each callback notifies its `Pending` when it is dropped.
        let calls = std::mem::take(&mut *self.calls.borrow_mut());
        let (killed, others): (BTreeMap<_, _>, _) =
            calls.into_iter().partition(|(_, (node, _))| is_meant(*node));
        *self.calls.borrow_mut() = others;
        drop(killed);
        #[cfg(feature = "_mutants")]
        if node.is_some() && forebay::mutants::Mutant::SocketsOutliveCut.is_on() {
            return;
        }
        let closed = self.net.borrow_mut().close(node);
        closed.into_iter().filter_map(|bound| bound.waker).for_each(Waker::wake);
    }

    /// Forgets everything that belonged to the run that has ended. No shard is left by then.
    pub(crate) fn clear_run(&self) {
        self.kill(None);
        self.net.borrow_mut().lose_flights();
        self.ports.borrow_mut().clear();
        for node in self.nodes() {
            node.cut.set(Cut::default());
            node.close_files();
        }
    }

    pub(crate) fn violation(&self, text: String) {
        self.violations.borrow_mut().push(text);
    }

    /// Returns the first forbidden thing that the core did.
    pub(crate) fn first_violation(&self) -> Option<String> {
        self.violations.borrow().first().cloned()
    }
}

impl SimMachine for Hub {
    fn add_port(&self) -> usize {
        let mut ports = self.ports.borrow_mut();
        ports.push(Port { node: self.here(), done: VecDeque::new() });
        ports.len() - 1
    }

    fn submit(&self, port: usize, request: &IoRequest, transfer: Option<Transfer>) -> bool {
        let Some(node) = self.node_of(port) else { return false };
        node.count_operation();
        if node.number != node::FIRST {
            self.first().count_operation();
        }
        if !node.is_on() {
            self.push_done(port, request.key, -libc::EIO);
            return false;
        }
        let id = self.id();
        self.owners.borrow_mut().insert(id, (port, request.key));
        let before = self.ids.borrow_mut().insert((port, request.key.to_user_data()), id);
        if before.is_some() {
            self.violation("two operations in flight have the same slot and generation".to_string());
        }
        let is_durable = request.sync.is_some() && request.flush == Flush::Blocking;
        let end = request.offset.saturating_add(u64::from(request.len));
        let fua = is_durable && node.machine.borrow().has_fua(request.fd as u32, end);
        let io = SimIo {
            id,
            kind: request.kind,
            file: request.fd as u32,
            offset: request.offset,
            transfer,
            len: if request.kind == OpKind::Nop { 0 } else { request.len },
            fua,
        };
        node.close_files();
        node.machine.borrow_mut().submit(io, self.now_ns(), &mut self.fate.borrow_mut());
        fua
    }

    fn cancel(&self, port: usize, key: OpKey) {
        let id = self.ids.borrow().get(&(port, key.to_user_data())).copied();
        if let (Some(id), Some(node)) = (id, self.node_of(port)) {
            node.machine.borrow_mut().cancel(id, self.now_ns(), &mut self.fate.borrow_mut());
        }
    }

    /// Lets time pass until this shard has `completions`, or `limit` is over, or nothing more will happen.
    fn wait_for(&self, port: usize, completions: usize, limit: Option<Duration>) {
        let Some(node) = self.node_of(port) else { return };
        let limit_ns = limit.map_or(u64::MAX, |limit| self.after_ns(&node, limit));
        loop {
            self.deliver();
            if self.done_count(port) >= completions {
                return;
            }
            let next = node.machine.borrow().next_event_ns();
            match next {
                Some(next) if next <= limit_ns => self.set_now(next),
                _ if limit_ns < u64::MAX => return self.set_now(limit_ns),
                _ => return,
            }
        }
    }

    fn done_count(&self, port: usize) -> usize {
        self.ports.borrow().get(port).map_or(0, |port| port.done.len())
    }

    fn take_done(&self, port: usize) -> VecDeque<(OpKey, i32)> {
        self.ports.borrow_mut().get_mut(port).map(|port| std::mem::take(&mut port.done)).unwrap_or_default()
    }
}
