//! One life of a virtual machine: `vm/run` starts it, its output is read line by line, and a power cut ends
//! it.

use std::fs::File;
use std::io::{BufRead, BufReader, Error, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Time limit for booting, long enough for a machine among many others.
const READY: Duration = Duration::from_secs(240);

/// Start parameters of a machine, the same in each life.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// The program `vm/run`.
    pub(crate) vm: PathBuf,
    pub(crate) kernel: String,
    /// This program, as small as possible.
    pub(crate) program: PathBuf,
    /// Further programs.
    pub(crate) with: Vec<PathBuf>,
    pub(crate) memory_mib: u32,
    /// Saved state of a booted machine that waits for its disks; without it each life boots.
    pub(crate) state: Option<PathBuf>,
    /// Directory for sockets and messages.
    pub(crate) work: PathBuf,
}

/// A disk of a machine: the socket that serves it, and the serial number reported to the guest.
#[derive(Debug)]
pub(crate) struct AttachedDisk<'a> {
    pub(crate) socket: &'a Path,
    pub(crate) serial: String,
}

/// A line, the end of the output, or a timeout.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Line(String),
    End,
    Nothing,
}

#[derive(Debug)]
pub(crate) struct Machine {
    child: Child,
    lines: Receiver<String>,
    errors: PathBuf,
}

