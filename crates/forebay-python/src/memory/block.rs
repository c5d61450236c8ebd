//! Blocks of scans, which Python looks at where they lie.

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use super::{AlignedMemory, Here, fill};

/// The bytes of a block.
pub(crate) enum BlockBytes {
    /// In I/O memory, which forked children do not inherit.
    Io(Here<forebay::Block>),
    Copied(Arc<AlignedMemory>),
}

/// Read-only bytes of a scan, which they keep alive. Use memoryview(block); a scan returns such views.
#[pyclass(frozen, module = "forebay")]
pub(crate) struct Block {
    bytes: BlockBytes,
}

impl Block {
    pub(crate) fn new(bytes: BlockBytes) -> Block {
        Block { bytes }
    }

    fn memory(&self) -> Option<(*mut u8, usize)> {
        match &self.bytes {
            BlockBytes::Io(block) => block.get().map(|block| (block.as_ptr().cast_mut(), block.len())),
            BlockBytes::Copied(aligned) => Some((aligned.start(), aligned.len())),
        }
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
        let Some(memory) = slf.get().memory() else {
            return Err(PyBufferError::new_err(
                "this block was read before the process was forked, and I/O memory is not inherited; copy it with bytes(block) \
                 before the fork",
            ));
        };
        // SAFETY: the interpreter's view; the object owns the block, and so the memory.
        unsafe { fill(slf.into_any(), view, memory, true, flags) }
    }
}
