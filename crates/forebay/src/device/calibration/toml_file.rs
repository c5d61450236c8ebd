//! A calibration as a small TOML file.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::{Calibration, Rates};
use crate::base::error::{Error, Result};

/// The value in the file's first line with a value.
const VERSION: u64 = 1;
/// The limit for the file's length. No file that this crate writes is nearly as long.
const FILE_BYTES_MAX: u64 = 64 << 10;
const OPERATION: &str = "calibration";

impl Calibration {
    /// Returns the calibration in a file that `forebay calibrate` wrote.
    ///
    /// # Errors
    /// The system's when it cannot be read; otherwise as for [`from_toml`](Calibration::from_toml), with the path.
    ///
    /// ```no_run
    /// # use forebay::{Calibration, Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let calibration = Calibration::load("/etc/forebay/nvme0n1.toml")?;
    /// let engine = Engine::start(Config::new().calibration(calibration))?;
    /// # Ok(()) }
    /// ```
    pub fn load(path: impl AsRef<Path>) -> Result<Calibration> {
        let path = path.as_ref();
        let mut text = String::new();
        let read = std::fs::File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
        match read {
            Err(error) => Err(Error::io(OPERATION, error).with_path(path)),
            Ok(read) if read as u64 > FILE_BYTES_MAX => {
                Err(Error::invalid(OPERATION, "this is not a calibration: it is too long").with_path(path))
            }
            Ok(_) => Calibration::from_toml(&text).map_err(|error| error.with_path(path)),
        }
    }

    /// Reads the text of such a file. docs/tuning.md documents each entry.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput), with the place, for text that is not TOML, for another
    /// version of the file, and for entries that are missing, unknown, of the wrong type or out of range.
    ///
    /// ```
    /// # use forebay::{Calibration, device::Device};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let calibration = Calibration::new(&Device::of_path(".")?);
    /// assert_eq!(Calibration::from_toml(&calibration.to_toml())?, calibration);
    /// # Ok(()) }
    /// ```
    pub fn from_toml(text: &str) -> Result<Calibration> {
        let root = DeTable::parse(text).map_err(|error| {
            let line =
                error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
            invalid(format!("line {line}: this is not TOML: {}", error.message()))
        })?;
        let root = Table { name: "", entries: root.get_ref() };
        let version = root.number("forebay_calibration")?;
        if version != VERSION {
            return Err(invalid(format!("forebay_calibration is {version}: this version reads {VERSION}")));
        }
        root.refuse_others(&["forebay_calibration", "device", "read", "write", "scheduler"])?;
        let device = root.table("device")?;
        device.refuse_others(&["name", "model", "bytes"])?;
        let scheduler = root.table("scheduler")?;
        scheduler.refuse_others(&["knee_depth", "write_cost"])?;
        let calibration = Calibration {
            device: device.text("name")?,
            model: device.optional("model").map(|_| device.text("model")).transpose()?,
            device_bytes: device.optional("bytes").map(|_| device.number("bytes")).transpose()?,
            read: root.table("read")?.rates()?,
            write: root.table("write")?.rates()?,
            knee_depth: u32::try_from(scheduler.number("knee_depth")?).unwrap_or(u32::MAX),
            write_cost: scheduler.fraction("write_cost")?,
        };
        calibration.fault().map_or(Ok(calibration), |fault| Err(invalid(fault.to_string())))
    }

