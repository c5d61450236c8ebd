//! One process of several that srun or mpirun started. Rank 0 controls and participates, the others serve. They meet as
//! [`forebay_collective::rendezvous`] says, in the measured directory, which all of them name. The messages of agent and controller
//! follow.

use std::io::BufReader;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use forebay_collective::Rank;
use forebay_collective::rendezvous::Rendezvous;

use super::controller::{Carrier, Controller, Link};
use super::{Find, SILENCE_MAX, agent};
use crate::cleanup::Cleanup;

/// Waits, as rank 0, until all ranks have arrived. Its own part is an agent like those of other hosts.
///
/// # Errors
/// Fails with the ranks that did not arrive.
pub(super) fn lead(rank: &Rank, directory: &Path, cleanup: &Cleanup) -> anyhow::Result<Controller> {
    let meeting = Rendezvous::open(rank, directory).context("no port can be opened for the other ranks")?;
    let published = meeting.invitation().clone();
    let ((), _published) = cleanup
        .create(|| meeting.invitation().publish(), move || published.withdraw())
        .with_context(|| format!("the file by which ranks meet cannot be made in {}", directory.display()))?;
    let streams = meeting.gather(1..rank.size())?;
    let mut links = vec![("rank 0".to_owned(), own_link(directory)?)];
    for (rank, stream) in (1..).zip(streams) {
        let (input, output) = connection(stream)?;
        let carrier = Carrier::Stream(output.try_clone()?);
        let link = Link { input: Box::new(input), output: Box::new(output), carrier };
        links.push((format!("rank {rank}"), link));
    }
    Controller::new(links, true)
}

/// Starts rank 0's own agent.
fn own_link(directory: &Path) -> anyhow::Result<Link> {
    let program = std::env::current_exe().context("the path of this program's file is not known")?;
    let mut own = Command::new(program);
    own.args(["agent", "--stdio"]).arg(directory);
    Link::start(own)
}

/// Finds rank 0, as one of the other ranks, and serves it until it reports that all is done.
///
/// # Errors
/// Fails when rank 0 cannot be found, or nothing can be measured here.
pub(super) fn follow(rank: &Rank, directory: &Path, find: Find<'_>, cleanup: &Cleanup) -> anyhow::Result<()> {
    let (_, stream) = rank.follow(directory)?;
    let (input, output) = connection(stream)?;
    agent::serve(input, Box::new(output), directory, find, cleanup)
}

/// Returns both directions of a connection.
fn connection(stream: TcpStream) -> anyhow::Result<(BufReader<TcpStream>, TcpStream)> {
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    Ok((BufReader::new(stream.try_clone()?), stream))
}
