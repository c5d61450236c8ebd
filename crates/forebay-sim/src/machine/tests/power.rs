//! The table of the `sim` module, row by row. Over many seeds every outcome that it allows is seen, and no
//! other.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::profile::{Loss, MetadataOrder};

const SECTOR: usize = 512;

/// Returns the outcomes of one story over many seeds.
fn outcomes(profile: &Profile, story: impl Fn(&mut Rig) -> String) -> BTreeSet<String> {
    let run = |seed| {
        let mut rig = Rig::new(seed, profile.clone());
        let outcome = story(&mut rig);
        assert!(rig.machine.violations().is_empty());
        outcome
    };
    (0..400).map(run).collect()
}

fn set<const N: usize>(outcomes: [&str; N]) -> BTreeSet<String> {
    outcomes.into_iter().map(String::from).collect()
}

/// Returns all words of `len` letters.
fn words(letters: &str, len: usize) -> BTreeSet<String> {
    let longer = |words: BTreeSet<String>| {
        words.iter().flat_map(|word| letters.chars().map(move |letter| format!("{word}{letter}"))).collect()
    };
    (0..len).fold(BTreeSet::from([String::new()]), |words, _| longer(words))
}

/// Returns one letter for each sector of a file: its first byte, `.` for zeros, `?` for a sector of several
/// kinds of bytes.
fn sectors(rig: &mut Rig, path: &str) -> String {
    let Some(bytes) = rig.content(path) else { return String::from("none") };
    let letter = |sector: &[u8]| match sector[0] {
        first if sector.iter().any(|&byte| byte != first) => '?',
        0 => '.',
        first => first as char,
    };
    bytes.chunks(SECTOR).map(letter).collect()
}

fn fill(letter: char, sectors: usize) -> Vec<u8> {
    vec![letter as u8; sectors * SECTOR]
}

/// Makes a direct file of four durable sectors of `o`.
fn base(rig: &mut Rig) -> u32 {
    let file = rig.open("/f", CREATE);
    rig.write(file, 0, &fill('o', 4));
    assert_eq!(rig.sync(OpKind::SyncAll, file), 0);
    rig.done(MetaRequest::SyncDir { path: path("/") });
    file
}

/// Writes one sector each of `a` to `d` over the base.
fn four_writes(rig: &mut Rig) -> String {
    let file = base(rig);
    for (at, letter) in "abcd".chars().enumerate() {
        rig.write(file, (at * SECTOR) as u64, &fill(letter, 1));
    }
    rig.cut();
    sectors(rig, "/f")
}

#[test]
fn a_cut_takes_any_writes_or_those_behind_a_point_or_none() {
    let any: BTreeSet<String> = words("01", 4)
        .iter()
        .map(|word| {
            word.chars().zip("abcd".chars()).map(|(kept, new)| if kept == '1' { new } else { 'o' }).collect()
        })
        .collect();
    assert_eq!(outcomes(&Profile::ideal(), four_writes), any);
    let prefixes = set(["oooo", "aooo", "aboo", "abco", "abcd"]);
    assert_eq!(outcomes(&Profile::ideal().lost(Loss::Prefix), four_writes), prefixes);
    for kept in
        [Profile::ideal().lost(Loss::Nothing), Profile::ideal().write_cache(0), Profile::optane().sector(512)]
    {
        let kept = kept.alignment(4096, 512);
        assert_eq!(outcomes(&kept, four_writes), set(["abcd"]));
    }
}

#[test]
fn a_full_cache_keeps_only_the_newest_in_danger() {
    let seen = outcomes(&Profile::ideal().write_cache(2 * SECTOR as u64), four_writes);
    assert_eq!(seen, set(["abcd", "aboo", "abod", "abco"]));
}

#[test]
fn a_write_is_torn_at_sectors_where_disks_tear() {
    let story = |rig: &mut Rig| {
        let file = base(rig);
        rig.write(file, 0, &fill('n', 4));
        rig.cut();
        sectors(rig, "/f")
    };
    assert_eq!(outcomes(&Profile::ideal(), story), words("on", 4));
    assert_eq!(outcomes(&Profile::ideal().lost(Loss::Prefix), story), words("on", 4));
    assert_eq!(outcomes(&Profile::ideal().torn(false), story), set(["oooo", "nnnn"]));
    assert_eq!(outcomes(&Profile::ideal().lost(Loss::Prefix).torn(false), story), set(["oooo", "nnnn"]));
}

