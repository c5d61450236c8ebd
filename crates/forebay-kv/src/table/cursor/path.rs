//! A cursor's way from the root down to the next leaf.

use std::sync::Arc;

use forebay::Block;

use super::{CursorHow, Direction};
use crate::error::Result;
use crate::node::{Child, Node, UNIT, Wrong, check};
use crate::table::Table;

/// The inner nodes above the next leaf.
#[derive(Clone, Debug)]
pub(super) struct Path {
    /// From the root down to level 1; empty if the root is a leaf.
    steps: Vec<Step>,
    /// Whether the lowest of them has no children left.
    used_up: bool,
    /// The end of the leaf returned last, if the cursor moves forward.
    last_end: Option<u64>,
}

#[derive(Clone, Debug)]
struct Step {
    child: Child,
    level: u8,
    /// The node's bytes; `None` if they are pinned.
    block: Option<Block>,
    count: usize,
    /// The index of the next child: the next leaf, or the node that leads to it.
    index: usize,
}

/// Selects the child of a node on a descent.
#[derive(Clone, Copy)]
enum Pick<'k> {
    First,
    Last,
    Key(&'k [u8]),
}

impl Path {
    /// Returns the path to the leaf for `key`; without a key, to the first leaf in the cursor's direction.
    pub(super) async fn to(table: &Arc<Table>, how: &CursorHow, key: Option<&[u8]>) -> Result<Path> {
        let mut path = Path { steps: Vec::new(), used_up: false, last_end: None };
        let pick = match (key, how.direction) {
            (Some(key), _) => Pick::Key(key),
            (None, Direction::Forward) => Pick::First,
            (None, Direction::Backward) => Pick::Last,
        };
        path.descend(table, how, table.footer.root, table.footer.root_level(), pick).await?;
        Ok(path)
    }

    /// Returns the path to the leaf behind one in the cursor's direction.
    pub(super) async fn behind(table: &Arc<Table>, how: &CursorHow, leaf: &Block, at: Child) -> Result<Path> {
        let mut key = Vec::new();
        let first = Node::of(leaf).and_then(|node| node.key(0, &mut key));
        first.map_err(|wrong| table.corrupt(at.offset(), wrong))?;
        let mut path = Path::to(table, how, Some(&key)).await?;
        match path.next(table, how).await? {
            Some((child, _)) if child == at => Ok(path),
            _ => Err(table.corrupt(at.offset(), "the path to a leaf's first key leads to another leaf")),
        }
    }

    /// Returns the leaf for `key`, or the first in the cursor's direction, if the cache has it and the nodes above it.
    pub(super) fn leaf_now(
        table: &Table,
        direction: Direction,
        key: Option<&[u8]>,
    ) -> Result<Option<(Child, Block)>> {
        Path::descend_now(table, |node, _| {
            Ok(Some(match (key, direction) {
                (Some(key), _) => node.search_child(key)?,
                (None, Direction::Forward) => 0,
                (None, Direction::Backward) => node.count() - 1,
            }))
        })
    }

    /// Returns the leaf behind another, if the cache has it and the nodes above it, and the lowest of these is above both.
    pub(super) fn leaf_behind_now(
        table: &Table,
        direction: Direction,
        leaf: &Block,
    ) -> Result<Option<(Child, Block)>> {
        if table.footer.root_level() == 0 {
            return Ok(None);
        }
        let mut key = Vec::new();
        let first = Node::of(leaf).and_then(|node| node.key(0, &mut key));
        first.map_err(|wrong| table.corrupt(0, wrong))?;
        Path::descend_now(table, |node, level| {
            let index = node.search_child(&key)?;
            Ok(match direction {
                _ if level > 1 => Some(index),
                Direction::Forward => Some(index + 1).filter(|index| *index < node.count()),
                Direction::Backward => index.checked_sub(1),
            })
        })
    }

