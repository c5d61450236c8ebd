use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::Path;

use super::*;

type Buckets = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

fn write(buckets: &Buckets) -> Vec<u8> {
    let (mut writer, mut out) = (Writer::new(), Vec::new());
    for (name, pairs) in buckets {
        pairs.iter().for_each(|(key, value)| writer.add(key, value, &mut out));
        writer.end_bucket(name, &mut out);
    }
    let meta = writer.end(&mut out);
    let file = [meta.first_pages(), out].concat();
    assert_eq!(file.len() as u64, meta.file_bytes());
    file
}

fn open(file: &[u8]) -> io::Result<Reader> {
    let mut at = tempfile::tempfile()?;
    at.write_all(file)?;
    Reader::open(at, Path::new("file"), file.len() as u64)
}

fn read(file: &[u8]) -> io::Result<Buckets> {
    let reader = open(file)?;
    let mut buckets = Buckets::new();
    for name in reader.buckets()? {
        let mut pairs = BTreeMap::new();
        // A damaged name is not found again under the text that was made of it.
        let Some(mut cursor) = reader.bucket(&name)? else { continue };
        while let Some((key, value)) = cursor.next()? {
            assert!(pairs.insert(key.to_vec(), value.to_vec()).is_none());
        }
        buckets.insert(name, pairs);
    }
    Ok(buckets)
}

fn buckets(pairs: usize, value_bytes: usize) -> Buckets {
    let pair = |at: usize| {
        let key = format!("key {:06}", at * 7).into_bytes();
        (key, vec![at as u8; (at * 37) % (value_bytes + 1)])
    };
    let key = ("key".to_owned(), (0..pairs).map(pair).collect());
    let lease = ("lease".to_owned(), BTreeMap::from([(vec![1], vec![2; 9_000])]));
    BTreeMap::from([("alarm".to_owned(), BTreeMap::new()), key, lease])
}

#[test]
fn what_was_written_is_read() {
    for (pairs, value_bytes) in [(0, 0), (1, 10), (40, 200), (3_000, 300), (500, 20_000), (20_000, 20)] {
        let buckets = buckets(pairs, value_bytes);
        assert_eq!(read(&write(&buckets)).unwrap(), buckets, "{pairs} of up to {value_bytes}");
    }
}

/// Story: a snapshot of 30 GB was saved from a server with 512 MiB. The writer kept the first key of each page until the end of the bucket,
/// together more than that, and the server was ended for lack of memory.
#[test]
fn a_bucket_of_any_length_has_a_page_a_level_in_memory() {
    // A page has three of these keys, so the tree has seven levels.
    let key = |at: usize| format!("{at:06} {}", "k".repeat(1_200)).into_bytes();
    let (mut writer, mut out, mut most) = (Writer::new(), Vec::new(), 0);
    for at in 0..3_000 {
        writer.add(&key(at), b"value", &mut out);
        most = most.max(writer.branches.iter().map(PageBuilder::bytes).sum::<usize>());
    }
    assert!(most <= 8 * PAGE_BYTES, "{most} bytes");
    writer.end_bucket("key", &mut out);
    let meta = writer.end(&mut out);
    let reader = open(&[meta.first_pages(), out].concat()).unwrap();
    let (mut cursor, mut count) = (reader.bucket("key").unwrap().unwrap(), 0);
    while let Some((found, value)) = cursor.next().unwrap() {
        assert_eq!((found, value), (&key(count)[..], &b"value"[..]));
        count += 1;
    }
    assert_eq!(count, 3_000);
}

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// A reader of files from elsewhere meets any bytes: it returns an error that names the file, and neither panics nor loops. Damage
/// of keys and values alone is not seen: pages have no checksums.
#[test]
fn damage_is_an_error() {
    let whole = write(&buckets(300, 3_000));
    let (mut random, mut found) = (Random(1), 0);
    for _ in 0..3_000 {
        let mut file = whole.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(file.len());
            file[at] = random.below(256) as u8;
            // The heads of pages more often than what they hold.
            let page = random.below(file.len() / PAGE_BYTES);
            file[page * PAGE_BYTES + random.below(40)] = random.below(256) as u8;
        }
        if random.below(8) == 0 {
            file.truncate(random.below(file.len()));
        }
        if let Err(error) = read(&file) {
            assert!(error.to_string().starts_with("file"), "{error}");
            found += 1;
        }
    }
    assert!(found > 2_000, "{found} of 3,000 were found");
}

