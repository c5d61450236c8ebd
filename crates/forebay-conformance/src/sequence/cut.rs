//! The end of a life: the possible effects of the step that was under way, and the state that is left.

use super::directory::Name;
use super::node::Node;
use super::session::{CheckResult, Session};
use super::step::{Access, Op, Step};

impl Session {
    /// Records a power cut. The engine of this life and its files are dead; the step under way may have
    /// happened.
    ///
    /// # Errors
    /// Memory that the program holds has changed.
    pub fn power_cut(&mut self) -> CheckResult {
        self.end_life("at the power cut")?;
        self.nodes.iter_mut().for_each(Node::power_cut);
        self.names.iter_mut().for_each(Name::power_cut);
        Ok(())
    }

    /// Records an orderly shutdown of the machine, after the engine of this life was closed.
    ///
    /// # Errors
    /// Memory that the program holds has changed.
    pub fn restart(&mut self) -> CheckResult {
        self.end_life("at the restart")?;
        self.nodes.iter_mut().for_each(Node::restart);
        self.names.iter_mut().for_each(Name::sync);
        Ok(())
    }

    fn end_life(&mut self, what: &str) -> CheckResult {
        if let Some(step) = self.under_way.take() {
            self.may_have_done(&step);
        }
        self.what = what.to_owned();
        self.step = None;
        self.check_kept()?;
        self.kept.clear();
        self.fresh = true;
        self.handles = Default::default();
        Ok(())
    }

    /// Records that any part of a step under way may have happened.
    pub(super) fn may_have_done(&mut self, step: &Step) {
        match step {
            Step::Abandon { call, .. } => self.may_have_done(call),
            Step::Open { name, access, .. } => {
                let known = &mut self.names[usize::from(*name)];
                let nodes: Vec<usize> = known.nodes().collect();
                if nodes.is_empty() && !matches!(access, Access::Read | Access::Write) {
                    known.perhaps(Some(self.nodes.len()));
                    self.nodes.push(Node::new());
                }
                if *access == Access::Truncate {
                    nodes.into_iter().for_each(|node| self.nodes[node].may_truncate(0));
                }
            }
            Step::Do { op, .. } | Step::Drop { op, .. } => self.may_have_written(op),
            Step::Join { ops } => ops.iter().for_each(|op| self.may_have_written(op)),
            Step::Append { handle, offset, sizes, pattern, .. } => {
                let len = sizes.iter().sum();
                let durability = forebay::Durability::None;
                let pattern = *pattern;
                self.may_have_written(&Op::Write {
                    handle: *handle,
                    offset: *offset,
                    len,
                    pattern,
                    durability,
                });
                let end = offset + u64::from(len);
                self.change(*handle, |node, grain| node.may_grow(end.next_multiple_of(grain)));
            }
            Step::Truncate { handle, len } => self.change(*handle, |node, _| node.may_truncate(*len)),
            Step::Allocate { handle, range } => self.change(*handle, |node, _| node.may_grow(range.end)),
            Step::PunchHole { handle, range } => {
                let patch = super::sector::Patch::zeros(range.clone());
                self.change(*handle, |node, _| node.may_put(&patch, true));
            }
            Step::CopyRange { range, to, offset, .. } => {
                let end = offset + (range.end - range.start);
                self.change(*to, |node, _| {
                    node.forget(*offset..end);
                    node.may_grow(end);
                });
            }
            Step::Rename { from, to } | Step::RenameUnsynced { from, to } if from != to => {
                let nodes: Vec<usize> = self.names[usize::from(*from)].nodes().collect();
                self.names[usize::from(*from)].perhaps(None);
                nodes.into_iter().for_each(|node| self.names[usize::from(*to)].perhaps(Some(node)));
            }
            Step::HardLink { from, to } | Step::HardLinkUnsynced { from, to } => {
                let nodes: Vec<usize> = self.names[usize::from(*from)].nodes().collect();
                nodes.into_iter().for_each(|node| self.names[usize::from(*to)].perhaps(Some(node)));
            }
            Step::Remove { name } => self.names[usize::from(*name)].perhaps(None),
            _ => {}
        }
    }

    fn may_have_written(&mut self, op: &Op) {
        if let Some(patch) = Session::patch_of(op).filter(|patch| !patch.is_empty()) {
            let cached = self.handle(op.handle()).is_some_and(|open| open.cached);
            self.change(op.handle(), |node, _| {
                node.may_put(&patch, cached);
                node.may_grow(patch.end());
            });
        }
    }

    /// Changes the file of a handle, if it could be written to.
    fn change(&mut self, handle: u8, change: impl FnOnce(&mut Node, u64)) {
        if let Some(open) = self.handle(handle).filter(|open| open.writable) {
            let (node, grain) = (open.node, u64::from(open.file.alignment().offset.max(1)));
            change(&mut self.nodes[node], grain);
        }
    }
}
