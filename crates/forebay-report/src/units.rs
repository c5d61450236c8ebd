//! Numbers and names formatted for people.

use std::borrow::Cow;

/// Returns a name as a terminal and a page can show it: control characters, line breaks as well, are escaped.
pub fn printable(name: &str) -> Cow<'_, str> {
    escaped(name, &[])
}

/// Returns a text with its control characters escaped, but those that are kept.
pub fn escaped<'a>(text: &'a str, kept: &[char]) -> Cow<'a, str> {
    let is_escaped = |letter: char| letter.is_control() && !kept.contains(&letter);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        if is_escaped(letter) { shown.extend(letter.escape_default()) } else { shown.push(letter) }
    }
    Cow::Owned(shown)
}

/// Formats a number of bytes with a binary unit and at most one decimal: `512 B`, `8 MiB`, `1.5 GiB`.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(unit > 0 && scaled.fract() >= 0.05 && scaled < 100.0);
    format!("{scaled:.decimals$} {}", UNITS[unit])
}

/// Formats a number with at most three significant digits where it has decimals. The integer part stays in
/// full, with its thousands separated: `1,540`, `96.3`, `0.025`.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if value.fract() == 0.0 && size < 99.95 => 0,
        99.95.. => return grouped(value.round()),
        9.995.. => 1,
        0.9995.. => 2,
        0.0995.. => 3,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

/// Formats a time with the unit that fits: `96.3 µs`, `1.54 ms`, `2 s`.
pub fn time(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{} µs", number(us)),
        us if us < 1e6 => format!("{} ms", number(us / 1e3)),
        us => format!("{} s", number(us / 1e6)),
    }
}

/// Formats a time as `2026-11-22 01:05 UTC`.
pub(crate) fn date(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Days are counted from 1 March of the year 0, so that the leap day is the last day of its year.
    // 400 years have 146,097 days, and from March on five months have 153.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", second / 3600, second / 60 % 60)
}

/// Formats a share as whole percent.
pub fn percent(share: f64) -> String {
    format!("{} %", number((share * 100.0).round()))
}

/// Returns the item with the largest value; the last of several.
pub(crate) fn largest<T>(items: impl IntoIterator<Item = T>, value: impl Fn(&T) -> f64) -> Option<T> {
    items.into_iter().max_by(|a, b| value(a).total_cmp(&value(b)))
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < 0.0 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: a file whose name had an escape sequence cleared the terminal.
    #[test]
    fn control_characters_of_names_are_escaped() {
        assert_eq!(printable("data"), "data");
        assert!(matches!(printable("größe"), Cow::Borrowed(_)));
        assert_eq!(printable("a\x1b[2Jb\nc\u{9b}"), "a\\u{1b}[2Jb\\nc\\u{9b}");
        assert_eq!(escaped("a\tb\n\x07", &['\n', '\t']), "a\tb\n\\u{7}");
    }

    #[test]
    fn bytes_have_the_unit_that_fits() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(8 << 20), "8 MiB");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
    }

    #[test]
    fn numbers_have_three_digits_and_thousands() {
        assert_eq!(number(1_540.4), "1,540");
        assert_eq!(number(1_234_567.0), "1,234,567");
        assert_eq!(number(96.34), "96.3");
        assert_eq!(number(2.414), "2.41");
        assert_eq!(number(0.0254), "0.0254");
        assert_eq!(number(0.0), "0");
        assert_eq!(number(32.0), "32");
    }

    #[test]
    fn seconds_become_a_date() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59 UTC");
    }
}
