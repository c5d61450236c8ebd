//! The offsets of a clone of a job.

use crate::job_file::Order;
use crate::pattern::{PAGE_BYTES, SplitMix};

/// The offsets of a clone, from the job's offset on.
#[derive(Debug)]
pub(super) struct Places {
    order: Order,
    span_bytes: u64,
    /// Offsets at random are multiples of this.
    align: u64,
    seed: u64,
    random: SplitMix,
    /// In order: the end of the last block, in zones without the bytes between them. At random: the number of earlier blocks.
    next: u64,
}

impl Places {
    pub(super) fn new(order: &Order, span_bytes: u64, align: u64, seed: u64) -> Self {
        let random = SplitMix::new(SplitMix::new(seed).next_u64());
        Self { order: order.clone(), span_bytes, align, seed, random, next: 0 }
    }

    /// Returns the offset of a block with `bytes` bytes, of which the span has at least one.
    pub(super) fn next_offset(&mut self, bytes: u64) -> u64 {
        let all = (self.span_bytes / self.align).max(1);
        let places = (self.span_bytes - bytes) / self.align + 1;
        let block = match &self.order {
            Order::Sequence { step } => {
                let step = *step;
                return self.in_sequence(step, bytes);
            }
            Order::Strided { bytes: zone, period } => {
                let mut offset = (self.next / zone).saturating_mul(*period).saturating_add(self.next % zone);
                if offset.saturating_add(bytes) > self.span_bytes {
                    (self.next, offset) = (0, 0);
                }
                self.next = (self.next + bytes).min((self.next / zone + 1) * zone);
                return offset;
            }
            Order::Once => {
                let (pass, place) = (self.next / places, self.next % places);
                self.next += 1;
                permuted(place, places, self.seed.wrapping_add(pass))
            }
            Order::Uniform => self.random.below(places),
            Order::Zipf(theta) => permuted(zipf(&mut self.random, all, *theta) - 1, all, self.seed),
            Order::Pareto(share) => {
                let power = share.ln() / (1.0 - *share).ln();
                let rank = unit(&mut self.random).powf(power) * (all - 1) as f64;
                permuted(rank as u64, all, self.seed)
            }
            Order::Normal(percent) => {
                // As fio has it: the mean of twelve numbers, and a deviation from it.
                let middle = (0..12).map(|_| self.random.below(all + 1)).sum::<u64>().div_ceil(12);
                let deviation = ((all as f64 * *percent / 100.0).ceil() as u64).min(all / 2);
                let rank = middle + all + self.random.below(deviation.max(1)) - deviation / 2;
                permuted(rank % all, all, self.seed)
            }
            Order::Zoned(zones) => {
                let (mut number, mut end, mut last) = (self.random.below(100), 0, 0);
                for (operations, share) in zones {
                    (last, end) = (end, end + share);
                    if number < *operations {
                        break;
                    }
                    number -= operations;
                }
                let (start, end) = (all * last / 100, all * end / 100);
                start + self.random.below(end.saturating_sub(start).max(1))
            }
        };
        block.min(places - 1) * self.align
    }

    /// As fio has it: only the first block has no step before it, and behind an end the other end is next. That one is
    /// aligned as blocks and steps are.
    fn in_sequence(&mut self, step: i64, bytes: u64) -> u64 {
        let fits = |offset: &u64| offset.checked_add(bytes).is_some_and(|end| end <= self.span_bytes);
        let next = if self.next == 0 { Some(0) } else { self.next.checked_add_signed(step) };
        let grain =
            1_u64 << step.trailing_zeros().min(bytes.trailing_zeros()).min(PAGE_BYTES.trailing_zeros());
        let other = self.span_bytes.checked_add_signed(step.min(0)).filter(|_| step < 0);
        let other = other.map(|end| end - end % grain);
        let offset = next.filter(fits).or(other.filter(fits)).unwrap_or(0);
        self.next = offset + bytes;
        offset
    }
}

/// Returns a number below 1.
pub(super) fn unit(random: &mut SplitMix) -> f64 {
    random.below(1 << 53) as f64 / (1_u64 << 53) as f64
}

/// Returns one of the numbers up to `count`, each as likely as itself to the power of minus `theta`: rejection-inversion (Hörmann and
/// Derflinger 1996).
fn zipf(random: &mut SplitMix, count: u64, theta: f64) -> u64 {
    let integral = |x: f64| (x.powf(1.0 - theta) - 1.0) / (1.0 - theta);
    let inverse = |y: f64| (1.0 + y * (1.0 - theta)).powf(1.0 / (1.0 - theta));
    let (first, last) = (integral(1.5) - 1.0, integral(count as f64 + 0.5));
    let near = 2.0 - inverse(integral(2.5) - 2_f64.powf(-theta));
    loop {
        let area = last + unit(random) * (first - last);
        let exact = inverse(area);
        let number = exact.round().clamp(1.0, count as f64);
        if number - exact <= near || area >= integral(number + 0.5) - number.powf(-theta) {
            return number as u64;
        }
    }
}

