//! A command to an NVMe namespace, in the kernel's layout: for an ioctl, or for an entry of a ring.

/// `struct nvme_passthru_cmd` of linux/nvme_ioctl.h, and `struct nvme_uring_cmd`, which is the same but for its last field.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct NvmeCommand {
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) rsvd1: u16,
    pub(crate) nsid: u32,
    pub(crate) cdw2: u32,
    pub(crate) cdw3: u32,
    pub(crate) metadata: u64,
    pub(crate) addr: u64,
    pub(crate) metadata_len: u32,
    pub(crate) data_len: u32,
    pub(crate) cdw10: u32,
    pub(crate) cdw11: u32,
    pub(crate) cdw12: u32,
    pub(crate) cdw13: u32,
    pub(crate) cdw14: u32,
    pub(crate) cdw15: u32,
    pub(crate) timeout_ms: u32,
    /// The result that the device returns for an ioctl; unused in a ring.
    pub(crate) result: u32,
}

const _: () = assert!(size_of::<NvmeCommand>() == 72, "the kernel's ABI");

#[cfg(not(forebay_no_uring))]
impl NvmeCommand {
    /// Returns the command as the 80 bytes that a ring's entry has for it.
    pub(crate) fn to_bytes(self) -> [u8; 80] {
        let mut bytes = [0; 80];
        // SAFETY: plain integers without padding (72 bytes, the sum of the fields), copied into an array that is longer.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(&self).cast(),
                bytes.as_mut_ptr(),
                size_of::<Self>(),
            );
        }
        bytes
    }
}

#[cfg(all(test, not(forebay_no_uring)))]
mod tests {
    use super::*;

    #[test]
    fn a_command_lies_in_its_entry_as_the_kernel_reads_it() {
        let command = NvmeCommand {
            opcode: 2,
            nsid: 0x0403_0201,
            addr: 7,
            data_len: 9,
            cdw10: 11,
            cdw12: 13,
            ..NvmeCommand::default()
        };
        let bytes = command.to_bytes();
        assert_eq!((bytes[0], &bytes[4..8], bytes[24], bytes[36]), (2, &[1, 2, 3, 4][..], 7, 9));
        assert_eq!((bytes[40], bytes[48], &bytes[72..]), (11, 13, &[0; 8][..]));
    }
}
