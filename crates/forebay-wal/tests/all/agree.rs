//! Systematic damage at every structural boundary of a log, and every way of reading it: an open, one with
//! salvage, `inspect` (which is `verify`), its records, `repair`, and the reader. No two of them may
//! disagree.

use crate::simulation::groups;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::common::{self, Files, dir, engine, files, put, quiet};
use forebay::Engine;
use forebay_wal::inspect::{Verdict, inspect, records, repair};
use forebay_wal::{Loss, Lsn, Recovery, Wal};

type Records = BTreeMap<u64, Vec<u8>>;

/// Returns the record with an LSN; `time` distinguishes records with the same LSN.
fn record(lsn: u64, time: u64) -> Vec<u8> {
    let long = if lsn % 7 == 3 { 6_000 } else { 300 };
    format!("{lsn}/{time};").into_bytes().iter().cycle().take(long).copied().collect()
}

/// Makes a log of several lives: truncated at both ends, reopened after a crash, with long groups and reused
/// segments.
fn base(closed: bool) -> (Files, Records) {
    let dir = dir();
    let mut all = Records::new();
    let append = |wal: &Wal, all: &mut Records, lsns: std::ops::Range<u64>, time| {
        for lsn in lsns {
            assert_eq!(wal.append(&record(lsn, time)).wait().unwrap(), Lsn(lsn));
            all.insert(lsn, record(lsn, time));
        }
    };
    let running = engine();
    let (wal, _) = Wal::open(&running, dir.path(), quiet()).wait().unwrap();
    append(&wal, &mut all, 1..30, 1);
    wal.truncate_from(Lsn(26)).wait().unwrap();
    append(&wal, &mut all, 26..40, 2);
    wal.truncate_before(Lsn(20)).wait().unwrap();
    append(&wal, &mut all, 40..45, 3);
    // The process dies.
    running.close().wait().unwrap();
    drop(wal);
    let running = engine();
    let (wal, _) = Wal::open(&running, dir.path(), quiet()).wait().unwrap();
    append(&wal, &mut all, 45..70, 4);
    if closed {
        wal.close().wait().unwrap()
    } else {
        running.close().wait().unwrap();
    }
    all.retain(|lsn, _| *lsn >= 20);
    (files(dir.path()), all)
}

/// Returns the readable records, skipping those that the reader reports as damaged or lost.
fn read(wal: &Wal) -> (Records, Vec<Loss>) {
    let (mut reader, mut records, mut lost) = (wal.read_from(wal.first_lsn()), Records::new(), Vec::new());
    loop {
        match reader.next().wait() {
            Some(Ok(record)) => assert!(records.insert(record.lsn().0, record.to_vec()).is_none()),
            None => return (records, lost),
            Some(Err(error)) => {
                let Some(named) = error.loss() else { panic!("{error:?}") };
                assert_eq!(named.first, reader.position(), "{error}");
                lost.push(named.clone());
                reader = wal.read_from(named.last.next());
            }
        }
    }
}

fn numbers(lost: &[Loss]) -> BTreeSet<u64> {
    lost.iter().filter(|lost| lost.last.0 < 1_000).flat_map(|lost| lost.first.0..=lost.last.0).collect()
}

/// Returns the records that a report promises.
fn promised(recovery: &Recovery) -> BTreeSet<u64> {
    let lost = numbers(&recovery.lost);
    (recovery.first.0..=recovery.last.0).filter(|lsn| !lost.contains(lsn)).collect()
}

struct Case<'a> {
    engine: &'a Engine,
    dir: &'a Path,
    /// The records that were appended and not removed.
    all: &'a Records,
    name: String,
}

