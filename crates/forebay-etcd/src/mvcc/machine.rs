//! [`Machine`]: the state machine.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forebay_kv::{Batch, Keyspace};
use forebay_raft::Apply;
use openraft::EntryPayload;
use openraft::alias::{EntryOf, LogIdOf, StoredMembershipOf};

use super::ages::{self, Ages};
use super::apply::{Basis, Effects, apply, keys_named};
use super::codec::{self, State};
use super::counts::{Counts, EntryCost};
use super::damage::{Damage, DamageRecord, is_repaired};
use super::reader::{Part, Reader};
use super::recent::Recent;
use super::sums::{self, CHECKPOINTS_KEPT, Checkpoint};
use super::users::{self, UsersChange};
use super::{KEYSPACES, Limits, clean, count, view};
use crate::accounts::{Auth, Token};
use crate::observer::{EntryChanges, InitialState, Observer};
use crate::operation::Operation;
use crate::proto::peer::command::Change;
use crate::proto::peer::outcome::Result as Response;
use crate::proto::peer::{Author, Outcome};
use crate::types::Types;
use crate::version::Formats;

/// The state machine: how entries change the keyspaces. It has the numbers of the state in memory.
pub(crate) struct Machine {
    observer: Arc<dyn Observer>,
    limits: Limits,
    memory: Mutex<Memory>,
    recent: Mutex<Recent>,
    /// Index of the last entry that was applied since the start.
    applied: Arc<AtomicU64>,
    /// The format of the state, and the latest one that is known here.
    format: Arc<AtomicU64>,
    format_max: u64,
    damage: Arc<DamageRecord>,
    counts: Arc<Counts>,
}

/// A change, and who asks for it.
type Proposal = (Change, Option<Author>);

#[derive(Default)]
struct Memory {
    state: State,
    /// Whether the numbers are others than in the keyspaces until the next entry.
    is_counted_anew: bool,
    /// From the first to the last.
    checkpoints: VecDeque<Checkpoint>,
    /// Members and types.
    alarms: Arc<BTreeSet<(u64, i32)>>,
    auth: Arc<Auth>,
    /// The changes of the entry that is being written, and its cost so far.
    pending: Option<EntryChanges>,
    cost: Option<EntryCost>,
    /// Start of the compaction under way on this member.
    compaction: Option<Instant>,
    /// The changes of the next entries, by their indexes.
    prepared: VecDeque<(u64, Option<Proposal>)>,
}

impl Machine {
    /// Returns a machine whose entries the observer follows. It says to the observer when the limit of space is reached, but
    /// applies entries all the same.
    pub(crate) fn new(observer: Arc<dyn Observer>, limits: Limits) -> Machine {
        let recent = Mutex::new(Recent::new(limits.recent_bytes));
        Machine {
            observer,
            limits,
            memory: Mutex::default(),
            recent,
            applied: Arc::default(),
            format: Arc::default(),
            format_max: Formats::OWN.own,
            damage: Arc::default(),
            counts: Arc::default(),
        }
    }

    /// Notes the damage that entries meet there.
    pub(crate) fn with_damage(self, damage: Arc<DamageRecord>) -> Machine {
        Machine { damage, ..self }
    }

    /// Counts entries there.
    pub(crate) fn with_counts(self, counts: Arc<Counts>) -> Machine {
        Machine { counts, ..self }
    }

    /// Sets the highest known format of the state.
    pub(crate) fn with_format_max(self, format_max: u64) -> Machine {
        Machine { format_max, ..self }
    }

    /// Returns the format of the state; see [`Formats`].
    pub(crate) fn format(&self) -> Arc<AtomicU64> {
        self.format.clone()
    }

    /// Notes the state's format. A member that does not know it ends, for it would not do as the others.
    fn set_format(&self, format: u64) -> io::Result<()> {
        if format > self.format_max {
            return Err(io::Error::other(format!(
                "the state has format {format}, and this version knows those up to {}: start a later version",
                self.format_max
            )));
        }
        self.format.store(format, Ordering::Release);
        Ok(())
    }

