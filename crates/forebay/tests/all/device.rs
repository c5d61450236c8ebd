//! The devices below real files of this machine.

use std::fs::File;
use std::os::fd::AsFd;

use forebay::ErrorKind;
use forebay::device::{Alignment, Device, DeviceKind};

/// Creates a file of ours in the build's directory: on a disk, as far as this machine has one.
fn file_here() -> tempfile::NamedTempFile {
    tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR"))
        .or_else(|_| tempfile::NamedTempFile::new())
        .unwrap()
}

#[test]
fn path_and_open_file_lead_to_the_same_device() {
    let file = file_here();
    let by_path = Device::of_path(file.path()).unwrap();
    let by_file = Device::of_fd(file.as_file().as_fd()).unwrap();
    assert_eq!(by_path.to_string(), by_file.to_string());
    assert_eq!((by_path.major(), by_path.minor()), (by_file.major(), by_file.minor()));
}

#[test]
#[cfg(target_os = "linux")]
fn the_chain_fits_together() {
    let file = file_here();
    let device = Device::of_path(file.path()).unwrap();
    let file_system = device.file_system().expect("every file is in a file system");
    let path = std::fs::canonicalize(file.path()).unwrap();
    assert!(
        path.starts_with(file_system.mount_point()),
        "{path:?} is not below {:?}",
        file_system.mount_point()
    );
    let layers = device.layers();
    if device.kind() == DeviceKind::Anonymous {
        assert!(layers.is_empty());
        return;
    }
    if layers.is_empty() {
        // A container may hide sysfs; then nothing is known, and the device reports that.
        assert_eq!((device.kind(), device.logical_block_bytes()), (DeviceKind::Unknown, None));
        return;
    }
    assert_eq!((layers[0].name(), layers[0].kind()), (device.name(), device.kind()));
    assert!(layers.iter().all(|layer| layer.kind() != DeviceKind::Unknown && !layer.name().is_empty()));
    assert!(layers.iter().skip(1).all(|layer| layer.depth() > layers[0].depth()));
    let physical: Vec<_> = device.physical().collect();
    assert!(!physical.is_empty());
    assert!(physical.iter().all(|layer| !matches!(layer.kind(), DeviceKind::Partition)));
    let logical = device.logical_block_bytes().unwrap();
    assert!(logical.is_power_of_two() && logical >= 512);
    assert!(device.physical_block_bytes().unwrap() >= logical);
    assert!(device.request_bytes_max().unwrap() >= 4096);
    assert!(device.hw_request_bytes_max().unwrap() >= device.request_bytes_max().unwrap());
    assert!(device.size_bytes().unwrap() > 0);
    assert!(device.write_cache().is_some());
    if device.io_poll() == Some(false) {
        assert_eq!(device.poll_queues(), Some(0));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn what_has_no_block_device_says_so() {
    let device = Device::of_path("/proc/self/status").unwrap();
    assert_eq!((device.kind(), device.major()), (DeviceKind::Anonymous, 0));
    assert_eq!(device.file_system().unwrap().type_name(), "proc");
    assert_eq!((device.layers().len(), device.queue_depth(), device.fua()), (0, None, None));
}

#[test]
#[cfg(target_os = "linux")]
fn a_device_file_is_its_own_device() {
    // The name is only read, the device never opened.
    let Some(name) =
        std::fs::read_dir("/sys/block").ok().and_then(|mut all| all.next()).and_then(|one| one.ok())
    else {
        return;
    };
    let path = std::path::Path::new("/dev").join(name.file_name());
    let Ok(device) = Device::of_path(&path) else { return };
    if device.file_system().is_none() {
        assert_eq!(device.name(), name.file_name().to_str().unwrap());
        assert!(device.size_bytes().is_some());
    }
}

#[test]
fn a_missing_path_is_a_clear_error() {
    let error = Device::of_path("no/such/file").unwrap_err();
    assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::NotFound, Some(2)));
    assert!(error.to_string().contains("no/such/file"), "{error}");
}

#[test]
fn alignment_is_a_power_of_two_and_memory_a_page() {
    let file = file_here();
    let buffered = Alignment::of_fd(file.as_file().as_fd(), false);
    assert_eq!((buffered.memory, buffered.offset, buffered.direct), (1, 1, false));
    let direct = Alignment::of_fd(file.as_file().as_fd(), true);
    assert!(direct.memory >= 4096 && direct.memory.is_power_of_two());
    assert!(direct.offset >= 1 && direct.offset.is_power_of_two());
    assert!(direct.read_offset <= direct.offset);
}

#[test]
#[cfg(target_os = "linux")]
fn direct_reads_work_at_the_alignment_reported() {
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    let file = file_here();
    file.as_file().write_all_at(&vec![7; 64 << 10], 0).unwrap();
    file.as_file().sync_all().unwrap();
    const O_DIRECT: i32 = libc::O_DIRECT;
    let Ok(direct) = File::options().read(true).custom_flags(O_DIRECT).open(file.path()) else { return };
    let alignment = Alignment::of_fd(direct.as_fd(), true);
    let (memory, step) = (alignment.memory as usize, alignment.read_offset as usize);
    let mut space = vec![0; step + memory];
    let start = space.as_ptr().align_offset(memory);
    let got = direct.read_at(&mut space[start..start + step], step as u64).unwrap();
    assert_eq!(got, step);
    assert!(space[start..start + step].iter().all(|&byte| byte == 7));
}

#[test]
#[cfg(target_os = "linux")]
fn memory_file_systems_report_no_alignment() {
    let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm") else { return };
    let device = Device::of_path(file.path()).unwrap();
    if device.file_system().is_some_and(|file_system| file_system.type_name() == "tmpfs") {
        assert_eq!(device.kind(), DeviceKind::Anonymous);
        let alignment = Alignment::of_fd(file.as_file().as_fd(), true);
        if !alignment.reported {
            assert_eq!((alignment.memory, alignment.offset), (4096, 4096));
        }
    }
}
