//! The work of one sample of `measure amplification`, and its result.

use serde::{Deserialize, Serialize};

use super::super::file_set::FileSet;
use super::super::interleave::{Evidence, Way};
use super::super::pattern::{PAGE_BYTES, SplitMix};

/// One run of one row over one number of files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct AmplificationWork {
    pub(super) row: ReadRow,
    pub(super) file_set: FileSet,
    /// Bytes of the shortest and of the longest piece.
    pub(super) least: u64,
    pub(super) most: u64,
    /// Reads of all lanes together.
    pub(super) reads: u64,
    /// Pieces requested at once.
    pub(super) in_flight: usize,
    /// The time in seconds after which no read begins.
    pub(super) seconds_max: f64,
    /// The seed of the places.
    pub(super) seed: u64,
}

/// A piece to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) file: u32,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// An endless sequence of the pieces of a lane.
#[derive(Debug)]
pub(super) struct Pieces {
    random: SplitMix,
    file_set: FileSet,
    least: u64,
    most: u64,
}

impl Pieces {
    /// Returns the pieces of lane number `lane`. They are the same for every row.
    pub(super) fn new(work: &AmplificationWork, lane: usize) -> Self {
        let random = SplitMix::new(work.seed ^ SplitMix::new(lane as u64 + 1).next_u64());
        Self { random, file_set: work.file_set, least: work.least, most: work.most }
    }

    pub(super) fn next_piece(&mut self) -> Piece {
        let bytes = self.least + self.random.below(self.most - self.least + 1);
        let file = self.random.below(u64::from(self.file_set.files)) as u32;
        let offset = self.random.below(self.file_set.file_bytes - bytes + 1);
        Piece { file, offset, bytes }
    }
}

/// A comparison of pieces with the data written.
#[derive(Debug)]
pub(super) struct ContentChecker {
    file_set: FileSet,
    page: Vec<u8>,
}

impl ContentChecker {
    pub(super) fn new(file_set: FileSet) -> Self {
        Self { file_set, page: vec![0; PAGE_BYTES] }
    }

    /// Checks that `found` is the piece, every byte of it.
    ///
    /// # Errors
    /// Fails when it is not.
    pub(super) fn check(&mut self, piece: Piece, found: &[u8]) -> anyhow::Result<()> {
        let contents = self.file_set.contents(piece.file);
        let page_bytes = PAGE_BYTES as u64;
        let mut is_right = found.len() as u64 == piece.bytes;
        let mut at = piece.offset;
        let mut rest = found;
        while is_right && !rest.is_empty() {
            let page = at / page_bytes * page_bytes;
            contents.fill(page, &mut self.page);
            let expected = &self.page[(at - page) as usize..];
            let length = expected.len().min(rest.len());
            is_right = expected[..length] == rest[..length];
            at += length as u64;
            rest = &rest[length..];
        }
        anyhow::ensure!(
            is_right,
            "the {} bytes at offset {} of file {} are not those that were written there; the storage below the file or \
             the way it was read is faulty",
            piece.bytes,
            piece.offset,
            piece.file
        );
        Ok(())
    }
}

/// Ways to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ReadRow {
    Buffered,
    BufferedRandomAdvice,
    ReadMany,
    Direct,
}

impl ReadRow {
    pub(super) const ALL: [Self; 4] =
        [Self::Buffered, Self::BufferedRandomAdvice, Self::ReadMany, Self::Direct];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Buffered => "buffered",
            Self::BufferedRandomAdvice => "buffered-random-advice",
            Self::ReadMany => "read-many",
            Self::Direct => "direct",
        }
    }

    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::Buffered => {
                "a std thread for each piece wanted at once, pread through the page cache as it comes"
            }
            Self::BufferedRandomAdvice => "the same after posix_fadvise(RANDOM) on each file: no read-ahead",
            Self::ReadMany => {
                "Forebay from Tokio, O_DIRECT, File::read_many with 256 pieces at a time, those of one file in one call"
            }
            Self::Direct => {
                "Forebay from tasks of a Tokio runtime, O_DIRECT, one File::read for each piece, widened to the \
                 least that the device reads"
            }
        }
    }

    pub(super) const fn uses_page_cache(self) -> bool {
        matches!(self, Self::Buffered | Self::BufferedRandomAdvice)
    }
}

/// The result that the child prints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct AmplificationResult {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) reads: u64,
    /// Bytes of the pieces.
    pub(super) bytes: u64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) evidence: Evidence,
}

impl Way for ReadRow {
    fn name(&self) -> &'static str {
        (*self).name()
    }

    fn description(&self) -> &'static str {
        (*self).description()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE_SET: FileSet = FileSet { files: 3, file_bytes: 16 << 10, seed: 7 };

    #[test]
    fn names_in_json_are_the_names_in_the_tables() {
        for row in ReadRow::ALL {
            assert_eq!(serde_json::to_value(row).expect("plain"), row.name());
        }
    }

    #[test]
    fn pieces_stay_in_their_files_and_reach_all_of_them() {
        let work = AmplificationWork {
            row: ReadRow::Direct,
            file_set: FILE_SET,
            least: 512,
            most: 4096,
            reads: 1,
            in_flight: 1,
            seconds_max: 1.0,
            seed: 3,
        };
        let mut pieces = Pieces::new(&work, 0);
        let all: Vec<Piece> = (0..3000).map(|_| pieces.next_piece()).collect();
        for piece in &all {
            assert!(
                (512..=4096).contains(&piece.bytes) && piece.offset + piece.bytes <= 16 << 10,
                "{piece:?}"
            );
        }
        assert!((0..3).all(|file| all.iter().any(|piece| piece.file == file)));
        assert!(all.iter().any(|piece| piece.offset % 512 != 0));
        assert_ne!(Pieces::new(&work, 1).next_piece(), all[0]);
    }

    #[test]
    fn every_wrong_byte_of_a_piece_is_noticed() {
        let mut memory = vec![0; 16 << 10];
        FILE_SET.contents(2).fill(0, &mut memory);
        let piece = Piece { file: 2, offset: 4000, bytes: 4300 };
        let mut found = memory[4000..8300].to_vec();
        let mut checker = ContentChecker::new(FILE_SET);
        checker.check(piece, &found).expect("as it was written");
        assert!(checker.check(Piece { file: 1, ..piece }, &found).is_err());
        assert!(checker.check(piece, &found[1..]).is_err());
        for at in [0, 100, 4299] {
            found[at] ^= 1;
            let error = checker.check(piece, &found).expect_err("one byte is wrong");
            assert!(error.to_string().contains("offset 4000 of file 2"), "{error}");
            found[at] ^= 1;
        }
    }
}
