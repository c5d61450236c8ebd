//! The work of a task of the load tests: reads and writes of its region, some dropped midway, every byte checked.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::LazyLock;
use std::task::Poll;

use forebay::{Durability, Engine, Error, ErrorKind, File};
use forebay_test::draw::{Random, mix};

/// Bytes of a file that belong to one task.
pub(crate) const REGION_BYTES: u64 = 256 << 10;
/// The length of a stretch, the unit of versions. No device writes less at a time.
const STRETCH: usize = 512;
const STRETCHES: usize = REGION_BYTES as usize / STRETCH;
/// The largest operation is `STRETCH << SIZES_MAX`.
const SIZES: u64 = 10;
/// One operation in this many is dropped after a few polls.
const CANCEL_ONE_IN: u64 = 8;
/// One write in this many is durable when it completes.
const SYNC_ONE_IN: u64 = 256;

/// Counts of a run's tasks, added up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) given_up: u64,
    /// Times that an operation was requested again because the program held all I/O memory.
    pub(crate) exhausted: u64,
    pub(crate) bytes: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.given_up += other.given_up;
        self.exhausted += other.exhausted;
        self.bytes += other.bytes;
    }
}

static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| Random(7).bytes(8192));

/// Writes the content of a stretch after its write number `version`: its place and the version, then noise
/// that depends on them. A stretch that was never written is zero.
fn fill(out: &mut [u8; STRETCH], place: u64, version: u32) {
    if version == 0 {
        return out.fill(0);
    }
    let key = mix(place << 32 | u64::from(version));
    out[..8].copy_from_slice(&place.to_le_bytes());
    out[8..16].copy_from_slice(&u64::from(version).to_le_bytes());
    let from = key as usize % (NOISE.len() - STRETCH);
    out[16..].copy_from_slice(&NOISE[from..from + STRETCH - 16]);
}

/// A task's region, and the versions that it may contain.
pub(crate) struct Region {
    file: File,
    base: u64,
    grain: u64,
    numbers: Random,
    version: u32,
    /// The version of the last write that completed.
    sure: Vec<u32>,
    /// The version of a dropped write, which may have happened, may yet, or never. Such a stretch is not
    /// written again: operations in flight have no promised order.
    doubtful: Vec<u32>,
    tally: Tally,
}

impl Region {
    /// Returns the region at `base`; never written so far.
    pub(crate) fn new(file: File, base: u64, seed: u64) -> Region {
        let grain = u64::from(file.alignment().offset.max(1)).max(STRETCH as u64);
        Region {
            file,
            base,
            grain,
            numbers: Random(seed),
            version: 0,
            sure: vec![0; STRETCHES],
            doubtful: vec![0; STRETCHES],
            tally: Tally::default(),
        }
    }

    /// Does this many operations, one after the other, then one check of everything.
    pub(crate) async fn work(mut self, engine: Engine, operations: u64) -> Tally {
        for _ in 0..operations {
            if self.numbers.below(5) < 2 {
                self.write(&engine).await;
            } else {
                let len = self.len();
                let start = self.numbers.below(REGION_BYTES - len + 1);
                self.read(start, len, true).await;
            }
        }
        self.read(0, REGION_BYTES, false).await;
        self.tally
    }

    /// Returns a length. Small lengths are more common: 16 KiB on average.
    fn len(&mut self) -> u64 {
        let size = self.numbers.below(SIZES).min(self.numbers.below(SIZES));
        let len = (STRETCH as u64) << size;
        len - self.numbers.below(len / 2)
    }

    /// Returns how many times an operation is polled before it is dropped, if it is.
    fn patience(&mut self) -> Option<u64> {
        (self.numbers.below(CANCEL_ONE_IN) == 0).then(|| self.numbers.below(4))
    }

    async fn read(&mut self, start: u64, len: u64, may_give_up: bool) {
        let patience = if may_give_up { self.patience() } else { None };
        let range = self.base + start..self.base + start + len;
        let block = loop {
            match give_up_after(patience, self.file.read(range.clone()).into_future()).await {
                Some(Ok(block)) => break block,
                Some(Err(error)) => self.exhausted(error).await,
                None => return self.tally.given_up += 1,
            }
        };
        assert_eq!(block.len() as u64, len, "a read is exact");
        self.check(start, &block);
        self.tally.reads += 1;
        self.tally.bytes += len;
    }

    async fn write(&mut self, engine: &Engine) {
        let len = self.len().next_multiple_of(self.grain);
        let start = self.numbers.below((REGION_BYTES - len) / self.grain + 1) * self.grain;
        let stretches = start as usize / STRETCH..(start + len) as usize / STRETCH;
        if self.doubtful[stretches.clone()].iter().any(|&version| version != 0) {
            return self.read(start, len, true).await;
        }
        self.version += 1;
        let mut block = loop {
            match engine.block(len as usize) {
                Ok(block) => break block,
                Err(error) => self.exhausted(error).await,
            }
        };
        for (part, stretch) in block.as_chunks_mut::<STRETCH>().0.iter_mut().zip(stretches.clone()) {
            fill(part, self.place(stretch), self.version);
        }
        let patience = self.patience();
        let synced = self.numbers.below(SYNC_ONE_IN) == 0;
        let durability = if synced { Durability::Data } else { Durability::None };
        let write = self.file.write(self.base + start, block).durable(durability);
        match give_up_after(patience, write.into_future()).await {
            Some(written) => {
                written.unwrap();
                self.sure[stretches].fill(self.version);
                self.tally.writes += 1;
                self.tally.bytes += len;
            }
            None => {
                self.doubtful[stretches].fill(self.version);
                self.tally.given_up += 1;
            }
        }
    }

    fn place(&self, stretch: usize) -> u64 {
        self.base / STRETCH as u64 + stretch as u64
    }

    /// Checks that every byte is of the version that was written last, or of the dropped one.
    fn check(&self, start: u64, bytes: &[u8]) {
        let mut expected = [0; STRETCH];
        let mut at = 0;
        while at < bytes.len() {
            let offset = start as usize + at;
            let (stretch, from) = (offset / STRETCH, offset % STRETCH);
            let len = (STRETCH - from).min(bytes.len() - at);
            let found = &bytes[at..at + len];
            fill(&mut expected, self.place(stretch), self.sure[stretch]);
            if found != &expected[from..from + len] {
                let doubtful = self.doubtful[stretch];
                fill(&mut expected, self.place(stretch), doubtful);
                assert!(
                    doubtful != 0 && found == &expected[from..from + len],
                    "wrong bytes at {} of {:?}: version {} was written, {doubtful} (0: none) given up; found {:?}",
                    self.base + offset as u64,
                    self.file.path(),
                    self.sure[stretch],
                    &found[..found.len().min(32)],
                );
            }
            at += len;
        }
    }

    /// Lets the other tasks run after a lack of I/O memory. The program holding all of it is the one failure
    /// that may happen here.
    async fn exhausted(&mut self, error: Error) {
        assert!(matches!(error.kind(), ErrorKind::ArenaExhausted { .. }), "{error}");
        self.tally.exhausted += 1;
        give_way().await;
    }
}

/// Returns the future's output, unless it has not completed after this many polls; then drops the future.
/// `None`: no limit.
async fn give_up_after<F: Future>(polls: Option<u64>, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let Some(polls) = polls else { return Some(future.await) };
    for _ in 0..polls {
        let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(answer) = polled {
            return Some(answer);
        }
        give_way().await;
    }
    None
}

/// Waits once to the end of the executor's queue.
async fn give_way() {
    let mut given = false;
    poll_fn(|context| {
        if std::mem::replace(&mut given, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}
