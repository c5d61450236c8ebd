//! [`RaftStore`]: the state machine of a Raft node, and its snapshots.

use std::collections::BTreeMap;
use std::future::ready;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use forebay::Engine;
use forebay_kv::{Batch, Keyspace, Options, Store};
use futures_util::{FutureExt, Stream, StreamExt};
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::type_config::alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::{OptionalSend, RaftTypeConfig};

use crate::apply::Apply;
use crate::codec::{decode, encode};
use crate::current::Current;
use crate::error::{Error, ErrorKind, Result};
use crate::is_broken;
use crate::log::log_id;
use crate::memory::until_memory;
use crate::snapshot::{HeldDirectory, RaftSnapshot, SnapshotReceiver};
use crate::tree;

/// The keyspace with the keys below.
const OWN: &str = "forebay-raft";
const APPLIED: &str = "applied";
const MEMBERSHIP: &str = "membership";

/// The most entries that a program prepares together, and their bytes from which on no more are added.
const PREPARED: usize = 64;
const PREPARED_BYTES: usize = 8 << 20;

/// The state machine of a Raft node: a [`Store`] with the program's keyspaces, changed as its [`Apply`] says, and snapshots
/// that are checkpoints of it. openraft's [`RaftStateMachine`]; clones are handles of the same state.
///
/// Applied entries are in Raft's log only: they do not wait for the device, and are durable with the store's next flush to its
/// tables. An entry's changes, its log id and its membership are one batch, so after a crash all keyspaces are as of one entry, and
/// openraft applies the later entries again.
///
/// The directory has one state, at most one snapshot, and the file `current` with their names. A new snapshot, or an installed one,
/// becomes current when that file is replaced; everything that it does not name is removed immediately, or by the next open. A
/// snapshot shares the files of the tables with the state until these are compacted.
///
/// A state whose tables are damaged can be replaced by another node's, with log and vote as they are: see
/// [`repair`](RaftStore::repair).
pub struct RaftStore<C: RaftTypeConfig, A> {
    inner: Arc<Inner<C>>,
    app: Arc<A>,
}

struct Inner<C: RaftTypeConfig> {
    engine: Engine,
    dir: PathBuf,
    options: Options,
    /// The names of the program's keyspaces.
    names: Vec<String>,
    /// Directories that are in use, by their numbers.
    directories: Mutex<Directories>,
    /// Held while the file `current` is replaced.
    changing: futures_util::lock::Mutex<()>,
    /// Held while entries are applied, and while the state is repaired.
    applying: futures_util::lock::Mutex<()>,
    open: Mutex<StoreState<C>>,
    failed: OnceLock<Error>,
}

#[derive(Default)]
struct Directories {
    next: u64,
    held: BTreeMap<u64, Weak<HeldDirectory>>,
}

/// The open state with its snapshot.
struct StoreState<C: RaftTypeConfig> {
    state: OpenState<C>,
    current: Current<C>,
    snapshot: Option<RaftSnapshot>,
    /// Whether entries are counted without effect, until another state is installed.
    is_damaged: bool,
    /// The directory that `current` names, while the open state is an empty one in its place.
    named: Option<Arc<HeldDirectory>>,
}

struct OpenState<C: RaftTypeConfig> {
    /// Its directory.
    held: Arc<HeldDirectory>,
    store: Store,
    keyspaces: Arc<[Keyspace]>,
    own: Keyspace,
    applied: Option<LogIdOf<C>>,
    membership: StoredMembershipOf<C>,
}

impl<C: RaftTypeConfig> Clone for OpenState<C> {
    fn clone(&self) -> OpenState<C> {
        OpenState {
            held: self.held.clone(),
            store: self.store.clone(),
            keyspaces: self.keyspaces.clone(),
            own: self.own.clone(),
            applied: self.applied.clone(),
            membership: self.membership.clone(),
        }
    }
}

/// The prefix of a directory's name is its kind.
const STATE: &str = "state";
const SNAPSHOT: &str = "snapshot";
const RECEIVING: &str = "receiving";

fn path_of(dir: &Path, kind: &str, number: u64) -> PathBuf {
    dir.join(format!("{kind}-{number:08}"))
}

