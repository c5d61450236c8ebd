//! The next segment, made before it is needed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay::Pending;
use forebay::shard::JoinHandle;

use crate::error::{Error, ErrorKind, Result};
use crate::options::Fill;
use crate::queue::Queue;
use crate::segment::{Maker, Pace, Segment};

/// Result of making a segment.
struct NewSegment {
    segment: Result<Arc<Segment>>,
    /// The task that makes the log's reserve after it.
    reserving: Option<JoinHandle<()>>,
}

/// The segment after the current one.
pub(crate) struct Next {
    making: Option<JoinHandle<NewSegment>>,
    /// The result of making it, once that was checked.
    made: Option<Result<Arc<Segment>>>,
    /// The task that makes the log's reserve.
    reserving: Option<JoinHandle<()>>,
    /// The start of its creation, on the engine's clock.
    began_ns: u64,
    /// Bytes that the segment in use had left then.
    left: u64,
    /// The segment being made is a used one.
    recycled: bool,
    /// The segment exists already.
    found: bool,
    /// The segment's generation. Numbers have no gaps, so after a failure the same one is tried again.
    generation: u64,
    /// Segments that the log no longer needs, to be reused, oldest first.
    used: Vec<Arc<Segment>>,
    /// Segments that are not needed according to the newest group. If that group is damaged, recovery needs
    /// them again, so they stay until a group after it is durable.
    leaving: Vec<Arc<Segment>>,
    /// Removals under way. A log that ends waits for them: the next one may use the same names.
    removing: Vec<Pending<()>>,
}

/// Delay until another attempt after one that found no space, unless a segment was freed since.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// How long a group waits for a descriptor or I/O memory that it needs, and the pause between attempts. The program may close files and
/// drop blocks; if it does not, the log fails.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of segments kept for reuse; the rest is removed.
const USED_MAX: usize = 2;

impl Next {
    pub(crate) fn new(generation: u64) -> Next {
        Next {
            making: None,
            made: None,
            reserving: None,
            began_ns: 0,
            left: 0,
            recycled: false,
            found: false,
            generation,
            used: Vec::new(),
            leaving: Vec::new(),
            removing: Vec::new(),
        }
    }

    /// Returns the state for a segment found when the log was opened: prepared, and never used.
    pub(crate) fn found(generation: u64) -> Next {
        Next { found: true, ..Next::new(generation) }
    }

    /// Starts making the segment in the background, unless that was started before. The segment in use has `left` bytes.
    pub(crate) fn begin(&mut self, maker: &Maker, shared: &Arc<Queue>, fill: Fill, left: u64) {
        if self.making.is_some() || self.made.is_some() {
            return;
        }
        (self.began_ns, self.left) = (shared.engine.now_ns(), left);
        shared.pace.begin();
        let found = self.found;
        let free = if found { None } else { self.free() };
        let used = free.map(|at| self.used.remove(at));
        self.recycled = used.is_some() || found;
        let (maker, shared, generation) = (maker.clone(), shared.clone(), self.generation);
        // In the log's class: with a second class the scheduler divides the log's own writes for a while, and withholds them from
        // the log's thread. The pace keeps zeros out of the way of groups.
        let task = maker.engine.clone().spawn_on_shard(maker.shard, maker.class, move || async move {
            let segment = if found {
                maker.adopt(generation).await
            } else {
                maker.make(generation, used, fill, Some(&shared.pace)).await
            };
            if let Ok(segment) = &segment {
                shared.ahead.store(segment.bytes, Ordering::Release);
            } else if maker.has_reserve().await {
                // That of an earlier life is not known yet.
                shared.reserve.store(maker.bytes, Ordering::Release);
            }
            shared.note_space(&segment);
            let reserving = if segment.is_ok() { reserve(&maker, &shared) } else { None };
            NewSegment { segment, reserving }
        });
        self.making = Some(task);
    }

