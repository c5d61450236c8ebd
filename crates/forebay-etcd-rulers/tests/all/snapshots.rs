//! Snapshots move between the servers in both directions: the restored state prints the same as the saved state.

use std::path::{Path, PathBuf};

use forebay_test::children::end_with_parent;

use crate::common::ctl::{Ctl, ETCD, ctl, has_rulers, masked};
use crate::common::{Member, own_program, until};

/// Fills a server, up to revision 25: keys with history, deletes, a transaction, leases with keys, a compaction. Returns a lease.
fn fill(member: &Member) -> String {
    for at in 0..20 {
        ctl(member, &["put", &format!("key{:02}", at % 15), &format!("value {at}")]);
    }
    let grant = |seconds: &str| {
        let granted = ctl(member, &["lease", "grant", seconds]);
        granted.split(' ').nth(1).unwrap_or_else(|| panic!("{granted}")).to_owned()
    };
    let lease = grant("5000");
    ctl(member, &["put", "leased", "v", &format!("--lease={lease}")]);
    grant("6000");
    ctl(member, &["del", "key03", "key05"]);
    let mut txn = Ctl::start(member, &["txn"]);
    txn.write("\nput txn1 x\nput txn2 y\ndel key09\n\n\n");
    txn.finish();
    ctl(member, &["compaction", "12"]);
    ctl(member, &["put", "last", "v"]);
    lease
}

fn save(member: &Member, name: &str) -> PathBuf {
    let file = member.dir().join(name);
    let path = file.display().to_string();
    let saved = ctl(member, &["snapshot", "save", &path]);
    assert!(saved.contains(&format!("Snapshot saved at {path}")), "{saved}");
    file
}

