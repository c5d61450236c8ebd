//! The parts of a file that one rank writes or reads: strides, or an arbitrary list.

use std::ops::Range;
use std::sync::Arc;

use forebay::internal::ErrorExt;
use forebay::{Error, ErrorKind, Result};

/// The furthest end of a view. A file cannot be longer than 2^63 bytes, and a write is padded to whole pages.
const END_MAX: u64 = (i64::MAX as u64) - (1 << 32);

/// One rank's bytes of a file, as pieces in file order: MPI's file view. The rank's buffer contains the bytes of the pieces
/// contiguously.
///
/// ```
/// # use forebay_collective::View;
/// # fn main() -> forebay::Result<()> {
/// // Columns 40 to 79 of 100 rows of 80 numbers of 8 bytes.
/// let columns = View::subarray(0, 8, &[100, 80], &[100, 40], &[0, 40])?;
/// assert_eq!(columns.bytes(), 100 * 40 * 8);
/// assert_eq!(columns.span(), Some(320..64_000));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct View(Layout);

#[derive(Clone, Debug)]
enum Layout {
    Strided {
        start: u64,
        /// The length of each piece.
        block: u64,
        count: u64,
        /// The number and distance of repetitions, the outermost first.
        levels: Vec<Level>,
    },
    /// Pieces in the order of the file.
    Listed(Arc<Vec<ViewPiece>>),
}

#[derive(Clone, Copy, Debug)]
struct Level {
    count: u64,
    stride: u64,
}

/// A piece of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ViewPiece {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The place of its first byte in the rank's buffer.
    pub(crate) at: u64,
}

impl View {
    /// Returns a view of one range; of an empty one, a view without bytes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](forebay::ErrorKind::InvalidInput) for a range that ends before it starts, or is beyond the end that a
    /// file can have.
    pub fn range(range: Range<u64>) -> Result<View> {
        View::pieces([range])
    }

    /// Returns a view of `count` blocks of `block` bytes, each `stride` bytes behind the start of the one before (MPI's vector).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](forebay::ErrorKind::InvalidInput) when blocks overlap, or are beyond the end that a file can have.
    pub fn vector(start: u64, block: u64, stride: u64, count: u64) -> Result<View> {
        View::strided(start, block, vec![Level { count, stride }])
    }

    /// Returns a view of a part of an array of `sizes` elements of `element` bytes, the last dimension contiguous, at `base` in the
    /// file: `lengths` elements from `starts` on, in each dimension (MPI's subarray; of a block-distributed array, each rank's).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](forebay::ErrorKind::InvalidInput) when the part is not inside of the array, the numbers of dimensions
    /// differ, or the part is beyond the end that a file can have.
    pub fn subarray(base: u64, element: u64, sizes: &[u64], lengths: &[u64], starts: &[u64]) -> Result<View> {
        if sizes.len() != lengths.len() || sizes.len() != starts.len() {
            return Err(invalid("sizes, lengths and starts have different numbers of dimensions".to_owned()));
        }
        let (mut start, mut stride) = (Some(base), Some(element));
        let mut levels = Vec::with_capacity(sizes.len());
        for dimension in (0..sizes.len()).rev() {
            let (size, length, first) = (sizes[dimension], lengths[dimension], starts[dimension]);
            if first.checked_add(length).is_none_or(|end| end > size) {
                return Err(invalid(format!(
                    "dimension {dimension}: {length} elements from {first} on are not inside of {size}"
                )));
            }
            let distance = stride.ok_or_else(too_far)?;
            start = start
                .zip(distance.checked_mul(first))
                .and_then(|(start, skipped)| start.checked_add(skipped));
            levels.push(Level { count: length, stride: distance });
            stride = distance.checked_mul(size);
        }
        levels.reverse();
        View::strided(start.ok_or_else(too_far)?, element, levels)
    }

