//! `forebay assert`: expressions over one result, and their outcomes in the formats of others. `docs/cli.md` has the grammar.

use std::fmt::Write as _;

use maud::{PreEscaped, html};

use super::{called, keys, label, listed, matches, names};
use crate::failure::Failure;
use crate::result::columns::together;
use crate::result::{Experiment, FAILED_GATE_MARK, Report};
use crate::units::{number, printable};

/// A comparison and its sign.
type Operator = (&'static str, fn(&f64, &f64) -> bool);

/// The longer operators first: `>` is a prefix of `>=`.
const OPERATORS: [Operator; 6] =
    [(">=", f64::ge), ("<=", f64::le), ("==", f64::eq), ("!=", f64::ne), (">", f64::gt), ("<", f64::lt)];

/// `LEFT OP FACTOR [* RIGHT]`.
#[derive(Debug)]
pub struct Assertion<'a> {
    /// The expression as it was written.
    text: &'a str,
    left: Figure<'a>,
    operator: Operator,
    factor: f64,
    right: Option<Figure<'a>>,
}

/// `EXPERIMENT[param=value,..].ROW.METRIC`.
#[derive(Debug)]
struct Figure<'a> {
    /// The expression as it was written.
    text: &'a str,
    experiment: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    row: &'a str,
    metric: &'a str,
}

/// The result of an expression.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    /// The expression as it was written.
    pub expression: String,
    /// Whether it holds.
    pub holds: bool,
    /// A sentence with the figures.
    pub text: String,
    /// The figure, and the one with which it was compared.
    pub figures: [f64; 2],
}

/// Mark of a document of [`junit`].
pub const JUNIT_MARK: &str = "<testsuites name=\"forebay assert\"";
/// Mark of a text of [`open_metrics`].
pub const OPEN_METRICS_MARK: &str = "# TYPE forebay_assert_";

/// Returns the outcomes on the result called `name` as JUnit XML, a test case for each.
pub fn junit(name: &str, outcomes: &[Outcome]) -> String {
    let (tests, failures) = (outcomes.len(), outcomes.iter().filter(|outcome| !outcome.holds).count());
    let suites = html! {
        (PreEscaped("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"))
        testsuites name="forebay assert" tests=(tests) failures=(failures) {
            testsuite name=(printable(name)) tests=(tests) failures=(failures) errors="0" skipped="0" {
                @for outcome in outcomes {
                    testcase classname=(printable(name)) name=(printable(&outcome.expression)) {
                        @if !outcome.holds { failure message=(printable(&outcome.text)) {} }
                        system-out { (printable(&outcome.text)) }
                    }
                }
            }
        }
    };
    suites.into_string() + "\n"
}

/// The families of [`open_metrics`], each with its meaning and its value of an outcome.
type Family = (&'static str, &'static str, fn(&Outcome) -> f64);

/// Returns the outcomes as OpenMetrics, which is Prometheus' own text format as well.
pub fn open_metrics(outcomes: &[Outcome]) -> String {
    let families: [Family; 3] = [
        ("holds", "Whether the expression holds (1) or not (0).", |outcome| {
            f64::from(u8::from(outcome.holds))
        }),
        ("figure", "The figure on the left of the expression.", |outcome| outcome.figures[0]),
        ("limit", "What the figure is compared with.", |outcome| outcome.figures[1]),
    ];
    let mut text = String::new();
    for (family, meaning, value) in families {
        // Writing to a String cannot fail.
        let _ =
            writeln!(text, "# TYPE forebay_assert_{family} gauge\n# HELP forebay_assert_{family} {meaning}");
        // A series may be there once.
        for same in together(outcomes, |one, other| one.expression == other.expression) {
            let expression =
                same[0].expression.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let value = value(same[0]);
            let _ = writeln!(text, "forebay_assert_{family}{{expression=\"{expression}\"}} {value}");
        }
    }
    text + "# EOF\n"
}

/// Parses an expression.
///
/// # Errors
/// [`Failure::Usage`] that quotes the part that was not understood and shows the form.
pub fn parse(text: &str) -> Result<Assertion<'_>, Failure> {
    parse_parts(text).map_err(|what| {
        Failure::Usage(format!(
            "{text:?}: {what}; write for example 'random[depth=32].direct.iops >= 0.95 * random[depth=32].bare.iops'"
        ))
    })
}

