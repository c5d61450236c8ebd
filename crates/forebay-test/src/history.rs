//! Checks histories of transactions on lists against an isolation level.
//!
//! Transactions read whole lists and append numbers that are never used twice. So each list shows the order of the
//! transactions that wrote it, and each read shows which of them it saw. From that follow the dependencies between
//! transactions: one wrote after another (ww), read what another wrote (wr), or read what another overwrote later (rw).
//! A level forbids some of their cycles (Adya, Liskov and O'Neil 2000; for snapshot isolation Cerone and Gotsman 2018).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};

/// An isolation level to check against. Both include that a transaction sees all that had returned before it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Snapshot isolation: a cycle has two neighbouring rw dependencies.
    Snapshot,
    /// Serializable: the graph has no cycle.
    Serializable,
}

/// The outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has committed.
    Committed,
    /// It has certainly written nothing.
    Aborted,
    /// Its outcome was lost, by a power cut for example: it counts if another one sees it.
    Unknown,
}

/// An operation of a transaction on the list with this number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The list as it was read.
    Read(u64, Vec<u64>),
    /// A number was appended.
    Append(u64, u64),
}

/// A transaction of a history.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// The times of its start and of its known outcome; of any clock or counter that never decreases.
    pub began: u64,
    /// See `began`; `u64::MAX` if the outcome was lost.
    pub ended: u64,
    /// The outcome.
    pub fate: Fate,
    /// Its operations, in their order.
    pub operations: Vec<Operation>,
}

/// A violation of a level, with the transactions that show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// The common name of the anomaly.
    pub name: &'static str,
    /// The observation.
    pub text: String,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.text)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Dependency {
    Writes,
    Reads,
    Overwrites,
    /// One had returned before the other started.
    Time,
}