/// Returns the number of a directory with this name, also of an unfinished checkpoint.
fn number_of(name: &str) -> Option<u64> {
    let (kind, rest) = name.split_once('-')?;
    let is_own = [STATE, SNAPSHOT, RECEIVING].contains(&kind);
    rest.trim_end_matches(".unfinished").parse().ok().filter(|_| is_own)
}

impl<C: RaftTypeConfig, A: Apply<C>> RaftStore<C, A> {
    /// Opens the state machine in a directory, which is made if it does not exist. `options` are those of the store in it.
    ///
    /// Leftovers of snapshots that a crash interrupted, while they were built, received or installed, are removed. The state is
    /// as of the last flush before the crash, and openraft applies the later entries again.
    ///
    /// # Errors
    /// - [`ErrorKind::Foreign`] if the directory holds something else.
    /// - [`ErrorKind::Corruption`] if it is damaged.
    /// - [`ErrorKind::InvalidInput`] for names of keyspaces that are not allowed, or options out of range.
    /// - [`ErrorKind::Io`] with the store's error as its source, such as that it is open elsewhere.
    pub async fn open(
        engine: &Engine,
        dir: impl AsRef<Path>,
        options: Options,
        app: A,
    ) -> Result<RaftStore<C, A>> {
        RaftStore::open_with(engine, dir.as_ref(), options, app, false).await
    }

    /// Opens the state machine of a node whose state cannot be opened, as its tables are damaged
    /// ([`Error::is_damage`](crate::Error::is_damage)): with an empty state in its place, until [`repair`](RaftStore::repair)
    /// brings another node's state. Do not read it. openraft votes and appends meanwhile; entries are counted, and change
    /// nothing.
    ///
    /// The damaged state stays on the disk until then, and the next open finds it.
    ///
    /// # Errors
    /// Those of [`open`](RaftStore::open).
    pub async fn open_damaged(
        engine: &Engine,
        dir: impl AsRef<Path>,
        options: Options,
        app: A,
    ) -> Result<RaftStore<C, A>> {
        RaftStore::open_with(engine, dir.as_ref(), options, app, true).await
    }

