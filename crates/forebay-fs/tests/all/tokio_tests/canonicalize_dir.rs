//! `tests/fs_canonicalize_dir.rs` of tokio 1.54.1, with the import replaced.

use forebay_fs as fs;

#[tokio::test]
async fn canonicalize_root_dir_unix() {
    assert_eq!(fs::canonicalize("/.").await.unwrap().to_str().unwrap(), "/");
}
