//! The engine that every machine has: a program's step in the reactor, as a walk of Forebay's core.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use forebay::{Block, ErrorKind, File, Step, Walk};

use crate::error::{Error, Result};
use crate::layout;
use crate::program::{Next, Program, Scratch};

/// Arguments of a walk that has not started, as each engine needs them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) root: u64,
    pub(crate) scratch: Scratch,
    pub(crate) hops_max: u32,
}

/// Runs a walk where its reads complete.
pub(crate) async fn walk<P: Program>(file: File, program: Arc<P>, start: Start) -> Result<P::Output> {
    let step = ProgramWalk {
        page_bytes: u64::from(program.page_bytes()),
        // Positions that the kernel would refuse for a direct read are refused here too; the core would read
        // the aligned range around them.
        grain: u64::from(file.alignment().read_offset),
        program,
        scratch: start.scratch,
        coming: 1,
        hops: 1,
    };
    let root = step.range(start.root);
    if let Some(error) = step.misaligned(start.root) {
        return Err(error);
    }
    let Some(root) = root else { return Err(past_everything(start.root, 1)) };
    file.walk(root, step).hops_max(start.hops_max).await
}

struct ProgramWalk<P> {
    program: Arc<P>,
    scratch: Scratch,
    page_bytes: u64,
    grain: u64,
    /// Pages in flight.
    coming: usize,
    hops: u32,
}

impl<P: Program> ProgramWalk<P> {
    fn range(&self, position: u64) -> Option<Range<u64>> {
        // File offsets are signed in the kernel.
        position
            .checked_add(self.page_bytes)
            .filter(|end| i64::try_from(*end).is_ok())
            .map(|end| position..end)
    }

    fn misaligned(&self, position: u64) -> Option<Error> {
        let wrong = !position.is_multiple_of(self.grain.max(1)) && self.range(position).is_some();
        wrong.then(|| Error::Io {
            offset: position,
            hop: self.hops,
            source: io::Error::from_raw_os_error(libc::EINVAL),
        })
    }

    fn read(&mut self, positions: &[u64]) -> Step<P::Output, Error> {
        self.hops += 1;
        self.coming = positions.len();
        if let Some(error) = positions.iter().find_map(|position| self.misaligned(*position)) {
            return Step::Fail(error);
        }
        let ranges: Option<Vec<_>> = positions.iter().map(|position| self.range(*position)).collect();
        match ranges.as_deref() {
            Some([one]) => Step::Read(one.clone()),
            Some(all) => Step::read_each(all.iter().cloned()),
            None => Step::Fail(past_everything(positions[0], self.hops)),
        }
    }
}

impl<P: Program> Walk for ProgramWalk<P> {
    type Output = P::Output;
    type Error = Error;

    fn step(&mut self, page: &Block, at: Range<u64>) -> Step<P::Output, Error> {
        self.coming = self.coming.saturating_sub(1);
        match self.program.step(page, at.start, &mut self.scratch) {
            Next::Over => Step::Done(self.program.end(&self.scratch, page)),
            Next::Fail(code) => Step::Fail(Error::Failed { offset: at.start, code }),
            Next::Wait if self.coming > 0 => Step::Wait,
            Next::Read(positions)
                if self.coming == 0
                    && (1..=layout::READS_MAX).contains(&positions.given())
                    && positions.given() <= self.program.fan_out() as usize =>
            {
                self.read(positions.as_slice())
            }
            Next::Wait | Next::Read(_) => Step::Fail(Error::BadAnswer { offset: at.start }),
        }
    }
}

/// Returns the kernel's error for a position that no file can have.
fn past_everything(offset: u64, hop: u32) -> Error {
    Error::Io { offset, hop, source: io::Error::from_raw_os_error(libc::EINVAL) }
}

impl From<forebay::Error> for Error {
    fn from(error: forebay::Error) -> Error {
        let offset = error.range().map_or(0, |(offset, _)| offset);
        match (error.kind(), error.raw_os_error()) {
            (ErrorKind::UnexpectedEof { got }, _) => Error::UnexpectedEof { offset, got },
            (ErrorKind::TooManyHops { limit }, _) => Error::TooManyHops { limit },
            (kind, Some(number)) if kind.is_system() => Error::Io {
                offset,
                hop: error.hop().unwrap_or(0),
                source: io::Error::from_raw_os_error(number),
            },
            _ => Error::Core(error),
        }
    }
}
