//! The driver of Linux native AIO (io_submit(2)), for shards without a thread where the kernel refuses io_uring.
//!
//! Container runtimes forbid io_uring and allow these calls. They are asynchronous for aligned direct reads and overwrites; threads
//! of the driver (`driver/threads`) make everything else, and each request that the kernel would have to wait for. Both kinds of
//! completions signal one event descriptor, which the runtime's poller watches as it watches a ring's.
//!
//! The descriptor is never read while the runtime is driven: its poller sees each signal as an edge, regardless of the counter.
//!
//! A request in flight cannot be cancelled: disks support no io_cancel(2). A cancelled one completes as the device does.

mod admission;
mod context;
#[cfg(test)]
mod tests;

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use self::admission::Files;
use self::context::{Context, ControlBlock, Event, Refusal};
use crate::base::fork::Origin;
use crate::base::health::Degradation;
use crate::driver::threads::ThreadsDriver;
use crate::driver::{FileRegistration, IoRequest, QueueFull, Wait, WakeHandle};
use crate::io::op::{OpKey, OpKind};

/// The most threads of one driver. Each worker of a runtime has a driver, and all have few requests for threads.
const THREADS_MAX: u32 = 32;

/// The function that submits; another one in tests.
type Submit = unsafe fn(&Context, &[*mut ControlBlock]) -> io::Result<usize>;

/// A context of native AIO, and its threads.
pub(crate) struct AioDriver {
    /// Taken by the destructor.
    context: Option<Context>,
    flights: Flights,
    /// Requests that the next `complete` submits, by their place in `flights`.
    staged: Vec<u32>,
    /// Kept for its capacity; empty between calls.
    blocks: Vec<*mut ControlBlock>,
    files: Files,
    threads: ThreadsDriver,
    /// Completions that no device has a part in.
    made: Vec<(OpKey, i32)>,
    event: Arc<OwnedFd>,
    submit: Submit,
    enters: u64,
    origin: Origin,
}

/// The requests that the driver holds: those with the kernel, and those that are staged.
struct Flights {
    /// The kernel reads a block while it is submitted, and names it by its address in the completion.
    blocks: Box<[UnsafeCell<ControlBlock>]>,
    /// The requests again, for threads.
    requests: Box<[Option<IoRequest>]>,
    free: Vec<u32>,
}

impl Flights {
    fn new(depth: u32) -> Flights {
        Flights {
            blocks: (0..depth).map(|_| UnsafeCell::new(ControlBlock::EMPTY)).collect(),
            requests: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
        }
    }

    fn len(&self) -> usize {
        self.blocks.len() - self.free.len()
    }

    /// Gives a request a place, if one is free.
    #[inline]
    fn add(&mut self, request: &IoRequest, event_fd: RawFd) -> Option<u32> {
        let place = self.free.pop()?;
        *self.blocks[place as usize].get_mut() = ControlBlock::of(request, event_fd);
        self.requests[place as usize] = Some(*request);
        Some(place)
    }

    #[inline]
    fn remove(&mut self, place: u32) -> Option<IoRequest> {
        let request = self.requests.get_mut(place as usize)?.take();
        if request.is_some() {
            self.free.push(place);
        }
        request
    }

    /// Removes the request of a completion. `None` without one.
    #[inline]
    fn remove_completed(&mut self, event: &Event) -> Option<IoRequest> {
        let from_first = event.block.checked_sub(self.blocks.as_ptr().addr() as u64)?;
        let place = from_first / size_of::<ControlBlock>() as u64;
        let known = self.requests.get(usize::try_from(place).ok()?)?.as_ref();
        if known.is_none_or(|request| request.key.to_user_data() != event.data) {
            return None;
        }
        self.remove(place as u32)
    }
}

