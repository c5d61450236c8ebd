//! One inner level of a table being written: kept in memory, as finished nodes, until the levels below are
//! written.

use crate::node::build::Content;
use crate::node::{Builder, Child, Identity, UNIT};

/// A level that receives the nodes of the level below, in order.
pub(super) struct Level {
    number: u8,
    builder: Builder,
    /// Maximum bytes of the node being built.
    capacity: usize,
    nodes: Nodes,
    children: u64,
}

/// Finished nodes, which do not have their positions yet.
#[derive(Default)]
pub(super) struct Nodes {
    bytes: Vec<u8>,
    separators: Vec<u8>,
    /// The ends of each node's bytes and of its separator.
    ends: Vec<(usize, usize)>,
}

impl Level {
    pub(super) fn new(number: u8) -> Level {
        Level { number, builder: Builder::default(), capacity: UNIT, nodes: Nodes::default(), children: 0 }
    }

    pub(super) fn number(&self) -> u8 {
        self.number
    }

    /// Returns the number of nodes of the level below.
    pub(super) fn children(&self) -> u64 {
        self.children
    }

    /// Adds a node of the level below; `separator` is at or below all its keys, and above those before it.
    pub(super) fn push(&mut self, separator: &[u8], child: Child, table: u32) {
        self.children += 1;
        let mut needs = self.builder.len_with(separator, 8);
        if needs > self.capacity && self.builder.count() > 1 {
            self.close(table);
            needs = self.builder.len_with(separator, 8);
        }
        debug_assert!(
            self.builder.count() < 2 || needs <= self.capacity,
            "an inner node is closed before it has more than it holds"
        );
        if self.builder.count() < 2 {
            self.capacity = needs.next_multiple_of(UNIT);
        }
        self.builder.push(separator, Content::Child(child));
    }

    /// Returns the bytes of the level's nodes so far.
    pub(super) fn len(&self) -> usize {
        self.nodes.bytes.len() + self.builder.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let nodes = &self.nodes;
        let ends = nodes.ends.capacity() * size_of::<(usize, usize)>();
        nodes.bytes.capacity() + nodes.separators.capacity() + ends + self.builder.memory_bytes()
    }

    pub(super) fn finish(mut self, table: u32) -> Nodes {
        if !self.builder.is_empty() {
            self.close(table);
        }
        self.nodes
    }

    fn close(&mut self, table: u32) {
        let nodes = &mut self.nodes;
        nodes.separators.extend_from_slice(self.builder.first_key());
        let begin = nodes.bytes.len();
        nodes.bytes.resize(begin + self.builder.len().next_multiple_of(UNIT), 0);
        // Two separators always fit into the largest node; the position is set when the node is written.
        let fits = self
            .builder
            .finish(&mut nodes.bytes[begin..], Identity { table, position: 0, level: self.number });
        debug_assert!(fits, "two separators fit into a node");
        nodes.ends.push((nodes.bytes.len(), nodes.separators.len()));
        self.capacity = UNIT;
    }
}

impl Nodes {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns each node's separator and bytes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let begins = std::iter::once((0, 0)).chain(self.ends.iter().copied());
        begins
            .zip(&self.ends)
            .map(|(begin, end)| (&self.separators[begin.1..end.1], &self.bytes[begin.0..end.0]))
    }
}
