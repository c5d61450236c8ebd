//! etcd's own client program, `etcdctl`, against this server and against etcd: the same commands print the same.
//!
//! Needs `etcd` and `etcdctl`. Endpoints have no scheme: with one, etcdctl 3.4 sends an `:authority` that has a
//! path, which no HTTP/2 server of Rust accepts, for calls to one endpoint.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::ctl::{Ctl, ETCD, ctl, has_rulers, masked};
use crate::common::{Member, own_program, until};

#[test]
fn ids_terms_and_times_are_masked_and_no_more() {
    let member = Member::new(&own_program(), "n1");
    let text = format!(
        "{{\"cluster_id\":17237436991929493444,\"raft_term\":2,\"revision\":12}} bfe09869b1558e9b, remaining(99s) \
         127.0.0.1:{} took = 5ms\nv1 1234 abcdef",
        member.client_port
    );
    let expected = "{\"cluster_id\":ID,\"raft_term\":,\"revision\":12} ID, remaining() 127.0.0.1:CLIENT took = \nv1 1234 abcdef";
    assert_eq!(masked(&text, &member), expected);
}

/// A line of a script: a command, its input, and how it is run.
#[derive(Debug, Default)]
struct Step {
    line: String,
    arguments: Vec<String>,
    input: Option<String>,
    until: Option<String>,
    is_sorted: bool,
    /// The message with which this server refuses what etcd carries out.
    differs: Option<String>,
    keeps: Option<String>,
}

/// Splits a line at blanks, except in quotes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match quote {
            Some(mark) if c == mark => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '"' || c == '\'' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c == ' ' => words.extend(word.take()),
            None => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Reads a script. Lines that start with a bar are the input of the command before; `|* N TEXT` is N times this text, or as many
/// lines with a number if it has braces.
fn steps(script: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in script.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(more) = line.strip_prefix("|* ") {
            let (count, text) = more.split_once(' ').unwrap();
            let count: usize = count.parse().unwrap();
            let lines: String = if text.contains("{}") {
                (0..count).map(|at| format!("{}\n", text.replace("{}", &at.to_string()))).collect()
            } else {
                text.repeat(count)
            };
            // A transaction's requests stand between two empty lines.
            let lines = if text.contains("{}") { format!("\n{lines}\n\n") } else { lines };
            steps.last_mut().unwrap().input.get_or_insert_default().push_str(&lines);
            continue;
        }
        if let Some(input) = line.strip_prefix('|') {
            let input = format!("{}\n", input.strip_prefix(' ').unwrap_or(input));
            steps.last_mut().unwrap().input.get_or_insert_default().push_str(&input);
            continue;
        }
        let mut step = Step { line: line.to_owned(), ..Step::default() };
        let mut command = line;
        if let Some(rest) = line.strip_prefix("sorted ") {
            (step.is_sorted, command) = (true, rest);
        }
        if let Some((name, rest)) = command.split_once(" <- ") {
            (step.keeps, command) = (Some(format!("${name}")), rest);
        }
        if let Some((text, rest)) = line.strip_prefix("until ").and_then(|rest| rest.split_once(": ")) {
            (step.until, command) = (Some(text.to_owned()), rest);
        } else if let Some((text, rest)) =
            line.strip_prefix("differs ").and_then(|rest| rest.rsplit_once(": "))
        {
            (step.differs, command) = (Some(text.to_owned()), rest);
        }
        step.arguments = words(command);
        steps.push(step);
    }
    steps
}

/// Runs a script with a server, and returns what each command printed.
fn run(steps: &[Step], member: &Member) -> Vec<String> {
    // A member serves before the cluster has its name.
    let is_named = || ctl(member, &["member", "list"]).contains(", started, n1").then_some(());
    until("the member has its name", is_named);
    let mut kept: BTreeMap<String, String> = BTreeMap::new();
    let mut printed = Vec::new();
    for step in steps {
        let with_kept = |argument: &String| {
            kept.iter().fold(argument.clone(), |argument, (name, id)| argument.replace(name, id))
        };
        let arguments: Vec<String> = step.arguments.iter().map(with_kept).collect();
        let mut running = Ctl::start(member, &arguments);
        if let Some(input) = &step.input {
            running.write(input);
        }
        drop(running.input.take());
        let output = match &step.until {
            Some(text) => {
                running.wait_for(text);
                running.output.clone()
            }
            None => running.finish(),
        };
        if let Some(name) = &step.keeps {
            let is_id = |word: &&str| {
                let is_hex = word.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c));
                word.len() >= 10 && is_hex
            };
            // The fields of a grant's response have the id last, and in decimal.
            let is_fields = output.contains("\"ClusterID\"");
            let mut ids = output.split(|c: char| !c.is_ascii_alphanumeric()).filter(is_id);
            let id = if is_fields {
                let decimal = output.lines().find_map(|line| line.strip_prefix("\"ID\" : ")).unwrap();
                format!("{:x}", decimal.trim().parse::<i64>().unwrap())
            } else {
                ids.next().unwrap_or_else(|| panic!("{}: no id in {output}", step.line)).to_owned()
            };
            kept.insert(name.clone(), id);
        }
        let mut output = masked(&output, member);
        if step.is_sorted {
            // etcd has some lists in the order of a map, and members in that of their ids.
            let mut words: Vec<&str> = output.split(|c| " ,[]\"\n".contains(c)).collect();
            words.retain(|word| !word.is_empty());
            words.sort_unstable();
            output = words.join(" ");
        }
        printed.push(output);
    }
    printed
}

