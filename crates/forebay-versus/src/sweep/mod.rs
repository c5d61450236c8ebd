//! `sweep`: figures along one number that a user chooses, in small steps, beside a peer at each (forebay-test/SWEEPS.md).

mod axes;
mod etcd;

use std::collections::BTreeSet;

use forebay_measure::check_space;
use forebay_measure::cleanup::{TempDirectory, TempFile};
use forebay_measure::options::Length;
use forebay_measure::output::print;
use forebay_report::page::sweep::{Sweep, points, summary};
use forebay_report::result::columns::IOPS;
use forebay_report::units::bytes;

use crate::prelude::*;
use axes::{AXES, ETCD, FILE_BYTES, Input, NAMES};

/// Our row.
const OURS: &str = "forebay";
const WARM_UP_SECONDS: f64 = 0.05;
/// The programs of the axis of etcd, and the options that name them.
const PROGRAMS: [(&str, &str); 3] =
    [("etcd", "etcd"), ("own_etcd", "own-etcd"), ("etcd_client", "etcd-client")];

experiment! {
    SWEEP "sweep", "One figure along a number that a user chooses, beside a peer at each point of it",
        compared by "iops", per |_| "io";
    options {
        word("axis", "The numbers to go along", NAMES).list().chosen("all");
        count("points", "Only these points, such as those around a cliff", 1 << 32).list().chosen("all of the axis");
        count("rounds", "Samples of each side at each point, in turn", 1000).or("5").quick("2");
        seconds("0.2", "0.05");
        flag("quick", "Powers of two without the numbers beside them, and shorter and fewer samples");
        flag("list", "Only print the axes, their peers, and the space that they need");
        path("constants", "AXIS=NUMBER of its SWEEPS.md: points lie around these numbers, too").list();
        path("etcd", "The program etcd, without which its axis is left out");
        path("own-etcd", "The program forebay-etcd");
        path("etcd-client", "The example `compare` of forebay-etcd-rulers");
    }
    rows {
        direct "forebay", "Forebay" => sample;
        direct "std-fs", "std::fs: a thread for each operation; past the page cache it reads whole pages" => sample;
        direct "raft-engine", "raft-engine 0.4.2 from threads; each writer is a raft group" => sample;
        direct "fjall", "fjall 3.1, no compression" => sample;
        direct "rocksdb", "RocksDB 10.4 by rocksdb 0.24, direct I/O, no compression" => sample;
        cached "local", "LocalFileSystem of object_store 0.14" => sample;
        direct "etcd", "etcd" => sample;
    }
    columns {
        IOPS;
    }
    ranked by "iops"
    ratios {}
    spreads {}
    limits {}
}

/// Measures a side of a point.
fn sample(work: &Work) -> Result<Outcome> {
    let axis = axes::find(&work.workload)?;
    let (_, theirs) = axis.peer;
    if work.row == OURS { (axis.ours)(work) } else { theirs(work) }
}

fn title(table: &Table) -> String {
    format!("sweep {} at {}", table.text("workload"), table.number("point").unwrap_or(0.0))
}

fn plan<'c>(options: &Values, context: &'c Context) -> Result<Run<'c>> {
    let method = "Each sample is a process of its own, whose time begins after a warm-up. At each point both sides take turns, \
        round by round; ratios are those of the same round, and figures medians.";
    let (mut run, scratch) = Run::in_directory(context, SWEEP.spec.name, false, method)?;
    let wanted = options.words("axis");
    let [etcd, own_etcd, etcd_client] = PROGRAMS.map(|(_, option)| options.words(option).first().copied());
    let programs = etcd.zip(own_etcd).zip(etcd_client);
    if programs.is_none() && (wanted.is_empty() || wanted.contains(&ETCD)) {
        context
            .progress
            .print_line("etcd-put is left out: it needs --etcd PROGRAM, and scripts/bench builds the rest");
    }
    let is_wanted = |name: &str| wanted.is_empty() || wanted.contains(&name);
    let chosen = AXES.iter().filter(|axis| is_wanted(axis.name) && (programs.is_some() || axis.name != ETCD));
    let seconds = options.number("seconds").unwrap_or(0.0);
    let (mut room, mut count) = (0_u64, 0);
    for axis in chosen {
        room = room.max(axis.room_bytes(seconds + WARM_UP_SECONDS));
        for at in points_of(axis, options) {
            let mut setting = (axis.work)(at);
            setting["workload"] = json!(axis.name);
            setting["point"] = json!(at);
            setting["repeats"] = json!(options.count("rounds"));
            setting["warm_up_seconds"] = json!(WARM_UP_SECONDS);
            setting["tokio_workers"] = json!(cores());
            run.table(setting);
            count += 1;
        }
    }
    ensure!(count > 0, "no axis has such a point");
    // Both files stay until the end.
    let room = room + 2 * FILE_BYTES;
    context.progress.print_line(&format!(
        "{count} points; up to {} of disk in {}",
        bytes(room),
        scratch.directory.display()
    ));
    check_space(&scratch.directory, room, "name another directory with --dir, or fewer with --axis")?;
    run.has = Box::new(|setting, row| {
        let name = setting.get("workload").and_then(Value::as_str).unwrap_or_default();
        row == OURS || axes::find(name).is_ok_and(|axis| axis.peer.0 == row)
    });
    let programs = [etcd, own_etcd, etcd_client].map(|program| program.map(str::to_owned));
    let mut made: [Option<TempFile>; 2] = [None, None];
    let mut objects: Option<TempDirectory> = None;
    run.prepare = Box::new(move |turn, job| {
        let axis = axes::find(turn.text("workload"))?;
        match axis.input {
            Input::Cold | Input::Warm | Input::Target => {
                let file = &mut made[usize::from(axis.input == Input::Target)];
                if file.is_none() {
                    *file = Some(run::test_file(context, &scratch, FILE_BYTES)?);
                }
                if let Some(file) = file {
                    job.path = file.path().to_owned();
                }
                match axis.input {
                    Input::Cold => files::evict(&job.path, false)?,
                    Input::Warm => files::load(&job.path)?,
                    _ => {}
                }
                Ok(None)
            }
            Input::Object => {
                if objects.is_none() {
                    objects = Some(scratch.temp_directory(context, "objects")?);
                }
                if let Some(directory) = &objects {
                    job.path = directory.path().to_owned();
                }
                write_object(&job.path.join(crate::objects::OBJECT), turn.count("file_bytes"))?;
                Ok(None)
            }
            Input::Directory => {
                let directory = scratch.temp_directory(context, "sweep")?;
                job.path = directory.path().to_owned();
                for ((name, _), program) in PROGRAMS.iter().zip(&programs) {
                    if let Some(program) = program {
                        run::add(job, name, program.as_str());
                    }
                }
                Ok(Some(Box::new(directory)))
            }
        }
    });
    Ok(run)
}

