//! How results of one kind are shown: their columns, charts, the parameter of a sweep, and the comparison that counts.
//! The program that measures writes it into the document, so a page needs nothing but the document.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::columns::{Column, Definition, SHARED};
use crate::result::{Experiment, metric};
use crate::units::number;

/// A text that is fixed in the program, or was read from a document.
pub type Text = Cow<'static, str>;

/// The presentation of all experiments of one name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct View {
    /// The part that the experiment has in the conclusions of a report.
    #[serde(default)]
    pub role: Role,
    /// The columns of its tables, in this order, where a row has them.
    pub columns: Vec<Column>,
    /// The metric by which rows are compared; a table shows its spread.
    pub compared: Text,
    /// The metrics that have a chart.
    pub charts: Vec<Text>,
    /// The parameter that differs between experiments that belong together.
    pub axis: Axis,
    /// Comparisons of the usual way with the best one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gains: Vec<Gain>,
}

/// The question of a report to which an experiment contributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// None of them.
    #[default]
    Other,
    /// The figures at the start of the report; its rows have the names that `headline` lists.
    Baseline,
    /// Its rate is the device's bandwidth in sequence.
    Sequential,
    /// Reads at random over their number in flight.
    Random,
    /// Reads by more and more readers, up to saturation.
    Saturation,
    /// Processor time of a read.
    ProcessorTime,
    /// A reader among others.
    Sharing,
    /// Writes with and without the time until they are durable.
    Writes,
    /// A program that waits.
    Waiting,
}

/// A parameter over which experiments are swept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Axis {
    /// The name in [`Experiment::parameters`], a number; it is also a table's column.
    pub parameter: Text,
    /// The label that a chart writes below the axis.
    pub label: Text,
}

/// A change that may be worthwhile: from the usual way to the best of the rows that have the change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Gain {
    /// The metric that is compared.
    pub metric: Text,
    /// Whether more of the metric is better.
    pub more: bool,
    /// Names of rows that do what programs usually do; the first one that has figures counts.
    pub usual: Vec<Text>,
    /// Names of the rows that do what `change` says. Other rows may be better, but not by this change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<Text>,
    /// The load, of the view's axis, below which these rows do the same as the usual rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_load: Option<u64>,
    /// The quantity of the metric, in words that follow "more" or "less".
    pub counts: Text,
    /// The change, as an imperative.
    pub change: Text,
}

impl Default for View {
    /// Returns the view of experiments of other programs, and of documents without views.
    fn default() -> Self {
        Self::of(Role::Other, SHARED)
    }
}

impl View {
    /// Returns a view of experiments with this part in the conclusions; rows are compared by the first column.
    pub fn of(role: Role, columns: &[Definition]) -> Self {
        Self {
            role,
            columns: columns.iter().map(Column::from).collect(),
            compared: columns.first().map_or(Text::Borrowed(metric::IOPS), |column| column.metric.into()),
            charts: [metric::MB_PER_S, metric::IOPS, metric::P99_US].map(Text::Borrowed).to_vec(),
            axis: Axis::new("depth", "reads in flight"),
            gains: Vec::new(),
        }
    }

    /// Returns the column that shows a metric.
    pub fn column(&self, metric: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.metric == metric)
    }

    /// Returns the columns that have a chart.
    pub fn charts(&self) -> impl Iterator<Item = &Column> {
        self.charts.iter().filter_map(|metric| self.column(metric))
    }
}

impl Axis {
    /// Returns an axis over `parameter`.
    pub const fn new(parameter: &'static str, label: &'static str) -> Self {
        Self { parameter: Cow::Borrowed(parameter), label: Cow::Borrowed(label) }
    }
}

impl Gain {
    /// Returns the comparison of `metric`; see the fields.
    pub fn new(
        metric: &'static str,
        more: bool,
        usual: &[&'static str],
        to: &[&'static str],
        counts: &'static str,
        change: &'static str,
    ) -> Self {
        let names = |names: &[&'static str]| names.iter().map(|name| Cow::Borrowed(*name)).collect();
        let (usual, to) = (names(usual), names(to));
        let (counts, change) = (counts.into(), change.into());
        Self { metric: metric.into(), more, usual, to, from_load: None, counts, change }
    }

    /// Returns the same for only this load and larger loads.
    pub fn from_load(self, load: u64) -> Self {
        Self { from_load: Some(load), ..self }
    }

    /// Returns whether this row has the change: its name is in `to`, and the experiment's load is at least `from_load`.
    pub fn is_made_by(&self, experiment: &Experiment, row: &str) -> bool {
        let load = || experiment.number(&experiment.view.axis.parameter);
        self.to.iter().any(|name| *name == row)
            && self.from_load.is_none_or(|from| load().is_some_and(|load| load >= from as f64))
    }
}

/// Parameters that differ without being swept over.
const BESIDE: [&str; 5] = ["seed", "repeats", "seconds", "seconds_max", "file_bytes"];

/// The meaning of `load`, where an experiment has loads of two sorts.
const CLEARER: [(&str, &str); 2] = [("readers", "readers"), ("load_percent", "load, % of the row's most")];

/// Returns the parameter that differs within a group: that of its view or, where it stays the same, the first number that differs
/// (an experiment may have two loops, each over its own parameter).
pub fn axis(group: &[&Experiment]) -> Option<Axis> {
    let first = group.first()?;
    let differs = |name: &str| {
        first.number(name).is_some() && group.iter().any(|other| other.number(name) != first.number(name))
    };
    let usual = &first.view.axis;
    if usual.parameter == "load"
        && let Some((name, label)) = CLEARER.iter().find(|(name, _)| differs(name))
    {
        return Some(Axis::new(name, label));
    }
    if differs(&usual.parameter) {
        return Some(usual.clone());
    }
    let mut others = first.parameters.keys().filter(|name| !BESIDE.contains(&name.as_str()));
    let found = others.find(|name| differs(name))?;
    Some(Axis { parameter: found.clone().into(), label: readable(found).into() })
}

/// Returns the place of an experiment in its group: `, readers: 32`; nothing where the group has no axis.
pub(crate) fn place(group: &[&Experiment], experiment: &Experiment) -> String {
    let place = axis(group).and_then(|axis| Some((experiment.number(&axis.parameter)?, axis.label)));
    place.map_or_else(String::new, |(place, label)| format!(", {label}: {}", number(place)))
}

/// Returns a parameter's name with its unit apart: `load_percent` is `load, %`.
fn readable(parameter: &str) -> String {
    let units =
        [("_percent", ", %"), ("_per_s", " a second"), ("_bytes", ", bytes"), ("_us", ", µs"), ("_s", ", s")];
    let mut stems = units.iter().filter_map(|(suffix, unit)| Some((parameter.strip_suffix(suffix)?, *unit)));
    let (stem, unit) = stems.next().unwrap_or((parameter, ""));
    format!("{}{unit}", stem.replace('_', " "))
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
        assert_eq!(axis(&[&one, &eight]).map(|axis| axis.label), Some("reads in flight".into()));
        assert_eq!(axis(&[&one]), None);
        let [low, high] = [10, 90].map(|load| Experiment::new("other", "").parameter("load_percent", load));
        assert_eq!(axis(&[&low, &high]).map(|axis| axis.label), Some("load, %".into()));
    }
}
