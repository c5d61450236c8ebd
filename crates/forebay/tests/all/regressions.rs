//! Faults that were found by reading and would not have shown by themselves; each test opens with its story.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::common::{config, dir, hold, write_file};
use forebay::{Class, Config, Engine, ErrorKind, File, Open, shard};

/// An engine with one shard that is blocked inside a task until it is released: messages sent meanwhile stay
/// in its inbox.
struct BlockedEngine {
    engine: Engine,
    file: File,
    release: mpsc::Sender<()>,
    task: shard::JoinHandle<()>,
    _dir: tempfile::TempDir,
}

fn standing() -> BlockedEngine {
    standing_with(config().shards(1))
}

fn standing_with(config: Config) -> BlockedEngine {
    let (engine, dir) = (Engine::start(config).unwrap(), dir());
    let path = dir.path().join("file");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let (release, released) = mpsc::channel();
    let (stands, standing) = mpsc::channel();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        stands.send(()).unwrap();
        let _ = released.recv();
    });
    standing.recv().unwrap();
    BlockedEngine { engine, file, release, task, _dir: dir }
}

/// A waker of the program's that ends the shard which calls it.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        // Without the hook, which writes a message for each of thousands.
        std::panic::resume_unwind(Box::new("in a waker"));
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Regression: a message that the closing shard refused was dropped where it was received, and with a task's closure the values
/// that it had captured. A destructor of the program's that panicked there ended the refusing: the shard counted as lost, and the
/// messages behind failed with the error that its thread had died.
#[test]
fn a_destructor_that_panics_in_a_refused_message_is_nobody_elses_trouble() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            std::panic::panic_any("a destructor of the program's");
        }
    }
    let BlockedEngine { engine, file, release, task, _dir } = standing();
    let before = engine.spawn_on_shard(0, Class::DEFAULT, || async {});
    let panics = Panics;
    let refused = engine.spawn_on_shard(0, Class::DEFAULT, move || async move { drop(panics) });
    let behind = engine.spawn_on_shard(0, Class::DEFAULT, || async {});
    let mut read = file.read(0..100).into_future();
    assert!(poll_once(&mut read).is_pending());
    let closing = engine.close();
    release.send(()).unwrap();
    for task in [before, refused, behind] {
        assert_eq!(task.wait().unwrap_err().kind(), ErrorKind::EngineClosed);
    }
    assert_eq!(futures::executor::block_on(read).unwrap_err().kind(), ErrorKind::EngineClosed);
    drop(task);
    let report = closing.wait().unwrap();
    assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
}

/// Regression: an operation that was refused while it waited in the inbox returned without the memory it had brought, so the block
/// of a `read_into` was returned empty, and the program's bytes in it were lost.
#[test]
fn a_read_into_that_is_refused_in_the_inbox_gives_its_memory_back() {
    let BlockedEngine { engine, file, release, task, _dir } = standing();
    let mut block = engine.block(8192).unwrap();
    block.fill(7);
    let mut read = file.read_into(4096, block).into_future();
    assert!(poll_once(&mut read).is_pending());
    let closing = engine.close();
    release.send(()).unwrap();
    let (result, block) = futures::executor::block_on(read);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::EngineClosed);
    assert_eq!(block.len(), 8192);
    assert!(block.iter().all(|&byte| byte == 7));
    drop(task);
    assert_eq!(closing.wait().unwrap().leaked_operations, 0);
}

/// Regression: a sleeper that was polled again by another task had its waker replaced while the shard's timers were borrowed, so
/// the old waker was dropped in there. A destructor of the program that set a timer, or only dropped a sleep, found the timers in
/// use: two exclusive references, which debug builds notice.
#[test]
fn a_wakers_destructor_may_use_the_timers() {
    struct Sleeps;
    impl Wake for Sleeps {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Sleeps {
        fn drop(&mut self) {
            let mut own = shard::sleep(Duration::from_secs(60));
            assert!(poll_once(&mut own).is_pending(), "the destructor runs on the shard");
        }
    }
    fn poll_with_such_a_waker(sleep: &mut shard::Sleep) {
        let waker = Waker::from(Arc::new(Sleeps));
        assert!(Pin::new(sleep).poll(&mut Context::from_waker(&waker)).is_pending());
        // The timer's clone is the last.
    }
    let engine = Engine::start(config().shards(1)).unwrap();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, || async {
        let mut sleep = shard::sleep(Duration::from_secs(60));
        // Replaced by the next, by an ordinary one, and dropped with its sleep.
        poll_with_such_a_waker(&mut sleep);
        poll_with_such_a_waker(&mut sleep);
        assert!(poll_once(&mut sleep).is_pending());
        poll_with_such_a_waker(&mut sleep);
        drop(sleep);
        // Woken in its time.
        let mut short = shard::sleep(Duration::from_millis(1));
        poll_with_such_a_waker(&mut short);
        shard::sleep(Duration::from_millis(5)).await.unwrap();
        assert!(poll_once(&mut short).is_ready());
    });
    task.wait().unwrap();
    // And at the end of the engine.
    let (tell, told) = mpsc::channel();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let mut sleep = shard::sleep(Duration::from_secs(60));
        poll_with_such_a_waker(&mut sleep);
        tell.send(()).unwrap();
        std::future::pending::<()>().await;
        drop(sleep);
    });
    told.recv().unwrap();
    assert_eq!(engine.close().wait().unwrap().lost_shards, 0);
    assert_eq!(task.wait().unwrap_err().kind(), ErrorKind::TaskCancelled);
}

