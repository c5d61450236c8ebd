//! A scan as a byte stream.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::Scan;
use crate::memory::block::Block;

/// A [`Scan`] as a `tokio::io::AsyncRead`: one copy, from the blocks into the reader's memory.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub struct ScanReader {
    scan: Scan,
    block: Block,
    at: usize,
}

impl ScanReader {
    pub(super) fn new(scan: Scan) -> ScanReader {
        ScanReader { scan, block: Block::default(), at: 0 }
    }
}

impl tokio::io::AsyncRead for ScanReader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        target: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        while this.at == this.block.len() {
            match std::task::ready!(this.scan.poll_next_block(context)) {
                Ok(Some(block)) => (this.block, this.at) = (block, 0),
                Ok(None) => return Poll::Ready(Ok(())),
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        let part = &this.block[this.at..];
        let part = &part[..part.len().min(target.remaining())];
        target.put_slice(part);
        this.at += part.len();
        if this.at == this.block.len() {
            // Released now: the next poll may be late.
            (this.block, this.at) = (Block::default(), 0);
        }
        Poll::Ready(Ok(()))
    }
}
