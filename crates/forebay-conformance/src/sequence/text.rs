//! Steps as lines of text, so that a failing sequence can be kept, mailed and typed in again.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use forebay::{Durability, Mode};

use super::step::{Access, HANDLES, NAMES, Op, Place, Step};

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Open { handle, name, access, mode } => {
                write!(f, "open h{handle} {} {} {}", letter(*name), access_word(*access), mode_word(*mode))
            }
            Step::Close { handle } => write!(f, "close h{handle}"),
            Step::Do { op, place } => write!(f, "{op}{place}"),
            Step::Drop { op, place, polls } => write!(f, "drop {polls} {op}{place}"),
            Step::Join { ops } => {
                f.write_str("join ")?;
                separated(f, ops, " | ")
            }
            Step::Scan { handle, range, buffer, depth } => {
                write!(f, "scan h{handle} {range:?} {buffer} {depth}")
            }
            Step::Append { handle, offset, sizes, pattern, durability } => {
                write!(f, "append h{handle} {offset} ")?;
                separated(f, sizes, ",")?;
                write!(f, " p{pattern} {}", durability_word(*durability))
            }
            Step::Truncate { handle, len } => write!(f, "truncate h{handle} {len}"),
            Step::Allocate { handle, range } => write!(f, "allocate h{handle} {range:?}"),
            Step::PunchHole { handle, range } => write!(f, "punch h{handle} {range:?}"),
            Step::CopyRange { from, range, to, offset } => {
                write!(f, "copy h{from} {range:?} h{to} {offset}")
            }
            Step::Abandon { call, polls } => write!(f, "abandon {polls} {call}"),
            Step::Rename { from, to } => write!(f, "rename {} {}", letter(*from), letter(*to)),
            Step::HardLink { from, to } => write!(f, "link {} {}", letter(*from), letter(*to)),
            Step::RenameUnsynced { from, to } => {
                write!(f, "rename-unsynced {} {}", letter(*from), letter(*to))
            }
            Step::HardLinkUnsynced { from, to } => {
                write!(f, "link-unsynced {} {}", letter(*from), letter(*to))
            }
            Step::Remove { name } => write!(f, "remove {}", letter(*name)),
            Step::SyncDir => f.write_str("sync-dir"),
            Step::Metadata { handle } => write!(f, "metadata h{handle}"),
            Step::List => f.write_str("list"),
            Step::Keep { len, pattern } => write!(f, "keep {len} p{pattern}"),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Read { handle, range } => write!(f, "read h{handle} {range:?}"),
            Op::ReadUpTo { handle, range } => write!(f, "read-up-to h{handle} {range:?}"),
            Op::ReadInto { handle, offset, len } => write!(f, "read-into h{handle} {offset}+{len}"),
            Op::ReadMany { handle, ranges } => {
                write!(f, "read-many h{handle} ")?;
                separated(f, ranges.iter().map(|range| format!("{range:?}")), ",")
            }
            Op::Write { handle, offset, len, pattern, durability } => {
                write!(f, "write h{handle} {offset}+{len} p{pattern} {}", durability_word(*durability))
            }
            Op::Sync { handle, durability } => write!(f, "sync h{handle} {}", durability_word(*durability)),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Here => Ok(()),
            Place::Shard(shard) => write!(f, " @s{shard}"),
            Place::ToShard(shard, polls) => write!(f, " @{polls}>s{shard}"),
            Place::FromShard(shard, polls) => write!(f, " @s{shard}>{polls}"),
        }
    }
}

fn separated<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    items: impl IntoIterator<Item = T>,
    between: &str,
) -> fmt::Result {
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            f.write_str(between)?;
        }
        write!(f, "{item}")?;
    }
    Ok(())
}

/// Returns the name of a file of a sequence.
pub(super) fn letter(name: u8) -> char {
    char::from(b'a' + name % NAMES)
}

