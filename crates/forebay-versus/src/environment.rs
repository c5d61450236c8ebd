//! The machine of the figures, without which a figure means nothing.

use serde_json::{Value, json};

/// Returns machine, kernel and versions of the peers.
pub(crate) fn describe() -> Value {
    let uname = rustix::system::uname();
    let cpu = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(": ")?.1.to_owned())
    });
    let memory_bytes = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        text.lines().next()?.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
    });
    let seconds =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    json!({
        "kernel": format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
        "architecture": uname.machine().to_string_lossy(),
        "cpu_model": cpu,
        "cpus_allowed": cores(),
        "memory_total_bytes": memory_bytes,
        "load_average_at_start": load_average(),
        "time_unix_s": seconds,
        "peers": {
            "glommio": "0.9", "compio": "0.19", "monoio": "0.2", "tokio-uring": "0.5", "tokio": "1", "io-uring": "0.7",
            "raft-engine": "0.4.2", "okaywal": "0.3.1",
            "fjall": "3.1", "heed": "0.22", "redb": "4.4", "rocksdb": "0.24 (10.4)",
        },
    })
}

/// Returns the number of cores that this process may use; the multi-threaded Tokio rows have that many
/// workers.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the system's load average over one minute: other work on the machine makes every figure worthless.
pub(crate) fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}