/// It persists neither the write before it, nor the rest of its own place's older write, nor the file's name and length.
#[test]
fn a_write_with_fua_is_there_and_takes_nothing_with_it() {
    let profile = Profile::ideal().fua(Duration::from_micros(3));
    let beside = outcomes(&profile, |rig| {
        let file = base(rig);
        rig.write(file, 0, &fill('a', 2));
        assert_eq!(rig.write_with_fua(file, 0, &fill('b', 1)), 0);
        rig.cut();
        sectors(rig, "/f")
    });
    assert_eq!(beside, set(["booo", "baoo"]));
    let young = outcomes(&profile, |rig| {
        let file = rig.open("/young", CREATE);
        rig.write(file, 0, &fill('a', 1));
        assert!(!rig.machine.has_fua(file, 2 * SECTOR as u64), "a longer file needs a flush");
        assert_eq!(rig.write_with_fua(file, 0, &fill('b', 1)), 0);
        rig.cut();
        sectors(rig, "/young")
    });
    assert!(young.contains("none") && young.contains("b"), "{young:?}");
}

#[test]
fn a_lying_flush_keeps_a_write_with_fua_in_the_cache() {
    let profile = Profile::ideal().fua(Duration::from_micros(3)).fault(Rule::new(Fault::LyingFlush).on("/f"));
    let seen = outcomes(&profile, |rig| {
        let file = rig.open("/f", CREATE);
        rig.write(file, 0, &fill('a', 1));
        rig.machine.reboot(&mut rig.fate);
        let file = rig.open("/f", CREATE);
        assert_eq!(rig.write_with_fua(file, 0, &fill('b', 1)), 0);
        rig.cut();
        sectors(rig, "/f")
    });
    assert_eq!(seen, set(["a", "b"]));
}

#[test]
fn behind_a_torn_write_there_is_nothing_in_order() {
    let seen = outcomes(&Profile::ideal().lost(Loss::Prefix), |rig| {
        let file = base(rig);
        rig.write(file, 0, &fill('a', 2));
        rig.write(file, 2 * SECTOR as u64, &fill('b', 2));
        rig.cut();
        sectors(rig, "/f")
    });
    let firsts = words("ao", 2).into_iter().map(|word| word + "oo");
    let seconds = words("bo", 2).into_iter().map(|word| String::from("aa") + &word);
    assert_eq!(seen, firsts.chain(seconds).collect());
}

#[test]
fn a_sector_has_one_of_its_versions() {
    let story = |rig: &mut Rig| {
        let file = base(rig);
        for letter in "abc".chars() {
            rig.write(file, 0, &fill(letter, 1));
        }
        rig.cut();
        sectors(rig, "/f")
    };
    assert_eq!(outcomes(&Profile::ideal(), story), set(["oooo", "aooo", "booo", "cooo"]));
    let flushed = |rig: &mut Rig| {
        let (file, other) = (base(rig), rig.open("/other", CREATE));
        rig.write(file, 0, &fill('a', 1));
        rig.write(file, 0, &fill('b', 1));
        rig.sync(OpKind::SyncData, other);
        rig.write(file, 0, &fill('c', 1));
        rig.cut();
        sectors(rig, "/f")
    };
    assert_eq!(outcomes(&Profile::ideal(), flushed), set(["booo", "cooo"]));
}

#[test]
fn what_a_sync_covers_stays() {
    for (kind, how) in [(OpKind::SyncData, CREATE), (OpKind::SyncAll, CREATE), (OpKind::SyncData, BUFFERED)] {
        for order in [MetadataOrder::Journal, MetadataOrder::Posix] {
            let seen = outcomes(&Profile::nand().metadata_order(order), |rig| {
                let file = rig.open("/f", how);
                rig.done(MetaRequest::SyncDir { path: path("/") });
                rig.write(file, 0, &fill('n', 3));
                assert_eq!(rig.sync(kind, file), 0);
                rig.cut();
                sectors(rig, "/f")
            });
            assert_eq!(seen, set(["nnn"]));
        }
    }
}

#[test]
fn a_sync_covers_what_ended_before_it_began() {
    let seen = outcomes(&Profile::nand().jitter(0).tail(0, 1), |rig| {
        let file = base(rig);
        let write = rig.start(OpKind::Write, file, 0, Some(memory(&fill('n', 1))));
        let sync = rig.start(OpKind::SyncAll, file, 0, None);
        rig.result(write);
        rig.result(sync);
        rig.cut();
        sectors(rig, "/f")
    });
    assert_eq!(seen, set(["oooo", "nooo"]));
}

