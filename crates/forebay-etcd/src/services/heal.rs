//! The repair of a member whose tables are damaged: its state is copied again from the other members.
//!
//! 1. Found by the scrub, by a read, by an entry, or as the state is opened. The first is noted, in log, metrics and `/readyz`.
//! 2. From then on the member serves no client, watches end, and once an entry has met the damage, entries are counted but not applied.
//!    Log, vote and identity are as before: it votes, and accepts entries. A state that cannot be opened is replaced by an empty state,
//!    which nothing reads.
//! 3. A member that leads hands over first, and again if it is elected meanwhile. It proposes nothing, and refuses a lead that is
//!    handed over.
//! 4. It asks the leader for a snapshot that has all that was applied or counted here. The leader makes a checkpoint, an entry of the log,
//!    and builds a snapshot behind it, as for a member that is far behind. One that knows of damage refuses.
//! 5. All others are asked for their sums at the checkpoint. More than half of the voters, without this member and others with
//!    damaged tables, must have the same sum, and the leader too; a leader that has another sum is named by the alarm `CORRUPT`.
//! 6. The snapshot is written next to the damaged state, with its checksums verified, and opened. If its sum is the majority's, it
//!    becomes the state by the one change that installs of Raft make ([`RaftStore::repair`](forebay_raft::RaftStore::repair)): a
//!    crash leaves one or the other. Further entries are applied from the log. Then clients are served.
//! 7. What fails is tried again. Too little space, too few voters once some are removed, a sum that is not the majority's after all, and
//!    damage within an hour after a repair end the member, with the reason.
//! 8. Fewer than three voters have no majority without the damaged one: it is named, reads of the damage fail, and an entry that meets it ends
//!    the member. Two of three find no majority either: both are named, and the third one serves.
//! 9. Right checksums with a wrong sum are a defect, not a disk's: named by the alarm, and not repaired.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::integrity::raise;
use super::{Context, stopped};
use crate::mvcc::Damage;
use crate::node::{CopyFailure, EndReason, Node};

/// The wait after a try that has failed, the first time and at most: each try has the leader build a snapshot.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// Damage within this time after a repair is not an accident.
const LASTS_MIN: Duration = Duration::from_secs(3600);

/// Repairs the state when its tables are damaged, until the server ends.
pub(crate) async fn run(context: Context) {
    let mut stopping = context.stopping.clone();
    tokio::select! {
        () = stopped(&mut stopping) => {}
        () = heal(&context) => {}
        () = decline_lead(&context.node) => {}
    }
}

fn is_of_tables(damage: &Option<Damage>) -> bool {
    matches!(damage, Some(Damage::Tables(_)))
}

/// Returns when the member has ended.
async fn heal(context: &Context) {
    let node = &context.node;
    let mut damage = node.damage_found();
    let (mut repaired, mut again): (Option<Instant>, _) = (None, AGAIN);
    loop {
        let found = damage.wait_for(is_of_tables).await.ok().and_then(|found| found.clone());
        let Some(found) = found else { return };
        if !node.is_healing() {
            tokio::time::sleep(AGAIN).await;
            continue;
        }
        // Each time, as a stream may have new ones.
        context.hub.detach_all();
        if repaired.is_some_and(|at| at.elapsed() < LASTS_MIN) {
            let reason = format!("it was repaired within the last hour: replace the disk ({found})");
            return end(node, &reason);
        }
        match repair(node).await {
            Ok(()) => {
                (repaired, again) = (Some(Instant::now()), AGAIN);
                node.counts().repairs.fetch_add(1, Ordering::Relaxed);
                node.set_damage(None);
                tracing::info!("the state is that of the majority again, and this member serves clients");
                continue;
            }
            Err(CopyFailure::Final(reason)) => return end(node, &reason),
            Err(CopyFailure::Early(reason)) => tracing::warn!(reason, "the state is not repaired yet"),
            Err(CopyFailure::Different(member)) => {
                let member_id = format!("{member:x}");
                tracing::error!(member = member_id, "the leader has another state than the majority");
                if let Err(error) = raise(context, member).await {
                    tracing::warn!(%error, "the alarm CORRUPT is not raised yet");
                }
            }
        }
        node.counts().repairs_failed.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(again).await;
        again = (again * 2).min(AGAIN_MAX);
    }
}

fn end(node: &Node, reason: &str) {
    let reason = format!("tables of its state are damaged, and it is not repaired: {reason}");
    tracing::error!("{reason}");
    node.end(EndReason::Failed(reason));
}

/// Copies the state of another member that leads.
async fn repair(node: &Node) -> Result<(), CopyFailure> {
    tracing::warn!(
        "the state is taken again from the other members; until then this member serves no client"
    );
    let leader = node.other_leader().await?;
    node.take_state(leader).await
}

/// Hands the lead over as often as this member has it while its tables are damaged. Returns when the member has ended.
async fn decline_lead(node: &Node) {
    let (mut damage, mut leadership, mut time) = (node.damage_found(), node.leadership(), 0);
    loop {
        let Ok(()) = damage.wait_for(is_of_tables).await.map(drop) else { return };
        let Ok(()) = leadership.wait_for(|now| now.is_own).await.map(drop) else { return };
        if node.is_healing() {
            node.hand_over_lead(time).await;
            time += 1;
        }
        // It is seen within a heartbeat.
        tokio::time::sleep(node.heartbeat_interval()).await;
    }
}
