//! Which member of which cluster a data directory belongs to.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::config::Config;
use crate::config::urls::Url;
use crate::start_error::StartError;

const FILE: &str = "identity.json";
const VERSION: u32 = 1;

/// The contents of the file `identity.json`. It is written before anything else of a member, and once more when the log is created,
/// or when the member continues alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    version: u32,
    pub(crate) cluster_id: u64,
    pub(crate) member_id: u64,
    /// The token and the members of the cluster that this member started; `None` if it joined a cluster.
    pub(crate) initial: Option<Initial>,
    /// The cluster of this member before it continued alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) former_cluster_id: Option<u64>,
    /// The number of this member's log; `None` before it is ready. See [`owner`](super::owner).
    pub(crate) log: Option<u64>,
}

/// The start of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Initial {
    pub(crate) token: String,
    /// Peer URLs by member.
    pub(crate) members: BTreeMap<u64, Vec<String>>,
}

/// The inputs of a new cluster's ids.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Founders<'a> {
    pub(crate) token: &'a str,
    /// Peer URLs by name.
    pub(crate) cluster: &'a BTreeMap<String, Vec<Url>>,
    /// Those of this member.
    pub(crate) own: &'a [Url],
    /// The source of the first state. Clusters with different sources have different ids, and do not accept each other as members.
    pub(crate) origin: Option<&'a str>,
}

impl<'a> Founders<'a> {
    /// Returns the inputs for a cluster without initial keys.
    pub(crate) fn of(config: &'a Config) -> Founders<'a> {
        Founders {
            token: &config.initial_cluster_token,
            cluster: &config.initial_cluster,
            own: &config.initial_advertise_peer_urls,
            origin: None,
        }
    }
}

/// Returns an id made of these parts: the same on every member, and never 0, which means no id.
fn id_of(parts: &[&str]) -> u64 {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash.finalize()[..8]);
    u64::from_be_bytes(bytes).max(1)
}

fn texts(urls: &[Url]) -> Vec<String> {
    urls.iter().map(Url::to_string).collect()
}

/// Returns the id of an initial member of a new cluster.
fn initial_id(urls: &[String], token: &str) -> u64 {
    let mut parts: Vec<&str> = urls.iter().map(String::as_str).collect();
    parts.push(token);
    id_of(&parts)
}

/// Returns the id of a member that is added; `nonce` makes it differ from one with these URLs that was removed.
pub(crate) fn added_id(cluster_id: u64, urls: &[String], nonce: u64) -> u64 {
    let (cluster, nonce) = (cluster_id.to_string(), nonce.to_string());
    let mut parts: Vec<&str> = urls.iter().map(String::as_str).collect();
    parts.extend([&*cluster, &*nonce]);
    id_of(&parts)
}

impl Identity {
    /// Returns the identity of this member in the new cluster that the settings describe.
    ///
    /// # Errors
    /// The cluster does not have this member's peer URLs.
    pub(crate) fn new_cluster(founders: &Founders<'_>) -> Result<Identity, StartError> {
        let Founders { token, cluster, own, origin } = *founders;
        let mut members = BTreeMap::new();
        for urls in cluster.values() {
            let urls = texts(urls);
            members.insert(initial_id(&urls, token), urls);
        }
        let member_id = initial_id(&texts(own), token);
        if !members.contains_key(&member_id) {
            return Err(StartError::new("--initial-cluster does not have this member's peer URLs"));
        }
        let ids: Vec<String> = members.keys().map(u64::to_string).collect();
        let mut parts: Vec<&str> = ids.iter().map(String::as_str).collect();
        parts.push(token);
        parts.extend(origin);
        let cluster_id = id_of(&parts);
        let initial = Some(Initial { token: token.to_owned(), members });
        Ok(Identity { version: VERSION, cluster_id, member_id, initial, former_cluster_id: None, log: None })
    }

    /// Returns the identity of a member that joins.
    pub(crate) fn joined(cluster_id: u64, member_id: u64) -> Identity {
        Identity {
            version: VERSION,
            cluster_id,
            member_id,
            initial: None,
            former_cluster_id: None,
            log: None,
        }
    }

    /// Moves this member to another cluster. Its id is drawn: two copies of a member's data may both continue.
    pub(super) fn separate(&mut self) {
        let nonce = RandomState::new().hash_one(self.member_id);
        let parts = [self.cluster_id, self.member_id, nonce].map(|part| part.to_string());
        self.former_cluster_id = Some(self.cluster_id);
        self.cluster_id = id_of(&parts.each_ref().map(String::as_str));
    }

    /// Reads the identity of a data directory; `None` if it is unused.
    ///
    /// # Errors
    /// The directory holds something else.
    pub(crate) fn read(dir: &Path) -> Result<Option<Identity>, StartError> {
        let found = Identity::read_file(&dir.join(FILE))?;
        if found.is_none() {
            check_unused(dir)?;
        }
        Ok(found)
    }