/// Has two servers print all that they have, as of each revision, and compares it.
fn compare(expected: &Member, found: &Member, lease: &str) {
    let mut commands: Vec<Vec<String>> = Vec::new();
    let mut add = |command: &[&str]| commands.push(command.iter().map(|word| (*word).to_owned()).collect());
    add(&["get", "", "--prefix", "-w", "json"]);
    add(&["lease", "timetolive", lease, "--keys"]);
    for revision in 10..=26 {
        add(&["get", "", "--prefix", "-w", "json", &format!("--rev={revision}")]);
    }
    for command in &commands {
        let (expected, found) =
            (masked(&ctl(expected, command), expected), masked(&ctl(found, command), found));
        assert_eq!(expected, found, "{command:?}");
    }
    assert!(ctl(found, &commands[0]).contains("\"revision\":25"));
    // etcd has them in the order of a map.
    let leases = |member: &Member| {
        let listed = ctl(member, &["lease", "list"]);
        let mut lines: Vec<String> = listed.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(leases(expected), leases(found));
    assert_eq!(leases(found).len(), 3);
}

/// Continues both, and compares the results.
fn go_on(one: &Member, other: &Member, lease: &str) {
    for command in [
        &["put", "more", "v", "-w", "json"][..],
        &["lease", "revoke", lease],
        &["del", "key00", "-w", "json"],
        &["get", "", "--prefix", "-w", "json"],
        &["compaction", "20"],
        &["get", "", "--prefix", "-w", "json", "--rev=19"],
        &["get", "", "--prefix", "-w", "json", "--rev=20"],
    ] {
        assert_eq!(masked(&ctl(one, command), one), masked(&ctl(other, command), other), "{command:?}");
    }
}

/// Events of the same watch, until the one of the key `last`.
fn history(member: &Member) -> String {
    let mut watch = Ctl::start(member, &["watch", "", "--prefix", "--rev=13", "--prev-kv"]);
    watch.wait_for("last");
    watch.output.clone()
}

/// A snapshot of this server is a file that etcd's tools read, and that etcd starts from: with all keys,
/// revisions, history and leases.
#[test]
fn etcd_starts_from_a_snapshot_of_this_server() {
    if !has_rulers() {
        return;
    }
    let own = Member::own(&[]);
    let lease = fill(&own);
    let file = save(&own, "snapshot").display().to_string();
    let status = ctl(&own, &["snapshot", "status", &file, "-w", "fields"]);
    assert!(status.contains("\"Revision\" : 25\n"), "{status}");
    let mut restored = Member::new(Path::new(ETCD), "n1");
    let data_dir = restored.data_dir().display().to_string();
    let flags = [
        "--name=n1".to_owned(),
        format!("--data-dir={data_dir}"),
        format!("--initial-cluster=n1={}", restored.peer_url()),
        format!("--initial-advertise-peer-urls={}", restored.peer_url()),
    ];
    let command = ["snapshot", "restore", &file].map(str::to_owned);
    let done = ctl(&own, &[&command[..], &flags].concat());
    assert!(!done.contains("exit"), "{done}");
    restored.restart();
    compare(&own, &restored, &lease);
    assert_eq!(history(&own), history(&restored));
    go_on(&own, &restored, &lease);
    // A file that has been damaged is refused: the check above can fail.
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let other = format!("--data-dir={}", restored.dir().join("other").display());
    assert!(ctl(&own, &["snapshot", "restore", &file, &other]).contains("exit"));
}

/// A cluster of this server starts from a snapshot of etcd, each member from the same file.
#[test]
fn this_server_starts_from_a_snapshot_of_etcd() {
    if !has_rulers() {
        return;
    }
    let etcd = Member::alone(Path::new(ETCD), &[]);
    let lease = fill(&etcd);
    let file = save(&etcd, "snapshot");
    let mut members = Member::members(&own_program(), 3, &[]);
    let list = format!("--initial-cluster={}", Member::list(&members));
    for member in &members {
        let (text, is_done) = member.restore_own(&file, &[&list]);
        assert!(is_done && text.contains("keys and 2 leases as of revision 25"), "{text}");
    }
    members.iter_mut().for_each(Member::start);
    members.iter_mut().for_each(Member::wait_until_healthy);
    for member in &members {
        compare(&etcd, member, &lease);
        assert_eq!(history(&etcd), history(member));
    }
    let hashes = |members: &[Member]| {
        let hash = |member: &Member| {
            let printed = ctl(member, &["endpoint", "hashkv"]);
            printed.rsplit(", ").next().unwrap_or_else(|| panic!("{printed}")).to_owned()
        };
        members.iter().map(hash).collect::<Vec<_>>()
    };
    let before = hashes(&members);
    assert!(before.iter().all(|hash| *hash == before[0] && hash.trim().parse::<u32>().is_ok()), "{before:?}");
    go_on(&etcd, &members[1], &lease);
    // As soon as each has applied the last change.
    let after = until("all have the same hash", || {
        let after = hashes(&members);
        after.iter().all(|hash| *hash == after[0]).then_some(after)
    });
    assert_ne!(before[0], after[0]);
    // And the way back.
    let mut back = Member::new(Path::new(ETCD), "n1");
    let file = save(&members[2], "back").display().to_string();
    let flags = [
        "--name=n1".to_owned(),
        format!("--data-dir={}", back.data_dir().display()),
        format!("--initial-cluster=n1={}", back.peer_url()),
        format!("--initial-advertise-peer-urls={}", back.peer_url()),
    ];
    let command = ["snapshot", "restore", &file].map(str::to_owned);
    let done = ctl(&members[0], &[&command[..], &flags].concat());
    assert!(!done.contains("exit"), "{done}");
    back.restart();
    for revision in 20..=28 {
        let command = ["get", "", "--prefix", "-w", "json", &format!("--rev={revision}")];
        assert_eq!(masked(&ctl(&etcd, &command), &etcd), masked(&ctl(&back, &command), &back), "{command:?}");
    }
}

/// The file of etcd's data directory has no checksum.
#[test]
fn this_server_starts_from_a_copy_of_etcds_file() {
    if !has_rulers() {
        return;
    }
    let mut etcd = Member::alone(Path::new(ETCD), &[]);
    let lease = fill(&etcd);
    // etcd writes all of its changes to the file for it.
    save(&etcd, "snapshot");
    etcd.kill();
    let file = etcd.data_dir().join("member/snap/db");
    let mut own = Member::new(&own_program(), "n1");
    let list = format!("--initial-cluster=n1={}", own.peer_url());
    let (text, is_done) = own.restore_own(&file, &[&list]);
    assert!(!is_done && text.contains("needs --skip-hash-check") && !own.data_dir().exists(), "{text}");
    let (text, is_done) = own.restore_own(&file, &[&list, "--skip-hash-check"]);
    assert!(is_done, "{text}");
    // Once more into the same directory.
    let (text, is_done) = own.restore_own(&file, &[&list, "--skip-hash-check"]);
    assert!(!is_done && text.contains("holds a member already"), "{text}");
    etcd.restart();
    own.restart();
    compare(&etcd, &own, &lease);
    go_on(&etcd, &own, &lease);
}

/// Users and roles move from one server to the other and back: permissions stay the same.
#[test]
fn a_snapshot_keeps_users_and_roles() {
    if !has_rulers() {
        return;
    }
    let etcd = Member::alone(Path::new(ETCD), &[]);
    ctl(&etcd, &["put", "secret", "value"]);
    for command in [
        &["user", "add", "root:word"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "u:p"],
        &["role", "add", "r"],
        &["role", "grant-permission", "r", "read", "open"],
        &["user", "grant-role", "u", "r"],
    ] {
        ctl(&etcd, command);
    }
    let enabled = ctl(&etcd, &["auth", "enable"]);
    assert!(enabled.contains("Authentication Enabled"), "{enabled}");
    let file = etcd.dir().join("snapshot");
    ctl(&etcd, &["snapshot", "save", &file.display().to_string(), "--user=root:word"]);
    let mut own = Member::new(&own_program(), "n1");
    let (text, is_done) = own.restore_own(&file, &[]);
    assert!(is_done && text.contains("restored 1 keys"), "{text}");
    own.restart();
    for (command, expected) in [
        (&["get", "secret"][..], "user name is empty"),
        (&["get", "secret", "--user=u:p"], "permission denied"),
        (&["get", "secret", "--user=u:q"], "authentication failed"),
        (&["get", "secret", "--user=root:word"], "value"),
        (&["role", "get", "r", "--user=u:p"], "open"),
    ] {
        let printed = ctl(&own, command);
        assert!(printed.contains(expected), "{command:?}: {printed}");
    }
}

/// A restore that is killed leaves nothing, or something that neither a server nor a restore accepts as a member, or all of it.
#[test]
fn a_restore_that_is_killed_leaves_no_half_of_a_member() {
    if !has_rulers() {
        return;
    }
    let saved = Member::own(&[]);
    fill(&saved);
    let file = save(&saved, "snapshot");
    let (mut left, mut complete) = (0, 0);
    for round in 0..20 {
        let mut member = Member::new(&own_program(), "n1");
        let unfinished = member.data_dir().join("member.unfinished");
        // Killed as soon as one of these is there.
        let is_due = match round % 5 {
            0 => unfinished.clone(),
            1 => unfinished.join("identity.json"),
            2 => unfinished.join("state/current"),
            3 => unfinished.join("log"),
            _ => member.data_dir().join("member"),
        };
        let mut command = member.restore_command(&file);
        command.stdout(std::process::Stdio::null());
        let mut restoring = end_with_parent(&mut command).spawn().unwrap();
        until("it is due", || (is_due.exists() || restoring.try_wait().unwrap().is_some()).then_some(()));
        restoring.kill().unwrap();
        restoring.wait().unwrap();
        if unfinished.exists() {
            left += 1;
            member.start();
            let log = member.wait_until_ended();
            assert!(log.contains("was left by a restore that did not come to its end"), "{log}");
            let (text, is_done) = member.restore_own(&file, &[]);
            assert!(!is_done && text.contains("was left by a restore"), "{text}");
            std::fs::remove_dir_all(&unfinished).unwrap();
        } else {
            complete += u32::from(member.data_dir().join("member").exists());
        }
        if !member.data_dir().join("member").exists() {
            let (text, is_done) = member.restore_own(&file, &[]);
            assert!(is_done, "{text}");
        }
        member.restart();
        assert_eq!(ctl(&member, &["get", "last"]), "last\nv\n", "round {round}");
    }
    assert!(left >= 8 && complete >= 2, "{left} left, {complete} complete");
}
