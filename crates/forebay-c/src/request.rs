//! Requests: as futures for operations, and carried out synchronously by the calling thread.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay::{Class, Durability, ErrorKind};

use crate::code::{Code, Fault};
use crate::instance::{File, Instance};
use crate::memory::{CallerMemory, Destination, Return};
use crate::op::{Job, Transfer, memory_lost};
use crate::types::{
    FB_DURABLE_ALL, FB_DURABLE_DATA, FB_DURABLE_NONE, FB_OP_READ, FB_OP_SYNC, FB_OP_WRITE, Request,
};

/// How often a thread in a blocking call whose memory is out looks whether the engine has ended.
const END_LOOKED_FOR: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Sync,
}

/// A request that was checked.
pub(crate) struct Piece<'a> {
    pub(crate) file: &'a File,
    pub(crate) kind: Kind,
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
    offset: u64,
    class: Class,
    durability: Durability,
}

/// Returns the durability of that number.
fn durability(number: u32) -> Result<Durability, Fault> {
    match number {
        FB_DURABLE_NONE => Ok(Durability::None),
        FB_DURABLE_DATA => Ok(Durability::Data),
        FB_DURABLE_ALL => Ok(Durability::All),
        _ => Err(Fault::invalid(format!("there is no durability {number}"))),
    }
}

impl<'a> Piece<'a> {
    /// Checks a request for `file`, which is the one that it names.
    pub(crate) fn of(request: &Request, file: &'a File) -> Result<Piece<'a>, Fault> {
        file.instance.check()?;
        let kind = match request.op {
            FB_OP_READ => Kind::Read,
            FB_OP_WRITE => Kind::Write,
            FB_OP_SYNC => Kind::Sync,
            number => return Err(Fault::invalid(format!("there is no operation {number}"))),
        };
        if request.reserved != 0 {
            return Err(Fault::new(Code::Unsupported, "the request's reserved field is not 0"));
        }
        let len = if kind == Kind::Sync { 0 } else { request.len };
        if request.data.is_null() && len > 0 {
            return Err(Fault::invalid("the request's data is a null pointer"));
        }
        let is_addressable = isize::try_from(len).is_ok() && request.offset.checked_add(len as u64).is_some();
        if !is_addressable {
            return Err(Fault::invalid("the request ends behind the largest offset of a file"));
        }
        Ok(Piece {
            file,
            kind,
            start: request.data.cast(),
            len,
            offset: request.offset,
            class: file.instance.class(request.class_id)?,
            durability: durability(request.durability)?,
        })
    }

    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.len as u64
    }

    /// Returns the operation as a future, which returns `memory` at its end; a sync has no memory.
    pub(crate) fn job(&self, memory: CallerMemory) -> Job {
        let (file, class, durability) = (&self.file.file, self.class, self.durability);
        match self.kind {
            Kind::Read => {
                let read = file.read_into(self.offset, memory).class(class).owned();
                Box::pin(async move {
                    let (result, memory) = read.await;
                    drop(memory);
                    single(result.map(|bytes| bytes as u64))
                })
            }
            Kind::Write => {
                let len = self.len as u64;
                let write = file.write_from(self.offset, memory).class(class).durable(durability).owned();
                Box::pin(async move {
                    let (result, memory) = write.await;
                    drop(memory);
                    single(result.map(|()| len))
                })
            }
            Kind::Sync => {
                let sync = file.sync(durability).class(class).owned();
                Box::pin(async move { single(sync.await.map(|()| 0)) })
            }
        }
    }

    /// Carries the request out on the calling thread; `back` is what `memory` reports its return to.
    pub(crate) fn run(&self, memory: CallerMemory, back: &Return) -> Result<u64, Fault> {
        let (file, class, durability) = (&self.file.file, self.class, self.durability);
        let _guard = ReturnGuard { back, instance: &self.file.instance };
        let result = match self.kind {
            Kind::Read => {
                let (result, memory) = file.read_into(self.offset, memory).class(class).wait();
                drop(memory);
                result.map(|bytes| bytes as u64)
            }
            Kind::Write => {
                let write = file.write_from(self.offset, memory).class(class).durable(durability);
                let (result, memory) = write.wait();
                drop(memory);
                result.map(|()| self.len as u64)
            }
            Kind::Sync => {
                drop(memory);
                file.sync(durability).class(class).wait().map(|()| 0)
            }
        };
        // After some failures requests have the memory still.
        let is_shard_lost = matches!(&result, Err(error) if error.kind() == ErrorKind::ShardLost);
        while !back.wait(END_LOOKED_FOR) {
            if is_shard_lost || self.file.instance.is_over() {
                return Err(memory_lost());
            }
        }
        result.map_err(Fault::from)
    }
}

