//! Options of an open, and the open itself.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::{Engine, Mode, Open};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::descriptor::Descriptor;
use crate::engines;
use crate::file::{File, Handle};
use crate::simulated::{self, SimulatedAccess, SimulatedFile, unsupported};
use crate::threads;

type StdOpenOptions = std::fs::OpenOptions;

/// Options and flags of an open, as `tokio::fs::OpenOptions`, and two more: [`direct`](OpenOptions::direct) and
/// [`adaptive`](OpenOptions::adaptive).
///
/// ```
/// use forebay_fs::OpenOptions;
///
/// # #[tokio::main]
/// # async fn main() -> std::io::Result<()> {
/// let file = OpenOptions::new().read(true).open("Cargo.toml").await?;
/// assert!(file.metadata().await?.is_file());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    inner: StdOpenOptions,
    custom_flags: i32,
    mode: Mode,
    /// The same for simulated worlds; `None` for options of the standard library's, which show nothing.
    simulated: Option<SimulatedOptions>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SimulatedOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    permissions: Option<u32>,
}

impl OpenOptions {
    /// Returns options with everything off.
    pub fn new() -> OpenOptions {
        let simulated = Some(SimulatedOptions::default());
        OpenOptions { inner: StdOpenOptions::new(), custom_flags: 0, mode: Mode::Buffered, simulated }
    }

    /// Sets read access.
    pub fn read(&mut self, read: bool) -> &mut OpenOptions {
        self.inner.read(read);
        self.simulate(|options| options.read = read)
    }

    /// Sets write access.
    pub fn write(&mut self, write: bool) -> &mut OpenOptions {
        self.inner.write(write);
        self.simulate(|options| options.write = write)
    }

    /// Sets whether each write is appended to the file.
    pub fn append(&mut self, append: bool) -> &mut OpenOptions {
        self.inner.append(append);
        self.simulate(|options| options.append = append)
    }

    /// Sets whether a file that exists is emptied.
    pub fn truncate(&mut self, truncate: bool) -> &mut OpenOptions {
        self.inner.truncate(truncate);
        self.simulate(|options| options.truncate = truncate)
    }

    /// Sets whether a file that does not exist is created.
    pub fn create(&mut self, create: bool) -> &mut OpenOptions {
        self.inner.create(create);
        self.simulate(|options| options.create = create)
    }

    /// Sets whether the file is created and must not exist before.
    pub fn create_new(&mut self, create_new: bool) -> &mut OpenOptions {
        self.inner.create_new(create_new);
        self.simulate(|options| options.create_new = create_new)
    }

