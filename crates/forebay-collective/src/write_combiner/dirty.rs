//! The set of written bytes of a page.

use std::ops::Range;

const WORD: usize = u64::BITS as usize;

/// The bytes of a page that were written: one range, or one bit a byte where they do not touch each other. So it uses at most an
/// eighth of the page's size.
pub(super) struct Dirty {
    /// The first byte; `end` is behind the last one.
    start: u32,
    end: u32,
    /// A bit for each byte of the page, when not all between `start` and `end` were written.
    bits: Option<Box<[u64]>>,
}

impl Dirty {
    pub(super) fn new(range: Range<usize>) -> Dirty {
        Dirty { start: range.start as u32, end: range.end as u32, bits: None }
    }

    /// Returns the offset behind the last byte.
    pub(super) fn end(&self) -> usize {
        self.end as usize
    }

    /// Returns whether all of a page of that size was written.
    pub(super) fn is_whole(&self, page: usize) -> bool {
        self.bits.is_none() && self.start == 0 && self.end as usize == page
    }

    /// Returns the number of bytes written.
    pub(super) fn len(&self) -> usize {
        match &self.bits {
            None => (self.end - self.start) as usize,
            Some(bits) => bits.iter().map(|word| word.count_ones() as usize).sum(),
        }
    }

    /// Adds a range of a page of that size.
    pub(super) fn add(&mut self, range: Range<usize>, page: usize) {
        let (start, end) = (range.start as u32, range.end as u32);
        debug_assert!(start < end && end as usize <= page, "written bytes lie within their page");
        if self.bits.is_none() && (start > self.end || end < self.start) {
            let mut bits = vec![0; page.div_ceil(WORD)].into_boxed_slice();
            set(&mut bits, self.start as usize..self.end as usize);
            self.bits = Some(bits);
        }
        (self.start, self.end) = (self.start.min(start), self.end.max(end));
        if let Some(bits) = &mut self.bits {
            set(bits, range);
            if self.len() == (self.end - self.start) as usize {
                self.bits = None;
            }
        }
    }

    /// Returns the written ranges, in order.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let (mut at, end) = (self.start as usize, self.end());
        std::iter::from_fn(move || {
            let (start, stop) = match &self.bits {
                None => (at, end),
                Some(bits) => {
                    let start = next(bits, at, true).min(end);
                    (start, next(bits, start, false).min(end))
                }
            };
            at = stop;
            (start < stop).then_some(start..stop)
        })
    }
}

fn set(bits: &mut [u64], range: Range<usize>) {
    let mut at = range.start;
    while at < range.end {
        let (word, bit) = (at / WORD, at % WORD);
        let count = (WORD - bit).min(range.end - at);
        let mask = if count == WORD { u64::MAX } else { ((1 << count) - 1) << bit };
        if let Some(word) = bits.get_mut(word) {
            *word |= mask;
        }
        at += count;
    }
}

/// Returns the first bit from `at` on that is set, or is not set; the position behind the last bit without a match.
fn next(bits: &[u64], mut at: usize, wanted: bool) -> usize {
    while let Some(word) = bits.get(at / WORD) {
        let word = if wanted { *word } else { !*word } >> (at % WORD);
        if word != 0 {
            return at + word.trailing_zeros() as usize;
        }
        at = (at / WORD + 1) * WORD;
    }
    bits.len() * WORD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_a_set_of_bytes() {
        let mut seed = 0x9E37_79B9_7F4A_7C15u64;
        let mut below = |limit: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % limit) as usize
        };
        for page in [4096usize, 512, 100] {
            for _ in 0..200 {
                let mut model = vec![false; page];
                let mut dirty: Option<Dirty> = None;
                for _ in 0..1 + below(12) {
                    let start = below(page as u64);
                    let range = start..start + 1 + below((page - start).min(1 + page / 4) as u64);
                    model[range.clone()].fill(true);
                    match &mut dirty {
                        Some(dirty) => dirty.add(range, page),
                        None => dirty = Some(Dirty::new(range)),
                    }
                    let known = dirty.as_ref().unwrap();
                    let mut found = vec![false; page];
                    let mut last = None;
                    for range in known.ranges() {
                        assert!(last.is_none_or(|last| last < range.start), "in order and apart");
                        last = Some(range.end);
                        found[range].fill(true);
                    }
                    assert!(found == model);
                    assert_eq!(known.len(), model.iter().filter(|set| **set).count());
                    assert_eq!(known.is_whole(page), model.iter().all(|set| *set));
                    assert_eq!(known.end(), model.iter().rposition(|set| *set).map_or(0, |last| last + 1));
                }
            }
        }
    }
}
