//! The rows: a sample of each way of a lookup.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay::{Class, Engine, File};
use forebay_kernel::{
    EngineKind, KernelWalk, LocalWalk, Lookup, Next, Options, Program, Scratch, TreeLookup,
};
use io_uring::{EnterFlags, IoUring, opcode, types};

use crate::planted::{Answer, Keys, LEVELS, NODE};
use crate::samples::{SampleResult, Start};

pub(crate) const PROGRAM: TreeLookup = TreeLookup { node_bytes: NODE as u32 };

pub(crate) fn pread(
    file: &fs::File,
    depth: u32,
    time: Duration,
    start: &mut Start<'_>,
) -> Answer<SampleResult> {
    let begun = start.wait();
    let lookups = thread::scope(|scope| {
        let lane = |lane: u32| {
            scope.spawn(move || {
                let mut memory = vec![0_u8; 2 * 4096];
                let aligned = memory.as_ptr().align_offset(4096);
                let page = &mut memory[aligned..aligned + NODE];
                let (mut keys, until, mut done) = (Keys::new(lane, LEVELS), Instant::now() + time, 0);
                while Instant::now() < until {
                    let lookup = keys.next();
                    let (mut at, mut scratch) = (0, Scratch::new());
                    at += PROGRAM.begin(&lookup, &mut scratch);
                    loop {
                        file.read_exact_at(page, at)?;
                        match PROGRAM.step(page, at, &mut scratch) {
                            Next::Read(next) => at = next.as_slice()[0],
                            Next::Over => break,
                            other => return Err(format!("{other:?}").into()),
                        }
                    }
                    keys.verify(&lookup, PROGRAM.end(&scratch, page))?;
                    done += 1;
                }
                Answer::Ok(done)
            })
        };
        let lanes: Vec<_> = (0..depth).map(lane).collect();
        let joined = lanes.into_iter().map(|lane| lane.join().map_err(|_| "a lane panicked")?);
        joined.sum::<Answer<u64>>()
    })?;
    Ok(SampleResult::since(begun, lookups, lookups * LEVELS))
}

/// Ways to wait for completions.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Wait {
    Interrupt,
    /// The kernel polls the device for the thread, which gives the processor up when its time slice has
    /// ended.
    Polled,
    /// The thread checks for completions in a loop.
    Busy,
}

/// One ring at the best possible without a program in it: registered, with the next read requested where one
/// is reaped.
pub(crate) fn ring(
    file: &fs::File,
    (depth, reads): (u32, u64),
    time: Duration,
    wait: Wait,
    start: &mut Start<'_>,
) -> Answer<SampleResult> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_coop_taskrun();
    if wait != Wait::Interrupt {
        builder.setup_iopoll();
    }
    let mut ring: IoUring = builder.build(depth.next_power_of_two())?;
    let mut memory = vec![0_u8; depth as usize * NODE + 4096];
    let pages = memory.as_ptr().align_offset(4096);
    let base = memory[pages..].as_mut_ptr();
    let buffer = libc::iovec { iov_base: base.cast(), iov_len: depth as usize * NODE };
    // SAFETY: the memory outlives the ring's last read: every lane is reaped before this returns.
    unsafe { ring.submitter().register_buffers(&[buffer])? };
    ring.submitter().register_files(&[file.as_raw_fd()])?;
    let read = |lane: u32, at: u64| {
        // SAFETY: the lane's page lies in the buffer.
        let page = unsafe { base.add(lane as usize * NODE) };
        opcode::ReadFixed::new(types::Fixed(0), page, NODE as u32, 0)
            .offset(at)
            .build()
            .user_data(lane.into())
    };
    let begun = start.wait();
    let mut keys = Keys::new(0, reads);
    let mut lanes: Vec<(Lookup, Scratch, u64)> = Vec::new();
    for lane in 0..depth {
        let (lookup, mut scratch) = (keys.next(), Scratch::new());
        let at = PROGRAM.begin(&lookup, &mut scratch);
        lanes.push((lookup, scratch, at));
        // SAFETY: page and file are registered, and nothing else uses the page until it is reaped.
        unsafe { ring.submission().push(&read(lane, at))? };
    }
    let (until, mut done, mut calls, mut under_way) = (Instant::now() + time, 0, 0, depth);
    while under_way > 0 {
        match wait {
            Wait::Busy => {
                let queued = ring.submission().len() as u32;
                // SAFETY: no argument; the queued entries use registered memory, as below.
                unsafe { ring.submitter().enter::<()>(queued, 0, EnterFlags::GETEVENTS.bits(), None)? }
            }
            _ => ring.submit_and_wait(1)?,
        };
        calls += 1;
        let is_over = Instant::now() >= until;
        let reaped: Vec<(u32, i32)> =
            ring.completion().map(|entry| (entry.user_data() as u32, entry.result())).collect();
        for (lane, result) in reaped {
            if result != NODE as i32 {
                return Err(format!("a read gave {result}").into());
            }
            let (lookup, scratch, at) = &mut lanes[lane as usize];
            let page = &memory[pages + lane as usize * NODE..][..NODE];
            match PROGRAM.step(page, *at, scratch) {
                Next::Read(next) => *at = next.as_slice()[0],
                Next::Over => {
                    keys.verify(lookup, PROGRAM.end(scratch, page))?;
                    done += 1;
                    if is_over {
                        under_way -= 1;
                        continue;
                    }
                    (*lookup, *scratch) = (keys.next(), Scratch::new());
                    *at = PROGRAM.begin(lookup, scratch);
                }
                other => return Err(format!("{other:?}").into()),
            }
            // SAFETY: the page and the file are registered, and this lane's page was just reaped.
            unsafe { ring.submission().push(&read(lane, *at))? };
        }
    }
    Ok(SampleResult::since(begun, done, calls))
}

