//! Ranges as Python programs write them: pairs of offset and length, or an array of shape (n, 2) without an object for each.

use std::ops::Range;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PyTuple};

/// The ranges of one batch.
pub(crate) struct Ranges {
    pub(crate) each: Vec<Range<u64>>,
    /// The sum of their lengths.
    pub(crate) bytes: usize,
}

impl Ranges {
    fn with_capacity(capacity: usize) -> Ranges {
        Ranges { each: Vec::with_capacity(capacity), bytes: 0 }
    }

    pub(crate) fn new() -> Ranges {
        Ranges::with_capacity(0)
    }

    pub(crate) fn push(&mut self, offset: u64, len: u64) -> PyResult<()> {
        let number = self.each.len();
        let end = offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or_else(|| {
            PyValueError::new_err(format!("range {number} ends past 2^63: offset {offset}, length {len}"))
        })?;
        let bytes = usize::try_from(len).ok().and_then(|len| self.bytes.checked_add(len));
        self.bytes = bytes.ok_or_else(|| {
            PyOverflowError::new_err(
                "the ranges are longer together than memory can be; read them in several batches",
            )
        })?;
        self.each.push(offset..end);
        Ok(())
    }

    /// Returns the ranges of `object`.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Ranges> {
        if let Ok(list) = object.cast::<PyList>() {
            let mut ranges = Ranges::with_capacity(list.len());
            for pair in list.iter() {
                ranges.push_pair(&pair)?;
            }
            return Ok(ranges);
        }
        if let Ok(buffer) = PyUntypedBuffer::get(object) {
            return Ranges::of_array(object, &buffer);
        }
        let mut ranges = Ranges::with_capacity(object.len().unwrap_or(0));
        for pair in object.try_iter().map_err(|_| not_ranges(object))? {
            ranges.push_pair(&pair?)?;
        }
        Ok(ranges)
    }

    fn push_pair(&mut self, pair: &Bound<'_, PyAny>) -> PyResult<()> {
        let number = self.each.len();
        let (offset, len) = match pair.cast::<PyTuple>() {
            Ok(pair) if pair.len() == 2 => {
                (pair.get_borrowed_item(0)?.to_owned(), pair.get_borrowed_item(1)?.to_owned())
            }
            // A list, a row of an array.
            _ if pair.len().is_ok_and(|len| len == 2) => (pair.get_item(0)?, pair.get_item(1)?),
            _ => {
                return Err(PyTypeError::new_err(format!(
                    "range {number} is {pair}; it must be a pair of offset and length"
                )));
            }
        };
        self.push(whole(&offset, number, "offset")?, whole(&len, number, "length")?)
    }

    fn of_array(object: &Bound<'_, PyAny>, buffer: &PyUntypedBuffer) -> PyResult<Ranges> {
        let is_pairs = buffer.dimensions() == 2 && buffer.shape()[1] == 2;
        if !is_pairs && buffer.item_count() > 0 {
            return Err(PyValueError::new_err(format!(
                "the array of ranges has the shape {:?}; it must be (n, 2), with an offset and a length a row",
                buffer.shape()
            )));
        }
        let Some((is_signed, is_swapped)) = number_form(buffer) else {
            return Err(PyTypeError::new_err("the array of ranges must have the type int64 or uint64"));
        };
        // Row by row, for any strides.
        let bytes = PyMemoryView::from(object)?.call_method0("tobytes")?.cast_into::<PyBytes>()?;
        let (numbers, _) = bytes.as_bytes().as_chunks::<8>();
        let (pairs, _) = numbers.as_chunks::<2>();
        let mut ranges = Ranges::with_capacity(pairs.len());
        for pair in pairs {
            let [offset, len] = pair.map(u64::from_ne_bytes);
            let [offset, len] =
                if is_swapped { [offset.swap_bytes(), len.swap_bytes()] } else { [offset, len] };
            if is_signed && ((offset | len) as i64) < 0 {
                return Err(negative(ranges.each.len(), &format!("{} and {}", offset as i64, len as i64)));
            }
            ranges.push(offset, len)?;
        }
        Ok(ranges)
    }
}

/// Returns whether a buffer's numbers are signed, and whether their byte order differs from this machine's; `None` for all but
/// whole numbers of 64 bits. (pyo3 reads numbers of the other order as this machine's.)
fn number_form(buffer: &PyUntypedBuffer) -> Option<(bool, bool)> {
    let (order, letter) = match *buffer.format().to_bytes() {
        [letter] => (b'@', letter),
        [order, letter] => (order, letter),
        _ => return None,
    };
    let is_signed = match letter {
        b'l' | b'q' | b'n' => true,
        b'L' | b'Q' | b'N' => false,
        _ => return None,
    };
    let is_swapped = match order {
        // The last one is numpy's for numbers at any address.
        b'@' | b'=' | b'^' => false,
        b'<' => cfg!(target_endian = "big"),
        b'>' | b'!' => cfg!(target_endian = "little"),
        _ => return None,
    };
    (buffer.item_size() == 8).then_some((is_signed, is_swapped))
}

fn whole(value: &Bound<'_, PyAny>, number: usize, name: &str) -> PyResult<u64> {
    value.extract::<u64>().map_err(|error| match value.lt(0) {
        Ok(true) => negative(number, &format!("{name} {value}")),
        _ if error.is_instance_of::<PyOverflowError>(value.py()) => {
            PyValueError::new_err(format!("the {name} of range {number} is {value}, which no file has"))
        }
        _ => PyTypeError::new_err(format!("the {name} of range {number} is {value}, not a whole number")),
    })
}

fn negative(number: usize, text: &str) -> PyErr {
    PyValueError::new_err(format!("range {number} has {text}; offset and length must not be negative"))
}

fn not_ranges(object: &Bound<'_, PyAny>) -> PyErr {
    let name = object.get_type().name().map_or_else(|_| "this".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!(
        "{name} has no ranges; give pairs of offset and length, or an array of int64 of the shape (n, 2)"
    ))
}

/// Returns an offset or a length that a caller gave.
pub(crate) fn position(value: i64, name: &str) -> PyResult<u64> {
    u64::try_from(value)
        .map_err(|_| PyValueError::new_err(format!("{name} is {value}; it must not be negative")))
}
