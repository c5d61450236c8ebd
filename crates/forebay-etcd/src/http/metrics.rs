//! The metrics of a member as Prometheus reads them. Names and kinds are etcd's where the meaning is the same.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::Exposition;
use forebay::MetricKind::{Counter, Gauge, Histogram};

use crate::histogram;
use crate::node::Node;
use crate::services::{CallCounts, Followers, Way};
use crate::version::{CLUSTER_MINOR, ETCD_VERSION, OWN_VERSION};

/// Ticks of a second in which Linux tells processor time, on all its platforms.
const TICKS_A_SECOND: f64 = 100.0;

/// Adds families of one value each.
macro_rules! add {
    ($page:ident, $($kind:ident $name:literal $help:literal: $value:expr;)+) => {
        $($page.family($kind, $name, $help).value($value);)+
    };
}

/// The settings that metrics show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageSettings {
    pub(crate) quota_bytes: u64,
    /// Gates of features that have an effect here, and whether they are open.
    pub(crate) features: [(&'static str, bool); 2],
}

/// Returns all metrics of a member.
pub(crate) async fn page(
    node: &Node,
    followers: &Followers,
    calls: &CallCounts,
    settings: PageSettings,
) -> Exposition {
    let mut page = Exposition::prometheus();
    for (name, help, label, value) in [
        ("etcd_server_version", "Which version is running.", "server_version", ETCD_VERSION),
        ("etcd_cluster_version", "Version that all members have.", "cluster_version", CLUSTER_MINOR),
        ("forebay_etcd_version", "Version of this server itself.", "version", OWN_VERSION),
        ("etcd_server_id", "Server or member ID in hexadecimal.", "server_id", &format!("{:x}", node.id())),
    ] {
        page.family(Gauge, name, help).sample(&[(label, value)], 1);
    }
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (counts, watches, leases) = (node.counts(), followers.hub.counts(), &followers.lessor.counts);
    let state = &followers.counts;
    add!(page,
        Gauge "etcd_server_has_leader" "Whether a leader exists.": u8::from(node.leader().is_some());
        Gauge "etcd_server_is_leader" "Whether this member leads.": u8::from(node.is_leader());
        Gauge "etcd_server_is_learner" "Whether this member has no vote.": u8::from(node.is_learner());
        Counter "etcd_server_leader_changes_seen_total" "Leader changes seen.": load(&counts.leader_changes);
        Gauge "etcd_server_proposals_committed_total" "Index of the last committed entry.": node.committed_index();
        Gauge "etcd_server_proposals_applied_total" "Index of the last applied entry.": node.applied_index();
        Gauge "etcd_server_proposals_pending" "Proposals that wait for their outcome.": load(&counts.proposals_pending);
        Counter "etcd_server_proposals_failed_total" "Proposals that failed.": load(&counts.proposals_failed);
        Counter "etcd_server_health_success" "Checks of /health that found the member healthy.": load(&counts.healthy);
        Counter "etcd_server_health_failures" "The others.": load(&counts.unhealthy);
        Gauge "forebay_etcd_state_format" "Format of the state, which all members know.": node.format();
        Counter "forebay_etcd_reads_total" "Linearizable reads.": load(&counts.reads);
        Counter "etcd_server_read_indexes_failed_total" "Rounds with the leader that failed.": load(&counts.read_rounds_failed);
        Counter "forebay_etcd_read_rounds_total" "Rounds with the leader for linearizable reads.": load(&counts.read_rounds);
        Counter "etcd_server_slow_read_indexes_total" "Those to which no leader replied in time.": load(&counts.read_rounds_slow);
        Counter "etcd_server_heartbeat_send_failures_total" "Heartbeats that this member was late with.": load(&counts.late_heartbeats);
        Gauge "etcd_server_snapshot_apply_in_progress_total" "Snapshots that are being installed.": load(&counts.installing);
        Counter "etcd_server_slow_apply_total" "Entries and reads that took more than 100 ms.": load(&state.slow);
        Counter "forebay_etcd_snapshots_installed_total" "Snapshots received and installed.": load(&counts.installed);
        Counter "forebay_etcd_foreign_requests_total" "Requests of members of other clusters.": load(&counts.foreign);
        Gauge "forebay_etcd_long_ranges" "Long ranges under way, and other long responses.": load(&counts.ranges);
        Gauge "forebay_etcd_long_ranges_waiting" "Long ranges that wait for others to end.": load(&counts.ranges_waiting);
        Gauge "forebay_etcd_long_ranges_stalled" "Those whose client takes nothing now.": load(&counts.ranges_stalled);
        Gauge "forebay_etcd_long_range_bytes" "Bytes of long responses in memory, as they are sent.": load(&counts.range_bytes);
        Counter "forebay_etcd_ranges_refused_total" "Long ranges refused, because too many are under way.": load(&counts.ranges_refused);
        Counter "forebay_etcd_integrity_checks_total" "Comparisons of members by the sums of their states.": load(&counts.checks);
        Counter "forebay_etcd_integrity_differences_total" "Those that found different sums.": load(&counts.differences);
        Counter "forebay_etcd_scrubs_total" "Passes over all of the state that found it as it was written.": load(&counts.scrubs);
        Counter "forebay_etcd_scrubbed_bytes_total" "Bytes read by passes over the state.": load(&counts.scrubbed_bytes);
        Gauge "forebay_etcd_damaged" "Whether the state is known to be damaged.": u8::from(node.damage().is_some());
        Gauge "forebay_etcd_healing" "Whether it is taken again from the other members.": u8::from(node.is_healing());
        Counter "forebay_etcd_repairs_total" "States that were taken again from the other members.": load(&counts.repairs);
        Counter "forebay_etcd_repairs_failed_total" "Tries of that which have failed.": load(&counts.repairs_failed);
        Counter "forebay_etcd_ranges_given_up_total" "Long ranges whose client has not read on.": load(&counts.ranges_given_up);
        Counter "forebay_etcd_snapshots_given_up_total" "Snapshots whose client has not read on.": load(&counts.snapshots_given_up);
        Gauge "etcd_debugging_mvcc_watch_stream_total" "Streams of watches.": load(&watches.streams);
        Gauge "etcd_debugging_mvcc_watcher_total" "Watches.": load(&watches.watches);
        Gauge "etcd_debugging_mvcc_slow_watcher_total" "Watches that are behind.": load(&watches.behind);
        Gauge "etcd_debugging_mvcc_pending_events_total" "Events that wait to be sent.": load(&watches.pending);
        Counter "etcd_debugging_mvcc_events_total" "Events sent by this member.": load(&watches.sent);
        Counter "etcd_mvcc_put_total" "Puts applied by this member.": load(&state.puts);
        Gauge "etcd_debugging_mvcc_total_put_size_in_bytes" "Bytes of their keys and values.": load(&state.put_bytes);
        Counter "etcd_mvcc_delete_total" "Deletes applied by this member.": load(&state.deletes);
        Counter "etcd_mvcc_range_total" "Ranges read by this member.": load(&state.ranges);
        Counter "etcd_mvcc_txn_total" "Entries and reads with several of these.": load(&state.txns);
        Counter "etcd_debugging_mvcc_db_compaction_keys_total" "Events removed by compactions.": load(&state.removed);
        Gauge "etcd_debugging_mvcc_db_compaction_last" "When the last compaction had removed all.": load(&state.compacted_at_s);
        Counter "etcd_debugging_lease_granted_total" "Leases granted.": load(&leases.granted);
        Counter "etcd_debugging_lease_revoked_total" "Leases revoked.": load(&leases.revoked);
        Counter "etcd_debugging_lease_renewed_total" "Leases that this member kept alive as the leader.": load(&leases.renewed);
        Gauge "etcd_debugging_auth_revision" "Revision of users and roles.": followers.users.now().revision();
        Counter "etcd_server_learner_promote_successes" "Learners that this member has made voters.": load(&counts.promoted);
        Counter "etcd_debugging_server_lease_expired_total" "Leases that this member revoked as the leader.": load(&leases.expired);
    );
    // etcd's rules for alerts divide the state's bytes by it: without a limit the ratio has no meaning.
    if settings.quota_bytes != 0 {
        add!(page, Gauge "etcd_server_quota_backend_bytes" "Most bytes that the state may have.": settings.quota_bytes;);
    }
    if let Ok(view) = node.view().await {
        add!(page,
            Gauge "etcd_debugging_mvcc_current_revision" "The current revision.": view.revision();
            Gauge "etcd_debugging_mvcc_compact_revision" "The revision of the last compaction.": view.compacted();
            Gauge "etcd_mvcc_db_total_size_in_bytes" "What the quota is compared with: keys, values and history.": view.used_bytes();
            Gauge "etcd_mvcc_db_total_size_in_use_in_bytes" "The same: nothing of it is free.": view.used_bytes();
        );
    }
    let mut family = page.family(Gauge, "etcd_server_feature_enabled", "Whether a feature is on.");
    for (name, is_on) in settings.features {
        family.sample(&[("name", name), ("stage", "ALPHA")], u8::from(is_on));
    }
    times(&mut page, node, followers);
    log(&mut page, node);
    store(&mut page, node);
    grpc(&mut page, calls);
    peers(&mut page, node);
    process(&mut page);
    page
}

/// The durations of operations.
fn times(page: &mut Exposition, node: &Node, followers: &Followers) {
    let (counts, state, leases) = (node.counts(), &followers.counts, &followers.lessor.counts);
    let mut add = |name, help, unit, of: &histogram::Histogram| {
        let (buckets, count, sum) = of.read(unit);
        page.family(Histogram, name, help).histogram::<&str>(&[], buckets, count, sum);
    };
    add("etcd_debugging_lease_ttl_total", "Seconds of leases.", 1.0, &leases.times_s);
    let name = "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds";
    add(name, "How long compactions take until all is removed.", 1.0, &state.compaction_ms);
    let name = "etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds";
    add(name, "How long entries take that do nothing else.", 1.0, &state.compaction_step_ms);
    let name = "etcd_disk_backend_commit_duration_seconds";
    add(name, "How long the store takes for the changes of an entry.", 1e9, &state.commits);
    let name = "etcd_disk_backend_snapshot_duration_seconds";
    add(name, "How long snapshots that clients save take.", 1e9, &counts.saved_snapshot_times);
    add("etcd_mvcc_hash_duration_seconds", "How long hashes of all take.", 1e9, &state.hashes[0]);
    add("etcd_mvcc_hash_rev_duration_seconds", "Those of a revision.", 1e9, &state.hashes[1]);
    let name = "etcd_snap_db_save_total_duration_seconds";
    add(name, "How long snapshots of other members take to arrive.", 1e9, &counts.snapshot_times);
    // Of these etcd has what was observed alone.
    let mut family = page.family(Histogram, "etcd_server_apply_duration_seconds", "How long entries take.");
    for (operation, is_success, times) in state.applies.iter() {
        let (op, (buckets, count, sum)) = (format!("{operation:?}"), times.read(1e9));
        if count > 0 {
            let labels = [("op", &*op), ("success", word(is_success)), ("version", "v3")];
            family.histogram(&labels, buckets, count, sum);
        }
    }
    let name = "etcd_server_request_duration_seconds";
    let mut family = page.family(Histogram, name, "How long requests take.");
    for (operation, is_success, times) in counts.requests.iter() {
        let (kind, (buckets, count, sum)) = (format!("{operation:?}"), times.read(1e9));
        if count > 0 {
            let labels = [("success", word(is_success)), ("type", &*kind)];
            family.histogram(&labels, buckets, count, sum);
        }
    }
    let mut family = page.family(Histogram, "etcd_server_range_duration_seconds", "How long ranges take.");
    for (times, success) in state.range_times.iter().zip([word(false), word(true)]) {
        let (buckets, count, sum) = times.read(1e9);
        if count > 0 {
            family.histogram(&[("success", success)], buckets, count, sum);
        }
    }
}

fn word(is_so: bool) -> &'static str {
    if is_so { "true" } else { "false" }
}

