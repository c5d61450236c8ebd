//! The guest: mounts the file systems, checks all data, then writes until the power fails.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use forebay::{Config, Engine};

use crate::subject::{ALL, BOTH, ENGINES, NAMES, NONE, SERVERS, Say, Writer, ended, on_disk_of, recover};

/// Pause after each acknowledgement of a subject that writes alone. It is longer than the subject's next operation, so most cuts
/// find a disk that has not been flushed since.
const REST: Duration = Duration::from_millis(10);

/// Runs in the virtual machine, started by the host. It waits for its disks. The serial number of each, such
/// as `ext4-0-all-new`, gives the file system, the number of power-ups so far, the subject that writes and
/// whether to make the file system first.
#[derive(Debug, clap::Args)]
pub(crate) struct Guest {}

/// The fields of a disk's serial number.
pub(crate) struct Place {
    pub(crate) device: &'static str,
    pub(crate) kind: String,
    pub(crate) life: u64,
    /// One of [`NAMES`], [`ENGINES`], [`ALL`], [`BOTH`], [`SERVERS`] or [`NONE`].
    pub(crate) writes: String,
    pub(crate) is_new: bool,
}

impl Place {
    /// Waits until the kernel provides the device.
    fn wait(device: &'static str, serial: &str) -> Result<Place, String> {
        let text = loop {
            match std::fs::read_to_string(serial) {
                Ok(text) if Path::new(device).exists() => break text,
                _ => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let words: Vec<&str> = text.trim().split('-').collect();
        let parsed = words.get(1).and_then(|life| life.parse().ok());
        let life = parsed.ok_or_else(|| format!("{device} has the serial number {text}"))?;
        let writes = words.get(2).filter(|word| {
            [ALL, BOTH, SERVERS, NONE].contains(*word) || NAMES.contains(word) || ENGINES.contains(word)
        });
        let writes = writes.ok_or_else(|| format!("{device}: nobody writes by the serial number {text}"))?;
        Ok(Place {
            device,
            kind: words[0].into(),
            life,
            writes: (*writes).into(),
            is_new: words.get(3) == Some(&"new"),
        })
    }
}

impl Guest {
    /// Checks all data, then writes until the power fails; returns only with an error.
    pub(crate) fn run(&self) -> Result<(), String> {
        let out = Mutex::new(std::io::stdout());
        let say_line = |line: &str| {
            let mut out = out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            // A failure cannot be reported: no reader is left.
            let _gone = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
            true
        };
        say_line("guest ready");
        let places = [
            Place::wait("/dev/vda", "/sys/block/vda/serial")?,
            Place::wait("/dev/vdb", "/sys/block/vdb/serial")?,
        ];
        let life = places[0].life;
        say_line("guest up");
        let engine = Engine::start(Config::new().shards(2)).map_err(|error| error.to_string())?;
        let mut dirs = Vec::new();
        for place in &places {
            dirs.push((place, mount(place)?));
        }
        say_line("guest mounted");
        // Subjects that do not write keep their handles open.
        let (mut writers, mut others) = (Vec::new(), Vec::new());
        for (place, dir) in &dirs {
            for name in on_disk_of(&place.writes).iter().copied() {
                let full = format!("{}/{name}", place.kind);
                let dir = dir.join(name);
                make(&engine, &dir)?;
                let say = |line: &str| say_line(&format!("{full} {line}"));
                let writer = recover(name, &engine, &dir, life, &say);
                let writer = writer.map_err(|error| format!("{full}: {error}"))?;
                let is_alone = place.writes == name;
                if is_alone || [ALL, BOTH].contains(&place.writes.as_str()) {
                    writers.push((full, is_alone, writer));
                } else {
                    others.push(writer);
                }
            }
        }
        say_line("guest writing");
        std::thread::scope(|scope| {
            let threads: Vec<_> = writers
                .into_iter()
                .map(|(full, rests, writer): (String, bool, Box<dyn Writer>)| {
                    let say_line = &say_line;
                    scope.spawn(move || {
                        let say: Say<'_> = &|line: &str| {
                            let goes_on = say_line(&format!("{full} {line}"));
                            if rests && line.starts_with("ack ") {
                                std::thread::sleep(REST);
                            }
                            goes_on
                        };
                        let result = writer.write(life, say);
                        // Report immediately, as the other writers continue.
                        say_line(&format!("guest error {full}: {result:?}"));
                        result
                    })
                })
                .collect();
            ended(threads)
        })
    }
}

pub(crate) fn mount(place: &Place) -> Result<PathBuf, String> {
    let Place { device, kind, is_new, .. } = place;
    let dir = Path::new("/mnt").join(kind);
    std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    if *is_new {
        let quiet_and_force: &[&str] = if kind == "xfs" { &["-q", "-f"] } else { &["-q", "-F"] };
        call(Command::new(format!("mkfs.{kind}")).args(quiet_and_force).arg(device))?;
    }
    call(Command::new("mount").args(["-t", kind, device]).arg(&dir))?;
    Ok(dir)
}

/// Creates a subject's directory and makes it durable, so that later changes there concern the subject alone.
pub(crate) fn make(engine: &Engine, dir: &Path) -> Result<(), String> {
    if !dir.is_dir() {
        std::fs::create_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let parent = dir.parent().unwrap_or(dir);
        engine.sync_dir(parent).wait().map_err(|error| error.to_string())?;
    }
    Ok(())
}

pub(crate) fn call(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_string();
    Err(format!("{command:?}: {}: {text}", output.status))
}
