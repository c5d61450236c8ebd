//! Comparisons of members, by the sums at their checkpoints: at the start of a member, and by the leader, which raises etcd's alarm
//! `CORRUPT`. They read no table.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior};
use tonic::Status;

use super::{Context, stopped};
use crate::node::Node;
use crate::proto::etcdserverpb::AlarmType;
use crate::proto::peer::command::Change;
use crate::proto::peer::{Alarm, Checkpoint, CheckpointsReply, StateSum};
use crate::start_error::StartError;

/// The member of an alarm without a name.
const NO_MEMBER: u64 = 0;

/// How often the leader compares members; zero: never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckIntervals {
    /// The interval of comparisons by the existing checkpoints.
    pub(crate) checkpoints: Duration,
    /// By a checkpoint that it makes for it.
    pub(crate) current: Duration,
}

/// Another member's reply.
type Reply = (u64, Result<CheckpointsReply, Status>);

/// Compares members while this member leads, until the server ends.
pub(crate) async fn run(context: Context, intervals: CheckIntervals) {
    let mut stopping = context.stopping.clone();
    let (mut looks, mut current) = (ticks(intervals.checkpoints), ticks(intervals.current));
    // The index of the last checkpoint at which all members were alike.
    let mut alike = 0;
    loop {
        let is_current = tokio::select! {
            () = stopped(&mut stopping) => return,
            () = next(&mut looks) => false,
            () = next(&mut current) => true,
        };
        let leadership = *context.node.leadership().borrow();
        if !leadership.is_own {
            continue;
        }
        let comparing = async {
            if is_current {
                context.change_leading(leadership.term, Change::Checkpoint(Checkpoint {})).await?;
            }
            check(&context, &mut alike).await
        };
        tokio::select! {
            () = stopped(&mut stopping) => return,
            compared = comparing => if let Err(error) = compared {
                tracing::info!(%error, "the members are not compared; it is tried again");
            }
        }
    }
}

fn ticks(interval: Duration) -> Option<Interval> {
    let mut ticks = (!interval.is_zero()).then(|| tokio::time::interval(interval))?;
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Some(ticks)
}

