//! Counts as Prometheus reads them. Names are etcd's where the meaning is the same.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::hub::Hub;
use crate::mvcc::View;
use crate::node::Node;
use crate::version::{ETCD_VERSION, OWN_VERSION};

/// A page of metrics.
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: &AtomicU64) {
        self.head(name, "counter", help);
        let _ = writeln!(self.0, "{name} {}", value.load(Ordering::Relaxed));
    }

    fn counter_of(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "counter", help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn info(&mut self, name: &str, help: &str, label: &str, value: &str) {
        self.head(name, "gauge", help);
        let _ = writeln!(self.0, "{name}{{{label}=\"{value}\"}} 1");
    }
}

/// Returns all metrics of a member.
pub(crate) async fn text(node: &Node, hub: &Hub) -> String {
    let mut page = Page(String::new());
    let counts = node.counts();
    page.info("etcd_server_version", "Which version is running.", "server_version", ETCD_VERSION);
    page.info("forebay_etcd_version", "Version of this server itself.", "version", OWN_VERSION);
    let id = format!("{:x}", node.id());
    page.info("etcd_server_id", "Server or member ID in hexadecimal.", "server_id", &id);
    page.gauge("etcd_server_has_leader", "Whether a leader exists.", u8::from(node.leader().is_some()));
    page.gauge("etcd_server_is_leader", "Whether this member leads.", u8::from(node.is_leader()));
    page.gauge("etcd_server_is_learner", "Whether this member has no vote.", u8::from(node.is_learner()));
    page.counter("etcd_server_leader_changes_seen_total", "Leader changes seen.", &counts.leader_changes);
    page.gauge(
        "etcd_server_proposals_committed_total",
        "Index of the last committed entry.",
        node.committed_index(),
    );
    page.gauge(
        "etcd_server_proposals_applied_total",
        "Index of the last applied entry.",
        node.applied_index(),
    );
    let pending = counts.proposals_pending.load(Ordering::Relaxed);
    page.gauge("etcd_server_proposals_pending", "Proposals that wait for their outcome.", pending);
    page.counter("etcd_server_proposals_failed_total", "Proposals that failed.", &counts.proposals_failed);
    page.counter("forebay_etcd_reads_total", "Linearizable reads.", &counts.reads);
    page.counter(
        "forebay_etcd_read_rounds_total",
        "Rounds with the leader for linearizable reads.",
        &counts.read_rounds,
    );
    page.counter(
        "forebay_etcd_snapshots_installed_total",
        "Snapshots received and installed.",
        &counts.installed,
    );
    page.counter(
        "forebay_etcd_foreign_requests_total",
        "Requests of members of other clusters.",
        &counts.foreign,
    );
    if let Ok(view) = View::of(node.store()).await {
        page.gauge("etcd_debugging_mvcc_current_revision", "The current revision.", view.revision());
        page.gauge(
            "etcd_mvcc_db_total_size_in_use_in_bytes",
            "Bytes of keys, values and leases.",
            view.used_bytes(),
        );
        page.gauge(
            "etcd_debugging_mvcc_compact_revision",
            "The revision of the last compaction.",
            view.compacted(),
        );
    }
    page.counter(
        "forebay_etcd_snapshots_given_up_total",
        "Snapshots whose client has not read on.",
        &counts.snapshots_given_up,
    );
    watches(&mut page, hub);
    log(&mut page, node);
    store(&mut page, node);
    page.0
}

fn watches(page: &mut Page, hub: &Hub) {
    let counts = hub.counts();
    for (name, help, value) in [
        ("etcd_debugging_mvcc_watch_stream_total", "Streams of watches.", &counts.streams),
        ("etcd_debugging_mvcc_watcher_total", "Watches.", &counts.watches),
        ("etcd_debugging_mvcc_slow_watcher_total", "Watches that are behind.", &counts.behind),
        ("etcd_debugging_mvcc_pending_events_total", "Events that wait to be sent.", &counts.pending),
    ] {
        page.gauge(name, help, value.load(Ordering::Relaxed));
    }
    page.counter("etcd_debugging_mvcc_events_total", "Events sent by this member.", &counts.sent);
}

/// The log: its flushes are what etcd's log has as fsyncs.
fn log(page: &mut Page, node: &Node) {
    let stats = node.log().wal().stats();
    let name = "etcd_disk_wal_fsync_duration_seconds";
    page.head(name, "summary", "How long the flushes of the log take, since the start.");
    let flushes = &stats.flush_ns;
    for (label, quantile) in [("0.5", 0.5), ("0.99", 0.99), ("0.999", 0.999)] {
        let _ = writeln!(page.0, "{name}{{quantile=\"{label}\"}} {}", seconds(flushes.at(quantile)));
    }
    let _ = writeln!(page.0, "{name}_count {}", flushes.count());
    page.counter_of("etcd_disk_wal_write_bytes_total", "Bytes written to the log.", stats.write_bytes);
    page.counter_of("forebay_etcd_log_groups_total", "Groups of entries written to the log.", stats.groups);
    page.counter_of("forebay_etcd_log_records_total", "Entries appended to the log.", stats.records);
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

fn store(page: &mut Page, node: &Node) {
    let stats = node.store().store().stats();
    let levels = || stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels);
    let tables: u64 = levels().map(|level| level.bytes).sum();
    let bytes = tables + stats.value_file_bytes + stats.memory.memtables;
    page.gauge("etcd_mvcc_db_total_size_in_bytes", "Bytes of the state, in files and in memory.", bytes);
    page.counter_of("forebay_etcd_store_flushes_total", "Flushes of the state to files.", stats.flushes);
    page.counter_of(
        "forebay_etcd_store_compactions_total",
        "Compactions of the state's files.",
        stats.compactions,
    );
    page.gauge("forebay_etcd_store_cache_hits_total", "Blocks found in memory.", stats.cache_hits);
    page.gauge("forebay_etcd_store_cache_misses_total", "Blocks read from files.", stats.cache_misses);
}