/// The log: its flushes are what etcd's log has as fsyncs.
fn log(page: &mut Exposition, node: &Node) {
    let stats = node.log().wal().stats();
    let flushes = &stats.flush_ns;
    let seconds = |quantile| flushes.ns_at(quantile) as f64 / 1e9;
    let way = stats.way;
    add!(page,
        Gauge "etcd_disk_wal_write_bytes_total" "Bytes written to the log.": stats.write_bytes;
        Counter "forebay_etcd_log_groups_total" "Groups of entries written to the log.": stats.groups;
        Counter "forebay_etcd_log_records_total" "Entries appended to the log.": stats.records;
        Gauge "forebay_etcd_log_flush_p50_seconds" "Median of the flushes since the start.": seconds(0.5);
        Gauge "forebay_etcd_log_flush_p99_seconds" "99th percentile of the flushes.": seconds(0.99);
        Gauge "forebay_etcd_log_flush_p999_seconds" "99.9th percentile of the flushes.": seconds(0.999);
        Gauge "forebay_etcd_log_dsync_seconds" "Usual flush by RWF_DSYNC, 0 before the first.": way.dsync_ns as f64 / 1e9;
        Gauge "forebay_etcd_log_write_and_flush_seconds" "Usual write and flush.": way.write_and_flush_ns as f64 / 1e9;
        Counter "forebay_etcd_log_way_changes_total" "Changes between these two ways.": way.changes;
    );
    // From 1 ms to 8.192 s, as in etcd.
    let bounds = (0..14).map(|power| 1_000_000_u64 << power);
    let buckets = bounds.map(|ns| (ns as f64 / 1e9, flushes.count_up_to(ns)));
    let sum = flushes.ns_mean() * flushes.count() as f64 / 1e9;
    let name = "etcd_disk_wal_fsync_duration_seconds";
    let mut family = page.family(Histogram, name, "How long the flushes of the log take.");
    family.histogram::<&str>(&[], buckets, flushes.count(), sum);
}

