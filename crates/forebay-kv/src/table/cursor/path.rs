//! A cursor's way from the root down to the next leaf.

use std::sync::Arc;

use forebay::Block;

use super::{CursorHow, Direction};
use crate::error::Result;
use crate::node::{Child, Node, UNIT, check};
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
