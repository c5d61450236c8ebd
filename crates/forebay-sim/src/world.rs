//! A world: the machine, the time and the randomness of one seed, and everything that outlives its runs.

use std::rc::Rc;
use std::time::Duration;

use forebay::{Config, Engine, Error};

use crate::failure::{Failure, FailureKind};
use crate::fault::Rule;
use crate::history::Fate;
use crate::hub::Hub;
use crate::machine::Counts;
use crate::net::{Conditions, Traffic};
use crate::node::ns;
use crate::profile::Profile;
use crate::run;
use crate::shrink::Schedule;
use crate::source::Source;

/// The most steps of a run by default: seconds of real time for a program that runs in circles.
const STEPS_MAX: u64 = 50_000_000;
/// By default this many steps in a million are put off until something else has happened.
const STALLS_PPM: u32 = 20_000;
/// By default a task that may wander is polled on some shard this often, in a million polls.
const WANDERS_PPM: u32 = 250_000;

/// A machine, its time and its randomness, all from one seed; see the [module](super)'s text.
///
/// It belongs to the thread that made it.
///
/// ```
/// # use forebay::{Durability, Open};
/// # use forebay_sim::{Profile, World};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut world = World::new(42).disk(Profile::nand());
/// let outcome = world.run(async |engine| {
///     let file = engine.open("/data", Open::create()).await?;
///     file.write(0, vec![1; 4096]).durable(Durability::Data).await?;
///     Ok::<_, forebay::Error>(())
/// })?;
/// outcome?;
/// assert_eq!(world.seed(), 42); // the same seed gives the same run
/// # Ok(()) }
/// ```
pub struct World {
    seed: u64,
    hub: std::result::Result<Rc<Hub>, String>,
    config: Config,
    steps_max: u64,
    stalls_ppm: u32,
    wanders_ppm: u32,
    steps: u64,
    fault: Option<String>,
}

impl World {
    /// Returns a world without disks. The first file makes an [ideal](Profile::ideal) one at `/`.
    pub fn new(seed: u64) -> World {
        World::with(seed, Source::new(seed))
    }

    /// Returns a world that makes the choices of `schedule` instead of its seed's; see
    /// [`shrink`](super::shrink()).
    pub fn replay(seed: u64, schedule: &Schedule) -> World {
        World::with(seed, Source::replay(seed, schedule.choices().to_vec()))
    }

    fn with(seed: u64, source: Source) -> World {
        World {
            seed,
            hub: Hub::new(Fate::new(source)).map(Rc::new).map_err(|error| format!("/dev/null: {error}")),
            config: Config::new(),
            steps_max: STEPS_MAX,
            stalls_ppm: STALLS_PPM,
            wanders_ppm: WANDERS_PPM,
            steps: 0,
            fault: None,
        }
    }

    /// Adds a disk to node 0 at its profile's mount point. A second disk at the same place fails the next run.
    pub fn disk(mut self, profile: Profile) -> World {
        self.add_disk(profile);
        self
    }

    /// Does the same as [`disk`](World::disk), for a borrowed world.
    pub fn add_disk(&mut self, profile: Profile) {
        if let Ok(hub) = &self.hub
            && let Err(error) = hub.first().machine.borrow_mut().mount(profile)
        {
            self.fault = Some(error.to_string());
        }
    }

    /// Sets the conditions of the network between its nodes. Default: [`Conditions::ideal`].
    pub fn network(self, conditions: Conditions) -> World {
        if let Ok(hub) = &self.hub {
            hub.net.borrow_mut().set_conditions(conditions);
        }
        self
    }

    /// Sets the configuration of the engine of a run. Default: two shards and 1 MiB of I/O memory. Settings of the driver and of
    /// spinning have no effect in a world. Tasks outside of shards have rings with
    /// [`WorkerRings::Always`](forebay::WorkerRings::Always).
    pub fn config(mut self, config: Config) -> World {
        self.config = config;
        self
    }

    /// Sets the number of steps (a task's poll, or a shard's turn) after which a run fails as
    /// [`FailureKind::Endless`]. Default: 50 million.
    pub fn steps_max(mut self, steps: u64) -> World {
        self.steps_max = steps;
        self
    }

    /// Sets how often, in a million steps, everything that could run has to wait until something else has happened, at most 10 ms,
    /// as on a busy machine. Default: 20,000. 0 turns it off, and with rings also the cases in which a task has used up its turn
    /// before its operation starts.
    pub fn stalls_ppm(mut self, ppm: u32) -> World {
        self.stalls_ppm = ppm;
        self
    }

    /// Sets how often, in a million polls, a task that [`spawn`](super::spawn) started is polled on a shard.
    /// Default: 250,000.
    pub fn wanders_ppm(mut self, ppm: u32) -> World {
        self.wanders_ppm = ppm;
        self
    }

