//! Pointers of C: structs that start with their size, handles, texts, and the end of each panic.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::NonNull;
use std::{ptr, slice};

use crate::code::{Code, Fault};
use crate::types::{Class, CloseReport, Config, Notice, Open, Outcome, Request, Stats};

/// The longest struct that a caller may have: a larger size is invalid.
const SIZE_MAX: usize = 4096;

/// A struct of the interface.
///
/// # Safety
/// It is `repr(C)`, its first field is its size as a `usize`, and the others are integers, raw pointers and optional functions:
/// zeros are a value of it, and so are the bytes that C has set.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers and raw pointers behind the size.
unsafe impl Plain for Class {}
// SAFETY: integers alone.
unsafe impl Plain for CloseReport {}
// SAFETY: integers alone.
unsafe impl Plain for Config {}
// SAFETY: integers, a pointer and an optional function behind the size.
unsafe impl Plain for Notice {}
// SAFETY: integers alone.
unsafe impl Plain for Open {}
// SAFETY: integers and raw pointers behind the size.
unsafe impl Plain for Outcome {}
// SAFETY: integers and raw pointers behind the size.
unsafe impl Plain for Request {}
// SAFETY: integers alone.
unsafe impl Plain for Stats {}

/// Runs a function of the interface; no panic leaves it.
pub(crate) fn run(call: impl FnOnce() -> Result<(), Fault>) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => Code::Ok as c_int,
        Ok(Err(fault)) => fault.keep(),
        Err(payload) => {
            // Its drop could panic as well.
            std::mem::forget(payload);
            Fault::panicked().keep()
        }
    }
}

fn null(name: &str) -> Fault {
    Fault::invalid(format!("{name} is a null pointer"))
}

/// Returns the size at the start of a caller's struct.
///
/// # Safety
/// `place` leads to a struct that starts with its size.
unsafe fn size_at<T: Plain>(place: *const T, name: &str) -> Result<usize, Fault> {
    if place.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller's promise.
    let size = unsafe { place.cast::<usize>().read() };
    let word = size_of::<usize>();
    if (word..=SIZE_MAX).contains(&size) && size.is_multiple_of(word) {
        Ok(size)
    } else {
        Err(Fault::invalid(format!("the size in {name} is {size}; set it to sizeof of the struct")))
    }
}

/// Checks the place for a struct before the call does anything.
///
/// # Safety
/// `place` is null, or leads to a struct whose first field is its size.
pub(crate) unsafe fn check_optional<T: Plain>(place: *const T, name: &str) -> Result<(), Fault> {
    if place.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { size_at(place, name).map(drop) }
}