async fn next(ticks: &mut Option<Interval>) {
    match ticks {
        Some(ticks) => {
            ticks.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// Compares the members by their checkpoints behind the last one at which all were alike.
async fn check(context: &Context, alike: &mut u64) -> Result<(), Status> {
    let node = &context.node;
    let own = node.state_sums().await?;
    let replies = node.checkpoints_of_others(node.applied_index()).await;
    node.counts().checks.fetch_add(1, Ordering::Relaxed);
    // Each of them: a difference in history may have disappeared by a later checkpoint.
    let last = *alike;
    for own in own.iter().skip_while(|own| own.index <= last) {
        let comparison = Comparison::new(node.id(), own, &replies);
        if !comparison.is_alike() {
            return report(context, own, &comparison).await;
        }
        if comparison.is_whole() {
            *alike = own.index;
        }
    }
    Ok(())
}

/// The members by their sums at one checkpoint.
struct Comparison {
    members: BTreeMap<(Vec<u8>, i64, i64), Vec<u64>>,
    /// The number of members.
    count: usize,
}

impl Comparison {
    fn new(own_id: u64, own: &StateSum, replies: &[Reply]) -> Comparison {
        let state = |sum: &StateSum| (sum.sum.clone(), sum.revision, sum.compacted);
        let mut members = BTreeMap::from([(state(own), vec![own_id])]);
        for (id, reply) in replies {
            let mut sums = reply.iter().flat_map(|reply| &reply.sums);
            // A member that lags, or applied it in an earlier build, has no sum at this entry.
            if let Some(sum) = sums.find(|sum| sum.index == own.index) {
                members.entry(state(sum)).or_default().push(*id);
            }
        }
        Comparison { members, count: replies.len() + 1 }
    }

    fn is_alike(&self) -> bool {
        self.members.len() == 1
    }

    /// Returns whether all members have the checkpoint.
    fn is_whole(&self) -> bool {
        self.members.values().map(Vec::len).sum::<usize>() == self.count
    }

    fn is_majority(&self, members: &[u64]) -> bool {
        members.len() > self.count / 2
    }

    /// Returns the members whose sum is not that of the majority; `None` if no sum has a majority.
    fn minority(&self) -> Option<Vec<u64>> {
        let groups = || self.members.values();
        let others = || groups().filter(|members| !self.is_majority(members)).flatten().copied().collect();
        groups().any(|members| self.is_majority(members)).then(others)
    }
}

/// Raises the alarm for the members of the minority, or for no member without a majority, as etcd does.
async fn report(context: &Context, own: &StateSum, comparison: &Comparison) -> Result<(), Status> {
    context.node.counts().differences.fetch_add(1, Ordering::Relaxed);
    let members = comparison.minority().unwrap_or_else(|| vec![NO_MEMBER]);
    tracing::error!(
        index = own.index,
        revision = own.revision,
        compacted = own.compacted,
        members = ?members.iter().map(|member| format!("{member:x}")).collect::<Vec<_>>(),
        "members have different states after the same entries: these are not those of the majority, or 0 if there is none"
    );
    for member in members {
        raise(context, member).await?;
    }
    Ok(())
}

/// Raises the alarm `CORRUPT` for a member, unless it is raised.
pub(super) async fn raise(context: &Context, member: u64) -> Result<(), Status> {
    let node = &context.node;
    let alarms = node.alarms(&node.view().await?).await?;
    if alarms.iter().any(|alarm| alarm.member_id == member && alarm.alarm() == AlarmType::Corrupt) {
        return Ok(());
    }
    let alarm = Alarm { is_raised: true, member, r#type: AlarmType::Corrupt.into() };
    context.change(Change::Alarm(alarm)).await.map(drop)
}

/// Compares a member with the others before it serves clients.
///
/// # Errors
/// Another member has another sum at a checkpoint that both have.
pub(crate) async fn check_at_start(node: &Node) -> Result<(), StartError> {
    if node.is_healing() {
        return Ok(());
    }
    let failed =
        |status: Status| StartError::new(format!("the state cannot be compared: {}", status.message()));
    let own = node.state_sums().await.map_err(failed)?;
    if own.is_empty() {
        return Ok(());
    }
    let replies = node.checkpoints_of_others(0).await;
    node.counts().checks.fetch_add(1, Ordering::Relaxed);
    for (id, reply) in &replies {
        let Ok(reply) = reply else {
            tracing::warn!(
                member = format!("{id:x}"),
                "the member is not reached, and not compared with this one"
            );
            continue;
        };
        let differs = |sum: &&StateSum| reply.sums.iter().any(|its| its.index == sum.index && its != *sum);
        if let Some(sum) = own.iter().find(differs) {
            node.counts().differences.fetch_add(1, Ordering::Relaxed);
            return Err(StartError::new(format!(
                "member {:x} found data inconsistency with peers: member {id:x} has another state at revision {} (entry {} of \
                 the log). Find out which of them is wrong, remove it from the cluster, and add it again with an empty directory",
                node.id(),
                sum.revision,
                sum.index
            )));
        }
    }
    tracing::info!(
        checkpoints = own.len(),
        members = replies.len(),
        "the state is that of the other members"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(index: u64, of: u8) -> StateSum {
        StateSum { index, revision: 5, compacted: 3, sum: vec![of; 16] }
    }

    fn reply(sums: &[StateSum]) -> Result<CheckpointsReply, Status> {
        Ok(CheckpointsReply { sums: sums.to_vec() })
    }

    #[test]
    fn the_minority_is_named_and_members_without_the_checkpoint_are_left_out() {
        let compare = |own: u8, others: &[Option<u8>]| {
            let replies = (2..).zip(others).map(|(id, of)| match of {
                Some(of) => (id, reply(&[sum(7, 9), sum(8, *of)])),
                None => (id, reply(&[sum(7, 9)])),
            });
            let comparison = Comparison::new(1, &sum(8, own), &replies.collect::<Vec<_>>());
            (comparison.is_alike(), comparison.is_whole(), comparison.minority())
        };
        assert_eq!(compare(1, &[]), (true, true, Some(vec![])));
        assert_eq!(compare(1, &[Some(1), Some(1)]), (true, true, Some(vec![])));
        assert_eq!(compare(1, &[Some(1), None]), (true, false, Some(vec![])));
        assert_eq!(compare(1, &[Some(1), Some(2)]), (false, true, Some(vec![3])));
        assert_eq!(compare(1, &[Some(2), Some(2)]), (false, true, Some(vec![1])));
        assert_eq!(compare(1, &[Some(2), Some(3)]), (false, true, None));
        assert_eq!(compare(1, &[Some(2), None]), (false, false, None));
        assert_eq!(compare(1, &[Some(2)]), (false, true, None));
        let unreached = vec![(2, Err(Status::unavailable("gone"))), (3, reply(&[sum(8, 1)]))];
        assert!(Comparison::new(1, &sum(8, 1), &unreached).is_alike());
    }
}