#[test]
fn what_is_no_such_file_is_refused() {
    let whole = write(&buckets(300, 3_000));
    let text = |file: &[u8]| read(file).unwrap_err().to_string();
    let no_mark =
        "file: no page of it has the mark of a bbolt file: give a snapshot of etcd, or of this server";
    for other in [&b""[..], b"not such a file", &[0xff; 100_000]] {
        assert_eq!(text(other), no_mark);
    }
    let short = format!(
        "file: it has {PAGE_BYTES} bytes, and should have {} pages of {PAGE_BYTES} bytes",
        whole.len() / PAGE_BYTES
    );
    assert_eq!(text(&whole[..PAGE_BYTES]), short);
    let mut both = whole.clone();
    both[20] ^= 1;
    assert!(read(&both).is_ok(), "the other meta page is whole");
    both[PAGE_BYTES + 20] ^= 1;
    assert_eq!(text(&both), no_mark);
}

/// A tree whose pages name each other is read once, and ends. Without a bound this tree had 100 to the power of 31 pages.
#[test]
fn trees_that_go_in_circles_end() {
    let (mut writer, mut out) = (Writer::new(), Vec::new());
    for at in 0..20_000_u32 {
        writer.add(&at.to_be_bytes(), b"value", &mut out);
    }
    writer.end_bucket("key", &mut out);
    let meta = writer.end(&mut out);
    let file = [meta.first_pages(), out].concat();
    let is_branch = |page: &&usize| file[**page * PAGE_BYTES + 8] == BRANCH as u8;
    let pages: Vec<usize> = (3..file.len() / PAGE_BYTES).collect();
    let root = *pages.iter().rfind(is_branch).unwrap();
    let leaf = *pages.iter().find(|page| file[**page * PAGE_BYTES + 8] == LEAF as u8).unwrap();
    let with_children = |child: usize, is_leaf_empty: bool| {
        let mut file = file.clone();
        for element in 0..usize::from(file[root * PAGE_BYTES + 10]) {
            let at = root * PAGE_BYTES + HEADER_BYTES + element * ELEMENT_BYTES + 8;
            file[at..at + 8].copy_from_slice(&(child as u64).to_le_bytes());
        }
        if is_leaf_empty {
            file[leaf * PAGE_BYTES + 10..leaf * PAGE_BYTES + 12].fill(0);
        }
        read(&file).unwrap_err().to_string()
    };
    let ends = |error: &str, text: &str| assert!(error.ends_with(text), "{error}");
    ends(&with_children(root, false), "its tree goes in circles");
    ends(&with_children(leaf, false), "its keys do not ascend");
    ends(&with_children(leaf, true), "it has no elements, and is not the root");
}

fn leaf(pairs: &[(&[u8], &[u8])]) -> PageBuilder {
    let mut leaf = PageBuilder::default();
    pairs.iter().for_each(|(key, value)| leaf.add(leaf_head(0, key, value), key, value));
    leaf
}

/// A file whose bucket "key" has its root at page 4, where these pages start, and whose length is `pages`. The rest is zero.
fn crafted(trees: &[u8], pages: u64) -> Reader {
    let mut all = PageBuilder::default();
    let value = [4_u64.to_le_bytes(), [0; 8]].concat();
    all.add(leaf_head(IS_BUCKET, b"key", &value), b"key", &value);
    let meta = Meta { root: 3, pages };
    let mut out = meta.first_pages();
    all.write(3, LEAF, &mut out);
    out.extend(trees);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&out).unwrap();
    file.set_len(meta.file_bytes()).unwrap();
    Reader::open(file, Path::new("file"), meta.file_bytes()).unwrap()
}

/// Returns how many bytes the bucket "key" has, and the error at which it ends.
fn read_key(reader: &Reader) -> (usize, Option<String>) {
    let mut bytes = 0;
    let mut cursor = match reader.bucket("key") {
        Ok(cursor) => cursor.unwrap(),
        Err(error) => return (bytes, Some(error.to_string())),
    };
    loop {
        match cursor.next() {
            Ok(Some((key, value))) => bytes += key.len() + value.len(),
            Ok(None) => return (bytes, None),
            Err(error) => return (bytes, Some(error.to_string())),
        }
    }
}

