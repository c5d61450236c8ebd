use super::*;

fn variable(name: &str) -> Option<String> {
    let value = match name {
        "FIO_RW" => "randwrite",
        "FIO_BS" | "EIGHT" => "8k",
        "FIO_IODEPTH" => "4",
        "UNSET" => return None,
        _ => "x",
    };
    Some(value.to_owned())
}

fn parse(text: &str) -> Result<Vec<Vec<FileJob>>, String> {
    super::parse(text, Path::new("."), &variable)
}

fn one(text: &str) -> FileJob {
    let groups = parse(text).unwrap_or_else(|why| panic!("{why}: {text}"));
    let [job] = &groups[..] else { panic!("{groups:?}") };
    let [job] = &job[..] else { panic!("{groups:?}") };
    job.clone()
}

#[test]
fn a_job_has_the_options_of_the_global_sections_before_it() {
    let text = "; a comment\n[global]\nbs=8k\nsize = 1m # of each\n[a]\nrw=randread\n[b]\nbs=4ki\n[global]\nsize=2G\n\
        [c]\nstonewall\nbuffered=0\nnumjobs=4\t; threads\n[d]\nrw=randrw\nrwmixwrite=30\n";
    let groups = parse(text).expect("valid");
    let jobs: Vec<Vec<(&str, u64, Option<u64>)>> = groups
        .iter()
        .map(|group| {
            group.iter().map(|job| (job.name.as_str(), job.block_bytes_max(), job.size_bytes)).collect()
        })
        .collect();
    let (mib, gib) = (Some(1 << 20), Some(2 << 30));
    assert_eq!(jobs, [vec![("a", 8192, mib), ("b", 4000, mib)], vec![("c", 8192, gib), ("d", 8192, gib)]]);
    let [c, d] = &groups[1][..] else { panic!("{groups:?}") };
    assert_eq!((c.is_direct, c.clones, c.reads_percent, c.engine), (true, 4, 100, IoEngine::Psync));
    assert_eq!((d.is_random(), d.reads_percent, d.is_direct), (true, 70, false));
}

/// Regression: a section that fio takes for a global one, by the first letters of its name, was run as a job, and its options were
/// those of no other job.
#[test]
fn a_global_section_may_have_a_longer_name() {
    let job = one("[global defaults]\nbs=8k\nsize=1m\n[a]\nrw=randread\n[global-end]\nbs=16k\n");
    assert_eq!((job.name.as_str(), job.block_bytes_max(), job.size_bytes), ("a", 8192, Some(1 << 20)));
    assert!(parse("[globals]\nbs=8k\n").expect_err("no job").contains("no section"));
}

/// etcd's check of a disk.
#[test]
fn the_check_of_etcd_is_run() {
    let job = one("[mytest]\nrw=write\nioengine=sync\nfdatasync=1\ndirectory=test-data\nsize=22m\nbs=2300\n");
    assert_eq!((job.engine, job.sync_every, job.syncs_data), (IoEngine::Sync, 1, true));
    assert_eq!((job.block_bytes_max(), job.size_bytes), (2300, Some(22 << 20)));
    assert_eq!(job.directory.as_deref(), Some("test-data"));
}

#[test]
fn units_are_those_of_fio() {
    for (text, bytes) in
        [("512", 512), ("4k", 4096), ("4KB", 4096), ("4kib", 4000), ("1G", 1 << 30), ("2Mi", 2_000_000)]
    {
        assert_eq!(size(text), Some(bytes), "{text}");
    }
    assert_eq!([size("many"), size("1e3"), size("-1"), size("50%"), size("99999999p")], [None; 5]);
    for (text, time) in [("10", 10.0), ("5m", 300.0), ("10s", 10.0), ("200ms", 0.2), ("1h", 3600.0)] {
        assert_eq!(seconds(text), Some(time), "{text}");
    }
    // As fio has it, in any case and with longer names: `runtime=2M` and `thinktime=200usec` of a user's file were refused.
    for (text, time) in [("2M", 120.0), ("30S", 30.0), ("7usec", 7e-6), ("5MSEC", 5e-3), ("1D", 86_400.0)] {
        assert_eq!(seconds(text), Some(time), "{text}");
    }
    assert_eq!([seconds("soon"), seconds("-1"), seconds("5sec"), seconds("5xusec")], [None; 4]);
    assert_eq!((microseconds("7USEC"), microseconds("7")), (Some(7e-6), Some(7e-6)));
}