    /// Returns the text of such a file, with a comment on each entry.
    pub fn to_toml(&self) -> String {
        let mut text =
            String::from("# What `forebay calibrate` measured of a device, for Config::calibration.\n");
        let mut line = |line: String| _ = writeln!(text, "{line}");
        line(format!("forebay_calibration = {VERSION}\n\n[device]\nname = {}", quoted(&self.device)));
        if let Some(model) = &self.model {
            line(format!("model = {}", quoted(model)));
        }
        if let Some(bytes) = self.device_bytes {
            line(format!("bytes = {bytes}"));
        }
        for (name, rates) in [("read", self.read), ("write", self.write)] {
            line(format!("\n[{name}]\n# In requests of 64 KiB at random places, at the knee."));
            line(format!("bytes_per_second = {}", rates.bytes_per_second));
            line("# Of 4 KiB at random places, as many as it takes in flight.".to_string());
            line(format!("operations_per_second = {}", rates.operations_per_second));
            line("# The median of 4 KiB at random places, one at a time.".to_string());
            line(format!("latency_ns = {}", rates.latency_ns));
        }
        line(
            "\n[scheduler]\n# Reads of 64 KiB in flight together from which on more bring little."
                .to_string(),
        );
        line(format!("knee_depth = {}", self.knee_depth));
        line("# What a write costs of the device's time beside a read of the same size.".to_string());
        line(format!("write_cost = {:?}", self.write_cost));
        text
    }
}

fn invalid(note: String) -> Error {
    Error::invalid(OPERATION, note)
}

/// Returns the text as a basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            _ if letter.is_control() => _ = write!(quoted, "\\u{:04X}", u32::from(letter)),
            _ => quoted.push(letter),
        }
    }
    quoted + "\""
}

/// A table of the file, with its name for error messages.
struct Table<'t> {
    name: &'static str,
    entries: &'t DeTable<'t>,
}

