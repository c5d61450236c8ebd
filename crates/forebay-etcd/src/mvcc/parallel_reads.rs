//! [`read`]: many concurrent reads, with a limit of the bytes that they hold.

use std::future::poll_fn;
use std::task::Poll;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

/// The most concurrent reads: enough to keep a device busy. The length of a value is known only after the read, so it is also the
/// most values of any length that are in memory together.
const READS_MAX: usize = 32;
/// The most before any length is known.
const FIRST_READS: usize = 16;

/// How much is read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ahead {
    /// Bytes of all values that are passed on, and of those that are being read, if they are as long as the longest so far.
    pub(super) bytes_max: usize,
    /// A longer value is not of use.
    pub(super) value_bytes_max: usize,
}

/// Reads values, and passes each on to `take`, which returns its bytes. `take` is not called for values that are available
/// immediately.
///
/// At most [`FIRST_READS`] are under way at first, and then as many as fit `bytes_max` if each is as long as the longest so far: at
/// least one, and at most [`READS_MAX`]. No further read starts when `bytes_max` were passed on.
pub(super) async fn read<'k, F: Future + Unpin, E>(
    keys: &'k [Vec<u8>],
    read: impl Fn(&'k Vec<u8>) -> F,
    limits: Ahead,
    mut take: impl FnMut(&'k [u8], F::Output) -> Result<usize, E>,
) -> Result<(), E> {
    let (mut keys, mut reads) = (keys.iter(), FuturesUnordered::new());
    let (mut passed_on, mut longest) = (0, None);
    loop {
        let fit = |longest: usize| (limits.bytes_max / longest.max(1)).clamp(1, READS_MAX);
        let reads_max = longest.map_or(FIRST_READS, fit);
        let (mut room, mut begun) = (reads_max.saturating_sub(reads.len()), Vec::new());
        poll_fn(|context| {
            while room > 0 && passed_on < limits.bytes_max {
                let Some(key) = keys.next() else { break };
                let mut one = read(key);
                if one.poll_unpin(context).is_pending() {
                    begun.push(one.map(move |found| (key, found)));
                    room -= 1;
                }
            }
            Poll::Ready(())
        })
        .await;
        reads.extend(begun);
        let Some((key, found)) = reads.next().await else { return Ok(()) };
        let bytes = take(key, found)?;
        longest = longest.max(Some(bytes));
        if bytes <= limits.value_bytes_max {
            passed_on += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[derive(Default)]
    struct Reads {
        under_way: usize,
        bytes: usize,
        reads_max: usize,
        bytes_max: usize,
    }

    /// Reads values of these lengths. Returns the keys that were passed on, with how many reads were under way, and how many bytes.
    async fn read_all(lengths: &[usize], limits: Ahead) -> (Vec<usize>, Reads) {
        let keys: Vec<Vec<u8>> = (0..lengths.len()).map(|at| at.to_be_bytes().to_vec()).collect();
        let (reads, mut taken) = (RefCell::new(Reads::default()), Vec::new());
        let at = |key: &[u8]| usize::from_be_bytes(key.try_into().unwrap());
        let one = |key: &Vec<u8>| {
            let (bytes, reads) = (lengths[at(key)], &reads);
            Box::pin(async move {
                {
                    let mut reads = reads.borrow_mut();
                    reads.under_way += 1;
                    reads.bytes += bytes;
                    reads.reads_max = reads.reads_max.max(reads.under_way);
                    reads.bytes_max = reads.bytes_max.max(reads.bytes);
                }
                tokio::task::yield_now().await;
                bytes
            })
        };
        read::<_, ()>(&keys, one, limits, |key, bytes| {
            let mut reads = reads.borrow_mut();
            (reads.under_way, reads.bytes) = (reads.under_way - 1, reads.bytes - bytes);
            taken.push(at(key));
            Ok(bytes)
        })
        .await
        .unwrap();
        (taken, reads.into_inner())
    }

    const LIMITS: Ahead = Ahead { bytes_max: 16_000, value_bytes_max: 4_000 };

    #[tokio::test]
    async fn short_values_are_read_together() {
        let (mut taken, reads) = read_all(&[10; 256], LIMITS).await;
        taken.sort_unstable();
        assert_eq!(taken, (0..256).collect::<Vec<_>>());
        assert_eq!(reads.reads_max, READS_MAX);
        // One that is not there has no length.
        assert_eq!(read_all(&[0; 256], LIMITS).await.0.len(), 256);
    }

    /// Once, all 256 values of a group of entries were in memory together, even long values.
    #[tokio::test]
    async fn long_values_are_read_in_parts() {
        for (bytes, passed_on) in [(1_000, 16), (2_000, 8), (4_000, 4)] {
            let (taken, reads) = read_all(&[bytes; 256], LIMITS).await;
            assert!(reads.bytes_max <= FIRST_READS * bytes, "{} bytes at once", reads.bytes_max);
            assert!(
                (passed_on..passed_on + FIRST_READS).contains(&taken.len()),
                "{} of {bytes}",
                taken.len()
            );
        }
        // Values that are too long to use are read to find that out, a few concurrently.
        let (taken, reads) = read_all(&[8_000; 256], LIMITS).await;
        assert_eq!((taken.len(), reads.reads_max), (256, FIRST_READS));
        let (taken, reads) = read_all(&[100, 50_000].repeat(64), LIMITS).await;
        assert_eq!(taken.len(), 128);
        assert!(reads.bytes_max <= READS_MAX * 50_000, "{} bytes at once", reads.bytes_max);
        // Without memory, nothing is read.
        let none = Ahead { bytes_max: 0, value_bytes_max: 0 };
        assert_eq!(read_all(&[10; 256], none).await.0.len(), 0);
    }
}
