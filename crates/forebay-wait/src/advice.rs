//! The report's advice: sentences computed from its numbers.

mod gain;

use gain::gain;

use crate::report::{Call, DeviceRates, File, Method, NOT_TOLD, Report, share};

/// A wait below this share of the time is not worth working on.
const LITTLE: f64 = 0.05;
/// A share of the waiting that is worth its own sentence.
const MUCH: f64 = 0.15;
/// Most files and calls that get a sentence.
const SENTENCES: usize = 3;
/// Sequential shares from which access counts as sequential, and below which as random.
const SEQUENTIAL: f64 = 0.8;
const RANDOM: f64 = 0.3;
/// Fewer calls than this have no pattern.
const PATTERN_CALLS: u64 = 16;
const KIB: u64 = 1024;

/// Returns the report's advice in words, the most important sentence first; `served` is the measured rates of
/// devices.
pub(crate) fn of(report: &Report, served: &[DeviceRates]) -> Vec<String> {
    if report.wall_ns == 0 {
        return vec!["nothing was measured: it ended at once".to_owned()];
    }
    let mut sentences = vec![verdict(report)];
    sentences.extend(uncertain(report));
    if report.method == Method::Pressure || report.some_wait_share < 0.01 {
        return sentences;
    }
    sentences.extend(hidden(report));
    let mut rows: Vec<(Option<&File>, &Call)> = report
        .files
        .iter()
        .flat_map(|file| file.calls.iter().map(move |call| (Some(file), call)))
        .chain(report.without_file.iter().map(|call| (None, call)))
        .filter(|(_, call)| call.wait_share >= MUCH)
        .collect();
    rows.sort_by_key(|(_, call)| std::cmp::Reverse(call.wait_ns));
    sentences.extend(rows.iter().take(SENTENCES).map(|(file, call)| row(*file, call, served)));
    if rows.is_empty() && report.files.len() > 1 {
        sentences.push(format!(
            "no single file stands out: the waiting is spread over {} files, so it is opening and reading \
             many of them that takes the time; do several at once, or keep what is small in fewer files",
            report.files.len()
        ));
    }
    sentences.extend(above(report));
    sentences.extend(report.files.iter().find_map(amplified));
    sentences
}

fn verdict(report: &Report) -> String {
    let full_ns = report.full_at_most_ns();
    let full = share(full_ns, report.wall_ns);
    let some = report.some_wait_share;
    let (at_device, is_elsewhere) = (report.at_device_at_most_ns(), is_served_elsewhere(report));
    if full < LITTLE {
        let others = if some >= LITTLE {
            format!(", though in {} of it some thread did while others ran", percent(some))
        } else {
            String::new()
        };
        let bound = if report.unseen.is_empty() {
            let most = if is_elsewhere { full_ns } else { at_device };
            format!("faster storage would save no more than {}", time(most))
        } else {
            format!("what faster storage would save is not known, as {}", report.unseen.join(", and "))
        };
        return format!("it stood still for I/O in {} of its time{others}: {bound}", percent(full));
    }
    let without = |waits: u64| {
        let rest = report.wall_ns.saturating_sub(waits).max(1);
        factor(report.wall_ns as f64 / rest as f64)
    };
    let head = format!(
        "it stood still for I/O in {} of its time, {} of {}",
        percent(full),
        time(full_ns),
        time(report.wall_ns)
    );
    if !report.unseen.is_empty() {
        return format!("{head}; it may be more, as {}", report.unseen.join(", and "));
    }
    if is_elsewhere && share(at_device, report.wall_ns) < LITTLE {
        return format!(
            "{head}; much of that was on files without a device here (FUSE, a network file system), and the storage behind them \
             was not seen: without any wait it would be {} times as fast",
            without(full_ns)
        );
    }
    // A device can only shorten the waits at the device.
    if share(at_device, report.wall_ns) < LITTLE {
        return format!(
            "{head}; nearly all of that was above the devices, so a faster one would not help: without any wait it would be \
             {} times as fast",
            without(full_ns)
        );
    }
    format!(
        "{head}: with a device that answers at once it would be {} times as fast; what its calls cost the processor is not in \
         that",
        without(at_device)
    )
}