#[test]
fn buffered_bytes_are_lost_sector_by_sector_whatever_the_disk_keeps() {
    let story = |rig: &mut Rig| {
        base(rig);
        let file = rig.open("/f", BUFFERED);
        rig.write(file, 100, &fill('n', 2));
        rig.cut();
        let bytes = rig.content("/f").unwrap();
        // The bytes at 100 to 1123 lie in three sectors.
        [100, 600, 1100].map(|at| bytes[at] as char).iter().collect()
    };
    assert_eq!(outcomes(&Profile::ideal().lost(Loss::Nothing), story), words("on", 3));
    assert_eq!(outcomes(&Profile::optane().sector(512).alignment(4096, 512), story), words("on", 3));
}

#[test]
fn what_was_in_flight_is_there_in_part() {
    for profile in [Profile::ideal(), Profile::ideal().write_cache(0), Profile::ideal().lost(Loss::Nothing)] {
        let seen = outcomes(&profile, |rig| {
            let file = base(rig);
            rig.start(OpKind::Write, file, 0, Some(memory(&fill('n', 3))));
            rig.cut();
            sectors(rig, "/f")
        });
        assert_eq!(seen, words("on", 3).into_iter().map(|word| word + "o").collect());
    }
}

#[test]
fn a_length_is_old_or_new_or_between_and_the_rest_is_zeros() {
    let seen = outcomes(&Profile::ideal().torn(false), |rig| {
        let file = base(rig);
        rig.write(file, 4 * SECTOR as u64, &fill('n', 3));
        rig.cut();
        sectors(rig, "/f")
    });
    let want = ["oooo", "oooon", "oooonn", "oooonnn", "oooo.", "oooo..", "oooo..."];
    assert_eq!(seen, set(want));
}

#[test]
fn bytes_behind_a_lost_length_never_come_back() {
    let seen = outcomes(&Profile::ideal().lost(Loss::Nothing), |rig| {
        let (file, other) = (base(rig), rig.open("/other", CREATE));
        rig.write(file, 4 * SECTOR as u64, &fill('n', 1));
        // The bytes are on the medium now, the length is not.
        rig.sync(OpKind::SyncData, other);
        rig.cut();
        let after = sectors(rig, "/f");
        let file = rig.open("/f", CREATE);
        rig.done(MetaRequest::Truncate { file: owner(file), len: 3072 });
        after + " " + &sectors(rig, "/f")
    });
    assert_eq!(seen, set(["oooo oooo..", "oooon oooon."]));
}

#[test]
fn a_cut_off_end_is_there_or_gone_with_what_replaced_it() {
    let truncated = |rig: &mut Rig| {
        let file = base(rig);
        rig.done(MetaRequest::Truncate { file: owner(file), len: SECTOR as u64 });
        rig.write(file, SECTOR as u64, &fill('n', 1));
        rig.cut();
        sectors(rig, "/f")
    };
    for order in [MetadataOrder::Journal, MetadataOrder::Posix] {
        let seen = outcomes(&Profile::ideal().metadata_order(order), truncated);
        assert_eq!(seen, set(["oooo", "o", "on", "o."]));
    }
    let punched = |rig: &mut Rig| {
        let file = base(rig);
        rig.done(MetaRequest::PunchHole { file: owner(file), offset: 0, len: 2 * SECTOR as u64 });
        rig.write(file, 0, &fill('n', 1));
        rig.cut();
        sectors(rig, "/f")
    };
    assert_eq!(outcomes(&Profile::ideal(), punched), set(["oooo", "..oo", "n.oo"]));
    let allocated = |rig: &mut Rig| {
        let file = base(rig);
        rig.done(MetaRequest::Allocate { file: owner(file), offset: 0, len: 6 * SECTOR as u64 });
        rig.cut();
        sectors(rig, "/f")
    };
    assert_eq!(outcomes(&Profile::ideal(), allocated), set(["oooo", "oooo.."]));
}

fn create(rig: &mut Rig, name: &str) {
    let file = rig.open(name, CREATE);
    rig.machine.close(file);
}

fn dirs(rig: &mut Rig) {
    for dir in ["/d", "/e"] {
        rig.done(MetaRequest::CreateDir { path: path(dir) });
    }
    create(rig, "/d/old");
    for dir in ["/", "/d", "/e"] {
        rig.done(MetaRequest::SyncDir { path: path(dir) });
    }
}