/// Returns the first violation of a level in a history, if any.
///
/// # Errors
/// The violation.
pub fn check(history: &[Transaction], level: Level) -> Result<(), Anomaly> {
    let anomaly = |name, text: String| Err(Anomaly { name, text });
    let mut writers: BTreeMap<(u64, u64), usize> = BTreeMap::new();
    for (number, transaction) in history.iter().enumerate() {
        for operation in &transaction.operations {
            if let Operation::Append(list, element) = operation
                && writers.insert((*list, *element), number).is_some()
            {
                return anomaly("unusable history", format!("{element} was appended to list {list} twice"));
            }
        }
    }

    inner_order(history)?;
    // The longest version of each list; all others must be prefixes of it. A transaction's own changes are behind the version that
    // it read.
    let mut longest: BTreeMap<u64, &[u64]> = BTreeMap::new();
    for (reader, list, seen) in reads(history) {
        let is_own = |element: &u64| writers.get(&(list, *element)) == Some(&reader);
        let seen = &seen[..seen.iter().position(is_own).unwrap_or(seen.len())];
        let known = longest.entry(list).or_default();
        let (short, long) = if seen.len() > known.len() { (*known, seen) } else { (seen, *known) };
        if !long.starts_with(short) {
            return anomaly("incompatible order", format!("list {list} was {short:?} and {long:?}"));
        }
        *known = long;
    }
    for (list, elements) in &longest {
        let mut once = BTreeSet::new();
        for element in *elements {
            let Some(writer) = writers.get(&(*list, *element)) else {
                return anomaly("garbage read", format!("list {list} has {element}, which was not written"));
            };
            if history[*writer].fate == Fate::Aborted {
                return anomaly(
                    "G1a",
                    format!("list {list} has {element} of the aborted transaction {writer}"),
                );
            }
            if !once.insert(element) {
                return anomaly("duplicate", format!("list {list} has {element} twice: {elements:?}"));
            }
        }
    }
    for ((list, element), writer) in &writers {
        let (transaction, all) = (&history[*writer], longest.get(list).copied().unwrap_or_default());
        let is_later = |reader: usize| history[reader].began > transaction.ended;
        if transaction.fate == Fate::Committed
            && !all.contains(element)
            && reads(history).any(|(reader, read, _)| read == *list && is_later(reader))
        {
            return anomaly(
                "lost write",
                format!("no read of list {list} has {element}, which was committed"),
            );
        }
    }

    let counts = |number: usize| match history[number].fate {
        Fate::Committed => true,
        Fate::Aborted => false,
        Fate::Unknown => history[number].operations.iter().any(|operation| match operation {
            Operation::Append(list, element) => longest.get(list).is_some_and(|all| all.contains(element)),
            Operation::Read(..) => false,
        }),
    };
    let mut graph: DiGraph<usize, Dependency> = DiGraph::new();
    let nodes: Vec<Option<NodeIndex>> =
        (0..history.len()).map(|number| counts(number).then(|| graph.add_node(number))).collect();
    let mut add = |from: usize, to: usize, kind| {
        if let (Some(from), Some(to)) = (nodes[from], nodes[to])
            && from != to
        {
            graph.update_edge(from, to, kind);
        }
    };
    let writer = |list: u64, element: u64| writers.get(&(list, element)).copied();
    // The weakest kind of a pair stays, so the strongest kinds are added last.
    for (reader, list, seen) in reads(history) {
        let is_own = |element: &u64| writer(list, *element) == Some(reader);
        let read = seen.iter().position(is_own).unwrap_or(seen.len());
        let behind = longest.get(&list).and_then(|all| all.get(read..)).unwrap_or_default();
        let next = behind.iter().find(|element| !is_own(element));
        next.and_then(|next| writer(list, *next)).inspect(|next| add(reader, *next, Dependency::Overwrites));
    }
    let committed = || history.iter().enumerate().filter(|(_, transaction)| transaction.ended < u64::MAX);
    for (first, earlier) in committed() {
        for (second, _) in history.iter().enumerate().filter(|(_, later)| earlier.ended < later.began) {
            add(first, second, Dependency::Time);
        }
    }
    for (reader, list, seen) in reads(history) {
        let last =
            seen.iter().rev().find_map(|element| writer(list, *element).filter(|last| *last != reader));
        last.inspect(|last| add(*last, reader, Dependency::Reads));
    }
    for (list, elements) in &longest {
        for pair in elements.windows(2) {
            if let (Some(first), Some(second)) = (writer(*list, pair[0]), writer(*list, pair[1])) {
                add(first, second, Dependency::Writes);
            }
        }
    }
    cycle(&graph, history, level)
}

/// Returns all reads with the number of their transaction; what an aborted one has read was there, too.
fn reads(history: &[Transaction]) -> impl Iterator<Item = (usize, u64, &[u64])> {
    history.iter().enumerate().flat_map(|(number, transaction)| {
        transaction.operations.iter().filter_map(move |operation| match operation {
            Operation::Read(list, seen) => Some((number, *list, &seen[..])),
            Operation::Append(..) => None,
        })
    })
}

/// Checks that each transaction sees one version of each list, with its own changes behind it.
fn inner_order(history: &[Transaction]) -> Result<(), Anomaly> {
    for (number, transaction) in history.iter().enumerate() {
        let mut lists: BTreeMap<u64, (Option<Vec<u64>>, Vec<u64>)> = BTreeMap::new();
        for operation in &transaction.operations {
            match operation {
                Operation::Append(list, element) => lists.entry(*list).or_default().1.push(*element),
                Operation::Read(list, seen) => {
                    let (first, own) = lists.entry(*list).or_default();
                    let before = seen.strip_suffix(&own[..]).map(<[u64]>::to_vec);
                    if before.is_none() || first.as_ref().is_some_and(|first| before.as_ref() != Some(first))
                    {
                        let text = format!(
                            "transaction {number} read {seen:?} of list {list}, {first:?} before, and appended {own:?}"
                        );
                        return Err(Anomaly { name: "internal", text });
                    }
                    *first = before;
                }
            }
        }
    }
    Ok(())
}

