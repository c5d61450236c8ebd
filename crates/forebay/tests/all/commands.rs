//! Commands to a descriptor of the program's own on a shard's ring, as `forebay-kernel` uses them; `/dev/null` accepts any.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex};

use crate::common::{config, dir, write_file};
use forebay::{
    Class, CommandEntry, CommandRing, CommandShard, Commands, DriverChoice, Engine, ErrorKind, Open, shard,
};

#[derive(Debug, PartialEq)]
enum ProbeEvent {
    /// A command's number, and its result or the errno.
    Ended(u32, Result<u32, Option<i32>>),
    Refused,
    Lost(u32),
}

/// Starts commands where it is called, and notes their outcomes.
struct Probe {
    fd: std::fs::File,
    shard: CommandShard,
    /// Numbers to start when the shard calls.
    to_begin: Mutex<Vec<u32>>,
    panics: bool,
    seen: Mutex<Vec<ProbeEvent>>,
    news: Condvar,
}

impl Probe {
    fn new(path: &str, shard: CommandShard, to_begin: &[u32], panics: bool) -> Arc<Probe> {
        Arc::new(Probe {
            fd: OpenOptions::new().read(true).write(true).open(path).unwrap(),
            shard,
            to_begin: Mutex::new(to_begin.to_vec()),
            panics,
            seen: Mutex::default(),
            news: Condvar::new(),
        })
    }

    fn note(&self, seen: ProbeEvent) {
        self.seen.lock().unwrap().push(seen);
        self.news.notify_all();
    }

    /// Waits for that many notes, and returns all.
    fn wait(&self, count: usize) -> Vec<ProbeEvent> {
        let mut seen = self.seen.lock().unwrap();
        while seen.len() < count {
            seen = self.news.wait(seen).unwrap();
        }
        seen.drain(..).collect()
    }

    fn begin(self: &Arc<Self>, ring: &CommandRing<'_>) {
        let owner: Arc<dyn Commands> = self.clone();
        for number in self.to_begin.lock().unwrap().drain(..) {
            if let Err(error) = ring.begin(&owner, number) {
                assert_eq!(error.kind(), ErrorKind::EngineClosed);
                self.note(ProbeEvent::Refused);
            }
        }
    }
}

impl Commands for Probe {
    fn entry(&self, _: u32) -> CommandEntry {
        CommandEntry::new(self.fd.as_raw_fd(), 7, [0; 16])
    }

    fn called(self: Arc<Self>) {
        self.shard.here(|ring| self.begin(ring)).expect("the shard calls on its thread");
        assert!(!self.panics, "the shard dies of this");
    }

    fn refused(&self) {
        self.note(ProbeEvent::Refused);
    }

    fn ended(self: Arc<Self>, number: u32, result: forebay::Result<u32>) {
        assert!(shard::current().is_some(), "commands end on the shard");
        self.note(ProbeEvent::Ended(number, result.map_err(|error| error.raw_os_error())));
    }

    fn lost(&self, number: u32) {
        self.note(ProbeEvent::Lost(number));
    }
}

/// Returns an engine of that many shards with rings for commands, and the home of one of its files; `None` without rings for
/// commands.
fn scene(shards: usize) -> Option<(Engine, CommandShard)> {
    let dir = dir();
    let path = dir.path().join("a");
    write_file(&path, 4096);
    let engine = Engine::start(config().shards(shards)).unwrap();
    let file = engine.open(&path, Open::read()).wait().unwrap();
    match file.command_shard() {
        Ok(shard) => Some((engine, shard)),
        Err(error) => {
            let has_rings = engine.driver() == "uring" && engine.health().degraded.is_empty();
            assert!(!has_rings, "a ring with all that it wants takes commands: {error}");
            eprintln!("no commands here: {error}");
            None
        }
    }
}

fn sorted(mut seen: Vec<ProbeEvent>) -> Vec<(u32, Result<u32, Option<i32>>)> {
    let ended = |seen| match seen {
        ProbeEvent::Ended(number, result) => (number, result),
        other => panic!("{other:?}"),
    };
    let mut all: Vec<_> = seen.drain(..).map(ended).collect();
    all.sort_by_key(|(number, _)| *number);
    all
}

#[test]
fn commands_begin_on_the_shard_and_by_a_call_from_elsewhere() {
    let Some((engine, home)) = scene(2) else { return };
    let numbers: Vec<u32> = (0..600).collect();
    let expected: Vec<_> = numbers.iter().map(|number| (*number, Ok(0))).collect();
    let probe = Probe::new("/dev/null", home.clone(), &numbers, false);
    home.call(probe.clone());
    assert_eq!(sorted(probe.wait(600)), expected);
    assert!(home.here(|_| ()).is_none(), "this thread is no shard's");
    for index in 0..2 {
        let probe = Probe::new("/dev/null", home.clone(), &numbers, false);
        let (asked, home) = (probe.clone(), home.clone());
        let task = engine.spawn_on_shard(index, Class::DEFAULT, move || async move {
            if home.here(|ring| asked.begin(ring)).is_none() {
                home.call(asked.clone());
            }
        });
        task.wait().unwrap();
        assert_eq!(sorted(probe.wait(600)), expected);
    }
    let stats = engine.stats().wait().unwrap();
    let counted: u64 = stats.flows.iter().map(|flow| flow.reads + flow.writes + flow.syncs).sum();
    assert_eq!(counted, 0, "commands are no operations of a device");
}

#[test]
fn a_descriptor_without_commands_says_so() {
    let Some((_engine, home)) = scene(1) else { return };
    let probe = Probe::new("/dev/full", home.clone(), &[3], false);
    home.call(probe.clone());
    let ended = sorted(probe.wait(1));
    assert_eq!(ended, [(3, Err(Some(libc::EOPNOTSUPP)))]);
}

#[test]
fn an_engine_that_has_closed_refuses_and_keeps_no_owner() {
    for _ in 0..20 {
        let Some((engine, home)) = scene(1) else { return };
        let probe = Probe::new("/dev/null", home.clone(), &(0..100).collect::<Vec<_>>(), false);
        home.call(probe.clone());
        let report = engine.close().wait().unwrap();
        assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
        // Called or refused; and each command that was started has ended.
        let seen = probe.wait(1);
        let is_refused = seen == [ProbeEvent::Refused];
        assert!(is_refused || seen.len() == 100, "{seen:?}");
        home.call(probe.clone());
        assert_eq!(probe.wait(1), [ProbeEvent::Refused]);
        assert_eq!(Arc::strong_count(&probe), 1);
    }
}

/// A shard that dies calls the owner, whose memory the kernel may still use: it is never freed.
#[test]
fn a_shard_that_dies_tells_the_owners_of_its_commands() {
    let Some((engine, home)) = scene(1) else { return };
    let probe = Probe::new("/dev/null", home.clone(), &[1, 2], true);
    home.call(probe.clone());
    let mut seen = probe.wait(2);
    seen.sort_by_key(|seen| format!("{seen:?}"));
    assert_eq!(seen, [ProbeEvent::Lost(1), ProbeEvent::Lost(2)]);
    home.call(probe.clone());
    assert_eq!(probe.wait(1), [ProbeEvent::Refused]);
    drop(engine);
}

#[test]
fn shards_without_rings_refuse_commands_with_the_reason() {
    let dir = dir();
    let path = dir.path().join("a");
    write_file(&path, 4096);
    let engine = Engine::start(config().driver(DriverChoice::Threads)).unwrap();
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let error = file.command_shard().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("driver is threads"), "{error}");
}
