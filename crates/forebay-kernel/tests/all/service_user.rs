//! Walks of a service: a user who is not root, in the group that kernel/60-forebay-walk.rules gives the module's device to, with
//! some capabilities and nothing else. Each scene is a separate process. Errors name the right that is missing.

use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use crate::common::child::turn;
use crate::common::scene::{lock_at_most, scene};
use crate::common::{become_another_user, drop_capabilities, engine, has_module};
use forebay::Open;
use forebay_kernel::{EngineKind, Error, KernelWalk, LocalWalk, Lookup, Options, TreeLookup};

const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const BPF: u32 = 39;
const PROGRAM: TreeLookup = TreeLookup { node_bytes: 4096 };
const KEY: Lookup = Lookup { root: 0, level: 0, key: 1 };
const NODE: &str = "/dev/forebay_walk";
/// The group that has the device here, where udev did not set one.
const GROUP: u32 = 1_400_000_000;

/// The device as the rule leaves it: the group's, 0660. Where udev has followed the rule
/// (FOREBAY_KERNEL_GROUP is the group's number), that is checked; elsewhere the test does the same, and undoes
/// it.
struct Node {
    before: Option<(u32, u32)>,
    _turn: File,
}

impl Node {
    fn of_the_group() -> Node {
        let turn = turn();
        let found = std::fs::metadata(NODE).ok().map(|node| (node.gid(), node.mode() & 0o7777));
        let before = match (found, by_udev()) {
            (None, None) => None,
            (None, Some(_)) => panic!("there is no {NODE}, which udev had a rule for"),
            (Some(found), Some(group)) => {
                assert_eq!(found, (group, 0o660), "group and mode of {NODE} after udev's rule");
                None
            }
            (Some(found), None) => {
                // A user who is not root runs no scene.
                let is_ours = chown(NODE, None, Some(GROUP)).is_ok();
                is_ours.then(|| {
                    std::fs::set_permissions(NODE, Permissions::from_mode(0o660)).expect("it is root's");
                    found
                })
            }
        };
        Node { before, _turn: turn }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some((group, mode)) = self.before {
            let _ = chown(NODE, None, Some(group));
            let _ = std::fs::set_permissions(NODE, Permissions::from_mode(mode));
        }
    }
}

fn by_udev() -> Option<u32> {
    let group = std::env::var("FOREBAY_KERNEL_GROUP").ok()?;
    Some(group.parse().expect("FOREBAY_KERNEL_GROUP is the group's number"))
}

/// Who the service is.
struct Service {
    capabilities: &'static [u32],
    in_group: bool,
    locked_bytes: u64,
    owns_file: bool,
}

/// A member of the group who owns the file, with these capabilities and the usual limit of locked memory.
const fn member(capabilities: &'static [u32]) -> Service {
    Service { capabilities, in_group: true, locked_bytes: 8 << 20, owns_file: true }
}

/// What root finds on this machine.
struct Here {
    has_loop: bool,
    has_module: bool,
}

/// Runs `body` as the service, in a separate process, with the path of a tree.
fn play(name: &str, service: &Service, body: impl FnOnce(&Path, &Here)) {
    let is_child = std::env::var_os("FOREBAY_KERNEL_SCENE").is_some();
    let _node = (!is_child).then(Node::of_the_group);
    scene(name, |path| {
        let here = Here { has_loop: has_loop(), has_module: has_module() };
        if service.owns_file {
            chown(path, Some(1_500_000_000 + std::process::id()), None).expect("root may give files away");
        }
        lock_at_most(service.locked_bytes);
        let group = by_udev().unwrap_or(GROUP);
        let own = GROUP + 1;
        // SAFETY: setgroups reads the one number or nothing; libc changes the groups of all threads.
        unsafe {
            assert_eq!(libc::setgroups(service.in_group.into(), &raw const group), 0, "root may set groups");
            assert_eq!(libc::setresgid(own, own, own), 0, "root may be in any group");
        }
        become_another_user(service.capabilities);
        body(path, &here);
    });
}

/// Returns the error of a walk in this engine, or `None` if it returned a value there.
fn refusal(path: &Path, kind: EngineKind) -> Option<String> {
    let engine = engine();
    let file = engine.open(path, Open::read()).wait().expect("a file that all may read");
    let only = Options::new().only(kind);
    match KernelWalk::open_with(&engine, &file, PROGRAM, only) {
        Ok(walk) => {
            walk.walk(&KEY).wait().expect("the tree is whole");
            assert_eq!((walk.engine(), walk.stats().fell_back), (kind, 0));
            walk.close();
            None
        }
        Err(Error::Unavailable(why)) => Some(why),
        Err(other) => panic!("{kind}: {other}"),
    }
}

/// Asserts that a walk in this engine is refused with an error that has all these words.
fn refused(path: &Path, kind: EngineKind, words: &[&str]) {
    let Some(why) = refusal(path, kind) else { panic!("{kind} walked without a right that it needs") };
    assert!(words.iter().all(|word| why.contains(word)), "{kind}: {why}");
}

