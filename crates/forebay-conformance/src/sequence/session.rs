//! A program that follows steps, with the right result of each.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use forebay::{Block, BlockMut, Engine, Error, File, Result};

use super::directory::Name;
use super::node::{Node, Wrong};
use super::sector::Patch;
use super::step::{HANDLES, NAMES, Op, Place, Step, pattern_bytes};
use super::text::letter;
use super::{Mismatch, Report};

/// The most blocks whose bytes are checked again after every step.
const KEPT_MAX: usize = 8;

/// The files of one directory, their expected content, and the open handles of a sequence. A session lives through power cuts:
/// report one with [`power_cut`](Session::power_cut), then [`verify`](Session::verify) on the engine of the next life.
///
/// [`run`](super::run) does all of this for a sequence without cuts and faults.
#[derive(Debug)]
pub struct Session {
    pub(super) dir: PathBuf,
    pub(super) faults: bool,
    pub(super) nodes: Vec<Node>,
    pub(super) names: [Name; NAMES as usize],
    pub(super) handles: [Option<Handle>; HANDLES as usize],
    pub(super) kept: VecDeque<KeptMemory>,
    next_owner: u64,
    pub(super) report: Report,
    pub(super) step: Option<usize>,
    pub(super) what: String,
    /// The step that runs now; a power cut may stop it.
    pub(super) under_way: Option<Step>,
    /// Whether nothing was done since the machine was switched on.
    pub(super) fresh: bool,
}

/// An open file.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) file: File,
    pub(super) node: usize,
    /// The owner of the writes that were dropped on it.
    pub(super) owner: u64,
    pub(super) cached: bool,
    pub(super) writable: bool,
}

/// Memory of the program's, with its expected content.
#[derive(Debug)]
pub(super) struct KeptMemory {
    memory: Memory,
    bytes: Vec<u8>,
    since: String,
}

#[derive(Debug)]
enum Memory {
    Shared(Block),
    Own(BlockMut),
}

pub(super) type CheckResult<T = ()> = std::result::Result<T, Mismatch>;

impl Session {
    /// Returns a session with the names `a`, `b`, ... in `dir`, which exists and is empty.
    pub fn new(dir: impl AsRef<Path>) -> Session {
        Session {
            dir: dir.as_ref().to_path_buf(),
            faults: false,
            nodes: Vec::new(),
            names: Default::default(),
            handles: Default::default(),
            kept: VecDeque::new(),
            next_owner: 0,
            report: Report::default(),
            step: None,
            what: String::new(),
            under_way: None,
            fresh: false,
        }
    }

    /// Sets whether operations may fail with errors of the operating system (`ErrorKind::is_system`).
    /// Default: no.
    pub fn faults(&mut self, may_come: bool) {
        self.faults = may_come;
    }

    /// Returns the counts so far.
    pub fn report(&self) -> Report {
        self.report
    }

    /// Follows the steps; their numbers start at `first`.
    ///
    /// # Errors
    /// The first result that must not occur.
    pub async fn run(&mut self, engine: &Engine, steps: &[Step], first: usize) -> CheckResult {
        for (at, step) in steps.iter().enumerate() {
            self.step = Some(first + at);
            self.what = step.to_string();
            self.under_way = Some(step.clone());
            self.fresh = false;
            let done = self.follow(engine, step).await?;
            self.under_way = None;
            self.report.steps += u64::from(done);
            self.report.skipped += u64::from(!done);
            self.check_kept()?;
        }
        self.step = None;
        Ok(())
    }

    /// Closes all handles, and checks all files and names. Files that a failing device hides are skipped.
    ///
    /// # Errors
    /// The first file or name that is wrong.
    pub async fn verify(&mut self, engine: &Engine) -> CheckResult {
        self.step = None;
        self.what = "looking at everything".to_owned();
        self.close_all().await?;
        self.list(engine).await?;
        for name in 0..NAMES {
            self.what = format!("looking at {}", letter(name));
            self.look_at(engine, name).await?;
        }
        self.check_kept()
    }

    /// Carries out a step. Returns false when it had nothing to work on.
    async fn follow(&mut self, engine: &Engine, step: &Step) -> CheckResult<bool> {
        match step {
            Step::Open { handle, name, access, mode } => {
                self.open(engine, *handle, *name, *access, *mode).await
            }
            Step::Close { handle } => self.close(*handle).await,
            Step::Do { op, place } => self.group(engine, std::slice::from_ref(op), *place).await,
            Step::Drop { op, place, polls } => self.drop_early(engine, op, *place, *polls).await,
            Step::Join { ops } => self.group(engine, ops, Place::Here).await,
            Step::Scan { handle, range, buffer, depth } => self.scan(*handle, range, *buffer, *depth).await,
            Step::Append { handle, offset, sizes, pattern, durability } => {
                self.append(*handle, *offset, sizes, *pattern, *durability).await
            }
            Step::Truncate { handle, len } => self.truncate(*handle, *len).await,
            Step::Allocate { handle, range } => self.allocate(*handle, range.clone()).await,
            Step::PunchHole { handle, range } => self.punch_hole(*handle, range.clone()).await,
            Step::CopyRange { from, range, to, offset } => {
                self.copy_range(*from, range.clone(), *to, *offset).await
            }
            Step::Abandon { call, polls } => self.abandon(call, *polls).await,
            Step::Rename { from, to } => self.rename(engine, *from, *to, true).await,
            Step::HardLink { from, to } => self.hard_link(engine, *from, *to, true).await,
            Step::RenameUnsynced { from, to } => self.rename(engine, *from, *to, false).await,
            Step::HardLinkUnsynced { from, to } => self.hard_link(engine, *from, *to, false).await,
            Step::Remove { name } => self.remove(engine, *name).await,
            Step::SyncDir => self.sync_dir(engine).await,
            Step::Metadata { handle } => self.metadata(*handle).await,
            Step::List => self.list(engine).await,
            Step::Keep { len, pattern } => {
                let bytes = pattern_bytes(*pattern, 0, *len as usize);
                match engine.block_from(&bytes) {
                    Ok(block) => self.keep_own(block),
                    Err(error) => return Err(self.unexpected("a block", &error)),
                }
                Ok(true)
            }
        }
    }

