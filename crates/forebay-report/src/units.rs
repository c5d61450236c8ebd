//! Numbers formatted for people.

/// Formats a number of bytes with a binary unit and at most one decimal: `512 B`, `8 MiB`, `1.5 GiB`.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if unit == 0 || scaled.fract() < 0.05 || scaled >= 100.0 {
        format!("{scaled:.0} {}", UNITS[unit])
    } else {
        format!("{scaled:.1} {}", UNITS[unit])
    }
}

/// Formats a number with at most three significant digits where it has decimals. The integer part stays in
/// full, with its thousands separated: `1,540`, `96.3`, `0.025`.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if value.fract() == 0.0 && size < 99.95 {
        format!("{value:.0}")
    } else if size >= 99.95 {
        grouped(value.round())
    } else if size >= 9.995 {
        format!("{value:.1}")
    } else if size >= 0.9995 {
        format!("{value:.2}")
    } else if size >= 0.0995 {
        format!("{value:.3}")
    } else {
        format!("{value:.4}")
    }
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if value < 0.0 {
        text.push('-');
    }
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
}
