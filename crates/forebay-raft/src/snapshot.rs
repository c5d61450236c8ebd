//! [`RaftSnapshot`]: a snapshot as a directory of files, its parts on the way to another node, and their arrival.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use forebay::{Append, Durability, Engine, File, Open};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::tree::{self, SnapshotFile};

/// Bytes of a part.
const PART_BYTES: u64 = 128 << 10;
/// Bytes of one write of a received file.
const WRITE_BYTES: usize = 128 << 10;

/// A directory that is not removed while this lives.
#[derive(Debug)]
pub(crate) struct HeldDirectory {
    pub(crate) path: PathBuf,
}

/// A snapshot of a [`RaftStore`](crate::RaftStore): the files of a checkpoint. openraft's `SnapshotData`.
///
/// It is a handle that is cheap to clone. The files stay as they are while one lives, also after a newer snapshot was built.
/// [`reader`](RaftSnapshot::reader) gives its parts, to be sent to another node, and
/// [`RaftStore::receive_snapshot`](crate::RaftStore::receive_snapshot) takes them there.
#[derive(Clone)]
pub struct RaftSnapshot {
    pub(crate) engine: Engine,
    pub(crate) held: Arc<HeldDirectory>,
    files: Arc<[SnapshotFile]>,
    /// Whether it was received, so that its directory is for this store to take.
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
        /// Where in the file they begin, in bytes.
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

    /// Returns a reader of the snapshot's parts. It holds one part in memory.
    pub fn reader(&self) -> SnapshotReader {
        SnapshotReader { snapshot: self.clone(), at: 0, offset: 0, open: None, is_over: false }
    }
}

impl fmt::Debug for RaftSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaftSnapshot").field("path", &self.held.path).field("bytes", &self.bytes()).finish()
    }
}

/// Reads the parts of a snapshot, one after the other; see [`RaftSnapshot::reader`].
#[derive(Debug)]
pub struct SnapshotReader {
    snapshot: RaftSnapshot,
    /// The file that is read, by its place in the list.
    at: usize,
    offset: u64,
    open: Option<File>,
    is_over: bool,
}

impl SnapshotReader {
    /// Reads the next part; `None` after the last one.
    ///
    /// # Errors
    /// The system's. The call may be repeated.
    pub async fn next(&mut self) -> Result<Option<SnapshotPart>> {
        if self.is_over {
            return Ok(None);
        }
        let Some(file) = self.snapshot.files.get(self.at) else {
            self.is_over = true;
            return Ok(Some(SnapshotPart::End { files: self.snapshot.files.to_vec() }));
        };
        let end = file.bytes.min(self.offset + PART_BYTES);
        let bytes = if end > self.offset {
            let open = match &self.open {
                Some(open) => open.clone(),
                None => {
                    let path = self.snapshot.held.path.join(&file.name);
                    self.open.insert(self.snapshot.engine.open(path, Open::read()).await?).clone()
                }
            };
            open.read(self.offset..end).await?.to_vec()
        } else {
            Vec::new()
        };
        let part = SnapshotPart::Bytes { name: file.name.clone(), offset: self.offset, bytes };
        self.offset = end;
        if end == file.bytes {
            (self.at, self.offset, self.open) = (self.at + 1, 0, None);
        }
        Ok(Some(part))
    }
}

/// Takes the parts of a snapshot that another node sends; see
/// [`RaftStore::receive_snapshot`](crate::RaftStore::receive_snapshot).
///
/// Dropped before [`finish`](SnapshotReceiver::finish) it has received nothing, and its files are removed with the next
/// snapshot or the next open.
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

    /// Takes the next part. The bytes of a file are written in the background; after its last part they are durable.
    ///
    /// # Errors
    /// [`ErrorKind::BadSnapshot`] for a part out of its order, or of a file outside of the snapshot, and if files are missing at
    /// the end; the system's. The receiver is of no use after an error.
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
            return Err(self.bad(format!("{name} goes on at byte {offset} and not at byte {expected}")));
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
    /// [`ErrorKind::BadSnapshot`] if the last part was not there, or something is damaged; the system's.
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
