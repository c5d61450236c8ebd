//! From a sample to the addresses of its frames.

use framehop::{
    CacheNative, ExplicitModuleSectionInfo, MayAllocateDuringUnwind, Module, UnwindRegsNative, Unwinder as _,
    UnwinderNative,
};

use super::modules::{self, Frames, Generation};
use super::sample::{Registers, Sample};

/// The most frames of a back-trace, without inlined frames.
const FRAMES_MAX: usize = 128;

/// Unwinds copies of stacks. Keeps copies of the unwind information of the loaded code: a few hundredths of
/// its size.
pub(super) struct Unwinder {
    generation: Generation,
    modules: Vec<modules::Module>,
    native: UnwinderNative<Vec<u8>, MayAllocateDuringUnwind>,
    cache: CacheNative<MayAllocateDuringUnwind>,
}

/// An address within the instruction that a frame is at.
#[derive(Clone, Copy)]
pub(super) struct FrameAddress(pub(super) u64);

impl Unwinder {
    pub(super) fn new() -> Unwinder {
        Unwinder {
            generation: (0, 0),
            modules: Vec::new(),
            native: UnwinderNative::new(),
            cache: CacheNative::new(),
        }
    }

    /// Lists the loaded modules again if they changed; called before each sample that is unwound.
    pub(super) fn refresh(&mut self) {
        if !self.modules.is_empty() && modules::generation() == self.generation {
            return;
        }
        (self.generation, self.modules) = modules::list();
        self.native = UnwinderNative::new();
        for module in &mut self.modules {
            let Some(Frames { index_at, index, entries_at, entries }) = module.frames.take() else {
                continue;
            };
            self.native.add_module(Module::new(
                module.name.clone(),
                module.range.clone(),
                module.bias,
                ExplicitModuleSectionInfo {
                    eh_frame_hdr_svma: Some(index_at),
                    eh_frame_hdr: Some(index),
                    eh_frame_svma: Some(entries_at),
                    eh_frame: Some(entries),
                    ..Default::default()
                },
            ));
        }
    }

    /// Returns the address of each frame, the innermost first. Ends early at code without any known unwind
    /// information.
    pub(super) fn places(&mut self, sample: &Sample) -> Vec<FrameAddress> {
        let registers = sample.registers();
        let mut word = |address| sample.word(address).ok_or(());
        let regs = native(registers, self.native.max_known_code_address());
        let mut frames = self.native.iter_frames(registers.pc, regs, &mut self.cache, &mut word);
        let mut places = Vec::new();
        while places.len() < FRAMES_MAX
            && let Ok(Some(frame)) = frames.next()
        {
            let address = frame.address_for_lookup();
            // A made-up frame: the stack did not have the expected form.
            if !places.is_empty() && !self.modules.iter().any(|module| module.range.contains(&address)) {
                break;
            }
            places.push(FrameAddress(address));
        }
        places
    }

    /// Returns the file of the code at an address.
    pub(super) fn module(&self, address: u64) -> Option<&str> {
        let module = self.modules.iter().find(|module| module.range.contains(&address))?;
        Some(if module.name.is_empty() { "the program" } else { &module.name })
    }
}

#[cfg(target_arch = "x86_64")]
fn native(registers: Registers, _highest: u64) -> UnwindRegsNative {
    UnwindRegsNative::new(registers.pc, registers.sp, registers.fp)
}

/// Returns the registers in the unwinder's form. Return addresses may be signed: bits above the highest
/// address of code are not part of the address.
#[cfg(target_arch = "aarch64")]
fn native(registers: Registers, highest: u64) -> UnwindRegsNative {
    let mask = framehop::aarch64::PtrAuthMask::from_max_known_address(highest.max(1));
    UnwindRegsNative::new_with_ptr_auth_mask(mask, registers.lr, registers.sp, registers.fp)
}