    /// Starts making the segment again, if space or a descriptor was lacking and a segment was freed or some time has passed since.
    /// Starts making the log's reserve again after that time.
    pub(crate) fn try_again(&mut self, maker: &Maker, shared: &Arc<Queue>, fill: Fill, left: u64) {
        self.is_over();
        let is_short = matches!(&self.made, Some(Err(error)) if error.is_shortage() && !self.found);
        let now_ns = shared.engine.now_ns();
        let is_late = u128::from(now_ns.saturating_sub(self.began_ns)) >= RETRY.as_nanos();
        if is_short && (is_late || self.free().is_some()) {
            self.made = None;
            self.begin(maker, shared, fill, left);
        } else if is_late && matches!(self.made, Some(Ok(_))) {
            self.began_ns = now_ns;
            self.reserving = reserve(maker, shared).or(self.reserving.take());
        }
    }

    /// Returns whether an attempt to make the segment has ended.
    pub(crate) fn is_over(&mut self) -> bool {
        if let Some(making) = &mut self.making
            && let Poll::Ready(made) = Pin::new(making).poll(&mut Context::from_waker(Waker::noop()))
        {
            self.keep(made);
        }
        self.made.is_some()
    }

    /// Returns the bytes of zeros that a group of this many bytes earns: the segment is there when two thirds of what was left
    /// are used.
    pub(crate) fn zeros_for(&self, bytes: u64, maker: &Maker) -> u64 {
        bytes.saturating_mul(maker.bytes) / self.left.max(1) / 2 * 3
    }

    /// Waits until the attempt to make the segment has ended, which no pace delays any more; returns whether the segment exists then.
    pub(crate) async fn is_made(&mut self, pace: &Pace) -> bool {
        pace.hurry();
        if let Some(making) = &mut self.making {
            let made = making.await;
            self.keep(made);
        }
        matches!(self.made, Some(Ok(_)))
    }

    /// Keeps the result of making the segment.
    fn keep(&mut self, made: forebay::Result<NewSegment>) {
        self.making = None;
        match made {
            Ok(NewSegment { segment, reserving }) => {
                self.reserving = reserving.or(self.reserving.take());
                self.made = Some(segment);
            }
            Err(error) => self.made = Some(Err(error.into())),
        }
    }

    /// Returns whether segments are left that a further durable group frees.
    pub(crate) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Returns whether a further durable group frees more segments than are kept for reuse.
    pub(crate) fn has_surplus(&self) -> bool {
        self.is_leaving() && self.leaving.len() + self.used.len() > USED_MAX
    }

    /// Returns the segment, and whether it is recycled. A failure is retried once: space may have been freed since. A lack of
    /// descriptors is retried for some time. Without space, it is the log's reserve.
    pub(crate) async fn take(
        &mut self,
        maker: &Maker,
        shared: &Arc<Queue>,
        fill: Fill,
    ) -> Result<(Arc<Segment>, bool)> {
        let mut patience = Patience::default();
        let mut tries = 0;
        loop {
            self.begin(maker, shared, fill, 0);
            self.is_made(&shared.pace).await;
            let Some(made) = self.made.take() else { continue };
            let error = match made {
                Ok(segment) => {
                    debug_assert_eq!(
                        segment.generation, self.generation,
                        "segments are numbered without gaps"
                    );
                    shared.ahead.store(0, Ordering::Release);
                    self.generation += 1;
                    self.found = false;
                    return Ok((segment, self.recycled));
                }
                Err(error) => error,
            };
            if patience.outlasts(maker, &error).await? {
                continue;
            }
            if tries == 1 {
                return self.take_reserve(maker, shared, error).await;
            }
            tries += 1;
        }
    }

    /// Returns the log's reserve as the segment that `cause` prevents.
    ///
    /// # Errors
    /// `cause`, if it is not a lack of space, or without a reserve as long as a segment.
    async fn take_reserve(
        &mut self,
        maker: &Maker,
        shared: &Queue,
        cause: Error,
    ) -> Result<(Arc<Segment>, bool)> {
        if cause.kind() != ErrorKind::NoSpace {
            return Err(cause);
        }
        if let Some(reserving) = self.reserving.take() {
            let _ = reserving.await;
        }
        let (maker, generation) = (maker.clone(), self.generation);
        let taken = maker.engine.clone().spawn_on_shard(maker.shard, maker.class, move || async move {
            let taken = maker.take_reserve(generation, |_, bytes| Ok(bytes >= maker.bytes)).await?;
            maker.dir.sync().await?;
            Result::<_, Error>::Ok(taken)
        });
        let Ok(Ok(Ok(segment))) = taken.await else { return Err(cause) };
        shared.reserve.store(0, Ordering::Release);
        shared.reserved.store(false, Ordering::Release);
        shared.note_reserve::<()>(&Err(cause));
        self.generation += 1;
        self.found = false;
        Ok((Arc::new(Segment { known: true, ..segment }), false))
    }

