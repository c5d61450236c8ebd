//! A small library of shapes: bars, stacked bars, lines and markers, over linear and logarithmic axes.
//! `charts` decides on their contents. Colours come from the page's style sheet, so that a chart
//! follows the light or the dark scheme. Series differ by shape as well as by colour. Every chart
//! scales with the page (viewBox, no fixed width).

mod bars;
mod lines;
mod scale;

use maud::{Markup, html};

pub(crate) use bars::{Bar, bars};
pub(crate) use lines::{Form, LARGE, Line, Mark, Point, SMALL, XAxis, lines};
pub(crate) use scale::Spread;

/// Returns the class that colours a series.
pub(crate) fn class(series: usize) -> String {
    format!("s{}", series % 8)
}

/// Returns a series' own shape around each of its points, so that series differ by more than colour. One path holds all:
/// half of a page is charts. The first two shapes are ends of lines without length.
fn dots(series: usize, points: impl Iterator<Item = (f64, f64)>) -> Markup {
    let (class, shape) = match series % 5 {
        0 => ("round ", "h0"),
        1 => ("square ", "h0"),
        2 => ("", "m0-4.6l4.2 7.8h-8.4z"),
        3 => ("", "m0-4.8l4.8 4.8l-4.8 4.8l-4.8-4.8z"),
        _ => ("", "m0 4.6l4.2-7.8h-8.4z"),
    };
    let path: String = points.map(|(x, y)| format!("M{} {}{shape}", n(x), n(y))).collect();
    html! { path class=(format!("dots {class}{}", self::class(series))) d=(path) {} }
}

/// Returns a series' sign in a legend.
pub(crate) fn sign(series: usize, filled: bool) -> Markup {
    html! {
        svg.sign viewBox="0 0 22 12" aria-hidden="true" focusable="false" {
            @if filled {
                rect class=(class(series)) x="3" y="1" width="16" height="10" {}
            } @else {
                line class=(format!("curve {}", class(series))) x1="0" x2="22" y1="6" y2="6" {}
                (dots(series, std::iter::once((11.0, 6.0))))
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