/// Returns whether some of the waiting is on files that no device of this machine serves to the tree: requests of the program or
/// the machine behind them are not the tree's.
fn is_served_elsewhere(report: &Report) -> bool {
    let files =
        report.files.iter().filter(|file| file.device_requests == 0 && file.device_number.starts_with("0:"));
    share(files.map(|file| file.wait_ns).sum(), report.wait_sum_ns) >= LITTLE
}

/// Returns a sentence on the part of the verdict's time that may have been no wait for I/O.
fn uncertain(report: &Report) -> Option<String> {
    let part = share(report.maybe_full_wait_ns, report.full_at_most_ns());
    let seen = report.maybe_full_wait_share >= LITTLE || report.maybe_full_wait_ns > report.full_wait_ns;
    (part > 0.0 && seen).then(|| {
        format!(
            "{} of the standing still may be for something else: operations on files were in flight, and what ended the sleep \
             was not seen to be one of them",
            percent(part)
        )
    })
}

/// Returns a sentence on the wait that `iostat` and `top` do not show.
fn hidden(report: &Report) -> Option<String> {
    let unseen = report.full_wait_ns.saturating_sub(report.iowait.full_ns);
    (share(unseen, report.wall_ns) >= LITTLE).then(|| {
        format!(
            "{} of the standing still is not iowait in the kernel's account (a journal's commit, a lock, a ring behind epoll, \
             FUSE or a network file system), so top, iostat and io.pressure do not show it",
            percent(share(unseen, report.full_wait_ns))
        )
    })
}

fn row(file: Option<&File>, call: &Call, served: &[DeviceRates]) -> String {
    let part = percent(call.wait_share);
    let Some(file) = file else {
        return match call.call.as_str() {
            "exec" => format!("{part} of the wait is the loading of programs ({} times)", call.count),
            "elsewhere" => format!(
                "{part} of the wait is iowait in no call that is followed and in no fault on a file, such as for memory that \
                 comes back from swap"
            ),
            "aio" => format!(
                "{part} of the wait is for operations of libaio whose files are not known ({} calls)",
                call.count
            ),
            NOT_TOLD => format!(
                "{part} of the wait is in calls that there was no room to follow, or that were under way at the end"
            ),
            name => format!("{part} of the wait is {name}, {} calls by name or on several files", call.count),
        };
    };
    let name = name(file);
    let mean = call.time_ns.checked_div(call.count).unwrap_or(0);
    match call.call.as_str() {
        "read" | "io_uring read" => format!("{part} of the wait is {}", reads(file, call, name, served)),
        "page fault" => format!(
            "{part} of the wait is page faults on {name}, which bring in a page or a little more one after \
             the other in each thread: read what is known beforehand with several reads at once, or ask \
             for it with madvise"
        ),
        "sync" | "io_uring sync" => format!(
            "{part} of the wait is {} syncs of {name}, {} each: let several writes share one (group commit), \
             or sync less often; see forebay measure wal",
            call.count,
            time(mean)
        ),
        "write" | "io_uring write" if call.durable_share.unwrap_or(0.0) > 0.5 => format!(
            "{part} of the wait is{} writes to {name} that return only when they are durable (O_SYNC, O_DSYNC), {} times {}: \
             each waits for a flush of its own; write without it and let several share one sync (group commit), see \
             forebay measure wal",
            sized(call).trim_end(),
            call.count,
            time(mean)
        ),
        "write" | "io_uring write" if call.direct_share.unwrap_or(0.0) > 0.5 => format!(
            "{part} of the wait is direct writes to {name}{}, {}: keep several in flight, or write more at a \
             time",
            sized(call),
            at_once(file)
        ),
        "write" | "io_uring write" => format!(
            "{part} of the wait is writes to {name} through the page cache, {} each, which need not be durable when they \
             return: the device is slower than the program writes, and only fewer bytes or a faster device help",
            time(mean)
        ),
        "aio" => format!("{part} of the wait is for operations of libaio on {name} ({} calls)", call.count),
        other => {
            format!("{part} of the wait is {other} on {name}, {} calls of {} each", call.count, time(mean))
        }
    }
}