#[test]
fn what_is_not_run_is_refused_by_its_name() {
    for (text, words) in [
        ("", "no section"),
        ("hello=1\n", "before any section"),
        ("[a\n", "has no end"),
        ("[a]\nioengine=rbd\n", "[a] ioengine=rbd: the engines sync, psync, libaio, io_uring and mmap"),
        ("[a]\nexec_prerun=rm -rf /\n", "[a] exec_prerun=rm -rf /: commands of a job file are not run"),
        ("[global]\nexec_postrun=true\n[a]\n", "commands of a job file are not run"),
        ("[a]\nlatency_target=5\n", "line 2, [a] latency_target=5: a depth is given here"),
        ("# x\n[a]\n\nexitwhen=5\n", "line 4, [a] exitwhen=5: this option is not run here"),
        ("[a]\nverify=crc32c\n", "verify=crc32c"),
        ("[a]\ninclude no-such-file\n", "line 2, include no-such-file: "),
        ("[a]\nrw=randtrim\n", "without trims"),
        ("[a]\nrw=randread:8k\n", "for sequential jobs only"),
        ("[a]\nbs=4k,8x\n", "is not a number of bytes"),
        ("[a]\nbsrange=8k-4k\n", "is not a range"),
        ("[a]\nsize=${UNSET}\n", "line 2, size=${UNSET}: the variable UNSET is not set"),
        ("[a]\nsize=50%\n", "size=50%: is not a number of bytes"),
        ("[a]\ndirect=2\n", "neither 0 nor 1"),
        ("[a]\ndirect=1\nbs=100\n", "multiples of 512"),
        ("[a]\nsize=1k\n", "less than a block"),
        ("[a]\nioengine=mmap\nrw=write\n", "only reads"),
        ("[a]\nioengine=libaio\nrw=write\nfsync=1\n", "[a] fsync=1: with ioengine=libaio"),
        ("[a]\nfilename=/a:/b\n", "with one file"),
        ("[a]\ntime_based\n", "needs a runtime"),
        ("[a]\niodepth=0\n", "1 to 4096"),
        ("[a]\nrw=write\nverify=md5\nbs=2300\n", "multiples of 4096 bytes"),
        ("[a]\nrw=randread\nrandom_distribution=zipf:1.0\n", "random, zipf, pareto"),
        ("[a]\nrw=randread\nrandom_distribution=zoned:50/5:30/15\n", "random, zipf, pareto"),
        ("[a]\nrw=randread\nbssplit=4k/70:8k/70\n", "is not a list"),
        ("[a]\nrw=rw\nrate=1k,2k\n", "one rate"),
        ("[a]\nrate=1k\nrate_iops=5\n", "one of rate and rate_iops"),
        ("[a]\nio_submit_mode=offload\n", "ioengine=libaio and io_uring"),
        ("[a]\nzonemode=zbd\n", "its values here are none, strided"),
        ("[a]\nrw=randread\nzonesize=1m\n", "of sequential jobs"),
        ("[a]\n[b]\n[c]\nwait_for=a\n", "alone before it"),
        ("[a]\n[b]\nwait_for=a\n[c]\n", "by all jobs behind"),
        ("[a]\nsize=2*$pagesize+x\n", "whole numbers"),
        ("[a]\niodepth=many\n", "not a whole number"),
    ] {
        let why = parse(text).expect_err(text);
        assert!(why.contains(words), "{text}: {why}");
    }
}

