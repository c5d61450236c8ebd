//! Waiting for memory that the program holds elsewhere.

use std::future::Future;
use std::time::Duration;

use forebay_kv::ErrorKind;
use openraft::RaftTypeConfig;
use openraft::type_config::TypeConfigExt;

/// The first wait, and the longest one.
const WAIT: Duration = Duration::from_millis(1);
const WAIT_MAX: Duration = Duration::from_millis(100);

/// Repeats a call of the store for as long as it fails with [`MemoryBudget`](ErrorKind::MemoryBudget): values, snapshots and
/// ranges that the program keeps for its clients have used up the store's memory. Use it for reads in
/// [`Apply::apply`](crate::Apply::apply) and [`Apply::prepare`](crate::Apply::prepare): their errors end the node, although
/// memory will become free.
///
/// It waits a millisecond at first and a tenth of a second at most. Meanwhile no entry is applied; the node votes and replicates as
/// before, up to the 1,048,576 commits of [`config`](crate::config).
///
/// # Errors
/// Those of the call, except for `MemoryBudget`.
///
/// ```
/// # use forebay_kv::{Keyspace, Value};
/// # async fn read<C: openraft::RaftTypeConfig>(state: &Keyspace) -> std::io::Result<Option<Value>> {
/// let found = forebay_raft::until_memory::<C, _, _>(|| state.get("a key")).await;
/// found.map_err(std::io::Error::other)
/// # }
/// ```
pub async fn until_memory<C, T, F>(mut call: impl FnMut() -> F) -> forebay_kv::Result<T>
where
    C: RaftTypeConfig,
    F: Future<Output = forebay_kv::Result<T>>,
{
    let mut wait = WAIT;
    loop {
        match call().await {
            Err(error) if matches!(error.kind(), ErrorKind::MemoryBudget { .. }) => {
                C::sleep(wait).await;
                wait = (wait * 2).min(WAIT_MAX);
            }
            done => return done,
        }
    }
}