    async fn open_with(
        engine: &Engine,
        dir: &Path,
        options: Options,
        app: A,
        is_damaged: bool,
    ) -> Result<RaftStore<C, A>> {
        let dir = dir.to_path_buf();
        let names = app.keyspaces();
        if names.iter().any(|name| name == OWN) {
            let text = format!("the keyspace {OWN:?} is this crate's own: choose another name");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let found = Current::<C>::read(engine, &dir).await?;
        if found.is_none() {
            check_new(engine, &dir).await?;
        }
        let number = found.as_ref().map_or(0, |current| current.state);
        let mut directories = Directories::default();
        let (mut held, mut named) = (directories.hold(&dir, STATE, number), None);
        if is_damaged && found.is_some() {
            for entry in engine.read_dir(&dir).await? {
                directories.pass(entry.name().to_str().and_then(number_of));
            }
            let free = directories.next;
            named = Some(std::mem::replace(&mut held, directories.hold(&dir, STATE, free)));
        }
        // Makes the directories durable as well.
        let create = options.clone().create(found.is_none() || named.is_some());
        let mut state = open_state::<C>(engine, held, create, &names).await?;
        if named.is_some()
            && let Some(Current { snapshot: Some((_, meta)), .. }) = &found
        {
            // The log may start behind it.
            (state.applied, state.membership) = (meta.last_log_id.clone(), meta.last_membership.clone());
        }
        let current = match found {
            Some(current) => current,
            None => {
                let current = Current { state: number, snapshot: None };
                current.write(engine, &dir).await?;
                current
            }
        };
        let mut snapshot = None;
        if let Some((number, _)) = &current.snapshot {
            let held = directories.hold(&dir, SNAPSHOT, *number);
            snapshot = Some(RaftSnapshot::of(engine, held, false).await?);
        }
        let inner = Inner {
            engine: engine.clone(),
            dir,
            options,
            names,
            directories: Mutex::new(directories),
            changing: futures_util::lock::Mutex::new(()),
            applying: futures_util::lock::Mutex::new(()),
            open: Mutex::new(StoreState { state, current, snapshot, is_damaged: named.is_some(), named }),
            failed: OnceLock::new(),
        };
        let store = RaftStore { inner: Arc::new(inner), app: Arc::new(app) };
        store.inner.sweep().await?;
        store.app.opened(&store.keyspaces()).await.map_err(Error::application)?;
        Ok(store)
    }

    /// Returns the program's keyspaces, in the order of [`Apply::keyspaces`], to read from: they have all entries applied so
    /// far.
    ///
    /// An installed snapshot replaces them: calls on the former keyspaces fail with [`Closed`](forebay_kv::ErrorKind::Closed),
    /// from a moment before the new keyspaces exist. So call this for each request, and if a read fails with `Closed`, call
    /// [`is_replaced`](RaftStore::is_replaced) before a retry.
    pub fn keyspaces(&self) -> Arc<[Keyspace]> {
        self.inner.lock().state.keyspaces.clone()
    }

    /// Waits for the end of a running install, and returns whether [`keyspaces`](RaftStore::keyspaces) then differ from `former`.
    /// Call it when a read of `former` has failed with [`Closed`](forebay_kv::ErrorKind::Closed): after `true` read the new
    /// keyspaces; `false` means that the store was closed, or that the install failed.
    ///
    /// An install closes the old state before it opens the new one, because both would need the memory of two.
    pub async fn is_replaced(&self, former: &Arc<[Keyspace]>) -> bool {
        let _changing = self.inner.changing.lock().await;
        self.inner.check().is_ok() && !Arc::ptr_eq(&self.keyspaces(), former)
    }

    /// Returns the store below, for its counts. Write nothing to it; an installed snapshot replaces it.
    pub fn store(&self) -> Store {
        self.inner.lock().state.store.clone()
    }

    /// Makes all applied entries durable, so that fewer are applied again after a crash. Not needed for correctness.
    ///
    /// # Errors
    /// Those of [`Store::flush`].
    pub async fn flush(&self) -> Result<()> {
        let store = self.store();
        Ok(store.flush().await?)
    }

    /// Starts to receive a snapshot from another node. Any number may be received concurrently.
    ///
    /// # Errors
    /// The system's.
    pub async fn receive_snapshot(&self) -> Result<SnapshotReceiver> {
        self.inner.sweep().await?;
        let held = self.inner.new_directory(RECEIVING);
        SnapshotReceiver::new(&self.inner.engine, held).await
    }

    /// Replaces the state by another node's, with log and vote as they are. No entry is applied from before the call of `receive`
    /// until the new state is in place. Entries in the new state are not applied again, and their clients get no response.
    ///
    /// `receive` has the log id of the last entry that was applied or counted here, and returns a snapshot that has at least this
    /// entry and whose entries are committed. `check` reads the new state before it becomes current. After an error of `check` or
    /// of the install no state is open, and the node ends; the next open finds the former state.
    ///
    /// # Errors
    /// The error of `receive`, and [`ErrorKind::BadSnapshot`] for a snapshot with fewer entries: nothing is changed then;
    /// [`ErrorKind::Application`] with the error of `check`; the system's.
    pub async fn repair<E, R, F>(
        &self,
        receive: impl FnOnce(Option<LogIdOf<C>>) -> R,
        check: impl FnOnce(Arc<[Keyspace]>) -> F,
    ) -> Result<(), E>
    where
        E: From<Error>,
        R: Future<Output = Result<SnapshotOf<C, RaftSnapshot>, E>>,
        F: Future<Output = io::Result<()>>,
    {
        let _applying = self.inner.applying.lock().await;
        self.inner.check()?;
        let applied = self.inner.lock().state.applied.clone();
        let received = receive(applied.clone()).await;
        if received.is_err() {
            // A failure leaves it for the next one.
            let _ = self.inner.sweep().await;
        }
        let SnapshotOf::<C, RaftSnapshot> { meta, snapshot } = received?;
        if meta.last_log_id < applied {
            let text = format!("it has the entries up to {:?} and not to {applied:?}", meta.last_log_id);
            return Err(Error::at(ErrorKind::BadSnapshot, &self.inner.dir, text).into());
        }
        Ok(self.inner.install(&meta, snapshot, &*self.app, check).await?)
    }

    /// Closes the store for all handles, with all applied entries durable. It can be opened again when the future resolves.
    ///
    /// # Errors
    /// The failure that made it read-only. It is closed all the same.
    pub async fn close(&self) -> Result<()> {
        let store = self.store();
        Ok(store.close().await?)
    }

    /// Applies entries. If the state is damaged it only counts them: the state that replaces it has them.
    async fn apply_ready(&self, mut entries: Vec<EntryResponder<C>>, batch: &mut Batch) -> Result<()> {
        let _applying = self.inner.applying.lock().await;
        self.inner.check()?;
        let (state, is_damaged) = {
            let open = self.inner.lock();
            (open.state.clone(), open.is_damaged)
        };
        // openraft has those applied again that a repair has brought.
        if let Some(applied) = &state.applied {
            entries.retain(|(entry, _)| entry.log_id_parts().1 > applied.index);
        }
        let Some(last) = entries.last().map(|(entry, _)| log_id::<C>(entry)) else { return Ok(()) };
        let membership = entries.iter().rev().find_map(|(entry, _)| {
            let membership = entry.get_membership()?;
            Some(StoredMembershipOf::<C>::new(Some(log_id::<C>(entry)), membership))
        });
        if !is_damaged {
            match self.apply_to(&state, entries, batch).await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_damage() && self.app.damaged(&error, &state.membership) => {}
                Err(error) => return Err(self.inner.fail(error)),
            }
        }
        let mut open = self.inner.lock();
        (open.is_damaged, open.state.applied) = (true, Some(last));
        if let Some(membership) = membership {
            open.state.membership = membership;
        }
        Ok(())
    }