impl AioDriver {
    /// Creates a driver for `depth` requests that any thread may enter, one at a time.
    ///
    /// # Errors
    /// The system's refusal of native AIO for this process; [`refused`] returns it.
    pub(crate) fn for_visitors(depth: u32) -> Result<AioDriver, Refusal> {
        let depth = depth.max(1);
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Refusal { call: "eventfd", error: errno.into() })?;
        let event = Arc::new(event);
        let context = Context::new(depth)?;
        Ok(AioDriver {
            context: Some(context),
            flights: Flights::new(depth),
            staged: Vec::with_capacity(depth as usize),
            blocks: Vec::with_capacity(depth as usize),
            files: Files::default(),
            threads: ThreadsDriver::with_event(depth, THREADS_MAX, event.clone()),
            made: Vec::new(),
            event,
            submit: Context::submit,
            enters: 0,
            origin: Origin::here(),
        })
    }

    /// Returns the descriptor that completions signal. It stays readable: only edges mean something.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.event.try_clone()
    }

    /// Returns true for a durable write, which a thread makes with its sync.
    ///
    /// # Safety
    /// As [`Driver::submit`](crate::driver::Driver::submit). If the driver is dropped first, memory and file must stay as they are for
    /// ever.
    #[inline]
    pub(crate) unsafe fn submit(&mut self, request: &IoRequest) -> Result<bool, QueueFull> {
        if request.kind == OpKind::Nop {
            self.made.push((request.key, 0));
            return Ok(false);
        }
        if self.files.admits(request)
            && let Some(place) = self.flights.add(request, self.event.as_raw_fd())
        {
            self.staged.push(place);
            return Ok(false);
        }
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { self.threads.submit(request) }
    }

    /// Completes a request with `ECANCELED` if neither the kernel nor a thread has it; any other runs to its own end.
    pub(crate) fn cancel(&mut self, key: OpKey) {
        let is_it = |place: &u32| self.flights.requests[*place as usize].is_some_and(|one| one.key == key);
        match self.staged.iter().position(is_it) {
            Some(at) => {
                let place = self.staged.remove(at);
                self.flights.remove(place);
                self.made.push((key, -libc::ECANCELED));
            }
            None => self.threads.cancel(key),
        }
    }

    /// Returns an error once, if the system refuses a thread; then `degradations` has a new entry.
    #[inline]
    pub(crate) fn complete(&mut self, wait: Wait, mut report: impl FnMut(OpKey, i32)) -> io::Result<()> {
        // A forked child has no context.
        if self.origin.is_elsewhere() {
            return Ok(());
        }
        self.send();
        let mut count = 0;
        let mut counted = |key, result| {
            count += 1;
            report(key, result);
        };
        self.take(&mut counted);
        let handed_over = self.threads.complete(Wait::Poll, &mut counted);
        if let Wait::For { completions: 1.., limit, .. } = wait
            && count == 0
        {
            return handed_over.and(self.wait(limit, report));
        }
        handed_over
    }

    /// Waits for a completion, for at most `limit`; at the end of an engine only. A thread that runs an event loop has another driver.
    #[cold]
    fn wait(&mut self, limit: Option<Duration>, mut report: impl FnMut(OpKey, i32)) -> io::Result<()> {
        // The signals so far are used up, so that the poll below waits for the next one. What they stood for is looked at after that.
        let _ = rustix::io::read(&*self.event, &mut [0u8; 8]);
        let mut count = 0;
        let mut counted = |key, result| {
            count += 1;
            report(key, result);
        };
        self.take(&mut counted);
        self.threads.complete(Wait::Poll, &mut counted)?;
        if count > 0 {
            return Ok(());
        }
        self.enters += 1;
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let _ = poll(&mut [PollFd::new(&*self.event, PollFlags::IN)], limit.as_ref());
        self.take(&mut report);
        self.threads.complete(Wait::Poll, &mut report)
    }

    /// Submits the staged requests. Requests that the kernel refuses are passed to threads.
    #[inline]
    fn send(&mut self) {
        if !self.staged.is_empty() {
            self.send_staged();
        }
    }

    fn send_staged(&mut self) {
        let Some(context) = &self.context else { return };
        self.blocks.extend(self.staged.iter().map(|&place| self.flights.blocks[place as usize].get()));
        let mut sent = 0;
        while sent < self.staged.len() {
            self.enters += 1;
            // SAFETY: the blocks lie in `flights`, and `&mut self` makes this their only user. `Driver::submit` promises that
            // memory and file of each stay until its completion is reported, which happens no earlier than its removal from the
            // context.
            let taken = unsafe { (self.submit)(context, &self.blocks[sent..]) };
            let refused = match taken {
                Ok(taken @ 1..) => {
                    sent += taken.min(self.staged.len() - sent);
                    continue;
                }
                // Too many are in flight, or the kernel lacks memory: it would refuse the others as well.
                Ok(0) => self.staged.len() - sent,
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => self.staged.len() - sent,
                // The file knows no RWF_NOWAIT, or a filter of system calls was set meanwhile.
                Err(_) => {
                    let first = self.flights.requests[self.staged[sent] as usize];
                    first.iter().for_each(|request| self.files.unsuited(request));
                    1
                }
            };
            for &place in &self.staged[sent..sent + refused] {
                if let Some(request) = self.flights.remove(place) {
                    to_thread(&mut self.threads, &mut self.made, &request);
                }
            }
            sent += refused;
        }
        self.blocks.clear();
        self.staged.clear();
    }

    /// Reports completions. Requests for which the kernel would have had to wait are passed to threads.
    #[inline]
    fn take(&mut self, mut report: impl FnMut(OpKey, i32)) {
        if self.flights.len() > self.staged.len()
            && let Some(context) = &mut self.context
        {
            let (flights, files, threads, made) =
                (&mut self.flights, &mut self.files, &mut self.threads, &mut self.made);
            let calls = context.take(|event| {
                let Some(request) = flights.remove_completed(&event) else {
                    debug_assert!(false, "a completion of an unknown request: {event:?}");
                    return report(OpKey::from_user_data(event.data), clamp(event.result));
                };
                match clamp(event.result) {
                    // Misalignment has the same errno as a refusal in some file systems; a thread finds out.
                    errno if matches!(-errno, libc::EAGAIN | libc::EINVAL) => {
                        files.refused(&request);
                        to_thread(threads, made, &request);
                    }
                    errno if -errno == libc::EOPNOTSUPP => {
                        files.unsuited(&request);
                        to_thread(threads, made, &request);
                    }
                    result => {
                        files.served(&request);
                        report(request.key, result);
                    }
                }
            });
            self.enters += calls;
        }
        for (key, result) in self.made.drain(..) {
            report(key, result);
        }
    }

    #[inline]
    pub(crate) fn has_completions(&mut self) -> bool {
        let in_kernel = self.flights.len() > self.staged.len();
        !self.made.is_empty()
            || (in_kernel && self.context.as_ref().is_some_and(Context::has_events))
            || self.threads.has_completions()
    }

    pub(crate) fn wake_handle(&self) -> WakeHandle {
        self.threads.wake_handle()
    }

    /// Adds a file, so that requests name it by its index.
    pub(crate) fn register_file(&mut self, index: u32, fd: RawFd) -> FileRegistration {
        self.files.add(index, fd);
        FileRegistration { fixed: true, route: 0, is_news: false }
    }

    pub(crate) fn unregister_file(&mut self, index: u32) {
        self.files.remove(index);
    }

    /// Registers nothing: all memory is alike.
    pub(crate) fn register_region(&mut self, _index: u16, _start: *mut u8, _len: usize) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn retire(&mut self) {}

    pub(crate) fn enters(&self) -> u64 {
        self.enters + self.threads.enters()
    }

    pub(crate) fn degradations(&mut self) -> Vec<Degradation> {
        self.threads.degradations()
    }
}