    /// Sets the permissions of a created file, before the process's umask.
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.inner.mode(mode);
        self.simulate(|options| options.permissions = Some(mode))
    }

    /// Sets flags for open(2) in addition to those of the other options.
    pub fn custom_flags(&mut self, flags: i32) -> &mut OpenOptions {
        self.inner.custom_flags(flags);
        self.custom_flags = flags;
        self
    }

    /// Sets whether bytes bypass the page cache. Reads may start and end anywhere; writes are whole blocks of the device, at
    /// multiples of its blocks. The open fails where the file system has no direct I/O, and with [`append`](OpenOptions::append); a
    /// file of [`create_new`](OpenOptions::create_new) is removed then. Of this and [`adaptive`](OpenOptions::adaptive), the last one
    /// set applies.
    pub fn direct(&mut self, direct: bool) -> &mut OpenOptions {
        self.set_mode(Mode::Direct, direct);
        self
    }

    /// Sets whether reads use the page cache for the bytes that it has, and bypass it for the rest; see [Which
    /// mode](https://github.com/forebay-rs/forebay/blob/main/docs/modes.md#modes). Writes are as with
    /// [`direct`](OpenOptions::direct). On a file system without direct I/O it has no effect.
    pub fn adaptive(&mut self, adaptive: bool) -> &mut OpenOptions {
        self.set_mode(Mode::Adaptive, adaptive);
        self
    }

    /// Opens a file.
    ///
    /// # Errors
    /// Those of open(2).
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let path = path.as_ref().to_owned();
        if let Some(engine) = engines::world()? {
            return self.open_in_world(engine, path).await;
        }
        let (options, scope) = (self.clone(), engines::scope());
        let open = move || {
            let descriptor = options.open_here(&path, scope)?;
            descriptor.has_offsets();
            Ok::<_, io::Error>(descriptor)
        };
        let descriptor = threads::run(open).await??;
        Ok(File::of(Handle::Here(Arc::new(descriptor))))
    }

    /// Opens a file of the machine; may block.
    fn open_here(&self, path: &Path, scope: Option<Engine>) -> io::Result<Descriptor> {
        if self.mode == Mode::Direct {
            // Options of the standard library's show nothing.
            let known = self.simulated.unwrap_or_default();
            refuse_append(known.append)?;
            let std = if known.create_new {
                self.create_direct(path)?
            } else {
                let flags = self.custom_flags | OFlags::DIRECT.bits().cast_signed();
                self.inner.clone().custom_flags(flags).open(path)?
            };
            refuse_append(fcntl_getfl(&std)?.contains(OFlags::APPEND))?;
            return Ok(Descriptor::new(std, Mode::Direct, scope));
        }
        let std = self.inner.open(path)?;
        let is_adaptive = self.mode == Mode::Adaptive && becomes_direct(&std)?;
        Ok(Descriptor::new(std, if is_adaptive { Mode::Adaptive } else { Mode::Buffered }, scope))
    }

    /// Creates a file with direct I/O, or none: an open with the flag leaves an empty file where direct I/O is not supported, and the
    /// next one would find that it exists.
    fn create_direct(&self, path: &Path) -> io::Result<std::fs::File> {
        let std = self.inner.open(path)?;
        let flags = fcntl_getfl(&std)?;
        if let Err(refusal) = fcntl_setfl(&std, flags | OFlags::DIRECT) {
            let _ = std::fs::remove_file(path);
            return Err(refusal.into());
        }
        Ok(std)
    }

    async fn open_in_world(&self, engine: Engine, path: PathBuf) -> io::Result<File> {
        let options =
            self.simulated.ok_or_else(|| unsupported("open by options of the standard library's"))?;
        let open = options.open()?.mode(self.mode);
        refuse_append(options.append && self.mode == Mode::Direct)?;
        let reads_alone = !options.write && !options.append;
        let calls = move |engine| simulated::open(engine, path, open, reads_alone);
        let object = engines::in_world(engine.clone(), calls).await?;
        let access = SimulatedAccess { reads: options.read, writes: options.write, appends: options.append };
        Ok(File::of(Handle::World(Arc::new(SimulatedFile::new(engine, object, access)))))
    }

    /// Sets a mode, or resets it where it is set.
    fn set_mode(&mut self, mode: Mode, is_wanted: bool) {
        if is_wanted {
            self.mode = mode;
        } else if self.mode == mode {
            self.mode = Mode::Buffered;
        }
    }

    fn simulate(&mut self, set: impl FnOnce(&mut SimulatedOptions)) -> &mut OpenOptions {
        if let Some(options) = &mut self.simulated {
            set(options);
        }
        self
    }
}

/// The end of a file is rarely at a multiple of the blocks, and the memory of appended bytes is not aligned.
fn refuse_append(appends: bool) -> io::Result<()> {
    if !appends {
        return Ok(());
    }
    let text =
        "direct I/O cannot append: open the file without append and write at its end, or open it as adaptive";
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// Gives an open file direct I/O, if its bytes lie at offsets, its writes are at these, and its file system supports it. An open
/// with the flag creates the file even where direct I/O is not supported, so a second open finds it.
fn becomes_direct(std: &std::fs::File) -> io::Result<bool> {
    let flags = fcntl_getfl(std)?;
    let suits = std.metadata()?.is_file() && !flags.contains(OFlags::APPEND);
    Ok(suits && fcntl_setfl(std, flags | OFlags::DIRECT).is_ok())
}

impl SimulatedOptions {
    /// Returns how the core opens the file; refuses the combinations that the standard library refuses.
    fn open(self) -> io::Result<Open> {
        let writes = self.write || self.append;
        let makes = self.truncate || self.create || self.create_new;
        if !(writes || self.read && !makes) || self.append && self.truncate && !self.create_new {
            return Err(Errno::INVAL.into());
        }
        let open = if self.create_new {
            Open::create_new()
        } else if self.create {
            Open::create()
        } else if writes {
            Open::write()
        } else {
            Open::read()
        };
        let open = if self.truncate && !self.create_new { open.truncate() } else { open };
        Ok(self.permissions.map_or(open, |mode| open.permissions(mode)))
    }
}

impl From<StdOpenOptions> for OpenOptions {
    fn from(options: StdOpenOptions) -> OpenOptions {
        OpenOptions { inner: options, custom_flags: 0, mode: Mode::Buffered, simulated: None }
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}
