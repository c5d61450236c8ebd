//! The native half of the Python package `forebay`; its Python half is in `python/forebay`, its manual in docs/python.md.
//!
//! From the bottom up: `fault` (errors as Python's), `turns` (how many files batches have open), `process` (the one engine of a process,
//! forks, the end of the interpreter) and `memory` (destinations and sources that Python owns), `ranges` (arguments), `job` (the
//! operations), `drive` (a thread that waits for one) and `hub` (an asyncio loop that does), `scan`, `file`, `files`, `tensors`, `figures`
//! (what programs call).
// A library neither panics on bad input or failed I/O, nor prints, nor ends the program. Tests may.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::exit
    )
)]

use pyo3::prelude::*;

mod drive;
mod fault;
mod figures;
mod file;
mod files;
mod hub;
mod job;
mod memory;
mod process;
mod ranges;
mod scan;
mod tensors;
mod turns;

/// Fills the module `forebay._forebay`.
///
/// # Errors
/// ImportError in an interpreter that is not the first of its process.
#[pymodule(gil_used = true)]
fn _forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    process::prepare(module.py())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", module.py().get_type::<fault::Error>())?;
    module.add_class::<file::File>()?;
    module.add_class::<files::Files>()?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<memory::Block>()?;
    module.add_class::<scan::Scan>()?;
    module.add_class::<hub::Hub>()?;
    module.add_class::<hub::Call>()?;
    module.add_function(wrap_pyfunction!(process::configure, module)?)?;
    module.add_function(wrap_pyfunction!(process::close_at_exit, module)?)?;
    module.add_function(wrap_pyfunction!(figures::stats, module)?)?;
    module.add_function(wrap_pyfunction!(figures::doctor, module)?)?;
    module.add_function(wrap_pyfunction!(memory::allocate, module)?)?;
    module.add_function(wrap_pyfunction!(file::read_many, module)?)?;
    module.add_function(wrap_pyfunction!(file::_begin_read_many, module)?)?;
    module.add_function(wrap_pyfunction!(tensors::parse_header, module)?)?;
    module.add_function(wrap_pyfunction!(tensors::slice_ranges, module)?)?;
    Ok(())
}
