//! Each fault, and each way to aim a rule.

use std::collections::BTreeSet;

use super::*;
use crate::fault::Dirty;
use crate::profile::Loss;

const SECTOR: usize = 512;
const SECTORS: usize = 4;

/// Returns a machine with a rule, and a durable direct file of four sectors of `o` that was written before the rule was in force.
fn rig(seed: u64, profile: Profile, rule: Rule) -> (Rig, u32) {
    let mut rig = Rig::new(seed, profile);
    let file = rig.open("/f", CREATE);
    rig.write(file, 0, &[b'o'; SECTORS * SECTOR]);
    assert_eq!(rig.sync(OpKind::SyncAll, file), 0);
    rig.machine.inject(rule);
    (rig, file)
}

fn letters(bytes: &[u8]) -> String {
    bytes.chunks(SECTOR).map(|sector| sector[0] as char).collect()
}

fn read(rig: &mut Rig, file: u32) -> String {
    letters(&rig.read(file, 0, SECTORS * SECTOR).unwrap())
}

fn after_cut(rig: &mut Rig) -> String {
    rig.cut();
    letters(&rig.content("/f").unwrap())
}

fn seen(profile: &Profile, rule: &Rule, story: impl Fn(&mut Rig, u32) -> String) -> BTreeSet<String> {
    (0..200)
        .map(|seed| {
            let (mut rig, file) = rig(seed, profile.clone(), rule.clone());
            story(&mut rig, file)
        })
        .collect()
}

fn set<const N: usize>(outcomes: [&str; N]) -> BTreeSet<String> {
    outcomes.into_iter().map(String::from).collect()
}

#[test]
fn rules_count_aim_and_end() {
    let errors = |rule: Rule| {
        let (mut rig, file) = rig(1, Profile::ideal(), rule);
        let other = rig.open("/other", CREATE);
        rig.write(other, 0, &[1; SECTOR]);
        let word: String = (0..6)
            .map(|round| {
                let wrong = rig.read(file, (round % 2) * SECTOR as u64, SECTOR).is_err();
                if wrong { 'x' } else { '-' }
            })
            .collect();
        let other = if rig.read(other, 0, SECTOR).is_err() { " x" } else { " -" };
        assert_eq!(rig.machine.counts().fired(Fault::ReadError), (word + other).matches('x').count() as u64);
        let mut again = String::new();
        rig.machine.clear_faults();
        again.extend(rig.read(file, 0, SECTOR).map(|_| "ok"));
        assert_eq!(again, "ok");
        rig.machine.counts().fired(Fault::ReadError)
    };
    let rule = || Rule::new(Fault::ReadError);
    assert_eq!(errors(rule()), 7);
    assert_eq!(errors(rule().on("/f")), 6);
    assert_eq!(errors(rule().on("f")), 6);
    assert_eq!(errors(rule().on("/")), 7);
    assert_eq!(errors(rule().on("/fx")), 0);
    assert_eq!(errors(rule().within(512..513)), 3);
    assert_eq!(errors(rule().within(512..512)), 0);
    assert_eq!(errors(rule().nth(3)), 1);
    assert_eq!(errors(rule().nth(8)), 0);
    assert_eq!(errors(rule().times(2)), 2);
    assert_eq!(errors(rule().chance_ppm(0)), 0);
}

#[test]
fn a_rule_of_a_profile_strikes_its_disk() {
    let faulty = Profile::ideal().at("/x").fault(Rule::new(Fault::FlushError).nth(2));
    let mut rig = Rig::with(Source::new(1), [Profile::ideal(), faulty]);
    let (good, bad) = (rig.open("/a", CREATE), rig.open("/x/a", CREATE));
    let all = [good, bad, good, bad, good, bad].map(|file| rig.sync(OpKind::SyncAll, file));
    assert_eq!(all, [0, 0, 0, -libc::EIO, 0, 0]);
}

