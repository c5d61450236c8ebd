//! The axes: at each point ours and a peer do the same work.

use std::ops::RangeInclusive;

use ::forebay::{DriverChoice, Open};

use super::etcd;
use crate::peers::{blocking, forebay};
use crate::prelude::*;
use crate::run::Sample;
use crate::{kv, objects, wal};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The file that is read, and the one that is written.
pub(super) const FILE_BYTES: u64 = 256 * MIB;
/// The object that ranges are read from.
const OBJECT_BYTES: u64 = 64 * MIB;
/// Bytes of all values of a store, where they are long enough; and its memory, in which they do not fit.
const STORE_BYTES: u64 = 64 * MIB;
const STORE_MEMORY_BYTES: u64 = 64 * MIB;
/// The store to compare with.
const STORE: &str = if cfg!(feature = "rocksdb") { "rocksdb" } else { "fjall" };

/// The name of the axis of etcd, which needs separate programs.
pub(super) const ETCD: &str = "etcd-put";

/// A number that a user chooses.
pub(super) struct Axis {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) range: RangeInclusive<u64>,
    /// Axes of forebay-test/SWEEPS.md whose constants it crosses.
    pub(super) crosses: &'static [&'static str],
    pub(super) ours: Sample,
    /// The row of the peer, and its sample.
    pub(super) peer: (&'static str, Sample),
    /// The part of the name that a figure has, its metric and its unit.
    pub(super) figures: &'static [(&'static str, &'static str, &'static str)],
    pub(super) input: Input,
    /// Returns the parameters of a point.
    pub(super) work: fn(u64) -> Value,
}

/// The files that a sample has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// A file that is not in the page cache.
    Cold,
    /// The same, in the page cache.
    Warm,
    /// A file to be written.
    Target,
    /// A directory of the sample's own.
    Directory,
    /// A directory with an object, in the page cache.
    Object,
}

impl Axis {
    /// Returns the maximum bytes that its samples have on the disk at a time.
    pub(super) fn room_bytes(&self, sample_s: f64) -> u64 {
        match (self.input, self.peer.0) {
            (Input::Cold | Input::Warm | Input::Target, _) => FILE_BYTES,
            (Input::Object, _) => OBJECT_BYTES,
            (Input::Directory, "raft-engine") => wal::ROOM_BYTES + (sample_s * wal::ROOM_BYTES_PER_S) as u64,
            (Input::Directory, _) => 16 * STORE_BYTES,
        }
    }
}

