//! The free pages of one region: a buddy system over indices, so that it never touches the pages themselves.

use super::header::CLASSES;

/// Free pages of a region of any number of pages, in powers of two; a buffer of `2^class` pages starts at a multiple of its length.
/// Allocation and return are O(classes) and do not allocate.
pub(super) struct Buddy {
    pages: u32,
    free_pages: u32,
    /// Bit `class` is set when that list has an entry.
    lists: u32,
    /// First entry of each class's list, as page + 1; 0 is the end, so that untouched tables are zero pages.
    heads: [u32; CLASSES],
    next: Vec<u32>,
    previous: Vec<u32>,
    /// class + 1 at the first page of a free run, else 0.
    free_class: Vec<u8>,
}

impl Buddy {
    pub(super) fn new(pages: u32) -> Buddy {
        let mut buddy = Buddy {
            pages,
            free_pages: pages,
            lists: 0,
            heads: [0; CLASSES],
            next: vec![0; pages as usize],
            previous: vec![0; pages as usize],
            free_class: vec![0; pages as usize],
        };
        // From the end, so that the lowest run of each class is used first.
        let mut runs = Vec::new();
        let mut page = 0;
        while page < pages {
            let fits = (pages - page).ilog2();
            let class = page.trailing_zeros().min(fits).min(CLASSES as u32 - 1);
            runs.push((page, class as usize));
            page += 1 << class;
        }
        for (page, class) in runs.into_iter().rev() {
            buddy.link(page, class);
        }
        buddy
    }

    pub(super) fn free_pages(&self) -> u32 {
        self.free_pages
    }

    /// Allocates a run of `2^class` pages and returns its first page.
    pub(super) fn take(&mut self, class: usize) -> Option<u32> {
        let candidates = self.lists >> class;
        if candidates == 0 {
            return None;
        }
        let mut from = class + candidates.trailing_zeros() as usize;
        let page = self.heads[from] - 1;
        debug_assert!(self.free_pages >= 1 << class, "a run is free, so its pages are counted as free");
        self.unlink(page, from);
        while from > class {
            from -= 1;
            self.link(page + (1 << from), from);
        }
        self.free_pages -= 1 << class;
        Some(page)
    }

    /// Returns a run to the free pages and joins it with its free neighbours.
    pub(super) fn put(&mut self, mut page: u32, mut class: usize) {
        debug_assert!(page + (1 << class) <= self.pages && page.is_multiple_of(1 << class));
        debug_assert_eq!(self.free_class[page as usize], 0, "page {page} is free already");
        self.free_pages += 1 << class;
        debug_assert!(self.free_pages <= self.pages, "no more pages are free than the region has");
        while class + 1 < CLASSES {
            let other = page ^ (1 << class);
            let whole = other.checked_add(1 << class).is_some_and(|end| end <= self.pages);
            if !whole || usize::from(self.free_class[other as usize]) != class + 1 {
                break;
            }
            self.unlink(other, class);
            page = page.min(other);
            class += 1;
        }
        self.link(page, class);
    }

    fn link(&mut self, page: u32, class: usize) {
        debug_assert!(page.is_multiple_of(1 << class), "a run starts at a multiple of its own length");
        debug_assert_eq!(self.free_class[page as usize], 0, "page {page} is in one list at most");
        let head = self.heads[class];
        self.next[page as usize] = head;
        self.previous[page as usize] = 0;
        if head != 0 {
            self.previous[head as usize - 1] = page + 1;
        }
        self.heads[class] = page + 1;
        self.free_class[page as usize] = class as u8 + 1;
        self.lists |= 1 << class;
    }

    fn unlink(&mut self, page: u32, class: usize) {
        debug_assert_eq!(
            usize::from(self.free_class[page as usize]),
            class + 1,
            "page {page} is in that list"
        );
        let (next, previous) = (self.next[page as usize], self.previous[page as usize]);
        match previous {
            0 => self.heads[class] = next,
            _ => self.next[previous as usize - 1] = next,
        }
        if next != 0 {
            self.previous[next as usize - 1] = previous;
        }
        if self.heads[class] == 0 {
            self.lists &= !(1 << class);
        }
        self.free_class[page as usize] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_pages_is_used_to_the_last() {
        let sizes: &[u32] =
            if cfg!(miri) { &[1, 2, 3, 7, 65] } else { &[1, 2, 3, 4, 5, 7, 512, 513, 1000, 2048 + 3] };
        for &pages in sizes {
            let mut buddy = Buddy::new(pages);
            let mut taken: Vec<u32> = std::iter::from_fn(|| buddy.take(0)).collect();
            assert_eq!(buddy.free_pages(), 0);
            taken.sort_unstable();
            assert_eq!(taken, (0..pages).collect::<Vec<_>>());
            for page in taken {
                buddy.put(page, 0);
            }
            assert_eq!(buddy.free_pages(), pages);
            let largest = pages.ilog2() as usize;
            assert_eq!(buddy.take(largest), Some(0), "{pages} pages joined again");
        }
    }

    #[test]
    fn against_a_model() {
        const PAGES: u32 = 777;
        let mut buddy = Buddy::new(PAGES);
        let mut owner = vec![0u32; PAGES as usize];
        let mut live: Vec<(u32, usize, u32)> = Vec::new();
        let mut random = super::super::tests::Random(7);
        for id in 1..if cfg!(miri) { 500 } else { 50_000 } {
            if random.below(5) < 3 {
                let class = random.below(7) as usize;
                if let Some(page) = buddy.take(class) {
                    assert_eq!(page % (1 << class), 0);
                    for slot in &mut owner[page as usize..page as usize + (1 << class)] {
                        assert_eq!(std::mem::replace(slot, id), 0, "handed out twice");
                    }
                    live.push((page, class, id));
                }
            } else if !live.is_empty() {
                let (page, class, id) = live.swap_remove(random.below(live.len() as u64) as usize);
                for slot in &mut owner[page as usize..page as usize + (1 << class)] {
                    assert_eq!(std::mem::replace(slot, 0), id);
                }
                buddy.put(page, class);
            }
            let used: u32 = live.iter().map(|(_, class, _)| 1 << class).sum();
            assert_eq!(buddy.free_pages(), PAGES - used);
        }
    }
}