/// Keeps a panic of the core from leaving a blocking call while requests have its memory.
struct ReturnGuard<'a> {
    back: &'a Return,
    instance: &'a Instance,
}

impl Drop for ReturnGuard<'_> {
    fn drop(&mut self) {
        while std::thread::panicking() && !self.back.wait(END_LOOKED_FOR) && !self.instance.is_over() {}
    }
}

fn single(result: forebay::Result<u64>) -> Result<Transfer, Fault> {
    Ok(Transfer { bytes: result?, parts: Vec::new() })
}

/// Returns kind and engine of a batch: all read or all write, in files of one engine.
pub(crate) fn check_batch(pieces: &[Piece<'_>]) -> Result<(Kind, Arc<Instance>), Fault> {
    let Some(first) = pieces.first() else {
        return Err(Fault::invalid("there is no request"));
    };
    if first.kind == Kind::Sync && pieces.len() > 1 {
        return Err(Fault::invalid("a batch reads or writes; make each sync an operation of its own"));
    }
    for piece in pieces {
        if piece.kind != first.kind {
            return Err(Fault::invalid("a batch either reads or writes"));
        }
        if !Arc::ptr_eq(&piece.file.instance, &first.file.instance) {
            return Err(Fault::invalid("the files of a batch belong to one engine"));
        }
        if piece.class != first.class || piece.durability != first.durability {
            return Err(Fault::invalid("the requests of a batch have one class and one durability"));
        }
    }
    Ok((first.kind, first.file.instance.clone()))
}

/// Returns reads of many ranges as one future, which fills the destinations, in the order of the pieces.
pub(crate) fn read_batch(instance: &Instance, pieces: &[Piece<'_>], destinations: Vec<Destination>) -> Job {
    let class = pieces.first().map_or(Class::DEFAULT, |first| first.class);
    let ranges = pieces.iter().map(|piece| (&piece.file.file, piece.range()));
    let batch = instance.engine.read_many(ranges).class(class);
    let places: Vec<_> = pieces.iter().map(|piece| (piece.file.file.clone(), piece.range())).collect();
    Box::pin(async move {
        let blocks = batch.await?;
        let mut parts = Vec::with_capacity(blocks.len());
        for ((block, (file, range)), mut destination) in blocks.into_iter().zip(places).zip(destinations) {
            // A batch reads exactly its ranges; one that the file ends in is read again, up to there.
            let is_short =
                matches!(&block, Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof { .. }));
            let block = if is_short { file.read_up_to(range).class(class).owned().await } else { block };
            parts.push(block.map(|block| destination.fill(&block) as u64).map_err(Fault::from));
        }
        Ok::<_, Fault>(transfer(parts))
    })
}

/// Returns writes of many pieces as one future. The bytes, one slice for each piece, are copied before this returns: into ordinary
/// memory, because a batch may have more bytes than the engine has memory.
pub(crate) fn write_batch(instance: &Instance, pieces: &[Piece<'_>], bytes: &[&[u8]]) -> Result<Job, Fault> {
    let Some(first) = pieces.first() else {
        return Err(Fault::invalid("there is no request"));
    };
    let (class, durability) = (first.class, first.durability);
    let copies = bytes.iter().map(|bytes| copy_of(bytes)).collect::<Result<Vec<_>, Fault>>()?;
    let ranges = pieces.iter().zip(copies);
    let batch = instance
        .engine
        .write_many(ranges.map(|(piece, copy)| (&piece.file.file, piece.offset, copy)))
        .class(class)
        .durable(durability);
    let lens: Vec<u64> = pieces.iter().map(|piece| piece.len as u64).collect();
    let job: Job = Box::pin(async move {
        let results = batch.await?;
        let parts =
            results.into_iter().zip(lens).map(|(result, len)| result.map(|()| len).map_err(Fault::from));
        Ok::<_, Fault>(transfer(parts.collect()))
    });
    Ok(job)
}

fn copy_of(bytes: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| {
        let text = format!("there is no memory for a copy of {} bytes of the batch", bytes.len());
        Fault::new(Code::MemoryExhausted, text)
    })?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

fn transfer(parts: Vec<Result<u64, Fault>>) -> Transfer {
    Transfer { bytes: parts.iter().filter_map(|part| part.as_ref().ok()).sum(), parts }
}
