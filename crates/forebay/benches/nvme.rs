//! Random reads of 4 KiB from an NVMe device in four ways (interrupts or polling, through the file system or as commands),
//! each by a bare loop on a ring and by Forebay: `vm/tests/polled --figures`.
//!
//! `FOREBAY_BENCH_FILE` is a file on the device, of at least 64 MiB that were written; `FOREBAY_BENCH_NVME` a namespace that was
//! written, to be read as commands. Rows take turns; a figure is the median of the repeats with the least and the most. The
//! processor time is the whole process's, the kernel's part of it included. All rows touch the first word of each block. Without
//! the variables the program does nothing.

use std::time::Instant;

const BLOCK: u64 = 4096;
const SPAN: u64 = 64 << 20;

/// Offsets that look random and are the same for every row of a repeat.
struct Dice(u64);

impl Dice {
    fn offset(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % (SPAN / BLOCK) * BLOCK
    }
}

#[derive(Clone, Copy)]
struct Sample {
    depth: usize,
    seconds: f64,
    seed: u64,
}

/// The figures of a sample.
#[cfg(target_os = "linux")]
struct Rate {
    reads_a_second: f64,
    cpu_us_a_read: f64,
}

/// The start of a sample.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy)]
struct Began {
    at: Instant,
    cpu_us: f64,
}

#[cfg(target_os = "linux")]
impl Began {
    fn now() -> Began {
        Began { cpu_us: cpu_us(), at: Instant::now() }
    }

    fn rate(&self, reads: u64, seconds: f64) -> Rate {
        let reads = reads as f64;
        Rate { reads_a_second: reads / seconds, cpu_us_a_read: (cpu_us() - self.cpu_us) / reads }
    }
}

/// Returns the processor time of this process so far.
#[cfg(target_os = "linux")]
fn cpu_us() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to the structure that is passed to it.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

#[cfg(target_os = "linux")]
mod bare {
    use std::fs::OpenOptions;
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    use io_uring::{IoUring, cqueue, opcode, squeue, types};

    use super::{BLOCK, Began, Dice, Instant, Rate, Sample};

    /// A function that makes an entry for a read of one block at an offset into memory, for ring place `.1`.
    type Make<S> = fn(u64, *mut u8, u64) -> S;

    fn read_entry(offset: u64, memory: *mut u8, data: u64) -> squeue::Entry {
        opcode::ReadFixed::new(types::Fixed(0), memory, BLOCK as u32, 0)
            .offset(offset)
            .build()
            .user_data(data)
    }

    /// Returns a `struct nvme_uring_cmd` with a read of blocks of 512 bytes from namespace 1.
    fn command_entry(offset: u64, memory: *mut u8, data: u64) -> squeue::Entry128 {
        let mut command = [0u8; 80];
        let block = offset / 512;
        command[0] = 2;
        command[4..8].copy_from_slice(&1u32.to_le_bytes());
        command[24..32].copy_from_slice(&(memory as u64).to_le_bytes());
        command[36..40].copy_from_slice(&(BLOCK as u32).to_le_bytes());
        command[40..48].copy_from_slice(&block.to_le_bytes());
        command[48..52].copy_from_slice(&(BLOCK as u32 / 512 - 1).to_le_bytes());
        let entry = opcode::UringCmd80::new(types::Fixed(0), 0xC048_4E80).cmd(command);
        entry.buf_index(Some(0)).build().user_data(data)
    }

    pub(super) fn file(path: &str, polled: bool, sample: Sample) -> io::Result<Rate> {
        reads::<squeue::Entry, cqueue::Entry>(path, libc::O_DIRECT, polled, sample, read_entry)
    }

    pub(super) fn commands(path: &str, polled: bool, sample: Sample) -> io::Result<Rate> {
        reads::<squeue::Entry128, cqueue::Entry32>(path, 0, polled, sample, command_entry)
    }

