//! The inside of a world as its shards, files and tasks reach it: the machine, the clock, and the owners of
//! the operations in flight.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::base::error::Result;
use crate::base::here;
use crate::device::Device;
use crate::driver::IoRequest;
use crate::driver::meta::{Descriptor, MetaReply, MetaRequest};
use crate::driver::sim::{SimFile, SimMachine, Transfer};
use crate::io::op::OpKey;
use crate::io::op::OpKind;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::world::{self, MetaCallback};
use crate::sim::Link;
use crate::sim::history::{Fate, What};
use crate::sim::machine::{Done, IoId, Machine, OpenedFile, SimIo};
use crate::sim::rings::{Ring, WORKERS};
use crate::sim::shards::Stepped;
use crate::sim::tasks::Tasks;

thread_local! {
    /// The world that runs on this thread; its number and time are in `here`.
    static HUB: RefCell<Option<Rc<Hub>>> = const { RefCell::new(None) };
}

/// A task on a worker expects operations to complete at once this often, in a million.
const INLINE_PPM: u32 = 100_000;
/// It has used up its turn this often, in a million, and is woken for another one.
const YIELDS_PPM: u32 = 30_000;

/// Returns the world that runs on this thread.
pub(crate) fn current() -> Option<Rc<Hub>> {
    HUB.with_borrow(Option::clone)
}

/// The completions of one shard.
#[derive(Default)]
struct Port {
    done: VecDeque<(OpKey, i32)>,
}

/// The power cut that the program has ordered: at a time, at an operation, or at once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cut {
    pub(crate) at_ns: Option<u64>,
    pub(crate) at_operation: Option<u64>,
    pub(crate) now: bool,
}

/// The inside of a [`World`](super::World).
pub(crate) struct Hub {
    number: u64,
    pub(crate) machine: RefCell<Machine>,
    pub(crate) fate: RefCell<Fate>,
    pub(crate) shards: RefCell<Vec<Rc<Stepped>>>,
    pub(crate) rings: RefCell<Vec<Rc<Ring>>>,
    /// Whether the machine is busy with other things, so that what could run sometimes has to wait.
    pub(crate) is_busy: Cell<bool>,
    /// The worker of a runtime on which the program's code runs at the moment, if it is on one.
    worker: Cell<Option<u64>>,
    pub(crate) tasks: Tasks,
    /// Set when another thread has woken something of this world.
    pub(crate) foreign: Arc<AtomicBool>,
    pub(crate) cut: Cell<Cut>,
    now_ns: Cell<u64>,
    ports: RefCell<Vec<Port>>,
    owners: RefCell<BTreeMap<IoId, (usize, OpKey)>>,
    ids: RefCell<BTreeMap<(usize, u64), IoId>>,
    asked: RefCell<BTreeMap<IoId, MetaCallback>>,
    next_id: Cell<u64>,
    operations: Cell<u64>,
    closed: Arc<Mutex<Vec<u32>>>,
    null: Arc<OwnedFd>,
    devices: RefCell<BTreeMap<u64, Arc<Device>>>,
    /// Things that the core did and must never do.
    violations: RefCell<Vec<String>>,
}

/// Marks a world as the one of this thread until it is dropped.
pub(crate) struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        here::set_world(0, 0);
        world::set_current(None);
        HUB.take();
    }
}

