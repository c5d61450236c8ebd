//! Files with a route other than the shard's first ring, and the rings that serve them.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use super::nvme_ring::{NvmeRing, Plan, plan};
use super::polled::PolledRing;
use super::{Keeper, UringDriver, setup};
use crate::driver::{FileRegistration, IoRequest, NvmeTarget, PollCounts, QueueFull, Route, Wait};
use crate::io::op::OpKey;
use crate::io::op::{Flush, OpKind};

/// Interval between checks of the second ring. If both rings have requests that interrupt, the shard sleeps
/// in one of them and checks the other.
const LOOK_ASIDE: Duration = Duration::from_micros(50);

/// A ring that is made for the first file that requests it; creation is tried once.
#[derive(Default)]
enum Lazy<T> {
    #[default]
    Unasked,
    Refused,
    Made(Box<T>),
}

impl<T> Lazy<T> {
    #[inline]
    fn get(&mut self) -> Option<&mut T> {
        match self {
            Lazy::Made(ring) => Some(ring),
            _ => None,
        }
    }

    fn get_or_make(&mut self, make: impl FnOnce() -> io::Result<T>) -> (Option<&mut T>, Option<io::Error>) {
        let mut refusal = None;
        if matches!(self, Lazy::Unasked) {
            *self = match make() {
                Ok(ring) => Lazy::Made(Box::new(ring)),
                Err(error) => {
                    refusal = Some(error);
                    Lazy::Refused
                }
            };
        }
        (self.get(), refusal)
    }
}

/// Routes by number, and the rings other than the first.
#[derive(Default)]
pub(super) struct Routes {
    /// The route with number `n` is at `n - 1`.
    list: Vec<Route>,
    free: Vec<u32>,
    polled: Lazy<PolledRing>,
    /// Rings for commands: one whose completions interrupt, and one whose completions are polled for.
    nvme: Lazy<NvmeRing>,
    nvme_polled: Lazy<NvmeRing>,
    /// Whether a polled ring has requests in flight, and whether any of these rings has. As of the last
    /// submission and check.
    is_polling: bool,
    is_busy: bool,
}

impl Routes {
    fn add(&mut self, route: Route) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.list[number as usize - 1] = route;
                number
            }
            None => {
                self.list.push(route);
                self.list.len() as u32
            }
        }
    }

    #[inline]
    fn get(&self, number: u32) -> Route {
        self.list.get((number as usize).wrapping_sub(1)).copied().unwrap_or_default()
    }

    /// Returns whether the shard must poll for requests in flight here.
    #[inline]
    pub(super) fn is_polling(&self) -> bool {
        self.is_polling
    }

    /// Returns whether anything is in flight here.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    fn look(&mut self) {
        let polled = self.polled.get().is_some_and(|ring| ring.is_busy());
        self.is_polling = polled || self.nvme_polled.get().is_some_and(|ring| ring.requests > 0);
        self.is_busy = self.is_polling || self.nvme.get().is_some_and(|ring| ring.requests > 0);
    }

    /// Returns the number of requests in the ring that interrupts.
    fn interrupting(&mut self) -> u32 {
        self.nvme.get().map_or(0, |ring| ring.requests)
    }

    pub(super) fn has_completions(&mut self) -> bool {
        self.nvme.get().is_some_and(NvmeRing::has_completions)
    }

    pub(super) fn poll_counts(&self) -> PollCounts {
        let mut sum = PollCounts::default();
        let polled = if let Lazy::Made(ring) = &self.polled { Some(ring.counts()) } else { None };
        let nvme = if let Lazy::Made(ring) = &self.nvme_polled { Some(ring.counts()) } else { None };
        for counts in polled.into_iter().chain(nvme) {
            sum.requests += counts.requests;
            sum.polls += counts.polls;
            sum.empty += counts.empty;
        }
        sum
    }

    /// Submits queued entries and reports completions in each ring; `wait` applies to the ring that
    /// interrupts.
    pub(super) fn complete(&mut self, wait: Wait, mut report: impl FnMut(OpKey, i32)) -> io::Result<()> {
        let mut outcome = Ok(());
        if let Some(ring) = self.polled.get().filter(|ring| ring.is_busy()) {
            outcome = outcome.and(ring.poll(&mut report));
        }
        if let Some(ring) = self.nvme_polled.get().filter(|ring| ring.requests > 0) {
            outcome = outcome.and(ring.complete(Wait::Poll, &mut report));
        }
        if let Some(ring) = self.nvme.get() {
            outcome = outcome.and(ring.complete(wait, &mut report));
        }
        self.look();
        outcome
    }

    pub(super) fn add_region(
        &mut self,
        keeper: &Keeper,
        index: u16,
        start: *mut u8,
        len: usize,
    ) -> io::Result<()> {
        let mut outcome = Ok(());
        if let Some(ring) = self.polled.get() {
            outcome = ring.add_region(keeper, index, start, len);
        }
        for ring in [&mut self.nvme, &mut self.nvme_polled] {
            if let Some(ring) = ring.get() {
                outcome = outcome.and(ring.add_region(keeper, index, start, len));
            }
        }
        outcome
    }

    pub(super) fn retire(&mut self) {
        if let Some(ring) = self.polled.get() {
            ring.retire();
        }
        for ring in [&mut self.nvme, &mut self.nvme_polled] {
            if let Some(ring) = ring.get() {
                ring.retire();
            }
        }
    }

    fn nvme_ring(&mut self, target: &NvmeTarget) -> &mut Lazy<NvmeRing> {
        if target.polled { &mut self.nvme_polled } else { &mut self.nvme }
    }
}

