use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::base::error::ErrorKind;

/// A machine of two nodes with four cores each, of two hardware threads: 0 to 3 and 8 to 11 are of node 0, 8 is on 0's core.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Machine {
        let machine = Machine(tempfile::tempdir().unwrap());
        machine.write("devices/system/cpu/online", "0-15\n");
        for processor in 0..16 {
            let core = processor % 8;
            let siblings = format!("devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
            machine.write(&siblings, &format!("{core},{}\n", core + 8));
        }
        machine.write("devices/system/node/node0/cpulist", "0-3,8-11\n");
        machine.write("devices/system/node/node1/cpulist", "4-7,12-15\n");
        machine.write("devices/system/node/online", "0-1\n");
        machine
    }

    /// The directory without links: those of sysfs lead into it.
    fn sys(&self) -> PathBuf {
        fs::canonicalize(self.0.path()).unwrap()
    }

    fn write(&self, name: &str, content: &str) {
        let path = self.sys().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Adds a block device at a place below `devices`, made of others.
    fn block(&self, place: &str, numbers: (u32, u32), parts: &[&str]) {
        let devices = self.sys().join("devices");
        let dir = devices.join(place);
        fs::create_dir_all(dir.join("slaves")).unwrap();
        fs::write(dir.join("dev"), format!("{}:{}\n", numbers.0, numbers.1)).unwrap();
        for part in parts {
            let target = devices.join(part);
            symlink(&target, dir.join("slaves").join(target.file_name().unwrap())).unwrap();
        }
        let links = self.sys().join("dev/block");
        fs::create_dir_all(&links).unwrap();
        symlink(&dir, links.join(format!("{}:{}", numbers.0, numbers.1))).unwrap();
    }

    /// Adds a disk below a controller that names this node.
    fn disk(&self, name: &str, numbers: (u32, u32), node: &str) -> String {
        let place = format!("pci-{name}/{name}");
        self.write(&format!("devices/pci-{name}/numa_node"), &format!("{node}\n"));
        self.block(&place, numbers, &[]);
        place
    }

    fn choose(&self, placement: &Placement, allowed: &str) -> Result<Seats> {
        placement.seats_of(&Topology::read(&self.sys()), &set(allowed), None)
    }

    fn choose_near(&self, numbers: (u32, u32), allowed: &str) -> Result<Seats> {
        let (sys, placement) = (self.sys(), Placement::Device("of the test".into()));
        let device = Device::in_sysfs(&sys, numbers);
        placement.seats_of(&Topology::read(&sys), &set(allowed), Some(&device))
    }
}

/// Returns the numbers of a list, by the parser that reads sysfs.
fn set(list: &str) -> BTreeSet<usize> {
    topology::parse(list)
}

fn processors(list: &str) -> Placement {
    Placement::Processors(set(list).into_iter().collect())
}

/// Returns the reason for which nothing is pinned.
#[track_caller]
fn why(seats: Result<Seats>) -> String {
    let seats = seats.unwrap();
    assert_eq!((seats.processors(4), seats.limit(6)), (vec![], 6), "unpinned");
    let degradation = seats.degradation().unwrap();
    assert!(degradation.remedy.contains("Placement::Node"), "{degradation}");
    degradation.why.clone()
}

#[test]
fn shards_take_a_core_each_of_the_nodes_in_turn_before_they_share() {
    let seats = Machine::new().choose(&processors("0-15"), "0-15").unwrap();
    assert_eq!(seats.processors(8), [0, 4, 1, 5, 2, 6, 3, 7]);
    assert_eq!(seats.processors(18)[8..], [8, 12, 9, 13, 10, 14, 11, 15, 0, 4]);
    assert_eq!((seats.limit(64), seats.limit(2)), (16, 2));
    // Memory is of the nodes with shards, and mapped by whichever of their processors is free.
    let near = ["0-3,8-11", "4-7,12-15"].map(|list| Affinity::of(set(list)));
    assert_eq!(seats.nodes(1), Nodes::new(vec![near[0]], vec![0]));
    assert_eq!(seats.nodes(3), Nodes::new(near.to_vec(), vec![0, 1, 0]));
    let seats = Machine::new().choose(&processors("12,5,13"), "0-15").unwrap();
    assert_eq!(seats.processors(3), [5, 12, 13], "13 is on the core of 5");
    assert_eq!(seats.nodes(3), Nodes::new(vec![near[1]], vec![0, 0, 0]));
}

