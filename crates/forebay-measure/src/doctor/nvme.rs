//! Tests by trial whether NVMe commands can go to the device under a path (`Engine::open_nvme`).

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

use io_uring::{IoUring, cqueue, squeue};

use forebay_report::check::Check;
use forebay_report::environment::LayerInfo;

const GROUP: &str = "device";
const NAME: &str = "nvme_commands";

/// Opens the namespace's character device for reading, and sets up the ring that commands need. It
/// sends no command.
pub(crate) fn examine(layers: &[LayerInfo]) -> Check {
    let Some((disk, node)) = layers.iter().rev().find_map(|layer| Some((&layer.name, node(&layer.name)?)))
    else {
        return Check::ok(
            GROUP,
            NAME,
            "no NVMe device is under this path: there is nothing to send commands to",
        );
    };
    let opened = OpenOptions::new().read(true).open(&node);
    let ring = || -> io::Result<IoUring<squeue::Entry128, cqueue::Entry32>> { IoUring::builder().build(8) };
    verdict(disk, &node, opened.map(drop), || ring().map(drop))
}

/// Returns `/dev/ng0n1` for `nvme0n1`, and `None` for other devices and for partitions.
fn node(disk: &str) -> Option<PathBuf> {
    let rest = disk.strip_prefix("nvme")?;
    let (controller, namespace) = rest.split_once('n')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(controller) && is_number(namespace)).then(|| Path::new("/dev").join(format!("ng{rest}")))
}

fn verdict(disk: &str, node: &Path, opened: io::Result<()>, ring: impl FnOnce() -> io::Result<()>) -> Check {
    let node = node.display();
    if let Err(error) = opened {
        let why = format!("{node}, by which {disk} takes commands, cannot be opened: {error}");
        return match error.kind() {
            io::ErrorKind::NotFound => Check::degraded(GROUP, NAME, why, "use Linux 5.13 or later"),
            _ => Check::degraded(GROUP, NAME, why, "run as root, or give this user the right to open it"),
        };
    }
    match ring() {
        Ok(()) => Check::ok(
            GROUP,
            NAME,
            format!(
                "Engine::open_nvme can send commands to {disk} by {node}, while no other program uses it"
            ),
        ),
        Err(error) => Check::degraded(
            GROUP,
            NAME,
            format!("a ring with entries for commands is refused: {error}"),
            "use Linux 6.1 or later with io_uring allowed",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::check::Verdict;

    #[test]
    fn only_whole_namespaces_have_a_node() {
        assert_eq!(node("nvme1n22"), Some(PathBuf::from("/dev/ng1n22")));
        assert_eq!([node("nvme0n1p1"), node("sda"), node("nvme0")], [None, None, None]);
    }

    #[test]
    fn a_missing_feature_is_reported_with_its_remedy() {
        let verdict = |opened: io::Result<()>, ring: io::Result<()>| {
            verdict("nvme0n1", Path::new("/dev/ng0n1"), opened, || ring)
        };
        assert_eq!(verdict(Ok(()), Ok(())).verdict, Verdict::Ok);
        let denied = verdict(Err(io::ErrorKind::PermissionDenied.into()), Ok(()));
        assert!(denied.remedy.is_some_and(|remedy| remedy.contains("root")), "{}", denied.why);
        assert_eq!(verdict(Ok(()), Err(io::ErrorKind::InvalidInput.into())).verdict, Verdict::Degraded);
        let other = LayerInfo { name: "sda".to_owned(), kind: "disk".to_owned(), level: 0 };
        assert_eq!(examine(&[other]).verdict, Verdict::Ok);
    }
}
