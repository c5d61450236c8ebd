//! The store's tasks: flushes, compaction, the handling of a full disk and the removal of files, on another shard than the log's if
//! possible; the slowing of writers; and the store's end.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::compact;
use super::flush;
use super::idle;
use super::shared::{StoreCore, in_task};
use super::space::{self, Work};
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::Edit;

/// Starts the tasks on the shard whose thread this is. A store that is only read has the one that closes it.
pub(super) fn begin(shared: &Arc<StoreCore>) -> Result<()> {
    let background = shared.background_shard();
    // The store ends even if that shard has ended already.
    let guard = EndGuard(shared.clone());
    drop(shared.engine.spawn_on_shard(background, shared.options.class, move || run(guard)));
    if shared.options.read_only {
        return Ok(());
    }
    let task = (shared.clone(), shared.begin_task());
    drop(forebay::shard::spawn(async move {
        let slowing = task.0.write_stall.run(|| task.0.is_closing());
        run_guarded(&task.0, "slow writers", slowing).await;
    })?);
    let task = (shared.clone(), shared.begin_task());
    drop(forebay::shard::spawn(async move {
        run_guarded(&task.0, "order transactions", task.0.run_turns()).await;
    })?);
    // The last to retire a table may be a snapshot that outlives the store's tasks, so the callback must not
    // keep the shared state alive.
    let rung = Arc::downgrade(shared);
    shared.cache.removals().on_push(move || {
        if let Some(shared) = rung.upgrade() {
            shared.changed.notify();
        }
    });
    shared.pace();
    let class = shared.options.background;
    drop(shared.spawn_task(background, class, |shared| async move {
        run_guarded(&shared, "compact tables", compact::run(&shared)).await;
    }));
    drop(shared.spawn_task(background, class, |shared| async move {
        run_guarded(&shared, "flush an idle store", idle::run(&shared)).await;
    }));
    drop(shared.spawn_task(background, class, |shared| async move {
        run_guarded(&shared, "handle a full disk", space::run(&shared)).await;
    }));
    drop(shared.spawn_task(background, class, |shared| async move {
        run_guarded(&shared, "remove files", removes(&shared)).await;
    }));
    Ok(())
}

/// Runs a task of the store. A panic in it makes the store read-only: calls would wait for its work forever.
async fn run_guarded(shared: &StoreCore, purpose: &'static str, work: impl Future<Output = ()>) {
    let _guard = PanicGuard { shared, purpose };
    work.await;
}

/// Makes the store read-only if a panic drops it.
struct PanicGuard<'a> {
    shared: &'a StoreCore,
    purpose: &'static str,
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = format!(
                "the store's task to {} panicked, so the store is read-only until it is opened again",
                self.purpose
            );
            self.shared.fail(&Error::at(ErrorKind::ReadOnly, &self.shared.dir, text));
        }
    }
}

/// Ends the store when its task ends, for any reason: its engine may be closed below it, or a task may panic.
struct EndGuard(Arc<StoreCore>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.set_ended();
    }
}

/// Flushes until the store closes, then closes the logs.
async fn run(guard: EndGuard) {
    let shared = &guard.0;
    // The attempt in which the last flush found no space.
    let mut lacked = None;
    loop {
        let limit = || shared.flush_limit.load(Ordering::Acquire);
        let is_oldest_due =
            || shared.lock().sealed.front().is_some_and(|oldest| oldest.last_lsn() <= limit());
        let is_new = || {
            let is_next = lacked != Some(shared.full.attempt()) && !shared.full.is_hopeless(Work::Flush);
            is_next || !shared.full.is_full()
        };
        let has_sealed = || shared.check_writable().is_ok() && is_new() && is_oldest_due();
        let is_work = || shared.is_closing() || shared.feeds.has_released() || has_sealed();
        shared.work.until(|| is_work().then_some(())).await;
        if shared.is_closing() {
            break;
        }
        if shared.feeds.take_released() {
            flush::release_log(shared).await;
            continue;
        }
        let attempt = shared.full.attempt();
        match flush::oldest(shared).await {
            Ok(_) => shared.found_space(Work::Flush),
            Err(error) if error.is_shortage() => {
                lacked = Some(attempt);
                shared.lacks_space(Work::Flush, &error);
            }
            Err(error) => drop(shared.fail(&error)),
        }
    }
    shared.tasks_end().await;
    // Remove the tables that compaction retired last.
    remove(shared, shared.cache.removals().take()).await;
    // The log has nothing of keyspaces that are not logged.
    if shared.has_failed().is_none()
        && !shared.options.read_only
        && shared.with_view(|view| view.version.has_unlogged())
        && let Err(error) = flush::now(shared).await
    {
        shared.fail(&error);
    }
    if let Err(error) = close_logs(shared).await {
        shared.fail(&error);
    }
    shared.set_closed_in_order();
}

