//! `tests/fs_try_exists.rs` of tokio 1.54.1, with the import replaced.

use forebay_fs as fs;
use tempfile::tempdir;

#[tokio::test]
async fn try_exists() {
    let dir = tempdir().unwrap();

    let existing_path = dir.path().join("foo.txt");
    fs::write(&existing_path, b"Hello File!").await.unwrap();
    let nonexisting_path = dir.path().join("bar.txt");

    assert!(fs::try_exists(existing_path).await.unwrap());
    assert!(!fs::try_exists(nonexisting_path).await.unwrap());
    {
        use std::os::unix::prelude::PermissionsExt;
        let permission_denied_directory_path = dir.path().join("baz");
        fs::create_dir(&permission_denied_directory_path).await.unwrap();
        let permission_denied_file_path = permission_denied_directory_path.join("baz.txt");
        fs::write(&permission_denied_file_path, b"Hello File!").await.unwrap();
        let mut perms = fs::metadata(&permission_denied_directory_path).await.unwrap().permissions();

        perms.set_mode(0o244);
        fs::set_permissions(&permission_denied_directory_path, perms).await.unwrap();
        // Root may look into it. There the result is compared with tokio's.
        let expected =
            tokio::fs::try_exists(&permission_denied_file_path).await.map_err(|error| error.kind());
        let permission_denied_result = fs::try_exists(permission_denied_file_path).await;
        assert_eq!(permission_denied_result.map_err(|error| error.kind()), expected);
    }
}
