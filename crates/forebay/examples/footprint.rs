//! Footprint.
use forebay::{Config, Engine};
fn main() {
    let shards: usize = std::env::args().nth(1).map_or(0, |t| t.parse().unwrap());
    let status = |w: &str| {
        let t = std::fs::read_to_string("/proc/self/status").unwrap();
        let l: Vec<_> = t
            .lines()
            .filter(|l| ["VmRSS", "VmSize", "VmPin", "Threads"].iter().any(|k| l.starts_with(k)))
            .map(|l| l.replace("\t", " "))
            .collect();
        println!("{w}: {}", l.join("; "));
    };
    status("before");
    let mut config = Config::default();
    if shards > 0 {
        config = config.shards(shards);
    }
    let t = std::time::Instant::now();
    let engine = Engine::start(config).unwrap();
    println!("start {} us, {:?}", t.elapsed().as_micros(), engine);
    status("after");
}