fn store(page: &mut Exposition, node: &Node) {
    let stats = node.store().store().stats();
    let levels = || stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels);
    let tables: u64 = levels().map(|level| level.bytes).sum();
    let bytes = tables + stats.value_file_bytes + stats.memory.memtables;
    add!(page,
        Gauge "forebay_etcd_store_bytes" "Bytes of the state, in files and in memory.": bytes;
        Counter "forebay_etcd_store_flushes_total" "Flushes of the state to files.": stats.flushes;
        Counter "forebay_etcd_store_compactions_total" "Compactions of the state's files.": stats.compactions;
        Counter "forebay_etcd_store_cache_hits_total" "Blocks found in memory.": stats.cache_hits;
        Counter "forebay_etcd_store_cache_misses_total" "Blocks read from files.": stats.cache_misses;
    );
}

/// Calls, as the interceptor of etcd's servers counts them. Methods without calls are listed with 0, so that the first calls raise
/// a rate.
fn grpc(page: &mut Exposition, calls: &CallCounts) {
    let mut family = page.family(Counter, "grpc_server_started_total", "Calls begun.");
    for kind in calls.kinds() {
        family.sample(&kind.labels, kind.begun());
    }
    for (name, help, way) in [
        ("grpc_server_msg_received_total", "Messages received.", Way::Received),
        ("grpc_server_msg_sent_total", "Messages sent.", Way::Sent),
    ] {
        let mut family = page.family(Counter, name, help);
        for kind in calls.kinds() {
            family.sample(&kind.labels, kind.messages(way).0);
        }
    }
    let bytes = |way| calls.kinds().map(|kind| kind.messages(way).1).sum::<u64>();
    add!(page,
        Counter "etcd_network_client_grpc_received_bytes_total" "Bytes of messages received.": bytes(Way::Received);
        Counter "etcd_network_client_grpc_sent_bytes_total" "Bytes of messages sent.": bytes(Way::Sent);
    );
    let mut family = page.family(Counter, "grpc_server_handled_total", "Calls ended, by their codes.");
    for kind in calls.kinds() {
        let [method, service, stream] = kind.labels;
        for (code, count) in kind.ended() {
            family.sample(&[("grpc_code", code), method, service, stream], count);
        }
    }
    let mut family = page.family(Histogram, "grpc_server_handling_seconds", "How long calls take.");
    for kind in calls.kinds() {
        let (bounds, count, seconds) = kind.times.read(1e9);
        family.histogram(&kind.labels, bounds, count, seconds);
    }
}