    /// Returns a view of the part that one process has of a distributed array of `sizes` elements of `element` bytes, the last
    /// dimension contiguous, at `base` in the file (MPI's darray). Each dimension is cut into blocks of `blocks` elements, and the
    /// processes along it, `grid`, have these in turn; `rank` counts through the grid, the last dimension first. Of MPI's
    /// distributions `BLOCK` is `size.div_ceil(processes)`, `CYCLIC` is 1, `NONE` is one process along the dimension.
    ///
    /// A part whose last block is shorter than several others of it is a list, of 24 bytes for each row of a block; others are strides.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](forebay::ErrorKind::InvalidInput) when the numbers of dimensions differ, a block or the grid has a zero,
    /// `rank` is not in the grid, or the array is beyond the end that a file can have.
    pub fn darray(
        base: u64,
        element: u64,
        sizes: &[u64],
        blocks: &[u64],
        grid: &[u64],
        rank: u64,
    ) -> Result<View> {
        if sizes.len() != blocks.len() || sizes.len() != grid.len() {
            return Err(invalid("sizes, blocks and grid have different numbers of dimensions".to_owned()));
        }
        if blocks.contains(&0) || grid.contains(&0) {
            return Err(invalid("a block or the grid has a zero".to_owned()));
        }
        let (mut place, mut distance, mut own) = (rank, element, Vec::with_capacity(sizes.len()));
        for dimension in (0..sizes.len()).rev() {
            let (size, count) = (sizes[dimension], grid[dimension]);
            // Alone along a dimension, a process has all of it.
            let block = if count == 1 { size.max(1) } else { blocks[dimension] };
            let first = (place % count).saturating_mul(block);
            own.push(Stripes { first, block, cycle: block.saturating_mul(count), size, distance });
            place /= count;
            distance = distance.checked_mul(size).ok_or_else(too_far)?;
        }
        if place > 0 {
            return Err(invalid(format!("rank {rank} is not in a grid of {grid:?} processes")));
        }
        if base.checked_add(distance).is_none_or(|end| end > END_MAX) {
            return Err(too_far());
        }
        own.reverse();
        if own.iter().any(|stripes| stripes.count() == 0) {
            return Ok(View(Layout::Listed(Arc::default())));
        }
        let (Some((last, outer)), false) = (own.split_last(), own.iter().all(Stripes::is_even)) else {
            let start = base + own.iter().map(|stripes| stripes.first * stripes.distance).sum::<u64>();
            return View::strided(start, element, own.iter().flat_map(Stripes::levels).collect());
        };
        let mut rows = vec![base];
        for stripes in outer {
            let further = move |row: &u64| {
                let (row, distance) = (*row, stripes.distance);
                stripes.runs().flatten().map(move |index| row + index * distance)
            };
            rows = rows.iter().flat_map(further).collect();
        }
        View::pieces(rows.iter().flat_map(move |row| {
            let row = *row;
            last.runs().map(move |run| row + run.start * element..row + run.end * element)
        }))
    }

    /// Returns a view of any pieces (MPI's indexed types), in the order of the file. Adjacent pieces are merged.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](forebay::ErrorKind::InvalidInput) when pieces overlap or are not in order, or are beyond the end that a
    /// file can have.
    pub fn pieces(pieces: impl IntoIterator<Item = Range<u64>>) -> Result<View> {
        let (mut list, mut at): (Vec<ViewPiece>, u64) = (Vec::new(), 0);
        for Range { start, end } in pieces {
            if end < start || end > END_MAX {
                return Err(invalid(format!("{start}..{end} is not a range of a file")));
            }
            let before = list.last().map_or(0, |last| last.end);
            if start < before {
                return Err(invalid(format!(
                    "{start}..{end} begins before the piece before it ends, at {before}"
                )));
            }
            match list.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ if start == end => {}
                _ => list.push(ViewPiece { start, end, at }),
            }
            at += end - start;
        }
        Ok(View(Layout::Listed(Arc::new(list))))
    }

    fn strided(start: u64, block: u64, mut levels: Vec<Level>) -> Result<View> {
        if block == 0 || levels.iter().any(|level| level.count == 0) {
            return Ok(View(Layout::Listed(Arc::default())));
        }
        levels.retain(|level| level.count > 1);
        let mut block = block;
        // Rows without gaps between them are one piece.
        while let Some(last) = levels.last()
            && last.stride == block
        {
            block = block.checked_mul(last.count).ok_or_else(too_far)?;
            levels.pop();
        }
        let (mut extent, mut count) = (block, 1u64);
        for level in levels.iter().rev() {
            if level.stride < extent {
                return Err(invalid(format!(
                    "blocks of {extent} bytes overlap at a stride of {} bytes",
                    level.stride
                )));
            }
            let further = level.stride.checked_mul(level.count - 1);
            extent = further.and_then(|further| further.checked_add(extent)).ok_or_else(too_far)?;
            count = count.checked_mul(level.count).ok_or_else(too_far)?;
        }
        match start.checked_add(extent) {
            Some(end) if end <= END_MAX => Ok(View(Layout::Strided { start, block, count, levels })),
            _ => Err(too_far()),
        }
    }

    /// Returns the number of bytes in the view: the length of the rank's buffer.
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Layout::Strided { block, count, .. } => block * count,
            Layout::Listed(list) => list.last().map_or(0, |last| last.at + (last.end - last.start)),
        }
    }

    /// Returns the range from the first byte to the last; `None` for a view without bytes.
    pub fn span(&self) -> Option<Range<u64>> {
        let last = self.count().checked_sub(1)?;
        Some(self.piece(0).start..self.piece(last).end)
    }

    fn count(&self) -> u64 {
        match &self.0 {
            Layout::Strided { count, .. } => *count,
            Layout::Listed(list) => list.len() as u64,
        }
    }

    /// Returns the piece of this number, which is below [`count`](View::count).
    fn piece(&self, number: u64) -> ViewPiece {
        match &self.0 {
            Layout::Strided { start, block, levels, .. } => {
                let (mut start, mut rest) = (*start, number);
                for level in levels.iter().rev() {
                    start += rest % level.count * level.stride;
                    rest /= level.count;
                }
                ViewPiece { start, end: start + block, at: number * block }
            }
            Layout::Listed(list) => list[number as usize],
        }
    }

    /// Returns the parts of the pieces that lie in `range`, in order.
    pub(crate) fn pieces_in(&self, range: Range<u64>) -> impl Iterator<Item = ViewPiece> + '_ {
        let (from, to) = (range.start, range.end);
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.piece(middle).end > from {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let pieces = (low..self.count()).map(move |number| self.piece(number));
        pieces.take_while(move |piece| piece.start < to).map(move |piece| {
            let start = piece.start.max(from);
            ViewPiece { start, end: piece.end.min(to), at: piece.at + (start - piece.start) }
        })
    }
}

