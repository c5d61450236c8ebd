//! One sample: the metrics that one child process measured once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::usage::Usage;

/// Metrics by name, with the unit in the name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Sample {
    metrics: BTreeMap<String, f64>,
}

impl Sample {
    /// Sets a metric; a value that is not finite is left out, because JSON cannot express it.
    pub(crate) fn set(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.metrics.insert(name.to_owned(), value);
        }
    }

    /// Returns a metric, when it was measured.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.metrics.get(name).copied()
    }

    /// Returns all metrics, by name.
    pub(crate) fn metrics(&self) -> &BTreeMap<String, f64> {
        &self.metrics
    }

    /// Sets the usage of `operations` operations, each metric per operation.
    pub(crate) fn set_usage(&mut self, used: &Usage, operations: u64) {
        let operations = operations as f64;
        self.set("cpu_us_per_io", used.cpu_ns as f64 / 1e3 / operations);
        self.set("context_switches_per_io", used.context_switches as f64 / operations);
        if crate::allocations::is_counting() {
            self.set("allocations_per_io", used.allocations as f64 / operations);
        }
        if let Some(syscalls) = used.syscalls {
            self.set("syscalls_per_io", syscalls as f64 / operations);
        }
        if let Some(writes) = used.device_writes {
            self.set("device_writes_per_io", writes as f64 / operations);
        }
        if let Some(reads) = used.device_reads {
            self.set("device_reads_per_io", reads as f64 / operations);
        }
    }
}
