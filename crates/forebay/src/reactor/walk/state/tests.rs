//! Run by Miri as well: sizes around the room's, and every way in which a job can end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::base::error::ErrorKind;

/// A walk of any size, with a counter that must be dropped exactly once.
struct SizedWalk<const BYTES: usize> {
    padding: [u8; BYTES],
    _drops: DropCounter,
}

#[derive(Clone)]
struct DropCounter(Arc<AtomicU32>);

impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl<const BYTES: usize> Walk for SizedWalk<BYTES> {
    type Output = Box<[u8]>;
    type Error = Error;

    fn step(&mut self, _: &Block, at: Range<u64>) -> Step<Box<[u8]>, Error> {
        match at.start {
            0 => Step::Read(1..2),
            1 => Step::read_each([3..4, 5..6]),
            2 => Step::Wait,
            3 => Step::Fail(Error::invalid("walk", "the walk's own")),
            4 => panic!("in a step"),
            _ => {
                self.padding.fill(at.start as u8);
                Step::Done(self.padding.into())
            }
        }
    }
}

fn sized<const BYTES: usize>() -> (Job, Arc<AtomicU32>) {
    let drops = Arc::new(AtomicU32::new(0));
    (Job::new(SizedWalk { padding: [1; BYTES], _drops: DropCounter(drops.clone()) }), drops)
}

fn lives_and_ends_once<const BYTES: usize>(boxed: bool) {
    let block = Block::new();
    // Moved around, stepped, done.
    let (mut job, drops) = sized::<BYTES>();
    assert_eq!(job.is_boxed(), boxed, "{BYTES} bytes and a pointer");
    assert!(matches!(job.step(&block, 0..1), Next::Read(range) if range == (1..2)));
    let mut elsewhere = vec![job];
    assert!(matches!(elsewhere[0].step(&block, 1..2), Next::ReadEach(ranges) if ranges.len() == 2));
    elsewhere.reserve(64);
    let mut job = std::thread::spawn(move || elsewhere.pop().unwrap()).join().unwrap();
    assert!(matches!(job.step(&block, 2..3), Next::Wait));
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    assert!(matches!(job.step(&block, 9..10), Next::Over));
    assert_eq!(drops.load(Ordering::Relaxed), 1, "the state goes when its walk is over");
    assert!(matches!(job.step(&block, 0..1), Next::Over), "what is over stays over");
    let Some(Ok(output)) = job.into_ending::<SizedWalk<BYTES>>() else { panic!("it is done") };
    assert_eq!(&output[..], &vec![9; BYTES][..]);
    // Its own failure, a failure of the core's, a panic, a drop midway, and an ending that is never returned.
    for way in 0..5 {
        let (mut job, drops) = sized::<BYTES>();
        match way {
            0 => assert!(matches!(job.step(&block, 3..4), Next::Over)),
            1 => job.fail(Error::new(ErrorKind::EngineClosed, "walk")),
            2 => {
                let Next::Panicked(error) = job.step(&block, 4..5) else { panic!("it panics") };
                assert!(error.to_string().contains("in a step"), "{error}");
                assert_eq!(drops.load(Ordering::Relaxed), 0, "whoever caught it says how the walk ends");
                job.fail(error);
            }
            3 => assert!(matches!(job.step(&block, 0..1), Next::Read(_))),
            _ => assert!(matches!(job.step(&block, 9..10), Next::Over)),
        }
        match way {
            0 => assert!(matches!(job.into_ending::<SizedWalk<BYTES>>(), Some(Err(Failure::Own(_))))),
            1 | 2 => assert!(matches!(job.into_ending::<SizedWalk<BYTES>>(), Some(Err(Failure::Core(_))))),
            _ => drop(job),
        }
        assert_eq!(drops.load(Ordering::Relaxed), 1, "way {way}");
    }
}

#[test]
fn states_of_all_sizes_live_and_end_once() {
    lives_and_ends_once::<0>(false);
    lives_and_ends_once::<1>(false);
    // With the pointer: 128 bytes.
    lives_and_ends_once::<120>(false);
    lives_and_ends_once::<136>(true);
    lives_and_ends_once::<4096>(true);
}

/// The largest state that is promised a place, at each alignment; beyond it a box.
#[test]
fn alignments_are_kept() {
    macro_rules! aligned {
        ($($align:literal: $boxed:literal),*) => {$({
            #[repr(align($align))]
            struct AlignedWalk([u8; 128]);
            impl Walk for AlignedWalk {
                type Output = usize;
                type Error = Error;
                fn step(&mut self, _: &Block, _: Range<u64>) -> Step<usize, Error> {
                    Step::Done((&raw const self.0).addr() % $align)
                }
            }
            let mut job = Job::new(AlignedWalk([0; 128]));
            assert_eq!(job.is_boxed(), $boxed, "aligned to {}", $align);
            assert!(matches!(job.step(&Block::new(), 0..1), Next::Over));
            assert!(matches!(job.into_ending::<AlignedWalk>(), Some(Ok(0))));
        })*};
    }
    aligned!(2: false, 8: false, 16: false, 32: true, 64: true, 128: true);
}

#[test]
fn a_job_of_another_type_has_no_ending_here() {
    let (mut job, drops) = sized::<8>();
    assert!(matches!(job.step(&Block::new(), 9..10), Next::Over));
    assert!(job.name().contains("SizedWalk<8>"), "{}", job.name());
    assert!(job.into_ending::<SizedWalk<9>>().is_none());
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

/// Story: destructors of states are the program's code and run in the midst of the shard's.
#[test]
fn a_destructor_that_panics_stays_where_it_is() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("in a destructor");
        }
    }
    impl Walk for Bad {
        type Output = Bad;
        type Error = Error;
        fn step(&mut self, _: &Block, _: Range<u64>) -> Step<Bad, Error> {
            Step::Done(Bad)
        }
    }
    let mut job = Job::new(Bad);
    assert!(matches!(job.step(&Block::new(), 0..1), Next::Over));
    drop(job);
    let mut job = Job::new(Bad);
    job.fail(Error::new(ErrorKind::ShardLost, "walk"));
    assert!(matches!(job.into_ending::<Bad>(), Some(Err(Failure::Core(_)))));
    drop(Job::new(Bad));
}