const DURABILITIES: [(&str, Durability); 3] =
    [("none", Durability::None), ("data", Durability::Data), ("all", Durability::All)];
const MODES: [(&str, Mode); 4] = [
    ("direct", Mode::Direct),
    ("buffered", Mode::Buffered),
    ("uncached", Mode::Uncached),
    ("adaptive", Mode::Adaptive),
];
const ACCESSES: [(&str, Access); 5] = [
    ("read", Access::Read),
    ("write", Access::Write),
    ("create", Access::Create),
    ("create-new", Access::CreateNew),
    ("truncate", Access::Truncate),
];

fn word_of<T: PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, known)| *known == value).map_or("?", |(word, _)| word)
}

fn durability_word(durability: Durability) -> &'static str {
    word_of(&DURABILITIES, durability)
}

fn mode_word(mode: Mode) -> &'static str {
    word_of(&MODES, mode)
}

fn access_word(access: Access) -> &'static str {
    word_of(&ACCESSES, access)
}

/// The error for a line that is not a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseStepError(String);

impl fmt::Display for ParseStepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a step: {:?}", self.0)
    }
}

impl std::error::Error for ParseStepError {}

impl FromStr for Step {
    type Err = ParseStepError;

    fn from_str(line: &str) -> Result<Step, ParseStepError> {
        parse(line.trim()).ok_or_else(|| ParseStepError(line.to_owned()))
    }
}

fn parse(line: &str) -> Option<Step> {
    if let Some(ops) = line.strip_prefix("join ") {
        let ops = ops.split('|').map(|op| whole(&mut Words::new(op), Words::op)).collect::<Option<_>>()?;
        return Some(Step::Join { ops });
    }
    whole(&mut Words::new(line), Words::step)
}

/// Returns the value that `read` finds, when nothing is left behind it.
fn whole<'l, T>(words: &mut Words<'l>, read: impl FnOnce(&mut Words<'l>) -> Option<T>) -> Option<T> {
    let found = read(words)?;
    words.next().is_none().then_some(found)
}

/// The words of a line.
struct Words<'l>(std::iter::Peekable<std::str::SplitWhitespace<'l>>);

impl<'l> Words<'l> {
    fn new(line: &'l str) -> Words<'l> {
        Words(line.split_whitespace().peekable())
    }

    fn next(&mut self) -> Option<&'l str> {
        self.0.next()
    }

    fn number<T: FromStr>(&mut self) -> Option<T> {
        self.next()?.parse().ok()
    }

    fn handle(&mut self) -> Option<u8> {
        let handle = self.next()?.strip_prefix('h')?.parse().ok()?;
        (handle < HANDLES).then_some(handle)
    }

    fn name(&mut self) -> Option<u8> {
        match self.next()?.as_bytes() {
            [byte] => byte.checked_sub(b'a').filter(|name| *name < NAMES),
            _ => None,
        }
    }

    fn pattern(&mut self) -> Option<u16> {
        self.next()?.strip_prefix('p')?.parse().ok()
    }

    fn range(&mut self) -> Option<Range<u64>> {
        range_of(self.next()?)
    }

    fn place_and_len(&mut self) -> Option<(u64, u32)> {
        let (offset, len) = self.next()?.split_once('+')?;
        Some((offset.parse().ok()?, len.parse().ok()?))
    }

