//! A file whose reads end only when the test allows it: a file system in user space (fuse(4)) with one file,
//! served by a thread of the test. No other read stays with the kernel for as long as needed on both drivers:
//! it can be neither cancelled nor interrupted, as on a device that hangs.
#![allow(dead_code, reason = "each test crate uses a part of it")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// The mount and its server; dropping it ends every read that still hangs with an error.
pub(crate) struct StuckFile {
    mount: PathBuf,
    device: File,
    arrived: Receiver<HangingRead>,
    server: Option<JoinHandle<()>>,
}

/// One read that the kernel waits for.
pub(crate) struct HangingRead {
    unique: u64,
    len: usize,
}

const FILE_BYTES: u64 = 64 << 20;

impl StuckFile {
    /// Mounts at `mount` (an empty directory). The error is the reason why that is not possible here, as for
    /// most users but root.
    pub(crate) fn mount(mount: &Path) -> Result<StuckFile, String> {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device = device.map_err(|error| format!("/dev/fuse: {error}"))?;
        let path = std::ffi::CString::new(mount.as_os_str().as_encoded_bytes()).unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        // SAFETY: mount(2) reads the four strings, which outlive the call.
        let mounted = unsafe {
            libc::mount(
                c"forebay-test".as_ptr(),
                path.as_ptr(),
                c"fuse".as_ptr(),
                libc::MS_NOSUID | libc::MS_NODEV,
                options.as_ptr().cast(),
            )
        };
        if mounted != 0 {
            return Err(format!("mount: {}", std::io::Error::last_os_error()));
        }
        let (tell, arrived) = channel();
        let serving = device.try_clone().unwrap();
        let server = std::thread::spawn(move || serve(serving, &tell));
        Ok(StuckFile { mount: mount.to_path_buf(), device, arrived, server: Some(server) })
    }

    /// Returns the path of the file that hangs.
    pub(crate) fn path(&self) -> PathBuf {
        self.mount.join("stuck")
    }

    /// Waits until the kernel has requested that many reads.
    pub(crate) fn wait_for(&self, reads: usize) -> Vec<HangingRead> {
        (0..reads).map(|_| self.arrived.recv().expect("the server runs")).collect()
    }

    /// Completes a read with bytes of that value; they are in the reader's memory when this returns.
    pub(crate) fn answer(&self, read: &HangingRead, value: u8) {
        // ENOENT: the kernel does not wait any more.
        let _ = reply(&self.device, read.unique, 0, &vec![value; read.len]);
    }
}

impl Drop for StuckFile {
    fn drop(&mut self) {
        let path = std::ffi::CString::new(self.mount.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: umount2(2) reads the path. Forced: hanging reads end with an error, and the server's read with ENODEV.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) };
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

// Numbers and layouts of the kernel's interface (linux/fuse.h).
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;
const FOPEN_DIRECT_IO: u32 = 1;
const ASYNC_READ: u32 = 1 << 0;
/// Without it a direct read of such a file blocks the thread that submits it, a ring's owner too.
const ASYNC_DIO: u32 = 1 << 15;

fn serve(mut device: File, arrived: &Sender<HangingRead>) {
    let mut request = vec![0u8; 1 << 20];
    loop {
        match device.read(&mut request) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            // ENODEV: unmounted.
            Err(_) => return,
        }
        let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let wide = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
        let (opcode, unique, node) = (number(4), wide(8), wide(16));
        let sent = match opcode {
            FORGET | BATCH_FORGET | INTERRUPT | DESTROY => Ok(()),
            INIT => {
                let mut out = vec![0u8; 64];
                out[..4].copy_from_slice(&7u32.to_ne_bytes());
                out[4..8].copy_from_slice(&31u32.to_ne_bytes());
                out[12..16].copy_from_slice(&(ASYNC_READ | ASYNC_DIO).to_ne_bytes());
                // Requests in the background: more than any test has in flight.
                out[16..18].copy_from_slice(&512u16.to_ne_bytes());
                out[18..20].copy_from_slice(&512u16.to_ne_bytes());
                out[20..24].copy_from_slice(&(128u32 << 10).to_ne_bytes());
                reply(&device, unique, 0, &out)
            }
            LOOKUP => {
                let mut out = vec![0u8; 40];
                out[..8].copy_from_slice(&2u64.to_ne_bytes());
                out[16..24].copy_from_slice(&3600u64.to_ne_bytes());
                out[24..32].copy_from_slice(&3600u64.to_ne_bytes());
                out.extend(attributes(2));
                reply(&device, unique, 0, &out)
            }
            GETATTR => {
                let mut out = vec![0u8; 16];
                out[..8].copy_from_slice(&3600u64.to_ne_bytes());
                out.extend(attributes(node));
                reply(&device, unique, 0, &out)
            }
            OPEN => {
                let mut out = vec![0u8; 16];
                out[8..12].copy_from_slice(&FOPEN_DIRECT_IO.to_ne_bytes());
                reply(&device, unique, 0, &out)
            }
            READ => {
                let len = number(40 + 16) as usize;
                let _ = arrived.send(HangingRead { unique, len });
                Ok(())
            }
            RELEASE | FLUSH => reply(&device, unique, 0, &[]),
            _ => reply(&device, unique, -libc::ENOSYS, &[]),
        };
        if sent.is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV)) {
            return;
        }
    }
}

fn reply(mut device: &File, unique: u64, error: i32, body: &[u8]) -> std::io::Result<()> {
    let mut out = Vec::with_capacity(16 + body.len());
    out.extend((16 + body.len() as u32).to_ne_bytes());
    out.extend(error.to_ne_bytes());
    out.extend(unique.to_ne_bytes());
    out.extend(body);
    device.write_all(&out)
}

fn attributes(node: u64) -> Vec<u8> {
    let (mode, size) = if node == 1 { (0o040_755u32, 0) } else { (0o100_644u32, FILE_BYTES) };
    let mut out = Vec::with_capacity(88);
    for word in [node, size, size / 512, 0, 0, 0] {
        out.extend(word.to_ne_bytes());
    }
    for number in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0u32] {
        out.extend(number.to_ne_bytes());
    }
    out
}
