//! Instructions of one operation in user space, counted by callgrind: `scripts/bench instructions`.
//!
//! A time differs from run to run by more than a change of the hot path costs; the number of instructions of
//! one thread does not. The program runs itself under callgrind, once a row and repeat, with one shard and
//! without spinning. Each run warms up and then makes N and 2N operations in turn. The result is the second's
//! excess over the first, divided by N, so that starting, warming up and the counting itself cancel out. The
//! kernel's own instructions are not counted, and neither is waiting. `scripts/bench` builds it with a
//! feature of rustix without which valgrind cannot run it.

mod callgrind;
mod clock;
#[cfg(target_os = "linux")]
mod enter;
mod rows;
mod table;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rows::{FILE_BYTES, ROWS, Row};
use table::Line;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const HELP: &str = "\
Instructions per operation in user space, counted by callgrind (package valgrind).
  --rows A,B        only these rows; --list names them
  --repeats N       processes a row (default 3); each gives three differences
  --operations F    times as many operations as a row has by itself (default 1)
  --dir DIR         where the test file of 4 MiB is written (default: where you stand); removed at the end
  --base PROGRAM    this program as another revision builds it: a second column, and the ratio
  --clock           with --base: times instead, base, own and base again in turn, without callgrind; wants many --operations
  --ratio-max R     with --base: fail when a row's ratio is above R
  --json FILE       every single difference as JSON
  --list            the rows, and what each does
";

struct Options {
    rows: Vec<&'static Row>,
    repeats: usize,
    factor: u64,
    dir: PathBuf,
    base: Option<PathBuf>,
    clock: bool,
    ratio_max: Option<f64>,
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        Some("child") => child(&arguments[1..]),
        Some("--list") => {
            ROWS.iter().for_each(|row| println!("{:<22} {}", row.name, row.what));
            Ok(())
        }
        Some("-h" | "--help") => {
            print!("{HELP}");
            Ok(())
        }
        _ => parse(&arguments).and_then(|options| run(&options)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Result<Options> {
    let mut options = Options {
        rows: ROWS.iter().collect(),
        repeats: 3,
        factor: 1,
        dir: PathBuf::from("."),
        base: None,
        clock: false,
        ratio_max: None,
        json: None,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        // Cargo adds this to every benchmark's arguments.
        if argument == "--bench" {
            continue;
        }
        if argument == "--clock" {
            options.clock = true;
            continue;
        }
        let value = rest.next().ok_or_else(|| format!("{argument} is unknown or lacks its value\n{HELP}"))?;
        match argument.as_str() {
            "--rows" => options.rows = value.split(',').map(row_named).collect::<Result<_>>()?,
            "--repeats" => options.repeats = value.parse::<usize>()?.max(1),
            "--operations" => options.factor = value.parse::<u64>()?.max(1),
            "--dir" => options.dir = value.into(),
            "--base" => options.base = Some(value.into()),
            "--ratio-max" => options.ratio_max = Some(value.parse()?),
            "--json" => options.json = Some(value.into()),
            _ => return Err(format!("{argument} is unknown\n{HELP}").into()),
        }
    }
    Ok(options)
}

fn row_named(name: &str) -> Result<&'static Row> {
    let found = ROWS.iter().find(|row| row.name == name);
    found.ok_or_else(|| format!("there is no row {name}; --list names them").into())
}

/// Runs one row's operations under callgrind, with a mark between each two segments.
fn child(arguments: &[String]) -> Result<()> {
    let [name, operations, path] = arguments else {
        return Err("child needs a row, a number of operations and a file".into());
    };
    rows::run(row_named(name)?, operations.parse()?, Path::new(path))
}

/// Runs all rows, interleaved, and prints the table.
fn run(options: &Options) -> Result<()> {
    let own = std::env::current_exe()?;
    if options.clock {
        let base = options.base.as_ref().ok_or("--clock compares: it needs --base")?;
        let scratch = Scratch::new(&options.dir)?;
        return clock::compare(&own, base, &options.rows, options.repeats, options.factor, &scratch.0);
    }
    callgrind::require()?;
    let scratch = Scratch::new(&options.dir)?;
    let mut lines: Vec<Line> = options.rows.iter().map(|row| Line::new(row)).collect();
    for repeat in 1..=options.repeats {
        for line in &mut lines {
            eprintln!("{repeat} of {}: {}", options.repeats, line.row.name);
            let operations = line.row.operations * options.factor;
            if let Some(base) = &options.base {
                line.base.extend(callgrind::measure(base, line.row, operations, &scratch.0)?);
            }
            line.own.extend(callgrind::measure(&own, line.row, operations, &scratch.0)?);
        }
    }
    table::print(&lines, options.base.is_some());
    table::record(&lines, options.base.is_some())?;
    if let Some(path) = &options.json {
        std::fs::write(path, table::json(&lines))?;
    }
    if let (Some(max), Some(_)) = (options.ratio_max, &options.base) {
        let above = lines.iter().filter(|line| line.ratio() > max).map(|line| line.row.name);
        let above: Vec<&str> = above.collect();
        if !above.is_empty() {
            return Err(format!("more than {max} times the base: {}", above.join(", ")).into());
        }
    }
    Ok(())
}

/// A folder of this run's own with the test file in it; removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(dir: &Path) -> Result<Scratch> {
        let folder = dir.join(format!(".forebay-instructions-{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(|error| format!("making {}: {error}", folder.display()))?;
        let scratch = Scratch(folder);
        let file = std::fs::File::create(scratch.0.join(callgrind::TEST_FILE))?;
        // Written, not only made long: holes would be read without the device.
        let text: Vec<u8> = (0..FILE_BYTES).map(|i| (i / 7) as u8).collect();
        std::io::Write::write_all(&mut &file, &text)?;
        file.sync_all()?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}
