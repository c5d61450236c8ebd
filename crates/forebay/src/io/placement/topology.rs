//! The processors of a machine, their cores and memory nodes, as sysfs has them (sysfs-devices-system-cpu and sysfs-devices-node in
//! the kernel's ABI documentation).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The processors that are online; everything is empty without sysfs.
#[derive(Debug, Default)]
pub(super) struct Topology {
    online: BTreeSet<usize>,
    /// Those of each memory node; a kernel without nodes has one.
    nodes: BTreeMap<u32, BTreeSet<usize>>,
    /// The hardware threads of each processor's core, itself among them.
    cores: BTreeMap<usize, BTreeSet<usize>>,
}

impl Topology {
    /// Reads it from a sysfs: `/sys`, or a directory that a test made.
    pub(super) fn read(sys: &Path) -> Topology {
        let processors = sys.join("devices/system/cpu");
        let online = processors_of(&processors.join("online"));
        let core = |number: usize| {
            processors_of(&processors.join(format!("cpu{number}/topology/thread_siblings_list")))
        };
        let cores = online.iter().map(|number| (*number, core(*number))).collect();
        let entries = fs::read_dir(sys.join("devices/system/node")).into_iter().flatten().flatten();
        let mut nodes: BTreeMap<u32, BTreeSet<usize>> = entries
            .filter_map(|entry| {
                let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
                let members = processors_of(&entry.path().join("cpulist"));
                Some((number, members.intersection(&online).copied().collect()))
            })
            .collect();
        if nodes.is_empty() {
            nodes.insert(0, online.clone());
        }
        Topology { online, nodes, cores }
    }

    /// Returns whether a processor is online, as far as that can be determined.
    pub(super) fn is_online(&self, processor: usize) -> bool {
        self.online.is_empty() || self.online.contains(&processor)
    }

    /// Returns the processors of a node; `None` for an unknown node.
    pub(super) fn node(&self, node: u32) -> Option<&BTreeSet<usize>> {
        self.nodes.get(&node)
    }

    /// Returns the numbers of the nodes.
    pub(super) fn nodes(&self) -> BTreeSet<usize> {
        self.nodes.keys().map(|node| *node as usize).collect()
    }

    pub(super) fn node_of(&self, processor: usize) -> u32 {
        let node = self.nodes.iter().find(|(_, members)| members.contains(&processor));
        node.map_or(0, |(number, _)| *number)
    }

    /// Returns the processors so that the first few have most to themselves: one hardware thread of each core, of the nodes in
    /// turn, before the second threads.
    pub(super) fn spread(&self, processors: &BTreeSet<usize>) -> Vec<usize> {
        let mut cores_of_node: BTreeMap<(u32, usize), usize> = BTreeMap::new();
        let mut order: Vec<(usize, usize, u32, usize)> = processors
            .iter()
            .map(|processor| {
                let node = self.node_of(*processor);
                let siblings = self.cores.get(processor).into_iter().flatten();
                let thread =
                    siblings.filter(|other| *other < processor && processors.contains(*other)).count();
                let core = cores_of_node.entry((node, thread)).or_default();
                *core += 1;
                (thread, *core, node, *processor)
            })
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, _, _, processor)| processor).collect()
    }
}

fn processors_of(path: &Path) -> BTreeSet<usize> {
    fs::read_to_string(path).map(|list| parse(&list)).unwrap_or_default()
}

/// Parses a list as in `0-3,8`; parts that are not numbers are left out.
pub(super) fn parse(list: &str) -> BTreeSet<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

/// Returns a list as in `0-3,8`.
pub(super) fn list(numbers: &BTreeSet<usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for number in numbers.iter().copied() {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let text = |(first, last): (usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let texts: Vec<String> = ranges.into_iter().map(text).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        for (text, numbers) in [("0-3,8\n", vec![0, 1, 2, 3, 8]), ("5", vec![5]), ("0,2-3", vec![0, 2, 3])] {
            let numbers = BTreeSet::from_iter(numbers);
            assert_eq!((parse(text), list(&numbers).as_str()), (numbers.clone(), text.trim()));
        }
        assert_eq!(parse("\n"), BTreeSet::new());
        assert_eq!(parse("a,1-b,4,3-2"), BTreeSet::from([4]));
    }

    #[test]
    fn without_sysfs_nothing_is_known_and_nothing_is_refused() {
        let topology = Topology::read(Path::new("/nonexistent"));
        assert!(topology.is_online(9));
        assert_eq!((topology.node_of(9), topology.node(0)), (0, Some(&BTreeSet::new())));
        assert_eq!(topology.spread(&BTreeSet::from([7, 2])), [2, 7]);
    }
}