impl Case<'_> {
    /// Compares all reports on these files. Returns whether an open refuses them.
    fn judge(&self, files: &Files) -> Result<bool, String> {
        let Case { engine, dir, .. } = self;
        put(dir, files);
        let report = inspect(engine, dir).wait().map_err(|error| format!("inspect: {error}"))?;
        let without_opening = futures::executor::block_on(async {
            let mut all = Records::new();
            let mut records = records(engine, dir).await?;
            while let Some((lsn, record)) = records.next().await.transpose()? {
                all.insert(lsn.0, record);
            }
            Ok::<_, forebay_wal::Error>(all)
        });
        let out = common::dir();
        let repaired = repair(engine, dir, out.path().join("out")).wait();
        if self::files(dir) != *files {
            return Err("looking changed the log".into());
        }
        let opened = Wal::open(engine, dir, quiet()).wait();
        let refused = opened.is_err();
        match (&opened, &report.verdict) {
            (Ok((wal, recovery)), Verdict::Opens) => {
                if Some(recovery) != report.recovery.as_ref() {
                    return Err(format!("an open says {recovery:?}, inspect {:?}", report.recovery));
                }
                self.content(wal, recovery)?;
                let clean = recovery.truncated_at.is_none() && recovery.damage.is_empty();
                if report.is_whole() && !clean {
                    return Err(format!("called whole: {recovery:?}"));
                }
            }
            (Err(error), Verdict::Damaged(said) | Verdict::Refused(said)) => {
                if (error.kind(), error.to_string()) != (said.kind(), said.to_string()) {
                    return Err(format!("an open says {error}, inspect {said}"));
                }
                if self::files(dir) != *files {
                    return Err("a refused open changed the log".into());
                }
            }
            (Ok((_, recovery)), verdict) if recovery.created => {
                return Err(format!("made anew, and inspect says {verdict:?}"));
            }
            (opened, verdict) => {
                let opened = opened.as_ref().map(|(_, recovery)| recovery);
                return Err(format!("an open says {opened:?}, inspect {verdict:?}"));
            }
        }
        if let Ok((wal, _)) = opened {
            wal.close().wait().map_err(|error| format!("closing: {error}"))?;
            let (wal, again) =
                Wal::open(engine, dir, quiet()).wait().map_err(|error| format!("again: {error}"))?;
            self.content(&wal, &again)?;
            wal.close().wait().map_err(|error| format!("closing: {error}"))?;
        }
        put(dir, files);
        let salvaged = Wal::open(engine, dir, quiet().salvage(true)).wait();
        let (wal, recovery) = match salvaged {
            Ok(salvaged) => salvaged,
            Err(error) => {
                let all_say_so = without_opening.is_err() && repaired.is_err() && refused;
                return if all_say_so { Ok(true) } else { Err(format!("salvage: {error}")) };
            }
        };
        if Some(&recovery) != report.recovery.as_ref() {
            return Err(format!("salvage says {recovery:?}, inspect {:?}", report.recovery));
        }
        let there = self.content(&wal, &recovery)?;
        wal.close().wait().map_err(|error| format!("closing: {error}"))?;
        let (wal, again) =
            Wal::open(engine, dir, quiet()).wait().map_err(|error| format!("again: {error}"))?;
        if self.content(&wal, &again)? != there || again.last != recovery.last {
            return Err(format!("after salvage {recovery:?}, opened again {again:?}"));
        }
        wal.close().wait().map_err(|error| format!("closing: {error}"))?;
        let without_opening = without_opening.map_err(|error| format!("records: {error}"))?;
        if without_opening != there {
            return Err("other records without opening".into());
        }
        let repaired = repaired.map_err(|error| format!("repair: {error}"))?;
        if (repaired.records, repaired.last()) != (there.len() as u64, recovery.last) {
            return Err(format!("repair kept {} records up to {}", repaired.records, repaired.last()));
        }
        let (wal, _) = Wal::open(engine, out.path().join("out"), quiet())
            .wait()
            .map_err(|error| format!("opening what was repaired: {error}"))?;
        let (kept, _) = read(&wal);
        wal.close().wait().map_err(|error| format!("closing: {error}"))?;
        if kept == there { Ok(refused) } else { Err("a repaired log holds other records".into()) }
    }

    /// Checks that the reader returns the promised records, byte for byte as appended, and names the rest.
    fn content(&self, wal: &Wal, recovery: &Recovery) -> Result<Records, String> {
        let (there, lost) = read(wal);
        let is: BTreeSet<u64> = there.keys().copied().collect();
        if is != promised(recovery) {
            return Err(format!("the reader gives {is:?}, the report promises {recovery:?}"));
        }
        let known = numbers(&recovery.lost);
        if let Some(more) = numbers(&lost).iter().find(|lsn| !known.contains(lsn)) {
            return Err(format!("the reader says that {more} is lost, the report {recovery:?}"));
        }
        match there.iter().find(|(lsn, record)| self.all.get(lsn).is_some_and(|all| all != *record)) {
            Some((lsn, _)) => Err(format!("record {lsn} is not what was appended")),
            None => Ok(there),
        }
    }
}

