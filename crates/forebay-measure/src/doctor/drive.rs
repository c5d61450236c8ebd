//! The facts of the drive under a path that its queue does not have: firmware, wear and temperature. They are known only for a
//! single local drive; a virtual, network or stacked device has several drives below it, or no drive.

use std::fs;
use std::path::{Path, PathBuf};

use forebay::device::Device;

use super::{block_devices, ok};
use forebay_report::check::Check;
use forebay_report::environment::{DeviceInfo, LayerInfo};

/// Components of a path in sysfs, by their prefix, that belong to network disks and to virtual disks.
const NETWORK: [&str; 4] = ["session", "rport-", "rbd", "nbd"];
const VIRTUAL: [&str; 4] = ["virt", "vmbus", "VMBUS", "vbd-"];
/// Beginnings of the models of disks that hypervisors make.
const VIRTUAL_MODELS: [&str; 13] = [
    "QEMU",
    "VMware",
    "VBOX",
    "Virtual",
    "Amazon",
    "Google",
    "nvme_card",
    "Microsoft",
    "Msft",
    "MSFT",
    "Linux",
    "Alibaba",
    "BHYVE",
];

/// Returns the reason why the drive of `device` is not known, if it is not.
pub(crate) fn obstacle(device: &Device) -> Option<String> {
    folder(&block_devices::layers(device), Path::new("/sys")).err()
}

/// Adds the facts that sysfs has, and the wear.
pub(super) fn describe(
    info: &mut DeviceInfo,
    layers: &[LayerInfo],
    sysfs: &Path,
    wear: impl FnOnce() -> Option<u8>,
) {
    let Ok(folder) = folder(layers, sysfs) else { return };
    info.firmware = text(&folder.join("firmware_rev")).or_else(|| text(&folder.join("rev")));
    info.wear_percent = wear();
    info.temperature_c = temperature_c(&folder);
}

/// Returns the finding about the facts in `info`.
pub(super) fn finding(info: &DeviceInfo, layers: &[LayerInfo], sysfs: &Path) -> Check {
    if let Err(why) = folder(layers, sysfs) {
        return ok(format!("firmware, wear and temperature are not known: {why}"));
    }
    let known = |value: Option<String>| value.unwrap_or_else(|| "not known".to_owned());
    ok(format!(
        "firmware {}, wear {}, temperature {}",
        known(info.firmware.clone()),
        known(info.wear_percent.map(|percent| format!("{percent} %"))),
        known(info.temperature_c.map(|degrees| format!("{degrees} °C")))
    ))
}

/// Returns the folder `device` in sysfs of the single local drive among the layers.
///
/// # Errors
/// The reason why the drive is unknown.
fn folder(layers: &[LayerInfo], sysfs: &Path) -> Result<PathBuf, String> {
    let mut wholes = layers.iter().filter(|layer| layer.kind != "partition");
    let whole = wholes.next().ok_or("there is no block device")?;
    let name = &whole.name;
    if whole.kind != "disk" {
        return Err(format!("{name} is of the kind {}", whole.kind));
    }
    if wholes.next().is_some() {
        return Err(format!("{name} is one of several devices"));
    }
    let missing = |_| format!("{name} is not in sysfs");
    let disk = fs::canonicalize(sysfs.join("block").join(name)).map_err(missing)?;
    let leads_to = |names: &[&str]| {
        let begins = |part: &str| names.iter().any(|name| part.starts_with(name));
        disk.strip_prefix(sysfs).unwrap_or(&disk).iter().filter_map(|part| part.to_str()).any(begins)
    };
    let folder = disk.join("device");
    if leads_to(&NETWORK) || text(&folder.join("transport")).is_some_and(|transport| transport != "pcie") {
        return Err(format!("{name} is a disk of the network"));
    }
    // Its paths, which the kernel joins, may be of a network.
    if leads_to(&["nvme-subsys"]) {
        return Err(format!("{name} may have several paths"));
    }
    let model = text(&folder.join("model")).unwrap_or_default();
    if leads_to(&VIRTUAL) || VIRTUAL_MODELS.iter().any(|maker| model.starts_with(maker)) {
        return Err(format!("{name} is a virtual disk"));
    }
    Ok(folder)
}