/// Regression: a shard died of a waker that panicked, and another such waker belonged to an operation that still lay in the shard's
/// inbox. Refusing the operation ended the shard's last steps, so no task was dropped, and a caller that waited for one waited for
/// ever.
#[test]
fn a_second_waker_that_panics_does_not_keep_the_dying_shard_from_telling() {
    let waker = Waker::from(Arc::new(Panics));
    for _ in 0..10 {
        let engine = Engine::start(config().shards(1)).unwrap();
        let task = engine.spawn_on_shard(0, Class::DEFAULT, std::future::pending::<()>);
        // While this runs the messages below gather in the inbox; a turn receives one batch, and the first to wake ends it.
        let busy = engine.spawn_on_shard(0, Class::DEFAULT, || async {
            let began = std::time::Instant::now();
            while began.elapsed().as_millis() < 5 {}
        });
        let mut bad: Vec<_> = (0..2_000).map(|_| engine.nop().into_future()).collect();
        for nop in &mut bad {
            let _ = Pin::new(nop).poll(&mut Context::from_waker(&waker));
        }
        assert_eq!(task.wait().unwrap_err().kind(), ErrorKind::ShardLost);
        drop((busy, bad));
    }
}

/// Operations one after the other, each begun by the wake-up for the one before, as long as their failures are received.
struct Chain {
    engine: Engine,
    nop: Mutex<Option<BoxedNop>>,
    failures: mpsc::Sender<ErrorKind>,
    /// Wake-ups since a thread began to poll; a wake-up amid its poll has it poll again.
    wakes: AtomicUsize,
}

type BoxedNop = Pin<Box<dyn Future<Output = forebay::Result<()>> + Send>>;

impl Chain {
    fn begin(&self) -> BoxedNop {
        let engine = self.engine.clone();
        Box::pin(async move { engine.nop().await })
    }
}

impl Wake for Chain {
    fn wake(self: Arc<Self>) {
        if self.wakes.fetch_add(1, Ordering::SeqCst) > 0 {
            return;
        }
        let waker = Waker::from(self.clone());
        let mut seen = 1;
        while seen > 0 {
            let mut nop = self.nop.lock().unwrap();
            while let Some(running) = &mut *nop
                && let Poll::Ready(ended) = running.as_mut().poll(&mut Context::from_waker(&waker))
            {
                let is_heard = ended.err().is_none_or(|error| self.failures.send(error.kind()).is_ok());
                *nop = is_heard.then(|| self.begin());
            }
            drop(nop);
            seen = self.wakes.fetch_sub(seen, Ordering::SeqCst) - seen;
        }
    }
}

/// Regression: a waker that polled at once, as that of a small executor does, began its next operation on the shard that died of a
/// panic. The step that ends all operations was over by then, and nothing ended this one.
#[test]
fn a_waker_that_polls_at_once_begins_nothing_on_a_dead_shard() {
    let engine = Engine::start(config().shards(1)).unwrap();
    let (failures, seen) = mpsc::channel();
    let chain = Arc::new(Chain {
        engine: engine.clone(),
        nop: Mutex::default(),
        failures,
        wakes: AtomicUsize::new(0),
    });
    *chain.nop.lock().unwrap() = Some(chain.begin());
    let held = hold(&engine);
    chain.wake();
    let mut bad = engine.nop();
    let _ = Pin::new(&mut bad).poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics))));
    drop(held);
    // The shard's end fails several: one in its inbox, one in a slot, and what these begin.
    for _ in 0..10 {
        assert_eq!(seen.recv_timeout(Duration::from_secs(60)), Ok(ErrorKind::ShardLost));
    }
}