#[test]
fn values_are_of_reads_and_writes_of_variables_and_of_the_machine() {
    let job = one("[a]\nbs=${EIGHT},16k\nrw=randrw\nrate=4m\nblockalign=4k\nsize=2*$pagesize*64\n");
    assert_eq!((job.block_bytes_min(), job.block_bytes_max(), job.rates), (8192, 16384, [4 << 20; 2]));
}

/// Regression: the jobs behind the first mebibyte of a file were left out, and nothing said so.
#[test]
fn a_file_that_is_too_long_is_not_read_in_part() {
    let cleanup = crate::cleanup::Cleanup::default();
    let temp = cleanup.temp_file(&std::env::temp_dir(), "jobs").expect("writable");
    fs::write(temp.path(), "\n".repeat(FILE_BYTES_MAX as usize)).expect("space for 1 MiB");
    assert!(read(temp.path()).is_ok());
    fs::write(temp.path(), "\n".repeat(FILE_BYTES_MAX as usize + 1)).expect("space for 1 MiB");
    assert!(read(temp.path()).expect_err("it is too long").to_string().contains("longer than 1 MiB"));
}

#[test]
fn calculations_have_the_usual_order() {
    for (text, number) in [("7", 7), ("2+3*4", 14), ("2*3+4", 10), ("20-4-6/2", 13)] {
        assert_eq!(calculate(text), Some(number), "{text}");
    }
    assert_eq!([calculate("1-2"), calculate("1/0"), calculate("1+"), calculate("k")], [None; 4]);
}

#[test]
fn lengths_have_their_shares() {
    let mut random = SplitMix::new(7);
    let blocks = Blocks::split("4k/10:64k/50:32k/").expect("valid");
    let mut count = |bytes: u64| (0..10_000).filter(|_| blocks.draw(&mut random) == bytes).count();
    let counts = [count(4096), count(65536), count(32768)];
    assert!(
        counts.iter().zip([1000, 5000, 4000]).all(|(count, wanted)| count.abs_diff(wanted) < 300),
        "{counts:?}"
    );
    let range = Blocks::range("4k-17k").expect("valid");
    assert!((0..1000).all(|_| [4096, 8192, 12288, 16384].contains(&range.draw(&mut random))));
}

#[test]
fn jobs_wait_for_others_and_end_them() {
    let names = |text: &str| -> Vec<Vec<String>> {
        let groups = parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
        groups.into_iter().map(|group| group.into_iter().map(|job| job.name).collect()).collect()
    };
    let waits = names("[a]\n[b]\nwait_for=a\n[c]\nwait_for=a\n[d]\nstonewall\nwait_for=c\n[e]\n");
    assert_eq!(waits, [vec!["a"], vec!["b", "c"], vec!["d", "e"]]);
    let ends = names("[a]\nexitall\nexit_what=all\n[b]\n[never]\nstonewall\n");
    assert_eq!(ends, [vec!["a", "b"]]);
}

/// Debian's package fio-examples (3.33), those with another engine than the five: its first, which is refused.
const OTHER_ENGINES: &str = "cpp_null=cpp_null cpuio=cpuio dev-dax=dev-dax dfs=dfs e4defrag=e4defrag e4defrag2=e4defrag exec=exec \
    falloc=falloc filecreate-ioengine=filecreate filedelete-ioengine=filedelete filestat-ioengine=filestat ftruncate=ftruncate \
    gfapi=gfapi gpudirect-rdmaio-client=rdma gpudirect-rdmaio-server=rdma http-s3-crypto=http http-s3-storage-class=http \
    http-s3=http http-swift=http http-webdav=http ime=ime_psync libcufile-cufile=libcufile libcufile-posix=libcufile \
    libhdfs=libhdfs libiscsi=libiscsi libpmem=libpmem librpma_apm-client=librpma_apm_client \
    librpma_apm-server=librpma_apm_server librpma_gpspm-client=librpma_gpspm_client \
    librpma_gpspm-server=librpma_gpspm_server libzbc-rand-write=libzbc libzbc-seq-read=libzbc mtd=mtd nbd=nbd netio=net \
    netio_multicast=net nfs=nfs null=null pmemblk=pmemblk rados=rados rbd=rbd rdmaio-client=rdma rdmaio-server=rdma \
    sg_verify-fail=sg sg_verify=sg sg_write_same_ndob=sg uring-cmd-ng=io_uring_cmd uring-cmd-zoned=io_uring_cmd zipf=null";
