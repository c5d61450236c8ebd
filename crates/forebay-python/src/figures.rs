//! The engine's figures and its health, as Python's dictionaries.

use forebay::{Engine, MemoryStats, Stats};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::fault::Fault;
use crate::process;

/// Returns the engine's figures since its start: memory, reads and writes by device, hits of the page cache, shards.
///
/// Costs a message to each shard. Starts the engine if it does not run yet.
#[pyfunction]
pub(crate) fn stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let engine = process::engine(py)?;
    let stats = py.detach(|| engine.stats().wait()).map_err(|error| Fault::new(error).into_py(py))?;
    let all = PyDict::new(py);
    all.set_item("driver", engine.driver())?;
    all.set_item("memory", of_memory(py, &stats.memory)?)?;
    all.set_item("page_cache", of_page_cache(py, &stats)?)?;
    all.set_item("devices", of_devices(py, &stats)?)?;
    all.set_item("shards", of_shards(py, &stats)?)?;
    all.set_item("calls_by_waiting_threads", stats.wait_calls)?;
    Ok(all)
}

fn of_memory<'py>(py: Python<'py>, memory: &MemoryStats) -> PyResult<Bound<'py, PyDict>> {
    let part = PyDict::new(py);
    part.set_item("arena_bytes", memory.arena_bytes)?;
    part.set_item("arena_bytes_max", memory.arena_bytes_max)?;
    part.set_item("held_bytes", memory.held_bytes)?;
    part.set_item("overflow_bytes", memory.overflow_bytes)?;
    part.set_item("result_bytes", memory.result_bytes)?;
    part.set_item("leaked_lends", memory.leaked_lends)?;
    Ok(part)
}

fn of_page_cache<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let part = PyDict::new(py);
    part.set_item("reads", stats.page_cache_reads)?;
    part.set_item("bytes", stats.page_cache_bytes)?;
    part.set_item("misses", stats.page_cache_misses)?;
    part.set_item("skips", stats.page_cache_skips)?;
    Ok(part)
}

fn of_devices<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for flow in &stats.flows {
        let part = PyDict::new(py);
        part.set_item("device", &flow.device)?;
        part.set_item("class", &flow.class)?;
        part.set_item("reads", flow.reads)?;
        part.set_item("read_bytes", flow.read_bytes)?;
        part.set_item("read_bytes_asked", flow.read_bytes_asked)?;
        part.set_item("writes", flow.writes)?;
        part.set_item("write_bytes", flow.write_bytes)?;
        part.set_item("syncs", flow.syncs)?;
        part.set_item("failures", flow.failures)?;
        part.set_item("device_ns_p50", flow.device_ns.ns_at(0.5))?;
        part.set_item("device_ns_p99", flow.device_ns.ns_at(0.99))?;
        list.append(part)?;
    }
    Ok(list)
}

fn of_shards<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for shard in &stats.shards {
        let part = PyDict::new(py);
        part.set_item("in_flight", shard.in_flight)?;
        part.set_item("turns", shard.turns)?;
        part.set_item("enters", shard.enters)?;
        list.append(part)?;
    }
    Ok(list)
}

/// Returns the state of the engine: its driver, its shards, and each thing that is slower here than it could be, with the reason and
/// the remedy. The program `forebay doctor` looks at the whole machine.
#[pyfunction]
pub(crate) fn doctor(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let engine: &Engine = process::engine(py)?;
    let health = engine.health();
    let all = PyDict::new(py);
    all.set_item("driver", health.driver)?;
    all.set_item("shards", health.shards)?;
    let degraded = PyList::empty(py);
    for degradation in &health.degraded {
        let part = PyDict::new(py);
        part.set_item("what", &degradation.what)?;
        part.set_item("why", &degradation.why)?;
        part.set_item("remedy", &degradation.remedy)?;
        degraded.append(part)?;
    }
    all.set_item("degraded", degraded)?;
    all.set_item("text", health.to_string())?;
    Ok(all)
}
