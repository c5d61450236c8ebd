//! One run of a world: the choice of the next step, until the program ends.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use forebay::internal::panic_words;
use forebay::{Config, Engine};

use crate::failure::{Failure, FailureKind};
use crate::history::What;
use crate::hub::Hub;
use crate::node::{Cut, FIRST, NodeState};
use crate::rings::Ring;
use crate::shards::SimShard;
use crate::tasks::PROGRAM;
use crate::world::refused;

/// The cost of a step in virtual time: enough for a program that polls the clock in a loop to make progress.
const STEP_NS: u64 = 500;

/// The longest time by which everything that could run is put off.
const STALL_NS_MAX: u64 = 10_000_000;

/// The bounds of a run.
pub(crate) struct Limits {
    pub(crate) steps_max: u64,
    pub(crate) stalls_ppm: u32,
    pub(crate) wanders_ppm: u32,
}

/// Drives one run.
pub(crate) struct Runner {
    hub: Rc<Hub>,
    seed: u64,
    limits: Limits,
    steps: u64,
}

/// Returns a worker's number among the places where a task may be polled, in the history.
fn place_of_worker(worker: u64) -> u64 {
    (1 << 32) + worker
}

/// The reason why a run ends before its program does.
type Stop = (FailureKind, String);

impl Runner {
    pub(crate) fn new(hub: Rc<Hub>, seed: u64, limits: Limits) -> Runner {
        Runner { hub, seed, limits, steps: 0 }
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    pub(crate) fn run<T>(
        &mut self,
        config: Config,
        program: impl AsyncFnOnce(Engine) -> T,
    ) -> Result<T, Failure> {
        let hub = self.hub.clone();
        let failure = |kind, text: &str| Failure::new(kind, text, self.seed, hub.now_ns());
        if !hub.first().is_on() {
            return Err(failure(FailureKind::Off, "the power is off: World::reboot switches it on"));
        }
        let Some(guard) = hub.enter() else {
            let text = "another world runs on this thread: one at a time";
            return Err(failure(FailureKind::NotStarted, text));
        };
        let engine = match Engine::start(config) {
            Ok(engine) => engine,
            Err(error) => {
                self.end(None);
                return Err(refused(&error, self.seed));
            }
        };
        let mut program = Some(Box::pin(program(engine)));
        let result = match &mut program {
            Some(program) => self.drive(program.as_mut()),
            None => Err((FailureKind::NotStarted, String::new())),
        };
        let at_ns = hub.now_ns();
        if matches!(result, Err((FailureKind::PowerCut, _))) {
            for node in hub.nodes() {
                node.close_files();
                node.machine.borrow_mut().power_cut(&mut hub.fate.borrow_mut());
            }
            hub.kill(None);
        }
        // Destructors of the program's run inside of the world; one that panics ends nothing more.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(program.take())));
        self.end(None);
        drop(guard);
        // Checked once more: violations during the end count as well.
        let result = match (result, hub.first_violation()) {
            (Ok(_) | Err((FailureKind::PowerCut, _)), Some(text)) => Err((FailureKind::Violation, text)),
            (result, _) => result,
        };
        result.map_err(|(kind, text)| Failure::new(kind, text, self.seed, at_ns))
    }

    fn drive<T>(&mut self, mut program: Pin<&mut impl Future<Output = T>>) -> Result<T, Stop> {
        let hub = self.hub.clone();
        hub.is_busy.set(self.limits.stalls_ppm > 0);
        let wakes = hub.tasks.wakes(PROGRAM);
        let waker = wakes.waker();
        waker.wake_by_ref();
        loop {
            hub.deliver();
            hub.tasks.wake_sleepers(hub.now_ns());
            self.look_around()?;
            let shards: Vec<Rc<SimShard>> =
                hub.shards.borrow().iter().filter(|shard| shard.is_ready(&hub)).cloned().collect();
            let rings: Vec<Rc<Ring>> =
                hub.rings.borrow().iter().filter(|ring| ring.is_ready(&hub)).cloned().collect();
            let tasks = hub.tasks.ready_count();
            let able = tasks + shards.len() + rings.len();
            let stalls = able > 0 && hub.fate.borrow_mut().source.ppm(self.limits.stalls_ppm);
            if able == 0 || stalls {
                match self.next_ns() {
                    Some(next_ns) => {
                        // A busy machine lets its tasks wait for milliseconds, not until tomorrow's timer.
                        let latest_ns = if able == 0 { u64::MAX } else { hub.now_ns() + STALL_NS_MAX };
                        hub.set_now(next_ns.min(latest_ns));
                        hub.note(What::Clock, &[hub.now_ns()]);
                        continue;
                    }
                    None if able == 0 => return Err(self.deadlock()),
                    None => {}
                }
            }
            self.steps += 1;
            let pick = hub.fate.borrow_mut().source.below(able as u64) as usize;
            match pick.checked_sub(tasks) {
                Some(at) if at < shards.len() => self.step(&shards[at]),
                Some(at) => self.step_ring(&rings[at - shards.len()])?,
                None => {
                    let Some(task) = hub.tasks.take_ready(pick) else { continue };
                    let mut polled = Poll::Pending;
                    let result = catch_unwind(AssertUnwindSafe(|| match task {
                        PROGRAM => {
                            let worker = hub.choose_worker();
                            hub.note(What::Polled, &[PROGRAM, worker.map_or(0, place_of_worker)]);
                            wakes.taken();
                            polled = hub.on_worker(worker, || {
                                program.as_mut().poll(&mut Context::from_waker(&waker))
                            });
                        }
                        task => self.poll_task(task),
                    }));
                    if let Err(panic) = result {
                        let who = if task == PROGRAM { "the program" } else { "a task" };
                        return Err((
                            FailureKind::Panicked,
                            format!("{who} panicked: {}", panic_words(panic.as_ref())),
                        ));
                    }
                    if let Poll::Ready(output) = polled {
                        return Ok(output);
                    }
                }
            }
            hub.set_now(hub.now_ns() + STEP_NS);
        }
    }

    /// Fails with a reason to stop the run.
    fn look_around(&self) -> Result<(), Stop> {
        let hub = &self.hub;
        if let Some(text) = hub.first_violation() {
            return Err((FailureKind::Violation, text));
        }
        if hub.foreign.load(Ordering::SeqCst) {
            let text = "another thread woke something of this world, which no seed could repeat: \
                        use sim::spawn and channels within the world, not threads or another runtime's tasks";
            return Err((FailureKind::ForeignThread, text.to_string()));
        }
        let mut at = 0;
        while let Some(node) = hub.node_at(at) {
            let cut = node.cut.get();
            if cut.now || cut.at_ns.is_some_and(|at_ns| hub.now_ns() >= at_ns) {
                if node.number == FIRST {
                    return Err((FailureKind::PowerCut, "the power was cut".to_string()));
                }
                self.cut_node(&node);
            }
            at += 1;
        }
        if self.steps >= self.limits.steps_max {
            let text = format!("{} steps and no end: something runs in circles", self.steps);
            return Err((FailureKind::Endless, text));
        }
        Ok(())
    }

    /// Cuts the power of a node that is not the first: the rest of the world runs on.
    fn cut_node(&self, node: &Rc<NodeState>) {
        let hub = &self.hub;
        node.cut.set(Cut::default());
        if !node.is_on() {
            return;
        }
        hub.note(What::NodeCut, &[u64::from(node.number)]);
        node.close_files();
        node.machine.borrow_mut().power_cut(&mut hub.fate.borrow_mut());
        #[cfg(feature = "_mutants")]
        if forebay::mutants::Mutant::CutReachesOthers.is_on() {
            for other in hub.nodes().iter().filter(|other| other.number != FIRST && other.is_on()) {
                other.machine.borrow_mut().power_cut(&mut hub.fate.borrow_mut());
                other.machine.borrow_mut().reboot(&mut hub.fate.borrow_mut());
                hub.kill(Some(other.number));
                self.end(Some(other.number));
            }
        }
        hub.kill(Some(node.number));
        self.end(Some(node.number));
    }

    fn deadlock(&self) -> Stop {
        let text = format!(
            "nothing can happen any more, but the program waits, and so do {} tasks: for each other, for an operation \
             that is stuck, or for something outside of the world (another thread, a timer or a socket of Tokio's)",
            self.hub.tasks.count()
        );
        (FailureKind::Deadlock, text)
    }

    /// Returns the next time at which something happens by itself.
    fn next_ns(&self) -> Option<u64> {
        let hub = &self.hub;
        let shards = hub.shards.borrow();
        let rings = hub.rings.borrow();
        let shards = shards.iter().filter_map(|shard| shard.next_ns(hub));
        let shards = shards.chain(rings.iter().filter_map(|ring| ring.next_ns(hub)));
        let nodes = hub.nodes();
        let nodes =
            nodes.iter().flat_map(|node| [node.machine.borrow().next_event_ns(), node.cut.get().at_ns]);
        let message = hub.net.borrow().next_event_ns();
        let next = shards.chain(nodes.flatten()).chain(hub.tasks.next_sleeper_ns()).chain(message).min();
        // An event that is due already (a shard whose patience has run out) does not count.
        next.filter(|&next_ns| next_ns > hub.now_ns())
    }

    fn step(&self, shard: &Rc<SimShard>) {
        self.hub.note(What::Turn, &[shard.port() as u64]);
        self.hub.on_node(shard.node(), || shard.step(&self.hub));
    }

    /// Lets the runtime of a world drive one of its rings.
    fn step_ring(&self, ring: &Rc<Ring>) -> Result<(), Stop> {
        let hub = &self.hub;
        hub.note(What::Turn, &[ring.port() as u64]);
        // It wakes the program's tasks, and a waker may be the program's own.
        let worker = hub.choose_worker();
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            hub.on_node(ring.node(), || hub.on_worker(worker, || ring.step(hub)));
        }));
        stepped.map_err(|panic| {
            (FailureKind::Panicked, format!("a waker panicked: {}", panic_words(panic.as_ref())))
        })
    }

    /// Polls a task outside of all shards, or as a guest of one of its node.
    fn poll_task(&self, task: u64) {
        // One that was dropped may still be in the queue.
        let node = self.hub.tasks.node(task).unwrap_or_else(|| self.hub.first());
        self.hub.on_node(&node, || self.poll_task_of(&node, task));
    }

    fn poll_task_of(&self, node: &Rc<NodeState>, task: u64) {
        let hub = &self.hub;
        let host = if hub.tasks.wanders(task) {
            let mut fate = hub.fate.borrow_mut();
            let shards = hub.shards.borrow();
            let wanders = fate.source.ppm(self.limits.wanders_ppm);
            let hosts: Vec<_> = shards
                .iter()
                .filter(|shard| wanders && !shard.is_over() && Rc::ptr_eq(shard.node(), node))
                .collect();
            hosts.get(fate.source.below(hosts.len() as u64) as usize).map(|shard| Rc::clone(shard))
        } else {
            None
        };
        let worker = if host.is_none() { hub.choose_worker() } else { None };
        let place = host.as_ref().map(|host| host.port() as u64 + 1).or(worker.map(place_of_worker));
        hub.note(What::Polled, &[task, place.unwrap_or(0)]);
        match host {
            None => hub.on_worker(worker, || hub.tasks.poll(task)),
            Some(host) => {
                // Its panic is the program's, not the shard's.
                let mut polled = Ok(());
                host.visit(|| polled = catch_unwind(AssertUnwindSafe(|| hub.tasks.poll(task))));
                if let Err(panic) = polled {
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }

    /// Drops the tasks of a node, or of all, closes the engines, and steps their shards to their ends.
    fn end(&self, node: Option<u32>) {
        let hub = &self.hub;
        let is_meant = |of: &Rc<NodeState>| node.is_none_or(|node| node == of.number);
        self.drop_tasks(node);
        for shard in hub.shards.borrow().iter().filter(|shard| is_meant(shard.node())) {
            hub.on_node(shard.node(), || shard.engine().begin_close());
        }
        loop {
            let shards = hub.shards.borrow();
            let left = shards.iter().filter(|shard| is_meant(shard.node()) && !shard.is_over());
            let left: Vec<Rc<SimShard>> = left.cloned().collect();
            drop(shards);
            if left.is_empty() {
                break;
            }
            for shard in left {
                hub.deliver();
                self.step(&shard);
            }
        }
        // Remaining visits find their engine closed.
        let rings = std::mem::take(&mut *hub.rings.borrow_mut());
        let (rings, others): (Vec<_>, Vec<_>) = rings.into_iter().partition(|ring| is_meant(ring.node()));
        hub.rings.borrow_mut().extend(others);
        rings.iter().for_each(|ring| hub.on_node(ring.node(), || ring.go_on()));
        drop(rings);
        if node.is_none() {
            // Replies that arrived during the end are dropped together with their waiters.
            hub.tasks.forget();
        }
        self.drop_tasks(node);
        let shards = std::mem::take(&mut *hub.shards.borrow_mut());
        let (shards, others): (Vec<_>, Vec<_>) = shards.into_iter().partition(|shard| is_meant(shard.node()));
        hub.shards.borrow_mut().extend(others);
        drop(shards);
        if node.is_none() {
            hub.clear_run();
        }
    }

    fn drop_tasks(&self, node: Option<u32>) {
        while let Some((node, task)) = self.hub.tasks.take_first(node) {
            let _ = catch_unwind(AssertUnwindSafe(|| self.hub.on_node(&node, || drop(task))));
        }
    }
}
