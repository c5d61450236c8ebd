//! Reads a file of bbolt: [`Reader`], and [`Cursor`] for the pairs of a bucket.
//!
//! The file may be any bytes. A page is read when a cursor reaches it, so a cursor holds one page of each level of its tree, and no
//! more than [`LEVELS_BYTES_MAX`] of them together, for any length of the file. A tree has each page once, and a page each byte
//! once: the output of a cursor is not longer than the file. Pages have no checksums: damage of a key or value that leaves the tree
//! whole is not seen here.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{BRANCH, ELEMENT_BYTES, HEADER_BYTES, IS_BUCKET, LEAF, MAGIC, META, VERSION, fnv1a};

/// The pages of a cursor, with their overflow, are not longer together: a longer sum counts as damage. bbolt divides a long leaf of
/// more than four elements, so the limit allows values of 31 MiB, and this server accepts less than 7 MiB.
const LEVELS_BYTES_MAX: u64 = 128 << 20;
/// bbolt divides a branch of more than four keys if it is longer than a page, and a key has at most 32 KiB.
const BRANCH_BYTES_MAX: u64 = 1 << 20;
/// A tree of more levels would have more elements than the file has bytes.
const LEVELS_MAX: usize = 32;
/// Sizes of pages in use. The second page of meta is at this place.
const PAGE_SIZES: [u64; 7] = [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// The head of a bucket's value: the root of its tree, and a sequence.
const BUCKET_BYTES: usize = 16;

/// A file, of which buckets of the first level are read.
#[derive(Debug)]
pub(crate) struct Reader {
    file: File,
    path: PathBuf,
    page_bytes: u64,
    /// Pages that the newest transaction has used.
    pages: u64,
    root: u64,
}

/// Where a bucket's pairs are.
enum Bucket {
    Tree(u64),
    /// A small bucket is in its value.
    Inline(Page),
}

struct Page {
    /// None for a small bucket.
    number: Option<u64>,
    bytes: Vec<u8>,
    is_leaf: bool,
    elements: usize,
    next: usize,
    /// Bytes that elements may still have.
    left: usize,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// A pair of a bucket.
struct Element<'a> {
    is_bucket: bool,
    key: &'a [u8],
    value: &'a [u8],
}

impl Page {
    /// Returns how many pages of the file it has with its overflow.
    fn pages(&self, reader: &Reader) -> u64 {
        if self.number.is_some() { self.bytes.len() as u64 / reader.page_bytes } else { 0 }
    }

    /// Returns an element of a leaf; `None` if it is not within the page.
    fn element(&self, at: usize) -> Option<Element<'_>> {
        let head = HEADER_BYTES + at * ELEMENT_BYTES;
        let field = |number: usize| u32_at(&self.bytes, head + 4 * number);
        let key_at = head.checked_add(field(1)? as usize)?;
        let value_at = key_at.checked_add(field(2)? as usize)?;
        let end = value_at.checked_add(field(3)? as usize)?;
        let (key, value) = (self.bytes.get(key_at..value_at)?, self.bytes.get(value_at..end)?);
        Some(Element { is_bucket: field(0)? & IS_BUCKET != 0, key, value })
    }

    /// Returns a child of a branch; `None` if it is not within the page.
    fn child(&self, at: usize) -> Option<u64> {
        u64_at(&self.bytes, HEADER_BYTES + at * ELEMENT_BYTES + 8)
    }
}

/// The numbers of a page of meta.
struct Meta {
    page_bytes: u64,
    root: u64,
    pages: u64,
    transaction: u64,
}

impl Meta {
    fn of(bytes: &[u8]) -> Option<Meta> {
        let meta = bytes.get(HEADER_BYTES..)?;
        let is_meta = u32_at(bytes, 8)? as u16 == META && u32_at(meta, 0)? == MAGIC;
        if !is_meta || u32_at(meta, 4)? != VERSION || fnv1a(meta.get(..56)?) != u64_at(meta, 56)? {
            return None;
        }
        Some(Meta {
            page_bytes: u64::from(u32_at(meta, 8)?),
            root: u64_at(meta, 16)?,
            pages: u64_at(meta, 40)?,
            transaction: u64_at(meta, 48)?,
        })
    }
}

