//! Lookups as walks: the next read of a lookup is chosen on the file's shard, where the read before
//! completes, and the program is woken once.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

use forebay::{Block, Class, File, FileUse, Step, Walk, WalkMany};

use super::lookup::LookupStep;
use super::unpack::PackedAt;
use super::{Hit, Lookup, Table};
use crate::admission::{Admission, Permit, PermitHolder, Ticket};
use crate::error::{Error, Result};

/// The outcome of a walk. It stays in the walk until the program collects it, which may be never.
#[derive(Debug)]
pub(crate) enum WalkOutcome {
    Found(Option<Hit>),
    /// A value was found; the ticket has its block until the program collects it.
    Left(Ticket),
    /// A packed part was read; the ticket has it until the program collects and unpacks it.
    Packed(Ticket, PackedAt),
    /// The same of a lookup without a permit.
    PackedBlock(Block, PackedAt),
}

impl Walk for Lookup {
    type Output = WalkOutcome;
    type Error = Error;

    /// Continues the lookup with a block that was read. Costs a checksum over the block, and a search.
    fn step(&mut self, block: &Block, at: Range<u64>) -> Step<WalkOutcome, Error> {
        let value = match self.look_into(block, at) {
            Ok(LookupStep::Found(Some(Hit::Value(value)))) => value,
            Ok(LookupStep::Found(found)) => return Step::Done(WalkOutcome::Found(found)),
            Ok(LookupStep::Reads) => return Step::Read(self.range()),
            Ok(LookupStep::Packed(at)) => {
                return Step::Done(match self.permit.take() {
                    Some(permit) => WalkOutcome::Packed(permit.leave(block.clone(), None, self.is_again), at),
                    None => WalkOutcome::PackedBlock(block.clone(), at),
                });
            }
            Err(error) => return Step::Fail(error),
        };
        Step::Done(match (value.into_block(), self.permit.take()) {
            (Ok(block), Some(permit)) => WalkOutcome::Left(permit.leave(block, None, self.is_again)),
            (Ok(block), None) => WalkOutcome::Found(Some(self.table().value(block))),
            (Err(value), _) => WalkOutcome::Found(Some(Hit::Value(value))),
        })
    }
}

impl PermitHolder for Lookup {
    fn permit(&mut self) -> &mut Option<Permit> {
        &mut self.permit
    }
}

impl WalkOutcome {
    /// Returns the entry found for `key`; a value counts as held by the program from now on. `None` if the block was evicted before
    /// the program collected it. Unpacks a packed leaf or value, at about a microsecond per 3 KiB.
    ///
    /// # Errors
    /// `Corruption`, with file and offset; no memory.
    pub(crate) fn take(self, table: &Arc<Table>, key: &[u8]) -> Result<Option<Option<Hit>>> {
        let (block, at) = match self {
            WalkOutcome::Found(found) => return Ok(Some(found)),
            WalkOutcome::Left(ticket) => return Ok(ticket.take().map(|block| Some(table.value(block)))),
            WalkOutcome::Packed(ticket, at) => (ticket.take(), at),
            WalkOutcome::PackedBlock(block, at) => (Some(block), at),
        };
        block.map(|block| table.go_on(at, block, key)).transpose()
    }
}

/// Open files of tables, by the tables' numbers.
pub(crate) type OpenTables = BTreeMap<u32, FileUse>;

impl Lookup {
    /// Runs the lookup to its end in its table's file, with all reads that it needs.
    ///
    /// # Errors
    /// `Corruption`, with file and offset; the system's.
    pub(crate) async fn walk(self, file: &File, class: Class) -> Result<WalkOutcome> {
        let table = self.table().clone();
        let walk = file.walk(self.range(), self).class(class);
        let walked = Admission::new(walk).wait().await;
        walked.map_err(|error| table.walk_error(error))
    }
}

/// The lookups in flight of one table.
struct Batch<T> {
    table: Arc<Table>,
    names: Vec<T>,
    walks: Admission<WalkMany<Lookup>>,
}

/// Runs lookups in any tables whose files are among `files` to their ends, concurrently, with one message to a shard for each
/// table. Returns the results in any order, each with the name passed in with it, for which `key` returns the key. A result of
/// `None` was evicted before it was collected, or lacked memory.
///
/// # Errors
/// As [`Lookup::walk`]; the first error ends the others.
pub(crate) async fn walk_all<'k, T>(
    mut lookups: Vec<(T, Lookup)>,
    files: &OpenTables,
    class: Class,
    key: impl Fn(&T) -> &'k [u8],
) -> Result<Vec<(T, Option<Option<Hit>>)>> {
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
        let Some(file) = files.get(&table.id()) else {
            debug_assert!(false, "the files of all lookups were opened");
            answers.extend(names.into_iter().map(|name| (name, None)));
            continue;
        };
        let walks = file.walk_many(walks).class(class);
        batches.push(Batch { table, names, walks: Admission::new(walks) });
    }
    poll_fn(|context| {
        let mut at = 0;
        while let Some(batch) = batches.get_mut(at) {
            let Poll::Ready(ended) = batch.walks.poll(context) else {
                at += 1;
                continue;
            };
            let Batch { table, names, .. } = batches.swap_remove(at);
            for (name, answer) in names.into_iter().zip(ended?) {
                let found = match answer.map_err(|error| table.walk_error(error)) {
                    Err(error) if table.cache.gives_way(&error) => None,
                    walked => walked?.take(&table, key(&name))?,
                };
                answers.push((name, found));
            }
        }
        if batches.is_empty() { Poll::Ready(Ok::<(), Error>(())) } else { Poll::Pending }
    })
    .await?;
    Ok(answers)
}
