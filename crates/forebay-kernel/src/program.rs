//! The program that a walk inside the kernel runs.

use std::fmt;

use crate::layout;

/// A step function in every form that an engine can run, with the arguments and the result of a walk.
///
/// The kernel runs the [`object`](Program::object), compiled from C; the reactor runs
/// [`step`](Program::step). Both must give the same results: the crate's conformance suite checks this for
/// the crate's own programs.
///
/// # Rules
/// - Pages have one size, a power of two from 512 to 65,536 bytes, and lie at positions that direct reads of
///   the file allow ([`File::alignment`](forebay::File::alignment)).
/// - All state of a walk lies in 256 bytes of [`Scratch`]: its arguments, its state between steps, its
///   result.
/// - A step trusts nothing: the page may be damaged, and the file may have been written to.
pub trait Program: Send + Sync + 'static {
    /// The arguments of one walk.
    type Args: Send;
    /// The result of one walk.
    type Output: Send + 'static;

    /// Returns the program's name, for messages.
    fn name(&self) -> &'static str;

    /// Returns the bytes of a page.
    fn page_bytes(&self) -> u32;

    /// Returns the maximum number of pages that one step may request, 1 to 16.
    fn fan_out(&self) -> u32 {
        1
    }

    /// Returns the BPF object for io_uring's own loop, if any: the ELF file that `kernel/bpf/walk.bpf.h` makes of a step.
    fn object(&self) -> Option<&[u8]>;

    /// Returns the BPF object for the module, if any: the same, with `FBW_MODULE` defined.
    fn module_object(&self) -> Option<&[u8]> {
        None
    }

    /// Writes the arguments of a walk into its scratch, which is zero, and returns the position of its first
    /// page.
    fn begin(&self, args: &Self::Args, scratch: &mut Scratch) -> u64;

    /// Reads the page at `at`, and returns the next action. This is the object's step, for the reactor.
    fn step(&self, page: &[u8], at: u64, scratch: &mut Scratch) -> Next;

    /// Returns the result of an ended walk; `page` is the last page that its step read.
    fn end(&self, scratch: &Scratch, page: &[u8]) -> Self::Output;
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read these pages, 1 to [`fan_out`](Program::fan_out) of them; the step runs again with each, in any
    /// order.
    Read(Positions),
    /// Wait for the next of the pages in flight.
    Wait,
    /// The walk has ended; its result is in the scratch.
    Over,
    /// The walk has failed; the number is the program's own.
    Fail(u32),
}

impl Next {
    /// Returns the request to read one page.
    pub fn read(position: u64) -> Next {
        Next::Read([position].into_iter().collect())
    }
}

/// Up to 16 positions, in bytes from the file's start. More than 16 are counted, and fail the walk.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Positions {
    places: [u64; layout::READS_MAX],
    len: usize,
}

impl Positions {
    /// Returns the stored positions, at most 16.
    pub fn as_slice(&self) -> &[u64] {
        &self.places[..self.len.min(layout::READS_MAX)]
    }

    /// Returns how many were passed; may be above 16.
    pub(crate) fn given(&self) -> usize {
        self.len
    }
}

impl FromIterator<u64> for Positions {
    fn from_iter<I: IntoIterator<Item = u64>>(positions: I) -> Positions {
        let mut all = Positions::default();
        for position in positions.into_iter().take(layout::READS_MAX + 1) {
            if let Some(place) = all.places.get_mut(all.len) {
                *place = position;
            }
            all.len += 1;
        }
        all
    }
}

impl fmt::Debug for Positions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.as_slice()).finish()
    }
}

/// The 256 bytes of a walk that each of its steps can read and change.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Scratch([u8; layout::SCRATCH_BYTES]);

impl Scratch {
    /// Returns a scratch of zeros.
    pub const fn new() -> Scratch {
        Scratch([0; layout::SCRATCH_BYTES])
    }

    /// Returns all bytes.
    pub fn bytes(&self) -> &[u8; 256] {
        &self.0
    }

    /// Returns all bytes, to write to.
    pub fn bytes_mut(&mut self) -> &mut [u8; 256] {
        &mut self.0
    }

    /// Returns the number in the eight bytes from `at` on; 0 outside of the scratch.
    pub fn u64(&self, at: usize) -> u64 {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
    }

    /// Stores a number in the eight bytes from `at` on; does nothing outside of the scratch.
    pub fn set_u64(&mut self, at: usize, word: u64) {
        if let Some(place) = self.0.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *place = word.to_le_bytes();
        }
    }
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        formatter.debug_tuple("Scratch").field(&&self.0[..used]).finish()
    }
}
