//! Shows: figures are text that every reader of Prometheus's formats accepts, with any names of files and tasks. How: a parser that
//! was written after the specification.

use forebay::{Engine, Exposition, FileStats, MetricKind, Open, Stats};
use forebay_test::exposition::{family, open_metrics, prometheus};

use crate::common;

#[test]
fn the_statistics_of_an_engine_are_open_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::start(common::config().shards(2)).unwrap();
    let file = engine.open(dir.path().join("data"), Open::create()).wait().unwrap();
    for number in 0..100 {
        file.write(number * 4096, vec![1; 4096]).wait().unwrap();
    }
    let stats = engine.stats().wait().unwrap();
    let families = open_metrics(&stats.to_open_metrics()).unwrap();
    for shard in ["0", "1"] {
        family(&families, "forebay_shard_turns").value(&[("shard", shard)]);
    }
    let flow = &stats.flows.iter().find(|flow| flow.writes > 0).unwrap();
    let labels = [("class", flow.class.as_str()), ("device", flow.device.as_str())];
    assert_eq!(family(&families, "forebay_flow_writes").value(&labels), flow.writes as f64);
    assert_eq!(family(&families, "forebay_flow_write_bytes").value(&labels), flow.write_bytes as f64);
    let times = family(&families, "forebay_flow_device_seconds");
    let of = |name: &str, bound| {
        let mut all = times.samples.iter().filter(|sample| sample.name.ends_with(name));
        let sample = all.find(|sample| {
            let known = sample.labels.get("le").map(String::as_str);
            labels.iter().all(|(label, text)| sample.labels[*label] == *text) && known == bound
        });
        sample.unwrap().value
    };
    assert_eq!(of("_count", None), flow.device_ns.count() as f64);
    assert_eq!(of("_bucket", Some("50.0")), flow.device_ns.count() as f64);
    let median = family(&families, "forebay_flow_device_p50_seconds").value(&labels);
    assert_eq!((median * 1e9).round() as u64, flow.device_ns.ns_at(0.5));
    assert!(of("_bucket", Some("1e-06")) <= of("_bucket", Some("0.001")));
    assert_eq!(family(&families, "forebay_memory_arena_bytes").value(&[]), stats.memory.arena_bytes as f64);
    assert!(open_metrics(&Stats::default().to_open_metrics()).is_ok(), "of an engine that did nothing");
}

#[test]
fn names_of_files_are_escaped_and_those_of_one_path_are_added_up() {
    let file = |path: &str, reads| {
        let mut file = FileStats::default();
        (file.path, file.reads) = (path.into(), reads);
        file
    };
    let odd = "a \"b\" \\ \n\u{e9}\r";
    let mut files = vec![file(odd, 7), file("/twice", 1), file("/twice", 2)];
    let mut page = Exposition::open_metrics();
    page.files(&files);
    let families = open_metrics(&page.finish()).unwrap();
    let reads = family(&families, "forebay_file_reads");
    assert_eq!((reads.value(&[("path", odd)]), reads.value(&[("path", "/twice")])), (7.0, 3.0));
    assert_eq!(family(&families, "forebay_files_left_out").value(&[]), 0.0);

    files.extend((0..300).map(|reads| file(&format!("/{reads}"), 10 + reads)));
    let mut page = Exposition::open_metrics();
    page.files(&files);
    let families = open_metrics(&page.finish()).unwrap();
    let reads = family(&families, "forebay_file_reads");
    assert_eq!(reads.samples.len(), 256);
    assert!(reads.samples.iter().all(|sample| sample.value >= 54.0), "the least busy are left out");
    assert_eq!(family(&families, "forebay_files_left_out").value(&[]), 47.0);
}

#[test]
fn both_formats_have_the_same_samples() {
    let write = |mut page: Exposition| {
        page.family(MetricKind::Counter, "app_sent_bytes_total", "Of \"clients\", \\ and\nof servers.")
            .value(3);
        page.family(MetricKind::Gauge, "app_load", "Load.")
            .sample(&[("cpu", "0"), ("kind", "a,b=\"}\"")], 0.25);
        page.family(MetricKind::Info, "app_info", "Release.").sample(&[("version", "1")], 1);
        let mut times = page.family(MetricKind::Histogram, "app_wait_seconds", "Waits.");
        times.histogram(&[("queue", "a")], [(0.000_02, 0), (1.0, 2), (10.0, 3)], 4, 30.5);
        times.histogram(&[("queue", "b")], [(0.000_02, 0), (1.0, 0), (10.0, 0)], 0, 0.0);
        page.finish()
    };
    let (new, old) = (write(Exposition::open_metrics()), write(Exposition::prometheus()));
    assert!(new.starts_with(
        "# TYPE app_sent_bytes counter\n# UNIT app_sent_bytes bytes\n# HELP app_sent_bytes Of \\\"clients"
    ));
    assert!(old.starts_with(
        "# TYPE app_sent_bytes_total counter\n# HELP app_sent_bytes_total Of \"clients\", \\\\ and\\nof"
    ));
    assert!(new.contains("\napp_wait_seconds_bucket{queue=\"a\",le=\"2e-05\"} 0\n"), "{new}");
    let samples = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    assert_eq!(samples(&new), samples(&old));
    let kinds = |families: Vec<forebay_test::exposition::Family>| -> Vec<String> {
        families.into_iter().map(|family| format!("{} {}", family.name, family.kind)).collect()
    };
    let new = kinds(open_metrics(&new).unwrap());
    assert_eq!(new, ["app_sent_bytes counter", "app_load gauge", "app info", "app_wait_seconds histogram"]);
    let old = kinds(prometheus(&old).unwrap());
    assert_eq!(
        old,
        ["app_sent_bytes_total counter", "app_load gauge", "app_info gauge", "app_wait_seconds histogram"]
    );
}
