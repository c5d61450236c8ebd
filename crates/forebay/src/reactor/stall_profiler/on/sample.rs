//! Registers and stack of a thread, copied by the thread itself in the middle of its work.

use std::ops::Range;

/// The most bytes of a stack that are copied, from its innermost frame on.
const STACK_BYTES_MAX: usize = 256 << 10;
const WORD: usize = size_of::<u64>();

/// The registers at the start of unwinding.
#[derive(Clone, Copy, Default)]
pub(super) struct Registers {
    pub(super) pc: u64,
    pub(super) sp: u64,
    /// The frame pointer, or any other value that the code kept in its register.
    pub(super) fp: u64,
    /// The return address of a leaf function; x86_64 has it on the stack.
    #[cfg(target_arch = "aarch64")]
    pub(super) lr: u64,
}

/// The copy that a handler leaves.
pub(super) struct Sample {
    /// Addresses of the thread's stack.
    stack: Range<usize>,
    registers: Registers,
    /// The stack from `begin` on. The capacity is reserved once, and not written (so not backed by memory) before the first sample.
    words: Vec<u64>,
    begin: usize,
}

impl Sample {
    /// Returns an empty sample, or `None` without memory for the copy.
    pub(super) fn new(stack: Range<usize>) -> Option<Sample> {
        let mut words = Vec::new();
        words.try_reserve_exact(STACK_BYTES_MAX / WORD).ok()?;
        Some(Sample { stack, registers: Registers::default(), words, begin: 0 })
    }

    /// Copies the calling thread's registers and stack. It runs in a signal handler: no allocation, no lock,
    /// no system call, and nothing that panics.
    ///
    /// # Safety
    /// `registers` are the calling thread's own, as the handler received them, and the stack is that of the
    /// thread on which this was made.
    pub(super) unsafe fn fill(&mut self, registers: Registers) {
        self.registers = registers;
        self.begin = registers.sp as usize & !(WORD - 1);
        self.words.clear();
        if !self.stack.contains(&self.begin) {
            // The thread runs on another stack, for example a coroutine's: its place is known, but not its
            // callers.
            return;
        }
        let words = self.stack.end.saturating_sub(self.begin) / WORD;
        let mut copied = 0;
        for (word, copy) in self.words.spare_capacity_mut().iter_mut().enumerate().take(words) {
            let from = std::ptr::with_exposed_provenance::<u64>(self.begin + word * WORD);
            // SAFETY: an aligned word between the thread's stack pointer and its stack's end is mapped for as long as the thread
            // lives, and it lives here. The word may hold bytes of anything, also bytes that another thread or the kernel writes
            // now. A volatile read returns them as the processor sees them, and they are used only as addresses that are looked up.
            copy.write(unsafe { from.read_volatile() });
            copied = word + 1;
        }
        // SAFETY: this many words of the capacity were just written.
        unsafe { self.words.set_len(copied) };
    }

    pub(super) fn registers(&self) -> Registers {
        self.registers
    }

    /// Returns the word at an address of the copied stack.
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address).ok()?.checked_sub(self.begin)?;
        if offset % WORD != 0 {
            return None;
        }
        self.words.get(offset / WORD).copied()
    }
}

/// Returns the addresses of the calling thread's stack, or `None` if the C library cannot supply them.
pub(super) fn own_stack() -> Option<Range<usize>> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut begin, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes are initialised by the first call, read by the second only if it succeeded, and
    // destroyed then; the pointers are to locals.
    let got = unsafe {
        libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) == 0 && {
            let got = libc::pthread_attr_getstack(attributes.as_ptr(), &mut begin, &mut bytes) == 0;
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            got
        }
    };
    let begin = begin.expose_provenance();
    got.then(|| begin..begin.saturating_add(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_is_where_locals_are() {
        let local = 0x5EED_u64;
        let address = std::ptr::from_ref(&local).expose_provenance();
        let stack = own_stack().unwrap();
        assert!(stack.contains(&address), "{address:x} in {stack:x?}");
        let mut sample = Sample::new(stack).unwrap();
        // SAFETY: `address` lies in this thread's own stack, in a frame that has not ended.
        unsafe { sample.fill(Registers { sp: address as u64, ..Registers::default() }) };
        assert_eq!(sample.word(address as u64), Some(0x5EED));
        assert_eq!((sample.word(address as u64 + 1), sample.word(address as u64 - 8)), (None, None));
    }
}