/// Whether this machine has the loop: an engine that it demands, or that root can open.
fn has_loop() -> bool {
    let demanded = std::env::var("FOREBAY_KERNEL_ENGINES").unwrap_or_default();
    match forebay_kernel::probe(EngineKind::BpfLoop) {
        Ok(()) => true,
        Err(why) => {
            assert!(!demanded.split(',').any(|name| name == "bpf-loop"), "the loop is demanded: {why}");
            eprintln!("SKIPPED: {why}");
            false
        }
    }
}

#[test]
fn two_capabilities_are_enough_for_the_loop_and_not_for_the_module() {
    let name = "service_user::two_capabilities_are_enough_for_the_loop_and_not_for_the_module";
    play(name, &member(&[BPF, PERFMON]), |path, here| {
        if here.has_loop {
            assert_eq!(refusal(path, EngineKind::BpfLoop), None);
        }
        if here.has_module {
            // The types of a module have no descriptor for those without CAP_SYS_ADMIN.
            refused(path, EngineKind::Module, &["the kernel refused the program", "CAP_SYS_ADMIN"]);
        }
    });
}

#[test]
fn cap_sys_admin_alone_is_enough_for_both() {
    play("service_user::cap_sys_admin_alone_is_enough_for_both", &member(&[SYS_ADMIN]), |path, here| {
        if here.has_loop {
            assert_eq!(refusal(path, EngineKind::BpfLoop), None);
        }
        if here.has_module {
            assert_eq!(refusal(path, EngineKind::Module), None);
        }
    });
}

#[test]
fn without_the_group_the_device_cannot_be_opened() {
    let service = Service { in_group: false, ..member(&[SYS_ADMIN, BPF, PERFMON]) };
    play("service_user::without_the_group_the_device_cannot_be_opened", &service, |path, here| {
        if here.has_module {
            refused(path, EngineKind::Module, &[NODE, "Permission denied", "udev rule"]);
        }
    });
}

#[test]
fn each_missing_capability_is_named() {
    play("service_user::each_missing_capability_is_named", &member(&[]), |path, here| {
        let both = ["lacks CAP_BPF and CAP_PERFMON"];
        if here.has_loop {
            refused(path, EngineKind::BpfLoop, &both);
        }
        if here.has_module {
            refused(path, EngineKind::Module, &both);
        }
    });
}

#[test]
fn cap_perfmon_is_named() {
    play("service_user::cap_perfmon_is_named", &member(&[BPF]), |path, here| {
        if here.has_loop {
            refused(path, EngineKind::BpfLoop, &["lacks CAP_PERFMON,"]);
        }
    });
}

#[test]
fn cap_bpf_is_named() {
    play("service_user::cap_bpf_is_named", &member(&[PERFMON]), |path, here| {
        if here.has_loop {
            refused(path, EngineKind::BpfLoop, &["lacks CAP_BPF,"]);
        }
    });
}

#[test]
fn little_locked_memory_stops_the_loop_and_not_the_module() {
    let service = Service { locked_bytes: 64 << 10, ..member(&[SYS_ADMIN]) };
    play("service_user::little_locked_memory_stops_the_loop_and_not_the_module", &service, |path, here| {
        if here.has_loop {
            refused(path, EngineKind::BpfLoop, &["locked memory", "RLIMIT_MEMLOCK", "is 65536 bytes"]);
        }
        if here.has_module {
            assert_eq!(refusal(path, EngineKind::Module), None);
        }
    });
}

#[test]
fn the_module_pins_only_files_of_the_service() {
    let service = Service { owns_file: false, ..member(&[SYS_ADMIN]) };
    play("service_user::the_module_pins_only_files_of_the_service", &service, |path, here| {
        if here.has_loop {
            assert_eq!(refusal(path, EngineKind::BpfLoop), None);
        }
        if here.has_module {
            refused(path, EngineKind::Module, &["owner"]);
        }
    });
}

/// Rights are needed when walks are opened, and not when they run.
#[test]
fn rights_can_be_given_up_after_opening() {
    play("service_user::rights_can_be_given_up_after_opening", &member(&[SYS_ADMIN]), |path, here| {
        let kinds = [(EngineKind::BpfLoop, here.has_loop), (EngineKind::Module, here.has_module)];
        let file = std::fs::File::open(path).expect("a file that all may read");
        let mut open = Vec::new();
        for (kind, _) in kinds.into_iter().filter(|(_, is_here)| *is_here) {
            let only = Options::new().only(kind);
            let walks = LocalWalk::open_with(&file, PROGRAM, only);
            open.push(walks.unwrap_or_else(|error| panic!("{kind}: {error}")));
        }
        drop_capabilities();
        for walks in &mut open {
            let mut results = Vec::new();
            assert!(walks.begin(&KEY).is_some());
            walks.run(1, |ended| results.push(ended.result.is_ok())).expect("the engine goes on");
            assert_eq!(results, [true], "{}", walks.engine());
        }
        // An open acquires them again.
        for (kind, _) in kinds.into_iter().filter(|(_, is_here)| *is_here) {
            refused(path, kind, &["lacks CAP_BPF and CAP_PERFMON"]);
        }
    });
}
