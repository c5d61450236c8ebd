//! The files and directories of one disk, and the journal of their changes.
//!
//! Every change of a name or length is an [`Entry`] of the journal until it is settled. Settled changes are
//! in `durable_names` of the directories and in the durable half of a file's [`Content`].

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;

use forebay::Lock;

use super::content::{Content, Location};
use super::pages::PAGE;

/// The directory at the top of every disk.
pub(super) const ROOT: u64 = 2;

#[derive(Debug, Default)]
pub(super) struct Inode {
    pub(super) is_dir: bool,
    pub(super) content: Content,
    pub(super) names: BTreeMap<OsString, u64>,
    pub(super) durable_names: BTreeMap<OsString, u64>,
    /// The numbers of live names, durable names and journal entries that lead here, and of open handles.
    pub(super) links: u32,
    pub(super) durable_links: u32,
    pub(super) pending: u32,
    pub(super) handles: u32,
    pub(super) locks: Vec<(u32, Lock)>,
    pub(super) mode: u32,
    pub(super) created_ns: u64,
    pub(super) modified_ns: u64,
    /// Extended attributes. A sync of all of the file makes them durable, as POSIX has it.
    pub(super) attributes: BTreeMap<String, Vec<u8>>,
    pub(super) durable_attributes: BTreeMap<String, Vec<u8>>,
}

impl Inode {
    pub(super) fn new(is_dir: bool, mode: u32, now_ns: u64) -> Inode {
        Inode { is_dir, mode, created_ns: now_ns, modified_ns: now_ns, ..Inode::default() }
    }
}

/// The change of one name to another file or directory; `None` removes the name.
#[derive(Clone, Debug)]
pub(super) struct Edit {
    pub(super) dir: u64,
    pub(super) name: OsString,
    pub(super) to: Option<u64>,
}

/// One change that is not settled yet.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) seq: u64,
    pub(super) edits: Vec<Edit>,
    /// The file or directory that the change is about.
    pub(super) about: u64,
    /// Whether the change created `about`.
    pub(super) creates: bool,
}

impl Entry {
    fn is_length(&self) -> bool {
        self.edits.is_empty()
    }

    fn touches(&self, inode: u64) -> bool {
        self.about == inode || self.edits.iter().any(|edit| edit.dir == inode)
    }
}

#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) journal: VecDeque<Entry>,
    next_inode: u64,
    /// Bytes of blocks of all files that are linked or open.
    pub(super) used: u64,
}

/// The most entries of the journal. Beyond them the older half is written out, as a journal does when it
/// fills.
const JOURNAL_MAX: usize = 1024;

impl Tree {
    pub(super) fn new() -> Tree {
        let mut tree = Tree { next_inode: ROOT + 1, ..Tree::default() };
        let root = Inode { links: 1, durable_links: 1, ..Inode::new(true, 0o755, 0) };
        tree.inodes.insert(ROOT, root);
        tree
    }

    pub(super) fn get(&self, inode: u64) -> Option<&Inode> {
        self.inodes.get(&inode)
    }

    pub(super) fn get_mut(&mut self, inode: u64) -> Option<&mut Inode> {
        self.inodes.get_mut(&inode)
    }

    pub(super) fn add(&mut self, inode: Inode) -> u64 {
        let number = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(number, inode);
        number
    }

    /// Changes names immediately in the live tree, and later in the durable one.
    pub(super) fn edit(&mut self, seq: u64, about: u64, creates: bool, edits: Vec<Edit>, now_ns: u64) {
        let mut gone = Vec::new();
        for edit in &edits {
            if let Some(to) = edit.to.and_then(|to| self.inodes.get_mut(&to)) {
                to.links += 1;
                to.pending += 1;
            }
            let Some(dir) = self.inodes.get_mut(&edit.dir) else { continue };
            dir.modified_ns = now_ns;
            let old = match edit.to {
                Some(to) => dir.names.insert(edit.name.clone(), to),
                None => dir.names.remove(&edit.name),
            };
            if let Some(old) = old {
                if let Some(inode) = self.inodes.get_mut(&old) {
                    inode.links -= 1;
                }
                gone.push(old);
            }
        }
        self.journal.push_back(Entry { seq, edits, about, creates });
        gone.into_iter().for_each(|inode| self.collect(inode));
    }

    /// Adds a journal entry for a change of a file's length or holes. The change has the same `seq` in the
    /// file's log.
    pub(super) fn note_length(&mut self, seq: u64, inode: u64) {
        if let Some(inode) = self.inodes.get_mut(&inode) {
            inode.pending += 1;
        }
        self.journal.push_back(Entry { seq, edits: Vec::new(), about: inode, creates: false });
    }

    pub(super) fn open(&mut self, inode: u64) {
        if let Some(inode) = self.inodes.get_mut(&inode) {
            inode.handles += 1;
        }
    }

    pub(super) fn close(&mut self, inode: u64, handle: u32) {
        if let Some(found) = self.inodes.get_mut(&inode) {
            found.handles -= 1;
            found.locks.retain(|(holder, _)| *holder != handle);
            self.collect(inode);
        }
    }

    /// Frees the space of a file that has neither names nor handles. Forgets the file when not even a power
    /// cut can bring it back.
    fn collect(&mut self, number: u64) {
        let Some(inode) = self.inodes.get_mut(&number) else { return };
        if inode.links > 0 || inode.handles > 0 {
            return;
        }
        self.used -= inode.content.blocks.remove(0..u64::MAX) * PAGE;
        if inode.durable_links == 0 && inode.pending == 0 {
            self.inodes.remove(&number);
        }
    }

