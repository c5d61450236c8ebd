//! Deliberate faults of the writers, which show that the tests catch the bugs they are meant for.
//!
//! The switch belongs to the calling thread. A simulated world runs on one thread and so is broken as a whole; tasks on the shards of a
//! real engine are never affected.

/// The fault to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mutant {
    /// The barrier of a write combiner does nothing.
    BarrierIgnored,
    /// A page written in part has zeros in its other part.
    EdgeNotRead,
    /// Where pieces of a collective write overlap, the lowest rank wins.
    LowestRankWins,
}

forebay::_mutant_switch!(Mutant);