    /// Returns the leaf to which the picked children lead, if all are picked and in memory.
    fn descend_now(
        table: &Table,
        pick: impl Fn(&Node<'_>, u8) -> Result<Option<usize>, Wrong>,
    ) -> Result<Option<(Child, Block)>> {
        let (mut child, mut level) = (table.footer.root, table.footer.root_level());
        let cached = |child: Child| table.cache.get_if_there(table.meta.id, child.offset());
        while level > 0 {
            let below = |bytes: &[u8]| {
                let node = Node::of(bytes)?;
                let Some(index) = pick(&node, level)? else { return Ok(None) };
                let below = node.child(index)?;
                table.check_place(below, level - 1)?;
                Ok(Some(below))
            };
            let below = match table.pinned.node(child, level) {
                Some(bytes) => below(bytes),
                None => {
                    let Some(block) = cached(child) else { return Ok(None) };
                    below(&block)
                }
            };
            let Some(below) = below.map_err(|wrong: Wrong| table.corrupt(child.offset(), wrong))? else {
                return Ok(None);
            };
            (child, level) = (below, level - 1);
        }
        Ok(cached(child).map(|block| (child, block)))
    }

    /// Returns whether the next leaf needs an inner node that is not pinned.
    pub(super) fn must_read(&self, table: &Table) -> bool {
        self.used_up && self.steps.len() > 1 && !table.pinned.has_level(1)
    }

    /// Returns the next leaf, and the start of its blobs, if known. If this future is dropped unfinished, nothing has changed.
    pub(super) async fn next(&mut self, table: &Arc<Table>, how: &CursorHow) -> Result<Option<(Child, u64)>> {
        if self.used_up {
            if self.steps.is_empty() {
                return Ok(None);
            }
            let mut next = self.clone();
            if !next.turn(table, how).await? {
                return Ok(None);
            }
            *self = next;
        }
        let is_first = self.steps.iter().all(|step| step.index == 0);
        let Some(step) = self.steps.last_mut() else {
            self.used_up = true;
            return Ok(Some((table.footer.root, UNIT as u64)));
        };
        let leaf = step.child_at(table, step.index)?;
        let before = match step.index.checked_sub(1) {
            Some(index) => Some(step.child_at(table, index)?.range().end),
            None if is_first => Some(UNIT as u64),
            None => self.last_end,
        };
        self.last_end = (how.direction == Direction::Forward).then_some(leaf.range().end);
        match step.on(how.direction) {
            Some(index) => step.index = index,
            None => self.used_up = true,
        }
        Ok(Some((leaf, before.unwrap_or(leaf.offset()))))
    }

    /// Moves to the next node of level 1; returns `false` at the end.
    async fn turn(&mut self, table: &Arc<Table>, how: &CursorHow) -> Result<bool> {
        self.steps.pop();
        while let Some(step) = self.steps.last_mut() {
            if let Some(index) = step.on(how.direction) {
                step.index = index;
                let (child, level) = (step.child_at(table, index)?, step.level - 1);
                let pick = match how.direction {
                    Direction::Forward => Pick::First,
                    Direction::Backward => Pick::Last,
                };
                self.descend(table, how, child, level, pick).await?;
                self.used_up = false;
                return Ok(true);
            }
            self.steps.pop();
        }
        Ok(false)
    }

    /// Adds the nodes from `child` down to level 1.
    async fn descend(
        &mut self,
        table: &Arc<Table>,
        how: &CursorHow,
        child: Child,
        level: u8,
        pick: Pick<'_>,
    ) -> Result<()> {
        let (mut child, mut level) = (child, level);
        while level > 0 {
            let mut step = Step::load(table, how, child, level, pick).await?;
            step.index = match pick {
                Pick::First => 0,
                Pick::Last => step.count - 1,
                Pick::Key(key) => step.with(table, |node| node.search_child(key))?,
            };
            child = step.child_at(table, step.index)?;
            self.steps.push(step);
            level -= 1;
        }
        Ok(())
    }
}

impl Step {
    async fn load(
        table: &Arc<Table>,
        how: &CursorHow,
        child: Child,
        level: u8,
        pick: Pick<'_>,
    ) -> Result<Step> {
        let mut step = Step { child, level, block: None, count: 0, index: 0 };
        if table.pinned.node(child, level).is_none() {
            step.block = match table.cache.get(table.meta.id, child.offset()) {
                Some(block) => Some(block),
                None => {
                    let block = table.read(child.range(), how.class).await?;
                    check(&block, table.identity(child, level))
                        .map_err(|wrong| table.corrupt(child.offset(), wrong))?;
                    match pick {
                        _ if !how.cache => {}
                        Pick::Key(_) => table.cache.insert(table.meta.id, child.offset(), &block),
                        // A cursor that traverses the table needs each inner node once.
                        Pick::First | Pick::Last => {
                            table.offer(child.offset(), &block);
                        }
                    }
                    Some(block)
                }
            };
        }
        step.count = step.with(table, |node| Ok(node.count()))?;
        Ok(step)
    }

    /// Returns the index after the current one in this direction.
    fn on(&self, direction: Direction) -> Option<usize> {
        match direction {
            Direction::Forward => Some(self.index + 1).filter(|index| *index < self.count),
            Direction::Backward => self.index.checked_sub(1),
        }
    }

    fn child_at(&self, table: &Table, index: usize) -> Result<Child> {
        self.with(table, |node| {
            let child = node.child(index)?;
            table.check_place(child, self.level - 1)?;
            Ok(child)
        })
    }

    fn with<T>(&self, table: &Table, f: impl FnOnce(Node<'_>) -> Result<T, &'static str>) -> Result<T> {
        let bytes = match &self.block {
            Some(block) => &block[..],
            None => table.pinned.node(self.child, self.level).unwrap_or_default(),
        };
        Node::of(bytes).and_then(f).map_err(|wrong| table.corrupt(self.child.offset(), wrong))
    }
}
