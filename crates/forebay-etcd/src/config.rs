//! The settings: etcd's flags, and its variables of the environment.

mod file;
pub(crate) mod flags;
mod restore_command;
pub(crate) mod urls;

pub use restore_command::Restore;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use flags::{FLAGS, Use};
use urls::Url;

use crate::version::Formats;

/// A client that reads nothing of a snapshot or a long range for this long has stopped, or its disk has.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(60);
/// How long a member runs before it changes the members with other voters there, as in etcd.
const HEALTH_INTERVAL: Duration = Duration::from_secs(5);
/// Quota without the flag, as in etcd.
const QUOTA_BYTES_DEFAULT: u64 = 2 << 30;

/// A setting that cannot be used: a sentence with the flag, its value and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// The command that a command line asks for.
#[derive(Clone, Debug)]
pub enum Invocation {
    /// To serve with these settings.
    Serve(Box<Config>),
    /// To make a data directory of a snapshot.
    Restore(Box<Restore>),
    /// To print this text.
    Print(String),
}

/// How history is compacted automatically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AutoCompaction {
    Off,
    /// Leaves this much time.
    Periodic(Duration),
    /// Leaves this many revisions.
    Revision(i64),
}

/// Files of certificates and keys of one side: clients or peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) trusted_ca: Option<PathBuf>,
    pub(crate) crl: Option<PathBuf>,
    /// Callers must have a certificate, which a CA for them demands as well.
    pub(crate) is_client_cert_required: bool,
    /// Certificate and key for calls to others, where they differ.
    pub(crate) client_cert: Option<PathBuf>,
    pub(crate) client_key: Option<PathBuf>,
}

/// How tokens are made that a user has for a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AuthToken {
    /// Random tokens, which each member keeps for this long after their last use.
    Simple(Duration),
    Jwt(JwtOptions),
}

/// Tokens that are signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JwtOptions {
    pub(crate) sign_method: String,
    pub(crate) public_key: Option<PathBuf>,
    pub(crate) private_key: Option<PathBuf>,
    pub(crate) ttl: Duration,
}

/// Versions of TLS that are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TlsVersions {
    pub(crate) is_1_2_allowed: bool,
    pub(crate) is_1_3_allowed: bool,
}

/// Names that a flag allows: all if it is empty, or has `*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names(BTreeSet<String>);

impl Names {
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.contains("*") || self.0.contains(name)
    }
}

/// The settings of a server: etcd's flags, parsed and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub(crate) name: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) log_dir: Option<PathBuf>,
    pub(crate) snapshot_count: u64,
    pub(crate) catchup_entries: u64,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) election_timeout: Duration,
    pub(crate) listen_peer_urls: Vec<Url>,
    pub(crate) listen_client_urls: Vec<Url>,
    pub(crate) listen_client_http_urls: Vec<Url>,
    pub(crate) listen_metrics_urls: Vec<Url>,
    /// Most bytes of the state; 0 means no limit.
    pub(crate) quota_bytes: u64,
    pub(crate) max_txn_ops: usize,
    pub(crate) max_request_bytes: usize,
    pub(crate) max_concurrent_streams: u32,
    pub(crate) keepalive_interval: Option<Duration>,
    pub(crate) keepalive_timeout: Option<Duration>,
    pub(crate) initial_advertise_peer_urls: Vec<Url>,
    pub(crate) initial_cluster: BTreeMap<String, Vec<Url>>,
    pub(crate) is_cluster_existing: bool,
    /// Whether the other members are lost for good.
    pub(crate) is_new_cluster_forced: bool,
    pub(crate) initial_cluster_token: String,
    pub(crate) advertise_client_urls: Vec<Url>,
    pub(crate) is_reconfig_check_strict: bool,
    /// Not a flag: how long a member runs before it counts those that it reaches.
    pub(crate) health_interval: Duration,
    pub(crate) is_pre_vote_on: bool,
    pub(crate) max_learners: usize,
    pub(crate) auto_compaction: AutoCompaction,
    pub(crate) watch_progress_interval: Duration,
    pub(crate) is_gateway_on: bool,
    /// Origins of pages that may read responses.
    pub(crate) cors: Names,
    /// Names under which the server may be asked without TLS.
    pub(crate) host_whitelist: Names,
    /// Whether members are compared at the start.
    pub(crate) is_initial_check_on: bool,
    /// How often the leader looks at the members' checkpoints.
    pub(crate) checkpoint_interval: Duration,
    /// Whether it compares them then.
    pub(crate) is_checkpoint_check_on: bool,
    /// How often the leader makes a checkpoint, and compares members by it; zero: never.
    pub(crate) check_interval: Duration,
    /// How often all of the state is read and compared with its sums; zero: never.
    pub(crate) scrub_interval: Duration,
    /// Not a flag: etcd waits forever.
    pub(crate) snapshot_patience: Duration,
    pub(crate) client_tls: TlsFiles,
    pub(crate) peer_tls: TlsFiles,
    /// Common names that members may have; all, if empty.
    pub(crate) peer_names: BTreeSet<String>,
    pub(crate) tls_versions: TlsVersions,
    /// Names of suites of TLS 1.2; all, if empty.
    pub(crate) cipher_suites: Vec<String>,
    pub(crate) auth_token: AuthToken,
    pub(crate) bcrypt_cost: u32,
    pub(crate) log_level: String,
    pub(crate) is_log_json: bool,
    /// Not a flag: those of this version.
    pub(crate) formats: Formats,
    /// Sentences to log before the start.
    pub(crate) warnings: Vec<String>,
}

