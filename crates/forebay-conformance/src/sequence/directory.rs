//! Opening files, and the names that exist.

use std::path::PathBuf;

use forebay::{Engine, Error, ErrorKind, File, Metadata, Mode, Open, Result};

use super::node::Node;
use super::session::{CheckResult, Handle, Session};
use super::step::{Access, NAMES};
use super::text::letter;

/// The possible targets of a name: numbers of files, or nothing.
#[derive(Clone, Debug)]
pub(super) struct Name {
    live: Vec<Option<usize>>,
    /// The targets that are possible after a power cut.
    durable: Vec<Option<usize>>,
}

impl Default for Name {
    fn default() -> Name {
        Name { live: vec![None], durable: vec![None] }
    }
}

impl Name {
    /// Returns the target, if it is certain.
    fn known(&self) -> Option<Option<usize>> {
        match self.live[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Returns the files that may be the target.
    pub(super) fn nodes(&self) -> impl Iterator<Item = usize> {
        self.live.iter().copied().flatten()
    }

    fn set(&mut self, to: Option<usize>) {
        self.live = vec![to];
        add(&mut self.durable, to);
    }

    pub(super) fn perhaps(&mut self, to: Option<usize>) {
        add(&mut self.live, to);
        add(&mut self.durable, to);
    }

    pub(super) fn sync(&mut self) {
        self.durable.clone_from(&self.live);
    }

    pub(super) fn power_cut(&mut self) {
        self.live.clone_from(&self.durable);
    }
}

fn add(known: &mut Vec<Option<usize>>, one: Option<usize>) {
    if !known.contains(&one) {
        known.push(one);
    }
}

impl Session {
    fn path(&self, name: u8) -> PathBuf {
        self.dir.join(letter(name).to_string())
    }

    /// Returns the target of a name. A fault or a power cut may have left it open; then it is looked up.
    /// `None` when a fault hides it.
    async fn settle(&mut self, engine: &Engine, name: u8) -> CheckResult<Option<Option<usize>>> {
        if let Some(known) = self.names[usize::from(name)].known() {
            return Ok(Some(known));
        }
        let live = self.names[usize::from(name)].live.clone();
        let found = match engine.metadata(self.path(name)).await {
            Ok(found) => Some(found.inode()),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => None,
            Err(error) => return self.fault_or("a file or none", &error).map(|()| None),
        };
        let is = |node: &Option<usize>| match (node, found) {
            (None, None) => true,
            (Some(node), Some(inode)) => self.nodes[*node].inode.is_none_or(|known| known == inode),
            _ => false,
        };
        let mut possible: Vec<Option<usize>> = live.iter().copied().filter(is).collect();
        // A number that was seen is stronger evidence than one that was not.
        possible.sort_by_key(|node| node.is_some_and(|node| self.nodes[node].inode.is_none()));
        let Some(&settled) = possible.first() else {
            let expected = format!("{} to be one of {live:?}", letter(name));
            return Err(self.mismatch(expected, format!("inode {found:?}")));
        };
        if let Some(node) = settled {
            self.nodes[node].inode = found;
            if possible.len() > 1 {
                self.nodes[node].forget(0..1 << 18);
                self.nodes[node].may_grow(1 << 18);
                self.nodes[node].may_truncate(0);
            }
        }
        self.names[usize::from(name)].live = vec![settled];
        Ok(Some(settled))
    }

    fn new_node(&mut self) -> usize {
        self.nodes.push(Node::new());
        self.nodes.len() - 1
    }

    /// Opens a name at a handle.
    pub(super) async fn open(
        &mut self,
        engine: &Engine,
        handle: u8,
        name: u8,
        access: Access,
        mode: Mode,
    ) -> CheckResult<bool> {
        self.close(handle).await?;
        let Some(there) = self.settle(engine, name).await? else { return Ok(false) };
        let errno = match (access, there) {
            (Access::Read | Access::Write, None) => Some(libc::ENOENT),
            (Access::CreateNew, Some(_)) => Some(libc::EEXIST),
            _ => None,
        };
        let (file, cached) = match (open_as(engine, self.path(name), access, mode).await, errno) {
            (Ok(opened), None) => opened,
            (Ok(_), Some(errno)) => return Err(self.mismatch(format!("errno {errno}"), "a file".to_owned())),
            (Err(error), Some(errno)) if error.raw_os_error() == Some(errno) => return Ok(true),
            (Err(error), _) => {
                self.fault_or("a file", &error)?;
                match there {
                    Some(node) if access == Access::Truncate => self.nodes[node].may_truncate(0),
                    None if matches!(access, Access::Create | Access::CreateNew | Access::Truncate) => {
                        let node = self.new_node();
                        self.names[usize::from(name)].perhaps(Some(node));
                    }
                    _ => {}
                }
                return Ok(true);
            }
        };
        let node = match there {
            Some(node) => node,
            None => {
                let node = self.new_node();
                self.names[usize::from(name)].set(Some(node));
                node
            }
        };
        if access == Access::Truncate {
            self.nodes[node].truncate(0);
        }
        let owner = self.new_owner();
        let writable = access != Access::Read;
        self.handles[usize::from(handle)] = Some(Handle { file, node, owner, cached, writable });
        self.metadata(handle).await
    }

    /// Checks the metadata of an open file.
    pub(super) async fn metadata(&mut self, handle: u8) -> CheckResult<bool> {
        let Some(open) = self.handle(handle) else { return Ok(false) };
        let node = open.node;
        match open.file.metadata().await {
            Ok(found) => self.check_metadata(node, &found).map(|()| true),
            Err(error) => self.fault_or("metadata", &error).map(|()| true),
        }
    }

    fn check_metadata(&mut self, node: usize, found: &Metadata) -> CheckResult {
        self.nodes[node].check_len(found.len()).map_err(|wrong| self.wrong(wrong))?;
        let inode = *self.nodes[node].inode.get_or_insert(found.inode());
        if inode != found.inode() {
            return Err(self.mismatch(format!("inode {inode}"), format!("inode {}", found.inode())));
        }
        let names = self.names.iter().filter(|name| name.live.contains(&Some(node))).count() as u64;
        if self.names.iter().all(|name| name.known().is_some()) && found.links() != names {
            return Err(self.mismatch(format!("{names} names"), format!("{} names", found.links())));
        }
        Ok(())
    }

    /// Lists the directory.
    pub(super) async fn list(&mut self, engine: &Engine) -> CheckResult<bool> {
        let entries = match engine.read_dir(&self.dir).await {
            Ok(entries) => entries,
            Err(error) => return self.fault_or("a listing", &error).map(|()| true),
        };
        let found: Vec<String> =
            entries.iter().map(|entry| entry.name().to_string_lossy().into_owned()).collect();
        for name in 0..NAMES {
            let there = found.contains(&letter(name).to_string());
            let live = &self.names[usize::from(name)].live;
            if !live.iter().any(|node| node.is_some() == there) {
                let [expected, came] = if there { ["no", "a"] } else { ["a", "no"] };
                let name = letter(name);
                return Err(self.mismatch(format!("{expected} name {name}"), format!("{came} name {name}")));
            }
        }
        match found.iter().find(|name| !(0..NAMES).any(|known| letter(known).to_string() == **name)) {
            Some(stranger) => Err(self.mismatch("the files of the sequence", stranger.clone())),
            None => Ok(true),
        }
    }

    pub(super) async fn rename(
        &mut self,
        engine: &Engine,
        from: u8,
        to: u8,
        syncs: bool,
    ) -> CheckResult<bool> {
        let (Some(source), Some(target)) = (self.settle(engine, from).await?, self.settle(engine, to).await?)
        else {
            return Ok(false);
        };
        let (old, new) = (self.path(from), self.path(to));
        let renamed = if syncs { engine.rename(old, new) } else { engine.rename_unsynced(old, new) };
        let result = renamed.await;
        if self.judge_name(result, source.is_none().then_some(libc::ENOENT))? {
            // rename(2): two names of the same file stay as they are.
            if source != target {
                self.names[usize::from(from)].set(None);
                self.names[usize::from(to)].set(source);
            }
            if syncs {
                self.names.iter_mut().for_each(Name::sync);
            }
        } else if source.is_some() && source != target {
            self.names[usize::from(from)].perhaps(None);
            self.names[usize::from(to)].perhaps(source);
        }
        Ok(true)
    }

    pub(super) async fn hard_link(
        &mut self,
        engine: &Engine,
        from: u8,
        to: u8,
        syncs: bool,
    ) -> CheckResult<bool> {
        let (Some(source), Some(target)) = (self.settle(engine, from).await?, self.settle(engine, to).await?)
        else {
            return Ok(false);
        };
        let errno = match (source, target) {
            (None, _) => Some(libc::ENOENT),
            (_, Some(_)) => Some(libc::EEXIST),
            _ => None,
        };
        let (old, new) = (self.path(from), self.path(to));
        let linked = if syncs { engine.hard_link(old, new) } else { engine.hard_link_unsynced(old, new) };
        let result = linked.await;
        if self.judge_name(result, errno)? {
            self.names[usize::from(to)].set(source);
            if syncs {
                self.names.iter_mut().for_each(Name::sync);
            }
        } else if errno.is_none() {
            self.names[usize::from(to)].perhaps(source);
        }
        Ok(true)
    }

    pub(super) async fn remove(&mut self, engine: &Engine, name: u8) -> CheckResult<bool> {
        let Some(there) = self.settle(engine, name).await? else { return Ok(false) };
        let result = engine.remove_file(self.path(name)).await;
        if self.judge_name(result, there.is_none().then_some(libc::ENOENT))? {
            self.names[usize::from(name)].set(None);
        } else if there.is_some() {
            self.names[usize::from(name)].perhaps(None);
        }
        Ok(true)
    }

    pub(super) async fn sync_dir(&mut self, engine: &Engine) -> CheckResult<bool> {
        if self.judge_name(engine.sync_dir(&self.dir).await, None)? {
            self.names.iter_mut().for_each(Name::sync);
        }
        Ok(true)
    }

    /// Returns whether a call on names succeeded. After a fault its sync may be the part that failed.
    fn judge_name(&mut self, result: Result<()>, errno: Option<i32>) -> CheckResult<bool> {
        match (result, errno) {
            (Ok(()), None) => Ok(true),
            (Ok(()), Some(errno)) => Err(self.mismatch(format!("errno {errno}"), "success".to_owned())),
            (Err(error), Some(errno)) if error.raw_os_error() == Some(errno) => Ok(false),
            (Err(error), _) => {
                self.fault_or("success", &error)?;
                self.doubt();
                Ok(false)
            }
        }
    }

    /// Reads and checks all of the file that has this name.
    pub(super) async fn look_at(&mut self, engine: &Engine, name: u8) -> CheckResult {
        let Some(there) = self.settle(engine, name).await? else { return Ok(()) };
        if self.fresh {
            self.names[usize::from(name)].sync();
        }
        let Some(node) = there else { return Ok(()) };
        let mode = if name.is_multiple_of(2) { Mode::Direct } else { Mode::Buffered };
        let range = 0..self.nodes[node].len().max + 4096;
        // A fault that strikes once does not hide the content.
        for _ in 0..3 {
            let looked = look(engine, self.path(name), mode, range.end).await;
            match looked {
                Ok((found, bytes)) => {
                    self.check_found(node, &range, &bytes)?;
                    self.check_metadata(node, &found)?;
                    if self.fresh {
                        self.nodes[node].rest();
                    }
                    return Ok(());
                }
                Err(error) => self.fault_or("the file's bytes", &error)?,
            }
        }
        Ok(())
    }
}

async fn look(engine: &Engine, path: PathBuf, mode: Mode, end: u64) -> Result<(Metadata, Vec<u8>)> {
    let (file, _) = open_as(engine, path, Access::Read, mode).await?;
    let block = file.read_up_to(0..end).await?;
    let found = file.metadata().await?;
    let bytes = block.to_vec();
    file.close().await?;
    Ok((found, bytes))
}

/// Opens a file. Returns it, and whether it uses the page cache: some file systems support nothing else.
async fn open_as(engine: &Engine, path: PathBuf, access: Access, mode: Mode) -> Result<(File, bool), Error> {
    let open = match access {
        Access::Read => Open::read(),
        Access::Write => Open::write(),
        Access::Create => Open::create(),
        Access::CreateNew => Open::create_new(),
        Access::Truncate => Open::create().truncate(),
    };
    let cached = match mode {
        Mode::Direct => {
            match engine.open(&path, open.direct()).await {
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                other => return other.map(|file| (file, false)),
            }
            open.buffered()
        }
        Mode::Adaptive => {
            let file = engine.open(&path, open.adaptive()).await?;
            let cached = !file.alignment().direct;
            return Ok((file, cached));
        }
        Mode::Uncached => open.uncached(),
        _ => open.buffered(),
    };
    engine.open(&path, cached).await.map(|file| (file, true))
}
