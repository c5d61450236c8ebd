//! What runs that were killed have left behind: it is found by names that have the process's number in them.

use std::fs;
use std::path::Path;

use super::{brake, ip, mounts, run, unmount};

/// Returns the name of all that is made for a number of a process. With a letter and a digit behind it, it fits into the 15 bytes
/// that the name of an interface may have.
pub(super) fn name(process: u32, number: u32) -> String {
    format!("fb{process:x}-{number}")
}

/// Returns the process that has made what has this name, if it is a name of ours.
fn maker(name: &str) -> Option<u32> {
    let (process, number) = name.strip_prefix("fb")?.split_once('-')?;
    if !number.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    u32::from_str_radix(process, 16).ok()
}

fn is_left_behind(name: &str) -> bool {
    maker(name).is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists())
}

/// Removes networks and groups of ended processes, with the processes still running there, and their disks below `parent`.
pub(super) fn remove(parent: &Path) {
    for space in names(Path::new("/run/netns")).into_iter().filter(|name| is_left_behind(name)) {
        let running = std::process::Command::new("ip").args(["netns", "pids", &space]).output();
        let running = running.map(|done| String::from_utf8_lossy(&done.stdout).into_owned());
        for process in running.unwrap_or_default().lines() {
            run("kill", &["-9", process]);
        }
        ip(&format!("netns del {space}"));
    }
    for link in names(Path::new("/sys/class/net")).into_iter().filter(|name| is_left_behind(name)) {
        ip(&format!("link del {link}"));
    }
    if let Some((groups, _)) = brake::controller() {
        for name in names(&groups).into_iter().filter(|name| is_left_behind(name)) {
            let _ = fs::remove_dir(groups.join(name));
        }
    }
    for name in names(parent).into_iter().filter(|name| is_left_behind(name)) {
        let dir = parent.join(name);
        for [_, at, ..] in mounts() {
            if Path::new(&at).starts_with(&dir) {
                unmount(Path::new(&at));
            }
        }
        let _ = fs::remove_dir_all(dir);
    }
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[test]
fn names_say_who_made_them() {
    assert_eq!(maker(&name(0x12ab, 3)), Some(0x12ab));
    assert_eq!(maker(&format!("{}n1", name(7, 0))), Some(7));
    assert_eq!(maker(&format!("{}-a1B2c3", name(7, 0))), Some(7), "a directory");
    for other in ["lo", "eth0", "fb", "fbx", "fb12-", "fbzz-1", "fb12-x"] {
        assert_eq!(maker(other), None, "{other}");
    }
    assert!(!is_left_behind(&name(std::process::id(), 0)));
}