impl Machine {
    /// Starts a machine with these disks. They are attached once the guest is up, so a machine that continues
    /// from a saved state has not seen them before, as one that boots has not. They are not NVMe disks: the
    /// controller of QEMU 7.2 reports FUA but drops the flag, so writes that the guest may assume durable
    /// would not be.
    pub(crate) fn start(start: &Start, disks: [&AttachedDisk<'_>; 2]) -> Result<Machine> {
        let mut command = Machine::command(start);
        for (id, disk) in ["first", "second"].into_iter().zip(disks) {
            let socket = disk.socket.display();
            let drive = format!(
                "file.driver=nbd,file.server.type=unix,file.server.path={socket},if=none,id={id},format=raw,cache=writeback"
            );
            command.args(["--drive", &drive]);
        }
        if let Some(state) = &start.state {
            command.arg("--incoming").arg(state);
        }
        let machine = Machine::spawn(start, command)?;
        let mut monitor = Monitor::connect(&start.work.join("monitor"))?;
        if start.state.is_none() {
            machine.ready()?;
        }
        // QEMU reads the state completely before the machine runs.
        let limit = Instant::now() + READY;
        while !monitor.ask("info status")?.contains("VM status: running") {
            // The state was saved while the machine was stopped, so the machine starts stopped.
            monitor.ask("cont")?;
            if Instant::now() > limit {
                return Err(Error::other("the machine does not come to run"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        for (id, disk) in ["first", "second"].into_iter().zip(disks) {
            let answer =
                monitor.ask(&format!("device_add virtio-blk-pci,drive={id},serial={}", disk.serial))?;
            if answer.contains("Error") {
                return Err(Error::other(format!("device_add: {}", answer.trim())));
            }
        }
        Ok(machine)
    }

    /// Boots a machine without disks and saves its state.
    pub(crate) fn prepare(start: &Start, state: &Path) -> Result<()> {
        let machine = Machine::spawn(start, Machine::command(start))?;
        machine.ready()?;
        let mut monitor = Monitor::connect(&start.work.join("monitor"))?;
        monitor.ask("stop")?;
        let answer = monitor.ask(&format!("migrate \"exec:cat >{}\"", state.display()))?;
        let status = monitor.ask("info migrate")?;
        machine.kill()?;
        if status.contains("completed") { Ok(()) } else { Err(Error::other(format!("{answer}{status}"))) }
    }

    fn command(start: &Start) -> Command {
        let mut command = Command::new(&start.vm);
        command
            .args([
                "--kernel",
                &start.kernel,
                "--limit",
                "600",
                "--memory",
                &start.memory_mib.to_string(),
                "--cpus",
                "1",
                "--without-null-blk",
            ])
            .args(["--nvme", "none", "--disk", "none", "--monitor"])
            .arg(start.work.join("monitor"))
            .arg("--file")
            .arg(format!("{}:/vm/forebay-crash", start.program.display()));
        for program in &start.with {
            command.arg("--file").arg(program);
        }
        command
    }

    fn spawn(start: &Start, mut command: Command) -> Result<Machine> {
        let errors = start.work.join("errors");
        let _none = std::fs::remove_file(start.work.join("monitor"));
        let mut child = command
            .args(["sh", "-c", "modprobe ext4; modprobe xfs; exec forebay-crash guest"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors)?)
            .spawn()?;
        let out = child.stdout.take().ok_or_else(|| Error::other("the machine has no output"))?;
        let (send, lines) = channel();
        std::thread::Builder::new().name("listener".into()).spawn(move || {
            // A line torn by a cut has no end and is dropped.
            let mut out = BufReader::new(out);
            let mut line = String::new();
            while out.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                if line.pop() != Some('\n') || send.send(std::mem::take(&mut line)).is_err() {
                    break;
                }
            }
        })?;
        Ok(Machine { child, lines, errors })
    }

    /// Waits until the guest is ready for its disks.
    fn ready(&self) -> Result<()> {
        match self.hear(Instant::now() + READY) {
            Heard::Line(line) if line == "guest ready" => Ok(()),
            other => {
                let text = std::fs::read_to_string(&self.errors).unwrap_or_default();
                Err(Error::other(format!("the guest is not ready: {other:?}\n{text}")))
            }
        }
    }

    pub(crate) fn hear(&self, until: Instant) -> Heard {
        match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => Heard::Line(line),
            Err(RecvTimeoutError::Disconnected) => Heard::End,
            Err(RecvTimeoutError::Timeout) => Heard::Nothing,
        }
    }

    /// Kills the machine, waits for its end and returns its remaining lines.
    pub(crate) fn kill(mut self) -> Result<Vec<String>> {
        let pid = rustix::process::Pid::from_child(&self.child);
        // `vm/run` kills QEMU without a clean shutdown.
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let mut lines = Vec::new();
        let limit = Instant::now() + Duration::from_secs(20);
        while let Heard::Line(line) = self.hear(limit) {
            lines.push(line);
        }
        self.child.wait()?;
        Ok(lines)
    }

    /// Returns the exit status and the error output of a machine that ended by itself.
    pub(crate) fn last_words(mut self) -> String {
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        let text = std::fs::read_to_string(&self.errors).unwrap_or_default();
        format!("{status}\n{}", text.trim_end())
    }
}

impl Drop for Machine {
    /// Kills the machine after any failure, so that it does not stay behind.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _gone = rustix::process::kill_process(
                rustix::process::Pid::from_child(&self.child),
                rustix::process::Signal::TERM,
            );
            let _gone = self.child.wait();
        }
    }
}

/// QEMU's human monitor: one command line, then output up to the next prompt.
#[derive(Debug)]
struct Monitor(UnixStream);

impl Monitor {
    fn connect(socket: &Path) -> Result<Monitor> {
        let limit = Instant::now() + READY;
        loop {
            match UnixStream::connect(socket) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(READY))?;
                    let mut monitor = Monitor(stream);
                    monitor.answer()?;
                    return Ok(monitor);
                }
                Err(error) if Instant::now() > limit => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        self.0.write_all(format!("{line}\n").as_bytes())?;
        self.answer()
    }

    fn answer(&mut self) -> Result<String> {
        let mut text = Vec::new();
        let mut piece = [0; 4096];
        while !text.ends_with(b"(qemu) ") {
            match self.0.read(&mut piece)? {
                0 => return Err(Error::other("QEMU has ended")),
                len => text.extend_from_slice(&piece[..len]),
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}
