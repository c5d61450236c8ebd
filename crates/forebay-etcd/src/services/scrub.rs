//! The scrub: reads the whole state of this member in the background, and compares it with its sums.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use super::integrity::raise;
use super::{Context, stopped};
use crate::mvcc::{Audit, Damage, Failure, View};

/// Read at most.
const BYTES_PER_SECOND: u64 = 8 << 20;
/// Bytes read together, before the pause that limits the rate. The class limits it where the device is read; entries of memtables cost
/// only processor time.
const STEP_BYTES: u64 = 256 << 10;
/// Until the first pass after a start, and until one that has ended early is made again.
const SOON: Duration = Duration::from_secs(3600);
/// Until a read is made again for which the store had no memory.
const MEMORY_AGAIN: Duration = Duration::from_secs(1);

/// Why a pass has ended before its end.
enum ScrubEnd {
    /// The bytes are not those that were written, or the entries not those that the state has sums of.
    Damaged(Damage),
    /// Nothing is known.
    Early(String),
}

impl From<Failure> for ScrubEnd {
    fn from(failure: Failure) -> ScrubEnd {
        match failure.damage() {
            Some(damage) => ScrubEnd::Damaged(damage),
            None => ScrubEnd::Early(Status::from(failure).message().to_owned()),
        }
    }
}

/// Makes a pass each `interval`, until the server ends; zero: never.
pub(crate) async fn run(context: Context, interval: Duration) {
    if interval.is_zero() {
        return;
    }
    let mut stopping = context.stopping.clone();
    let mut wait = interval.min(SOON);
    loop {
        let next = async {
            tokio::time::sleep(wait).await;
            pass(&context).await
        };
        let is_over = tokio::select! {
            () = stopped(&mut stopping) => return,
            is_over = next => is_over,
        };
        wait = if is_over { interval } else { interval.min(SOON) };
    }
}

/// Makes a pass, and reports its findings. Returns whether it reached a result.
async fn pass(context: &Context) -> bool {
    let node = &context.node;
    let (before, known) = (node.open_state(), node.damage());
    let scrubbed = scrub(context).await;
    // Of a state that was replaced nothing is noted.
    if node.is_healing() || !before.ptr_eq(&node.open_state()) {
        return false;
    }
    report(context, &known, scrubbed).await
}

/// Reports the findings of a pass, at whose start this damage was known. Returns whether it reached a result.
async fn report(context: &Context, known: &Option<Damage>, scrubbed: Result<u64, ScrubEnd>) -> bool {
    let node = &context.node;
    match scrubbed {
        // Perhaps where the pass had been before.
        Ok(_) if node.damage() != *known => {
            tracing::info!("a read has met damage while the state was read; all of it is read again soon");
        }
        Ok(bytes) => {
            node.counts().scrubs.fetch_add(1, Ordering::Relaxed);
            node.set_damage(None);
            tracing::info!(bytes, "all of the state was read, and is as it was written");
            return true;
        }
        Err(ScrubEnd::Damaged(damage @ Damage::Tables(_))) => {
            node.set_damage(Some(damage));
            return true;
        }
        // The checksums are right: this member wrote something else than the others, or lost it.
        Err(ScrubEnd::Damaged(damage @ Damage::Sums(_))) => {
            node.set_damage(Some(damage));
            match raise(context, node.id()).await {
                Ok(()) => return true,
                Err(error) => tracing::warn!(%error, "the alarm CORRUPT is not raised yet"),
            }
        }
        Err(ScrubEnd::Early(error)) => {
            tracing::info!(error, "the state is not all read; it is read again soon");
        }
    }
    false
}

/// Reads everything. Returns how many bytes that was.
async fn scrub(context: &Context) -> Result<u64, ScrubEnd> {
    let node = &context.node;
    let early = |error: &dyn std::fmt::Display| ScrubEnd::Early(error.to_string());
    let class = node.scrub_class(BYTES_PER_SECOND).map_err(|error| early(&error))?;
    // All bytes on the disk, past the cache: the audit below reads through it.
    let store = node.store().store();
    let report = store.verify_in(class).await.map_err(Failure::from)?;
    drop(store);
    let mut bytes = report.table_bytes;
    node.counts().scrubbed_bytes.fetch_add(bytes, Ordering::Relaxed);
    if let Some(finding) = report.findings.first() {
        return Err(ScrubEnd::Damaged(Damage::Tables(finding.to_string())));
    }
    // A view holds the memtables of its time, which are now nearly empty.
    node.store().flush().await.map_err(|error| early(&error))?;
    let mut audit = Audit::new(View::of(node.store()).await?);
    loop {
        let begun = Instant::now();
        let step = class.scope(audit.step(STEP_BYTES)).await;
        match step {
            Ok(Some(read)) => {
                bytes += read;
                node.counts().scrubbed_bytes.fetch_add(read, Ordering::Relaxed);
                let time = Duration::from_secs_f64(read as f64 / BYTES_PER_SECOND as f64);
                tokio::time::sleep_until(begun + time).await;
            }
            Ok(None) => break,
            Err(failure) if failure.is_memory() => tokio::time::sleep(MEMORY_AGAIN).await,
            Err(failure) => return Err(failure.into()),
        }
    }
    match audit.difference() {
        Some(what) => Err(ScrubEnd::Damaged(Damage::Sums(what.to_owned()))),
        None => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mvcc;
    use crate::server::tests::cluster::Cluster;
    use crate::services::{Authentication, Followers, Limits};

    /// Story: a disk lost bytes behind the place that a pass had reached, and a read met them. The pass came to its end without a finding,
    /// and cleared the damage: the member was ready again until the next pass, a week later.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn damage_that_is_met_during_a_pass_stays_until_another_one() {
        let mut cluster = Cluster::start(1, &[]).await;
        let node = cluster.members[0].node().clone();
        let (_stopping, is_stopping) = tokio::sync::watch::channel(false);
        let limits = Limits {
            request_bytes_max: 1 << 20,
            lease_s_min: 1,
            lease_more: Duration::from_secs(1),
            progress_interval: Duration::from_secs(3600),
            snapshot_patience: Duration::from_secs(3600),
            state: mvcc::Limits::default(),
        };
        let authentication = Authentication::open(&cluster.members[0].config()).unwrap();
        let followers = Arc::<Followers>::default();
        let context = Context::new(node.clone(), followers, limits, authentication, is_stopping);
        assert!(report(&context, &None, Ok(7)).await);
        let met = Some(Damage::Tables("a table".to_owned()));
        node.set_damage(met.clone());
        assert!(!report(&context, &None, Ok(7)).await, "it is read again soon");
        assert_eq!(node.damage(), met);
        assert!(report(&context, &met, Ok(7)).await);
        assert_eq!(node.damage(), None);
        drop((context, node));
        cluster.stop().await;
    }
}