impl Drop for AioDriver {
    fn drop(&mut self) {
        let in_kernel = self.flights.len() - self.staged.len();
        if let Some(context) = self.context.take()
            && !self.origin.is_elsewhere()
            && in_kernel == 0
        {
            context.destroy();
        }
        // Else the context stays until the process ends: its end would wait for the device, and its requests have their memory still.
    }
}

/// Passes a request to the threads that the kernel has not started, or has dropped without an effect that a repetition would
/// change.
#[cold]
fn to_thread(threads: &mut ThreadsDriver, made: &mut Vec<(OpKey, i32)>, request: &IoRequest) {
    // SAFETY: the request was passed to `Driver::submit`, whose caller keeps memory and file until its completion was reported, and
    // that was not reported yet.
    if unsafe { threads.submit(request) }.is_err() {
        // The shard repeats it.
        made.push((request.key, -libc::EAGAIN));
    }
}

#[inline]
fn clamp(result: i64) -> i32 {
    result.clamp(i32::MIN.into(), i32::MAX.into()) as i32
}

#[cold]
pub(crate) fn refused(Refusal { call, error }: &Refusal) -> Degradation {
    let remedy = match error.raw_os_error() {
        Some(libc::EAGAIN) => "raise the limit of AIO requests: sysctl fs.aio-max-nr",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
        Some(libc::ENOMEM) => "free memory",
        _ => "allow io_uring, or io_setup, io_submit, io_getevents and io_destroy, in the seccomp profile",
    };
    Degradation::new(
        "worker rings",
        format!(
            "the kernel refuses io_uring, and native AIO too ({call}: {error}); operations of Tokio tasks go through the shards"
        ),
        remedy,
    )
}