/// Closes the log, records its end in the manifest, and closes the manifest; closes both even after an error.
async fn close_logs(shared: &StoreCore) -> Result<()> {
    let closed = shared.wal.close().await.map_err(Error::from);
    let noted = match &closed {
        Ok(()) if !shared.options.read_only => shared.manifest.note_log_end(shared.wal.durable_end()).await,
        _ => Ok(()),
    };
    closed.and(noted).and(shared.manifest.close().await)
}

/// Removes the files of retired tables, until the store closes.
async fn removes(shared: &Arc<StoreCore>) {
    loop {
        let next = || {
            let files = shared.cache.removals().take();
            (!files.is_empty() || shared.is_closing()).then_some(files)
        };
        let files = shared.changed.until(next).await;
        if files.is_empty() {
            return;
        }
        remove(shared, files).await;
    }
}

async fn remove(shared: &Arc<StoreCore>, files: Vec<PathBuf>) {
    // A file that stays is removed when the store is opened; nothing names it.
    for name in files.iter().filter_map(|file| file.file_name()) {
        let _ = shared.tables.remove_file(name).await;
    }
    shared.cache.removals().removed(files.len());
    shared.gave_space_back();
    // Those that settle wait for it.
    shared.changed.notify();
}

/// Waits until the store has ended. Returns the failure that made it read-only, if any, and an error if it did not end in order and
/// data may be lost.
pub(crate) async fn closed(shared: &Arc<StoreCore>) -> Result<()> {
    shared.end.until(|| shared.is_ended().then_some(())).await;
    // Calls that were dropped have left their opens of tables to the pool.
    shared.files.close().await?;
    match shared.has_failed() {
        Some(error) => Err(error),
        None if shared.is_closed_in_order() => Ok(()),
        None => cut_short(shared).await,
    }
}

/// Returns an error that names what may be lost of a store whose tasks were ended below it. Its logs end with the engine.
async fn cut_short(shared: &Arc<StoreCore>) -> Result<()> {
    let logged = shared.wal.close().await;
    let _ = shared.manifest.close().await;
    let (last_logged, unlogged): (u64, Vec<String>) = {
        let (_turn, commit) = shared.lock_inserted();
        let levels = commit.version.keyspaces().filter(|(_, levels)| levels.is_unlogged);
        let is_in_memory = |id: u32| commit.memtables().any(|memtables| memtables.keyspaces().contains(&id));
        let lost = levels.filter(|(id, _)| is_in_memory(*id));
        (commit.last_logged, lost.map(|(_, levels)| format!("{:?}", levels.name)).collect())
    };
    let mut lost = Vec::new();
    // The log may also end without numbers of records that are not logged.
    if logged.is_err() && shared.wal.durable_lsn().0 < last_logged {
        lost.push(format!("the writes behind record {}, which were not durable", shared.wal.durable_lsn()));
    }
    if !unlogged.is_empty() {
        lost.push(format!("the writes since the last flush to the keyspaces {}", unlogged.join(", ")));
    }
    if lost.is_empty() {
        return Ok(());
    }
    let text = format!("the store's engine was closed before the store. May be lost: {}", lost.join("; "));
    Err(Error::at(ErrorKind::Closed, &shared.dir, text))
}

/// Returns the number of a keyspace; creates the keyspace if it does not exist.
pub(crate) async fn keyspace(shared: &Arc<StoreCore>, name: &str, is_unlogged: bool) -> Result<u32> {
    if let Some(id) = shared.with_view(|view| view.version.keyspace_named(name)) {
        shared.check_open()?;
        return Ok(id);
    }
    if name.is_empty() || name.len() > 255 {
        return Err(Error::new(ErrorKind::InvalidInput, "a keyspace's name has 1 to 255 bytes"));
    }
    let name = name.to_string();
    in_task(shared, move |shared| async move { make(&shared, &name, is_unlogged).await }).await
}

async fn make(shared: &Arc<StoreCore>, name: &str, is_unlogged: bool) -> Result<u32> {
    let _turn = shared.keyspace_turn.take().await;
    shared.check_writable()?;
    shared.full.check_growth()?;
    let known =
        shared.with_view(|view| (view.version.keyspace_named(name), view.version.keyspaces().count()));
    let id = match known {
        (Some(id), _) => return Ok(id),
        (None, count) if count >= shared.budget.keyspaces_max() => {
            return Err(shared.budget.too_many_keyspaces());
        }
        (None, _) => shared.manifest.with(|state| state.next_keyspace),
    };
    let unlogged = if is_unlogged { vec![id] } else { Vec::new() };
    let edit = Edit { keyspaces: vec![(id, name.to_string())], unlogged, ..Edit::default() };
    match shared.edit(&edit, &[], |_| ()).await {
        Ok(()) => Ok(id),
        Err(error) => Err(shared.fail(&error)),
    }
}
