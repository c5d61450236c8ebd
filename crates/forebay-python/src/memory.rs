//! Memory of Python objects that the kernel may write into or read from, and the owners that keep it where it is meanwhile.
//!
//! An object is exported (`Py_buffer`, or a DLPack capsule) before its operation starts, and the export travels with the operation.
//! It ends only when the engine has returned the memory, even if the caller fails: until then Python neither frees nor resizes the
//! object. An export may end only on an attached thread, so an export returned on another thread waits in
//! [`Process::give_back`](crate::process::Process::give_back).

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use forebay::IoMemory;
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule};

use crate::process;

mod aligned;
mod block;
mod dlpack;

pub(crate) use aligned::AlignedMemory;
pub(crate) use block::{Block, BlockBytes};
use dlpack::{HOST, Lender};

/// A value that belongs to the process which made it. A forked child leaves it alone: its parts are shared with threads that the
/// child does not have.
pub(crate) struct Here<T> {
    value: ManuallyDrop<T>,
    generation: u64,
}

impl<T> Here<T> {
    pub(crate) fn new(value: T) -> Here<T> {
        Here { value: ManuallyDrop::new(value), generation: process::generation() }
    }

    /// Returns the value; `None` in a forked child.
    pub(crate) fn get(&self) -> Option<&T> {
        (self.generation == process::generation()).then_some(&*self.value)
    }
}