impl Config {
    /// Parses a command line, including the program's name, and the environment variables that start with `ETCD_`. The command
    /// line overrides the environment; with `--config-file` the file is read and both are ignored.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn parse<A, V>(arguments: A, variables: V) -> Result<Invocation, ConfigError>
    where
        A: IntoIterator<Item = String>,
        V: IntoIterator<Item = (String, String)>,
    {
        let arguments: Vec<String> = arguments.into_iter().collect();
        if let Some(rest) = restore_command::arguments(&arguments) {
            return restore_command::parse(rest);
        }
        let given = match FlagValues::parse(arguments, variables)? {
            ParseOutcome::Values(given) => given,
            ParseOutcome::Print(text) => return Ok(Invocation::Print(text)),
        };
        Ok(Invocation::Serve(Box::new(given.config()?)))
    }

    /// Returns the level of log events: `debug`, `info`, `warn` or `error`.
    pub fn log_level(&self) -> &str {
        &self.log_level
    }

    /// Returns whether log events are lines of JSON, with etcd's fields, or of text.
    pub fn is_log_json(&self) -> bool {
        self.is_log_json
    }

    /// Returns the settings that have no effect here.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the directory of everything that this member keeps.
    pub(crate) fn member_dir(&self) -> PathBuf {
        self.data_dir.join("member")
    }
}

/// Values by the names of their flags.
struct FlagValues {
    values: BTreeMap<&'static str, String>,
    warnings: Vec<String>,
}

enum ParseOutcome {
    Values(FlagValues),
    Print(String),
}

fn command() -> clap::Command {
    let version = format!("{} (API of etcd {})", env!("CARGO_PKG_VERSION"), crate::version::ETCD_VERSION);
    let mut command = clap::Command::new("forebay-etcd")
        .about("A server for etcd's API, on Forebay")
        .version(version)
        .after_help(
            "Each flag is also a variable: --data-dir is ETCD_DATA_DIR. A flag goes before its variable.\n\n\
             forebay-etcd snapshot restore FILE makes a data directory of a snapshot; it has a --help of its own.",
        );
    for flag in FLAGS {
        command = command.arg(argument(flag).alias(format!("experimental-{}", flag.name)));
    }
    command
}

fn argument(flag: &flags::Flag) -> clap::Arg {
    let argument = clap::Arg::new(flag.name)
        .long(flag.name)
        .value_name("VALUE")
        .action(clap::ArgAction::Append)
        .allow_negative_numbers(true)
        .hide(flag.used != Use::Full)
        .help(match flag.default {
            "" => flag.help.to_owned(),
            default => format!("{} [default: {default}]", flag.help),
        });
    if flag.is_switch {
        return argument.num_args(0..=1).require_equals(true).default_missing_value("true");
    }
    argument
}

/// A flag may start with one dash, as in Go.
fn with_two_dashes(argument: String) -> String {
    let name = argument.strip_prefix('-').unwrap_or_default();
    let is_long = name.len() > 1 && name.starts_with(|first: char| first.is_ascii_lowercase());
    if is_long { format!("-{argument}") } else { argument }
}

