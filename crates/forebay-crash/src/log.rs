//! A log with four writers: group commit, and a front that is truncated from time to time.

use std::collections::BTreeMap;
use std::path::Path;

use forebay::{Engine, Flush};
use forebay_wal::{Lsn, Options, Wal};

use crate::subject::{self, Say, Writer, bytes, ended, number, words};

const WRITERS: u64 = 4;
/// Number of records that remain when the front is truncated.
const KEPT: u64 = 150;
const EXTRA: u64 = 900;

pub(crate) fn options(life: u64) -> Options {
    let options = Options::new().segment_bytes(256 << 10).group_bytes_max(32 << 10);
    match life % 4 {
        0 => options.flush(Flush::WhenAlone),
        1 => options.flush(Flush::Queued),
        2 => options.flush(Flush::Blocking),
        // The way changes with every few groups.
        _ => options.try_every(2),
    }
}

struct Open(Wal);

pub(crate) fn recover(
    engine: &Engine,
    dir: &Path,
    life: u64,
    say: Say<'_>,
) -> Result<impl Writer + 'static, String> {
    let (wal, recovery) =
        Wal::open(engine, dir, options(life)).wait().map_err(|error| format!("opening: {error:?}"))?;
    say(&format!("first {} {}", recovery.first.0, recovery.last.0));
    let mut reader = wal.read_from(recovery.first);
    while let Some(record) =
        reader.next().wait().transpose().map_err(|error| format!("reading: {error:?}"))?
    {
        let lsn = record.lsn().0;
        match words(&record, EXTRA) {
            Some([life, writer, count]) => {
                say(&format!("has {lsn} {life} {writer} {count}"));
            }
            None => return Err(format!("record {lsn} has bytes that nobody wrote")),
        }
    }
    say("whole");
    Ok(Open(wal))
}

impl Writer for Open {
    fn write(self: Box<Self>, life: u64, say: Say<'_>) -> Result<(), String> {
        let wal = &self.0;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..WRITERS).map(|writer| scope.spawn(move || append(wal, life, writer, say))).collect();
            ended(threads)
        })
    }
}

fn append(wal: &Wal, life: u64, writer: u64, say: Say<'_>) -> Result<(), String> {
    for count in 0.. {
        let record = bytes([life, writer, count], EXTRA);
        let lsn = wal.append(&record).wait().map_err(|error| format!("append: {error:?}"))?.0;
        if !say(&format!("ack {lsn} {writer} {count}")) {
            return Ok(());
        }
        if lsn % 101 == 0 && lsn > KEPT {
            say(&format!("removing {}", lsn - KEPT));
            wal.truncate_before(Lsn(lsn - KEPT)).wait().map_err(|error| format!("truncate: {error:?}"))?;
            say(&format!("removed {}", lsn - KEPT));
        }
    }
    Ok(())
}

/// The records that must be in the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    life: u64,
    /// Acknowledged or recovered records by LSN: life, writer and count.
    held: BTreeMap<u64, [u64; 3]>,
    /// Next count of each writer in this life.
    acked: [u64; WRITERS as usize],
    removed: u64,
    removing: u64,
    told: u64,
    found: BTreeMap<u64, [u64; 3]>,
    first: u64,
    last: u64,
}

impl Model {
    fn check(&mut self) -> Result<(), String> {
        let (first, last) = (self.first, self.last);
        if !(self.removed.max(1)..=self.removing.max(1)).contains(&first) {
            return Err(format!("begins at {first}, not within {}..={}", self.removed, self.removing));
        }
        if !self.found.keys().copied().eq(first..last + 1) {
            return Err(format!("there is a gap between {first} and {last}"));
        }
        self.held.retain(|lsn, _| *lsn >= first);
        for (lsn, record) in &self.held {
            if self.found.get(lsn) != Some(record) {
                let found = self.found.get(lsn);
                return Err(format!("record {lsn} is {found:?} and not {record:?}, which was acknowledged"));
            }
        }
        let mut more = self.acked;
        for (lsn, [life, writer, count]) in &self.found {
            if self.held.contains_key(lsn) {
                continue;
            }
            let place = more.get_mut(*writer as usize).filter(|next| *life == self.life && *next == count);
            let place = place.ok_or_else(|| format!("record {lsn} is of life {life}, {writer}, {count}"))?;
            *place = u64::MAX;
        }
        self.held = std::mem::take(&mut self.found);
        (self.removed, self.removing) = (first, first);
        // No operation is in flight any more at the time of the next cut.
        self.life = u64::MAX;
        Ok(())
    }
}

impl subject::Model for Model {
    fn began(&mut self, life: u64) {
        self.life = life;
        self.acked = [0; WRITERS as usize];
    }

    fn hear(&mut self, words: &[&str]) -> Result<(), String> {
        let number = |at| number(words, at);
        match words.first().copied() {
            Some("ack") => {
                let (lsn, writer, count) = (number(1)?, number(2)?, number(3)?);
                if self.held.insert(lsn, [self.life, writer, count]).is_some() {
                    return Err(format!("{lsn} was given twice"));
                }
                *self.acked.get_mut(writer as usize).ok_or("no such writer")? = count + 1;
                self.told += 1;
            }
            Some("removing") => self.removing = self.removing.max(number(1)?),
            Some("removed") => self.removed = self.removed.max(number(1)?),
            Some("first") => {
                self.found.clear();
                (self.first, self.last) = (number(1)?, number(2)?);
            }
            Some("has") => {
                self.found.insert(number(1)?, [number(2)?, number(3)?, number(4)?]);
            }
            Some("whole") => return self.check(),
            _ => return Err(format!("unknown line {}", words.join(" "))),
        }
        Ok(())
    }

    fn acknowledged(&self) -> u64 {
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{Model as _, hear};

    fn written() -> Model {
        let mut model = Model::default();
        hear(&mut model, &["first 1 0", "whole"]).expect("an empty log");
        model.began(1);
        hear(&mut model, &["ack 1 0 0", "ack 3 1 0"]).expect("two records");
        model
    }

    #[test]
    fn what_was_acknowledged_must_be_there_and_the_next_may_be() {
        let found = ["has 1 1 0 0", "has 2 1 2 0", "has 3 1 1 0"];
        hear(&mut written(), &[&["first 1 3"][..], &found, &["whole"]].concat()).expect("exactly that");
        let next = ["has 4 1 0 1", "whole"];
        hear(&mut written(), &[&["first 1 4"][..], &found, &next].concat()).expect("and the one in flight");
        let beyond = ["has 4 1 0 2", "whole"];
        hear(&mut written(), &[&["first 1 4"][..], &found, &beyond].concat())
            .expect_err("not the one after it");
        hear(&mut written(), &["first 1 1", "has 1 1 0 0", "whole"]).expect_err("a lost record");
        hear(&mut written(), &["first 1 0", "whole"]).expect_err("an empty log");
        let other = ["first 1 3", "has 1 1 0 0", "has 2 0 2 0", "has 3 1 1 0", "whole"];
        hear(&mut written(), &other).expect_err("a record of another life");
    }

    #[test]
    fn what_a_recovery_has_shown_stays() {
        let found = ["first 1 3", "has 1 1 0 0", "has 2 1 2 0", "has 3 1 1 0", "whole"];
        let mut model = written();
        hear(&mut model, &found).expect("as acknowledged");
        hear(&mut model, &found).expect("and once more");
        hear(&mut model, &["first 1 1", "has 1 1 0 0", "whole"]).expect_err("less than was there before");
    }
}