impl Reader {
    /// Opens the first `file_bytes` of a file, and chooses the newer of both meta pages that is whole. `path` is for the errors.
    ///
    /// # Errors
    /// The file has another format, it is truncated, or it cannot be read.
    pub(crate) fn open(file: File, path: &Path, file_bytes: u64) -> io::Result<Reader> {
        let mut found: Option<Meta> = None;
        for place in std::iter::once(0).chain(PAGE_SIZES) {
            let mut bytes = [0; HEADER_BYTES + 64];
            if place + bytes.len() as u64 > file_bytes {
                break;
            }
            file.read_exact_at(&mut bytes, place)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
            let meta = Meta::of(&bytes).filter(|meta| {
                PAGE_SIZES.contains(&meta.page_bytes) && (place == 0 || place == meta.page_bytes)
            });
            if let Some(meta) = meta
                && found.as_ref().is_none_or(|newest| meta.transaction > newest.transaction)
            {
                found = Some(meta);
            }
        }
        let mut reader = Reader { file, path: path.to_path_buf(), page_bytes: 0, pages: 0, root: 0 };
        let Some(Meta { page_bytes, root, pages, .. }) = found else {
            let text =
                "no page of it has the mark of a bbolt file: give a snapshot of etcd, or of this server";
            return Err(reader.damaged(None, text));
        };
        if pages.checked_mul(page_bytes).is_none_or(|bytes| bytes > file_bytes) {
            let text =
                format!("it has {file_bytes} bytes, and should have {pages} pages of {page_bytes} bytes");
            return Err(reader.damaged(None, &text));
        }
        (reader.page_bytes, reader.pages, reader.root) = (page_bytes, pages, root);
        Ok(reader)
    }

    fn damaged(&self, page: Option<u64>, text: &str) -> io::Error {
        let place = page.map_or(String::new(), |page| format!(", page {page}"));
        io::Error::new(io::ErrorKind::InvalidData, format!("{}{place}: {text}", self.path.display()))
    }

    /// Reads a page that has at most this many bytes.
    fn page(&self, number: u64, bytes_max: u64) -> io::Result<Page> {
        let failed = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}, page {number}: {error}", self.path.display()))
        };
        let outside = || self.damaged(Some(number), "it is outside of the file");
        let mut head = [0; HEADER_BYTES];
        if number >= self.pages {
            return Err(outside());
        }
        self.file.read_exact_at(&mut head, number * self.page_bytes).map_err(failed)?;
        let overflow = u64::from(u32_at(&head, 12).unwrap_or_default());
        if number + overflow >= self.pages {
            return Err(outside());
        }
        let bytes = (overflow + 1) * self.page_bytes;
        // Before memory is allocated for it.
        let is_branch = u32_at(&head, 8).is_some_and(|counts| counts as u16 == BRANCH);
        if bytes > if is_branch { bytes_max.min(BRANCH_BYTES_MAX) } else { bytes_max } {
            return Err(self.damaged(Some(number), &format!("its {bytes} bytes are too many")));
        }
        if u64_at(&head, 0) != Some(number) {
            return Err(self.damaged(Some(number), "it is named as another page"));
        }
        let mut all = vec![0; bytes as usize];
        self.file.read_exact_at(&mut all, number * self.page_bytes).map_err(failed)?;
        self.page_of(Some(number), all)
    }

    fn page_of(&self, number: Option<u64>, bytes: Vec<u8>) -> io::Result<Page> {
        let Some(counts) = u32_at(&bytes, 8).filter(|_| bytes.len() >= HEADER_BYTES) else {
            return Err(self.damaged(number, "it is shorter than a page's head"));
        };
        let (kind, elements) = (counts as u16, (counts >> 16) as usize);
        if kind != LEAF && (kind != BRANCH || number.is_none()) {
            return Err(self.damaged(number, &format!("a tree refers to it, but its kind is {kind:#x}")));
        }
        let left = bytes.len().saturating_sub(HEADER_BYTES + elements * ELEMENT_BYTES);
        Ok(Page { number, bytes, is_leaf: kind == LEAF, elements, next: 0, left })
    }

    /// Returns the names of all buckets.
    ///
    /// # Errors
    /// Damage, and the system's.
    #[cfg(test)]
    pub(crate) fn buckets(&self) -> io::Result<Vec<String>> {
        let (mut names, mut all) = (Vec::new(), Cursor::new(self, Bucket::Tree(self.root))?);
        while let Some(element) = all.next_element()? {
            if element.is_bucket {
                names.push(String::from_utf8_lossy(element.key).into_owned());
            }
        }
        Ok(names)
    }

    /// Returns a cursor before the first pair of a bucket; `None` if the bucket does not exist.
    ///
    /// # Errors
    /// Damage, and the system's.
    pub(crate) fn bucket(&self, name: &str) -> io::Result<Option<Cursor<'_>>> {
        let mut all = Cursor::new(self, Bucket::Tree(self.root))?;
        let value = loop {
            match all.next_element()? {
                Some(element) if element.is_bucket && element.key == name.as_bytes() => {
                    let bytes = element.value.len().min(self.page_bytes as usize + 1);
                    break element.value[..bytes].to_vec();
                }
                Some(_) => {}
                None => return Ok(None),
            }
        };
        let bucket = match u64_at(&value, 0) {
            // bbolt's are at most a quarter of a page.
            Some(0) if value.len() as u64 > self.page_bytes => {
                return Err(self.damaged(None, &format!("the bucket {name} is longer than a page")));
            }
            Some(0) => Bucket::Inline(self.page_of(None, value.get(BUCKET_BYTES..).unwrap_or(&[]).to_vec())?),
            Some(root) => Bucket::Tree(root),
            None => return Err(self.damaged(None, &format!("the bucket {name} has no root"))),
        };
        Cursor::new(self, bucket).map(Some)
    }
}

