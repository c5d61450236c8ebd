//! Blocks of scans, which Python looks at where they lie.

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use super::dlpack::{HOST, Lender};
use super::{AlignedMemory, Here, fill};

/// The bytes of a block.
pub(crate) enum BlockBytes {
    /// In I/O memory, which forked children do not inherit.
    Io(Here<forebay::Block>),
    Copied(Arc<AlignedMemory>),
}

/// Read-only bytes of a scan, which they keep alive. Use memoryview(block); a scan returns such views. numpy.from_dlpack(block) and its
/// like work as well.
#[pyclass(frozen, module = "forebay")]
pub(crate) struct Block {
    bytes: Arc<BlockBytes>,
}

impl Block {
    pub(crate) fn new(bytes: BlockBytes) -> Block {
        Block { bytes: Arc::new(bytes) }
    }

    fn memory(&self) -> Option<(*mut u8, usize)> {
        match &*self.bytes {
            BlockBytes::Io(block) => block.get().map(|block| (block.as_ptr().cast_mut(), block.len())),
            BlockBytes::Copied(aligned) => Some((aligned.start(), aligned.len())),
        }
    }

    /// Returns the memory to export; refuses in a forked child that does not have it.
    fn memory_here(&self) -> PyResult<(*mut u8, usize)> {
        self.memory().ok_or_else(|| {
            PyBufferError::new_err(
                "this block was read before the process was forked, and I/O memory is not inherited; copy it with bytes(block) \
                 before the fork",
            )
        })
    }
}

#[pymethods]
impl Block {
    fn __len__(&self) -> usize {
        self.memory().map_or(0, |memory| memory.1)
    }

    fn __repr__(&self) -> String {
        format!("<forebay.Block of {} bytes>", self.__len__())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = slf.get().memory_here()?;
        // SAFETY: the interpreter's view; the object owns the block, and so the memory.
        unsafe { fill(slf.into_any(), view, memory, true, flags) }
    }

    /// Exports the bytes by DLPack, read-only; as a copy for consumers whose protocol has no read-only flag.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let (start, len) = self.memory_here()?;
        let lender = Lender { owner: self.bytes.clone(), start, len, is_read_only: true };
        lender.lend(py, stream, max_version, dl_device, copy)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        HOST
    }
}
