//! The command `snapshot restore`, with the flags of `etcdutl snapshot restore`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::flags::{self, Flag};
use super::urls::Url;
use super::{
    ConfigError, FlagValues, Invocation, ParseOutcome, argument, not_parsed, refused, with_two_dashes,
};

/// A snapshot to restore: the settings of `forebay-etcd snapshot restore`.
#[derive(Clone, Debug, PartialEq)]
pub struct Restore {
    pub(crate) file: PathBuf,
    pub(crate) data_dir: PathBuf,
    pub(crate) log_dir: Option<PathBuf>,
    pub(crate) initial_cluster: BTreeMap<String, Vec<Url>>,
    pub(crate) initial_cluster_token: String,
    pub(crate) initial_advertise_peer_urls: Vec<Url>,
    pub(crate) is_sum_checked: bool,
    pub(crate) bump_revision: u64,
}

const FILE: &str = "FILE";

/// Returns what follows the command on a command line that has it.
pub(super) fn arguments(arguments: &[String]) -> Option<&[String]> {
    let (command, rest) = arguments.get(1..)?.split_first()?;
    (command == "snapshot").then_some(rest)
}

fn all_flags() -> impl Iterator<Item = &'static Flag> {
    flags::OF_RESTORE.iter().filter_map(|name| flags::find(name)).chain(flags::RESTORE)
}

fn command() -> clap::Command {
    let mut command = clap::Command::new("forebay-etcd snapshot restore")
        .about("Makes a data directory for a member of a new cluster of a snapshot, of etcd or of this server")
        .after_help(
            "Each member of the new cluster restores the same file with its own name and URLs, and is started with the same \
             --initial-cluster and --initial-cluster-token then.",
        )
        .arg(clap::Arg::new(FILE).help("The file that etcdctl snapshot save has written").required(true));
    for flag in all_flags() {
        command = command.arg(argument(flag));
    }
    command
}

/// Parses what follows `snapshot`.
pub(super) fn parse(rest: &[String]) -> Result<Invocation, ConfigError> {
    let Some((restore, rest)) = rest.split_first().filter(|(command, _)| *command == "restore") else {
        let text =
            "the command is snapshot restore FILE: etcdctl has those that save a snapshot and look at it";
        return Err(ConfigError(text.to_owned()));
    };
    let arguments = std::iter::once(restore.clone()).chain(rest.iter().cloned().map(with_two_dashes));
    let matches = match command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => {
            return match not_parsed(&error)? {
                ParseOutcome::Print(text) => Ok(Invocation::Print(text)),
                ParseOutcome::Values(_) => Err(ConfigError(error.to_string())),
            };
        }
    };
    let mut given = FlagValues { values: BTreeMap::new(), warnings: Vec::new() };
    given.take(&matches, all_flags());
    let name = given.name()?;
    let data_dir = given.data_dir(&name);
    let peer_urls = given.urls("initial-advertise-peer-urls")?;
    let peer_urls = given.some_urls("initial-advertise-peer-urls", peer_urls)?;
    let bump_revision: u64 = given.number("bump-revision", 0, u64::MAX)?;
    if given.switch("mark-compacted")? != (bump_revision > 0) {
        let remedy = "--mark-compacted goes together with it, if it is more than 0, because revisions in between have no events";
        return Err(refused("bump-revision", given.text("bump-revision"), remedy));
    }
    Ok(Invocation::Restore(Box::new(Restore {
        file: matches.get_one::<String>(FILE).map(PathBuf::from).unwrap_or_default(),
        data_dir,
        log_dir: given.path("wal-dir"),
        initial_cluster: given.initial_cluster(&name, &peer_urls)?,
        initial_cluster_token: given.text("initial-cluster-token").to_owned(),
        initial_advertise_peer_urls: peer_urls,
        is_sum_checked: !given.switch("skip-hash-check")?,
        bump_revision,
    })))
}
