//! Files by their numbers, of which only some are open at a time: for batches over more files than a process may have open.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use forebay::{Class, Engine, FileCache, FileEntry, FilePlace, FileUse, Mode, Open};
use pyo3::exceptions::{PyIndexError, PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use crate::fault::Fault;
use crate::file::{Settings, identity, mode_name, parse_mode};
use crate::hub::{Call, Hub};
use crate::job::{Job, Outcome, Value};
use crate::memory::{AlignedMemory, Destination, Here};
use crate::ranges::{Ranges, position};
use crate::{drive, process};

/// Files that are read together. The least recently read files are closed when more are open than the process may have for such
/// use, and opened again by their paths when they are read again.
#[pyclass(frozen, module = "forebay._forebay", weakref)]
pub(crate) struct Files {
    names: Arc<[FileName]>,
    mode: Mode,
    state: Mutex<State>,
}

/// Held only by attached threads, and not across calls.
#[derive(Default)]
struct State {
    /// The files as this process knows them; made at the first read.
    here: Option<Here<Arc<OpenFiles>>>,
    is_closed: bool,
}

struct FileName {
    /// The path as it was given.
    shown: Arc<Path>,
    /// The same from the root, for a change of the working directory.
    absolute: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

struct OpenFiles {
    cache: FileCache,
    entries: Vec<FileEntry>,
}

/// The ranges of one file in a batch. Their results lie side by side from `start` on.
struct FileRanges {
    file: usize,
    ranges: Vec<Range<u64>>,
    bytes: usize,
}

impl FileName {
    fn of(path: PathBuf) -> PyResult<FileName> {
        let failed =
            |errno: i32, text: String| PyOSError::new_err((errno, text, path.clone().into_os_string()));
        let looked = std::fs::metadata(&path).and_then(|found| Ok((found, std::path::absolute(&path)?)));
        let (found, absolute) =
            looked.map_err(|error| failed(error.raw_os_error().unwrap_or(libc::EIO), error.to_string()))?;
        if found.is_dir() {
            return Err(failed(libc::EISDIR, "it is a directory".to_owned()));
        }
        Ok(FileName { shown: path.as_path().into(), absolute, identity: (found.dev(), found.ino()) })
    }
}

impl Files {
    /// Returns the files as this process knows them. A forked child has them anew.
    fn opened(&self, py: Python<'_>) -> PyResult<Arc<OpenFiles>> {
        let engine = process::engine(py)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            return Err(PyValueError::new_err("these files are closed; open them again"));
        }
        if let Some(here) = state.here.as_ref().and_then(Here::get) {
            return Ok(here.clone());
        }
        let cache = FileCache::new(engine, Open::read().mode(self.mode), None);
        let entries = self.names.iter().map(|name| cache.file(&name.absolute)).collect();
        let new = Arc::new(OpenFiles { cache, entries });
        state.here = Some(Here::new(new.clone()));
        Ok(new)
    }

    fn read_job(&self, py: Python<'_>, requests: &Bound<'_, PyAny>, settings: Settings) -> PyResult<Job> {
        let mut ranges = Ranges::new();
        let mut of: Vec<usize> = Vec::new();
        for (number, request) in PyIterator::from_object(requests)?.enumerate() {
            let (file, offset, len): (usize, i64, i64) = request?.extract().map_err(|error: PyErr| {
                let text = format!(
                    "request {number} must be a tuple of a file's number, offset and length: {error}"
                );
                PyTypeError::new_err(text)
            })?;
            if file >= self.names.len() {
                let text = format!("request {number} is for file {file} of {}", self.names.len());
                return Err(PyIndexError::new_err(text));
            }
            of.push(file);
            ranges.push(position(offset, "offset")?, position(len, "length")?)?;
        }
        let opened = self.opened(py)?;
        let aligned = AlignedMemory::new(ranges.bytes, false)?;
        let (groups, parts) = grouped(&of, &ranges.each);
        let (engine, names, memory) = (process::engine(py)?, self.names.clone(), aligned.clone());
        Ok(Box::pin(async move {
            let read = read_all(engine, &opened, &names, groups, &memory, settings).await;
            Outcome::new(read.map(|()| Value::Views(aligned, parts)))
        }))
    }
}

/// Puts the ranges of each file together, in the order in which files first occur. Returns the place of each range's result as
/// well, in the order of the ranges.
fn grouped(of: &[usize], ranges: &[Range<u64>]) -> (VecDeque<FileRanges>, Vec<Range<usize>>) {
    let len = |range: &Range<u64>| (range.end - range.start) as usize;
    let mut places: HashMap<usize, usize> = HashMap::new();
    let mut groups: Vec<FileRanges> = Vec::new();
    let mut within = Vec::with_capacity(of.len());
    for (file, range) in of.iter().zip(ranges) {
        let place = *places.entry(*file).or_insert_with(|| {
            groups.push(FileRanges { file: *file, ranges: Vec::new(), bytes: 0 });
            groups.len() - 1
        });
        let group = &mut groups[place];
        within.push((place, group.bytes));
        group.bytes += len(range);
        group.ranges.push(range.clone());
    }
    let mut end = 0;
    let mut starts = Vec::with_capacity(groups.len());
    for group in &groups {
        starts.push(end);
        end += group.bytes;
    }
    let start = |(place, within): (usize, usize)| starts[place] + within;
    let parts = within.into_iter().map(start).zip(ranges).map(|(start, range)| start..start + len(range));
    let parts = parts.collect();
    (groups.into(), parts)
}

/// Reads the ranges of all groups into `memory`: of as many files at a time as may be open for one batch.
async fn read_all(
    engine: &Engine,
    opened: &OpenFiles,
    names: &[FileName],
    mut groups: VecDeque<FileRanges>,
    memory: &Arc<AlignedMemory>,
    settings: Settings,
) -> Result<(), Fault> {
    let (usual, mut start) = (opened.cache.batch_files_max(), 0);
    let mut most = usual;
    while !groups.is_empty() {
        let (files, refused) = open_some(opened, names, groups.iter().take(most)).await?;
        if let Some(refused) = refused.filter(|_| files.is_empty()) {
            // Others of the same batch had the descriptors.
            if most == 1 {
                return Err(refused);
            }
            most = 1;
            continue;
        }
        let batch: Vec<FileRanges> = groups.drain(..files.len()).collect();
        let requests = files
            .iter()
            .zip(&batch)
            .flat_map(|(file, group)| group.ranges.iter().map(move |range| (&**file, range.clone())));
        let mut part = Destination::aligned(memory.clone(), start);
        let bytes = batch.iter().map(|group| group.bytes).sum();
        part.cut(bytes);
        let batch = settings.set(engine.read_many(requests)).class(Class::DEFAULT);
        let (result, _) = batch.into_memory(part).await;
        result.map_err(Fault::new)?;
        start += bytes;
        most = usual;
    }
    Ok(())
}

/// Opens files, all concurrently. Returns those before the first that lacked a descriptor, and that error.
async fn open_some<'g>(
    opened: &OpenFiles,
    names: &[FileName],
    groups: impl Iterator<Item = &'g FileRanges>,
) -> Result<(Vec<FileUse>, Option<Fault>), Fault> {
    type Open<'e> = Pin<Box<dyn Future<Output = forebay::Result<FileUse>> + Send + 'e>>;
    enum OpenStep<'e> {
        UnderWay(Open<'e>),
        Over(forebay::Result<FileUse>),
    }
    let mut opening: Vec<(usize, OpenStep<'_>)> = groups
        .map(|group| {
            let entry = &opened.entries[group.file];
            (group.file, OpenStep::UnderWay(Box::pin(async move { entry.open(&FilePlace::NONE).await })))
        })
        .collect();
    poll_fn(|context| {
        let mut is_over = true;
        for (_, opening) in &mut opening {
            if let OpenStep::UnderWay(open) = opening {
                match open.as_mut().poll(context) {
                    Poll::Ready(result) => *opening = OpenStep::Over(result),
                    Poll::Pending => is_over = false,
                }
            }
        }
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let mut files = Vec::with_capacity(opening.len());
    for (number, opening) in opening {
        let OpenStep::Over(result) = opening else { continue };
        let name = &names[number];
        match result {
            Ok(file) if identity(&file).ok() == Some(name.identity) => files.push(file),
            Ok(_) => return Err(Fault::stale(&name.shown)),
            Err(error) if error.is_out_of_descriptors() => {
                return Ok((files, Some(Fault::of_open(error, &name.shown))));
            }
            Err(error) => return Err(Fault::of_open(error, &name.shown)),
        }
    }
    Ok((files, None))
}

#[pymethods]
impl Files {
    #[new]
    #[pyo3(signature = (paths, mode="adaptive"))]
    fn new(py: Python<'_>, paths: Vec<PathBuf>, mode: &str) -> PyResult<Files> {
        let mode = parse_mode(mode)?;
        let names =
            py.detach(|| paths.into_iter().map(FileName::of).collect::<PyResult<Arc<[FileName]>>>())?;
        Ok(Files { names, mode, state: Mutex::default() })
    }

    fn __len__(&self) -> usize {
        self.names.len()
    }

    fn __repr__(&self) -> String {
        format!("<forebay Files, {} of them, {}>", self.names.len(), mode_name(self.mode))
    }

    /// Reads ranges of the files as one batch: for tuples of a file's number, offset and length a memoryview each. Of many files only some
    /// are open at a time, and the batch is made of several, one after the other.
    ///
    /// Raises OSError with ESTALE where a path leads to another file than at first.
    #[pyo3(signature = (requests, *, max_gap=None))]
    fn read_many(
        &self,
        py: Python<'_>,
        requests: &Bound<'_, PyAny>,
        max_gap: Option<u64>,
    ) -> PyResult<Py<PyAny>> {
        let job = self.read_job(py, requests, Settings { depth: None, max_gap })?;
        drive::run(py, process::engine(py)?, job, false)
    }

    /// Starts `read_many` on an asyncio loop.
    #[pyo3(signature = (hub, make_future, requests, *, max_gap=None))]
    fn _begin_read_many(
        &self,
        hub: &Bound<'_, Hub>,
        make_future: &Bound<'_, PyAny>,
        requests: &Bound<'_, PyAny>,
        max_gap: Option<u64>,
    ) -> PyResult<Call> {
        let job = self.read_job(hub.py(), requests, Settings { depth: None, max_gap })?;
        Hub::begin(hub, make_future, job)
    }

    /// Closes the files, each when the reads of it have ended, and waits for the opens that are under way. Later calls raise ValueError.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_closed = true;
        let here = state.here.take();
        drop(state);
        let Some(opened) = here.as_ref().and_then(Here::get).cloned() else { return Ok(()) };
        drop(here);
        let job: Job = Box::pin(async move {
            let closed = opened.cache.close_idle().await;
            Outcome::new(closed.map(|()| Value::None).map_err(Fault::new))
        });
        drive::run(py, process::engine(py)?, job, false).map(drop)
    }
}