/// The others: the options that each has, and the one that is refused.
const EXAMPLES: [(&str, &str, &str); 37] = [
    ("1mbs_clients", "rw=read rate=1250 ratemin=1024 directory=d startdelay=4", ""),
    ("aio-read", "ioengine=libaio buffered=0 rw=randread bs=128k directory=d iodepth=4", ""),
    ("backwards-read", "bs=4k rw=read:-8k filename=f", ""),
    ("basic-verify", "rw=randwrite bs=4k direct=1 ioengine=libaio iodepth=16 verify=crc32c filename=f", ""),
    ("butterfly", "filename=f bs=4k direct=1 rw=read:-8k flow=2", ""),
    ("cmdprio-bssplit", "rw=randrw bssplit=64k/40:1024k/60,1024k/100 cmdprio=0 log_prio=1", "cmdprio"),
    ("cmdprio-percentage", "bs=128k prioclass=3 cmdprio_percentage=20 cmdprio_class=1", "cmdprio_class"),
    (
        "cross-stripe-verify",
        "bs=16k direct=1 rw=write:112k verify=crc32c verify_backlog=1 offset_increment=124g io_size=120g offset=120k \
         group_reporting verify_dump=1 loops=2 numjobs=30",
        "",
    ),
    (
        "dedupe-global",
        "dedupe_mode=working_set buffer_compress_percentage=50 rw=write",
        "buffer_compress_percentage",
    ),
    ("disk-zone-profile", "rw=read zonemode=strided zonesize=256m zoneskip=2g write_bw_log log_offset=1", ""),
    (
        "enospc-pressure",
        "continue_on_error=write ignore_error=,ENOSPC exitall rw=randwrite",
        "continue_on_error",
    ),
    (
        "exitwhat",
        "exitall=1 new_group=1 rw=randrw thinktime=2000 number_ios=1000 exit_what=all rate=300,300,300",
        "",
    ),
    (
        "fio-rand-RW",
        "name=n rw=randrw rwmixread=60 rwmixwrite=40 direct=0 numjobs=4 time_based runtime=900",
        "",
    ),
    ("fio-rand-read", "name=n rw=randread bs=4K direct=0 numjobs=1 time_based runtime=900", ""),
    ("fio-rand-write", "name=n rw=randwrite bs=4K direct=0 numjobs=4 time_based runtime=900", ""),
    ("fio-seq-RW", "name=n rw=rw rwmixread=60 rwmixwrite=40 bs=256K numjobs=4 time_based runtime=900", ""),
    ("fio-seq-read", "name=n rw=read bs=256K direct=1 numjobs=1 time_based runtime=900", ""),
    ("fio-seq-write", "name=n rw=write bs=256K direct=0 numjobs=1 time_based runtime=900", ""),
    ("fixed-rate-submission", "rw=read ioengine=libaio direct=1 io_submit_mode=offload rate_iops=1000", ""),
    ("flow", "norandommap thread time_based runtime=30 ioengine=libaio bs=8k flow_sleep=1000 flow=8", ""),
    ("fsx", "ioengine=libaio rw=randrw norandommap direct=1 loops=500000", ""),
    (
        "iometer-file-access-server",
        "description=d bssplit=512/10:1k/5:2k/5:4k/60:8k/2:16k/4:32k/4:64k/10 rw=randrw rwmixread=80 direct=1",
        "",
    ),
    (
        "jesd219",
        "direct=1 rw=randrw norandommap randrepeat=0 rwmixread=40 rwmixwrite=60 blockalign=4k \
         random_distribution=zoned:50/5:30/15:20/80 bssplit=512/4:1024/1:1536/1:2048/1:2560/1:3072/1:3584/1:4k/67:8k/10:16k/7:32k/3:64k/3",
        "",
    ),
    (
        "latency-profile",
        "random_generator=lfsr latency_target=500000 latency_percentile=99.9",
        "latency_percentile",
    ),
    ("numa", "rw=randread numa_cpu_nodes=0 numa_mem_policy=bind:0", "numa_cpu_nodes"),
    (
        "poisson-rate-submission",
        "ioengine=libaio io_submit_mode=offload rate_iops=50 rate_process=poisson",
        "",
    ),
    ("rand-zones", "direct=1 rw=randread norandommap random_distribution=zoned:50/5:30/15:20/", ""),
    ("ssd-steadystate", "description=d rw=randwrite group_reporting numjobs=4 write_bw_log=w", ""),
    ("ssd-test", "rw=randwrite direct=1 runtime=60 directory=d filename=f stonewall", ""),
    ("steadystate", "threads=1 time_based runtime=5m ss=iops:10% ss_dur=30s", "ss"),
    (
        "surface-scan",
        "rw=write verify=meta verify_pattern=0xaa verify_interval=512 fill_device=1",
        "fill_device",
    ),
    ("tiobench-example", "direct=1 bsrange=4k-4k timeout=60 numjobs=4 rw=write stonewall", ""),
    ("waitfor", "threads=1 group_reporting filesize=128m new_group rw=randwrite runtime=10", ""),
    ("xnvme-compare", "rw=${FIO_RW} iodepth=${FIO_IODEPTH} bs=${FIO_BS} ramp_time=3 allow_file_create=0", ""),
    ("xnvme-zoned", "zonemode=zbd rw=write verify=crc32c allow_file_create=0", "zonemode"),
    ("zbd-rand-write", "rw=randwrite zonemode=zbd zonesize=256M max_open_zones=32", "max_open_zones"),
    (
        "zbd-seq-read",
        "rw=read zonemode=zbd zonesize=256M read_beyond_wp=0 offset=140660178944",
        "read_beyond_wp",
    ),
];

