//! The operations, as futures that neither know a waiting thread nor an asyncio loop.

use std::future::Future;
use std::ops::Range;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use forebay::{Class, Durability, Engine, ReadMany};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView};

use crate::fault::Fault;
use crate::memory::{AlignedMemory, Block, BlockBytes, Destination, Memory};

/// An operation on its way.
pub(crate) type Job = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// The end of an operation, for a thread that is attached to the interpreter.
pub(crate) struct Outcome {
    /// The memory that it had.
    pub(crate) memory: Destination,
    pub(crate) result: Result<Value, Fault>,
}

/// The result of an operation.
pub(crate) enum Value {
    None,
    Number(u64),
    /// The memory is a bytes object, of which this many bytes were read.
    Bytes(usize),
    /// Bytes whose number was not known before.
    Collected(Vec<u8>),
    /// Results in these parts of one memory.
    Views(Arc<AlignedMemory>, Vec<Range<usize>>),
    /// The next block of a scan.
    Block(BlockBytes),
    /// The end of a scan.
    End,
}

impl Outcome {
    pub(crate) fn new(result: Result<Value, Fault>) -> Outcome {
        Outcome { memory: Destination::default(), result }
    }

    /// Returns the Python value, or raises; `None` at the end of a scan.
    pub(crate) fn into_py(self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let Outcome { memory, result } = self;
        let value = match result {
            Ok(Value::Bytes(len)) => return Ok(Some(memory.into_bytes(py, len))),
            Ok(Value::Collected(bytes)) => return Ok(Some(PyBytes::new(py, &bytes).into_any().unbind())),
            Ok(value) => value,
            Err(fault) => {
                memory.release(py);
                return Err(fault.into_py(py));
            }
        };
        memory.release(py);
        match value {
            Value::None | Value::Bytes(_) | Value::Collected(_) => Ok(Some(py.None())),
            Value::Number(number) => Ok(Some(number.into_pyobject(py)?.into_any().unbind())),
            Value::Views(aligned, parts) => {
                views(py, aligned, &parts).map(|list| Some(list.into_any().unbind()))
            }
            Value::Block(bytes) => {
                let block = Bound::new(py, Block::new(bytes))?;
                Ok(Some(PyMemoryView::from(&block.into_any())?.into_any().unbind()))
            }
            Value::End => Ok(None),
        }
    }
}

/// Returns memoryviews of parts of `aligned`, which share it.
fn views<'py>(
    py: Python<'py>,
    aligned: Arc<AlignedMemory>,
    parts: &[Range<usize>],
) -> PyResult<Bound<'py, PyList>> {
    let memory = Bound::new(py, Memory::new(aligned))?.into_any();
    let all = PyMemoryView::from(&memory)?;
    let list = PyList::empty(py);
    for &Range { start, end } in parts {
        // SAFETY: attached, and the view lives; a failure is null with an exception.
        let part = unsafe {
            Bound::from_owned_ptr_or_err(
                py,
                ffi::PySequence_GetSlice(all.as_ptr(), start as isize, end as isize),
            )?
        };
        list.append(part)?;
    }
    Ok(list)
}

/// The file of one operation, with its name for errors and the class of its I/O.
pub(crate) struct Handle {
    pub(crate) file: forebay::File,
    pub(crate) path: Arc<Path>,
    pub(crate) class: Class,
}

/// Reads into `memory`; the result is the number of bytes, or the memory's bytes object.
pub(crate) fn read(handle: Handle, offset: u64, memory: Destination, as_bytes: bool) -> Job {
    let Handle { file, path, class } = handle;
    let read = file.read_into(offset, memory).class(class).owned();
    Box::pin(async move {
        let (result, memory) = read.await;
        let result = match result {
            Ok(bytes) if as_bytes => Ok(Value::Bytes(bytes)),
            Ok(bytes) => Ok(Value::Number(bytes as u64)),
            Err(error) => Err(Fault::of_file(error, &path)),
        };
        Outcome { memory, result }
    })
}

