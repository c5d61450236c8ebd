//! etcd's own client program, `etcdctl`, and its output without what differs from one server to another.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use forebay_test::children::end_with_parent;

use super::{LONG, Member, until};

pub(crate) const ETCD: &str = "etcd";
pub(crate) const ETCDCTL: &str = "etcdctl";

/// Returns whether etcd's programs are here. With `FOREBAY_ETCD_RULERS=1` they must be.
pub(crate) fn has_rulers() -> bool {
    let runs = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).env("ETCDCTL_API", "3").output();
        output.is_ok_and(|output| output.status.success())
    };
    if runs(ETCD, "--version") && runs(ETCDCTL, "version") {
        return true;
    }
    let must = std::env::var("FOREBAY_ETCD_RULERS").is_ok_and(|value| value == "1");
    assert!(!must, "FOREBAY_ETCD_RULERS=1, but there are no programs etcd and etcdctl");
    eprintln!("SKIPPED: there are no programs etcd and etcdctl");
    false
}

/// An etcdctl that runs.
pub(crate) struct Ctl {
    child: Child,
    pub(crate) input: Option<ChildStdin>,
    pub(crate) lines: Receiver<String>,
    pub(crate) output: String,
    errors: Option<JoinHandle<String>>,
}

impl Ctl {
    pub(crate) fn start<S: AsRef<std::ffi::OsStr>>(member: &Member, arguments: &[S]) -> Ctl {
        let mut command = Command::new(ETCDCTL);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ETCDCTL_") {
                command.env_remove(name);
            }
        }
        command
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", member.endpoint()))
            .arg(format!("--command-timeout={}s", LONG.as_secs()))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = end_with_parent(&mut command).spawn().unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok());
        });
        let mut stderr = child.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        Ctl { input: child.stdin.take(), child, lines, output: String::new(), errors: Some(errors) }
    }

    /// Writes to its input, which stays open.
    pub(crate) fn write(&mut self, text: &str) {
        // It may have ended already, with a complaint.
        let _ = self.input.as_mut().unwrap().write_all(text.as_bytes());
    }

    /// Waits for a line of its output that contains a text.
    pub(crate) fn wait_for(&mut self, text: &str) {
        loop {
            let line = self.lines.recv_timeout(LONG);
            let Ok(line) = line else {
                let errors = self.end();
                panic!("no line with {text} came, but {:?} and {errors:?}", self.output)
            };
            self.output.push_str(&line);
            self.output.push('\n');
            if line.contains(text) {
                return;
            }
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Interrupts it, as with the key C.
    pub(crate) fn interrupt(&self) {
        let killed = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
    }

    /// Ends it, and returns its complaints.
    fn end(&mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.errors.take().map(|errors| errors.join().unwrap()).unwrap_or_default()
    }

    /// Waits for its end, and returns all that it has printed.
    pub(crate) fn finish(mut self) -> String {
        drop(self.input.take());
        while let Ok(line) = self.lines.recv_timeout(LONG) {
            self.output.push_str(&line);
            self.output.push('\n');
        }
        let status = until("etcdctl ends", || self.child.try_wait().unwrap());
        // Its log has times and addresses, and says no more than the message does.
        let errors = self.end();
        let errors: String = errors
            .lines()
            .filter(|line| !line.starts_with("{\"level\""))
            .map(|line| format!("{line}\n"))
            .collect();
        let code = status
            .code()
            .map_or(String::new(), |code| if code == 0 { String::new() } else { format!("[exit {code}]\n") });
        format!("{}{errors}{code}", self.output)
    }
}

impl Drop for Ctl {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) fn ctl<S: AsRef<std::ffi::OsStr>>(member: &Member, arguments: &[S]) -> String {
    Ctl::start(member, arguments).finish()
}

/// Masks parts that differ from one server to another: ids, terms, ports, times.
pub(crate) fn masked(text: &str, member: &Member) -> String {
    let text = text
        .replace(&format!(":{}", member.client_port), ":CLIENT")
        .replace(&format!(":{}", member.peer_port), ":PEER")
        .replace(&member.dir().display().to_string(), "DIR");
    let mut masked = String::new();
    let mut word = String::new();
    let end_word = |word: &mut String, masked: &mut String| {
        let is_hex = word.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'));
        let is_decimal = word.chars().all(|c| c.is_ascii_digit());
        let is_id = (is_hex && word.len() >= 12) || (is_decimal && word.len() >= 10);
        masked.push_str(if is_id { "ID" } else { word });
        word.clear();
    };
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            word.push(c);
        } else {
            end_word(&mut word, &mut masked);
            masked.push(c);
        }
    }
    end_word(&mut word, &mut masked);
    // A short id is padded.
    while masked.contains("  ID") {
        masked = masked.replace("  ID", " ID");
    }
    // The rest of a lease's time: etcd is asked a moment later.
    if masked.contains("GrantedTTL") {
        masked = without(&masked, "\"TTL\" : ", "\n");
    }
    for (before, after) in
        [("\"raft_term\":", ",}"), ("\"RaftTerm\" : ", "\n"), ("remaining(", ")"), ("took = ", "\n")]
    {
        masked = without(&masked, before, after);
    }
    masked
}

/// Removes the text between `before` and the first of the characters in `after`.
fn without(text: &str, before: &str, after: &str) -> String {
    let mut left = text;
    let mut result = String::new();
    while let Some(at) = left.find(before) {
        let (head, tail) = left.split_at(at + before.len());
        result.push_str(head);
        left = &tail[tail.find(|c| after.contains(c)).unwrap_or(tail.len())..];
    }
    result + left
}
