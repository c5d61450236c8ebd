//! The options of experiments. They are data: one definition gives the parsing, the help, the defaults and the values.

use std::collections::BTreeMap;

use clap::{Arg, ArgAction, ArgMatches, Command};
use forebay_report::failure::Failure;
use forebay_report::result::columns::{once, together};
use serde::{Deserialize, Serialize};

use crate::experiment::Way;
use crate::units::{parse_bytes, show_bytes};

/// One option of an experiment.
#[derive(Debug, Clone, Copy)]
pub struct Opt {
    name: &'static str,
    help: &'static str,
    value: Kind,
    is_list: bool,
    /// It has no name on the command line.
    is_operand: bool,
    /// The default, in the words of the command line; empty: the experiment chooses.
    full: &'static str,
    quick: &'static str,
    report: &'static str,
    /// Describes a default that the experiment chooses.
    chosen: &'static str,
}

/// The values of an option.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A whole number: the smallest and the largest.
    Count {
        least: u64,
        most: u64,
    },
    /// A number of bytes: the smallest, the largest, and what it is a multiple of.
    Bytes {
        least: u64,
        most: u64,
        multiple: u64,
    },
    /// The least and the most seconds.
    Seconds(f64, f64),
    Word(&'static [&'static str]),
    Path,
    /// None: it is there or not.
    Flag,
}

impl Opt {
    const fn new(name: &'static str, help: &'static str, value: Kind) -> Self {
        Self {
            name,
            help,
            value,
            is_list: false,
            is_operand: false,
            full: "",
            quick: "",
            report: "",
            chosen: "",
        }
    }

    /// Returns an option with one whole number from 1 to `most`.
    pub const fn count(name: &'static str, help: &'static str, most: u64) -> Self {
        Self::new(name, help, Kind::Count { least: 1, most })
    }

    /// Returns an option with a number of bytes within these limits, ends included.
    pub const fn bytes(name: &'static str, help: &'static str, least: u64, most: u64) -> Self {
        Self::new(name, help, Kind::Bytes { least, most, multiple: 1 })
    }