/// Returns each damage with its name.
fn damages(files: &Files) -> Vec<(String, Files)> {
    let mut all = Vec::new();
    let mut add = |name: String, change: &dyn Fn(&mut Files)| {
        let mut damaged = files.clone();
        change(&mut damaged);
        all.push((name, damaged));
    };
    let groups = groups::live(files);
    for (at, group) in groups.iter().enumerate() {
        let (file, start) = (group.file(), group.offset as usize);
        let bytes = &files[&file];
        let payload = u32::from_le_bytes(bytes[start + 68..start + 72].try_into().unwrap()) as usize;
        let places = [0, 6, 100, 256, 256 + payload / 2, 256 + payload, group.len - 1];
        let all = at % 4 == 0 || at + 4 > groups.len();
        let places = places.into_iter().filter(|place| *place < group.len);
        for place in places.filter(|place| all || *place == 100) {
            add(format!("flip byte {place} of group {at}"), &|files| {
                files.get_mut(&file).unwrap()[start + place] ^= 0x10;
            });
            add(format!("cut at byte {place} of group {at}"), &|files| {
                files.get_mut(&file).unwrap().truncate(start + place);
            });
        }
        add(format!("zero group {at}"), &|files| {
            files.get_mut(&file).unwrap()[start..start + group.len].fill(0);
        });
        add(format!("zero the end of group {at}"), &|files| {
            let grain = start + group.len - 4096;
            files.get_mut(&file).unwrap()[grain..grain + 4096].fill(0);
        });
        if let Some(next) = groups.get(at + 1).filter(|next| next.file() == file && next.len == group.len) {
            add(format!("swap group {at} and the next"), &|files| {
                let bytes = files.get_mut(&file).unwrap();
                let (left, right) = bytes.split_at_mut(next.offset as usize);
                left[start..start + group.len].swap_with_slice(&mut right[..group.len]);
            });
        }
    }
    let names: Vec<&String> = files.keys().filter(|name| name.ends_with(".wal")).collect();
    for (at, name) in names.iter().enumerate() {
        add(format!("delete {name}"), &|files| _ = files.remove(*name));
        add(format!("zero {name}"), &|files| files.get_mut(*name).unwrap().fill(0));
        add(format!("delete all from {name} on"), &|files| {
            names[at..].iter().for_each(|name| _ = files.remove(*name))
        });
        add(format!("cut {name} to nothing"), &|files| files.get_mut(*name).unwrap().clear());
        if let Some(next) = names.get(at + 1) {
            add(format!("swap {name} and {next}"), &|files| {
                let (one, other) = (files[*name].clone(), files[*next].clone());
                files.insert((*name).clone(), other);
                files.insert((*next).clone(), one);
            });
        }
    }
    for (at, group) in groups.iter().enumerate().rev().take(4) {
        add(format!("zero all from group {at} on"), &|files| {
            for group in &groups[at..] {
                let start = group.offset as usize;
                files.get_mut(&group.file()).unwrap()[start..start + group.len].fill(0);
            }
        });
        let (file, end) = (group.file(), group.offset as usize + group.len);
        add(format!("garbage behind group {at}"), &|files| {
            let bytes = files.get_mut(&file).unwrap();
            if bytes.len() > end {
                bytes[end] = 0xa7;
            }
        });
    }
    for slots in [&[0][..], &[65_536], &[0, 65_536]] {
        add(format!("damage slots {slots:?} of the end's record"), &|files| {
            slots.iter().for_each(|&at| files.get_mut("wal.end").unwrap()[at + 50] ^= 1);
        });
    }
    add("cut the end's record".into(), &|files| files.get_mut("wal.end").unwrap().truncate(100));
    add("delete the end's record".into(), &|files| _ = files.remove("wal.end"));
    all
}

/// Regressions: `verify` reported a log as whole that an open refused, or could not read one that an open
/// accepted. After a salvage one more record could not be read than the report had named. And a log whose
/// segment was cut within its last padding opened as whole, but its reader always found it corrupt.
fn agree(closed: bool) {
    let (files, all) = base(closed);
    let (engine, dir) = (engine(), dir());
    let (mut wrong, mut refused, mut count) = (Vec::new(), 0, 0);
    let step = forebay_test::one_in(7).max(forebay_test::one_in_daily(3));
    for (name, damaged) in damages(&files).into_iter().step_by(step) {
        let case = Case { engine: &engine, dir: dir.path(), all: &all, name };
        count += 1;
        match case.judge(&damaged) {
            Ok(is_refused) => refused += usize::from(is_refused),
            Err(text) => wrong.push(format!("{}: {text}", case.name)),
        }
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(
        count > 300 / step && refused > count / 3 && refused < count,
        "{refused} of {count} were refused"
    );
}

#[test]
fn everything_that_looks_at_a_closed_log_says_the_same() {
    agree(true);
}

#[test]
fn everything_that_looks_at_a_log_after_a_crash_says_the_same() {
    agree(false);
}
