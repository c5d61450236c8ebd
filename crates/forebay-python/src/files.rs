//! Files by their numbers, of which only some are open at a time: for batches over more files than a process may have open.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::SystemTime;

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
    mode: Mode,
    state: Mutex<State>,
}

/// By their numbers.
type Names = Arc<Vec<Arc<FileName>>>;

/// Held only by attached threads, and not across calls.
struct State {
    names: Names,
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
    /// Of a file that is not open, another one may have device and inode by now. `None` where it is not known.
    created: Option<SystemTime>,
}

struct OpenFiles {
    cache: FileCache,
    /// Of the files that were read, by their numbers.
    entries: Mutex<HashMap<usize, Arc<FileEntry>>>,
}

/// The ranges of one file in a batch. Their results lie side by side from `start` on.
struct FileRanges {
    name: Arc<FileName>,
    entry: Arc<FileEntry>,
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
        let (identity, created) = ((found.dev(), found.ino()), found.created().ok());
        Ok(FileName { shown: path.as_path().into(), absolute, identity, created })
    }

    /// Returns whether this is the file that the path led to at first.
    fn is_of(&self, file: &forebay::File) -> bool {
        let created = || file.try_metadata().and_then(|found| found.ok()?.created());
        identity(file).ok() == Some(self.identity) && (self.created.is_none() || self.created == created())
    }
}

impl OpenFiles {
    fn entry(&self, number: usize, name: &FileName) -> Arc<FileEntry> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.entry(number).or_insert_with(|| Arc::new(self.cache.file(&name.absolute))).clone()
    }
}

impl Files {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the files as this process knows them, and their names. A forked child has them anew.
    fn opened(&self, py: Python<'_>) -> PyResult<(Arc<OpenFiles>, Names)> {
        let engine = process::engine(py)?;
        let mut state = self.lock();
        if state.is_closed {
            return Err(PyValueError::new_err("these files are closed; open them again"));
        }
        let names = state.names.clone();
        if let Some(here) = state.here.as_ref().and_then(Here::get) {
            return Ok((here.clone(), names));
        }
        let cache = FileCache::new(engine, Open::read().mode(self.mode), None);
        let new = Arc::new(OpenFiles { cache, entries: Mutex::default() });
        state.here = Some(Here::new(new.clone()));
        Ok((new, names))
    }

    fn read_job(&self, py: Python<'_>, requests: &Bound<'_, PyAny>, settings: Settings) -> PyResult<Job> {
        let (opened, names) = self.opened(py)?;
        let mut ranges = Ranges::new();
        let mut of: Vec<usize> = Vec::new();
        for (number, request) in PyIterator::from_object(requests)?.enumerate() {
            let (file, offset, len): (usize, i64, i64) = request?.extract().map_err(|error: PyErr| {
                let text = format!(
                    "request {number} must be a tuple of a file's number, offset and length: {error}"
                );
                PyTypeError::new_err(text)
            })?;
            if file >= names.len() {
                let text = format!("request {number} is for file {file} of {}", names.len());
                return Err(PyIndexError::new_err(text));
            }
            of.push(file);
            ranges.push(position(offset, "offset")?, position(len, "length")?)?;
        }
        let aligned = AlignedMemory::new(ranges.bytes, false)?;
        let file = |number: usize| (names[number].clone(), opened.entry(number, &names[number]));
        let (groups, parts) = grouped(&of, &ranges.each, file);
        let (engine, memory) = (process::engine(py)?, aligned.clone());
        let (files, files_max) = (groups.len(), opened.cache.batch_files_max());
        Ok(Box::pin(async move {
            let batch = async move { read_all(engine, &opened.cache, groups, &memory, settings).await };
            let read = process::current().turns.run(engine, files, files_max, batch).await;
            let read = read.unwrap_or_else(|error| Err(Fault::new(error)));
            Outcome::new(read.map(|()| Value::Views(aligned, parts)))
        }))
    }
}

/// Puts the ranges of each file together, in the order in which files first occur. Returns the place of each range's result as
/// well, in the order of the ranges.
fn grouped(
    of: &[usize],
    ranges: &[Range<u64>],
    file: impl Fn(usize) -> (Arc<FileName>, Arc<FileEntry>),
) -> (VecDeque<FileRanges>, Vec<Range<usize>>) {
    let len = |range: &Range<u64>| (range.end - range.start) as usize;
    let mut places: HashMap<usize, usize> = HashMap::new();
    let mut groups: Vec<FileRanges> = Vec::new();
    let mut within = Vec::with_capacity(of.len());
    for (number, range) in of.iter().zip(ranges) {
        let place = *places.entry(*number).or_insert_with(|| {
            let (name, entry) = file(*number);
            groups.push(FileRanges { name, entry, ranges: Vec::new(), bytes: 0 });
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
    cache: &FileCache,
    mut groups: VecDeque<FileRanges>,
    memory: &Arc<AlignedMemory>,
    settings: Settings,
) -> Result<(), Fault> {
    let (usual, mut start) = (cache.batch_files_max(), 0);
    let mut most = usual;
    while !groups.is_empty() {
        let (files, refused) = open_some(groups.iter().take(most)).await?;
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
    groups: impl Iterator<Item = &'g FileRanges>,
) -> Result<(Vec<FileUse>, Option<Fault>), Fault> {
    type Open<'e> = Pin<Box<dyn Future<Output = forebay::Result<FileUse>> + Send + 'e>>;
    enum OpenStep<'e> {
        UnderWay(Open<'e>),
        Over(forebay::Result<FileUse>),
    }
    let mut opening: Vec<(&FileName, OpenStep<'_>)> = groups
        .map(|group| {
            let (name, entry) = (&*group.name, &*group.entry);
            (name, OpenStep::UnderWay(Box::pin(async move { entry.open(&FilePlace::NONE).await })))
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
    for (name, opening) in opening {
        let OpenStep::Over(result) = opening else { continue };
        match result {
            Ok(file) if name.is_of(&file) => files.push(file),
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
        let name = |path| FileName::of(path).map(Arc::new);
        let names = py.detach(|| paths.into_iter().map(name).collect::<PyResult<Vec<_>>>())?;
        let state = State { names: Arc::new(names), here: None, is_closed: false };
        Ok(Files { mode, state: Mutex::new(state) })
    }

    fn __len__(&self) -> usize {
        self.lock().names.len()
    }

    fn __repr__(&self) -> String {
        format!("<forebay Files, {} of them, {}>", self.__len__(), mode_name(self.mode))
    }

    /// Adds a file whose device and inode the caller has looked up. Returns its number.
    fn add(&self, path: PathBuf, device: u64, inode: u64) -> PyResult<usize> {
        let absolute = std::path::absolute(&path)?;
        let (shown, identity) = (path.as_path().into(), (device, inode));
        let name = FileName { shown, absolute, identity, created: None };
        let mut state = self.lock();
        let names = Arc::make_mut(&mut state.names);
        names.push(Arc::new(name));
        Ok(names.len() - 1)
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
        let mut state = self.lock();
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