    async fn apply_to(
        &self,
        state: &OpenState<C>,
        entries: Vec<EntryResponder<C>>,
        batch: &mut Batch,
    ) -> Result<()> {
        let (entries, responders): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
        self.app.prepare(&entries, &state.keyspaces).await.map_err(Error::application)?;
        for (entry, responder) in entries.into_iter().zip(responders) {
            let response = self.apply_entry(state, entry, batch).await?;
            if let Some(responder) = responder {
                responder.send(response);
            }
        }
        Ok(())
    }

    async fn apply_entry(&self, state: &OpenState<C>, entry: C::Entry, batch: &mut Batch) -> Result<C::R> {
        batch.clear();
        let (id, membership) = (log_id::<C>(&entry), entry.get_membership());
        let response = self.app.apply(entry, &state.keyspaces, batch).await.map_err(Error::application)?;
        if is_broken!(AppliedBehindData) {
            state.store.write(batch).await?;
            batch.clear();
            // Another task may have its turn in between, such as one that flushes.
            let mut turns = 0;
            std::future::poll_fn(|context| {
                turns += 1;
                context.waker().wake_by_ref();
                if turns > 3 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
        }
        batch.put(&state.own, APPLIED, encode("the applied log id", &id)?);
        let membership =
            membership.map(|membership| StoredMembershipOf::<C>::new(Some(id.clone()), membership));
        if let Some(membership) = &membership {
            batch.put(&state.own, MEMBERSHIP, encode("a membership", membership)?);
        }
        // Clients' reads may have used up the memory. The entry is committed, and memory will become free.
        until_memory::<C, _, _>(|| state.store.write(batch)).await?;
        self.app.applied(&id);
        let mut open = self.inner.lock();
        open.state.applied = Some(id);
        if let Some(membership) = membership {
            open.state.membership = membership;
        }
        Ok(response)
    }
}

/// Checks a directory without the file `current`: at most the first open was interrupted there. Otherwise the file is lost, and
/// without it the state would count as left over.
async fn check_new(engine: &Engine, dir: &Path) -> Result<()> {
    let entries = match engine.read_dir(dir).await {
        Err(error) if error.kind() == forebay::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    if entries.iter().filter_map(|entry| entry.name().to_str().and_then(number_of)).all(|number| number == 0)
    {
        return Ok(());
    }
    let text = "the file current is gone, which names the state: bring it back, or remove the directory and let the node catch up";
    Err(Error::at(ErrorKind::Corruption, dir, text))
}

/// Opens the store of a state.
async fn open_state<C: RaftTypeConfig>(
    engine: &Engine,
    held: Arc<HeldDirectory>,
    options: Options,
    names: &[String],
) -> Result<OpenState<C>> {
    let store = Store::open(engine, &held.path, options).await?;
    let mut keyspaces = Vec::with_capacity(names.len());
    for name in names {
        keyspaces.push(store.unlogged_keyspace(name).await?);
    }
    let own = store.unlogged_keyspace(OWN).await?;
    let applied = own.get(APPLIED).await?;
    let membership = own.get(MEMBERSHIP).await?;
    let (applied, membership) = decode_applied::<C>(applied.as_deref(), membership.as_deref())?;
    Ok(OpenState { held, store, keyspaces: keyspaces.into(), own, applied, membership })
}

fn decode_applied<C: RaftTypeConfig>(
    applied: Option<&[u8]>,
    membership: Option<&[u8]>,
) -> Result<(Option<LogIdOf<C>>, StoredMembershipOf<C>)> {
    let applied = applied.map(|bytes| decode("the applied log id", bytes)).transpose()?;
    let membership = membership.map(|bytes| decode("the applied membership", bytes)).transpose()?;
    Ok((applied, membership.unwrap_or_default()))
}

impl Directories {
    /// Notes the number of a directory that is there.
    fn pass(&mut self, number: Option<u64>) {
        self.next = self.next.max(number.map_or(0, |number| number + 1));
    }

    /// Notes a directory that is in use while the returned value lives.
    fn hold(&mut self, dir: &Path, kind: &str, number: u64) -> Arc<HeldDirectory> {
        self.next = self.next.max(number + 1);
        let held = Arc::new(HeldDirectory { path: path_of(dir, kind, number) });
        self.held.insert(number, Arc::downgrade(&held));
        held
    }
}

impl<C: RaftTypeConfig> Inner<C> {
    fn lock(&self) -> MutexGuard<'_, StoreState<C>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn directories(&self) -> MutexGuard<'_, Directories> {
        self.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> Result<()> {
        self.failed.get().map_or(Ok(()), |error| Err(error.poisoned()))
    }

    /// Notes a failure after which the state in memory is not known.
    fn fail(&self, error: Error) -> Error {
        self.failed.get_or_init(|| error.clone());
        error
    }

    /// Returns the path of a new directory, which is not made yet.
    fn new_directory(&self, kind: &str) -> Arc<HeldDirectory> {
        let mut directories = self.directories();
        let number = directories.next;
        directories.hold(&self.dir, kind, number)
    }

    fn number_of(&self, held: &HeldDirectory) -> u64 {
        let name = held.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        number_of(name).unwrap_or_default()
    }

    /// Removes the directories that are not in use, and notes the highest number. The open state and its snapshot hold theirs.
    async fn sweep(&self) -> Result<()> {
        for entry in self.engine.read_dir(&self.dir).await? {
            let Some(number) = entry.name().to_str().and_then(number_of) else { continue };
            let is_held = {
                let mut directories = self.directories();
                directories.pass(Some(number));
                directories.held.retain(|_, held| held.strong_count() > 0);
                directories.held.contains_key(&number)
            };
            if !is_held {
                // What cannot be removed now is tried again by the next sweep.
                let _ = tree::remove(&self.engine, &self.dir.join(entry.name())).await;
            }
        }
        Ok(())
    }

    async fn build(&self) -> Result<SnapshotOf<C, RaftSnapshot>> {
        self.check()?;
        let _changing = self.changing.lock().await;
        let (store, own, is_damaged) = {
            let open = self.lock();
            (open.state.store.clone(), open.state.own.clone(), open.is_damaged)
        };
        if is_damaged {
            let text = "there is no snapshot of a damaged state: have it repaired";
            return Err(Error::at(ErrorKind::Corruption, &self.dir, text));
        }
        let held = self.new_directory(SNAPSHOT);
        // Entries are applied meanwhile: the checkpoint's values say up to which entry.
        let own_keys = [APPLIED, MEMBERSHIP];
        let built = until_memory::<C, _, _>(|| store.checkpoint_and_get(&held.path, &own, own_keys));
        let values = built.await?;
        let value = |at: usize| values.get(at).and_then(Option::as_deref);
        let (last_log_id, last_membership) = decode_applied::<C>(value(0), value(1))?;
        let meta = SnapshotMetaOf::<C> { last_log_id, last_membership };
        let number = self.number_of(&held);
        let snapshot = RaftSnapshot::of(&self.engine, held, false).await?;
        let state = self.lock().current.state;
        self.replace(state, number, &meta, &snapshot).await?;
        self.sweep().await?;
        Ok(SnapshotOf::<C, RaftSnapshot> { meta, snapshot })
    }

    /// Makes a state and a snapshot current.
    async fn replace(
        &self,
        state: u64,
        number: u64,
        meta: &SnapshotMetaOf<C>,
        snapshot: &RaftSnapshot,
    ) -> Result<()> {
        let current = Current { state, snapshot: Some((number, meta.clone())) };
        // Whether the old or the new one is on disk is not known after a failure.
        current.write(&self.engine, &self.dir).await.map_err(|error| self.fail(error))?;
        let mut open = self.lock();
        (open.current, open.snapshot) = (current, Some(snapshot.clone()));
        Ok(())
    }

    /// Returns a snapshot that was received by this store: `snapshot`, or a copy of it.
    async fn received(&self, snapshot: RaftSnapshot) -> Result<RaftSnapshot> {
        if snapshot.is_received && snapshot.held.path.parent() == Some(&*self.dir) {
            return Ok(snapshot);
        }
        let (mut reader, held) = (snapshot.reader(), self.new_directory(RECEIVING));
        let mut receiver = SnapshotReceiver::new(&self.engine, held).await?;
        while let Some(part) = reader.next().await? {
            receiver.write(&part).await?;
        }
        receiver.finish().await
    }

    /// Replaces the state by a snapshot. Until the file `current` is replaced, a crash leaves the old state.
    async fn install<F: Future<Output = io::Result<()>>>(
        &self,
        meta: &SnapshotMetaOf<C>,
        snapshot: RaftSnapshot,
        app: &impl Apply<C>,
        check: impl FnOnce(Arc<[Keyspace]>) -> F,
    ) -> Result<()> {
        self.check()?;
        let _changing = self.changing.lock().await;
        let received = self.received(snapshot).await?;
        let state = self.new_directory(STATE);
        let number = self.number_of(&state);
        if is_broken!(HalfInstalled) {
            let current = Current::<C> { state: number, snapshot: None };
            current.write(&self.engine, &self.dir).await?;
        }
        self.engine.rename(&received.held.path, &state.path).await?;
        // Two open stores would need twice the memory. From here on a failure leaves no store open.
        let old = self.lock().state.store.clone();
        let _ = old.close().await;
        let installed = self.open_installed(meta, state).await.map_err(|error| self.fail(error))?;
        let checked = check(installed.keyspaces.clone()).await;
        checked.map_err(|error| self.fail(Error::application(error)))?;
        let built = self.new_directory(SNAPSHOT);
        let snapshot_number = self.number_of(&built);
        let checkpoint = installed.store.checkpoint(&built.path).await;
        checkpoint.map_err(|error| self.fail(error.into()))?;
        let snapshot =
            RaftSnapshot::of(&self.engine, built, false).await.map_err(|error| self.fail(error))?;
        self.replace(number, snapshot_number, meta, &snapshot).await?;
        // Others read it once the state machine knows it. A failure leaves what is in memory of the old one.
        let opened = app.opened(&installed.keyspaces).await.map_err(Error::application);
        // The former state is named no more, and nothing holds it.
        {
            let mut open = self.lock();
            (open.state, open.is_damaged, open.named) = (installed, false, None);
        }
        opened.map_err(|error| self.fail(error))?;
        self.sweep().await
    }

    async fn open_installed(
        &self,
        meta: &SnapshotMetaOf<C>,
        state: Arc<HeldDirectory>,
    ) -> Result<OpenState<C>> {
        let options = self.options.clone().create(false);
        let installed = open_state::<C>(&self.engine, state, options, &self.names).await?;
        if installed.applied == meta.last_log_id {
            return Ok(installed);
        }
        let text = format!(
            "the snapshot has the entries up to {:?}, and was said to have those up to {:?}",
            installed.applied, meta.last_log_id
        );
        Err(Error::at(ErrorKind::BadSnapshot, &installed.held.path, text))
    }
}

impl<C: RaftTypeConfig, A: Apply<C>> RaftStateMachine<C> for RaftStore<C, A> {
    type SnapshotData = RaftSnapshot;
    type SnapshotBuilder = RaftStore<C, A>;

    async fn applied_state(&mut self) -> io::Result<(Option<LogIdOf<C>>, StoredMembershipOf<C>)> {
        self.inner.check()?;
        let open = self.inner.lock();
        Ok((open.state.applied.clone(), open.state.membership.clone()))
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<C>>> + Unpin + OptionalSend,
    {
        self.inner.check()?;
        let (mut entries, mut batch) = (entries.fuse(), Batch::new());
        while let Some(first) = entries.next().await {
            let (mut ready, mut bytes, mut next) = (Vec::new(), 0_usize, Some(first));
            while let Some(entry) = next.take() {
                let entry = entry?;
                bytes = bytes.saturating_add(self.app.entry_bytes(&entry.0));
                ready.push(entry);
                if ready.len() < PREPARED && bytes < PREPARED_BYTES {
                    next = entries.next().now_or_never().flatten();
                }
            }
            self.apply_ready(ready, &mut batch).await?;
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, is_forced: bool) -> Option<RaftStore<C, A>> {
        let is_damaged = self.inner.lock().is_damaged;
        (is_forced || !is_damaged).then(|| self.clone())
    }

    async fn get_snapshot_builder(&mut self) -> RaftStore<C, A> {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMetaOf<C>, snapshot: RaftSnapshot) -> io::Result<()> {
        let _applying = self.inner.applying.lock().await;
        self.inner.check()?;
        let (is_damaged, applied) = {
            let open = self.inner.lock();
            (open.is_damaged, open.state.applied.clone())
        };
        // A repair that this install has waited for is newer: openraft does not know of the entries behind this snapshot.
        if !is_damaged && meta.last_log_id < applied {
            return Ok(());
        }
        Ok(self.inner.install(meta, snapshot, &*self.app, |_| ready(Ok(()))).await?)
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<C, RaftSnapshot>>> {
        self.inner.check()?;
        let open = self.inner.lock();
        let (Some((_, meta)), Some(snapshot)) = (&open.current.snapshot, &open.snapshot) else {
            return Ok(None);
        };
        Ok(Some(SnapshotOf::<C, RaftSnapshot> { meta: meta.clone(), snapshot: snapshot.clone() }))
    }
}

impl<C: RaftTypeConfig, A: Apply<C>> RaftSnapshotBuilder<C> for RaftStore<C, A> {
    type SnapshotData = RaftSnapshot;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<C, RaftSnapshot>> {
        let (error, is_repaired) = match self.inner.build().await {
            // The program knows.
            Err(error) if self.inner.lock().is_damaged => (error, true),
            Err(error) if error.is_damage() => {
                let membership = self.inner.lock().state.membership.clone();
                let is_repaired = self.app.damaged(&error, &membership);
                (error, is_repaired)
            }
            built => return Ok(built?),
        };
        // An error would end the node. The existing snapshot is as good until the state is repaired.
        match self.get_current_snapshot().await? {
            Some(current) if is_repaired => Ok(current),
            _ => Err(error.into()),
        }
    }
}

impl<C: RaftTypeConfig, A> Clone for RaftStore<C, A> {
    fn clone(&self) -> RaftStore<C, A> {
        RaftStore { inner: self.inner.clone(), app: self.app.clone() }
    }
}

forebay::_debug_parts!([C: RaftTypeConfig, A] RaftStore<C, A>, |raft_store| dir: raft_store.inner.dir);