/// Returns the last name of a file's path; for `/`, the path itself.
fn name(file: &File) -> &str {
    file.path.rsplit('/').find(|name| !name.is_empty()).unwrap_or(&file.path)
}

fn reads(file: &File, call: &Call, name: &str, served: &[DeviceRates]) -> String {
    let order = call.sequential_share.filter(|_| call.count >= PATTERN_CALLS);
    let word = match order {
        Some(share) if share >= SEQUENTIAL => "sequential ",
        Some(share) if share < RANDOM => "random ",
        _ => "",
    };
    let head = format!("{}{word}reads of {name}, {}", sized(call), at_once(file));
    let head = head.trim_start();
    let alone = file.concurrency_mean < 1.5;
    match word {
        "random " if alone => format!("{head}: {}", gain(file, call, served)),
        "random " => format!(
            "{head}: forebay measure random shows what the device delivers at this depth; more in flight \
             helps until its knee"
        ),
        "sequential " if call.usual_bytes().is_some_and(|bytes| bytes < 128 * KIB) => {
            format!(
                "{head}: larger reads, or reading ahead, would keep the device busy; see forebay measure scan"
            )
        }
        "sequential " => {
            format!("{head}: the device is read from end to end; reading ahead hides what computing there is")
        }
        _ => head.to_owned(),
    }
}

/// Returns the usual size as " 4 KiB ", where one size dominates.
fn sized(call: &Call) -> String {
    call.usual_bytes().map_or_else(String::new, |bytes| format!(" {} ", bytes_text(bytes)))
}

fn at_once(file: &File) -> String {
    if file.concurrency_mean < 1.5 {
        "one at a time".to_owned()
    } else {
        format!("{:.0} at once", file.concurrency_mean)
    }
}

fn above(report: &Report) -> Option<String> {
    let device = report.device?;
    let part = share(device.full_wait_above_ns, report.full_wait_ns);
    let end = if is_served_elsewhere(report) {
        "what faster storage behind the last would save is not known"
    } else {
        "a faster device does not shorten it"
    };
    (report.full_wait_share >= LITTLE && part >= 0.3).then(|| {
        format!(
            "in {} of the standing still no request was at a block device: that time went above it, to \
             throttling, locks, a journal, or a file system without one (FUSE, network), and {end}",
            percent(part)
        )
    })
}

fn amplified(file: &File) -> Option<String> {
    // The device's reads were for all of these.
    const READS: [&str; 4] = ["read", "io_uring read", "page fault", "copy"];
    let reads = || file.calls.iter().filter(|call| READS.contains(&call.call.as_str()));
    let wanted: u64 = reads().map(|call| call.bytes).sum();
    // Of libaio's operations there are no bytes.
    if file.calls.iter().any(|call| call.call == "aio")
        || reads().all(|call| call.direct_share.unwrap_or(0.0) >= 0.5 && call.call != "page fault")
    {
        return None;
    }
    let factor_read = file.device_read_bytes as f64 / wanted.max(1) as f64;
    (file.wait_share >= MUCH && wanted > 0 && factor_read >= 2.0).then(|| {
        format!(
            "the device read {} times what was wanted of {} ({} for {}): random advice (posix_fadvise) or \
             direct I/O reads less",
            factor(factor_read),
            name(file),
            bytes_text(file.device_read_bytes),
            bytes_text(wanted)
        )
    })
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 1.0 { "less than 1 %".to_owned() } else { format!("{percent:.0} %") }
}