/// The indices of one process along a dimension of a distributed array: blocks at the distance of a cycle.
struct Stripes {
    first: u64,
    block: u64,
    cycle: u64,
    size: u64,
    /// The bytes from one index to the next.
    distance: u64,
}

impl Stripes {
    fn count(&self) -> u64 {
        self.size.saturating_sub(self.first).div_ceil(self.cycle)
    }

    /// Returns the indices, block by block.
    fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let block = move |number: u64| {
            let start = self.first + number * self.cycle;
            start..start.saturating_add(self.block).min(self.size)
        };
        (0..self.count()).map(block)
    }

    /// Returns the length of the last block.
    fn rest(&self) -> u64 {
        let start = self.first.saturating_add(self.count().saturating_sub(1).saturating_mul(self.cycle));
        self.size.saturating_sub(start).min(self.block)
    }

    /// Returns whether all blocks have one length.
    fn is_even(&self) -> bool {
        self.count() < 2 || self.rest() == self.block
    }

    /// Returns the repetitions of equal blocks.
    fn levels(&self) -> [Level; 2] {
        let blocks = Level { count: self.count(), stride: self.cycle.saturating_mul(self.distance) };
        [blocks, Level { count: self.rest(), stride: self.distance }]
    }
}

fn too_far() -> Error {
    invalid("the view goes beyond the end that a file can have".to_owned())
}

