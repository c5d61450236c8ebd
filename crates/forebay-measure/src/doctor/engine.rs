//! Forebay's own report of its state here. This is the only place where the doctor starts the engine.

use forebay::{Config, Engine};

use forebay_report::check::Check;
use forebay_report::environment::EngineInfo;

const GROUP: &str = "engine";

/// Starts an engine as a program would, and reads its health.
pub(crate) fn examine() -> (Option<EngineInfo>, Vec<Check>) {
    let engine = match Engine::start(Config::default()) {
        Ok(engine) => engine,
        Err(error) => {
            let check = Check::unavailable(
                GROUP,
                "start",
                format!("the engine does not start: {error}"),
                "see the findings above",
            );
            return (None, vec![check]);
        }
    };
    let health = engine.health();
    let mut checks = Vec::new();
    let started = format!(
        "started with {} shard{} on the {} driver",
        health.shards,
        if health.shards == 1 { "" } else { "s" },
        health.driver
    );
    checks.push(if health.driver == "uring" {
        Check::ok(GROUP, "start", started)
    } else {
        Check::degraded(
            GROUP,
            "start",
            format!("{started}: each operation of a shard costs a hand-over to another thread"),
            "make io_uring available (see the io_uring findings)",
        )
    });
    for degradation in &health.degraded {
        checks.push(Check::degraded(
            GROUP,
            &degradation.what.replace(' ', "_"),
            degradation.why.clone(),
            degradation.remedy.clone(),
        ));
    }
    let info = EngineInfo {
        driver: health.driver.to_owned(),
        shards: health.shards as u64,
        degradations: health.degraded.iter().map(ToString::to_string).collect(),
    };
    if let Err(error) = engine.close().wait() {
        checks.push(Check::degraded(
            GROUP,
            "close",
            format!("the engine does not close cleanly: {error}"),
            "report this with the output of `forebay doctor --json`",
        ));
    }
    (Some(info), checks)
}