    /// Returns an option with one of `words`.
    pub const fn word(name: &'static str, help: &'static str, words: &'static [&'static str]) -> Self {
        Self::new(name, help, Kind::Word(words))
    }

    /// Returns an option with a path.
    pub const fn path(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::Path)
    }

    /// Returns an option without a value; [`Values::given`] says whether it is there.
    pub const fn flag(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::Flag)
    }

    /// Returns an option with seconds within these limits, ends included.
    pub const fn time(name: &'static str, help: &'static str, least: f64, most: f64) -> Self {
        Self::new(name, help, Kind::Seconds(least, most))
    }

    /// Returns `--seconds`, the length of one sample.
    pub const fn seconds(full: &'static str, quick: &'static str) -> Self {
        Self::time("seconds", "Seconds of one sample", 0.01, 86_400.0).or(full).quick(quick)
    }

    /// Returns `--repeats`, the samples of each row.
    pub const fn repeats(full: &'static str) -> Self {
        Self::count("repeats", "Samples of each row in each table", 1000).or(full)
    }

    /// Returns `--block`, the bytes of one operation.
    pub const fn block(help: &'static str) -> Self {
        Self::bytes("block", help, 4096, 64 << 20).multiple_of(4096).or("4KiB")
    }

    /// Accepts zero, too.
    pub const fn zero_too(mut self) -> Self {
        if let Kind::Count { least, .. } = &mut self.value {
            *least = 0;
        }
        self
    }

    /// Accepts several values, separated by commas.
    pub const fn list(mut self) -> Self {
        self.is_list = true;
        self
    }

    /// Accepts the value without a name; it is required.
    pub(crate) const fn operand(mut self) -> Self {
        self.is_operand = true;
        self
    }

    /// Accepts whole numbers from `count` on.
    pub(crate) const fn at_least(mut self, count: u64) -> Self {
        if let Kind::Count { least, .. } = &mut self.value {
            *least = count;
        }
        self
    }

    /// Accepts multiples of `multiple` bytes only.
    pub const fn multiple_of(mut self, bytes: u64) -> Self {
        if let Kind::Bytes { multiple, .. } = &mut self.value {
            *multiple = bytes;
        }
        self
    }

    /// Sets the default, also of `--quick` and of a report.
    pub const fn or(mut self, text: &'static str) -> Self {
        (self.full, self.quick, self.report) = (text, text, text);
        self
    }

    /// Sets the default of `--quick`, also in a quick report.
    pub const fn quick(mut self, text: &'static str) -> Self {
        self.quick = text;
        self
    }

    /// Sets the default of a report that is not quick.
    pub const fn report(mut self, text: &'static str) -> Self {
        self.report = text;
        self
    }

    /// Describes the default that the experiment chooses itself.
    pub const fn chosen(mut self, text: &'static str) -> Self {
        self.chosen = text;
        self
    }

    fn help(&self) -> String {
        let mut help = self.help.to_owned();
        if let Kind::Word(words) = self.value {
            help.push_str(": ");
            help.push_str(&words.join(", "));
        }
        let quick =
            if self.quick == self.full { String::new() } else { format!(", with --quick {}", self.quick) };
        match (self.full, self.chosen) {
            ("", "") => help,
            ("", chosen) => format!("{help} [default: {chosen}]"),
            (full, _) => format!("{help} [default: {full}{quick}]"),
        }
    }

    fn value_name(&self) -> &'static str {
        match (self.value, self.is_list) {
            (Kind::Count { .. }, false) => "COUNT",
            (Kind::Count { .. }, true) => "COUNT,..",
            (Kind::Bytes { .. }, false) => "BYTES",
            (Kind::Bytes { .. }, true) => "BYTES,..",
            (Kind::Seconds(..), _) => "SECONDS",
            (Kind::Word(_), false) => "WORD",
            (Kind::Word(_), true) => "WORD,..",
            (Kind::Path, _) => "FILE",
            (Kind::Flag, _) => "",
        }
    }

    /// Checks one value; returns it as a number where it is one.
    fn parse(&self, text: &str) -> Result<Value, String> {
        match self.value {
            Kind::Count { least, most } => match text.parse() {
                Ok(count) if (least..=most).contains(&count) => Ok(Value::Number(count as f64)),
                _ => Err(format!("{text:?} is not a whole number from {least} to {most}")),
            },
            Kind::Bytes { least, most, multiple } => {
                let bytes = parse_bytes(text)?;
                if (least..=most).contains(&bytes) && bytes.is_multiple_of(multiple) {
                    return Ok(Value::Number(bytes as f64));
                }
                let of = if multiple > 1 {
                    format!(" that is a multiple of {}", show_bytes(multiple))
                } else {
                    String::new()
                };
                let most =
                    if most < 1 << 62 { format!(" to {}", show_bytes(most)) } else { " on".to_owned() };
                Err(format!("{text:?} does not fit here: give a size from {}{most}{of}", show_bytes(least)))
            }
            Kind::Seconds(least, most) => match text.parse::<f64>() {
                Ok(seconds) if (least..=most).contains(&seconds) => Ok(Value::Number(seconds)),
                Ok(seconds) if seconds > 0.0 => {
                    Err(format!("{text:?} does not fit here: {least} to {most} seconds"))
                }
                _ => Err(format!("{text:?} is not a time; write seconds such as 0.5 or 10")),
            },
            Kind::Word(words) if words.contains(&text) => Ok(Value::Text(text.to_owned())),
            Kind::Word(words) => Err(format!("there is no {:?}; there are {}", text, words.join(", "))),
            Kind::Path | Kind::Flag => Ok(Value::Text(text.to_owned())),
        }
    }
}

/// One value of an option.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Value {
    Number(f64),
    Text(String),
}