    /// Runs `program` with a new engine to its end, and everything that it spawned until then, and returns
    /// its output. Then the remaining tasks are dropped and the engines of the run closed. Files and disks
    /// stay for the next run.
    ///
    /// Nothing is flushed at the end: a [`power_cut`](World::power_cut) may lose everything that was not synced.
    ///
    /// # Errors
    /// [`Failure`] when something else ended the run. After [`FailureKind::PowerCut`] the world is off.
    pub fn run<T>(&mut self, program: impl AsyncFnOnce(Engine) -> T) -> Result<T, Failure> {
        let not_started = |text: String| Failure::new(FailureKind::NotStarted, text, self.seed, 0);
        let hub = self.hub.clone().map_err(not_started)?;
        if let Some(fault) = &self.fault {
            return Err(not_started(fault.clone()));
        }
        let limits = run::Limits {
            steps_max: self.steps_max,
            stalls_ppm: self.stalls_ppm,
            wanders_ppm: self.wanders_ppm,
        };
        let mut runner = run::Runner::new(hub, self.seed, limits);
        let result = runner.run(self.config.clone(), program);
        self.steps += runner.steps();
        result
    }

    /// Cuts the power of all nodes after a run. Data that was not durable is lost, kept or torn as the disks' profiles and
    /// the seed decide. They stay off until [`reboot`](World::reboot). Does nothing to those that are off.
    pub fn power_cut(&mut self) {
        let Ok(hub) = &self.hub else { return };
        for node in hub.nodes().iter().filter(|node| node.is_on()) {
            node.close_files();
            node.machine.borrow_mut().power_cut(&mut hub.fate.borrow_mut());
        }
    }

    /// Cuts the power of all nodes during the next run, after `time` of the world's time from now on.
    pub fn power_cut_after(&mut self, time: Duration) {
        if let Ok(hub) = &self.hub {
            hub.first().cut_at_ns(hub.now_ns().saturating_add(ns(time)));
        }
    }

    /// Cuts the power of all nodes during the next run, when the `number`-th operation from now on is given to a
    /// disk: the first is 1.
    pub fn power_cut_at_operation(&mut self, number: u64) {
        if let Ok(hub) = &self.hub {
            hub.first().cut_at_operation(number);
        }
    }

    /// Switches all nodes on again. A node that is on is restarted in an orderly way, which loses nothing. Locks and files without
    /// a name are lost.
    pub fn reboot(&mut self) {
        let Ok(hub) = &self.hub else { return };
        for node in hub.nodes() {
            node.close_files();
            node.machine.borrow_mut().reboot(&mut hub.fate.borrow_mut());
        }
    }

    /// Makes faults strike on the disks of node 0 as `rule` describes, from now on.
    pub fn inject(&mut self, rule: Rule) {
        if let Ok(hub) = &self.hub {
            hub.first().machine.borrow_mut().inject(rule);
        }
    }

    /// Removes all rules of node 0, those of the disks' profiles too.
    pub fn clear_faults(&mut self) {
        if let Ok(hub) = &self.hub {
            hub.first().machine.borrow_mut().clear_faults();
        }
    }

    /// Returns one number for everything that happened: each step, each operation with its time and result,
    /// every byte read, every fault. Equal for equal seeds and programs, in every process and on every
    /// machine.
    pub fn history_digest(&self) -> u64 {
        self.hub.as_ref().map_or(0, |hub| hub.fate.borrow().history.digest())
    }

    /// Returns the counts of operations and faults of all nodes so far.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        if let Ok(hub) = &self.hub {
            hub.nodes().iter().for_each(|node| counts.add(&node.machine.borrow().counts()));
        }
        counts
    }

    /// Returns the counts of messages so far.
    pub fn traffic(&self) -> Traffic {
        self.hub.as_ref().map(|hub| hub.net.borrow().traffic()).unwrap_or_default()
    }

    /// Returns the time since the world's start.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.hub.as_ref().map_or(0, |hub| hub.now_ns()))
    }

    /// Returns the number of steps made so far, in all runs.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the seed that the world was made from.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the choices made so far, or `None` if they exceed the recorded number (4 million).
    pub fn schedule(&self) -> Option<Schedule> {
        let hub = self.hub.as_ref().ok()?;
        hub.fate.borrow().source.choices().map(Schedule::new)
    }
}

forebay::_debug_parts!(World, |world| seed: world.seed, now: world.now(), steps: world.steps);

/// Returns the failure of a run whose engine did not start.
pub(crate) fn refused(error: &Error, seed: u64) -> Failure {
    Failure::new(FailureKind::NotStarted, error.to_string(), seed, 0)
}
