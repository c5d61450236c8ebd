//! Serves a [`Disk`] to QEMU over the NBD protocol, fixed newstyle with simple replies.

use std::io::{BufReader, Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::Disk;

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
/// Fixed newstyle; no zeros after the export's name.
const HANDSHAKE: u16 = 0b11;
/// Flags: has flags, supports flush, supports FUA.
const EXPORT: u16 = 0b1101;
/// Flags: has flags. QEMU treats such a disk as one without a cache and completes flushes by itself.
const EXPORT_WITHOUT_CACHE: u16 = 0b1;
const EINVAL: u32 = 22;
/// Maximum request size.
const LONGEST: usize = 32 << 20;

pub(crate) type SharedDisk = Arc<Mutex<Disk>>;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listens at `path` and serves one client after the other, on a thread that lives until the process exits.
pub(crate) fn serve(disk: &SharedDisk, path: &Path) -> Result<()> {
    let listener = UnixListener::bind(path)?;
    let disk = Arc::clone(disk);
    std::thread::Builder::new().name("disk".into()).spawn(move || {
        for client in listener.incoming().flatten() {
            // A client that disconnects in the middle of a request is a machine whose power was cut.
            let _gone = client_of(&disk, &client);
        }
    })?;
    Ok(())
}

fn client_of(disk: &SharedDisk, stream: &UnixStream) -> Result<()> {
    let mut input = BufReader::with_capacity(1 << 20, stream);
    let mut output = stream;
    let bytes = lock(disk).bytes();
    let export = if lock(disk).says_it_has_a_cache() { EXPORT } else { EXPORT_WITHOUT_CACHE };
    if !handshake(&mut input, &mut output, bytes, export)? {
        return Ok(());
    }
    let mut requests = Vec::new();
    loop {
        // Read every request that has arrived. All requests of a batch were sent before any of them
        // completed.
        loop {
            requests.push(Request::read(&mut input)?);
            if input.buffer().is_empty() || requests.len() == 256 {
                break;
            }
        }
        // A flush covers only the writes that had completed when it arrived.
        requests.sort_by_key(|request| !matches!(request.kind, Kind::Flush));
        for request in requests.drain(..) {
            let mut disk = lock(disk);
            if disk.is_frozen() {
                drop(disk);
                // Send no reply, and no error either, until the machine has ended as well.
                std::io::copy(&mut input, &mut std::io::sink())?;
                return Ok(());
            }
            let answer = request.run(&mut disk);
            // Reply before a cut can happen: a reply to this request after a cut would be false.
            if let Some(answer) = answer {
                output.write_all(&answer)?;
            } else {
                return Ok(());
            }
        }
    }
}

/// Negotiates the export; returns true if the client enters transmission.
fn handshake(input: &mut impl Read, output: &mut impl Write, bytes: u64, export: u16) -> Result<bool> {
    output.write_all(
        &[&MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &HANDSHAKE.to_be_bytes()].concat(),
    )?;
    let without_zeros = be32(input)? & 0b10 != 0;
    loop {
        if be64(input)? != OPTION_MAGIC {
            return Err(Error::new(ErrorKind::InvalidData, "no NBD option"));
        }
        let option = be32(input)?;
        let len = be32(input)? as usize;
        if len > 4096 {
            return Err(Error::new(ErrorKind::InvalidData, "an NBD option that is too long"));
        }
        let mut data = vec![0; len];
        input.read_exact(&mut data)?;
        let mut reply = |kind: u32, data: &[u8]| {
            let head = [&OPTION_REPLY.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes()].concat();
            output.write_all(&[&head[..], &(data.len() as u32).to_be_bytes(), data].concat())
        };
        match option {
            // The export name alone.
            1 => {
                let mut answer = [&bytes.to_be_bytes()[..], &export.to_be_bytes()].concat();
                answer.resize(answer.len() + if without_zeros { 0 } else { 124 }, 0);
                output.write_all(&answer)?;
                return Ok(true);
            }
            // Abort.
            2 => {
                reply(1, &[])?;
                return Ok(false);
            }
            // `NBD_OPT_INFO` and `NBD_OPT_GO`: reply with size and flags, then with the block sizes.
            6 | 7 => {
                reply(3, &[&0u16.to_be_bytes()[..], &bytes.to_be_bytes(), &export.to_be_bytes()].concat())?;
                let sizes = [512u32, 4096, LONGEST as u32].map(u32::to_be_bytes).concat();
                reply(3, &[&3u16.to_be_bytes()[..], &sizes].concat())?;
                reply(1, &[])?;
                if option == 7 {
                    return Ok(true);
                }
            }
            _ => reply(0x8000_0001, &[])?,
        }
    }
}

struct Request {
    kind: Kind,
    handle: u64,
    offset: u64,
    len: usize,
}

enum Kind {
    Read,
    Write { data: Vec<u8>, durable: bool },
    Flush,
    End,
    Other,
}

impl Request {
    fn read(input: &mut impl Read) -> Result<Request> {
        if be32(input)? != REQUEST {
            return Err(Error::new(ErrorKind::InvalidData, "no NBD request"));
        }
        let (flags, kind) = (be16(input)?, be16(input)?);
        let (handle, offset, len) = (be64(input)?, be64(input)?, be32(input)? as usize);
        let kind = match kind {
            0 => Kind::Read,
            1 if len <= LONGEST => {
                let mut data = vec![0; len];
                input.read_exact(&mut data)?;
                Kind::Write { data, durable: flags & 1 != 0 }
            }
            1 => return Err(Error::new(ErrorKind::InvalidData, "a write that is too long")),
            2 => Kind::End,
            3 => Kind::Flush,
            _ => Kind::Other,
        };
        Ok(Request { kind, handle, offset, len })
    }

    /// Runs the request and returns the bytes of the reply; returns `None` if the client disconnects.
    fn run(self, disk: &mut Disk) -> Option<Vec<u8>> {
        let fits = self.len <= LONGEST && disk.holds(self.offset, self.len);
        let mut data = Vec::new();
        let error = match self.kind {
            Kind::End => return None,
            Kind::Flush => {
                disk.flush();
                0
            }
            Kind::Read if fits => {
                data.resize(self.len, 0);
                disk.read(self.offset, &mut data);
                0
            }
            Kind::Write { data, durable } if fits => {
                disk.write(self.offset, &data, durable);
                0
            }
            _ => EINVAL,
        };
        let head = [&REPLY.to_be_bytes()[..], &error.to_be_bytes(), &self.handle.to_be_bytes()].concat();
        Some([head, data].concat())
    }
}

fn be16(input: &mut impl Read) -> Result<u16> {
    let mut bytes = [0; 2];
    input.read_exact(&mut bytes)?;
    Ok(u16::from_be_bytes(bytes))
}

fn be32(input: &mut impl Read) -> Result<u32> {
    let mut bytes = [0; 4];
    input.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

fn be64(input: &mut impl Read) -> Result<u64> {
    let mut bytes = [0; 8];
    input.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}
