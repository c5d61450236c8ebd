//! Submission entries, for a registered file or a plain descriptor.

use io_uring::squeue::Entry;
use io_uring::{opcode, types};

use crate::driver::IoRequest;

/// Builds entries for a registered file or a plain descriptor.
pub(super) trait UseFile {
    fn read(self, memory: *mut u8, request: &IoRequest) -> Entry;
    fn read_fixed(self, memory: *mut u8, request: &IoRequest, region: u16) -> Entry;
    fn write(self, memory: *mut u8, request: &IoRequest) -> Entry;
    fn write_fixed(self, memory: *mut u8, request: &IoRequest, region: u16) -> Entry;
    fn sync(self, flags: types::FsyncFlags) -> Entry;
}

macro_rules! use_file {
    ($kind:ty) => {
        impl UseFile for $kind {
            #[inline]
            fn read(self, memory: *mut u8, request: &IoRequest) -> Entry {
                opcode::Read::new(self, memory, request.len)
                    .offset(request.offset)
                    .rw_flags(request.rw_flags)
                    .build()
            }

            #[inline]
            fn read_fixed(self, memory: *mut u8, request: &IoRequest, region: u16) -> Entry {
                opcode::ReadFixed::new(self, memory, request.len, region)
                    .offset(request.offset)
                    .rw_flags(request.rw_flags)
                    .build()
            }

            #[inline]
            fn write(self, memory: *mut u8, request: &IoRequest) -> Entry {
                opcode::Write::new(self, memory, request.len)
                    .offset(request.offset)
                    .rw_flags(request.rw_flags)
                    .build()
            }

            #[inline]
            fn write_fixed(self, memory: *mut u8, request: &IoRequest, region: u16) -> Entry {
                opcode::WriteFixed::new(self, memory, request.len, region)
                    .offset(request.offset)
                    .rw_flags(request.rw_flags)
                    .build()
            }

            #[inline]
            fn sync(self, flags: types::FsyncFlags) -> Entry {
                opcode::Fsync::new(self).flags(flags).build()
            }
        }
    };
}

use_file!(types::Fixed);
use_file!(types::Fd);
