//! Nodes: the machines of a world, each with its disks, power supply and clock.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use forebay::device::Device;
use forebay::internal::{self, Descriptor, ErrorExt, SimFile, World};
use forebay::{Error, ErrorKind, Result};

use crate::clock::NodeClock;
use crate::fault::Rule;
use crate::hub::{self, Hub};
use crate::link::Link;
use crate::machine::{Counts, Machine, OpenedFile};
use crate::profile::Profile;
use crate::program::{self, Task};

/// The node on which the program of a run starts.
pub(crate) const FIRST: u32 = 0;

/// A power cut that was ordered: at a time of the world, at an operation, or immediately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cut {
    pub(crate) at_ns: Option<u64>,
    pub(crate) at_operation: Option<u64>,
    pub(crate) now: bool,
}

/// The inside of a [`Node`].
pub(crate) struct NodeState {
    pub(crate) number: u32,
    pub(crate) machine: RefCell<Machine>,
    pub(crate) clock: Cell<NodeClock>,
    pub(crate) cut: Cell<Cut>,
    /// Operations given to its disks so far; on the first node those of all nodes, because its power is that of all.
    operations: Cell<u64>,
    /// The reference to the world for engines that start here.
    pub(crate) link: Arc<dyn World>,
    closed: Arc<Mutex<Vec<u32>>>,
    devices: RefCell<BTreeMap<u64, Arc<Device>>>,
}

impl NodeState {
    pub(crate) fn new(world: u64, number: u32) -> NodeState {
        NodeState {
            number,
            machine: RefCell::new(Machine::new()),
            clock: Cell::new(NodeClock::EXACT),
            cut: Cell::default(),
            operations: Cell::new(0),
            link: Arc::new(Link::new(world, number)),
            closed: Arc::default(),
            devices: RefCell::default(),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.machine.borrow().is_on()
    }

    /// Counts an operation, and orders the power cut that was set for it.
    pub(crate) fn count_operation(&self) {
        self.operations.set(self.operations.get() + 1);
        if self.cut.get().at_operation == Some(self.operations.get()) {
            self.cut.set(Cut { now: true, ..self.cut.get() });
        }
    }

    pub(crate) fn cut_at_ns(&self, at_ns: u64) {
        self.cut.set(Cut { at_ns: Some(at_ns), ..self.cut.get() });
    }

    /// Orders a power cut at the `number`-th operation from now on.
    pub(crate) fn cut_at_operation(&self, number: u64) {
        let at = self.operations.get().saturating_add(number);
        self.cut.set(Cut { at_operation: Some(at), ..self.cut.get() });
    }

    /// Passes the machine the files that were closed since the last call.
    pub(crate) fn close_files(&self) {
        let closed = std::mem::take(&mut *self.closed.lock().unwrap_or_else(PoisonError::into_inner));
        let mut machine = self.machine.borrow_mut();
        closed.into_iter().for_each(|file| machine.close(file));
    }

    pub(crate) fn descriptor(&self, opened: OpenedFile, hub: &Hub) -> Descriptor {
        let device = self
            .devices
            .borrow_mut()
            .entry(opened.disk_number)
            .or_insert_with(|| Arc::new(internal::device(&opened.disk_name)))
            .clone();
        Descriptor::Sim(SimFile {
            number: opened.number,
            alignment: opened.alignment,
            device,
            device_number: opened.disk_number,
            closed: self.closed.clone(),
            null: hub.null(),
        })
    }
}

/// One machine of a world: disks, power, and a clock. A handle, which is only a number; its methods do nothing
/// outside of a world, unless they say otherwise.
///
/// The program of a run starts on node 0, whose power is that of the whole world: a cut there ends the run and cuts all nodes.
/// Every other node can lose its power while the rest runs on. A task belongs to the node that it was started on, and so do the
/// tasks, engines and [sockets](super::net) that it starts. An engine sees the files of its node alone. A power cut of a node drops
/// its tasks, ends its engines and closes its sockets before anything else in the world runs; [`power_on`](Node::power_on) brings
/// back its files as the cut left them, and nothing else.
///
/// ```
/// use forebay::{Config, Durability, Engine, ErrorKind, Open};
/// use forebay_sim::{self as sim, Profile, World};
///
/// async fn write() -> forebay::Result<()> {
///     let engine = Engine::start(Config::new())?;
///     let file = engine.open("/log", Open::create()).await?;
///     file.write(0, vec![1; 4096]).durable(Durability::Data).await?;
///     std::future::pending().await
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut world = World::new(7);
/// world.run(async |_| {
///     let node = sim::node(1);
///     node.disk(Profile::nand())?;
///     let writer = node.spawn(write());
///     sim::sleep(std::time::Duration::from_millis(50)).await?;
///     node.power_cut().await;
///     assert_eq!(writer.await.unwrap_err().kind(), ErrorKind::TaskCancelled);
///     node.power_on();
///     let read = node.spawn(async {
///         let engine = Engine::start(Config::new())?;
///         engine.open("/log", Open::read()).await?.read(0..4096).await
///     });
///     assert_eq!(read.await??[..], [1; 4096]);
///     Ok::<_, forebay::Error>(())
/// })??;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    number: u32,
}

/// Returns the handle of a node of the running world. A number that was not used before makes a new machine, which is
/// on and has no disk yet; its first file makes an [ideal](Profile::ideal) one at `/`.
pub fn node(number: u32) -> Node {
    Node { number }
}

