//! The processors of the shards, and with them the memory nodes of their memory.

mod topology;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use crate::base::affinity::Affinity;
use crate::base::error::{Error, Result};
use crate::base::health::Degradation;
use crate::device::Device;
use crate::memory::arena::Nodes;
use topology::{Topology, list};

/// The processors on which the shards run; see [`Config::placement`](crate::Config::placement).
///
/// Those that the process may not use (a control group's cpuset, `taskset`) are left out, as are offline processors. If no
/// processor is left, [`Engine::start`](crate::Engine::start) fails and names both.
///
/// ```
/// use forebay::{Config, Engine, Placement};
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::new().placement(Placement::Device("/".into())))?;
/// println!("{:?}", engine.health().processors); // of each shard; none where nothing says which node the device is on
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Placement {
    /// Wherever the kernel's scheduler puts them, and their memory with them.
    #[default]
    Unpinned,
    /// On these processors, by their numbers in `/sys/devices/system/cpu`.
    Processors(Vec<usize>),
    /// On the processors of this memory (NUMA) node, by its number in `/sys/devices/system/node`.
    Node(u32),
    /// On the processors of the node that the disks below this path are attached to: a file, a directory or a block device. Where
    /// no node is known, or the disks are on several, the shards are unpinned, which [`Engine::health`](crate::Engine::health) says
    /// with the reason.
    Device(PathBuf),
}

impl Placement {
    /// Chooses processors of this machine, among those that the calling thread may use.
    pub(crate) fn seats(&self) -> Result<Seats> {
        let device = match self {
            Placement::Unpinned => return Ok(Seats::default()),
            Placement::Device(path) => Some(Device::of_path(path)?),
            _ => None,
        };
        let allowed = Affinity::of_thread().map_err(|error| {
            Error::io("start", error)
                .with_note("the system does not say which processors may be used (Config::placement)")
        })?;
        self.seats_of(&Topology::read(Path::new("/sys")), &allowed.processors(), device.as_ref())
    }

    fn seats_of(
        &self,
        topology: &Topology,
        allowed: &BTreeSet<usize>,
        device: Option<&Device>,
    ) -> Result<Seats> {
        let named: BTreeSet<usize> = match (self, device) {
            (Placement::Processors(processors), _) => processors.iter().copied().collect(),
            (Placement::Node(node), _) => topology.node(*node).cloned().ok_or_else(|| {
                let nodes = list(&topology.nodes());
                Error::invalid(
                    "start",
                    format!("there is no memory node {node} (Config::placement), only {nodes}"),
                )
            })?,
            (Placement::Device(_), Some(device)) => match processors_near(device, topology) {
                Ok(processors) => processors,
                Err(why) => return Ok(Seats::unpinned(why)),
            },
            (Placement::Unpinned | Placement::Device(_), _) => return Ok(Seats::default()),
        };
        let usable: BTreeSet<usize> =
            allowed.iter().copied().filter(|number| topology.is_online(*number)).collect();
        let chosen: BTreeSet<usize> = named.intersection(&usable).copied().collect();
        if chosen.is_empty() {
            let (named, usable) = (list(&named), list(&usable));
            return Err(Error::invalid(
                "start",
                format!(
                    "this process may use none of the processors {named} (Config::placement), only {usable}: name others, or \
                     let it have them (cpuset of its control group, taskset)"
                ),
            ));
        }
        let order = topology.spread(&chosen).into_iter();
        let seats: Vec<Seat> =
            order.map(|processor| Seat { processor, node: topology.node_of(processor) }).collect();
        let near = |node: u32| -> BTreeSet<usize> {
            topology.node(node).map_or_else(BTreeSet::new, |members| members & &usable)
        };
        let nodes = seats.iter().map(|seat| (seat.node, Affinity::of(near(seat.node)))).collect();
        Ok(Seats { seats, nodes, degradation: None })
    }
}

/// Returns the processors of the node that all disks of a device are attached to, or the reason for a failure.
fn processors_near(device: &Device, topology: &Topology) -> std::result::Result<BTreeSet<usize>, String> {
    let nodes: BTreeSet<Option<u32>> = device.numa_nodes().collect();
    let mut nodes = nodes.into_iter();
    match (nodes.next(), nodes.next()) {
        (Some(Some(node)), None) => match topology.node(node).filter(|members| !members.is_empty()) {
            Some(members) => Ok(members.clone()),
            None => Err(format!("{device} is attached to memory node {node}, which has no processors")),
        },
        (_, Some(_)) => Err(format!("the disks of {device} are not all attached to the same memory node")),
        _ => Err(format!("the system does not say which memory node {device} is attached to")),
    }
}

/// The processors that a placement chose for shards.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    /// In the order of the shards, cyclically. Empty: the shards are unpinned.
    seats: Vec<Seat>,
    /// The processors that the process may use of each node with a seat.
    nodes: BTreeMap<u32, Affinity>,
    /// Why nothing is pinned although that was wanted.
    degradation: Option<Degradation>,
}

#[derive(Clone, Copy, Debug)]
struct Seat {
    processor: usize,
    node: u32,
}

impl Seats {
    fn unpinned(why: String) -> Seats {
        let remedy = "name the node or the processors: Placement::Node, Placement::Processors";
        Seats { degradation: Some(Degradation::new("placement", why, remedy)), ..Seats::default() }
    }

    /// Returns the reason for which the shards are not where they were wanted.
    pub(crate) fn degradation(&self) -> Option<&Degradation> {
        self.degradation.as_ref()
    }

    /// Returns how many of the host's processors the shards may use.
    pub(crate) fn limit(&self, processors: usize) -> usize {
        if self.seats.is_empty() { processors } else { processors.min(self.seats.len()) }
    }

    /// Returns the processor of each of this many shards; empty for unpinned shards.
    pub(crate) fn processors(&self, shards: usize) -> Vec<usize> {
        self.of(shards).map(|seat| seat.processor).collect()
    }

    /// Returns the nodes of this many shards.
    pub(crate) fn nodes(&self, shards: usize) -> Nodes {
        let used: BTreeSet<u32> = self.of(shards).map(|seat| seat.node).collect();
        let affinities = used.iter().filter_map(|node| self.nodes.get(node)).copied().collect();
        let of_shards = self.of(shards).map(|seat| used.range(..seat.node).count()).collect();
        Nodes::new(affinities, of_shards)
    }

    /// Keeps the calling thread, a shard's, on that shard's processor.
    pub(crate) fn pin_shard(&self, shard: usize) -> io::Result<()> {
        let seat = self.seats.iter().cycle().nth(shard);
        seat.map_or(Ok(()), |seat| Affinity::of([seat.processor]).pin())
    }

    /// Keeps the calling thread, a runtime's worker, on the processors of all seats: workers steal each other's tasks, which run on
    /// any idle worker.
    pub(crate) fn pin_worker(&self) -> io::Result<()> {
        if self.seats.is_empty() {
            return Ok(());
        }
        Affinity::of(self.seats.iter().map(|seat| seat.processor)).pin()
    }

    fn of(&self, shards: usize) -> impl Iterator<Item = Seat> {
        self.seats.iter().copied().cycle().take(shards)
    }
}

#[cfg(test)]
mod tests;