    pub(super) fn handle(&self, handle: u8) -> Option<&Handle> {
        self.handles.get(usize::from(handle))?.as_ref()
    }

    pub(super) fn new_owner(&mut self) -> u64 {
        self.next_owner += 1;
        self.next_owner
    }

    /// Closes a handle and waits until its operations have ended.
    pub(super) async fn close(&mut self, handle: u8) -> CheckResult<bool> {
        let Some(open) = self.handles.get_mut(usize::from(handle)).and_then(Option::take) else {
            return Ok(false);
        };
        match open.file.close().await {
            Ok(()) => self.nodes[open.node].over(open.owner),
            Err(error) => return Err(self.unexpected("a closed file", &error)),
        }
        Ok(true)
    }

    async fn close_all(&mut self) -> CheckResult {
        for handle in 0..HANDLES {
            self.close(handle).await?;
        }
        Ok(())
    }

    /// Closes the handles that own these writes, so that the writes have ended.
    pub(super) async fn close_owners(&mut self, owners: &[u64]) -> CheckResult {
        for handle in 0..HANDLES {
            if self.handle(handle).is_some_and(|open| owners.contains(&open.owner)) {
                self.close(handle).await?;
            }
        }
        Ok(())
    }

    /// Returns whether a faulty device explains this failure, and counts it if so.
    pub(super) fn is_fault(&mut self, error: &Error) -> bool {
        let fault = self.faults && error.kind().is_system();
        self.report.faults += u64::from(fault);
        fault
    }

    /// Judges the result of a call. A call on a handle that may not write, or with a length of 0, is
    /// `refused`: it must fail with an error of the system.
    pub(super) fn judge<T>(
        &mut self,
        result: Result<T>,
        refused: bool,
        expected: &str,
    ) -> CheckResult<Option<T>> {
        match result {
            Ok(_) if refused => Err(self.mismatch("an error", "success".to_owned())),
            Ok(value) => Ok(Some(value)),
            Err(error) if refused && error.kind().is_system() => Ok(None),
            Err(error) if self.is_fault(&error) => Ok(None),
            Err(error) => Err(self.unexpected(expected, &error)),
        }
    }

    pub(super) fn mismatch(&self, expected: impl Into<String>, came: String) -> Mismatch {
        Mismatch { step: self.step, what: self.what.clone(), expected: expected.into(), came, offset: None }
    }

    pub(super) fn unexpected(&self, expected: &str, error: &Error) -> Mismatch {
        self.mismatch(expected, format!("the error {error}"))
    }

    pub(super) fn wrong(&self, wrong: Wrong) -> Mismatch {
        Mismatch { offset: Some(wrong.offset), ..self.mismatch(wrong.expected, wrong.came) }
    }

    /// Compares the bytes read from `offset` on with the model.
    pub(super) fn check_bytes(&mut self, node: usize, offset: u64, bytes: &[u8]) -> CheckResult {
        self.report.bytes_checked += bytes.len() as u64;
        self.nodes[node].check(offset, bytes).map_err(|wrong| self.wrong(wrong))
    }

    pub(super) fn keep(&mut self, block: Block) {
        if !block.is_empty() {
            let bytes = block.to_vec();
            self.keep_memory(Memory::Shared(block), bytes);
        }
    }

    pub(super) fn keep_own(&mut self, block: BlockMut) {
        if !block.is_empty() {
            let bytes = block.to_vec();
            self.keep_memory(Memory::Own(block), bytes);
        }
    }

    fn keep_memory(&mut self, memory: Memory, bytes: Vec<u8>) {
        let since = match self.step {
            Some(step) => format!("{} of step {step}", self.what),
            None => self.what.clone(),
        };
        self.kept.push_back(KeptMemory { memory, bytes, since });
        if self.kept.len() > KEPT_MAX {
            self.kept.pop_front();
        }
    }

    /// Checks that memory which the program holds has not been written to.
    pub(super) fn check_kept(&self) -> CheckResult {
        for kept in &self.kept {
            let now: &[u8] = match &kept.memory {
                Memory::Shared(block) => block,
                Memory::Own(block) => block,
            };
            if now != kept.bytes {
                let at = now.iter().zip(&kept.bytes).position(|(one, other)| one != other).unwrap_or(0);
                let expected = format!("the memory of \"{}\" unchanged", kept.since);
                return Err(self.mismatch(expected, format!("other bytes from its byte {at} on")));
            }
        }
        Ok(())
    }

    /// Returns the bytes that a write puts into the file.
    pub(super) fn patch_of(op: &Op) -> Option<Patch> {
        match op {
            Op::Write { offset, len, pattern, .. } => {
                Some(Patch::bytes(*offset, pattern_bytes(*pattern, *offset, *len as usize)))
            }
            _ => None,
        }
    }
}