/// Returns the first temperature of the drive's hwmon device, which is in its folder (NVMe) or a level below (drivetemp).
fn temperature_c(folder: &Path) -> Option<i32> {
    let folders = [folder.to_owned(), folder.join("hwmon")];
    let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let monitors = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("hwmon"));
    let mut inputs = monitors.filter_map(|entry| text(&entry.path().join("temp1_input"))?.parse().ok());
    let thousandths: i32 = inputs.next()?;
    Some(thousandths.saturating_add(500).div_euclid(1000))
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::{Cleanup, TempDirectory};

    fn layer(name: &str, kind: &str) -> LayerInfo {
        LayerInfo { name: name.to_owned(), kind: kind.to_owned(), level: 0 }
    }

    /// Returns a sysfs with a disk at `place` below `devices`, whose folder `device` has these files.
    fn planted(place: &str, files: &[(&str, &str)]) -> TempDirectory {
        let sysfs = Cleanup::default().temp_directory(&std::env::temp_dir(), "sysfs").expect("writable");
        let disk = sysfs.path().join("devices").join(place);
        fs::create_dir_all(disk.join("device")).expect("ours");
        for (name, contents) in files {
            let file = disk.join("device").join(name);
            fs::create_dir_all(file.parent().expect("below the folder")).expect("ours");
            fs::write(file, contents).expect("ours");
        }
        fs::create_dir(sysfs.path().join("block")).expect("ours");
        let link = sysfs.path().join("block").join(disk.file_name().expect("it has a name"));
        std::os::unix::fs::symlink(&disk, link).expect("ours");
        sysfs
    }

    fn found(sysfs: &Path, layers: &[LayerInfo], wear: Option<u8>) -> (DeviceInfo, String) {
        let mut info = DeviceInfo::default();
        describe(&mut info, layers, sysfs, || wear);
        let why = finding(&info, layers, sysfs).why;
        (info, why)
    }

    #[test]
    fn a_local_drive_has_its_facts() {
        let files = [
            ("model", "Fast One \n"),
            ("firmware_rev", "2B2Q  \n"),
            ("transport", "pcie\n"),
            ("hwmon3/temp1_input", "38850\n"),
        ];
        let nvme = planted("pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1", &files);
        let layers = [layer("nvme0n1p2", "partition"), layer("nvme0n1", "disk")];
        let (info, why) = found(nvme.path(), &layers, Some(7));
        assert_eq!(
            (info.firmware.as_deref(), info.wear_percent, info.temperature_c),
            (Some("2B2Q"), Some(7), Some(39))
        );
        assert_eq!(why, "firmware 2B2Q, wear 7 %, temperature 39 °C");

        let files = [("rev", "1.05\n"), ("hwmon/hwmon0/temp1_input", "-1200\n")];
        let sata = planted("pci0000:00/ata1/host0/target0:0:0/0:0:0:0/block/sda", &files);
        let (info, why) = found(sata.path(), &[layer("sda", "disk")], None);
        assert_eq!((info.firmware.as_deref(), info.temperature_c), (Some("1.05"), Some(-1)));
        assert_eq!(why, "firmware 1.05, wear not known, temperature -1 °C");
        let bare = planted("pci0000:00/ata1/block/sda", &[]);
        let (_, why) = found(bare.path(), &[layer("sda", "disk")], None);
        assert_eq!(why, "firmware not known, wear not known, temperature not known");
    }

    /// Figures that a hypervisor or another machine invents are not those of the drive below.
    #[test]
    fn virtual_network_and_stacked_devices_have_no_known_facts() {
        for (place, model, transport, words) in [
            ("pci0000:00/0000:00:02.0/virtio1/block/x", "", "", "a virtual disk"),
            ("virtual/block/x", "", "", "a virtual disk"),
            ("vbd-51712/block/x", "", "", "a virtual disk"),
            ("pci0000:00/nvme/nvme0/x", "MSFT NVMe Accelerator v1.0", "pcie", "a virtual disk"),
            ("pci0000:00/nvme/nvme0/x", "Amazon Elastic Block Store", "pcie", "a virtual disk"),
            ("pci0000:00/ata1/host0/block/x", "QEMU HARDDISK", "", "a virtual disk"),
            ("platform/host2/session1/target2:0:0/block/x", "Disk", "", "a disk of the network"),
            ("virtual/block/nbd0/x", "", "", "a disk of the network"),
            ("nvme-fabrics/ctl/nvme0/x", "Fast One", "tcp", "a disk of the network"),
        ] {
            let files = [("model", model), ("transport", transport), ("firmware_rev", "1.0")];
            let sysfs = planted(place, &files);
            let (info, why) = found(sysfs.path(), &[layer("x", "disk")], Some(1));
            assert_eq!((info.firmware, info.wear_percent), (None, None), "{place}");
            assert_eq!(why, format!("firmware, wear and temperature are not known: x is {words}"));
        }
        // A drive with two ports is local, and has a path by each.
        let paths = planted("virtual/nvme-subsystem/nvme-subsys0/nvme0n1", &[("firmware_rev", "1.0")]);
        let (info, why) = found(paths.path(), &[layer("nvme0n1", "disk")], Some(1));
        assert!(info.firmware.is_none() && why.ends_with("nvme0n1 may have several paths"), "{why}");
        let sysfs = planted("pci0000:00/ata1/block/sda", &[("rev", "1.05")]);
        let disk = layer("sda", "disk");
        for (layers, words) in [
            (vec![layer("md0", "raid"), disk.clone()], "md0 is of the kind raid"),
            (vec![layer("loop0", "loop"), disk.clone()], "loop0 is of the kind loop"),
            (vec![disk, layer("sdb", "disk")], "sda is one of several devices"),
            (vec![layer("sdz", "disk")], "sdz is not in sysfs"),
            (Vec::new(), "there is no block device"),
        ] {
            let (info, why) = found(sysfs.path(), &layers, Some(1));
            assert!(info.firmware.is_none() && why.ends_with(words), "{why}");
        }
    }
}
