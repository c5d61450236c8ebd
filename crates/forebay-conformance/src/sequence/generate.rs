//! Sequences made from any source of numbers: a generator, a fuzzer's bytes, a simulator's choices.

use std::ops::Range;

use forebay::{Durability, Mode};

use super::step::{Access, HANDLES, NAMES, Op, Place, Step};

/// Offsets stay below this, in bytes.
const OFFSETS: u64 = 64 << 10;
const BLOCK: u64 = 4096;
const SECTOR: u64 = 512;

/// Returns `count` steps, drawn with `random`, which returns a number below its argument (at least 1). Number 0 is the simplest
/// choice everywhere. The first steps open files, so that the later steps have something to work on.
pub fn generate(random: &mut dyn FnMut(u64) -> u64, count: usize) -> Vec<Step> {
    let mut generator = Generator { random };
    (0..count)
        .map(|at| match at {
            0..2 => generator.open(at as u8, Access::Create),
            _ => generator.step(),
        })
        .collect()
}

struct Generator<'r> {
    random: &'r mut dyn FnMut(u64) -> u64,
}

impl Generator<'_> {
    fn below(&mut self, n: u64) -> u64 {
        (self.random)(n.max(1)).min(n.saturating_sub(1))
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == n - 1
    }

    fn handle(&mut self) -> u8 {
        // The first two are certainly open.
        match self.below(4) {
            0..3 => self.below(2) as u8,
            _ => self.below(u64::from(HANDLES)) as u8,
        }
    }

    fn name(&mut self) -> u8 {
        self.below(u64::from(NAMES)) as u8
    }

    fn pattern(&mut self) -> u16 {
        self.below(1 << 16) as u16
    }

    fn step(&mut self) -> Step {
        let handle = self.handle();
        match self.below(64) {
            0..22 => Step::Do { op: self.op(handle), place: self.place() },
            22..31 => Step::Drop { op: self.op(handle), place: self.place(), polls: self.below(4) as u8 },
            31..40 => {
                let count = 2 + self.below(4);
                let ops = (0..count)
                    .map(|_| {
                        // Mostly on one file, so that they meet.
                        let handle = if self.one_in(4) { self.handle() } else { handle };
                        self.op(handle)
                    })
                    .collect();
                Step::Join { ops }
            }
            40..45 => {
                let access = self.access();
                self.open(handle, access)
            }
            45..47 => Step::Close { handle },
            47 => Step::Scan {
                handle,
                range: self.range(),
                buffer: (1 + self.below(4) as u32) * BLOCK as u32,
                depth: 1 + self.below(4) as u8,
            },
            48..50 => {
                let offset = self.offset();
                let sizes = (0..1 + self.below(4)).map(|_| self.below(6000) as u32).collect();
                Step::Append { handle, offset, sizes, pattern: self.pattern(), durability: self.durability() }
            }
            at @ 50..55 => self.space(handle, at - 50),
            55 => match (self.one_in(3), self.name(), self.name()) {
                (false, from, to) => Step::Rename { from, to },
                (true, from, to) => Step::RenameUnsynced { from, to },
            },
            56 => match (self.one_in(3), self.name(), self.name()) {
                (false, from, to) => Step::HardLink { from, to },
                (true, from, to) => Step::HardLinkUnsynced { from, to },
            },
            57 => Step::Remove { name: self.name() },
            58 => Step::SyncDir,
            59..61 => Step::Metadata { handle },
            61 => Step::List,
            62 => Step::Abandon { call: Box::new(self.abandoned(handle)), polls: self.below(3) as u8 },
            _ => Step::Keep { len: self.length() as u32, pattern: self.pattern() },
        }
    }

    /// Returns a call about length or space.
    fn space(&mut self, handle: u8, which: u64) -> Step {
        match which {
            0 | 1 => Step::Truncate { handle, len: self.offset() },
            2 => Step::Allocate { handle, range: self.range() },
            3 => Step::PunchHole { handle, range: self.range() },
            _ => {
                let (range, to) = (self.range(), self.handle());
                Step::CopyRange { from: handle, range, to, offset: self.offset() }
            }
        }
    }

    fn abandoned(&mut self, handle: u8) -> Step {
        let which = self.below(5);
        self.space(handle, which)
    }

    fn open(&mut self, handle: u8, access: Access) -> Step {
        let mode = match self.below(6) {
            0 | 1 => Mode::Direct,
            2 => Mode::Adaptive,
            3 | 4 => Mode::Buffered,
            _ => Mode::Uncached,
        };
        Step::Open { handle, name: self.name(), access, mode }
    }

    fn access(&mut self) -> Access {
        match self.below(10) {
            0..5 => Access::Create,
            5 | 6 => Access::Write,
            7 => Access::Read,
            8 => Access::CreateNew,
            _ => Access::Truncate,
        }
    }

    fn op(&mut self, handle: u8) -> Op {
        match self.below(16) {
            0..3 => Op::Read { handle, range: self.range() },
            3 | 4 => Op::ReadUpTo { handle, range: self.range() },
            5 => Op::ReadInto { handle, offset: self.offset(), len: self.length() as u32 },
            6 => {
                let ranges = (0..1 + self.below(6)).map(|_| self.range()).collect();
                Op::ReadMany { handle, ranges }
            }
            7..15 => Op::Write {
                handle,
                offset: self.offset(),
                len: self.length() as u32,
                pattern: self.pattern(),
                durability: self.durability(),
            },
            _ => Op::Sync { handle, durability: self.durability() },
        }
    }

    fn place(&mut self) -> Place {
        match self.below(8) {
            0..4 => Place::Here,
            4 | 5 => Place::Shard(self.below(2) as u8),
            6 => Place::ToShard(self.below(2) as u8, self.below(3) as u8),
            _ => Place::FromShard(self.below(2) as u8, self.below(3) as u8),
        }
    }

    fn durability(&mut self) -> Durability {
        match self.below(6) {
            0..4 => Durability::None,
            4 => Durability::Data,
            _ => Durability::All,
        }
    }

    /// Returns any offset, mostly a valid one for a device.
    fn offset(&mut self) -> u64 {
        match self.below(10) {
            0..6 => self.below(OFFSETS / BLOCK) * BLOCK,
            6..9 => self.below(OFFSETS / SECTOR) * SECTOR,
            _ => self.below(OFFSETS),
        }
    }

    /// Returns any length, mostly a valid one for a device; sometimes zero.
    fn length(&mut self) -> u64 {
        match self.below(10) {
            0..6 => (1 + self.below(3)) * BLOCK,
            6..9 => self.below(24) * SECTOR,
            _ => self.below(9000),
        }
    }

    fn range(&mut self) -> Range<u64> {
        let start = self.offset();
        start..start + self.length()
    }
}
