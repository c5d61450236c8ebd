//! Tensors without the buffer protocol, such as those of torch: DLPack's first form of a capsule, which every producer has.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

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

/// A tensor's export, which keeps its memory.
pub(crate) struct Tensor(NonNull<ManagedTensor>);

impl Tensor {
    /// Ends the export, on an attached thread.
    pub(super) fn delete(self) {
        // SAFETY: taken out of its capsule, so it is ours to delete, once.
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

/// Exports a tensor; `None` for an object that is none.
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
