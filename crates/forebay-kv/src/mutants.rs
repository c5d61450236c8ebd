//! Faults put into a store on purpose, to check that the tests catch them.
//!
//! The switch belongs to the calling thread. A simulated world runs on one thread and so is broken as a
//! whole. The store of a real engine, whose tasks run on a shard, is never touched.

/// The fault to put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mutant {
    /// The manifest names a table that was not made durable.
    TableNotSynced,
    /// The names of new tables may be lost.
    TablesNotNamed,
    /// Reads see writes that are not durable yet.
    VisibleBeforeDurable,
    /// The manifest names a table with records whose numbers the log may lose.
    NumbersNotWritten,
    /// The log drops its records before the manifest names the tables that contain them.
    LogCutTooSoon,
    /// A compaction drops deletions although something older lies below.
    DeletionDroppedTooSoon,
    /// A compaction removes its input tables before the manifest names its output tables.
    InputsRemovedTooSoon,
    /// Writers fill all memory at full speed and then wait for the rest of a flush.
    WritersNotPaced,
    /// A get that was woken for free memory makes all others wait until it is polled.
    WokenKeepsItsRoom,
    /// `Store::transact` returns although what its tries have read is not durable yet.
    AnsweredBeforeDurable,
    /// A transaction commits although a key that it has read was changed.
    ConflictMissed,
    /// Changes that a flush has removed from memory since the start of a transaction are not compared with it.
    ConflictForgotten,
    /// Changes within a range that a transaction has read are not compared with it.
    PhantomMissed,
    /// Reads of snapshots and transactions judge what has expired by the clock, not by their moment.
    ExpiryOutsideView,
    /// A transaction whose turn it is to try again, and that is not polled, makes all others wait for it.
    TurnKept,
    /// Writers commit changes of keys that an ingest has locked.
    RangesNotLocked,
    /// An ingest names its files in the manifest one after the other.
    IngestInParts,
    /// Level 0 is always merged with all that lies below it.
    RunsNotMade,
    /// A full store continues a job whatever is left of it.
    LargeJobContinued,
    /// Deletions stay in a memtable that is not full.
    DeletionsNotFlushed,
    /// A put leaves the cache the memory that the memtables lent it.
    LoanKept,
    /// The build lacks the feature `zstd`: no fault, but what a test cannot see in a build that has it.
    ZstdMissing,
}

forebay::_mutant_switch!(Mutant);