/// The time limit of a run, which decides the defaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Length {
    /// `measure`.
    #[default]
    Full,
    /// `measure --quick` and `report --quick`.
    Quick,
    /// `report`.
    Report,
}

/// The values of an experiment's options, defaults included.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Values {
    values: BTreeMap<String, Vec<Value>>,
    given: Vec<String>,
    /// Names of the rows to measure; empty: all.
    pub rows: Vec<String>,
    /// The time limit of the run.
    pub length: Length,
}

/// A part of an experiment, or an experiment without parts: its name, options and ways.
pub type Part = (&'static str, &'static [Opt], &'static [Way]);

/// The option that selects rows, which every experiment has.
const ROWS: &str = "rows";

/// An option, with the part that has it.
type PartOpt = (&'static str, &'static Opt);

/// Returns the options of all parts, those of one name together.
fn by_name(parts: &[Part]) -> Vec<Vec<PartOpt>> {
    let all = parts.iter().flat_map(|(part, options, _)| options.iter().map(move |option| (*part, option)));
    together(all, |(_, one), (_, other)| one.name == other.name)
}

/// Adds the options of an experiment's parts, and `--rows`, to its command. A value is valid if some part accepts it.
pub fn augment(command: Command, parts: &[Part]) -> Command {
    let command = by_name(parts).into_iter().fold(command, |command, same| {
        let option = same[0].1;
        let arg = Arg::new(option.name).help(help(&same, parts.len()));
        let arg = if option.is_operand { arg.required(true) } else { arg.long(option.name) };
        if matches!(option.value, Kind::Flag) {
            return command.arg(arg.action(ArgAction::SetTrue));
        }
        let arg = arg.value_name(option.value_name()).value_parser(move |text: &str| parse(&same, text));
        command.arg(if option.is_list { arg.value_delimiter(',').action(ArgAction::Append) } else { arg })
    });
    let choice =
        once(parts.iter().flat_map(|(.., ways)| *ways).filter(|way| !way.always).map(|way| way.name));
    if choice.len() < 2 {
        return command;
    }
    let names = choice.join(", ");
    let help = format!("Only these rows: {names}");
    let parser = move |text: &str| {
        let known = choice.contains(&text);
        if known { Ok(text.to_owned()) } else { Err(format!("there is no row {text:?}; there are {names}")) }
    };
    let arg = Arg::new(ROWS).long(ROWS).value_name("ROW,..").help(help).value_parser(parser);
    command.arg(arg.value_delimiter(',').action(ArgAction::Append))
}

/// Describes an option of an experiment with `count` parts: of each part, where not all have the same.
fn help(same: &[PartOpt], count: usize) -> String {
    let first = same[0].1.help();
    if same.len() == count && same.iter().all(|(_, option)| option.help() == first) {
        return first;
    }
    let of_part = |(part, option): &PartOpt| format!("{part}: {}", option.help());
    same.iter().map(of_part).collect::<Vec<_>>().join("; ")
}

/// Parses a value of options of one name: the first option that accepts it decides.
fn parse(same: &[PartOpt], text: &str) -> Result<Value, String> {
    let parsed: Vec<Result<Value, String>> = same.iter().map(|(_, option)| option.parse(text)).collect();
    let faults =
        once(parsed.iter().filter_map(|parsed| parsed.as_ref().err()).map(String::as_str)).join("; ");
    parsed.into_iter().find_map(Result::ok).ok_or(faults)
}

/// Returns the options of a command line, with the parts that accept one of their values; for rows, the parts that have one of
/// them.
pub(crate) fn takers(parts: &[Part], matches: &ArgMatches) -> Vec<(&'static str, Vec<&'static str>)> {
    let is_flag = |option: &Opt| matches!(option.value, Kind::Flag);
    let is_given = |option: &Opt| {
        if is_flag(option) { matches.get_flag(option.name) } else { matches.contains_id(option.name) }
    };
    let takes = |option: &Opt| {
        let is_own = |text: &std::ffi::OsStr| text.to_str().is_some_and(|text| option.parse(text).is_ok());
        is_flag(option) || matches.get_raw(option.name).into_iter().flatten().any(is_own)
    };
    let of_name = |same: Vec<PartOpt>| {
        let names = same.iter().filter(|(_, option)| takes(option)).map(|(part, _)| *part);
        is_given(same[0].1).then(|| (same[0].1.name, names.collect()))
    };
    let mut takers: Vec<(&str, Vec<&str>)> = by_name(parts).into_iter().filter_map(of_name).collect();
    if let Some(rows) = rows(matches) {
        let has = |(.., ways): &&Part| ways.iter().any(|way| rows.iter().any(|row| row == way.name));
        takers.push((ROWS, parts.iter().filter(has).map(|(part, ..)| *part).collect()));
    }
    takers
}

/// Returns the rows that a command line names.
fn rows(matches: &ArgMatches) -> Option<Vec<String>> {
    Some(matches.try_get_many::<String>(ROWS).ok()??.cloned().collect())
}

impl Values {
    /// Returns the values of `options` from a command line, if given, and otherwise the defaults.
    ///
    /// # Errors
    /// Fails when a default does not parse, which a test excludes.
    pub fn new(
        options: &'static [Opt],
        matches: Option<&ArgMatches>,
        length: Length,
    ) -> Result<Self, Failure> {
        let mut all = Self { length, ..Self::default() };
        for option in options {
            if matches!(option.value, Kind::Flag) {
                let is_given = matches.is_some_and(|matches| matches.get_flag(option.name));
                all.given.extend(is_given.then(|| option.name.to_owned()));
                continue;
            }
            let given = matches.and_then(|matches| matches.get_raw(option.name));
            let values = match given {
                Some(given) => {
                    all.given.push(option.name.to_owned());
                    // Other values of a list belong to another part.
                    given.filter_map(|text| option.parse(text.to_str()?).ok()).collect()
                }
                None => {
                    let default = match length {
                        Length::Full => option.full,
                        Length::Quick => option.quick,
                        Length::Report => option.report,
                    };
                    let parts = default.split(',').filter(|part| !part.is_empty());
                    let parsed = parts.map(|part| option.parse(part)).collect::<Result<_, _>>();
                    parsed.map_err(|why| Failure::Usage(format!("--{}: {why}", option.name)))?
                }
            };
            all.values.insert(option.name.to_owned(), values);
        }
        all.rows = matches.and_then(rows).unwrap_or_default();
        Ok(all)
    }

    /// Returns whether the option was on the command line.
    pub fn given(&self, name: &str) -> bool {
        self.given.iter().any(|given| given == name)
    }

    /// Returns the numbers of an option: counts, bytes or seconds.
    pub fn numbers(&self, name: &str) -> Vec<f64> {
        let number = |value: &Value| match value {
            Value::Number(number) => Some(*number),
            Value::Text(_) => None,
        };
        self.values.get(name).into_iter().flatten().filter_map(number).collect()
    }

    /// Returns the number of an option, where it has one.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers(name).first().copied()
    }

    /// Returns the whole numbers of an option.
    pub fn counts(&self, name: &str) -> Vec<u64> {
        self.numbers(name).into_iter().map(|number| number as u64).collect()
    }

    /// Returns the whole number of an option that has a default: a count, or bytes.
    pub fn count(&self, name: &str) -> u64 {
        self.number(name).map_or(0, |number| number as u64)
    }

    /// Returns the whole number of an option that may be left out.
    pub(crate) fn optional(&self, name: &str) -> Option<u64> {
        self.number(name).map(|number| number as u64)
    }

    /// Returns whether the option exists.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    pub(crate) fn set(&mut self, name: &str, number: f64) {
        self.values.insert(name.to_owned(), vec![Value::Number(number)]);
    }

    /// Returns the words of an option.
    pub fn words(&self, name: &str) -> Vec<&str> {
        fn word(value: &Value) -> Option<&str> {
            match value {
                Value::Text(text) => Some(text),
                Value::Number(_) => None,
            }
        }
        self.values.get(name).into_iter().flatten().filter_map(word).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static OPTIONS: &[Opt] = &[
        Opt::count("depth", "Reads in flight", 64).list().or("1,8").quick("8").report("2"),
        Opt::block("Bytes of one read"),
        Opt::bytes("size", "Bytes of the file", 1 << 20, u64::MAX).chosen("4 times the memory"),
        Opt::seconds("1", "0.3"),
        Opt::count("load", "Per cent", 200).zero_too().or("0"),
        Opt::word("does", "The work of the hogs", &["read", "write"]).or("read"),
        Opt::time("idle", "Seconds without work", 1.0, 1800.0).or("10"),
        Opt::flag("writes", "The hogs write"),
        Opt::flag("check", "Compare the figures with limits"),
    ];
    static WAYS: &[Way] = &[Way::base("nothing", ""), Way::direct("direct", ""), Way::cached("buffered", "")];

    fn parse(words: &[&str]) -> Result<Values, String> {
        let command = augment(Command::new("measure").no_binary_name(true), &[("measure", OPTIONS, WAYS)]);
        let matches = command.try_get_matches_from(words).map_err(|error| error.to_string())?;
        Values::new(OPTIONS, Some(&matches), Length::Full).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_depend_on_the_length_and_given_values_win() {
        let default = |length| Values::new(OPTIONS, None, length).expect("they parse").counts("depth");
        assert_eq!((default(Length::Full), default(Length::Quick)), (vec![1, 8], vec![8]));
        assert_eq!(default(Length::Report), [2]);
        let values = parse(&["--depth", "3,4", "--depth=5", "--rows", "direct"]).expect("valid");
        assert_eq!((values.counts("depth"), values.given("depth")), (vec![3, 4, 5], true));
        assert_eq!(
            (values.count("block"), values.number("size"), values.given("block")),
            (4096, None, false)
        );
        assert_eq!((values.words("does"), values.number("load")), (vec!["read"], Some(0.0)));
        assert_eq!((values.rows.as_slice(), values.given("writes")), (&["direct".to_owned()][..], false));
        let values = parse(&["--writes", "--depth", "3"]).expect("a flag takes no value");
        assert_eq!((values.given("writes"), values.counts("depth")), (true, vec![3]));
        assert!(!values.given("check") && parse(&["--check"]).expect("valid").given("check"));
    }

    #[test]
    fn a_value_outside_its_limits_is_refused_with_them() {
        for (words, part) in [
            (["--depth", "65"], "from 1 to 64"),
            (["--depth", "0"], "from 1 to 64"),
            (["--load", "201"], "from 0 to 200"),
            (["--block", "5000"], "multiple of 4 KiB"),
            (["--size", "1k"], "from 1 MiB on"),
            (["--seconds", "never"], "such as 0.5"),
            (["--idle", "0.5"], "1 to 1800 seconds"),
            (["--does", "sing"], "read, write"),
            (["--rows", "warm"], "there are direct, buffered"),
            (["--rows", "nothing"], "there is no row"),
            (["--check", "yes"], "unexpected"),
        ] {
            let error = parse(&words).expect_err("refused");
            assert!(error.contains(part), "{words:?}: {error}");
        }
    }

    #[test]
    fn the_help_has_the_defaults() {
        let mut command = augment(Command::new("measure"), &[("measure", OPTIONS, WAYS)]);
        let help = command.render_help().to_string();
        for part in [
            "[default: 1,8, with --quick 8]",
            "[default: 4 times the memory]",
            "COUNT,..",
            "read, write [default: read]",
        ] {
            assert!(help.contains(part), "{part}: {help}");
        }
    }
}
