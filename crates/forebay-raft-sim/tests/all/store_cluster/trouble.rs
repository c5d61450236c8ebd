//! What happens to the nodes of a world.

use std::collections::BTreeSet;
use std::time::Duration;

use forebay_sim::{self as sim, net};
use openraft::SnapshotPolicy;

use crate::common::{MS, SECOND, Work};
use crate::store_cluster::ledger::Cluster;
use crate::store_cluster::node::{leader, run_node};

/// What happens to the nodes of a world.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Trouble {
    /// Links are cut, one way or both.
    Links,
    /// Nodes lose their power, and clocks drift.
    Power,
    /// Both.
    All,
    /// A node loses its power when it has just granted its vote, and the old leader, which knows nothing of the new one, is the
    /// first to reach it afterwards.
    Votes,
    /// Leaders are cut off, still accept requests, and lose their power when they have just truncated those.
    Truncations,
    /// Nodes are cut off or have no power until they need a snapshot, and lose their power while they install it.
    Installs,
    /// Nodes lose their power when they have just flushed their store while entries were applied. Without snapshots, so that
    /// flushes decide how old their state is.
    Flushes,
    /// All nodes lose their power when a majority was just given entries.
    Acknowledgements,
}

impl Trouble {
    pub(crate) fn work(self) -> Work {
        match self {
            Trouble::Installs => Work { operations: 50, pause_us_max: 80_000, text_bytes: 3_000 },
            Trouble::Truncations => Work { operations: 40, pause_us_max: 150_000, text_bytes: 1_000 },
            Trouble::Flushes => Work { operations: 30, pause_us_max: 80_000, text_bytes: 300 },
            _ => Work { operations: 20, pause_us_max: 150_000, text_bytes: 3_000 },
        }
    }

    /// Returns the number of troubles, and the longest pauses before and after each, in microseconds.
    fn rounds(self) -> (u32, u64, u64) {
        match self {
            Trouble::Votes | Trouble::Truncations => (4, 200_000, 300_000),
            // While the clients are at work.
            Trouble::Installs => (7, 50_000, 250_000),
            Trouble::Flushes => (10, 100_000, 100_000),
            Trouble::Acknowledgements => (4, 100_000, 300_000),
            _ => (5, 500_000, 700_000),
        }
    }

    /// Snapshots and purges happen in every world but those without.
    pub(crate) fn snapshots(self) -> SnapshotPolicy {
        match self {
            Trouble::Flushes => SnapshotPolicy::Never,
            _ => SnapshotPolicy::LogsSinceLast(6),
        }
    }

    /// Returns how often a node loses its power in an install, in percent.
    pub(crate) fn cuts_in_installs_percent(self) -> u64 {
        match self {
            Trouble::Links => 0,
            Trouble::Installs => 75,
            _ => 33,
        }
    }
}

pub(crate) async fn pause(us_max: u64) {
    let _ = sim::sleep(Duration::from_micros(sim::random(us_max))).await;
}

fn some_node(cluster: &Cluster) -> u32 {
    1 + sim::random(u64::from(cluster.nodes)) as u32
}

fn cut_links(cluster: &Cluster) {
    let node = some_node(cluster);
    let others: Vec<u32> = (1..=cluster.nodes).filter(|&other| other != node).collect();
    match sim::random(3) {
        0 => net::cut(node, others[sim::random(others.len() as u64) as usize]),
        // It sends and hears nothing, or only hears.
        1 => others.iter().for_each(|&other| net::cut(node, other)),
        _ => net::partition(&[&[node], &others]),
    }
}

/// Starts the nodes that have no power.
pub(crate) fn start_all(cluster: &Cluster) {
    for node in (1..=cluster.nodes).filter(|&node| !sim::node(node).is_on()) {
        sim::node(node).power_on();
        drop(sim::node(node).spawn(run_node(node, cluster.clone())));
    }
}

/// Cuts the power of one, two or all nodes, and starts them again.
async fn cut_power(cluster: &Cluster) {
    let (first, nodes) = (some_node(cluster), cluster.nodes);
    let count = [1, 1, 2, nodes][sim::random(4) as usize];
    let off: Vec<u32> = (0..count).map(|at| 1 + (first - 1 + at) % nodes).collect();
    if sim::random(2) == 0 {
        // In the middle of its disk operations.
        off.iter().for_each(|&node| sim::node(node).power_cut_at_operation(1 + sim::random(60)));
        pause(300_000).await;
    }
    for &node in &off {
        sim::node(node).power_cut().await;
    }
    pause([5_000, 800_000][sim::random(2) as usize]).await;
    start_all(cluster);
    let other = sim::node(some_node(cluster));
    other.set_drift_ppm(sim::random(100_000) as i32 - 50_000);
    if sim::random(4) == 0 {
        other.advance_clock(Duration::from_micros(sim::random(400_000)));
    }
}