    /// Returns the index of the last entry that was applied since the start. A caller that has the outcome of an entry finds it
    /// here; Raft's own figures may lag.
    pub(crate) fn applied_index(&self) -> Arc<AtomicU64> {
        self.applied.clone()
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a checkpoint, and removes those that are too many.
    fn checkpoint(&self, index: u64, state: &State, meta: &Keyspace, batch: &mut Batch) {
        let Some(sums) = &state.sums else { return };
        let State { revision, compacted, .. } = *state;
        let checkpoint = Checkpoint { index, revision, compacted, sum: sums.compared() };
        let mut memory = self.memory();
        while memory.checkpoints.len() >= CHECKPOINTS_KEPT
            && let Some(gone) = memory.checkpoints.pop_front()
        {
            batch.delete(meta, codec::checkpoint_key(gone.index));
        }
        batch.put(meta, codec::checkpoint_key(index), checkpoint.encode());
        memory.checkpoints.push_back(checkpoint);
    }

    fn is_full(&self, state: &State) -> bool {
        self.limits.space_bytes != 0 && state.used_bytes >= self.limits.space_bytes
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Apply<Types> for Machine {
    fn keyspaces(&self) -> Vec<String> {
        KEYSPACES.map(str::to_owned).to_vec()
    }

    async fn opened(&self, keyspaces: &[Keyspace]) -> io::Result<()> {
        let reader = Reader::new(keyspaces, None)?;
        let (mut state, format) = (reader.state().await?, reader.format().await?);
        let format = format.unwrap_or(Formats::FIRST);
        self.set_format(format)?;
        let is_counted_anew = state.sums.is_none();
        if is_counted_anew {
            tracing::info!("an earlier build made the state, or it was restored: its entries are counted");
            let (used_bytes, sums) = count::count(&reader, state.cleaned, format).await?;
            (state.used_bytes, state.sums) = (used_bytes, Some(sums));
        }
        let alarms = Arc::new(view::alarms(&reader).await?.into_iter().collect());
        let leases = view::leases(&reader).await?;
        let checkpoints = view::checkpoints(&reader).await?.into();
        let auth = Arc::new(users::load(&reader).await?);
        let kept = auth.clone();
        *self.memory() =
            Memory { state, is_counted_anew, checkpoints, alarms, auth: kept, ..Memory::default() };
        *self.recent() = Recent::new(self.limits.recent_bytes);
        self.damage.apply_entries();
        self.observer.opened(InitialState {
            revision: state.revision,
            compacted: state.compacted,
            leases,
            auth,
            used_bytes: state.used_bytes,
            is_unfinished: state.is_unfinished(),
            cleaned: state.cleaned.main,
            is_full: self.is_full(&state),
        });
        Ok(())
    }

    fn entry_bytes(&self, entry: &EntryOf<Types>) -> usize {
        match &entry.payload {
            EntryPayload::Normal(command) => command.0.len(),
            EntryPayload::Blank | EntryPayload::Membership(_) => 0,
        }
    }

    /// Decodes the entries, and reads the values that they read or replace, concurrently, but at most as many as are kept of them.
    async fn prepare(&self, entries: &[EntryOf<Types>], keyspaces: &[Keyspace]) -> io::Result<()> {
        let mut keys = Vec::new();
        let mut prepared = VecDeque::with_capacity(entries.len());
        for entry in entries {
            let change = change_of(entry);
            if let Some((change, _)) = &change {
                keys_named(change, &mut keys);
            }
            prepared.push_back((entry.log_id.index, change));
        }
        if keys.len() > 1 {
            Reader::new(keyspaces, None)?.read_ahead(&self.recent, keys).await?;
        }
        self.memory().prepared = prepared;
        Ok(())
    }

    async fn apply(
        &self,
        entry: EntryOf<Types>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<Outcome> {
        let (reader, begun) = (Reader::new(keyspaces, None)?, Instant::now());
        let (index, meta) = (entry.log_id.index, reader.keyspace(Part::Meta));
        let (before, is_counted_anew, alarms, auth, prepared) = {
            let mut memory = self.memory();
            (memory.pending, memory.cost) = (None, None);
            let (alarms, auth) = (memory.alarms.clone(), memory.auth.clone());
            (memory.state, memory.is_counted_anew, alarms, auth, memory.prepared.pop_front())
        };
        let prepared = prepared.filter(|(of, _)| *of == index);
        let change = prepared.map_or_else(|| change_of(&entry), |(_, change)| change);
        let operation = change.as_ref().and_then(|(change, _)| Operation::of(change));
        let mut effects = Effects { state: before, ..Effects::default() };
        if matches!(entry.payload, EntryPayload::Normal(_)) {
            let format = self.format.load(Ordering::Acquire);
            let basis = Basis { state: before, alarms: &alarms, auth: &auth, format };
            effects = apply(reader, &self.recent, batch, &basis, change).await?;
        }
        if effects.is_checkpoint
            || effects.compacted.is_some()
            || sums::is_checkpoint(before.revision, effects.state.revision)
        {
            // Before the step, which removes events from the sums: so each event was in the sums of the compaction that removes it.
            self.checkpoint(index, &effects.state, meta, batch);
        }
        let step = match (effects.compacted, effects.is_clean) {
            (Some(_), _) => clean::LARGE,
            (None, true) => clean::MIDDLE,
            (None, false) => clean::SMALL,
        };
        self.counts.note_removed(clean::clean(&reader, &mut effects.state, batch, &step).await?);
        let step = if effects.is_clean { clean::MIDDLE } else { clean::SMALL };
        ages::age(&reader, &mut effects.state, batch, &step, &effects.replaced).await?;
        let is_step = effects.is_clean && before.is_cleaning();
        let operations = effects.operations;
        let Effects { mut state, result, events, granted, revoked, compacted, alarm, format, users, .. } =
            effects;
        let (auth, token) = match users {
            Some(UsersChange::Auth(auth)) => (Some(auth), None),
            Some(UsersChange::Token(Token { user, text })) => {
                (None, Some(Token { user, text: format!("{text}.{index}") }))
            }
            None => (None, None),
        };
        let raised = format.filter(|format| *format > self.format.load(Ordering::Acquire));
        if let Some(format) = raised {
            self.set_format(format)?;
            if format >= Formats::VALUES_ONCE && state.ages.is_none() {
                state.ages = Some(Ages::new(state.revision));
            }
        }
        let is_written = state != before || is_counted_anew;
        if is_written {
            batch.put(meta, codec::STATE, state.encode());
        }
        // With the first numbers, so that those without it are an earlier build's.
        if raised.is_some() || is_written && (before == State::default() || is_counted_anew) {
            let format = self.format.load(Ordering::Acquire);
            batch.put(meta, codec::FORMAT, codec::encode_format(format));
        }
        self.recent().apply(state.revision, &events);
        let applied = EntryChanges {
            revision: state.revision,
            events,
            granted,
            revoked,
            compacted,
            auth: auth.clone(),
            token,
            used_bytes: state.used_bytes,
            is_unfinished: state.is_unfinished(),
            cleaned: state.cleaned.main,
            is_full: self.is_full(&state),
        };
        let mut memory = self.memory();
        (memory.state, memory.is_counted_anew) = (state, false);
        if compacted.is_some() || before.is_cleaning() {
            let since = *memory.compaction.get_or_insert(begun);
            if !state.is_cleaning() {
                memory.compaction = None;
                self.counts.note_compaction(since.elapsed());
            }
        }
        let is_success = !matches!(result, Response::Refusal(_));
        let committed = Instant::now();
        memory.cost = Some(EntryCost { begun, committed, operation, is_success, operations, is_step });
        if let Some(auth) = auth {
            memory.auth = auth;
        }
        match alarm {
            Some((alarm, true)) => drop(Arc::make_mut(&mut memory.alarms).insert(alarm)),
            Some((alarm, false)) => drop(Arc::make_mut(&mut memory.alarms).remove(&alarm)),
            None => {}
        }
        let is_followed = applied.is_change() || state.cleaned != before.cleaned || state.ages != before.ages;
        memory.pending = is_followed.then_some(applied);
        Ok(Outcome { revision: state.revision, result: Some(result) })
    }

    fn damaged(&self, error: &forebay_raft::Error, membership: &StoredMembershipOf<Types>) -> bool {
        let is_repaired = is_repaired(membership);
        if is_repaired {
            self.damage.count_entries();
        }
        let cause = std::error::Error::source(error);
        let text = cause.map_or_else(|| error.to_string(), |cause| cause.to_string());
        self.damage.set(Some(Damage::Tables(text)));
        is_repaired
    }

    fn applied(&self, id: &LogIdOf<Types>) {
        self.applied.store(id.index, Ordering::Release);
        let (pending, cost) = {
            let mut memory = self.memory();
            (memory.pending.take(), memory.cost.take())
        };
        if let Some(cost) = cost {
            self.counts.note_applied(&cost);
        }
        if let Some(applied) = pending {
            self.observer.applied(applied);
        }
    }
}

/// Returns the change of an entry with its author; `None` without a change, or with a change that this version does not know.
fn change_of(entry: &EntryOf<Types>) -> Option<Proposal> {
    match &entry.payload {
        EntryPayload::Normal(command) => command.decode(),
        EntryPayload::Blank | EntryPayload::Membership(_) => None,
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").finish_non_exhaustive()
    }
}