/// Finds a forbidden cycle.
fn cycle(graph: &DiGraph<usize, Dependency>, history: &[Transaction], level: Level) -> Result<(), Anomaly> {
    let mut looked: DiGraph<usize, Vec<Dependency>> = DiGraph::new();
    for node in graph.node_indices() {
        looked.add_node(graph[node]);
    }
    // By node, as most nodes have an edge of time to most others.
    let mut overwriters = vec![Vec::new(); graph.node_count()];
    for edge in graph.edge_indices().filter(|edge| graph[*edge] == Dependency::Overwrites) {
        if let Some((from, to)) = graph.edge_endpoints(edge) {
            overwriters[from.index()].push(to);
        }
    }
    for edge in graph.edge_indices() {
        let Some((from, to)) = graph.edge_endpoints(edge) else { continue };
        let kind = graph[edge];
        if level == Level::Serializable {
            looked.add_edge(from, to, vec![kind]);
        } else if kind != Dependency::Overwrites {
            looked.add_edge(from, to, vec![kind]);
            // One rw dependency may follow each other one.
            for next in &overwriters[to.index()] {
                looked.add_edge(from, *next, vec![kind, Dependency::Overwrites]);
            }
        }
    }
    let self_loop = looked.edge_indices().find(|edge| {
        let ends = looked.edge_endpoints(*edge);
        ends.is_some_and(|(from, to)| from == to)
    });
    let component = tarjan_scc(&looked).into_iter().find(|component| component.len() > 1);
    let nodes = match (component, self_loop.and_then(|edge| looked.edge_endpoints(edge))) {
        (Some(component), _) => component,
        (None, Some((node, _))) => vec![node],
        (None, None) => return Ok(()),
    };
    let inside: BTreeSet<NodeIndex> = nodes.iter().copied().collect();
    let kinds: BTreeSet<Dependency> = looked
        .edge_indices()
        .filter(|edge| {
            let ends = looked.edge_endpoints(*edge);
            ends.is_some_and(|(from, to)| inside.contains(&from) && inside.contains(&to))
        })
        .flat_map(|edge| looked[edge].iter().copied())
        .collect();
    let name = match (kinds.contains(&Dependency::Overwrites), kinds.contains(&Dependency::Reads)) {
        _ if kinds.contains(&Dependency::Time) => "stale read",
        (true, _) if level == Level::Snapshot => "G-SI",
        (true, _) => "G2",
        (false, true) => "G1c",
        (false, false) => "G0",
    };
    let text = nodes.iter().take(6).map(|node| {
        let number = looked[*node];
        format!("{number}: {:?}", history[number].operations)
    });
    Err(Anomaly { name, text: format!("a cycle of {kinds:?} among {}", text.collect::<Vec<_>>().join("; ")) })
}

#[cfg(test)]
mod tests {
    use super::Fate::{Aborted, Committed, Unknown};
    use super::Operation::{Append, Read};
    use super::*;

    /// All transactions concurrent, so that time orders none of them.
    fn history(transactions: Vec<(Fate, Vec<Operation>)>) -> Vec<Transaction> {
        let of = |(fate, operations)| Transaction { began: 0, ended: 10, fate, operations };
        transactions.into_iter().map(of).collect()
    }