/// Returns the place to which a permutation of the numbers below `count` brings one: a Feistel network over the bits of `count`, again
/// where it leads beyond.
fn permuted(mut number: u64, count: u64, seed: u64) -> u64 {
    let bits = (u64::BITS - (count - 1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1 << bits) - 1;
    loop {
        let (mut left, mut right) = (number >> bits, number & mask);
        for round in 1..=4 {
            let mut mixed = SplitMix::new(seed ^ (right << 8) ^ round);
            (left, right) = (right, left ^ (mixed.next_u64() & mask));
        }
        number = (left << bits) | right;
        if number < count {
            return number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_brings_each_number_to_a_place_of_its_own() {
        for count in [1, 2, 3, 17, 64, 1000] {
            let mut places: Vec<u64> = (0..count).map(|number| permuted(number, count, 7)).collect();
            let is_in_order = places.is_sorted();
            places.sort_unstable();
            assert!(places.into_iter().eq(0..count), "{count}");
            assert!(!is_in_order || count < 17, "{count}");
        }
        assert_ne!(permuted(5, 1000, 1), permuted(5, 1000, 2));
    }

    fn offsets(order: &Order, span: u64, count: usize) -> Vec<u64> {
        let mut places = Places::new(order, span, 1, 7);
        (0..count).map(|_| places.next_offset(1)).collect()
    }

    /// The offsets of fio 3.33 (write_iolog) with one byte for each of its 64 KiB.
    #[test]
    fn sequences_are_those_of_fio() {
        let step = |step| Order::Sequence { step };
        assert_eq!(offsets(&step(0), 3, 5), [0, 1, 2, 0, 1]);
        assert_eq!(offsets(&step(2), 8, 5), [0, 3, 6, 0, 3]);
        let backwards = [0, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 14];
        assert_eq!(offsets(&step(-2), 16, 17), backwards);
        let zones = [0, 1, 4, 5, 8, 9, 12, 13, 0, 1];
        assert_eq!(offsets(&Order::Strided { bytes: 2, period: 4 }, 16, 10), zones);
        // Not as fio, of which the second begins at 11,808.
        let mut places = Places::new(&step(-8192), 20_000, 1, 7);
        assert_eq!([(); 5].map(|()| places.next_offset(4096)), [0, 8192, 4096, 0, 8192]);
    }

    #[test]
    fn each_pass_has_all_blocks_once() {
        let seen = offsets(&Order::Once, 10, 20);
        let [first, second] = [&seen[..10], &seen[10..]];
        assert_ne!(first, second);
        for pass in [first, second] {
            let mut pass = pass.to_vec();
            pass.sort_unstable();
            assert!(pass.into_iter().eq(0..10));
        }
    }

    /// How many of 100,000 operations the blocks have, the most frequent first.
    fn counts(order: &Order) -> Vec<usize> {
        let mut counts = vec![0; 1000];
        offsets(order, 1000, 100_000).into_iter().for_each(|offset| counts[offset as usize] += 1);
        counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
        counts
    }

    #[test]
    fn distributions_have_their_shapes() {
        let is_near = |count: usize, share: f64| (count as f64 / (100_000.0 * share) - 1.0).abs() < 0.1;
        let zipf = counts(&Order::Zipf(1.2));
        // The sum of n^-1.2 up to 1000 is 4.336.
        assert!(is_near(zipf[0], 1.0 / 4.336) && is_near(zipf[1], 0.4353 / 4.336), "{:?}", &zipf[..3]);
        let pareto = counts(&Order::Pareto(0.2));
        assert!(is_near(pareto[..200].iter().sum(), 0.8), "{:?}", &pareto[..3]);
        let normal = counts(&Order::Normal(5.0));
        // The mean of twelve has a deviation of 1/12 of the width: two thirds lie in a sixth of it.
        assert!(is_near(normal[..167].iter().sum(), 0.68), "{:?}", &normal[..3]);
        let zones = offsets(&Order::Zoned(vec![(50, 5), (30, 15), (20, 80)]), 1000, 100_000);
        let part = |from: u64, to: u64| zones.iter().filter(|offset| (from..to).contains(*offset)).count();
        assert!(is_near(part(0, 50), 0.5) && is_near(part(50, 200), 0.3) && is_near(part(200, 1000), 0.2));
        assert!(counts(&Order::Uniform)[0] < 200);
    }
}
