//! Lookups as walks: what a lookup reads is decided on the file's shard, where the read before completes, and
//! its program is woken once.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use forebay::{Block, Class, Step, Walk, WalkMany};

use super::{Found, Lookup, Table};
use crate::error::{Error, Result};

impl Walk for Lookup {
    type Output = Option<Found>;
    type Error = Error;

    /// Costs a checksum over the block, and a search.
    fn step(&mut self, block: &Block, at: Range<u64>) -> Step<Option<Found>, Error> {
        Lookup::step(self, block, at)
    }
}

impl Lookup {
    /// Reads what it needs, to the end.
    ///
    /// # Errors
    /// `Corruption`, with file and offset; the system's.
    pub(crate) async fn walk(self, class: Class) -> Result<Option<Found>> {
        let table = self.table().clone();
        let walked = table.file.walk(self.range(), self).class(class).await;
        walked.map_err(|error| table.walk_error(error))
    }
}

impl Table {
    /// The walk's error, or that the table is shorter than it was.
    fn walk_error(&self, error: Error) -> Error {
        let core = error.core();
        let is_short =
            core.is_some_and(|core| matches!(core.kind(), forebay::ErrorKind::UnexpectedEof { .. }));
        match core.and_then(forebay::Error::range).filter(|_| is_short) {
            Some((offset, _)) => self.too_short(offset),
            None => error,
        }
    }
}

/// The lookups of one table, under way.
struct Batch<T> {
    table: Arc<Table>,
    names: Vec<T>,
    walks: WalkMany<Lookup>,
}

/// Brings lookups in any tables to their ends, all at once, with one message to a shard for each table.
/// Answers in any order, each with the name that came with it.
///
/// # Errors
/// As [`Lookup::walk`]; the first one ends the others.
pub(crate) async fn walk_all<T>(
    mut lookups: Vec<(T, Lookup)>,
    class: Class,
) -> Result<Vec<(T, Option<Found>)>> {
    let mut answers = Vec::with_capacity(lookups.len());
    lookups.sort_by_key(|(_, lookup)| lookup.table().id());
    let mut lookups = lookups.into_iter().peekable();
    let mut batches: Vec<Batch<T>> = Vec::new();
    while let Some((name, first)) = lookups.next() {
        let table = first.table().clone();
        let (mut names, mut walks) = (vec![name], vec![(first.range(), first)]);
        while let Some((name, next)) = lookups.next_if(|(_, next)| next.table().id() == table.id()) {
            names.push(name);
            walks.push((next.range(), next));
        }
        let walks = table.file.walk_many(walks).class(class);
        batches.push(Batch { table, names, walks });
    }
    poll_fn(|context| {
        let mut at = 0;
        while let Some(batch) = batches.get_mut(at) {
            let Poll::Ready(ended) = Pin::new(&mut batch.walks).poll(context) else {
                at += 1;
                continue;
            };
            let Batch { table, names, .. } = batches.swap_remove(at);
            for (name, answer) in names.into_iter().zip(ended?) {
                answers.push((name, answer.map_err(|error| table.walk_error(error))?));
            }
        }
        if batches.is_empty() { Poll::Ready(Ok::<(), Error>(())) } else { Poll::Pending }
    })
    .await?;
    Ok(answers)
}
