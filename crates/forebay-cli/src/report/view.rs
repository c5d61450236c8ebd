//! Properties of experiments for the page: the parameter of a sweep, the charts, the sentences.

use super::columns::Column;
use super::verdicts;
use crate::measure::kind;
use crate::result::Experiment;

/// Parameters that differ without being swept over.
const BESIDE: [&str; 5] = ["seed", "repeats", "seconds", "seconds_max", "file_bytes"];

/// The meaning of `load`, where a kind has loads of two sorts.
const CLEARER: [(&str, &str); 2] = [("readers", "readers"), ("load_percent", "load, % of the row's most")];

/// A parameter over which experiments that belong together differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    /// Its name among the parameters; the parameter is a number.
    pub(crate) parameter: String,
    /// Its label below a chart.
    pub(crate) label: String,
}

/// Returns the parameter that differs within a group: that of its kind or, where it stays the same,
/// the first number that differs (a kind may have two loops, each over a parameter of its own).
pub(crate) fn axis(group: &[&Experiment]) -> Option<Axis> {
    let first = group.first()?;
    let differs = |name: &str| {
        first.number(name).is_some() && group.iter().any(|other| other.number(name) != first.number(name))
    };
    let clearer = CLEARER.iter().find(|(name, _)| differs(name));
    if let Some((name, label)) = clearer.filter(|_| kind::of(first).axis.parameter == "load") {
        return Some(Axis { parameter: (*name).to_owned(), label: (*label).to_owned() });
    }
    let usual = &kind::of(first).axis;
    if differs(usual.parameter) {
        return Some(Axis { parameter: usual.parameter.to_owned(), label: usual.label.to_owned() });
    }
    let mut others = first.parameters.keys().filter(|name| !BESIDE.contains(&name.as_str()));
    others.find(|name| differs(name)).map(|name| Axis { parameter: name.clone(), label: readable(name) })
}

/// Returns a parameter's name with its unit apart: `load_percent` is `load, %`.
fn readable(parameter: &str) -> String {
    for (suffix, unit) in
        [("_percent", ", %"), ("_per_s", " a second"), ("_bytes", ", bytes"), ("_us", ", µs"), ("_s", ", s")]
    {
        if let Some(stem) = parameter.strip_suffix(suffix) {
            return format!("{}{unit}", stem.replace('_', " "));
        }
    }
    parameter.replace('_', " ")
}

/// Returns the columns that have a chart of their own.
pub(crate) fn charts(experiment: &Experiment) -> impl Iterator<Item = &'static Column> + use<> {
    let kind = kind::of(experiment);
    kind.charts.iter().filter_map(|metric| Column::of(kind, metric))
}

/// Returns the column that shows a metric.
pub(crate) fn column(experiment: &Experiment, metric: &str) -> Option<&'static Column> {
    Column::of(kind::of(experiment), metric)
}

/// Returns sentences on the numbers of experiments that belong together, the most important first.
pub(crate) fn sentences(group: &[&Experiment]) -> Vec<String> {
    group.first().map_or_else(Vec::new, |first| verdicts::sentences(kind::of(first), group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_is_the_parameter_that_differs() {
        let random = |depth: u32, seed: u32| {
            Experiment::new("random", "").parameter("depth", depth).parameter("seed", seed)
        };
        let [one, eight] = [random(1, 5), random(8, 6)];
        assert_eq!(axis(&[&one, &eight]).map(|axis| axis.label), Some("reads in flight".to_owned()));
        assert_eq!(axis(&[&one]), None);
        let [low, high] = [10, 90].map(|load| Experiment::new("other", "").parameter("load_percent", load));
        assert_eq!(axis(&[&low, &high]).map(|axis| axis.label), Some("load, %".to_owned()));
    }
}
