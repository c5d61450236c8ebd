//! `tests/fs_write.rs` of tokio 1.54.1, with the import replaced.

use forebay_fs as fs;
use tempfile::tempdir;

#[tokio::test]
async fn write() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("test.txt");

    fs::write(&path, "Hello, World!").await.unwrap();

    let contents = fs::read_to_string(&path).await.unwrap();
    assert_eq!(contents, "Hello, World!");
}