fn parse_parts(text: &str) -> Result<Assertion<'_>, String> {
    let (left, operator, right) = split(text).ok_or("there is no operator (>= <= > < == !=)")?;
    let (left, right) = (Figure::parse(left)?, right.trim());
    let number = |text: &str| {
        let number = text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
        number.ok_or_else(|| format!("{:?} is not a number", text.trim()))
    };
    let begins_a_number = right.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'));
    let (factor, right) = match right.split_once('*') {
        _ if !begins_a_number => (1.0, Some(Figure::parse(right)?)),
        // A value in brackets may contain a star, but not before the first figure's name.
        Some((factor, figure)) => (number(factor)?, Some(Figure::parse(figure)?)),
        None => (number(right)?, None),
    };
    Ok(Assertion { text, left, operator, factor, right })
}

/// Splits the text at the first operator outside of brackets.
fn split(text: &str) -> Option<(&str, Operator, &str)> {
    let mut depth = 0_u32;
    text.char_indices().find_map(|(at, letter)| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let (before, rest) = text.split_at(at);
        let operator = OPERATORS.iter().find(|(sign, _)| depth == 0 && rest.starts_with(sign))?;
        Some((before, *operator, &rest[operator.0.len()..]))
    })
}

impl<'a> Figure<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        let text = text.trim();
        let form = || format!("{text:?} is not EXPERIMENT[param=value,..].ROW.METRIC");
        let mut parameters = Vec::new();
        let (experiment, rest) = if let Some((experiment, rest)) = text.split_once('[') {
            let (inside, rest) = rest.split_once("].").ok_or_else(form)?;
            let mut from = 0;
            for (end, _) in inside.match_indices(',').chain([(inside.len(), "")]) {
                let next = inside.get(end + 1..).and_then(|next| next.split(',').next());
                // A comma without a name behind it is part of a value, such as fio's `bs=4k,8k`.
                if next.is_some_and(|next| !next.contains('=')) {
                    continue;
                }
                let pair = &inside[from..end];
                let (name, value) =
                    pair.split_once('=').ok_or_else(|| format!("{pair:?} is not param=value"))?;
                parameters.push((name.trim(), value.trim()));
                from = end + 1;
            }
            (experiment, rest)
        } else {
            text.split_once('.').ok_or_else(form)?
        };
        let (row, metric) = rest.rsplit_once('.').ok_or_else(form)?;
        let is_name =
            |name: &&str| !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c == '*');
        let is_whole = [experiment, row, metric].iter().all(is_name);
        is_whole.then_some(Self { text, experiment, parameters, row, metric }).ok_or_else(form)
    }

    /// Returns whether the single row that matches failed a gate, and its figure.
    fn find(&self, report: &Report) -> Result<(bool, f64), Failure> {
        let fault = |what: &str| Failure::Usage(format!("{}: {what}", self.text));
        let none = |what: &str, there_are: String| fault(&format!("{what}; there are {there_are}"));
        let mut found = called(&report.experiments, self.experiment);
        if found.is_empty() {
            let what = format!("the result has no experiment {:?}", self.experiment);
            return Err(none(&what, listed(&names(report))));
        }
        let keys = keys(&[&report.experiments], self.experiment);
        let labels =
            |found: &[&Experiment]| listed(&found.iter().map(|one| label(one, &keys)).collect::<Vec<_>>());
        let named = labels(&found);
        found.retain(|experiment| {
            let has = |(name, text): &(&str, &str)| {
                experiment.parameters.get(*name).is_some_and(|value| matches(value, text))
            };
            self.parameters.iter().all(has)
        });
        // An experiment with no distinguishing parameters but the written parameters is the exact match.
        let is_written = |key: &String| self.parameters.iter().any(|(written, _)| written == key);
        let is_plain = |experiment: &&&Experiment| {
            keys.iter().all(|key| is_written(key) || !experiment.parameters.contains_key(key))
        };
        let plain: Vec<&Experiment> = found.iter().filter(is_plain).copied().collect();
        let experiment = match (found.as_slice(), plain.as_slice()) {
            ([only], _) | (_, [only]) => only,
            ([], _) => return Err(none("no experiment has these parameters", named)),
            (several, _) => {
                let count = several.len();
                let what = format!("{count} experiments fit: add parameters that only one of them has");
                return Err(none(&what, labels(several)));
            }
        };
        let row = experiment.row(self.row).ok_or_else(|| {
            let rows: Vec<&String> = experiment.rows.iter().map(|row| &row.name).collect();
            none(&format!("there is no row {:?}", self.row), listed(&rows))
        })?;
        if let Some(why) = &row.skipped {
            return Err(fault(&format!("the row was not measured: {why}")));
        }
        let value = row.get(self.metric).ok_or_else(|| {
            let metrics: Vec<&String> = row.metrics.0.keys().collect();
            none(&format!("the row has no metric {:?}", self.metric), listed(&metrics))
        })?;
        Ok((experiment.is_marked(row), value))
    }
}

