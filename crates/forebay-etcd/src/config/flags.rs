//! The table of flags: etcd's names, defaults, and what becomes of each here.

/// What becomes of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// It works as in etcd.
    Full,
    /// It has no meaning here, and does no harm: accepted, with a warning where it is set to something else than the default.
    None,
    /// To pass over it would change what the operator relies on: anything but the default is refused. Why, and the remedy.
    Refused(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Flag {
    pub(crate) name: &'static str,
    pub(crate) default: &'static str,
    /// Without a value it is `true`.
    pub(crate) is_switch: bool,
    pub(crate) used: Use,
    pub(crate) help: &'static str,
}

const fn full(name: &'static str, default: &'static str, help: &'static str) -> Flag {
    Flag { name, default, is_switch: false, used: Use::Full, help }
}

const fn switch(name: &'static str, default: &'static str, help: &'static str) -> Flag {
    Flag { name, default, is_switch: true, used: Use::Full, help }
}

const fn none(name: &'static str, default: &'static str) -> Flag {
    Flag { name, default, is_switch: false, used: Use::None, help: "Accepted, without effect" }
}

const fn none_switch(name: &'static str, default: &'static str) -> Flag {
    Flag { name, default, is_switch: true, used: Use::None, help: "Accepted, without effect" }
}

const fn refused(name: &'static str, default: &'static str, why: &'static str) -> Flag {
    Flag { name, default, is_switch: false, used: Use::Refused(why), help: "Not supported" }
}

const fn refused_switch(name: &'static str, why: &'static str) -> Flag {
    Flag { name, default: "false", is_switch: true, used: Use::Refused(why), help: "Not supported" }
}

const DISCOVERY: &str = "discovery services are not supported; list the members with --initial-cluster";
const NAMES: &str = "host names in certificates are not compared; issue certificates from a CA of their own and leave the flag out";
const AUTO_TLS: &str = "certificates are not generated; make some, and give their files with the flags that end in cert-file and key-file";

/// All flags, in the order of the help text.
pub(crate) const FLAGS: &[Flag] = &[
    full("config-file", "", "File of all settings, as YAML; flags and variables do not count beside it"),
    full("name", "default", "Name of this member, for people"),
    full("data-dir", "", "Directory of this member's data [default: NAME.etcd]"),
    full("wal-dir", "", "Directory of the log, if it is to be on another drive"),
    full("snapshot-count", "10000", "Entries of the log between two snapshots"),
    full("snapshot-catchup-entries", "5000", "Entries that the log keeps behind a snapshot for slow members"),
    full("heartbeat-interval", "100", "Milliseconds between two heartbeats of the leader"),
    full("election-timeout", "1000", "Milliseconds without a heartbeat before an election"),
    full("listen-peer-urls", "http://localhost:2380", "Where to listen for other members"),
    full(
        "listen-client-urls",
        "http://localhost:2379",
        "Where to listen for clients; also unix:///PATH, with TLS unixs:///PATH",
    ),
    full("listen-client-http-urls", "", "Where to listen for HTTP alone; takes it off the client URLs"),
    full("listen-metrics-urls", "", "Where to serve /metrics and /health as well"),
    full("quota-backend-bytes", "0", "Most bytes of the state; 0 is 2 GiB, a negative number is no limit"),
    full("max-txn-ops", "128", "Most operations in a transaction"),
    full("max-request-bytes", "1572864", "Most bytes of a request"),
    full("max-concurrent-streams", "4294967295", "Most streams of a client's connection at once"),
    full("grpc-keepalive-interval", "2h", "Time between pings to a client; 0 for none"),
    full("grpc-keepalive-timeout", "20s", "How long to wait for the reply to a ping"),
    full("initial-advertise-peer-urls", "http://localhost:2380", "Where other members reach this one"),
    full("initial-cluster", "", "Members of a new cluster [default: NAME=URLS of this member]"),
    full("initial-cluster-state", "new", "new, or existing to join a cluster"),
    full("initial-cluster-token", "etcd-cluster", "Makes clusters with the same URLs differ"),
    full("advertise-client-urls", "http://localhost:2379", "Where clients reach this member"),
    switch(
        "force-new-cluster",
        "false",
        "Go on as the only member: the others are lost, and their data is not used again",
    ),
    switch("strict-reconfig-check", "true", "Refuse changes of members that would cost the quorum"),
    switch("pre-vote", "true", "Ask for votes before a term begins"),
    full("max-learners", "1", "Most learners in the cluster"),
    full("auto-compaction-retention", "0", "How much history automatic compaction leaves; 0 turns it off"),
    full("auto-compaction-mode", "periodic", "periodic, or revision"),
    full("watch-progress-notify-interval", "10m", "Time between progress notifications of a watch"),
    switch("enable-grpc-gateway", "true", "Serve the API as JSON under /v3/ as well"),
    full("cors", "*", "Origins of pages that may read responses by HTTP, separated by commas"),
    full("host-whitelist", "*", "Host names for which HTTP is served without TLS, separated by commas"),
    switch("initial-corrupt-check", "false", "Compare this member with the others before it serves clients"),
    switch("compact-hash-check-enabled", "false", "Compare members by the checkpoints that compactions make"),
    full("compact-hash-check-time", "1m", "Time between two looks of the leader at them"),
    full("corrupt-check-time", "0s", "Time between two comparisons of all members as they are; 0 for none"),
    full(
        "forebay-scrub-interval",
        "168h",
        "Time between two passes over all of the state, which compare it with its sums; 0 for none",
    ),
    full("feature-gates", "", "InitialCorruptCheck=true and CompactHashCheck=true turn these checks on"),
    full("cert-file", "", "Certificate of this member for clients, as PEM"),
    full("key-file", "", "Its key, as PEM"),
    switch(
        "client-cert-auth",
        "false",
        "Clients must have a certificate; needs --trusted-ca-file, which demands it as well",
    ),
    full("trusted-ca-file", "", "CAs of clients' certificates, as PEM: clients must have one"),
    full("client-crl-file", "", "Revoked certificates of clients, as PEM or DER; read again when it changes"),
    full("peer-cert-file", "", "Certificate of this member for other members, as PEM"),
    full("peer-key-file", "", "Its key, as PEM"),
    switch(
        "peer-client-cert-auth",
        "false",
        "Other members must have a certificate; needs --peer-trusted-ca-file, which demands it as well",
    ),
    full(
        "peer-trusted-ca-file",
        "",
        "CAs of members' certificates, as PEM: members must have one to call this one [default: the system's, for calls alone]",
    ),
    full("peer-crl-file", "", "Revoked certificates of members, as PEM or DER; read again when it changes"),
    full(
        "peer-client-cert-file",
        "",
        "Certificate with which this member calls others [default: --peer-cert-file]",
    ),
    full("peer-client-key-file", "", "Its key"),
    full("peer-cert-allowed-cn", "", "Common names that members may have, separated by commas"),
    full(
        "cipher-suites",
        "",
        "Suites of TLS 1.2, separated by commas [default: all]; those of 1.3 are always on",
    ),
    full("tls-min-version", "TLS1.2", "TLS1.2 or TLS1.3"),
    full("tls-max-version", "", "TLS1.2 or TLS1.3"),
    full("auth-token", "simple", "simple, or jwt,pub-key=FILE,priv-key=FILE,sign-method=METHOD,ttl=10m"),
    full("auth-token-ttl", "300", "Seconds that a simple token lives after its last use"),
    full("bcrypt-cost", "10", "How costly hashes of passwords are, from 4 to 31"),
    full("log-level", "info", "debug, info, warn or error"),
    full("logger", "zap", "Accepted: logs go to the standard error output"),
    full("log-outputs", "default", "Accepted: logs go to the standard error output"),
    full("log-format", "json", "json, or console: lines of text"),
    none_switch("initial-election-tick-advance", "true"),
    none("max-snapshots", "5"),
    none("max-wals", "5"),
    none_switch("memory-mlock", "false"),
    none("backend-bbolt-freelist-type", "map"),
    none("backend-batch-interval", ""),
    none("backend-batch-limit", "0"),
    none_switch("socket-reuse-port", "false"),
    none_switch("socket-reuse-address", "false"),
    none("grpc-keepalive-min-time", "5s"),
    none("raft-read-timeout", "5s"),
    none("raft-write-timeout", "5s"),
    none("client-cert-file", ""),
    none("client-key-file", ""),
    none("self-signed-cert-validity", "1"),
    none_switch("peer-skip-client-san-verification", "false"),
    none_switch("enable-pprof", "false"),
    none("metrics", "basic"),
    none_switch("enable-log-rotation", "false"),
    none("log-rotation-config-json", ""),
    none("warning-unary-request-duration", "300ms"),
    none("warning-apply-duration", "100ms"),
    none_switch("enable-distributed-tracing", "false"),
    none("distributed-tracing-address", "localhost:4317"),
    none("distributed-tracing-service-name", "etcd"),
    none("distributed-tracing-instance-id", ""),
    none("distributed-tracing-sampling-rate", "0"),
    none("compaction-batch-limit", "1000"),
    none("compaction-sleep-interval", ""),
    none("bootstrap-defrag-threshold-megabytes", "0"),
    none("downgrade-check-time", ""),
    none_switch("memory-mlock-enabled", "false"),
    none_switch("enable-lease-checkpoint", "false"),
    none_switch("enable-lease-checkpoint-persist", "false"),
    none_switch("txn-mode-write-with-shared-buffer", "true"),
    none_switch("stop-grpc-service-on-defrag", "false"),
    none("v2-deprecation", "not-yet"),
    none_switch("enable-v2", "false"),
    none_switch("unsafe-no-fsync", "false"),
    none("proxy", "off"),
    none("discovery-fallback", "exit"),
    none("discovery-dial-timeout", "2s"),
    none("discovery-request-timeout", "5s"),
    none("discovery-keepalive-time", "2s"),
    none("discovery-keepalive-timeout", "6s"),
    none_switch("discovery-insecure-transport", "true"),
    none_switch("discovery-insecure-skip-tls-verify", "false"),
    refused("discovery", "", DISCOVERY),
    refused("discovery-token", "", DISCOVERY),
    refused("discovery-endpoints", "", DISCOVERY),
    refused("discovery-cert", "", DISCOVERY),
    refused("discovery-key", "", DISCOVERY),
    refused("discovery-cacert", "", DISCOVERY),
    refused("discovery-user", "", DISCOVERY),
    refused("discovery-password", "", DISCOVERY),
    refused("discovery-proxy", "", DISCOVERY),
    refused("discovery-srv", "", DISCOVERY),
    refused("discovery-srv-name", "", DISCOVERY),
    refused_switch("auto-tls", AUTO_TLS),
    refused_switch("peer-auto-tls", AUTO_TLS),
    refused("client-cert-allowed-hostname", "", NAMES),
    refused("peer-cert-allowed-hostname", "", NAMES),
];

/// The flags of `snapshot restore`: some of those above, with its own.
pub(crate) const OF_RESTORE: &[&str] = &[
    "name",
    "data-dir",
    "wal-dir",
    "initial-cluster",
    "initial-cluster-token",
    "initial-advertise-peer-urls",
];
pub(crate) const RESTORE: &[Flag] = &[
    switch("skip-hash-check", "false", "Take a file without a right checksum, such as a copy of etcd's db"),
    full("bump-revision", "0", "How much to raise the revision, so that clients never see it go back"),
    switch("mark-compacted", "false", "Count all history as compacted; goes together with --bump-revision"),
    none("initial-memory-map-size", ""),
];

/// Prefixes with which etcd has had some of the flags.
const FORMER_PREFIX: &str = "experimental-";

/// Returns the flag of this name, also for its former name `experimental-NAME`.
pub(crate) fn find(name: &str) -> Option<&'static Flag> {
    let exact = |name: &str| FLAGS.iter().find(|flag| flag.name == name);
    exact(name).or_else(|| exact(name.strip_prefix(FORMER_PREFIX)?))
}

/// Returns the default of a flag, also of one of `snapshot restore`.
pub(crate) fn default_of(name: &str) -> &'static str {
    let of_restore = || RESTORE.iter().find(|flag| flag.name == name);
    find(name).or_else(of_restore).map_or("", |flag| flag.default)
}
