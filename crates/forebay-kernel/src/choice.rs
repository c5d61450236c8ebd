//! Selection of the engine that runs the walks of a [`KernelWalk`](crate::KernelWalk), and the reason for it.

use std::sync::Arc;

use forebay::{Engine, File};

use crate::engine_failure::EngineFailure;
use crate::error::{Error, Result};
use crate::inside::Inside;
use crate::layout;
use crate::on_shard::OnShard;
use crate::options::{EngineKind, Options};
use crate::program::Program;
use crate::reactor::Start;
use crate::worker::{Outcome, Worker};

/// Advice for the case that walks run in the reactor.
pub(crate) const REMEDY: &str = "`forebay doctor` says what is missing, docs/kernel-walks.md how to get it; \
                                 Options::only(EngineKind::Reactor) asks for the reactor";

/// Starts the best engine inside the kernel, and returns it with the reason for the choice. Returns no engine
/// where the reactor is the best.
///
/// # Errors
/// The engine that the caller requested does not work here.
pub(crate) fn start<P: Program>(
    engine: &Engine,
    program: &Arc<P>,
    file: &File,
    options: &Options,
    broken: &Arc<EngineFailure>,
) -> Result<(Option<Side<P>>, String)> {
    if options.only == Some(EngineKind::Reactor) {
        return Ok((None, "the reactor was asked for".to_owned()));
    }
    let mut refused = Vec::new();
    for kind in Inside::wanted(options) {
        match try_one(engine, program, file, *kind, options, broken) {
            Ok((side, place)) => return Ok((Some(side), chosen(*kind, &place, &refused))),
            Err(why) if options.only.is_some() => return Err(Error::Unavailable(why)),
            Err(why) => refused.push((*kind, why)),
        }
    }
    // The last refusal is of the engine that got furthest.
    let last: Vec<_> = refused.pop().into_iter().collect();
    let why = format!("the reactor{}{}", impossible(&last, ", because"), impossible(&refused, ";"));
    Ok((None, why))
}

/// Returns the reason for this engine, and for each better one that was refused.
fn chosen(kind: EngineKind, place: &str, refused: &[(EngineKind, String)]) -> String {
    let why = match kind {
        EngineKind::Module => "it is loaded, and took this file and this program",
        _ => "this kernel runs BPF programs in io_uring's loop, and took this one",
    };
    format!("{kind}: {why}{place}{}", impossible(refused, ";"))
}

fn impossible(refused: &[(EngineKind, String)], before: &str) -> String {
    refused.iter().map(|(kind, why)| format!("{before} {kind} is not possible: {why}")).collect()
}

fn try_one<P: Program>(
    engine: &Engine,
    program: &Arc<P>,
    file: &File,
    kind: EngineKind,
    options: &Options,
    broken: &Arc<EngineFailure>,
) -> std::result::Result<(Side<P>, String), String> {
    if engine.driver() == "sim" {
        return Err("a simulated world has no kernel".to_owned());
    }
    let thread = || Worker::start(program, file, kind, options, broken).map(Side::Thread);
    if kind != EngineKind::Module {
        return Ok((thread()?, String::new()));
    }
    let of_its_own = "; its walks have a thread and a ring of their own";
    if options.polled {
        return Ok((thread()?, format!("{of_its_own}, as a shard's ring does not poll")));
    }
    match file.command_shard() {
        Ok(shard) => {
            let place = format!("; its walks are on the ring of shard {}", shard.index());
            Ok((OnShard::open(program, file, shard, options, broken).map(Side::Shard)?, place))
        }
        Err(why) => Ok((thread()?, format!("{of_its_own}, as no shard's ring takes them ({why})"))),
    }
}

/// The source of the walks of an engine inside the kernel.
pub(crate) enum Side<P: Program> {
    /// From a thread that is there for them.
    Thread(Worker<P::Output>),
    /// From the ring of one of the engine's shards.
    Shard(OnShard<P>),
}

impl<P: Program> Side<P> {
    pub(crate) fn kind(&self) -> EngineKind {
        match self {
            Side::Thread(worker) => worker.kind,
            Side::Shard(_) => EngineKind::Module,
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        match self {
            Side::Thread(worker) => worker.is_broken(),
            Side::Shard(session) => session.is_broken(),
        }
    }

    /// Returns the number of calls into the kernel, of runs of the loop's program there, and of commands.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        match self {
            Side::Thread(worker) => {
                let (enters, steps) = worker.counts();
                (enters, steps, 0)
            }
            Side::Shard(session) => (0, 0, session.commands()),
        }
    }

    /// Starts a walk.
    pub(crate) fn send(&self, start: Start) -> Outcome<P::Output> {
        match self {
            Side::Thread(worker) => worker.send(start),
            Side::Shard(session) => session.send(start),
        }
    }

    /// Starts many walks with one message.
    pub(crate) fn send_many(&self, starts: &[Start]) -> Vec<Outcome<P::Output>> {
        match self {
            Side::Thread(worker) => worker.send_many(starts),
            Side::Shard(session) => session.send_many(starts),
        }
    }

    /// Ends the walks, and waits until the kernel has released the file.
    pub(crate) fn close(self) {
        match self {
            Side::Thread(worker) => worker.close(),
            Side::Shard(session) => session.close(),
        }
    }
}

/// Checks that the program's page size is possible, and that reads of the file can return such pages.
///
/// # Errors
/// The reason why they cannot.
pub(crate) fn check<P: Program>(program: &P, file: &File) -> Result<()> {
    check_numbers(program)?;
    let (bytes, needed) = (program.page_bytes(), file.alignment().read_offset);
    if bytes.is_multiple_of(needed) {
        return Ok(());
    }
    let name = program.name();
    Err(Error::Unavailable(format!(
        "the program {name} has pages of {bytes} bytes, and a direct read of this file takes multiples of {needed}"
    )))
}

/// Checks that the program's page size, and its number of pages at once, are possible.
///
/// # Errors
/// The reason why they are not.
pub(crate) fn check_numbers<P: Program>(program: &P) -> Result<()> {
    let bytes = program.page_bytes();
    let known = (layout::PAGE_BYTES_MIN as u32..=layout::PAGE_BYTES_MAX as u32).contains(&bytes);
    let reads = 1..=layout::READS_MAX as u32;
    let wrong = if !known || !bytes.is_power_of_two() {
        format!(
            "the program {} has pages of {bytes} bytes; they are a power of two from 512 to 65,536",
            program.name()
        )
    } else if !reads.contains(&program.fan_out()) {
        format!("the program {} asks for {} pages at once; 1 to 16 work", program.name(), program.fan_out())
    } else {
        return Ok(());
    };
    Err(Error::Unavailable(wrong))
}
