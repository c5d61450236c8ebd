//! Finds the holders of an open store: other processes, or stores of this process that are still closing.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use forebay::Engine;
use forebay_wal::Holders;

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

/// Waits until a store of this process in the same directory has closed, if its last handle was dropped: it closes in the
/// background.
pub(crate) async fn closed(identity: Option<Identity>) {
    let find = |(known, store): &(Identity, Weak<StoreCore>)| {
        let store = store.upgrade().filter(|_| Some(*known) == identity)?;
        (store.is_closing() && !store.is_ended()).then_some(store)
    };
    let closing = || OPEN.lock().unwrap_or_else(PoisonError::into_inner).iter().find_map(find);
    // Several where they were only read.
    while let Some(store) = closing() {
        store.end.until(|| store.is_ended().then_some(())).await;
    }
}

/// Returns the error of an open that found the store open elsewhere.
pub(crate) async fn locked(engine: &Engine, dir: &Path) -> Error {
    let holders = match engine.metadata(dir.join(MANIFEST).join("wal.lock")).await {
        Ok(file) if engine.driver() != "sim" => Holders::of(&file),
        _ => Holders::default(),
    };
    let text = match holders.processes[..] {
        [] => "the store is open elsewhere: close it there first, or work with it there".to_owned(),
        // Only a writer finds readers in its way.
        _ if holders.is_shared => {
            format!(
                "the store is being read in {holders}: close it there first, or open it with Options::read_only too"
            )
        }
        _ => format!("the store is open in {holders}: close it there first, or work with it there"),
    };
    Error::at(ErrorKind::Locked, dir, text)
}
