//! Starts the shards' threads, each with the driver that works on this system.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::mpsc;
use std::sync::{Arc, Weak};

use crate::base::class::Class;
use crate::base::error::{Error, Result};
use crate::base::health::Degradation;
use crate::base::pending::Sender;
use crate::base::priority;
use crate::driver::{Driver, WakeHandle, threads::ThreadsDriver};
use crate::io::config::DriverChoice;
use crate::reactor::account::Account;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::read_many;
use crate::reactor::shard::clock::Clock;
use crate::reactor::shard::ending::EndReport;
use crate::reactor::shard::executor::Executor;
use crate::reactor::shard::inbox::{Inbox, LateCalls};
use crate::reactor::shard::local::LocalCell;
use crate::reactor::shard::ops::Ops;
use crate::reactor::shard::timers::Timers;
use crate::reactor::shard::{Counters, NOT_LOOKED, Shard, make_current};
#[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
use crate::reactor::visited::Interface;
use crate::reactor::walk::Walks;

/// Starts every shard of `engine`. Returns the driver's name, which is the same on every shard, once all run.
/// `ends` receive each shard's end. After an error nothing is left of the attempt.
pub(crate) fn start_shards(engine: &Arc<EngineShared>, ends: Vec<Sender<EndReport>>) -> Result<&'static str> {
    let (tell, told) = mpsc::channel();
    let started = start_with(engine, ends, tell, &told);
    if started.is_err() {
        // Each thread drops its driver first: descriptors are closed before the caller learns of the error.
        while told.recv().is_ok() {}
    }
    started
}

type StartResult = Result<&'static str>;

fn start_with(
    engine: &Arc<EngineShared>,
    ends: Vec<Sender<EndReport>>,
    tell: mpsc::Sender<StartResult>,
    told: &mpsc::Receiver<StartResult>,
) -> Result<&'static str> {
    let maker = DriverMaker::new(engine.config.driver, engine.config.queue_depth);
    #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
    let keeper = maker.keeper.clone();
    let mut verdicts = Vec::with_capacity(ends.len());
    for (index, end) in ends.into_iter().enumerate() {
        let (engine, maker, tell) = (engine.clone(), maker.clone(), tell.clone());
        let (decide, decided) = mpsc::channel();
        let body = move || {
            crate::base::size_limit::shield_thread();
            // Before the shard's allocations, which are of the memory node of its processor.
            if let Err(refusal) = engine.seats.pin_shard(index) {
                engine.degrade_once(
                    "placement",
                    &format!("the system refused to pin a shard to its processor: {refusal}"),
                    "look for what changed the processors of this process, and for a seccomp profile without sched_setaffinity",
                );
            }
            // Before the ring: the kernel's workers for it inherit their owner's priority when they start.
            let granted =
                priority::raise_thread(engine.config.priority, |Degradation { what, why, remedy }| {
                    engine.degrade_once(&what, &why, &remedy);
                });
            engine.granted.set(index, granted);
            match maker.make_as_decided(&engine, &tell, &decided) {
                Some(driver) => run_shard(index, engine, driver, tell, end),
                None => {
                    engine.inboxes[index].close(false);
                    engine.visited.shard_ended(&engine);
                    engine.shard_ended();
                }
            }
        };
        std::thread::Builder::new()
            .name(format!("forebay-{index}"))
            .spawn(body)
            .map_err(|error| Error::io("start", error).with_note("no thread for a shard"))?;
        verdicts.push(decide);
    }
    drop(tell);
    let next = || told.recv().unwrap_or_else(|_| Err(Error::new(crate::ErrorKind::ShardLost, "start")));
    let mut name = "uring";
    for _ in 0..verdicts.len() {
        // If one shard gets no ring, all are without: otherwise a file's speed would depend on its shard's number.
        if next()? == "threads" {
            name = "threads";
        }
    }
    for verdict in verdicts {
        // A thread that has ended is noticed below.
        let _ = verdict.send(name);
    }
    for _ in 0..engine.inboxes.len() {
        next()?;
    }
    // Where shards have no rings, workers get native AIO: the kernel would refuse them io_uring as well.
    #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
    engine.visited.begin(match name {
        "uring" => Interface::Uring(keeper),
        _ => Interface::Aio,
    });
    Ok(name)
}

