//! The metrics of one sample of random reads, measured the same way for every row.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::clock::Clock;
use crate::sample::Sample;
use crate::usage::Usage;

/// The stretch of time that counts: it opens after the warm-up and closes after the measuring time. The first
/// thread to finish an operation beyond either end reads the process's usage there.
#[derive(Debug)]
pub(crate) struct Window {
    clock: Clock,
    open: u64,
    close: u64,
    at_open: OnceLock<Usage>,
    at_close: OnceLock<Usage>,
}

impl Window {
    /// Returns a window that opens `warm_up` from now and stays open for `measure`.
    pub(crate) fn start(warm_up: Duration, measure: Duration) -> Arc<Self> {
        let clock = Clock::calibrated();
        let open = clock.now() + clock.ticks(warm_up);
        let close = open + clock.ticks(measure);
        Arc::new(Self { clock, open, close, at_open: OnceLock::new(), at_close: OnceLock::new() })
    }

    /// Returns a meter for one thread of this window.
    pub(crate) fn meter(self: &Arc<Self>) -> Meter {
        Meter {
            window: Arc::clone(self),
            operations: 0,
            opened: false,
            latencies: Histogram::new_with_bounds(1, 1 << 36, 2).ok(),
        }
    }

    /// Returns the sample, from the meters of all threads.
    pub(crate) fn sample(&self, meters: impl IntoIterator<Item = Meter>) -> Sample {
        let mut operations = 0;
        let mut latencies: Option<Histogram<u32>> = None;
        for meter in meters {
            operations += meter.operations;
            match (&mut latencies, meter.latencies) {
                (Some(all), Some(part)) => _ = all.add(part),
                (None, part) => latencies = part,
                (Some(_), None) => {}
            }
        }
        let mut sample = Sample::default();
        let elapsed_us = self.clock.us(self.close - self.open);
        sample.set("iops", operations as f64 / elapsed_us * 1e6);
        sample.set("ios", operations as f64);
        if let Some(latencies) = latencies {
            sample.set("p50_us", self.clock.us(latencies.value_at_quantile(0.50)));
            sample.set("p99_us", self.clock.us(latencies.value_at_quantile(0.99)));
        }
        if let (Some(begin), Some(end)) = (self.at_open.get(), self.at_close.get()) {
            sample.set_usage(&end.since(begin), operations);
        }
        sample
    }
}

/// Counts the operations of one thread. Not shared between threads: sharing would add to the cost under test.
#[derive(Debug)]
pub(crate) struct Meter {
    window: Arc<Window>,
    operations: u64,
    opened: bool,
    latencies: Option<Histogram<u32>>,
}

impl Meter {
    /// Returns the present, as the start of an operation.
    #[inline]
    pub(crate) fn begin(&self) -> u64 {
        self.window.clock.now()
    }

    /// Notes that an operation which began at `began` has completed. Returns the present, as the start of the
    /// next one, or `None` when the window has closed.
    #[inline]
    pub(crate) fn finish(&mut self, began: u64) -> Option<u64> {
        let now = self.window.clock.now();
        if now < self.window.open {
            return Some(now);
        }
        if !self.opened {
            self.opened = true;
            self.window.at_open.get_or_init(Usage::now);
        }
        if now >= self.window.close {
            self.window.at_close.get_or_init(Usage::now);
            return None;
        }
        self.operations += 1;
        if let Some(latencies) = &mut self.latencies {
            latencies.saturating_record(now - began);
        }
        Some(now)
    }
}

/// One meter for all tasks of a single-threaded runtime.
#[derive(Clone, Debug)]
pub(crate) struct LocalMeter(Rc<RefCell<Meter>>);

impl LocalMeter {
    /// Returns a meter of `window` to be cloned into the tasks of this thread.
    pub(crate) fn new(window: &Arc<Window>) -> Self {
        Self(Rc::new(RefCell::new(window.meter())))
    }

    /// See [`Meter::begin`].
    #[inline]
    pub(crate) fn begin(&self) -> u64 {
        self.0.borrow().begin()
    }

    /// See [`Meter::finish`].
    #[inline]
    pub(crate) fn finish(&self, began: u64) -> Option<u64> {
        self.0.borrow_mut().finish(began)
    }

    /// Returns the sample, when all tasks have ended.
    pub(crate) fn sample(&self, window: &Arc<Window>) -> Sample {
        window.sample([self.take(window)])
    }

    /// Returns the counts, for a sample of several threads.
    pub(crate) fn take(&self, window: &Arc<Window>) -> Meter {
        self.0.replace(window.meter())
    }
}
