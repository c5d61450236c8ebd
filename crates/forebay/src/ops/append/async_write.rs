//! [`Append`] as a `tokio::io::AsyncWrite`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Append;

/// Copies once, into the current buffer. `flush` brings everything into the file at its exact length, which
/// on a direct file costs a padded write and a truncation: flush seldom. `shutdown` does the same; neither
/// syncs.
///
/// ```
/// # use forebay::{Config, Engine, Open};
/// # use tokio::io::AsyncWriteExt;
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let engine = Engine::start(Config::new())?;
/// let file = engine.open(dir.path().join("data"), Open::create()).await?;
/// let mut append = file.append().start();
/// tokio::io::copy(&mut &b"from any reader"[..], &mut append).await?;
/// append.shutdown().await?; // the file is exactly that long
/// assert_eq!(file.len().await?, 15);
/// # Ok(()) }
/// ```
impl tokio::io::AsyncWrite for Append {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().writer.poll_write(context, bytes).map_err(io::Error::from)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().writer.poll_settled(context).map_err(io::Error::from)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}