/// Reads a range of a file of length 0 up to the end that a read finds: the length of a file of procfs says nothing.
pub(crate) fn read_unsized(handle: Handle, range: Range<u64>) -> Job {
    let Handle { file, path, class } = handle;
    let mut scan = file.scan().range(range).class(class).start();
    Box::pin(async move {
        let mut bytes = Vec::new();
        while let Some(block) = scan.next().await {
            match block {
                Ok(block) => bytes.extend_from_slice(&block),
                Err(error) => return Outcome::new(Err(Fault::of_file(error, &path))),
            }
        }
        Outcome::new(Ok(Value::Collected(bytes)))
    })
}

/// The longest range that an adaptive file looks for in the page cache.
pub(crate) const CACHED_BYTES_MAX: u64 = 4 << 20;
/// The bytes of a part of a long read: of memory that the device can write into, and of other memory, which is copied.
const PART_BYTES: u64 = CACHED_BYTES_MAX;
const COPIED_PART_BYTES: u64 = 256 << 10;
/// The parts of a long read in flight: as many bytes as a device has in flight at its full speed, and more.
const PARTS: u32 = 16;

/// Reads all of `memory` from an adaptive file that has this many bytes there, in parts: each is served from the page cache if
/// cached. A single read would be served by the device as a whole.
pub(crate) fn read_in_parts(handle: Handle, offset: u64, mut memory: Destination, as_bytes: bool) -> Job {
    let page = u64::from(handle.file.alignment().memory.max(1));
    let address = forebay::IoMemory::memory(&mut memory).0.addr() as u64;
    let is_aligned = address % page == offset % page;
    let part = if is_aligned { PART_BYTES } else { COPIED_PART_BYTES };
    let end = offset + memory.len() as u64;
    // All parts but the first start at whole blocks, of the file as well as of the memory.
    let ends = std::iter::successors(Some(offset), move |start| {
        (*start < end).then(|| ((start / part + 1) * part).min(end))
    });
    let mut starts = offset;
    let ranges: Vec<_> = ends.skip(1).map(|end| std::mem::replace(&mut starts, end)..end).collect();
    Box::pin(async move {
        let parts = handle
            .file
            .read_many(ranges)
            .class(handle.class)
            .depth(PARTS)
            .gap_bytes_max(0)
            .request_bytes_max(part)
            .into_memory(memory);
        let (result, memory) = parts.await;
        match result {
            Ok(()) if as_bytes => Outcome { result: Ok(Value::Bytes(memory.len())), memory },
            Ok(()) => Outcome { result: Ok(Value::Number(memory.len() as u64)), memory },
            // The file became shorter meanwhile.
            Err(error) if matches!(error.kind(), forebay::ErrorKind::UnexpectedEof { .. }) => {
                read(handle, offset, memory, as_bytes).await
            }
            Err(error) => Outcome { memory, result: Err(Fault::of_file(error, &handle.path)) },
        }
    })
}

/// Reads a batch into `memory`; `path` names its one file.
pub(crate) fn read_many(batch: ReadMany, path: Option<Arc<Path>>, memory: Destination, value: Value) -> Job {
    let read = batch.into_memory(memory);
    Box::pin(async move {
        let (result, memory) = read.await;
        let result = result.map(|()| value).map_err(|error| match &path {
            Some(path) => Fault::of_file(error, path),
            None => Fault::new(error),
        });
        Outcome { memory, result }
    })
}

/// Writes all of `memory`; the result is the number of bytes.
pub(crate) fn write(handle: Handle, offset: u64, memory: Destination, durable: bool) -> Job {
    let Handle { file, path, class } = handle;
    let len = memory.len() as u64;
    let write = file.write_from(offset, memory).class(class).durable(durability(durable)).owned();
    Box::pin(async move {
        let (result, memory) = write.await;
        let result = result.map(|()| Value::Number(len)).map_err(|error| Fault::of_file(error, &path));
        Outcome { memory, result }
    })
}

