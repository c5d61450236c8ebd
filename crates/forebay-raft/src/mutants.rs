//! Deliberate faults of log and store, which show that the tests catch the bugs they are meant for.
//!
//! The switch belongs to the calling thread. A simulated world runs on one thread and so is broken as a whole.

/// The fault to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mutant {
    /// `save_vote` returns before the vote is durable.
    VoteNotSynced,
    /// `truncate_after` returns before the truncation is durable.
    TruncateNotSynced,
    /// `purge` returns before the purge is durable.
    PurgeNotSynced,
    /// An append's callback is called once its entries are queued.
    AppendAcknowledgedEarly,
    /// The applied log id is written in a separate batch, after the changes of its entry.
    AppliedBehindData,
    /// The new state is named before its files are durable, and the old state is removed before that.
    HalfInstalled,
}

forebay::_mutant_switch!(Mutant);
