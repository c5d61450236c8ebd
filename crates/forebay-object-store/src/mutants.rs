//! Faults put into a store on purpose, to check that the tests catch them.
//!
//! The switch belongs to the calling thread. A simulated world runs on one thread and so is broken as a whole.

/// The fault to put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mutant {
    /// An object gets its name before its bytes are durable.
    BytesNotSynced,
    /// A put, copy or rename returns before the name is durable.
    NameNotSynced,
    /// A put waits for a sync of its directory that started before its name existed.
    BegunSyncShared,
    /// A put that has waited for a sync of its directory which failed returns as if nothing had happened.
    FailedSyncForgotten,
    /// A put returns before the directories are durable that were made for it.
    DirectoriesNotSynced,
    /// A directory that was removed and made again counts as durable.
    RemovedDirectoryKnown,
    /// The bytes are written in place, not under a staged name.
    PutInPlace,
    /// An object gets its name before its attributes are durable.
    AttributesNotSynced,
    /// An update looks at the tag before it has the lock of the name, and not under it.
    TagNotChecked,
}

forebay::_mutant_switch!(Mutant);