/// The files by which one file is written: one of its mode, and one through the page cache for bytes that are not whole pages.
pub(crate) struct Writers {
    pub(crate) main: Handle,
    pub(crate) buffered: Option<forebay::File>,
}

impl Writers {
    /// Returns the file for a write.
    pub(crate) fn into_handle(mut self, offset: u64, len: usize) -> Handle {
        if let Some(buffered) = self.buffered.filter(|_| !is_whole(&self.main.file, offset, len)) {
            self.main.file = buffered;
        }
        self.main
    }
}

/// Returns whether a write to a direct file is of whole blocks and pages. The kernel keeps both views the same for writes one after the
/// other. A write through the page cache that changes a page while a direct write changes another part of it may write that part back as it
/// was before.
pub(crate) fn is_whole(file: &forebay::File, offset: u64, len: usize) -> bool {
    let block = match u64::from(file.alignment().offset) {
        block @ 0..=1 => block.max(1),
        block => block.max(rustix::param::page_size() as u64),
    };
    offset.is_multiple_of(block) && (len as u64).is_multiple_of(block)
}

/// Writes `memory` behind the last byte; the result is its offset. `line` lets one append at a time look for the end.
///
/// An append has the line as a task of the engine's, which goes on to its end: while the loop of its caller stands still, for example
/// because the same thread waits for another append, and after its caller has given it up, as its bytes may be on their way to where the
/// next append would look for the end.
pub(crate) fn append(
    engine: &'static Engine,
    writers: Writers,
    line: Arc<async_lock::Mutex<()>>,
    memory: Destination,
    durable: bool,
) -> Job {
    let (shard, class, path) =
        (writers.main.file.home_shard(), writers.main.class, writers.main.path.clone());
    let caller = Arc::new(());
    let waits = Arc::downgrade(&caller);
    let append = move || async move {
        let _first = line.lock_arc().await;
        if waits.strong_count() == 0 {
            // Given up while it waited: no caller sees this.
            return Outcome { memory, result: Ok(Value::None) };
        }
        let end = match writers.main.file.len().await {
            Ok(end) => end,
            Err(error) => return Outcome { memory, result: Err(Fault::of_file(error, &writers.main.path)) },
        };
        let written = write(writers.into_handle(end, memory.len()), end, memory, durable).await;
        Outcome { result: written.result.map(|_| Value::Number(end)), ..written }
    };
    Box::pin(async move {
        let _caller = caller;
        let task = engine.spawn_on_shard(shard, class, append);
        task.await.unwrap_or_else(|error| Outcome::new(Err(Fault::of_file(error, &path))))
    })
}

/// Syncs the file.
pub(crate) fn sync(file: forebay::File, path: Arc<Path>, durability: Durability) -> Job {
    let sync = file.sync(durability).owned();
    Box::pin(async move {
        Outcome::new(sync.await.map(|()| Value::None).map_err(|error| Fault::of_file(error, &path)))
    })
}

/// Sets the file's length.
pub(crate) fn truncate(file: forebay::File, path: Arc<Path>, len: u64) -> Job {
    Box::pin(async move {
        let result = file.truncate(len).await;
        Outcome::new(result.map(|()| Value::None).map_err(|error| Fault::of_file(error, &path)))
    })
}

/// Closes the files by which one file is open, once their calls have ended.
pub(crate) fn close(files: Vec<forebay::File>, path: Arc<Path>) -> Job {
    Box::pin(async move {
        for file in files {
            if let Err(error) = file.close().await {
                return Outcome::new(Err(Fault::of_file(error, &path)));
            }
        }
        Outcome::new(Ok(Value::None))
    })
}

fn durability(durable: bool) -> Durability {
    if durable { Durability::Data } else { Durability::None }
}
