//! Many writes to one or several files as one operation: put together where they touch, several in flight.

use std::collections::HashMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::base::class::Class;
use crate::base::error::{Error, Result};
use crate::base::wait;
use crate::handle::engine::Engine;
use crate::handle::file::File;
use crate::io::op::{Durability, OpBuffer, OpKind, OpRequest};
use crate::ops::submit::{OpFuture, Target};
use crate::ops::write::{WriteData, check};
use crate::reactor::open_file::FileCore;

/// The most bytes of one request that is put together. It is copied: 50 us.
const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// The default of requests in flight.
const DEPTH: usize = 32;

impl File {
    /// Returns a write of many pieces, each of `data` at an offset: in any order, merged where they touch, several requests in
    /// flight, and one sync for all of them ([`durable`](WriteMany::durable)).
    ///
    /// On a direct file a single piece need not be aligned, but each run of pieces that touch must be.
    ///
    /// # Errors
    /// Awaiting it returns the result of each piece, which may have any length, in their order: those of [`File::write`], without
    /// [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge). It fails as a whole, and writes
    /// nothing, with [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) when pieces overlap, as their order is not defined.
    ///
    /// ```
    /// # use forebay::{Config, Durability, Engine, Open};
    /// # fn main() -> forebay::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// // Records of 1,024 bytes: one request of 8 KiB.
    /// let records = (0..8u64).map(|n| (n * 1024, vec![n as u8; 1024]));
    /// for result in file.write_many(records).durable(Durability::Data).wait()? {
    ///     result?;
    /// }
    /// assert_eq!(file.read(7000..8000).wait()?[..], [vec![6; 168], vec![7; 832]].concat());
    /// # Ok(()) }
    /// ```
    pub fn write_many<D: Into<WriteData<'static>>>(
        &self,
        pieces: impl IntoIterator<Item = (u64, D)>,
    ) -> WriteMany {
        let core = self.core();
        WriteMany::new(pieces.into_iter().map(|(offset, data)| (core.clone(), offset, data.into())).collect())
    }
}

impl Engine {
    /// Returns a write of many pieces to several files of this engine: as [`File::write_many`], with the requests of all files
    /// in flight together and one sync for each file.
    ///
    /// # Errors
    /// Those of [`File::write_many`]. A file of another engine fails it as a whole with
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput); a file that is closed fails its own pieces.
    ///
    /// ```
    /// # use forebay::{Config, Durability, Engine, Open};
    /// # fn main() -> forebay::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let engine = Engine::start(Config::new())?;
    /// let [keys, values] = ["keys", "values"].map(|name| engine.open(dir.path().join(name), Open::create()).wait());
    /// let (keys, values) = (keys?, values?);
    /// let pieces = [(&keys, 0, vec![1; 4096]), (&values, 0, vec![2; 65_536]), (&keys, 4096, vec![3; 4096])];
    /// for result in engine.write_many(pieces).durable(Durability::Data).wait()? {
    ///     result?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn write_many<'f, D: Into<WriteData<'static>>>(
        &self,
        pieces: impl IntoIterator<Item = (&'f File, u64, D)>,
    ) -> WriteMany {
        let pieces =
            pieces.into_iter().map(|(file, offset, data)| (file.core().clone(), offset, data.into()));
        let mut many = WriteMany::new(pieces.collect());
        if let Some(piece) = many.pieces.iter().find(|piece| !Arc::ptr_eq(piece.core.engine(), self.shared()))
        {
            let error = Error::invalid("write_many", "this file was opened with another engine");
            many.refused = Some(piece.core.describe(error));
        }
        many
    }
}

/// A batch of writes; see [`File::write_many`]. It starts when it is first polled. Dropping it stops the batch: requests in flight
/// may or may not be written, later parts are not started.
#[must_use = "a batch begins only when it is awaited or waited for"]
pub struct WriteMany {
    pieces: Vec<Piece>,
    results: Vec<Option<Result<()>>>,
    /// Numbers of the pieces, by file and offset, once it has started.
    order: Option<Vec<usize>>,
    /// Pieces that touch, and the one of which requests are being made, up to `at` so far.
    runs: Vec<Run>,
    run: usize,
    at: u64,
    flying: Vec<Request>,
    syncs: Option<Vec<Request>>,
    depth: usize,
    class: Class,
    durability: Durability,
    refused: Option<Error>,
}

struct Piece {
    core: Arc<FileCore>,
    /// The number of its file, in the order in which pieces first name them: an order by address would differ between two runs of
    /// a simulated world.
    file: usize,
    offset: u64,
    /// `None` once a request has it.
    data: Option<WriteData<'static>>,
    len: u64,
}

/// Pieces of one file that touch: their places in `order`, and their bytes together.
struct Run {
    places: Range<usize>,
    bytes: Range<u64>,
}