fn invalid(note: String) -> Error {
    <Error as ErrorExt>::new(ErrorKind::InvalidInput, "view").with_note(note)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(view: &View) -> Vec<Range<u64>> {
        view.pieces_in(0..u64::MAX).map(|piece| piece.start..piece.end).collect()
    }

    /// Every part of small arrays, against a walk over all elements.
    #[test]
    fn subarrays_are_the_elements_of_the_part() {
        let sizes = [3u64, 4, 5];
        for (lengths, starts) in [
            ([3, 4, 5], [0, 0, 0]),
            ([1, 1, 1], [2, 3, 4]),
            ([2, 4, 5], [1, 0, 0]),
            ([2, 2, 5], [1, 1, 0]),
            ([3, 2, 3], [0, 2, 1]),
            ([3, 1, 2], [0, 0, 3]),
        ] {
            let view = View::subarray(1_000, 7, &sizes, &lengths, &starts).unwrap();
            let mut expected = Vec::new();
            for x in starts[0]..starts[0] + lengths[0] {
                for y in starts[1]..starts[1] + lengths[1] {
                    for z in starts[2]..starts[2] + lengths[2] {
                        let at = 1_000 + ((x * 4 + y) * 5 + z) * 7;
                        expected.push(at..at + 7);
                    }
                }
            }
            let expected = View::pieces(expected).unwrap();
            assert_eq!(listed(&view), listed(&expected), "{lengths:?} from {starts:?}");
            assert_eq!((view.bytes(), view.span()), (expected.bytes(), expected.span()));
            for from in 990..1_440 {
                for to in [from + 1, from + 20, from + 200] {
                    let parts: Vec<ViewPiece> = view.pieces_in(from..to).collect();
                    assert_eq!(parts, expected.pieces_in(from..to).collect::<Vec<_>>(), "{from}..{to}");
                    assert!(
                        parts
                            .iter()
                            .all(|part| from <= part.start && part.start < part.end && part.end <= to)
                    );
                }
            }
        }
    }

    /// Blocks of all lengths, in turn over the processes of a grid: each element is that process's which has its block.
    #[test]
    fn distributed_arrays_are_the_elements_of_the_blocks() {
        let sizes = [7u64, 5, 3];
        let all = |most: [u64; 3]| {
            (1..=most[0])
                .flat_map(move |x| (1..=most[1]).flat_map(move |y| (1..=most[2]).map(move |z| [x, y, z])))
        };
        for grid in all([3, 2, 2]) {
            for blocks in all([8, 5, 2]) {
                for rank in 0..grid.iter().product::<u64>() {
                    let place = [rank / (grid[1] * grid[2]), rank / grid[2] % grid[1], rank % grid[2]];
                    let mut expected = Vec::new();
                    for element in 0..sizes.iter().product::<u64>() {
                        let index = [element / 15, element / 3 % 5, element % 3];
                        if (0..3).all(|d| index[d] / blocks[d] % grid[d] == place[d]) {
                            expected.extend(100 + element * 2..100 + element * 2 + 2);
                        }
                    }
                    let view = View::darray(100, 2, &sizes, &blocks, &grid, rank).unwrap();
                    let found: Vec<u64> = listed(&view).into_iter().flatten().collect();
                    assert_eq!(found, expected, "blocks {blocks:?} on {grid:?}, rank {rank}");
                    assert_eq!(
                        view.bytes(),
                        expected.len() as u64,
                        "blocks {blocks:?} on {grid:?}, rank {rank}"
                    );
                }
            }
        }
    }

    #[test]
    fn vectors_have_blocks_and_merge_without_gaps() {
        assert_eq!(listed(&View::vector(5, 10, 25, 3).unwrap()), [5..15, 30..40, 55..65]);
        assert_eq!(listed(&View::vector(5, 10, 10, 3).unwrap()), std::slice::from_ref(&(5..35)));
        assert_eq!(View::vector(5, 10, 10, 0).unwrap().span(), None);
        assert_eq!(View::range(7..7).unwrap().bytes(), 0);
        assert_eq!(View::pieces([3..5, 5..5, 5..6, 9..9, 10..12]).unwrap().bytes(), 5);
    }

    #[test]
    fn overlaps_and_places_beyond_files_are_refused() {
        let kind = |view: Result<View>| view.err().map(|error| error.kind());
        let refused = Some(ErrorKind::InvalidInput);
        assert_eq!(kind(View::vector(0, 10, 9, 2)), refused);
        assert_eq!(kind(View::vector(u64::MAX - 5, 3, 3, 1)), refused);
        assert_eq!(kind(View::vector(0, 1 << 40, 1 << 62, 8)), refused);
        assert_eq!(kind(View::vector(0, u64::MAX, u64::MAX, u64::MAX)), refused);
        assert_eq!(kind(View::pieces([5..8, 7..9])), refused);
        assert_eq!(kind(View::pieces([5..8, 1..2])), refused);
        assert_eq!(kind(View::range(0..u64::MAX)), refused);
        assert_eq!(kind(View::subarray(0, 8, &[4, 4], &[2, 2], &[0, 3])), refused);
        assert_eq!(kind(View::subarray(0, 8, &[4, 4], &[2], &[0, 0])), refused);
        assert_eq!(kind(View::subarray(0, 8, &[u64::MAX, 4], &[2, 2], &[u64::MAX - 2, 0])), refused);
        assert_eq!(kind(View::darray(0, 8, &[4, 4], &[2], &[2, 2], 0)), refused);
        assert_eq!(kind(View::darray(0, 8, &[4, 4], &[2, 0], &[2, 2], 0)), refused);
        assert_eq!(kind(View::darray(0, 8, &[4, 4], &[2, 2], &[2, 2], 4)), refused);
        assert_eq!(kind(View::darray(0, 8, &[1 << 40, 1 << 40], &[2, 2], &[2, 2], 0)), refused);
        assert_eq!(kind(View::darray(0, 8, &[1 << 40], &[1 << 60], &[1 << 20], 1 << 19)), None);
    }
}