impl<T> Drop for Here<T> {
    fn drop(&mut self) {
        if self.generation == process::generation() {
            // SAFETY: dropped once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// The owner of memory that an operation has.
#[derive(Default)]
pub(crate) enum Owner {
    #[default]
    None,
    /// In a box, because an exporter may let it point into itself.
    Export(Box<ffi::Py_buffer>),
    Tensor(dlpack::Tensor),
    /// A bytes object that no Python code has seen yet.
    Bytes(Py<PyBytes>),
    Aligned(#[expect(dead_code, reason = "it keeps the memory")] Arc<AlignedMemory>),
}

// SAFETY: an export is only moved between threads, and ended on an attached one (`Destination::drop`). The other owners are `Send`.
unsafe impl Send for Owner {}

impl Owner {
    /// Ends the export.
    pub(crate) fn release(self, _: Python<'_>) {
        match self {
            // SAFETY: attached, and the view was filled by the interpreter and is released once.
            Owner::Export(mut view) => unsafe { ffi::PyBuffer_Release(&mut *view) },
            Owner::Tensor(tensor) => tensor.delete(),
            Owner::None | Owner::Bytes(_) | Owner::Aligned(_) => {}
        }
    }

    /// Returns whether only an attached thread may drop it. (pyo3 would accept a bytes object anywhere, but into a list behind a
    /// lock that a forked child could find locked.)
    fn needs_interpreter(&self) -> bool {
        matches!(self, Owner::Export(_) | Owner::Tensor(_) | Owner::Bytes(_))
    }
}

/// A part of an object's memory that one operation uses; the default is empty.
pub(crate) struct Destination {
    owner: Owner,
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory is touched by the operation alone, and the owner is `Send`.
unsafe impl Send for Destination {}
// SAFETY: a shared reference gives nothing but the length.
unsafe impl Sync for Destination {}

impl Default for Destination {
    fn default() -> Destination {
        Destination { owner: Owner::None, start: ptr::null_mut(), len: 0 }
    }
}

// SAFETY: the owner keeps the bytes where they are: an exported object is neither resized nor freed, and the others are not either
// while they have owners. Python code may look at them meanwhile, as it may with every buffer that the interpreter itself reads
// into. Fresh memory is not initialised; reads only write to it, and writes are made of exported memory alone.
unsafe impl IoMemory for Destination {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.start, self.len)
    }
}

impl Destination {
    /// Exports an object that can be written to: anything with a contiguous buffer, or a tensor in the memory of this machine.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Destination> {
        Destination::export(object, ffi::PyBUF_CONTIG, "a writable, contiguous buffer")
    }

    /// Exports an object whose bytes are read.
    pub(crate) fn readable(object: &Bound<'_, PyAny>) -> PyResult<Destination> {
        Destination::export(object, ffi::PyBUF_CONTIG_RO, "a contiguous buffer")
    }

    fn export(object: &Bound<'_, PyAny>, flags: c_int, need: &str) -> PyResult<Destination> {
        // SAFETY: attached, and the object lives.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
            return match dlpack::export(object)? {
                Some((tensor, start, len)) => Ok(Destination { owner: Owner::Tensor(tensor), start, len }),
                None => Err(PyTypeError::new_err(format!(
                    "{} has no buffer; give {need}, such as a bytearray, a numpy array or a CPU tensor",
                    object.get_type().name()?
                ))),
            };
        }
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: attached; the view stays in its box until it is released.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) } != 0 {
            let error = PyErr::fetch(object.py());
            let text = format!("{}; give {need}", error.value(object.py()));
            let refusal = PyBufferError::new_err(text);
            refusal.set_cause(object.py(), Some(error));
            return Err(refusal);
        }
        let (start, len) = (view.buf.cast(), usize::try_from(view.len).unwrap_or(0));
        Ok(Destination { owner: Owner::Export(view), start, len })
    }

    /// Returns the memory of a new bytes object, and the object. No code may see the object before the operation has ended.
    pub(crate) fn bytes(py: Python<'_>, len: usize) -> PyResult<Destination> {
        let size = isize::try_from(len).map_err(|_| PyMemoryError::new_err(()))?;
        // SAFETY: attached; the bytes of the new object are not initialised, and are not read before they are.
        let object = unsafe {
            let object = ffi::PyBytes_FromStringAndSize(ptr::null(), size);
            Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>()
        };
        // SAFETY: a bytes object, which is new.
        let start = unsafe { ffi::PyBytes_AsString(object.as_ptr()) }.cast();
        Ok(Destination { owner: Owner::Bytes(object.unbind()), start, len })
    }

    /// Returns the memory of `aligned` from `skip` on.
    pub(crate) fn aligned(aligned: Arc<AlignedMemory>, skip: usize) -> Destination {
        let skip = skip.min(aligned.len());
        let start = aligned.start().wrapping_add(skip);
        Destination { len: aligned.len() - skip, start, owner: Owner::Aligned(aligned) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Leaves only the first bytes to the operation.
    pub(crate) fn cut(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Ends the export, on an attached thread.
    pub(crate) fn release(mut self, py: Python<'_>) {
        std::mem::take(&mut self.owner).release(py);
    }

    /// Returns the bytes object of the read; a copy if fewer bytes were read, which is rare.
    pub(crate) fn into_bytes(mut self, py: Python<'_>, len: usize) -> Py<PyAny> {
        let object = match std::mem::take(&mut self.owner) {
            Owner::Bytes(object) => {
                // SAFETY: attached, and the object is one of bytes. Its length may be more than was left to the operation (`cut`).
                if usize::try_from(unsafe { ffi::PyBytes_Size(object.as_ptr()) }) == Ok(len) {
                    return object.into_any();
                }
                // SAFETY: the object lives, and its first `len` bytes were read into it.
                PyBytes::new(py, unsafe { std::slice::from_raw_parts(self.start, len.min(self.len)) })
            }
            _ => PyBytes::new(py, &[]),
        };
        object.into_any().unbind()
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if self.owner.needs_interpreter() {
            process::current().give_back(std::mem::take(&mut self.owner));
        }
    }
}

/// Fills a view of an object's memory.
///
/// # Safety
/// `view` is the one that the interpreter asks to be filled; the memory stays while `object` lives.
unsafe fn fill(
    object: Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    (start, len): (*mut u8, usize),
    is_read_only: bool,
    flags: c_int,
) -> PyResult<()> {
    let size = isize::try_from(len).map_err(|_| PyBufferError::new_err("too long for a buffer"))?;
    let read_only = c_int::from(is_read_only);
    // SAFETY: the caller's promise; the view holds a reference to the object.
    match unsafe { ffi::PyBuffer_FillInfo(view, object.as_ptr(), start.cast(), size, read_only, flags) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(object.py())),
    }
}

/// Writable memory that starts at a page, for reads without a copy. It has the buffer protocol: use memoryview(memory),
/// numpy.frombuffer(memory, dtype) or torch.frombuffer(memory, dtype=...); and DLPack.
#[pyclass(frozen, module = "forebay")]
pub(crate) struct Memory {
    aligned: Arc<AlignedMemory>,
}

impl Memory {
    pub(crate) fn new(aligned: Arc<AlignedMemory>) -> Memory {
        Memory { aligned }
    }
}

#[pymethods]
impl Memory {
    fn __len__(&self) -> usize {
        self.aligned.len()
    }

    fn __repr__(&self) -> String {
        format!("<forebay.Memory of {} bytes>", self.aligned.len())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = (slf.get().aligned.start(), slf.get().aligned.len());
        // SAFETY: the interpreter's view, and the object owns the memory.
        unsafe { fill(slf.into_any(), view, memory, false, flags) }
    }

    /// Exports the bytes by DLPack, writable.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let (start, len) = (self.aligned.start(), self.aligned.len());
        let lender = Lender { owner: self.aligned.clone(), start, len, is_read_only: false };
        lender.lend(py, stream, max_version, dl_device, copy)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        HOST
    }
}

/// Returns `nbytes` bytes of new memory that starts at a page, for use as a destination: direct reads of whole blocks then need no
/// copy. It is filled with zeros, unless `zeroed` is false: then its bytes are arbitrary. From 8 MiB on it is in huge pages if the
/// system has them, and if it is not filled, a thread makes its pages ready while the first reads into it run.
#[pyfunction]
#[pyo3(signature = (nbytes, *, zeroed=true))]
pub(crate) fn allocate(nbytes: isize, zeroed: bool) -> PyResult<Memory> {
    let Ok(len) = usize::try_from(nbytes) else {
        return Err(PyValueError::new_err(format!("nbytes is {nbytes}; it must not be negative")));
    };
    let aligned = AlignedMemory::new(len, zeroed)?;
    if !zeroed {
        aligned.populate();
    }
    Ok(Memory::new(aligned))
}
