//! The bytes of files: sparse, in pages that the live file, its log and the durable file share until one
//! changes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// Bytes of a page and of a block of the file system.
pub(super) const PAGE: u64 = 4096;

type Page = [u8; PAGE as usize];
const ZEROS: Page = [0; PAGE as usize];

/// The content by page; bytes that were never written are zero.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages(BTreeMap<u64, Rc<Page>>);

/// The effect of one write on one page: the page as it was right after the write, and the range of the
/// written bytes in it (whole sectors).
#[derive(Clone, Debug)]
pub(super) struct Piece {
    page: u64,
    inside: Range<usize>,
    /// `None`: zeros.
    content: Option<Rc<Page>>,
}

impl Piece {
    /// Returns the bytes' place in the file.
    pub(super) fn range(&self) -> Range<u64> {
        let start = self.page * PAGE;
        start + self.inside.start as u64..start + self.inside.end as u64
    }

    /// Returns the part of the piece that lies within `range`.
    pub(super) fn cut(&self, range: Range<u64>) -> Option<Piece> {
        let own = self.range();
        let (start, end) = (own.start.max(range.start), own.end.min(range.end));
        (start < end).then(|| {
            let first = self.page * PAGE;
            let inside = (start - first) as usize..(end - first) as usize;
            Piece { page: self.page, inside, content: self.content.clone() }
        })
    }
}

impl Pages {
    /// Fills `out` with the bytes from `offset` on.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
        let mut at = 0;
        while at < out.len() {
            let place = offset + at as u64;
            let inside = (place % PAGE) as usize;
            let step = (PAGE as usize - inside).min(out.len() - at);
            match self.0.get(&(place / PAGE)) {
                Some(page) => out[at..at + step].copy_from_slice(&page[inside..inside + step]),
                None => out[at..at + step].fill(0),
            }
            at += step;
        }
    }

    /// Writes `len` bytes that `source` provides; its arguments are the place in the write and the memory to
    /// fill. Returns the pieces written, widened to whole sectors.
    pub(super) fn write(
        &mut self,
        offset: u64,
        len: u64,
        sector: u64,
        mut source: impl FnMut(usize, &mut [u8]),
    ) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity((len / PAGE + 2) as usize);
        let mut at = 0;
        while at < len {
            let place = offset + at;
            let (page, start) = (place / PAGE, place % PAGE);
            let step = (PAGE - start).min(len - at);
            if step == PAGE {
                let mut whole = Rc::new(ZEROS);
                if let Some(bytes) = Rc::get_mut(&mut whole) {
                    source(at as usize, bytes);
                }
                self.set(page, (*whole != ZEROS).then_some(whole));
            } else {
                let content = Rc::make_mut(self.0.entry(page).or_insert_with(|| Rc::new(ZEROS)));
                source(at as usize, &mut content[start as usize..(start + step) as usize]);
            }
            let first = start / sector * sector;
            let last = (start + step).next_multiple_of(sector);
            let content = self.0.get(&page).cloned();
            pieces.push(Piece { page, inside: first as usize..last as usize, content });
            at += step;
        }
        pieces
    }

    /// Puts a piece in its place.
    pub(super) fn put(&mut self, piece: &Piece) {
        if piece.inside.len() as u64 == PAGE {
            self.set(piece.page, piece.content.clone());
            return;
        }
        let content = piece.content.as_deref().unwrap_or(&ZEROS);
        let page = Rc::make_mut(self.0.entry(piece.page).or_insert_with(|| Rc::new(ZEROS)));
        page[piece.inside.clone()].copy_from_slice(&content[piece.inside.clone()]);
    }

    /// Returns the bytes of `range` as pieces, as if they were written now.
    pub(super) fn pieces(&self, range: Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let (page, start) = (at / PAGE, at % PAGE);
            let end = PAGE.min(start + range.end - at);
            pieces.push(Piece {
                page,
                inside: start as usize..end as usize,
                content: self.0.get(&page).cloned(),
            });
            at += end - start;
        }
        pieces
    }

    /// Makes a range read as zeros, and forgets whole pages.
    pub(super) fn zero(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (first, last) = (range.start.div_ceil(PAGE), range.end / PAGE);
        if first < last {
            let gone: Vec<u64> = self.0.range(first..last).map(|(&page, _)| page).collect();
            for page in gone {
                self.0.remove(&page);
            }
        }
        let head = range.start..range.end.min(first.saturating_mul(PAGE));
        let tail = range.start.max(last * PAGE)..range.end;
        for edge in [head, tail] {
            if edge.is_empty() || (edge.start % PAGE == 0 && edge.end - edge.start == PAGE) {
                continue;
            }
            if let Some(page) = self.0.get_mut(&(edge.start / PAGE)) {
                let start = (edge.start % PAGE) as usize;
                Rc::make_mut(page)[start..start + (edge.end - edge.start) as usize].fill(0);
            }
        }
    }

    pub(super) fn flip(&mut self, offset: u64, bit: u32) {
        let page = Rc::make_mut(self.0.entry(offset / PAGE).or_insert_with(|| Rc::new(ZEROS)));
        page[(offset % PAGE) as usize] ^= 1 << (bit % 8);
    }

    /// Returns the numbers of the stored pages; all others are zeros that were never stored.
    pub(super) fn numbers(&self) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.0.keys().copied()
    }

    fn set(&mut self, page: u64, content: Option<Rc<Page>>) {
        match content {
            Some(content) => self.0.insert(page, content),
            None => self.0.remove(&page),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;

    #[test]
    fn agrees_with_plain_bytes() {
        let mut random = Source::new(11);
        let (mut pages, mut model) = (Pages::default(), vec![0u8; 40_000]);
        for round in 0..2_000u64 {
            let offset = random.below(30_000);
            let len = random.below(10_000);
            let range = offset as usize..(offset + len) as usize;
            match random.below(4) {
                0 => {
                    pages.zero(offset..offset + len);
                    model[range].fill(0);
                }
                1 => {
                    let mut bytes = vec![0; len as usize];
                    pages.read(offset, &mut bytes);
                    assert_eq!(bytes, model[range]);
                }
                _ => {
                    // Zeros now and then, which need no page.
                    let byte = |at: usize| if round % 5 == 0 { 0 } else { (round as usize * 7 + at) as u8 };
                    let pieces = pages.write(offset, len, 512, |at, out| {
                        out.iter_mut().enumerate().for_each(|(i, to)| *to = byte(at + i));
                    });
                    (0..len as usize).for_each(|at| model[offset as usize + at] = byte(at));
                    let mut other = Pages::default();
                    pieces.iter().for_each(|piece| other.put(piece));
                    let mut bytes = vec![0; len as usize];
                    other.read(offset, &mut bytes);
                    assert_eq!(bytes, model[range]);
                    assert!(pieces.iter().all(|piece| piece.range().start % 512 == 0));
                }
            }
        }
    }
}