/// A request in flight, or a sync, for the pieces at these places in `order`.
struct Request {
    op: OpFuture<'static>,
    core: Arc<FileCore>,
    places: Range<usize>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

impl WriteMany {
    fn new(pieces: Vec<(Arc<FileCore>, u64, WriteData<'static>)>) -> WriteMany {
        let mut numbers = HashMap::new();
        let piece = |(core, offset, data): (Arc<FileCore>, _, WriteData<'static>)| {
            let len = data.len() as u64;
            let next = numbers.len();
            let file = *numbers.entry(Arc::as_ptr(&core)).or_insert(next);
            Piece { core, file, offset, data: Some(data), len }
        };
        let pieces: Vec<Piece> = pieces.into_iter().map(piece).collect();
        WriteMany {
            results: pieces.iter().map(|_| None).collect(),
            pieces,
            order: None,
            runs: Vec::new(),
            run: 0,
            at: 0,
            flying: Vec::new(),
            syncs: None,
            depth: DEPTH,
            class: Class::OF_TASK,
            durability: Durability::None,
            refused: None,
        }
    }

    /// Sets the durability that all pieces must have reached before it completes: one sync of each file after its writes, and a
    /// failed one fails all pieces of its file. Default: [`Durability::None`].
    pub fn durable(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets the maximum number of requests in flight, at least 1. Default: 32.
    pub fn depth(mut self, requests: usize) -> Self {
        self.depth = requests.max(1);
        self
    }

    /// Sets the class; as [`Write::class`](crate::Write::class).
    pub fn class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// Blocks the calling thread until all pieces are written.
    ///
    /// # Errors
    /// The same as when awaited; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread.
    pub fn wait(self) -> Result<Vec<Result<()>>> {
        wait::block_on("write_many", self)
    }

    /// Sorts the pieces, an empty one before the other at its offset: so it lies between pieces that touch and parts none. Fails when
    /// some overlap.
    fn begin(&mut self) -> Result<()> {
        let mut order: Vec<usize> = (0..self.pieces.len()).collect();
        order.sort_by_key(|&number| {
            let piece = &self.pieces[number];
            (piece.file, piece.offset, piece.len)
        });
        let filled =
            order.iter().map(|&number| (number, &self.pieces[number])).filter(|(_, piece)| piece.len > 0);
        let mut before: Option<(usize, &Piece)> = None;
        for (number, piece) in filled {
            if let Some((other, before)) = before
                && before.file == piece.file
                && before.end() > piece.offset
            {
                let text =
                    format!("pieces {other} and {number} overlap, and the order of writes is not defined");
                let error = Error::invalid("write_many", text);
                return Err(piece.core.describe(error).with_range(piece.offset, piece.len));
            }
            before = Some((number, piece));
        }
        for (place, &number) in order.iter().enumerate() {
            let piece = &self.pieces[number];
            let touches = |run: &&mut Run| {
                self.pieces[order[run.places.start]].file == piece.file && run.bytes.end == piece.offset
            };
            match self.runs.last_mut().filter(touches) {
                Some(run) => (run.places.end, run.bytes.end) = (place + 1, piece.end()),
                None => self.runs.push(Run { places: place..place + 1, bytes: piece.offset..piece.end() }),
            }
        }
        self.order = Some(order);
        Ok(())
    }

    /// Starts requests while the depth allows.
    fn begin_requests(&mut self) {
        let Some(order) = self.order.take() else { return };
        while self.flying.len() < self.depth
            && let Some(run) = self.runs.get(self.run)
        {
            let (run_places, bytes) = (run.places.clone(), run.bytes.clone());
            let start = self.at.max(bytes.start);
            let numbers = &order[run_places.clone()];
            // One piece is written in place, if possible. Others are copied, in parts that end at multiples of the file's blocks.
            let is_alone = run_places.len() == 1 && {
                let piece = &self.pieces[numbers[0]];
                piece.len == 0 || piece.data.as_ref().is_some_and(|data| data.goes_in_place(&piece.core))
            };
            let cut = (start / REQUEST_BYTES_MAX + 1).saturating_mul(REQUEST_BYTES_MAX);
            let end = if is_alone { bytes.end } else { bytes.end.min(cut) };
            let first =
                numbers.partition_point(|&number| self.pieces[number].end() <= start && start > bytes.start);
            let past = numbers.partition_point(|&number| self.pieces[number].offset < end.max(start + 1));
            let places = run_places.start + first..run_places.start + past.max(first + 1).min(numbers.len());
            let before = (self.run, self.at);
            (self.run, self.at) = if end == bytes.end { (self.run + 1, 0) } else { (self.run, end) };
            let core = self.pieces[order[places.start]].core.clone();
            match self.request(&core, start..end, is_alone, &order[places.clone()]) {
                Ok(op) => self.flying.push(Request { op, core, places }),
                // Requests in flight will release memory.
                Err(error) if error.is_out_of_memory() && !self.flying.is_empty() && !is_alone => {
                    (self.run, self.at) = before;
                    break;
                }
                Err(error) => {
                    let text = error.to_string();
                    let kind = error.kind();
                    for &number in &order[places] {
                        let (offset, len) = (self.pieces[number].offset, self.pieces[number].len);
                        let error = Error::new(kind, "write_many").with_note(text.clone());
                        self.results[number] = Some(Err(core.describe(error).with_range(offset, len)));
                    }
                }
            }
        }
        self.order = Some(order);
    }

    /// Returns the request for these bytes, which pieces that touch have.
    fn request(
        &mut self,
        core: &Arc<FileCore>,
        bytes: Range<u64>,
        is_alone: bool,
        numbers: &[usize],
    ) -> Result<OpFuture<'static>> {
        let len = bytes.end - bytes.start;
        check(core, bytes.start, len)?;
        let buffer = match (is_alone, self.pieces[numbers[0]].data.take_if(|_| is_alone)) {
            (true, Some(data)) => data.into_buffer(core)?,
            _ => {
                let mut block = core.engine().block("write_many", len as usize)?;
                for piece in numbers.iter().map(|&number| &self.pieces[number]) {
                    let part = piece.offset.max(bytes.start)..piece.end().min(bytes.end);
                    if let Some(data) = piece.data.as_ref().filter(|_| part.start < part.end) {
                        let place = (part.start - bytes.start) as usize..(part.end - bytes.start) as usize;
                        let from = (part.start - piece.offset) as usize..(part.end - piece.offset) as usize;
                        block[place].copy_from_slice(&data.bytes()[from]);
                    }
                }
                OpBuffer::Mut(block)
            }
        };
        let kind = if len == 0 { OpKind::Nop } else { OpKind::Write };
        Ok(self.op(core, kind, bytes.start, len as u32, buffer))
    }

    fn op(
        &self,
        core: &Arc<FileCore>,
        kind: OpKind,
        offset: u64,
        len: u32,
        buffer: OpBuffer,
    ) -> OpFuture<'static> {
        let request = OpRequest::new(kind, self.class, offset, len, buffer);
        OpFuture::new(Target::Owned(core.clone()), request)
    }

