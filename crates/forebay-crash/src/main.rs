//! Power cuts for the log and the store on a real kernel and real file systems.
//!
//! `cuts` runs on the host. It keeps the virtual machine's disks in memory, with a volatile cache, and models
//! the data that must be there after a power cut. `guest` runs in the machine and writes. `vm/power-cut`
//! builds and starts both; `docs/testing.md` describes the model.

mod disk;
mod engines;
mod guest;
mod host;
mod log;
mod machine;
mod nbd;
mod random;
mod replay;
mod servers;
mod solo;
mod store;
mod subject;

use std::process::ExitCode;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(about, disable_help_subcommand = true)]
enum Command {
    /// Cuts the power of virtual machines again and again and checks the data after each cut
    Cuts(host::Options),
    /// Writes in the virtual machine
    Guest(guest::Guest),
    /// Checks each state that a disk had at a flush; runs in the virtual machine
    Replay(replay::Replay),
}

fn main() -> ExitCode {
    let ended = match Command::parse() {
        Command::Cuts(options) => host::run(&options),
        Command::Guest(guest) => guest.run().inspect_err(|error| println!("guest error {error}")),
        Command::Replay(replay) => replay.run(),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
