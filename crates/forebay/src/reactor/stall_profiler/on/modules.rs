//! The program and its libraries in memory: the addresses of their code, and their unwind information.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;

/// The program or one library.
pub(super) struct Module {
    pub(super) name: String,
    pub(super) range: Range<u64>,
    /// The offset by which its own addresses are moved.
    pub(super) bias: u64,
    pub(super) frames: Option<Frames>,
}

/// A copy of the unwinder's input, with the addresses that it has in memory less the bias.
///
/// Copied under the loader's lock, so that a dlclose(3) cannot unmap it meanwhile; borrowed, it would have to stay.
pub(super) struct Frames {
    pub(super) index_at: Range<u64>,
    pub(super) index: Vec<u8>,
    pub(super) entries_at: Range<u64>,
    pub(super) entries: Vec<u8>,
}

/// Counts of libraries that were loaded and unloaded so far. The same value twice means that nothing changed.
pub(super) type Generation = (u64, u64);

/// Larger unwind information of a library is not copied; its frames are unwound by frame pointers.
const COPY_BYTES_MAX: u64 = 64 << 20;

/// Returns the number of changes so far.
pub(super) fn generation() -> Generation {
    let mut known = (0, 0);
    each(&mut |info| {
        known = (info.dlpi_adds, info.dlpi_subs);
        false
    });
    known
}

/// Returns all modules, and their generation.
pub(super) fn list() -> (Generation, Vec<Module>) {
    let (mut generation, mut modules) = ((0, 0), Vec::new());
    each(&mut |info| {
        generation = (info.dlpi_adds, info.dlpi_subs);
        modules.extend(module(info));
        true
    });
    modules.sort_by_key(|module: &Module| module.range.start);
    (generation, modules)
}

type Visit<'v> = &'v mut dyn FnMut(&libc::dl_phdr_info) -> bool;

/// Calls `visit` for each module until it returns false. The pointers passed to it are valid until it
/// returns.
fn each(mut visit: Visit<'_>) {
    extern "C" fn visited(info: *mut libc::dl_phdr_info, size: usize, data: *mut c_void) -> c_int {
        // An older loader's entry is shorter.
        if info.is_null() || size < size_of::<libc::dl_phdr_info>() {
            return 1;
        }
        // SAFETY: the loader's entry is whole for the call, and `data` is the visitor below, borrowed for it
        // alone.
        let go_on = unsafe { (*data.cast::<Visit<'_>>())(&*info) };
        c_int::from(!go_on)
    }
    // SAFETY: the callback has the required signature, `visit` outlives the call, and the callback does not
    // unwind: the functions that it calls copy bytes.
    unsafe { libc::dl_iterate_phdr(Some(visited), (&raw mut visit).cast()) };
}

fn module(info: &libc::dl_phdr_info) -> Option<Module> {
    if info.dlpi_phdr.is_null() {
        return None;
    }
    // SAFETY: the loader's table of program headers, of this many entries, is valid while the loader calls.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let loads = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let begin = loads().map(|header| header.p_vaddr).min()?;
    let end = loads().map(|header| header.p_vaddr.saturating_add(header.p_memsz)).max()?;
    let bias = info.dlpi_addr;
    let name = if info.dlpi_name.is_null() {
        String::new()
    } else {
        // SAFETY: the loader's string is valid while it calls.
        unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy().into_owned()
    };
    let range = begin.wrapping_add(bias)..end.wrapping_add(bias);
    Some(Module { name, range, bias, frames: frames(headers, bias) })
}

fn frames(headers: &[libc::Elf64_Phdr], bias: u64) -> Option<Frames> {
    let index = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME)?;
    let index_at = index.p_vaddr..index.p_vaddr.checked_add(index.p_memsz)?;
    let index = copy(headers, bias, index_at.clone())?;
    // Version 1, and the start of .eh_frame as four bytes relative to themselves, as every linker writes it.
    let (&[1, 0x1b], offset) = (index.get(..2)?, index.get(4..8)?) else { return None };
    let offset = i64::from(i32::from_le_bytes(offset.try_into().ok()?));
    let entries = index_at.start.checked_add(4)?.checked_add_signed(offset)?;
    // Its end is not recorded; it reaches no farther than its segment.
    let segment = headers.iter().map(readable).find(|readable| readable.contains(&entries))?;
    let entries_at = entries..segment.end;
    Some(Frames { index_at, index, entries: copy(headers, bias, entries_at.clone())?, entries_at })
}

/// Returns the addresses of a segment that the file filled and that may be read; empty for other headers.
fn readable(header: &libc::Elf64_Phdr) -> Range<u64> {
    let is = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_R != 0;
    let bytes = if is { header.p_filesz } else { 0 };
    header.p_vaddr..header.p_vaddr.saturating_add(bytes)
}

/// Returns the bytes at these addresses, if one readable segment has them all.
fn copy(headers: &[libc::Elf64_Phdr], bias: u64, at: Range<u64>) -> Option<Vec<u8>> {
    let bytes = at.end.checked_sub(at.start).filter(|bytes| (1..=COPY_BYTES_MAX).contains(bytes))?;
    let segment = headers.iter().map(readable).find(|readable| readable.contains(&at.start))?;
    if at.end > segment.end {
        return None;
    }
    let from = std::ptr::with_exposed_provenance::<u8>(usize::try_from(at.start.wrapping_add(bias)).ok()?);
    // SAFETY: the bytes lie within a segment that the loader mapped readable and keeps while it calls us;
    // nothing writes to unwind information.
    let bytes = unsafe { std::slice::from_raw_parts(from, usize::try_from(bytes).ok()?) };
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).ok()?;
    copy.extend_from_slice(bytes);
    Some(copy)
}
