//! Places where a wait has a known length: a directory on a throttled device, a file on FUSE whose reads
//! complete late.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, Request,
};

/// A directory of the test's own, by default on the disk that holds the build; removed at the end.
pub struct Directory(PathBuf);

impl Directory {
    /// Creates a directory on the disk that holds the build.
    pub fn new() -> Self {
        Self::within(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    /// Creates a directory in another folder.
    pub fn within(folder: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("wait-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("the folder is writable");
        Self(path)
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Creates a file of this many bytes, on the device and not only in memory.
    pub fn file(&self, bytes: usize) -> PathBuf {
        let path = self.0.join("data.bin");
        let mut state = 88_172_645_463_325_252_u64;
        let data: Vec<u8> = (0..bytes / 8)
            .flat_map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()
            })
            .collect();
        fs::write(&path, data).expect("it has space");
        fs::File::open(&path).and_then(|file| file.sync_all()).expect("the disk works");
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A test that failed has reported enough.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A blkio cgroup (version 1) that limits to this many bytes a second, removed at the end.
pub struct Throttle(PathBuf);

impl Throttle {
    /// Creates a cgroup for the device beneath `path`, for reads and for writes. The error is the missing
    /// requirement.
    pub fn new(path: &Path, bytes_per_s: u64) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let root = Path::new("/sys/fs/cgroup/blkio");
        if !root.join("blkio.throttle.read_bps_device").exists() {
            return Err("there is no blkio cgroup (version 1) with throttling".to_owned());
        }
        let device = fs::metadata(path).expect("it exists").dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let node = if node.join("partition").exists() { node.join("..") } else { node };
        let number = fs::read_to_string(node.join("dev"))
            .map_err(|_| "the build directory is on no block device".to_owned())?;
        let name = format!("forebay-wait-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let group = root.join(name);
        fs::create_dir(&group).map_err(|error| format!("no blkio cgroup can be made: {error}"))?;
        let throttle = Self(group);
        for file in ["blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"] {
            fs::write(throttle.0.join(file), format!("{} {bytes_per_s}", number.trim()))
                .map_err(|error| format!("{file} takes no limit: {error}"))?;
        }
        Ok(throttle)
    }

    /// Returns the file that a process writes its number into to be throttled.
    pub fn door(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // The last process has exited, or the test has failed anyway.
        let _ = fs::remove_dir(&self.0);
    }
}

/// A mounted file system with one file, with a fixed time for each read.
pub struct Late {
    directory: Directory,
    session: Option<BackgroundSession>,
}

struct OneFile {
    delay: Duration,
}

const BYTES: u64 = 1 << 20;
const FOREVER: Duration = Duration::from_secs(3600);

impl Late {
    /// Mounts the file system. The error is the missing requirement.
    pub fn new(delay: Duration) -> Result<Self, String> {
        let directory = Directory::new();
        let mut config = fuser::Config::default();
        config.mount_options = vec![MountOption::RO, MountOption::FSName("forebay-late".to_owned())];
        let session = fuser::spawn_mount(OneFile { delay }, directory.path(), &config)
            .map_err(|error| format!("FUSE cannot be mounted: {error}"))?;
        Ok(Self { directory, session: Some(session) })
    }

    /// Returns the path of the file.
    pub fn file(&self) -> PathBuf {
        self.directory.path().join("late.bin")
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        // Unmounted before its directory is removed.
        drop(self.session.take());
    }
}

fn attributes(directory: bool) -> FileAttr {
    FileAttr {
        ino: if directory { INodeNo::ROOT } else { INodeNo(2) },
        size: if directory { 0 } else { BYTES },
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if directory { FileType::Directory } else { FileType::RegularFile },
        perm: if directory { 0o755 } else { 0o444 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for OneFile {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == "late.bin" {
            reply.entry(&FOREVER, &attributes(false), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &attributes(ino == INodeNo::ROOT));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Each read of the program is one of the file system.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        place: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // The delay is the quantity under test, not a way to wait for something.
        std::thread::sleep(self.delay);
        let left = BYTES.saturating_sub(place).min(u64::from(size));
        reply.data(&vec![7; left as usize]);
    }
}
