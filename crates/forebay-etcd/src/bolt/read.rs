//! Reads a file of bbolt.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{BRANCH, ELEMENT_BYTES, HEADER_BYTES, IS_BUCKET, LEAF, MAGIC, META, VERSION, damaged, fnv1a};

/// Longer elements are taken for damage.
const PAGES_BYTES_MAX: u64 = 1 << 30;
/// A tree of more levels would have more elements than there are bytes.
const LEVELS_MAX: usize = 32;

/// A file, of which buckets of the first level are read.
#[derive(Debug)]
pub(crate) struct Reader {
    file: File,
    file_bytes: u64,
    page_bytes: u64,
    root: u64,
}

/// Calls back for flags, key and value of an element.
type Each<'a> = &'a mut dyn FnMut(u32, &[u8], &[u8]) -> io::Result<()>;

struct Page {
    bytes: Vec<u8>,
    kind: u16,
    elements: usize,
}

fn u32_at(bytes: &[u8], at: usize) -> io::Result<u32> {
    let field = bytes.get(at..at + 4).and_then(|field| field.try_into().ok());
    field.map(u32::from_le_bytes).ok_or_else(|| damaged("a page is too short for its elements"))
}

fn u64_at(bytes: &[u8], at: usize) -> io::Result<u64> {
    let field = bytes.get(at..at + 8).and_then(|field| field.try_into().ok());
    field.map(u64::from_le_bytes).ok_or_else(|| damaged("a page is too short for its elements"))
}

impl Page {
    fn of(bytes: Vec<u8>) -> io::Result<Page> {
        let counts = u32_at(&bytes, 8)?;
        Ok(Page { kind: counts as u16, elements: (counts >> 16) as usize, bytes })
    }

    /// Returns the bytes at an element's place, from `from` on.
    fn part(&self, element: usize, place: u32, from: u32, bytes: u32) -> io::Result<&[u8]> {
        let begin = element as u64 + u64::from(place) + u64::from(from);
        let range = begin as usize..(begin + u64::from(bytes)) as usize;
        self.bytes.get(range).ok_or_else(|| damaged("an element is longer than its page"))
    }

    fn each_of_leaf(&self, each: Each<'_>) -> io::Result<()> {
        for at in 0..self.elements {
            let element = HEADER_BYTES + at * ELEMENT_BYTES;
            let field = |number: usize| u32_at(&self.bytes, element + 4 * number);
            let (place, key_bytes, value_bytes) = (field(1)?, field(2)?, field(3)?);
            let key = self.part(element, place, 0, key_bytes)?;
            each(field(0)?, key, self.part(element, place, key_bytes, value_bytes)?)?;
        }
        Ok(())
    }
}

impl Reader {
    /// Opens a file, and chooses the newer of both meta pages that is whole.
    pub(crate) fn open(path: &Path) -> io::Result<Reader> {
        let file = File::open(path)?;
        let file_bytes = file.metadata()?.len();
        let mut found: Option<(u64, u32, u64)> = None;
        // The second page is at the page's size, which the first one has. Those in use: 4 to 64 KiB.
        for place in [0, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10] {
            let mut bytes = [0; HEADER_BYTES + 64];
            if place + bytes.len() as u64 > file_bytes {
                break;
            }
            file.read_exact_at(&mut bytes, place)?;
            let meta = &bytes[HEADER_BYTES..];
            let is_meta = u32_at(&bytes, 8)? as u16 == META && u32_at(meta, 0)? == MAGIC;
            if !is_meta || u32_at(meta, 4)? != VERSION || fnv1a(&meta[..56]) != u64_at(meta, 56)? {
                continue;
            }
            let (page_bytes, root, transaction) = (u32_at(meta, 8)?, u64_at(meta, 16)?, u64_at(meta, 48)?);
            if found.is_none_or(|(newest, _, _)| transaction > newest) {
                found = Some((transaction, page_bytes, root));
            }
        }
        let Some((_, page_bytes, root)) = found else {
            return Err(damaged(
                "no page of it has the mark of a bbolt file: give a snapshot of etcd, or of this server",
            ));
        };
        if !page_bytes.is_power_of_two() || page_bytes < 1 << 10 {
            return Err(damaged(format!("pages of {page_bytes} bytes are none")));
        }
        Ok(Reader { file, file_bytes, page_bytes: page_bytes.into(), root })
    }

    fn page(&self, number: u64) -> io::Result<Page> {
        let outside = || damaged(format!("page {number} is outside of the file"));
        let begin = number.checked_mul(self.page_bytes).ok_or_else(outside)?;
        let mut head = [0; HEADER_BYTES];
        if begin.saturating_add(self.page_bytes) > self.file_bytes {
            return Err(outside());
        }
        self.file.read_exact_at(&mut head, begin)?;
        let bytes = (u64::from(u32_at(&head, 12)?) + 1) * self.page_bytes;
        if bytes > PAGES_BYTES_MAX || begin + bytes > self.file_bytes {
            return Err(outside());
        }
        if u64_at(&head, 0)? != number {
            return Err(damaged(format!("page {number} is named as another one")));
        }
        let mut all = vec![0; bytes as usize];
        self.file.read_exact_at(&mut all, begin)?;
        Page::of(all)
    }

    /// Goes over a tree in the order of its keys.
    fn walk(&self, root: u64, each: Each<'_>) -> io::Result<()> {
        // Children that are left of each level, in reverse.
        let mut left = vec![vec![root]];
        let mut seen = HashSet::new();
        while let Some(level) = left.last_mut() {
            let Some(number) = level.pop() else {
                left.pop();
                continue;
            };
            if !seen.insert(number) || left.len() > LEVELS_MAX {
                return Err(damaged(format!("page {number} is in its tree twice")));
            }
            let page = self.page(number)?;
            match page.kind {
                LEAF => page.each_of_leaf(each)?,
                BRANCH => {
                    let child = |at: usize| u64_at(&page.bytes, HEADER_BYTES + at * ELEMENT_BYTES + 8);
                    left.push((0..page.elements).rev().map(child).collect::<io::Result<_>>()?);
                }
                kind => return Err(damaged(format!("page {number} of a tree is of kind {kind:#x}"))),
            }
        }
        Ok(())
    }

    /// Returns the names of all buckets.
    pub(crate) fn buckets(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        self.walk(self.root, &mut |flags, name, _| {
            if flags & IS_BUCKET != 0 {
                names.push(String::from_utf8_lossy(name).into_owned());
            }
            Ok(())
        })?;
        Ok(names)
    }

    /// Calls `each` for all pairs of a bucket, in the order of their keys. A bucket that is not there has none.
    pub(crate) fn each(
        &mut self,
        bucket: &str,
        mut each: impl FnMut(&[u8], &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut found: Option<Vec<u8>> = None;
        self.walk(self.root, &mut |flags, name, value| {
            if flags & IS_BUCKET != 0 && name == bucket.as_bytes() {
                found = Some(value.to_vec());
            }
            Ok(())
        })?;
        let Some(value) = found else { return Ok(()) };
        let mut pair = |_, key: &[u8], value: &[u8]| each(key, value);
        match u64_at(&value, 0)? {
            // A small bucket is in its value.
            0 => Page::of(value[16..].to_vec())?.each_of_leaf(&mut pair),
            root => self.walk(root, &mut pair),
        }
    }
}