impl FlagValues {
    fn parse<A, V>(arguments: A, variables: V) -> Result<ParseOutcome, ConfigError>
    where
        A: IntoIterator<Item = String>,
        V: IntoIterator<Item = (String, String)>,
    {
        let arguments = arguments.into_iter().map(with_two_dashes);
        let matches = match command().try_get_matches_from(arguments) {
            Ok(matches) => matches,
            Err(error) => return not_parsed(&error),
        };
        let mut given = FlagValues { values: BTreeMap::new(), warnings: Vec::new() };
        given.take(&matches, FLAGS);
        for (variable, value) in variables {
            let Some(rest) = variable.strip_prefix("ETCD_") else { continue };
            let name = rest.to_lowercase().replace('_', "-");
            match flags::find(&name) {
                // etcd ignores empty values.
                Some(flag) if !value.is_empty() => {
                    given.values.entry(flag.name).or_insert(value);
                }
                Some(_) => {}
                None => given.warnings.push(format!("the variable {variable} is not of any flag")),
            }
        }
        if let Some(path) = given.path("config-file") {
            given = FlagValues::of_file(&path, given)?;
        }
        given.check_unused()?;
        Ok(ParseOutcome::Values(given))
    }

    /// Returns the values of a file, which replace the given values, with a warning for each of these.
    fn of_file(path: &Path, beside: FlagValues) -> Result<FlagValues, ConfigError> {
        let refused = |why: &str| refused("config-file", &path.display().to_string(), why);
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| refused(&format!("it cannot be read: {error}")))?;
        let settings = file::parse(&text).map_err(|why| refused(&why))?;
        let mut given = FlagValues { values: BTreeMap::new(), warnings: beside.warnings };
        for name in beside.values.keys().filter(|name| **name != "config-file") {
            given.warnings.push(format!("--{name} is passed over: --config-file counts alone, as in etcd"));
        }
        for (name, value) in settings {
            match flags::find(&name) {
                Some(flag) => {
                    given.values.insert(flag.name, value);
                }
                None => given.warnings.push(format!("{name} of {} is not of any flag", path.display())),
            }
        }
        Ok(given)
    }

    fn take<'a>(&mut self, matches: &clap::ArgMatches, flags: impl IntoIterator<Item = &'a flags::Flag>) {
        for flag in flags {
            // The last one counts, as in etcd.
            if let Some(value) =
                matches.get_many::<String>(flag.name).and_then(|mut values| values.next_back())
            {
                self.values.insert(flag.name, value.clone());
            }
        }
    }

    /// Warns of flags without effect, and refuses those that must not be passed over.
    fn check_unused(&mut self) -> Result<(), ConfigError> {
        for flag in FLAGS {
            let Some(value) = self.values.get(flag.name).filter(|value| *value != flag.default) else {
                continue;
            };
            match flag.used {
                Use::Full => {}
                Use::None => {
                    self.warnings.push(format!("--{} has no effect here, and is passed over", flag.name));
                }
                Use::Refused(_) if flag.is_switch && value == "false" => {}
                Use::Refused(why) => return Err(refused(flag.name, value, why)),
            }
        }
        Ok(())
    }

    fn is_given(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    fn text(&self, name: &'static str) -> &str {
        self.values.get(name).map_or_else(|| flags::default_of(name), String::as_str)
    }

    fn number<T: FromStr + PartialOrd + fmt::Display>(
        &self,
        name: &'static str,
        least: T,
        most: T,
    ) -> Result<T, ConfigError> {
        let text = self.text(name);
        let number: Option<T> = text.parse().ok();
        number
            .filter(|number| (&least..=&most).contains(&number))
            .ok_or_else(|| refused(name, text, &format!("give a whole number from {least} to {most}")))
    }

    fn switch(&self, name: &'static str) -> Result<bool, ConfigError> {
        match self.text(name) {
            "true" | "1" | "t" | "T" | "TRUE" | "True" => Ok(true),
            "false" | "0" | "f" | "F" | "FALSE" | "False" => Ok(false),
            other => Err(refused(name, other, "give true or false")),
        }
    }

    fn duration(&self, name: &'static str) -> Result<Duration, ConfigError> {
        let text = self.text(name);
        let remedy = "give a duration such as 300ms, 5s or 1h30m, of at most 292 years";
        duration(text).ok_or_else(|| refused(name, text, remedy))
    }

    fn urls(&self, name: &'static str) -> Result<Vec<Url>, ConfigError> {
        let text = self.text(name);
        // Members call each other by TCP.
        let parse = if name.contains("peer") { Url::parse } else { Url::of_clients };
        urls::parse_list(text, parse).map_err(|reason| refused(name, text, &reason))
    }

    fn listen_urls(&self, name: &'static str) -> Result<Vec<Url>, ConfigError> {
        let urls = self.urls(name)?;
        let is_somewhere = |url: &Url| url.listen_address().is_some() || url.socket().is_some();
        if let Some(url) = urls.iter().find(|url| !is_somewhere(url)) {
            let remedy = "give an IP address to listen on, such as 0.0.0.0, or localhost";
            return Err(refused(name, &url.to_string(), remedy));
        }
        Ok(urls)
    }

    fn some_urls(&self, name: &'static str, urls: Vec<Url>) -> Result<Vec<Url>, ConfigError> {
        if urls.is_empty() {
            return Err(refused(name, self.text(name), "give one URL at least"));
        }
        Ok(urls)
    }

    fn names(&self, name: &'static str) -> Names {
        Names(self.text(name).split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect())
    }

    /// Each is as a browser sends it: without a path.
    fn origins(&self, name: &'static str) -> Result<Names, ConfigError> {
        let origins = self.names(name);
        let is_origin =
            |one: &String| *one == "*" || Url::parse(one).is_ok_and(|url| url.to_string() == *one);
        if let Some(one) = origins.0.iter().find(|one| !is_origin(one)) {
            let remedy = "give origins with a port, such as http://127.0.0.1:8080, or * for all";
            return Err(refused(name, one, remedy));
        }
        Ok(origins)
    }

    fn path(&self, name: &'static str) -> Option<PathBuf> {
        Some(self.text(name)).filter(|text| !text.is_empty()).map(PathBuf::from)
    }

    fn name(&self) -> Result<String, ConfigError> {
        let name = self.text("name").to_owned();
        if name.is_empty() || name.contains(['=', ',']) {
            return Err(refused("name", &name, "give a name without commas and equals signs"));
        }
        Ok(name)
    }

    fn data_dir(&self, name: &str) -> PathBuf {
        self.path("data-dir").unwrap_or_else(|| PathBuf::from(format!("{name}.etcd")))
    }

    fn config(mut self) -> Result<Config, ConfigError> {
        let name = self.name()?;
        let data_dir = self.data_dir(&name);
        let heartbeat: u64 = self.number("heartbeat-interval", 1, 60_000)?;
        let election: u64 = self.number("election-timeout", 10, 50_000)?;
        if election < 5 * heartbeat {
            let remedy = format!("give five times --heartbeat-interval at least, which is {heartbeat} ms");
            return Err(refused("election-timeout", self.text("election-timeout"), &remedy));
        }
        let peer_urls = self.urls("initial-advertise-peer-urls")?;
        let peer_urls = self.some_urls("initial-advertise-peer-urls", peer_urls)?;
        let is_cluster_existing = match self.text("initial-cluster-state") {
            "new" => false,
            "existing" => true,
            other => {
                let remedy = "give new, or existing to join a cluster that has this member already";
                return Err(refused("initial-cluster-state", other, remedy));
            }
        };
        let initial_cluster = self.initial_cluster(&name, &peer_urls)?;
        let quota: i64 = self.number("quota-backend-bytes", i64::MIN, i64::MAX)?;
        let quota_bytes = match quota {
            0 => QUOTA_BYTES_DEFAULT,
            quota => u64::try_from(quota).unwrap_or(0),
        };
        let client_urls = self.listen_urls("listen-client-urls")?;
        let client_urls = self.some_urls("listen-client-urls", client_urls)?;
        if self.is_given("listen-client-urls") && !self.is_given("advertise-client-urls") {
            let remedy = "say with --advertise-client-urls where clients reach this member, since --listen-client-urls is given";
            return Err(refused("listen-client-urls", self.text("listen-client-urls"), remedy));
        }
        self.warn_of_logging();
        self.warn_of_gates();
        let cipher_suites = self.cipher_suites()?;
        let mut config = Config {
            data_dir,
            log_dir: self.path("wal-dir"),
            snapshot_count: self.number("snapshot-count", 1, u64::MAX >> 1)?,
            catchup_entries: self.number("snapshot-catchup-entries", 0, u64::MAX >> 1)?,
            heartbeat_interval: Duration::from_millis(heartbeat),
            election_timeout: Duration::from_millis(election),
            listen_peer_urls: self.some_urls("listen-peer-urls", self.listen_urls("listen-peer-urls")?)?,
            listen_client_urls: client_urls,
            listen_client_http_urls: self.listen_urls("listen-client-http-urls")?,
            listen_metrics_urls: self.listen_urls("listen-metrics-urls")?,
            quota_bytes,
            max_txn_ops: self.number("max-txn-ops", 1, 1 << 20)?,
            max_request_bytes: self.number("max-request-bytes", 1024, MAX_REQUEST_BYTES)?,
            max_concurrent_streams: self.number("max-concurrent-streams", 1, u32::MAX)?,
            keepalive_interval: Some(self.duration("grpc-keepalive-interval")?)
                .filter(|time| !time.is_zero()),
            keepalive_timeout: Some(self.duration("grpc-keepalive-timeout")?).filter(|time| !time.is_zero()),
            initial_advertise_peer_urls: peer_urls,
            initial_cluster,
            is_cluster_existing,
            is_new_cluster_forced: self.switch("force-new-cluster")?,
            initial_cluster_token: self.text("initial-cluster-token").to_owned(),
            advertise_client_urls: self
                .some_urls("advertise-client-urls", self.urls("advertise-client-urls")?)?,
            is_reconfig_check_strict: self.switch("strict-reconfig-check")?,
            is_pre_vote_on: self.switch("pre-vote")?,
            max_learners: self.number("max-learners", 1, 1000)?,
            auto_compaction: self.auto_compaction()?,
            watch_progress_interval: self.duration("watch-progress-notify-interval")?,
            is_gateway_on: self.switch("enable-grpc-gateway")?,
            cors: self.origins("cors")?,
            host_whitelist: self.names("host-whitelist"),
            is_initial_check_on: self.switch("initial-corrupt-check")?
                || self.has_gate("InitialCorruptCheck")?,
            checkpoint_interval: self.checkpoint_interval()?,
            is_checkpoint_check_on: self.switch("compact-hash-check-enabled")?
                || self.has_gate("CompactHashCheck")?,
            check_interval: self.duration("corrupt-check-time")?,
            scrub_interval: self.duration("forebay-scrub-interval")?,
            snapshot_patience: SNAPSHOT_PATIENCE,
            health_interval: HEALTH_INTERVAL,
            client_tls: self.client_tls()?,
            peer_tls: self.peer_tls()?,
            peer_names: self.names("peer-cert-allowed-cn").0,
            tls_versions: self.tls_versions()?,
            cipher_suites,
            auth_token: self.auth_token()?,
            bcrypt_cost: self.number("bcrypt-cost", BCRYPT_COST_MIN, BCRYPT_COST_MAX)?,
            log_level: self.log_level()?.to_owned(),
            is_log_json: self.is_log_json()?,
            formats: Formats::OWN,
            warnings: std::mem::take(&mut self.warnings),
            name,
        };
        config.check_tls()?;
        Ok(config)
    }

    /// Logs are written to the standard error output as text, for any setting.
    fn warn_of_logging(&mut self) {
        let outputs = self.text("log-outputs").to_owned();
        if !["default", "stderr", "stdout", "systemd/journal"].contains(&&*outputs) {
            let text = format!("--log-outputs={outputs} has no effect: logs go to the standard error output");
            self.warnings.push(text);
        }
    }

    fn initial_cluster(
        &self,
        name: &str,
        peer_urls: &[Url],
    ) -> Result<BTreeMap<String, Vec<Url>>, ConfigError> {
        if !self.is_given("initial-cluster") {
            return Ok(BTreeMap::from([(name.to_owned(), peer_urls.to_vec())]));
        }
        let text = self.text("initial-cluster");
        let members =
            urls::parse_cluster(text).map_err(|reason| refused("initial-cluster", text, &reason))?;
        let Some(own) = members.get(name) else {
            let remedy = format!("it must have this member, whose --name is {name:?}");
            return Err(refused("initial-cluster", text, &remedy));
        };
        if own != peer_urls {
            let listed: Vec<String> = peer_urls.iter().map(Url::to_string).collect();
            let remedy = format!(
                "it must have for {name} the same URLs as --initial-advertise-peer-urls, which are {}",
                listed.join(",")
            );
            return Err(refused("initial-cluster", text, &remedy));
        }
        Ok(members)
    }

    fn checkpoint_interval(&self) -> Result<Duration, ConfigError> {
        let (name, time) = ("compact-hash-check-time", self.duration("compact-hash-check-time")?);
        let refused = || refused(name, self.text(name), "give a time of more than 0");
        Some(time).filter(|time| !time.is_zero()).ok_or_else(refused)
    }

    /// Returns the gates of features that are given, with their values.
    fn gates(&self) -> impl Iterator<Item = (&str, &str)> {
        let gates = self.text("feature-gates").split(',').map(str::trim).filter(|gate| !gate.is_empty());
        gates.map(|gate| gate.split_once('=').unwrap_or((gate, "")))
    }

    /// Returns whether the gate of a feature is open.
    fn has_gate(&self, name: &str) -> Result<bool, ConfigError> {
        match self.gates().filter(|(gate, _)| *gate == name).last() {
            None => Ok(false),
            Some((_, "true" | "True" | "TRUE" | "1" | "t" | "T")) => Ok(true),
            Some((_, "false" | "False" | "FALSE" | "0" | "f" | "F")) => Ok(false),
            Some(_) => {
                let remedy = format!("give {name}=true or {name}=false");
                Err(refused("feature-gates", self.text("feature-gates"), &remedy))
            }
        }
    }

    fn warn_of_gates(&mut self) {
        let known = ["InitialCorruptCheck", "CompactHashCheck"];
        let others = self.gates().filter(|(gate, _)| !known.contains(gate));
        let texts: Vec<String> = others
            .map(|(gate, _)| format!("--feature-gates: {gate} has no effect here, and is passed over"))
            .collect();
        self.warnings.extend(texts);
    }

    fn auto_compaction(&self) -> Result<AutoCompaction, ConfigError> {
        let (mode, name) = (self.text("auto-compaction-mode"), "auto-compaction-retention");
        let text = self.text(name);
        match mode {
            "periodic" => {
                // A number alone is hours.
                let time = match text.parse::<u32>() {
                    Ok(hours) => Some(Duration::from_secs(u64::from(hours) * 3600)),
                    Err(_) => duration(text),
                };
                let remedy = "give hours as a number, or a duration such as 30m; 0 turns it off";
                let time = time.ok_or_else(|| refused(name, text, remedy))?;
                Ok(if time.is_zero() { AutoCompaction::Off } else { AutoCompaction::Periodic(time) })
            }
            "revision" => {
                let remedy = "give a number of revisions; 0 turns it off";
                let revisions = text.parse::<i64>().ok().filter(|revisions| *revisions >= 0);
                let revisions = revisions.ok_or_else(|| refused(name, text, remedy))?;
                Ok(if revisions == 0 { AutoCompaction::Off } else { AutoCompaction::Revision(revisions) })
            }
            other => Err(refused("auto-compaction-mode", other, "give periodic or revision")),
        }
    }

    fn client_tls(&self) -> Result<TlsFiles, ConfigError> {
        Ok(TlsFiles {
            cert: self.path("cert-file"),
            key: self.path("key-file"),
            trusted_ca: self.path("trusted-ca-file"),
            crl: self.path("client-crl-file"),
            is_client_cert_required: self.switch("client-cert-auth")?,
            client_cert: None,
            client_key: None,
        })
    }

    fn peer_tls(&self) -> Result<TlsFiles, ConfigError> {
        Ok(TlsFiles {
            cert: self.path("peer-cert-file"),
            key: self.path("peer-key-file"),
            trusted_ca: self.path("peer-trusted-ca-file"),
            crl: self.path("peer-crl-file"),
            is_client_cert_required: self.switch("peer-client-cert-auth")?,
            client_cert: self.path("peer-client-cert-file"),
            client_key: self.path("peer-client-key-file"),
        })
    }

    /// Warns of unsupported suites, and leaves them out: the rest is no weaker than the list.
    fn cipher_suites(&mut self) -> Result<Vec<String>, ConfigError> {
        let text = self.text("cipher-suites").to_owned();
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        // etcd takes the former names of these as well.
        let names = names.map(|name| match name {
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305" => "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305" => "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
            name => name,
        });
        let (known, others): (Vec<&str>, Vec<&str>) = names.partition(|name| CIPHER_SUITES.contains(name));
        if known.is_empty() && !others.is_empty() {
            let remedy = format!("none of these is here; there are {}", CIPHER_SUITES.join(","));
            return Err(refused("cipher-suites", &text, &remedy));
        }
        for name in others {
            self.warnings.push(format!("--cipher-suites: {name} is not here, and is left out"));
        }
        Ok(known.into_iter().map(str::to_owned).collect())
    }

    fn tls_versions(&self) -> Result<TlsVersions, ConfigError> {
        let number = |name: &'static str, otherwise: u8| match self.text(name) {
            "" => Ok(otherwise),
            "TLS1.2" => Ok(2),
            "TLS1.3" => Ok(3),
            other => Err(refused(name, other, "give TLS1.2 or TLS1.3")),
        };
        let (least, most) = (number("tls-min-version", 2)?, number("tls-max-version", 3)?);
        if most < least {
            let remedy = "give --tls-min-version at least";
            return Err(refused("tls-max-version", self.text("tls-max-version"), remedy));
        }
        Ok(TlsVersions { is_1_2_allowed: least == 2, is_1_3_allowed: most == 3 })
    }

    fn auth_token(&self) -> Result<AuthToken, ConfigError> {
        let text = self.text("auth-token");
        let refused = |remedy: &str| refused("auth-token", text, remedy);
        let seconds: u64 = self.number("auth-token-ttl", 0, u64::from(u32::MAX))?;
        let mut parts = text.split(',');
        let kind = parts.next().unwrap_or_default();
        let mut options = BTreeMap::new();
        for part in parts {
            let pair = part.split_once('=').filter(|(_, value)| !value.contains('='));
            let (name, value) =
                pair.ok_or_else(|| refused("give options as NAME=VALUE, with commas between them"))?;
            if options.insert(name, value).is_some() {
                return Err(refused(&format!("give {name} once")));
            }
        }
        match kind {
            // As in etcd, 0 is the default.
            "simple" => Ok(AuthToken::Simple(match seconds {
                0 => TOKEN_TTL_DEFAULT,
                seconds => Duration::from_secs(seconds),
            })),
            "jwt" => {
                let mut take = |name: &str| options.remove(name).filter(|value| !value.is_empty());
                let ttl = take("ttl").map_or(Some(TOKEN_TTL_DEFAULT), duration);
                let jwt = JwtOptions {
                    sign_method: take("sign-method").unwrap_or_default().to_owned(),
                    public_key: take("pub-key").map(PathBuf::from),
                    private_key: take("priv-key").map(PathBuf::from),
                    ttl: ttl.ok_or_else(|| refused("give ttl as a duration such as 10m"))?,
                };
                match options.keys().next() {
                    Some(name) => Err(refused(&format!(
                        "{name} is not an option: there are sign-method, pub-key, priv-key and ttl"
                    ))),
                    None => Ok(AuthToken::Jwt(jwt)),
                }
            }
            _ => Err(refused("give simple, or jwt with its options")),
        }
    }

    fn is_log_json(&self) -> Result<bool, ConfigError> {
        match self.text("log-format") {
            "json" => Ok(true),
            "console" => Ok(false),
            other => Err(refused("log-format", other, "give json or console")),
        }
    }

    fn log_level(&self) -> Result<&str, ConfigError> {
        match self.text("log-level") {
            level @ ("debug" | "info" | "warn" | "error") => Ok(level),
            "panic" | "fatal" | "dpanic" => Ok("error"),
            other => Err(refused("log-level", other, "give debug, info, warn or error")),
        }
    }
}