/// The other members, as Raft's messages find them.
fn peers(page: &mut Exposition, node: &Node) {
    let (own, others) = (format!("{:x}", node.id()), node.reached());
    let mut family = page.family(Gauge, "etcd_network_known_peers", "Members, with this one.");
    for known in std::iter::once(node.id()).chain(others.keys().copied()) {
        family.sample(&[("Local", own.clone()), ("Remote", format!("{known:x}"))], 1);
    }
    if others.is_empty() {
        return;
    }
    let mut family = page.family(Counter, "etcd_network_peer_sent_failures_total", "Messages that failed.");
    for (id, reached) in &others {
        family.sample(&[("To", format!("{id:x}"))], reached.failures);
    }
    let mut family = page.family(Counter, "etcd_network_peer_sent_bytes_total", "Bytes sent to members.");
    for (id, reached) in &others {
        family.sample(&[("To", format!("{id:x}"))], reached.sent_bytes);
    }
    let name = "etcd_network_peer_received_bytes_total";
    let mut family = page.family(Counter, name, "Bytes received from members.");
    for (id, reached) in &others {
        family.sample(&[("From", format!("{id:x}"))], reached.received_bytes);
    }
    let name = "etcd_network_peer_round_trip_time_seconds";
    let mut family = page.family(Histogram, name, "How long heartbeats take until their replies.");
    for (id, reached) in &others {
        let (buckets, count, seconds) = reached.round_trips.read(1e9);
        family.histogram(&[("To", format!("{id:x}"))], buckets, count, seconds);
    }
    let mut family = page.family(Gauge, "etcd_network_active_peers", "Whether the last message arrived.");
    for (id, reached) in &others {
        let labels = [("Local", own.clone()), ("Remote", format!("{id:x}"))];
        family.sample(&labels, u8::from(!reached.is_lost));
    }
    let name = "etcd_network_disconnected_peers_total";
    let mut family = page.family(Counter, name, "How often a member was not reached any more.");
    for (id, reached) in &others {
        let labels = [("Local", own.clone()), ("Remote", format!("{id:x}"))];
        family.sample(&labels, reached.losses);
    }
}