impl Hub {
    pub(crate) fn new(fate: Fate) -> std::io::Result<Hub> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let foreign = Arc::<AtomicBool>::default();
        Ok(Hub {
            number: NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            machine: RefCell::new(Machine::new()),
            fate: RefCell::new(fate),
            shards: RefCell::default(),
            rings: RefCell::default(),
            is_busy: Cell::new(true),
            worker: Cell::new(None),
            tasks: Tasks::new(foreign.clone()),
            foreign,
            cut: Cell::default(),
            now_ns: Cell::new(0),
            ports: RefCell::default(),
            owners: RefCell::default(),
            ids: RefCell::default(),
            asked: RefCell::default(),
            next_id: Cell::new(0),
            operations: Cell::new(0),
            closed: Arc::default(),
            null: Arc::new(std::fs::File::open("/dev/null")?.into()),
            devices: RefCell::default(),
            violations: RefCell::default(),
        })
    }

    /// Makes this the world of the thread. Returns `None` when the thread has a world already.
    pub(crate) fn enter(self: &Rc<Hub>) -> Option<Running> {
        if here::world() != 0 {
            return None;
        }
        here::set_world(self.number, self.now_ns.get());
        world::set_current(Some(Arc::new(Link::new(self.number))));
        HUB.set(Some(self.clone()));
        Some(Running)
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    /// Moves the clock forward; an earlier time leaves it where it is.
    pub(crate) fn set_now(&self, now_ns: u64) {
        let now_ns = now_ns.max(self.now_ns.get());
        self.now_ns.set(now_ns);
        if here::world() == self.number {
            here::set_now_ns(now_ns);
        }
    }

    /// Makes the rings of a new engine, as many as the seed decides.
    pub(crate) fn add_rings(self: &Rc<Hub>, engine: &Arc<EngineShared>) {
        let most = engine.visited.places() as u64;
        if most == 0 {
            return;
        }
        let count = 1 + self.fate.borrow_mut().source.below(most);
        let rings = (0..count).map_while(|_| Ring::new(self, engine));
        let rings: Vec<_> = rings.collect();
        self.rings.borrow_mut().extend(rings);
    }

    /// Chooses the worker on which a task outside of shards is polled. `None`: a thread of no runtime, and always where there are no
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

    /// Returns the place of the worker's ring of an engine, and whether it expects operations to complete at once.
    pub(crate) fn ring_of_worker(&self, engine: &Arc<EngineShared>) -> Option<(usize, bool)> {
        let worker = self.worker.get()?;
        let rings = self.rings.borrow();
        let count = rings.iter().filter(|ring| Arc::ptr_eq(ring.engine(), engine)).count() as u64;
        let place = worker.checked_rem(count)?;
        Some((place as usize, self.fate.borrow_mut().source.ppm(INLINE_PPM)))
    }

    /// Returns whether a task on a worker may go on. If not, it has been woken.
    pub(crate) fn proceeds(&self, waker: &Waker) -> bool {
        let ppm = if self.is_busy.get() { YIELDS_PPM } else { 0 };
        let proceeds = !self.fate.borrow_mut().source.ppm(ppm);
        if !proceeds {
            waker.wake_by_ref();
        }
        proceeds
    }

    /// Lets time pass for a shard at its end, while interrupted visits go on.
    pub(crate) fn pause(&self, pause: Duration) {
        self.set_now(self.now_ns() + u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX));
        let rings = self.rings.borrow().clone();
        rings.iter().filter(|ring| ring.is_due(self)).for_each(|ring| ring.go_on());
    }

    pub(crate) fn note(&self, what: What, words: &[u64]) {
        self.fate.borrow_mut().history.note(what, words);
    }

    /// Returns the number of operations given to the disks so far.
    pub(crate) fn operations(&self) -> u64 {
        self.operations.get()
    }

    fn id(&self) -> IoId {
        self.next_id.set(self.next_id.get() + 1);
        IoId(self.next_id.get())
    }

    /// Has the machine carry out a call about files. A machine that is off never replies, so the callback is
    /// dropped then.
    pub(crate) fn ask(&self, request: MetaRequest, answer: MetaCallback) {
        self.close_files();
        if !self.machine.borrow().is_on() {
            return drop(answer);
        }
        let id = self.id();
        self.asked.borrow_mut().insert(id, answer);
        self.machine.borrow_mut().ask(id, request, self.now_ns(), &mut self.fate.borrow_mut());
    }

    /// Passes the machine the files that were closed since the last call.
    pub(crate) fn close_files(&self) {
        let closed = std::mem::take(&mut *self.closed.lock().unwrap_or_else(PoisonError::into_inner));
        let mut machine = self.machine.borrow_mut();
        closed.into_iter().for_each(|file| machine.close(file));
    }

    /// Delivers everything that the machine has completed by now.
    pub(crate) fn deliver(&self) {
        self.close_files();
        loop {
            let done = self.machine.borrow_mut().pop_due(self.now_ns(), &mut self.fate.borrow_mut());
            match done {
                None => break,
                Some(Done::Io { id, result }) => {
                    let owner = self.owners.borrow_mut().remove(&id);
                    if let Some((port, key)) = owner {
                        self.ids.borrow_mut().remove(&(port, key.to_user_data()));
                        self.push_done(port, key, result);
                    }
                }
                Some(Done::Opened { id, result }) => {
                    self.answer(id, result.map(|opened| MetaReply::Opened(self.descriptor(opened))));
                }
                Some(Done::Meta { id, result }) => self.answer(id, result),
            }
        }
        let found = self.machine.borrow_mut().violations();
        self.violations.borrow_mut().extend(found);
    }

    fn answer(&self, id: IoId, result: Result<MetaReply>) {
        // Called with nothing borrowed: it wakes the program's tasks, and may drop a file that has no waiter
        // left.
        let answer = self.asked.borrow_mut().remove(&id);
        if let Some(answer) = answer {
            answer(result);
        }
    }

    fn descriptor(&self, opened: OpenedFile) -> Descriptor {
        let device = self
            .devices
            .borrow_mut()
            .entry(opened.disk_number)
            .or_insert_with(|| Arc::new(Device::simulated(&opened.disk_name)))
            .clone();
        Descriptor::Sim(SimFile {
            number: opened.number,
            alignment: opened.alignment,
            device,
            device_number: opened.disk_number,
            closed: self.closed.clone(),
            null: self.null.clone(),
        })
    }

    fn push_done(&self, port: usize, key: OpKey, result: i32) {
        if let Some(port) = self.ports.borrow_mut().get_mut(port) {
            port.done.push_back((key, result));
        }
    }

    /// Fails everything in flight after a power cut, so that no task keeps memory for a device that is off.
    pub(crate) fn kill(&self) {
        let owners = std::mem::take(&mut *self.owners.borrow_mut());
        self.ids.borrow_mut().clear();
        for (port, key) in owners.into_values() {
            self.push_done(port, key, -libc::EIO);
        }
        // Dropped with nothing borrowed: each callback notifies its `Pending` when it is dropped.
        let asked = std::mem::take(&mut *self.asked.borrow_mut());
        drop(asked);
    }

    /// Forgets everything that belonged to the run that has ended. No shard is left by then.
    pub(crate) fn clear_run(&self) {
        self.kill();
        self.ports.borrow_mut().clear();
        self.cut.set(Cut::default());
        self.close_files();
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
        ports.push(Port::default());
        ports.len() - 1
    }

    fn submit(&self, port: usize, request: &IoRequest, transfer: Option<Transfer>) {
        self.operations.set(self.operations.get() + 1);
        if self.cut.get().at_operation == Some(self.operations.get()) {
            self.cut.set(Cut { now: true, ..self.cut.get() });
        }
        if !self.machine.borrow().is_on() {
            return self.push_done(port, request.key, -libc::EIO);
        }
        let id = self.id();
        self.owners.borrow_mut().insert(id, (port, request.key));
        let before = self.ids.borrow_mut().insert((port, request.key.to_user_data()), id);
        if before.is_some() {
            self.violation("two operations in flight have the same slot and generation".to_string());
        }
        let io = SimIo {
            id,
            kind: request.kind,
            file: request.fd as u32,
            offset: request.offset,
            transfer,
            len: if request.kind == OpKind::Nop { 0 } else { request.len },
        };
        self.close_files();
        self.machine.borrow_mut().submit(io, self.now_ns(), &mut self.fate.borrow_mut());
    }

    fn cancel(&self, port: usize, key: OpKey) {
        let id = self.ids.borrow().get(&(port, key.to_user_data())).copied();
        if let Some(id) = id {
            self.machine.borrow_mut().cancel(id, self.now_ns(), &mut self.fate.borrow_mut());
        }
    }

    /// Lets time pass until this shard has `completions`, or `limit` is over, or nothing more will happen.
    fn wait_for(&self, port: usize, completions: usize, limit: Option<Duration>) {
        let limit_ns = limit.map_or(u64::MAX, |limit| {
            self.now_ns().saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX))
        });
        loop {
            self.deliver();
            if self.done_count(port) >= completions {
                return;
            }
            let next = self.machine.borrow().next_event_ns();
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