#[test]
fn unpinned_shards_are_anywhere() {
    let seats = Machine::new().choose(&Placement::Unpinned, "0-15").unwrap();
    assert_eq!((seats.processors(4), seats.limit(6), seats.nodes(4)), (vec![], 6, Nodes::default()));
    assert!(seats.degradation().is_none() && seats.pin_shard(3).is_ok() && seats.pin_worker().is_ok());
}

#[test]
fn a_node_gives_its_processors() {
    let machine = Machine::new();
    let seats = machine.choose(&Placement::Node(1), "0-15").unwrap();
    assert_eq!(seats.processors(5), [4, 5, 6, 7, 12]);
    let error = machine.choose(&Placement::Node(7), "0-15").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("no memory node 7 (Config::placement), only 0-1"), "{error}");
    // A node with memory alone.
    machine.write("devices/system/node/node2/cpulist", "\n");
    assert!(machine.choose(&Placement::Node(2), "0-15").is_err());
}

#[test]
fn processors_that_are_offline_or_not_allowed_are_left_out() {
    let machine = Machine::new();
    machine.write("devices/system/cpu/online", "0-2,4-15\n");
    assert_eq!(machine.choose(&processors("2-3,11"), "0-15").unwrap().processors(2), [2, 11]);
    assert_eq!(machine.choose(&Placement::Node(0), "0-15").unwrap().processors(4), [0, 1, 2, 11]);
    assert_eq!(machine.choose(&Placement::Node(0), "1-2,9,12").unwrap().processors(4), [1, 2, 9, 1]);
    for (placement, allowed, named) in [
        (processors("3"), "0-15", "none of the processors 3 (Config::placement), only 0-2,4-15"),
        (processors("20-21"), "4-15", "none of the processors 20-21 (Config::placement), only 4-15"),
        (
            Placement::Node(1),
            "0-3,8-11",
            "none of the processors 4-7,12-15 (Config::placement), only 0-2,8-11",
        ),
    ] {
        let error = machine.choose(&placement, allowed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(named) && error.to_string().contains("cpuset"), "{error}");
    }
}

#[test]
fn a_device_gives_the_processors_of_its_node() {
    let machine = Machine::new();
    let first = machine.disk("nvme0n1", (259, 0), "0");
    let second = machine.disk("nvme1n1", (259, 1), "1");
    let third = machine.disk("nvme2n1", (259, 2), "1");
    let part = format!("{second}/nvme1n1p1");
    machine.block(&part, (259, 3), &[]);
    machine.write(&format!("devices/{part}/partition"), "1\n");
    machine.block("virtual/md0", (9, 0), &[&part, &third]);
    machine.block("virtual/dm-0", (253, 0), &["virtual/md0"]);
    machine.block("virtual/md1", (9, 1), &[&first, &third]);
    assert_eq!(machine.choose_near((259, 0), "0-15").unwrap().processors(2), [0, 1]);
    for numbers in [(259, 1), (259, 3), (9, 0), (253, 0)] {
        assert_eq!(machine.choose_near(numbers, "0-15").unwrap().processors(2), [4, 5], "{numbers:?}");
    }
    assert!(why(machine.choose_near((9, 1), "0-15")).contains("the disks of md1"));
    let error = machine.choose_near((253, 0), "0-3").unwrap_err();
    assert!(error.to_string().contains("4-7,12-15"), "{error}");
}

#[test]
fn where_the_node_of_a_device_is_unknown_nothing_is_pinned() {
    let machine = Machine::new();
    let known = machine.disk("nvme0n1", (259, 0), "0");
    let unknown = machine.disk("vda", (254, 0), "-1");
    machine.disk("far", (254, 1), "5");
    machine.block("virtual/md0", (9, 0), &[&known, &unknown]);
    assert!(
        why(machine.choose_near((254, 0), "0-15")).contains("which memory node vda (Disk) is attached to")
    );
    assert!(why(machine.choose_near((254, 1), "0-15")).contains("memory node 5, which has no processors"));
    assert!(why(machine.choose_near((9, 0), "0-15")).contains("not all attached to the same"));
    // A file system without a block device, such as one in memory.
    assert!(why(machine.choose_near((0, 5), "0-15")).contains("does not say"));
}

#[test]
fn a_kernel_without_nodes_has_one() {
    let machine = Machine::new();
    fs::remove_dir_all(machine.sys().join("devices/system/node")).unwrap();
    let seats = machine.choose(&Placement::Node(0), "0-15").unwrap();
    assert_eq!(seats.processors(9), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert!(machine.choose(&Placement::Node(1), "0-15").is_err());
}