#[test]
fn cuts_are_shaped_by_torn_lost_and_reordered_writes() {
    let two = |rig: &mut Rig, file: u32| {
        rig.write(file, 0, &[b'a'; 2 * SECTOR]);
        rig.write(file, 2 * SECTOR as u64, &[b'b'; 2 * SECTOR]);
        after_cut(rig)
    };
    let kept = Profile::ideal().lost(Loss::Nothing);
    assert_eq!(seen(&kept, &Rule::new(Fault::LostWrite).nth(1), two), set(["oobb"]));
    let torn = seen(&kept, &Rule::new(Fault::TornWrite).nth(2), two);
    assert_eq!(torn, set(["aaoo", "aabo", "aaob", "aabb"]));
    let ordered = Profile::ideal().lost(Loss::Prefix).torn(false);
    let loose = seen(&ordered, &Rule::new(Fault::Reorder).nth(2), two);
    assert_eq!(loose, set(["oooo", "aaoo", "oobb", "aabb"]));
    // Flushed bytes are out of the fault's reach.
    let flushed = seen(&kept, &Rule::new(Fault::LostWrite), |rig, file| {
        rig.write(file, 0, &[b'a'; SECTOR]);
        rig.sync(OpKind::SyncData, file);
        after_cut(rig)
    });
    assert_eq!(flushed, set(["aooo"]));
}

#[test]
fn a_lying_flush_makes_nothing_durable() {
    for how in [CREATE, BUFFERED] {
        let outcomes = seen(&Profile::ideal(), &Rule::new(Fault::LyingFlush).nth(1), |rig, _| {
            let file = rig.open("/f", how);
            rig.write(file, 0, &[b'a'; SECTOR]);
            assert_eq!(rig.sync(OpKind::SyncAll, file), 0);
            after_cut(rig)
        });
        assert_eq!(outcomes, set(["oooo", "aooo"]));
    }
    let honest = seen(&Profile::ideal(), &Rule::new(Fault::LyingFlush).nth(1), |rig, file| {
        rig.write(file, 0, &[b'a'; SECTOR]);
        rig.sync(OpKind::SyncAll, file);
        rig.sync(OpKind::SyncAll, file);
        after_cut(rig)
    });
    assert_eq!(honest, set(["aooo"]));
}

#[test]
fn a_failed_flush_loses_or_keeps_what_it_was_for() {
    let story = |how: OpenHow| {
        move |rig: &mut Rig, _: u32| {
            let file = rig.open("/f", how);
            rig.write(file, 0, &[b'a'; SECTOR]);
            assert_eq!(rig.sync(OpKind::SyncData, file), -libc::EIO);
            assert_eq!(rig.sync(OpKind::SyncData, file), 0);
            // Reads return the bytes written, whether or not they are stored anywhere.
            assert_eq!(read(rig, file), "aooo");
            after_cut(rig)
        }
    };
    let rule = Rule::new(Fault::FlushError).nth(1);
    for how in [CREATE, BUFFERED] {
        assert_eq!(seen(&Profile::ideal(), &rule, story(how)), set(["oooo", "aooo"]));
        assert_eq!(seen(&Profile::ideal(), &rule.clone().dirty(Dirty::Kept), story(how)), set(["aooo"]));
    }
    let orderly = seen(&Profile::ideal(), &rule, |rig, file| {
        rig.write(file, 0, &[b'a'; SECTOR]);
        assert_eq!(rig.sync(OpKind::SyncData, file), -libc::EIO);
        rig.machine.reboot(&mut rig.fate);
        letters(&rig.content("/f").unwrap())
    });
    assert_eq!(orderly, set(["oooo", "aooo"]), "what is lost is lost in an orderly restart too");
}

#[test]
fn a_failed_flush_costs_other_files_nothing() {
    let outcomes = seen(&Profile::ideal(), &Rule::new(Fault::FlushError).nth(1), |rig, file| {
        let other = rig.open("/other", CREATE);
        rig.write(file, 0, &[b'a'; SECTOR]);
        assert_eq!(rig.sync(OpKind::SyncData, other), -libc::EIO);
        assert_eq!(rig.sync(OpKind::SyncData, file), 0);
        after_cut(rig)
    });
    assert_eq!(outcomes, set(["aooo"]));
}