/// Regression: a future that found the op table full waited for a free slot. The shard's death leaks the slots, none of which is ever
/// free again, and nothing woke it.
#[test]
fn a_future_that_waits_for_a_slot_learns_of_the_shards_death() {
    struct Tells(mpsc::Sender<()>);
    impl Wake for Tells {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(());
        }
    }
    fn begin<F: Future + Unpin>(nop: &mut F, waker: &Waker) {
        assert!(Pin::new(nop).poll(&mut Context::from_waker(waker)).is_pending());
    }
    const SLOTS: usize = 1 << 20;
    // Its futures outlive this function's values.
    let engine: &'static Engine = Box::leak(Box::new(Engine::start(config().shards(1)).unwrap()));
    let (wakes, woken) = mpsc::channel();
    let (give, given) = mpsc::channel();
    drop(engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let mut nops: Vec<_> = (0..=SLOTS).map(|_| engine.nop()).collect();
        begin(&mut nops[0], &Waker::from(Arc::new(Panics)));
        nops[1..SLOTS].iter_mut().for_each(|nop| begin(nop, Waker::noop()));
        begin(&mut nops[SLOTS], &Waker::from(Arc::new(Tells(wakes))));
        // Dropped here they would be free slots.
        let _ = give.send(nops);
    }));
    let mut nops = given.recv().unwrap();
    woken.recv_timeout(Duration::from_secs(60)).unwrap();
    let last = nops.pop().unwrap();
    assert_eq!(last.wait().unwrap_err().kind(), ErrorKind::ShardLost);
}

/// Regression: a call that found the pool's queue full waited in a line, and each call that a thread started woke the first of it.
/// A `Pending` that was kept in a `select!` and not polled again swallowed its wake-up. With as many of them in the line as the
/// queue is long, the queue ran empty and every live caller behind them waited for ever.
#[test]
fn calls_that_are_not_polled_again_stop_no_call_behind_them() {
    /// A waker that holds the thread that wakes it until `release` is dropped.
    struct Holds(mpsc::Sender<()>, Mutex<mpsc::Receiver<()>>);
    impl Wake for Holds {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(());
            let _ = self.1.lock().unwrap().recv();
        }
    }
    let (engine, dir) = (Engine::start(config().shards(1)).unwrap(), dir());
    let call = || engine.metadata(dir.path());
    let (held, is_held) = mpsc::channel();
    let mut releases = Vec::new();
    // All four threads of the pool are held in a waker of the program's.
    while releases.len() < 4 {
        let (release, released) = mpsc::channel();
        let waker = Waker::from(Arc::new(Holds(held.clone(), Mutex::new(released))));
        let mut pending = call();
        if Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)).is_pending() {
            is_held.recv().unwrap();
            releases.push(release);
        }
    }
    // Far more than the queue holds: the first are in it, the others in the line.
    let mut frozen: Vec<_> = (0..3000).map(|_| call()).collect();
    for pending in &mut frozen {
        assert!(poll_once(pending).is_pending());
    }
    let (engine, path) = (engine.clone(), dir.path().to_path_buf());
    let (ended, has_ended) = mpsc::channel();
    let mut live = engine.metadata(&path);
    assert!(poll_once(&mut live).is_pending());
    let thread = std::thread::spawn(move || ended.send(live.wait().map(|metadata| metadata.is_dir())));
    drop(releases);
    let answer = has_ended.recv_timeout(Duration::from_secs(60)).expect("the live call comes to its end");
    assert!(answer.unwrap());
    thread.join().unwrap().unwrap();
    for pending in frozen {
        assert!(pending.wait().unwrap().is_dir());
    }
}

/// Regression: a task that found the inbox full lay in its handle until that was polled. A store's tasks, whose handles are
/// dropped, never started at all.
#[test]
fn a_task_begins_though_the_inbox_was_full_and_its_handle_is_not_polled() {
    let BlockedEngine { engine, file, release, task, _dir } =
        standing_with(config().shards(1).inbox_depth(1));
    let mut fills = file.read(0..4096).into_future();
    assert!(poll_once(&mut fills).is_pending());
    let (began, has_begun) = mpsc::channel();
    let dropped = began.clone();
    drop(engine.spawn_on_shard(0, Class::DEFAULT, move || async move { dropped.send("dropped").unwrap() }));
    let kept = engine.spawn_on_shard(0, Class::DEFAULT, move || async move { began.send("kept").unwrap() });
    release.send(()).unwrap();
    let next = || has_begun.recv_timeout(Duration::from_secs(60)).expect("the task begins");
    assert_eq!([next(), next()], ["dropped", "kept"], "in the order of their starts");
    task.wait().unwrap();
    kept.wait().unwrap();
    drop(fills);
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while engine.memory().held_bytes > 0 || engine.stats().wait().unwrap().shards[0].tasks > 0 {
        assert!(std::time::Instant::now() < deadline, "{:?}", engine.memory());
        std::thread::yield_now();
    }
}