/// As etcd with a high `--max-request-bytes` writes them: up to four long values are in a page.
#[test]
fn long_values_are_read() {
    let value = vec![7; 9 << 20];
    let four = leaf(&[(b"a", &value), (b"b", &value), (b"c", &value), (b"d", &value)]);
    let mut tree = Vec::new();
    let pages = four.write(4, LEAF, &mut tree);
    assert_eq!(read_key(&crafted(&tree, 4 + pages)), (4 * ((9 << 20) + 1), None));
}

/// Once, a cursor had memory for 32 levels of pages of up to 256 MiB each, in a file that need not be longer than one of them.
#[test]
fn pages_are_not_longer_together_than_the_budget() {
    let with_overflow = |builder: &PageBuilder, number: u64, kind: u16, bytes: u64| {
        let mut page = Vec::new();
        assert_eq!(builder.write(number, kind, &mut page), 1);
        let overflow = (bytes / PAGE_BYTES as u64 - 1) as u32;
        page[12..16].copy_from_slice(&overflow.to_le_bytes());
        page
    };
    let mut branch = PageBuilder::default();
    branch.add(branch_head(b"a", 5), b"a", &[]);
    let pages = |bytes: u64| bytes / PAGE_BYTES as u64;
    // A branch, by itself.
    let long_branch = with_overflow(&branch, 4, BRANCH, 2 << 20);
    let (_, error) = read_key(&crafted(&long_branch, 4 + pages(2 << 20)));
    assert_eq!(error.unwrap(), "file, page 4: its 2097152 bytes are too many");
    // A leaf: alone it is as long as the budget, and below a branch it is too long. Only its head is read.
    let short_branch = with_overflow(&branch, 4, BRANCH, 4096);
    let long_leaf = with_overflow(&leaf(&[(b"a", b"value")]), 5, LEAF, 128 << 20);
    let tree = [short_branch, long_leaf].concat();
    let (_, error) = read_key(&crafted(&tree, 5 + pages(128 << 20)));
    assert_eq!(error.unwrap(), "file, page 5: its 134217728 bytes are too many");
    // A bucket in a value, which would be in memory three times.
    let value = [[0; 16].to_vec(), vec![0; 100_000]].concat();
    let mut writer = PageBuilder::default();
    writer.add(leaf_head(IS_BUCKET, b"key", &value), b"key", &value);
    let mut out = Vec::new();
    let pages = 3 + writer.write(3, LEAF, &mut out);
    let file = [Meta { root: 3, pages }.first_pages(), out].concat();
    let error = open(&file).unwrap().bucket("key").err().unwrap().to_string();
    assert_eq!(error, "file: the bucket key is longer than a page");
}

/// Once, pages and elements could have the same bytes, so that a short file had a state of any length.
#[test]
fn a_file_does_not_have_more_than_its_length() {
    let value = vec![b'v'; 2000];
    let mut shared = Vec::new();
    leaf(&[(b"a", &value), (b"b", &value)]).write(4, LEAF, &mut shared);
    shared[HEADER_BYTES + 12..HEADER_BYTES + 16].copy_from_slice(&4000_u32.to_le_bytes());
    let (_, error) = read_key(&crafted(&shared, 5));
    assert_eq!(error.unwrap(), "file, page 4: its elements share bytes");

    // Leaves that have all that follows as their overflow.
    let (last, mut branch, mut tree) = (64_u64, PageBuilder::default(), Vec::new());
    for number in 5..=last {
        let key = [number as u8];
        branch.add(branch_head(&key, number), &key, &[]);
        leaf(&[(&key, &value)]).write(number, LEAF, &mut tree);
        let begin = tree.len() - PAGE_BYTES;
        let bytes = (last - number) as u32 * PAGE_BYTES as u32 + 2000;
        tree[begin + 12..begin + 16].copy_from_slice(&((last - number) as u32).to_le_bytes());
        tree[begin + HEADER_BYTES + 12..begin + HEADER_BYTES + 16].copy_from_slice(&bytes.to_le_bytes());
    }
    let mut root = Vec::new();
    branch.write(4, BRANCH, &mut root);
    let (bytes, error) = read_key(&crafted(&[root, tree].concat(), last + 1));
    assert!(error.unwrap().ends_with("its tree goes in circles"));
    assert!(bytes < 65 * PAGE_BYTES, "{bytes} of {}", 65 * PAGE_BYTES);
}