    /// Returns the index of the oldest used segment, if it has no reader.
    fn free(&self) -> Option<usize> {
        let oldest = self.used.first()?;
        (Arc::strong_count(oldest) == 1).then_some(0)
    }

    /// Accepts segments that the log no longer needs according to its newest group.
    pub(crate) fn retire(&mut self, retired: Vec<Arc<Segment>>) {
        self.leaving.extend(retired);
    }

    /// Releases the segments retired by earlier groups, as a later group is durable. Called before the segments of that group are
    /// [retired](Self::retire).
    pub(crate) fn settle(&mut self, maker: &Maker) {
        for segment in std::mem::take(&mut self.leaving) {
            if segment.bytes == maker.bytes {
                self.used.push(segment)
            } else {
                self.remove(maker, segment.generation)
            }
        }
        // Removed oldest first. A drive that lied about a flush and forgets the newer removals has forgotten the older ones as
        // well, and records cut off the end of those segments do not reappear.
        self.used.sort_by_key(|used| used.generation);
        debug_assert!(
            self.used.windows(2).all(|pair| pair[0].generation < pair[1].generation),
            "a segment is kept for reuse once"
        );
        let surplus = self.used.len().saturating_sub(USED_MAX);
        for segment in self.used.drain(..surplus).collect::<Vec<_>>() {
            self.remove(maker, segment.generation);
        }
    }

    /// Starts the removal of a segment.
    pub(crate) fn remove(&mut self, maker: &Maker, generation: u64) {
        let context = &mut Context::from_waker(Waker::noop());
        self.removing.retain_mut(|removal| Pin::new(removal).poll(context).is_pending());
        self.removing.push(maker.remove(generation));
    }

    /// Waits until nothing is being made or removed any more, and releases the lock of the segment made.
    pub(crate) async fn end(&mut self, pace: &Pace) {
        if self.is_made(pace).await
            && let Some(Ok(segment)) = self.made.take()
        {
            let _ = segment.file.unlock().await;
        }
        if let Some(reserving) = self.reserving.take() {
            let _ = reserving.await;
        }
        for removal in self.removing.drain(..) {
            let _ = removal.await;
        }
    }
}

/// The wait for what the program may give back, with the time of the first failure on the engine's clock.
#[derive(Default)]
pub(super) struct Patience(Option<u64>);

impl Patience {
    /// Returns whether to try again after this error. Then it has let some time pass, also for the log's own thread.
    pub(super) async fn outlasts(&mut self, maker: &Maker, error: &Error) -> Result<bool> {
        if !error.is_crowded() {
            return Ok(false);
        }
        let now_ns = maker.engine.now_ns();
        let waited_ns = now_ns.saturating_sub(*self.0.get_or_insert(now_ns));
        if u128::from(waited_ns) >= PATIENCE.as_nanos() {
            return Ok(false);
        }
        let pause = || forebay::shard::sleep(PAUSE);
        maker.engine.spawn_on_shard(maker.shard, maker.class, pause).await??;
        Ok(true)
    }
}

/// Starts making the log's reserve in the background, unless it exists.
fn reserve(maker: &Maker, shared: &Arc<Queue>) -> Option<JoinHandle<()>> {
    if shared.reserved.swap(true, Ordering::AcqRel) {
        return None;
    }
    let (maker, shared) = (maker.clone(), shared.clone());
    Some(maker.engine.clone().spawn_on_shard(maker.shard, maker.class, move || async move {
        let made = maker.make_reserve(&shared.pace).await;
        match &made {
            Ok(()) => shared.reserve.store(maker.bytes, Ordering::Release),
            Err(_) => shared.reserved.store(false, Ordering::Release),
        }
        shared.note_reserve(&made);
    }))
}
