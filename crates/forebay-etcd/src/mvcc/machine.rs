//! [`Machine`]: the state machine.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_kv::{Batch, Keyspace};
use forebay_raft::Apply;
use openraft::EntryPayload;
use openraft::alias::{EntryOf, LogIdOf};

use super::apply::{Effects, apply};
use super::codec::State;
use super::reader::Reader;
use super::recent::Recent;
use super::{KEYSPACES, Limits, clean, view};
use crate::observer::{Applied, Observer, Opened};
use crate::proto::peer::Outcome;
use crate::types::Types;

/// The state machine: how entries change the keyspaces. It has the numbers of the state in memory.
pub(crate) struct Machine {
    observer: Arc<dyn Observer>,
    limits: Limits,
    memory: Mutex<Memory>,
    recent: Mutex<Recent>,
}

#[derive(Default)]
struct Memory {
    state: State,
    /// Members and types.
    alarms: BTreeSet<(u64, i32)>,
    /// The changes of the entry that is being written.
    pending: Option<Applied>,
}

impl Machine {
    /// Returns a machine whose entries the observer follows. It says to the observer when the limit of space is reached, but
    /// applies entries all the same.
    pub(crate) fn new(observer: Arc<dyn Observer>, limits: Limits) -> Machine {
        let recent = Mutex::new(Recent::new(limits.recent_bytes));
        Machine { observer, limits, memory: Mutex::default(), recent }
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
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
        let state = reader.state().await?;
        let alarms = view::alarms(&reader).await?.into_iter().collect();
        let leases = view::leases(&reader).await?;
        *self.memory() = Memory { state, alarms, pending: None };
        *self.recent() = Recent::new(self.limits.recent_bytes);
        self.observer.opened(Opened {
            revision: state.revision,
            compacted: state.compacted,
            leases,
            used_bytes: state.used_bytes,
            is_cleaning: state.is_cleaning(),
            is_full: self.is_full(&state),
        });
        Ok(())
    }

    async fn apply(
        &self,
        entry: EntryOf<Types>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<Outcome> {
        let reader = Reader::new(keyspaces, None)?;
        let change = match entry.payload {
            EntryPayload::Normal(command) => Some(command.change()),
            EntryPayload::Blank | EntryPayload::Membership(_) => None,
        };
        let before = {
            let mut memory = self.memory();
            memory.pending = None;
            memory.state
        };
        let mut effects = Effects { state: before, ..Effects::default() };
        if let Some(change) = change {
            let alarms = self.memory().alarms.clone();
            effects = apply(reader, &self.recent, batch, before, &alarms, change).await?;
        }
        let step = if effects.compacted.is_some() { clean::LARGE } else { clean::SMALL };
        clean::clean(&reader, &mut effects.state, batch, &step).await?;
        let Effects { state, result, events, granted, revoked, compacted, alarm } = effects;
        if state != before {
            batch.put(reader.keyspace(super::reader::Part::Meta), super::codec::STATE, state.encode());
        }
        self.recent().apply(state.revision, &events);
        let applied = Applied {
            revision: state.revision,
            events,
            granted,
            revoked,
            compacted,
            used_bytes: state.used_bytes,
            is_cleaning: state.is_cleaning(),
            is_full: self.is_full(&state),
        };
        let mut memory = self.memory();
        memory.state = state;
        match alarm {
            Some((alarm, true)) => drop(memory.alarms.insert(alarm)),
            Some((alarm, false)) => drop(memory.alarms.remove(&alarm)),
            None => {}
        }
        memory.pending = applied.is_change().then_some(applied);
        Ok(Outcome { revision: state.revision, result: Some(result) })
    }

    fn applied(&self, _: &LogIdOf<Types>) {
        let pending = self.memory().pending.take();
        if let Some(applied) = pending {
            self.observer.applied(applied);
        }
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").finish_non_exhaustive()
    }
}