/// The supported suites, by the names of Go: rustls's.
const CIPHER_SUITES: [&str; 9] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];
/// The costs that bcrypt has.
const BCRYPT_COST_MIN: u32 = 4;
const BCRYPT_COST_MAX: u32 = 31;
/// How long a token lives if nothing else is said, as in etcd.
const TOKEN_TTL_DEFAULT: Duration = Duration::from_secs(300);

/// The longest time of Go's, 292 years. Times are added to others, and to points in time.
const LONGEST: Duration = Duration::from_nanos(i64::MAX.unsigned_abs());

/// Entries of the log have 16 MiB at most, with the bytes around the request.
const MAX_REQUEST_BYTES: usize = 15 << 20;

impl Config {
    fn check_tls(&mut self) -> Result<(), ConfigError> {
        let sides = [
            (&self.client_tls, &self.listen_client_urls, "listen-client-urls", ""),
            (&self.client_tls, &self.listen_client_http_urls, "listen-client-http-urls", ""),
            (&self.client_tls, &self.listen_metrics_urls, "listen-metrics-urls", ""),
            (&self.peer_tls, &self.listen_peer_urls, "listen-peer-urls", "peer-"),
        ];
        for (files, urls, name, prefix) in sides {
            if files.cert.is_some() != files.key.is_some() {
                let text = format!("--{prefix}cert-file and --{prefix}key-file go together: give both");
                return Err(ConfigError(text));
            }
            if let Some(url) = urls.iter().find(|url| url.is_tls && files.cert.is_none()) {
                let remedy = format!("https needs --{prefix}cert-file and --{prefix}key-file");
                return Err(refused(name, &url.to_string(), &remedy));
            }
            // As in etcd: http serves metrics and health without certificates, and has neither keys nor values.
            let wants_https = files.is_client_cert_required && name != "listen-metrics-urls";
            if let Some(url) = urls.iter().find(|url| !url.is_tls && wants_https) {
                let flag = if prefix.is_empty() { "client-cert-auth" } else { "peer-client-cert-auth" };
                let remedy = format!("--{flag} needs https, since there are no certificates without it");
                return Err(refused(name, &url.to_string(), &remedy));
            }
            if files.is_client_cert_required && files.trusted_ca.is_none() {
                let text = format!(
                    "certificates of callers are required, but no CA is given to check them: \
                     give --{prefix}trusted-ca-file"
                );
                return Err(ConfigError(text));
            }
            if files.crl.is_some() && files.trusted_ca.is_none() {
                let text = format!("a list of revoked certificates needs --{prefix}trusted-ca-file");
                return Err(ConfigError(text));
            }
            if files.client_cert.is_some() != files.client_key.is_some() {
                let text = "--peer-client-cert-file and --peer-client-key-file go together: give both";
                return Err(ConfigError(text.to_owned()));
            }
        }
        let has_names = !self.peer_names.is_empty();
        let is_checked =
            self.peer_tls.trusted_ca.is_some() && self.listen_peer_urls.iter().all(|url| url.is_tls);
        if has_names && !is_checked {
            let text = "--peer-cert-allowed-cn needs https in --listen-peer-urls, and --peer-trusted-ca-file: without them members \
                        have no certificates, or any";
            return Err(ConfigError(text.to_owned()));
        }
        let mut members = self.initial_cluster.values().flatten().chain(&self.initial_advertise_peer_urls);
        if let Some(url) = members.find(|url| url.is_tls && self.peer_tls.trusted_ca.is_none()) {
            if self.peer_tls.cert.is_none() {
                let remedy =
                    "https between members needs --peer-trusted-ca-file, to check their certificates";
                return Err(refused("initial-cluster", &url.to_string(), remedy));
            }
            let text = "without --peer-trusted-ca-file the CAs of the system check members' certificates, and callers need \
                        none";
            self.warnings.push(text.to_owned());
        }
        Ok(())
    }
}

fn refused(name: &str, value: &str, remedy: &str) -> ConfigError {
    ConfigError(format!("--{name}={value} cannot be used: {remedy}"))
}

fn not_parsed(error: &clap::Error) -> Result<ParseOutcome, ConfigError> {
    use clap::error::{ContextKind, ErrorKind};
    let argument = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    let argument = argument.split([' ', '[']).next().unwrap_or_default().trim_end_matches('=');
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            Ok(ParseOutcome::Print(error.render().to_string()))
        }
        ErrorKind::UnknownArgument => {
            Err(ConfigError(format!("{argument} is not a flag: --help lists the flags")))
        }
        ErrorKind::InvalidValue => Err(ConfigError(format!("{argument} has no value: give one"))),
        _ => Err(ConfigError(error.render().to_string().lines().next().unwrap_or_default().to_owned())),
    }
}

/// Parses a duration in Go's notation, up to its longest: `1h30m`, `1.5s`, `300ms`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut total) = (text, 0_f64);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let seconds = match &rest[..end] {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total += number * seconds;
        rest = &rest[end..];
    }
    Duration::try_from_secs_f64(total).ok().filter(|time| *time <= LONGEST)
}

#[cfg(test)]
mod tests;