/// Every axis.
pub(super) static AXES: [Axis; 11] = [
    Axis {
        name: "core-read-direct",
        unit: "B",
        range: 1..=9 * MIB,
        crosses: &["core read length"],
        ours: |work| forebay::random_from_tokio(work, true, DriverChoice::Auto, Open::read()),
        peer: ("std-fs", blocking::random_pread),
        figures: &[("", "iops", "reads/s")],
        input: Input::Cold,
        work: |at| json!({ "block_bytes": at, "depth": 1, "file_bytes": FILE_BYTES }),
    },
    Axis {
        name: "core-read-adaptive",
        unit: "B",
        range: 1..=9 * MIB,
        crosses: &["core read length"],
        ours: |work| forebay::random_from_tokio(work, true, DriverChoice::Auto, Open::read().adaptive()),
        peer: ("std-fs", blocking::random_std_fs),
        figures: &[("", "iops", "reads/s")],
        input: Input::Warm,
        work: |at| json!({ "block_bytes": at, "depth": 1, "file_bytes": FILE_BYTES }),
    },
    Axis {
        name: "core-write",
        unit: "B",
        range: 1..=MIB,
        crosses: &["core write length"],
        ours: forebay::writes_from_tokio,
        peer: ("std-fs", blocking::writes_std_fs),
        figures: &[("", "iops", "durable writes/s")],
        input: Input::Target,
        work: |at| json!({ "block_bytes": at, "depth": 1, "file_bytes": FILE_BYTES }),
    },
    Axis {
        name: "core-depth",
        unit: "reads of 4 KiB at once",
        range: 1..=1024,
        crosses: &["core depth"],
        ours: |work| forebay::random_from_tokio(work, true, DriverChoice::Auto, Open::read()),
        peer: ("std-fs", blocking::random_pread),
        figures: &[("", "iops", "reads/s")],
        input: Input::Cold,
        work: |at| json!({ "depth": at, "file_bytes": FILE_BYTES }),
    },
    Axis {
        name: "log-record",
        unit: "B",
        range: 16..=512 * KIB,
        crosses: &["log record"],
        ours: wal::forebay_growing,
        peer: ("raft-engine", wal::raft_engine_growing),
        figures: &[("", "iops", "durable appends/s")],
        input: Input::Directory,
        work: |at| json!({ "record_bytes": at, "writers": 16 }),
    },
    Axis {
        name: "log-appenders",
        unit: "appends of 256 B at once",
        range: 1..=1024,
        crosses: &["log appenders"],
        ours: wal::forebay_growing,
        peer: ("raft-engine", wal::raft_engine_growing),
        figures: &[("", "iops", "durable appends/s")],
        input: Input::Directory,
        work: |at| json!({ "record_bytes": 256, "writers": at }),
    },
    Axis {
        name: "store-value",
        unit: "B",
        range: 16..=512 * KIB,
        crosses: &[
            "store value of a get",
            "store value of a put",
            "store value of a load",
            "store value of a range of ten",
        ],
        ours: kv::sweep,
        peer: (STORE, kv::sweep),
        figures: &[
            ("put", "iops", "durable puts/s"),
            ("get", "gets_after_per_s", "gets/s"),
            ("scan", "scans_per_s", "scans of ten/s"),
        ],
        input: Input::Directory,
        work: |at| {
            let keys = (STORE_BYTES / at).clamp(128, 8192);
            json!({ "record_bytes": at, "keys": keys, "memory_bytes": STORE_MEMORY_BYTES })
        },
    },
    Axis {
        name: "object-get",
        unit: "B",
        range: 1..=9 * MIB,
        crosses: &["object of a get"],
        ours: objects::one_object,
        peer: ("local", objects::one_object),
        figures: &[("", "iops", "gets/s")],
        input: Input::Object,
        work: |at| json!({ "file_bytes": at }),
    },
    Axis {
        name: "object-range",
        unit: "B",
        range: 1..=9 * MIB,
        crosses: &["object range"],
        ours: objects::one_object,
        peer: ("local", objects::one_object),
        figures: &[("", "iops", "ranges/s")],
        input: Input::Object,
        work: |at| json!({ "ranges": 1, "block_bytes": at, "file_bytes": OBJECT_BYTES }),
    },
    Axis {
        name: "object-ranges",
        unit: "ranges of 4 KiB",
        range: 1..=2048,
        crosses: &["object ranges"],
        ours: objects::one_object,
        peer: ("local", objects::one_object),
        figures: &[("", "iops", "batches/s")],
        input: Input::Object,
        work: |at| json!({ "ranges": at, "file_bytes": OBJECT_BYTES }),
    },
    Axis {
        name: ETCD,
        unit: "B",
        range: 1..=MIB,
        crosses: &[],
        ours: etcd::puts,
        peer: ("etcd", etcd::puts),
        figures: &[("", "iops", "puts/s")],
        input: Input::Directory,
        work: |at| json!({ "record_bytes": at }),
    },
];

/// The names of all, for the command line.
pub(super) const NAMES: &[&str] = &[
    "core-read-direct",
    "core-read-adaptive",
    "core-write",
    "core-depth",
    "log-record",
    "log-appenders",
    "store-value",
    "object-get",
    "object-range",
    "object-ranges",
    ETCD,
];

/// Returns the axis of this name.
pub(super) fn find(name: &str) -> Result<&'static Axis> {
    AXES.iter().find(|axis| axis.name == name).with_context(|| format!("there is no axis {name}"))
}
