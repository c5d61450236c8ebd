//! Read-ahead of long values: a range that reads one after the other has the next ones of the leaf in flight.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use forebay::{Block, Class};

use crate::error::Result;
use crate::node::BlobAt;
use crate::table::TableFile;
use crate::table::blob::memory_bytes;
use crate::value::HeldShare;

/// The limit for bytes of values in flight ahead of the cursor.
const BYTES_MAX: u64 = 512 << 10;

/// Values that are being read, in the order of the cursor.
#[derive(Default)]
pub(super) struct Values {
    reads: VecDeque<ValueRead>,
    /// Number of values that the cursor has read one after the other.
    count: usize,
}

/// The read of a value, in flight or done.
struct ValueRead {
    blob: BlobAt,
    /// The memory counts as held by the program, which holds the value next.
    held: HeldShare,
    state: State,
}

enum State {
    Reading(Pin<Box<dyn Future<Output = Result<Block>> + Send>>),
    Read(Result<Block>),
}

/// Reads a value.
pub(super) async fn read(file: Arc<TableFile>, blob: BlobAt, class: Class) -> Result<Block> {
    let block = file.read(blob.range(), class).await?;
    file.check_blob(blob, &block)?;
    file.unpacked_blob(blob, block)
}

impl Values {
    pub(super) fn clear(&mut self) {
        *self = Values::default();
    }

    /// Begins to read more of the values that follow, if the cursor has read as many before them.
    pub(super) async fn begin(
        &mut self,
        following: impl Iterator<Item = (Arc<TableFile>, BlobAt)>,
        class: Class,
    ) {
        let mut bytes: u64 = self.reads.iter().map(|reading| memory_bytes(reading.blob)).sum();
        for (file, blob) in following.take(self.count) {
            if self.reads.iter().any(|reading| reading.blob == blob) {
                continue;
            }
            bytes += memory_bytes(blob);
            if bytes > BYTES_MAX {
                break;
            }
            let held = HeldShare::new(Some(file.cache.held()), memory_bytes(blob));
            let mut read = Box::pin(read(file, blob, class));
            // A read starts when it is polled.
            let polled = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
            let state = match polled {
                Poll::Ready(block) => State::Read(block),
                Poll::Pending => State::Reading(read),
            };
            self.reads.push_back(ValueRead { blob, held, state });
        }
        self.count += 1;
    }

    /// Returns a value that is being read; those before it are no longer needed.
    pub(super) async fn take(&mut self, blob: BlobAt) -> Option<Result<(Block, HeldShare)>> {
        let index = self.reads.iter().position(|reading| reading.blob == blob)?;
        self.reads.drain(..index);
        let ValueRead { held, state, .. } = self.reads.pop_front()?;
        let block = match state {
            State::Reading(read) => read.await,
            State::Read(block) => block,
        };
        Some(block.map(|block| (block, held)))
    }
}