/// Returns the node that runs this code. Outside of a world, and in code that belongs to no task, it is node 0.
pub fn current_node() -> Node {
    Node { number: hub::current().map_or(FIRST, |hub| hub.here().number) }
}

impl Node {
    /// Returns its number, which is its part of a network [address](super::net::Address).
    pub fn number(self) -> u32 {
        self.number
    }

    fn state(self) -> Option<Rc<NodeState>> {
        hub::current().map(|hub| hub.node(self.number))
    }

    /// Adds a disk at its profile's mount point.
    ///
    /// # Errors
    /// Fails with [`ErrorKind::InvalidInput`] when no disk can have these
    /// properties, or when another disk is mounted there, and with
    /// [`ErrorKind::OutsideWorld`] where no world runs.
    pub fn disk(self, profile: Profile) -> Result<()> {
        let node = self.state().ok_or_else(|| Error::new(ErrorKind::OutsideWorld, "mount"))?;
        node.machine.borrow_mut().mount(profile)
    }

    /// Starts a task on this node, as [`sim::spawn`](super::spawn) does on the current one. On a node that is off, awaiting the
    /// handle fails with [`ErrorKind::InvalidInput`].
    pub fn spawn<F>(self, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: 'static,
    {
        program::start(future, true, Some(self.number))
    }

    /// Does the same as [`spawn`](Node::spawn) for a task that stays outside of all shards, and so need not be
    /// `Send`.
    pub fn spawn_local<F>(self, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        program::start(future, false, Some(self.number))
    }

    /// Returns whether it has power; false outside of a world.
    pub fn is_on(self) -> bool {
        self.state().is_some_and(|node| node.is_on())
    }

    /// Cuts the power, and returns when the node is off: its tasks are dropped, its engines have ended. Data that was
    /// not durable is lost, kept or torn as the disks' profiles and the seed decide. Does nothing when it is off.
    ///
    /// It never returns in a task of this node. On node 0 it ends the run with
    /// [`FailureKind::PowerCut`](super::FailureKind::PowerCut).
    pub async fn power_cut(self) {
        let mut is_ordered = false;
        std::future::poll_fn(move |context| match self.state() {
            Some(node) if !is_ordered && node.is_on() => {
                // The runner cuts it before it polls anything again.
                node.cut.set(Cut { now: true, ..node.cut.get() });
                is_ordered = true;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
        .await;
    }

    /// Cuts the power in this run, after `time` of the world's time from now on.
    pub fn power_cut_after(self, time: Duration) {
        if let (Some(hub), Some(node)) = (hub::current(), self.state()) {
            node.cut_at_ns(hub.now_ns().saturating_add(ns(time)));
        }
    }

    /// Cuts the power in this run, when the `number`-th operation from now on is given to one of its disks (for node 0:
    /// to any disk of the world). The first is 1.
    pub fn power_cut_at_operation(self, number: u64) {
        if let Some(node) = self.state() {
            node.cut_at_operation(number);
        }
    }

    /// Switches it on again. It has its files, and no tasks, engines or sockets. Does nothing when it is on.
    pub fn power_on(self) {
        if let (Some(hub), Some(node)) = (hub::current(), self.state())
            && !node.is_on()
        {
            node.close_files();
            node.machine.borrow_mut().reboot(&mut hub.fate.borrow_mut());
        }
    }

    /// Returns the time that its clock shows; zero outside of a world. [`sim::now`](super::now) returns that of the
    /// current node.
    pub fn now(self) -> Duration {
        let hub = hub::current();
        Duration::from_nanos(hub.map_or(0, |hub| hub.node(self.number).clock.get().shows_ns(hub.now_ns())))
    }

    /// Sets by how many parts in a million its clock runs faster (or slower, below 0) than the world's time, from now
    /// on; at most 500,000. Default: 0. Sleeps, timeouts and timers of its tasks and engines follow the clock; its
    /// disks and the network do not.
    pub fn set_drift_ppm(self, ppm: i32) {
        self.change_clock(|clock, now_ns| clock.drifting(now_ns, ppm));
    }

    /// Puts its clock forward by `time`. Sleeps and timers that are due then end immediately. A clock cannot be put back.
    pub fn advance_clock(self, time: Duration) {
        self.change_clock(|clock, now_ns| clock.advanced(now_ns, ns(time)));
    }

    fn change_clock(self, change: impl FnOnce(NodeClock, u64) -> NodeClock) {
        if let (Some(hub), Some(node)) = (hub::current(), self.state()) {
            node.clock.set(change(node.clock.get(), hub.now_ns()));
            hub.clock_changed(&node);
        }
    }

    /// Makes faults strike on its disks as `rule` describes, from now on; see [`Rule`].
    pub fn inject(self, rule: Rule) {
        if let Some(node) = self.state() {
            node.machine.borrow_mut().inject(rule);
        }
    }

    /// Removes all rules of its disks, those of their profiles too. The damage that faults did stays.
    pub fn clear_faults(self) {
        if let Some(node) = self.state() {
            node.machine.borrow_mut().clear_faults();
        }
    }

    /// Returns the counts of operations and faults of its disks so far.
    pub fn counts(self) -> Counts {
        self.state().map(|node| node.machine.borrow().counts()).unwrap_or_default()
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.number)
    }
}

/// Returns a duration in nanoseconds; saturates.
pub(crate) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
