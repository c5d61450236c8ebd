//! Servers as processes of their own: forebay-etcd, and etcd where it is installed.

#![allow(dead_code, reason = "each test program uses a part of this")]

pub(crate) mod ctl;

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_test::children::end_with_parent;
use forebay_test::ports::free_port;

/// Longer than any wait on a busy machine: only a hang reaches it.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Between two looks at something that has no other way to be waited for.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `look` finds something.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < LONG, "{what}: not within {LONG:?}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Awaits something that must not hang.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(LONG, future).await.expect("this hangs")
}

/// A member: its program, directory and ports, and its process while it runs. It ends when this is dropped.
pub(crate) struct Member {
    pub(crate) name: String,
    program: PathBuf,
    dir: tempfile::TempDir,
    pub(crate) client_port: u16,
    pub(crate) peer_port: u16,
    flags: Vec<String>,
    child: Option<Child>,
}

/// Returns the program `forebay-etcd`: `FOREBAY_ETCD_PROGRAM`, or the program next to this test's folder, which `cargo build -p
/// forebay-etcd` makes.
pub(crate) fn own_program() -> PathBuf {
    let beside = || {
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(2).map(|folder| folder.join("forebay-etcd")).unwrap()
    };
    let program = std::env::var_os("FOREBAY_ETCD_PROGRAM").map_or_else(beside, PathBuf::from);
    assert!(program.exists(), "{} is missing: cargo build -p forebay-etcd", program.display());
    program
}

impl Member {
    /// A member that does not run yet.
    pub(crate) fn new(program: &Path, name: &str) -> Member {
        Member {
            name: name.to_owned(),
            program: program.to_owned(),
            dir: tempfile::tempdir().unwrap(),
            client_port: free_port(),
            peer_port: free_port(),
            flags: Vec::new(),
            child: None,
        }
    }

    /// A member alone that runs.
    pub(crate) fn alone(program: &Path, flags: &[&str]) -> Member {
        let mut member = Member::new(program, "n1");
        member.flags(flags);
        member.start();
        member.wait_until_healthy();
        member
    }

    /// forebay-etcd, alone.
    pub(crate) fn own(flags: &[&str]) -> Member {
        Member::alone(&own_program(), flags)
    }

    /// forebay-etcd, several of it.
    pub(crate) fn cluster(size: usize, flags: &[&str]) -> Vec<Member> {
        Member::several(&own_program(), size, flags)
    }

    /// Several members of one cluster that run.
    pub(crate) fn several(program: &Path, size: usize, flags: &[&str]) -> Vec<Member> {
        let mut members = Member::members(program, size, flags);
        members.iter_mut().for_each(Member::start);
        members.iter_mut().for_each(Member::wait_until_healthy);
        members
    }

    /// Several members of one cluster that do not run yet.
    pub(crate) fn members(program: &Path, size: usize, flags: &[&str]) -> Vec<Member> {
        let mut members: Vec<Member> = (0..size).map(|at| Member::new(program, &format!("n{at}"))).collect();
        let urls = Member::list(&members);
        for member in &mut members {
            member.flags(&[&format!("--initial-cluster={urls}")]);
            member.flags(flags);
        }
        members
    }

    /// The value of `--initial-cluster`.
    pub(crate) fn list(members: &[Member]) -> String {
        let urls: Vec<String> =
            members.iter().map(|member| format!("{}={}", member.name, member.peer_url())).collect();
        urls.join(",")
    }

    pub(crate) fn flags(&mut self, flags: &[&str]) {
        self.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
    }

    pub(crate) fn client_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.client_port)
    }

    pub(crate) fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer_port)
    }

    /// The client's address without a scheme.
    pub(crate) fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Starts the process. Its log continues that of the previous process.
    pub(crate) fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.name);
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        let mut command = Command::new(&self.program);
        command
            .arg(format!("--name={}", self.name))
            .arg(format!("--data-dir={}", self.data_dir().display()))
            .arg(format!("--listen-client-urls={}", self.client_url()))
            .arg(format!("--advertise-client-urls={}", self.client_url()))
            .arg(format!("--listen-peer-urls={}", self.peer_url()))
            .arg(format!("--initial-advertise-peer-urls={}", self.peer_url()));
        if !self.flags.iter().any(|flag| flag.starts_with("--initial-cluster=")) {
            command.arg(format!("--initial-cluster={}={}", self.name, self.peer_url()));
        }
        command.args(&self.flags).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        // Settings of somebody's own etcd.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ETCD_") {
                command.env_remove(name);
            }
        }
        self.child = Some(end_with_parent(&mut command).spawn().unwrap());
    }

    /// The id of its process, which runs.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Waits until `/health` says that reads and writes are served.
    pub(crate) fn wait_until_healthy(&mut self) {
        let name = self.name.clone();
        until(&format!("{name} becomes healthy"), || {
            let ended = self.child.as_mut().expect("it was started").try_wait().unwrap();
            assert!(ended.is_none(), "{name} ended with {ended:?}");
            let body = http_get(&self.endpoint(), "/health")?;
            body.contains(r#""health":"true""#).then_some(())
        });
    }

    /// Ends the process immediately, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn restart(&mut self) {
        self.start();
        self.wait_until_healthy();
    }

    /// Makes the data directory of a snapshot, with this server's own program. Returns what it printed, and whether it succeeded.
    pub(crate) fn restore_own(&self, file: &Path, flags: &[&str]) -> (String, bool) {
        let output = self.restore_command(file).args(flags).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (String::from_utf8(text).unwrap(), output.status.success())
    }

    pub(crate) fn restore_command(&self, file: &Path) -> Command {
        let mut command = Command::new(own_program());
        command
            .args(["snapshot", "restore"])
            .arg(file)
            .arg(format!("--name={}", self.name))
            .arg(format!("--data-dir={}", self.data_dir().display()))
            .arg(format!("--initial-advertise-peer-urls={}", self.peer_url()));
        command
    }

    /// Waits until the process ends by itself, and returns its log.
    pub(crate) fn wait_until_ended(&mut self) -> String {
        let mut child = self.child.take().expect("it was started");
        until("it ends", || child.try_wait().unwrap());
        std::fs::read_to_string(self.log()).unwrap()
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking()
            && let Ok(log) = std::fs::read_to_string(self.log())
        {
            let lines: Vec<&str> = log.lines().collect();
            let from = lines.len().saturating_sub(20);
            eprintln!(
                "the log of {} ({}) ends with\n{}",
                self.name,
                self.program.display(),
                lines[from..].join("\n")
            );
        }
    }
}

/// Returns the body of a page; `None` if it cannot be had.
pub(crate) fn http_get(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    response.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}
