//! NVMe namespaces as files: commands are sent to the device without a file system and the block layer.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::base::error::{Error, Result};
use crate::base::pending::Pending;
use crate::handle::engine::Engine;
use crate::handle::file::File;

/// Options of [`Engine::open_nvme`].
///
/// ```no_run
/// use forebay::{Config, Durability, Engine, OpenNvme};
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::new())?;
/// let disk = engine.open_nvme("/dev/ng0n1", OpenNvme::write()).wait()?;
/// disk.write(0, vec![7u8; 4096]).durable(Durability::Data).wait()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "it describes a namespace to open; give it to Engine::open_nvme"]
pub struct OpenNvme {
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "namespaces are opened on Linux only"))]
    writable: bool,
    in_use: bool,
    /// Start and end, because a range is not `Copy`.
    part: Option<(u64, u64)>,
    shard: Option<usize>,
}

impl OpenNvme {
    /// Returns options to read only.
    pub fn read() -> OpenNvme {
        OpenNvme { writable: false, in_use: false, part: None, shard: None }
    }

    /// Returns options to read and write.
    pub fn write() -> OpenNvme {
        OpenNvme { writable: true, ..OpenNvme::read() }
    }

    /// Allows opening a namespace that is in use: it or a partition of it is mounted, swapped to, or part of
    /// another device. Reads may then return older bytes than the file system holds in memory, and writes may
    /// destroy it.
    pub fn even_in_use(mut self) -> OpenNvme {
        self.in_use = true;
        self
    }

    /// Sets the bytes of the namespace to open: the file's offset 0 is the part's first byte, and its length the part's. The part
    /// must start at a block. The last block of a part that ends inside of it can be read, up to the part's end, but not written.
    ///
    /// Several parts of one namespace are separate files, with two exceptions. The first part that is opened claims the whole
    /// namespace, so the others are opened with [`even_in_use`](OpenNvme::even_in_use). Locks are the namespace's. Whether parts
    /// overlap is not checked.
    pub fn part(mut self, bytes: Range<u64>) -> OpenNvme {
        self.part = Some((bytes.start, bytes.end));
        self
    }

    /// Sets the home shard, as [`Open::shard`](crate::Open::shard) does.
    pub fn shard(mut self, shard: usize) -> OpenNvme {
        self.shard = Some(shard);
        self
    }
}

impl Engine {
    /// Opens an NVMe namespace by its character device (`/dev/ng0n1`) and returns it as a file: reads, writes and syncs are sent to
    /// the device as commands (io_uring's passthrough), bypassing file systems, the block layer and its scheduler.
    ///
    /// The file has the size of the namespace, or of the [part](OpenNvme::part) that is opened. Reads end
    /// there, a write past it fails, and calls that would change the length return
    /// [`Unsupported`](crate::ErrorKind::Unsupported). Writes are in whole blocks of the namespace. With
    /// [`Config::polling`](crate::Config::polling) and poll queues completions are polled for. Needs io_uring
    /// with 128-byte entries (Linux 6.1) and the right to send commands (root). The block device of the
    /// namespace (`/dev/nvme0n1`) has to be readable as well: it is opened, and held while the file is open,
    /// so that it cannot be mounted meanwhile. With [`OpenNvme::even_in_use`] it is not opened.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for a path that is not a namespace or is in use (see
    /// [`OpenNvme::even_in_use`]); [`Unsupported`](crate::ErrorKind::Unsupported) without io_uring, and for
    /// formats with metadata; the system's.
    ///
    /// ```no_run
    /// # use forebay::{Config, Engine, OpenNvme};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::new())?;
    /// let part = OpenNvme::read().part(1 << 30..2 << 30); // the second GiB, as a file that begins at 0
    /// let file = engine.open_nvme("/dev/ng0n1", part).wait()?;
    /// let block = file.read(0..4096).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn open_nvme(&self, path: impl AsRef<Path>, open: OpenNvme) -> Pending<File> {
        begin(self, path.as_ref().to_path_buf(), open)
    }
}

fn begin(engine: &Engine, path: PathBuf, open: OpenNvme) -> Pending<File> {
    if let Err(error) = crate::handle::open::check(engine.shared(), "open_nvme", open.shard) {
        return Pending::ready(Err(error.with_path(path)));
    }
    if engine.driver() != "uring" {
        let error = Error::new(crate::ErrorKind::Unsupported, "open_nvme").with_path(path);
        return Pending::ready(Err(error.with_note("NVMe commands need io_uring")));
    }
    let shared = engine.shared().clone();
    let engine = engine.clone();
    shared.run("open_nvme", None, move || find(&engine, path, open))
}

#[cfg(target_os = "linux")]
fn find(engine: &Engine, path: PathBuf, open: OpenNvme) -> Result<File> {
    use std::sync::Arc;

    use crate::device::{Alignment, namespace};
    use crate::driver::meta::Descriptor;
    use crate::driver::{NvmeTarget, Route};
    use crate::handle::open::may_poll;
    use crate::io::mode::Mode;
    use crate::reactor::open_file::{FileCore, FileParts};

    let found = namespace::open(&path, open.writable, open.in_use, open.part.map(|(start, end)| start..end))?;
    let shared = engine.shared();
    let namespace = found.namespace;
    let alignment = Alignment::of_blocks(1 << namespace.block_shift);
    let target = NvmeTarget {
        id: namespace.id,
        block_shift: namespace.block_shift,
        writable: open.writable,
        polled: may_poll(engine, &found.device),
        bytes_max: namespace.bytes_max,
        first_block: namespace.part.start >> namespace.block_shift,
        bytes: namespace.part.end - namespace.part.start,
    };
    // Numbers of character devices may collide with those of block devices.
    let (device_index, device) = shared.device_known(found.number | 1 << 63, Arc::new(found.device));
    let home = open.shard.unwrap_or_else(|| shared.least_loaded());
    Ok(File::new(FileCore::new(
        shared.clone(),
        FileParts {
            fd: Descriptor::Os(found.fd),
            path,
            mode: Mode::Direct,
            rw_flags: 0,
            route: Route::Nvme(target),
            namespace: Some(Arc::new(namespace)),
            alignment,
            device,
            device_index,
            home,
            page_cache: None,
        },
    )))
}

#[cfg(not(target_os = "linux"))]
fn find(_: &Engine, path: PathBuf, _: OpenNvme) -> Result<File> {
    Err(Error::new(crate::ErrorKind::Unsupported, "open_nvme").with_path(path))
}
