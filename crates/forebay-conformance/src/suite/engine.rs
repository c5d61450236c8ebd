//! The engine's own properties: settings, classes, health, and the places where calls work.

use std::future::pending;
use std::time::Duration;

use forebay::{Class, ErrorKind, shard};

use super::check::{Outcome, fails_with, holds, same};
use super::tools::all;
use crate::Env;

super::group! { "engine":
    classes_out_of_range_are_refused,
    the_engine_answers_for_itself,
    settings_out_of_range_are_refused,
    outside_of_shards_the_calls_of_shards_say_so,
}

async fn classes_out_of_range_are_refused(env: &Env) -> Outcome {
    let engine = env.restart(|config| config)?;
    for (name, shares) in [("", 100), ("a", 0), ("a", 10_001)] {
        let what = format!("{name:?} with {shares} shares");
        fails_with(what, engine.class(name, shares), ErrorKind::InvalidInput)?;
    }
    for n in 0..13 {
        engine.class(&n.to_string(), 1)?;
    }
    fails_with("a seventeenth class", engine.class("more", 1), ErrorKind::InvalidInput)?;
    engine.class("12", 10_000)?;
    Ok(())
}

async fn the_engine_answers_for_itself(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(2))?;
    let health = engine.health();
    same("driver and shards", (health.driver, health.shards), (engine.driver(), 2))?;
    for answer in all((0..300).map(|_| engine.nop())).await {
        answer?;
    }
    let inner = engine.clone();
    let on_shard = engine.spawn_on_shard(1, Class::DEFAULT, move || async move {
        inner.nop().await?;
        inner.stats().await
    });
    let stats = on_shard.await??;
    same("shards that answered", stats.shards.len(), 2)?;
    holds("the shard that asks is busy", stats.shards[1].tasks >= 1 && stats.shards[1].turns > 0)?;
    let memory = engine.memory();
    holds("memory is within its limit", memory.arena_bytes <= memory.arena_bytes_max)
}

async fn settings_out_of_range_are_refused(env: &Env) -> Outcome {
    let engines = [
        ("no shard", env.restart(|config| config.shards(0))),
        ("65 shards", env.restart(|config| config.shards(65))),
        ("no queue", env.restart(|config| config.queue_depth(0))),
        ("a queue of 4,097", env.restart(|config| config.queue_depth(4097))),
        ("no inbox", env.restart(|config| config.inbox_depth(0))),
        (
            "a limit below the start",
            env.restart(|config| config.arena_bytes(2 << 20).arena_bytes_max(1 << 20)),
        ),
    ];
    for (what, engine) in engines {
        fails_with(what, engine, ErrorKind::InvalidInput)?;
    }
    Ok(())
}

async fn outside_of_shards_the_calls_of_shards_say_so(_: &Env) -> Outcome {
    fails_with("spawn", shard::spawn(async {}), ErrorKind::NotOnShard)?;
    let hour = Duration::from_secs(3600);
    fails_with("sleep", shard::sleep(hour).await, ErrorKind::NotOnShard)?;
    fails_with("timeout", shard::timeout(hour, pending::<()>()).await, ErrorKind::NotOnShard)?;
    shard::yield_now().await;
    shard::yield_if_needed().await;
    same("the class", shard::class(), Class::DEFAULT)
}
