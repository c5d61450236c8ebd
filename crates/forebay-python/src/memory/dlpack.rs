//! DLPack, both ways: tensors without the buffer protocol, such as those of torch, by the first form of a capsule, which every producer
//! has; and memory of ours for other libraries, in the form that they want.

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use super::AlignedMemory;

#[repr(C)]
struct Device {
    kind: i32,
    number: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Array {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    data_type: DataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct ManagedTensor {
    array: Array,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
}

/// The form of consumers that give `max_version`: it can say that memory is read-only.
#[repr(C)]
struct VersionedTensor {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut VersionedTensor)>,
    flags: u64,
    array: Array,
}

/// A tensor's export, which keeps its memory.
pub(crate) struct Tensor(NonNull<ManagedTensor>);

impl Tensor {
    /// Ends the export, on an attached thread.
    pub(super) fn delete(self) {
        // SAFETY: the capsule has given it up, so it is deleted here, once.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter {
                deleter(self.0.as_ptr());
            }
        }
    }
}

const NAME: &CStr = c"dltensor";
const USED_NAME: &CStr = c"used_dltensor";
/// The memory of this machine: ordinary, and pinned for CUDA or ROCm.
const HOST_KINDS: [i32; 3] = [1, 3, 11];
/// Ordinary memory of this machine, as `__dlpack_device__` says it.
pub(super) const HOST: (i32, i32) = (1, 0);
const VERSION: [u32; 2] = [1, 0];
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;
/// Unsigned numbers.
const UNSIGNED: u8 = 1;

/// Exports a tensor; `None` for any other object.
pub(super) fn export(object: &Bound<'_, PyAny>) -> PyResult<Option<(Tensor, *mut u8, usize)>> {
    if !object.hasattr("__dlpack__")? {
        return Ok(None);
    }
    let device: (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    if !HOST_KINDS.contains(&device.0) {
        return Err(PyValueError::new_err(
            "the tensor is not in the memory of this machine; give one on the CPU, and copy it to the device afterwards",
        ));
    }
    let capsule = object.call_method0("__dlpack__")?;
    // SAFETY: attached; a capsule of another name gives null and an exception.
    let managed = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAME.as_ptr()) };
    let Some(managed) = NonNull::new(managed.cast::<ManagedTensor>()) else {
        return Err(PyErr::fetch(object.py()));
    };
    // SAFETY: as the protocol says, the new name makes the tensor ours. The name lives as long as the program.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), USED_NAME.as_ptr()) } != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    let tensor = Tensor(managed);
    // SAFETY: it lives until it is deleted.
    let array = unsafe { &managed.as_ref().array };
    // SAFETY: shape and strides have as many numbers as the array has dimensions.
    let len = unsafe { len_if_contiguous(array) };
    let Some(len) = len else {
        tensor.delete();
        return Err(PyBufferError::new_err("the tensor is not contiguous; give tensor.contiguous()"));
    };
    let start = array.data.cast::<u8>().wrapping_add(array.byte_offset as usize);
    Ok(Some((tensor, start, len)))
}

/// Returns the bytes of an array whose elements lie one behind the other, the last dimension fastest.
///
/// # Safety
/// The array is valid.
unsafe fn len_if_contiguous(array: &Array) -> Option<usize> {
    let bits = usize::from(array.data_type.bits) * usize::from(array.data_type.lanes.max(1));
    let mut elements = 1i64;
    for dimension in (0..usize::try_from(array.dimensions).ok()?).rev() {
        // SAFETY: the caller's promise.
        let (size, stride) = unsafe {
            let stride = (!array.strides.is_null()).then(|| *array.strides.add(dimension));
            (*array.shape.add(dimension), stride)
        };
        if size != 1 && stride.is_some_and(|stride| stride != elements) && elements != 0 {
            return None;
        }
        elements = elements.checked_mul(size)?;
    }
    usize::try_from(elements).ok()?.checked_mul(bits)?.checked_add(7).map(|bits| bits / 8)
}

/// A form of a tensor that a capsule can have.
trait Form {
    const NAME: &'static CStr;
}

impl Form for ManagedTensor {
    const NAME: &'static CStr = NAME;
}

impl Form for VersionedTensor {
    const NAME: &'static CStr = c"dltensor_versioned";
}