    /// Returns the last entry before `barrier` that touched a file or directory. With `data_only` it
    /// considers only the changes of a file that fdatasync(2) needs: its creation and its length.
    pub(super) fn last_touch(&self, inode: u64, barrier: u64, data_only: bool) -> Option<u64> {
        let touches = |entry: &&Entry| {
            entry.seq < barrier
                && if data_only {
                    entry.about == inode && (entry.creates || entry.is_length())
                } else {
                    entry.touches(inode)
                }
        };
        self.journal.iter().rev().find(touches).map(|entry| entry.seq)
    }

    /// Settles the journal up to and including `seq`.
    pub(super) fn commit(&mut self, seq: u64) {
        while self.journal.front().is_some_and(|entry| entry.seq <= seq) {
            let Some(entry) = self.journal.pop_front() else { return };
            self.settle_edits(&entry.edits);
            if entry.is_length() {
                self.settle_length(&entry);
            }
        }
    }

    /// Keeps the journal short, as a file system does in the background.
    pub(super) fn trim(&mut self) {
        if self.journal.len() > JOURNAL_MAX
            && let Some(middle) = self.journal.get(JOURNAL_MAX / 2).map(|entry| entry.seq)
        {
            self.commit(middle);
        }
    }

    /// Settles one directory's changes before `barrier`, and no others.
    pub(super) fn settle_dir(&mut self, dir: u64, barrier: u64) {
        self.settle_some(|entry, edit| entry.seq < barrier && edit.dir == dir);
    }

    /// Settles the edits that `chosen` accepts.
    pub(super) fn settle_some(&mut self, mut chosen: impl FnMut(&Entry, &Edit) -> bool) {
        let mut settled = Vec::new();
        let mut journal = std::mem::take(&mut self.journal);
        journal.retain_mut(|entry| {
            if entry.is_length() {
                return true;
            }
            let mut edits = std::mem::take(&mut entry.edits);
            let (mut taken, mut left) = (Vec::new(), Vec::new());
            for edit in edits.drain(..) {
                if chosen(entry, &edit) { taken.push(edit) } else { left.push(edit) }
            }
            settled.extend(taken);
            entry.edits = left;
            !entry.edits.is_empty()
        });
        self.journal = journal;
        self.settle_edits(&settled);
    }

    /// Settles a file's resizes and holes before `barrier`, and no others.
    pub(super) fn settle_lengths(&mut self, inode: u64, barrier: u64) {
        let mut settled = Vec::new();
        self.journal.retain(|entry| {
            let now = entry.is_length() && entry.about == inode && entry.seq < barrier;
            if now {
                settled.push(entry.clone());
            }
            !now
        });
        settled.iter().for_each(|entry| self.settle_length(entry));
    }

    fn settle_length(&mut self, entry: &Entry) {
        if let Some(inode) = self.inodes.get_mut(&entry.about) {
            inode.pending -= 1;
            inode.content.place(entry.seq, Location::Medium);
            self.collect(entry.about);
        }
    }

    fn settle_edits(&mut self, edits: &[Edit]) {
        for edit in edits {
            if let Some(to) = edit.to.and_then(|to| self.inodes.get_mut(&to)) {
                to.pending -= 1;
                to.durable_links += 1;
            }
            let Some(dir) = self.inodes.get_mut(&edit.dir) else { continue };
            let old = match edit.to {
                Some(to) => dir.durable_names.insert(edit.name.clone(), to),
                None => dir.durable_names.remove(&edit.name),
            };
            if let Some(old) = old {
                if let Some(inode) = self.inodes.get_mut(&old) {
                    inode.durable_links -= 1;
                }
                self.collect(old);
            }
            // A removed file may have been kept only until the change of its name was settled.
            if let Some(to) = edit.to {
                self.collect(to);
            }
        }
    }

    /// Starts again from the durable state. Drops files without a name, handles and locks.
    pub(super) fn restart(&mut self) {
        self.journal.clear();
        let mut links: BTreeMap<u64, u32> = BTreeMap::from([(ROOT, 1)]);
        let mut todo = vec![ROOT];
        while let Some(dir) = todo.pop() {
            let Some(inode) = self.inodes.get_mut(&dir) else { continue };
            // A directory has one name: where a power cut left two, the one that is found first.
            let names = std::mem::take(&mut inode.durable_names);
            let mut kept = BTreeMap::new();
            for (name, to) in names {
                let Some(is_dir) = self.inodes.get(&to).map(|inode| inode.is_dir) else { continue };
                let count = links.entry(to).or_insert(0);
                if is_dir && *count > 0 {
                    continue;
                }
                *count += 1;
                if is_dir {
                    todo.push(to);
                }
                kept.insert(name, to);
            }
            if let Some(inode) = self.inodes.get_mut(&dir) {
                inode.names = kept.clone();
                inode.durable_names = kept;
            }
        }
        self.inodes.retain(|number, _| links.contains_key(number));
        self.used = 0;
        for (number, inode) in &mut self.inodes {
            let count = links.get(number).copied().unwrap_or(0);
            (inode.links, inode.durable_links, inode.pending, inode.handles) = (count, count, 0, 0);
            inode.locks.clear();
            inode.attributes.clone_from(&inode.durable_attributes);
            self.used += inode.content.blocks.total() * PAGE;
        }
    }
}
