//! The page of a full report of the longest possible measurement: it stays below its limit, and names
//! the data left out for that.

use std::fs;

use crate::support::{Directory, run};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use serde_json::{Value, json};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/every-experiment.json");
/// Maximum size of a page.
const BYTES_MAX: usize = 1_000_000;
const REPEATS: u64 = 5;

/// Numbers that look random and are the same each time.
struct Luck(u64);

impl Luck {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Returns a factor from 0.9 to 1.1, with as many digits as a measured figure has.
    fn factor(&mut self) -> f64 {
        0.9 + 0.2 * (self.next() as f64 / (1_u64 << 31) as f64)
    }

    /// Returns a histogram as wide as those of a device: a body around 100 µs and a tail to some
    /// milliseconds.
    fn histogram(&mut self) -> String {
        let mut times = Histogram::<u32>::new_with_bounds(1, 60_000_000_000, 2).expect("a few kilobytes");
        for _ in 0..4000 {
            let sum: f64 = (0..6).map(|_| self.factor() - 1.0).sum();
            let tail = if self.next().is_multiple_of(50) { 20.0 * self.factor() } else { 1.0 };
            times
                .record((100_000.0 * (1.0 + 2.0 * sum).abs() * tail) as u64 + 1)
                .expect("less than a minute");
        }
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&times, &mut bytes).expect("memory");
        base64(&bytes)
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Returns a whole report with five repeats and a long load: every row of the fixture with all of its
/// repeats and the histogram of its operations, and a series over `tenths` tenths of a second.
fn whole(tenths: u32) -> Value {
    let text = fs::read_to_string(FIXTURE).expect("the fixture");
    let mut report: Value = serde_json::from_str(&text).expect("JSON");
    let mut luck = Luck(7);
    let experiments = report["experiments"].as_array_mut().expect("a list");
    for row in experiments.iter_mut().flat_map(|one| one["rows"].as_array_mut().expect("a list")) {
        if row["skipped"].is_string() {
            continue;
        }
        let metrics = row["metrics"].as_object().expect("an object").clone();
        let sample = |repeat: u64, luck: &mut Luck| {
            let mut sample = json!({ "repeat": repeat });
            for (name, value) in &metrics {
                sample[name] = json!(value.as_f64().expect("a number") * luck.factor());
            }
            sample
        };
        row["samples"] = (0..REPEATS).map(|repeat| sample(repeat, &mut luck)).collect();
        if metrics.contains_key("p99_us") {
            row["histograms"] = json!({ "latency": luck.histogram() });
        }
    }
    let sustain = experiments.iter_mut().find(|one| one["name"] == "sustain").expect("it is in the fixture");
    let row = sustain["rows"][0].clone();
    sustain["rows"] = ["random-read", "random-write", "sequential-write"]
        .map(|name| {
            let mut row = row.clone();
            row["name"] = json!(name);
            let at: Vec<f64> = (0..tenths).map(|bin| f64::from(bin) / 10.0).collect();
            let rates: Vec<f64> = (0..tenths).map(|_| 412.917_76 * luck.factor()).collect();
            row["series"] = json!({ "at_s": at, "mb_per_s": rates });
            row
        })
        .into();
    report
}

/// Returns the page of a result, and the numbers in its source.
fn page(result: &Value) -> (String, Value) {
    let directory = Directory::new("whole");
    let [file, out] = ["result.json", "page.html"].map(|name| directory.path().join(name));
    fs::write(&file, result.to_string()).expect("its own directory");
    let [file, out_name] = [&file, &out].map(|path| path.to_str().expect("readable name"));
    let outcome = run(&["report", "--from", file, "--out", out_name]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let page = fs::read_to_string(&out).expect("it was written");
    let (_, source) = page.split_once("id=\"forebay-result\">").expect("the element");
    let (source, _) = source.split_once("</script>").expect("its end");
    let numbers = serde_json::from_str(source).expect("JSON");
    (page, numbers)
}

/// Returns the page's remark on numbers that are left out of its source.
fn remark(page: &str) -> &str {
    let rest = page.split_once("are in this page").map_or("", |(_, rest)| rest);
    rest.split_once("</p>").map_or(rest, |(remark, _)| remark)
}

#[test]
fn a_whole_report_has_all_of_its_figures_in_the_page() {
    let result = whole(600);
    let (page, numbers) = page(&result);
    eprintln!("{} bytes", page.len());
    assert!(page.len() < BYTES_MAX, "{} bytes", page.len());
    // Histograms and single repeats are omitted for lack of space; the medians of every row are included.
    assert!(remark(&page).contains("as far as there is room"), "{}", remark(&page));
    let metrics = |document: &Value| -> Vec<Value> {
        let experiments = document["experiments"].as_array().expect("a list").iter();
        let rows = experiments.flat_map(|one| one["rows"].as_array().expect("a list"));
        rows.map(|row| row["metrics"].clone()).collect()
    };
    assert_eq!(metrics(&numbers).len(), metrics(&result).len());
    assert!(metrics(&numbers).iter().all(|known| metrics(&result).contains(known)));
}

/// Half an hour of three loads alone exceeds the limit.
#[test]
fn half_an_hour_of_load_is_thinned_in_the_source_and_whole_in_the_chart() {
    let result = whole(18_000);
    let (page, numbers) = page(&result);
    eprintln!("{} bytes", page.len());
    assert!(page.len() < BYTES_MAX, "{} bytes", page.len());
    let remark = remark(&page);
    assert!(remark.contains("as far as there is room: the series in it have fewer values"), "told: {remark}");
    let sustain =
        numbers["experiments"].as_array().expect("a list").iter().find(|one| one["name"] == "sustain");
    let series = &sustain.expect("it is there")["rows"][0]["series"];
    let lengths = ["at_s", "mb_per_s"].map(|name| series[name].as_array().expect("a list").len());
    assert_eq!(lengths, [600, 600]);
    // The chart is drawn from all of them: its table names the number of places of which it shows some.
    assert!(page.contains("places; there are 18,000."), "the chart has fewer, too");
}