    /// Polls requests, removes those that have ended, and returns whether any has.
    fn poll_requests(
        requests: &mut Vec<Request>,
        order: &[usize],
        pieces: &[Piece],
        results: &mut [Option<Result<()>>],
        context: &mut Context<'_>,
    ) -> bool {
        let before = requests.len();
        requests.retain_mut(|request| {
            let Poll::Ready(result) = request.op.poll_result(context) else { return true };
            // An operation that failed early returns its memory, to the engine.
            drop(request.op.take_buffer());
            if let Err(failure) = result {
                let error = || failure.into_error("write_many", Some(&request.core));
                for &number in &order[request.places.clone()] {
                    let (offset, len) = (pieces[number].offset, pieces[number].len);
                    results[number] = Some(Err(request.core.describe(error()).with_range(offset, len)));
                }
            }
            false
        });
        requests.len() < before
    }

    /// Starts one sync for each file, if requested.
    fn begin_syncs(&self, order: &[usize]) -> Vec<Request> {
        let Some(kind) = self.durability.sync_kind() else { return Vec::new() };
        let mut syncs: Vec<Request> = Vec::new();
        for (place, &number) in order.iter().enumerate() {
            let core = &self.pieces[number].core;
            match syncs.last_mut().filter(|sync| Arc::ptr_eq(&sync.core, core)) {
                Some(sync) => sync.places.end = place + 1,
                None => {
                    let op = self.op(core, kind, 0, 0, OpBuffer::None);
                    syncs.push(Request { op, core: core.clone(), places: place..place + 1 });
                }
            }
        }
        syncs
    }
}

impl Future for WriteMany {
    type Output = Result<Vec<Result<()>>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some(error) = this.refused.take() {
            return Poll::Ready(Err(error));
        }
        if this.order.is_none()
            && let Err(error) = this.begin()
        {
            return Poll::Ready(Err(error));
        }
        loop {
            this.begin_requests();
            let order = this.order.as_deref().unwrap_or_default();
            let ended =
                WriteMany::poll_requests(&mut this.flying, order, &this.pieces, &mut this.results, context);
            if this.flying.is_empty() && this.run >= this.runs.len() {
                break;
            }
            if !ended {
                return Poll::Pending;
            }
        }
        let order = this.order.take().unwrap_or_default();
        let mut syncs = this.syncs.take().unwrap_or_else(|| this.begin_syncs(&order));
        WriteMany::poll_requests(&mut syncs, &order, &this.pieces, &mut this.results, context);
        this.order = Some(order);
        if !syncs.is_empty() {
            this.syncs = Some(syncs);
            return Poll::Pending;
        }
        let results = std::mem::take(&mut this.results);
        Poll::Ready(Ok(results.into_iter().map(|result| result.unwrap_or(Ok(()))).collect()))
    }
}

crate::_debug_parts!(
    WriteMany, |write_many|
    path: write_many.pieces.first().map(|piece| piece.core.path()),
    pieces: write_many.pieces.len()
);
