//! Ranks as processes of which one is killed or frozen anywhere in a call: the others end with a reason and no wrong byte, and ranks that
//! meet anew repeat the call.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use forebay::{Durability, Lock, Open};
use forebay_collective::{Options, Rank, Ranks, View};
use forebay_test::children::{SIGCONT, SIGKILL, SIGSTOP, end_with_parent, signal};
use forebay_test::killed::say;

use crate::common::{bytes_of, dir, engine};

const DIR: &str = "FOREBAY_TEST_RANKS_DIR";
const RANK: &str = "FOREBAY_TEST_RANKS_RANK";
const SECONDS: &str = "FOREBAY_TEST_RANKS_SECONDS";
const NETWORK: &str = "FOREBAY_TEST_RANKS_NETWORK";

/// Ranks 0 and 1 are the aggregators of two hosts; rank 2 is not an aggregator.
pub(super) const SIZE: u32 = 3;
/// Pieces of each rank in a call. A call has several windows.
const PIECES: u64 = 100;
const PIECE: u64 = 20_011;

/// Returns the bytes of all ranks in a round, and one rank's view of them.
fn round(round: u64, number: u64) -> (Vec<u8>, View) {
    let all = bytes_of(round * 8..round * 8 + u64::from(SIZE) * PIECES * PIECE);
    (all, View::vector(number * PIECE, PIECE, u64::from(SIZE) * PIECE, PIECES).unwrap())
}

/// Writes a round and reads it back, shifted by one rank. Says each step, and the reason if one fails.
fn live(ranks: &mut Ranks, path: &Path, rounds: u64) -> forebay::Result<()> {
    let engine = engine();
    let file = engine.open(path, Open::create()).wait()?;
    let alive = engine.open(path.with_extension("alive"), Open::create()).wait()?;
    alive.lock_within(Lock::Shared, Duration::from_secs(60)).wait()?;
    let number = u64::from(ranks.rank().number());
    for index in 1..=rounds {
        let (all, view) = round(index, number);
        let mine: Vec<u8> = (0..PIECES)
            .flat_map(|piece| {
                let at = ((piece * u64::from(SIZE) + number) * PIECE) as usize;
                all[at..at + PIECE as usize].to_vec()
            })
            .collect();
        say("writes");
        ranks.write(&file, &view, mine, Durability::Data).wait()?;
        say("reads");
        let third = PIECES * PIECE;
        let other = (number + 1) % u64::from(SIZE);
        let found = ranks.read(&file, &View::range(other * third..(other + 1) * third)?).wait()?;
        assert!(found == all[(other * third) as usize..((other + 1) * third) as usize], "round {index}");
    }
    Ok(())
}

#[test]
#[ignore = "a rank that the tests of this file start"]
fn rank_process() {
    let variable = |name| std::env::var(name).ok();
    let (Some(dir), Some(number)) = (variable(DIR), variable(RANK).and_then(|text| text.parse::<u32>().ok()))
    else {
        return;
    };
    let seconds = variable(SECONDS).and_then(|text| text.parse().ok()).expect("the parent gave it");
    let options = Options::new().memory_bytes_max(4 << 20).deadline(Duration::from_secs(seconds));
    let rank = Rank::new(number, SIZE).host(&format!("host-{}", number % 2));
    let rank = if variable(NETWORK).is_some() { rank.across_hosts() } else { rank };
    let mut ranks = match Ranks::meet(&rank, &dir, options).wait() {
        Ok(ranks) => ranks,
        Err(error) => return say(&format!("failed {error}")),
    };
    say("met");
    let ended = live(&mut ranks, &PathBuf::from(dir).join("file"), u64::MAX)
        .expect_err("it works until it is stopped");
    say(&format!("failed {ended}"));
}

/// A rank, and what it says.
pub(super) type RankProcess = (Child, BufReader<ChildStdout>);

/// Starts all ranks on this machine.
fn start(dir: &Path, seconds: u64) -> Vec<RankProcess> {
    let program = || Command::new(std::env::current_exe().unwrap());
    (0..SIZE).map(|number| start_rank(program(), dir, number, seconds)).collect()
}

/// Starts a rank by a command that runs this program, on a host of a network.
pub(super) fn start_on_host(mut command: Command, dir: &Path, number: u32, seconds: u64) -> RankProcess {
    command.env(NETWORK, "1");
    start_rank(command, dir, number, seconds)
}

