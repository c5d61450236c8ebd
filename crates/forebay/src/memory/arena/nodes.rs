//! The memory nodes of an arena's regions. The kernel takes a page from the node of the thread that touches it first.

use crate::base::affinity::Affinity;

/// The memory nodes of the shards; without any, a region is of the node of the thread that maps it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// The processors of each.
    processors: Vec<Affinity>,
    /// The node of each shard with one, by its place in `processors`.
    of_shards: Vec<usize>,
}

impl Nodes {
    pub(crate) fn new(processors: Vec<Affinity>, of_shards: Vec<usize>) -> Nodes {
        debug_assert!(
            of_shards.iter().all(|node| *node < processors.len()),
            "a shard's node is one of these"
        );
        Nodes { processors, of_shards }
    }

    /// Returns how many nodes regions are of; one where nothing is known of them.
    pub(super) fn count(&self) -> usize {
        self.processors.len().max(1)
    }

    /// Returns the node whose memory this shard uses first; `None` where all regions are of one node, and for shards without a
    /// thread.
    pub(super) fn of(&self, shard: u16) -> Option<usize> {
        self.of_shards.get(usize::from(shard)).copied().filter(|_| self.processors.len() > 1)
    }

    /// Returns the node of a region that no shard asked for, by the number of regions before it: each in turn.
    pub(super) fn in_turn(&self, regions: usize) -> usize {
        regions % self.count()
    }

    /// Runs `map`, which touches new memory, on a processor of the node.
    pub(super) fn run_on<T>(&self, node: usize, map: impl FnOnce() -> T) -> T {
        match self.processors.get(node) {
            Some(processors) => processors.run(map),
            None => map(),
        }
    }
}
