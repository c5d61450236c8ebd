//! The statistics of an engine, gathered from the accounts of its shards and of its waiting threads.

use std::sync::Arc;

use crate::base::class::Class;
use crate::base::error::Result;
use crate::base::pending;
use crate::io::stats::{
    ClassStats, DeviceStats, FileCounts, FileReport, FileStats, FileSum, FlowStats, Stall, Stats,
};
use crate::reactor::account::AccountReport;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::scheduler::{Counts, DeviceScheduler};

/// Requests the counters of each shard with one message, and adds up the replies.
pub(crate) async fn gather(shared: Arc<EngineShared>) -> Result<Stats> {
    let mut stats = Stats::default();
    let mut accounts = Vec::new();
    for inbox in shared.reporting_inboxes() {
        let (answer, report) = pending::channel("stats");
        inbox.call(Box::new(move |shard| shard.tell_stats(answer)));
        let report = report.await?;
        if inbox.index < shared.inboxes.len() {
            stats.shards.push(report.stats);
        } else {
            stats.worker_rings.push(report.stats);
        }
        report.stalls.iter().for_each(|stall| add_stall(&mut stats.stalls, stall));
        accounts.push(report.account);
    }
    stats.wait_calls = shared.calls.count();
    accounts.extend(shared.calls.reports());
    let mut flows: Vec<((u8, u16), FlowStats)> = Vec::new();
    for AccountReport { flows: of_account, walks, shares } in accounts {
        stats.walks.merge(&walks);
        for (device, class, counts) in shares {
            add_class(&mut stats.classes, shared.classes.name(Class(class as u8)), device, counts);
        }
        of_account.into_iter().for_each(|(key, flow)| add_flow(&mut flows, key, flow));
    }
    flows.sort_by_key(|(key, _)| *key);
    for ((class, device), mut flow) in flows {
        flow.class = shared.classes.name(Class(class));
        flow.device = shared.lock_devices().name(device);
        stats.flows.push(flow);
    }
    let device = |device: Arc<DeviceScheduler>| DeviceStats {
        device: device.name.clone(),
        budget_bytes: device.budget(),
        write_cost: device.write_cost(),
        calibrated: device.calibrated,
    };
    stats.devices = shared.lock_devices().schedulers().into_iter().map(device).collect();
    let page_cache = shared.lock_page_caches().sum();
    stats.page_cache_reads = page_cache.reads;
    stats.page_cache_bytes = page_cache.bytes;
    stats.page_cache_misses = page_cache.misses;
    stats.page_cache_skips = page_cache.skips;
    stats.memory = shared.memory();
    Ok(stats)
}

/// Requests the counters of its files from each shard with one message.
pub(crate) async fn gather_files(shared: Arc<EngineShared>) -> Result<Vec<FileStats>> {
    let (mut sum, mut files) = (FileSum::default(), shared.calls.report_files());
    for inbox in shared.reporting_inboxes() {
        let (answer, report) = pending::channel("stats");
        inbox.call(Box::new(move |shard| shard.tell_files(answer)));
        files.extend(report.await?);
    }
    for file in files {
        sum.add(file, |device| shared.lock_devices().name(device));
    }
    // Outside of the lock: a file's last count may be dropped here.
    let tried = shared.lock_page_caches().files();
    for core in tried.iter().filter(|core| !core.is_closed() && !core.has_no_handle()) {
        let Some(cache) = core.page_cache() else { continue };
        let file = FileReport {
            key: Arc::as_ptr(core) as usize,
            path: core.path().to_path_buf(),
            device: core.device_index(),
            counts: FileCounts::default(),
        };
        sum.add(file, |device| shared.lock_devices().name(device)).add_page_cache(cache.load_counts());
    }
    Ok(sum.list())
}

fn add_flow(flows: &mut Vec<((u8, u16), FlowStats)>, key: (u8, u16), flow: FlowStats) {
    match flows.iter_mut().find(|(known, _)| *known == key) {
        Some((_, known)) => known.merge(&flow),
        None => flows.push((key, flow)),
    }
}

fn add_stall(stalls: &mut Vec<Stall>, new: &Stall) {
    match stalls.iter_mut().find(|known| known.task == new.task) {
        Some(known) => {
            known.polls += new.polls;
            if new.back_trace.is_some() && (known.back_trace.is_none() || new.longest_ns > known.longest_ns) {
                known.back_trace.clone_from(&new.back_trace);
            }
            known.longest_ns = known.longest_ns.max(new.longest_ns);
        }
        None => stalls.push(new.clone()),
    }
}

fn add_class(classes: &mut Vec<ClassStats>, class: String, device: String, counts: Counts) {
    let Counts { queued, received, due, starved_ns } = counts;
    match classes.iter_mut().find(|known| known.class == class && known.device == device) {
        Some(known) => {
            known.queued += queued;
            known.received += received;
            known.due += due;
            known.starved_ns += starved_ns;
        }
        None => classes.push(ClassStats { class, device, queued, received, due, starved_ns }),
    }
}