impl Assertion<'_> {
    /// Looks up the figures and compares them.
    ///
    /// # Errors
    /// [`Failure::Usage`] with the candidates when a figure is missing or not unique.
    pub fn judge(&self, report: &Report) -> Result<Outcome, Failure> {
        let (sign, compare) = self.operator;
        let (mut marked, left) = self.left.find(report)?;
        let (mut limit, mut of) = (self.factor, String::new());
        if let Some(figure) = &self.right {
            let (is_marked, value) = figure.find(report)?;
            limit *= value;
            of = format!(" ({} * {} = {})", self.factor, figure.text, number(value));
            marked |= is_marked;
        }
        let holds = compare(&left, &limit);
        let text = format!(
            "{}: {} = {}, wanted {sign} {}{of}{}",
            if holds { "holds" } else { "FAILS" },
            self.left.text,
            number(left),
            number(limit),
            if marked {
                format!("{FAILED_GATE_MARK} a row failed a gate when it was measured")
            } else {
                String::new()
            }
        );
        Ok(Outcome { expression: self.text.to_owned(), holds, text, figures: [left, limit] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::result::{Condition, Row};

    fn report() -> Report {
        let experiments = [1, 32].into_iter().flat_map(|depth| {
            ["whole file", "10% of memory"].map(|span| {
                let row = |name: &str, iops: f64| Row::of_repeats(name, [[("iops", iops)]]);
                let rows = [row("direct", 95.0), row("bare", 100.0), Row::skipped("uring", "refused")];
                let found = Experiment::new("random", "").with_rows(rows);
                found.parameter("depth", depth).parameter("span", span)
            })
        });
        let alone = Experiment::new("scan", "").with_rows([Row::skipped("direct", "no space")]);
        // Without parameters, the name selects the experiment without a depth.
        let swept = Experiment::new("scan", "").parameter("depth", 4);
        Report::new(Environment::default(), experiments.chain([swept, alone]).collect())
    }

    fn judge(text: &str) -> Result<bool, String> {
        let outcome = parse(text).and_then(|assertion| assertion.judge(&report()));
        outcome.map(|outcome| outcome.holds).map_err(|error| {
            assert_eq!(error.code(), 2);
            error.to_string()
        })
    }

    #[test]
    fn figures_are_compared_with_numbers_and_with_each_other() {
        let one = "random[depth=32,span=whole file].direct.iops";
        let other = "random[span=whole file, depth=32].bare.iops";
        for (right, holds) in [
            (">= 95".to_owned(), true),
            (">95".to_owned(), false),
            ("<= 94.9".to_owned(), false),
            ("< 1e3".to_owned(), true),
            ("== 95".to_owned(), true),
            ("!= 95".to_owned(), false),
            (format!(">= 0.95 * {other}"), true),
            (format!(">= 0.96*{other}"), false),
            (format!("< {other}"), true),
        ] {
            assert_eq!(judge(&format!("{one} {right}")), Ok(holds), "{right}");
        }
        let outcome =
            parse(&format!("{one} >= 0.96 * {other}")).and_then(|assertion| assertion.judge(&report()));
        let text = outcome.expect("both are there").text;
        assert_eq!(text, format!("FAILS: {one} = 95, wanted >= 96 (0.96 * {other} = 100)"));
    }

    /// A user copied `fio[bs=4k,8k,job=a]` from the list of candidates: "8k" was no parameter.
    #[test]
    fn a_value_may_have_commas() {
        let of = |bs: &str, job: &str| {
            let row = Row::of_repeats("read", [[("iops", 7.0)]]);
            Experiment::new("fio", "").parameter("bs", bs).parameter("job", job).with_rows([row])
        };
        let all = vec![of("4k,8k", "a"), of("4k,8k", "b,c,"), of("4k", "a")];
        let report = Report::new(Environment::default(), all);
        for parameters in ["bs=4k,8k,job=a", "job=b,c,,bs=4k,8k", "job=a, bs=4k", "job=b,c,"] {
            let text = format!("fio[{parameters}].read.iops == 7");
            let outcome = parse(&text).and_then(|assertion| assertion.judge(&report));
            assert!(outcome.as_ref().is_ok_and(|outcome| outcome.holds), "{parameters}: {outcome:?}");
        }
        let wrong = parse("fio[bs,job=a].read.iops == 7").expect_err("no value").to_string();
        assert!(wrong.contains("\"bs\" is not param=value"), "{wrong}");
    }

    /// Regression: figures of a file with parts that were never written had an outcome without a mark, as the gate is of all rows.
    #[test]
    fn a_gate_of_all_rows_marks_an_outcome() {
        let mut report = report();
        report.experiments[0].conditions = vec![Condition::at_most("extents", 1.0, 0.0)];
        let is_marked = |depth: u32| {
            let text = format!("random[depth={depth},span=whole file].bare.iops > 1");
            let outcome = parse(&text).and_then(|assertion| assertion.judge(&report));
            outcome.expect("it is there").text.contains("failed a gate")
        };
        assert!(is_marked(1) && !is_marked(32));
    }

    #[test]
    fn outcomes_are_cases_of_junit_and_series_of_open_metrics() {
        let [one, two] =
            [">= 95", "> 95"].map(|end| format!("random[depth=32,span=whole file].direct.iops {end}"));
        let judge = |text| parse(text).and_then(|assertion| assertion.judge(&report())).expect("it is there");
        let outcomes = [judge(&one), judge(&two), judge(&two)];
        let text = junit("a&b.json", &outcomes);
        assert!(text.starts_with("<?xml") && text.contains(JUNIT_MARK), "{text}");
        assert!(text.contains("tests=\"3\" failures=\"2\"") && text.contains("a&amp;b.json"), "{text}");
        assert_eq!((text.matches("<testcase ").count(), text.matches("<failure ").count()), (3, 2), "{text}");
        assert!(text.contains("direct.iops &gt;= 95\"") && text.contains("FAILS: "), "{text}");
        let text = open_metrics(&outcomes);
        assert!(text.starts_with(OPEN_METRICS_MARK) && text.ends_with("\n# EOF\n"), "{text}");
        for (line, value) in [("holds", 0.0), ("figure", 95.0), ("limit", 95.0)] {
            let line = format!("forebay_assert_{line}{{expression=\"{two}\"}} {value}\n");
            assert_eq!(text.matches(&line).count(), 1, "{line}{text}");
        }
    }

    #[test]
    fn missing_and_ambiguous_names_list_the_candidates() {
        for (text, words) in [
            ("write.direct.iops > 1", "no experiment \"write\"; there are random, scan"),
            (
                "random.direct.iops > 1",
                "4 experiments fit: add parameters that only one of them has; there are random[depth=1,span=whole file]",
            ),
            ("random[depth=32].direct.iops > 1", "2 experiments fit"),
            (
                "random[depth=7].direct.iops > 1",
                "no experiment has these parameters; there are random[depth=1",
            ),
            ("random[depth=1,span=whole file].dirct.iops > 1", "no row \"dirct\"; there are direct, bare"),
            ("random[depth=1,span=whole file].direct.iop > 1", "no metric \"iop\"; there are iops"),
            ("random[depth=1,span=whole file].uring.iops > 1", "not measured: refused"),
            ("scan.direct.mb_per_s > 1", "not measured: no space"),
        ] {
            let error = judge(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn unreadable_files_are_reported() {
        for (text, words) in [
            ("", "no operator"),
            ("random.direct.iops", "no operator"),
            ("random.direct.iops >= many", "\"many\" is not EXPERIMENT"),
            ("random.direct.iops >= 1e999", "not a number"),
            ("random.direct.iops >= -", "not a number"),
            ("random.direct.iops >=", "\"\" is not EXPERIMENT"),
            ("random >= 1", "\"random\" is not EXPERIMENT"),
            ("random[depth=32.direct.iops >= 1", "no operator"),
            ("random[depth].direct.iops >= 1", "\"depth\" is not param=value"),
            ("random[depth=1]direct.iops >= 1", "is not EXPERIMENT"),
            ("random..iops >= 1", "is not EXPERIMENT"),
            ("random.direct.iops >= 2 * 3", "\"3\" is not EXPERIMENT"),
            ("random.direct.iops >= 1 and more", "not a number"),
        ] {
            let error = judge(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
