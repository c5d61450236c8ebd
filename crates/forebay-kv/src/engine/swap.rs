//! Compare and set, repeated until no other write commits between the comparison and the commit.

use std::sync::Arc;

use super::commit::{Ready, Verdict};
use super::shared::{Commit, StoreCore};
use crate::error::{Error, Result};
use crate::value::Value;
use crate::view::View;

/// The outcome of a [`compare_and_set`](crate::Keyspace::compare_and_set).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapOutcome {
    /// The key had the expected value and has the new one now.
    Done,
    /// The key had another value, which is durable if its keyspace is logged, and nothing was changed.
    Not {
        /// The value found, if any.
        current: Option<Value>,
    },
}

/// The newest version of a key when it was read, durable or not.
struct NewestVersion {
    /// The version's record; 0 if the version is in a table or does not exist.
    lsn: u64,
    /// The newest record that the search covered.
    upto: u64,
    /// The number of bulk loads at that time.
    loads: u64,
    value: Option<Value>,
}

pub(crate) async fn compare_and_set(
    shared: &Arc<StoreCore>,
    keyspace: u32,
    key: &[u8],
    expected: Option<&[u8]>,
    ready: Ready,
) -> Result<SwapOutcome> {
    let mut record = ready;
    loop {
        let seen = look(shared, keyspace, key).await?;
        if seen.value.as_deref() != expected {
            // No caller may learn of a value that a crash could still undo.
            if !shared.is_log_durable(seen.lsn) {
                shared.wal.sync().await.map_err(|error| shared.log_error(error))?;
            }
            return Ok(SwapOutcome::Not { current: seen.value });
        }
        let unchanged = |commit: &Commit| match newest_lsn(commit, keyspace, key) {
            Some(lsn) => lsn == seen.lsn,
            // A version may have been written and flushed to a table since, or been loaded into one.
            None => commit.flushed <= seen.upto && commit.loads == seen.loads,
        };
        match shared.commit_if(record, &unchanged).await? {
            Verdict::Queued(appended) => {
                shared.until_durable(appended).await?;
                return Ok(SwapOutcome::Done);
            }
            // Tables may have to be read again.
            Verdict::Refused(refused) => record = refused,
        }
        forebay::shard::yield_if_needed().await;
    }
}

fn newest_lsn(commit: &Commit, keyspace: u32, key: &[u8]) -> Option<u64> {
    commit.memtables().find_map(|memtables| memtables.newest_lsn(keyspace, key))
}

async fn look(shared: &Arc<StoreCore>, keyspace: u32, key: &[u8]) -> Result<NewestVersion> {
    shared.check_open()?;
    let (view, upto, loads): (Arc<View>, u64, u64) = {
        let (_turn, commit) = shared.lock_inserted();
        if commit.version.is_dropped(keyspace) {
            return Err(Error::dropped_keyspace());
        }
        let upto = commit.last;
        let newest = commit.memtables().find_map(|memtables| memtables.get(keyspace, key, u64::MAX));
        if let Some(found) = newest {
            let lsn = found.lsn;
            return Ok(NewestVersion {
                lsn,
                upto,
                loads: commit.loads,
                value: shared.value_of(&found, || shared.now_s()),
            });
        }
        (shared.view(), upto, commit.loads)
    };
    let value = shared.get_in_tables(&view, keyspace, key).await?;
    Ok(NewestVersion { lsn: 0, upto, loads, value })
}
