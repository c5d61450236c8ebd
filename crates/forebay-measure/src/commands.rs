//! Support for the rows that send commands to an NVMe namespace. They read its present contents, and
//! write nothing.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use forebay::{Config, Engine, OpenNvme, Polling};
use io_uring::{opcode, squeue, types};

use crate::job::Job;
use crate::options::Opt;
use forebay_report::failure::Failure;

/// `_IO('N', 0x40)` of linux/nvme_ioctl.h: returns the namespace's number.
const NVME_IOCTL_ID: u64 = 0x4E40;
/// `_IOWR('N', 0x80, struct nvme_uring_cmd)`.
const NVME_URING_CMD_IO: u32 = 0xC048_4E80;
const NVME_READ: u8 = 2;

/// The option of experiments that names the namespace.
pub(super) const NAMESPACE: Opt = Opt::path(
    "namespace",
    "An NVMe namespace's character device, such as /dev/ng0n1, for the rows that send it commands; it is only read from, also \
     while it is mounted",
)
.chosen("none, and no such rows");

/// Returns the namespace of an option after a check that it can be read.
///
/// # Errors
/// Fails when it cannot be read, or when `rows` names a row that needs a missing namespace ([`Failure`]).
pub(super) fn namespace(named: &[&str], rows: &[String]) -> anyhow::Result<Option<PathBuf>> {
    if let Some(path) = named.first().map(PathBuf::from) {
        Namespace::open(&path).map_err(|error| {
            Failure::Unsuitable(format!("{} cannot be read by commands: {error:#}", path.display()))
        })?;
        return Ok(Some(path));
    }
    match rows.iter().find(|name| name.ends_with("commands")) {
        Some(name) => Err(Failure::Usage(format!(
            "{name} sends commands to an NVMe namespace: name its character device with --namespace, such as /dev/ng0n1"
        ))
        .into()),
        None => Ok(None),
    }
}

/// Returns the note for such rows.
pub(super) fn note(namespace: &Path) -> String {
    format!(
        "rows of commands read the existing contents of {}, up to the length of the file; a device may return blocks \
         that were never written without reading its medium, and the block layer does not count commands",
        namespace.display()
    )
}

/// Returns a job without the parts that hold only for the file, and the bytes up to `most` that can be read in blocks: the
/// namespace's bytes are not a pattern, and its device does not count commands.
///
/// # Errors
/// Fails when the sample has no namespace, or one shorter than a block.
pub(super) fn of_namespace(job: &Job, most: u64, block_bytes: u64) -> anyhow::Result<(Job, u64)> {
    let path = job.namespace.clone().context("the sample was given no namespace")?;
    let bytes = most.min(Namespace::open(&path)?.bytes);
    anyhow::ensure!(bytes >= block_bytes, "the namespace is shorter than a block");
    Ok((Job { path, pattern_seed: None, device_stat: None, ..job.clone() }, bytes))
}

/// The properties of a namespace that commands need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Namespace {
    id: u32,
    block_shift: u32,
    pub(super) bytes: u64,
}

impl Namespace {
    /// Opens the namespace at `path` and reads its properties.
    ///
    /// # Errors
    /// Fails when it is not a namespace, or may not be opened.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let engine = Engine::start(Config::new().shards(1))?;
        let file = engine.open_nvme(path, OpenNvme::read().even_in_use()).wait()?;
        let (bytes, block) = (file.len().wait()?, file.alignment().offset);
        drop(file);
        engine.close().wait()?;
        let device = File::open(path)?;
        // SAFETY: the call has no pointer argument.
        let id = unsafe { libc::ioctl(device.as_raw_fd(), NVME_IOCTL_ID as _) };
        let id = u32::try_from(id)
            .ok()
            .filter(|id| *id > 0)
            .context("the number of the namespace cannot be read")?;
        anyhow::ensure!(block.is_power_of_two(), "the namespace has blocks of {block} bytes");
        Ok(Self { id, block_shift: block.trailing_zeros(), bytes })
    }

    /// Returns a read of `len` bytes at `offset`, both multiples of the block, into memory registered as
    /// buffer 0, from file 0.
    pub(super) fn read(self, offset: u64, memory: *mut u8, len: u32) -> squeue::Entry128 {
        let mut command = [0_u8; 80];
        command[0] = NVME_READ;
        command[4..8].copy_from_slice(&self.id.to_le_bytes());
        command[24..32].copy_from_slice(&(memory as u64).to_le_bytes());
        command[36..40].copy_from_slice(&len.to_le_bytes());
        command[40..48].copy_from_slice(&(offset >> self.block_shift).to_le_bytes());
        command[48..52].copy_from_slice(&((len >> self.block_shift) - 1).to_le_bytes());
        opcode::UringCmd80::new(types::Fixed(0), NVME_URING_CMD_IO).cmd(command).buf_index(Some(0)).build()
    }
}

/// Opens the namespace for Forebay's rows.
///
/// # Errors
/// Fails with the errors of the engine.
pub(super) fn open(path: &Path) -> anyhow::Result<(Engine, forebay::File)> {
    let engine = Engine::start(Config::new().shards(1).polling(Polling::On))?;
    let file = engine.open_nvme(path, OpenNvme::read().even_in_use()).wait()?;
    // The first read sets up the ring, and shows whether it can be polled.
    file.read_up_to(0..1).wait()?;
    Ok((engine, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_commands_want_a_namespace_and_others_do_not() {
        assert_eq!(namespace(&[], &["pread".to_owned()]).expect("nothing is wrong"), None);
        let error = namespace(&[], &["forebay-commands".to_owned()]).expect_err("there is no namespace");
        assert_eq!(error.downcast_ref::<Failure>().map(Failure::code), Some(2), "{error}");
        let error = namespace(&["/dev/null"], &[]).expect_err("it is none");
        assert_eq!(error.downcast_ref::<Failure>().map(Failure::code), Some(4), "{error}");
        assert!(error.to_string().contains("/dev/null"), "{error}");
    }
}
