//! The header of a safetensors file, judged by the crate `safetensors`, so that the same files are accepted.

use std::num::NonZeroUsize;
use std::ops::Bound;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::{FromPyObject, PyDictMethods, PyResult, Python, pyfunction};
use pyo3::types::{PyDict, PyTuple};
use safetensors::Dtype;
use safetensors::slice::{TensorIndexer, slice_byte_ranges};
use safetensors::tensor::Metadata;

/// The length of the number before the header.
const LENGTH_BYTES: u64 = 8;

type Tensor<'py> = (String, String, pyo3::Bound<'py, PyTuple>, u64, u64);

/// Returns the metadata of a header and its tensors in the order of the file: name, dtype, shape, and start and end in the file.
///
/// `file_bytes` is the length of the file. Raises ValueError for a header that is not valid, or does not describe the whole file:
/// tensors that overlap, leave holes, or end before or behind the end of the file.
#[pyfunction]
pub(crate) fn parse_header<'py>(
    py: Python<'py>,
    header: &[u8],
    file_bytes: u64,
) -> PyResult<(Option<pyo3::Bound<'py, PyDict>>, Vec<Tensor<'py>>)> {
    let refuse = PyValueError::new_err::<String>;
    let text =
        std::str::from_utf8(header).map_err(|error| refuse(format!("its header is not UTF-8 ({error})")))?;
    let parsed: Metadata =
        serde_json::from_str(text).map_err(|error| refuse(format!("its header is not valid ({error})")))?;
    let begin = LENGTH_BYTES + header.len() as u64;
    let described = begin.checked_add(parsed.data_len() as u64);
    if described != Some(file_bytes) {
        let described = described.unwrap_or(u64::MAX);
        return Err(refuse(format!(
            "its header describes {described} bytes, but the file has {file_bytes}: copy it again, as a part may be missing"
        )));
    }
    let metadata = match parsed.metadata() {
        None => None,
        Some(map) => {
            let dict = PyDict::new(py);
            for (name, value) in map {
                dict.set_item(name, value)?;
            }
            Some(dict)
        }
    };
    let mut tensors = Vec::new();
    for name in parsed.offset_keys() {
        let Some(info) = parsed.info(&name) else { continue };
        let (start, end) = info.data_offsets;
        let shape = PyTuple::new(py, &info.shape)?;
        tensors.push((name, info.dtype.to_string(), shape, begin + start as u64, begin + end as u64));
    }
    Ok((metadata, tensors))
}

/// Pairs of offset and length.
type Ranges = Vec<(u64, u64)>;

/// For each dimension an index, or start, stop and step.
#[derive(FromPyObject)]
pub(crate) enum Slice {
    Index(usize),
    Part(usize, usize, NonZeroUsize),
}

/// Returns the ranges of bytes, from the tensor's start, of a slice of a tensor, as pairs of offset and length in their order, and
/// the shape of the slice. `slices` has for each dimension an index, or start, stop and step, which must not be empty.
#[pyfunction]
pub(crate) fn slice_ranges(
    dtype: &str,
    shape: Vec<usize>,
    slices: Vec<Slice>,
) -> PyResult<(Ranges, Vec<usize>)> {
    let dtype: Dtype = serde_json::from_str(&format!("\"{dtype}\""))
        .map_err(|_| PyValueError::new_err(format!("{dtype} is not a dtype of safetensors")))?;
    let indexers: Vec<TensorIndexer> = slices
        .into_iter()
        .map(|slice| match slice {
            Slice::Index(index) => TensorIndexer::Select(index),
            Slice::Part(start, stop, step) => {
                TensorIndexer::Narrow(Bound::Included(start), Bound::Excluded(stop), step)
            }
        })
        .collect();
    let (ranges, shape) = slice_byte_ranges(dtype, &shape, &indexers)
        .map_err(|error| PyValueError::new_err(format!("the slice does not fit the tensor: {error}")))?;
    let ranges = ranges.into_iter().map(|(start, end)| (start as u64, (end - start) as u64)).collect();
    Ok((ranges, shape))
}
