//! Deliberate faults of a log, which show that the tests catch the bugs they are meant for.
//!
//! The switch belongs to the calling thread. A simulated world runs on one thread and so is broken as a
//! whole. The log of a real engine, whose task runs on a shard, is never affected.

/// The fault to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mutant {
    /// Recovery treats every damaged place as the log's end, despite the watermark of a later group.
    WatermarkIgnored,
    /// After a failed write or flush the writer continues with the next group.
    PoisonIgnored,
    /// A segment is reused or removed once the group that gives it up is durable, without another group after
    /// that.
    SegmentGoneEarly,
    /// An append that was woken for free space blocks all others until it uses that space.
    WokenKeepsItsTurn,
    /// A new segment does not start with the values.
    ValuesNotCarried,
    /// A set value is acknowledged once it is queued.
    ValueAcknowledgedEarly,
    /// A new segment's name, length and extents are left to the flushes of its groups.
    SegmentNotFlushed,
    /// The zeros of a segment are written in one burst among groups.
    ZerosInOneBurst,
}

forebay::_mutant_switch!(Mutant);