/// Returns the points of an axis.
fn points_of(axis: &axes::Axis, options: &Values) -> Vec<u64> {
    let given: BTreeSet<u64> = options.counts("points").into_iter().collect();
    if !given.is_empty() {
        return given.into_iter().filter(|at| axis.range.contains(at)).collect();
    }
    let constants = options.words("constants").into_iter().filter_map(|constant| {
        let (of, number) = constant.split_once('=')?;
        number.parse().ok().filter(|_| axis.crosses.contains(&of))
    });
    points(&axis.range, &constants.collect::<Vec<u64>>(), options.length == Length::Quick)
}

/// Writes the object, where it does not have that length already. It is in the page cache then.
fn write_object(path: &Path, length: usize) -> Result<()> {
    if path.metadata().is_ok_and(|found| found.len() == length as u64) {
        return Ok(());
    }
    let mut content = vec![0; length.next_multiple_of(8)];
    files::fill(&mut content, 0);
    std::fs::write(path, &content[..length])?;
    Ok(File::open(path)?.sync_all()?)
}

/// Returns a line for each axis.
pub(crate) fn list(options: &Values) -> String {
    let seconds = options.number("seconds").unwrap_or(0.0) + WARM_UP_SECONDS;
    let line = |axis: &axes::Axis| {
        let (name, peer, unit) = (axis.name, axis.peer.0, axis.unit);
        let (first, last) = (axis.range.start(), axis.range.end());
        let (count, room) = (points_of(axis, options).len(), bytes(axis.room_bytes(seconds)));
        format!("{name:<20} {first} to {last} {unit}: {count} points beside {peer}, {room} of disk\n")
    };
    AXES.iter().map(line).collect()
}

/// Returns a sweep for each figure of what was measured.
fn sweeps(tables: &[Table]) -> Vec<Sweep> {
    let mut sweeps = Vec::new();
    for axis in &AXES {
        let own: Vec<&Table> = tables.iter().filter(|table| table.text("workload") == axis.name).collect();
        for (part, metric, unit) in axis.figures.iter().filter(|_| !own.is_empty()) {
            let name = if part.is_empty() { axis.name.to_owned() } else { format!("{}-{part}", axis.name) };
            let mut sweep = Sweep::new(name, [axis.unit, *unit], [OURS, axis.peer.0]);
            for table in &own {
                sweep.add(table.number("point").unwrap_or(0.0) as u64, table, metric);
            }
            sweeps.push(sweep);
        }
    }
    sweeps
}

/// Records a point for docs/results; returns lines on it.
pub(crate) fn record(point: &Table) -> Result<String> {
    let mut text = String::new();
    for sweep in sweeps(std::slice::from_ref(point)) {
        text.push_str(&sweep.newest());
        run::record(&format!("sweep-{}", sweep.name()), sweep.rows())?;
    }
    for row in &point.rows {
        if let Some(why) = &row.skipped {
            text.push_str(&format!("{} failed: {why}\n", row.name));
        }
    }
    Ok(text)
}

/// Prints the summary; returns the number of our cliffs and of failed rows.
pub(crate) fn summarise(tables: &[Table]) -> Result<usize> {
    let sweeps = sweeps(tables);
    print(&summary(&sweeps))?;
    let rows = || tables.iter().flat_map(|table| &table.rows);
    ensure!(rows().any(|row| !row.samples.is_empty()), "no row gave a figure");
    let failed = rows().filter(|row| row.skipped.is_some()).count();
    Ok(sweeps.iter().map(Sweep::cliffs).sum::<usize>() + failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each axis has parameters that a sample reads, and rows of both sides.
    #[test]
    fn every_axis_has_its_rows_and_its_parameters() {
        let rows: Vec<&str> = SWEEP.spec.ways.iter().map(|way| way.name).collect();
        assert_eq!(AXES.len(), NAMES.len());
        for (axis, name) in AXES.iter().zip(NAMES) {
            assert_eq!(axis.name, *name);
            assert!(rows.contains(&OURS) && rows.contains(&axis.peer.0), "{name}");
            for at in [*axis.range.start(), *axis.range.end()] {
                let work: Work = serde_json::from_value((axis.work)(at)).unwrap();
                assert!(work.block_bytes > 0, "{name}");
            }
        }
    }
}