fn both(rig: &mut Rig) -> String {
    rig.names("/d").join(",") + " " + &rig.names("/e").join(",")
}

#[test]
fn a_journal_keeps_names_in_order() {
    let unsynced = |rig: &mut Rig| {
        dirs(rig);
        create(rig, "/d/a");
        create(rig, "/e/b");
        rig.done(MetaRequest::RemoveFile { path: path("/d/old") });
        rig.cut();
        both(rig)
    };
    assert_eq!(outcomes(&Profile::ideal(), unsynced), set(["old ", "a,old ", "a,old b", "a b"]));
    let synced = |rig: &mut Rig| {
        dirs(rig);
        create(rig, "/d/a");
        create(rig, "/e/b");
        create(rig, "/d/c");
        rig.done(MetaRequest::SyncDir { path: path("/e") });
        rig.cut();
        both(rig)
    };
    assert_eq!(outcomes(&Profile::ideal(), synced), set(["a,old b", "a,c,old b"]));
}

#[test]
fn a_journal_takes_a_new_files_name_along_with_its_sync() {
    let story = |kind| {
        move |rig: &mut Rig| {
            let file = rig.open("/f", CREATE);
            rig.write(file, 0, &fill('n', 1));
            assert_eq!(rig.sync(kind, file), 0);
            rig.cut();
            sectors(rig, "/f")
        }
    };
    for kind in [OpKind::SyncData, OpKind::SyncAll] {
        assert_eq!(outcomes(&Profile::ideal(), story(kind)), set(["n"]));
        let posix = Profile::ideal().metadata_order(MetadataOrder::Posix);
        assert_eq!(outcomes(&posix, story(kind)), set(["none", "n"]));
    }
}

#[test]
fn posix_keeps_each_directorys_own_changes() {
    let posix = Profile::ideal().metadata_order(MetadataOrder::Posix);
    let unsynced = |rig: &mut Rig| {
        dirs(rig);
        create(rig, "/d/a");
        create(rig, "/e/b");
        create(rig, "/d/c");
        rig.cut();
        both(rig)
    };
    let want = ["old ", "a,old ", "a,c,old ", "old b", "a,old b", "a,c,old b"];
    assert_eq!(outcomes(&posix, unsynced), set(want));
    let synced = |rig: &mut Rig| {
        dirs(rig);
        create(rig, "/d/a");
        create(rig, "/e/b");
        rig.done(MetaRequest::SyncDir { path: path("/e") });
        rig.cut();
        both(rig)
    };
    assert_eq!(outcomes(&posix, synced), set(["old b", "a,old b"]));
}

/// Returns a story that cuts the power in the middle of a rename, after `steps` of its steps.
fn renamed(from: &'static str, to: &'static str, steps: usize) -> impl Fn(&mut Rig) -> String {
    move |rig| {
        dirs(rig);
        let id = rig.id();
        let request = MetaRequest::Rename { from: path(from), to: path(to) };
        rig.machine.ask(id, request, rig.now_ns, &mut rig.fate);
        for _ in 0..steps {
            rig.now_ns = rig.machine.next_event_ns().expect("steps are events");
            rig.machine.pop_due(rig.now_ns, &mut rig.fate);
        }
        rig.cut();
        both(rig)
    }
}

#[test]
fn a_rename_may_be_caught_between_its_steps() {
    let posix = Profile::ideal().metadata_order(MetadataOrder::Posix);
    for profile in [Profile::ideal(), posix.clone()] {
        let within = |steps| outcomes(&profile, renamed("/d/old", "/d/new", steps));
        assert_eq!(within(0), set(["old "]));
        assert_eq!(within(1), set(["old ", "new "]));
        assert_eq!(within(2), set(["new "]));
    }
    let across = |profile: &Profile, steps| outcomes(profile, renamed("/d/old", "/e/new", steps));
    assert_eq!(across(&Profile::ideal(), 1), set(["old ", " new"]));
    assert_eq!(across(&Profile::ideal(), 2), set([" new"]));
    assert_eq!(across(&posix, 1), set(["old ", " new", "old new", " "]));
    assert_eq!(across(&posix, 2), set([" new", "old new"]));
    assert_eq!(across(&posix, 3), set([" new"]));
}