#[test]
fn a_directorys_sync_fails_with_the_words_of_the_real_call() {
    let (mut rig, _) = rig(1, Profile::ideal(), Rule::new(Fault::FlushError));
    let error = rig.ask(MetaRequest::Rename { from: path("/f"), to: path("/g") }).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert!(error.to_string().contains("the name was changed, but"), "{error}");
    assert_eq!(rig.names("/"), ["g"]);
    assert_eq!(rig.errno(MetaRequest::SyncDir { path: path("/") }), libc::EIO);
}

#[test]
fn a_failed_write_leaves_the_front_all_or_nothing() {
    let outcomes = seen(&Profile::ideal(), &Rule::new(Fault::WriteError), |rig, file| {
        assert_eq!(rig.write(file, SECTOR as u64, &[b'a'; 4 * SECTOR]), -libc::EIO);
        read(rig, file)
    });
    assert_eq!(outcomes, set(["oooo", "oaoo", "oaao", "oaaa"]));
    let buffered = seen(&Profile::ideal(), &Rule::new(Fault::WriteError), |rig, _| {
        let file = rig.open("/f", BUFFERED);
        assert_eq!(rig.write(file, 0, &[b'a'; SECTOR]), SECTOR as i32);
        assert_eq!(rig.sync(OpKind::SyncData, file), -libc::EIO);
        assert_eq!(rig.sync(OpKind::SyncData, file), 0);
        after_cut(rig)
    });
    assert_eq!(buffered, set(["oooo"]));
}

#[test]
fn a_latent_error_stays_until_its_sector_is_written() {
    for seed in 0..50 {
        let rule = Rule::new(Fault::LatentSectorError).within(600..1600).times(1);
        let (mut rig, file) = rig(seed, Profile::ideal(), rule);
        assert_eq!(rig.read(file, 0, SECTORS * SECTOR), Err(libc::EIO));
        rig.cut();
        let file = rig.open("/f", CREATE);
        let good = |rig: &mut Rig| {
            (0..SECTORS).map(|at| rig.read(file, (at * SECTOR) as u64, SECTOR).is_ok()).collect::<Vec<_>>()
        };
        let found = good(&mut rig);
        assert_eq!(found.iter().filter(|good| !**good).count(), 1, "{found:?}");
        assert!(found[0], "outside of the zone");
        let bad = found.iter().position(|good| !good).unwrap();
        assert_eq!(rig.write(file, (bad * SECTOR) as u64, &[b'n'; SECTOR]), SECTOR as i32);
        assert_eq!(good(&mut rig), [true; SECTORS]);
    }
}

#[test]
fn rot_turns_one_stored_bit_over() {
    let flipped = |bytes: &[u8], was: u8| bytes.iter().map(|byte| (byte ^ was).count_ones()).sum::<u32>();
    for seed in 0..50 {
        // At rest, found by a read, and durable immediately.
        let (mut rig, file) =
            rig(seed, Profile::ideal(), Rule::new(Fault::BitRot).within(512..1024).times(1));
        let bytes = rig.read(file, 512, 512).unwrap();
        assert_eq!(flipped(&bytes, b'o'), 1);
        rig.cut();
        let again = rig.content("/f").unwrap();
        assert_eq!((flipped(&again, b'o'), &again[512..1024]), (1, &bytes[..]));
        // On its way to the disk, and synced with the rest.
        let file = rig.open("/f", CREATE);
        rig.machine.inject(Rule::new(Fault::BitRot).times(1));
        assert_eq!(rig.write(file, 0, &[b'n'; SECTORS * SECTOR]), (SECTORS * SECTOR) as i32);
        rig.sync(OpKind::SyncData, file);
        rig.cut();
        assert_eq!(flipped(&rig.content("/f").unwrap(), b'n'), 1);
    }
}

