//! One call of a rank, and its work on the file: tasks on shards, each with a deadline.

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use forebay::internal::FileInternals;
use forebay::{Class, Durability, ErrorKind, File, Result};

use super::wire::{Body, Evidence, Fault, Frame, Kind};
use crate::coalesce::{Shape, WriteStats, WriterCore};
use crate::options::Options;
use crate::view::View;

const REQUEST_BYTES_DEFAULT: u64 = 1 << 20;
const DEPTH_DEFAULT: usize = 16;
/// Parts that a rank's memory has: two windows that are written, one that arrives, and their buffers.
const MEMORY_PARTS: u64 = 4;
/// The shortest window. Pages are much shorter, so that no page belongs to two windows.
const WINDOW_BYTES_MIN: u64 = 1 << 20;
/// The longest one: a message has one window's pieces.
const WINDOW_BYTES_MAX: u64 = 64 << 20;

/// Returns whether windows may have this length.
pub(super) fn is_window(bytes: u64) -> bool {
    bytes.is_power_of_two() && (WINDOW_BYTES_MIN..=WINDOW_BYTES_MAX).contains(&bytes)
}

/// A call of all ranks, as one of them makes it.
pub(super) struct Call {
    /// The number of the call, from 1.
    pub(super) number: u64,
    pub(super) file: File,
    pub(super) view: View,
    pub(super) way: Way,
    pub(super) class: Class,
    pub(super) options: Options,
}

pub(super) enum Way {
    Write(Bytes, Durability),
    Read,
}

impl Call {
    /// Returns the bytes to write; `None` for a read.
    pub(super) fn bytes(&self) -> Option<&Bytes> {
        match &self.way {
            Way::Write(bytes, _) => Some(bytes),
            Way::Read => None,
        }
    }

    /// Returns the length of windows, where this rank's options decide.
    pub(super) fn window(&self) -> u64 {
        let window = (self.options.memory_bytes() / MEMORY_PARTS).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX);
        if window.is_power_of_two() { window } else { window.next_power_of_two() / 2 }
    }

    /// Returns the sizes of requests in windows of this length, two of which are written at a time.
    pub(super) fn shape(&self, window: u64) -> Shape {
        let request = self.options.request_bytes.unwrap_or(REQUEST_BYTES_DEFAULT);
        Shape::of(&self.file, window * 2, request, self.options.depth.unwrap_or(DEPTH_DEFAULT))
    }

    pub(super) fn core(&self, window: u64) -> Arc<WriterCore<()>> {
        WriterCore::new("collective", &self.file, self.class, self.shape(window), ())
    }

    /// Starts a task on a shard, counted from the file's home shard.
    pub(super) fn start<T, F>(&self, shard: u64, make: impl FnOnce() -> F + Send + 'static) -> Task<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + 'static,
    {
        // One place: the task never waits for it.
        let (done, outcome) = sync_channel(1);
        let internals = FileInternals::of(&self.file);
        let shard = shard % internals.shard_count() as u64;
        internals.spawn(shard as usize, self.class, move || {
            let work = make();
            async move {
                let _ = done.send(work.await);
            }
        });
        Task(outcome)
    }

    /// Carries a task out.
    pub(super) fn perform<T, F>(
        &self,
        what: &str,
        within: Duration,
        make: impl FnOnce(File) -> F + Send + 'static,
    ) -> Result<T, Fault>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + 'static,
    {
        let file = self.file.clone();
        self.start(0, move || make(file)).finish(what, within)
    }
}

/// A task on a shard.
pub(super) struct Task<T>(Receiver<Result<T>>);

impl<T> Task<T> {
    /// Waits for its end. After the deadline it continues alone.
    pub(super) fn finish(&self, what: &str, within: Duration) -> Result<T, Fault> {
        match self.0.recv_timeout(within) {
            Ok(result) => Ok(result?),
            Err(RecvTimeoutError::Timeout) => {
                let text = format!("the {what} did not end within {} s", within.as_secs_f64());
                Err(Fault { evidence: Evidence::Cause, kind: ErrorKind::Elapsed, text })
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(Fault::cause(ErrorKind::EngineClosed, format!("the engine ended during the {what}")))
            }
        }
    }
}