#[test]
fn the_classic_replacement_without_a_sync_may_leave_an_empty_file() {
    let story = |synced: bool| {
        move |rig: &mut Rig| {
            base(rig);
            let file = rig.open("/new", BUFFERED);
            rig.write(file, 0, &fill('n', 1));
            if synced {
                rig.sync(OpKind::SyncData, file);
            }
            rig.done(MetaRequest::Rename { from: path("/new"), to: path("/f") });
            rig.cut();
            sectors(rig, "/f")
        }
    };
    assert_eq!(outcomes(&Profile::ideal(), story(false)), set(["", ".", "n"]));
    assert_eq!(outcomes(&Profile::ideal(), story(true)), set(["n"]));
}

#[test]
fn a_rename_without_a_sync_lasts_once_its_directory_is_synced() {
    let story = |synced: bool| {
        move |rig: &mut Rig| {
            base(rig);
            let file = rig.open("/new", BUFFERED);
            rig.write(file, 0, &fill('n', 1));
            rig.sync(OpKind::SyncData, file);
            rig.done(MetaRequest::RenameUnsynced { from: path("/new"), to: path("/f") });
            rig.done(MetaRequest::HardLinkUnsynced { from: path("/f"), to: path("/g") });
            if synced {
                rig.done(MetaRequest::SyncDir { path: path("/") });
            }
            rig.cut();
            format!("{} {}", sectors(rig, "/f"), sectors(rig, "/g"))
        }
    };
    assert_eq!(outcomes(&Profile::ideal(), story(true)), set(["n n"]));
    let unsynced = outcomes(&Profile::ideal(), story(false));
    assert!(
        unsynced.contains("oooo none") && unsynced.contains("n none") && unsynced.contains("n n"),
        "{unsynced:?}"
    );
}

#[test]
fn removed_names_may_come_back_with_their_content() {
    let seen = outcomes(&Profile::ideal(), |rig| {
        let file = base(rig);
        rig.done(MetaRequest::RemoveFile { path: path("/f") });
        assert_eq!(rig.read(file, 0, SECTOR).unwrap(), fill('o', 1));
        rig.machine.close(file);
        rig.cut();
        sectors(rig, "/f")
    });
    assert_eq!(seen, set(["none", "oooo"]));
    let synced = outcomes(&Profile::ideal(), |rig| {
        base(rig);
        rig.done(MetaRequest::RemoveFile { path: path("/f") });
        rig.done(MetaRequest::SyncDir { path: path("/") });
        rig.cut();
        sectors(rig, "/f")
    });
    assert_eq!(synced, set(["none"]));
}

#[test]
fn an_orderly_restart_loses_nothing() {
    for order in [MetadataOrder::Journal, MetadataOrder::Posix] {
        let seen = outcomes(&Profile::nand().metadata_order(order), |rig| {
            let (direct, buffered) = (rig.open("/a", CREATE), rig.open("/b", BUFFERED));
            rig.write(direct, 0, &fill('a', 2));
            rig.write(buffered, 0, b"odd");
            rig.done(MetaRequest::CreateDir { path: path("/d") });
            rig.machine.reboot(&mut rig.fate);
            assert_eq!(rig.read(direct, 0, SECTOR), Err(libc::EBADF));
            assert_eq!(rig.content("/b").unwrap(), b"odd");
            rig.names("/").join(",") + " " + &sectors(rig, "/a")
        });
        assert_eq!(seen, set(["a,b,d aa"]));
    }
}

#[test]
fn without_power_nothing_answers_and_old_handles_stay_dead() {
    let mut rig = Rig::new(1, Profile::nand());
    let file = base(&mut rig);
    let lost = rig.start(OpKind::Read, file, 0, Some(memory(&[0; SECTOR])));
    rig.machine.power_cut(&mut rig.fate);
    assert!(rig.next().is_none(), "{lost:?} is forgotten");
    assert_eq!(rig.read(file, 0, SECTOR), Err(libc::EIO));
    assert_eq!(rig.errno(MetaRequest::ReadDir { path: path("/") }), libc::EIO);
    rig.machine.reboot(&mut rig.fate);
    assert_eq!(rig.read(file, 0, SECTOR), Err(libc::EBADF));
    rig.machine.close(file);
    assert!(rig.machine.violations().is_empty());
    assert!(rig.open("/f", CREATE) > file);
}

#[test]
fn choices_of_zero_lose_nothing() {
    let mut rig = Rig::with(Source::replay(1, Vec::new()), [Profile::ideal()]);
    assert_eq!(four_writes(&mut rig), "abcd");
}