/// Memory of ours with a consumer, until that runs the deleter: on any thread, attached or not, even after files or the engine
/// were closed.
#[repr(C)]
struct Loan<F> {
    /// The first field, so that its address is the loan's.
    form: F,
    /// Shape and strides.
    numbers: Vec<i64>,
    owner: Arc<dyn Send + Sync>,
}

impl<F: Form> Loan<F> {
    fn into_capsule(self, py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
        let loan = NonNull::from(Box::leak(Box::new(self)));
        // SAFETY: the loan lives until it is ended: by `drop_capsule`, which may run on any thread as all parts of a loan may, or by the
        // deleter of a consumer that has renamed the capsule.
        let capsule = unsafe {
            PyCapsule::new_with_pointer_and_destructor(py, loan.cast(), F::NAME, Some(drop_capsule::<F>))
        };
        if capsule.is_err() {
            // SAFETY: leaked above, and no capsule has it.
            drop(unsafe { Box::from_raw(loan.as_ptr()) });
        }
        capsule
    }
}

/// The deleter.
unsafe extern "C" fn end_loan<F>(form: *mut F) {
    // SAFETY: the protocol runs a deleter once, for the tensor that has it: the first field of a loan that was a box.
    drop(unsafe { Box::from_raw(form.cast::<Loan<F>>()) });
}

unsafe extern "C" fn drop_capsule<F: Form>(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter's call, for a capsule of this form. A consumer that consumed the tensor has renamed it; otherwise the
    // loan still belongs to the capsule.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, F::NAME.as_ptr()) != 0 {
            end_loan::<F>(ffi::PyCapsule_GetPointer(capsule, F::NAME.as_ptr()).cast());
        }
    }
}

/// Memory of ours, and a share in its ownership.
pub(super) struct Lender {
    pub(super) owner: Arc<dyn Send + Sync>,
    pub(super) start: *mut u8,
    pub(super) len: usize,
    pub(super) is_read_only: bool,
}

impl Lender {
    /// Returns a capsule of the bytes, for the arguments of `__dlpack__`.
    pub(super) fn lend<'py>(
        mut self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        if stream.is_some() {
            return Err(PyValueError::new_err("stream must be None for memory of this machine"));
        }
        if device.is_some_and(|device| device != HOST) {
            return Err(PyBufferError::new_err(
                "it is in the memory of this machine; leave out dl_device, and copy it to the device afterwards",
            ));
        }
        let is_versioned = max_version.is_some_and(|(major, _)| major >= VERSION[0]);
        // The first form cannot say that memory is read-only.
        let needs_copy = self.is_read_only && !is_versioned;
        let is_copied = copy.unwrap_or(needs_copy);
        if needs_copy && !is_copied {
            return Err(PyBufferError::new_err(
                "it is read-only, which DLPack can say from version 1.0 on; give max_version, or let it be copied",
            ));
        }
        if is_copied {
            self = self.copied()?;
        }
        let numbers = vec![i64::try_from(self.len)?, 1];
        let array = Array {
            // So the header wants it of no bytes.
            data: if self.len == 0 { ptr::null_mut() } else { self.start.cast() },
            device: Device { kind: HOST.0, number: HOST.1 },
            dimensions: 1,
            data_type: DataType { code: UNSIGNED, bits: 8, lanes: 1 },
            shape: numbers.as_ptr(),
            strides: numbers[1..].as_ptr(),
            byte_offset: 0,
        };
        let (context, owner) = (ptr::null_mut(), self.owner);
        if !is_versioned {
            let form = ManagedTensor { array, context, deleter: Some(end_loan::<ManagedTensor>) };
            return Loan { form, numbers, owner }.into_capsule(py);
        }
        let read_only = if self.is_read_only { READ_ONLY } else { 0 };
        let flags = read_only | if is_copied { IS_COPIED } else { 0 };
        let form = VersionedTensor {
            version: VERSION,
            context,
            deleter: Some(end_loan::<VersionedTensor>),
            flags,
            array,
        };
        Loan { form, numbers, owner }.into_capsule(py)
    }

    fn copied(self) -> PyResult<Lender> {
        let copy = AlignedMemory::new(self.len, false)?;
        // SAFETY: new memory of the same length, and the owner keeps the bytes. They may be arbitrary, as those of new memory are.
        unsafe { copy.start().copy_from_nonoverlapping(self.start, self.len) };
        Ok(Lender { start: copy.start(), owner: copy, len: self.len, is_read_only: false })
    }
}
