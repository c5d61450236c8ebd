//! `forebay-versus`: Forebay beside its peers. Every row is the same work through another library, every
//! sample a process of its own, all rows in turn; docs/benchmarks.md describes how to run it and how to read
//! its output.

mod allocations;
mod cache;
mod cell;
mod child;
mod cli;
mod clock;
mod content;
mod device_writes;
mod environment;
mod fio;
mod gate;
mod interrupt;
mod kv;
mod memory;
mod memory_limit;
mod meter;
mod nop;
mod page_cache;
mod peers;
mod random;
mod ranges;
mod report;
mod rng;
mod sample;
mod scan;
mod scratch;
mod statistics;
mod syscalls;
mod test_file;
mod usage;
mod wal;
mod zram;

use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Command};

#[global_allocator]
static ALLOCATOR: allocations::CountingAllocator = allocations::CountingAllocator;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("forebay-versus: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    let (missed, check) = match Cli::parse().command {
        Command::Sample { job, syscall_event } => {
            child::run(&job, syscall_event)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Random(options) => (guarded(|| random::run(&options))?, options.common.check),
        Command::Scan(options) => (guarded(|| scan::run(&options))?, options.common.check),
        Command::Ranges(options) => (guarded(|| ranges::run(&options))?, options.common.check),
        Command::Nop(options) => (guarded(|| nop::run(&options))?, options.common.check),
        Command::Wal(options) => (guarded(|| wal::run(&options))?, options.common.check),
        Command::Cache(options) => (guarded(|| cache::run(&options))?, options.common.check),
        Command::Kv(options) => (guarded(|| kv::run(&options))?, options.common.check),
    };
    Ok(if check && missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs an experiment with signals caught, so that its guards remove everything it added.
fn guarded(experiment: impl FnOnce() -> anyhow::Result<usize>) -> anyhow::Result<usize> {
    interrupt::catch();
    if environment::load_average().is_some_and(|load| load > 0.7) {
        eprintln!(
            "the machine is busy with other work (load average above 0.7): the figures will not be worth much"
        );
    }
    experiment()
}