/// Makes a driver on the thread that will use it.
#[derive(Clone)]
struct DriverMaker {
    choice: DriverChoice,
    depth: u32,
    #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
    keeper: Arc<crate::driver::uring::Keeper>,
}

impl DriverMaker {
    fn new(choice: DriverChoice, depth: u32) -> DriverMaker {
        DriverMaker {
            choice,
            depth,
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            keeper: crate::driver::uring::Keeper::new(choice != DriverChoice::Threads),
        }
    }

    /// Makes a driver and reports its name. Replaces it if all shards are to have another one. Returns `None`
    /// if the engine does not start.
    fn make_as_decided(
        self,
        engine: &EngineShared,
        tell: &mpsc::Sender<StartResult>,
        decided: &mpsc::Receiver<&'static str>,
    ) -> Option<Driver> {
        let driver = match self.make(engine) {
            Ok(driver) => driver,
            Err(error) => {
                let _ = tell.send(Err(error));
                return None;
            }
        };
        let _ = tell.send(Ok(driver.name()));
        let name = decided.recv().ok()?;
        if name == driver.name() {
            return Some(driver);
        }
        drop(driver);
        self.make_threads().ok()
    }

    #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
    fn make(&self, engine: &EngineShared) -> Result<Driver> {
        if self.choice != DriverChoice::Threads {
            let polling = engine.config.polling;
            match crate::driver::uring::UringDriver::new(self.depth, polling, self.keeper.clone()) {
                Ok(driver) => return Ok(Driver::Uring(driver)),
                Err(error) if self.choice == DriverChoice::Uring => {
                    return Err(Error::io("start", error).with_note("the kernel refused io_uring"));
                }
                Err(error) => {
                    let remedy = match error.raw_os_error() {
                        Some(libc::EPERM | libc::EACCES) => {
                            "allow io_uring: sysctl kernel.io_uring_disabled=0, and a seccomp profile that permits it"
                        }
                        Some(libc::ENOMEM) => "raise RLIMIT_MEMLOCK (ulimit -l), or free memory",
                        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
                        _ => "use a kernel with io_uring (Linux 5.19 or later)",
                    };
                    engine.degrade_once("io_uring", &format!("the kernel refused it: {error}"), remedy);
                }
            }
        }
        self.make_threads()
    }

    #[cfg(not(all(target_os = "linux", not(forebay_no_uring))))]
    fn make(&self, engine: &EngineShared) -> Result<Driver> {
        match self.choice {
            DriverChoice::Uring => {
                Err(Error::new(crate::ErrorKind::Unsupported, "start")
                    .with_note("this build has no io_uring"))
            }
            DriverChoice::Auto => {
                engine.degrade_once("io_uring", "this build has none", "use Linux");
                self.make_threads()
            }
            DriverChoice::Threads => self.make_threads(),
        }
    }

    fn make_threads(&self) -> Result<Driver> {
        let driver = ThreadsDriver::new(self.depth).map_err(|error| Error::io("start", error))?;
        Ok(Driver::Threads(driver))
    }
}

fn run_shard(
    index: usize,
    engine: Arc<EngineShared>,
    driver: Driver,
    tell: mpsc::Sender<Result<&'static str>>,
    end: Sender<EndReport>,
) {
    let name = driver.name();
    let (inbox, wake) = (engine.inboxes[index].clone(), driver.wake_handle());
    let shard = new_shard(inbox, &engine, driver, wake, Clock::system());
    make_current(&*shard);
    let _seat = engine.watch.sit(index);
    let _ = tell.send(Ok(name));
    drop(tell);
    let run = catch_unwind(AssertUnwindSafe(|| shard.run()));
    shard_over(shard, run, end);
}

