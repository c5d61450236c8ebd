//! Making directories with options.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use crate::engines;
use crate::threads;

/// Makes directories in various ways, as `tokio::fs::DirBuilder`.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// forebay_fs::DirBuilder::new().recursive(true).mode(0o700).create(dir.path().join("a/b")).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
pub struct DirBuilder {
    recursive: bool,
    mode: Option<u32>,
}

impl DirBuilder {
    /// Returns a builder of one directory with the default permissions.
    pub fn new() -> Self {
        DirBuilder::default()
    }

    /// Sets whether missing parents are created, too; an existing directory is then not an error.
    pub fn recursive(&mut self, recursive: bool) -> &mut Self {
        self.recursive = recursive;
        self
    }

    /// Sets the permissions, before the process's umask. A simulated world ignores them.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode);
        self
    }

    /// Makes the directory.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub async fn create(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref().to_owned();
        let (recursive, mode) = (self.recursive, self.mode);
        if let Some(engine) = engines::world()? {
            let create = move |engine: forebay::Engine| {
                if recursive { engine.create_dir_all(path) } else { engine.create_dir(path) }
            };
            return engines::in_world(engine, create).await;
        }
        let create = move || {
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(recursive);
            if let Some(mode) = mode {
                builder.mode(mode);
            }
            builder.create(path)
        };
        threads::run(create).await?
    }
}