/// Iterates over a bucket in the order of its keys.
pub(crate) struct Cursor<'a> {
    reader: &'a Reader,
    /// From the root to a leaf.
    levels: Vec<Page>,
    /// Pages that were read, with their overflow. A tree has each page once, so a cursor that reads more than the file is in a
    /// cycle.
    read: u64,
    last_key: Option<Vec<u8>>,
}

impl<'a> Cursor<'a> {
    fn new(reader: &'a Reader, bucket: Bucket) -> io::Result<Cursor<'a>> {
        let root = match bucket {
            Bucket::Tree(root) => reader.page(root, LEVELS_BYTES_MAX)?,
            Bucket::Inline(page) => page,
        };
        let read = root.pages(reader);
        Ok(Cursor { reader, levels: vec![root], read, last_key: None })
    }

    /// Returns the next pair; `None` after the last one.
    ///
    /// # Errors
    /// Damage, such as keys that do not ascend, and the system's.
    pub(crate) fn next(&mut self) -> io::Result<Option<(&[u8], &[u8])>> {
        let reader = self.reader;
        let Some(Element { is_bucket, key, value }) = self.next_element()? else { return Ok(None) };
        if is_bucket {
            return Err(reader.damaged(None, "a bucket of etcd has another one in it"));
        }
        Ok(Some((key, value)))
    }

    fn next_element(&mut self) -> io::Result<Option<Element<'_>>> {
        loop {
            let depth = self.levels.len();
            let Some(page) = self.levels.last_mut() else { return Ok(None) };
            if page.next == page.elements {
                self.levels.pop();
                continue;
            }
            let (at, number) = (page.next, page.number);
            page.next += 1;
            if page.is_leaf {
                break self.at(at).map(Some);
            }
            let child = page.child(at);
            let short = || self.reader.damaged(number, "it is shorter than its elements");
            let child = child.ok_or_else(short)?;
            let in_circles = || self.reader.damaged(number, "its tree goes in circles");
            if depth == LEVELS_MAX || self.read >= self.reader.pages {
                return Err(in_circles());
            }
            let held: u64 = self.levels.iter().map(|page| page.bytes.len() as u64).sum();
            let page = self.reader.page(child, LEVELS_BYTES_MAX.saturating_sub(held))?;
            self.read += page.pages(self.reader);
            if self.read > self.reader.pages {
                return Err(in_circles());
            }
            if page.elements == 0 {
                return Err(self.reader.damaged(page.number, "it has no elements, and is not the root"));
            }
            self.levels.push(page);
        }
    }

    /// Returns an element of the leaf, and notes its key.
    fn at(&mut self, at: usize) -> io::Result<Element<'_>> {
        let Some(page) = self.levels.last_mut() else {
            return Err(self.reader.damaged(None, "a tree has no leaf"));
        };
        let Some(bytes) = page.element(at).map(|element| element.key.len() + element.value.len()) else {
            return Err(self.reader.damaged(page.number, "an element goes beyond it"));
        };
        let Some(left) = page.left.checked_sub(bytes) else {
            return Err(self.reader.damaged(page.number, "its elements share bytes"));
        };
        page.left = left;
        let Some(element) = page.element(at) else {
            return Err(self.reader.damaged(page.number, "an element goes beyond it"));
        };
        if self.last_key.as_ref().is_some_and(|last| **last >= *element.key) {
            return Err(self.reader.damaged(page.number, "its keys do not ascend"));
        }
        let last = self.last_key.get_or_insert_default();
        last.clear();
        last.extend_from_slice(element.key);
        Ok(element)
    }
}
