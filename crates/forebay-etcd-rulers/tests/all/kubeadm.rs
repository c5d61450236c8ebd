//! kubeadm's demands of an etcd that it did not start.

use std::path::PathBuf;
use std::process::Command;

use crate::common::{Member, within};

/// Returns the numbers of a version, without what follows them.
fn numbers(version: &str) -> Vec<u32> {
    let version = version.split(['-', '+']).next().unwrap_or(version);
    version.trim_start_matches('v').split('.').map(|number| number.parse().unwrap()).collect()
}

/// kubeadm refused the server, for the version that it told: the newest kubeadm wants 3.5.24 at least, and it was 3.5.21.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute: downloads the newest module k8s.io/kubernetes, 40 MB"]
async fn the_newest_kubeadm_takes_the_version() {
    let cache = tempfile::tempdir().unwrap();
    let mut go = Command::new("go");
    go.args(["mod", "download", "-json", "k8s.io/kubernetes@latest"]).current_dir(&cache);
    go.env("GOPATH", cache.path()).env("GOFLAGS", "-modcacherw");
    let output = match go.output() {
        Ok(output) if output.status.success() => output,
        failed => return println!("left out: go cannot download the module: {failed:?}"),
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let folder = text.lines().find_map(|line| line.trim().strip_prefix("\"Dir\": \""));
    let folder = PathBuf::from(folder.expect("go names the folder").trim_end_matches(['"', ',']));
    let constants = std::fs::read_to_string(folder.join("cmd/kubeadm/app/constants/constants.go")).unwrap();
    let least = constants.lines().find_map(|line| line.trim().strip_prefix("MinExternalEtcdVersion = \""));
    let least = least.expect("the constant has another name now").trim_end_matches('"');
    let member = Member::own(&[]);
    let mut client = etcd_client::Client::connect([member.client_url()], None).await.unwrap();
    let status = within(client.status()).await.unwrap();
    assert!(numbers(status.version()) >= numbers(least), "{} is below {least}", status.version());
}
