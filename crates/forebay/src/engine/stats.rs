//! One engine's statistics, gathered from its shards.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::shared::EngineShared;
use crate::class::Class;
use crate::error::Result;
use crate::pending;
use crate::shard;
use crate::shard::inbox::Message;
use crate::stats::{FlowStats, Stats};

/// Asks each shard with one message and adds up what they answer.
pub(super) async fn gather(shared: Arc<EngineShared>) -> Result<Stats> {
    let mut stats = Stats::default();
    let mut flows: Vec<((u8, u16), FlowStats)> = Vec::new();
    for inbox in shared.inboxes.iter() {
        let (answer, report) = pending::channel("stats");
        let message = Message::Call(Box::new(move |shard| shard.tell_stats(answer)));
        shard::send(inbox.clone(), message).await;
        let report = report.await?;
        stats.shards.push(report.stats);
        stats.walks.merge(&report.walks);
        for (key, flow) in report.flows {
            match flows.iter_mut().find(|(known, _)| *known == key) {
                Some((_, known)) => known.merge(&flow),
                None => flows.push((key, flow)),
            }
        }
    }
    flows.sort_by_key(|(key, _)| *key);
    for ((class, device), mut flow) in flows {
        flow.class = shared.classes.name(Class(class));
        flow.device = shared.lock_devices().name(device);
        stats.flows.push(flow);
    }
    stats.page_cache_reads = shared.page_cache_reads.load(Ordering::Relaxed);
    stats.page_cache_bytes = shared.page_cache_bytes.load(Ordering::Relaxed);
    stats.memory = shared.memory();
    Ok(stats)
}