/// Returns the differences between what two servers printed.
fn differences(steps: &[Step], own: &[String], etcds: &[String]) -> Vec<String> {
    let mut differences = Vec::new();
    for ((step, own), etcds) in steps.iter().zip(own).zip(etcds) {
        println!("> {}\n{own}", step.line);
        let is_right = match &step.differs {
            Some(text) => own.trim_start().starts_with(&**text) && own != etcds,
            None => own == etcds,
        };
        if !is_right {
            differences.push(format!("> {}\nown:\n{own}\netcd:\n{etcds}", step.line));
        }
    }
    differences
}

fn compare(script: &str, own_flags: &[&str]) -> Vec<String> {
    let steps = steps(script);
    let (own, etcds) = std::thread::scope(|scope| {
        let own = scope.spawn(|| run(&steps, &Member::own(own_flags)));
        let etcds = scope.spawn(|| run(&steps, &Member::alone(Path::new(ETCD), &[])));
        (own.join(), etcds.join())
    });
    differences(&steps, &own.unwrap(), &etcds.unwrap())
}

fn check(script: &str) {
    if !has_rulers() {
        return;
    }
    let differences = compare(script, &[]);
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn keys_and_values() {
    check(include_str!("../etcdctl/kv.txt"));
}

#[test]
fn transactions() {
    check(include_str!("../etcdctl/txn.txt"));
}

#[test]
fn watches() {
    check(include_str!("../etcdctl/watch.txt"));
}

#[test]
fn leases() {
    check(include_str!("../etcdctl/lease.txt"));
}

#[test]
fn compactions() {
    check(include_str!("../etcdctl/compaction.txt"));
}

#[test]
fn members() {
    check(include_str!("../etcdctl/members.txt"));
}

#[test]
fn alarms() {
    check(include_str!("../etcdctl/alarms.txt"));
}

#[test]
fn users_and_roles() {
    check(include_str!("../etcdctl/auth.txt"));
}

#[test]
fn refusals() {
    check(include_str!("../etcdctl/errors.txt"));
}

/// This server with another limit than etcd's prints something else, and that is seen.
#[test]
fn a_server_that_behaves_otherwise_is_found() {
    if !has_rulers() {
        return;
    }
    let script = "put a 1\ntxn\n|\n| put a 2\n| put b 2\n|\n|\nget a -w json\n";
    assert_eq!(compare(script, &["--max-txn-ops=1"]).len(), 2);
}

/// Both servers, this server first.
fn both(flags: &[&str]) -> [Member; 2] {
    [Member::own(flags), Member::alone(Path::new(ETCD), flags)]
}

/// Has two servers do the same, and compares what was printed.
fn check_both(flags: &[&str], act: impl Fn(&Member) -> Vec<String> + Sync) {
    if !has_rulers() {
        return;
    }
    let [own, etcds] = both(flags).map(|member| {
        let printed = act(&member);
        printed.iter().map(|text| masked(text, &member)).collect::<Vec<_>>()
    });
    assert_eq!(own, etcds);
}

#[test]
fn a_watch_asks_for_its_progress() {
    check_both(&[], |member| {
        ctl(member, &["put", "a", "1"]);
        ctl(member, &["put", "b", "2"]);
        let mut watch = Ctl::start(member, &["watch", "--interactive"]);
        watch.write("watch a --rev=2\n");
        watch.wait_for("1");
        watch.write("progress\n");
        watch.wait_for("progress notify");
        ctl(member, &["put", "a", "3"]);
        watch.wait_for("3");
        ctl(member, &["put", "b", "4"]);
        watch.write("progress\n");
        watch.wait_for("progress notify");
        watch.write("watch b --rev=2\n");
        watch.wait_for("4");
        vec![watch.output.clone()]
    });
}

#[test]
fn locks_are_held_by_one_and_pass_to_the_next() {
    check_both(&[], |member| {
        let mut first = Ctl::start(member, &["lock", "name"]);
        first.wait_for("name/");
        let mut second = Ctl::start(member, &["lock", "name", "echo", "has", "the", "lock"]);
        // It has queued its key, and waits.
        until("the second waits", || {
            (ctl(member, &["get", "name/", "--prefix", "--keys-only"]).matches("name/").count() == 2)
                .then_some(())
        });
        assert!(second.is_running() && second.lines.try_recv().is_err());
        first.interrupt();
        second.wait_for("has the lock");
        let second = second.finish();
        let left = ctl(member, &["get", "name/", "--prefix"]);
        vec![first.finish(), second, left]
    });
}

#[test]
fn elections_have_one_leader_and_pass_to_the_next() {
    check_both(&[], |member| {
        let mut first = Ctl::start(member, &["elect", "name", "one"]);
        first.wait_for("one");
        let mut observer = Ctl::start(member, &["elect", "--listen", "name"]);
        observer.wait_for("one");
        let mut second = Ctl::start(member, &["elect", "name", "two"]);
        until("the second waits", || {
            (ctl(member, &["get", "name/", "--prefix", "--keys-only"]).matches("name/").count() == 2)
                .then_some(())
        });
        assert!(second.is_running() && second.lines.try_recv().is_err());
        first.interrupt();
        second.wait_for("two");
        observer.wait_for("two");
        let listed = ctl(member, &["get", "name/", "--prefix"]);
        second.interrupt();
        vec![first.finish(), second.finish(), observer.output.clone(), listed]
    });
}

/// Keys and values are those of the server that is copied, before and while it is written.
#[test]
fn a_mirror_is_made_in_both_directions() {
    if !has_rulers() {
        return;
    }
    let servers = both(&[]);
    for (from, to) in [(0, 1), (1, 0)] {
        let (from, to) = (&servers[from], &servers[to]);
        for member in &servers {
            ctl(member, &["del", "", "--prefix"]);
        }
        for at in 0..5 {
            ctl(from, &["put", &format!("before{at}"), "value"]);
        }
        let all = ["get", "", "--prefix"];
        let mirror = Ctl::start(from, &["make-mirror", &to.endpoint()]);
        until("the keys of before arrive", || ctl(to, &all).contains("before4").then_some(()));
        ctl(from, &["del", "before1", "before3"]);
        ctl(from, &["put", "before0", "again"]);
        let mut txn = Ctl::start(from, &["txn"]);
        txn.write("\nput both1 x\nput both2 y\ndel before4\n\n\n");
        txn.finish();
        ctl(from, &["put", "end", "of it"]);
        until("the changes arrive", || ctl(to, &all).contains("end").then_some(()));
        let (expected, found) = (ctl(from, &all), ctl(to, &all));
        assert_eq!(expected, found);
        assert_eq!(
            found.lines().step_by(2).collect::<Vec<_>>(),
            ["before0", "before3", "both1", "both2", "end"]
        );
        drop(mirror);
    }
}

/// With no space left, both refuse requests that need more and execute the rest, until space is free again.
#[test]
fn a_full_space_raises_an_alarm() {
    check_both(&["--quota-backend-bytes=6000000"], |member| {
        let big = "x".repeat(1_000_000);
        let put_big = |key: &str| {
            let mut put = Ctl::start(member, &["put", key]);
            put.write(&big);
            put.finish()
        };
        let refused =
            until("the space is full", || Some(put_big("big")).filter(|printed| printed.contains("Error")));
        let mut printed = vec![refused];
        let mut run = |arguments: &[&str]| printed.push(ctl(member, arguments));
        run(&["alarm", "list"]);
        run(&["put", "a", "b"]);
        run(&["get", "a"]);
        run(&["lease", "grant", "100"]);
        run(&["get", "big", "--keys-only"]);
        run(&["alarm", "disarm"]);
        run(&["alarm", "list"]);
        // Nothing was freed: the next long value raises it again.
        let again =
            until("the space is full", || Some(put_big("big")).filter(|printed| printed.contains("Error")));
        run(&["alarm", "list"]);
        run(&["del", "big"]);
        let json = ctl(member, &["get", "big", "-w", "json"]);
        let revision = json.split("\"revision\":").nth(1).unwrap().split(',').next().unwrap();
        let compacted = ctl(member, &["compaction", revision]);
        let mut run = |arguments: &[&str]| printed.push(ctl(member, arguments));
        run(&["defrag"]);
        run(&["alarm", "disarm"]);
        run(&["put", "a", "b"]);
        run(&["get", "a"]);
        run(&["alarm", "list"]);
        printed.extend([again, compacted.replace(revision, "REVISION")]);
        printed
    });
}
