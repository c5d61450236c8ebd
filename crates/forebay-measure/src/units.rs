//! Byte counts in human-readable form.

/// Parses `4096`, `128KiB`, `256 MiB`, `3g`, `1.5GB`. KiB/MiB/GiB/TiB and the bare letters are
/// powers of 1024, kB/MB/GB/TB are powers of 1000.
///
/// # Errors
/// A sentence that quotes the text and shows the accepted form.
pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("{text:?} is not a size; write for example 4096, 128KiB, 256MiB or 3GiB")),
    };
    let value: f64 = number
        .parse()
        .map_err(|_| format!("{text:?} is not a size; write for example 4096, 128KiB, 256MiB or 3GiB"))?;
    let bytes = value * factor as f64;
    if (1.0..9e18).contains(&bytes) {
        Ok(bytes as u64)
    } else {
        Err(format!("{text:?} is not a usable size; sizes go from one byte to 8 EiB"))
    }
}

/// Returns `bytes` in the largest binary unit that keeps the number above one: `256 MiB`, `1.5 GiB`, `312 B`.
pub(super) fn show_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if value >= 100.0 || (value - value.round()).abs() < 0.05 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("4k"), Ok(4096));
        assert_eq!(parse_bytes("128KiB"), Ok(131_072));
        assert_eq!(parse_bytes(" 1.5 GiB "), Ok(1_610_612_736));
        assert_eq!(parse_bytes("3GB"), Ok(3_000_000_000));
        for wrong in ["", "x", "0", "-4k", "4 parsecs", "1.2.3", "99999999T"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn sizes_are_shown() {
        assert_eq!(show_bytes(312), "312 B");
        assert_eq!(show_bytes(256 << 20), "256 MiB");
        assert_eq!(show_bytes(1_610_612_736), "1.5 GiB");
        assert_eq!(show_bytes(3 << 30), "3 GiB");
    }
}