/// This process, as Prometheus's clients have it. Figures that the system does not give are left out.
fn process(page: &mut Exposition) {
    let text = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let (stat, status, limits) = (text("stat"), text("status"), text("limits"));
    let line = |of: &str, name: &str| -> Option<f64> {
        let rest = of.lines().find_map(|line| line.strip_prefix(name))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    // After the program's name, which may have spaces, the numbers start with the third.
    let numbers: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |number: usize| numbers.get(number - 3)?.parse::<f64>().ok();
    let processor_ticks = ticks(14).zip(ticks(15)).map(|(user, system)| user + system);
    let boot = fs::read_to_string("/proc/stat").ok().and_then(|text| line(&text, "btime"));
    let start = boot.zip(ticks(22)).map(|(boot, ticks)| boot + ticks / TICKS_A_SECOND);
    let files = fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
    let files_max = line(&limits, "Max open files");
    let bytes = |name: &str| line(&status, name).map(|kibibytes| kibibytes * 1024.0);
    for (kind, name, help, value) in [
        (
            Counter,
            "process_cpu_seconds_total",
            "Processor time.",
            processor_ticks.map(|ticks| ticks / TICKS_A_SECOND),
        ),
        (Gauge, "process_resident_memory_bytes", "Memory that is resident.", bytes("VmRSS:")),
        (Gauge, "process_virtual_memory_bytes", "Memory that is mapped.", bytes("VmSize:")),
        (Gauge, "process_start_time_seconds", "When it began.", start),
        (Gauge, "process_open_fds", "Open descriptors.", files),
        (Gauge, "process_max_fds", "The most open descriptors.", files_max),
        (Gauge, "os_fd_used", "Open descriptors.", files),
        (Gauge, "os_fd_limit", "The most open descriptors.", files_max),
    ] {
        if let Some(value) = value {
            page.family(kind, name, help).value(value);
        }
    }
}
