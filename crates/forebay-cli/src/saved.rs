//! Commands on results that were saved as JSON: `diff`, `assert`, `convert`; `report --from` loads some, too.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use forebay_measure::kind;
use forebay_report::failure::Failure;
use forebay_report::result::Report;
use forebay_report::saved::{assertion, convert, diff, parse, waited};

use crate::output::{Destination, JsonArgs, print, print_raw};
use forebay_measure::cleanup::Cleanup;

/// Maximum size of a file; a larger file is not a result of this program.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Options of `diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The earlier result (JSON; `-` is standard input).
    #[arg(value_name = "A.json")]
    before: PathBuf,
    /// The later one.
    #[arg(value_name = "B.json")]
    after: PathBuf,
    #[command(flatten)]
    json: JsonArgs,
}

/// Options of `assert`.
#[derive(Debug, Args)]
pub(crate) struct AssertArgs {
    /// A result (JSON; `-` is standard input).
    file: PathBuf,
    /// A condition that must hold: `EXPERIMENT[param=value,..].ROW.METRIC OP NUMBER`, or `.. OP NUMBER * SAME`, or
    /// `.. OP SAME`;
    /// OP is one of >= <= > < == !=
    #[arg(required = true, value_name = "EXPRESSION")]
    expressions: Vec<String>,
    /// The file for the outcomes as JUnit XML; `-` prints them instead of the text
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// The file for the outcomes as OpenMetrics; `-` prints them instead of the text
    #[arg(long, value_name = "FILE")]
    openmetrics: Option<PathBuf>,
}

/// Options of `convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// A result of this program, or results of other programs: JSON of fio, elbencho or IOR, text of IOR or mdtest;
    /// several runs of the same work become repeats. `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The output format [default: csv of a result of this program, json of another]
    #[arg(long, value_name = "FORMAT")]
    to: Option<Format>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// This program's JSON.
    Json,
    /// A line for each figure.
    Csv,
}

/// Reports the changes beyond noise between two results.
///
/// # Errors
/// A file that cannot be read, is not a result, or has other experiments: each a [`Failure`].
pub(crate) fn diff(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    if args.before == Path::new("-") && args.after == Path::new("-") {
        return Err(Failure::Usage("only one of the two can be standard input".to_owned()).into());
    }
    let json = args.json.destination()?;
    json.replaces_none_of([&args.before, &args.after])?;
    let (before, after) = (load(&args.before)?, load(&args.after)?);
    let comparison = diff::compare(&before, &after)?;
    if json.write(|| comparison.to_json(), &Cleanup::default())? {
        print(&comparison.to_text())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reports which expressions hold; the exit code is 1 when one does not.
///
/// # Errors
/// An expression cannot be parsed, or matches no figure or several; a file as for [`diff()`].
pub(crate) fn assert(args: &AssertArgs) -> anyhow::Result<ExitCode> {
    // All are parsed before the first is evaluated: one that fails must not hide a typing error in another.
    let expressions: Vec<_> =
        args.expressions.iter().map(|text| assertion::parse(text)).collect::<Result<_, _>>()?;
    let destination =
        |path: &Option<PathBuf>, mark| path.as_deref().map(|path| Destination::new(path, mark)).transpose();
    let junit = destination(&args.junit, assertion::JUNIT_MARK)?;
    let metrics = destination(&args.openmetrics, assertion::OPEN_METRICS_MARK)?;
    if junit.as_ref().zip(metrics.as_ref()).is_some_and(|(junit, metrics)| junit.is_at(metrics)) {
        return Err(
            Failure::Usage("JUnit and OpenMetrics would go to one place: name two files".to_owned()).into()
        );
    }
    let report = load(&args.file)?;
    let outcomes: Vec<_> =
        expressions.iter().map(|expression| expression.judge(&report)).collect::<Result<_, _>>()?;
    let mut is_text = true;
    for (destination, text) in [
        (junit, assertion::junit(&args.file.display().to_string(), &outcomes)),
        (metrics, assertion::open_metrics(&outcomes)),
    ] {
        let Some(destination) = destination else { continue };
        destination.write(&text, &Cleanup::default())?;
        is_text &= !destination.is_stdout();
    }
    for outcome in outcomes.iter().filter(|_| is_text) {
        print(&format!("{}\n", outcome.text))?;
    }
    let all_hold = outcomes.iter().all(|outcome| outcome.holds);
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints results in another format.
///
/// # Errors
/// A file that cannot be read or is a result neither of this program nor of one that is known: a [`Failure`].
pub(crate) fn convert(args: &ConvertArgs) -> anyhow::Result<ExitCode> {
    let texts = args.files.iter().map(|path| Ok((path.display().to_string(), read(path)?)));
    let texts: Vec<(String, String)> = texts.collect::<Result<_, Failure>>()?;
    let foreign = convert::of_others(&texts)?;
    let usual = if foreign.is_some() { Format::Json } else { Format::Csv };
    let report = match (foreign, texts.as_slice()) {
        (Some(report), _) => report,
        (None, [(name, text), ..]) => parse(name, text)?,
        (None, []) => return Err(Failure::Usage("name a file".to_owned()).into()),
    };
    print_raw(&match args.to.unwrap_or(usual) {
        Format::Json => report.to_json()?,
        Format::Csv => convert::to_csv(&report)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a result of this program, also one of `forebay wait`; `-` is standard input.
///
/// # Errors
/// A sentence that names the file and its fault.
pub(crate) fn load(path: &Path) -> Result<Report, Failure> {
    own(&path.display().to_string(), &read(path)?)
}

fn own(name: &str, text: &str) -> Result<Report, Failure> {
    let mut report = parse(name, text)?;
    if report.schema == 1 {
        kind::adopt(&mut report);
    }
    Ok(report)
}

/// Reads results of this program and of others, each with a name that no other one has.
///
/// # Errors
/// See [`load`] and [`convert::of_others`].
pub(crate) fn load_results(paths: &[PathBuf]) -> Result<Vec<(String, Report)>, Failure> {
    let mut results: Vec<(String, Report)> = Vec::with_capacity(paths.len());
    for path in paths {
        let text = (path.display().to_string(), read(path)?);
        let foreign = convert::of_others(std::slice::from_ref(&text))?;
        let report = foreign.map_or_else(|| own(&text.0, &text.1), Ok)?;
        let mut name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        if results.iter().any(|(known, _)| *known == name) {
            name += &format!(" ({})", results.len() + 1);
        }
        results.push((name, report));
    }
    Ok(results)
}

/// Reads a result of `forebay wait`.
///
/// # Errors
/// See [`load`]; a result of another command is refused, too.
pub(crate) fn load_wait(path: &Path) -> Result<Report, Failure> {
    let report = load(path)?;
    if report.experiments.iter().any(|experiment| experiment.name == waited::NAME) {
        return Ok(report);
    }
    Err(Failure::Usage(format!("{} is not a result of `forebay wait --json`", path.display())))
}

fn read(path: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)
    } else {
        let file = std::fs::File::open(path).map_err(|error| Failure::missing(path, &error))?;
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)
    };
    read.map_err(|error| Failure::missing(path, &error))?;
    let wrong = |what: &str| Failure::Usage(format!("{} {what}", path.display()));
    match bytes.len() as u64 {
        0 => Err(wrong("is empty")),
        length if length > FILE_BYTES_MAX => Err(wrong("is longer than 1 GiB: it is not a result")),
        _ => String::from_utf8(bytes).map_err(|_| wrong("is not text")),
    }
}
