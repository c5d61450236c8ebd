//! The measured figures of a device, so that an engine starts with them instead of measuring them.

#[cfg(feature = "calibration")]
mod toml_file;

use crate::device::Device;

/// The performance of a device, as `forebay calibrate` measured it; given to
/// [`Config::calibration`](crate::Config::calibration).
///
/// An engine uses two figures of it: the requests that must be in flight together ([`knee_depth`](Calibration::knee_depth)), and
/// the cost of a write relative to a read ([`write_cost`](Calibration::write_cost)). Both are starting values: while classes
/// compete for the device, the engine measures the present figures. With the feature `calibration` it is read from a small TOML
/// file.
///
/// ```
/// use forebay::device::Device;
/// use forebay::{Calibration, Config};
/// # fn main() -> forebay::Result<()> {
/// let device = Device::of_path(".")?;
/// let mut calibration = Calibration::new(&device);
/// calibration.knee_depth = 16;
/// assert!(calibration.fits(&device));
/// let config = Config::new().calibration(calibration);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Calibration {
    /// The physical device's name as under `/dev`, where it was measured. For a device that is made of
    /// several disks, its own name.
    pub device: String,
    /// The maker's name of the device, where it has one.
    pub model: Option<String>,
    /// Its size in bytes, where that is known.
    pub device_bytes: Option<u64>,
    /// Rates of reads at random places.
    pub read: Rates,
    /// Rates of writes at random places of a file that had been written through before.
    pub write: Rates,
    /// Requests of 64 KiB that must be in flight together for nearly all of the throughput: 1 to 910.
    pub knee_depth: u32,
    /// The cost of a write in the device's time, relative to a read of the same size, 0.25 to 16.
    pub write_cost: f64,
}

/// The rates of a device for reads or for writes; 0 for a figure that was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rates {
    /// Bytes a second, in requests of 64 KiB.
    pub bytes_per_second: u64,
    /// Operations of 4 KiB a second.
    pub operations_per_second: u64,
    /// The median time of 4 KiB, one at a time, in nanoseconds.
    pub latency_ns: u64,
}

/// The limit for the requests in flight that a calibration may name: a budget holds this many.
const DEPTH_MAX: u32 = 910;
const WRITE_COST: std::ops::RangeInclusive<f64> = 0.25..=16.0;

impl Calibration {
    /// Returns a calibration of that device without measurements: one request in flight, and writes that cost
    /// as much as reads.
    pub fn new(device: &Device) -> Calibration {
        let (name, model, bytes) = device.scheduled();
        Calibration {
            device: name.to_string(),
            model: model.map(str::to_string),
            device_bytes: bytes,
            read: Rates::default(),
            write: Rates::default(),
            knee_depth: 1,
            write_cost: 1.0,
        }
    }

    /// Returns whether it is of this device, or of an equal one. Model and size decide; name and size only for a device without a
    /// model, because names change between boots.
    pub fn fits(&self, device: &Device) -> bool {
        let (name, model, bytes) = device.scheduled();
        let same_name = match (&self.model, model) {
            (None, None) => self.device == name,
            (known, model) => known.as_deref() == model,
        };
        same_name && self.device_bytes.zip(bytes).is_none_or(|(known, bytes)| known == bytes)
    }

    /// Returns a description of the value that is out of range, if any.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        if self.device.is_empty() {
            return Some("a calibration must name its device");
        }
        if self.knee_depth == 0 || self.knee_depth > DEPTH_MAX {
            return Some("a calibration's knee_depth must be between 1 and 910");
        }
        if !WRITE_COST.contains(&self.write_cost) {
            return Some("a calibration's write_cost must be between 0.25 and 16");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_and_size_say_whether_it_fits_and_a_name_where_there_is_no_model() {
        let disk = Device::for_test("nvme0n1", Some("FAST 1"), Some(1 << 40));
        let calibration = Calibration::new(&disk);
        assert!(calibration.fits(&disk));
        assert!(
            calibration.fits(&Device::for_test("nvme1n1", Some("FAST 1"), Some(1 << 40))),
            "names change"
        );
        assert!(
            calibration.fits(&Device::for_test("nvme0n1", Some("FAST 1"), None)),
            "its size is not known"
        );
        assert!(!calibration.fits(&Device::for_test("nvme0n1", Some("FAST 2"), Some(1 << 40))));
        assert!(!calibration.fits(&Device::for_test("nvme0n1", Some("FAST 1"), Some(1 << 41))));
        assert!(!calibration.fits(&Device::for_test("nvme0n1", None, Some(1 << 40))));
        let plain = Calibration::new(&Device::for_test("vda", None, Some(1 << 30)));
        assert!(plain.fits(&Device::for_test("vda", None, Some(1 << 30))));
        assert!(!plain.fits(&Device::for_test("vdb", None, Some(1 << 30))));
    }

    #[test]
    fn figures_out_of_range_are_told() {
        let good = Calibration::new(&Device::for_test("d", None, None));
        assert_eq!(good.fault(), None);
        for (calibration, known) in [
            (Calibration { device: String::new(), ..good.clone() }, "name its device"),
            (Calibration { knee_depth: 0, ..good.clone() }, "knee_depth"),
            (Calibration { knee_depth: 911, ..good.clone() }, "knee_depth"),
            (Calibration { write_cost: 0.2, ..good.clone() }, "write_cost"),
            (Calibration { write_cost: f64::NAN, ..good.clone() }, "write_cost"),
            (Calibration { write_cost: 17.0, ..good.clone() }, "write_cost"),
        ] {
            assert!(calibration.fault().is_some_and(|fault| fault.contains(known)), "{calibration:?}");
        }
    }
}
