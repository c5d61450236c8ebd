//! The count over a range of a table of `forebay-kv`.

use crate::layout as at;
use crate::program::{Next, Positions, Program, Scratch};
use crate::table::{Limit, Node, TABLE_DAMAGED};

/// The longest key that bounds a [`TableRange`], in bytes; with a longer one a [`TableCount`] fails with
/// [`TABLE_DAMAGED`](crate::TABLE_DAMAGED).
pub const TABLE_RANGE_KEY_BYTES_MAX: usize = at::RANGE_KEY_MAX;

/// Counts the records of a table of `forebay-kv` whose keys lie in a range, over up to 16 leaves that are read concurrently, all
/// under the node of level 1 where the range starts.
///
/// Checks the same fields as [`TableDescent`](crate::TableDescent), and fails as it does. Counts the leaves'
/// records as they are: a deletion is a record, and no checksum is checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableCount;

/// Arguments of a [`TableCount`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRange {
    /// The table's number.
    pub table: u32,
    /// The position of the node where the count starts, in units of 4,096 bytes.
    pub position: u32,
    /// The level of that node; 0 for a leaf.
    pub level: u8,
    /// The inclusive lower bound of the keys, at most [`TABLE_RANGE_KEY_BYTES_MAX`] bytes.
    pub low: Vec<u8>,
    /// The exclusive upper bound of the keys, at most as long.
    pub high: Vec<u8>,
}

/// The result of a [`TableCount`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableCountResult {
    /// Records whose keys lie in the range, in the leaves read.
    pub found: u64,
    /// Leaves read.
    pub leaves: u64,
    /// The range ends within these leaves. Otherwise there may be more records behind them, in leaves that
    /// were not read.
    pub is_whole: bool,
}

impl Program for TableCount {
    type Args = TableRange;
    type Output = TableCountResult;

    fn name(&self) -> &'static str {
        "table-count"
    }

    fn page_bytes(&self) -> u32 {
        at::TABLE_UNIT as u32
    }

    fn fan_out(&self) -> u32 {
        at::READS_MAX as u32
    }

    fn object(&self) -> Option<&[u8]> {
        Some(include_bytes!("../objects/table_count.loop.bpf.o"))
    }

    fn module_object(&self) -> Option<&[u8]> {
        Some(include_bytes!("../objects/table_count.module.bpf.o"))
    }

    fn begin(&self, range: &TableRange, scratch: &mut Scratch) -> u64 {
        scratch.set_u64(at::RANGE_TABLE, range.table.into());
        scratch.set_u64(at::RANGE_LEVEL, range.level.into());
        for (key, len, place) in [
            (&range.low, at::RANGE_LOW_LEN, at::RANGE_LOW),
            (&range.high, at::RANGE_HIGH_LEN, at::RANGE_HIGH),
        ] {
            scratch.set_u64(len, key.len() as u64);
            for (byte, from) in scratch.bytes_mut()[place..][..at::RANGE_KEY_MAX].iter_mut().zip(key) {
                *byte = *from;
            }
        }
        u64::from(range.position) * at::TABLE_UNIT as u64
    }

    fn step(&self, page: &[u8], position: u64, scratch: &mut Scratch) -> Next {
        let level = scratch.u64(at::RANGE_LEVEL);
        let key = |len: usize, place: usize| {
            let len = usize::try_from(scratch.u64(len)).ok().filter(|&len| len <= at::RANGE_KEY_MAX)?;
            scratch.bytes().get(place..place + len)
        };
        let node = Node::of(page, position, scratch.u64(at::RANGE_TABLE), level);
        let records = node.as_ref().and_then(Node::records);
        let (low, high) = (key(at::RANGE_LOW_LEN, at::RANGE_LOW), key(at::RANGE_HIGH_LEN, at::RANGE_HIGH));
        let (Some(node), Some(records), Some(low), Some(high)) = (node, records, low, high) else {
            return Next::Fail(TABLE_DAMAGED);
        };
        // In an inner node, start at the last separator that is not above the start of the range: keys below the first separator
        // are in no leaf.
        let first = node.below(low, if level == 0 { Limit::Before } else { Limit::Same });
        let last = node.below(high, Limit::Before);
        let add = |scratch: &mut Scratch, place, more| scratch.set_u64(place, scratch.u64(place) + more);
        if level == 0 {
            add(scratch, at::RANGE_FOUND, last.saturating_sub(first) as u64);
            add(scratch, at::RANGE_LEAVES, 1);
            let coming = scratch.u64(at::RANGE_COMING);
            if coming <= 1 {
                return Next::Over;
            }
            scratch.set_u64(at::RANGE_COMING, coming - 1);
            return Next::Wait;
        }
        let first = first.saturating_sub(1);
        if last <= first {
            return Next::Over;
        }
        let reads = if level == 1 { at::READS_MAX } else { 1 };
        if last - first > reads {
            scratch.set_u64(at::RANGE_MORE, 1);
        }
        let children: Result<Positions, u32> =
            (first..last).take(reads).map(|record| node.child(record, records)).collect();
        match children {
            Ok(children) => {
                scratch.set_u64(at::RANGE_LEVEL, level - 1);
                scratch.set_u64(at::RANGE_COMING, children.as_slice().len() as u64);
                Next::Read(children)
            }
            Err(failure) => Next::Fail(failure),
        }
    }

    fn end(&self, scratch: &Scratch, _page: &[u8]) -> TableCountResult {
        TableCountResult {
            found: scratch.u64(at::RANGE_FOUND),
            leaves: scratch.u64(at::RANGE_LEAVES),
            is_whole: scratch.u64(at::RANGE_MORE) == 0,
        }
    }
}
