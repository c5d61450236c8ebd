//! One process of several that srun or mpirun started. Rank 0 controls and takes part, the others serve.
//! They find it through a file in the measured directory, which all of them name.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::secret::Key;
use crate::cleanup::{Cleanup, Guard, Place};
use forebay_report::failure::Failure;

/// The place of this process among the ranks, according to the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rank {
    pub(super) number: u32,
    pub(super) size: u32,
    /// Distinguishes this job's file from another one's in the same directory.
    job: String,
    /// Whether all processes are on this host.
    local: bool,
}

impl Rank {
    /// Determines the number of this process and how many there are. `insist` means that the command line
    /// declared it one of several. Then a batch script's variables count, too; alone they may only mean
    /// that the script runs.
    ///
    /// # Errors
    /// [`Failure::Usage`] when a variable makes no sense.
    pub(super) fn find(get: impl Fn(&str) -> Option<String>, insist: bool) -> Result<Option<Self>, Failure> {
        let number = |name: &str| match get(name) {
            Some(text) => text.trim().parse::<u32>().map(Some).map_err(|_| {
                Failure::Usage(format!("the launcher's variable {name} holds no number: {text:?}"))
            }),
            None => Ok(None),
        };
        // Open MPI first, then PMI: under Slurm their processes inherit the variables of the process
        // that started them.
        let launchers = [
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
            ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
            ("SLURM_PROCID", if insist { "SLURM_NTASKS" } else { "SLURM_STEP_NUM_TASKS" }, ""),
        ];
        for (rank, size, local_size) in launchers {
            let (Some(number), Some(size), local_size) = (number(rank)?, number(size)?, number(local_size)?)
            else {
                continue;
            };
            if number >= size {
                return Err(Failure::Usage(format!(
                    "the launcher's variables give rank {number} of {size}, which is out of range"
                )));
            }
            if size == 1 && !insist {
                continue;
            }
            let nodes = get("SLURM_STEP_NODELIST").or_else(|| get("SLURM_JOB_NODELIST"));
            let one_node = nodes.is_some_and(|nodes| !nodes.is_empty() && !nodes.contains([',', '[']));
            return Ok(Some(Self {
                number,
                size,
                job: job(&get),
                local: one_node || local_size == Some(size),
            }));
        }
        Ok(None)
    }

    /// Returns the file in which rank 0 publishes how it can be found.
    pub(super) fn file(&self, directory: &Path) -> PathBuf {
        directory.join(format!(".forebay-ranks-{}", self.job))
    }

    /// Returns the address where rank 0 listens: to this host only where that is enough.
    pub(super) fn listen(&self) -> SocketAddr {
        let address = if self.local { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
        SocketAddr::new(IpAddr::V4(address), 0)
    }
}

/// Returns a name for the job on which all its processes agree.
fn job(get: &impl Fn(&str) -> Option<String>) -> String {
    let slurm = get("SLURM_JOB_ID").map(|job| match get("SLURM_STEP_ID") {
        Some(step) => format!("{job}.{step}"),
        None => job,
    });
    let name = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"].into_iter().find_map(get).or(slurm);
    let name: String = name
        .unwrap_or_else(|| "job".to_owned())
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '-' })
        .take(64)
        .collect();
    name
}

/// The addresses of rank 0, and the secret of this one run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Invitation {
    forebay_ranks: u32,
    /// The name of rank 0's host.
    host: String,
    port: u16,
    addresses: Vec<IpAddr>,
    secret: String,
}

impl Invitation {
    /// Returns the invitation to a listener of this host.
    ///
    /// # Errors
    /// Fails when the addresses of this host cannot be read.
    pub(super) fn new(listener: SocketAddr, secret: &Key) -> anyhow::Result<Self> {
        let addresses = if listener.ip().is_unspecified() {
            let all = if_addrs::get_if_addrs().context("this host's addresses are not known")?;
            let mut all: Vec<IpAddr> =
                all.iter().filter(|one| !one.is_loopback()).map(if_addrs::Interface::ip).collect();
            all.retain(IpAddr::is_ipv4);
            all
        } else {
            vec![listener.ip()]
        };
        let (host, port) = (host_name(), listener.port());
        Ok(Self { forebay_ranks: 1, host, port, addresses, secret: secret.to_text() })
    }

    /// Publishes the invitation where the others look; the file is removed with the guard. It appears
    /// whole, or not at all.
    ///
    /// # Errors
    /// Fails when the directory cannot be written.
    pub(super) fn publish(&self, path: &Path, cleanup: &Cleanup) -> anyhow::Result<Guard> {
        let directory = path.parent().context("a file in a directory")?;
        let temp = cleanup.temp_file(directory, "ranks")?;
        temp.file().write_all(serde_json::to_string(self)?.as_bytes())?;
        temp.file().sync_all()?;
        let name = path.file_name().and_then(|name| name.to_str()).context("a file with a name")?;
        let (place, own) = (Place::in_directory(directory, name)?, temp.file().try_clone()?);
        let ((), guard) = cleanup.create(
            // A run of this user that was killed may have left a file of the same name.
            || fs::rename(temp.path(), path),
            move || place.remove_if(&own),
        )?;
        Ok(guard)
    }