    fn found(history: &[Transaction], level: Level) -> Option<&'static str> {
        check(history, level).err().map(|anomaly| anomaly.name)
    }

    fn both(history: &[Transaction]) -> [Option<&'static str>; 2] {
        [found(history, Level::Snapshot), found(history, Level::Serializable)]
    }

    #[test]
    fn one_after_the_other_is_fine() {
        let all = history(vec![
            (Committed, vec![Read(1, vec![]), Append(1, 1)]),
            (Committed, vec![Read(1, vec![1]), Append(1, 2), Read(1, vec![1, 2])]),
            (Aborted, vec![Append(1, 3)]),
            (Unknown, vec![Append(1, 4)]),
            (Committed, vec![Read(1, vec![1, 2])]),
        ]);
        assert_eq!(both(&all), [None, None]);
    }

    #[test]
    fn planted_anomalies_have_their_names() {
        let aborted = history(vec![(Aborted, vec![Append(1, 1)]), (Committed, vec![Read(1, vec![1])])]);
        assert_eq!(both(&aborted), [Some("G1a"); 2]);
        let garbage = history(vec![(Committed, vec![Read(1, vec![7])])]);
        assert_eq!(both(&garbage), [Some("garbage read"); 2]);
        let order = history(vec![
            (Committed, vec![Append(1, 1)]),
            (Committed, vec![Append(1, 2)]),
            (Committed, vec![Read(1, vec![1, 2])]),
            (Committed, vec![Read(1, vec![2])]),
        ]);
        assert_eq!(both(&order), [Some("incompatible order"); 2]);
        let inner = history(vec![(Committed, vec![Append(1, 1), Read(1, vec![])])]);
        assert_eq!(both(&inner), [Some("internal"); 2]);
        let write_cycle = history(vec![
            (Committed, vec![Append(1, 1), Append(2, 1)]),
            (Committed, vec![Append(1, 2), Append(2, 2)]),
            (Committed, vec![Read(1, vec![1, 2])]),
            (Committed, vec![Read(2, vec![2, 1])]),
        ]);
        assert_eq!(both(&write_cycle), [Some("G0"); 2]);
        let circular = history(vec![
            (Committed, vec![Append(1, 1), Read(2, vec![2])]),
            (Committed, vec![Append(2, 2), Read(1, vec![1])]),
        ]);
        assert_eq!(both(&circular), [Some("G1c"); 2]);
        let lost = history(vec![
            (Committed, vec![Read(1, vec![]), Append(1, 1)]),
            (Committed, vec![Read(1, vec![]), Append(1, 2)]),
            (Committed, vec![Read(1, vec![1, 2])]),
        ]);
        assert_eq!(both(&lost), [Some("G-SI"), Some("G2")]);
        let fractured = history(vec![
            (Committed, vec![Append(1, 1), Append(2, 1)]),
            (Committed, vec![Read(1, vec![1]), Read(2, vec![])]),
            (Committed, vec![Read(2, vec![1])]),
        ]);
        assert_eq!(both(&fractured), [Some("G-SI"), Some("G2")]);
    }

    #[test]
    fn snapshots_allow_write_skew_and_no_long_fork() {
        let skew = history(vec![
            (Committed, vec![Read(1, vec![]), Read(2, vec![]), Append(1, 1)]),
            (Committed, vec![Read(1, vec![]), Read(2, vec![]), Append(2, 2)]),
            (Committed, vec![Read(1, vec![1]), Read(2, vec![2])]),
        ]);
        assert_eq!(both(&skew), [None, Some("G2")]);
        let fork = history(vec![
            (Committed, vec![Append(1, 1)]),
            (Committed, vec![Append(2, 2)]),
            (Committed, vec![Read(1, vec![1]), Read(2, vec![])]),
            (Committed, vec![Read(1, vec![]), Read(2, vec![2])]),
        ]);
        assert_eq!(both(&fork), [Some("G-SI"), Some("G2")]);
    }

    #[test]
    fn what_had_returned_is_seen() {
        let lost = vec![
            Transaction { began: 0, ended: 1, fate: Committed, operations: vec![Append(1, 1)] },
            Transaction { began: 2, ended: 3, fate: Committed, operations: vec![Read(1, vec![])] },
        ];
        assert_eq!(both(&lost), [Some("lost write"); 2]);
        let stale = vec![
            Transaction { began: 0, ended: 1, fate: Committed, operations: vec![Append(1, 1)] },
            Transaction { began: 2, ended: 3, fate: Committed, operations: vec![Read(1, vec![])] },
            Transaction { began: 4, ended: 5, fate: Committed, operations: vec![Read(1, vec![1])] },
        ];
        assert_eq!(both(&stale), [Some("stale read"); 2]);
    }
}