/// Reads a caller's struct. Fields that it lacks are 0; further fields have to be 0.
///
/// # Safety
/// `place` is null, or leads to a struct whose first field is its size.
pub(crate) unsafe fn read<T: Plain>(place: *const T, name: &str) -> Result<T, Fault> {
    // SAFETY: the caller's promise.
    let size = unsafe { size_at(place, name)? };
    let known = size_of::<T>();
    if size > known {
        // SAFETY: the struct has `size` bytes.
        let rest = unsafe { slice::from_raw_parts(place.cast::<u8>().add(known), size - known) };
        if rest.iter().any(|&byte| byte != 0) {
            let text = format!("{name} sets a field that this version of the library does not have");
            return Err(Fault::new(Code::Unsupported, text));
        }
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: both have this many bytes and do not overlap; a `Plain` may be zeros, and the bytes of C (the trait's promise).
    unsafe {
        ptr::copy_nonoverlapping(place.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), size.min(known));
        Ok(value.assume_init())
    }
}

/// As [`read`]; `None` for a null pointer.
///
/// # Safety
/// As [`read`].
pub(crate) unsafe fn read_optional<T: Plain>(place: *const T, name: &str) -> Result<Option<T>, Fault> {
    if place.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { read(place, name).map(Some) }
}

/// Reads the structs of an array, whose elements are as far apart as the first one's size.
///
/// # Safety
/// `place` is null, or leads to `count` structs whose first field is their size.
pub(crate) unsafe fn read_all<T: Plain>(place: *const T, count: usize, name: &str) -> Result<Vec<T>, Fault> {
    // SAFETY: the caller's promise, for the first one.
    let size = unsafe { size_at(place, name)? };
    let mut all = Vec::new();
    for index in 0..count {
        // SAFETY: `place` has `count` structs, each `size` bytes long.
        let (at, own) = unsafe {
            let at = place.byte_add(index * size);
            (at, size_at(at, name)?)
        };
        if own != size {
            return Err(Fault::invalid(format!("the sizes in {name} differ")));
        }
        // SAFETY: as above, the whole struct is there.
        all.push(unsafe { read(at, name)? });
    }
    Ok(all)
}

/// Fills a caller's struct except its size; fields that this library does not know become 0.
///
/// # Safety
/// `place` is null, or leads to a struct whose first field is its size.
pub(crate) unsafe fn fill<T: Plain>(place: *mut T, value: &T, name: &str) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    let size = unsafe { size_at(place.cast_const(), name)? };
    let (head, known) = (size_of::<usize>(), size_of::<T>());
    let from = ptr::from_ref(value).cast::<u8>();
    // SAFETY: the struct has `size` bytes, which is `head` at least, and the value `known`.
    unsafe {
        ptr::copy_nonoverlapping(from.add(head), place.cast::<u8>().add(head), size.min(known) - head);
        if size > known {
            ptr::write_bytes(place.cast::<u8>().add(known), 0, size - known);
        }
    }
    Ok(())
}

/// As [`fill`]; nothing for a null pointer.
///
/// # Safety
/// As [`fill`].
pub(crate) unsafe fn fill_optional<T: Plain>(place: *mut T, value: &T, name: &str) -> Result<(), Fault> {
    if place.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { fill(place, value, name) }
}

/// Returns the value behind a handle.
///
/// # Safety
/// The handle is null, or one of this library that is not closed or freed before the end of `'a`.
pub(crate) unsafe fn handle<'a, T>(handle: *const T, name: &str) -> Result<&'a T, Fault> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| null(name))
}

/// Returns the place for a result.
pub(crate) fn place<T>(place: *mut T, name: &str) -> Result<NonNull<T>, Fault> {
    NonNull::new(place).ok_or_else(|| null(name))
}

/// Returns a text of C.
///
/// # Safety
/// The text is null, or ends with a NUL and stays as it is until the end of `'a`.
unsafe fn c_str<'a>(text: *const c_char, name: &str) -> Result<&'a CStr, Fault> {
    if text.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// Returns a path of C.
///
/// # Safety
/// As [`c_str`].
pub(crate) unsafe fn path<'a>(text: *const c_char, name: &str) -> Result<&'a Path, Fault> {
    // SAFETY: the caller's promise.
    let text = unsafe { c_str(text, name)? };
    Ok(Path::new(OsStr::from_bytes(text.to_bytes())))
}

/// Returns a name of C.
///
/// # Safety
/// As [`c_str`].
pub(crate) unsafe fn word<'a>(text: *const c_char, name: &str) -> Result<&'a str, Fault> {
    // SAFETY: the caller's promise.
    let text = unsafe { c_str(text, name)? };
    text.to_str().map_err(|_| Fault::invalid(format!("{name} is not UTF-8")))
}

/// Copies as much of a text as fits, and a NUL; `needed`, unless it is null, is set to the number of bytes of the whole text.
///
/// # Safety
/// `room` has `len` bytes, or is null; `needed` is null or a place for a number.
pub(crate) unsafe fn copy_text(text: &str, room: *mut c_char, len: usize, needed: *mut usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if !needed.is_null() {
            needed.write(text.len() + 1);
        }
        if !room.is_null() && len > 0 {
            let bytes = text.len().min(len - 1);
            ptr::copy_nonoverlapping(text.as_ptr(), room.cast::<u8>(), bytes);
            room.add(bytes).write(0);
        }
    }
}