/// Makes a shard of `engine` for the calling thread, and gives that thread its cache of I/O memory. `wake` ends its sleep.
pub(crate) fn new_shard(
    inbox: Arc<Inbox>,
    engine: &Arc<EngineShared>,
    mut driver: Driver,
    wake: WakeHandle,
    clock: Clock,
) -> Box<Shard> {
    let index = inbox.index;
    inbox.set_wake_handle(wake);
    inbox.set_takes_commands(driver.takes_commands());
    for Degradation { what, why, remedy } in driver.degradations() {
        engine.degrade_once(&what, &why, &remedy);
    }
    let waker: Weak<_> = Arc::downgrade(&inbox);
    engine.arena.set_memory_waker(
        index,
        Box::new(move || {
            if let Some(inbox) = waker.upgrade() {
                inbox.call_memory();
            }
        }),
    );
    engine.arena.install(index);
    Box::new(Shard {
        // A visited shard has no tasks, so it changes no beat: any is good.
        executor: Executor::new(
            &clock,
            engine.config.stall_ns(),
            engine.watch.beat(index % engine.inboxes.len()),
        ),
        depth: engine.config.queue_depth,
        inbox,
        engine: engine.clone(),
        clock,
        ops: LocalCell::new(Ops::new(&engine.arena)),
        account: LocalCell::new(Account::new(index)),
        driver: LocalCell::new(driver),
        timers: LocalCell::new(Timers::default()),
        batches: LocalCell::new(read_many::Batches::default()),
        walks: LocalCell::new(Walks::new()),
        slot_waiters: LocalCell::new(Vec::new()),
        counters: Counters::default(),
        class: Cell::new(Class::DEFAULT),
        known_regions: Cell::new(NOT_LOOKED),
        late_calls: LateCalls::default(),
        device_ns: Cell::new(u64::MAX),
        #[cfg(any(feature = "_sim", all(feature = "tokio", target_os = "linux", not(forebay_no_uring))))]
        gathers_since: Cell::new(0),
        spin_idle_max: clock.ticks(engine.spin_ns.0),
        spin_flying_max: clock.ticks(engine.spin_ns.1),
        spin_idle: Cell::default(),
        spin_flying: Cell::default(),
        completed: LocalCell::new(Vec::with_capacity(1024)),
    })
}

/// Cleans up after a shard's run, on its thread, which still counts as the shard.
pub(crate) fn shard_over(shard: Box<Shard>, run: std::thread::Result<EndReport>, end: Sender<EndReport>) {
    let engine = shard.engine.clone();
    match run {
        Ok(mut ended) => {
            ended.leaked += engine.visited.shard_ended(&engine);
            let (running, calls) = engine.calls.drain(&engine, engine.config.shutdown_deadline);
            ended.leaked += running;
            if !calls.is_empty() {
                engine.degrade_once(
                    "shutdown of the pool",
                    &format!("calls did not end in time: {}", calls.join(", ")),
                    "raise Config::shutdown_deadline, or look after the file system",
                );
            }
            ended.calls = calls;
            // Dropped while the thread still counts as the shard, so that the destructors' effects stay
            // local.
            if ended.leaked > 0 {
                // The ring is dropped, and with it its own references to files and buffers; the memory was
                // leaked slot by slot.
                engine.degrade_once(
                    "shutdown",
                    &format!("{} operations did not end in time; their memory was leaked", ended.leaked),
                    "raise Config::shutdown_deadline, or look after the device",
                );
            }
            make_current(ptr::null());
            drop(shard);
            engine.arena.uninstall();
            end.send(Ok(ended));
        }
        Err(panic) => {
            // Nothing is freed: the kernel may still write to memory that slots own, and tasks may refer to
            // each other.
            let shard: &Shard = Box::leak(shard);
            make_current(shard);
            let error = Error::panicked("shard", panic.as_ref());
            engine.degrade_once("shard", &format!("its thread died: {error}"), "report this");
            shard.end_lost();
            make_current(ptr::null());
            engine.visited.shard_ended(&engine);
            end.send(Ok(EndReport { leaked: usize::MAX, calls: Vec::new() }));
        }
    }
    engine.shard_ended();
}
