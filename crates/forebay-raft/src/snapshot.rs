//! [`RaftSnapshot`]: a snapshot as a directory of files, its parts on the way to another node, and their arrival.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use forebay::{Append, Durability, Engine, File, Open, Pending};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, MaybeDone, Shared, maybe_done};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::tree::{self, SnapshotFile};

/// Bytes of a part.
const PART_BYTES: u64 = 128 << 10;
/// Number of parts read concurrently: while one is sent, the next parts are read.
const PARTS_AHEAD: usize = 4;
/// Bytes of one write of a received file.
const WRITE_BYTES: usize = 128 << 10;

/// A directory that is not removed while this lives.
#[derive(Debug)]
pub(crate) struct HeldDirectory {
    pub(crate) path: PathBuf,
}

/// A snapshot of a [`RaftStore`](crate::RaftStore): the files of a checkpoint. openraft's `SnapshotData`.
///
/// It is a handle that is cheap to clone. The files stay unchanged while a handle lives, even after a newer snapshot was built.
/// [`reader`](RaftSnapshot::reader) returns its parts, to be sent to another node, and
/// [`RaftStore::receive_snapshot`](crate::RaftStore::receive_snapshot) receives them there.
#[derive(Clone)]
pub struct RaftSnapshot {
    pub(crate) engine: Engine,
    pub(crate) held: Arc<HeldDirectory>,
    files: Arc<[SnapshotFile]>,
    /// Whether it was received, so that its directory is for this store to adopt.
    pub(crate) is_received: bool,
}

/// A part of a snapshot on its way to another node: up to 128 KiB. Parts arrive in the order in which they were read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum SnapshotPart {
    /// Bytes of a file, from front to back; an empty file has one empty part.
    Bytes {
        /// The file's path within the snapshot.
        name: String,
        /// Their offset in the file, in bytes.
        offset: u64,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// The last part: all files, to be compared.
    End {
        /// All files, in the order of their names.
        files: Vec<SnapshotFile>,
    },
}

impl RaftSnapshot {
    /// Returns the snapshot whose files are in a directory.
    pub(crate) async fn of(
        engine: &Engine,
        held: Arc<HeldDirectory>,
        is_received: bool,
    ) -> Result<RaftSnapshot> {
        let (files, _) = tree::walk(engine, &held.path).await?;
        Ok(RaftSnapshot { engine: engine.clone(), held, files: files.into(), is_received })
    }

    /// Returns the snapshot's files, in the order of their names.
    pub fn files(&self) -> &[SnapshotFile] {
        &self.files
    }

    /// Returns the length of all files together, in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Returns the directory with the files. Change nothing in it.
    pub fn path(&self) -> &Path {
        &self.held.path
    }

    /// Returns a reader of the snapshot's parts. It holds up to four parts in memory.
    pub fn reader(&self) -> SnapshotReader {
        SnapshotReader {
            snapshot: self.clone(),
            next: Place::default(),
            planned: Place::default(),
            open: None,
            ahead: VecDeque::new(),
            is_over: false,
        }
    }
}

impl fmt::Debug for RaftSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaftSnapshot").field("path", &self.held.path).field("bytes", &self.bytes()).finish()
    }
}

/// Reads the parts of a snapshot, some of them ahead; see [`RaftSnapshot::reader`].
pub struct SnapshotReader {
    snapshot: RaftSnapshot,
    /// The part that is passed on next.
    next: Place,
    /// The part that is read next.
    planned: Place,
    /// The file of the part that is read next, unless that is its first.
    open: Option<Shared<Pending<File>>>,
    /// The parts between the two, in their order.
    ahead: VecDeque<MaybeDone<BoxFuture<'static, Result<SnapshotPart>>>>,
    is_over: bool,
}

/// The start of a part.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// The file, by its place in the list.
    file: usize,
    offset: u64,
}

