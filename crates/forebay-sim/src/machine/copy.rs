//! Copies from file to file.

use forebay::internal::{ErrorExt, FdOwner};
use forebay::{Error, Result};

use super::Machine;
use super::content::Doom;
use super::disk::{FILE_MAX, Write};
use super::handles::spot;

impl Machine {
    /// Copies through the page cache, as copy_file_range(2) does where file systems share no blocks.
    pub(super) fn copy_range(
        &mut self,
        (from, offset): (&FdOwner, u64),
        len: u64,
        (to, to_offset): (&FdOwner, u64),
        now_ns: u64,
    ) -> Result<u64> {
        const OPERATION: &str = "copy_range";
        let check_end = |at: u64, len: u64| match at.checked_add(len) {
            Some(end) if end <= i64::MAX as u64 => Ok(()),
            _ => Err(Error::invalid(OPERATION, "a file's offsets end at 2^63 - 1")),
        };
        check_end(offset, len)?;
        check_end(to_offset, 0)?;
        let failed = |errno| Error::os(OPERATION, errno);
        let (_, from) = self.handle_of(from).map_err(failed)?;
        let (_, to) = self.handle_of(to).map_err(failed)?;
        if offset.abs_diff(to_offset) < len && spot(&from) == spot(&to) {
            return Err(Error::invalid(OPERATION, "source and target overlap in the same file"));
        }
        if !from.read || !to.write {
            return Err(failed(libc::EBADF));
        }
        let end = self.inode(spot(&from)).map_or(0, |inode| inode.content.len);
        let mut left = len.min(end.saturating_sub(offset));
        check_end(to_offset, left)?;
        if left > 0 && to_offset + left > FILE_MAX {
            return Err(failed(libc::EFBIG));
        }
        let (mut copied, mut buffer) = (0, Vec::new());
        while left > 0 {
            buffer.resize(left.min(256 << 10) as usize, 0);
            if let Some(inode) = self.inode(spot(&from)) {
                let source = offset + copied..offset + copied + buffer.len() as u64;
                if inode.content.bad.overlap(source) > 0 {
                    return Err(failed(libc::EIO));
                }
                inode.content.live.read(offset + copied, &mut buffer);
            }
            let Some(disk) = self.disks.get_mut(to.disk) else { break };
            let write = Write {
                inode: to.inode,
                offset: to_offset + copied,
                len: buffer.len() as u64,
                direct: false,
                fua: false,
                doom: Doom::default(),
                now_ns,
            };
            match disk.write(write, |at, out| out.copy_from_slice(&buffer[at..at + out.len()])) {
                errno if errno < 0 => return Err(failed(-errno)),
                bytes => {
                    copied += bytes as u64;
                    left -= bytes as u64;
                }
            }
        }
        Ok(copied)
    }
}
