//! Making a failing sequence shorter.

/// Returns a shorter sequence that still fails: delta debugging, by parts of half the length down to single
/// steps. `fails` is called at most `tries` times; its argument keeps the order of the steps.
pub fn shrink<T: Clone>(steps: &[T], tries: usize, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut best = steps.to_vec();
    let mut left = tries;
    let mut part = best.len().div_ceil(2);
    while part > 0 && left > 0 {
        let mut shorter = false;
        let mut at = 0;
        while at < best.len() && left > 0 {
            let mut without = best.clone();
            without.drain(at..(at + part).min(best.len()));
            left -= 1;
            if fails(&without) {
                best = without;
                shorter = true;
            } else {
                at += part;
            }
        }
        part = match (part, shorter) {
            (1, true) => 1,
            (1, false) => 0,
            _ => part.div_ceil(2),
        };
    }
    best
}

#[cfg(test)]
mod tests {
    use super::shrink;

    #[test]
    fn leaves_only_what_is_needed() {
        let steps: Vec<u32> = (0..100).collect();
        let needed = [3, 50, 97];
        let fails = |some: &[u32]| needed.iter().all(|one| some.contains(one));
        assert_eq!(shrink(&steps, 1000, fails), needed);
    }

    #[test]
    fn stops_after_its_tries() {
        let mut asked = 0;
        let steps = vec![0; 1000];
        shrink(&steps, 10, |_| {
            asked += 1;
            false
        });
        assert_eq!(asked, 10);
    }
}