/// A rank's call, as rank 0 compares it with those of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) is_write: bool,
    /// The number of the durability, the weakest first.
    pub(super) durability: u64,
    inode: u64,
    device: (u32, u32),
    /// When the file was made, in nanoseconds; 0 where its file system does not know.
    created: u64,
    pub(super) bytes: u64,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Entry {
    /// Looks at the call and its file.
    pub(super) fn of(call: &Call, within: Duration) -> Result<Entry, Fault> {
        let (is_write, durability) = match &call.way {
            Way::Write(bytes, durability) => {
                if bytes.len() as u64 != call.view.bytes() {
                    let text = format!("{} bytes are given for a view of {}", bytes.len(), call.view.bytes());
                    return Err(Fault::cause(ErrorKind::InvalidInput, text));
                }
                (true, *durability)
            }
            Way::Read => (false, Durability::None),
        };
        let metadata =
            call.perform("look at the file", within, |file| async move { file.metadata().await })?;
        let span = call.view.span().unwrap_or(0..0);
        Ok(Entry {
            number: call.number,
            is_write,
            durability: match durability {
                Durability::All => 2,
                Durability::Data => 1,
                _ => 0,
            },
            inode: metadata.inode(),
            device: metadata.device(),
            created: nanoseconds_of(metadata.created()),
            bytes: call.view.bytes(),
            start: span.start,
            end: span.end,
        })
    }

    pub(super) fn frame(&self) -> Frame {
        let mut frame = Frame::new(Kind::Entry);
        let (major, minor) = (self.device.0.into(), self.device.1.into());
        let (number, inode) = (self.number, self.inode);
        for part in [
            number,
            self.is_write.into(),
            self.durability,
            inode,
            major,
            minor,
            self.created,
            self.bytes,
            self.start,
            self.end,
        ] {
            frame.put(part);
        }
        frame
    }

    /// Reads an entry; `None` if it is malformed.
    pub(super) fn of_body(body: &[u8]) -> Option<Entry> {
        let mut body = Body(body);
        let entry = Entry {
            number: body.take()?,
            is_write: body.take()? == 1,
            durability: body.take()?,
            inode: body.take()?,
            device: (body.take()?.try_into().ok()?, body.take()?.try_into().ok()?),
            created: body.take()?,
            bytes: body.take()?,
            start: body.take()?,
            end: body.take()?,
        };
        let has_place = entry.start <= entry.end && entry.end <= i64::MAX as u64;
        (has_place && entry.bytes <= entry.end - entry.start).then_some(entry)
    }

    /// Returns how this entry differs from rank 0's, if that makes them two calls.
    pub(super) fn difference(&self, rank: usize, first: &Entry, is_same_host: bool) -> Option<String> {
        let verb = |entry: &Entry| if entry.is_write { "writes" } else { "reads" };
        if (self.number, self.is_write) != (first.number, first.is_write) {
            return Some(format!(
                "rank {rank} {} in call {}, rank 0 {} in call {}",
                verb(self),
                self.number,
                verb(first),
                first.number
            ));
        }
        // Each host numbers its devices by itself, and files of two hosts may have one number by chance.
        let other_birth = self.created != first.created && self.created != 0 && first.created != 0;
        if self.inode != first.inode || other_birth || (is_same_host && self.device != first.device) {
            return Some(format!(
                "rank {rank} has another file than rank 0: inode {} of device {:?} born at {}, and not {} of {:?} at {}",
                self.inode, self.device, self.created, first.inode, first.device, first.created
            ));
        }
        None
    }
}

fn nanoseconds_of(time: Option<SystemTime>) -> u64 {
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Returns the durability of this number in an entry.
pub(super) fn durability_of(number: u64) -> Durability {
    match number {
        2 => Durability::All,
        1 => Durability::Data,
        _ => Durability::None,
    }
}

/// The outcome of a rank's part, for rank 0: empty on ranks that are not aggregators.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    /// The file's end as far as the aggregator knows, and the end of its padding (0 without padding).
    pub(super) end: u64,
    pub(super) padded: u64,
    pub(super) stats: WriteStats,
}

impl Share {
    pub(super) fn frame(&self) -> Frame {
        let mut frame = Frame::new(Kind::Over);
        frame.put(self.end);
        frame.put(self.padded);
        frame
    }

    pub(super) fn of_body(body: &[u8]) -> Option<Share> {
        let mut body = Body(body);
        Some(Share { end: body.take()?, padded: body.take()?, stats: WriteStats::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two hosts whose own file systems gave one number to two files: they counted as one, and each had half of the pieces.
    #[test]
    fn files_of_one_number_and_two_births_are_two() {
        let entry = |created| Entry {
            number: 1,
            is_write: true,
            durability: 0,
            inode: 77,
            device: (8, 1),
            created,
            bytes: 5,
            start: 0,
            end: 9,
        };
        let body = entry(5).frame().into_bytes().split_off(5);
        assert_eq!(Entry::of_body(&body), Some(entry(5)));
        for (one, other, is_other) in [(5, 6, true), (5, 5, false), (0, 6, false), (5, 0, false)] {
            let difference = entry(one).difference(1, &entry(other), false);
            assert_eq!(difference.is_some(), is_other, "{one} and {other}: {difference:?}");
        }
    }
}
