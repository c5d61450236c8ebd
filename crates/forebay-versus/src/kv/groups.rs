//! Groups of stores that are on the disk at once.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::Options;
use super::data::ENTRY_BYTES;

/// Stores with data of their own, and the most disk space they take for each byte of keys and values, in
/// percent: after a load, plus the temporary growth by overwriting.
const STORES: &[(&str, u64)] =
    &[("raw", 101), ("forebay", 120), ("heed", 150), ("redb", 160), ("fjall", 120), ("rocksdb", 120)];

/// Room for the stores of `puts`, which are removed after each sample, and for small files.
const ROOM_BYTES: u64 = 2_000_000_000;

/// Returns the stores by groups whose data fit on the disk at once; the disk itself is part of each.
pub(super) fn passes(options: &Options, rows: &[&'static str]) -> Result<Vec<Vec<&'static str>>> {
    let wanted = |store: &str| rows.iter().any(|row| store_of(row) == store);
    let first: Vec<_> =
        STORES.iter().map(|(store, _)| *store).take(1).filter(|store| wanted(store)).collect();
    let most = options.disk_gb * 1_000_000_000;
    let mut passes = vec![first.clone()];
    for (store, _) in STORES[1..].iter().filter(|(store, _)| wanted(store)) {
        let last = passes.len() - 1;
        let mut grown = passes[last].clone();
        grown.push(store);
        if bytes_of(&grown, options.keys) <= most {
            passes[last] = grown;
            continue;
        }
        let mut next = first.clone();
        next.push(store);
        let need = bytes_of(&next, options.keys);
        ensure!(
            need <= most,
            "--disk-gb is too little for {}: it needs {}",
            next.join(" and "),
            need / 1_000_000_000 + 1
        );
        if passes[last].len() > first.len() {
            passes.push(next);
        } else {
            passes[last] = next;
        }
    }
    Ok(passes)
}

pub(super) fn bytes_of(stores: &[&str], keys: u64) -> u64 {
    let percent: u64 =
        STORES.iter().filter(|(store, _)| stores.contains(store)).map(|(_, percent)| percent).sum();
    keys * ENTRY_BYTES / 100 * percent + ROOM_BYTES
}

/// Returns the store whose data a row works on.
pub(super) fn store_of(row: &str) -> &str {
    row.split('-').next().unwrap_or(row)
}

/// Checks that the disk has room.
///
/// # Errors
/// When it has too little.
pub(super) fn check_room(dir: &Path, need: u64) -> Result<()> {
    let stat = rustix::fs::statvfs(dir).with_context(|| format!("looking at {}", dir.display()))?;
    let free = stat.f_bavail * stat.f_frsize;
    ensure!(
        free > need,
        "{} has {} GB free, the data need up to {} GB; use fewer --keys, less --disk-gb or another --dir",
        dir.display(),
        free / 1_000_000_000,
        need / 1_000_000_000 + 1
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::run::ROWS;
    use super::*;
    use crate::cli::{Cli, Command};

    fn options(arguments: &[&str]) -> Options {
        match Cli::parse_from([&["forebay-versus", "kv"], arguments].concat()).command {
            Command::Kv(options) => options,
            _ => unreachable!("the experiment was named"),
        }
    }

    #[test]
    fn rows_whose_data_do_not_fit_at_once_run_in_groups_and_each_has_the_disk() {
        let all = passes(&options(&["--keys", "400000"]), ROWS).unwrap();
        assert_eq!(all, [["raw", "forebay", "heed", "redb", "fjall", "rocksdb"]]);
        let options = options(&["--disk-gb", "16"]);
        let groups = passes(&options, ROWS).unwrap();
        assert!(groups.len() > 1 && groups.iter().all(|group| group[0] == "raw" && group.len() > 1));
        assert!(groups.iter().all(|group| bytes_of(group, options.keys) <= 16_000_000_000));
        let stores: Vec<_> = groups.iter().flat_map(|group| &group[1..]).copied().collect();
        assert_eq!(stores, ["forebay", "heed", "redb", "fjall", "rocksdb"]);
        passes(&self::options(&["--disk-gb", "5"]), ROWS).unwrap_err();
    }
}