    fn read_file(path: &Path) -> Result<Option<Identity>, StartError> {
        let bytes = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| StartError::at("cannot read", path, &error))?,
        };
        let identity: Identity = serde_json::from_slice(&bytes).map_err(|error| {
            StartError::new(format!("{} is damaged: {error}; bring it back from a copy", path.display()))
        })?;
        if identity.version != VERSION {
            return Err(StartError::new(format!(
                "{} is of version {}, and this program knows version {VERSION}: use a later program",
                path.display(),
                identity.version
            )));
        }
        Ok(Some(identity))
    }

    /// Writes the identity into the data directory, durably: a crash leaves the former identity or the new one.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), StartError> {
        let failed = |error: io::Error| StartError::at("cannot write", &dir.join(FILE), &error);
        make_dir(dir).map_err(failed)?;
        let bytes = serde_json::to_vec_pretty(self).map_err(io::Error::other).map_err(failed)?;
        let unfinished = dir.join("identity.json.unfinished");
        let written = File::create(&unfinished).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        });
        written.map_err(failed)?;
        if Identity::read_file(&unfinished)?.as_ref() != Some(self) {
            let text = "it would not be read back as it was written: please report this";
            return Err(StartError::new(format!("{}: {text}", unfinished.display())));
        }
        fs::rename(&unfinished, dir.join(FILE)).map_err(failed)?;
        sync_dir(dir).map_err(failed)
    }

    /// Refuses settings that are certainly meant for another member or cluster.
    ///
    /// # Errors
    /// The setting that is of another one.
    pub(crate) fn check(&self, config: &Config, dir: &Path) -> Result<(), StartError> {
        let Some(initial) = &self.initial else { return Ok(()) };
        if config.is_cluster_existing {
            return Ok(());
        }
        if initial.token != config.initial_cluster_token {
            return Err(StartError::new(format!(
                "{} is of a cluster with the token {:?}, and --initial-cluster-token={}: \
                 give that token, or another --data-dir",
                dir.display(),
                initial.token,
                config.initial_cluster_token
            )));
        }
        // URLs may have changed since; but another first member's are those of another member.
        let given = initial_id(&texts(&config.initial_advertise_peer_urls), &initial.token);
        if given != self.member_id && initial.members.contains_key(&given) {
            return Err(StartError::new(format!(
                "{} is of member {:x}, and --initial-advertise-peer-urls are those of member {given:x}: \
                 give that member's --data-dir",
                dir.display(),
                self.member_id
            )));
        }
        Ok(())
    }
}

/// Makes a directory, and those above it, with their names durable.
pub(super) fn make_dir(dir: &Path) -> io::Result<()> {
    let mut missing: Vec<PathBuf> = Vec::new();
    let mut at = dir.to_path_buf();
    while !at.as_os_str().is_empty() && !at.exists() {
        missing.push(at.clone());
        if !at.pop() {
            break;
        }
    }
    for dir in missing.into_iter().rev() {
        match fs::create_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        // Other users may not read keys and values.
        fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        let above = dir.parent().filter(|above| !above.as_os_str().is_empty());
        sync_dir(above.unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Returns the directory of an incomplete restored member: next to the member's directory.
pub(super) fn unfinished(member: &Path) -> PathBuf {
    member.with_extension("unfinished")
}

/// Refuses a directory without an identity that is not empty, or in whose place a restore was not completed.
pub(super) fn check_unused(dir: &Path) -> Result<(), StartError> {
    let unfinished = unfinished(dir);
    if unfinished.exists() {
        return Err(StartError::new(format!(
            "{} was left by a restore that did not come to its end: remove it, and restore the snapshot again",
            unfinished.display()
        )));
    }
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| StartError::at("cannot read", dir, &error))?,
    };
    for entry in entries {
        let name = entry.map_err(|error| StartError::at("cannot read", dir, &error))?.file_name();
        if name == "identity.json.unfinished" {
            continue;
        }
        let of_etcd = ["wal", "snap"].iter().any(|known| name == *known);
        return Err(StartError::new(if of_etcd {
            format!(
                "{} holds the data of etcd itself, which this program does not read: give another --data-dir, and bring the keys \
                 over (etcdctl snapshot save, then forebay-etcd snapshot restore)",
                dir.display()
            )
        } else {
            format!(
                "{} holds {} and no {FILE}: it is not a data directory of this program; give another --data-dir",
                dir.display(),
                name.display()
            )
        }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_are_never_none() {
        let urls = ["http://a:1".to_owned(), "http://b:1".to_owned()];
        assert_ne!(initial_id(&urls, "t"), initial_id(&urls, "u"));
        assert_ne!(added_id(1, &urls, 1), added_id(1, &urls, 2));
        // Parts do not run into each other.
        assert_ne!(id_of(&["ab", "c"]), id_of(&["a", "bc"]));
        assert_ne!(id_of(&[]), 0);
    }

    #[test]
    fn an_identity_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("deep/member");
        assert_eq!(Identity::read(&dir).unwrap(), None);
        let identity = Identity::joined(7, 8);
        identity.write(&dir).unwrap();
        assert_eq!(Identity::read(&dir).unwrap(), Some(identity));
        fs::write(dir.join(FILE), "{").unwrap();
        assert!(Identity::read(&dir).unwrap_err().to_string().contains("is damaged"));
    }

    #[test]
    fn directories_of_others_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("wal")).unwrap();
        assert!(Identity::read(dir.path()).unwrap_err().to_string().contains("etcd itself"));
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("mine.txt"), "").unwrap();
        assert!(Identity::read(dir.path()).unwrap_err().to_string().contains("mine.txt"));
    }
}
