//! The part of `scripts/test` that a shell does badly: it runs each test in a separate process, with a time limit and a folder for
//! its files; it meters a step with all its descendants; and it decides whether a step's inputs have changed since it passed.
//! .ci/README.md describes the checks.

mod glob;
mod meter;
mod process;
mod programs;
mod record;
mod rules;
mod run;
mod steady;

use std::process::ExitCode;

const USAGE: &str = "usage:
  forebay-gate tests --messages FILE --work FOLDER [--rules FILE] [--all] [--include-ignored] [--lanes N] [--only PATTERN]...
                     [--skip PATTERN]... [--check-rules] [--times FILE] [--list] [-- ARGUMENT...]
  forebay-gate steady --messages FILE --work FOLDER [--rules FILE] [--lanes N] [--only PATTERN]... [--runs N]
  forebay-gate step --log FILE --result FILE --folder FOLDER [--limit SECONDS] -- COMMAND...
  forebay-gate built --messages FILE PACKAGE KIND NAME
  forebay-gate remove --messages FILE
  forebay-gate unchanged STEP
  forebay-gate passed STEP SECONDS
  forebay-gate load cpu|disk FOLDER";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) =
        arguments.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    let result = match command {
        "tests" => run::command(rest),
        "steady" => steady::command(rest),
        "step" => meter::command(rest),
        "unchanged" => record::unchanged(rest),
        "passed" => record::passed(rest),
        "load" => steady::load(rest),
        "built" => programs::built(rest),
        "remove" => programs::remove(rest),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// The values of a command line: `--name VALUE`, flags, words, and what follows `--`.
#[derive(Debug, Default)]
struct Arguments {
    values: Vec<(String, String)>,
    flags: Vec<String>,
    words: Vec<String>,
    rest: Vec<String>,
}

impl Arguments {
    /// # Errors
    ///
    /// An option that is neither in `with_value` nor in `flags`, or lacks its value.
    fn parse(arguments: &[String], with_value: &[&str], flags: &[&str]) -> Result<Self, String> {
        let mut parsed = Self::default();
        let mut left = arguments.iter();
        while let Some(argument) = left.next() {
            match argument.strip_prefix("--") {
                Some("") => {
                    parsed.rest = left.cloned().collect();
                    break;
                }
                Some(name) if with_value.contains(&name) => {
                    let value = left.next().ok_or_else(|| format!("--{name} wants a value"))?;
                    parsed.values.push((name.to_owned(), value.clone()));
                }
                Some(name) if flags.contains(&name) => parsed.flags.push(name.to_owned()),
                Some(name) => return Err(format!("unknown option --{name}\n{USAGE}")),
                None => parsed.words.push(argument.clone()),
            }
        }
        Ok(parsed)
    }

    fn flag(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag == name)
    }

    fn all(&self, name: &str) -> Vec<String> {
        self.values.iter().filter(|(given, _)| given == name).map(|(_, value)| value.clone()).collect()
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.values.iter().rev().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// # Errors
    ///
    /// The option was not given.
    fn wanted(&self, name: &str) -> Result<&str, String> {
        self.value(name).ok_or_else(|| format!("--{name} is missing\n{USAGE}"))
    }

    /// # Errors
    ///
    /// The value is not a number.
    fn number(&self, name: &str, default: usize) -> Result<usize, String> {
        self.value(name).map_or(Ok(default), |value| {
            value.parse().map_err(|_error| format!("--{name} wants a number, not `{value}`"))
        })
    }
}