impl Table<'_> {
    fn called(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_string() } else { format!("{}.{key}", self.name) }
    }

    fn optional(&self, key: &str) -> Option<&DeValue<'_>> {
        self.entries.get(key).map(toml::Spanned::get_ref)
    }

    fn value(&self, key: &str) -> Result<&DeValue<'_>> {
        self.optional(key).ok_or_else(|| invalid(format!("{} is missing", self.called(key))))
    }

    fn wrong(&self, key: &str, wanted: &str) -> Error {
        invalid(format!("{} must be {wanted}", self.called(key)))
    }

    fn table(&self, key: &'static str) -> Result<Table<'_>> {
        let entries = self.value(key)?.as_table().ok_or_else(|| self.wrong(key, "a table"))?;
        Ok(Table { name: key, entries })
    }

    fn text(&self, key: &str) -> Result<String> {
        let text = self.value(key)?.as_str().ok_or_else(|| self.wrong(key, "a text in quotation marks"))?;
        Ok(text.to_string())
    }

    fn number(&self, key: &str) -> Result<u64> {
        let number = self.value(key)?.as_integer();
        let number = number.and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok());
        number.ok_or_else(|| self.wrong(key, "a whole number that is not negative"))
    }

    fn fraction(&self, key: &str) -> Result<f64> {
        let value = self.value(key)?;
        let text = value.as_float().map(|float| float.as_str());
        let text = text.or_else(|| {
            value.as_integer().filter(|number| number.radix() == 10).map(|number| number.as_str())
        });
        text.and_then(|text| text.parse().ok()).ok_or_else(|| self.wrong(key, "a number"))
    }

    fn rates(&self) -> Result<Rates> {
        self.refuse_others(&["bytes_per_second", "operations_per_second", "latency_ns"])?;
        Ok(Rates {
            bytes_per_second: self.number("bytes_per_second")?,
            operations_per_second: self.number("operations_per_second")?,
            latency_ns: self.number("latency_ns")?,
        })
    }

    fn refuse_others(&self, known: &[&str]) -> Result<()> {
        let other = self.entries.keys().find(|key| !known.contains(&key.get_ref().as_ref()));
        other.map_or(Ok(()), |key| Err(invalid(format!("{} is not known", self.called(key.get_ref())))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    fn sample() -> Calibration {
        let mut calibration =
            Calibration::new(&Device::for_test("nvme0n1", Some("FAST \"1\" \\ \u{7}"), Some(1 << 40)));
        calibration.read =
            Rates { bytes_per_second: 2_400_000_000, operations_per_second: 560_000, latency_ns: 11_200 };
        calibration.write =
            Rates { bytes_per_second: 2_000_000_000, operations_per_second: 500_000, latency_ns: 12_000 };
        (calibration.knee_depth, calibration.write_cost) = (8, 1.25);
        calibration
    }

    #[test]
    fn what_is_written_is_read_again() {
        let sample = sample();
        assert_eq!(Calibration::from_toml(&sample.to_toml()).unwrap(), sample);
        let plain = Calibration { model: None, device_bytes: None, write_cost: 1.0, ..sample };
        assert_eq!(Calibration::from_toml(&plain.to_toml()).unwrap(), plain);
        let whole = plain.to_toml().replace("write_cost = 1.0", "write_cost = 1");
        assert_eq!(Calibration::from_toml(&whole).unwrap(), plain, "a whole number is a number");
    }

    #[test]
    fn each_bad_entry_is_named() {
        let good = sample().to_toml();
        for (from, to, known) in [
            ("forebay_calibration = 1", "", "forebay_calibration is missing"),
            (
                "forebay_calibration = 1",
                "forebay_calibration = 2",
                "forebay_calibration is 2: this version reads 1",
            ),
            (
                "forebay_calibration = 1",
                "forebay_calibration = \"1\"",
                "forebay_calibration must be a whole number",
            ),
            ("[device]", "[gadget]", "gadget is not known"),
            ("name = ", "nam = ", "device.nam is not known"),
            ("name = \"nvme0n1\"", "name = 7", "device.name must be a text"),
            ("name = \"nvme0n1\"", "name = \"\"", "must name its device"),
            ("name = \"nvme0n1\"", "", "device.name is missing"),
            (
                "bytes = 1099511627776",
                "bytes = -1",
                "device.bytes must be a whole number that is not negative",
            ),
            ("bytes = 1099511627776", "bytes = 99999999999999999999", "device.bytes must be"),
            ("[read]", "[[read]]", "read must be a table"),
            ("bytes_per_second = 2400000000", "", "read.bytes_per_second is missing"),
            (
                "operations_per_second = 500000",
                "operations_per_second = 0.5",
                "write.operations_per_second must be",
            ),
            ("latency_ns = 11200", "latency_ns = 11200\nlatency_us = 11", "read.latency_us is not known"),
            ("[scheduler]", "[scheduler", "is not TOML"),
            ("knee_depth = 8", "knee_depth = 0", "knee_depth must be between"),
            ("knee_depth = 8", "knee_depth = 5000000000", "knee_depth must be between"),
            ("write_cost = 1.25", "write_cost = nan", "write_cost must be between"),
            ("write_cost = 1.25", "write_cost = \"dear\"", "scheduler.write_cost must be a number"),
            ("write_cost = 1.25", "write_cost = 1.25\nwrite_cost = 1.25", "is not TOML"),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good, "{from:?}");
            let error = Calibration::from_toml(&bad).expect_err(known);
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(known), "{error} lacks {known:?}");
        }
    }

    #[test]
    fn a_syntax_error_is_told_with_its_line() {
        let bad = sample().to_toml().replace("knee_depth = 8", "knee_depth 8");
        let line = 1 + bad[..bad.find("knee_depth 8").unwrap()].matches('\n').count();
        let error = Calibration::from_toml(&bad).unwrap_err().to_string();
        assert!(error.contains(&format!("line {line}:")), "{error}");
    }

    #[test]
    fn files_that_cannot_be_are_refused_with_their_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.toml");
        let told = |path: &Path| Calibration::load(path).unwrap_err().to_string();
        assert!(told(&path).contains("disk.toml"));
        std::fs::write(&path, vec![b'#'; 65 << 10]).unwrap();
        assert!(told(&path).contains("too long") && told(&path).contains("disk.toml"));
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(told(&path).contains("disk.toml"));
        std::fs::write(&path, sample().to_toml()).unwrap();
        assert_eq!(Calibration::load(&path).unwrap(), sample());
    }
}
