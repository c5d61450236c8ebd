//! Horizontal bars, plain with whiskers and stacked. A bar's name is above it: long names fit on a
//! narrow screen, too.

use maud::{Markup, html};

use super::scale::{Scale, Spread, width_of};
use super::{WIDTH, Whisker, class, n};
use crate::units::number;

const LEFT: f64 = 8.0;
/// Height of one bar with its name.
const ROW: f64 = 40.0;
/// Distance of the bar from the top of its row, and its height.
const BAR: (f64, f64) = (19.0, 15.0);

/// A named bar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bar {
    /// Its name.
    pub name: String,
    /// Its length.
    pub value: Whisker,
}

/// Returns horizontal bars, each with a whisker from the smallest to the largest repeat. `label` is
/// the text for readers who cannot see them.
pub(crate) fn bars(label: &str, axis: &str, bars: &[Bar]) -> Markup {
    let names: Vec<&str> = bars.iter().map(|bar| bar.name.as_str()).collect();
    let ends: Vec<f64> = bars.iter().map(|bar| bar.value.high.max(bar.value.value)).collect();
    frame(label, axis, &names, &ends, |index, scale, top| {
        let bar = &bars[index];
        let middle = top + BAR.0 + BAR.1 / 2.0;
        html! {
            rect class=(class(0)) x=(n(LEFT)) y=(n(top + BAR.0)) width=(n((scale.at(bar.value.value) - LEFT).max(0.5)))
                height=(n(BAR.1)) {}
            @if bar.value.high > bar.value.low { (whisker(scale, &bar.value, middle)) }
            text.value x=(n(scale.at(ends[index]) + 6.0)) y=(n(middle + 4.5)) { (number(bar.value.value)) }
        }
    })
}

/// Returns horizontal bars of parts in the same order; each bar's sum is at its end.
pub(crate) fn stacked(label: &str, axis: &str, parts: &[String], bars: &[(String, Vec<f64>)]) -> Markup {
    let names: Vec<&str> = bars.iter().map(|(name, _)| name.as_str()).collect();
    let ends: Vec<f64> = bars.iter().map(|(_, values)| values.iter().sum()).collect();
    frame(label, axis, &names, &ends, |index, scale, top| {
        let mut begin = 0.0;
        html! {
            @for (part, value) in bars[index].1.iter().enumerate() {
                @let (x, end) = (scale.at(begin), scale.at(begin + value));
                ({ begin += value; "" })
                @if end - x >= 0.05 {
                    rect class=(format!("part {}", class(part))) x=(n(x)) y=(n(top + BAR.0)) width=(n(end - x))
                        height=(n(BAR.1)) {
                        title { (parts.get(part).map_or("", String::as_str)) ": " (number(*value)) }
                    }
                }
            }
            text.value x=(n(scale.at(ends[index]) + 6.0)) y=(n(top + BAR.0 + BAR.1 / 2.0 + 4.5)) { (number(ends[index])) }
        }
    })
}

fn frame(
    label: &str,
    axis: &str,
    names: &[&str],
    ends: &[f64],
    mut bar: impl FnMut(usize, &Scale, f64) -> Markup,
) -> Markup {
    let top = 4.0;
    let bottom = top + ROW * names.len() as f64;
    // Room for the number after the longest bar.
    let widest = ends.iter().map(|end| width_of(&number(*end))).fold(40.0, f64::max);
    let right = WIDTH - widest - 12.0;
    let scale = Scale::new(Spread::Linear, ends.iter().copied(), LEFT, right);
    let height = bottom + 42.0;
    let upright =
        scale.ticks.iter().map(|(tick, _)| format!("M{} {}V{}", n(scale.at(*tick)), n(top), n(bottom)));
    let grid: String = upright.collect();
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(label) {
            path.grid d=(grid) {}
            g.tick text-anchor="middle" {
                @for (tick, text) in &scale.ticks {
                    text x=(n(scale.at(*tick))) y=(n(bottom + 16.0)) text-anchor=[(*tick == 0.0).then_some("start")] { (text) }
                }
            }
            @for (index, name) in names.iter().enumerate() {
                @let top = top + ROW * index as f64;
                text.label x=(n(LEFT)) y=(n(top + 14.0)) { (name) }
                (bar(index, &scale, top))
            }
            line.axis x1=(n(LEFT)) x2=(n(LEFT)) y1=(n(top)) y2=(n(bottom)) {}
            text.title x=(n((LEFT + right) / 2.0)) y=(n(height - 6.0)) text-anchor="middle" { (axis) }
        }
    }
}

fn whisker(scale: &Scale, value: &Whisker, y: f64) -> Markup {
    let (low, high) = (scale.at(value.low), scale.at(value.high));
    html! {
        g.whisker {
            line x1=(n(low)) x2=(n(high)) y1=(n(y)) y2=(n(y)) {}
            line x1=(n(low)) x2=(n(low)) y1=(n(y - 4.0)) y2=(n(y + 4.0)) {}
            line x1=(n(high)) x2=(n(high)) y1=(n(y - 4.0)) y2=(n(y + 4.0)) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(name: &str, value: f64) -> Bar {
        Bar { name: name.to_owned(), value: Whisker { value, low: value * 0.9, high: value * 1.1 } }
    }

    #[test]
    fn bars_scale_with_the_page_and_name_their_unit() {
        let chart =
            bars("what it shows", "MB/s", &[bar("buffered", 1000.0), bar("direct", 2400.0)]).into_string();
        assert!(chart.contains("viewBox=\"0 0 480 "));
        assert!(!chart.contains("<svg width"));
        assert!(chart.contains(">MB/s</text>") && chart.contains("aria-label=\"what it shows\""));
        assert_eq!(chart.matches("<rect").count(), 2);
    }

    #[test]
    fn nothing_is_drawn_outside_of_the_chart() {
        let chart = bars("", "IOPS", &[bar("a", 0.0), bar("b", 123_456.0)]).into_string();
        for part in chart.split("x2=\"").skip(1) {
            let end = part.find('"').expect("attributes are closed");
            let x: f64 = part[..end].parse().expect("a coordinate");
            assert!((0.0..=WIDTH).contains(&x), "{x}");
        }
    }

    #[test]
    fn names_are_escaped() {
        assert!(bars("", "MB/s", &[bar("<b>", 1.0)]).into_string().contains("&lt;b&gt;"));
    }

    #[test]
    fn parts_stand_behind_each_other() {
        let parts = ["write".to_owned(), "sync".to_owned()];
        let chart = stacked("", "s", &parts, &[("each".to_owned(), vec![1.0, 3.0])]).into_string();
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