fn factor(value: f64) -> String {
    if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// Returns a time with a unit that fits.
fn time(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.0} us", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", value / 1e6),
        _ => format!("{:.2} s", value / 1e9),
    }
}

fn bytes_text(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..1024 => (1, "B"),
        1024..1_048_576 => (KIB, "KiB"),
        1_048_576..1_073_741_824 => (1 << 20, "MiB"),
        _ => (1 << 30, "GiB"),
    };
    let digits = usize::from(!bytes.is_multiple_of(unit));
    format!("{:.digits$} {name}", bytes as f64 / unit as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Totals;
    use crate::report::{DeviceTime, Parts, SizeClass};

    fn report(full_share: f64) -> Report {
        let mut report = Report::new(Parts::default(), Totals::default());
        report.wall_ns = 1_000_000_000;
        report.full_wait_ns = (full_share * 1e9) as u64;
        report.full_wait_share = full_share;
        report.some_wait_ns = report.full_wait_ns;
        report.some_wait_share = full_share;
        report.iowait.full_ns = report.full_wait_ns;
        report.wait_sum_ns = report.full_wait_ns;
        report.device = None;
        report
    }

    pub(super) fn read(sequential: f64, up_to_bytes: u64) -> Call {
        let mut call = Call { call: "read".to_owned(), count: 1000, wait_share: 0.72, ..Call::default() };
        call.sequential_share = Some(sequential);
        call.sizes = vec![SizeClass { up_to_bytes, count: 1000 }];
        call
    }

    fn with(call: Call, concurrency: f64) -> String {
        knowing(call, concurrency, &[])
    }

    pub(super) fn knowing(call: Call, concurrency: f64, served: &[DeviceRates]) -> String {
        let mut report = report(0.8);
        let mut file = File { path: "/srv/index.db".to_owned(), wait_share: 0.72, ..File::default() };
        file.device_number = "8:0".to_owned();
        file.concurrency_mean = concurrency;
        file.calls.push(call);
        report.files.push(file);
        of(&report, served).join("\n")
    }

    #[test]
    fn random_reads_one_at_a_time_are_named_with_size_and_file() {
        let text = with(read(0.01, 4096), 1.0);
        assert!(text.contains("72 % of the wait is 4 KiB random reads of index.db, one at a time"), "{text}");
    }

    #[test]
    fn a_pattern_that_is_not_there_is_not_claimed() {
        assert!(!with(read(0.01, 4096), 16.0).contains("one at a time"));
        assert!(!with(read(0.99, 4096), 1.0).contains("random"));
        let unclear = with(read(0.5, 4096), 1.0);
        assert!(!unclear.contains("random ") && !unclear.contains("sequential"), "{unclear}");
        let mut few = read(0.0, 4096);
        few.count = 3;
        assert!(!with(few, 1.0).contains("random "));
    }

    /// Regression: the advice left it to the reader whether writes had to be durable, though the mode of the
    /// file's opening shows it.
    #[test]
    fn writes_that_had_to_be_durable_are_told_from_others() {
        let write = |durable: f64, direct: f64| {
            let mut call = read(0.5, 4096);
            call.call = "write".to_owned();
            (call.durable_share, call.direct_share) = (Some(durable), Some(direct));
            with(call, 1.0)
        };
        let told = "72 % of the wait is 4 KiB writes to index.db that return only when they are durable";
        assert!(write(1.0, 0.0).contains(told) && write(1.0, 1.0).contains(told), "{}", write(1.0, 0.0));
        assert!(write(0.1, 0.0).contains("need not be durable"), "{}", write(0.1, 0.0));
        assert!(write(0.0, 1.0).contains("direct writes to index.db"), "{}", write(0.0, 1.0));
    }

    #[test]
    fn a_program_that_does_not_wait_is_told_so() {
        let sentences = of(&report(0.002), &[]);
        assert_eq!(sentences.len(), 1);
        assert!(sentences[0].contains("less than 1 %"), "{sentences:?}");
    }

    /// Regression: a bound on the gain by faster storage that left out the sleeps in epoll and the like.
    #[test]
    fn a_bound_has_what_may_be_a_wait_and_is_not_stated_where_something_is_unseen() {
        let mut report = report(0.001);
        report.maybe_full_wait_ns = 30_000_000;
        report.maybe_full_wait_share = 0.03;
        let bound = &of(&report, &[])[0];
        assert!(
            bound.ends_with("in 3 % of its time: faster storage would save no more than 31.0 ms"),
            "{bound}"
        );
        report.device = Some(DeviceTime {
            full_wait_at_device_ns: 1_000_000,
            maybe_full_wait_at_device_ns: 20_000_000,
            ..DeviceTime::default()
        });
        let bound = &of(&report, &[])[0];
        assert!(bound.ends_with("no more than 21.0 ms"), "{bound}");
        report.unseen = vec!["7 operations could not be followed".to_owned()];
        let bound = &of(&report, &[])[0];
        assert!(
            bound.ends_with(
                "what faster storage would save is not known, as 7 operations could not be followed"
            ),
            "{bound}"
        );
    }

    #[test]
    fn what_may_be_a_wait_is_in_the_verdict_and_is_told() {
        let mut report = report(0.2);
        (report.maybe_full_wait_ns, report.maybe_full_wait_share) = (600_000_000, 0.6);
        let sentences = of(&report, &[]);
        assert!(sentences[0].contains("in 80 % of its time, 800.0 ms of 1.00 s"), "{sentences:?}");
        assert!(sentences[0].contains("5.0 times as fast"), "{sentences:?}");
        assert!(
            sentences[1].starts_with("75 % of the standing still may be for something else"),
            "{sentences:?}"
        );
        let sure = of(&super::tests::report(0.2), &[]).join(" ");
        assert!(!sure.contains("something else"), "{sure}");
    }

    #[test]
    fn the_gain_is_bounded_by_the_wait() {
        assert!(of(&report(0.5), &[])[0].contains("2.0 times as fast"));
    }

    /// Regression: "with a device that answers at once it would be 93 times as fast" stood above "a faster device does not
    /// shorten that".
    #[test]
    fn only_what_waits_for_the_device_is_its_to_shorten() {
        let of = |at: u64, full: u64| {
            let mut report = report(full as f64 / 1000.0);
            report.device = Some(DeviceTime {
                full_wait_at_device_ns: at * 1_000_000,
                full_wait_above_ns: (full - at) * 1_000_000,
                ..DeviceTime::default()
            });
            super::of(&report, &[])
        };
        let above = of(10, 989);
        assert!(
            !above[0].contains("answers at once") && above[0].contains("a faster one would not help"),
            "{above:?}"
        );
        assert!(above[0].ends_with("without any wait it would be 91 times as fast"), "{above:?}");
        let both = of(500, 989);
        assert!(
            both[0].contains("with a device that answers at once it would be 2.0 times as fast"),
            "{both:?}"
        );
        assert!(
            both.iter().any(|sentence| sentence.contains("in 49 % of the standing still no request")),
            "{both:?}"
        );
        assert!(of(0, 40)[0].ends_with("faster storage would save no more than 0 ns"));
    }

    /// Regression: of a program that waited for FUSE, whose program reads a disk, it was said that a faster device would not help.
    #[test]
    fn what_is_behind_a_file_system_without_a_device_is_not_known() {
        let of = |full: f64, device_number: &str, device_requests: u64| {
            let mut report = report(full);
            report.device =
                Some(DeviceTime { full_wait_above_ns: report.full_wait_ns, ..DeviceTime::default() });
            let mut file = File { path: "/mnt/a".to_owned(), device_requests, ..File::default() };
            (file.wait_ns, file.device_number) = (report.full_wait_ns, device_number.to_owned());
            report.files.push(file);
            super::of(&report, &[])
        };
        let waits = of(0.8, "0:41", 0);
        assert!(waits[0].contains("was not seen") && !waits[0].contains("would not help"), "{waits:?}");
        assert!(!waits.iter().any(|sentence| sentence.contains("does not shorten it")), "{waits:?}");
        // Less than a twentieth of the time is the bound.
        assert!(of(0.04, "0:41", 0)[0].ends_with("would save no more than 40.0 ms"));
        // A disk, and btrfs, whose files have such numbers and requests.
        for (device_number, requests) in [("8:1", 0), ("0:41", 7)] {
            let waits = of(0.8, device_number, requests);
            assert!(waits[0].contains("would not help"), "{waits:?}");
            assert!(waits.iter().any(|sentence| sentence.contains("does not shorten it")), "{waits:?}");
        }
    }

    /// Regression: the reads of sendfile and libaio were in no call on a file, and in calls by name.
    #[test]
    fn calls_without_a_file_are_not_said_to_have_none() {
        let of = |name: &str| {
            let mut report = report(0.8);
            let call = Call { call: name.to_owned(), count: 7, wait_share: 0.9, ..Call::default() };
            report.without_file.push(call);
            super::of(&report, &[]).join("\n")
        };
        assert!(of("elsewhere").contains("in no call that is followed and in no fault on a file"));
        assert!(of("aio").contains("operations of libaio whose files are not known (7 calls)"));
        let of_file = Call { call: "aio".to_owned(), count: 7, wait_share: 0.9, ..Call::default() };
        assert!(with(of_file, 0.0).contains("operations of libaio on index.db (7 calls)"));
    }

    /// Regression: "the device read 12 times what was wanted": the device had read for page faults, which
    /// were not counted as wanted.
    #[test]
    fn page_faults_are_wanted_as_much_as_they_are_read() {
        let told = |faults: u64, third: &str| {
            let mut fault = read(0.0, 4096);
            (fault.call, fault.bytes) = ("page fault".to_owned(), faults);
            let mut few = read(0.0, 4096);
            few.bytes = 1 << 20;
            let mut file = File { path: "/srv/index.db".to_owned(), wait_share: 0.72, ..File::default() };
            file.device_read_bytes = 12 << 20;
            file.calls = vec![fault, few, Call { call: third.to_owned(), ..Call::default() }];
            amplified(&file)
        };
        assert_eq!(told(11 << 20, "sync"), None);
        let sentence = told(0, "sync").expect("it is amplified");
        assert!(sentence.starts_with("the device read 12 times what was wanted"), "{sentence}");
        assert_eq!(told(0, "aio"), None, "bytes of libaio's operations are not known");
    }

    /// Regression: "the device read 2.1 times what was wanted (2 MiB for 1 MiB)", of 2.5 and 1.2 MiB.
    #[test]
    fn sizes_have_a_digit_where_they_are_not_whole() {
        let shown = [1000, 4096, 1 << 20, 5 << 19, 3 << 29].map(bytes_text);
        assert_eq!(shown, ["1000 B", "4 KiB", "1 MiB", "2.5 MiB", "1.5 GiB"]);
    }

    /// Regression: "72 % of the wait is list on , 10 calls": the last name of `/` is empty.
    #[test]
    fn the_root_has_a_name() {
        let of = |path: &str| {
            let file = File { path: path.to_owned(), ..File::default() };
            name(&file).to_owned()
        };
        assert_eq!(["/", "/srv/index.db", ".../data", ""].map(of), ["/", "index.db", "data", ""]);
    }

    #[test]
    fn waits_outside_of_the_kernels_account_are_told() {
        let mut hidden = report(0.5);
        hidden.iowait.full_ns = 0;
        assert!(of(&hidden, &[]).iter().any(|sentence| sentence.contains("not iowait")));
        assert!(!of(&report(0.5), &[]).iter().any(|sentence| sentence.contains("not iowait")));
    }
}