/// Returns the option by which a job file is refused; an empty text if it is run.
fn refused_by(name: &str, text: &str) -> String {
    let Err(why) = parse(text) else { return String::new() };
    let option = why.split("] ").nth(1).and_then(|rest| rest.split(['=', ':']).next());
    option.unwrap_or_else(|| panic!("{name}: {why}")).to_owned()
}

#[test]
fn each_of_fios_examples_is_run_or_refused_by_an_option() {
    for example in OTHER_ENGINES.split_whitespace() {
        let (name, engine) = example.split_once('=').expect("a name and an engine");
        assert_eq!(refused_by(name, &format!("[a]\nioengine={engine}\n")), "ioengine");
    }
    for (name, options, refused) in EXAMPLES {
        let text = format!("[a]\n{}\n", options.replace(' ', "\n"));
        assert_eq!(refused_by(name, &text), refused, "{name}");
    }
}

/// The files themselves, where they are installed, or are in the folder that FIO_EXAMPLES names.
#[test]
fn the_installed_examples_are_those_of_the_table() {
    let folder = std::env::var("FIO_EXAMPLES").unwrap_or_else(|_| "/usr/share/doc/fio/examples".to_owned());
    let Ok(entries) = fs::read_dir(&folder) else {
        eprintln!("{folder} is not here: install fio-examples to try its files");
        return;
    };
    let others = OTHER_ENGINES.split_whitespace().filter_map(|example| example.split_once('='));
    let table: BTreeMap<&str, &str> = others
        .map(|(name, _)| (name, "ioengine"))
        .chain(EXAMPLES.map(|(name, _, refused)| (name, refused)))
        .collect();
    for entry in entries {
        let path = entry.expect("readable").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        if path.extension().is_some_and(|end| end == "fio") {
            let refused = refused_by(&name, &read(&path).expect("readable"));
            assert_eq!(table.get(name.as_str()).copied(), Some(refused.as_str()), "{name}");
        }
    }
}
