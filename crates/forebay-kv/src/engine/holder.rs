//! Finds the holder of an open store: another process, or a store of this process that is still closing.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use forebay::Engine;

use super::shared::StoreCore;
use crate::error::{Error, ErrorKind};
use crate::names::MANIFEST;

/// A directory's device and inode, independent of its path.
pub(crate) type Identity = ((u32, u32), u64);

/// The open stores of this process.
static OPEN: Mutex<Vec<(Identity, Weak<StoreCore>)>> = Mutex::new(Vec::new());

/// Returns a directory's identity. `None` in a simulated world: several worlds in one process have the same
/// numbers.
pub(crate) async fn identity(engine: &Engine, dir: &Path) -> Option<Identity> {
    if engine.driver() == "sim" {
        return None;
    }
    let found = engine.metadata(dir).await.ok()?;
    Some((found.device(), found.inode()))
}

/// Registers a store that was opened.
pub(crate) fn enter(identity: Option<Identity>, shared: &Arc<StoreCore>) {
    let Some(identity) = identity else { return };
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|(_, store)| store.strong_count() > 0);
    open.push((identity, Arc::downgrade(shared)));
}

/// Waits until a store of this process in the same directory has closed, if its last handle is gone: it
/// closes in the background.
pub(crate) async fn closed(identity: Option<Identity>) {
    let find = |(known, store): &(Identity, Weak<StoreCore>)| {
        let store = store.upgrade().filter(|_| Some(*known) == identity)?;
        store.is_closing().then_some(store)
    };
    let closing = OPEN.lock().unwrap_or_else(PoisonError::into_inner).iter().find_map(find);
    let Some(store) = closing else { return };
    store.end.until(|| store.is_ended().then_some(())).await;
}

/// Returns the error of an open that found the store open elsewhere.
pub(crate) async fn locked(engine: &Engine, dir: &Path) -> Error {
    let holder = match process(engine, dir).await {
        Some(process) if process == std::process::id() => format!("in this process ({process})"),
        Some(process) => format!("in process {process}"),
        None => "elsewhere".to_owned(),
    };
    let text = format!("the store is open {holder}: close it there first, or work with it there");
    Error::at(ErrorKind::Locked, dir, text)
}

/// Returns the process that holds the lock of a store, as far as the system reports it.
async fn process(engine: &Engine, dir: &Path) -> Option<u32> {
    let (device, inode) = identity(engine, &dir.join(MANIFEST).join("wal.lock")).await?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let device = format!("{:02x}:{:02x}:", device.0, device.1);
    let inode = format!(":{inode}");
    // 1: FLOCK ADVISORY WRITE 1234 08:01:5678 0 EOF; the devices of some file systems have other numbers here.
    let held = |line: &&str| line.contains(" FLOCK ") && line.split(' ').any(|word| word.ends_with(&inode));
    let (ours, others): (Vec<&str>, Vec<&str>) =
        locks.lines().filter(held).partition(|line| line.contains(&device));
    let line = ours.first().or(others.first())?;
    let mut words = line.split_whitespace().skip_while(|word| *word != "FLOCK").skip(3);
    words.next()?.parse().ok()
}