#[test]
fn a_misdirected_write_lands_in_a_file_and_not_where_it_should() {
    let mut places = BTreeSet::new();
    for seed in 0..200 {
        let (mut rig, file) =
            rig(seed, Profile::ideal(), Rule::new(Fault::MisdirectedWrite).on("/f").times(1));
        let other = rig.open("/other", CREATE);
        rig.write(other, 0, &[b'o'; 2 * SECTOR]);
        assert_eq!(rig.write(file, SECTOR as u64, &[b'n'; SECTOR]), SECTOR as i32);
        let after = read(&mut rig, file) + " " + &letters(&rig.read(other, 0, 4096).unwrap());
        assert_eq!(after.matches('n').count(), 1, "{after}");
        places.insert(after);
    }
    assert_eq!(places, set(["nooo oo", "oono oo", "ooon oo", "oooo no", "oooo on"]));
}

#[test]
fn space_may_be_gone_by_rule() {
    let (mut rig, file) = rig(1, Profile::ideal(), Rule::new(Fault::NoSpace));
    assert_eq!(rig.write(file, 0, &[1; SECTOR]), -libc::ENOSPC);
    assert_eq!(read(&mut rig, file), "oooo");
    let made = rig.opened(MetaRequest::Open { path: path("/new"), how: CREATE }).unwrap_err();
    assert_eq!(made.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(rig.errno(MetaRequest::CreateDir { path: path("/d") }), libc::ENOSPC);
    assert_eq!(rig.errno(MetaRequest::Allocate { file: owner(file), offset: 0, len: 1 }), libc::ENOSPC);
    assert_eq!(rig.names("/"), ["f"]);
}

#[test]
fn short_operations_move_at_least_a_sector_or_byte() {
    for seed in 0..50 {
        let (mut rig, file) = rig(seed, Profile::ideal(), Rule::new(Fault::ShortRead));
        rig.machine.inject(Rule::new(Fault::ShortWrite));
        let got = rig.read(file, 0, 2048).unwrap().len();
        assert!(got.is_multiple_of(512) && (512..2048).contains(&got), "{got}");
        let put = rig.write(file, 0, &[b'n'; 2048]);
        assert!(put % 512 == 0 && (512..2048).contains(&put), "{put}");
        assert_eq!(rig.read(file, 0, 512).unwrap().len(), 512, "nothing is left to shorten");
        let buffered = rig.open("/f", BUFFERED);
        let put = rig.write(buffered, 0, &[b'm'; 100]);
        assert!((1..100).contains(&put), "{put}");
    }
    // The rest starts at a memory page where memory has to be page-aligned.
    let (mut rig, file) = rig(1, Profile::ideal().alignment(4096, 512), Rule::new(Fault::ShortWrite));
    assert_eq!(rig.write(file, 0, &[b'n'; 4096]), 4096);
    assert_eq!(rig.write(file, 0, &[b'n'; 8192]), 4096);
}

#[test]
fn what_is_stuck_never_ends() {
    let (mut rig, file) = rig(1, Profile::ideal(), Rule::new(Fault::Stuck).times(1));
    let stuck = rig.start(OpKind::Read, file, 0, Some(memory(&[0; SECTOR])));
    rig.machine.cancel(stuck, rig.now_ns, &mut rig.fate);
    assert_eq!(rig.machine.next_event_ns(), None);
    assert_eq!(read(&mut rig, file), "oooo");
    rig.cut();
    assert!(rig.next().is_none());
}

#[test]
fn what_is_slow_takes_a_thousand_times_as_long() {
    let (mut rig, file) = rig(1, Profile::ideal(), Rule::new(Fault::Slow).times(1));
    let before = rig.now_ns;
    read(&mut rig, file);
    assert_eq!(rig.now_ns - before, 1_000_000);
}

#[test]
fn a_cancel_may_lose_its_race() {
    for seed in 0..20 {
        let (mut rig, file) = rig(seed, Profile::nand().parallelism(1), Rule::new(Fault::CancelRace));
        let ids = [b'a', b'b'].map(|byte| rig.start(OpKind::Write, file, 0, Some(memory(&[byte; SECTOR]))));
        ids.iter().for_each(|id| rig.machine.cancel(*id, rig.now_ns, &mut rig.fate));
        assert_eq!(ids.map(|id| rig.result(id)), [SECTOR as i32; 2]);
        assert_eq!(read(&mut rig, file), "booo");
    }
}
