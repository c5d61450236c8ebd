//! Requests that are at the device in several parts.

use crate::driver::NOT_POLLABLE;
use crate::io::op::OpKey;

/// Set in the `user_data` of a part. A key has its slot's index there, which is below 2^20.
const PART: u64 = 1 << 31;

/// The state of one split request.
struct Split {
    key: OpKey,
    part_bytes: u32,
    len: u32,
    /// Parts whose completion was not seen.
    left: u32,
    /// The first part that did not transfer all its bytes, and its result.
    short_at: u32,
    short: i32,
}

/// The split requests of a ring.
#[derive(Default)]
pub(super) struct Splits {
    list: Vec<Split>,
    free: Vec<u32>,
}

impl Splits {
    /// Starts a request of `parts` parts and returns its index. Allocates only if more are in flight than ever before.
    pub(super) fn begin(&mut self, key: OpKey, parts: u32, part_bytes: u32, len: u32) -> u32 {
        debug_assert_eq!(parts, len.div_ceil(part_bytes), "the parts are the whole request");
        let split = Split { key, part_bytes, len, left: parts, short_at: parts, short: 0 };
        match self.free.pop() {
            Some(index) => {
                self.list[index as usize] = split;
                index
            }
            None => {
                self.list.push(split);
                (self.list.len() - 1) as u32
            }
        }
    }

    /// Returns the `user_data` that names one part of a request.
    pub(super) const fn user_data(split: u32, part: u32) -> u64 {
        (split as u64) << 32 | PART | part as u64
    }

    #[inline]
    pub(super) const fn is_part(data: u64) -> bool {
        data & PART != 0
    }

    /// Returns the bytes of a part that transfers completely.
    pub(super) fn wanted(&self, data: u64) -> i32 {
        let part = (data & (PART - 1)) as u32;
        let split = self.list.get((data >> 32) as usize);
        split.map_or(0, |split| (split.len - part * split.part_bytes).min(split.part_bytes) as i32)
    }

    /// Records a part's completion. The last one completes the whole request, and the device has released all its memory. Then this
    /// returns the number of bytes transferred from the start on, or the error if it is zero.
    pub(super) fn part_done(&mut self, data: u64, result: i32) -> Option<(OpKey, i32)> {
        let wanted = self.wanted(data);
        let index = (data >> 32) as u32;
        let split = self.list.get_mut(index as usize).filter(|split| split.left > 0)?;
        let part = (data & (PART - 1)) as u32;
        if result != wanted && part < split.short_at {
            (split.short_at, split.short) = (part, result);
        }
        split.left -= 1;
        if split.left > 0 {
            return None;
        }
        let before = (split.short_at * split.part_bytes).min(split.len);
        let whole = match split.short {
            error if error < 0 && before == 0 => error,
            // The caller requests the rest again, and that request returns its own error.
            error if error < 0 => before as i32,
            more => before as i32 + more,
        };
        let key = split.key;
        self.free.push(index);
        Some((key, whole))
    }
}

const _: () = assert!(NOT_POLLABLE < 0, "it travels among the errors");

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: OpKey = OpKey { index: 7, generation: u32::MAX };

    fn ends_as(results: &[(u32, i32)]) -> (OpKey, i32) {
        let mut splits = Splits::default();
        let split = splits.begin(KEY, results.len() as u32, 100, 250);
        let (last, others) = results.split_last().unwrap();
        for &(part, result) in others {
            assert_eq!(
                splits.part_done(Splits::user_data(split, part), result),
                None,
                "not before the last part"
            );
        }
        let ended = splits.part_done(Splits::user_data(split, last.0), last.1).unwrap();
        assert_eq!(splits.part_done(Splits::user_data(split, last.0), last.1), None, "it is over once");
        ended
    }

    #[test]
    fn the_last_part_ends_the_request_with_the_bytes_from_its_beginning_on() {
        assert_eq!(ends_as(&[(2, 50), (0, 100), (1, 100)]), (KEY, 250));
        assert_eq!(ends_as(&[(0, 100), (2, 0), (1, 30)]), (KEY, 130), "the file ends in the second part");
        assert_eq!(ends_as(&[(2, 50), (1, 0), (0, 100)]), (KEY, 100), "later bytes do not count");
    }

    #[test]
    fn an_error_is_told_when_nothing_lies_before_it() {
        assert_eq!(ends_as(&[(1, 100), (0, -5), (2, 50)]), (KEY, -5));
        assert_eq!(ends_as(&[(2, -5), (0, 100), (1, 100)]), (KEY, 200));
        assert_eq!(ends_as(&[(2, NOT_POLLABLE), (0, NOT_POLLABLE), (1, 100)]), (KEY, NOT_POLLABLE));
    }

    #[test]
    fn parts_are_never_taken_for_keys() {
        let highest = OpKey { index: crate::reactor::shard::optable::SLOTS_MAX - 1, generation: u32::MAX };
        assert!(!Splits::is_part(highest.to_user_data()));
        assert!(Splits::is_part(Splits::user_data(u32::MAX, 15)));
    }

    #[test]
    fn a_place_is_used_again_when_its_request_is_over() {
        let mut splits = Splits::default();
        let first = splits.begin(KEY, 1, 100, 50);
        splits.part_done(Splits::user_data(first, 0), 50).unwrap();
        assert_eq!(splits.begin(KEY, 1, 100, 50), first);
    }
}
