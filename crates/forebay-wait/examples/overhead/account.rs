//! The kernel's own account of the programs (`kernel.bpf_stats_enabled`): how long they ran for each read of
//! a program that waits for its device. The figure does not drift with the device, as the device's rates do.
//! But it includes the work of other programs, so it needs a machine that has nothing else to do.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_wait::PauseOutcome;
use libbpf_rs::query::ProgInfoIter;

use crate::{Outcome, Scratch};

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Switches the kernel's counting on for as long as this lives, and restores the switch then.
struct StatsSwitch(String);

impl StatsSwitch {
    fn start() -> Outcome<Self> {
        let before = fs::read_to_string(SWITCH)?;
        fs::write(SWITCH, "1")?;
        Ok(Self(before))
    }
}

impl Drop for StatsSwitch {
    fn drop(&mut self) {
        // The caller has ended, so nothing can be reported, and counting costs little.
        let _ = fs::write(SWITCH, self.0.trim());
    }
}

/// Name, nanoseconds and runs of each program, by its number.
type Runs = BTreeMap<u32, (String, u64, u64)>;

/// Returns the account of each program that was loaded after `last`.
fn programs(last: u32) -> Runs {
    let ours = ProgInfoIter::default().filter(|program| program.id > last);
    ours.map(|program| {
        let name = program.name.to_string_lossy().into_owned();
        (program.id, (name, program.run_time_ns, program.run_cnt))
    })
    .collect()
}

/// Prints the account of one thread's direct reads at random, watched for so long.
pub(crate) fn print(seconds: f64, scratch: &Scratch) -> Outcome<()> {
    let _counting = StatsSwitch::start()?;
    let last = ProgInfoIter::default().map(|program| program.id).max().unwrap_or(0);
    let told = scratch.told();
    let mut child = Command::new(std::env::current_exe()?)
        .args(["work", "direct", "1", &seconds.to_string()])
        .args([scratch.file().as_os_str(), told.as_os_str()])
        .stdout(Stdio::null())
        .spawn()?;
    // The first and the last readings of the account while it read.
    let mut looks: Vec<(Instant, Runs)> = Vec::new();
    let watched = forebay_wait::watch(child.id(), Duration::from_secs_f64(seconds * 0.9), |time| {
        std::thread::sleep(time);
        looks.truncate(1);
        looks.push((Instant::now(), programs(last)));
        PauseOutcome::Going
    });
    let status = child.wait()?;
    watched?;
    if !status.success() || looks.len() < 2 {
        return Err("the work failed, or was too short".into());
    }
    let rate: f64 = fs::read_to_string(&told)?.trim().parse()?;
    let (begun, before) = &looks[0];
    let (ended, after) = &looks[1];
    let passed_ns = ended.duration_since(*begun).as_nanos() as f64;
    let reads = rate * passed_ns / 1e9;
    println!("\ndirect reads of 4 KiB at random, 1 thread(s): the kernel's account of the programs, a read");
    let mut sum = 0.0;
    for (number, (name, earlier, earlier_runs)) in before {
        // A program that has exited, or started later, belongs to another measurement.
        let Some((_, time, runs)) = after.get(number) else { continue };
        let (time, runs) = ((time - earlier) as f64, (runs - earlier_runs) as f64);
        sum += time;
        if runs / reads >= 0.05 {
            println!("  {name:<28} {:>6.2} runs {:>6.0} ns", runs / reads, time / reads);
        }
    }
    println!(
        "  all: {:.0} ns of a read's {:.1} us, {:.2} % of the time (goal: at most 2 %)",
        sum / reads,
        passed_ns / reads / 1e3,
        sum / passed_ns * 100.0
    );
    let share = format!("{:.2}", sum / passed_ns * 100.0);
    forebay_test::record(
        "wait",
        "a direct read of 4 KiB, by the kernel's account",
        &share,
        "% of its time",
        "",
    )?;
    Ok(())
}

/// Returns whether this kernel has such an account.
pub(crate) fn exists() -> bool {
    Path::new(SWITCH).exists()
}
