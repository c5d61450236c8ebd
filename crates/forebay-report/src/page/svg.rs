//! A small library of shapes: bars, stacked bars, lines and markers, over linear and logarithmic axes.
//! `charts` decides on their contents. Colours come from the page's style sheet, so that a chart
//! follows the light or the dark scheme. Series differ by shape as well as by colour. Every chart
//! scales with the page (viewBox, no fixed width).

mod bars;
mod lines;
mod scale;

use maud::{Markup, html};

pub(crate) use bars::{Bar, bars, stacked};
pub(crate) use lines::{Line, Mark, Point, XAxis, lines};
pub(crate) use scale::Spread;

/// Width of every chart in its own units; the page scales it.
const WIDTH: f64 = 480.0;

/// A value with the smallest and the largest of its repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Whisker {
    /// The median.
    pub value: f64,
    /// The smallest.
    pub low: f64,
    /// The largest.
    pub high: f64,
}

/// Returns the class that colours a series.
pub(crate) fn class(series: usize) -> String {
    format!("s{}", series % 8)
}

/// Returns a series' own shape around a point, so that series differ by more than colour.
fn dot(series: usize, x: f64, y: f64) -> Markup {
    let class = class(series);
    match series % 5 {
        0 => html! { circle class=(class) cx=(n(x)) cy=(n(y)) r="3.6" {} },
        1 => html! { rect class=(class) x=(n(x - 3.3)) y=(n(y - 3.3)) width="6.6" height="6.6" {} },
        2 => {
            html! { path class=(class) d=(path(&[(x, y - 4.6), (x + 4.2, y + 3.2), (x - 4.2, y + 3.2)])) {} }
        }
        3 => {
            html! { path class=(class) d=(path(&[(x, y - 4.8), (x + 4.8, y), (x, y + 4.8), (x - 4.8, y)])) {} }
        }
        _ => {
            html! { path class=(class) d=(path(&[(x, y + 4.6), (x + 4.2, y - 3.2), (x - 4.2, y - 3.2)])) {} }
        }
    }
}

fn path(corners: &[(f64, f64)]) -> String {
    let corners: Vec<String> = corners.iter().map(|(x, y)| format!("{} {}", n(*x), n(*y))).collect();
    format!("M{}Z", corners.join("L"))
}

/// Returns a series' sign in a legend.
pub(crate) fn sign(series: usize, filled: bool) -> Markup {
    html! {
        svg.sign viewBox="0 0 22 12" aria-hidden="true" focusable="false" {
            @if filled {
                rect class=(class(series)) x="3" y="1" width="16" height="10" {}
            } @else {
                line class=(format!("curve {}", class(series))) x1="0" x2="22" y1="6" y2="6" {}
                (dot(series, 11.0, 6.0))
            }
        }
    }
}

/// Formats a coordinate with one decimal: enough for a screen, short in the file.
fn n(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_are_short() {
        assert_eq!(n(12.04), "12");
        assert_eq!(n(-0.26), "-0.3");
    }

    #[test]
    fn forty_series_look_different() {
        let mut seen: Vec<String> = (0..40).map(|series| sign(series, false).into_string()).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 40);
    }
}
