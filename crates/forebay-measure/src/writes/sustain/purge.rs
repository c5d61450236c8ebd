//! A whole device in the state that SNIA's specification (PTS) asks for before a load: purged, here by a discard, and then
//! written twice over in order by requests of 128 KiB.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay::device::{Device, DeviceKind};

use crate::context::Target;
use crate::doctor::drive;
use crate::prelude::*;
use crate::progress::Unit;
use crate::test_file::{by_descriptor, claim, write_pieces};

const REQUEST_BYTES: usize = 128 << 10;
const PASSES: u64 = 2;
/// A device that is the standard input of a program, as a path.
const STDIN: &str = "/proc/self/fd/0";

/// A device all of whose contents may be destroyed.
#[derive(Debug)]
pub(super) struct WholeDevice {
    /// As the user named it, for sentences.
    name: PathBuf,
    /// Open from the first check to the end: no other device gets its number meanwhile, and it is destroyed by this descriptor, wherever
    /// its name leads by then.
    handle: File,
    /// The reason why it is not a single local drive.
    pub(super) obstacle: Option<String>,
    /// Keeps file systems from being mounted, from the first check to the end of the last load.
    claim: Option<File>,
}

impl WholeDevice {
    /// Returns the device of a target that is one, and not a part of one, with both permissions to replace its contents.
    ///
    /// # Errors
    /// It is in use, or cannot be examined.
    pub(super) fn of(target: &Target) -> Result<Option<Self>, Failure> {
        let Target::Overwritten(name) = target else { return Ok(None) };
        let missing = |error: std::io::Error| Failure::missing(name, &error);
        let handle = File::open(name).map_err(missing)?;
        if !handle.metadata().map_err(missing)?.file_type().is_block_device() {
            return Ok(None);
        }
        let device = Device::of_fd(handle.as_fd()).map_err(|error| Failure::Path(error.to_string()))?;
        if device.kind() == DeviceKind::Partition {
            return Ok(None);
        }
        let claim = Some(claim(&by_descriptor(&handle), name)?);
        Ok(Some(Self { name: name.clone(), handle, obstacle: drive::obstacle(&device), claim }))
    }

    /// Purges the device and writes its first bytes, those of `file`, twice.
    ///
    /// # Errors
    /// It is in use, has no discard, or cannot be written; or the path of `file` leads elsewhere.
    pub(super) fn prepare(&mut self, file: &TestFile, seed: u64, context: &Context) -> anyhow::Result<()> {
        // The load opens the path by itself.
        if fs::metadata(&file.path)?.rdev() != self.handle.metadata()?.rdev() {
            let name = self.name.display();
            return Err(
                Failure::Path(format!("{name} is another device than at first: name it again")).into()
            );
        }
        // blkdiscard claims the device itself; before util-linux 2.36 it did not.
        drop(self.claim.take());
        let path = by_descriptor(&self.handle);
        drop(claim(&path, &self.name)?);
        discard(Path::new("blkdiscard"), &self.name, self.handle.try_clone()?)?;
        self.claim = Some(claim(&path, &self.name)?);
        for pass in 0..PASSES {
            let step = context.step(format!("write all of {}", self.name.display()), file.bytes, Unit::Bytes);
            let pattern = Pattern::new(seed.wrapping_add(pass));
            write_pieces(REQUEST_BYTES, &path, file.bytes, |at, memory| pattern.fill(at, memory), &step)?;
            step.finish("on the device");
        }
        Ok(())
    }
}

/// Discards all blocks of a device by `program`.
fn discard(program: &Path, name: &Path, device: File) -> Result<(), Failure> {
    let done = Command::new(program).arg(STDIN).stdin(device).output();
    let name = name.display().to_string();
    let why = match done {
        Ok(done) if done.status.success() => return Ok(()),
        Ok(done) => {
            format!("{}, {}", done.status, String::from_utf8_lossy(&done.stderr).trim().replace(STDIN, &name))
        }
        Err(error) => format!("{}: {error}", program.display()),
    };
    Err(Failure::Unsuitable(format!(
        "{name} cannot be purged by a discard ({why}): name a directory, where none is needed"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;

    /// A discard destroys everything: only both permissions on a whole block device allow it.
    #[test]
    fn files_and_targets_without_permission_are_not_purged() {
        let cleanup = Cleanup::default();
        let temp = cleanup.temp_file(&std::env::temp_dir(), "purge").expect("writable");
        let path = temp.path().to_owned();
        for target in [
            Target::Overwritten(path.clone()),
            Target::Existing(path),
            Target::Existing("/dev/null".into()),
            Target::Directory(std::env::temp_dir()),
        ] {
            assert!(WholeDevice::of(&target).expect("readable").is_none(), "{target:?}");
        }
    }

    #[test]
    fn a_refused_discard_has_its_reason() {
        let run = |program: &str| {
            let nothing = File::open("/dev/null").expect("readable");
            discard(Path::new(program), Path::new("/dev/x"), nothing)
        };
        assert_eq!(run("true"), Ok(()));
        let of = |program: &str| run(program).expect_err("it fails");
        assert!(of("false").to_string().starts_with("/dev/x cannot be purged by a discard"));
        assert!(of("no-such-program").to_string().contains("no-such-program: "));
        assert_eq!(of("false").code(), 4);
    }
}
