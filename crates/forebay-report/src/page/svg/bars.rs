//! Horizontal bars, of one part with a whisker or of several. A bar's name is above it: long names fit on a
//! narrow screen, too.

use maud::{Markup, html};

use super::scale::{Scale, Spread, width_of};
use super::{class, n};
use crate::units::number;

const WIDTH: f64 = 480.0;
const LEFT: f64 = 8.0;
/// Height of one bar with its name.
const ROW: f64 = 35.0;
/// Distance of the bar from the top of its row, and its height.
const BAR: (f64, f64) = (17.0, 13.0);

/// A named bar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bar {
    /// Its name.
    pub name: String,
    /// Lengths of its parts.
    pub values: Vec<f64>,
    /// The smallest and the largest repeat.
    pub spread: Option<(f64, f64)>,
}

impl Bar {
    /// Returns the length of all parts together.
    pub(crate) fn sum(&self) -> f64 {
        self.values.iter().sum()
    }

    fn end(&self) -> f64 {
        self.spread.map_or(self.sum(), |(_, high)| high.max(self.sum()))
    }
}

/// Returns horizontal bars, each with its sum at the end, and a whisker from the smallest to the largest repeat. `label` is
/// the text for readers who cannot see them.
pub(crate) fn bars(label: &str, axis: &str, parts: &[String], bars: &[Bar]) -> Markup {
    let top = 2.0;
    let bottom = top + ROW * bars.len() as f64;
    // Room for the number after the longest bar.
    let widest = bars.iter().map(|bar| width_of(&number(bar.end()))).fold(40.0, f64::max);
    let right = WIDTH - widest - 12.0;
    let scale = Scale::new(Spread::Linear, bars.iter().map(Bar::end), LEFT, right);
    let height = bottom + 40.0;
    let grid =
        scale.ticks.iter().map(|(tick, _)| format!("M{} {}V{}", n(scale.at(*tick)), n(top), n(bottom)));
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(label) {
            path.grid d=(grid.collect::<String>()) {}
            line.axis x1=(n(LEFT)) x2=(n(LEFT)) y1=(n(top)) y2=(n(bottom)) {}
            g.tick text-anchor="middle" {
                @for (tick, text) in &scale.ticks {
                    text x=(n(scale.at(*tick))) y=(n(bottom + 16.0)) text-anchor=[(*tick == 0.0).then_some("start")] { (text) }
                }
            }
            @for (index, bar) in bars.iter().enumerate() { (one(bar, parts, &scale, top + ROW * index as f64)) }
            text.title x=(n((LEFT + right) / 2.0)) y=(n(height - 6.0)) text-anchor="middle" { (axis) }
        }
    }
}

fn one(bar: &Bar, parts: &[String], scale: &Scale, top: f64) -> Markup {
    let middle = top + BAR.0 + BAR.1 / 2.0;
    let mut begin = 0.0;
    html! {
        text.label x=(n(LEFT)) y=(n(top + 13.0)) { (bar.name) }
        @for (part, value) in bar.values.iter().enumerate() {
            @let x = scale.at(begin);
            ({ begin += value; "" })
            @let width = scale.at(begin) - x;
            @if width >= 0.05 || bar.values.len() == 1 {
                rect class=(format!("part {}", class(part))) x=(n(x)) y=(n(top + BAR.0)) width=(n(width.max(0.5))) height=(n(BAR.1)) {
                    @if let Some(name) = parts.get(part) { title { (name) ": " (number(*value)) } }
                }
            }
        }
        @if let Some((low, high)) = bar.spread.map(|(low, high)| (scale.at(low), scale.at(high))) {
            @if high > low {
                path.whisker d=(format!("M{} {}v8m0-4H{}m0-4v8", n(low), n(middle - 4.0), n(high))) {}
            }
        }
        text.value x=(n(scale.at(bar.end()) + 6.0)) y=(n(middle + 4.5)) { (number(bar.sum())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(name: &str, value: f64) -> Bar {
        Bar { name: name.to_owned(), values: vec![value], spread: Some((value * 0.9, value * 1.1)) }
    }

    #[test]
    fn bars_scale_with_the_page_and_name_their_unit() {
        let chart = bars("what it shows", "MB/s", &[], &[bar("buffered", 1000.0), bar("direct", 2400.0)])
            .into_string();
        assert!(chart.contains("viewBox=\"0 0 480 "));
        assert!(!chart.contains("<svg width"));
        assert!(chart.contains(">MB/s</text>") && chart.contains("aria-label=\"what it shows\""));
        assert_eq!(chart.matches("<rect").count(), 2);
    }

    #[test]
    fn nothing_is_drawn_outside_of_the_chart() {
        let chart = bars("", "IOPS", &[], &[bar("a", 0.0), bar("b", 123_456.0)]).into_string();
        for part in chart.split("m0-4H").skip(1) {
            let end = part.find('m').expect("the whisker's end");
            let x: f64 = part[..end].parse().expect("a coordinate");
            assert!((0.0..=WIDTH).contains(&x), "{x}");
        }
    }

    #[test]
    fn names_are_escaped() {
        assert!(bars("", "MB/s", &[], &[bar("<b>", 1.0)]).into_string().contains("&lt;b&gt;"));
    }

    #[test]
    fn parts_stand_behind_each_other() {
        let parts = ["write".to_owned(), "sync".to_owned()];
        let each = Bar { name: "each".to_owned(), values: vec![1.0, 3.0], spread: None };
        let chart = bars("", "s", &parts, &[each]).into_string();
        assert_eq!(chart.matches("class=\"part s").count(), 2);
        // 4 is the end of the axis: the second part begins at a quarter of it.
        let widths: Vec<f64> = chart
            .split("width=\"")
            .skip(1)
            .map(|part| part[..part.find('"').expect("closed")].parse().expect("a number"))
            .collect();
        assert!((widths[1] / widths[0] - 3.0).abs() < 0.01, "{widths:?}");
        assert!(chart.contains(">4</text>"));
    }
}