impl SnapshotReader {
    /// Reads the next part; `None` after the last one. The reads of some parts behind it start with the call, and continue after
    /// it.
    ///
    /// # Errors
    /// The system's. The call may be repeated.
    pub async fn next(&mut self) -> Result<Option<SnapshotPart>> {
        if self.is_over {
            return Ok(None);
        }
        while self.ahead.len() < PARTS_AHEAD
            && let Some(part) = self.plan()
        {
            self.ahead.push_back(maybe_done(part));
        }
        let part = poll_fn(|context| {
            for part in &mut self.ahead {
                // Polls also the later parts, which starts their reads.
                let _ = part.poll_unpin(context);
            }
            match self.ahead.front_mut() {
                None => Poll::Ready(None),
                Some(first) => {
                    Pin::new(first).take_output().map_or(Poll::Pending, |part| Poll::Ready(Some(part)))
                }
            }
        })
        .await;
        let Some(part) = part else {
            self.is_over = true;
            return Ok(Some(SnapshotPart::End { files: self.snapshot.files.to_vec() }));
        };
        self.ahead.pop_front();
        match part {
            Ok(part) => {
                self.next = self.behind(self.next);
                Ok(Some(part))
            }
            Err(error) => {
                self.ahead.clear();
                (self.planned, self.open) = (self.next, None);
                Err(error)
            }
        }
    }

    /// Returns the read of the part that is planned next, which starts when it is polled; `None` behind the last one.
    fn plan(&mut self) -> Option<BoxFuture<'static, Result<SnapshotPart>>> {
        let file = self.snapshot.files.get(self.planned.file)?;
        let (offset, end) = (self.planned.offset, file.bytes.min(self.planned.offset + PART_BYTES));
        let open = (end > offset).then(|| {
            let path = self.snapshot.held.path.join(&file.name);
            self.open.get_or_insert_with(|| self.snapshot.engine.open(path, Open::read()).shared()).clone()
        });
        let part = read(open, file.name.clone(), offset..end).boxed();
        self.planned = self.behind(self.planned);
        if self.planned.offset == 0 {
            self.open = None;
        }
        Some(part)
    }

    /// Returns the place behind a part.
    fn behind(&self, Place { file, offset }: Place) -> Place {
        let bytes = self.snapshot.files.get(file).map_or(0, |file| file.bytes);
        let end = bytes.min(offset + PART_BYTES);
        if end == bytes { Place { file: file + 1, offset: 0 } } else { Place { file, offset: end } }
    }
}

forebay::_debug_parts!(
    SnapshotReader, |snapshot_reader|
    snapshot: snapshot_reader.snapshot,
    next: snapshot_reader.next
);

/// Reads a part of a file; an empty part has no file.
async fn read(open: Option<Shared<Pending<File>>>, name: String, range: Range<u64>) -> Result<SnapshotPart> {
    let offset = range.start;
    let bytes = match open {
        Some(open) => {
            let file = open.await?;
            file.read(range).await?.to_vec()
        }
        None => Vec::new(),
    };
    Ok(SnapshotPart::Bytes { name, offset, bytes })
}

/// Receives the parts of a snapshot that another node sends; see
/// [`RaftStore::receive_snapshot`](crate::RaftStore::receive_snapshot).
///
/// A receiver dropped before [`finish`](SnapshotReceiver::finish) has no effect; its files are removed with the next snapshot or
/// the next open.
#[derive(Debug)]
pub struct SnapshotReceiver {
    engine: Engine,
    held: Arc<HeldDirectory>,
    files: Vec<SnapshotFile>,
    /// Directories that were made, within the snapshot.
    dirs: BTreeSet<PathBuf>,
    open: Option<Append>,
    is_whole: bool,
}

impl SnapshotReceiver {
    /// Makes the directory.
    pub(crate) async fn new(engine: &Engine, held: Arc<HeldDirectory>) -> Result<SnapshotReceiver> {
        engine.create_dir(&held.path).await?;
        let dirs = BTreeSet::from([PathBuf::new()]);
        let engine = engine.clone();
        Ok(SnapshotReceiver { engine, held, files: Vec::new(), dirs, open: None, is_whole: false })
    }

    fn bad(&self, text: String) -> Error {
        let text = format!("the snapshot is not what was sent: {text}; have it sent again");
        Error::at(ErrorKind::BadSnapshot, &self.held.path, text)
    }