    fn one_of<T: Copy>(&mut self, words: &[(&'static str, T)]) -> Option<T> {
        let word = self.next()?;
        words.iter().find(|(known, _)| *known == word).map(|(_, value)| *value)
    }

    fn step(&mut self) -> Option<Step> {
        let first = *self.0.peek()?;
        if matches!(first, "read" | "read-up-to" | "read-into" | "read-many" | "write" | "sync") {
            return Some(Step::Do { op: self.op()?, place: self.place()? });
        }
        self.next();
        Some(match first {
            "open" => Step::Open {
                handle: self.handle()?,
                name: self.name()?,
                access: self.one_of(&ACCESSES)?,
                mode: self.one_of(&MODES)?,
            },
            "close" => Step::Close { handle: self.handle()? },
            "drop" => {
                let polls = self.number()?;
                Step::Drop { op: self.op()?, place: self.place()?, polls }
            }
            "scan" => Step::Scan {
                handle: self.handle()?,
                range: self.range()?,
                buffer: self.number()?,
                depth: self.number()?,
            },
            "append" => Step::Append {
                handle: self.handle()?,
                offset: self.number()?,
                sizes: self.next()?.split(',').map(|size| size.parse().ok()).collect::<Option<_>>()?,
                pattern: self.pattern()?,
                durability: self.one_of(&DURABILITIES)?,
            },
            "truncate" => Step::Truncate { handle: self.handle()?, len: self.number()? },
            "allocate" => Step::Allocate { handle: self.handle()?, range: self.range()? },
            "punch" => Step::PunchHole { handle: self.handle()?, range: self.range()? },
            "copy" => Step::CopyRange {
                from: self.handle()?,
                range: self.range()?,
                to: self.handle()?,
                offset: self.number()?,
            },
            "abandon" => {
                let polls = self.number()?;
                let call = Box::new(self.step()?);
                let is_call = matches!(
                    *call,
                    Step::Truncate { .. }
                        | Step::Allocate { .. }
                        | Step::PunchHole { .. }
                        | Step::CopyRange { .. }
                );
                return is_call.then_some(Step::Abandon { call, polls });
            }
            "rename" => Step::Rename { from: self.name()?, to: self.name()? },
            "link" => Step::HardLink { from: self.name()?, to: self.name()? },
            "rename-unsynced" => Step::RenameUnsynced { from: self.name()?, to: self.name()? },
            "link-unsynced" => Step::HardLinkUnsynced { from: self.name()?, to: self.name()? },
            "remove" => Step::Remove { name: self.name()? },
            "sync-dir" => Step::SyncDir,
            "metadata" => Step::Metadata { handle: self.handle()? },
            "list" => Step::List,
            "keep" => Step::Keep { len: self.number()?, pattern: self.pattern()? },
            _ => return None,
        })
    }

    fn op(&mut self) -> Option<Op> {
        let kind = self.next()?;
        let handle = self.handle()?;
        Some(match kind {
            "read" => Op::Read { handle, range: self.range()? },
            "read-up-to" => Op::ReadUpTo { handle, range: self.range()? },
            "read-into" => {
                let (offset, len) = self.place_and_len()?;
                Op::ReadInto { handle, offset, len }
            }
            "read-many" => {
                let ranges = self.next()?.split(',').map(range_of).collect::<Option<_>>()?;
                Op::ReadMany { handle, ranges }
            }
            "write" => {
                let (offset, len) = self.place_and_len()?;
                let pattern = self.pattern()?;
                Op::Write { handle, offset, len, pattern, durability: self.one_of(&DURABILITIES)? }
            }
            "sync" => Op::Sync { handle, durability: self.one_of(&DURABILITIES)? },
            _ => return None,
        })
    }

    fn place(&mut self) -> Option<Place> {
        let Some(word) = self.next() else { return Some(Place::Here) };
        let word = word.strip_prefix('@')?;
        let shard = |word: &str| word.strip_prefix('s').and_then(|shard| shard.parse().ok());
        match word.split_once('>') {
            None => Some(Place::Shard(shard(word)?)),
            Some((from, polls)) if from.starts_with('s') => {
                Some(Place::FromShard(shard(from)?, polls.parse().ok()?))
            }
            Some((polls, to)) => Some(Place::ToShard(shard(to)?, polls.parse().ok()?)),
        }
    }
}

fn range_of(word: &str) -> Option<Range<u64>> {
    let (start, end) = word.split_once("..")?;
    Some(start.parse().ok()?..end.parse().ok()?)
}