impl UringDriver {
    /// Queues a request of a file with a route; returns false if it belongs on the first ring after all.
    ///
    /// # Safety
    /// As [`Driver::submit`](crate::driver::Driver::submit).
    pub(super) unsafe fn submit_routed(&mut self, request: &IoRequest) -> Result<bool, QueueFull> {
        match self.routes.get(request.route) {
            Route::Ordinary => Ok(false),
            Route::Polled { bytes_max } => {
                let is_transfer = matches!(request.kind, OpKind::Read | OpKind::Write);
                // A durable write that this thread makes itself uses no ring.
                if !is_transfer || (request.flush == Flush::Blocking && request.sync.is_some()) {
                    return Ok(false);
                }
                let Some(ring) = self.routes.polled.get() else { return Ok(false) };
                // SAFETY: the caller keeps memory and file until the completion.
                let taken = unsafe { ring.submit(request, bytes_max)? };
                if taken {
                    (self.routes.is_polling, self.routes.is_busy) = (true, true);
                }
                Ok(taken)
            }
            Route::Nvme(target) => {
                let len = match plan(&target, request) {
                    Plan::Send(len) => len,
                    Plan::Known(result) => {
                        self.made.push((request.key, result));
                        return Ok(true);
                    }
                };
                let Some(ring) = self.routes.nvme_ring(&target).get() else {
                    // The kernel refused such a ring, and commands have no other route.
                    self.made.push((request.key, -libc::EOPNOTSUPP));
                    return Ok(true);
                };
                // SAFETY: the caller keeps memory and file until the completion.
                unsafe { ring.submit(request, &target, len)? };
                self.routes.is_busy = true;
                self.routes.is_polling |= target.polled;
                Ok(true)
            }
        }
    }

    /// Waits for the first completion of either the first ring or the ring of commands.
    #[cold]
    pub(super) fn wait_beside(
        &mut self,
        wait: Wait,
        in_flight: u32,
        report: impl FnMut(OpKey, i32),
    ) -> io::Result<()> {
        self.hand_over()?;
        if in_flight <= self.routes.interrupting() {
            // Nothing is in flight in the first ring, and a wake-up of the first ring wakes this one too.
            return self.routes.complete(wait, report);
        }
        self.routes.complete(Wait::Poll, report)?;
        let limit = match wait {
            Wait::For { limit, .. } => limit.map_or(LOOK_ASIDE, |limit| limit.min(LOOK_ASIDE)),
            Wait::Poll => return Ok(()),
        };
        self.enter(1, None, Some(limit))
    }

    /// Sets up the route that a file requests, if it is available; the first such file makes the ring.
    #[cold]
    pub(super) fn begin_route(
        &mut self,
        index: u32,
        fd: RawFd,
        route: Route,
        fixed: bool,
    ) -> FileRegistration {
        let (depth, polling, degraded) = (self.depth, self.polling, &mut self.degraded);
        let degraded = |degradation| degraded.push(degradation);
        let (is_here, refusal) = match route {
            Route::Ordinary => (None, None),
            Route::Polled { .. } => {
                let (ring, refusal) =
                    self.routes.polled.get_or_make(|| PolledRing::new(depth, polling, degraded));
                (ring.map(|ring| fixed && ring.add_file(index, fd)), refusal)
            }
            Route::Nvme(target) => {
                let wake = self.wake.clone();
                let make = || {
                    let event = if target.polled { None } else { Some(wake.also()?.as_raw_fd()) };
                    NvmeRing::new(depth, event)
                };
                let (ring, refusal) = self.routes.nvme_ring(&target).get_or_make(make);
                (ring.map(|ring| fixed && ring.add_file(index, fd)), refusal)
            }
        };
        if let Some(error) = refusal {
            let what = if let Route::Nvme(_) = route { "NVMe commands" } else { "polled I/O" };
            self.degraded.push(setup::refused(
                what,
                &error,
                "use Linux 6.1 or later, or raise RLIMIT_MEMLOCK",
            ));
        }
        // Without its ring a namespace has no route at all, and each operation fails; a file has the ordinary
        // one.
        let is_routed = is_here.is_some() || matches!(route, Route::Nvme(_));
        let both = if is_routed { is_here == Some(true) } else { fixed };
        // A request names its file by index or by descriptor, the same for both rings.
        if fixed && !both {
            self.tables.remove_file(&self.ring.submitter(), index);
        }
        let route = if is_routed { self.routes.add(route) } else { 0 };
        FileRegistration { fixed: both, route, is_news: true }
    }

    /// Removes a file's route for good; nothing of the file is in flight.
    pub(super) fn end_route(&mut self, index: u32, route: u32) {
        match self.routes.get(route) {
            Route::Ordinary => return,
            Route::Polled { .. } => {
                if let Some(ring) = self.routes.polled.get() {
                    ring.remove_file(index);
                }
            }
            Route::Nvme(target) => {
                if let Some(ring) = self.routes.nvme_ring(&target).get() {
                    ring.remove_file(index);
                }
            }
        }
        self.routes.free.push(route);
    }
}