    /// Checks that a snapshot of this length fits on the disk.
    ///
    /// # Errors
    /// The system's: with too little space that of [`NoSpace`](forebay::ErrorKind::NoSpace).
    pub async fn check_space(&mut self, bytes: u64) -> Result<()> {
        let path = self.held.path.join("space");
        let file = self.engine.open(&path, Open::create_new()).await?;
        let allocated = file.allocate(0..bytes).await;
        file.close().await?;
        self.engine.remove_file(&path).await?;
        match allocated {
            // It is found as the parts are written.
            Err(error) if error.kind() == forebay::ErrorKind::Unsupported => Ok(()),
            allocated => Ok(allocated?),
        }
    }

    /// Receives the next part. The bytes of a file are written in the background; after its last part they are durable.
    ///
    /// # Errors
    /// [`ErrorKind::BadSnapshot`] for a part out of its order, or of a file outside of the snapshot, and if files are missing at
    /// the end; the system's. The receiver cannot be used after an error.
    pub async fn write(&mut self, part: &SnapshotPart) -> Result<()> {
        match part {
            _ if self.is_whole => Err(self.bad("there is a part after the last one".to_owned())),
            SnapshotPart::Bytes { name, offset, bytes } => self.write_bytes(name, *offset, bytes).await,
            SnapshotPart::End { files } => self.end(files).await,
        }
    }

    async fn write_bytes(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        let expected = match self.files.last() {
            Some(last) if last.name == name => last.bytes,
            _ => {
                self.close().await?;
                self.create(name).await?;
                0
            }
        };
        if offset != expected {
            return Err(self.bad(format!("{name} continues at byte {offset} instead of byte {expected}")));
        }
        if let (Some(open), Some(last)) = (&mut self.open, self.files.last_mut()) {
            open.write(bytes).await?;
            last.bytes += bytes.len() as u64;
        }
        Ok(())
    }

    /// Makes a file, and the directory that it is in.
    async fn create(&mut self, name: &str) -> Result<()> {
        let path = Path::new(name);
        let is_inside = path.components().all(|part| matches!(part, Component::Normal(_)));
        if !is_inside || name.is_empty() || self.files.iter().any(|file| file.name == name) {
            return Err(self.bad(format!("it has a file {name:?}, which is outside of it or comes twice")));
        }
        let mut missing: Vec<&Path> =
            path.ancestors().skip(1).filter(|dir| !self.dirs.contains(*dir)).collect();
        while let Some(dir) = missing.pop() {
            self.engine.create_dir(self.held.path.join(dir)).await?;
            self.dirs.insert(dir.to_owned());
        }
        let file = self.engine.open(self.held.path.join(path), Open::create_new()).await?;
        self.open = Some(file.append().request_bytes(WRITE_BYTES).depth(2).start());
        self.files.push(SnapshotFile { name: name.to_owned(), bytes: 0 });
        Ok(())
    }

    /// Makes the open file durable.
    async fn close(&mut self) -> Result<()> {
        if let Some(mut open) = self.open.take() {
            open.sync(Durability::All).await?;
            open.close().await?;
        }
        Ok(())
    }

    async fn end(&mut self, files: &[SnapshotFile]) -> Result<()> {
        self.close().await?;
        self.files.sort_by(|one, other| one.name.cmp(&other.name));
        if self.files != files {
            return Err(self.bad(format!(
                "it has {} files and should have {}, or some have other lengths",
                self.files.len(),
                files.len()
            )));
        }
        for dir in &self.dirs {
            self.engine.sync_dir(self.held.path.join(dir)).await?;
        }
        self.is_whole = true;
        Ok(())
    }

    /// Reads the received snapshot, checks every checksum, and returns it for `Raft::install_full_snapshot`. Return an
    /// error of this call to the sender: openraft ends the node for one of the install.
    ///
    /// # Errors
    /// [`ErrorKind::BadSnapshot`] if the last part is missing, or something is damaged; the system's.
    pub async fn finish(self) -> Result<RaftSnapshot> {
        if !self.is_whole {
            return Err(self.bad("its last part is missing".to_owned()));
        }
        let verified = forebay_kv::verify(&self.engine, &self.held.path).await?;
        if let Some(finding) = verified.findings.first() {
            return Err(self.bad(finding.to_string()));
        }
        let (engine, held, files) = (self.engine, self.held, self.files.into());
        Ok(RaftSnapshot { engine, held, files, is_received: true })
    }
}
