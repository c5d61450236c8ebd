//! A B+-tree in a file, and its lookups as walks: each page names the next one to read, and the program is
//! woken once, at the end, however deep the tree is. The last lines show the same lookups with one read at a
//! time.
//!
//! Run with `cargo run --release -p forebay --example walk`; it writes about 4 MiB into the current folder
//! and removes them again.

use std::error::Error as StdError;
use std::ops::Range;
use std::time::Instant;

use forebay::{Block, Config, Durability, Engine, Error, File, Open, Step, Walk};

type AnyError = Box<dyn StdError + Send + Sync>;

/// Bytes of a page: a header of 16, then up to 31 records of a key and a child's place (in leaves: a value).
const PAGE: u64 = 512;
const HEADER: usize = 16;
const MAGIC: u32 = 0x6272_6565;
/// Records of a page: few, so that a small file is deep.
const FAN_OUT: u64 = 6;
const DEPTH: u32 = 5;
const LOOKUPS: u64 = 2_000;

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let engine = Engine::start(Config::new())?;
    let file = engine.temp_file(".", Open::create()).await?;
    let (root, keys) = plant(&engine, &file).await?;
    println!("{keys} keys, {DEPTH} pages from root to leaf");

    let key = |n: u64| n * 104_729 % (2 * keys);
    let expected = |key: u64| key.is_multiple_of(2).then_some(key * 3);

    // One after the other: a message and a wake-up for each, and not for each of its pages.
    let begun = Instant::now();
    for n in 0..LOOKUPS {
        let found = file.walk(root.clone(), Lookup { key: key(n) }).await?;
        assert_eq!(found, expected(key(n)));
    }
    report("walks, one after the other", begun);

    // All in one message, 128 in flight.
    let begun = Instant::now();
    let walks = (0..LOOKUPS).map(|n| (root.clone(), Lookup { key: key(n) }));
    for (n, found) in (0..).zip(file.walk_many(walks).await?) {
        assert_eq!(found?, expected(key(n)));
    }
    report("walks, as one batch", begun);

    let begun = Instant::now();
    for n in 0..LOOKUPS {
        assert_eq!(page_by_page(&file, root.clone(), key(n)).await?, expected(key(n)));
    }
    report("one read after the other, from Tokio", begun);

    let stats = engine.stats().await?.walks;
    println!("{} walks, {} hops, {} wake-ups", stats.walks, stats.hops, stats.wakes);
    engine.close().await?;
    Ok(())
}

/// Looks one key up.
struct Lookup {
    key: u64,
}

/// The reason why a lookup fails.
#[derive(Debug)]
enum LookupError {
    Io(Error),
    Corrupt { position: u64 },
}

impl std::fmt::Display for LookupError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LookupError::Io(error) => error.fmt(f),
            LookupError::Corrupt { position } => write!(f, "the page at {position} is damaged"),
        }
    }
}

impl StdError for LookupError {}

impl From<Error> for LookupError {
    fn from(error: Error) -> LookupError {
        LookupError::Io(error)
    }
}

impl Walk for Lookup {
    type Output = Option<u64>;
    type Error = LookupError;

    fn step(&mut self, page: &Block, at: Range<u64>) -> Step<Option<u64>, LookupError> {
        match next(page, at.start, self.key) {
            Some(Next::Child(child)) => Step::Read(child..child + PAGE),
            Some(Next::Found(value)) => Step::Done(value),
            None => Step::Fail(LookupError::Corrupt { position: at.start }),
        }
    }
}

enum Next {
    Child(u64),
    Found(Option<u64>),
}

/// Returns where a page leads; `None` when it is not the page that belongs to `position`. Checks everything
/// in it before use: a walk runs in the midst of the engine's I/O, and the page that it reads may be damaged.
fn next(page: &[u8], position: u64, key: u64) -> Option<Next> {
    let word = |at: usize| Some(u64::from_le_bytes(page.get(at..at + 8)?.try_into().ok()?));
    let head = word(0)?;
    let (magic, level, count) = (head as u32, (head >> 32) as u16, (head >> 48) as usize);
    if magic != MAGIC || word(8)? != position || count == 0 || HEADER + count * 16 > page.len() {
        return None;
    }
    // Sorted records of one size: find the last one whose key is not larger.
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = (low + high) / 2;
        if word(HEADER + middle * 16)? <= key { low = middle + 1 } else { high = middle }
    }
    let record = HEADER + low.saturating_sub(1) * 16;
    match level {
        0 => Some(Next::Found(if word(record)? == key { Some(word(record + 8)?) } else { None })),
        _ => Some(Next::Child(word(record + 8)?)),
    }
}

/// Makes the same search, decided in the task: two thread hops for each page.
async fn page_by_page(file: &File, root: Range<u64>, key: u64) -> Result<Option<u64>, LookupError> {
    let mut at = root;
    loop {
        let page = file.read(at.clone()).await?;
        match next(&page, at.start, key) {
            Some(Next::Child(child)) => at = child..child + PAGE,
            Some(Next::Found(value)) => return Ok(value),
            None => return Err(LookupError::Corrupt { position: at.start }),
        }
    }
}

/// Writes a tree with every even key; returns its root and how many keys it has.
async fn plant(engine: &Engine, file: &File) -> Result<(Range<u64>, u64), Error> {
    let keys = FAN_OUT.pow(DEPTH);
    let mut bytes = Vec::new();
    let mut below: Vec<(u64, u64)> = (0..keys).map(|n| (2 * n, 6 * n)).collect();
    for level in 0..DEPTH {
        let pages = below.chunks(FAN_OUT as usize).map(|records| {
            let position = bytes.len() as u64;
            let head = u64::from(MAGIC) | u64::from(level) << 32 | (records.len() as u64) << 48;
            bytes.extend(head.to_le_bytes());
            bytes.extend(position.to_le_bytes());
            for (key, value) in records {
                bytes.extend(key.to_le_bytes());
                bytes.extend(value.to_le_bytes());
            }
            bytes.resize((position + PAGE) as usize, 0);
            (records[0].0, position)
        });
        below = pages.collect();
    }
    // Whole units of a direct write.
    bytes.resize(bytes.len().next_multiple_of(file.alignment().offset as usize), 0);
    file.write(0, engine.block_from(&bytes)?).durable(Durability::Data).await?;
    Ok((below[0].1..below[0].1 + PAGE, keys))
}

fn report(what: &str, begun: Instant) {
    let seconds = begun.elapsed().as_secs_f64();
    println!("{what}: {LOOKUPS} lookups, {:.0} a second", LOOKUPS as f64 / seconds);
}
