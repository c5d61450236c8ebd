//! Byte counts in human-readable form.

pub(super) use forebay_report::units::bytes as show_bytes;

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
}
