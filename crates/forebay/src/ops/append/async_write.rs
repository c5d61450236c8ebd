//! [`Append`] as a `tokio::io::AsyncWrite`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Append;

/// Copies once, into the current buffer. `flush` brings everything into the file at its exact length, which
/// on a direct file costs a padded write and a truncation: flush seldom. `shutdown` does the same; neither
/// syncs.
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