/// Splits the nodes: the leader with as many others as are less than half, and the rest.
async fn sides(cluster: &Cluster) -> Option<(Vec<u32>, Vec<u32>)> {
    let all: Vec<u32> = (1..=cluster.nodes).collect();
    let first = leader(&all).await?;
    let all: Vec<u32> = (0..cluster.nodes).map(|at| 1 + (first - 1 + at) % cluster.nodes).collect();
    let (old, rest) = all.split_at((cluster.nodes as usize - 1) / 2);
    Some((old.to_vec(), rest.to_vec()))
}

/// Waits until one of some nodes has no power; at most `time`.
async fn wait_for_a_cut(nodes: &[u32], time: Duration) {
    let began = sim::world_time();
    while sim::world_time() - began < time && nodes.iter().all(|&node| sim::node(node).is_on()) {
        let _ = sim::sleep(5 * MS).await;
    }
}

/// Lets the other side elect a leader, and cuts the power of a node that has just granted its vote: see `Cluster::granted`.
/// What it does next it does with the old leader, and only then it meets the new one.
async fn cut_a_voter(cluster: &Cluster) {
    let Some((old, rest)) = sides(cluster).await else { return };
    net::partition(&[&old, &rest]);
    cluster.ledger().old_side = Some(old.clone());
    wait_for_a_cut(&rest, 2 * SECOND).await;
    cluster.ledger().old_side = None;
    start_all(cluster);
    wait_for_a_cut(&rest, 400 * MS).await;
    cluster.ledger().voter = None;
    net::heal_all();
    net::partition(&[&old, &rest]);
    start_all(cluster);
    pause(600_000).await;
}

/// Cuts a leader off while it accepts requests, and reconnects it to a new leader.
async fn cut_a_leader_off(cluster: &Cluster) {
    let Some((old, rest)) = sides(cluster).await else { return };
    net::partition(&[&old, &rest]);
    for _ in 0..40 {
        let _ = sim::sleep(50 * MS).await;
        if leader(&rest).await.is_some() {
            break;
        }
    }
    pause(200_000).await;
    net::heal_all();
    wait_for_a_cut(&old, 300 * MS).await;
    if sim::random(2) == 0 {
        // The reconnected nodes are needed for the next election.
        net::partition(&[&old, &rest[..1], &rest[1..]]);
        net::heal(old[0], rest[0]);
        net::heal(rest[0], old[0]);
    }
    start_all(cluster);
    pause(600_000).await;
}

/// Cuts the power of all nodes when a majority was just given entries.
async fn cut_all_at_an_append(cluster: &Cluster) {
    cluster.ledger().given = Some(BTreeSet::new());
    for _ in 0..50 {
        let _ = sim::sleep(10 * MS).await;
        if (1..=cluster.nodes).all(|node| !sim::node(node).is_on()) {
            break;
        }
    }
    cluster.ledger().given = None;
    start_all(cluster);
}

/// Keeps a node away until the others have purged what it needs.
async fn keep_away(cluster: &Cluster) {
    let node = some_node(cluster);
    let others: Vec<u32> = (1..=cluster.nodes).filter(|&other| other != node).collect();
    if sim::random(2) == 0 {
        sim::node(node).power_cut().await;
    } else {
        net::partition(&[&[node], &others]);
    }
    let _ = sim::sleep(300 * MS).await;
    pause(300_000).await;
    net::heal_all();
    start_all(cluster);
}

/// Makes trouble, one after the other.
pub(crate) async fn trouble(cluster: &Cluster) {
    let (rounds, before_us_max, after_us_max) = cluster.kind.rounds();
    for _ in 0..rounds {
        pause(before_us_max).await;
        match cluster.kind {
            Trouble::Links => cut_links(cluster),
            Trouble::All if sim::random(2) == 0 => cut_links(cluster),
            Trouble::Power | Trouble::All => cut_power(cluster).await,
            // See the task that flushes.
            Trouble::Flushes => pause(200_000).await,
            Trouble::Acknowledgements => cut_all_at_an_append(cluster).await,
            Trouble::Votes => cut_a_voter(cluster).await,
            Trouble::Truncations => cut_a_leader_off(cluster).await,
            Trouble::Installs => keep_away(cluster).await,
        }
        pause(after_us_max).await;
        if sim::random(3) != 0 {
            net::heal_all();
        }
        start_all(cluster);
    }
}