    /// Reads the file; returns `None` when it is not there yet.
    ///
    /// # Errors
    /// Fails when it is not one that this user's rank 0 wrote.
    pub(super) fn read(path: &Path) -> anyhow::Result<Option<Self>> {
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
        let file = match file {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.with_context(|| format!("{} cannot be read", path.display()))?,
        };
        let metadata = file.metadata()?;
        let own = metadata.is_file()
            && metadata.uid() == rustix::process::geteuid().as_raw()
            && metadata.mode() & 0o077 == 0;
        anyhow::ensure!(own, "{} is not this user's own private file: it is not followed", path.display());
        let mut text = String::new();
        file.take(1 << 16).read_to_string(&mut text)?;
        let invitation: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} was not written by this version of forebay", path.display()))?;
        anyhow::ensure!(invitation.forebay_ranks == 1, "{} is of another version", path.display());
        Ok(Some(invitation))
    }

    /// Returns the addresses to try. They include this host's own address only when rank 0 is here.
    pub(super) fn places(&self) -> Vec<SocketAddr> {
        let here = self.host == host_name();
        let own = here.then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let others = self.addresses.iter().copied().filter(|address| !address.is_loopback());
        own.into_iter().chain(others).map(|address| SocketAddr::new(address, self.port)).collect()
    }

    pub(super) fn secret(&self) -> anyhow::Result<Key> {
        Key::from_text(&self.secret).context("the file of the ranks holds no secret")
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn find(variables: &[(&str, &str)], insist: bool) -> Result<Option<Rank>, Failure> {
        let get =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Rank::find(get, insist)
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        assert_eq!(find(&[], false), Ok(None));
        let srun = [
            ("SLURM_PROCID", "2"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "1"),
            ("SLURM_JOB_NODELIST", "node[1-4]"),
        ];
        let expected = Rank { number: 2, size: 4, job: "77.1".to_owned(), local: false };
        assert_eq!(find(&srun, false), Ok(Some(expected)));
        let mpirun = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "prterun-a/../b@1"),
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NUM_TASKS", "7"),
        ];
        let expected = Rank { number: 0, size: 2, job: "prterun-a-..-b-1".to_owned(), local: true };
        assert_eq!(find(&mpirun, false), Ok(Some(expected)));
        let hydra = [("PMI_RANK", "1"), ("PMI_SIZE", "3"), ("SLURM_JOB_NODELIST", "one")];
        let expected = Rank { number: 1, size: 3, job: "job".to_owned(), local: true };
        assert_eq!(find(&hydra, false), Ok(Some(expected)));
    }

    #[test]
    fn a_batch_script_alone_is_no_rank_without_the_option() {
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")];
        assert_eq!(find(&batch, false), Ok(None));
        assert!(find(&batch, true).is_ok_and(|rank| rank.is_some_and(|rank| rank.size == 4)));
        assert_eq!(find(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")], false), Ok(None));
        assert!(find(&[("PMI_RANK", "5"), ("PMI_SIZE", "4")], false).is_err());
        assert!(find(&[("PMI_RANK", "x"), ("PMI_SIZE", "4")], false).is_err());
    }

    #[test]
    fn an_invitation_is_private_found_whole_and_removed() {
        let cleanup = Cleanup::default();
        let directory = cleanup.temp_directory(&std::env::temp_dir(), "invite").expect("writable");
        let path = directory.path().join(".forebay-ranks-1");
        assert!(Invitation::read(&path).is_ok_and(|found| found.is_none()));
        let secret = Key::random().expect("random bytes");
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 4242);
        let guard = Invitation::new(address, &secret)
            .and_then(|invitation| invitation.publish(&path, &cleanup))
            .expect("writable");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        let found = Invitation::read(&path).expect("ours").expect("there");
        assert_eq!(found.secret().expect("a secret").to_text(), secret.to_text());
        assert_eq!(found.places().first(), Some(&"127.0.0.1:4242".parse().expect("plain")));
        let elsewhere = Invitation { host: "another".to_owned(), ..found };
        assert!(elsewhere.places().iter().all(|place| !place.ip().is_loopback()));

        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("ours");
        assert!(Invitation::read(&path).is_err(), "others may have written the secret down");
        drop(guard);
        assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 0);
        std::os::unix::fs::symlink("/etc/hostname", &path).expect("writable");
        assert!(Invitation::read(&path).is_err(), "a link was followed");
    }
}