    /// Returns the reads a second of one thread that submits and waits for at least one completion each turn.
    fn reads<S: squeue::EntryMarker, C: cqueue::EntryMarker + Into<cqueue::Entry>>(
        path: &str,
        flags: i32,
        polled: bool,
        sample: Sample,
        make: Make<S>,
    ) -> io::Result<Rate> {
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let mut builder = IoUring::<S, C>::builder();
        builder.setup_single_issuer().setup_defer_taskrun();
        if polled {
            builder.setup_iopoll();
        }
        let mut ring = builder.build(sample.depth.next_power_of_two() as u32)?;
        let len = sample.depth * BLOCK as usize;
        // Leaked: a read may be in flight when an error ends this early.
        let memory = Box::leak(vec![0u8; len + BLOCK as usize].into_boxed_slice());
        let skip = memory.as_ptr().align_offset(BLOCK as usize);
        let start = memory[skip..].as_mut_ptr();
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        let whole = libc::iovec { iov_base: start.cast(), iov_len: len };
        // SAFETY: the memory is leaked, so it stays.
        unsafe { ring.submitter().register_buffers(&[whole])? };
        let _ = ring.submitter().register_ring_fd();
        let mut dice = Dice(sample.seed);
        let (mut done, mut flying, mut folded) = (0u64, 0usize, 0u64);
        let mut free: Vec<usize> = (0..sample.depth).collect();
        let mut is_over = false;
        let began = Began::now();
        let mut ended = began.at;
        while !is_over || flying > 0 {
            while let Some(place) = if is_over { None } else { free.pop() } {
                // SAFETY: each place has its own block of the leaked memory, and one read at a time.
                unsafe {
                    let entry = make(dice.offset(), start.add(place * BLOCK as usize), place as u64);
                    ring.submission().push(&entry).map_err(|_| io::Error::other("no room"))?;
                }
                flying += 1;
            }
            match ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => return Err(error),
            }
            for completion in ring.completion() {
                let completion: cqueue::Entry = completion.into();
                if completion.result() < 0 {
                    return Err(io::Error::from_raw_os_error(-completion.result()));
                }
                let place = completion.user_data() as usize;
                // SAFETY: the read into this place has ended.
                folded ^= unsafe { start.add(place * BLOCK as usize).cast::<u64>().read() };
                free.push(place);
                flying -= 1;
                done += u64::from(!is_over);
            }
            if !is_over {
                ended = Instant::now();
                is_over = (ended - began.at).as_secs_f64() >= sample.seconds;
            }
        }
        std::hint::black_box(folded);
        Ok(began.rate(done, (ended - began.at).as_secs_f64()))
    }
}

#[cfg(target_os = "linux")]
mod rows {
    use std::cell::Cell;
    use std::rc::Rc;

    use forebay::{Class, Config, Engine, File, Open, OpenNvme, Polling, Result, shard};

    use super::{BLOCK, Began, Dice, Rate, Sample};

    fn engine(polling: Polling) -> Result<Engine> {
        Engine::start(Config::new().shards(1).polling(polling))
    }

    pub(super) fn file(path: &str, polling: Polling, sample: Sample) -> Result<Rate> {
        let engine = engine(polling)?;
        let file = engine.open(path, Open::read()).wait()?;
        reads(&engine, file, sample)
    }

    pub(super) fn commands(path: &str, polling: Polling, sample: Sample) -> Result<Rate> {
        let engine = engine(polling)?;
        let file = engine.open_nvme(path, OpenNvme::read().even_in_use()).wait()?;
        reads(&engine, file, sample)
    }

    /// Returns the reads a second of one task for each read in flight, all on the shard.
    fn reads(engine: &Engine, file: File, sample: Sample) -> Result<Rate> {
        let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let (done, folded) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(0u64)));
            let dice = Rc::new(Cell::new(sample.seed));
            let began = Began::now();
            let mut lanes = Vec::new();
            for _ in 0..sample.depth {
                let (file, done, folded, dice) = (file.clone(), done.clone(), folded.clone(), dice.clone());
                lanes.push(shard::spawn(async move {
                    loop {
                        let mut luck = Dice(dice.get());
                        let offset = luck.offset();
                        dice.set(luck.0);
                        let block = file.read(offset..offset + BLOCK).await?;
                        folded.set(folded.get() ^ u64::from_le_bytes(std::array::from_fn(|at| block[at])));
                        done.set(done.get() + 1);
                        // As often as the bare loop checks: once a turn, more or less.
                        if done.get() % 8 == 0 && began.at.elapsed().as_secs_f64() >= sample.seconds {
                            return Result::Ok(());
                        }
                    }
                })?);
            }
            let mut lanes = lanes.into_iter();
            let first = lanes.next();
            if let Some(first) = first {
                first.await??;
            }
            let rate = began.rate(done.get(), began.at.elapsed().as_secs_f64());
            // Aborted rather than waited for: a lane checks the clock at every eighth read of all only.
            lanes.for_each(|lane| lane.abort());
            std::hint::black_box(folded.get());
            Result::Ok(rate)
        });
        let rate = task.wait()??;
        engine.clone().close().wait()?;
        Ok(rate)
    }
}

