//! Commands on results that were saved as JSON: `diff`, `assert`, `convert`; `report --from` loads one, too.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::cleanup::Cleanup;
use crate::exit::Failure;
use crate::output::{JsonArgs, print};
use crate::result::{Report, SCHEMA};

mod assertion;
mod convert;
mod diff;
mod select;
pub(crate) mod waited;

/// Maximum size of a file; a larger one is no result of this program.
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
}

/// Options of `convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// A result of this program, or the JSON of fio (`fio --output-format=json`); `-` is standard input.
    file: PathBuf,
    /// The output format [default: csv of a result of this program, json of one of fio]
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
/// A file that cannot be read, is no result, or has other experiments: each a [`Failure`].
pub(crate) fn diff(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    if args.before == Path::new("-") && args.after == Path::new("-") {
        return Err(Failure::Usage("only one of the two can be standard input".to_owned()).into());
    }
    let (json, before, after) = (args.json.destination()?, load(&args.before)?, load(&args.after)?);
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
    let report = load(&args.file)?;
    let outcomes: Vec<_> =
        expressions.iter().map(|expression| expression.judge(&report)).collect::<Result<_, _>>()?;
    for outcome in &outcomes {
        print(&format!("{}\n", outcome.text))?;
    }
    let all_hold = outcomes.iter().all(|outcome| outcome.holds);
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints a result in another format.
///
/// # Errors
/// A file that cannot be read or is neither a result of this program nor one of fio: a [`Failure`].
pub(crate) fn convert(args: &ConvertArgs) -> anyhow::Result<ExitCode> {
    let name = args.file.display().to_string();
    let text = read(&args.file)?;
    let (report, usual) = match convert::from_fio(&name, &text)? {
        Some(report) => (report, Format::Json),
        None => (parse(&name, &text)?, Format::Csv),
    };
    let text = match args.to.unwrap_or(usual) {
        Format::Json => report.to_json()?,
        Format::Csv => convert::to_csv(&report)?,
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a result of this program, also one of `forebay wait`; `-` is standard input.
///
/// # Errors
/// A sentence that names the file and its fault.
pub(crate) fn load(path: &Path) -> Result<Report, Failure> {
    parse(&path.display().to_string(), &read(path)?)
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
    Err(Failure::Usage(format!("{} is no result of `forebay wait --json`", path.display())))
}

fn read(path: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(FILE_BYTES_MAX).read_to_end(&mut bytes)
    } else {
        let file = std::fs::File::open(path).map_err(|error| Failure::missing(path, &error))?;
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)
    };
    read.map_err(|error| Failure::missing(path, &error))?;
    if bytes.is_empty() {
        return Err(Failure::Usage(format!("{} is empty", path.display())));
    }
    String::from_utf8(bytes).map_err(|_| Failure::Usage(format!("{} is no text", path.display())))
}

/// Reads a result of this program.
///
/// # Errors
/// A sentence that names the file and its fault.
fn parse(name: &str, text: &str) -> Result<Report, Failure> {
    let wrong = |what: String| Failure::Usage(format!("{name} {what}"));
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| {
        wrong(if error.is_eof() {
            format!("ends in the middle of its JSON ({error}): it was cut off")
        } else {
            format!("is not JSON: {error}")
        })
    })?;
    let program = value.get("forebay").and_then(serde_json::Value::as_str);
    let Some(schema) = value.get("schema").filter(|_| program.is_some()) else {
        return Err(wrong(
            "was not written by forebay (fio's JSON goes through `forebay convert`)".to_owned(),
        ));
    };
    if schema.as_u64() != Some(u64::from(SCHEMA)) {
        return Err(wrong(format!(
            "has version {schema} of the schema, of forebay {}; this program reads version {SCHEMA}: use the one that \
             wrote it, or measure again",
            program.unwrap_or_default()
        )));
    }
    if let Some(report) = waited::report(&value) {
        return report
            .map_err(|error| wrong(format!("does not follow the schema of `forebay wait`: {error}")));
    }
    if value.get("experiments").is_none() {
        return Err(wrong("has no experiments: it is the output of another command".to_owned()));
    }
    serde_json::from_value(value).map_err(|error| wrong(format!("does not follow the schema: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;

    #[test]
    fn a_file_that_is_no_result_is_identified() {
        let whole = Report::new(Environment::default(), Vec::new()).to_json().expect("finite");
        assert!(parse("a.json", &whole).is_ok());
        let other = whole.replace("\"schema\": 1", "\"schema\": 7");
        let wrong = |text: &str| parse("a.json", text).expect_err("refused").to_string();
        assert!(wrong(&other).contains("version 7 of the schema"), "{}", wrong(&other));
        assert!(wrong(&whole[..whole.len() / 2]).contains("was cut off"));
        assert!(wrong("<html>").contains("is not JSON"));
        assert!(wrong("{\"schema\": 1}").contains("not written by forebay"));
        assert!(wrong("{\"schema\": 1, \"forebay\": \"0\"}").contains("another command"));
        let twisted = whole.replace("\"experiments\": []", "\"experiments\": [{\"rows\": 7}]");
        assert!(wrong(&twisted).contains("does not follow the schema"), "{}", wrong(&twisted));
        let absurd = "{\"schema\":1,\"forebay\":\"0\",\"experiments\":[1e999]}";
        assert!(wrong(absurd).contains("is not JSON"), "{}", wrong(absurd));
    }
}
