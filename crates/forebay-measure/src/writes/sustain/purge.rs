//! A whole device in the state that SNIA's specification (PTS) asks for before a load: purged, here by a discard, and then
//! written twice over in order by requests of 128 KiB.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forebay::device::{Device, DeviceKind};

use crate::context::Target;
use crate::doctor::drive;
use crate::prelude::*;
use crate::progress::Unit;
use crate::test_file::write_pieces;

const REQUEST_BYTES: usize = 128 << 10;
const PASSES: u64 = 2;

/// A device all of whose contents may be destroyed.
#[derive(Debug)]
pub(super) struct WholeDevice {
    path: PathBuf,
    /// The reason why it is not a single local drive.
    pub(super) obstacle: Option<String>,
    /// Keeps file systems from being mounted during a load.
    claim: Option<File>,
}

impl WholeDevice {
    /// Returns the device of a target that is one, and not a part of one, with both permissions to replace its contents.
    ///
    /// # Errors
    /// It is in use, or cannot be examined.
    pub(super) fn of(target: &Target) -> Result<Option<Self>, Failure> {
        let Target::Overwritten(path) = target else { return Ok(None) };
        let metadata = fs::metadata(path).map_err(|error| Failure::missing(path, &error))?;
        let device = Device::of_path(path).map_err(|error| Failure::Path(error.to_string()))?;
        if !metadata.file_type().is_block_device() || device.kind() == DeviceKind::Partition {
            return Ok(None);
        }
        claim(path)?;
        Ok(Some(Self { path: path.clone(), obstacle: drive::obstacle(&device), claim: None }))
    }

    /// Purges the device and writes its first `bytes` bytes twice.
    ///
    /// # Errors
    /// It is in use, has no discard, or cannot be written.
    pub(super) fn prepare(&mut self, bytes: u64, seed: u64, context: &Context) -> anyhow::Result<()> {
        // blkdiscard claims the device itself; before util-linux 2.36 it did not.
        drop(self.claim.take());
        claim(&self.path)?;
        discard(Path::new("blkdiscard"), &self.path)?;
        self.claim = Some(claim(&self.path)?);
        for pass in 0..PASSES {
            let step = context.step(format!("write all of {}", self.path.display()), bytes, Unit::Bytes);
            let pattern = Pattern::new(seed.wrapping_add(pass));
            write_pieces(REQUEST_BYTES, &self.path, bytes, |at, memory| pattern.fill(at, memory), &step)?;
            step.finish("on the device");
        }
        Ok(())
    }
}

/// Opens a device so that no file system or other device on it, or on a part of it, can be in use.
fn claim(path: &Path) -> Result<File, Failure> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
    opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => {
            Failure::Path(format!("{} is in use: unmount it, and what lies on it", path.display()))
        }
        _ => Failure::missing(path, &error),
    })
}

/// Discards all blocks of a device by `program`.
fn discard(program: &Path, path: &Path) -> Result<(), Failure> {
    let done = Command::new(program).arg(path).stdin(Stdio::null()).output();
    let why = match done {
        Ok(done) if done.status.success() => return Ok(()),
        Ok(done) => format!("{}, {}", done.status, String::from_utf8_lossy(&done.stderr).trim()),
        Err(error) => format!("{}: {error}", program.display()),
    };
    let path = path.display();
    Err(Failure::Unsuitable(format!(
        "{path} cannot be purged by a discard ({why}): name a directory, where none is needed"
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
        assert_eq!(discard(Path::new("true"), Path::new("/dev/x")), Ok(()));
        let of = |program: &str| discard(Path::new(program), Path::new("/dev/x")).expect_err("it fails");
        assert!(of("false").to_string().starts_with("/dev/x cannot be purged by a discard"));
        assert!(of("no-such-program").to_string().contains("no-such-program: "));
        assert_eq!(of("false").code(), 4);
    }
}