#[cfg(target_os = "linux")]
fn main() {
    use forebay::Polling;

    let named = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    let (Some(file), Some(namespace)) = (named("FOREBAY_BENCH_FILE"), named("FOREBAY_BENCH_NVME")) else {
        println!("nothing to do: FOREBAY_BENCH_FILE and FOREBAY_BENCH_NVME name no device");
        return;
    };
    let number = |name, default: f64| named(name).and_then(|value| value.parse().ok()).unwrap_or(default);
    let (depth, seconds) =
        (number("FOREBAY_BENCH_DEPTH", 32.0) as usize, number("FOREBAY_BENCH_SECONDS", 0.5));
    let repeats = number("FOREBAY_BENCH_REPEATS", 9.0) as usize;
    const ROWS: [&str; 9] = [
        "bare",
        "bare-polled",
        "bare-commands",
        "bare-commands-polled",
        "forebay",
        "forebay-polled",
        "forebay-commands",
        "forebay-commands-polled",
        "forebay-hybrid",
    ];
    /// The bare row that a row is compared with.
    const BARE: [usize; 9] = [0, 1, 2, 3, 0, 1, 2, 3, 1];
    let mut found: Vec<Vec<f64>> = vec![Vec::new(); ROWS.len()];
    let mut cpu: Vec<Vec<f64>> = vec![Vec::new(); ROWS.len()];
    for repeat in 0..repeats {
        for turn in 0..ROWS.len() {
            let row = (turn + repeat * 4) % ROWS.len();
            let sample = Sample { depth, seconds, seed: 0x9E37_79B9_7F4A_7C15 ^ (repeat as u64 + 1) };
            let polling = [Polling::Off, Polling::On][row % 2];
            let rate = match row {
                0 | 1 => bare::file(&file, row == 1, sample).map_err(|error| error.to_string()),
                2 | 3 => bare::commands(&namespace, row == 3, sample).map_err(|error| error.to_string()),
                4 | 5 => rows::file(&file, polling, sample).map_err(|error| error.to_string()),
                8 => rows::file(&file, Polling::Hybrid, sample).map_err(|error| error.to_string()),
                _ => rows::commands(&namespace, polling, sample).map_err(|error| error.to_string()),
            };
            match rate {
                Ok(rate) => {
                    found[row].push(rate.reads_a_second);
                    cpu[row].push(rate.cpu_us_a_read);
                }
                Err(error) => println!("{}: {error}", ROWS[row]),
            }
        }
    }
    let median = |values: &[f64]| {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    println!("{repeats} repeats of {seconds} s, {depth} reads of 4 KiB in flight");
    println!(
        "{:<26}{:>12}{:>12}{:>12}{:>12}{:>12}{:>14}",
        "row", "reads/s", "least", "most", "of `bare`", "of its bare", "CPU us a read"
    );
    for (row, name) in ROWS.iter().enumerate() {
        let ends = |pick: fn(f64, f64) -> f64| found[row].iter().copied().reduce(pick).unwrap_or(f64::NAN);
        let of = |other: &[f64]| {
            let ratios: Vec<f64> = found[row].iter().zip(other).map(|(one, other)| one / other).collect();
            median(&ratios)
        };
        println!(
            "{name:<26}{:>12.0}{:>12.0}{:>12.0}{:>12.2}{:>12.2}{:>14.1}",
            median(&found[row]),
            ends(f64::min),
            ends(f64::max),
            of(&found[0]),
            of(&found[BARE[row]]),
            median(&cpu[row])
        );
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("nothing to do: there is no io_uring here");
}