fn start_rank(mut command: Command, dir: &Path, number: u32, seconds: u64) -> RankProcess {
    command
        .args(["rank_kills::rank_process", "--exact", "--ignored", "--nocapture"])
        .env(DIR, dir)
        .env(RANK, number.to_string())
        .env(SECONDS, seconds.to_string())
        .stdout(Stdio::piped());
    let mut child = end_with_parent(&mut command).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

/// Reads this many lines that a rank has said: the first is that all have met.
pub(super) fn hear(out: &mut BufReader<ChildStdout>, lines: u64) {
    let mut heard = 0;
    while heard < lines {
        let mut line = String::new();
        assert!(
            out.read_line(&mut line).unwrap() > 0,
            "a rank ended by itself after {heard} of {lines} lines"
        );
        assert!(!line.contains("failed"), "{line}");
        // The output of the test harness may precede the word on its line.
        heard += u64::from(["met\n", "writes\n", "reads\n"].iter().any(|word| line.ends_with(word)));
    }
}

/// Waits until a rank has ended by itself, and returns the reason that it gave.
pub(super) fn reason(number: usize, (child, out): &mut RankProcess) -> String {
    let said: Vec<String> = out.lines().map(Result::unwrap).collect();
    assert!(child.wait().unwrap().success(), "rank {number}: {said:?}");
    let reason = said.iter().find(|line| line.contains("failed "));
    reason.unwrap_or_else(|| panic!("rank {number} has given no reason: {said:?}")).clone()
}

/// Has one rank stop after this many lines. Returns the reasons that the others gave, all of which end by themselves.
fn stop(dir: &Path, victim: usize, lines: u64, seconds: u64, stop: impl FnOnce(&mut Child)) -> Vec<String> {
    let mut ranks = start(dir, seconds);
    hear(&mut ranks[victim].1, lines);
    stop(&mut ranks[victim].0);
    let others = ranks.iter_mut().enumerate().filter(|(number, _)| *number != victim);
    let reasons = others.map(|(number, rank)| reason(number, rank)).collect();
    let (child, out) = &mut ranks[victim];
    // The frozen process continues, and ends as the others did.
    signal(child, SIGCONT).unwrap();
    let said: Vec<String> = out.lines().map(Result::unwrap).collect();
    let is_killed = child.wait().unwrap().signal() == Some(SIGKILL);
    assert!(is_killed || said.iter().any(|line| line.contains("failed ")), "rank {victim} woke up: {said:?}");
    reasons
}

/// Meets anew, on threads of this process, and repeats a round.
pub(super) fn repeat(dir: &Path) {
    // The kernel gives a killed process's locks back once nothing that it had in flight can reach the file.
    let engine = engine();
    let alive = engine.open(dir.join("file.alive"), Open::create()).wait().unwrap();
    alive.lock_within(Lock::Exclusive, Duration::from_secs(60)).wait().unwrap();
    alive.unlock().wait().unwrap();
    thread::scope(|scope| {
        for number in 0..SIZE {
            scope.spawn(move || {
                let mut ranks = Ranks::meet(&Rank::new(number, SIZE), dir, Options::new()).wait().unwrap();
                live(&mut ranks, &dir.join("file"), 1).unwrap();
            });
        }
    });
}

#[test]
fn a_killed_rank_ends_the_others_with_a_reason() {
    let dir = dir();
    for victim in 0..SIZE as usize {
        for lines in 1..=4 / forebay_test::one_in(2) as u64 {
            let reasons = stop(dir.path(), victim, lines, 60, |child| child.kill().unwrap());
            for reason in reasons {
                let words = [format!("rank {victim} is gone"), format!("connection to rank {victim}")];
                assert!(
                    words.iter().any(|words| reason.contains(words)),
                    "rank {victim} is killed: {reason}"
                );
            }
        }
    }
    repeat(dir.path());
}

#[test]
fn a_frozen_rank_has_failed() {
    thread::scope(|scope| {
        for victim in 0..SIZE as usize {
            scope.spawn(move || {
                let dir = dir();
                let reasons = stop(dir.path(), victim, 2, 2, |child| signal(child, SIGSTOP).unwrap());
                for reason in reasons {
                    assert!(reason.contains(" within "), "rank {victim} is frozen: {reason}");
                }
                repeat(dir.path());
            });
        }
    });
}