/// Options, and the depth that they set.
pub(crate) type OptionsOfDepth = (Options, u32);

pub(crate) fn options(kind: EngineKind, depth: u32, polled: bool) -> OptionsOfDepth {
    (Options::new().only(kind).depth(depth).polled(polled), depth)
}

pub(crate) fn spinning((options, depth): OptionsOfDepth, spin: Duration) -> OptionsOfDepth {
    (options.spin(spin), depth)
}

pub(crate) fn local(
    path: &Path,
    reads: u64,
    (options, depth): OptionsOfDepth,
    time: Duration,
    start: &mut Start<'_>,
) -> Answer<SampleResult> {
    let file = direct(path)?;
    let mut walk = LocalWalk::open_with(&file, PROGRAM, options)?;
    let begun = start.wait();
    let mut keys = Keys::new(0, reads);
    let mut lookups = vec![Lookup { root: 0, level: 0, key: 0 }; 64];
    for _ in 0..depth {
        let lookup = keys.next();
        let number = walk.begin(&lookup).ok_or("there is room")?;
        lookups[number as usize] = lookup;
    }
    let (until, mut done) = (Instant::now() + time, 0);
    while walk.under_way() > 0 {
        let mut wrong = None;
        walk.run((depth / 4).max(1), |finished| {
            done += 1;
            let lookup = &lookups[finished.number as usize];
            let checked = finished.result.map_err(Into::into).and_then(|value| keys.verify(lookup, value));
            wrong = checked.err().or(wrong.take());
        })?;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        while Instant::now() < until && walk.under_way() < depth {
            let lookup = keys.next();
            let number = walk.begin(&lookup).ok_or("there is room")?;
            lookups[number as usize] = lookup;
        }
    }
    Ok(SampleResult::since(begun, done, walk.counts().0))
}

/// Runs a sample of a plain thread that requests `at_once` lookups of a [`KernelWalk`] with one message, and waits for all of them.
pub(crate) fn shared(
    engine: &Engine,
    file: &File,
    (options, _): OptionsOfDepth,
    at_once: u32,
    time: Duration,
    start: &mut Start<'_>,
) -> Answer<SampleResult> {
    let walk = KernelWalk::open_with(engine, file, PROGRAM, options)?;
    let begun = start.wait();
    let (mut keys, until, mut done) = (Keys::new(0, LEVELS), Instant::now() + time, 0);
    while Instant::now() < until {
        let lookups: Vec<Lookup> = (0..at_once).map(|_| keys.next()).collect();
        for (lookup, value) in lookups.iter().zip(walk.walk_many(&lookups).wait()?) {
            keys.verify(lookup, value?)?;
            done += 1;
        }
    }
    let taken = SampleResult::since(begun, done, walk.stats().enters);
    // Without this the file could not be removed for a moment.
    walk.close();
    Ok(taken)
}

/// Where tasks run.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Callers {
    /// On all shards of the engine.
    Shards,
    /// On the shards that are not the file's home.
    OtherShards,
    /// In a Tokio runtime of one worker.
    Tokio,
}

/// Runs a sample with a task for each lookup; all of them share one [`KernelWalk`].
pub(crate) fn tasks(
    engine: &Engine,
    file: &File,
    (options, depth): OptionsOfDepth,
    callers: Callers,
    time: Duration,
    start: &mut Start<'_>,
) -> Answer<SampleResult> {
    let walk = Arc::new(KernelWalk::open_with(engine, file, PROGRAM, options)?);
    let lane = move |walk: Arc<KernelWalk<TreeLookup>>, lane: u32| async move {
        let (mut keys, until, mut done) = (Keys::new(lane, LEVELS), Instant::now() + time, 0_u64);
        while Instant::now() < until {
            let lookup = keys.next();
            keys.verify(&lookup, walk.walk(&lookup).await?)?;
            done += 1;
        }
        Answer::Ok(done)
    };
    let runtime = match callers {
        Callers::Tokio => {
            Some(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
        }
        _ => None,
    };
    let begun = start.wait();
    let mut done = 0;
    if let Some(runtime) = &runtime {
        let tasks: Vec<_> = (0..depth).map(|number| runtime.spawn(lane(Arc::clone(&walk), number))).collect();
        for task in tasks {
            done += runtime.block_on(task)??;
        }
    } else {
        let is_used = |shard: &usize| callers == Callers::Shards || *shard != file.home_shard();
        let shards: Vec<usize> = (0..engine.shard_count()).filter(is_used).collect();
        let count = shards.len() as u32;
        let on_shard = |(at, shard): (u32, usize)| {
            let walk = Arc::clone(&walk);
            engine.spawn_on_shard(shard, Class::DEFAULT, move || async move {
                let tasks: Vec<_> = (at..depth.max(count))
                    .step_by(count as usize)
                    .map(|number| forebay::shard::spawn(lane(Arc::clone(&walk), number)))
                    .collect();
                let mut done = 0;
                for task in tasks {
                    done += task?.await??;
                }
                Answer::Ok(done)
            })
        };
        let all: Vec<_> = (0..).zip(shards).map(on_shard).collect();
        for shard in all {
            done += shard.wait()??;
        }
    }
    let taken = SampleResult::since(begun, done, walk.stats().enters);
    // Without this the file could not be removed for a moment.
    if let Some(walk) = Arc::into_inner(walk) {
        walk.close();
    }
    Ok(taken)
}

pub(crate) fn direct(path: &Path) -> std::io::Result<fs::File> {
    fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)
}
